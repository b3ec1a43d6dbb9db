"""An estimator in any training loop with Pyro: it changes the calls of guide and model."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor

from .. import _checks
from .._scope import seeded
from ..distributions import Size
from ..guides import MeanFieldGuide, Noise, RandomParameter
from ..joint import Site, density_of, find_sites
from ..model import BayesianModel
from ._layers import RandomLayers

if TYPE_CHECKING:
    from ._base import Estimator

ELBOS = (Trace_ELBO, TraceMeanField_ELBO)
"""The ELBOs that work with an estimator: each is a mean of a sum of terms. RenyiELBO does not work, because it weighs
whole draws. TraceGraph_ELBO equals Trace_ELBO here, but wraps the draws, which then cannot be recognised."""


class _Gaussian(dist.Normal):
    """The guide's Gaussian of one parameter. It remembers the last value: a draw, or the mean if it is not drawn."""

    def __init__(self, name: str, base: dist.Normal, *, is_drawn: bool) -> None:
        super().__init__(base.loc, base.scale, validate_args=False)
        self.name, self._is_drawn = name, is_drawn
        self.value: Tensor | None = None

    def rsample(self, sample_shape: Size = torch.Size()) -> Tensor:  # noqa: B008  # torch's own signature
        shape = self._extended_shape(sample_shape)
        value: Tensor = super().rsample(sample_shape) if self._is_drawn else self.loc.expand(shape)
        self.value = value
        return value

    def deviation(self) -> Tensor:
        """Value minus mean."""
        assert self.value is not None
        return self.value - self.loc

    def expand(self, batch_shape: Size, _instance: object = None) -> "_Gaussian":
        raise ValueError(
            f"draws of `{self.name}` are vectorised over a plate, but an estimator draws its noise for each row; use "
            "`num_particles` without `vectorize_particles`, and `Predictive` outside of the context."
        )


class Applied(AbstractContextManager[None]):
    """A context in which an estimator changes the calls of guide and model.

    Args:
        estimator: The estimator.
        model: The model.
        guide: Its guide.
        closed_form: Whether the ELBO in the context is known to be `TraceMeanField_ELBO`. Weights whose draws neither
            the estimator nor the divergence uses then have their means as values.

    Raises:
        ValueError: If model and guide are of another kind, or do not belong together.
    """

    def __init__(
        self, estimator: "Estimator", model: BayesianModel, guide: MeanFieldGuide, *, closed_form: bool = False
    ) -> None:
        name = type(estimator).__name__
        _checks.kind("model", model, BayesianModel, f"a BayesianModel for {name}")
        _checks.kind("guide", guide, MeanFieldGuide, f"a MeanFieldGuide, whose Gaussians {name} needs")
        missing = sorted(set(model.site_names) - set(guide.locations()))
        if missing:
            raise ValueError(f"the guide was made for another model and lacks {missing}; use MeanFieldGuide(model).")
        self._estimator, self._model, self._guide = estimator, model, guide
        can_skip = closed_form and estimator.noise is Noise.VARIANCE
        self._undrawn = _with_closed_form(model) if can_skip else set()
        self._gaussians: dict[str, _Gaussian | None] = {}
        self._stack = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._model.intercepted(self._around_network))
            stack.enter_context(self._guide.intercepted(self._choose))
            self._stack = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._gaussians.clear()

    def _choose(self, site: Site, base: dist.Normal) -> dist.Normal:
        """The distribution that the guide samples for a site; keeps the Gaussians of weights for the network's call."""
        if site.name not in self._model.site_names:
            return base
        gaussian = _Gaussian(site.name, base, is_drawn=site.name not in self._undrawn)
        self._gaussians[site.name] = gaussian if site.transform is None else None
        return gaussian if site.transform is None else base

    @contextmanager
    def _around_network(self, weights: Mapping[str, Tensor], num_rows: int) -> Iterator[None]:
        """A context for the network's call, in which the estimator replaces layers with Gaussian parameters."""
        noise, random = self._estimator.noise, {}
        for name, value in weights.items():
            gaussian = self._gaussians.get(name, MISSING)
            if gaussian is MISSING or (isinstance(gaussian, _Gaussian) and gaussian.value is not value):
                raise ValueError(
                    f"the value of `{name}` is not what the guide drew last; an estimator is for an ELBO, which calls "
                    "the guide and then the model. Leave its context for anything else."
                )
            if isinstance(gaussian, _Gaussian):
                asked = gaussian.deviation() if noise is Noise.DEVIATION else gaussian.scale.square()
                random[id(value)] = RandomParameter.of(noise, name, gaussian.loc, asked)
        with random_layers(self._estimator, random, num_rows):
            yield


@contextmanager
def random_layers(estimator: "Estimator", random: Mapping[int, RandomParameter], num_rows: int) -> Iterator[None]:
    """A context in which an estimator gives the output of every layer with random parameters.

    Args:
        estimator: The estimator.
        random: The random parameters, by the `id` of the tensors that the network gets for them.
        num_rows: Number of rows of data.

    Raises:
        ValueError: If the network uses a random parameter in a way that the estimator does not support.
    """
    layers = RandomLayers(estimator.output, type(estimator).__name__, random, num_rows)
    with layers:
        yield
    layers.require_all_used()


MISSING = object()


def _with_closed_form(model: BayesianModel) -> set[str]:
    """The network's sites whose prior has a closed-form divergence from Gaussians."""
    with seeded(0, model.device):
        return {s.name for s in find_sites(model, (), {}) if s.name in model.site_names and density_of(s).is_closed}
