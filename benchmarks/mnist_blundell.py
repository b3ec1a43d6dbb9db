"""MNIST with two hidden layers, beside Blundell et al. (2015): `python -m benchmarks.mnist_blundell`.

Six networks: plain and with dropout, both by maximum likelihood; Bayesian with a Gaussian prior, with a scale mixture,
and by our own recipe, with Adam and with natural gradients. All numbers of a row are of one posterior: error,
calibration, detection of FashionMNIST, and errors when most weights are removed. An interrupted run can be resumed;
finished networks are not repeated.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pyro_bnn as pb
from pyro_bnn.data import Images
from pyro_bnn.inference.history import History

from . import _blundell
from ._blundell import Setting
from ._results import head_of, line_of, machine, parser_of, read_record, write_json

# Our own settings. Heuristic, chosen for 400 units on 10,000 training images set aside: a wide component no wider
# than the weights, a cold posterior, and dropout of pixels. See docs/results.
RECIPE = Setting(prior="mixture:0.5,0.1,0.0025", kl_weight="0.05", input_dropout=0.2, batch_size=256, epochs=70)

NATURAL = replace(
    RECIPE,
    prior="normal:0.1",
    init="network:0.01",
    optimizer="natural:0.999,1",
    lr=0.007,
    schedule="warm-cosine",
    epochs=30,
)

SETTINGS: dict[str, Setting] = {
    "sgd": Setting(optimizer="momentum", lr=0.05, epochs=30),
    "dropout": Setting(optimizer="momentum", lr=0.05, input_dropout=0.2, hidden_dropout=0.5, epochs=60),
    "gaussian": Setting(prior="normal:1", is_closed=True, batch_size=256, epochs=40),
    "mixture": Setting(prior="mixture:0.5,1,0.0025", batch_size=256, epochs=40),
    "recipe": RECIPE,
    "natural": NATURAL,
}

# Blundell et al. (2015), https://arxiv.org/abs/1505.05424, tables 1 and 2: test error in per cent.
PUBLISHED_ERROR = {
    400: {"sgd": 1.83, "dropout": 1.51, "gaussian": 1.82, "mixture": 1.36},
    1200: {"sgd": 1.88, "dropout": 1.36, "gaussian": 2.04, "mixture": 1.32},
}
PUBLISHED_PRUNED_ERROR = {0.0: 1.24, 0.5: 1.24, 0.75: 1.24, 0.95: 1.29, 0.98: 1.39}
"""Published test errors of 2 x 1200 units with the scale mixture, by the fraction removed."""


@dataclass(frozen=True)
class Task:
    """One network to train and measure."""

    method: str  # a name in `SETTINGS`
    units: int  # number of units of each hidden layer
    seed: int
    validation: int  # number of training images to report on instead of the test images; 0 uses the test images
    setting: Setting

    @property
    def name(self) -> str:
        return f"{self.method}-{self.units}-seed{self.seed}"


def run(
    task: Task,
    data: Callable[[], tuple[Images, Tensor]],
    out: Path,
    *,
    num_samples: int,
    device: str,
    echo: Callable[[str], None],
) -> dict[str, Any]:
    """Train, measure and record one network; finished parts of earlier runs are not repeated."""
    path = out / f"{task.name}.json"
    record = read_record(path, asdict(task))
    if record.get("num_samples") == num_samples:
        echo(f"# {task.name}: done before")
        return record
    images, unknown = data()
    model, guide = _blundell.build(task.setting, images, task.units, task.seed)
    state = path.with_suffix(".pt")
    if "training" in record:
        pb.load_posterior(state, model, guide=guide)
        model.to(device)
        guide.to(device)
    else:

        def report(history: History) -> None:
            last, n = history.epochs[-1], len(images.x_train)
            kl = f", KL {last.kl / n:.3f}" if task.setting.is_bayesian else ""
            done = f"epoch {last.epoch + 1} of {task.setting.epochs}, {last.seconds:.0f} s"
            echo(f"# {task.name}: {done}, NLL {-last.expected_log_likelihood / n:.4f}{kl}")

        record["training"] = _blundell.train(
            task.setting, model, guide, images, seed=task.seed, report=report, device=device
        )
        record["machine"] = machine(device)
        pb.save_posterior(guide, state, model)
        write_json(path, record)
    options: dict[str, Any] = {"num_samples": num_samples, "seed": task.seed}
    record["scores"] = _blundell.evaluate(task.setting, model, guide, images, unknown, **options)
    record["pruned"] = _blundell.prune(model, guide, images, **options) if task.setting.is_bayesian else []
    record["num_samples"] = num_samples
    write_json(path, record)
    return record


def show(records: Sequence[dict[str, Any]]) -> str:
    """Tables in Markdown: one of all networks, and one for each pruned posterior."""
    titles = (
        "network|published error|mean weights|ensemble|NLL|ECE|AUROC entropy|AUROC mutual inf.|KL / image|NLL train"
    )
    lines = head_of([*titles.split("|"), "CPU s"])
    for record in records:
        task, training, scores = record["task"], record["training"], record["scores"]
        published = PUBLISHED_ERROR.get(task["units"], {}).get(task["method"])
        cells = [
            _title(task),
            "" if published is None else f"{published:.2f} %",
            *(_percent(scores.get(name)) for name in ("mean_error", "error")),
            *(_number(scores.get(name)) for name in ("nll", "ece", "auroc_entropy", "auroc_mutual_information")),
            *(_number(training.get(name)) for name in ("kl_per_image", "train_nll")),
            f"{training.get('cpu_seconds', training['seconds']):.0f}",
        ]
        lines.append(line_of(cells))
    for record in records:
        if record["pruned"]:
            lines += ["", *_show_pruned(record)]
    return "\n".join(lines)


def _show_pruned(record: dict[str, Any]) -> list[str]:
    task = record["task"]
    is_published = task["method"] in ("mixture", "recipe") and task["units"] == 1200
    titles = "removed|weights left|published error|mean weights|ensemble|NLL mean weights|NLL ensemble"
    lines = head_of(f"{_title(task)}: {titles}".split("|"), 0)
    for row in record["pruned"]:
        published = PUBLISHED_PRUNED_ERROR.get(row["fraction"]) if is_published else None
        cells = [
            f"{row['fraction']:.0%}",
            f"{row['num_weights']:,}",
            "" if published is None else f"{published:.2f} %",
            *(_percent(row[name]) for name in ("mean_error", "error")),
            *(_number(row[name]) for name in ("mean_nll", "nll")),
        ]
        lines.append(line_of(cells))
    return lines


def _title(task: dict[str, Any]) -> str:
    return f"{task['method']}, 2 x {task['units']}, seed {task['seed']}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def changed(setting: Setting, changes: Sequence[str]) -> Setting:
    """A setting with other values, given as texts NAME=VALUE; a `ValueError` for an unknown name or a wrong value."""
    for change in changes:
        name, _, value = change.partition("=")
        kinds = {field.name: type(getattr(setting, field.name)) for field in fields(setting)}
        if kinds.get(name) not in (str, int, float):
            raise ValueError(f"`--change` must be NAME=VALUE with a name among {', '.join(kinds)}, got {change!r}.")
        setting = replace(setting, **{name: kinds[name](value)})
    return setting


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("mnist_blundell", __doc__, data="MNIST/raw and FashionMNIST/raw")
    parser.add_argument("--methods", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), metavar="METHOD")
    parser.add_argument("--units", nargs="+", type=int, default=[400, 1200])
    parser.add_argument("--epochs", type=int, help="number of epochs of all methods; default: that of each")
    parser.add_argument(
        "--change",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="replaces settings of all methods, such as lr=0.01 kl_weight=0.1",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=100, help="number of draws of an ensemble")
    parser.add_argument(
        "--validation",
        type=int,
        default=0,
        help="set so many training images aside and report on them, and on FashionMNIST's training images, instead of "
        "the test sets: the way to choose a recipe",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="number of threads of torch")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    echo = functools.partial(print, flush=True)
    data = functools.cache(functools.partial(_blundell.load, given.data, given.validation))
    records = []
    for units in given.units:
        for method in given.methods:
            try:
                setting = changed(SETTINGS[method], given.change)
            except ValueError as error:
                parser.error(str(error))
            setting = setting if given.epochs is None else replace(setting, epochs=given.epochs)
            task = Task(method, units, given.seed, given.validation, setting)
            try:
                records.append(run(task, data, given.out, num_samples=given.samples, device=given.device, echo=echo))
            except (ValueError, OSError) as error:
                parser.error(str(error))
    what = f"{given.validation} images set aside" if given.validation else "the test images"
    echo(f"\nOn {what}; ensembles of {given.samples} draws; {records[0]['machine']}.\n\n{show(records)}")


if __name__ == "__main__":
    main()
