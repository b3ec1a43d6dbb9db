"""Active learning on MNIST from 20 images: `python -m benchmarks.active`.

In each step a network is trained from scratch on the labelled images, its error on the test images is measured, and ten
images of the pool are labelled. Each step adds a line to FOLDER/active.jsonl; steps in this file are not run again.

The network has dropout before its last layer. A draw is one dropout mask, the same for all images. So it is a draw of
the last layer's weights, on which the labels of all images depend.
"""

import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.legend_handler import HandlerTuple
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import acquisition, plotting
from pyro_bnn.data import Images, load_images

from ._dots import MeanAndError
from ._results import (
    Row,
    add_row,
    cell_of,
    head_of,
    line_of,
    mean_and_error,
    parser_of,
    read_rows,
    save_small,
    with_error,
)

START_PER_CLASS, STEP = 2, 10
NUM_POOL, NUM_TARGETS, NUM_DRAWS = 5000, 100, 100
"""Images of the pool that a step looks at, drawn anew each time; targets of EPIG; draws of a prediction."""
DROPOUT, NUM_UPDATES, BATCH_SIZE, LEARNING_RATE = 0.5, 200, 32, 3e-3
ERRORS = (0.10, 0.05)
"""Test errors to be reached."""

PUBLISHED = {"random": (255, 835), "entropy": (165, 355), "BALD": (145, 335)}
"""Numbers of labelled images that reach `ERRORS`, from table 1 of Gal et al. (2017)."""

Chooser = Callable[[Any, Any], Tensor]
"""Function from the predictions of pool and targets to the numbers of `STEP` images of the pool."""


def highest(score: Callable[[Any], Tensor]) -> Chooser:
    return lambda pool, targets: score(pool).topk(STEP).indices


METHODS: dict[str, Chooser] = {
    "random": lambda pool, targets: torch.arange(STEP),  # the pool is in random order
    "entropy": highest(acquisition.entropy),
    "BALD": highest(acquisition.bald),
    "BatchBALD": lambda pool, targets: acquisition.batch_bald(pool, STEP, num_combinations=200, seed=0)[0],
    "EPIG": lambda pool, targets: acquisition.epig(pool, targets).topk(STEP).indices,
}


def network() -> nn.Sequential:
    """Two convolutions, a hidden layer, dropout, and the last layer."""
    layers = OrderedDict[str, nn.Module](
        images=nn.Unflatten(1, (1, 28)),
        conv1=nn.Conv2d(1, 16, 4, stride=2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(16, 32, 3),
        pool=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        hidden=nn.Linear(800, 128),
        relu3=nn.ReLU(),
        dropout=nn.Dropout(DROPOUT),  # on in training; in predictions the draws take its place
        last=nn.Linear(128, 10),
    )
    return nn.Sequential(layers)


def trained(x: Tensor, y: Tensor, seed: int) -> tuple[pb.BayesianModel, pb.StoredPosterior]:
    """A new network, trained on some images, and draws of its last layer's weights by dropout masks."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = pb.BayesianModel(
            network(),
            prior=pb.NormalPrior(1.0),
            likelihood=pb.CategoricalLikelihood(),
            num_data=len(x),
            where="net.last.*",
        )
        guide = pb.DeltaGuide(model, init=pb.NetworkInit())
        point = pb.fit_svi(
            model,
            (x, y),
            guide,
            optimizer=functools.partial(torch.optim.Adam, lr=LEARNING_RATE),
            num_epochs=-(-NUM_UPDATES // -(-len(x) // BATCH_SIZE)),
            batch_size=BATCH_SIZE,
            seed=seed,
        )
        kept = torch.rand(NUM_DRAWS, 1, 128) >= DROPOUT
    weight, bias = (guide.median()[f"net.last.{name}"].detach() for name in ("weight", "bias"))
    draws = {"net.last.weight": weight * kept / (1 - DROPOUT), "net.last.bias": bias.expand(NUM_DRAWS, 10)}
    return model, pb.StoredPosterior(draws, method="dropout masks", status=point.status)


def start(y: Tensor, seed: int) -> list[int]:
    """Numbers of the first labelled images, the same number of each class."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    return torch.cat([order[y[order] == label][:START_PER_CLASS] for label in range(10)]).tolist()


def step(images: Images, method: str, labelled: Sequence[int], seed: int) -> Row:
    """Train on the labelled images, measure the test error, and choose images to label next."""
    begin = time.process_time()
    of_step = 1000 * seed + len(labelled)  # what the step draws depends on nothing before it
    rows = torch.tensor(labelled)
    model, posterior = trained(images.x_train[rows], images.y_train[rows], of_step)
    scores = pb.predict(model, posterior, images.x_test, y=images.y_test, seed=0).score()
    order = torch.randperm(len(images.x_train), generator=torch.Generator().manual_seed(of_step))
    order = order[~torch.isin(order, rows)]
    seen, targets = order[:NUM_POOL], order[NUM_POOL : NUM_POOL + NUM_TARGETS]
    pool = others = None
    if method != "random":
        pool, others = (
            pb.predict(model, posterior, images.x_train[some], keep_draws=True, seed=0) for some in (seen, targets)
        )
    chosen = seen[METHODS[method](pool, others)].tolist()
    return {
        "method": method,
        "seed": seed,
        "images": len(labelled),
        "error": 1 - scores["accuracy"],
        "nll": scores["nll"],
        "next": chosen,
        "seconds": round(time.process_time() - begin, 2),
    }


def run(images: Images, method: str, seed: int, num_images: int, file: Path) -> None:
    """The steps of one run up to a number of images, from where the file ends."""
    before = [row for row in read_rows(file) if (row["method"], row["seed"]) == (method, seed)]
    labelled = start(images.y_train, seed) + [number for row in before for number in row["next"]]
    while len(labelled) <= num_images:
        row = step(images, method, labelled, seed)
        add_row(file, row)
        print(f"# {method} {seed}: {row['images']} images, error {row['error']:.2%}, {row['seconds']} s", flush=True)
        labelled += row["next"]


def curves(rows: Sequence[Row], method: str) -> dict[int, dict[int, float]]:
    """Test errors of a method, by seed and number of images."""
    found: dict[int, dict[int, float]] = {}
    for row in rows:
        if row["method"] == method:
            found.setdefault(row["seed"], {})[row["images"]] = row["error"]
    return found


def first_below(curve: dict[int, float], error: float) -> int | None:
    """The smallest number of images with at most this error; None if it was not reached."""
    return min((count for count, value in curve.items() if value <= error), default=None)


def reached(of_seeds: dict[int, dict[int, float]], error: float) -> str:
    """Mean number of images to reach an error, with its standard error; a lower limit if a seed has not reached it."""
    counts = [first_below(curve, error) for curve in of_seeds.values()]
    known = [float(count or max(curve)) for count, curve in zip(counts, of_seeds.values(), strict=True)]
    return f"> {sum(known) / len(known):.0f}" if None in counts else with_error(*mean_and_error(known), 0)


def points_of(rows: Sequence[Row], method: str) -> dict[int, MeanAndError]:
    """The mean error of a method in per cent, and its standard error, by number of images."""
    common = in_common(of_seeds) if (of_seeds := curves(rows, method)) else {}
    return {count: mean_and_error([100 * error for error in errors]) for count, errors in common.items()}


def in_common(of_seeds: dict[int, dict[int, float]]) -> dict[int, list[float]]:
    """Errors of all seeds by number of images, for the numbers that all of them have."""
    counts = set.intersection(*map(set, of_seeds.values()))
    return {count: [curve[count] for curve in of_seeds.values()] for count in sorted(counts)}


def table(rows: Sequence[Row], at: Sequence[int]) -> Iterator[str]:
    """Numbers of images to reach an error, and test errors at some numbers of images, a line for each method."""
    targets = [f"images to {100 * error:.0f} % error" for error in ERRORS]
    errors_at = [f"error at {count}, %" for count in at]
    yield from head_of(["method", "seeds", *targets, *errors_at, "Gal et al. (2017)"])
    for method in METHODS:
        if not (of_seeds := curves(rows, method)):
            continue
        common = in_common(of_seeds)
        errors = [[100 * error for error in common.get(count, [])] for count in at]
        cells = [cell_of(some, 1) for some in errors]
        published = ", ".join(map(str, PUBLISHED.get(method, ())))
        yield line_of([method, str(len(of_seeds)), *(reached(of_seeds, error) for error in ERRORS), *cells, published])


LAST = 200
"""Largest number of images in the picture."""

PANELS = ("entropy", "BALD", "BatchBALD", "EPIG")
"""Methods in the picture."""


def picture(points: Mapping[str, Mapping[int, MeanAndError]], path: Path) -> None:
    """Mean test errors in per cent by number of images: a panel for each method, beside random choice."""
    bands = "bands: one standard error on each side"
    with plotting.style():
        axes = plotting.new_axes(1, len(PANELS), size=("page", 2.9))[0]
        for ax, method in zip(axes, PANELS, strict=True):
            grey = _line(ax, points.get("random", {}), color="0.5", marker="s", label="random choice")
            blue = _line(ax, points.get(method, {}), color=plotting.PALETTE[0], marker="o", label="method in the title")
            ax.set(title=method, xlabel="labelled images", yscale="log", ylim=(4.5, 52), xticks=(20, 80, 140, LAST))
            ax.set_yticks([5, 10, 20, 40], labels=["5", "10", "20", "40"] if ax is axes[0] else [])
            ax.minorticks_off()
        axes[0].set_ylabel("test error, % (log scale)")
        handles, labels = axes[0].get_legend_handles_labels()
        looks = {"handler_map": {tuple: HandlerTuple(None, pad=0)}, "ncols": 3}
        looks |= {"title": "MNIST, three seeds; smaller is better", "alignment": "left", "labelspacing": 0.8}
        axes[0].figure.legend([*handles, (grey, blue)], [*labels, bands], loc="outside upper left", **looks)
        save_small(axes[0], path)


def _line(ax: Axes, points: Mapping[int, MeanAndError], *, color: str, marker: str, label: str) -> PolyCollection:
    """Draw the means of some points, up to `LAST` images; return the band of one standard error around them."""
    shown = {count: pair for count, pair in points.items() if count <= LAST}
    mean, error = (torch.tensor([pair[side] or 0.0 for pair in shown.values()]) for side in (0, 1))
    ax.plot([*shown], mean, "-", color=color, marker=marker, markersize=3, linewidth=1.1, label=label)
    return ax.fill_between([*shown], mean - error, mean + error, color=color, alpha=0.25, linewidth=0)


def main() -> None:
    parser = parser_of("active", __doc__, data="MNIST/raw")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--images", type=int, default=200, help="number of labelled images at which a run ends")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = options.out / "active.jsonl"
    images = load_images("mnist", root=options.data)
    for seed in range(options.seeds):
        for method in options.methods:
            run(images, method, seed, options.images, file)
            rows = read_rows(file)
            points = {name: points_of(rows, name) for name in METHODS}
            picture(points, options.out / "active_learning.png")
    print(*table(read_rows(file), [50, 100, 200]), sep="\n")


if __name__ == "__main__":
    main()
