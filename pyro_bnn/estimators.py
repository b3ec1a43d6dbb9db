"""Gradient estimators: noise drawn for each row of data instead of once for all, so that gradients vary less."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, resolve_name

from . import _checks
from ._scope import own_parameters, seeded
from .distributions import Size
from .guides import MeanFieldGuide, Site
from .model import BayesianModel

__all__ = ["Estimator", "Flipout", "LocalReparameterization"]

LINEAR = F.linear
INPUT_DIMS = {LINEAR: 2, torch.conv1d: 3, torch.conv2d: 4, torch.conv3d: 5}
"""The layers that can be replaced, and the dimensions of their inputs, rows and channels included."""

ELBOS = (Trace_ELBO, TraceMeanField_ELBO)
"""Those that are means of a sum of terms. RenyiELBO weighs whole draws against each other; TraceGraph_ELBO is
Trace_ELBO here, but wraps the draws, so that they could not be recognised."""

METADATA = {
    *(getattr(Tensor, n).__get__ for n in ("device", "dtype", "is_cuda", "layout", "ndim", "requires_grad", "shape")),
    Tensor.__len__,
    Tensor.dim,
    Tensor.is_floating_point,
    Tensor.numel,
    Tensor.size,
}
"""What a network may ask of a weight without using its value."""


class Estimator(ABC):
    """Decides how the weights' noise enters the layers of a network while it is being fitted.

    Plain reparameterisation, which needs no estimator, draws each weight once for the whole batch. The noise of the
    rows is then correlated, and averaging over a large batch does not average it out. An estimator gives each row
    noise of its own with the same law. The expectation of the ELBO stays what it is, its gradient varies less.

    Pass one to :func:`~pyro_bnn.fit_svi`, or in a script of your own wrap the training steps in :meth:`applied`. It
    needs a :class:`~pyro_bnn.BayesianModel` and a :class:`~pyro_bnn.MeanFieldGuide`, and changes the layers
    `torch.nn.functional.linear`, `conv1d`, `conv2d` and `conv3d` that have a random weight or bias. Whatever else
    uses a random parameter is refused, never silently sampled otherwise, as are layers whose input does not have the
    rows of data as its first axis. Rows that look at each other (attention over the batch) cannot be recognised and
    must not be there; batch normalisation in training mode is recognised and refused.
    """

    @property
    @abstractmethod
    def _uses_draws(self) -> bool:
        """Whether a layer's output depends on the value that the guide drew."""

    @abstractmethod
    def _output(self, layer: "_Layer") -> Tensor:
        """The output of a layer with random parameters."""

    def applied(self, model: BayesianModel, guide: MeanFieldGuide, *, elbo: type[ELBO]) -> AbstractContextManager[None]:
        """A context in which calls of the guide and then of the model, as an ELBO makes them, use this estimator.

        It is for training steps alone: with `TraceMeanField_ELBO` and a prior whose divergence from a Gaussian has a
        closed form, local reparameterisation needs no weights, and the guide gives their means instead of draws. It
        may be entered many times, but not within itself.

        Args:
            model: The model.
            guide: Its guide.
            elbo: The class of the ELBO that will be computed in the context; to name another one than is then used
                gives wrong results.

        Raises:
            ValueError: Here, if the estimator cannot serve the arguments; in the context, if it cannot serve a layer,
                if draws are vectorised, or if the model is run with weights that are not the guide's last draw.

        Example:
            >>> from pyro.infer import SVI, Trace_ELBO
            >>> from pyro_bnn import BayesianModel, CategoricalLikelihood, MeanFieldGuide, NormalPrior
            >>> net = torch.nn.Linear(4, 3)
            >>> model = BayesianModel(net, prior=NormalPrior(), likelihood=CategoricalLikelihood(), num_data=150)
            >>> guide = MeanFieldGuide(model)
            >>> with LocalReparameterization().applied(model, guide, elbo=Trace_ELBO):
            ...     loss = Trace_ELBO().differentiable_loss(model, guide, torch.zeros(5, 4), torch.arange(5) % 3)
        """
        return _Applied(self, model, guide, elbo)


class LocalReparameterization(Estimator):
    r"""Draws a layer's outputs instead of its weights.

    .. math:: b = \gamma + \sqrt\delta\, \epsilon, \qquad \gamma = \sum_i a_i \mu_i, \qquad
              \delta = \sum_i a_i^2 \sigma_i^2, \qquad \epsilon \sim N(0, 1),

    two products of matrices, with noise of its own for every element of the output.

    For linear layers this is the exact law of each row. For convolutions the mean and variance of every output are
    exact, but the noise of two positions of a row, which share weights, is drawn as if it were independent: the usual
    approximation, under which the ELBO of a network that mixes positions is not exactly that of the sampled weights.
    :class:`Flipout` is exact there. Linear layers applied to several positions of a row, with inputs of more than two
    dimensions, are refused.

    References:
        Kingma, Salimans and Welling (2015), https://arxiv.org/abs/1506.02557.
    """

    @property
    def _uses_draws(self) -> bool:
        return False

    def _output(self, layer: "_Layer") -> Tensor:
        if layer.op is LINEAR and layer.input.dim() > 2:
            raise ValueError(
                f"{layer.names} is used in a linear layer whose input has shape {_checks.shape(layer.input)}, but "
                "local reparameterisation would give positions of a row independent noise although they share the "
                "weight; flatten the input to (N, D), or use Flipout(), which is exact here."
            )
        mean = layer.mean()
        variance = layer.random_part(Tensor.square, lambda gaussian: gaussian.scale.square())
        tiny = torch.finfo(variance.dtype).tiny  # where the variance is 0, the gradient of the root is 0, not infinite
        return mean + variance.clamp_min(tiny).sqrt() * torch.randn_like(mean)


class Flipout(Estimator):
    r"""Draws the weights once and flips the signs of their deviations, anew for every row n.

    .. math:: b_n = \mu a_n + r_n \circ \Delta (s_n \circ a_n), \qquad \Delta = w - \mu, \qquad
              r_{no}, s_{ni} \in \{-1, 1\}\ \text{uniformly}.

    The signs are shared by the positions of a row, so that each row has exactly the law of sampled weights, in linear
    layers and convolutions of any kind. The deviation of a bias is multiplied by r. Two rows are uncorrelated but not
    independent.

    References:
        Wen et al. (2018), https://arxiv.org/abs/1803.04386.
    """

    @property
    def _uses_draws(self) -> bool:
        return True

    def _output(self, layer: "_Layer") -> Tensor:
        mean = layer.mean()
        deviation = layer.random_part(lambda a: a * layer.signs(a), _Gaussian.deviation)
        return mean + layer.signs(mean) * deviation


class _Gaussian(dist.Normal):
    """The guide's distribution of one parameter, which remembers its value: a draw or, on demand, its mean."""

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
            f"draws of `{self.name}` are vectorised over a plate, which an estimator cannot serve: its noise belongs "
            "to rows. Use `num_particles` without `vectorize_particles`, and `Predictive` outside of the context."
        )


Parameter = Tensor | _Gaussian | None


@dataclass(frozen=True)
class _Layer:
    """A call of a linear or convolution function; its weight, its bias or both are random."""

    op: Callable[..., Tensor]
    input: Tensor  # (N, ..., D) for linear, (N, D, ...) for convolutions
    weight: Parameter
    bias: Parameter
    options: tuple[object, ...]
    keywords: Mapping[str, object]

    @property
    def names(self) -> str:
        """The sites, for messages."""
        return " and ".join(f"`{p.name}`" for p in (self.weight, self.bias) if isinstance(p, _Gaussian))

    def mean(self) -> Tensor:
        """The output at the mean of the random parameters."""
        weight, bias = (p.loc if isinstance(p, _Gaussian) else p for p in (self.weight, self.bias))
        return self.op(self.input, weight, bias, *self.options, **self.keywords)

    def random_part(self, inputs: Callable[[Tensor], Tensor], of: Callable[[_Gaussian], Tensor]) -> Tensor:
        """The layer at `inputs` of its input and `of` its random parameters, the fixed ones being left out."""
        weight, bias = (of(p) if isinstance(p, _Gaussian) else None for p in (self.weight, self.bias))
        if weight is not None:
            return self.op(inputs(self.input), weight, bias, *self.options, **self.keywords)
        assert bias is not None
        return bias if self.op is LINEAR else bias.reshape(-1, *[1] * (self.input.dim() - 2))

    def signs(self, like: Tensor) -> Tensor:
        """A random sign for each row and channel."""
        shape = [1] * like.dim()
        channel = -1 if self.op is LINEAR else 1
        shape[0], shape[channel] = like.shape[0], like.shape[channel]
        return like.new_empty(shape).bernoulli_(0.5).mul_(2).sub_(1)


class _Applied(AbstractContextManager[None]):
    """Hooks an estimator into a model and a guide, and unhooks it."""

    def __init__(self, estimator: Estimator, model: BayesianModel, guide: MeanFieldGuide, elbo: type[ELBO]) -> None:
        name = type(estimator).__name__
        _checks.kind("model", model, BayesianModel, f"a BayesianModel for {name}")
        _checks.kind("guide", guide, MeanFieldGuide, f"a MeanFieldGuide, whose Gaussians {name} needs")
        if elbo not in ELBOS:
            raise ValueError(
                f"`elbo` must be one of the classes {[e.__name__ for e in ELBOS]} with {name}, got {elbo!r}: with "
                "noise for each row the mean of the log-likelihood is right, but not the weight of a whole draw. "
                "Choose one of these, or fit without an estimator."
            )
        missing = sorted(set(model.site_names) - set(guide.locations()))
        if missing:
            raise ValueError(f"the guide was made for another model: it lacks {missing}; use MeanFieldGuide(model).")
        self._estimator, self._model, self._guide = estimator, model, guide
        can_skip = elbo is TraceMeanField_ELBO and not estimator._uses_draws
        self._undrawn = _with_closed_form(model) if can_skip else set()
        self._gaussians: dict[str, _Gaussian | None] = {}

    def __enter__(self) -> None:
        if self._model._around_network is not None or self._guide._choose is not None:
            raise ValueError("an estimator is already applied to this model or guide; leave its context first.")
        self._model._around_network, self._guide._choose = self._around_network, self._choose

    def __exit__(self, *_: object) -> None:
        self._model._around_network = self._guide._choose = None
        self._gaussians.clear()

    def _choose(self, site: Site, base: dist.Normal) -> dist.Normal:
        """What the guide samples for a site; of a network's real-valued site the Gaussian is kept."""
        if site.name not in self._model.site_names:
            return base
        gaussian = _Gaussian(site.name, base, is_drawn=site.name not in self._undrawn)
        self._gaussians[site.name] = gaussian if site.transform is None else None
        return gaussian if site.transform is None else base

    @contextmanager
    def _around_network(self, weights: Mapping[str, Tensor], num_rows: int) -> Iterator[None]:
        """Around the network's call: its layers with Gaussian parameters are replaced."""
        random = {}
        for name, value in weights.items():
            gaussian = self._gaussians.get(name, MISSING)
            if gaussian is MISSING or (isinstance(gaussian, _Gaussian) and gaussian.value is not value):
                raise ValueError(
                    f"the value of `{name}` is not what the guide drew last; an estimator serves an ELBO, which calls "
                    "the guide and then the model. Leave its context for anything else."
                )
            if isinstance(gaussian, _Gaussian):
                random[id(value)] = gaussian
        layers = _Layers(self._estimator, random, num_rows)
        with layers:
            yield
        layers.require_all_used()


MISSING = object()


def _with_closed_form(model: BayesianModel) -> set[str]:
    """The network's sites of which Pyro knows the divergence of a Gaussian from the prior."""
    with own_parameters(model), torch.no_grad(), poutine.block(), seeded(0, model.device):
        trace: Any = poutine.trace(model.sample_latents).get_trace()
    found = set()
    for name in model.site_names:
        prior, value = trace.nodes[name]["fn"], trace.nodes[name]["value"]
        gaussian = dist.Normal(torch.zeros_like(value), torch.ones_like(value)).to_event(prior.event_dim)
        try:
            kl_divergence(gaussian, prior)
        except NotImplementedError:
            continue
        found.add(name)
    return found


class _Layers(TorchFunctionMode):
    """Sees every torch function of a network's call, replaces those layers that it can, and refuses other uses."""

    def __init__(self, estimator: Estimator, random: Mapping[int, _Gaussian], num_rows: int) -> None:
        super().__init__()
        self._estimator, self._random, self._num_rows = estimator, random, num_rows
        self._unused = {gaussian.name for gaussian in random.values()}

    def __torch_function__(
        self, func: Callable, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        used = [self._random[id(t)] for t in _tensors((args, kwargs)) if id(t) in self._random]
        if func is F.batch_norm and inspect.signature(func).bind(*args, **kwargs).arguments.get("training"):
            raise ValueError(
                f"the network has batch normalisation in training mode, which mixes rows; {self._name} gives rows "
                "noise of their own. Use LayerNorm or GroupNorm, put the layer into eval mode, or fit without an "
                "estimator."
            )
        if not used or func in METADATA:
            return func(*args, **kwargs)
        if func not in INPUT_DIMS:
            raise ValueError(self._misuse(func, used))
        return self._layer(func, used, *args, **kwargs)

    def _layer(
        self,
        func: Callable,
        used: list[_Gaussian],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *options: object,
        **keywords: object,
    ) -> Tensor:
        if id(input) in self._random:
            raise ValueError(self._misuse(func, used))
        layer = _Layer(
            func, input, self._random.get(id(weight), weight), self._random.get(id(bias), bias), options, keywords
        )
        for gaussian in used:
            if gaussian.name not in self._unused:
                raise ValueError(
                    f"`{gaussian.name}` is used twice in one call of the network (tied weights, recurrence), and "
                    f"{self._name} would draw independent noise for each use. Leave it out of `where`, or fit without "
                    "an estimator."
                )
            self._unused.remove(gaussian.name)
        has_dims = input.dim() >= 2 if func is LINEAR else input.dim() == INPUT_DIMS[func]
        if not has_dims or len(input) != self._num_rows:
            raise ValueError(
                f"{layer.names} is used in {_name(func)} with an input of shape {_checks.shape(input)}, but "
                f"{self._name} needs the {self._num_rows} rows of data as first axis of {INPUT_DIMS[func]} dimensions; "
                "do not merge rows with other axes, leave the layer out of `where`, or fit without an estimator."
            )
        return self._estimator._output(layer)

    @property
    def _name(self) -> str:
        return type(self._estimator).__name__

    def _misuse(self, func: Callable, used: list[_Gaussian]) -> str:
        return (
            f"`{used[0].name}` is used in {_name(func)}, but {self._name} knows only the weights and biases of linear, "
            "conv1d, conv2d and conv3d layers. Leave it out of `where`, or fit without an estimator."
        )

    def require_all_used(self) -> None:
        """Raise if a weight has bypassed the layers, which would have been run with the guide's value."""
        if self._unused:
            raise ValueError(
                f"{sorted(self._unused)} did not appear in the network's call: unused, or hidden in compiled code, "
                f"where {self._name} has no effect. Leave such parameters out of `where`, or fit without an estimator."
            )


def _tensors(arguments: object) -> Iterator[Tensor]:
    """All tensors among nested arguments."""
    if isinstance(arguments, Tensor):
        yield arguments
    elif isinstance(arguments, (list, tuple)):
        for argument in arguments:
            yield from _tensors(argument)
    elif isinstance(arguments, dict):
        yield from _tensors(tuple(arguments.values()))


def _name(func: Callable) -> str:
    return str(resolve_name(func) or getattr(func, "__name__", func))
