"""Every row of the table: the two contenders, the devices, and the goal for their ratio.

A step trains a ReLU network 784-400-400-10 on batches of 128 random inputs: one weight draw, an N(0, 1) prior, a
categorical likelihood, float32, fused Adam. A burst is an epoch of 20 batches in memory. The time of this library is
the one that `fit_svi` reports for its second epoch; it includes the terms of the ELBO and checks of every number.

- written by hand: `HandWritten` in `_steps.py`, without checks. A test compares its loss with Pyro's.
- deterministic: the plain network with the same optimizer; on a GPU also as one CUDA graph.
- convolutions: 28 x 28 images, two convolutions of 5 x 5 with 16 and 32 channels and pooling, and a linear layer.
- rows of data: two calls of `fit_svi` get the same batches and differ only in `num_data`; 45 rounds.
- slope, peak memory: networks with four square layers and 1e4 to 1e8 weights, each in its own process. The slope is
  fitted to those with at least 1e6 weights. It is larger if the system allocates memory slowly, so compare it with
  that of the step written by hand. The unit of memory is 8 bytes per weight, location and scale: with their gradients
  and Adam's state at least 4. A network that does not fit is left out.
- construction: torchvision's `vit_b_16` with 86.6 million weights, in three processes.
- prediction: `predict` on 10,000 images; only matrix products count as operations. The large product multiplies square
  matrices with 2048 rows on a CPU, with 8192 on a GPU. Memory is measured with a network 784-1200-1200-10 and 20 draws,
  with `--full` 1000.
- NUTS from start to end: one call in its own process, with compilation, without imports. Tanh networks 1-10-1
  (Poisson), 2-8-8-3 (categorical) and 1-10-2 (heteroscedastic), N(0, 1) priors, 100 to 150 rows, float64, depth 10.
  The row is empty if the predictive moments differ by more than 5 Monte Carlo standard errors.
- NUTS, a leapfrog step: a ReLU network 8-50-1 in float64, compared with its density and gradient in plain torch.
- NUTS, predictive ESS: effective draws per second of four chains, for three seeds. NumPyro has no flag for the number
  of cores, so every process is limited to one or two; chains of `fit_nuts` run on one core in both rows.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO

import pyro_bnn as pb

from . import _chains, _construction, _ensembles, _growth, _leapfrog, _prediction
from ._measure import Cell, Contender, Row, alternate, at_least, at_most, in_new_process, within
from ._peers import PEERS, Ivon, check
from ._steps import (
    CapturedDeterministic,
    Checkpoint,
    Deterministic,
    Epoch,
    FitSVI,
    HandWritten,
    OwnLoop,
    ResidualSetting,
    Setting,
    natural,
)

Make = Callable[[Setting], Contender]
ELBOS: tuple[type[ELBO], ...] = (Trace_ELBO, TraceMeanField_ELBO)
ESTIMATORS = {"local reparameterisation": pb.LocalReparameterization, "flipout": pb.Flipout}
CLOSED_FORM_PEERS = ("bayesian-torch", "torchbnn")


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    threads: int = 2  # number of threads of torch, for all rows except that of NUTS
    quick: bool = False  # whether to run for only about a minute, with rough figures
    full: bool = False  # whether to measure the memory of predictions with 1000 draws
    most_rounds: int = 15  # rounds of a row, if it is not quick

    @property
    def mlp(self) -> Setting:
        return Setting((20, 16, 16, 4), batch_size=8, num_steps=3) if self.quick else Setting()

    @property
    def conv(self) -> Setting:
        return dataclasses.replace(
            self.mlp, is_conv=True, sizes=(2, 3) if self.quick else (16, 32), num_steps=2 if self.quick else 10
        )

    @property
    def residual(self) -> ResidualSetting:
        return ResidualSetting(batch_size=4, num_steps=1, width=2) if self.quick else ResidualSetting(num_steps=5)

    @property
    def rounds(self) -> int:
        return 2 if self.quick else self.most_rounds


def all_rows(options: Options) -> list[Row]:
    """All rows, in the order of the table."""
    parts = (
        *(_steps, _natural_gradient, _peers, _estimators, _residual, _growing, _constructing, _predicting),
        *(_ensembles_of_points, _others),
    )
    return [row for part in parts for row in part(options)]


def _pair(options: Options, setting: Setting, first: Make, second: Make, times: int = 1) -> Callable[[str], Cell]:
    def measure(device: str) -> Cell:
        shared = dataclasses.replace(setting, device=device)
        return alternate(first(shared), second(shared), times * options.rounds)

    return measure


def _fit(elbo: type[ELBO] = Trace_ELBO, **keywords) -> Make:
    return lambda setting: FitSVI(setting, elbo=elbo, **keywords)


def _steps(options: Options) -> Iterator[Row]:
    for elbo in ELBOS:
        closed = elbo is TraceMeanField_ELBO
        measure = _pair(options, options.mlp, _fit(elbo), lambda s, closed=closed: HandWritten(s, closed_form=closed))
        yield Row(f"SVI step, {elbo.__name__} / written by hand", measure, at_most(1))
    yield Row("SVI step / deterministic step", _pair(options, options.mlp, _fit(), Deterministic))
    measure = _pair(options, options.mlp, OwnLoop, _fit(in_batches=True))
    yield Row("SVI step, in a loop of one's own / in fit_svi", measure, at_most(1.02))
    yield Row(
        "writing a checkpoint / an epoch of 60,000 rows", _pair(options, options.mlp, Checkpoint, Epoch), at_most(0.02)
    )
    point = _fit(make_guide=pb.DeltaGuide)
    yield Row("MAP step / deterministic step", _pair(options, options.mlp, point, Deterministic), at_most(1.2))
    for elbo in ELBOS:
        low_rank = _fit(elbo, make_guide=functools.partial(pb.LowRankGuide, rank=4))
        title = f"SVI step, low rank (4) / mean field, {elbo.__name__}"
        yield Row(title, _pair(options, options.mlp, low_rank, _fit(elbo)), at_most(1.5))
    yield Row(
        "SVI step / deterministic step as one CUDA graph",
        _pair(options, options.mlp, _fit(), CapturedDeterministic),
        gpu_goal=at_most(2),
        on=("cuda",),
    )
    mixture = _fit(prior=pb.ScaleMixturePrior())
    yield Row("SVI step, scale mixture / normal prior", _pair(options, options.mlp, mixture, _fit()), at_most(1.3))


def _natural_gradient(options: Options) -> Iterator[Row]:
    large = options.mlp if options.quick else dataclasses.replace(options.mlp, batch_size=1024, num_steps=10)
    for setting, limit in ((options.mlp, 2.4), (large, 1.4)):
        measure = _pair(options, setting, natural, Deterministic)
        title = f"natural-gradient step / deterministic step, batches of {setting.batch_size}"
        yield Row(title, measure, at_most(limit))
    yield Row("natural-gradient step / SVI step with Adam", _pair(options, options.mlp, natural, _fit()))
    yield Row("natural-gradient step, ivon-opt / ours", _pair(options, options.mlp, Ivon, natural))
    memory = functools.partial(_growth.natural_memory, 1e4 if options.quick else 4e7, options.threads)
    title = "natural-gradient SVI, vectors of all weights beyond deterministic Adam's"
    yield Row(title, memory, at_most(2.1), at_most(2.1))


def _peers(options: Options) -> Iterator[Row]:
    for name, make in PEERS.items():
        elbo = TraceMeanField_ELBO if name in CLOSED_FORM_PEERS else Trace_ELBO

        def measure(device: str, make=make, elbo=elbo) -> Cell:
            check(make, dataclasses.replace(options.mlp, device=device))
            return _pair(options, options.mlp, make, _fit(elbo))(device)

        goal = at_least(10) if name == "pyro-ppl" else None
        yield Row(f"SVI step, {name} / ours, {elbo.__name__}", measure, gpu_goal=goal)


def _estimators(options: Options) -> Iterator[Row]:
    for setting, kind, limit in ((options.mlp, "linear", 1.2), (options.conv, "convolutions", 2.2)):
        for name, estimator in ESTIMATORS.items():
            for elbo in ELBOS:
                pair = _fit(elbo, estimator=estimator()), _fit(elbo)
                title = f"SVI step, {name} / plain, {kind}, {elbo.__name__}"
                yield Row(title, _pair(options, setting, *pair), at_most(limit))


def _residual(options: Options) -> Iterator[Row]:
    setting = options.residual
    yield Row(
        "ResNet-20, natural-gradient step / deterministic step",
        _pair(options, setting, natural, Deterministic),
        at_most(1.15),
        at_most(1.1),
    )
    yield Row("ResNet-20, SVI step / deterministic step", _pair(options, setting, _fit(), Deterministic))

    def memory(device: str) -> Cell:
        names = "natural-gradient", "SVI", "deterministic"
        arguments = setting.batch_size, setting.width, device
        measure = functools.partial(in_new_process, threads=options.threads, returns_memory=True)
        used = [measure("_growth:residual_memory", name, *arguments) for name in names]
        first, _, last = (float(number) / 1e6 for number in used)
        text = ", ".join(f"{name} {float(number) / 1e6:.0f}" for name, number in zip(names, used, strict=True))
        return Cell([first / last], detail=f"MB: {text}")

    yield Row("ResNet-20, peak memory of a fit, natural-gradient / deterministic", memory, at_most(1.05), at_most(1.05))


def _growing(options: Options) -> Iterator[Row]:
    def batches_of(num_data: float) -> Make:
        return lambda setting: FitSVI(dataclasses.replace(setting, num_data=num_data), in_batches=True)

    measure = _pair(options, options.mlp, batches_of(6e7), batches_of(6e4), times=3)
    yield Row("SVI step, 60,000,000 / 60,000 rows of data", measure, within(0.02), within(0.02))
    numbers = (1e3, 1e4) if options.quick else (1e4, 1e5, 1e6, 1e7, 1e8)

    largest = f"{max(numbers):.0e}".replace("e+0", "e")
    for by_hand, whose in ((False, ""), (True, ", written by hand")):
        slope, memory = (
            functools.partial(part, numbers, options.threads, by_hand) for part in (_growth.slope, _growth.memory)
        )
        slope_goal, memory_goal = (None, None) if by_hand else (at_most(1.1), at_most(6))
        yield Row(f"SVI step, slope of log time over log weights{whose}", slope, slope_goal, on=("cpu",))
        title = f"SVI, peak memory / location and scale, {largest} weights{whose}"
        yield Row(title, memory, memory_goal, memory_goal)


def _constructing(options: Options) -> Iterator[Row]:
    name = "MLP" if options.quick else "vit_b_16"
    for part, limits in (("model", (None, None)), ("guide", (at_most(2, " s"), at_most(0.75, " GB")))):
        for what, unit, goal in zip(("time", "peak memory"), (" s", " GB"), limits, strict=True):
            measure = functools.partial(
                _construction.cell, part=part, unit=unit, quick=options.quick, threads=options.threads
            )
            yield Row(f"construction of the {part}, {name}, {what}", measure, goal, on=("cpu",))


def _predicting(options: Options) -> Iterator[Row]:
    num_rows, num_samples = (64, 4) if options.quick else (10_000, 100)
    rounds = 2 if options.quick else 3

    def setting(device: str) -> Setting:
        return dataclasses.replace(options.mlp, batch_size=num_rows, num_steps=1, device=device)

    def beside(machine: Make) -> Callable[[str], Cell]:
        def measure(device: str) -> Cell:
            shared = setting(device)
            ours = _prediction.Predict(shared, num_samples)
            cell = alternate(machine(shared), ours, rounds)
            theirs, own = (1e-9 / seconds for seconds in cell.seconds)
            return dataclasses.replace(cell, detail=f"{own:.3g} / {theirs:.3g} GFLOP/s")

        return measure

    size = 64 if options.quick else 2048
    what = f"prediction, {num_samples} draws x {num_rows:,} images, FLOP/s /"
    square = beside(lambda s: _prediction.square(s, 4 * size if s.device == "cuda" else size))
    yield Row(f"{what} large product's", square, at_least(0.8), at_least(0.7))
    yield Row(f"{what} products' of the layers", beside(_prediction.layers))

    def laplace(device: str) -> Cell:
        shared = setting(device)
        peer, ours = (make(shared, num_samples) for make in (_prediction.LaplaceTorch, _prediction.Predict))
        cell = alternate(peer, ours, rounds)
        theirs, own = (seconds * ours.num_flops for seconds in cell.seconds)
        return dataclasses.replace(cell, detail=f"{theirs:.3g} / {own:.3g} s")

    yield Row("prediction, laplace-torch's time / ours", laplace)
    images = (2, 32) if options.quick else (16, 224)
    reused = [lambda s, by_hand=b: _prediction.Reused(s, *images, by_hand=by_hand) for b in (False, True)]
    title = "prediction, last layer random, ResNet-18, 100 draws / one pass and 100 heads by hand"
    yield Row(title, lambda d: alternate(*(make(setting(d)) for make in reused), 2 * rounds + 1), at_most(1.1))
    small = (20, 16, 4) if options.quick else (10, 20, 20, 3)
    for sizes, goal in ((options.mlp.sizes, at_most(2)), (small, None)):
        row = dataclasses.replace(options.mlp, sizes=sizes, batch_size=1, num_steps=1)
        pair = [functools.partial(make, num_samples=100) for make in (_prediction.OneRow, _prediction.OneRowByHand)]
        title = f"prediction, one row, {'-'.join(map(str, sizes))}, 100 draws / the same arithmetic by hand"
        yield Row(title, _pair(options, row, *pair), goal)
    for removed in (0.9, 0.98):
        wide = dataclasses.replace(
            options.mlp, sizes=(20, 16, 4) if options.quick else (784, 1200, 1200, 10), batch_size=1000, num_steps=1
        )
        dense, sparse = (functools.partial(_prediction.MeanWeights, removed=removed, is_sparse=i) for i in (0, 1))
        title = f"prediction at mean weights, dense / sparse, {removed:.0%} of the weights removed"
        yield Row(title, _pair(options, wide, dense, sparse), at_least(1))
    layers = [20, 16, 4] if options.quick else [784, 1200, 1200, 10]
    draws = 1000 if options.full else num_samples // (2 if options.quick else 5)

    def memory(device: str) -> Cell:
        used = in_new_process("_growth:prediction_memory", layers, num_rows, draws, device, threads=options.threads)
        return Cell([float(used) / 1e9], " GB", f"{'-'.join(map(str, layers))}, {draws} draws x {num_rows:,} images")

    yield Row("prediction, peak memory above model, guide and data", memory, at_most(1, " GB"), at_most(1, " GB"))


def _ensembles_of_points(options: Options) -> Iterator[Row]:
    def ensemble(device: str) -> Cell:
        problem = _ensembles.Problem(300 if options.quick else 60_000, device)
        pair = _ensembles.Ensemble(problem, 3 if options.quick else 10), _ensembles.OneFit(problem)
        return alternate(*pair, 1 if options.quick else 3)

    yield Row("ensemble of ten LeNet-5, in one step / one fit", ensemble, at_most(6), at_most(3))


def _others(options: Options) -> Iterator[Row]:
    def chains(device: str, num_cores: int) -> Cell:
        times = in_new_process("_chains:milliseconds_per_ess", options.quick, num_cores)
        assert isinstance(times, dict)
        if len(times) < 2:
            return Cell(reason="not run: NumPyro is not installed")
        (ours,) = (part for name, part in times.items() if "NumPyro" not in name)
        (theirs,) = (part for name, part in times.items() if "NumPyro" in name)
        medians = [f"{name}: {statistics.median(part):.1f}" for name, part in times.items()]
        return Cell([b / a for a, b in zip(ours, theirs, strict=True)], detail=f"ms/ESS: {', '.join(medians)}")

    def from_start(device: str, kind: str, num_cores: int) -> Cell:
        lengths = 20 if options.quick else 500
        ours, theirs = (in_new_process(f"_chains:{name}", kind, lengths, num_cores) for name in ("ours", "numpyro"))
        assert isinstance(ours, dict)
        assert isinstance(theirs, dict)
        z = _chains.largest_z_score(ours, theirs)
        if z > 5 and not options.quick:
            return Cell(reason=f"the answers differ by {z:.1f} standard errors")
        times = f"{ours['seconds']:.1f} / {theirs['seconds']:.1f} s; a second call of ours begins within"
        detail = f"{times} {ours['again']:.1f} s; largest difference of the answers {z:.1f} standard errors"
        return Cell([ours["seconds"] / theirs["seconds"]], detail=detail)

    def leapfrog(device: str, num_rows: int) -> Cell:
        count = 8 if options.quick else 40
        return alternate(
            _leapfrog.Compiled(num_rows, count), _leapfrog.ByHand(num_rows, 5 * count), 1 if options.quick else 5
        )

    def importing(device: str) -> Cell:
        seconds = [in_new_process("_measure:import_seconds") for _ in range(1 if options.quick else 7)]
        return Cell(seconds, " s", "in processes of their own, after `import torch, pyro`")

    for num_cores, goal in ((1, at_least(1)), (2, None)):
        title = f"NUTS, predictive ESS per second, ours / NumPyro's, {num_cores} core{'s' * (num_cores > 1)} for either"
        yield Row(title, functools.partial(chains, num_cores=num_cores), goal, on=("cpu",))
    for num_cores in (1, 2):
        for kind in _chains.SIZES:
            cores = f"{num_cores} core{'s' * (num_cores > 1)}"
            title = f"NUTS from start to end, {kind}, 4 chains of 500 + 500, ours / NumPyro's time, {cores}"
            measure = functools.partial(from_start, kind=kind, num_cores=num_cores)
            yield Row(title, measure, at_most(1), on=("cpu",))
    for num_rows in (600,) if options.quick else (1500, 6000):
        title = f"NUTS, a leapfrog step of one of 4 chains, 8-50-1 on {num_rows} rows / density and gradient by hand"
        yield Row(title, functools.partial(leapfrog, num_rows=num_rows), at_most(1), on=("cpu",))
    yield Row("import pyro_bnn, after torch and pyro", importing, at_most(0.3, " s"), on=("cpu",))
