"""A Bayesian neural network as a model for BoTorch."""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.extras import optional
from ..._core.functional import BatchedNetwork, batched
from ...inference.guides import as_posterior
from ...inference.posterior import Posterior, default_num_draws
from ...modelling.likelihoods import GaussianLikelihood, HeteroscedasticGaussianLikelihood
from ...modelling.model import BayesianModel, carried_paths, check_input, require_bayesian

if TYPE_CHECKING:
    from botorch.acquisition.objective import PosteriorTransform
    from botorch.exceptions.errors import UnsupportedError
    from botorch.models.ensemble import EnsembleModel
    from botorch.models.transforms.input import InputTransform
    from botorch.models.transforms.outcome import OutcomeTransform
    from botorch.posteriors.ensemble import EnsemblePosterior
    from botorch.sampling.get_sampler import GetSampler
    from botorch.sampling.index_sampler import IndexSampler
else:
    EnsembleModel = optional("botorch.models.ensemble", "BoTorch", "botorch").EnsembleModel
    UnsupportedError = optional("botorch.exceptions.errors", "BoTorch", "botorch").UnsupportedError
    EnsemblePosterior = optional("botorch.posteriors.ensemble", "BoTorch", "botorch").EnsemblePosterior
    GetSampler = optional("botorch.sampling.get_sampler", "BoTorch", "botorch").GetSampler
    IndexSampler = optional("botorch.sampling.index_sampler", "BoTorch", "botorch").IndexSampler

DEFAULT_DRAWS = 128  # a divisor of 512, BoTorch's default number of samples in an acquisition function

GAUSSIAN = GaussianLikelihood, HeteroscedasticGaussianLikelihood


class DrawsPosterior(EnsemblePosterior):
    """Posterior of S equally probable draws, with predictions of shape ``(*batch, S, q, m)``."""


class DrawsSampler(IndexSampler):
    """Selects all draws equally often, up to a difference of one. BoTorch's own sampler selects draws at random."""

    def _construct_base_samples(self, posterior: EnsemblePosterior) -> None:
        count, size = self.sample_shape.numel(), posterior.ensemble_size
        which = (2 * torch.arange(count, device=posterior.device) + 1) * size // (2 * count)
        ones = [1] * len(posterior.batch_shape)
        which = which.reshape(*self.sample_shape, *ones).expand(*self.sample_shape, *posterior.batch_shape)
        self.register_buffer("base_samples", which)


@GetSampler.register(DrawsPosterior)
def _(posterior: DrawsPosterior, sample_shape: torch.Size, *, seed: int | None = None, **_: Any) -> DrawsSampler:
    return DrawsSampler(sample_shape=sample_shape, seed=seed)


class Surrogate(EnsembleModel):
    r"""The posterior of a network for BoTorch's acquisition functions.

    A surrogate predicts with the same S draws of the weights at every call, so that an acquisition function is a fixed,
    differentiable function of the points:

    .. math:: \alpha(X) = \frac1S \sum_s a\big(f_{w_s}(X)\big).

    The values :math:`f_w(X)` are means of the targets given the weights w. ``posterior(X, observation_noise=True)``
    adds observation noise to the values of each draw, the same noise at every call. Inputs must have the model's dtype;
    BoTorch advises double precision.

    The surrogate has its own copies of the model and the draws, which a later fit does not change. New observations
    need a new fit: :meth:`condition_on_observations` and `fantasize` raise an error.

    Args:
        model: Model with a Gaussian likelihood (:class:`~pyro_bnn.GaussianLikelihood` or
            :class:`~pyro_bnn.HeteroscedasticGaussianLikelihood`), for targets of shape (N, m).
        posterior: Posterior of the model, or a guide.
        num_outputs: Number m of targets.
        num_samples: Number S of draws; by default 128, or all that a posterior stores if these are fewer. Each member
            of an ensemble of plain networks is drawn once by default. All draws are used equally often if S divides the
            number of samples of an acquisition function, by default 512.
        input_transform: Transform of BoTorch from X to the model's inputs, such as `Normalize`.
        outcome_transform: Transform of BoTorch that was applied to the targets of the fit, such as `Standardize`. The
            inverse transform is applied to predictions.
        train_X: Points of the fit, as they were before `input_transform`, shape (N, d). BoTorch's option
            `sample_around_best` searches near the best of these points.
        seed: Seed of the draws and of their noise; with ``None``, a seed is drawn.

    Raises:
        ValueError: If an argument is of the wrong kind, if the likelihood is not Gaussian, if the posterior stores
            fewer than S draws, or if its predictions are linearised.

    References:
        Balandat et al. (2020), https://arxiv.org/abs/1910.06403; for networks, Li et al. (2024),
        https://arxiv.org/abs/2305.20028.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> from pyro_bnn.interop.botorch import Surrogate
        >>> net = pb.nets.mlp([2, 8, 1]).double()
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=6)
        >>> surrogate = Surrogate(
        ...     model, pb.MeanFieldGuide(model), num_samples=16, seed=0
        ... )
        >>> posterior = surrogate.posterior(torch.zeros(5, 3, 2, dtype=torch.float64))
        >>> posterior.values.shape, posterior.mean.shape
        (torch.Size([5, 16, 3, 1]), torch.Size([5, 3, 1]))
    """

    train_inputs: tuple[Tensor, ...]

    def __init__(
        self,
        model: BayesianModel,
        posterior: Posterior | Callable[..., object],
        *,
        num_outputs: int = 1,
        num_samples: int | None = None,
        input_transform: "InputTransform | None" = None,
        outcome_transform: "OutcomeTransform | None" = None,
        train_X: Tensor | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        require_bayesian(model)
        if not isinstance(model.likelihood, GAUSSIAN):
            raise ValueError(
                "`model` must have a GaussianLikelihood or a HeteroscedasticGaussianLikelihood, got "
                f"{type(model.likelihood).__name__}."
            )
        source = as_posterior(posterior)
        if source.is_linearised:
            raise ValueError(
                f"`posterior` of {source.method} predicts with a linearised network, which a Surrogate does not do; "
                "fit by `fit_nuts`, `fit_svi`, or `fit_gauss_newton` with a random last layer."
            )
        self._num_outputs = _checks.at_least("num_outputs", num_outputs, 1)
        if num_samples is None:
            num_samples = default_num_draws(model, source, usual=DEFAULT_DRAWS)
        self._num_draws = _checks.at_least("num_samples", num_samples, 2)
        if source.num_stored is not None and self._num_draws > source.num_stored:
            raise ValueError(
                f"`num_samples` is {num_samples} but only {source.num_stored} draws are stored; sample longer, or ask "
                "for fewer."
            )
        self._seed = int(torch.randint(2**31, ())) if seed is None else _checks.seed(seed)
        self.model = copy.deepcopy(model).requires_grad_(False)
        self._names = {}
        draws = source.sample(self._num_draws, seed=self._seed)
        for index, (name, value) in enumerate(draws.items()):
            self._names[name] = f"draws_{index}"  # a buffer's name has no dot
            self.register_buffer(self._names[name], value)
        self._paths = {name: tuple(paths) for name, paths in self.model.parameter_paths.items()}
        self._paths |= {name: (path,) for name, path in carried_paths(self.model, draws).items()}
        self._run: BatchedNetwork | None = None
        if input_transform is not None:
            self.input_transform = input_transform
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        if train_X is not None:
            self.train_inputs = (_checks.real_tensor("train_X", train_X),)
        self.eval()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_run": None}  # a pickle cannot hold a local function

    @property
    def batch_shape(self) -> torch.Size:
        """The empty batch shape, since one posterior serves all batches of points."""
        return torch.Size()

    def forward(self, X: Tensor) -> Tensor:
        """Return the means of the targets for each draw, without the transforms of inputs and outcomes.

        Args:
            X: Inputs of the model, shape ``(*batch, q, d)``.

        Returns:
            The means, shape ``(*batch, S, q, m)``.
        """
        return self._values(X, has_noise=False)

    def posterior(  # type: ignore[override]  # with the order of `botorch.models.Model`
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: "PosteriorTransform | None" = None,
    ) -> Any:
        """Return each draw's predictions as a posterior of BoTorch.

        Args:
            X: Points before the input transform, shape ``(*batch, q, d)``.
            output_indices: Indices of the outputs to predict; None for all outputs.
            observation_noise: Whether to add observation noise. BoTorch's own ensembles ignore this argument.
            posterior_transform: Transform of BoTorch that is applied to the result.

        Returns:
            A `botorch.posteriors.ensemble.EnsemblePosterior` with values of shape ``(*batch, S, q, m)``.

        Raises:
            ValueError: If X or the network's output has a wrong shape, dtype or value.
            botorch.exceptions.errors.UnsupportedError: If `observation_noise` is a tensor.
        """
        if not isinstance(observation_noise, bool):
            raise UnsupportedError(
                "`observation_noise` must be True or False, got a tensor; the noise scale comes from the likelihood of "
                "the model."
            )
        self.eval()
        values = self._values(self.transform_inputs(X), has_noise=observation_noise)
        if hasattr(self, "outcome_transform"):
            values, _ = self.outcome_transform.untransform(values, X=X)
        posterior = DrawsPosterior(values if output_indices is None else values[..., output_indices])
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **_: Any) -> NoReturn:
        """Raise an `UnsupportedError` of BoTorch, since new observations need a new fit."""
        raise UnsupportedError(
            "a Surrogate cannot be conditioned on new observations; fit the network again to all observations, and "
            "make a new Surrogate. Use acquisition functions without fantasies (qLogEI, qLogNEI, qLogEHVI), and pass "
            "pending points as `X_pending`."
        )

    def fantasize(self, X: Tensor, *_: Any, **__: Any) -> NoReturn:
        """Raise an error; see :meth:`condition_on_observations`."""
        self.condition_on_observations(X, X)

    def _set_transformed_inputs(self) -> None:
        """Do nothing. BoTorch's method would transform the training inputs, but transformed ones are not needed."""

    def _values(self, X: Tensor, *, has_noise: bool) -> Tensor:
        _checks.kind("X", X, Tensor, "a tensor of points")
        if X.dim() < 2:
            raise ValueError(f"`X` must have shape (*batch, q, d), got {_checks.shape(X)}.")
        shape = (self._num_draws, *X.shape[:-1], self._num_outputs)
        if not X.numel():  # BoTorch asks for no points where no point can improve
            return X.new_empty(shape).movedim(0, -3)
        draws = self._draws()
        rows = X.reshape(-1, X.shape[-1])  # (N, d)
        observation = self.model.observe(self._outputs(draws, rows), draws)
        values, expected = observation.mean, (self._num_draws, len(rows), self._num_outputs)
        if values.shape != expected:
            raise ValueError(
                f"the model must predict targets of shape (N, {self._num_outputs}), got "
                f"(N, {', '.join(map(str, values.shape[2:]))}); pass their number as `num_outputs`."
            )
        values = values.reshape(shape)
        if has_noise:
            values = values + observation.stddev.reshape(shape) * self._noise(values)
        return values.movedim(0, -3)

    def _draws(self) -> dict[str, Tensor]:
        """Return the draws, ``{site: shape (S, *event)}``."""
        return {name: self.get_buffer(buffer) for name, buffer in self._names.items()}

    def _outputs(self, draws: dict[str, Tensor], rows: Tensor) -> Tensor:
        """Return the outputs for all draws, shape (S, N, out); raise if they are random."""
        check_input(rows, self.model.like)
        weights = {path: draws[name] for name, paths in self._paths.items() for path in paths}
        if self._run is None:
            few = {path: value[:2] for path, value in weights.items()}, rows[:2].detach()
            run = batched(self.model.network, *few)
            if not torch.equal(run(*few), run(*few)):
                raise ValueError(
                    "the network must give the same output at every call, but it draws random numbers; remove "
                    "MCDropout."
                )
            self._run = run
        return self._run(weights, rows)

    def _noise(self, values: Tensor) -> Tensor:
        """Return normal noise, shape (S, ..., q, m), with mean 0 and variance 1 over the draws."""
        shape = values.shape[0], *[1] * (values.dim() - 3), *values.shape[-2:]
        generator = torch.Generator(values.device).manual_seed(self._seed)
        noise = torch.randn(shape, generator=generator, dtype=values.dtype, device=values.device)
        return (noise - noise.mean(0)) / noise.std(0, unbiased=False)
