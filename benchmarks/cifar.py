"""CIFAR-10 with ResNet-20, trained for a few epochs by several methods: `python -m benchmarks.cifar`.

Three networks: a point by Adam; all weights Bayesian by natural gradients; and the point's last layer made Bayesian. A
run that was interrupted goes on where it was.
"""

import argparse
import ast
import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import pyro_bnn as pb
from pyro_bnn.app.files import write_json
from pyro_bnn.history import History

from . import _residual
from ._residual import Pictures, Problem, Setting

SETTINGS: dict[str, Setting] = {
    "adam": Setting("point", lr=2e-3, kl_weight=0.0),
    "sgd": Setting("point", lr=0.1, has_momentum=True, kl_weight=0.0),
    "map": Setting("point", lr=0.1, has_momentum=True, prior_scale=0.2),
    "natural": Setting("natural", lr=0.1, prior_scale=0.3),
    "last-layer": Setting("last-layer", lr=1e-2, prior_scale=1.0, batch_size=500, epochs=20),
}


@dataclass(frozen=True)
class Task:
    """One network to be trained and measured.

    Args:
        method: A name in `SETTINGS`.
        seed: Seed of start, order, augmentation and draws.
        num_train: Number of training images; None is all.
        validation: Number of training images to report on, in place of the test images; 0 is the test set.
        width: Channels of the first stage.
        setting: How it is trained.
        point: Of a last layer: how the network below it was trained.
    """

    method: str
    seed: int
    num_train: int | None
    validation: int
    width: int
    setting: Setting
    point: Setting | None = None

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"

    @property
    def below(self) -> "Task":
        """The task whose network a last layer stands on."""
        assert self.point is not None
        return replace(self, method="adam", setting=self.point, point=None)


class Runs:
    """The networks in a folder; what an earlier run did is not repeated.

    Args:
        out: The folder.
        data: Function that loads the images.
        num_samples: Draws of an ensemble.
        echo: Function that prints.
    """

    def __init__(self, out: Path, data: Callable[[], Pictures], num_samples: int, echo: Callable[[str], None]) -> None:
        self._out, self._data, self._num_samples, self._echo = out, data, num_samples, echo

    def run(self, task: Task) -> dict[str, Any]:
        """Train, measure and record one network.

        Raises:
            ValueError: If the folder holds another network of that name.
        """
        path = self._out / f"{task.name}.json"
        record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"task": asdict(task)}
        if record["task"] != asdict(task):
            raise ValueError(f"{path} was made with other settings; choose another --out, or delete it.")
        if record.get("num_samples") == self._num_samples:
            self._echo(f"# {task.name}: done before")
            return record
        problem = self._trained(task, record)
        record["scores"] = _residual.evaluate(
            task.setting, problem, self._data(), num_samples=self._num_samples, seed=task.seed
        )
        record["num_samples"] = self._num_samples
        write_json(path, record)
        return record

    def _trained(self, task: Task, record: dict[str, Any]) -> Problem:
        images, state = self._data(), self._out / f"{task.name}.pt"
        net = _residual.network(images, task.width, task.seed)
        if task.setting.starts_from_point:
            self.run(task.below)
            point = json.loads((self._out / f"{task.below.name}.json").read_text())
            self._trained(task.below, point).give_weights(net)
        problem = _residual.build(task.setting, images, net)
        if "training" in record:
            pb.load_posterior(state, problem.model, guide=problem.guide)
            return problem

        def echo(history: History) -> None:
            last, n = history.epochs[-1], len(images.x_train)
            done = f"part {last.epoch + 1}, {last.seconds:.0f} s"
            self._echo(f"# {task.name}: {done}, NLL {-last.expected_log_likelihood / n:.4f}, KL {last.kl / n:.3f}")

        checkpoint = self._out / f"{task.name}.fit"
        record["training"] = _residual.train(
            task.setting, problem, images, seed=task.seed, checkpoint=checkpoint, echo=echo
        )
        threads = f"{torch.get_num_threads()} thread(s) on {os.cpu_count()} cores"
        record["machine"] = f"torch {torch.__version__}, {threads}, {platform.machine()}"
        pb.save_posterior(state, problem.model, problem.guide)
        write_json(self._out / f"{task.name}.json", record)
        checkpoint.unlink()
        return problem


def show(records: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row for each method, means over the seeds."""
    lines = [
        "| network | seeds | epochs | CPU ms / step | images / step | memory, GB | accuracy | NLL | ECE "
        "| NLL train | draws | prediction, CPU s |",
        "|---|" + "--:|" * 11,
    ]
    for method in dict.fromkeys(record["task"]["method"] for record in records):
        some = [record for record in records if record["task"]["method"] == method]
        setting, samples = some[0]["task"]["setting"], some[0]["scores"]["num_samples"]

        def mean(part: str, name: str, some: list[dict[str, Any]] = some) -> float:
            return statistics.fmean(record[part][name] for record in some)

        step = 1e3 * statistics.fmean(r["training"]["cpu_seconds"] / r["training"]["num_steps"] for r in some)
        cells = [
            method,
            ", ".join(str(record["task"]["seed"]) for record in some),
            str(setting["epochs"]),
            f"{step:.4g}",
            str(setting["batch_size"]),
            f"{mean('training', 'memory') / 1e9:.2f}",
            f"{mean('scores', 'accuracy'):.2%}",
            *(f"{mean('scores', name):.3f}" for name in ("nll", "ece")),
            f"{mean('training', 'train_nll'):.3f}",
            str(samples),
            f"{mean('scores', 'cpu_seconds'):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cifar", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="folder with cifar-10-batches-py, or with train.npz and test.npz of packed images"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for results; what is there is not done again")
    parser.add_argument("--methods", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), metavar="METHOD")
    parser.add_argument(
        "--change", nargs="+", default=[], metavar="NAME=NUMBER", help="settings in place of a method's own"
    )
    parser.add_argument("--epochs", type=int, help="of point and natural gradients, instead of their own number")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED")
    parser.add_argument("--samples", type=int, default=32, help="draws of an ensemble")
    parser.add_argument("--train", type=int, help="use only so many training images, chosen at random")
    parser.add_argument(
        "--validation", type=int, default=0, help="set so many training images aside and report on them"
    )
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    given.out.mkdir(parents=True, exist_ok=True)
    loaded: list[Pictures] = []

    def data() -> Pictures:
        if not loaded:
            loaded.append(_residual.load(given.data, num_train=given.train, validation=given.validation))
        return loaded[0]

    def echo(text: str) -> None:
        print(text, flush=True)

    changes = {name: ast.literal_eval(value) for name, value in (change.split("=", 1) for change in given.change)}

    def setting(method: str) -> Setting:
        own = replace(SETTINGS[method], **changes)
        return own if given.epochs is None or own.starts_from_point else replace(own, epochs=given.epochs)

    runs, records = Runs(given.out, data, given.samples, echo), []
    for seed in given.seeds:
        for method in given.methods:
            point = setting("adam") if setting(method).starts_from_point else None
            task = Task(method, seed, given.train, given.validation, given.width, setting(method), point)
            try:
                records.append(runs.run(task))
            except (ValueError, OSError) as error:
                parser.error(str(error))
    what = f"{given.validation} images set aside" if given.validation else "the test images"
    number = "all" if given.train is None else f"{given.train:,}"
    echo(f"\nTrained on {number} training images, measured on {what}; {records[0]['machine']}.\n\n{show(records)}")


if __name__ == "__main__":
    main()
