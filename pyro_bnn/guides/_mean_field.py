"""The mean-field Gaussian guide."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.functional import softplus

from .. import _checks
from .._reflection import elementwise, move_distribution
from .._scope import allow_local_mode, local_param
from ..joint import Site, find_sites
from ._init import Init, NetworkInit
from ._pruned import PrunedNormal


class MeanFieldGuide(PyroModule):
    r"""One independent Gaussian per element of every latent variable.

    .. math:: q(w) = \prod_i N(w_i; \mu_i, \sigma_i^2), \qquad \sigma_i = \log(1 + e^{\rho_i}).

    With `log_variance` the parameter is :math:`\log\sigma_i^2` instead: the same family, other steps. A step then
    changes any scale by a factor; one in :math:`\rho` does so for small scales, and adds to large ones.

    A latent variable with constrained support, such as a noise scale, is a Gaussian pushed through Pyro's bijection
    to that support. Every site is sampled from its real distribution, so that `Trace_ELBO` and `TraceMeanField_ELBO`
    agree, the latter with closed-form divergences where the prior allows them.

    All parameters exist from the start, belong to the guide alone, and stay out of Pyro's global store: a state dict
    can be loaded at once, and two guides never share anything.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or any Pyro model together with the arguments it is called with.
        *args: Example arguments for a model of another kind; they must include the targets, or the observed site
            counts as latent.
        init: First locations and scales.
        log_variance: Optimise the logarithms of the variances, parameters ``log_variance.*``, instead of ``rho.*``.
        **kwargs: Example keyword arguments.

    Raises:
        ValueError: If the model has no latent variable, a discrete one, or one inside a subsampled plate.

    Example:
        >>> import pyro, pyro.distributions as dist
        >>> def coin(flips):
        ...     p = pyro.sample("p", dist.Beta(2.0, 2.0))
        ...     with pyro.plate("data", len(flips)):
        ...         pyro.sample("obs", dist.Bernoulli(p), obs=flips)
        >>> guide = MeanFieldGuide(coin, torch.ones(3))
        >>> sorted(guide.median())
        ['p']

    References:
        Blundell et al. (2015), https://arxiv.org/abs/1505.05424; Graves (2011), Practical Variational Inference.
    """

    def __init__(
        self,
        model: Callable[..., object],
        *args: object,
        init: Init | None = None,
        log_variance: bool = False,
        **kwargs: object,
    ) -> None:
        super().__init__()
        allow_local_mode(self)
        self._choose: Callable[[Site, dist.Normal], dist.Normal] | None = None  # set while an estimator is applied
        self._sites = find_sites(model, args, kwargs)
        init = NetworkInit() if init is None else init
        _checks.kind("init", init, Init, "an Init, such as NetworkInit()")
        starts = {site.name: init(site) for site in self._sites}
        self.loc = _tree({name: loc for name, (loc, _) in starts.items()})
        self._spread = "log_variance" if log_variance else "rho"
        spreads = {name: rho for name, (_, rho) in starts.items()}
        if log_variance:
            spreads = {name: 2 * softplus(rho).log() for name, rho in spreads.items()}
        self.add_module(self._spread, _tree(spreads))
        self._masked: frozenset[str] = frozenset()  # sites of which elements were removed; their masks are in `keep`

    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draw every latent variable; the arguments are those of the model and are not looked at.

        Returns:
            ``{site: value}``.
        """
        draws: dict[str, Tensor] = {}
        plates: dict[str, object] = {}
        for site in self._sites:
            with site.enter(plates):
                draws[site.name] = pyro.sample(site.name, self._distribution(site))
        return draws

    def _draws(self, num_samples: int) -> Iterator[dict[str, Tensor]]:
        """What as many calls return, without effect handlers, and with the scales computed once."""
        locations, scales = self.locations(), self.scales()
        for _ in range(num_samples):
            draw = {}
            for site in self._sites:
                loc, scale = locations[site.name], scales[site.name]
                noise = torch.randn(loc.shape, dtype=loc.dtype, device=loc.device)
                value = torch.addcmul(loc, scale, noise)
                draw[site.name] = value if site.transform is None else site.transform(value)
            yield draw

    def _distribution(self, site: Site) -> TorchDistributionMixin:
        loc, spread = self._parameter("loc", site.name), self._parameter(self._spread, site.name)
        normal = dist.Normal(loc, self._scale(spread), validate_args=False)
        normal = normal if self._choose is None else self._choose(site, normal)
        if site.name in self._masked:
            normal = self._pruned(site, normal)
        base = normal.to_event(site.unconstrained_event_dim)
        return base if site.transform is None else dist.TransformedDistribution(base, [site.transform])

    def _parameter(self, kind: str, name: str) -> Tensor:
        return local_param(self._pyro_get_fullname(f"{kind}.{name}"), self._tree_of(kind).get_parameter(name))

    def _tree_of(self, kind: str) -> nn.Module:
        tree = self._modules[kind]  # not `getattr`: that would put the parameters into Pyro's global store
        assert tree is not None
        return tree

    def _scale(self, spread: Tensor) -> Tensor:
        return softplus(spread) if self._spread == "rho" else (0.5 * spread).exp()

    def _pruned(self, site: Site, normal: dist.Normal) -> PrunedNormal:
        if self._choose is not None:
            raise ValueError(
                "weights of the guide were removed, which an estimator in a loop of your own cannot serve; train it on "
                "with `fit_svi(..., estimator=...)`, or without an estimator."
            )
        prior = move_distribution(elementwise(site.name, site.prior, site.start.shape), normal.loc)
        return PrunedNormal(normal, self.kept(site.name), prior)

    def kept(self, site: str) -> Tensor:
        """Which elements of a latent variable are random, boolean, of the site's shape; the others were removed.

        See :func:`pyro_bnn.pruning.prune`.
        """
        if site in self._masked:
            return self._tree_of("keep").get_buffer(site)
        return torch.ones_like(self.loc.get_parameter(site), dtype=torch.bool)

    @torch.no_grad()
    def _keep_only(self, masks: dict[str, Tensor]) -> None:
        """Remove all elements outside these masks, and none of the sites without one."""
        self._masked = frozenset(masks)
        self._modules.pop("keep", None)
        if masks:
            self.add_module("keep", _tree(masks))
        for name, mask in masks.items():
            for kind in ("loc", self._spread):  # whatever a spread was: a number without overflow
                self._tree_of(kind).get_parameter(name)[~mask] = 0

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As for any module, but a state that does not fit leaves the guide as it was."""
        before = {name: value.clone() for name, value in self.state_dict().items()}
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError:
            super().load_state_dict(before)
            raise

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """The masks of all sites in the state become those of the state, whatever this guide's were."""
        masks = {}
        for site in (site.name for site in self._sites):
            loc, mask = self.loc.get_parameter(site), state_dict.get(f"{prefix}keep.{site}")
            if mask is not None and mask.shape == loc.shape:
                masks[site] = mask.to(loc.device, torch.bool)
            elif site in self._masked and f"{prefix}loc.{site}" not in state_dict:
                masks[site] = self.kept(site)
        self._keep_only(masks)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _zeroed(self, site: str, value: Tensor) -> Tensor:
        return torch.where(self.kept(site), value, 0) if site in self._masked else value

    def locations(self) -> dict[str, Tensor]:
        """Means of the Gaussians, in unconstrained space, ``{site: shape (*event)}``; 0 where a weight was removed."""
        names = [site.name for site in self._sites]
        return {name: self._zeroed(name, self.loc.get_parameter(name).detach()) for name in names}

    def scales(self) -> dict[str, Tensor]:
        """Standard deviations of the Gaussians, in unconstrained space, ``{site: shape (*event)}``; 0 where removed."""
        tree = self._tree_of(self._spread)
        names = [site.name for site in self._sites]
        return {name: self._zeroed(name, self._scale(tree.get_parameter(name).detach())) for name in names}

    def median(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Median of every latent variable, ``{site: shape (*event)}``; for weights also the mean."""
        return {name: value[0] for name, value in self.quantiles([0.5]).items()}

    def quantiles(self, quantiles: list[float]) -> dict[str, Tensor]:
        """Marginal quantiles of every latent variable.

        Args:
            quantiles: Q numbers strictly between 0 and 1.

        Returns:
            ``{site: shape (Q, *event)}``.
        """
        locations, scales = self.locations(), self.scales()
        result = {}
        for site in self._sites:
            loc = locations[site.name]
            q = loc.new_tensor([_checks.between_zero_and_one("quantiles", q) for q in quantiles])
            values = loc + scales[site.name] * torch.special.ndtri(q).reshape(-1, *[1] * loc.dim())
            result[site.name] = values if site.transform is None else site.transform(values)
        return result


def _tree(values: dict[str, Tensor]) -> nn.Module:
    """Numbers as parameters, masks as buffers, under dotted names, as nested modules."""
    root = nn.Module()
    for name, value in values.items():
        *path, leaf = name.split(".")
        module = root
        try:
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            value = value.detach().clone()
            if value.dtype == torch.bool:
                module.register_buffer(leaf, value)
            else:
                module.register_parameter(leaf, nn.Parameter(value))
        except KeyError as error:
            raise ValueError(
                f"cannot name a parameter after the site `{name}` ({error.args[0]}); rename the site, so that it is "
                "neither an attribute of nn.Module nor the beginning of another site's name."
            ) from error
    return root
