"""Split MNIST, one task after the other, beside Nguyen et al. (2018): `python -m benchmarks.continual`.

Each method and seed adds one line to FOLDER/results.jsonl; existing lines are not computed again. The tables are also
written to FOLDER/tables.md.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ._results import Row, add_row, cell_of, head_of, line_of, machine, parser_of, read_rows
from ._split import NUM_TASKS, Learner, Setting, load

PROGRAM = Setting(lr=1e-3, is_decayed=False, first_scale=math.exp(-3), epochs=120, batch_size=None, first_epochs=120)

SETTINGS: dict[str, Setting] = {
    "fine-tuning": Setting(is_bayesian=False, lr=1e-3),
    "forgetful": Setting(remembers=False),
    "vcl": Setting(),
    "vcl-coreset": Setting(coreset=40),
    "vcl-natural": Setting(is_natural=True, lr=0.01, first_scale=0.05, initial_hessian=0.03, num_warmup=100),
    "joint": Setting(is_joint=True),
    "vcl-published": replace(PROGRAM, is_local=False, num_draws=10),
    "vcl-published-local": PROGRAM,
}
"""*forgetful* is *vcl* with the prior N(0, 1) for each task. *vcl-published* has the settings of the article's program,
https://github.com/nvcuong/variational-continual-learning, ddm/: batches of all images, 120 steps, the first task's
means start at maximum likelihood, ten draws of all weights in each step. *vcl-published-local* replaces these ten draws
by one draw for each unit and image."""

PUBLISHED = {
    "EWC": 63.1,
    "Laplace propagation": 61.2,
    "SI": 98.9,
    "VCL": 97.0,
    "VCL, coresets": 98.4,
}
"""Mean accuracies after five tasks, per cent: Nguyen et al. (2018), https://arxiv.org/abs/1710.10628, section 6.2."""


def run(setting: Setting, seed: int, *, root: Path | None, validation: int, num_samples: int) -> Row:
    """Train a network on all tasks, and test it after each."""
    learner = Learner(setting, load(root, validation), seed)
    accuracies = list(learner.accuracies(num_samples))
    return {"accuracies": accuracies, "cpu_seconds": round(learner.cpu_seconds, 1), "machine": machine()}


def report(rows: Sequence[Row]) -> str:
    """Both tables: mean accuracies of the tasks so far, and the accuracy of each task at the end."""
    parts = ["Mean test accuracy of the tasks so far, in per cent:\n", *_table(rows, _means, "tasks seen: {}", "CPU s")]
    parts += ["\nTest accuracy of each task after all five, in per cent:\n", *_table(rows, _last, "digits {}", "")]
    published = "; ".join(f"{name} {value:.1f}" for name, value in PUBLISHED.items())
    return "\n".join([*parts, f"\nPublished, after five tasks: {published}."]) + "\n"


def _means(row: Row) -> list[float | None]:
    seen: list[float | None] = [statistics.fmean(values) for values in row["accuracies"]]
    return [None] * (NUM_TASKS - len(seen)) + seen


def _last(row: Row) -> list[float | None]:
    return row["accuracies"][-1]


def _table(rows: Sequence[Row], values_of: Any, title: str, last: str) -> list[str]:
    is_timed = bool(last)
    names = range(1, NUM_TASKS + 1) if is_timed else [f"{2 * task}, {2 * task + 1}" for task in range(NUM_TASKS)]
    titles = ["method", "seeds", *(title.format(name) for name in names), *([last] if is_timed else [])]
    lines = head_of(titles)
    for method in [name for name in SETTINGS if any(row["method"] == name for row in rows)]:
        some = [row for row in rows if row["method"] == method]
        columns = zip(*(values_of(row) for row in some), strict=True)
        cells = [method, str(len(some)), *(_cell(column) for column in columns)]
        if is_timed:
            cells.append(f"{statistics.fmean(row['cpu_seconds'] for row in some):.0f}")
        lines.append(line_of(cells))
    return lines


def _cell(values: Sequence[float | None]) -> str:
    return cell_of([100 * value for value in values if value is not None], 2)


def read(file: Path, **wanted: object) -> list[Row]:
    """The rows that were made with these options and the present settings."""
    return [row for row in read_rows(file) if all(row[name] == value for name, value in wanted.items())]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("continual", __doc__, data="MNIST/raw")
    parser.add_argument(
        "--methods", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), metavar="NAME", help=", ".join(SETTINGS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--epochs", type=int, help="number of epochs of all methods; default: that of each")
    parser.add_argument("--samples", type=int, default=100, help="number of draws of a prediction")
    parser.add_argument(
        "--validation", type=int, default=0, help="number of training images to set aside and report on"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    file = given.out / "results.jsonl"
    settings = {
        name: setting if given.epochs is None else replace(setting, epochs=given.epochs)
        for name, setting in SETTINGS.items()
        if name in given.methods
    }
    done: list[Row] = []
    for seed in given.seeds:
        for method, setting in settings.items():
            options = {"validation": given.validation, "num_samples": given.samples}
            row = {"method": method, "seed": seed, "setting": asdict(setting), **options}
            found = read(file, **row)
            if not found:
                found = [row | run(setting, seed, root=given.data, **options)]
                add_row(file, found[0])
            done += found[:1]
            mean = statistics.fmean(found[0]["accuracies"][-1])
            print(f"# {method}, seed {seed}: {mean:.2%}, {found[0]['cpu_seconds']:.0f} CPU s", flush=True)
            (given.out / "tables.md").write_text(report(done))
    print("\n" + report(done))


if __name__ == "__main__":
    main()
