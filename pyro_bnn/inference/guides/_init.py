"""Rules for the initial locations and scales of a guide, and checks that a model suits a guide."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._core import checks as _checks
from ...modelling.model import BayesianModel
from ..joint import Site
from ..scale_maps import Softplus

SITE_PREFIXES = ("net.", "prior.", "likelihood.")


def require_model(model: object) -> None:
    if not isinstance(model, BayesianModel):
        remedy = "; for another Pyro model take MeanFieldGuide(model, x, y), or one of Pyro's autoguides"
        raise ValueError(
            f"`model` must be a BayesianModel, got {_checks.described(model)}{remedy if callable(model) else ''}."
        )


def require_fixed_prior(model: BayesianModel) -> None:
    if any(name.startswith("prior_parameters.") for name, _ in model.named_parameters()):
        raise ValueError(
            "a guide that is a point does not work with a learned prior: the density grows without bound as the "
            "prior narrows around the point. Use MeanFieldGuide, or a fixed prior."
        )


def require_same_model(model: BayesianModel, values: Mapping[str, Tensor]) -> None:
    """Raise unless a guide's values have the sites of the model, and the shapes of its weights."""
    if problem := _difference(model, values):
        raise ValueError(f"the guide was made for another model: {problem}; make a guide of this model.")


def _difference(model: BayesianModel, values: Mapping[str, Tensor]) -> str:
    missing = [name for name in model.latent_names if name not in values]
    if missing:
        return f"it lacks {missing}"
    foreign = sorted(name for name in values if name.startswith(SITE_PREFIXES) and name not in model.latent_names)
    if foreign:
        return f"it also draws {foreign}"
    for name in model.site_names:
        got, expected = _checks.shape(values[name]), _checks.shape(model.initial_value(name))
        if got != expected:
            return f"its `{name}` has shape {got}, but the model's has {expected}"
    return ""


class Init(ABC):
    """A rule for the initial location and scale of each site in unconstrained space."""

    @abstractmethod
    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        """Return the initial location and rho of a site, in the shape of its unconstrained value.

        The initial scale is softplus(rho). A guide copies both tensors.
        """


def init_or_default(init: Init | None) -> Init:
    init = NetworkInit() if init is None else init
    _checks.kind("init", init, Init, "an Init, such as NetworkInit()")
    return init


@dataclass(frozen=True)
class UniformInit(Init):
    """A rule that draws the location and rho from uniform distributions.

    Args:
        loc: Range of the location.
        rho: Range of rho. The initial scale is softplus(rho), so (-5, -4) gives scales from 0.0067 to 0.018.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> from pyro_bnn.inference.guides import UniformInit
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=20
        ... )
        >>> guide = pb.MeanFieldGuide(model, init=UniformInit(rho=(-3.0, -2.0)))
        >>> 0.04 < float(guide.scales()["net.weight"]) < 0.13
        True
    """

    loc: tuple[float, float] = (-0.2, 0.2)
    rho: tuple[float, float] = (-5.0, -4.0)

    def __post_init__(self) -> None:
        for name, bounds in (("loc", self.loc), ("rho", self.rho)):
            found = [_checks.number(name, bound) for bound in _checks.items(name, bounds, "a range (low, high)")]
            if len(found) != 2 or not found[0] <= found[1]:
                raise ValueError(f"`{name}` must be a range (low, high) of two numbers, low <= high, got {bounds}.")

    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        like = site.unconstrained_start
        loc, rho = ([float(bound) for bound in bounds] for bounds in (self.loc, self.rho))
        return torch.empty_like(like).uniform_(*loc), torch.empty_like(like).uniform_(*rho)


@dataclass(frozen=True)
class NormalInit(Init):
    """A rule that draws the location and rho from Gaussians.

    Args:
        loc_scale: Standard deviation of the location around 0.
        rho: Mean of rho. The initial scale is softplus(rho), so -3 gives a scale of 0.049.
        rho_scale: Standard deviation of rho.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=20
        ... )
        >>> guide = pb.MeanFieldGuide(model, init=pb.NormalInit(0.1, rho=-3.0))
        >>> guide.scales()["net.weight"].round(decimals=3)
        tensor([[0.0490]])
    """

    loc_scale: float = 0.1
    rho: float = -3.0
    rho_scale: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("loc_scale", self.loc_scale), ("rho_scale", self.rho_scale)):
            _checks.not_negative(name, value)
        _checks.number("rho", self.rho)

    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        like = site.unconstrained_start
        loc, spread = float(self.loc_scale) * torch.randn_like(like), float(self.rho_scale) * torch.randn_like(like)
        return loc, float(self.rho) + spread


@dataclass(frozen=True)
class NetworkInit(Init):
    r"""A rule by which a guide starts at the network's own weights.

    The initial standard deviations are all equal, or proportional to the prior's standard deviations, or proportional
    to the magnitudes of the weights. With a `weight_fraction` :math:`\delta`, as in MOPED, the initial standard
    deviation of a weight w is :math:`\max(\delta |w|, \texttt{smallest})`. A latent variable that is not a weight
    starts at the median of its prior, estimated from draws.

    Args:
        scale: Initial standard deviation of every variable, above 0.
        prior_fraction: Ratio of a variable's initial standard deviation to the prior's, above 0. It replaces `scale`
            for unconstrained variables whose prior has a finite standard deviation.
        weight_fraction: Ratio of the initial standard deviation to the magnitude of the weight, above 0. It replaces
            `scale` for unconstrained variables. MOPED uses 0.05 to 0.2.
        smallest: Smallest standard deviation, above 0, that `weight_fraction` gives, for example to a bias of 0. The
            default is a heuristic.

    Raises:
        ValueError: If a number is not above 0, or if both fractions are given.

    References:
        Krishnan et al. (2020), Specifying Weight Priors in Bayesian Deep Neural Networks with Empirical Bayes (MOPED),
        https://arxiv.org/abs/1906.05323, section 3. The matching prior is :class:`~pyro_bnn.NetworkNormalPrior`.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, noise = torch.nn.Linear(2, 1), pb.GaussianLikelihood(0.1)
        >>> net.weight.data = torch.tensor([[0.5, 0.0]])
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=50
        ... )
        >>> init = pb.NetworkInit(weight_fraction=0.1)
        >>> pb.MeanFieldGuide(model, init=init).scales()["net.weight"]
        tensor([[0.0500, 0.0001]])
    """

    scale: float = 0.01
    prior_fraction: float | None = None
    weight_fraction: float | None = None
    smallest: float = 1e-4

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None or not name.endswith("_fraction"):
                _checks.positive(name, value)
        if self.prior_fraction is not None and self.weight_fraction is not None:
            raise ValueError(
                f"only one fraction can set the scales, got `prior_fraction` {self.prior_fraction} and "
                f"`weight_fraction` {self.weight_fraction}; leave one of them out."
            )

    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        loc = site.unconstrained_start
        _checks.scale_in("scale", self.scale, loc.dtype)
        scale = loc.new_full((), float(self.scale))
        if site.transform is None and self.prior_fraction is not None:
            scale = torch.where(site.prior.stddev.isfinite(), float(self.prior_fraction) * site.prior.stddev, scale)
        if site.transform is None and self.weight_fraction is not None:
            _checks.scale_in("smallest", self.smallest, loc.dtype)
            scale = (float(self.weight_fraction) * loc.abs()).clamp_(min=float(self.smallest))
        used = "weight_fraction" if self.prior_fraction is None else "prior_fraction"
        _checks.scale_in(f"scale` of `{site.name}` by `{used}", scale, loc.dtype)
        return loc, Softplus().inverse(scale).expand_as(loc)
