"""CIFAR-10 with ResNet-20, trained for a few epochs by several methods: `python -m benchmarks.cifar`.

The methods are maximum likelihood by SGD with momentum or by Adam; the mode of the posterior; natural gradients for all
weights; SWAG; SVI and Laplace's method for the last layer of the mode; and an ensemble of several seeds. An interrupted
run can be resumed, and the tables are written after every network.
"""

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import pyro_bnn as pb
from pyro_bnn.inference.batch_norm import PinnedPosterior
from pyro_bnn.inference.history import History

from . import _residual, _residual_scores, _residual_tables
from ._residual import Pictures, Problem, Setting
from ._results import machine, parser_of, read_record, write_json

BELOW = {"last-layer": "map", "laplace": "map", "natural-refreshed": "natural"}
"""The network that gives the layers below a random last layer, or whose batch normalisation is refreshed."""

SETTINGS: dict[str, Setting] = {
    "sgd": Setting("point", lr=0.1, has_momentum=True, kl_weight=0.0),
    "map": Setting("point", lr=0.1, has_momentum=True, prior_scale=0.3),
    "adam": Setting("point", lr=2e-3, kl_weight=0.0),
    "natural": Setting("natural", lr=0.5, prior_scale=0.3),
    "swag": Setting("swag", lr=0.1, has_momentum=True, prior_scale=0.3),
    "last-layer": Setting("last-layer", lr=1e-2, prior_scale=1.0, batch_size=500, epochs=20),
    "laplace": Setting("laplace", lr=0.0, prior_scale=1.0, epochs=0),
    "natural-refreshed": Setting("refreshed", lr=0.0, prior_scale=0.3, epochs=0),
}


@dataclass(frozen=True)
class Task:
    """One network to train and measure."""

    method: str  # a name in `SETTINGS`
    seed: int
    num_train: int | None  # with None, all images
    validation: int  # number of training images to report on instead of the test images; 0 uses the test images
    width: int  # channels of the first stage
    setting: Setting
    point: Setting | None = None  # how the network below was trained, if there is one

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"

    @property
    def below(self) -> "Task":
        """The task of the network from which this task starts."""
        assert self.point is not None
        return replace(self, method=BELOW[self.method], setting=self.point, point=None)


Network = tuple[Problem, pb.Posterior]


class Runs:
    """The networks in a folder; finished work of earlier runs is not repeated."""

    def __init__(
        self,
        out: Path,
        data: Callable[[], Pictures],
        num_samples: int,
        device: str,
        echo: Callable[[str], None],
    ) -> None:
        self._out, self._data, self._num_samples, self._device, self._echo = out, data, num_samples, device, echo

    def run(self, task: Task) -> dict[str, Any]:
        """Train, measure and record one network."""
        record, is_done = self._found(task.name, asdict(task))
        if not is_done:
            problem, posterior = self._trained(task, record)
            self._measure(task.name, record, task.setting, task.seed, problem, posterior)
        return record

    def run_ensemble(self, tasks: list[Task]) -> dict[str, Any]:
        """Measure and record the mixture of several networks, each with its own batch normalisation."""
        method, count = tasks[0].method, len(tasks)
        name = f"{method}-ensemble-of-{count}"
        members = [self.run(task) for task in tasks]
        told = {**asdict(tasks[0]), "method": f"{method}, ensemble", "seeds": [task.seed for task in tasks]}
        record, is_done = self._found(name, told)
        if not is_done:
            networks = [self._trained(task, member) for task, member in zip(tasks, members, strict=True)]
            parts = [member["training"] for member in members]
            sums = {key: sum(part[key] for part in parts) for key in ("cpu_seconds", "wall_seconds", "num_steps")}
            record["training"] = {**parts[0], **sums}
            record["machine"] = members[0]["machine"]
            posterior = pb.EnsemblePosterior([PinnedPosterior(problem.model, found) for problem, found in networks])
            setting = replace(tasks[0].setting, method="ensemble")
            draws = 1 if tasks[0].setting.is_point else max(self._num_samples // count, 1)  # of each member
            self._measure(name, record, setting, 0, networks[0][0], posterior, num_samples=draws * count)
        return record

    def _found(self, name: str, task: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """The record of a network, and whether it is complete."""
        record = read_record(self._out / f"{name}.json", task)
        is_done = record.get("num_samples") == self._num_samples
        if is_done:
            self._echo(f"# {name}: done before")
        return record, is_done

    def _measure(
        self,
        name: str,
        record: dict[str, Any],
        setting: Setting,
        seed: int,
        problem: Problem,
        posterior: pb.Posterior,
        num_samples: int | None = None,
    ) -> None:
        num_samples = num_samples or self._num_samples
        record["scores"] = _residual_scores.evaluate(
            posterior, setting, problem, self._data(), num_samples=num_samples, seed=seed
        )
        record["num_samples"] = self._num_samples
        write_json(self._out / f"{name}.json", record)

    def _trained(self, task: Task, record: dict[str, Any]) -> Network:
        if task.setting.method == "refreshed":
            record["training"], record["machine"] = (self.run(task.below)[name] for name in ("training", "machine"))
            return self._trained(task.below, record)
        images, state = self._data(), self._out / f"{task.name}.pt"
        net = _residual.network(images, task.width, task.seed)
        if task.setting.starts_from_point:
            below = self.run(task.below)
            record["below"] = below["training"]
            problem, posterior = self._trained(task.below, below)
            problem.give_weights(posterior, net)
        problem = _residual.build(task.setting, images, net.to(self._device))
        if "training" in record:
            return problem, pb.load_posterior(state, problem.model)

        def echo(history: History) -> None:
            last, n = history.epochs[-1], len(images.x_train)
            done = f"part {last.epoch + 1}, {last.seconds:.0f} s"
            self._echo(f"# {task.name}: {done}, NLL {-last.expected_log_likelihood / n:.4f}, KL {last.kl / n:.3f}")

        checkpoint = self._out / f"{task.name}.fit"
        posterior, record["training"] = _residual.train(
            task.setting, problem, images, seed=task.seed, checkpoint=checkpoint, echo=echo
        )
        record["machine"] = machine(self._device)
        pb.save_posterior(posterior, state, problem.model)
        write_json(self._out / f"{task.name}.json", record)
        checkpoint.unlink(missing_ok=True)
        return problem, posterior


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("cifar", __doc__, data="cifar-10-batches-py, or with train.npz and test.npz of packed images")
    parser.add_argument("--methods", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), metavar="METHOD")
    parser.add_argument(
        "--change", nargs="+", default=[], metavar="NAME=NUMBER", help="replaces settings of the methods"
    )
    parser.add_argument("--epochs", type=int, help="number of epochs, except for last layers; default: that of each")
    parser.add_argument("--ensemble", choices=list(SETTINGS), metavar="METHOD", help="also mix networks of all seeds")
    parser.add_argument("--unknown", type=Path, help="folder with FashionMNIST, for images of unknown classes")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED")
    parser.add_argument("--samples", type=int, default=16, help="number of draws of an ensemble")
    parser.add_argument("--train", type=int, help="number of training images, chosen at random")
    parser.add_argument(
        "--validation", type=int, default=0, help="number of training images to set aside and report on"
    )
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
    parser.add_argument("--threads", type=int, default=1, help="number of threads of torch")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    echo = functools.partial(print, flush=True)

    @functools.cache
    def data() -> Pictures:
        parts = {"num_train": given.train, "validation": given.validation, "unknown": given.unknown}
        return _residual.load(given.data, **parts)

    changes = {name: ast.literal_eval(value) for name, value in (change.split("=", 1) for change in given.change)}

    def setting(method: str) -> Setting:
        own = replace(SETTINGS[method], **changes)
        return own if given.epochs is None or method in BELOW else replace(own, epochs=given.epochs)

    def task(method: str, seed: int) -> Task:
        own = setting(method)
        point = setting(BELOW[method]) if method in BELOW else None
        return Task(method, seed, given.train, given.validation, given.width, own, point)

    def report() -> str:
        what = f"{given.validation} images set aside" if given.validation else "the test images"
        number = "all" if given.train is None else f"{given.train:,}"
        head = f"Trained on {number} training images, measured on {what}; {records[0]['machine']}."
        return f"{head}\n\n{_residual_tables.show(records)}"

    runs, records = Runs(given.out, data, given.samples, given.device, echo), []
    try:
        for seed in given.seeds:
            for method in given.methods:
                records.append(runs.run(task(method, seed)))
                (given.out / "table.md").write_text(report())
        if given.ensemble:
            records.append(runs.run_ensemble([task(given.ensemble, seed) for seed in given.seeds]))
            (given.out / "table.md").write_text(report())
    except (ValueError, OSError) as error:
        parser.error(str(error))
    echo(f"\n{report()}")


if __name__ == "__main__":
    main()
