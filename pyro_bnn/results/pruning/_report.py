"""Scores of a model after removing different fractions of its weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._core import checks as _checks
from ..._core.inputs import Inputs, as_inputs, as_targets
from ..._core.summary import Shown, Summary, counted
from ...modelling.model import BayesianModel
from ...scores.uncertainty import Prediction
from ..prediction import new_seed, predict, predict_point
from ._prune import Gaussians, Per, count, mean_field, prune, signal_to_noise

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0)

LEGEND = "largest ratio: of |mean| to standard deviation, among the removed weights; small ratios are removed first"


@dataclass(frozen=True)
class PruningRow:
    """Scores after removing a fraction of the weights: for the mean of draws, and at the mean weights.

    Args:
        fraction: Fraction of the weights that is removed.
        threshold: Largest signal-to-noise ratio of a removed weight; 0 if none is removed.
        num_weights: Number of weights left.
        accuracy: Accuracy of the mean of draws; None for regression.
        nll: Mean negative log-density of the mean of draws, in nats.
        rmse: Root mean squared error of the mean of draws; None for classification.
        mean_accuracy: Accuracy at the mean weights; None for regression.
        mean_nll: NLL at the mean weights, in nats.
        mean_rmse: Root mean squared error at the mean weights; None for classification.
        nll_standard_error: Standard error of `nll` over the data; NaN for a single data point.
        mean_nll_standard_error: The same for `mean_nll`.
    """

    fraction: float
    threshold: float
    num_weights: int
    accuracy: float | None
    nll: float
    rmse: float | None
    mean_accuracy: float | None
    mean_nll: float
    mean_rmse: float | None
    nll_standard_error: float
    mean_nll_standard_error: float


@dataclass(frozen=True, repr=False)
class PruningReport(Shown):
    """Result of :func:`snr_report`.

    Args:
        rows: One row for each fraction, in the order of `fractions`.
        num_weights: Number of weights before pruning.
        num_data: Number of scored data points.
        num_samples: Number of draws in each mean.
    """

    rows: tuple[PruningRow, ...]
    num_weights: int
    num_data: int
    num_samples: int

    def _summary(self) -> Summary:
        name, score = ("rmse", "RMSE") if self.rows[0].accuracy is None else ("accuracy", "accuracy")
        names = ("fraction", "num_weights", f"mean_{name}", "mean_nll", name, "nll")
        rows = [[getattr(row, name) for name in names] for row in self.rows]
        title = f"PruningReport: {counted(self.num_weights, 'weight')}, {counted(self.num_data, 'data point')}"
        header = ("removed", "weights left", f"{score}, mean weights", "NLL", f"{score}, draws", "NLL")
        return Summary(title, rows=rows, header=header)

    def __str__(self) -> str:
        is_classes = self.rows[0].accuracy is not None
        name = "accuracy" if is_classes else "RMSE"
        lines = [
            f"{self.num_weights:,} weights, {self.num_data:,} data points, means of {self.num_samples} draws",
            f"{'share':>8s} {'weights':>11s} {'largest':>9s} {'mean weights':>19s} {'mean of draws':>19s}",
            f"{'removed':>8s} {'left':>11s} {'ratio':>9s} {name:>10s} {'NLL':>8s} {name:>10s} {'NLL':>8s}",
        ]
        for row in self.rows:
            scores = (row.mean_accuracy, row.accuracy) if is_classes else (row.mean_rmse, row.rmse)
            shown = [f"{score:9.2%}".replace("%", " %") if is_classes else f"{score:10.4g}" for score in scores]
            ratio = f"{row.threshold:.3g}" if row.threshold else "-"
            lines.append(
                f"{100 * row.fraction:6.4g} % {row.num_weights:11,d} {ratio:>9s} {shown[0]} {row.mean_nll:8.4f} "
                f"{shown[1]} {row.nll:8.4f}"
            )
        return "\n".join([*lines, LEGEND])

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as CSV."""
        import pandas  # imported late: importing takes long

        pandas.DataFrame(self.rows).to_csv(_checks.file_to_write("path", path), index=False, na_rep="nan")


def snr_report(
    model: BayesianModel,
    guide: Gaussians,
    x: Inputs,
    y: Tensor,
    *,
    fractions: Sequence[float] = FRACTIONS,
    num_samples: int = 100,
    per: Per = "network",
    where: str | Sequence[str] = "**",
    batch_size: int | None = None,
    seed: int | None = None,
) -> PruningReport:
    """Score a model after removing different fractions of its weights.

    The scores are accuracy or RMSE, and NLL, at the mean weights and for a mean of draws. Each fraction is removed
    from the original `guide`. The scores of all fractions use the same random numbers.

    Args:
        model: The model.
        guide: The model's mean-field guide, or the posterior from a fit of such a guide.
        x: Inputs, shape (N, ...).
        y: Targets, shape (N, ...).
        fractions: Fractions of the weights to remove, each from 0 to 1.
        num_samples: Number of draws in each mean.
        per: Whether fractions refer to the "network" or to each "layer".
        where: Glob or globs on site names; see :func:`prune`.
        batch_size: Number of rows in each run of the network; see :func:`predict`.
        seed: Seed of the draws; with ``None``, a seed is drawn.

    Raises:
        ValueError: If `fractions` is empty; see also :func:`prune` and :func:`~pyro_bnn.predict`.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, prior = torch.nn.Linear(2, 3), pb.NormalPrior()
        >>> labels = pb.CategoricalLikelihood()
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=labels, num_data=20)
        >>> x, y = torch.randn(100, 2), torch.arange(100) % 3
        >>> guide = pb.MeanFieldGuide(model)
        >>> report = pb.pruning.snr_report(model, guide, x, y, fractions=[0.0, 0.5])
        >>> [row.fraction for row in report.rows]
        [0.0, 0.5]
    """
    guide = mean_field(guide)
    listed = fractions.reshape(-1).tolist() if isinstance(fractions, Tensor) else fractions
    fractions = _checks.items("fractions", listed, "a list of numbers from 0 to 1")
    fractions = [_checks.number("fractions", fraction) for fraction in fractions]
    if not fractions:
        raise ValueError("`fractions` must name at least one share of weights to remove, got none.")
    inputs, y = as_inputs("x", x, model.like), as_targets("y", y, model.like)
    seed = new_seed(seed)
    rows = []
    for fraction in fractions:
        posterior = prune(guide, fraction=fraction, per=per, where=where)
        ensemble = predict(model, posterior, inputs, y=y, num_samples=num_samples, batch_size=batch_size, seed=seed)
        mean = predict_point(model, posterior.median(), inputs, y=y, batch_size=batch_size)
        pruned = mean_field(posterior)
        removed = [ratio[~pruned.kept(site)] for site, ratio in signal_to_noise(guide).items()]
        threshold = max((float(part.max()) for part in removed if len(part)), default=0.0)
        scores = _scores(ensemble) | {f"mean_{name}": value for name, value in _scores(mean).items()}
        rows.append(PruningRow(fraction, threshold, count(pruned)[0], **scores))
    return PruningReport(tuple(rows), count(guide)[1], len(ensemble), num_samples)


def _scores(prediction: Prediction) -> dict[str, Any]:
    scores, density = prediction.score(), prediction.log_density
    assert density is not None
    return {
        "accuracy": scores.get("accuracy"),
        "nll": prediction.nll,
        "rmse": scores.get("rmse"),
        "nll_standard_error": float(density.std() / len(density) ** 0.5) if len(density) > 1 else float("nan"),
    }
