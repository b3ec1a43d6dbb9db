"""Pictures of a fit: the ELBO, its two terms and the accuracy against the epoch."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..._core import checks as _checks
from ..._core.signatures import explained
from ...inference.history import History
from ...inference.posterior import EnsemblePosterior, Posterior
from ._figures import BLACK, BLUE, VERMILION, Width, one_axes, panels, styled

FEW = 40
"""Curves with fewer epochs have markers."""

FEWEST_CUT, FAR_WIDER = 10, 5
"""Heuristic: limits for cutting off the beginning of curves.

Together, the curves must have at least `FEWEST_CUT` points, and their range must be more than `FAR_WIDER` times that of
their second halves.
"""


@explained("loss_curves(posterior)")
@styled
def loss_curves(
    history: History | Posterior, axes: Sequence[Axes] | None = None, *, width: Width = "page"
) -> Sequence[Axes]:
    """Draw the ELBO and its two terms against the epoch, in nats per row of the data.

    If a curve changes far more in the first half of the epochs than in the second, its beginning is cut off.

    Args:
        history: The record of a fit, or a posterior that has it.
        axes: Three axes: ELBO, data cost, complexity cost.
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
        >>> axes[0].get_xlabel()
        'epoch'
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
    epochs = [record.epoch + 1 for record in history.epochs]
    per_datum = history.num_data or 1
    weights = {record.kl_weight for record in history.epochs}
    weight = f"{weights.pop():.3g}" if len(weights) == 1 else f"{min(weights):.3g} to {max(weights):.3g}"
    unit = "nats per row" if history.num_data else "nats"
    curves = (
        (f"ELBO (KL weight in training: {weight})", [r.elbo / per_datum for r in history.epochs]),
        ("data cost: expected NLL", [-r.expected_log_likelihood / per_datum for r in history.epochs]),
        ("complexity cost: KL", [r.kl / per_datum for r in history.epochs]),
    )
    for ax, (title, values), color in zip(axes, curves, (BLACK, BLUE, VERMILION), strict=True):
        ax.plot(epochs, values, linestyle="-", marker="." if len(epochs) < FEW else None, color=color)
        ax.set(title=title, xlabel="epoch", ylabel=unit)
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        _show_end(ax)
        if is_stacked:
            ax.label_outer()
    return axes


def _show_end(ax: Axes) -> None:
    """Cut off the beginning of curves that have a far wider range than their second halves.

    The vertical axis then shows the range of the second halves, and up to as much space again above and below it.
    """
    curves = [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]
    ends = np.concatenate([curve[len(curve) // 2 :] for curve in curves])
    every = np.concatenate(curves)
    if len(every) < FEWEST_CUT or not np.isfinite(every).all():
        return
    low, high, span = ends.min(), ends.max(), np.ptp(ends)
    if 0 < FAR_WIDER * span < np.ptp(every):
        ax.set_ylim(max(low - span, every.min() - 0.1 * span), min(high + span, every.max() + 0.1 * span))


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
    for name, values, color in (("train", train, BLUE), ("test", test, VERMILION)):
        accuracies = _checks.items(name, values, "a list of accuracies from 0 to 1")
        percent = [100 * _checks.number(name, value) for value in accuracies]
        epochs = range(1, 1 + len(percent))
        ax.plot(epochs, percent, linestyle="-", marker="o", markersize=3, color=color, label=name)
    ax.set(xlabel="epoch", ylabel="accuracy at mean weights (%)")
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.legend(loc="lower right")
    return ax
