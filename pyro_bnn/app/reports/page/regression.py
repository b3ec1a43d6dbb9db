"""What a report says of a regression: errors, intervals, and whether uncertainty points at errors."""

import math
from typing import Any

import numpy as np
import torch
from scipy.stats import binom, spearmanr
from torch import Tensor

from ....results import plotting
from ....scores import metrics
from ....scores.uncertainty import RegressionPrediction
from . import verdicts
from .drawing import Picture, drawn, panel
from .numbers import count, percent
from .section import Section, Tile
from .subject import Regressed, Subject

__all__ = ["errors_section", "intervals_section"]

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Probabilities of the intervals that are judged."""

HEADLINE = 0.9
"""The interval that is drawn and shown at the top."""

GROUPS = 4
"""Number of groups of rows by their predicted uncertainty."""

NUM_SIMULATIONS = 100
"""Simulations of errors of the predicted size; the standard error of their mean rank correlation is below 0.01 from a
hundred rows on."""

FEWEST = 20
"""Heuristic: with fewer rows, nothing is said of whether uncertainty ranks the errors."""

MOST_DRAWN = 200
"""Largest number of rows in the picture of intervals; of more, so many are drawn, evenly spread by prediction."""

MOST_OUTPUTS = 3
"""Largest number of outputs that have pictures."""

RIVALS = {"mean of the targets": "the mean of the targets", "Bayesian ridge": "a straight line"}
"""Rivals in words, where these differ from their names."""


# --- errors -----------------------------------------------------------------------------------------------------------


def errors_section(subject: Subject) -> Section | None:
    """Errors and NLL beside those of simple methods; predicted against observed numbers."""
    found = subject.regressed
    if found is None:
        return None
    squared, guessed = (found.y - found.prediction.mean).square(), (found.y - found.train_mean).square()
    root, error = _root(squared.mean(-1))
    guess = math.sqrt(float(guessed.mean()))
    judged = [verdicts.of_errors(root, error, guess, *_mean((guessed - squared).mean(-1)), len(found.y))]
    density = _log_density(found.prediction)
    rival = max(found.rivals, key=lambda name: float(_log_density(found.rivals[name]).mean()))
    theirs = _log_density(found.rivals[rival])
    own, rivals = float(density.mean()), float(theirs.mean())
    gain, gain_error = _mean(((found.y - found.rivals[rival].mean.to(found.y)).square() - squared).mean(-1))
    roots = [_rmse(found, prediction) for prediction in (found.prediction, found.rivals[rival])]
    judged.append(
        verdicts.of_rival(
            RIVALS.get(rival, rival),
            own,
            rivals,
            _mean(density - theirs)[1],
            points=f"RMSE {roots[0]:.4g} against {roots[1]:.4g}",
            is_nearer=gain > verdicts.NUM_ERRORS * gain_error,
        )
    )
    mean_weights = _log_density(found.mean_weights)
    averaging = verdicts.of_averaging(
        found.prediction.num_samples, own, float(mean_weights.mean()), _mean(density - mean_weights)[1]
    )
    if averaging is not None:
        judged.append(averaging)
    low, high = _interval(found.prediction, HEADLINE)
    held = metrics.interval_coverage(low, high, found.y)
    return Section(
        "Errors",
        "errors.html",
        {
            "found": found,
            "scores": _scores(found),
            "outputs": [
                (name, *_root(squared[:, i]), math.sqrt(float(guessed[:, i].mean())))
                for i, name in enumerate(found.names)
            ],
            "pictures": [_predicted_and_observed(found, i) for i in range(min(len(found.names), MOST_OUTPUTS))],
        },
        tuple(judged),
        (
            Tile("RMSE", f"{root:.4g}", f"{roots[1]:.4g} for {RIVALS.get(rival, rival)}"),
            Tile("Log-likelihood", f"{own:.3f}", f"nats per row; {RIVALS.get(rival, rival)} has {rivals:.3f}"),
        ),
        usable=f"RMSE {root:.4g} beside {roots[1]:.4g} of {RIVALS.get(rival, rival)}, and the "
        f"{percent(HEADLINE, 0)} intervals hold {percent(held)} of {count(len(found.y))} rows",
    )


def _log_density(prediction: RegressionPrediction) -> Tensor:
    assert prediction.log_density is not None
    return prediction.log_density.detach().double().cpu()


def _rmse(found: Regressed, prediction: RegressionPrediction) -> float:
    return metrics.root_mean_squared_error(prediction.mean.cpu(), found.y.cpu())


def _scores(found: Regressed) -> list[dict[str, Any]]:
    """Scores of each way to predict."""
    ways = {
        "mean weights": found.mean_weights,
        f"average over {found.prediction.num_samples} draws": found.prediction,
        **{f"rival: {name}": rival for name, rival in found.rivals.items()},
    }
    return [
        {
            "name": name,
            "rmse": _rmse(found, prediction),
            "nll": -float(_log_density(prediction).mean()),
            "crps": None if prediction.components is None else prediction.crps(found.y.to(prediction.mean)),
        }
        for name, prediction in ways.items()
    ]


def _mean(values: Tensor) -> tuple[float, float]:
    """Mean and standard error."""
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return float(values.mean()), error


def _root(squared: Tensor) -> tuple[float, float]:
    """The root of the mean, and its standard error."""
    mean, error = _mean(squared)
    return math.sqrt(mean), error / (2 * math.sqrt(mean)) if mean else 0.0


def _interval(prediction: RegressionPrediction, level: float) -> Tensor:
    """Lower and upper ends, shape (2, N, O)."""
    return prediction.quantile([(1 - level) / 2, (1 + level) / 2])


def _predicted_and_observed(found: Regressed, output: int) -> Picture:
    mean, y, name = found.prediction.mean[:, output], found.y[:, output], found.names[output]
    low, high = (bound[:, output] for bound in _interval(found.prediction, HEADLINE))
    chosen = mean.argsort()[torch.linspace(0, len(mean) - 1, min(len(mean), MOST_DRAWN)).long()]
    ax = panel(3.2)
    middle, lower, upper, observed = (part[chosen].cpu().numpy() for part in (mean, low, high, y))
    ax.vlines(middle, lower, upper, color="0.7", linewidth=1, label=f"{percent(HEADLINE, 0)} interval")
    ax.plot(middle, observed, "o", markersize=3, color=plotting.PALETTE[0], label="observed")
    ends = [float(mean.min()), float(mean.max())]
    ax.plot(ends, ends, "k--", linewidth=1, label="predicted mean")
    ax.set(xlabel=f"predicted mean of {name}", ylabel=f"observed {name}")
    with plotting.style():
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)  # above the data, and not over them
    inside = float(((y >= low) & (y <= high)).double().mean())
    part = "" if len(chosen) == len(mean) else f" of {count(len(mean))}"
    return drawn(
        ax,
        alt=f"Observed against predicted {name} with {percent(HEADLINE, 0)} intervals, which hold {percent(inside)} of "
        "the test rows.",
        caption=f"Observed against predicted {name}, {count(len(chosen))}{part} test rows.",
    )


# --- intervals and ranking --------------------------------------------------------------------------------------------


def intervals_section(subject: Subject) -> Section | None:
    """Coverage of intervals of all levels, and errors by predicted uncertainty."""
    found = subject.regressed
    if found is None:
        return None
    rows = [_coverage(found, level) for level in LEVELS]
    judged = [
        verdicts.of_intervals(
            *({row["level"]: row[key] for row in rows} for key in ("promised", "held", "limits")),
        )
    ]
    groups, ranking = ranking_of(found, seed=subject.seed)
    if len(found.y) >= FEWEST:
        judged.append(verdicts.of_ranking(ranking))
    headline = next(row for row in rows if row["level"] == HEADLINE)
    return Section(
        "Intervals",
        "intervals.html",
        {
            "found": found,
            "levels": rows,
            "asked": ", ".join(percent(level, 0) for level in LEVELS),
            "chance": verdicts.CHANCE,
            "groups": groups,
            "picture": _residuals(found),
        },
        tuple(judged),
        (Tile(f"In the {percent(HEADLINE, 0)} interval", percent(headline["held"]), "of the test targets"),),
    )


def _coverage(found: Regressed, level: float) -> dict[str, Any]:
    """The share of the targets inside of intervals, and between which shares chance leaves it.

    Intervals of counts promise more than their level, as whole numbers are not cut: what the prediction itself says.
    """
    low, high = _interval(found.prediction, level)
    promised = level
    if found.is_count:
        promised = min(1.0, float((found.prediction.cdf(high) - found.prediction.cdf(low - 1)).mean()))
    number, held = len(found.y), metrics.interval_coverage(low, high, found.y)
    return {
        "level": level,
        "promised": promised,
        "held": held,
        "limits": tuple(part / number for part in binom.interval(verdicts.CHANCE, number, promised)),
        "width": float((high - low).mean()),
    }


def ranking_of(found: Regressed, *, seed: int) -> tuple[list[dict[str, Any]], verdicts.Ranking]:
    """Errors of rows in groups of rising predicted standard deviation, and how well it ranks them.

    Args:
        found: What was measured.
        seed: Seed of the simulations.
    """
    unit = found.train_scale if len(found.names) > 1 else torch.ones_like(found.train_scale)
    scale = (found.prediction.total / unit.square()).mean(-1).sqrt().detach().cpu()
    epistemic = (found.prediction.epistemic / unit.square()).mean(-1).sqrt().detach().cpu()
    size = ((found.y - found.prediction.mean) / unit).square().mean(-1).sqrt().detach().cpu()
    groups: list[dict[str, Any]] = [
        {
            "rows": len(rows),
            "epistemic": float(epistemic[rows].square().mean().sqrt()),
            "predicted": float(scale[rows].square().mean().sqrt()),
            "error": _root(size[rows].square()),
        }
        for rows in torch.tensor_split(scale.argsort(), GROUPS)
        if len(rows)
    ]
    generator = np.random.default_rng(seed)
    squares = generator.chisquare(len(found.names), size=(NUM_SIMULATIONS, len(scale))) / len(found.names)
    errors = np.sqrt(squares) * scale.numpy()
    expected = float(np.mean([_rank_correlation(scale.numpy(), row) for row in errors]))
    correlation = _rank_correlation(scale.numpy(), size.numpy())
    ends = (groups[0]["error"][0], groups[-1]["error"][0])
    return groups, verdicts.Ranking(correlation, expected, len(scale), *ends)


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's rank correlation; 0 where all numbers of one are equal, which rank nothing."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(spearmanr(first, second).statistic)


def _residuals(found: Regressed) -> Picture:
    """Residuals of the first output by their predicted standard deviation."""
    name, scale = found.names[0], found.prediction.total[:, 0].sqrt().cpu()
    residual = (found.y - found.prediction.mean)[:, 0].cpu()
    ax = panel(3.1)
    ax.plot(scale.numpy(), residual.numpy(), "o", markersize=3, color=plotting.PALETTE[0], alpha=0.6)
    ax.axhline(0, color="black", linewidth=1, linestyle="--")
    ax.set(xlabel=f"predicted sd of {name}", ylabel=f"observed minus predicted {name}")
    if float(scale.max()) > 20 * float(scale.median()) > 0:
        ax.set_xscale("log")
    return drawn(
        ax,
        alt=f"Residuals of {name} by predicted standard deviation, which is {float(scale.median()):.3g} in the median "
        f"and {float(scale.max()):.3g} at most.",
        caption="Residuals by predicted standard deviation. Where it ranks the errors, they spread from left to right.",
    )
