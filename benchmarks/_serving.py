"""Ways to answer requests, and how long one answer takes."""

import functools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn.interop import PredictiveModule

from ._measure import Cell, alternate

BURST_SECONDS, MOST_CALLS = 0.1, 100
"""A burst of calls ends after this time, or with this number of calls."""


@dataclass(frozen=True)
class Case:
    """A network with a likelihood, and the shape of one row of its inputs."""

    net: Callable[[], nn.Module]
    likelihood: pb.Likelihood
    shape: tuple[int, ...]
    is_compiled: bool = True  # whether `torch.compile` is measured, too


CASES = {
    "10-50-50-1": Case(lambda: pb.nets.mlp([10, 50, 50, 1]), pb.GaussianLikelihood(0.3), (10,)),
    "784-400-400-10": Case(lambda: pb.nets.mlp([784, 400, 400, 10]), pb.CategoricalLikelihood(), (784,)),
    "LeNet-5": Case(pb.nets.lenet5, pb.CategoricalLikelihood(), (28, 28), is_compiled=False),
}
PLAIN = "plain network"


@dataclass
class Caller:
    """Calls a function again and again; a burst's unit is one call.

    Times are CPU times of this process, which are latencies on an idle core, since everything runs on one thread. On a
    busy machine, wall times would favour short calls, which end before another process gets the core.
    """

    call: Callable[[], object]
    seconds: list[float] = field(default_factory=list)

    def burst(self) -> float:
        found: list[float] = []
        while len(found) < MOST_CALLS and sum(found) < BURST_SECONDS:
            begin = time.process_time()
            self.call()
            found.append(time.process_time() - begin)
        self.seconds += found
        return float(np.median(found))


@dataclass(frozen=True)
class Served:
    """Time of one answer."""

    case: str
    way: str
    rows: int  # number of rows of a request
    ratio: Cell  # time divided by that of the plain network, for each round
    median: float  # latency in seconds
    high: float  # 99 % quantile of the latencies
    calls: int


def session(path: Path) -> Callable[[np.ndarray], object]:
    """Run a file in onnxruntime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    found = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: found.run(None, {"x": x})


def ways(case: Case, num_draws: int) -> dict[str, Callable[[Tensor], Callable[[], object]]]:
    """Functions from a request to a call that answers it, by the name of the way."""
    torch.manual_seed(0)
    model = pb.BayesianModel(case.net(), prior=pb.NormalPrior(0.1), likelihood=case.likelihood, num_data=1000)
    guide = pb.MeanFieldGuide(model)
    x = torch.randn(16, *case.shape)
    plain = pb.pruning.sparse_network(model, guide.median(), max_density=None)
    module = PredictiveModule(model, guide, x, num_samples=num_draws, seed=0)
    stored = pb.StoredPosterior.of(guide, num_draws, seed=0)
    rows = torch.export.Dim("rows")
    program = torch.export.export(module, (x,), dynamic_shapes=({0: rows},), strict=False).module()
    with tempfile.TemporaryDirectory() as folder:
        pb.export_onnx(model, guide, x, f"{folder}/file.onnx", num_samples=num_draws, seed=0)
        print(f"# ONNX file: {Path(folder, 'file.onnx').stat().st_size / 1e6:.1f} MB, {module.computation}", flush=True)
        run = session(Path(folder, "file.onnx"))
    sampled = functools.partial(pb.predict, model, guide, num_samples=num_draws, seed=0)
    kept = functools.partial(pb.predict, model, stored)
    found: dict[str, Callable[[Tensor], Callable[[], object]]] = {
        PLAIN: lambda x: functools.partial(plain, x),
        "predict": lambda x: functools.partial(sampled, x),
        "predict, stored draws": lambda x: functools.partial(kept, x),
        "PredictiveModule": lambda x: functools.partial(module, x),
        "torch.export": lambda x: functools.partial(program, x),
        "ONNX": lambda x: functools.partial(run, x.numpy()),
    }
    if case.is_compiled:
        compiled = torch.compile(module, dynamic=False)
        found["torch.compile"] = lambda x: functools.partial(compiled, x)
    return found


@torch.no_grad()
def served(name: str, num_draws: int, counts: list[int], rounds: int) -> list[Served]:
    """Times of all ways for one network; each way alternates with the plain network."""
    calls, found = ways(CASES[name], num_draws), []
    for count in counts:
        x = torch.randn(count, *CASES[name].shape)
        for way, make in calls.items():
            caller, plain = Caller(make(x)), Caller(calls[PLAIN](x))
            caller.call()  # compiles
            caller.call()
            ratio = alternate(caller, plain, rounds)
            seconds = np.array(caller.seconds)
            found.append(
                Served(
                    name, way, count, ratio, float(np.median(seconds)), float(np.quantile(seconds, 0.99)), len(seconds)
                )
            )
            print(f"# {name}, {way}, {count} rows: {1e3 * found[-1].median:.3g} ms, {ratio} times", flush=True)
    return found
