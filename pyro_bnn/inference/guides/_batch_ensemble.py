"""The guide with several members that share weights."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.copies import tree
from ..._core.scope import local_param, outer_stacklevel, seeded
from ...modelling.model import BayesianModel
from ..joint import Joint, Layout, Site, find_sites
from ._flat import FlatGuide
from ._init import Init, init_or_default, require_fixed_prior, require_model
from ._state import DrawGradients, FlatState, Noise, ParameterVector, PriorOfPoint, lent


class BatchEnsembleGuide(FlatGuide):
    r"""A guide with K members, which share their weight matrices and differ by factors of rank one.

    For each weight W of two or more axes, member k has its own factors :math:`r_k` over the first axis (the outputs)
    and :math:`s_k` over the second axis (the inputs), and its own weight

    .. math:: W_k = W \circ (r_k s_k^\top).

    In a convolution, these outputs and inputs are channels. Each member has its own copy of every other variable, such
    as a bias or a noise scale. The parameters are the shared weights, called `loc`, and a matrix `members`. Each row of
    the matrix holds the factors and the other variables of one member.

    Each step of a fit draws one member at random, so each member sees one batch in K. A fit takes about as long as a
    fit of one network. With all weights :math:`w_k` of member k, the fit maximises

    .. math:: \frac1K \sum_k \left(\log p(y \mid w_k) + \log p(w_k)\right).

    The objective omits the entropy of the mixture of K points: the guide is an ensemble of points of high density, not
    an approximation of the posterior. The recorded KL is the mean of :math:`-\log p(w_k)` and can be negative, like
    that of :class:`DeltaGuide`.

    :meth:`draws` yields the members in turn, so `predict` with ``num_samples=num_members`` uses each member once. The
    running statistics of batch normalisation are averages over all members; :class:`~pyro_bnn.RefreshedPosterior`
    computes them for each member.

    Args:
        model: The model whose weights the guide estimates.
        num_members: Number K of members.
        init: Initial values of the shared weights, and of each member's other variables; by default, the values in the
            network.
        factor_scale: Standard deviation of the initial factors around 1. With ``None``, each factor starts at 1 or -1
            at random, so that the members differ most. Under a strong prior, or in a deep network, such factors may
            keep the fit from learning; then use 0.5. For a trained network, use a small number such as 0.1.

    Raises:
        ValueError: If `num_members` is less than 1, or if the prior is learned.

    References:
        Wen, Tran and Ba (2020), BatchEnsemble, https://arxiv.org/abs/2002.06715. There, each batch is divided among the
        members; here, each batch goes to one member.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, noise = torch.nn.Linear(4, 3), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=150
        ... )
        >>> guide = pb.BatchEnsembleGuide(model, num_members=2)
        >>> first, second = guide.draws(2)
        >>> bool((first["net.weight"].abs() == second["net.weight"].abs()).all())
        True
    """

    def __init__(
        self,
        model: BayesianModel,
        *,
        num_members: int = 4,
        init: Init | None = None,
        factor_scale: float | None = None,
    ) -> None:
        super().__init__()
        require_model(model)
        require_fixed_prior(model)
        self.num_members = _checks.at_least("num_members", num_members, 1)
        if factor_scale is not None:
            _checks.not_negative("factor_scale", factor_scale)
        init = init_or_default(init)
        self.sites = tuple(find_sites(model, (), {}))
        starts = {site.name: init(site)[0] for site in self.sites}
        self.loc = tree({name: starts[name] for name in self.shared})
        self._layout = _layout_of_member(self.sites)
        like, rows = self.sites[0].start, {}
        row_bytes = self._layout.num_elements * like.element_size()
        _checks.in_memory("num_members", self.num_members, row_bytes, "use fewer members")
        with seeded(0, model.device):
            for name, shape in self._layout.shapes.items():
                kind, _, site = name.partition(".")
                if kind == "own":
                    rows[name] = starts[site].expand(self.num_members, *shape)
                else:
                    rows[name] = _factors((self.num_members, *shape), factor_scale).to(like)
        self.members = nn.Parameter(self._layout.pack(rows).detach())

    @property
    def shared(self) -> tuple[str, ...]:
        """The sites whose weights all members share."""
        return tuple(site.name for site in self.sites if _is_shared(site))

    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Give every latent variable its value in a member that is drawn at random. The arguments are ignored."""
        parameter = self._parameters["members"]
        assert parameter is not None
        members = local_param(self._pyro_get_fullname("members"), parameter)
        row = members.index_select(0, chosen(members))[0]
        return self.sample_at(self._free({name: self.stated("loc", name) for name in self.shared}, row), jacobian=False)

    def draws(self, num_samples: int) -> Iterator[dict[str, Tensor]]:
        """Yield the members in turn, beginning with the first."""
        num_samples = _checks.at_least("num_samples", num_samples, 1)
        if num_samples < self.num_members:
            warnings.warn(
                f"{num_samples} draws do not use {self.num_members - num_samples} of the guide's {self.num_members} "
                f"members; draw a multiple of {self.num_members}.",
                stacklevel=outer_stacklevel(),
            )
        for index in range(num_samples):
            yield self.constrained(self._member(index % self.num_members))

    def median(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Return the values of the guide's only member, ``{site: shape (*event)}``. The arguments are ignored.

        Raises:
            ValueError: If the guide has several members.
        """
        return self.constrained(self.locations())

    def locations(self) -> dict[str, Tensor]:
        """Return the unconstrained values of a guide with one member; raise if there are several."""
        if self.num_members > 1:
            raise ValueError(
                f"the {self.num_members} members of a BatchEnsembleGuide have no common `median()` or location; use "
                f"`sample` instead, whose first {self.num_members} draws are the members."
            )
        return self._member(0)

    def _member(self, index: int) -> dict[str, Tensor]:
        loc = {name: value.detach() for name, value in self.tree("loc").named_parameters()}
        return self._free(loc, self.members.detach()[index].clone())

    def _free(self, loc: Mapping[str, Tensor], row: Tensor) -> dict[str, Tensor]:
        own, free = self._layout.views(row), {}
        for site in self.sites:
            name = site.name
            if name in loc:
                over_outputs, over_inputs = _aligned(own, name, loc[name].dim())
                free[name] = loc[name] * over_inputs * over_outputs
            else:
                free[name] = own[f"own.{name}"]
        return free

    def remarks(self) -> list[str]:
        return [f"{self.num_members} members share the weights of {len(self.shared)} of {len(self.sites)} sites"]

    def joint(self, model: BayesianModel) -> Joint:
        return Joint(model, jacobian=False)

    def flat(self, joint: Joint, *, noise: Noise | None, closed_form: bool) -> AbstractContextManager[FlatState]:
        if noise is not None:
            raise ValueError("`estimator` needs random weights, but each member is a point; leave `estimator` out.")
        loc = ParameterVector(self.tree("loc"), self.shared) if self.shared else None
        members = ParameterVector(self, ["members"])
        return lent(BatchEnsembleState(joint, loc, members, self._layout, self.num_members))


def _is_shared(site: Site) -> bool:
    return site.transform is None and site.start.dim() >= 2


def _layout_of_member(sites: Iterable[Site]) -> Layout:
    shapes: dict[str, torch.Size] = {}
    for site in sites:
        shape = site.unconstrained_start.shape
        if _is_shared(site):
            shapes |= {f"outputs.{site.name}": shape[:1], f"inputs.{site.name}": shape[1:2]}
        else:
            shapes[f"own.{site.name}"] = shape
    return Layout(shapes)


def _factors(shape: tuple[int, ...], scale: float | None) -> Tensor:
    return 2.0 * torch.randint(2, shape) - 1 if scale is None else 1 + float(scale) * torch.randn(shape)


def _aligned(views: Mapping[str, Tensor], site: str, num_axes: int) -> tuple[Tensor, Tensor]:
    """Return the two factors of a shared weight, as views that broadcast with it."""
    rest = [1] * (num_axes - 2)
    return views[f"outputs.{site}"].view(-1, 1, *rest), views[f"inputs.{site}"].view(1, -1, *rest)


def chosen(members: Tensor) -> Tensor:
    """Draw a row of `members`, and return its index as a tensor of shape (1,) on the same device."""
    return torch.randint(len(members), (1,), device=members.device)


class BatchEnsembleState(FlatState):
    r"""Computes the gradients of one member, and sets the gradients of the other members to zero.

    Let L be minus the log-likelihood, and :math:`G` the gradient of :math:`L - \lambda \log p(w)` with respect to the
    member's weight :math:`W \circ (r s^\top)`. Then

    .. math:: \nabla_W = G \circ (r s^\top), \qquad \nabla_r = (G \circ W)\, s, \qquad \nabla_s = (G \circ W)^\top r.
    """

    def __init__(
        self, joint: Joint, loc: ParameterVector | None, members: ParameterVector, layout: Layout, num_members: int
    ) -> None:
        super().__init__(joint, {"members": members} if loc is None else {"loc": loc, "members": members})
        self._members = members.value.view(num_members, -1)
        self._members_grad = torch.zeros_like(self._members)
        members.set_gradient(self._members_grad.view(-1))
        self._row, self._row_grad = self._members.new_empty(2, 1, layout.num_elements)
        values, gradients = (layout.views(row[0]) for row in (self._row, self._row_grad))
        self.value = self._members.new_empty(joint.layout.num_elements)
        self._gradients = DrawGradients(joint, self.value, large_on_gpu=None)
        self._prior = PriorOfPoint(joint, self._gradients, self.value)
        scratch = self._prior.scratch
        drawn = joint.layout.views(self.value)
        self._own = {
            name: (value, values[f"own.{name}"], gradients[f"own.{name}"])
            for name, value in drawn.items()
            if f"own.{name}" in values
        }
        shared = Layout({name: joint.layout.shapes[name] for name in drawn if name not in self._own})
        weights = {} if loc is None else shared.views(loc.value)
        largest = max((weight.numel() for weight in weights.values()), default=0)
        product = scratch.view(-1) if scratch.numel() >= largest else scratch.new_empty(largest)
        self._shared = {
            name: _SharedWeight(name, weight, drawn[name], values, gradients, product)
            for name, weight in weights.items()
        }

    @property
    def gradients(self) -> list[Tensor]:
        return [*self._gradients.tensors, self._members_grad.view(-1)]

    def draw(self) -> Mapping[str, Tensor]:
        with torch.no_grad():
            self._chosen = chosen(self._members)
            torch.index_select(self._members, 0, self._chosen, out=self._row)
            for weight in self._shared.values():
                weight.draw()
            for drawn, value, _ in self._own.values():
                drawn.copy_(value)
        return self.joint.constrained(self._gradients.leaves())

    @torch.no_grad()
    def pull_back(self, weight: float) -> Tensor:
        self._gradients.take()
        energy = self._prior.pull_back(weight)
        for name, gradient in zip(self.joint.layout.shapes, self._gradients.by_site(), strict=True):
            if name in self._shared:
                self._shared[name].pull_back(gradient)
            else:
                self._own[name][2].copy_(gradient)
                gradient.zero_()  # the gradients of the draw keep only those of shared weights
        self._members_grad.zero_().index_copy_(0, self._chosen, self._row_grad)
        return energy

    def give_gradients(self) -> None:
        self.vectors["members"].give_gradients()
        if self._shared:
            by_site = zip(self.joint.layout.shapes, self._gradients.by_site(), strict=True)
            self.vectors["loc"].give_once(gradient for name, gradient in by_site if name in self._shared)


class _SharedWeight:
    """A shared weight, and its factors in the member that was drawn."""

    def __init__(
        self,
        name: str,
        weight: Tensor,
        drawn: Tensor,
        values: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        scratch: Tensor,
    ) -> None:
        self._weight, self._drawn = weight, drawn
        self._product = scratch[: weight.numel()].view(weight.shape)
        self._over_outputs, self._over_inputs = _aligned(values, name, weight.dim())
        self._outputs, self._inputs = self._over_outputs.flatten(), self._over_inputs.flatten()
        self._outputs_grad, self._inputs_grad = gradients[f"outputs.{name}"], gradients[f"inputs.{name}"]

    def draw(self) -> None:
        torch.mul(self._weight, self._over_inputs, out=self._drawn).mul_(self._over_outputs)

    def pull_back(self, gradient: Tensor) -> None:
        """Compute the factors' gradients, and turn the member's `gradient` into the gradient of the shared weight."""
        product = torch.mul(gradient, self._weight, out=self._product)
        if product.dim() > 2:
            product = product.flatten(2).sum(2)
        torch.mv(product, self._inputs, out=self._outputs_grad)
        torch.mv(product.mT, self._outputs, out=self._inputs_grad)
        gradient.mul_(self._over_inputs).mul_(self._over_outputs)
