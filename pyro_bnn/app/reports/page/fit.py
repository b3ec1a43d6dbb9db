"""What a report says of the fit: how the training went, what the weights learned, and how to repeat it."""

import math
import platform
import shlex
import statistics
from datetime import datetime, timezone

import pyro
import torch

import pyro_bnn

from ....inference.guides import Diagnosis, MeanFieldGuide
from ....inference.history import History
from ....results import plotting, pruning
from .drawing import Picture, drawn, panel
from .numbers import count, percent, plural
from .section import Section, Verdict
from .subject import Subject
from .verdicts import NUM_ERRORS

__all__ = [
    "about_section",
    "configuration_section",
    "has_settled",
    "of_temperature",
    "of_weights",
    "training_section",
    "weights_section",
]

FEWEST_EPOCHS = 6
"""Heuristic: with fewer epochs, the last ones are also the first, and there is nothing to compare them with."""

LAST, FEWEST_LAST = 0.25, 3
"""The end of a training: its last quarter, of three epochs at least; a line through fewer has no standard error."""

STILL_FALLING = 0.01
"""Heuristic: a fall over the end of the training by less than this share of the whole fall is none."""

LOWERED = 0.1
"""A learning rate that was lowered to less than this share of its largest value makes any loss settle; heuristic."""

FEW_AT_PRIOR = 0.5
"""Heuristic: of a posterior that left the prior, fewer weights than this share are still there."""


# --- training ---------------------------------------------------------------------------------------------------------


def training_section(subject: Subject) -> Section | None:
    """The ELBO and its two terms by epoch, and whether the objective still fell at the end."""
    history = subject.posterior.history
    if not history.epochs:
        return None
    last, per_row = history.epochs[-1], history.num_data or 1
    unit = "nats per row of data" if history.num_data else "nats"
    values = {
        "ELBO": last.elbo / per_row,
        "data cost (expected NLL)": -last.expected_log_likelihood / per_row,
        "complexity cost (KL divergence)": last.kl / per_row,
    }
    axes = plotting.loss_curves(history, [panel() for _ in values])
    return Section(
        "Training",
        "training.html",
        {
            "num_epochs": len(history.epochs),
            "num_steps": len(history.elbo),
            "seconds": math.fsum(record.seconds for record in history.epochs),
            "last": values,
            "unit": unit,
            "is_standardised": subject.regressed is not None,
            "kl_weight": last.kl_weight,
            "pictures": [
                drawn(ax, alt=f"{name} by epoch: {value:.4g} {unit} at the end.")
                for ax, (name, value) in zip(axes, values.items(), strict=True)
            ],
        },
        (has_settled(history),),
    )


def of_temperature(history: History) -> tuple[Verdict, ...]:
    """That a posterior is colder or warmer than Bayes' rule says, if it is.

    Args:
        history: The record of the training.
    """
    kl_weight = history.epochs[-1].kl_weight if history.epochs else 1.0
    if kl_weight == 1:
        return ()
    kind, more = ("cold", "more") if kl_weight < 1 else ("warm", "less")
    text = (
        f"This is a {kind} posterior: the KL weight was {kl_weight:.3g}, where Bayes' rule has 1, so the weights are "
        f"{more} certain than the data and the prior make them."
    )
    rule = "Said if the KL weight at the end of the training is not 1."
    return (Verdict("note", "fit", f"a {kind} posterior (KL weight {kl_weight:.3g})", text, rule),)


def has_settled(history: History) -> Verdict:
    """Whether the objective, with the last KL weight throughout, still fell in the last quarter of the training."""
    num_epochs, weight = len(history.epochs), history.epochs[-1].kl_weight
    rule = (
        f"Note: there were fewer than {FEWEST_EPOCHS} epochs; or over the last quarter of them, a straight line "
        f"through the loss falls by more than {percent(STILL_FALLING, 0)} of the whole fall and by {NUM_ERRORS:g} "
        "standard errors."
    )
    if num_epochs < FEWEST_EPOCHS:
        text = (
            f"The training had {plural(num_epochs, 'epoch')} ({plural(len(history.elbo), 'step')}): too few to tell "
            "whether it had settled. Train for more epochs and compare."
        )
        return Verdict("note", "fit", "too few epochs to tell whether training had settled", text, rule)
    losses = [weight * record.kl - record.expected_log_likelihood for record in history.epochs]
    end = losses[-max(FEWEST_LAST, round(LAST * num_epochs)) :]
    fall, error = _fall(end)
    whole = losses[0] - statistics.fmean(end)
    share = fall / whole if whole > 0 else math.inf
    if fall > NUM_ERRORS * error and share > STILL_FALLING:
        by = f" by {percent(share)} of the whole fall" if whole > 0 else ""
        text = (
            f"The loss was still falling when the training ended: over the last {len(end)} epochs{by}. Train for more "
            "epochs."
        )
        return Verdict("note", "fit", "the loss was still falling", text, rule)
    rates = [record.learning_rate for record in history.epochs]
    lowered = rates[-1] < LOWERED * max(rates)
    why = "; the learning rate was lowered meanwhile, which makes any loss settle" if lowered else ""
    text = f"The training had settled: the loss hardly fell any more over the last {len(end)} epochs{why}."
    return Verdict("good", "fit", "", text, rule)


def _fall(values: list[float]) -> tuple[float, float]:
    """Fall of the straight line through equally distant values from the first to the last, and its standard error."""
    places = range(len(values))
    slope, start = statistics.linear_regression(places, values)
    rest = [value - start - slope * place for place, value in zip(places, values, strict=True)]
    spread = math.sqrt(math.fsum(r * r for r in rest) / (len(values) - 2))
    middle = statistics.fmean(places)
    error = spread / math.sqrt(math.fsum((place - middle) ** 2 for place in places))
    return -slope * (len(values) - 1), error * (len(values) - 1)


# --- weights ----------------------------------------------------------------------------------------------------------


def weights_section(subject: Subject) -> Section | None:
    """The diagnosis of the posterior, site by site, and the distribution of signal-to-noise ratios."""
    guide = subject.posterior.guide
    try:
        found = subject.posterior.diagnose(subject.model)
    except ValueError as error:  # no Gaussian marginals, or no weights
        return Section("Weights", "weights.html", {"found": None, "why": str(error)})
    values = {"found": found, **_signal_to_noise(guide)}
    return Section("Weights", "weights.html", values, of_weights(found))


def of_weights(found: Diagnosis) -> tuple[Verdict, ...]:
    """Whether the posterior collapsed to a point, or stayed at the prior."""
    shares = (
        f"{percent(found.share_at_prior)} of the weights are still at the prior, and {percent(found.share_collapsed)} "
        "collapsed to a point"
    )
    rule = (
        "Problem: what the diagnosis of the posterior warns of (most weights collapsed, or a layer at the prior). "
        f"Note: {percent(FEW_AT_PRIOR, 0)} of the weights or more are still at the prior, that is, learned under 0.2 "
        "nats."
    )
    if found.warnings:
        return tuple(
            Verdict("problem", "fit", f"posterior {text.partition(':')[0]}", text[:1].upper() + text[1:], rule)
            for text in found.warnings
        )
    if found.share_at_prior < FEW_AT_PRIOR:
        return (Verdict("good", "fit", "", f"Most weights learned from the data: {shares}.", rule),)
    text = f"Few weights learned from the data: {shares}. A smaller network, or a narrower prior, may do as well."
    return (Verdict("note", "fit", f"{percent(found.share_at_prior, 0)} of the weights learned nothing", text, rule),)


def _signal_to_noise(guide: object) -> dict[str, object]:
    """Pictures of the ratios, and how many weights pruning has removed; both for a mean-field guide only."""
    if not isinstance(guide, MeanFieldGuide):
        return {"removed": 0, "num_ratios": 0, "pictures": []}
    ratios = pruning.signal_to_noise(guide)
    every = torch.cat([ratio.detach().flatten().cpu() for ratio in ratios.values()])
    removed = sum(int((~guide.kept(site)).sum()) for site in ratios)
    levels = pruning.decibel(every[every > 0])
    pictures: list[Picture] = []
    if len(levels):
        below = percent(float((every < 1).double().mean()))
        alts = (
            (
                f"Density of the signal-to-noise ratios of {count(len(levels))} weights, median "
                f"{float(levels.median()):.1f} dB."
            ),
            f"Share of weights below each signal-to-noise ratio, by layer: {below} of all are below 0 dB.",
        )
        axes = plotting.signal_to_noise(ratios, [panel() for _ in alts])
        pictures = [drawn(ax, alt=alt) for ax, alt in zip(axes, alts, strict=True)]
    return {"removed": removed, "num_ratios": len(every), "pictures": pictures}


# --- how to repeat ----------------------------------------------------------------------------------------------------


def configuration_section(subject: Subject) -> Section:
    """The run's settings and data."""
    return Section("Configuration", "configuration.html", {"settings": subject.settings, "data": subject.data})


def about_section(subject: Subject) -> Section:
    """Versions, date, and commands."""
    report = ["pyro-bnn", "report", str(subject.run), "--num-samples", str(subject.num_samples)]
    report += ["--seed", str(subject.seed)]
    environment = {
        "pyro_bnn": pyro_bnn.__version__,
        "torch": torch.__version__,
        "Pyro": pyro.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(terse=True),
        "device": str(subject.model.device),
        "weight draws": f"{subject.num_samples}, seed {subject.seed}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
    values = {"commands": [subject.command, shlex.join(report)], "environment": environment}
    return Section("How to repeat", "about.html", values)
