"""The tables of `benchmarks.cifar`, in Markdown."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from ._images import CORRUPTIONS
from ._residual_scores import STRENGTHS
from ._results import cell_of, head_of, line_of

Record = dict[str, Any]

QUALITY = ("accuracy", "nll", "ece", "brier")
AUROC = ("auroc_entropy", "auroc_mutual_information")


def show(records: Sequence[Record]) -> str:
    """Means over the seeds with standard errors, by method: scores, corrupted images, batch norm."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["task"]["method"], []).append(record)
    return "\n\n".join(table for table in (_main(groups), _corrupted(groups), _batch_norm(groups)) if table)


def _main(groups: dict[str, list[Record]]) -> str:
    names = "seeds|epochs|CPU ms / step|images / step|memory, GB|training, CPU s|accuracy, %|NLL|ECE|Brier"
    names += "|AUROC, entropy|AUROC, mutual inf.|NLL train|draws|prediction, CPU s"
    return _table("network", names.split("|"), ((name, _cells(some)) for name, some in groups.items()))


def _cells(some: list[Record]) -> list[str]:
    task, training, scores = some[0]["task"], [r["training"] for r in some], [r["scores"] for r in some]
    steps = sum(part["num_steps"] for part in training)
    total = [r["training"]["cpu_seconds"] + r.get("below", {}).get("cpu_seconds", 0.0) for r in some]
    seeds = task.get("seeds", [record["task"]["seed"] for record in some])
    return [
        ", ".join(str(seed) for seed in seeds),
        str(task["setting"]["epochs"] or ""),
        f"{1e3 * sum(part['cpu_seconds'] for part in training) / steps:.4g}" if steps else "",
        str(task["setting"]["batch_size"]) if steps else "",
        f"{statistics.fmean(part['memory'] for part in training) / 1e9:.2f}",
        f"{statistics.fmean(total):.0f}",
        cell_of([100 * score["accuracy"] for score in scores], 2),
        *(cell_of([score[name] for score in scores], 3) for name in QUALITY[1:]),
        *(cell_of([score[name] for score in scores if name in score], 3) for name in AUROC),
        cell_of([part["train_nll"] for part in training], 3),
        str(scores[0]["num_samples"]),
        f"{statistics.fmean(score['cpu_seconds'] for score in scores):.0f}",
    ]


def _corrupted(groups: dict[str, list[Record]]) -> str:
    names = [f"{name}, strength {strength}" for name in ("accuracy, %", "NLL", "ECE") for strength in STRENGTHS]

    def mean(record: Record, index: int, name: str) -> float:
        return statistics.fmean(record["scores"]["corrupted"][kind][index][name] for kind in CORRUPTIONS)

    def cells(some: list[Record]) -> list[str]:
        units = (("accuracy", 100, 1), ("nll", 1, 3), ("ece", 1, 3))
        return [
            cell_of([unit * mean(record, index, name) for record in some], digits)
            for name, unit, digits in units
            for index in range(len(STRENGTHS))
        ]

    return _table("network", names, ((name, cells(some)) for name, some in groups.items()))


def _batch_norm(groups: dict[str, list[Record]]) -> str:
    measured = {name: [record["scores"] for record in some] for name, some in groups.items()}
    parts = {name: [part["statistics"] for part in some] for name, some in measured.items() if "statistics" in some[0]}
    rows = (
        (f"{name}: {kind}", [cell_of([part[kind][score] for part in some], 3) for score in QUALITY])
        for name, some in parts.items()
        for kind in some[0]
    )
    return _table("statistics of batch normalisation", ["accuracy", "NLL", "ECE", "Brier"], rows) if parts else ""


def _table(first: str, names: Sequence[str], rows: Iterable[tuple[str, list[str]]]) -> str:
    return "\n".join([*head_of([first, *names]), *(line_of([name, *cells]) for name, cells in rows)])
