"""Predictions of `benchmarks.hmc_images`, how they are compared, and the tables and the picture."""

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

import pyro_bnn as pb
from pyro_bnn import metrics, uncertainty

from ._dots import Panel, draw
from ._images import quality
from ._methods import Fit
from ._methods_scores import Pictures
from ._methods_tables import ONE, QUALITY, TITLES, search, several
from ._results import Row, cell_of, head_of, line_of, mean_and_error, write_json

TITLE = "A LeNet of 2,618 weights on 2,000 digits of MNIST, three seeds"
YARDSTICK = "hmc"
"""Name of the files of the chains."""


def agreement(a: Tensor, b: Tensor) -> float:
    """The share of rows for which two predictions, shape (N, C) each, have the same most probable class."""
    return float((a.argmax(-1) == b.argmax(-1)).double().mean())


def total_variation(a: Tensor, b: Tensor) -> float:
    """The mean over rows of the total variation distance of two predictions, shape (N, C) each."""
    return float(0.5 * (a - b).abs().sum(-1).double().mean())


@dataclass(frozen=True)
class Predictions:
    """Probabilities of digits, shape (N, C), and of unknown images; each with the mean entropy of the draws, (N,)."""

    known: Tensor
    known_entropy: Tensor
    unknown: Tensor | None = None
    unknown_entropy: Tensor | None = None

    @classmethod
    def of(cls, fit: Fit, pictures: Pictures, seed: int) -> "Predictions":
        parts: list[Tensor] = []
        for x in (pictures.x_test, pictures.unknown):
            if x is not None:
                found = pb.predict(fit.model, fit.posterior, x, num_samples=fit.num_samples, seed=seed)
                parts += [found.probs, found.aleatoric]
        return cls(*parts)

    @classmethod
    def load(cls, path: Path) -> "Predictions":
        with np.load(path) as file:
            return cls(**{name: torch.from_numpy(file[name]) for name in file.files})

    @classmethod
    def mean(cls, parts: Sequence["Predictions"]) -> "Predictions":
        """The predictions of all draws together, from parts with equal numbers of draws."""
        fields = [vars(part) for part in parts]
        return cls(**{name: torch.stack([field[name] for field in fields]).mean(0) for name in fields[0]})

    def save(self, path: Path) -> None:
        np.savez_compressed(path, **{name: value.numpy() for name, value in vars(self).items()})

    def scores(self, y: Tensor) -> Row:
        """Quality, and how well the uncertainty separates digits from unknown images."""
        scores: Row = quality(self.known, y)
        if self.unknown is None or self.unknown_entropy is None:
            return scores
        known, unknown = uncertainty.entropy(self.known), uncertainty.entropy(self.unknown)
        scores["auroc_entropy"] = metrics.ood_scores(known, unknown).auroc
        known, unknown = known - self.known_entropy, unknown - self.unknown_entropy
        if float(known.max()) > 1e-5:  # a single network has no disagreement
            scores["auroc_mutual_information"] = metrics.ood_scores(known, unknown).auroc
        return scores

    def compared(self, other: "Predictions") -> Row:
        """Agreement with another prediction, and distance from it."""
        assert self.unknown is not None
        assert other.unknown is not None
        return {
            "agreement": agreement(self.known, other.known),
            "total_variation": total_variation(self.known, other.known),
            "total_variation_unknown": total_variation(self.unknown, other.unknown),
        }


# --- the chains ---


@dataclass(frozen=True)
class Yardstick:
    """Predictions of each chain, and what is known about the chains."""

    chains: Sequence[Predictions]
    record: Row

    @classmethod
    def load(cls, folder: Path) -> "Yardstick | None":
        if not (folder / f"{YARDSTICK}.json").exists():
            return None
        record = json.loads((folder / f"{YARDSTICK}.json").read_text())
        return cls([Predictions.load(folder / f"{YARDSTICK}-{k}.npz") for k in range(record["num_chains"])], record)

    @functools.cached_property
    def whole(self) -> Predictions:
        return Predictions.mean(self.chains)

    def halves(self) -> list[Row]:
        """Each half of the chains compared with the other half."""
        count = len(self.chains)
        halves = [{0, *others} for others in itertools.combinations(range(1, count), count // 2 - 1)]
        return [self._of(half).compared(self._of({*range(count)} - half)) for half in halves if len(half) < count]

    def singles(self) -> list[Row]:
        """Each chain compared with all others."""
        every = {*range(len(self.chains))}
        return [self._of({k}).compared(self._of(every - {k})) for k in every if len(every) > 1]

    def _of(self, chosen: set[int]) -> Predictions:
        return Predictions.mean([self.chains[k] for k in chosen])


def note_chains(
    posterior: pb.MCMCPosterior,
    model: pb.BayesianModel,
    pictures: Pictures,
    cpu_seconds: float,
    chains: Sequence[Predictions],
    folder: Path,
) -> None:
    """Write each chain's predictions, the scores of all chains, and their convergence."""
    for chain, predictions in enumerate(chains):
        predictions.save(folder / f"{YARDSTICK}-{chain}.npz")
    statistics = posterior.statistics
    convergence = posterior.diagnose(model, pictures.x_test).predictions
    assert convergence is not None
    assert statistics.num_steps is not None
    assert statistics.accept is not None
    r_hat = convergence.r_hat[~convergence.r_hat.isnan()].double()
    record = {
        "num_chains": posterior.num_chains,
        "num_draws": posterior.num_stored // posterior.num_chains,
        "r_hat": {str(share): float(r_hat.quantile(share)) for share in (0.5, 0.9, 1.0)} if len(r_hat) else {},
        "r_hat_below_1.1": float((r_hat < 1.1).double().mean()),
        "ess_bulk": float(convergence.ess_bulk.nanmedian()),
        "acceptance": float(statistics.accept.mean()),
        "steps_per_draw": float(statistics.num_steps.double().mean()),
        "step_size": [] if statistics.step_size is None else statistics.step_size.tolist(),
        "num_divergences": int(statistics.diverging.sum()) if statistics.diverging is not None else 0,
        "path": posterior.path,
        "cpu_seconds": cpu_seconds,
        "scores": Predictions.mean(chains).scores(pictures.y_test),
        "scores_of_chains": [predictions.scores(pictures.y_test) for predictions in chains],
    }
    write_json(folder / f"{YARDSTICK}.json", record)


# --- tables and picture ---


Columns = Mapping[str, tuple[str, float, int]]
"""Title, key, factor and digits."""

COLUMNS: Columns = {
    "agreement, %": ("agreement", 100.0, 2),
    "total variation": ("total_variation", 1.0, 4),
    "total variation, unknown images": ("total_variation_unknown", 1.0, 3),
    **ONE,
    "CPU seconds": ("cpu_seconds", 1.0, 1),
}
DETECTION: Columns = {
    "ECE": QUALITY["ECE"],
    "AUROC entropy": ("auroc_entropy", 1.0, 3),
    "AUROC mutual inf.": ("auroc_mutual_information", 1.0, 3),
}
"""The columns of a second table, since all of them are too wide for a page."""


def report(rows: Sequence[Row], searched: Sequence[Row], folder: Path) -> str:
    """All tables in Markdown; without chains only that of the settings."""
    yardstick = Yardstick.load(folder)
    parts = []
    if yardstick is not None:
        parts = [scores(rows, yardstick, folder, columns) for columns in (COLUMNS, DETECTION)] + [chains(yardstick)]
    if searched:
        parts.append(search(searched))
    return "\n\n".join(parts) + "\n"


def compared(rows: Sequence[Row], yardstick: Yardstick, folder: Path) -> dict[str, list[Row]]:
    """The numbers of each method by its title, the closest first; one row for each seed."""
    latest = {(row["method"], row["seed"]): row for row in rows}  # without earlier choices
    found: dict[str, list[Row]] = {}
    for (method, seed), row in sorted(latest.items()):
        distances = Predictions.load(folder / f"{method}-{seed}.npz").compared(yardstick.whole)
        found.setdefault(TITLES[method], []).append({**row["scores"], **distances, "cpu_seconds": row["train_seconds"]})
    return dict(sorted(found.items(), key=lambda pair: fmean(row["total_variation"] for row in pair[1])))


def scores(rows: Sequence[Row], yardstick: Yardstick, folder: Path, columns: Columns) -> str:
    """One line for each method that has such numbers, means over seeds with standard errors; the chains are above."""
    record = yardstick.record
    own = {**record["scores"], "cpu_seconds": record["cpu_seconds"]}
    cells = {
        f"HMC, {len(yardstick.chains)} chains": [own],
        "HMC: two chains and the other two": yardstick.halves(),
        "HMC: one chain and the other three": yardstick.singles(),
        **compared(rows, yardstick, folder),
    }
    lines = head_of(["method", *columns])
    for name, some in cells.items():
        values = [[factor * row[key] for row in some if key in row] for key, factor, _ in columns.values()]
        if any(values):
            digits = (digits for _, _, digits in columns.values())
            lines.append(line_of([name, *map(cell_of, values, digits)]))
    return "\n".join(lines)


def chains(yardstick: Yardstick) -> str:
    """How well the chains have converged, and their lengths."""
    record = yardstick.record
    lines = head_of(["chains of HMC", ""])
    shown = {
        "draws of each chain": f"{record['num_draws']}",
        "leapfrog steps of a draw": f"{record['steps_per_draw']:.0f}",
        "acceptance rate": f"{record['acceptance']:.2f}",
        "divergent trajectories": f"{record['num_divergences']}",
        **{f"R-hat, quantile {share}": f"{value:.2f}" for share, value in record["r_hat"].items()},
        "share of R-hat below 1.1": f"{record['r_hat_below_1.1']:.2f}",
        "median effective sample size": f"{record['ess_bulk']:.0f}",
        "computed in": record["path"],
    }
    return "\n".join([*lines, *(line_of(pair) for pair in shown.items())])


def picture(rows: Sequence[Row], folder: Path) -> None:
    """Total variation from the chains, NLL and CPU time of each method, with standard errors over seeds."""
    yardstick = Yardstick.load(folder)
    if yardstick is None or not rows:
        return
    lines, found = scores(rows, yardstick, folder, COLUMNS).splitlines(), compared(rows, yardstick, folder)
    keys = ("total_variation", "nll", "cpu_seconds")
    points = {name: [mean_and_error([row[key] for row in some]) for key in keys] for name, some in found.items()}
    halves = [row["total_variation"] for row in yardstick.halves()]
    record = yardstick.record
    shown = panels(fmean(halves) if halves else None, record["scores"]["nll"], record["cpu_seconds"])
    path = folder / "hmc_images.png"
    one = TITLES["deterministic"]
    draw(points, shown, path, title=TITLE, reference=one, several=several(points), table=lines)


def panels(of_halves: float | None, nll: float, cpu_seconds: float) -> list[Panel]:
    """The panels, with dotted lines at the distance of two halves of the chains, and at the NLL and time of all."""
    between = None if of_halves is None else ("two halves of HMC", of_halves)
    return [
        Panel("total variation from HMC", line=between, from_zero=between is not None),
        Panel("NLL, nats", line=("HMC", nll)),
        Panel("CPU seconds (log scale)", ticks=(5, 20, 100, 500), line=("HMC", cpu_seconds)),
    ]
