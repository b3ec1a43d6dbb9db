"""Natural-gradient variational inference: an optimizer for the means and precisions of a mean-field guide."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..._core import checks as _checks
from ..guides import MeanFieldGuide, NaturalState
from ..joint import Joint
from ._optimizers import EXAMPLE, OptimizerMaker, SkippingOptimizer, make_recordable, skipping, skips_on_flag


def natural_gradient(
    lr: float = 0.1,
    *,
    momentum: float = 0.9,
    hessian_decay: float = 0.999,
    initial_hessian: float | None = None,
    gauss_newton_every: int | None = None,
    clip: float | None = None,
    num_warmup: int = 0,
    others: OptimizerMaker | None = None,
) -> Callable[[list[nn.Parameter]], "NaturalGradient"]:
    r"""Make optimizers for natural-gradient variational inference; pass the result to :func:`fit_svi`.

    These optimizers maximise the usual ELBO, and need a :class:`MeanFieldGuide` with
    ``scale_map=scale_maps.Precision()``. Each weight has a mean m and a precision :math:`S = 1/\sigma^2`. A step draws
    a weight w, and computes the gradient g of minus the log-likelihood at w. The mean takes a Newton step with S as the
    Hessian. S moves towards the prior's precision plus the Hessian of minus the log-likelihood, which is estimated from
    :math:`g\,(w - m)`. For a data set of N rows, a Gaussian prior with mean 0 and precision P, and KL weight
    :math:`\lambda`, a step computes

    .. math::
        M &\leftarrow \beta_1 M + (1 - \beta_1)\, g, \\
        S &\leftarrow S \left(1 + \rho u + \tfrac12 \rho^2 u^2\right), \qquad
            u = g\,(w - m) / \lambda + P / S - 1, \qquad \rho = 1 - \beta_2, \\
        m &\leftarrow m - \alpha \left(M / (\lambda (1 - \beta_1^t)) + P m\right) / S.

    If the prior p is not Gaussian, the gradient of :math:`-\lambda \log p(w)` is added to g, and P is 0. For latent
    variables of the likelihood, such as a noise scale, the second derivative of minus the log-likelihood replaces the
    estimate :math:`g\,(w - m)\,S`. The page :doc:`/how_to/natural_gradient` advises on the settings.

    Args:
        lr: Learning rate :math:`\alpha` of the means, as a fraction of a Newton step, at most 1.
        momentum: Decay :math:`\beta_1` of the averaged gradient.
        hessian_decay: Decay :math:`\beta_2` of the averaged Hessian. The average covers about
            :math:`1 / (1 - \beta_2)` steps.
        initial_hessian: Initial Hessian h of the loss of one row of data: scales start at :math:`(N h / \lambda +
            P)^{-1/2}`. With ``None``, the scales start at the present scales of the guide. If the guide's scales equal
            the prior's, the first steps are too long, and there is a warning.
        gauss_newton_every: If a number k is given, the diagonal of the Gauss-Newton matrix replaces the Hessian, and is
            estimated from simulated targets in every k-th step. `hessian_decay` is then the decay from one estimate to
            the next. The weights' priors must be Gaussian.
        clip: Largest change of a mean in a step, divided by `lr`; with ``None``, there is no limit.
        num_warmup: Number of steps, from the first, over which the learning rate of the means rises to `lr`. Deep or
            badly initialised networks need 50 to several hundred.
        others: Function that makes an optimizer for the parameters that are not random, by default Adam with a learning
            rate of 1e-3. If a schedule changes `lr`, the learning rate of this optimizer changes in proportion.

    Returns:
        A function that takes parameters and returns an optimizer, for :func:`fit_svi` or :func:`scheduled`.

    Raises:
        ValueError: If an argument has a wrong value.

    References:
        Shen et al. (2024), Variational Learning is Effective for Large Deep Networks, https://arxiv.org/abs/2402.17641;
        Khan and Rue (2023), The Bayesian Learning Rule, https://arxiv.org/abs/2107.04562; for simulated targets: Liu et
        al. (2024), Sophia, https://arxiv.org/abs/2305.14342, algorithm 2.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x, net = torch.linspace(-1, 1, 20)[:, None], torch.nn.Linear(1, 1)
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> guide = pb.MeanFieldGuide(model, scale_map=pb.scale_maps.Precision())
        >>> ng = pb.optim.natural_gradient(hessian_decay=0.99)
        >>> posterior = pb.fit_svi(
        ...     model, (x, 2 * x), guide, optimizer=ng, num_epochs=500, seed=0
        ... )
        >>> [round(float(value), 1) for value in posterior.guide.locations().values()]
        [2.0, 0.0]
    """
    if _checks.positive("lr", lr) > 1:
        raise ValueError(f"`lr` is a fraction of a Newton step, at most 1, got {_checks.got(lr)}; 0.1 is the default.")
    for name, value in (("momentum", momentum), ("hessian_decay", hessian_decay)):
        if not 0 <= _checks.as_float(value) < 1:
            raise ValueError(f"`{name}` must be at least 0 and below 1, got {_checks.got(value)}.")
    for name, limit in (("initial_hessian", initial_hessian), ("clip", clip)):
        if limit is not None:
            _checks.positive(name, limit)
    num_warmup = _checks.at_least("num_warmup", num_warmup, 0)
    if gauss_newton_every is not None:
        gauss_newton_every = _checks.at_least("gauss_newton_every", gauss_newton_every, 1)
    others = functools.partial(torch.optim.Adam, lr=1e-3) if others is None else others
    _checks.function("others", others, EXAMPLE)
    settings = {
        "lr": lr,
        "momentum": momentum,
        "hessian_decay": hessian_decay,
        "initial_hessian": initial_hessian,
        "gauss_newton_every": gauss_newton_every,
        "clip": None if clip is None else float(clip),
        "num_warmup": num_warmup,
    }
    return functools.partial(NaturalGradient, settings=settings, others=others)


class NaturalGradient(SkippingOptimizer):
    """The optimizer that :func:`natural_gradient` makes, for steps of :func:`svi_step` only.

    It stores the averaged gradients and the settings; a :class:`~pyro_bnn.inference.guides.NaturalState` updates the
    guide. `others` makes a second optimizer, for the parameters that have no distribution.
    """

    def __init__(self, params: Iterable[nn.Parameter], settings: dict[str, Any], others: OptimizerMaker) -> None:
        super().__init__(params, {**settings, "num_updates": 0, "kl_weight": None, "others": "none"})
        self._make_others, self._first_lr = others, settings["lr"]
        self._state: NaturalState | None = None
        self._others: Optimizer | None = None
        self._others_lr: list[float] = []
        self._loaded_others: dict[str, Any] | None = None

    @property
    def _group(self) -> dict[str, Any]:
        return self.param_groups[0]

    @contextmanager
    def lent(self, guide: MeanFieldGuide, joint: Joint, *, adds_up: bool) -> Iterator[NaturalState]:
        """Open a context in which this optimizer can update the guide. For `adds_up` see :class:`NaturalState`."""
        if self._state is not None:
            raise ValueError("another step uses this optimizer already; make one for each step.")
        settings = {name: self._group[name] for name in ("initial_hessian", "gauss_newton_every")}
        with guide.natural(joint, **settings, adds_up=adds_up) as state:
            self._state = state
            try:
                self._share_momentum()
                self._prepare_others(state)
                yield state
            finally:
                self._state = None

    def _share_momentum(self) -> None:
        """Move the averaged gradients into a vector of the guide's state. The optimizer keeps views of this vector."""
        state = self._state
        assert state is not None
        views = state.joint.layout.views(state.momentum).values()
        for parameter, view in zip(state.vectors["loc"].parameters, views, strict=True):
            own = self.state[parameter]
            view.copy_(own["momentum"]) if "momentum" in own else view.zero_()
            own["momentum"] = view
        state.continue_from(self._group["num_updates"], self._group["kl_weight"])

    def _prepare_others(self, state: NaturalState) -> None:
        of_guide = {id(parameter) for parameter in state.parameters}
        parameters = [p for group in self.param_groups for p in group["params"] if id(p) not in of_guide]
        if parameters and self._others is None:
            made: Optimizer = self._make_others(parameters)
            _checks.kind("others", made, Optimizer, EXAMPLE)
            self._others, self._others_lr = made, [group["lr"] for group in made.param_groups]
            self._group["others"] = repr(made)
            if self._loaded_others is not None:
                made.load_state_dict(self._loaded_others)

    @property
    def can_skip(self) -> bool:
        return self._others is None or skips_on_flag(self._others)

    def prepare_recording(self) -> None:
        """Prepare the second optimizer for steps in a CUDA graph."""
        if self._others is not None:
            make_recordable(self._others)

    def recorded_numbers(self) -> object:
        """Return the settings that a CUDA graph of the next step would keep.

        During the warm-up, the learning rate changes in each step, and the result is None.
        """
        group = self._group
        if group["num_updates"] + 1 < group["num_warmup"]:
            return None
        return group["lr"], group["hessian_decay"], group["momentum"], group["clip"]

    def kind_of_step(self) -> object:
        """Return the last KL weight, and whether the next step estimates the Gauss-Newton matrix."""
        assert self._state is not None
        return self._state.weight, self._state.simulates

    def was_replayed(self, kl_weight: float) -> None:
        """Count a replayed step, since its CUDA graph does not run the Python code of :meth:`step`."""
        assert self._state is not None
        self._state.num_updates += 1  # the graph increased only the copy on the device
        self._state.weight = kl_weight
        self._group["num_updates"], self._group["kl_weight"] = self._state.num_updates, kl_weight

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the guide, and let the second optimizer update the other parameters."""
        if closure is not None or self._state is None:
            raise ValueError(
                "an optimizer of `natural_gradient` needs gradients with respect to drawn weights, which only our own "
                "step computes; pass the optimizer to `fit_svi` or `svi_step` instead of calling it."
            )
        group = self._group
        rise = min(1.0, (group["num_updates"] + 1) / max(group["num_warmup"], 1))
        self._state.update_parameters(
            lr=rise * float(group["lr"]),
            momentum=group["momentum"],
            hessian_decay=group["hessian_decay"],
            clip=group["clip"],
            is_bad=None if self.found_inf is None else self.found_inf > 0,
        )
        group["num_updates"], group["kl_weight"] = self._state.num_updates, self._state.weight
        if self._others is not None:
            ratio = float(group["lr"]) / self._first_lr
            for own, first in zip(self._others.param_groups, self._others_lr, strict=True):
                own["lr"] = first * ratio
            with nullcontext() if self.found_inf is None else skipping(self._others, self.found_inf):
                self._others.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the settings, the averaged gradients, and the state of the second optimizer."""
        others = None if self._others is None else self._others.state_dict()
        return {**super().state_dict(), "others": others}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a result of :meth:`state_dict`."""
        super().load_state_dict(state_dict)
        self._loaded_others = state_dict["others"]
        if self._others is not None and self._loaded_others is not None:
            self._others.load_state_dict(self._loaded_others)
        if self._state is not None:
            self._share_momentum()


def mean_field(guide: object) -> MeanFieldGuide:
    if not isinstance(guide, MeanFieldGuide):
        raise ValueError(
            "`natural_gradient` needs a mean-field guide with precisions, got "
            f"{type(guide).__name__}; use `MeanFieldGuide(model, scale_map=scale_maps.Precision())`."
        )
    return guide
