"""Bayesian optimisation of four functions: `python -m benchmarks.optimise --out FOLDER`.

All methods of a seed start from the same points of a Sobol sequence, and then choose a few points at a time by the same
acquisition function. Each run leaves one line in FOLDER/optimise.jsonl; what is there is not run again.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import torch
from matplotlib.ticker import StrMethodFormatter
from torch import Tensor

from pyro_bnn import plotting
from pyro_bnn.interop.botorch import fit_surrogate

from ._results import (
    Row,
    add_row,
    by_cell,
    cell_of,
    head_of,
    line_of,
    mean_and_error,
    parser_of,
    processor_seconds,
    read_rows,
    save_small,
)

NUM_FIRST, NUM_TOGETHER, NUM_ROUNDS = 10, 6, 4
"""Number of first points, of points chosen together, and of rounds in which points are chosen."""

Fit = Callable[[Tensor, Tensor, int], Any]
"""Makes a model of BoTorch from points in the unit cube, shape (N, d), values, shape (N, 1), and a seed."""


@dataclass(frozen=True)
class Problem:
    """A function to maximise on the unit cube."""

    function: str  # name of a test function of BoTorch
    inputs: int  # number of inputs of the function
    inert: int = 0  # number of further inputs that have no effect

    def values(self, points: Tensor) -> Tensor:
        """How far the function is above its minimum, with a minus sign, at points of shape (N, d); shape (N, 1)."""
        from botorch import test_functions

        options = {} if self.function == "Branin" else {"dim": self.inputs}
        function = getattr(test_functions, self.function)(**options)
        low, high = function.bounds.to(points)
        place = low + (high - low) * points[:, : self.inputs]
        return function.optimal_value - function(place)[:, None]


PROBLEMS = {
    "Branin": Problem("Branin", 2),
    "Hartmann": Problem("Hartmann", 6),
    "Ackley": Problem("Ackley", 10),
    "Hartmann, 24 inert": Problem("Hartmann", 6, inert=24),
}


def first_points(problem: Problem, count: int, seed: int) -> Tensor:
    """Points of a scrambled Sobol sequence, shape (count, d)."""
    engine = torch.quasirandom.SobolEngine(problem.inputs + problem.inert, scramble=True, seed=seed)
    return engine.draw(count, dtype=torch.float64)


def network(x: Tensor, y: Tensor, seed: int) -> Any:
    """The network of `fit_surrogate`, with its defaults."""
    return fit_surrogate(x, y, bounds=unit_cube(x), seed=seed)


def gaussian_process(x: Tensor, y: Tensor, seed: int) -> Any:
    """BoTorch's default Gaussian process, whose length scales maximise the marginal likelihood with priors."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def fully_bayesian(x: Tensor, y: Tensor, seed: int) -> Any:
    """A Gaussian process with sparse relevance of inputs, whose length scales are drawn by Pyro's NUTS."""
    from botorch.fit import fit_fully_bayesian_model_nuts
    from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP
    from botorch.models.transforms import Standardize

    model = SaasFullyBayesianSingleTaskGP(x, y, outcome_transform=Standardize(1))
    lengths = {"warmup_steps": 128, "num_samples": 128, "thinning": 8}
    fit_fully_bayesian_model_nuts(model, **lengths, disable_progbar=True, seed=seed)
    return model


METHODS: dict[str, Fit | None] = {
    "network": network,
    "GP": gaussian_process,
    "Sobol": None,
    "fully Bayesian GP": fully_bayesian,
}
"""What chooses the points; with None, the Sobol sequence."""

LOOKS = {
    "network": {"marker": "o", "color": plotting.PALETTE[0]},
    "GP": {"marker": "D", "color": plotting.PALETTE[1], "linestyle": "-", "label": "Gaussian process (GP)"},
    "Sobol": {"marker": "s", "color": "0.5", "linestyle": "--", "label": "random points (Sobol)"},
    "fully Bayesian GP": {"marker": "^", "color": plotting.PALETTE[2]},
}
"""Methods in the picture; the names of some are longer there than in the table."""

TICKS = {
    "Branin": (0.01, 0.1, 1),
    "Hartmann": (0.5, 1, 2),
    "Ackley": (19, 19.5, 20, 20.5),
    "Hartmann, 24 inert": (0.5, 1, 2),
}
"""Ticks of the axes of the regret, by problem."""


def unit_cube(x: Tensor) -> Tensor:
    """Bounds of the inputs, shape (2, d)."""
    return torch.stack([torch.zeros_like(x[0]), torch.ones_like(x[0])])


def chosen(model: Any, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """The next points, one after the other, by expected improvement over the best value and the points before."""
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.optim import optimize_acqf

    torch.manual_seed(seed)
    gain = qLogExpectedImprovement(model, y.max())
    options = {"num_restarts": 4, "raw_samples": 128, "sequential": True}
    near = {"sample_around_best": True}
    points, _ = optimize_acqf(gain, unit_cube(x), q=NUM_TOGETHER, **options, options=near)
    return points


def run(problem: Problem, fit: Fit | None, seed: int) -> Row:
    """The smallest distance from the optimum after each round, and the CPU time of all."""
    start = processor_seconds()
    total = NUM_FIRST + NUM_TOGETHER * NUM_ROUNDS
    x = first_points(problem, total if fit is None else NUM_FIRST, seed)
    y = problem.values(x)
    while fit is not None and len(x) < total:
        more = chosen(fit(x, y, seed), x, y, seed)
        x, y = torch.cat([x, more]), torch.cat([y, problem.values(more)])
    best = (-y).cummin(0).values[NUM_FIRST - 1 :: NUM_TOGETHER, 0]
    return {"regret": best.tolist(), "seconds": processor_seconds() - start}


def table(rows: list[Row]) -> Iterator[str]:
    """Means over the seeds with their standard errors, a line for each problem and method."""
    half = NUM_ROUNDS // 2
    counts = [NUM_FIRST + NUM_TOGETHER * rounds for rounds in (0, half, NUM_ROUNDS)]
    yield from head_of(["function", "method", "seeds", *(f"after {count}" for count in counts), "CPU s"], 2)
    for (name, method), some in by_cell(rows).items():
        found = [cell_of([row["regret"][rounds] for row in some], 3) for rounds in (0, half, NUM_ROUNDS)]
        yield line_of([name, method, str(len(some)), *found, cell_of([row["seconds"] for row in some], 1)])


def picture(
    curves: Mapping[tuple[str, str], Sequence[tuple[float, float | None]]],
    counts: Sequence[int],
    path: Path,
    lines: Iterable[str],
) -> None:
    """Mean simple regret and its standard error, by the number of evaluations.

    Args:
        curves: Mean and standard error at each of `counts`, by function and method.
        counts: Numbers of evaluations.
        path: The file to write.
        lines: The table beside the picture.
    """
    with plotting.style():
        axes = plotting.new_axes(2, 2, size=("page", 4.4))
        for name, ax in zip(PROBLEMS, axes.flat, strict=True):
            for place, (method, look) in enumerate(LOOKS.items()):
                means, errors = zip(*curves.get((name, method), [(nan, None)]), strict=True)
                where = [count + 0.4 * (place - 1) for count in counts[: len(means)]]  # so that bars do not overlap
                bars = [error or 0.0 for error in errors]
                options = {"label": method, "markersize": 4, "elinewidth": 1.1, "linewidth": 1.1, "capsize": 0} | look
                ax.errorbar(where, means, yerr=bars, clip_on=False, **options)
            problem = PROBLEMS[name]
            inert = f" and {problem.inert} inert" if problem.inert else ""
            ax.set(title=f"{problem.function}, {problem.inputs} inputs{inert}", xticks=counts)
            ax.set_yscale("linear" if name == "Ackley" else "log")  # whose values differ by a tenth
            ax.set_yticks(TICKS[name])
            ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            ax.minorticks_off()
        for ax, scale in zip(axes[:, 0], ("log", "linear"), strict=True):
            ax.set_ylabel(f"simple regret ({scale} scale)")
        axes[0, 0].figure.supxlabel("evaluations", fontsize=8)
        shown = {method for _, method in curves}
        handles = [handle for method, handle in zip(LOOKS, axes[0, 0].containers, strict=True) if method in shown]
        axes[0, 0].figure.get_layout_engine().set(wspace=0.05)
        title = {
            "title": "simple regret: distance of the best value from the optimum; smaller is better",
            "alignment": "left",
            "labelspacing": 0.8,
        }
        axes[0, 0].figure.legend(handles=handles, loc="outside upper left", ncols=4, **title)
        save_small(axes[0, 0], path, lines, num_colors=40)


def main() -> None:
    parser = parser_of("optimise", __doc__)
    parser.add_argument("--functions", nargs="+", choices=PROBLEMS, default=[*PROBLEMS], metavar="NAME")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=10, help="the first so many")
    parser.add_argument("--picture", type=Path, help="file for the picture")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of BoTorch's optimisers, and of short chains
    torch.set_num_threads(1)
    file = options.out / "optimise.jsonl"
    for seed in range(options.seeds):
        for method in options.methods:
            for name in options.functions:
                done = {(row["dataset"], row["method"], row["seed"]) for row in read_rows(file)}
                if (name, method, seed) not in done:
                    found = run(PROBLEMS[name], METHODS[method], seed)
                    add_row(file, {"dataset": name, "method": method, "seed": seed, **found})
                    print(f"# {name} {seed} {method}: {found['regret'][-1]:.3f}, {found['seconds']:.1f} s", flush=True)
    rows = sorted(read_rows(file), key=lambda row: ([*PROBLEMS].index(row["dataset"]), [*METHODS].index(row["method"])))
    print(*table(rows), sep="\n")
    if options.picture:
        cells = by_cell(rows)
        most = max(map(len, cells.values()))
        whole = {key: some for key, some in cells.items() if len(some) == most}  # those with all seeds
        regrets = {key: zip(*(row["regret"] for row in some), strict=True) for key, some in whole.items()}
        curves = {key: [*map(mean_and_error, parts)] for key, parts in regrets.items()}
        counts = [NUM_FIRST + NUM_TOGETHER * rounds for rounds in range(NUM_ROUNDS + 1)]
        drawn = [row for row in rows if (row["dataset"], row["method"]) in whole]
        picture(curves, counts, options.picture, table(drawn))


if __name__ == "__main__":
    main()
