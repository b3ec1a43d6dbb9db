"""Pictures of a fit: the ELBO, its two terms and the accuracy against the epoch."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..._core import checks as _checks
from ..._core.signatures import explained
from ...inference.history import History
from ...inference.posterior import EnsemblePosterior, Posterior
from ._figures import BLACK, BLUE, VERMILION, Width, items_of, one_axes, panels, styled

FEW = 40  # curves with fewer epochs have markers; the others have a moving average
SHARE_AVERAGED, PALE = 40, 0.3  # heuristic: the moving average is over one in 40 epochs; opacity of the curve behind it

FEWEST_CUT, FAR_WIDER = 10, 5  # heuristic: a curve with so many epochs, so much wider than its end, loses its beginning


@explained("loss_curves(posterior)")
@styled
def loss_curves(
    history: History | Posterior, axes: Sequence[Axes] | None = None, *, width: Width = "page"
) -> Sequence[Axes]:
    """Draw the ELBO and its two terms against the epoch, in nats per row of the data.

    If a curve changes far more in the first half of the epochs than in the second, the beginning of all curves is left
    out, and the labels of the axes say so. With many epochs, each curve is pale, and a line shows its moving average.

    Args:
        history: The record of a fit, or a posterior that has it.
        axes: Three axes: ELBO, expected NLL, KL divergence.
        width: Width of a new figure. Panels are side by side on a "page", and stacked in a "column".

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit(model, (x, 2 * x), method="svi", seed=0)
        >>> axes = pb.plotting.loss_curves(posterior)
        >>> axes[0].get_ylabel().splitlines()
        ['ELBO', 'nats per row']
    """
    if isinstance(history, Posterior):
        history = _history_of(history)
    if not isinstance(history, History):
        raise ValueError(
            f"`history` must be a History, or a posterior that has one, got {_checks.described(history)}; call "
            "`plotting.loss_curves(posterior)`."
        )
    if not history.epochs:
        raise ValueError("`history` must have at least one epoch, got none; call this function after a fit.")
    is_stacked = axes is None and width == "column"
    axes = panels(axes, 3, width, on_page=2.1, in_column=5.2)
    epochs = np.array([record.epoch + 1 for record in history.epochs])
    per_datum = history.num_data or 1
    weights = {record.kl_weight for record in history.epochs}
    weight = f"{weights.pop():.3g}" if len(weights) == 1 else f"{min(weights):.3g} to {max(weights):.3g}"
    unit = "nats per row" if history.num_data else "nats"
    curves = (
        ("ELBO", np.array([r.elbo / per_datum for r in history.epochs])),
        ("expected NLL", np.array([-r.expected_log_likelihood / per_datum for r in history.epochs])),
        ("KL divergence", np.array([r.kl / per_datum for r in history.epochs])),
    )
    if start := max(_start_of_end(values) for _, values in curves):
        start += int(-epochs[start] % 10 ** (len(str(len(epochs))) - 2))  # begin at a round number
    for ax, (name, values), color in zip(axes, curves, (BLACK, BLUE, VERMILION), strict=True):
        _draw(ax, epochs, values, color)
        ax.set(xlabel="epoch", ylabel=f"{name}\n{unit}")
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        if start:
            _show_end(ax, epochs[start:], values[start:])
        if is_stacked and ax is not axes[-1]:
            ax.set_xlabel("")
    if weight != "1":
        axes[0].set_title(f"KL weight in training: {weight}")
    return axes


def _draw(ax: Axes, epochs: np.ndarray, values: np.ndarray, color: str) -> None:
    """Draw a curve; if it has many epochs, draw it pale behind its moving average."""
    if len(epochs) < FEW:
        ax.plot(epochs, values, linestyle="-", marker=".", color=color)
        return
    ax.plot(epochs, values, linestyle="-", color=color, alpha=PALE, linewidth=0.8)
    half = len(epochs) // (2 * SHARE_AVERAGED)  # on each side of an epoch
    averages = np.convolve(values, np.full(2 * half + 1, 1 / (2 * half + 1)), "valid")
    ax.plot(epochs[half : len(epochs) - half], averages, linestyle="-", color=color)


def _start_of_end(curve: np.ndarray) -> int:
    """Return the index from which a curve stays near the range of its second half; 0 to show the whole curve."""
    end = curve[len(curve) // 2 :]
    if len(curve) < FEWEST_CUT or not np.isfinite(curve).all():
        return 0
    low, high, span = end.min(), end.max(), np.ptp(end)
    if not 0 < FAR_WIDER * span < np.ptp(curve):
        return 0
    is_far = (curve < low - span) | (curve > high + span)
    return int(is_far.nonzero()[0][-1]) + 1


def _show_end(ax: Axes, epochs: np.ndarray, values: np.ndarray) -> None:
    """Let both axes begin and end with the given part of the curve."""
    margin, space = 0.03 * np.ptp(epochs), 0.05 * np.ptp(values)
    ax.set_xlim(epochs[0] - margin, epochs[-1] + margin)
    if 0 < space < np.inf:
        ax.set_ylim(values.min() - space, values.max() + space)
    ax.set_xlabel(f"epoch (from {epochs[0]:,} on)")


def _history_of(posterior: Posterior) -> History:
    if posterior.history is not None:
        return posterior.history
    if isinstance(posterior, EnsemblePosterior):
        remedy = "draw those of one member, `plotting.loss_curves(posterior.members[0])`"
    else:
        remedy = 'read `print(posterior.status)`, or fit with `fit(model, data, method="svi")`'
    raise ValueError(f"`history` must have epochs, got a posterior of {posterior.method}, which has none; {remedy}.")


@explained("accuracy_curves(train, test)")
@styled
def accuracy_curves(
    train: Sequence[float], test: Sequence[float], *, width: Width = "column", ax: Axes | None = None
) -> Axes:
    """Draw the accuracy of the network with mean weights after each epoch, on training and test data.

    Args:
        train: Accuracy on training data after each epoch, from 0 to 1.
        test: Accuracy on test data after each epoch.
        width: Width of a new figure.
        ax: Axes to draw on.

    Example:
        >>> from pyro_bnn import plotting
        >>> ax = plotting.accuracy_curves([0.5, 0.8, 0.9], [0.5, 0.7, 0.8])
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('epoch', 'accuracy at mean weights (%)')
    """
    ax = one_axes(ax, width, 0.72)
    for name, values, color, marker in (("train", train, BLUE, "o"), ("test", test, VERMILION, "s")):
        accuracies = items_of(name, values, "a list of accuracies from 0 to 1")
        percent = [100 * _checks.number(name, value) for value in accuracies]
        epochs = range(1, 1 + len(percent))
        ax.plot(epochs, percent, color=color, linestyle="-", marker=marker, markersize=3, label=name)
    ax.set(xlabel="epoch", ylabel="accuracy at mean weights (%)")
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.legend(loc="lower right")
    return ax
