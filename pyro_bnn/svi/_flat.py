"""The Gaussians of a mean-field guide, one after the other in flat vectors.

With its gradients written out, a step over all weights is some fifteen operations on long vectors, none of which
allocates: on a CPU, fresh memory often costs more than the arithmetic.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from .._reflection import elementwise
from ..guides import MeanFieldGuide
from ..joint import Site


class FlatGaussians:
    """Parameters, one draw, and gradients of Gaussian sites, in vectors of shape (P,).

    A weight that was removed has location 0, its prior's scale and noise 0, so that its value is 0, and its share of
    the ELBO a constant, of which the sums over all weights lose few digits. `rho` holds the logarithms of the
    variances, if that is what the guide has.

    Args:
        guide: Whose parameters are moved into the vectors until :meth:`close`.
        sites: On the real line, with as many parameters in the guide as they have elements.
        draws: Whether anything will be drawn.
        spreads: Whether an estimator asks for the noise of the weights apart from their means.
    """

    def __init__(self, guide: MeanFieldGuide, sites: Sequence[Site], *, draws: bool, spreads: bool) -> None:
        self._shapes = {site.name: site.start.shape for site in sites}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        self._owners = [_owner(guide, kind, site.name) for kind in ("loc", guide._spread) for site in sites]
        self._formats = [torch.empty_like(parameter, device="meta") for parameter in self.parameters]
        flat = [torch.cat([p.detach().reshape(-1) for p in half]) for half in _halves(self.parameters)]
        self.loc, self.rho = flat
        self._is_rho = guide._spread == "rho"
        self._removed = self._scale_of_removed = None
        if guide._masked:
            self._removed = torch.cat([guide.kept(site.name).reshape(-1) for site in sites]).logical_not_()
            fills = [scale_of_removed(s) if s.name in guide._masked else torch.ones(()) for s in sites]
            shapes = self._shapes.values()
            self._scale_of_removed = torch.cat(
                [fill.to(self.rho).expand(shape).reshape(-1) for fill, shape in zip(fills, shapes, strict=True)]
            )
        self._homes = [view for vector in flat for view in self.views(vector).values()]
        self.link()
        self.scale, self.noise = torch.empty_like(self.rho), torch.zeros_like(self.rho)
        self.value = torch.empty_like(self.loc) if draws else self.loc
        self.loc_grad = torch.zeros_like(self.loc)
        self.spread = torch.empty_like(self.rho) if spreads else None
        # Without an estimator the noise is the factor by which the gradient in the scale differs from that in the
        # weight. It is not needed after that product, and so the product takes its place.
        self.scale_grad = torch.zeros_like(self.rho) if spreads else self.noise
        self.noises, self.values = self.views(self.noise), self.views(self.value)
        self._grads = [view for vector in (self.loc_grad, self.scale_grad) for view in self.views(vector).values()]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Locations of all sites, then their rhos, as the guide holds them now."""
        found = [owner._parameters[name] for owner, name in self._owners]
        return [parameter for parameter in found if parameter is not None]

    def slices(self) -> dict[str, slice]:
        """The part of each site."""
        ends = torch.tensor(self._sizes).cumsum(0).tolist()
        return {n: slice(end - size, end) for n, size, end in zip(self._shapes, self._sizes, ends, strict=True)}

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The parts of a vector, in the sites' shapes."""
        pieces = vector.split(self._sizes)
        return {n: piece.view(shape) for (n, shape), piece in zip(self._shapes.items(), pieces, strict=True)}

    def leaves(self, vector: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        """Fresh leaves of autograd that lie in a vector, and whose gradients are added up in another."""
        result = {name: view.detach().requires_grad_() for name, view in self.views(vector).items()}
        for leaf, view in zip(result.values(), self.views(gradient).values(), strict=True):
            leaf.grad = view
        return result

    @torch.no_grad()
    def link(self) -> None:
        """Let the parameters lie in the vectors; if one has been given other memory, its values are taken over."""
        for parameter, home in zip(self.parameters, self._homes, strict=True):
            if parameter.data_ptr() != home.data_ptr():
                home.copy_(parameter)
                parameter.data = home

    def give_gradients(self) -> None:
        """Let the parameters have the gradients."""
        for parameter, gradient in zip(self.parameters, self._grads, strict=True):
            parameter.grad = gradient if parameter.requires_grad else None

    @torch.no_grad()
    def update_scale(self, parts: Sequence[slice], scratch: Tensor) -> None:
        """Compute the scales, part by part; of the scratch two rows are used."""
        for part in parts:
            if self._is_rho:
                softplus_(self.rho[part], self.scale[part], scratch[:, : part.stop - part.start])
            else:
                torch.mul(self.rho[part], 0.5, out=self.scale[part]).exp_()
        if self._removed is not None:
            assert self._scale_of_removed is not None
            self.remove(self.loc, 0)
            torch.where(self._removed, self._scale_of_removed, self.scale, out=self.scale)

    def scale_slope(self, part: slice, out: Tensor) -> Tensor:
        """The derivative of a part's scales with respect to their parameters, which is 0 where a weight was removed."""
        if self._is_rho:
            torch.sigmoid(self.rho[part], out=out)
        else:
            torch.mul(self.scale[part], 0.5, out=out)
        return out if self._removed is None else out.masked_fill_(self._removed[part], 0)

    def remove(self, vector: Tensor | None, value: float, part: slice = slice(None)) -> None:
        """Write a value wherever a weight was removed, into a vector or, if `part` is given, into that part of one."""
        if self._removed is not None and vector is not None:
            vector.masked_fill_(self._removed[part], value)

    def close(self) -> None:
        """Give every parameter and its gradient memory of its own, in the format that it had.

        What else takes memory is let go before, or more would be needed here than in a step.
        """
        del self.scale, self.noise, self.value, self.spread, self.noises, self.values
        for parameter in self.parameters:
            parameter.grad = None if parameter.grad is None else parameter.grad.clone()
        del self.loc_grad, self.scale_grad, self._grads
        for parameter, home, example in zip(self.parameters, self._homes, self._formats, strict=True):
            if parameter.data_ptr() == home.data_ptr():
                parameter.data = torch.empty_like(example, device=home.device).copy_(home)


def scale_of_removed(site: Site) -> Tensor:
    """The scale that stands for that of a removed weight: the prior's, if it has one."""
    scale = elementwise(site.name, site.prior, site.start.shape).stddev
    return torch.where(scale.isfinite() & (scale > 0), scale, torch.ones_like(scale))


LARGEST_EXPONENT = 80.0
"""A little below the logarithm of the largest number in single precision."""


def softplus_(rho: Tensor, out: Tensor, scratch: Tensor) -> None:
    r"""Write :math:`\log(1 + e^\rho)` into `out`.

    With :math:`u = e^\rho` and v the rounded 1 + u, :math:`\log(1 + u) = \log v - ((v - 1) - u) / v`, in full relative
    precision however small u is. On a CPU this is for the sake of steadiness: torch's own is built on log1p, which took
    0.5 ms for 478,410 numbers in some processes and 6 ms in others, with the same library on the same machine.
    """
    if rho.is_cuda or float(rho.max()) > LARGEST_EXPONENT:
        softplus(rho, out=out)  # type: ignore[call-arg]
        return
    u = torch.exp(rho, out=out)
    v = torch.add(u, 1, out=scratch[0])
    error = torch.sub(v, 1, out=scratch[1]).sub_(u).div_(v)
    torch.log(v, out=out).sub_(error)


def _owner(guide: MeanFieldGuide, kind: str, name: str) -> tuple[nn.Module, str]:
    tree = guide._modules[kind]
    assert tree is not None
    path, _, leaf = name.rpartition(".")
    return tree.get_submodule(path), leaf


def _halves(items: list[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    return items[: len(items) // 2], items[len(items) // 2 :]


def guide_parameters(guide: MeanFieldGuide, name: str) -> Mapping[str, nn.Parameter]:
    """Location of a site, and what its scale is computed from."""
    found = {kind: _owner(guide, kind, name) for kind in ("loc", guide._spread)}
    return {kind: owner.get_parameter(leaf) for kind, (owner, leaf) in found.items()}
