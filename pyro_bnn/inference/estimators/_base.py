"""The base class of estimators, and the context in which a guide and a model use an estimator."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor

from ..._core import checks as _checks
from ..._core.scope import seeded
from ...modelling.distributions import Size
from ...modelling.model import BayesianModel, require_bayesian
from ..guides import MeanFieldGuide, Noise, RandomParameter, require_same_model
from ..joint import Site, density_of, find_sites
from ._layers import Layer, RandomLayers

ELBOS = (Trace_ELBO, TraceMeanField_ELBO)
"""The ELBOs that work with an estimator. RenyiELBO does not, since it weights whole draws. TraceGraph_ELBO does not: it
copies draws, and an estimator does not recognise the copies."""


class Estimator(ABC):
    """Computes the outputs of layers with random weights during a fit, with separate noise for each row of data.

    Without a gradient estimator, each weight is drawn once per batch, so the noise of different rows is correlated.
    An estimator does not change the distribution of the output of a single row, so the expected ELBO stays the same,
    but the gradient varies less.

    Pass an estimator to :func:`~pyro_bnn.fit_svi`, or wrap the training steps of your own script in :meth:`applied`. An
    estimator needs a :class:`~pyro_bnn.BayesianModel` and a :class:`~pyro_bnn.MeanFieldGuide`, and replaces calls of
    `torch.nn.functional.linear`, `conv1d`, `conv2d` and `conv3d` whose weight or bias is random. All other uses of a
    random parameter raise an error. In each replaced call, the first axis of the input must be the rows of data, and
    the output of a row must not depend on other rows. Batch normalisation in training mode therefore raises an error.
    Attention over the batch raises no error, but gives a wrong ELBO.

    A subclass names the form of its noise in :attr:`noise`, and computes the output of a layer in :meth:`output`.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    @abstractmethod
    def noise(self) -> Noise:
        """What the estimator needs besides a parameter's mean: a draw's deviation from the mean, or the variance."""

    @abstractmethod
    def output(self, layer: Layer) -> Tensor:
        """Compute the output of a layer with random parameters.

        Args:
            layer: A call of `linear`, `conv1d`, `conv2d` or `conv3d`.

        Returns:
            A tensor of the shape of the layer's own output. Each row must have the same distribution as with weights
            drawn from the guide, but the joint distribution of the rows may differ.

        Raises:
            ValueError: If the estimator does not support the layer.
        """

    def applied(self, model: BayesianModel, guide: MeanFieldGuide) -> AbstractContextManager[None]:
        """Return a context in which an ELBO uses this estimator.

        Use the context only for training steps with `Trace_ELBO` or `TraceMeanField_ELBO`, and do not nest such
        contexts.

        Args:
            model: The model.
            guide: The guide of the model.

        Raises:
            ValueError: If the estimator does not support the model or the guide. Calls inside the context raise this
                error if the estimator does not support a layer, if draws are vectorised, or if the model does not use
                the weights of the guide's last draw.

        Example:
            >>> import torch
            >>> from pyro.infer import Trace_ELBO
            >>> import pyro_bnn as pb
            >>> x, net = torch.linspace(-1, 1, 20)[:, None], torch.nn.Linear(1, 1)
            >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
            >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
            >>> guide = pb.MeanFieldGuide(model)
            >>> with pb.LocalReparameterization().applied(model, guide):
            ...     loss = Trace_ELBO().differentiable_loss(model, guide, x, 2 * x)
        """
        return Applied(self, model, guide)

    def layers(self, random: Mapping[int, RandomParameter], num_rows: int) -> RandomLayers:
        """Return a context in which this estimator computes the outputs of layers with random parameters.

        The network runs on `num_rows` rows. `random` has the random parameters. The key of each is the `id` of the
        parameter's tensor in the network.
        """
        return RandomLayers(self.output, type(self).__name__, random, num_rows)


class _Gaussian(dist.Normal):
    """The guide's Gaussian for one parameter. `value` is the last sample: a draw, or the mean."""

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
        assert self.value is not None
        return self.value - self.loc

    def expand(self, batch_shape: Size, _instance: object = None) -> "_Gaussian":
        raise ValueError(
            f"an estimator draws noise for each row, so draws of `{self.name}` cannot be vectorised over a plate; use "
            "`num_particles` without `vectorize_particles`, and call `Predictive` outside of the context."
        )


class Applied(AbstractContextManager[None]):
    """The context of :meth:`Estimator.applied`.

    If `closed_form` is True, a weight is drawn only if the estimator or the KL needs the draw. A weight that is not
    drawn has its mean as value.
    """

    def __init__(
        self, estimator: Estimator, model: BayesianModel, guide: MeanFieldGuide, *, closed_form: bool = False
    ) -> None:
        name = type(estimator).__name__
        require_bayesian(model, f" for {name}")
        _checks.kind("guide", guide, MeanFieldGuide, f"a MeanFieldGuide, whose Gaussians {name} needs")
        require_same_model(model, guide.locations())
        self._estimator, self._model, self._guide = estimator, model, guide
        self._undrawn: set[str] = set()
        if closed_form and estimator.noise is Noise.VARIANCE:
            with seeded(0, model.device):
                sites = find_sites(model, (), {})
            self._undrawn = {s.name for s in sites if s.name in model.site_names and density_of(s).is_closed}
        self._gaussians: dict[str, _Gaussian | None] = {}
        self._stack = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._model.interception.by(self._around_network))
            stack.enter_context(self._guide.intercepted(self._choose))
            self._stack = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._gaussians.clear()

    def _choose(self, site: Site, base: dist.Normal) -> dist.Normal:
        """Return the distribution from which the guide draws a site, and store it if the site is a weight."""
        if site.name not in self._model.site_names:
            return base
        gaussian = _Gaussian(site.name, base, is_drawn=site.name not in self._undrawn)
        self._gaussians[site.name] = gaussian if site.transform is None else None
        return gaussian if site.transform is None else base

    @contextmanager
    def _around_network(self, weights: Mapping[str, Tensor], num_rows: int) -> Iterator[None]:
        """Let the estimator compute layers during a call of the network."""
        noise, random = self._estimator.noise, {}
        for name, value in weights.items():
            gaussian = self._gaussians.get(name)
            if name not in self._gaussians or (gaussian is not None and gaussian.value is not value):
                raise ValueError(
                    f"the value of `{name}` is not the last draw of the guide; use an estimator only with an ELBO, "
                    "which calls the guide and then the model, and end its `with` block before any other call."
                )
            if gaussian is not None:
                asked = gaussian.deviation() if noise is Noise.DEVIATION else gaussian.scale.square()
                random[id(value)] = RandomParameter.of(noise, name, gaussian.loc, asked)
        with self._estimator.layers(random, num_rows):
            yield
