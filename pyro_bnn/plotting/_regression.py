"""Pictures of predicted numbers at one-dimensional inputs."""

from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from torch import Tensor

from .. import _checks
from ..uncertainty import RegressionPrediction
from ._figures import check_ax, check_points, new_axes

EPISTEMIC, ALEATORIC = "tab:blue", "tab:green"


def regression_bands(
    x: Tensor,
    prediction: RegressionPrediction,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    num_scales: float = 2.0,
    ax: Axes | None = None,
) -> Axes:
    """Predictive mean with two bands: an inner one of epistemic, and an outer one of total uncertainty.

    Args:
        x: Inputs, shape (N, 1), in increasing order.
        prediction: The prediction at x, with one output.
        data: Training inputs and targets to show.
        num_scales: Half-width of both bands in standard deviations.
        ax: Axes to draw on.
    """
    _check(x, prediction, data, ax)
    _checks.positive("num_scales", num_scales)
    ax = ax or new_axes(1, 1, size=(6, 4))[0, 0]
    grid = x.flatten().cpu().numpy()
    mean = prediction.mean.flatten().cpu().numpy()
    inner = num_scales * prediction.epistemic.sqrt().flatten().cpu().numpy()
    outer = num_scales * prediction.total.sqrt().flatten().cpu().numpy()
    band = f"mean ± {num_scales:g} sd"
    ax.fill_between(grid, mean - outer, mean + outer, color=ALEATORIC, alpha=0.2, label=f"{band}, total")
    ax.fill_between(grid, mean - inner, mean + inner, color=EPISTEMIC, alpha=0.4, label=f"{band}, epistemic")
    ax.plot(grid, mean, color="black", linewidth=1.2, label="mean")
    if data is not None:
        points = (part.flatten().cpu().numpy() for part in data)
        ax.plot(*points, "x", color="tab:red", markersize=4, label="data")
    ax.set(xlabel="x", ylabel="y")
    ax.legend(fontsize=8)
    return ax


def predictive_density(
    x: Tensor,
    prediction: RegressionPrediction,
    y: Tensor,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The predictive density p(y | x) as an image, which can show several modes, unlike a mean with a band.

    Colours follow the square root of the density, so that broad and narrow parts can be seen side by side.

    Args:
        x: Inputs, shape (N, 1), in increasing order.
        prediction: The prediction at x, with one output, made with `keep_draws`.
        y: Points at which the density is evaluated, shape (G,), in increasing order.
        data: Inputs and targets to show.
        ax: Axes to draw on.
    """
    _check(x, prediction, data, ax)
    _checks.finite("y", _checks.rows("y", y))
    if y.dim() != 1 or len(y) < 2:
        raise ValueError(f"`y` must have shape (G,) with at least two points, got {_checks.shape(y)}.")
    ax = ax or new_axes(1, 1, size=(6, 4))[0, 0]
    density = prediction.log_prob(y.reshape(-1, *[1] * prediction.mean.dim())).exp()  # (G, N)
    image = ax.pcolormesh(
        *(part.cpu().numpy() for part in (x.flatten(), y, density)),
        cmap="magma",
        norm=PowerNorm(0.5, vmin=0),
        shading="gouraud",
    )
    ax.figure.colorbar(image, ax=ax, label="p(y | x)")
    if data is not None:
        points = (part.flatten().cpu().numpy() for part in data)
        ax.plot(*points, ".", color="white", markersize=1.5, alpha=0.5, label="data")
        ax.legend(fontsize=8, loc="upper left", labelcolor="white", framealpha=0.2)
    ax.set(xlabel="x", ylabel="y", xlim=(float(x.min()), float(x.max())), ylim=(float(y.min()), float(y.max())))
    return ax


def _check(x: object, prediction: object, data: object, ax: object) -> None:
    """Raise unless there is one input and one output per row, and the prediction is one at x."""
    x = _checks.rows("x", x)
    _checks.finite("x", x)
    _checks.kind("prediction", prediction, RegressionPrediction, "a prediction of numbers, the result of `predict`")
    assert isinstance(prediction, RegressionPrediction)
    rows = len(prediction)
    if x.numel() != rows or len(x) != rows or prediction.mean.numel() != rows or rows < 2:
        raise ValueError(
            f"`x` must have shape (N, 1) and `prediction` one number for each row, got {_checks.shape(x)} and means of "
            f"shape {_checks.shape(prediction.mean)}; choose one input and one output."
        )
    check_points(data)
    check_ax(ax)
