"""The optimisation step of `fit_svi`, also for your own training loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from pyro.infer import ELBO, Trace_ELBO
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._core import checks as _checks
from ..._core.inputs import Arguments, Batch, unwrapped
from ..._core.scope import EXCLUSIVE, own_parameters, short_errors
from ..._core.signatures import explained
from ...modelling.model import BayesianModel, random_paths, rest_frozen
from ..estimators import ELBOS, Applied, Estimator
from ..guides import FlatGuide, MeanFieldGuide
from ..joint import Joint, check_gradients
from ..kl import check_weight
from ._direct import DirectStep, direct_joint
from ._graph import GraphStep, has_graphs
from ._natural import NaturalGradient, mean_field
from ._optimizers import INSTEAD_OF_RATE, OptimizerMaker, SkippingOptimizer, made_by, require_maker, require_usable
from ._pyro import PyroFunction, PyroStep, as_module, check_model, learned_parameters, traced_guide
from ._step import Execution, GradientStep, StepTerms

KNOWN = {"torch", __name__.partition(".")[0]}  # packages whose Python code a replayed CUDA graph may skip
OPENED = "use `with pb.svi_step(model, guide, optimizer) as step:`"  # how to open a step


class SVIStep:
    """Makes optimisation steps on an ELBO, within a ``with`` statement; see :func:`svi_step`."""

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        optimizer: Optimizer | OptimizerMaker,
        *,
        elbo: ELBO,
        estimator: Estimator | None,
        kl_weight: float,
        execution: Execution,
    ) -> None:
        self.model, self.guide = model, guide
        self._maker, self._elbo, self._estimator = optimizer, elbo, estimator
        self._kl_weight, self.execution = check_weight(kl_weight), execution
        self._step: GradientStep | GraphStep | None = None
        self._is_open: bool | None = None  # None before `with`
        self.path = ""
        """How gradients are computed: ``"direct"``, or ``"pyro: "`` with the reason."""

    def __repr__(self) -> str:
        if self._is_open is None:
            state = "to be opened by `with`"
        else:
            state = (self.path or "before its first batch") if self._is_open else "closed"
        return f"SVIStep({type(self.model).__name__}, {type(self.guide).__name__}, {state})"

    def __enter__(self) -> SVIStep:
        if self._is_open is not None:
            raise ValueError(f"this step was opened before; {OPENED}.")
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ValueError(
            "a SVIStep cannot be copied or pickled, since it shares the memory of a guide; save the posterior "
            "with `save_posterior`, and open a new step."
        )

    def __call__(self, *batch: Any, kl_weight: float | None = None) -> StepTerms:
        """Update the parameters with the gradients of one batch.

        Args:
            *batch: Arguments of the model: x, shape (B, ...), and y, shape (B, ...), or one pair (x, y).
            kl_weight: Weight of the KL term in this step; with ``None``, that of :func:`svi_step`.

        Returns:
            The ELBO of the step, and its two terms.

        Raises:
            ValueError: If the batch does not match the model.
            NonFiniteError: If the loss or a gradient is not finite. The parameters keep the values of the last finite
                step.
        """
        weight = self._kl_weight if kl_weight is None else check_weight(kl_weight)
        are_tensors = len(batch) == 2 and isinstance(batch[0], Tensor) and isinstance(batch[1], Tensor)
        if not isinstance(self.model, BayesianModel):
            batch = unwrapped(batch)
        elif self._step is None or not are_tensors:  # tensors are checked only in the first batch
            pair = batch[0] if len(batch) == 1 else batch
            batch = Arguments(self.model.device, self.model.like, paired=True).of_batch(pair)
        with EXCLUSIVE:
            return self.prepared(*batch)(batch, weight)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer.

        If a function makes the optimizer, this property raises a `ValueError` before the first batch.
        """
        if self._step is not None:
            return self._step.optimizer
        if isinstance(self._maker, Optimizer):
            return self._maker
        raise ValueError("the optimizer is made at the first batch; call the step, or `prepared`, first.")

    def prepared(self, *batch: Any) -> GradientStep | GraphStep:
        """Prepare the steps by a run on an example batch. The first step calls this method if you have not.

        Returns:
            The inner step, a function of a batch (a tuple) and a KL weight.

        Raises:
            ValueError: If the arguments of :func:`svi_step` do not match each other.
        """
        if not self._is_open:
            state = "not open" if self._is_open is None else "closed"
            raise ValueError(f"this step is {state}; {OPENED}.")
        if torch.is_inference_mode_enabled():
            raise ValueError("a step needs gradients; call it outside of `torch.inference_mode()`.")
        if self._step is None:
            batch = batch if isinstance(self.model, BayesianModel) else unwrapped(batch)
            with short_errors(), own_parameters(self.model, self.guide):
                self._step = self._prepare(batch)
            tensors = [t for module in (self.guide, self.model) for t in (*module.parameters(), *module.buffers())]
            self.execution.processes.broadcast_(tensor.data for tensor in tensors)
        return self._step

    def close(self) -> None:
        """Give each parameter of the guide its own memory again. Later steps raise an error."""
        self._is_open = False
        if self._step is not None:
            self._step.close()
        for module in (self.model, self.guide):
            if isinstance(module, PyroFunction):
                module.publish()

    def _prepare(self, batch: Batch) -> GradientStep | GraphStep:
        model, guide, elbo, execution = self.model, self.guide, self._elbo, self.execution
        if isinstance(model, BayesianModel):
            rest_frozen(model.network, random_paths(model))  # also layers that were frozen after the model was built
            check_gradients(model, *batch)
        joint = direct_joint(model, guide, elbo, batch[0])  # before the trace, whose values take memory
        trace = traced_guide(model, guide, elbo, batch)
        parameters = learned_parameters(model, guide, elbo, batch, trace, is_direct=isinstance(joint, Joint))
        del trace
        optimizer = made_by(self._maker, parameters)
        self._require_path("" if isinstance(joint, Joint) else joint, optimizer)
        options: dict[str, Any] = {"elbo": elbo, "estimator": self._estimator, "execution": execution}
        if isinstance(joint, str):
            self.path = f"pyro: {joint}"
            return PyroStep(model, guide, parameters, optimizer, **options)
        self.path = "direct"
        assert isinstance(guide, FlatGuide)
        step = DirectStep(joint, guide, parameters, optimizer, **options)
        if execution.cuda_graph is None:
            return GraphStep(step, is_required=False) if self._can_record(step) else step
        if not execution.cuda_graph:
            return step
        if step.waits:
            step.close()
            raise ValueError(
                "`cuda_graph` needs an optimizer with `fused=True` on a GPU, but this fit has no such optimizer; leave "
                "`cuda_graph` out."
            )
        return GraphStep(step)

    def _can_record(self, step: GradientStep) -> bool:
        """Whether steps can be recorded without leaving out Python code of the user."""
        model, optimizer = self.model, step.optimizer
        if step.waits or self.execution.processes.are_many or isinstance(optimizer, SkippingOptimizer):
            return False
        assert isinstance(model, BayesianModel)
        modules = [*model.network.modules(), *model.likelihood.modules()]
        is_known = all(type(module).__module__.partition(".")[0] in KNOWN for module in modules)
        return is_known and has_graphs(model.device)

    def _require_path(self, obstacle: str, optimizer: Optimizer) -> None:
        """Raise if `natural_gradient` or an option needs the direct path, and `obstacle` prevents it."""
        execution, has_estimator = self.execution, self._estimator is not None
        if isinstance(optimizer, NaturalGradient):
            mean_field(self.guide)
            if obstacle:
                raise ValueError(
                    f"`natural_gradient` needs the direct path, which is impossible because {obstacle}; use Adam."
                )
            if has_estimator:
                raise ValueError(
                    "`natural_gradient` needs drawn weights, but an estimator does not draw them; leave `estimator` "
                    "out."
                )
        elif execution.cuda_graph and isinstance(optimizer, SkippingOptimizer):
            raise ValueError("steps of a stochastic-gradient sampler cannot be recorded; leave `cuda_graph` out.")
        if not obstacle:
            return
        if option := execution.needs_direct_path:
            raise ValueError(
                f"`{option}` of the execution needs the direct path, which is impossible because {obstacle}; "
                f"leave `{option}` out."
            )
        if has_estimator and isinstance(self.guide, MeanFieldGuide) and self.guide.masks:
            raise ValueError(
                f"an estimator with a pruned guide needs the direct path, which is impossible because {obstacle}; "
                "leave the estimator out."
            )


@explained(
    "with svi_step(model, guide, optimizer) as step: step(x, y)",
    {
        "data": "pass x and y to the step: `with svi_step(model, guide, optimizer) as step: step(x, y)`",
        "lr": INSTEAD_OF_RATE,
        "loss": "pass the loss as `elbo`",
    },
)
def svi_step(
    model: Callable[..., object],
    guide: Callable[..., object],
    optimizer: Optimizer | OptimizerMaker,
    *,
    elbo: ELBO | None = None,
    estimator: Estimator | None = None,
    kl_weight: float = 1.0,
    execution: Execution | None = None,
) -> SVIStep:
    r"""Return an optimisation step for your own training loop, to be opened by ``with``.

    :func:`fit_svi` makes the same steps.

    By default, the step maximises

    .. math:: \mathrm{ELBO} = E_q[\log p(y \mid w)] - \mathrm{KL}(q(w) \,\|\, p(w)).

    The ELBO is in nats, and refers to the whole data set whatever the size of the batch.

    The ELBO and its gradients are computed directly, without Pyro, for a :class:`~pyro_bnn.BayesianModel` and a guide
    of this package (:class:`~pyro_bnn.MeanFieldGuide`, :class:`~pyro_bnn.LowRankGuide`, :class:`~pyro_bnn.DeltaGuide`,
    :class:`~pyro_bnn.BatchEnsembleGuide`) under `Trace_ELBO` or `TraceMeanField_ELBO`. The guide's parameters then
    share long vectors while the context is open. The direct computation is faster than Pyro and gives the same numbers,
    up to rounding. In all other cases Pyro is used; :attr:`SVIStep.path` says why.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or any Pyro model, called as ``model(*batch)``.
        guide: Any Pyro guide. A module is fitted in place. For a function, `pyro.param` statements start from the
            values in Pyro's global store. At the end, the fitted values are written to this store.
        optimizer: A torch optimizer of the parameters of guide and model, or a function that takes a list of these
            parameters and returns such an optimizer, for example ``functools.partial(torch.optim.Adam, lr=1e-3)``.
        elbo: One of Pyro's ELBOs, such as ``Trace_ELBO(num_particles=2)`` for two draws in each step; with ``None``,
            ``Trace_ELBO()``. `TraceMeanField_ELBO` uses closed-form divergences where they exist.
        estimator: Gradient estimator, such as ``LocalReparameterization()``, for less noisy gradients; with ``None``,
            each weight is drawn once per step.
        kl_weight: Weight of the KL term; 1 gives the ELBO.
        execution: How steps are computed, for example in bfloat16 or by several processes; see :class:`Execution`.

    Returns:
        A context manager. Within ``with``, it is a function that takes x and y, updates the parameters, and returns the
        ELBO and its two terms as tensors.

    Raises:
        ValueError: If the arguments do not match each other; some errors are found only at the first step.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x, net = torch.linspace(-1, 1, 20)[:, None], torch.nn.Linear(1, 1)
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> guide = pb.MeanFieldGuide(model)
        >>> adam = torch.optim.Adam(guide.parameters(), lr=0.01)
        >>> with pb.svi_step(model, guide, adam) as step:
        ...     terms = [step(x, 2 * x) for _ in range(3)]
        >>> bool(terms[-1].elbo == terms[-1].log_likelihood - terms[-1].kl)
        True
    """
    elbo = Trace_ELBO() if elbo is None else elbo
    check_model(model, guide)
    model, guide = as_module("model", model), as_module("guide", guide)
    if isinstance(optimizer, Optimizer):
        require_usable(optimizer)
    else:
        require_maker(optimizer)
    if not isinstance(elbo, ELBO) or type(elbo).__name__.startswith("Jit"):
        got = f"the class {elbo.__name__}" if isinstance(elbo, type) else type(elbo).__name__
        raise ValueError(f"`elbo` must be an instance such as pyro.infer.Trace_ELBO(), and not a Jit ELBO, got {got}.")
    _checks.at_least("num_particles", elbo.num_particles, 1)
    if estimator is not None:
        _check_estimator(estimator, model, guide, elbo)
    options: dict[str, Any] = {"elbo": elbo, "estimator": estimator, "execution": Execution.given(execution)}
    return SVIStep(model, guide, optimizer, kl_weight=kl_weight, **options)


def _check_estimator(estimator: Estimator, model: nn.Module, guide: nn.Module, elbo: ELBO) -> None:
    _checks.kind("estimator", estimator, Estimator, "an Estimator, such as LocalReparameterization()")
    if type(elbo) not in ELBOS:
        raise ValueError(
            f"`elbo` must be one of {[e.__name__ for e in ELBOS]} with {type(estimator).__name__}, which draws noise "
            f"for each row, got {type(elbo).__name__}, which weighs whole draws; choose one of these, or fit without "
            "an estimator."
        )
    Applied(estimator, model, guide)  # type: ignore[arg-type]  # raises if model or guide has a wrong type
