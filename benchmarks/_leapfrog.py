"""A leapfrog step of NUTS on many rows, and the least it must do: the same density and gradient, in plain torch."""

import time
import warnings

import torch
from torch import Tensor, nn

import pyro_bnn as pb

from ._samplers import CountingNUTS

SIZES = (8, 50, 1)
NOISE = 0.3


def data(num_rows: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, SIZES[0], generator=generator, dtype=torch.float64)
    return x, x[:, :1].sin() + NOISE * torch.randn(num_rows, 1, generator=generator, dtype=torch.float64)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(*SIZES[:2]), nn.ReLU(), nn.Linear(*SIZES[1:])).double()


class Compiled:
    """Four chains of `fit_nuts(compile=True)`, half of each as warm-up; a burst's unit is one leapfrog step."""

    def __init__(self, num_rows: int, num_draws: int) -> None:
        self._data, self._num_draws = data(num_rows), num_draws
        prior, likelihood = pb.NormalPrior(1.0), pb.GaussianLikelihood(NOISE)
        self._model = pb.BayesianModel(network(), prior=prior, likelihood=likelihood, num_data=num_rows)

    def burst(self) -> float:
        sampler, half = CountingNUTS(6), self._num_draws // 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ConvergenceWarning)  # few draws
            posterior = pb.fit_mcmc(
                self._model,
                self._data,
                sampler=sampler,
                num_samples=half,
                num_warmup=half,
                num_chains=4,
                init=pb.NetworkInit(0.02),
                compile=True,
                seed=0,
            )
        return (posterior.statistics.seconds - sampler.making) / sampler.num_steps


class ByHand:
    """The log-density and its gradient by torch, in float64; a burst's unit is one evaluation."""

    def __init__(self, num_rows: int, num_steps: int) -> None:
        (self._x, self._y), self._net, self._num_steps = data(num_rows), network(), num_steps

    def burst(self) -> float:
        begin = time.perf_counter()
        for _ in range(self._num_steps):
            self._net.zero_grad()
            errors = (self._net(self._x) - self._y).square().sum() / NOISE**2
            (0.5 * (errors + sum(weight.square().sum() for weight in self._net.parameters()))).backward()
        return (time.perf_counter() - begin) / self._num_steps
