"""The step for everybody's loop."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import _checks
from .._scope import is_auxiliary, own_parameters, seeded
from ..estimators import ELBOS, Applied, Estimator
from ..guides import MeanFieldGuide
from ..joint import check_gradients
from ..kl import check_weight
from ..model import BayesianModel
from ._batches import Batch
from ._direct import DirectStep
from ._graph import GraphStep
from ._obstacle import direct_joint
from ._pyro_step import PyroStep
from ._step import Step, StepTerms


class SVIStep:
    """An optimisation step on an ELBO; made by :func:`svi_step`.

    Args:
        model: The model.
        guide: The guide.
        optimizer: A torch optimizer over parameters of theirs, or what makes one of all of them.
        elbo: The bound.
        estimator: How the noise of weights enters their layers.
        kl_weight: Weight of the KL term, where a call names no other.
        cuda_graph: Record steps and replay them.
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
        cuda_graph: bool,
    ) -> None:
        self.model, self.guide = model, guide
        self._maker, self._elbo, self._estimator = optimizer, elbo, estimator
        self._kl_weight, self._cuda_graph = check_weight(kl_weight), cuda_graph
        self._stack, self._path = ExitStack(), ""
        self._step: Step | None = None

    def __call__(self, *batch: Tensor, kl_weight: float | None = None) -> StepTerms:
        """Update the parameters by one batch.

        Args:
            *batch: What the model is called with: x, shape (B, ...), and y, shape (B, ...).
            kl_weight: Weight of the KL term in this step relative to the ELBO; None is that of :func:`svi_step`.

        Raises:
            ValueError: If the batch does not fit the model.
            NonFiniteError: If loss or gradient is not finite; the last finite parameters stay in place.
        """
        weight = self._kl_weight if kl_weight is None else check_weight(kl_weight)
        return self.prepared(*batch)(batch, weight)

    @property
    def path(self) -> str:
        """How gradients are computed: ``"direct"``, or ``"pyro: "`` and the reason; empty before the first batch."""
        return self._path

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer.

        Raises:
            ValueError: Before the first batch, if it is still to be made.
        """
        if self._step is not None:
            return self._step.optimizer
        if isinstance(self._maker, Optimizer):
            return self._maker
        raise ValueError("the optimizer is made at the first batch; call the step, or `prepared`, before.")

    def prepared(self, *batch: Tensor) -> Step:
        """Make all ready, by the example of a batch; happens by itself at the first one.

        Model and guide are tried out on it, and their parameters moved into long vectors.

        Raises:
            ValueError: If the arguments make no sense together.
        """
        if self._step is None:
            self._step = self._prepare(batch)
            self._stack.callback(self._step.close)
        return self._step

    def close(self) -> None:
        """Give the parameters memory of their own again."""
        self._stack.close()

    def _prepare(self, batch: Batch) -> Step:
        if torch.is_inference_mode_enabled():
            raise ValueError("a step needs gradients; call it outside of `torch.inference_mode()`.")
        stack = self._stack
        stack.enter_context(own_parameters(self.model, self.guide))
        if isinstance(self.model, BayesianModel) and len(batch) == 2:
            check_gradients(self.model, *batch)
        joint = direct_joint(self.model, self.guide, self._elbo, batch[0])
        parameters = _parameters(self.model, self.guide, self._elbo, batch, is_direct=not isinstance(joint, str))
        made = _make_optimizer(self._maker, parameters)
        options: dict[str, Any] = {"elbo": self._elbo, "estimator": self._estimator}
        step: Step
        if isinstance(joint, str):
            self._path = f"pyro: {joint}"
            if self._estimator and isinstance(self.guide, MeanFieldGuide) and self.guide.masks:
                raise ValueError(
                    f"an estimator serves a pruned guide on the direct path alone, which is closed because {joint}; "
                    "leave the estimator out."
                )
            step = PyroStep(self.model, self.guide, parameters, made, **options)
        else:
            self._path = "direct"
            step = DirectStep(joint, self.guide, parameters, made, **options)  # type: ignore[arg-type]
        if not self._cuda_graph:
            return step
        if isinstance(joint, str) or step.waits:
            why = joint if isinstance(joint, str) else "this fit has no such optimizer there"
            step.close()
            raise ValueError(
                f"`cuda_graph` needs the direct path and an optimizer with `fused=True` on a GPU, but {why}; leave it "
                "out."
            )
        return GraphStep(step)


@contextmanager
def svi_step(
    model: nn.Module,
    guide: nn.Module,
    optimizer: Optimizer | Callable[[list[nn.Parameter]], Optimizer],
    *,
    elbo: ELBO | None = None,
    estimator: Estimator | None = None,
    kl_weight: float = 1.0,
    cuda_graph: bool = False,
) -> Iterator[SVIStep]:
    r"""Optimisation steps for a loop of your own, each at the speed of :func:`fit_svi`, which is a loop around them.

    .. math:: \mathrm{ELBO} = E_q[\log p(y \mid w)] - \mathrm{KL}(q(w) \,\|\, p(w)),

    in nats, for the whole data set whatever the batch.

    For a :class:`~pyro_bnn.BayesianModel` and one of our guides (:class:`~pyro_bnn.MeanFieldGuide`,
    :class:`~pyro_bnn.LowRankGuide`, :func:`~pyro_bnn.auto_delta`) under `Trace_ELBO` or `TraceMeanField_ELBO` the ELBO
    and its gradients are computed directly, which gives the numbers of Pyro's own machinery, up to rounding, faster;
    everything else goes through Pyro. :attr:`SVIStep.path` says which it is, and why.

    Within the context the guide's parameters lie in long vectors; afterwards each has memory of its own again.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or any Pyro model that is a module, called as ``model(*batch)``.
        guide: Any Pyro guide that is a module and owns its parameters. It is fitted in place.
        optimizer: A torch optimizer over parameters of the guide and the model, or what makes one of all of them, such
            as ``functools.partial(torch.optim.Adam, lr=1e-3)``.
        elbo: One of Pyro's ELBOs, which also says how many draws a step takes, such as
            ``Trace_ELBO(num_particles=2)``; None is ``Trace_ELBO()``. `TraceMeanField_ELBO` uses closed-form
            divergences where they exist.
        estimator: Less noisy gradients, such as ``LocalReparameterization()``; None draws each weight once per step.
        kl_weight: Weight of the KL term relative to the ELBO, unless a step names another.
        cuda_graph: Record steps on a GPU as CUDA graphs and replay them, which saves most of a small network's time.
            Python code of the network then runs in the first few steps alone. Needs an optimizer with ``fused=True``.

    Yields:
        A step, to be called with x and y; it returns the ELBO and its two terms without waiting for a GPU.

    Raises:
        ValueError: If the arguments make no sense together, some of which shows at the first step.

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
    if not isinstance(elbo, ELBO) or type(elbo).__name__.startswith("Jit"):
        got = f"the class {elbo.__name__}" if isinstance(elbo, type) else type(elbo).__name__
        raise ValueError(f"`elbo` must be an instance such as pyro.infer.Trace_ELBO(), and no Jit one, got {got}.")
    _checks.at_least("num_particles", elbo.num_particles, 1)
    for name, module in (("model", model), ("guide", guide)):
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"`{name}` must be a module, got {type(module).__name__}: a plain function keeps its parameters in "
                "Pyro's global store; fit it with `pyro.infer.SVI`, then pass it to `predict`."
            )
    if estimator is not None:
        _check_estimator(estimator, model, guide, elbo)
    step = SVIStep(model, guide, optimizer, elbo=elbo, estimator=estimator, kl_weight=kl_weight, cuda_graph=cuda_graph)
    try:
        yield step
    finally:
        step.close()


def _check_estimator(estimator: Estimator, model: nn.Module, guide: nn.Module, elbo: ELBO) -> None:
    _checks.kind("estimator", estimator, Estimator, "an Estimator, such as LocalReparameterization()")
    if type(elbo) not in ELBOS:
        raise ValueError(
            f"`elbo` must be one of {[e.__name__ for e in ELBOS]} with {type(estimator).__name__}, got "
            f"{type(elbo).__name__}: with noise for each row the mean of the log-likelihood is right, but not the "
            "weight of a whole draw. Choose one of these, or fit without an estimator."
        )
    Applied(estimator, model, guide)  # type: ignore[arg-type]  # raises if they are of another kind


def _make_optimizer(
    maker: Optimizer | Callable[[list[nn.Parameter]], Optimizer], parameters: list[nn.Parameter]
) -> Optimizer:
    if isinstance(maker, Optimizer):
        return _checked(maker, parameters)
    made = None if isinstance(maker, PyroOptim) or not callable(maker) else maker(parameters)
    if not isinstance(made, Optimizer):
        raise ValueError(
            "`optimizer` must make a torch optimizer from parameters, such as functools.partial(torch.optim.Adam, "
            f"lr=1e-3); got {type(maker).__name__}."
        )
    return made


def _checked(optimizer: Optimizer, parameters: list[nn.Parameter]) -> Optimizer:
    """The optimizer, if all that it changes is the guide's or the model's."""
    owned = {id(parameter) for parameter in parameters}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in owned for parameter in given)
    if foreign:
        raise ValueError(
            f"`optimizer` has {foreign} of {len(given)} parameters that are neither the guide's nor the model's; make "
            "it of `[*guide.parameters(), *model.parameters()]`, or pass what makes it."
        )
    return optimizer


def _parameters(model: nn.Module, guide: nn.Module, elbo: ELBO, batch: Batch, *, is_direct: bool) -> list[nn.Parameter]:
    """All parameters to learn, after a trial run of the guide that shows what kind it is."""
    is_ready = any(True for _ in guide.parameters())  # if not, its first call makes them, with the fit's own seed
    with seeded(0 if is_ready else None, batch[0].device), torch.no_grad(), poutine.block():
        trace: Any = poutine.trace(guide).get_trace(*batch)
    latent = [node for node in trace.nodes.values() if node["type"] == "sample" and not node["is_observed"]]
    if any(node["name"] == "obs" for node in latent) and isinstance(model, BayesianModel):
        raise ValueError(
            "the guide draws the observed site `obs`: it was first called without targets. Build it with "
            "`auto_normal`, or call it once as `guide(x, y)` before anything else."
        )
    if any(is_auxiliary(node) for node in latent) and isinstance(elbo, TraceMeanField_ELBO) and not is_direct:
        raise ValueError(
            f"{type(guide).__name__} samples auxiliary variables, for which TraceMeanField_ELBO has no closed form and "
            "loses the Jacobian of constrained sites; use `elbo=Trace_ELBO()`, or MeanFieldGuide."
        )
    owned = [p for module in (guide, model) for p in module.parameters() if p.requires_grad]
    parameters = list(dict.fromkeys(owned))
    known = {id(parameter) for module in (guide, model) for parameter in module.parameters()}
    for name, node in trace.nodes.items():
        if node["type"] == "param" and id(node["value"].unconstrained()) not in known:
            raise ValueError(
                f"the guide's parameter `{name}` lives in Pyro's global store, not in the guide; declare it as a "
                "`PyroParam` or `nn.Parameter` of the module, or fit with `pyro.infer.SVI`."
            )
    if not parameters:
        raise ValueError("neither guide nor model has a parameter to learn.")
    return parameters
