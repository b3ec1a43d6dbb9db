"""The report's sections on the training, on the weights' posterior, and on how to repeat the run."""

import math
import platform
import shlex
import statistics
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import Any

import pyro
import torch
from scipy.stats import linregress

import pyro_bnn

from ...._core.summary import counted
from ....inference.guides import Diagnosis, MeanFieldGuide
from ....inference.history import History
from ....inference.posterior import Status
from ....results import plotting, pruning
from ...chains import OF_NET
from ...config import RunConfig, option_of, settings
from ...numbers import percent
from ...remedies import MORE, MORE_EPOCHS, TOO_EARLY, limit_in
from ...runs import cut_short, is_chains
from ...starting import NUM_STEPS, VARIATIONAL, method_for
from ..pictures import Drawing, panel
from .section import Section, Verdict, sentence
from .subject import Subject
from .verdicts import NUM_ERRORS

FEWEST_EPOCHS = 6  # heuristic: with fewer, it cannot be judged whether the training had settled
LAST, FEWEST_LAST = 0.25, 3
"""The end of a training: this share of its epochs, but at least three epochs, since a line is fitted to them."""

STILL_FALLING = 0.01  # heuristic: a loss has settled if its fall at the end is less than this share of the whole
LOWERED = 0.1  # heuristic: any loss settles if the learning rate falls below this share of the largest one
SHORT = 0.5  # heuristic: with a lowered learning rate, a training needs this share of the default steps
FEW_AT_PRIOR = 0.5  # heuristic: a posterior is good if less than this share of the weights is at the prior
UNSET = {"time_limit": "none", "calibrate": "none", "test_fraction": "none", "features": "all", "split_by": "at random"}
"""The report's words for settings that are empty or zero because the user left them out."""


def training_section(subject: Subject) -> Section | None:
    """Make the section on training: the ELBO and its two terms by epoch, and whether the loss was still falling."""
    history = subject.history
    if history is None or not history.epochs:
        return None
    last, per_row = history.epochs[-1], history.num_data or 1
    values = {
        "ELBO": last.elbo / per_row,
        "expected NLL": -last.expected_log_likelihood / per_row,
        "KL divergence": last.kl / per_row,
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
            "unit": "nats per row of data" if history.num_data else "nats",
            "is_in_units": subject.regressed is not None,
            "pictures": [Drawing(ax) for ax in axes],
        },
        (of_length(subject.config, history, subject.posterior.status),),
        is_folded=True,
    )


def of_length(config: RunConfig, history: History, status: Status) -> Verdict:
    """Judge whether a variational training was long enough. The commands `train` and `report` call this function."""
    longer = {"time_limit": limit} if (limit := limit_in(status.remedy)) else {}
    if done := cut_short(config, history):
        rule = "Reported if the time limit ended the training."
        text = f"{sentence(done)}. {status.remedy}"
        return Verdict("note", "limit", done, text, rule, is_cause=True, changes=longer)
    usual_steps, num_epochs = 0 if config.kind == "images" else NUM_STEPS, len(history.epochs)
    verdict = has_settled(history, usual_steps)
    if status.ok is False:
        short = TOO_EARLY if TOO_EARLY in status.message.lower() else status.message.rstrip(".")
        verdict = replace(verdict, level="note", about="limit", short=short, text=sentence(f"{status}"), is_cause=True)
        if longer:
            return replace(verdict, changes=longer)
    if verdict.level == "good":
        return verdict
    usual_epochs = math.ceil(usual_steps * num_epochs / len(history.elbo))
    return replace(verdict, changes={"epochs": max(MORE * num_epochs, FEWEST_EPOCHS, usual_epochs)})


def of_temperature(history: History) -> tuple[Verdict, ...]:
    """Return a note if the KL weight was not 1: the posterior is then colder or warmer than in Bayes' rule."""
    kl_weight = history.epochs[-1].kl_weight if history.epochs else 1.0
    if kl_weight == 1:
        return ()
    kind, more = ("cold", "more") if kl_weight < 1 else ("warm", "less")
    text = (
        f"This is a {kind} posterior: the KL weight was {kl_weight:.3g}, where Bayes' rule has 1, so the weights are "
        f"{more} certain than the data and the prior imply."
    )
    rule = "Reported if the KL weight at the end of the training is not 1."
    return (Verdict("note", "fit", f"a {kind} posterior (KL weight {kl_weight:.3g})", text, rule),)


def has_settled(history: History, usual_steps: int = 0) -> Verdict:
    """Judge whether the loss still fell at the end of training.

    `usual_steps` is the default number of steps, or 0 if there is no default.
    """
    num_epochs, weight = len(history.epochs), history.epochs[-1].kl_weight
    epochs, steps = counted(num_epochs, "epoch"), counted(len(history.elbo), "step")
    rule = (
        f"Note: the objective still rose over the last steps, there were fewer than {FEWEST_EPOCHS} epochs, or a "
        "straight line through the loss in the last quarter of the epochs falls by more than "
        f"{percent(STILL_FALLING, 0)} of the whole fall and {NUM_ERRORS:g} standard errors; for tables and arrays, "
        f"also if less than {percent(SHORT, 0)} of the default number of steps were made, and the learning rate was "
        "lowered."
    )
    if num_epochs < FEWEST_EPOCHS:
        text = f"The training had {epochs} ({steps}): too few to tell whether the loss had settled. {MORE_EPOCHS}"
        return Verdict(
            "note", "limit", "too few epochs to tell whether training had settled", text, rule, is_cause=True
        )
    losses = [weight * record.kl - record.expected_log_likelihood for record in history.epochs]
    end = losses[-max(FEWEST_LAST, round(LAST * num_epochs)) :]
    line, length = linregress(range(len(end)), end), len(end) - 1
    fall, error = -line.slope * length, line.stderr * length
    whole = losses[0] - statistics.fmean(end)
    share = fall / whole if whole > 0 else math.inf
    if fall > NUM_ERRORS * error and share > STILL_FALLING:
        by = f" by {percent(share)} of the whole fall" if whole > 0 else ""
        text = f"{sentence(TOO_EARLY)}: the loss still fell over the last {len(end)} epochs{by}. {MORE_EPOCHS}"
        return Verdict("note", "limit", TOO_EARLY, text, rule, is_cause=True)
    rates = [record.learning_rate for record in history.epochs]
    is_lowered = rates[-1] < LOWERED * max(rates)
    flat = f"the loss hardly fell any more over the last {len(end)} epochs"
    if is_lowered and len(history.elbo) < SHORT * usual_steps:
        short = f"only {epochs} ({steps}; the default is {usual_steps:,})"
        text = (
            f"The training had {short}. At its end {flat}, but the learning rate was lowered by then, which makes any "
            f"loss settle. {MORE_EPOCHS}"
        )
        return Verdict("note", "limit", f"the training had {short}", text, rule, is_cause=True)
    why = ", while the learning rate was lowered as planned" if is_lowered else ""
    text = f"The training had settled: {flat}{why}."
    return Verdict("good", "fit", "", text, rule)


def weights_section(subject: Subject) -> Section | None:
    """Make the section on weights: the diagnosis of each tensor, and the distribution of signal-to-noise ratios."""
    if is_chains(subject.posterior):
        return None
    try:
        found = subject.posterior.diagnose(subject.model)
    except ValueError as error:  # the guide has no Gaussian marginals, or there are no weights
        return Section("Weights", "weights.html", {"found": None, "why": str(error)}, is_folded=True)
    return Section(
        "Weights",
        "weights.html",
        {"found": found, **_signal_to_noise(subject.posterior.guide)},
        of_weights(found, is_trained=not cut_short(subject.config, subject.posterior.history)),
        is_folded=True,
    )


def of_weights(found: Diagnosis, *, is_trained: bool = True) -> tuple[Verdict, ...]:
    """Judge whether the weights collapsed to point estimates, or stayed at the prior."""
    rule = (
        "Problem: the diagnosis of the posterior has a warning (most weights collapsed, or a layer is at the prior). "
        f"Note: {percent(FEW_AT_PRIOR, 0)} of the weights or more are still at the prior. Such a weight learned less "
        "than 0.2 nats. The note is no fault if the test rows show none of the predictions and their uncertainty."
    )
    if found.warnings:
        return tuple(
            Verdict("problem", "fit", f"posterior {text.partition(':')[0]}", sentence(text), rule)
            for text in found.warnings
        )
    shares = (
        f"{percent(found.share_at_prior)} of the weights are still at the prior, and {percent(found.share_collapsed)} "
        "collapsed to a point"
    )
    if found.share_at_prior < FEW_AT_PRIOR:
        learned = (
            f"Most weights learned from the data ({percent(1 - found.share_at_prior)}); the others "
            f"({percent(found.share_at_prior)}) are still at the prior."
        )
        if not found.share_at_prior:
            learned = "All weights learned from the data."
        collapsed = f"{percent(found.share_collapsed)} of all weights" if found.share_collapsed else "None"
        good = Verdict("good", "fit", "", f"{learned} {collapsed} collapsed to a point.", rule)
        return (good,) if is_trained else ()  # weights differ from the prior even before the end of training
    text = f"Few weights learned from the data: {shares}. A smaller network or a narrower prior may predict as well."
    return (
        Verdict("note", "weights", f"{percent(found.share_at_prior, 0)} of the weights learned nothing", text, rule),
    )


def _signal_to_noise(guide: object) -> dict[str, object]:
    """Return pictures of the signal-to-noise ratios of a mean-field guide, and the number of pruned weights."""
    if not isinstance(guide, MeanFieldGuide):
        return {"removed": 0, "pictures": []}
    ratios = pruning.signal_to_noise(guide)
    every = torch.cat([ratio.detach().flatten().cpu() for ratio in ratios.values()])
    levels = pruning.decibel(every[every > 0])
    return {
        "removed": sum(int((~guide.kept(site)).sum()) for site in ratios),
        "num_ratios": len(every),
        "num_shown": len(levels),
        "median": float(levels.median()) if len(levels) else 0.0,
        "below": float((every < 1).double().mean()),
        "pictures": [Drawing(ax) for ax in plotting.signal_to_noise(ratios, [panel(), panel()])] if len(levels) else [],
    }


def configuration_section(subject: Subject) -> Section:
    """Make the section that lists the settings of the run and describes its data."""
    config = subject.config
    used = {
        name.replace("_", " "): _words(value) if value or name not in UNSET else UNSET[name]
        for name, value in asdict(config).items()
        if not _is_unused(config, name) and config.kind in settings()[name].kinds
    }
    if _is_auto(subject):
        used |= {"method": f"auto, which chose {config.method}"}
    if is_chains(subject.posterior) and not config.time_limit:
        used |= {"time limit": "none given: the number of rows determined the time"}
    return Section("Configuration", "configuration.html", {"settings": used, "data": subject.data}, is_folded=True)


def _is_auto(subject: Subject) -> bool:
    """Return whether the user left the choice of the method to the program."""
    return bool(subject.asked) and subject.config.kind != "images" and method_for(subject.asked) == "auto"


def _is_unused(config: RunConfig, name: str) -> bool:
    """Return whether a setting has no effect on a run with the settings in `config`."""
    return (name in OF_NET and config.net != "mlp") or (name in VARIATIONAL and config.method != "svi")


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (", ".join(map(str, value)) if isinstance(value, tuple) else str(value)) or "none"


def about_section(subject: Subject) -> Section:
    """Make the section on how to repeat the run, with commands, versions and the date."""
    again = subject.run.with_name(f"{subject.run.name}-again")
    options = ["--num-samples", str(subject.num_samples), "--seed", str(subject.seed)]
    environment = {
        "pyro_bnn": pyro_bnn.__version__,
        "torch": torch.__version__,
        "Pyro": pyro.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(terse=True),
        "device": str(subject.model.device),
        "draws of the weights": f"{subject.num_samples}, seed {subject.seed}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
    posterior, config = subject.posterior, subject.config
    commands = [training_command(subject, "again"), shlex.join(["pyro-bnn", "report", str(again), *options])]
    values = {
        "commands": commands if subject.asked else [],  # the settings of other runs are not known to be options
        "has_limit": config.time_limit > 0,
        "environment": environment,
        "is_timed": config.time_limit > 0 and (is_chains(posterior) or bool(cut_short(config, posterior.history))),
        "num_epochs": 0 if is_chains(posterior) else len(posterior.history.epochs),
        "most_epochs": config.epochs,
    }
    return Section("How to repeat", "about.html", values, is_folded=True)


def training_command(subject: Subject, ending: str, changes: Mapping[str, Any] | None = None) -> str:
    """Return the command with which the user trained the run, with its seed, `changes`, and a new folder."""
    config, changes = subject.config, changes or {}
    asked = {**subject.asked, "seed": config.seed, **changes}
    if config.net != "mlp":
        asked["net"] = config.net  # with the whole path
    if config.kind != "images" and VARIATIONAL & changes.keys():
        asked["method"] = "svi"
    if "epochs" in changes:  # they end the fit, so a limit would only make the result depend on the machine
        asked.pop("time_limit", None)
    options = [part for name, value in asked.items() if value is not None for part in _option(name, value)]
    run = subject.run.with_name(f"{subject.run.name}-{ending}")
    return shlex.join(["pyro-bnn", "train", config.dataset, *options, "--out", str(run)])


def longer(subject: Subject) -> dict[str, Any]:
    """Return the settings of a longer training, or {} if it would not help."""
    posterior = subject.posterior
    if is_chains(posterior):
        limit = limit_in(posterior.status.remedy)
        return {"time_limit": limit} if limit else {}
    return {"epochs": max(MORE * len(posterior.history.epochs), FEWEST_EPOCHS)}


def _option(name: str, value: object) -> list[str]:
    option = option_of(name)
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    if isinstance(value, list | tuple):
        return [option, ",".join(map(str, value))]
    return [option, str(value).removesuffix(".0") if isinstance(value, float) else str(value)]
