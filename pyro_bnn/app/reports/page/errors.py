"""How far predicted numbers are from the observed ones."""

import math

import torch
from torch import Tensor

from .... import plotting
from .html import figure, figures, panel, paragraph, table
from .numbers import count, percent
from .section import Section, Tile, Verdict
from .subject import Regressed, Subject

__all__ = ["errors_section"]

WEAK = 0.5
"""Heuristic: a regression that explains less than this share of the variance is called weak."""

NOTICEABLE = 2.0
"""Differences of fewer standard errors than this are called none: by chance, one in twenty is larger."""

LEVEL = 0.9
"""Probability of the intervals in the picture."""

MOST_DRAWN = 200
"""Largest number of rows in the picture of intervals; of more, so many are drawn, evenly spread by prediction."""

MOST_OUTPUTS = 3
"""Largest number of outputs that have pictures."""


def errors_section(subject: Subject) -> Section | None:
    """Root mean squared error and log-likelihood beside those of a guess; predicted against observed numbers."""
    found = subject.regressed
    if found is None:
        return None
    squared, guessed = (found.y - found.prediction.mean).square(), (found.y - found.guess_mean).square()
    rows = [_row(name, squared[:, i], guessed[:, i]) for i, name in enumerate(found.names)]
    if len(found.names) > 1:
        rows.append(_row("all", squared.mean(-1), guessed.mean(-1)))
    header = ("target", "RMSE ± standard error", "RMSE of a guess", "variance explained")
    density, guess = _log_densities(found)
    gain, error = _mean(density - guess)
    pictures = [_predicted_and_observed(found, i) for i in range(min(len(found.names), MOST_OUTPUTS))]
    verdict, tile = _of_errors(squared.mean(-1), guessed.mean(-1), found)
    value, own_error = _mean(density)
    body = [
        table(header, rows, caption=f"Errors on {count(len(found.y))} test rows, in the units of the target"),
        paragraph(
            f"Log-likelihood {value:.3f} ± {own_error:.3f} nats per row, {gain:.3f} ± {error:.3f} more than that of a "
            "Gaussian with mean and standard deviation of the training targets. A guess is that mean."
        ),
        figures(*pictures),
    ]
    tiles = (tile, Tile("Log-likelihood", f"{value:.3f} nats", f"per row; without the network {value - gain:.3f}"))
    return Section("Errors", "".join(body), (verdict,), tiles)


def _row(name: str, squared: Tensor, guessed: Tensor) -> tuple[str, ...]:
    root, error = _root(squared)
    explained = 1 - float(squared.mean() / guessed.mean())
    return name, f"{root:.4g} ± {error:.2g}", f"{float(guessed.mean()) ** 0.5:.4g}", percent(explained)


def _of_errors(squared: Tensor, guessed: Tensor, found: Regressed) -> tuple[Verdict, Tile]:
    root, error = _root(squared)
    guess = float(guessed.mean()) ** 0.5
    explained = 1 - (root / guess) ** 2
    gain, gain_error = _mean(guessed - squared)
    tile = Tile("RMSE", f"{root:.4g}", f"{guess:.4g} for the mean of the training targets")
    text = (
        f"RMSE {root:.4g} ± {error:.2g} on {count(len(squared))} test rows; the mean of the training targets has "
        f"{guess:.4g}"
    )
    if not gain > NOTICEABLE * gain_error:
        return Verdict("problem", f"{text}: the network predicts no better than that."), tile
    if explained < WEAK:
        return Verdict("note", f"{text}: only {percent(explained)} of the variance is explained."), tile
    return Verdict("good", f"{text}: {percent(explained)} of the variance is explained."), tile


def _root(squared: Tensor) -> tuple[float, float]:
    """The root of the mean, and its standard error."""
    mean, error = _mean(squared)
    return math.sqrt(mean), error / (2 * math.sqrt(mean)) if mean else 0.0


def _mean(values: Tensor) -> tuple[float, float]:
    """Mean and standard error."""
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), error


def _log_densities(found: Regressed) -> tuple[Tensor, Tensor]:
    """Log-density of each row, predicted and guessed, in nats, shape (N,)."""
    z = (found.y - found.guess_mean) / found.guess_scale
    guess = -0.5 * z.square() - found.guess_scale.log() - 0.5 * math.log(2 * math.pi)
    density = found.prediction.log_density
    assert density is not None
    return density, guess.sum(-1)


def _predicted_and_observed(found: Regressed, output: int) -> str:
    mean, y = found.prediction.mean[:, output], found.y[:, output]
    low, high = (bound[:, output] for bound in found.prediction.quantile([(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    chosen = mean.argsort()[torch.linspace(0, len(mean) - 1, min(len(mean), MOST_DRAWN)).long()]
    ax = panel(3.1)
    middle, lower, upper, observed = (part[chosen].cpu().numpy() for part in (mean, low, high, y))
    ax.vlines(middle, lower, upper, color="0.7", linewidth=1, label=f"{percent(LEVEL, 0)} interval")
    ax.plot(middle, observed, "o", markersize=3, color=plotting.PALETTE[0], label="observed")
    ends = [float(mean.min()), float(mean.max())]
    ax.plot(ends, ends, "k--", linewidth=1, label="predicted mean")
    ax.set(xlabel=f"predicted mean of {found.names[output]}", ylabel=f"observed {found.names[output]}")
    ax.legend()
    part = "" if len(chosen) == len(mean) else f" of {count(len(mean))}"
    inside = float(((y >= low) & (y <= high)).double().mean())
    return figure(
        ax,
        alt=f"Observed against predicted {found.names[output]} with {percent(LEVEL, 0)} intervals, which hold "
        f"{percent(inside)} of the test rows.",
        caption=f"Observed against predicted {found.names[output]}, {count(len(chosen))}{part} test rows.",
    )
