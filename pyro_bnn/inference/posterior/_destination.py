"""The model and guides into which a posterior is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ...modelling.model import BayesianModel
from ..joint import Site, find_sites


@dataclass
class Destination:
    """The model and guides into which a posterior is loaded; `model` is None for posteriors of other Pyro models.

    `own_sites` are the latent variables of another Pyro model, if they are known.
    """

    model: BayesianModel | None
    guides: Sequence[nn.Module] | None = None
    """Guides that receive the saved states, in order; None makes guides from the file."""
    pending: list[tuple[nn.Module, dict[str, Tensor]]] = field(default_factory=list)
    """Modules that will change if all checks pass, with their new states."""
    own_sites: Sequence[Site] | None = None

    @property
    def sites(self) -> list[Site] | None:
        """Latent variables of the model; None without a model."""
        if self.own_sites is not None:
            return list(self.own_sites)
        return None if self.model is None else find_sites(self.model, (), {})

    @property
    def device(self) -> torch.device:
        """Device of the model; without a model the CPU."""
        if self.own_sites:
            return self.own_sites[0].start.device
        return torch.device("cpu") if self.model is None else self.model.device

    @property
    def dtype(self) -> torch.dtype | None:
        """Floating-point type of the model; None without a model."""
        return None if self.model is None else self.model.dtype

    def model_for(self, what: str) -> BayesianModel:
        """The model; raises if there is none."""
        if self.model is None:
            raise ValueError(f"{what} needs its model; pass `model`.")
        return self.model

    def next_guide(self) -> nn.Module | None:
        """The guide that receives the next state; None if guides are made from the file."""
        if self.guides is None:
            return None
        if len(self.pending) == len(self.guides):
            raise ValueError(f"it holds more guides than `guide`, which has {len(self.guides)}; pass one for each.")
        return self.guides[len(self.pending)]
