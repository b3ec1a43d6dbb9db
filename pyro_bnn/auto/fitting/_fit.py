"""The function `fit`, which runs chains from trained networks if possible, and otherwise variational inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, overload

import torch
from pyro.infer import ELBO
from torch import Tensor, nn
from typing_extensions import Unpack

from ..._core import checks as _checks
from ..._core.checkpointing import Checkpoint, check_fit, checked_callbacks
from ..._core.inputs import Inputs, is_whole
from ..._core.names import nearest
from ..._core.signatures import explained
from ...inference.estimators import Estimator
from ...inference.guides import GuidePosterior
from ...inference.kl import KLWeight
from ...inference.mcmc import MCMCPosterior
from ...inference.posterior import EnsemblePosterior, warn_unless_ok
from ...inference.svi import Callback, Data, Execution, OptimizerMaker, ScheduledMaker, whole_data
from ...modelling.model import BayesianModel, require_bayesian
from ..choosing import Deadline, UnsuitableError, fit_best
from ._ensemble import fit_ensemble
from ._variational import TimeLimit, fit_variational

CHAINS = "Chains (MCLMC), because this network is small enough"  # in the status
METHODS = ("auto", "svi", "mclmc", "ensemble")

OTHERS = {  # methods that `fit` does not take, in lower case, each with the call that an error suggests
    **dict.fromkeys(["vi", "advi", "bbb", "meanfield", "mean-field", "variational"], 'fit(model, data, method="svi")'),
    **dict.fromkeys(["ensembles", "deep_ensemble"], 'fit(model, data, method="ensemble")'),
    "nuts": "fit_nuts(model, data)",
    "mcmc": "fit_nuts(model, data)",
    "hmc": "fit_mcmc(model, data, sampler=HMC(max_steps=16))",
    "sghmc": "fit_sgmcmc(model, data, sampler=SGHMC(lr=1e-4), ...)",
    "sgld": "fit_sgmcmc(model, data, sampler=SGLD(lr=1e-4), ...)",
    "laplace": "fit_laplace(model, data)",
    "kronecker": "fit_gauss_newton(model, data)",
    "natural": (
        "fit_svi(model, data, MeanFieldGuide(model, scale_map=scale_maps.Precision()), "
        "optimizer=optim.natural_gradient(0.1))"
    ),
    "map": 'fit(model, data, method="svi", guide=DeltaGuide(model))',
    "swag": "fit_svi(model, data, guide, callbacks=[swag]); swag.posterior(model)",
}


class _Common(TypedDict, total=False):
    """Options of variational fits and ensembles, for the overloads of :func:`fit`."""

    optimizer: OptimizerMaker | ScheduledMaker | None
    num_epochs: int | None
    batch_size: int | None
    validation: tuple[Inputs, Tensor] | None
    elbo: ELBO | None
    estimator: Estimator | None
    kl_weight: float | KLWeight
    progress: bool | None
    execution: Execution | None
    checkpoint: str | Path | Checkpoint | None
    resume: str | Path | None
    seed: int | None


class _Variational(_Common, total=False):
    time_limit: float | None
    guide: nn.Module | None
    callbacks: Sequence[Callback]


class _Ensemble(_Common, total=False):
    num_members: int | None
    num_workers: int | None
    reset: Callable[[nn.Module], object] | None
    guide: Callable[[BayesianModel], nn.Module] | None


@overload
def fit(
    model: BayesianModel, data: Data, *, method: Literal["svi"], **options: Unpack[_Variational]
) -> GuidePosterior: ...


@overload
def fit(
    model: BayesianModel,
    data: Data,
    *,
    method: Literal["mclmc"],
    time_limit: float | None = None,
    progress: bool | None = None,
    seed: int | None = None,
) -> MCMCPosterior: ...


@overload
def fit(
    model: BayesianModel, data: Data, *, method: Literal["ensemble"], **options: Unpack[_Ensemble]
) -> EnsemblePosterior: ...


@overload
def fit(
    model: BayesianModel,
    data: Data,
    *,
    method: Literal["auto", "svi", "mclmc"] = "auto",
    **options: Unpack[_Variational],
) -> GuidePosterior | MCMCPosterior: ...


@explained(
    "fit(model, (x, y))",
    {
        "device": "call `model.to(device)` before the fit",
        "lr": "pass `optimizer=functools.partial(torch.optim.Adam, lr=0.01)`",
        "learning_rate": "pass `optimizer=functools.partial(torch.optim.Adam, lr=0.01)`",
        "num_samples": "pass it to `predict`, or call `fit_nuts(model, data)`, which has it",
        "num_chains": "call `fit_nuts(model, data)`, which has it",
        "num_warmup": "call `fit_nuts(model, data)`, which has it",
    },
)
def fit(
    model: BayesianModel,
    data: Data,
    *,
    method: Literal["auto", "svi", "mclmc", "ensemble"] = "auto",
    time_limit: float | None = None,
    num_members: int | None = None,
    num_workers: int | None = None,
    reset: Callable[[nn.Module], object] | None = None,
    guide: nn.Module | Callable[[BayesianModel], nn.Module] | None = None,
    optimizer: OptimizerMaker | ScheduledMaker | None = None,
    num_epochs: int | None = None,
    batch_size: int | None = None,
    validation: tuple[Inputs, Tensor] | None = None,
    elbo: ELBO | None = None,
    estimator: Estimator | None = None,
    kl_weight: float | KLWeight = 1.0,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    execution: Execution | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
) -> GuidePosterior | MCMCPosterior | EnsemblePosterior:
    """Fit a model to data by chains if possible, and otherwise by variational inference.

    Optimizers, learning rates and numbers of steps need no tuning, but the prior's scale does: choose the scale that
    predicts held-out rows best.

    Each method has its own parameters, and refuses those of other methods:

    ===========================================  ======  =========  ==============
    parameter                                    chains  ``"svi"``  ``"ensemble"``
    ===========================================  ======  =========  ==============
    `progress`, `seed`                           yes     yes        yes
    `time_limit`                                 yes     yes        no
    `num_members`, `num_workers`, `reset`        no      no         yes
    `callbacks`                                  no      yes        no
    the others from `guide` to `resume`          no      yes        yes
    ===========================================  ======  =========  ==============

    ``"auto"`` takes the parameters of ``"svi"``. If you give one that chains refuse, the fit is variational.

    Args:
        model: A network with a prior and a likelihood.
        data: A pair (x, y) of tensors or arrays with all N rows: x of shape (N, ...), and y of shape (N, O) for
            regression or (N,) for classification. Variational fits and ensembles also take a loader of such pairs.
        method: ``"auto"`` draws weights with Markov chains if possible (see the notes), and otherwise makes a
            variational fit. ``"svi"`` makes a variational fit. ``"mclmc"`` runs chains, or raises an error if chains
            are impossible. ``"ensemble"`` fits an ensemble.
        time_limit: Seconds that the call may take, imports and compilation included; not for an ensemble. A fit may end
            about two seconds late. With a limit, the result depends on the speed of the machine, and the status says
            what was cut short. Without a limit, the length of chains depends only on the numbers of rows and weights; a
            thousand rows take half a minute on two cores.
        num_members: Number of members of an ensemble, by default 5.
        num_workers: Number of processes that fit members, including the calling process. The default is the smaller of
            `num_members` and torch's number of threads. But it is 1 if the model is on a GPU, if the data are a loader,
            or if processes share the fit by `torch.distributed`.
        reset: Function that gives a network new initial weights in place, for an ensemble; by default, each layer's
            `reset_parameters` is called.
        guide: The guide, which is fitted in place; by default a :class:`MeanFieldGuide` centred on the network's
            present weights. For an ensemble: a function from a model to a guide, such as :class:`MeanFieldGuide`.
        optimizer: Function from parameters to a torch optimizer, with or without a schedule; by default Adam with a
            learning rate of 0.02.
        num_epochs: Largest number of epochs; by default about 20,000 steps or 50 epochs, whichever is longer.
        batch_size: Rows in each batch, unless the data are a loader. By default, the batches are equal, as few as
            possible, and have at most 1000 rows.
        validation: A pair (x, y) of rows for early stopping only.
        elbo: The bound that the fit maximises; by default `TraceMeanField_ELBO` for this package's mean-field guide,
            otherwise `Trace_ELBO`.
        estimator: Gradient estimator; by default :class:`LocalReparameterization` if the guide is mean-field and the
            network is a sequence of linear layers and activations, otherwise one draw of each weight per step.
        kl_weight: Weight of the KL term; 1 gives the ELBO.
        callbacks: Functions that are called with the history; not for an ensemble.
        progress: Whether to show the progress; see :func:`fit_svi`.
        execution: How the steps are computed. By default, steps on a GPU are recorded and replayed if all modules come
            from torch or this package, and there are no `callbacks`.
        checkpoint: File of checkpoints, for variational fits and ensembles. For chains that can be resumed, use
            :func:`fit_nuts` or :func:`fit_mcmc`. Each member of an ensemble has its own file, with an ending like
            ``.0-of-5``.
        resume: Checkpoint from which the fit continues.
        seed: Seed of the fit.

    Returns:
        The draws of the chains, the posterior of the fitted guide, or the ensemble. Each of an ensemble's `members` is
        a posterior with its own history. ``posterior.status`` says which method was chosen, with which settings, and
        why. The status is not ok if a variational fit reached no plateau, if a chain was too short to explore its mode,
        or if too many steps diverged. A status that is not ok also says what to try.

    Raises:
        ValueError: If arguments cannot be combined, if ``method="mclmc"`` and chains are impossible, or if a layer
            cannot draw new weights for the members of an ensemble.
        NonFiniteError: If a loss or gradient is not finite.

    Warns:
        ConvergenceWarning: If the status is not ok.
        UserWarning: If ``"auto"`` cannot run chains for a reason that you can change, such as a noise scale without a
            prior.
        PosteriorWarning: If the posterior of a variational fit collapsed to a point, or stayed at the prior.

    Example:
        >>> import torch
        >>> from pyro_bnn import BayesianModel, GaussianLikelihood, NormalPrior, fit
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> y = 2 * x
        >>> net = torch.nn.Linear(1, 1)
        >>> prior = NormalPrior()
        >>> noise = GaussianLikelihood(0.1)
        >>> model = BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = fit(model, (x, y), seed=0)
        >>> posterior.status.ok
        True
        >>> posterior = fit(model, (x, y), method="svi", seed=0)
        >>> posterior.status.ok
        True
        >>> ensemble = fit(model, (x, y), method="ensemble", num_members=2, seed=0)
        >>> print(len(ensemble.members), ensemble.status.ok)
        2 True

    Notes:
        *Chains.* :func:`fit` trains eight networks, and a chain in C explores the mode of each network
        (:class:`~pyro_bnn.MCLMC`), as in ``BNNRegressor()``. If chains are impossible, the fit is variational. Its
        posterior has a guide and a history. A variational fit is faster, but often further from the true posterior. The
        page :doc:`/understand/computation` lists all cases.

        *Variational fit.* :func:`fit_svi` runs until the third plateau of the objective, or until the first if
        `optimizer` makes a schedule. On a plateau, a straight line through the objective of the last epochs (about 400
        steps) rises by less than the standard error of its rise, or by less than 0.1 nats. Without a schedule, the
        learning rate is lowered to 30 % of its initial value after the first plateau, and to 10 % of the initial value
        after the second. With `validation` rows, the fit also ends after ten checks in a row without a new best
        log-density of these rows, and the best posterior is kept.

        *Ensemble.* Each member is such a variational fit, with new initial weights and another order of batches. Unless
        you pass `guide`, the members are plain networks (:class:`DeltaGuide`). The page :doc:`/how_to/ensembles`
        describes what members share, how processes divide the work, and how one step on a GPU updates all members.
    """
    instead = "call `fit_svi` with a guide, or `fit_nuts`"
    require_bayesian(model, ", which has a network, a prior and a likelihood", instead=instead)
    _require_method(method)
    data = tuple(data) if isinstance(data, list) and is_whole(data) else data
    callbacks = checked_callbacks(callbacks)
    check_fit(progress=progress, checkpoint=checkpoint, resume=resume, seed=seed)
    options = {
        "guide": guide,
        "optimizer": optimizer,
        "num_epochs": num_epochs,
        "batch_size": batch_size,
        "validation": validation,
        "elbo": elbo,
        "estimator": estimator,
        "callbacks": callbacks or None,
        "execution": execution,
        "checkpoint": checkpoint,
        "resume": resume,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if not isinstance(kl_weight, int | float) or kl_weight != 1:
        given["kl_weight"] = kl_weight
    members = {"num_members": num_members, "num_workers": num_workers, "reset": reset}
    of_ensembles: dict[str, Any] = {name: value for name, value in members.items() if value is not None}
    _check_method(method, time_limit, [*given], [*of_ensembles])
    if method == "ensemble":
        return fit_ensemble(model, data, **given, **of_ensembles, progress=progress, seed=seed)
    deadline = Deadline.after(time_limit)
    reason: UnsuitableError | None = None
    try:
        if method != "svi" and not given:
            return _chains(model, data, deadline, progress, seed)
    except UnsuitableError as error:
        if method == "mclmc":
            limit = f"`time_limit={error.enough}`" if error.enough else "a longer `time_limit` in seconds"
            more_time = f"pass {limit}, or " if error.lacks_time else ""
            message = f'method="mclmc" cannot fit this model, since {error}; {more_time}use method="svi".'
            raise UnsuitableError(message, lacks_time=error.lacks_time, enough=error.enough) from error
        error.warn()
        reason = error
    if deadline is not None:
        callbacks = [*callbacks, TimeLimit(deadline.at(1.0))]  # begins now, after an attempt to run chains
    given["callbacks"] = callbacks
    return fit_variational(model, data, **given, progress=progress, seed=seed, unsuitable=reason)


def _require_method(method: object) -> None:
    """Raise unless `method` is in :data:`METHODS`. For a name in :data:`OTHERS`, the error suggests a call."""
    name = str(method).lower()
    near = name if name in OTHERS else nearest(name, [*METHODS, *OTHERS])
    if method not in METHODS and near in OTHERS:
        hint = f"call `{OTHERS[near]}`" if near == name else f"did you mean {near!r}? Call `{OTHERS[near]}`"
        raise ValueError(f"`method` must be one of {', '.join(map(repr, METHODS))}, got {method!r}; {hint}.")
    _checks.one_of("method", method, METHODS)


def _check_method(method: str, time_limit: float | None, given: Sequence[str], of_ensembles: Sequence[str]) -> None:
    if of_ensembles and method != "ensemble":
        raise ValueError(
            f'`{of_ensembles[0]}` is for ensembles, got method="{method}"; leave it out, or use method="ensemble".'
        )
    if method == "mclmc" and given:
        raise ValueError(
            f'`{given[0]}` needs variational inference, got method="mclmc"; leave it out, or use method="svi".'
        )
    if time_limit is not None and _checks.positive("time_limit", time_limit) and method == "ensemble":
        raise ValueError(
            '`time_limit` does not apply to method="ensemble"; leave it out, and limit `num_epochs` instead.'
        )


def _chains(
    model: BayesianModel, data: Data, deadline: Deadline | None, progress: bool | None, seed: int | None
) -> MCMCPosterior:
    rows = whole_data(model, data)
    if rows is None:
        raise UnsuitableError("the data are a loader")
    x, y = rows
    model.check_target_shape(x, y)
    if not isinstance(x, Tensor):
        raise UnsuitableError("the network has several inputs")
    if seed is None:
        seed = int(torch.randint(2**62, ()))
    best = fit_best({CHAINS: lambda _: model}, (x, y), deadline=deadline, progress=progress, seed=seed)
    warn_unless_ok(best.posterior.status)
    return best.posterior
