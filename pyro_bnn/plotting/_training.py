"""Curves of what a fit recorded, by epoch."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .. import _checks
from ..history import History
from ._figures import check_ax, new_axes


def loss_curves(history: History, axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """The ELBO and its two terms by epoch, each on axes of its own.

    Args:
        history: The record of a fit.
        axes: Three axes: ELBO, data cost, complexity cost.
    """
    _checks.kind("history", history, History, "a History, such as `posterior.history`")
    if not history.epochs:
        raise ValueError("`history` must have at least one epoch, got none; draw it after a fit.")
    if axes is None:
        axes = new_axes(1, 3, size=(12, 3.2))[0]
    epochs = [record.epoch + 1 for record in history.epochs]
    per_datum = history.num_data or 1
    weights = {record.kl_weight for record in history.epochs}
    weight = f"{weights.pop():.3g}" if len(weights) == 1 else f"{min(weights):.3g} to {max(weights):.3g}"
    unit = "nats per data point" if history.num_data else "nats"
    curves = (
        (f"ELBO (trained with KL weight {weight})", [r.elbo / per_datum for r in history.epochs]),
        ("data cost: expected NLL", [-r.expected_log_likelihood / per_datum for r in history.epochs]),
        ("complexity cost: KL", [r.kl / per_datum for r in history.epochs]),
    )
    for ax, (title, values) in zip(axes, curves, strict=True):
        ax.plot(epochs, values, marker="." if len(epochs) < 40 else None)
        ax.set(title=title, xlabel="epoch", ylabel=unit)
        ax.grid(alpha=0.3)
    return axes


def accuracy_curves(
    train: Sequence[float],
    test: Sequence[float],
    *,
    published: tuple[Sequence[float], Sequence[float]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Accuracy at mean weights by epoch, on training and test data, beside published values if there are any.

    Args:
        train: Accuracy on training data after each epoch, from 0 to 1.
        test: Accuracy on test data after each epoch.
        published: Published accuracies on training and test data, drawn with broken lines.
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
    ax = ax or new_axes(1, 1, size=(5, 3.6))[0, 0]
    for pair, style, prefix in (((train, test), ".-", ""), (published or (), "x--", "published, ")):
        for accuracies, name, color in zip(pair, ("train", "test"), ("tab:blue", "tab:orange"), strict=False):
            percent = [100 * value for value in accuracies]
            ax.plot(range(1, 1 + len(percent)), percent, style, color=color, label=prefix + name)
    ax.set(xlabel="epoch", ylabel="accuracy at mean weights (%)")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)
    return ax
