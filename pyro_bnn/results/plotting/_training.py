"""Curves of what a fit recorded, by epoch."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..._core import checks as _checks
from ...inference.history import History
from ._figures import check_ax, check_axes, figure_of_width, inches
from ._style import BLACK, BLUE, DASHES, VERMILION, Width, styled

FEW = 40
"""Number of epochs below which each has a marker."""


@styled
def loss_curves(history: History, axes: Sequence[Axes] | None = None, *, width: Width = "page") -> Sequence[Axes]:
    """The ELBO and its two terms by epoch, each on axes of its own, in nats per row of the data.

    Args:
        history: The record of a fit.
        axes: Three axes: ELBO, data cost, complexity cost.
        width: Width of a new figure: panels are beside each other on a page, and one below the other in a column.
    """
    _checks.kind("history", history, History, "a History, such as `posterior.history`")
    if not history.epochs:
        raise ValueError("`history` must have at least one epoch, got none; draw it after a fit.")
    check_axes(axes, 3)
    is_stacked = axes is None and width == "column"
    if axes is None:
        figure = figure_of_width(width, 2.1 if width == "page" else 5.2)
        axes = figure.subplots(1, 3) if width == "page" else figure.subplots(3, 1, sharex=True)
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
        if is_stacked:
            ax.label_outer()
    return axes


@styled
def accuracy_curves(
    train: Sequence[float],
    test: Sequence[float],
    *,
    published: tuple[Sequence[float], Sequence[float]] | None = None,
    width: Width = "column",
    ax: Axes | None = None,
) -> Axes:
    """Accuracy at mean weights by epoch, on training and test data, beside published values if there are any.

    Args:
        train: Accuracy on training data after each epoch, from 0 to 1.
        test: Accuracy on test data after each epoch.
        published: Published accuracies on training and test data, drawn with broken lines.
        width: Width of a new figure.
        ax: Axes to draw on.
    """
    pairs = {"train": train, "test": test}
    if published is not None:
        both = _checks.items("published", published, "a pair of lists of accuracies")
        if len(both) != 2:
            raise ValueError(f"`published` must be a pair of lists of accuracies, got {len(both)}.")
        pairs |= {"published[0]": both[0], "published[1]": both[1]}
    for name, values in pairs.items():
        for value in _checks.items(name, values, "a list of accuracies from 0 to 1"):
            _checks.number(name, value)
    check_ax(ax)
    ax = ax or figure_of_width(width, 0.72 * inches(width)).subplots()
    for pair, dashes, mark, prefix in (((train, test), "-", "o", ""), (published or (), DASHES[1], "x", "published, ")):
        for accuracies, name, color in zip(pair, ("train", "test"), (BLUE, VERMILION), strict=False):
            percent = [100 * value for value in accuracies]
            epochs = range(1, 1 + len(percent))
            ax.plot(epochs, percent, linestyle=dashes, marker=mark, markersize=3, color=color, label=prefix + name)
    ax.set(xlabel="epoch", ylabel="accuracy at mean weights (%)")
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.legend(loc="lower right")
    return ax
