"""Pictures of regressions with one input."""

from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from torch import Tensor

from ..._core import checks as _checks
from ..._core.signatures import explained
from ...scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from ._figures import BLACK, BLUE, DASHES, ORANGE, VERMILION, Width, flat, one_axes, points_of, styled

EPISTEMIC_FILL, EPISTEMIC_EDGE = "#A6CFE8", BLUE
TOTAL_FILL, TOTAL_EDGE = "#FFF3DC", ORANGE  # fills differ in grey print, too: luminances 0.59 and 0.90


@explained("regression_bands(x, prediction)")
@styled
def regression_bands(
    x: Tensor,
    prediction: RegressionPrediction,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    truth: Tensor | None = None,
    num_scales: float = 2.0,
    width: Width = "column",
    ax: Axes | None = None,
) -> Axes:
    """Draw the predictive mean, a darker band of epistemic uncertainty, and around it a band of total uncertainty.

    Args:
        x: Inputs, shape (N, 1), in increasing order.
        prediction: The prediction at x, with one output.
        data: Training inputs and targets to show.
        truth: The true means at x, shape (N, 1).
        num_scales: Half the width of a band, in standard deviations.
        width: Width of a new figure.
        ax: Axes to draw on.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> prediction = pb.predict(model, pb.fit_laplace(model, (x, 2 * x)), x, seed=0)
        >>> ax = pb.plotting.regression_bands(x, prediction, data=(x, 2 * x))
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('x', 'y')
    """
    _check(x, prediction, "regression_bands(x, prediction)")
    points = points_of(data)
    _checks.positive("num_scales", num_scales)
    if truth is not None and _checks.tensor("truth", truth).numel() != x.numel():
        raise ValueError(f"`truth` must have one number for each row of `x`, got shape {_checks.shape(truth)}.")
    ax = one_axes(ax, width, 0.72)
    grid, mean = flat(x), flat(prediction.mean)
    for variance, fill, edge, dashes, name in (
        (prediction.total, TOTAL_FILL, TOTAL_EDGE, DASHES[1], "total"),
        (prediction.epistemic, EPISTEMIC_FILL, EPISTEMIC_EDGE, "-", "epistemic"),
    ):
        half, label = num_scales * flat(variance.sqrt()), f"± {num_scales:g} sd, {name}"
        # An empty patch for the legend. Edges of the band itself would also have lines at the ends of the grid.
        ax.fill([], [], facecolor=fill, edgecolor=edge, linewidth=0.8, linestyle=dashes, label=label)
        ax.fill_between(grid, mean - half, mean + half, facecolor=fill, linewidth=0)
        for end in (mean - half, mean + half):
            ax.plot(grid, end, color=edge, linewidth=0.8, linestyle=dashes)
    ax.plot(grid, mean, "-", color=BLACK, linewidth=0.9, label="mean")  # thin: a band of two points still shows
    if truth is not None:
        ax.plot(grid, flat(truth), color=VERMILION, linestyle=DASHES[2], label="truth")
    if points is not None:
        (shown,) = ax.plot(*points, ".", color=BLACK, markersize=4, markeredgecolor="white", markeredgewidth=0.3)
        shown.set(label="data", zorder=1.9)  # below the mean and the edges of the bands
    ax.set(xlabel="x", ylabel="y", xlim=(float(grid.min()), float(grid.max())))
    _add_legend(ax)
    return ax


@explained("predictive_density(x, prediction, torch.linspace(-3, 3, 100))")
@styled
def predictive_density(
    x: Tensor,
    prediction: RegressionPrediction,
    y: Tensor,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    width: Width = "column",
    ax: Axes | None = None,
) -> Axes:
    """Draw the predictive density p(y | x) as an image, which can show several modes.

    Colours are square roots of densities, so that broad and narrow parts are visible.

    Args:
        x: Inputs, shape (N, 1), in increasing order.
        prediction: The prediction at x, with one output, made with `keep_draws`.
        y: Points at which the density is evaluated, shape (G,), in increasing order.
        data: Inputs and targets to show.
        width: Width of a new figure.
        ax: Axes to draw on.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> prediction = pb.predict(model, pb.fit_laplace(model, (x, 2 * x)), x, seed=0)
        >>> y = torch.linspace(-3, 3, 50)
        >>> ax = pb.plotting.predictive_density(x, prediction, y)
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('x', 'y')
    """
    _check(x, prediction, "predictive_density(x, prediction, y)")
    points = points_of(data)
    _checks.finite("y", _checks.rows("y", y))
    if y.dim() != 1 or len(y) < 2:
        raise ValueError(f"`y` must have shape (G,) with at least two points, got {_checks.shape(y)}.")
    ax = one_axes(ax, width, 0.72)
    density = prediction.log_prob(y.reshape(-1, *[1] * prediction.mean.dim())).exp()  # (G, N)
    image = ax.pcolormesh(
        flat(x),
        flat(y),
        density.cpu().numpy(),
        cmap="Blues",
        norm=PowerNorm(0.5, vmin=0),
        shading="gouraud",
        rasterized=True,  # a PDF of a million triangles would be large
    )
    ax.figure.colorbar(image, ax=ax, label="p(y | x)").outline.set_linewidth(0.5)
    if points is not None:
        ax.plot(
            *points, ".", color=VERMILION, markersize=4.5, markeredgecolor="white", markeredgewidth=0.3, label="data"
        )
        ax.legend(loc="upper left", markerscale=2)
    ax.set(xlabel="x", ylabel="y", xlim=(float(x.min()), float(x.max())), ylim=(float(y.min()), float(y.max())))
    return ax


def _add_legend(ax: Axes) -> None:
    """Make room at the top for a legend, which has one row on wide axes."""
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    width, height = box.width / dpi, box.height / dpi
    num_columns = 5 if width > 5 else 2 if width > 2.2 else 1
    num_rows = -(-len(ax.get_legend_handles_labels()[0]) // num_columns)
    strip = min((0.16 * num_rows + 0.06) / height, 0.5)  # rows of letters of 8 points, in inches
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, bottom + (top - bottom) / (1 - strip))
    ax.legend(ncols=num_columns, loc="upper center")


def _check(x: object, prediction: object, call: str) -> None:
    """Raise unless inputs and prediction have one number in each row. The message suggests `call`."""
    if isinstance(x, Prediction):
        raise ValueError(
            f"`x` must be the inputs, a tensor of shape (N, 1), got {_checks.described(x)}; the prediction is the "
            f"second argument: call `plotting.{call}`."
        )
    x = _checks.rows("x", x)
    _checks.finite("x", x)
    if isinstance(prediction, ClassificationPrediction):
        raise ValueError(
            "`prediction` must be a prediction of numbers, got ClassificationPrediction; for classes call "
            "`plotting.reliability_diagram(prediction, y)` with the labels y."
        )
    _checks.kind("prediction", prediction, RegressionPrediction, "a prediction of numbers, the result of `predict`")
    assert isinstance(prediction, RegressionPrediction)
    rows = len(prediction)
    if x.numel() != rows or len(x) != rows or prediction.mean.numel() != rows or rows < 2:
        raise ValueError(
            f"`x` must have shape (N, 1) and `prediction` one number for each row, got {_checks.shape(x)} and means of "
            f"shape {_checks.shape(prediction.mean)}; choose one input and one output."
        )
