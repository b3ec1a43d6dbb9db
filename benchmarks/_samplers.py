"""One class per sampler; each draws from the posterior of the same model and returns the cost."""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from unittest import mock

import torch
from pyro.infer import MCMC
from pyro.infer import mcmc as pyro_mcmc
from pyro.infer.mcmc import nuts as pyro_nuts
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn.inference import mcmc
from pyro_bnn.inference.mcmc import Draws, Kernel, ValueAndGrad

NUM_HIDDEN, PRIOR_SCALE, NOISE = 20, 1.0, 0.2
GRID = torch.linspace(-1, 1, 15, dtype=torch.float64)[:, None]


def problem_data() -> tuple[Tensor, Tensor]:
    """The 92 points of `regression_problem`, x and y scaled to unit range."""
    x, y = pb.data.regression_problem()
    return 2 * x.double(), y.double() / 10


def problem_model() -> pb.BayesianModel:
    """A network of 61 weights with known noise."""
    net = nn.Sequential(nn.Linear(1, NUM_HIDDEN), nn.Tanh(), nn.Linear(NUM_HIDDEN, 1)).double()
    return pb.BayesianModel(
        net, prior=pb.NormalPrior(PRIOR_SCALE), likelihood=pb.GaussianLikelihood(NOISE), num_data=len(problem_data()[0])
    )


def functions(samples: dict[str, Tensor]) -> Tensor:
    """The network at GRID for weights of shape (K, S, *event), shape (K, S, M)."""
    hidden_weight, hidden_bias, weight, bias = (
        samples[f"net.{name}"].double() for name in ("0.weight", "0.bias", "2.weight", "2.bias")
    )
    hidden = (GRID @ hidden_weight.mT + hidden_bias.unsqueeze(-2)).tanh()
    return (hidden @ weight.mT + bias.unsqueeze(-2)).squeeze(-1)


@dataclass(frozen=True)
class Lengths:
    num_warmup: int
    num_samples: int
    max_tree_depth: int = 8


@dataclass(frozen=True)
class Result:
    functions: Tensor  # (K, S, M): the network of each draw on the grid
    num_steps: int  # leapfrog steps of all chains, in warm-up too
    seconds: float  # warm-up and sampling, without compilation


class Sampler(ABC):
    name: str
    compile_seconds = 0.0  # paid once, in the first run

    @abstractmethod
    def run(self, lengths: Lengths, seed: int) -> Result: ...


class Ours(Sampler):
    """`fit_nuts`; its first run compiles, and the others use the compiled code."""

    def __init__(self, num_chains: int, *, compile: bool) -> None:
        self.name = f"fit_nuts{', compiled' * compile}, {num_chains} chain{'s' * (num_chains > 1)}"
        self._num_chains, self._compile = num_chains, compile

    def run(self, lengths: Lengths, seed: int) -> Result:
        sampler = CountingNUTS(lengths.max_tree_depth)
        posterior = pb.fit_mcmc(
            problem_model(),
            problem_data(),
            sampler=sampler,
            num_samples=lengths.num_samples,
            num_warmup=lengths.num_warmup,
            num_chains=self._num_chains,
            compile=self._compile,
            seed=seed,
        )
        if self._compile:
            self.compile_seconds = self.compile_seconds or sampler.making
        seconds = posterior.statistics.seconds - sampler.making  # without the time of the diagnostics
        return Result(functions(posterior.chains), sampler.num_steps, seconds)


class CountingNUTS(mcmc.Sampler):
    """NUTS that counts its leapfrog steps, in warm-up too.

    Attributes:
        num_steps: Leapfrog steps of all chains so far.
        making: Seconds in which the kernel was made, compilation included.
    """

    def __init__(self, max_tree_depth: int) -> None:
        self._nuts = pb.NUTS(max_tree_depth)
        self.num_steps, self.making = 0, 0.0

    def kernel(self, value_and_grad: ValueAndGrad, z: Tensor, *, compile: bool = False) -> Kernel:
        begin = time.perf_counter()
        kernel = self._nuts.kernel(value_and_grad, z, compile=compile)
        self.making = time.perf_counter() - begin
        return CountingKernel(kernel, self)


class CountingKernel(Kernel):
    """Wraps a kernel, and counts its steps."""

    def __init__(self, kernel: Kernel, counter: CountingNUTS) -> None:
        super().__init__(kernel.value_and_grad, kernel.inverse_mass)
        self.step_size, self.inverse_mass = kernel.step_size, kernel.inverse_mass  # warm-up writes into these
        self.is_needed = kernel.is_needed
        self._kernel, self._counter = kernel, counter

    def momentum(self, chain: int) -> Tensor:
        return self._kernel.momentum(chain)

    def draw(self) -> Draws:
        draws = self._kernel.draw()
        self._counter.num_steps += int(draws.num_steps[draws.finished].sum())
        return draws


class Pyro(Sampler):
    """Pyro's own `MCMC(NUTS(model))` on the same model."""

    name = "Pyro, 1 chain"

    def run(self, lengths: Lengths, seed: int) -> Result:
        torch.manual_seed(seed)
        num_steps, verlet = 0, pyro_nuts.velocity_verlet

        def counted(*arguments: object, **keywords: object) -> object:
            nonlocal num_steps
            num_steps += 1
            return verlet(*arguments, **keywords)

        kernel = pyro_mcmc.NUTS(problem_model(), max_tree_depth=lengths.max_tree_depth)
        mcmc = MCMC(kernel, lengths.num_samples, warmup_steps=lengths.num_warmup, disable_progbar=True)
        begin = time.perf_counter()
        with mock.patch.object(pyro_nuts, "velocity_verlet", counted):
            mcmc.run(*problem_data())
        seconds = time.perf_counter() - begin
        return Result(functions(mcmc.get_samples(group_by_chain=True)), num_steps, seconds)


class NumPyro(Sampler):
    """NumPyro's NUTS; the first run compiles, and is therefore repeated."""

    def __init__(self, num_chains: int, chain_method: str = "sequential") -> None:
        self.name = f"NumPyro, {num_chains} chain{'s' * (num_chains > 1)}, {chain_method}"
        self._num_chains, self._chain_method, self._mcmc = num_chains, chain_method, None
        self._data = [part.numpy() for part in problem_data()]  # NumPyro compiles again for other arrays

    def run(self, lengths: Lengths, seed: int) -> Result:
        import jax

        with jax.enable_x64(True):
            if self._mcmc is None:
                self._mcmc = self._make(lengths)
                first = self._run(seed)
                self.compile_seconds = first.seconds - self._run(seed).seconds
            return self._run(seed)

    def _make(self, lengths: Lengths):
        from numpyro import infer

        return infer.MCMC(
            infer.NUTS(_numpyro_model, max_tree_depth=lengths.max_tree_depth),
            num_warmup=lengths.num_warmup,
            num_samples=lengths.num_samples,
            num_chains=self._num_chains,
            chain_method=self._chain_method,
            progress_bar=False,
        )

    def _run(self, seed: int) -> Result:
        import jax

        mcmc = self._mcmc
        begin = time.perf_counter()
        mcmc.run(jax.random.PRNGKey(seed), *self._data, extra_fields=("num_steps",))
        num_steps = int(mcmc.get_extra_fields()["num_steps"].sum())
        num_steps = num_steps * (mcmc.num_warmup + mcmc.num_samples) // mcmc.num_samples  # with the warm-up
        samples = {k: torch.tensor(jax.device_get(v)) for k, v in mcmc.get_samples(group_by_chain=True).items()}
        return Result(functions(samples), num_steps, time.perf_counter() - begin)


def _numpyro_model(x, y):
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    h = NUM_HIDDEN
    shapes = {"net.0.weight": (h, 1), "net.0.bias": (h,), "net.2.weight": (1, h), "net.2.bias": (1,)}
    w0, b0, w2, b2 = (
        numpyro.sample(name, dist.Normal(0, PRIOR_SCALE).expand(shape).to_event()) for name, shape in shapes.items()
    )
    output = jnp.tanh(x @ w0.T + b0) @ w2.T + b2
    numpyro.sample("obs", dist.Normal(output, NOISE).to_event(2), obs=y)
