"""Different priors for different parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from .._globs import matches
from ._base import Prior


@dataclass(frozen=True)
class PriorByName(Prior):
    """Chooses a prior by the parameter's site name: the first glob that matches wins.

    Args:
        priors: Globs in order of precedence; ``*`` stands for one component of a name, ``**`` for any number.

    Raises:
        ValueError: When a parameter matches no glob.

    Example:
        >>> from pyro_bnn import NormalPrior, ScaleMixturePrior
        >>> prior = PriorByName({"net.**.bias": NormalPrior(1.0), "**": ScaleMixturePrior()})
    """

    priors: Mapping[str, Prior]

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """That of the first matching prior."""
        for glob, prior in self.priors.items():
            if matches(glob, name):
                return prior.elementwise(name, parameter, module)
        raise ValueError(f'no glob of {list(self.priors)} matches `{name}`; add a last entry "**" for all the rest.')
