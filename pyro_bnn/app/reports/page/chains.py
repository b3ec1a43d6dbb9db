"""The report's section on chains: their diagnostics, and what each chain predicts."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ...._core.summary import counted
from ....inference.mcmc import LARGEST_WITHIN, MOST_DIVERGING, MCMCPosterior, Modes
from ....results import plotting
from ...chains import (
    CLOSE_CLASSES,
    CLOSE_NUMBERS,
    HARDLY,
    SLIGHTLY_SHORT,
    Drift,
    doubt_on,
    fault_of,
    finding_on,
    has_one_mode,
)
from ...config import LEVEL, RunConfig
from ...numbers import percent
from ...remedies import limit_in
from ...runs import is_chains
from ..pictures import Drawing, panel
from .section import Section, Verdict, judged, sentence
from .subject import Subject


def chains_section(subject: Subject) -> Section | None:
    """Make the section on chains: their choice, their diagnostics, and what each chain predicts."""
    posterior = subject.posterior
    if not is_chains(posterior):
        return None
    picture = _chains_apart(subject)
    values = {
        "chosen": "" if subject.choice is None else subject.choice.sentence,
        "status": posterior.status.message,
        "diagnostics": diagnostics_of(
            posterior, subject.modes, subject.change, has_one_mode=has_one_mode(subject.config)
        ),
        "num_chains": posterior.num_chains,
        "num_draws": posterior.num_stored // posterior.num_chains,
        "seconds": posterior.seconds or 0.0,
        "pictures": [] if picture is None else [picture],
        "shown": "average" if subject.regressed is None else f"{percent(LEVEL, 0)} interval",
    }
    verdicts = (of_chains(subject.config, posterior, subject.modes, subject.change), *of_choice(subject))
    return Section("Chains", "chains.html", values, verdicts, is_folded=True)


def _chains_apart(subject: Subject) -> Drawing | None:
    """Draw what each chain predicts for a few test rows, beside the average or the intervals of all chains."""
    if subject.by_chain is None:
        return None
    rows, means = (part.cpu() for part in subject.by_chain)
    ax, places, found, average = panel(), torch.arange(len(rows)), subject.regressed, means.mean(0)
    if found is None:
        low, high, shown = 0 * average, average, "average"
        ax.set(ylabel="probability of the\nmost probable class", ylim=(0, 1.02))
    else:  # without the average, dots stay apart even where predictions of the rows differ much
        low, high = (end - average for end in found.interval(LEVEL)[:, rows, 0].cpu())
        means, shown = means - average, f"{percent(LEVEL, 0)} interval"
        ax.set_ylabel(f"predicted {found.names[0]}\nminus the average")
        ax.use_sticky_edges = False  # there is space below the bars
    ax.bar(places, high - low, 0.8, low, color="0.85", label=shown)
    beside = torch.linspace(-0.32, 0.32, len(means))  # the dots of a test row stand beside each other
    ax.plot(places[:, None] + beside, means.T, "o", markersize=2, color=plotting.PALETTE[0])
    ax.lines[0].set_label("one chain")
    ax.set(xlabel="test rows, sorted by their prediction", xticks=[])
    with plotting.style():
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)  # above the data
    return Drawing(ax)


def diagnostics_of(
    posterior: MCMCPosterior, modes: Modes | None, change: Drift | None = None, *, has_one_mode: bool = False
) -> Sequence[tuple[str, str, str, str]]:
    """Return for each diagnostic its name, its value, its threshold, and a verdict in words."""
    statistics, limit = posterior.statistics, f"at most {LARGEST_WITHIN:g}"
    divergences = "not reported", "unknown"
    if statistics.share_diverging is not None:
        few = "too many: the steps were too long" if statistics.has_many_diverging else "few enough"
        of_all = f"{statistics.num_diverging} of {posterior.num_stored:,} ({percent(statistics.share_diverging)})"
        divergences = of_all, few
    rows = [("draws with a divergent step", divergences[0], f"at most {percent(MOST_DIVERGING, 0)}", divergences[1])]
    if modes is None:
        return [*rows, ("largest R-hat of a chain's halves", "unknown", limit, "too few draws to tell")]
    count = counted(posterior.num_chains, "chain")
    explored = "each chain has explored its mode"
    if modes.num_unexplored:
        helps = "; more time helps" if limit_in(posterior.status.remedy) else ""
        explored = f"{modes.num_unexplored} of {count} too short to explore a mode{helps}"
        if posterior.status.is_slight:
            explored = f"{modes.num_unexplored} of {count} short, harmless to the predictions"
    moved = []
    if change is not None:
        close = percent(CLOSE_CLASSES if change.is_class else CLOSE_NUMBERS, 0)
        of = "probability" if change.is_class else "sd"
        harmless = "hardly any" if change.is_small else "the predictions may change with longer sampling"
        moved = [
            ("change of predictions between halves", percent(change.mean), f"at most {close} of the {of}", harmless)
        ]
    agreed = {
        "short": "unclear until each chain has explored its mode",
        "disagreeing": "the chains are too short: a linear model has one mode, so they must agree",
        "in modes": "no fault: the chains are in different modes of the posterior",
    }.get(finding_on(modes, has_one_mode=has_one_mode), "the chains agree")
    if modes.between <= LARGEST_WITHIN:
        agreed = "the chains agree"
    between = "no limit: the part of the uncertainty that lies between chains, which all count equally"
    return [
        *rows,
        ("largest R-hat of a chain's halves", f"{modes.within.max():.2f}", limit, explored),
        *moved,
        (
            "largest R-hat between chains",
            f"{modes.between:.2f}",
            limit if has_one_mode else f"{limit} if they agree",
            agreed,
        ),
        ("variance of the predictions between chains", percent(modes.share, 0), "none", between),
    ]


def of_choice(subject: Subject) -> tuple[Verdict, ...]:
    """Return a note if the time did not suffice to compare all networks."""
    num_slow, num_networks = (0, 0) if subject.choice is None else subject.choice.not_compared
    if not num_slow:
        return ()
    status = subject.posterior.status
    limit = limit_in(status.remedy)
    were = "was" if num_slow == 1 else "were"
    short = f"{num_slow} of {num_networks} networks {were} not compared, for lack of time"
    remedy = status.remedy if status or status.is_slight else ""  # otherwise the verdict on the chains has it
    rule = "Reported if the time limit ended the comparison of networks on held-out training rows."
    changes = {"time_limit": limit} if limit else {}
    return (Verdict("note", "limit", short, f"{short}. {remedy}".rstrip(), rule, is_cause=True, changes=changes),)


def _size_of(change: Drift) -> str:
    return f"{percent(change.mean)} of the {'probability' if change.is_class else 'predicted sd'}"


def of_chains(config: RunConfig, posterior: MCMCPosterior, modes: Modes | None, change: Drift | None = None) -> Verdict:
    """Judge whether draws diverged, and whether every chain has explored its mode."""
    rule = (
        f"Problem: more than {percent(MOST_DIVERGING, 0)} of the draws diverged. Note: R-hat between the two halves of "
        f"a chain is above {LARGEST_WITHIN} for the prediction of some training row. Longer sampling should change "
        f"little if this R-hat is at most {SLIGHTLY_SHORT}, and all first halves together give almost the same "
        "predictions and widths of intervals as all second halves. Another note: R-hat between the chains of a linear "
        "model is too large, since such a model has one mode. It is no fault if more time would hardly help, and the "
        "test rows show no fault of the predictions and their uncertainty."
    )
    count, share = counted(posterior.num_chains, "chain"), posterior.statistics.share_diverging
    diverged = "the sampler does not report divergences" if share is None else f"{percent(share)} of the draws diverged"
    level, finding = fault_of(posterior)[0], finding_on(modes, has_one_mode=has_one_mode(config))
    apart = "the chains are too short: they disagree, but a linear model has one mode"
    between = "" if modes is None else f" (R-hat between chains is {modes.between:.2f})"
    few = "" if modes is None else modes.unexplored
    unknown = "too few draws to tell whether the chains have explored their modes"
    doubt, longer = doubt_on(posterior.status), limit_in(posterior.status.remedy)
    is_calm = finding in ("short", "disagreeing") and (posterior.status.is_slight or not longer)
    calm = few if finding == "short" else apart
    if change is not None and posterior.status.is_slight:
        doubt += f" (from the first to the second halves, they change by {_size_of(change)})"
    more = (
        "The sampler would need longer to be exact. The scores on test rows tell how good the predictions and "
        "intervals are. "
        f"{posterior.status.remedy}"
    )
    verdict = judged(
        "chains" if is_calm and level != "problem" else "fit",
        rule,
        (level == "problem", "problem", "the chains are in trouble", posterior.status.message),
        (finding == "unknown", "note", unknown, f"{sentence(unknown)}. {more}"),
        (is_calm, "note", calm, f"{sentence(calm)}, {doubt}."),
        (finding == "short", "note", f"{few}, {doubt}", f"{few}, {doubt}. {more}"),
        (finding == "disagreeing", "note", apart, f"{sentence(apart)}{between}. {more}"),
        (True, "good", "", f"The chains ran long enough: each of {count} has explored its mode, and {diverged}."),
    )
    if verdict.level != "note" or is_calm:
        return verdict
    return replace(verdict, is_cause=True, is_named=True, changes={"time_limit": longer} if longer else {})


def calmed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Turn notes on short chains and idle weights into good ones, unless test rows show a fault that they can cause."""
    serious = ("predictions", "fit", "limit", "unclear")
    faults = [verdict for verdict in verdicts if verdict.level != "good"]
    if any(fault.level == "problem" or fault.is_named or fault.about in serious for fault in faults):
        return [*verdicts]
    return [_as_good(verdict) if verdict.about in ("chains", "weights") else verdict for verdict in verdicts]


def _as_good(verdict: Verdict) -> Verdict:
    text = verdict.text
    if HARDLY not in text:
        why = "The predictions and their uncertainty are good on the test rows, although"
        text = f"{why} {text[:1].lower()}{text[1:]}"
    return replace(verdict, level="good", text=text)
