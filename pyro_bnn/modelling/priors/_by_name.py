"""Different priors for different parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.globs import matches
from ._base import Prior, WeightPrior
from ._of_distribution import PriorLike, as_prior


@dataclass(frozen=True)
class PriorByName(Prior):
    """Chooses the prior of a parameter by its site name: the prior of the first glob that matches.

    Args:
        priors: Prior of each glob, in order of precedence. In a glob, ``*`` is one component of a name, and ``**`` any
            number of components. A distribution of one real number is the prior of every element.

    Raises:
        ValueError: If `priors` is not a dict of priors. A parameter that matches no glob raises later.

    Example:
        >>> from pyro_bnn import NormalPrior, ScaleMixturePrior
        >>> prior = PriorByName({"net.**.bias": NormalPrior(1.0), "**": ScaleMixturePrior()})
    """

    priors: Mapping[str, PriorLike]

    def __post_init__(self) -> None:
        _checks.kind("priors", self.priors, Mapping, 'a dict of priors by glob, such as {"**": NormalPrior()}')
        if not self.priors:
            raise ValueError('`priors` must hold at least one glob, got none; begin with {"**": NormalPrior()}.')
        _checks.globs("priors", list(self.priors))
        for glob, prior in self.priors.items():
            as_prior(f"priors[{glob!r}]", prior)

    def prior_of(self, name: str) -> WeightPrior:
        """The first prior whose glob matches a site name."""
        for glob, prior in self.priors.items():
            if matches(glob, name):
                return as_prior(f"priors[{glob!r}]", prior)
        raise ValueError(f'no glob of {list(self.priors)} matches `{name}`; add a last entry "**" for all the rest.')

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        prior = self.prior_of(name)
        if not isinstance(prior, Prior):
            raise ValueError(f"the prior of `{name}` depends on other variables; call `given` with their values.")
        return prior.elementwise(name, parameter, module)

    def parents(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, TorchDistributionMixin]:
        return self.prior_of(name).parents(name, parameter, module)

    def learned(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, Tensor]:
        return self.prior_of(name).learned(name, parameter, module)

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        return self.prior_of(name).given(values, name, parameter, module)
