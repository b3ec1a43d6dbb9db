"""The posterior from earlier data as a prior."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks
from ._base import Prior


@dataclass(frozen=True, repr=False)
class PosteriorPrior(Prior):
    """Independent Gaussians, with a separate mean and standard deviation for every element.

    ``posterior.as_prior()`` makes such a prior from the posterior given earlier data. With this prior, a model learns
    from new data; if both posteriors were exact, the result would be the posterior given all data.

    Args:
        locations: Means, ``{site: shape of the parameter}``.
        scales: Standard deviations, above 0, ``{site: shape of the parameter}``.
        otherwise: Prior of all other parameters, such as the output layer of a new task; if None, such parameters
            raise an error.

    Raises:
        ValueError: If sites or shapes of `locations` and `scales` differ, or a scale is not above 0. A parameter of
            another shape raises later.

    References:
        Nguyen et al. (2018), Variational Continual Learning, https://arxiv.org/abs/1710.10628.

    Example:
        >>> prior = PosteriorPrior({"net.weight": torch.ones(1, 2)}, {"net.weight": torch.full((1, 2), 0.1)})
        >>> prior("net.weight", torch.zeros(1, 2), nn.Linear(2, 1)).mean
        tensor([[1., 1.]])
    """

    locations: Mapping[str, Tensor]
    scales: Mapping[str, Tensor]
    otherwise: Prior | None = None

    def __post_init__(self) -> None:
        _checks.kind("locations", self.locations, Mapping, "a dict of tensors by site")
        _checks.kind("scales", self.scales, Mapping, "a dict of tensors by site")
        if self.otherwise is not None:
            _checks.kind("otherwise", self.otherwise, Prior, "a fixed Prior, such as NormalPrior(1.0), or None")
        if not self.locations or self.locations.keys() != self.scales.keys():
            raise ValueError(
                f"`locations` and `scales` must have the same sites, at least one, got {list(self.locations)} and "
                f"{list(self.scales)}."
            )
        for name, location in self.locations.items():
            scale = _checks.tensor(f"scales[{name!r}]", self.scales[name])
            _checks.finite(f"locations[{name!r}]", location)
            if location.shape != scale.shape:
                raise ValueError(
                    f"`locations` and `scales` of `{name}` must have the same shape, got {_checks.shape(location)} and "
                    f"{_checks.shape(scale)}."
                )
            if not bool(((scale > 0) & torch.isfinite(scale)).all()):
                raise ValueError(
                    f"`scales` of `{name}` must be above 0 and finite, got {float(scale.min()):g} to "
                    f"{float(scale.max()):g}; points and removed weights have scale 0. Use another posterior, or "
                    "only the other sites, as `PosteriorPrior(locations, scales, otherwise=...)`."
                )

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        if name not in self.locations:
            if self.otherwise is None:
                known = list(self.locations)
                raise ValueError(f"the posterior has no `{name}`, only {known}; choose its prior by `otherwise`.")
            return self.otherwise.elementwise(name, parameter, module)
        location, scale = self.locations[name], self.scales[name]
        if location.shape != parameter.shape:
            raise ValueError(
                f"`{name}` must have shape {tuple(location.shape)} as in the posterior, got {tuple(parameter.shape)}; "
                "leave it out of the prior, or build a network of the same shape."
            )
        _checks.scale_in(f"scales[{name!r}]", scale, parameter.dtype)
        return dist.Normal(location.detach().to(parameter), scale.detach().to(parameter), validate_args=False)

    def __repr__(self) -> str:
        count = sum(value.numel() for value in self.locations.values())
        rest = "" if self.otherwise is None else f", otherwise={self.otherwise!r}"
        return f"PosteriorPrior({count:,} numbers in {len(self.locations)} sites{rest})"
