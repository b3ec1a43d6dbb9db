"""Likelihoods with fixed, learned or latent numbers, such as a noise scale."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroSample
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import softplus

from ..._core import checks as _checks
from ..._core.reflection import require_positive
from ..._core.scope import local_param
from ...scores.uncertainty import P_co
from ._base import Likelihood, MovedPrior

WEAK = dist.LogNormal(0.0, 3.0)  # heuristic: prior of a noise scale, 95 % from 0.003 to 360


class NumbersLikelihood(Likelihood[P_co]):
    """A likelihood with numbers, such as a noise scale, that the network does not output.

    A subclass registers them in `__init__`, and reads them by :meth:`number`.
    """

    free_names: ClassVar[Mapping[str, str]] = {}
    """``{learned number: name of its parameter}``, for all numbers whose parameter is not called ``free_NAME``."""

    def __init__(self) -> None:
        super().__init__()
        self._event_dims: dict[str, int] = {}
        self._maps: dict[str, Callable[[Tensor], Tensor]] = {}

    def add_positive(self, name: str, value: float | TorchDistributionMixin | None, start: float = 1.0) -> None:
        """Add a positive number: fixed if `value` is a float, latent if it is a prior, learned if it is None."""
        if value is None:
            free = torch.tensor(start, dtype=torch.float64).expm1().log()  # softplus(free) = start
            self.add_learned(name, free, softplus)
        elif isinstance(value, Distribution):
            self.add_latent(name, require_positive(name, value))
        else:
            self.add_fixed(name, torch.tensor(_checks.positive(name, value), dtype=torch.float64))

    def add_fixed(self, name: str, value: Tensor) -> None:
        self._event_dims[name] = value.dim()
        self.keep_exact(f"fixed_{name}", value)

    def add_learned(self, name: str, free: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
        """Add a learned number, which is ``transform(free)``."""
        self._event_dims[name], self._maps[name] = free.dim(), transform
        self.register_parameter(self._free_name(name), nn.Parameter(free))

    def add_latent(self, name: str, prior: TorchDistributionMixin) -> None:
        """Add a latent variable, whose prior has no batch shape."""
        self._event_dims[name] = prior.event_dim
        if "like" not in self._buffers:
            self.register_buffer("like", torch.zeros(()))  # holds the device and dtype
        setattr(self, name, PyroSample(MovedPrior(prior)))

    def number(self, name: str) -> Tensor:
        """Return the present value of a number, shape ``(*draws, *event)``."""
        if name in self._pyro_samples:
            return getattr(self, name)
        if f"fixed_{name}" in self._buffers:
            return self.get_buffer(f"fixed_{name}")
        free = self._parameters[self._free_name(name)]  # `getattr` would put it into Pyro's global store
        assert free is not None
        if self._pyro_context.active:
            path = f"{self._pyro_name}." if self._pyro_name else ""
            return self._maps[name](local_param(f"{path}{self._free_name(name)}", free))
        return self._maps[name](free)

    def _free_name(self, name: str) -> str:
        return self.free_names.get(name, f"free_{name}")

    def present_numbers(self) -> dict[str, Tensor]:
        return {name: self.number(name) for name in self._event_dims}

    def learned_numbers(self) -> dict[str, Tensor]:
        return {name: self.number(name).detach() for name in self._maps}

    def draw_shape(self) -> torch.Size:
        for name, event_dim in self._event_dims.items():
            if name in self._pyro_samples:
                value = self.number(name)
                lead = value.shape[: value.dim() - event_dim]
                return lead[:-1] if len(lead) > 1 else lead
        return torch.Size()

    def extra_repr(self) -> str:
        said = []
        for name in self._event_dims:
            if name in self._pyro_samples:
                said.append(f"latent {name}")
            elif f"fixed_{name}" in self._buffers:
                value = self.get_buffer(f"fixed_{name}")
                said.append(f"{name}=" + (f"{float(value):.4g}" if value.dim() == 0 else f"{len(value)} numbers"))
            else:
                said.append(f"learned {name}")
        return ", ".join(said)


def lifted(value: Tensor, event_dim: int, output: Tensor) -> Tensor:
    """Reshape a tensor ``(*draws, *event)`` to broadcast with outputs ``(*draws, N, *rest)``, aligned at the end."""
    lead = value.shape[: value.dim() - event_dim]
    if not lead:
        return value
    if len(lead) > 1 and lead[-1] == 1:  # the data axis of vectorised particles
        lead = lead[:-1]
    ones = max(output.dim() - len(lead) - event_dim, 1)
    return value.reshape(*lead, *[1] * ones, *value.shape[value.dim() - event_dim :])
