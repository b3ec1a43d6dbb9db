"""Fit a network to the evaluations of a function."""

import math
from typing import TYPE_CHECKING

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.extras import optional
from ..._core.scope import seeded, silent_fits
from ...inference.mcmc import fit_nuts
from ...modelling.likelihoods import GaussianLikelihood, Likelihood
from ...modelling.model import BayesianModel
from ...modelling.priors import FanInNormalPrior, NormalPrior, PriorByName, WeightPrior
from ...nets import mlp
from ._surrogate import Surrogate

if TYPE_CHECKING:
    from botorch.models.transforms.input import Normalize
    from botorch.models.transforms.outcome import Standardize
else:
    Normalize = optional("botorch.models.transforms.input", "BoTorch", "botorch").Normalize
    Standardize = optional("botorch.models.transforms.outcome", "BoTorch", "botorch").Standardize

DRAWS, WARMUP, CHAINS, TREE_DEPTH = 64, 200, 2, 7  # heuristic: draws and warm-up of each chain
UNITS = 16  # heuristic: units of each of the two hidden layers

CENTER, SPREAD = -0.5, 1.5  # heuristic: prior mean (less log(d) / 2) and sd of the logarithm of an input's factor
PRIOR = PriorByName({"net.0.*": NormalPrior(1.0), "net.1.*": NormalPrior(1.0), "**": FanInNormalPrior(2.0)})
"""Heuristic: priors for the default network's input factors, for its first layer, and for further layers."""

NOISE = dist.LogNormal(-5.0, 0.5)  # heuristic: prior of a noise scale; a wide one could explain small differences


class Relevance(nn.Module):
    r"""Standardises inputs from the unit cube, and multiplies each by a random factor.

    .. math:: x_k \mapsto \sqrt{12}\, (x_k - \tfrac12) \, \frac{\exp(a + b w_k)}{\sqrt d},

    where w are the random weights. A fit gives small factors to inputs that have no effect.
    """

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs))
        self.center = CENTER - 0.5 * math.log(num_inputs)

    def forward(self, x: Tensor) -> Tensor:
        return math.sqrt(12) * (x - 0.5) * (self.center + SPREAD * self.weight).exp()


def fit_surrogate(
    X: Tensor,
    Y: Tensor,
    *,
    bounds: Tensor | None = None,
    net: nn.Module | None = None,
    prior: WeightPrior = PRIOR,
    likelihood: Likelihood | None = None,
    num_samples: int = DRAWS,
    num_warmup: int = WARMUP,
    num_chains: int = CHAINS,
    seed: int | None = None,
) -> Surrogate:
    """Fit a network with NUTS to the evaluations of a function, for Bayesian optimisation.

    Inputs are scaled to the unit cube, and targets standardised. With NUTS in C code, a fit to 40 evaluations takes one
    or two seconds. The chains are short: their draws suffice to choose the next points, but not to report intervals.

    Args:
        X: Points evaluated so far, shape (N, d), in single or double precision.
        Y: Values of the function at the points X, shape (N, m), in the precision of X.
        bounds: Lowest and highest value of each input, shape (2, d); by default the lowest and highest in X.
        net: Network that maps d inputs in the unit cube to m outputs. The default has two hidden layers of 16 tanh
            units, and a factor for each input, so that it can ignore inputs.
        prior: Prior of the weights. The default suits the default `net`, but usually no other network.
        likelihood: Gaussian likelihood of the standardised targets. By default, each target has a latent noise scale of
            about 0.7 % of its standard deviation. If evaluations are noisy, pass
            ``GaussianLikelihood(dist.LogNormal(-1.0, 1.0))``.
        num_samples: Number of draws that are kept from each chain.
        num_warmup: Number of warm-up draws of each chain.
        num_chains: Number of chains.
        seed: Seed of the fit and of the surrogate's draws; if None, a seed is drawn.

    Returns:
        The surrogate. After further evaluations, fit a new surrogate.

    Raises:
        ValueError: If X, Y or `bounds` has a wrong shape, dtype or value, or a target is constant.

    References:
        Li, Rudner and Wilson (2024), A Study of Bayesian Neural Network Surrogates for Bayesian Optimization,
        https://arxiv.org/abs/2305.20028. In their comparison, HMC is the best way to infer the weights.

    Example:
        >>> import torch
        >>> from pyro_bnn.interop.botorch import fit_surrogate
        >>> X = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
        >>> Y = (6 * X).sin()
        >>> surrogate = fit_surrogate(X, Y, num_samples=10, num_warmup=50, seed=0)
        >>> surrogate.posterior(X).mean.shape
        torch.Size([8, 1])
    """
    _checks.finite("X", _checks.real_tensor("X", X))
    _checks.finite("Y", _checks.real_tensor("Y", Y))
    if X.dim() != 2 or Y.dim() != 2 or len(X) != len(Y) or len(X) < 2 or X.dtype != Y.dtype:
        raise ValueError(
            "`X` and `Y` must have shapes (N, d) and (N, m), at least two rows and one dtype, got "
            f"{_checks.shape(X)} of {X.dtype} and {_checks.shape(Y)} of {Y.dtype}."
        )
    num_inputs, num_outputs = X.shape[1], Y.shape[1]
    if bool((Y.amin(0) == Y.amax(0)).any()):
        raise ValueError("`Y` must not be constant in any column; evaluate more points first.")
    num_chains = _checks.at_least("num_chains", num_chains, 1)
    num_samples = _checks.at_least("num_samples", num_samples, 4)
    seed = int(torch.randint(2**31, ())) if seed is None else _checks.seed(seed)
    bounds = _bounds_of(X) if bounds is None else _checked_bounds(bounds, X)
    inputs = Normalize(num_inputs, bounds=bounds).eval()
    outcomes = Standardize(num_outputs)
    targets, _ = outcomes(Y)
    outcomes.eval()
    if net is None:
        with seeded(seed):
            layers = mlp([num_inputs, UNITS, UNITS, num_outputs], activation=nn.Tanh)
            net = nn.Sequential(Relevance(num_inputs), *layers).to(X)
    if likelihood is None:
        likelihood = GaussianLikelihood(NOISE.expand([num_outputs]).to_event(1))
    model = BayesianModel(net, prior=prior, likelihood=likelihood, num_data=len(X))
    with silent_fits():  # the draws are too few for the diagnostics, and are not reported
        posterior = fit_nuts(
            model,
            (inputs(X), targets),
            num_samples=num_samples,
            num_warmup=num_warmup,
            num_chains=num_chains,
            max_tree_depth=TREE_DEPTH,
            seed=seed,
        )
    return Surrogate(
        model,
        posterior,
        num_outputs=num_outputs,
        input_transform=inputs,
        outcome_transform=outcomes,
        train_X=X,
        seed=seed,
    )


def _bounds_of(X: Tensor) -> Tensor:
    low, high = X.amin(0), X.amax(0)
    return torch.stack([low, torch.where(low < high, high, low + low.abs() + 1)])  # for a constant input, a wider range


def _checked_bounds(bounds: Tensor, X: Tensor) -> Tensor:
    expected = (2, X.shape[1])
    if _checks.tensor("bounds", bounds).shape != expected:
        raise ValueError(f"`bounds` must have shape {expected}, got {_checks.shape(bounds)}.")
    _checks.finite("bounds", bounds)
    if not bool((bounds[0] < bounds[1]).all()):
        raise ValueError("`bounds` must hold lower values in its first row than in its second.")
    return bounds.to(X)
