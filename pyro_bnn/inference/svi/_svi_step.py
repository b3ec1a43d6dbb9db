"""A step for training loops of your own, and for that of `fit_svi`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._core import checks as _checks
from ..._core.scope import EXCLUSIVE, is_auxiliary, own_parameters, seeded, short_errors
from ...modelling.model import BayesianModel, random_paths, rest_frozen
from ..estimators import ELBOS, Applied, Estimator
from ..guides import MeanFieldGuide
from ..joint import check_gradients
from ..kl import check_weight
from ._arguments import Arguments, Batch
from ._direct import DirectStep
from ._execution import Execution
from ._functions import PyroFunction, as_module
from ._graph import GraphStep
from ._natural import NaturalGradient, require_natural
from ._obstacle import direct_joint
from ._pyro_step import PyroStep
from ._requirements import NotCopied, check_coverage, check_latents, check_model, check_own_statements, checked_maker
from ._step import Step, StepTerms


class SVIStep(NotCopied):
    """An optimisation step on an ELBO; :func:`svi_step` makes it.

    Args:
        model: The model.
        guide: The guide.
        optimizer: A torch optimizer of parameters of model and guide, or a function from all of them to one.
        elbo: The bound.
        estimator: Way in which the noise of weights enters their layers; None draws each weight once per step.
        kl_weight: Weight of the KL term in calls that give none.
        execution: How steps are computed.
    """

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        optimizer: Optimizer | Callable[[list[nn.Parameter]], Optimizer],
        *,
        elbo: ELBO,
        estimator: Estimator | None,
        kl_weight: float,
        execution: Execution,
    ) -> None:
        self.model, self.guide = model, guide
        self._maker, self._elbo, self._estimator = optimizer, elbo, estimator
        self._kl_weight, self.execution = check_weight(kl_weight), execution
        self._stack, self._path = ExitStack(), ""
        self._step: Step | None = None
        self._is_closed = False

    def __call__(self, *batch: Any, kl_weight: float | None = None) -> StepTerms:
        """Update the parameters by one batch.

        Args:
            *batch: Arguments of the model: x, shape (B, ...), and y, shape (B, ...), as :func:`fit_svi` takes them.
            kl_weight: Weight of the KL term in this step relative to the ELBO; None is that of :func:`svi_step`.

        Returns:
            The ELBO of the step and its two terms.

        Raises:
            ValueError: If the batch does not fit the model.
            NonFiniteError: If loss or gradient is not finite; the parameters are then those of the last finite step.
        """
        weight = self._kl_weight if kl_weight is None else check_weight(kl_weight)
        if isinstance(self.model, BayesianModel):
            batch = _as_pair(self.model, batch, is_first=self._step is None)
        with EXCLUSIVE:
            return self.prepared(*batch)(batch, weight)

    @property
    def path(self) -> str:
        """How gradients are computed: ``"direct"``, or ``"pyro: "`` and the reason; empty before the first batch."""
        return self._path

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer.

        Raises:
            ValueError: If the optimizer is not made yet, which happens at the first batch.
        """
        if self._step is not None:
            return self._step.optimizer
        if isinstance(self._maker, Optimizer):
            return self._maker
        raise ValueError("the optimizer is made at the first batch; call the step, or `prepared`, first.")

    def prepared(self, *batch: Any) -> Step:
        """Prepare the steps with an example batch; without this call, the first step does so.

        Model and guide are run once on the batch, and the guide's parameters are moved into long vectors.

        Args:
            *batch: Arguments of the model, as in a call of the step.

        Returns:
            The step inside, which is called with a batch as a tuple and a KL weight.

        Raises:
            ValueError: If the arguments of :func:`svi_step` do not fit each other.
        """
        if self._is_closed:
            raise ValueError("the context of this step is closed; open a new one with `svi_step`.")
        if torch.is_inference_mode_enabled():
            raise ValueError("a step needs gradients; call it outside of `torch.inference_mode()`.")
        if self._step is None:
            with short_errors(), own_parameters(self.model, self.guide):
                self._step = self._prepare(batch)
            self._begin_together()
            self._stack.callback(self._step.close)
        return self._step

    def close(self) -> None:
        """Give the parameters memory of their own again; no step can be made afterwards."""
        self._is_closed = True
        self._stack.close()
        for module in (self.model, self.guide):
            if isinstance(module, PyroFunction):
                module.publish()

    @torch.no_grad()
    def _begin_together(self) -> None:
        """Start from the parameters and buffers of process 0."""
        modules = self.guide, self.model
        tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        self.execution.processes.broadcast_(tensor.data for tensor in tensors)

    def _prepare(self, batch: Batch) -> Step:
        if isinstance(self.model, BayesianModel):
            rest_frozen(self.model.network, random_paths(self.model))  # what was frozen after the model was built
            check_gradients(self.model, *batch)
        check_latents(self.model, self.guide, self._elbo, batch)
        joint = direct_joint(self.model, self.guide, self._elbo, batch[0])
        parameters = _learned_parameters(
            self.model, self.guide, self._elbo, batch, is_direct=not isinstance(joint, str)
        )
        made = _make_optimizer(self._maker, parameters)
        options: dict[str, Any] = {"elbo": self._elbo, "estimator": self._estimator, "execution": self.execution}
        step: Step
        if isinstance(made, NaturalGradient):
            closed = joint if isinstance(joint, str) else ""
            cuda_graph, has_estimator = self.execution.cuda_graph, self._estimator is not None
            require_natural(closed, self.guide, has_estimator=has_estimator, cuda_graph=cuda_graph)
        if isinstance(joint, str):
            self._path = f"pyro: {joint}"
            if option := self.execution.needs_direct_path:
                raise ValueError(
                    f"`{option}` of the execution needs the direct path, which is closed because {joint}; leave "
                    f"`{option}` out."
                )
            if self._estimator and isinstance(self.guide, MeanFieldGuide) and self.guide.masks:
                raise ValueError(
                    f"an estimator with a pruned guide needs the direct path, which is closed because {joint}; leave "
                    "the estimator out."
                )
            step = PyroStep(self.model, self.guide, parameters, made, **options)
        else:
            self._path = "direct"
            step = DirectStep(joint, self.guide, parameters, made, **options)  # type: ignore[arg-type]
        if not self.execution.cuda_graph:
            return step
        if step.waits:
            step.close()
            raise ValueError(
                "`cuda_graph` needs an optimizer with `fused=True` on a GPU, but this fit has no such optimizer; leave "
                "`cuda_graph` out."
            )
        return GraphStep(step)


@contextmanager
def svi_step(
    model: Callable[..., object],
    guide: Callable[..., object],
    optimizer: Optimizer | Callable[[list[nn.Parameter]], Optimizer],
    *,
    elbo: ELBO | None = None,
    estimator: Estimator | None = None,
    kl_weight: float = 1.0,
    execution: Execution | None = None,
) -> Iterator[SVIStep]:
    r"""A context with an optimisation step for a loop of your own; :func:`fit_svi` is a loop around the same step.

    .. math:: \mathrm{ELBO} = E_q[\log p(y \mid w)] - \mathrm{KL}(q(w) \,\|\, p(w)),

    in nats, and for the whole data set whatever the size of the batch.

    For a :class:`~pyro_bnn.BayesianModel` and one of our guides (:class:`~pyro_bnn.MeanFieldGuide`,
    :class:`~pyro_bnn.LowRankGuide`, :func:`~pyro_bnn.auto_delta`) under `Trace_ELBO` or `TraceMeanField_ELBO` the ELBO
    and its gradients are computed directly: this is faster than Pyro's own machinery and gives the same numbers, up to
    rounding. For everything else Pyro computes them. :attr:`SVIStep.path` says which of the two it is, and why.

    In the context the guide's parameters lie in long vectors; afterwards each has memory of its own again.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or any Pyro model, called as ``model(*batch)``.
        guide: Any Pyro guide. A module is fitted in place. The `pyro.param` statements of functions begin with what
            Pyro's global store has, as under `pyro.infer.SVI`, and their values are there again at the end.
        optimizer: A torch optimizer of parameters of the guide and the model, or a function from all of these
            parameters to an optimizer, such as ``functools.partial(torch.optim.Adam, lr=1e-3)``.
        elbo: One of Pyro's ELBOs, such as ``Trace_ELBO(num_particles=2)`` for two draws in each step; None is
            ``Trace_ELBO()``. `TraceMeanField_ELBO` uses closed-form divergences where they exist.
        estimator: Gradient estimator, such as ``LocalReparameterization()``, for less noisy gradients; None draws each
            weight once per step.
        kl_weight: Weight of the KL term relative to the ELBO in steps that give none.
        execution: How steps are computed: recorded on a GPU, in parts, in bfloat16, by several processes; see
            :class:`Execution`.

    Yields:
        A step, which is called with x and y and returns the ELBO and its two terms without waiting for a GPU.

    Raises:
        ValueError: If the arguments do not fit each other; some errors are found only at the first step.

    Example:
        >>> from pyro_bnn import BayesianModel, CategoricalLikelihood, MeanFieldGuide, NormalPrior
        >>> net = torch.nn.Linear(4, 3)
        >>> model = BayesianModel(net, prior=NormalPrior(), likelihood=CategoricalLikelihood(), num_data=150)
        >>> guide = MeanFieldGuide(model)
        >>> with svi_step(model, guide, torch.optim.Adam(guide.parameters(), lr=0.01)) as step:
        ...     for _ in range(3):
        ...         terms = step(torch.zeros(5, 4), torch.arange(5) % 3)
        >>> bool(terms.elbo == terms.log_likelihood - terms.kl)
        True
    """
    elbo = Trace_ELBO() if elbo is None else elbo
    check_model(model, guide)
    model, guide = as_module("model", model), as_module("guide", guide)
    optimizer = checked_maker(optimizer)
    if not isinstance(elbo, ELBO) or type(elbo).__name__.startswith("Jit"):
        got = f"the class {elbo.__name__}" if isinstance(elbo, type) else type(elbo).__name__
        raise ValueError(f"`elbo` must be an instance such as pyro.infer.Trace_ELBO(), and not a Jit ELBO, got {got}.")
    _checks.at_least("num_particles", elbo.num_particles, 1)
    if estimator is not None:
        _check_estimator(estimator, model, guide, elbo)
    execution = Execution.given(execution)
    options: dict[str, Any] = {"elbo": elbo, "estimator": estimator, "execution": execution}
    step = SVIStep(model, guide, optimizer, kl_weight=kl_weight, **options)
    try:
        yield step
    finally:
        step.close()


def _as_pair(model: BayesianModel, batch: Batch, *, is_first: bool) -> Batch:
    """The arguments x and y; arrays, lists and data frames become tensors. The first batch is checked in any case."""
    if not is_first and len(batch) == 2 and isinstance(batch[0], Tensor) and isinstance(batch[1], Tensor):
        return batch
    like = torch.empty((), device=model.device, dtype=model.dtype)
    return Arguments(model.device, like, paired=True).of_batch(batch)


def _check_estimator(estimator: Estimator, model: nn.Module, guide: nn.Module, elbo: ELBO) -> None:
    _checks.kind("estimator", estimator, Estimator, "an Estimator, such as LocalReparameterization()")
    if type(elbo) not in ELBOS:
        raise ValueError(
            f"`elbo` must be one of {[e.__name__ for e in ELBOS]} with {type(estimator).__name__}, got "
            f"{type(elbo).__name__}, which weighs whole draws, while an estimator draws noise for each row; choose one "
            "of these, or fit without an estimator."
        )
    Applied(estimator, model, guide)  # type: ignore[arg-type]  # raises if model or guide is of another kind


def _make_optimizer(
    maker: Optimizer | Callable[[list[nn.Parameter]], Optimizer], parameters: list[nn.Parameter]
) -> Optimizer:
    if isinstance(maker, Optimizer):
        check_coverage(maker, parameters)
        return maker
    made = None if isinstance(maker, PyroOptim) or not callable(maker) else maker(parameters)
    if not isinstance(made, Optimizer):
        raise ValueError(
            "`optimizer` must make a torch optimizer from parameters, such as functools.partial(torch.optim.Adam, "
            f"lr=1e-3), got {type(maker).__name__}."
        )
    return made


def _learned_parameters(
    model: nn.Module, guide: nn.Module, elbo: ELBO, batch: Batch, *, is_direct: bool
) -> list[nn.Parameter]:
    """All parameters to learn. The guide is run once, and what it samples must fit the ELBO."""
    is_ready = any(True for _ in guide.parameters())  # if not, this call makes them, with the seed of the fit
    with (
        seeded(0 if is_ready else None, next(guide.parameters(), torch.empty(())).device),
        torch.no_grad(),
        poutine.block(),
    ):
        trace: Any = poutine.trace(guide).get_trace(*batch)
    latent = [node for node in trace.nodes.values() if node["type"] == "sample" and not node["is_observed"]]
    if any(node["name"] == "obs" for node in latent) and isinstance(model, BayesianModel):
        raise ValueError(
            "the guide draws the observed site `obs`, because it was first called without targets; build it with "
            "`auto_normal`, or make `guide(x, y)` its first call."
        )
    if any(is_auxiliary(node) for node in latent) and isinstance(elbo, TraceMeanField_ELBO) and not is_direct:
        raise ValueError(
            f"{type(guide).__name__} samples auxiliary variables, but for these TraceMeanField_ELBO has no closed form "
            "and loses the Jacobian of constrained sites; use `elbo=Trace_ELBO()`, or MeanFieldGuide."
        )
    owned = [p for module in (guide, model) for p in module.parameters() if p.requires_grad]
    parameters = list(dict.fromkeys(owned))
    known = {id(parameter) for module in (guide, model) for parameter in module.parameters()}
    for name, node in trace.nodes.items():
        if node["type"] == "param" and id(node["value"].unconstrained()) not in known:
            raise ValueError(
                f"the guide's parameter `{name}` lives in Pyro's global store, not in the guide; make it a "
                "`PyroParam` or `nn.Parameter` of the module, or fit with `pyro.infer.SVI`."
            )
    if isinstance(model, BayesianModel):
        drawn = {node["name"] for node in latent if not is_auxiliary(node)}
        _check_sites(model, drawn)
        if not is_direct:
            check_own_statements(model, drawn, batch)
    if not parameters:
        raise ValueError("guide and model have no parameter to learn; pass a guide with at least one.")
    return parameters


def _check_sites(model: BayesianModel, drawn: set[str]) -> None:
    """Raise unless a guide draws the latent variables of the model, and none that belong to another model."""
    ours = ("net.", "prior.", "likelihood.")
    missing = [name for name in model.latent_names if name not in drawn]
    foreign = sorted(name for name in drawn if name.startswith(ours) and name not in model.latent_names)
    if missing or foreign:
        problem = f"it lacks {missing}" if missing else f"it also draws {foreign}"
        raise ValueError(f"the guide was made for another model: {problem}; make a guide of this model.")
