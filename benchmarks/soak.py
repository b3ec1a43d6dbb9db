"""Work of every kind in one process for a long time, to see whether anything grows: `python -m benchmarks.soak`.

A round is one call of each job. After each round the process is measured: resident memory, open file descriptors,
threads, live tensors, Pyro's parameter store and its stack of handlers. The first third of the rounds is warm-up.
Memory is flat if the line through the later rounds rises by less than 2 % of the memory, or by less than 3 standard
errors. A count is flat if its last value is at most its largest value during warm-up. The exit code is 1 if anything
grows.
"""

import argparse
import functools
import gc
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import pyro
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.poutine.runtime import _PYRO_STACK
from scipy.stats import linregress
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb

Job = Callable[[Path], object]
"""A piece of work. It may write files into the folder, which is empty at first and is removed at the end."""

LEAST_ROUNDS = 6
LARGEST_SHARE = 0.02
NUM_STANDARD_ERRORS = 3
NUM_ROWS = 60
ADAM = functools.partial(torch.optim.Adam, lr=0.01)


# --- the jobs ---------------------------------------------------------------------------------------------------------


def data(*, classes: bool = False) -> tuple[Tensor, Tensor]:
    """Rows with four inputs, and a number or a class for each."""
    x = torch.randn(NUM_ROWS, 4)
    y = (2 * x[:, :1]).sin() + 0.1 * torch.randn(NUM_ROWS, 1)
    return x, (y[:, 0] > 0).long() if classes else y


def model(*, classes: bool = False) -> pb.BayesianModel:
    """A network of 61 weights, or of 72."""
    net = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 2 if classes else 1))
    likelihood = pb.CategoricalLikelihood() if classes else pb.GaussianLikelihood(0.1)
    return pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=NUM_ROWS)


def fit(own: pb.BayesianModel, guide: nn.Module, rows: object, **options: object) -> pb.GuidePosterior:
    """A fit of three epochs."""
    batch_size = 20 if isinstance(rows, tuple) else None
    return pb.fit_svi(own, rows, guide, **{"optimizer": ADAM, "num_epochs": 3, "batch_size": batch_size, **options})


def fit_directly(folder: Path) -> None:
    """Fits without Pyro's handlers, of several guides and estimators."""
    for estimator in (None, pb.LocalReparameterization(), pb.Flipout()):
        own = model()
        fit(own, pb.MeanFieldGuide(own), data(), estimator=estimator)
    fit(own := model(), pb.LowRankGuide(own, rank=2), data())
    fit(own := model(classes=True), pb.MeanFieldGuide(own), data(classes=True))


def fit_by_pyro(folder: Path) -> None:
    """A fit of one of Pyro's guides."""
    own = model()
    pb.predict(own, fit(own, pb.auto_guide(AutoNormal, own), data()), data()[0], num_samples=5)


def fit_from_a_loader(folder: Path) -> None:
    """A fit whose batches come from another process."""
    own = model()
    rows = DataLoader(TensorDataset(*data()), batch_size=20, shuffle=True, num_workers=1)
    fit(own, pb.MeanFieldGuide(own), rows, num_epochs=1)


def resume(folder: Path) -> None:
    """A fit that writes a checkpoint at every step, and a fit that resumes from it."""
    rows, path = data(), folder / "checkpoint"
    own = model()
    fit(own, pb.MeanFieldGuide(own), rows, checkpoint=pb.Checkpoint(path, minutes=0), num_epochs=2, seed=1)
    own = model()
    fit(own, pb.MeanFieldGuide(own), rows, resume=path, num_epochs=4, seed=1)


def predict(folder: Path) -> None:
    """Predictions of numbers and of classes, with and without their draws."""
    for classes in (False, True):
        own, (x, y) = model(classes=classes), data(classes=classes)
        guide = pb.MeanFieldGuide(own)
        pb.predict(own, guide, x, num_samples=20, batch_size=25)
        kept = pb.predict(own, guide, x, y=y, num_samples=20, keep_draws=True)
        kept.log_density.mean() if classes else kept.quantile(0.1)
        pb.predict(own, guide, DataLoader(TensorDataset(x, y), batch_size=20), num_samples=5)


def predict_in_threads(folder: Path) -> None:
    """Predictions of four threads at the same time."""
    models, (x, _) = [model() for _ in range(4)], data()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda own: pb.predict(own, pb.MeanFieldGuide(own), x, num_samples=20, seed=1), models))


def save_and_load(folder: Path) -> None:
    """A posterior to a file and back."""
    first, second = model(), model()
    guides = pb.MeanFieldGuide(first), pb.MeanFieldGuide(second)
    pb.save_posterior(pb.GuidePosterior(guides[0]), folder / "posterior", first)
    pb.load_posterior(folder / "posterior", second, guide=guides[1])


def sample(folder: Path, *, compile: bool = False) -> None:
    """Two short chains of NUTS, and their predictions."""
    own, (x, y) = model(), data()
    chains = pb.fit_nuts(own, (x, y), num_samples=10, num_warmup=10, num_chains=2, max_tree_depth=4, compile=compile)
    pb.predict(own, chains, x)


def laplace(folder: Path) -> None:
    """Laplace's method, and its predictions."""
    own, (x, y) = model(), data()
    pb.predict(own, pb.fit_laplace(own, (x, y), max_iter=200), x, num_samples=10)


JOBS: dict[str, Job] = {
    "fit": fit_directly,
    "pyro": fit_by_pyro,
    "loader": fit_from_a_loader,
    "resume": resume,
    "predict": predict,
    "threads": predict_in_threads,
    "save": save_and_load,
    "nuts": sample,
    "compiled": functools.partial(sample, compile=True),
    "laplace": laplace,
}


# --- what is measured -------------------------------------------------------------------------------------------------


def measure() -> dict[str, int]:
    """The present measurements of the process, after garbage collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident memory (kB)": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "live tensors": sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()),
        "parameter store": len(pyro.get_param_store()),
        "handlers": len(_PYRO_STACK),
    }


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Slope of the least-squares line through equally spaced values, and its standard error."""
    line = linregress(range(len(values)), values)
    return float(line.slope), float(line.stderr)


@dataclass(frozen=True)
class Trend:
    """How a measurement changed over the rounds."""

    name: str
    first: float  # value in the first round after the warm-up
    last: float
    per_round: float  # slope of the line through the rounds after the warm-up
    standard_error: float  # of the slope
    is_flat: bool  # whether the measurement does not grow

    def __str__(self) -> str:
        per_round = f"{self.per_round:.3g} +- {self.standard_error:.2g}"
        return f"| {self.name} | {self.first} | {self.last} | {per_round} | {'yes' if self.is_flat else 'NO'} |"


def trend(name: str, values: Sequence[float]) -> Trend:
    """The trend of a measurement: memory if its name says so, otherwise a count."""
    warmup, rest = values[: len(values) // 3], values[len(values) // 3 :]
    per_round, error = slope(rest)
    is_flat = rest[-1] <= max(warmup)
    if "memory" in name:
        growth = per_round * (len(rest) - 1)
        is_flat = growth < LARGEST_SHARE * rest[0] or per_round < NUM_STANDARD_ERRORS * error
    return Trend(name, rest[0], rest[-1], per_round, error, is_flat)


def soak(jobs: Mapping[str, Job], *, seconds: float) -> list[Trend]:
    """Repeat all jobs for some time, and for at least six rounds; print a line per minute."""
    begin, said, rounds = time.monotonic(), 0.0, []
    while len(rounds) < LEAST_ROUNDS or time.monotonic() - begin < seconds:
        for job in jobs.values():
            with tempfile.TemporaryDirectory() as folder:
                job(Path(folder))
        rounds.append(measure())
        now = time.monotonic() - begin
        if now - said >= 60 or len(rounds) == 1:
            said = now
            numbers = ", ".join(f"{name} {value}" for name, value in rounds[-1].items())
            print(f"{now / 60:6.1f} min, round {len(rounds)}: {numbers}", flush=True)
    print(f"{len(rounds)} rounds in {(time.monotonic() - begin) / 60:.1f} minutes", flush=True)
    return [trend(name, [measured[name] for measured in rounds]) for name in rounds[0]]


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true", help="run for seconds without a compiler; a rough verdict")
    parser.add_argument("--only", action="append", choices=JOBS, help="run only this job; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the trends to this file")
    arguments = parser.parse_args()
    if not Path("/proc/self/statm").exists():
        parser.error("the benchmark reads /proc, which exists only on Linux.")
    torch.set_num_threads(1)
    names = arguments.only or [name for name in JOBS if not (arguments.quick and name == "compiled")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)  # the chains are too short on purpose
        trends = soak({name: JOBS[name] for name in names}, seconds=5 if arguments.quick else 60 * arguments.minutes)
    print("\n| measured | after warm-up | at the end | per round | flat |\n|---|--:|--:|--:|:-:|")
    print("\n".join(map(str, trends)))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(found) for found in trends], indent=1))
    sys.exit(not all(found.is_flat for found in trends))


if __name__ == "__main__":
    main()
