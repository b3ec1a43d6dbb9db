"""Chains of NUTS, ours and NumPyro's; each function that samples needs a process of its own, for `_hold`."""

import itertools
import os
import time
import warnings

import numpy as np
import torch
from torch import nn

NUM_CHAINS = 4
SIZES = {"Poisson": (1, 10, 1), "categorical": (2, 8, 8, 3), "heteroscedastic": (1, 10, 2)}
"""Units of each layer, by likelihood. All weights are N(0, 1), all hidden units tanh."""


def data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a problem."""
    random = np.random.default_rng(0)
    x = np.linspace(-2, 2, 100)[:, None]
    if kind == "Poisson":
        return x, random.poisson(np.exp(1 + np.sin(2 * x))).astype(float)
    if kind == "heteroscedastic":
        return x, np.sin(2 * x) + (0.1 + 0.2 * np.abs(x)) * random.normal(size=x.shape)
    x = random.normal(size=(150, 2))
    return x, ((x**2).sum(1) > 1.4).astype(int) + (x[:, 0] > 1)


def grid(kind: str) -> np.ndarray:
    """Inputs at which posteriors are compared."""
    line = np.linspace(-2, 2, 9)[:, None]
    return np.hstack([line, line[::-1] ** 2 / 2]) if kind == "categorical" else line


def milliseconds_per_ess(quick: bool, num_cores: int) -> dict[str, list[float]]:
    """Milliseconds per effective draw of predictions, after compilation, by seed: four chains, ours and NumPyro's."""
    _hold(num_cores)
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    torch.set_num_threads(1)
    from pyro_bnn import ConvergenceWarning

    from . import nuts

    warnings.simplefilter("ignore", ConvergenceWarning)
    lengths = nuts.Lengths(20, 20, 3) if quick else nuts.Lengths(200, 200)
    wanted = ["fit_nuts, 4 chains" if quick else "fit_nuts, compiled, 4 chains", "NumPyro, 4 chains, vectorized"]
    chosen = {s.name: s for s in nuts.samplers("4 chains") if s.name in wanted}
    result: dict[str, list[float]] = {name: [] for name in chosen}
    for seed in range(1 if quick else 3):
        for name, sampler in chosen.items():
            run = [sampler.run(lengths, seed)]
            result[name].append(float(nuts.row(sampler, run, run)["ms per ess"]))
    return result


def ours(kind: str, num_draws: int, num_cores: int, compile: bool = True) -> dict[str, object]:
    """Seconds of `fit_nuts` with compilation, and moments of the network's outputs at the grid."""
    _hold(num_cores)
    import pyro_bnn as pb

    torch.set_num_threads(num_cores)
    warnings.simplefilter("ignore", pb.ConvergenceWarning)  # the standard errors take the ESS into account
    sizes = SIZES[kind]
    layers = [m for pair in itertools.pairwise(sizes) for m in (nn.Linear(*pair), nn.Tanh())][:-1]
    x, y = map(torch.tensor, data(kind))
    likelihoods = {
        "Poisson": pb.PoissonLikelihood(),
        "categorical": pb.CategoricalLikelihood(),
        "heteroscedastic": pb.HeteroscedasticGaussianLikelihood(),
    }
    net = nn.Sequential(*layers).double()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(1.0), likelihood=likelihoods[kind], num_data=len(x))
    length = {"num_samples": num_draws, "num_warmup": num_draws, "num_chains": NUM_CHAINS}
    begin = time.perf_counter()
    posterior = pb.fit_nuts(model, (x, y), compile=compile, seed=0, **length)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    pb.fit_nuts(model, (x, y), compile=compile, seed=1, **{**length, "num_samples": 4, "num_warmup": 0})
    again = time.perf_counter() - begin
    names = range(0, 2 * len(sizes) - 2, 2)
    weights = [[posterior.chains[f"net.{i}.{part}"].numpy() for part in ("weight", "bias")] for i in names]
    return {"seconds": first, "again": again, **_moments(kind, weights)}


def numpyro(kind: str, num_draws: int, num_cores: int) -> dict[str, object]:
    """The same for NumPyro, with its fastest method for this number of cores."""
    _hold(num_cores)
    if num_cores > 1:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={NUM_CHAINS}"
    import jax
    import jax.numpy as jnp
    from numpyro import distributions as dist
    from numpyro import infer, sample

    sizes = SIZES[kind]

    def model(x, y):
        h = x
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            weight = sample(f"weight{i}", dist.Normal(0, 1.0).expand((b, a)).to_event())
            bias = sample(f"bias{i}", dist.Normal(0, 1.0).expand((b,)).to_event())
            h = (jnp.tanh(h) if i else h) @ weight.T + bias
        if kind == "Poisson":
            sample("obs", dist.Poisson(jnp.exp(h)).to_event(2), obs=y)
        elif kind == "categorical":
            sample("obs", dist.Categorical(logits=h).to_event(1), obs=y)
        else:
            sample("obs", dist.Normal(h[:, :1], jnp.exp(0.5 * h[:, 1:])).to_event(2), obs=y)

    with jax.enable_x64(True):
        begin = time.perf_counter()
        mcmc = infer.MCMC(
            infer.NUTS(model),
            num_warmup=num_draws,
            num_samples=num_draws,
            num_chains=NUM_CHAINS,
            chain_method="parallel" if num_cores > 1 else "vectorized",
            progress_bar=False,
        )
        mcmc.run(jax.random.PRNGKey(0), *data(kind))
        samples = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
        seconds = time.perf_counter() - begin
    weights = [[samples[f"weight{i}"], samples[f"bias{i}"]] for i in range(len(sizes) - 1)]
    return {"seconds": seconds, **_moments(kind, weights)}


def largest_z_score(a: dict[str, list[float]], b: dict[str, list[float]]) -> float:
    """Largest difference of two posteriors' moments, in Monte Carlo standard errors."""
    difference = np.subtract(a["means"], b["means"])
    return float(np.abs(difference / np.sqrt(np.add(a["variances"], b["variances"]))).max())


def _hold(num_cores: int) -> None:
    """Bind the process to some cores, since no flag keeps NumPyro from using others."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])


def _moments(kind: str, weights: list[list[np.ndarray]]) -> dict[str, object]:
    """Means of the network's outputs, or class probabilities, and of their squares, with Monte Carlo variances."""
    from . import nuts
    from ._samplers import Result

    value = grid(kind)
    for i, (weight, bias) in enumerate(weights):
        value = (np.tanh(value) if i else value) @ weight.swapaxes(-1, -2) + bias[..., None, :]
    if kind == "categorical":
        value = np.exp(value - value.max(-1, keepdims=True))
        value /= value.sum(-1, keepdims=True)
    functions = torch.tensor(value).flatten(2)  # (K, S, M)
    means, variances = nuts.moments(Result(functions, num_steps=0, seconds=0.0))
    return {"means": means.tolist(), "variances": variances.tolist()}
