"""How the training went, and whether it had come to an end."""

import math
import statistics

from .... import plotting
from ....history import History
from .html import figure, figures, panel, paragraph
from .numbers import percent, plural
from .section import Section, Verdict
from .subject import Subject

__all__ = ["has_settled", "training_section"]

FEWEST_EPOCHS = 6
"""Heuristic: with fewer epochs, the last ones are also the first, and there is nothing to compare them with."""

LAST, FEWEST_LAST = 0.25, 3
"""The end of a training: its last quarter, of three epochs at least; a line through fewer has no standard error."""

STILL_FALLING = 0.01
"""Heuristic: a fall over the end of the training by less than this share of the whole fall is none."""

NOTICEABLE = 2.0
"""A fall of fewer standard errors than this is noise."""

LOWERED = 0.1
"""A learning rate that was lowered to less than this share of its largest value makes any loss settle; heuristic."""


def training_section(subject: Subject) -> Section | None:
    """The ELBO and its two terms by epoch, and whether the objective still fell at the end."""
    history = subject.posterior.history
    if not history.epochs:
        return None
    last = history.epochs[-1]
    per_row, unit = (history.num_data, "nats per row of data") if history.num_data else (1, "nats")
    names = ("ELBO", "data cost (expected NLL)", "complexity cost (KL divergence)")
    values = (last.elbo, -last.expected_log_likelihood, last.kl)
    axes = [panel() for _ in names]
    pictures = [
        figure(ax, alt=f"{name} by epoch: {value / per_row:.4g} {unit} at the end.")
        for ax, name, value in zip(plotting.loss_curves(history, axes), names, values, strict=True)
    ]
    seconds = math.fsum(record.seconds for record in history.epochs)
    words = paragraph(
        f"{plural(len(history.epochs), 'epoch')}, {plural(len(history.elbo), 'step')}, {seconds:.0f} s. In the last "
        f"epoch: ELBO {last.elbo / per_row:.4f}, NLL {-last.expected_log_likelihood / per_row:.4f}, KL divergence "
        f"{last.kl / per_row:.4f} {unit}{', of the standardised target' * (subject.regressed is not None)}."
    )
    return Section("Training", words + _temperature(last.kl_weight) + figures(*pictures), (has_settled(history),))


def _temperature(weight: float) -> str:
    if weight == 1:
        return paragraph("The KL weight was 1 at the end: the objective is the ELBO itself.")
    kind = "a cold posterior: it trusts the data more than Bayes' rule does" if weight < 1 else "a warm posterior"
    return paragraph(f"The KL weight was {weight:.3g} at the end, where 1 gives the ELBO. This is {kind}.")


def has_settled(history: History) -> Verdict:
    """Whether the objective, with the last KL weight throughout, still fell in the last quarter of the training."""
    num_epochs, weight = len(history.epochs), history.epochs[-1].kl_weight
    if num_epochs < FEWEST_EPOCHS:
        return Verdict(
            "note",
            f"The training had {plural(num_epochs, 'epoch')} ({plural(len(history.elbo), 'step')}): too few to tell "
            "whether it had settled. Train for more epochs and compare.",
        )
    losses = [weight * record.kl - record.expected_log_likelihood for record in history.epochs]
    end = losses[-max(FEWEST_LAST, round(LAST * num_epochs)) :]
    fall, error = _fall(end)
    whole = losses[0] - statistics.fmean(end)
    share = fall / whole if whole > 0 else math.inf
    rates = [record.learning_rate for record in history.epochs]
    if fall > NOTICEABLE * error and share > STILL_FALLING:
        return Verdict(
            "note",
            f"The loss was still falling when the training ended: over the last {len(end)} epochs by {percent(share)} "
            "of the whole fall. Train for more epochs.",
        )
    lowered = rates[-1] < LOWERED * max(rates)
    why = "; the learning rate was lowered meanwhile, which makes any loss settle" if lowered else ""
    return Verdict(
        "good", f"The training had settled: the loss hardly fell any more over the last {len(end)} epochs{why}."
    )


def _fall(values: list[float]) -> tuple[float, float]:
    """Fall of the straight line through equally distant values from the first to the last, and its standard error."""
    places = range(len(values))
    slope, start = statistics.linear_regression(places, values)
    rest = [value - start - slope * place for place, value in zip(places, values, strict=True)]
    spread = math.sqrt(math.fsum(r * r for r in rest) / (len(values) - 2))
    middle = statistics.fmean(places)
    error = spread / math.sqrt(math.fsum((place - middle) ** 2 for place in places))
    return -slope * (len(values) - 1), error * (len(values) - 1)
