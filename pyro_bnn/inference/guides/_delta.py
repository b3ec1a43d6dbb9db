"""The guide that is a point estimate."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.copies import tree
from ...modelling.model import BayesianModel
from ..joint import Joint, find_sites
from ._flat import FlatGuide
from ._init import Init, init_or_default, require_fixed_prior, require_model
from ._state import DrawGradients, FlatState, Noise, ParameterVector, PriorOfPoint, lent


class DeltaGuide(FlatGuide):
    r"""A guide that is a single point estimate, for maximum a posteriori estimation.

    With ``kl_weight=0`` a fit maximises the likelihood. The history of a fit records

    .. math:: \mathrm{ELBO} = \log p(y \mid w) + \log p(w), \qquad \mathrm{KL} = -\log p(w).

    Both omit the entropy of a point, which is minus infinity. So the KL can be negative, and cannot be compared with
    the KL of another guide. All draws are the same, so predictions have no epistemic uncertainty, unless the network
    itself is random (:class:`~pyro_bnn.nets.MCDropout`).

    The point is the mode of the density in *constrained* space, as in Pyro's `AutoDelta`. So the estimate of a latent
    noise scale maximises p(scale | y), not the density of log(scale). The mode of weights, which are unconstrained, is
    the same in both spaces.

    Args:
        model: The model whose weights the guide estimates.
        init: Initial locations, by default the network's own weights. Scales are not used.
        jacobian: Whether the point is the mode of the density in unconstrained space, where samplers draw.

    Raises:
        ValueError: If the prior is learned, because its density grows without bound as the prior narrows around the
            point.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=20
        ... )
        >>> guide = pb.DeltaGuide(model)
        >>> adam = lambda parameters: torch.optim.Adam(parameters, lr=0.05)
        >>> posterior = pb.fit_svi(
        ...     model, (x, 2 * x), guide, optimizer=adam, num_epochs=300
        ... )
        >>> posterior.median()["net.weight"].round(decimals=1)
        tensor([[2.]])
    """

    def __init__(self, model: BayesianModel, *, init: Init | None = None, jacobian: bool = False) -> None:
        super().__init__()
        self.jacobian = jacobian
        require_model(model)
        require_fixed_prior(model)
        init = init_or_default(init)
        self.sites = tuple(find_sites(model, (), {}))
        self.loc = tree({site.name: init(site)[0] for site in self.sites})

    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Give every latent variable its value in the point estimate. The arguments are ignored."""
        free = {site.name: self.stated("loc", site.name) for site in self.sites}
        return self.sample_at(free, jacobian=self.jacobian)

    def draws(self, num_samples: int) -> Iterator[dict[str, Tensor]]:
        """Yield `num_samples` copies of the point estimate."""
        num_samples = _checks.at_least("num_samples", num_samples, 1)
        for _ in range(num_samples):
            yield self.median()

    def median(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Return the values of the point estimate, ``{site: shape (*event)}``. The arguments are ignored."""
        return self.constrained({name: free.clone() for name, free in self.locations().items()})

    def joint(self, model: BayesianModel) -> Joint:
        return Joint(model, jacobian=self.jacobian)

    def flat(self, joint: Joint, *, noise: Noise | None, closed_form: bool) -> AbstractContextManager[FlatState]:
        if noise is not None:
            raise ValueError("`estimator` needs random weights, but this guide is a point; leave `estimator` out.")
        return lent(DeltaState(joint, ParameterVector(self.tree("loc"), joint.layout.shapes)))


class DeltaState(FlatState):
    r"""Computes the gradients of :math:`L - \lambda \log p(w)`, where L is minus the log-likelihood."""

    def __init__(self, joint: Joint, loc: ParameterVector) -> None:
        super().__init__(joint, {"loc": loc})
        self.value = loc.value
        self._gradients = DrawGradients(joint, loc.value, large_on_gpu=None)
        self._prior = PriorOfPoint(joint, self._gradients, self.value)

    @property
    def gradients(self) -> list[Tensor]:
        return self._gradients.tensors

    def draw(self) -> Mapping[str, Tensor]:
        return self.joint.constrained(self._gradients.leaves())

    @torch.no_grad()
    def pull_back(self, weight: float) -> Tensor:
        self._gradients.take()
        return self._prior.pull_back(weight)

    def give_gradients(self) -> None:
        self.vectors["loc"].give_once(self._gradients.by_site())
