"""Prediction of a user's Pyro model over draws of the latent variables."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution

from ..._core import checks as _checks
from ..._core.inputs import as_inputs, as_targets, num_rows, unwrapped
from ..._core.reflection import unwrap
from ..._core.scope import Stream, eval_mode, own_parameters, short_errors
from ...inference.guides import FlatGuide
from ...inference.posterior import Draw, Posterior
from ...modelling.distributions import NormalMixture
from ...scores.uncertainty import (
    MOST_KEPT,
    Accumulator,
    ClassAccumulator,
    MixtureAccumulator,
    MomentAccumulator,
    Prediction,
    RunningMoments,
    ValuePrediction,
    are_few,
)
from ._batch import new_seed

RETURN = "_RETURN"  # Pyro's name of a model's return value


def predict_own(
    model: Callable[..., Any],
    posterior: Posterior,
    x: Any,
    *,
    num_samples: int,
    y: Any,
    site: str | None,
    keep_draws: bool | None,
    seed: int | None,
) -> Prediction:
    """Predict by a Pyro model, which is called without observations, as ``model(x)`` or ``model(*x)``."""
    inputs = as_inputs("x", x)
    found, rows = unwrapped(inputs), num_rows(inputs)
    arguments = found if isinstance(found, tuple) else (found,)
    targets = None if y is None else as_targets("y", y)
    seed = new_seed(seed)
    stream = Stream(seed)
    source = posterior.draws(num_samples, *arguments)
    total: _Sum | None = None
    for _ in range(num_samples):
        with stream, torch.no_grad():
            draw = next(source)
            trace = _traced(model, draw, arguments)
            if total is None:
                total = _sum_of(model, trace, draw, rows, site, targets, keep_draws, num_samples)
            total.add(trace.nodes)
    assert total is not None
    prediction = total.prediction()
    if bool(prediction.expectation.isnan().any()):
        raise ValueError(
            "`model` must give numbers, got NaN for some draws; look for a division by zero, or a logarithm of a "
            "negative number."
        )
    return replace(prediction, seed=seed)


def may_be_model(value: object) -> bool:
    """Return whether a value may be a BayesianModel or Pyro model. A guide is no model, although it can be called."""
    return callable(value) and not isinstance(value, (type, Posterior, FlatGuide, AutoGuide))


KINDS = {"model": may_be_model, "posterior": lambda value: isinstance(value, Posterior) or callable(value)}
"""Functions that say whether a value suits an argument of `predict`, to find out which argument a call lacks."""


def require_model(model: object) -> None:
    if not may_be_model(model):
        raise ValueError(
            f"`model` must be a BayesianModel, got {_checks.described(model)}; or pass a Pyro model, whose observed "
            "site or return value is then predicted."
        )


def _traced(model: Callable[..., Any], draw: Draw, arguments: tuple[Any, ...]) -> Any:
    net = model if isinstance(model, nn.Module) else nn.Module()
    conditioned = poutine.trace(poutine.condition(model, data=draw))
    with short_errors(), own_parameters(model), poutine.block(), eval_mode(net):
        try:
            return prune_subsample_sites(conditioned.get_trace(*arguments))
        except TypeError as error:
            raise ValueError(
                "`model` must be a BayesianModel, or a Pyro model that can be called without its observations, as "
                f"`model(x, y=None)`; the call failed: {error}."
            ) from error


# --- which site is predicted ------------------------------------------------------------------------------------------


def _sum_of(
    model: object,
    trace: Any,
    draw: Draw,
    rows: int,
    site: str | None,
    y: Tensor | None,
    keep: bool | None,
    num_samples: int,
) -> "_Sum":
    """Check the first draw, find the site to predict, and return an empty sum for it."""
    nodes: dict[str, Any] = trace.nodes
    if not any(name in nodes for name in draw):
        raise ValueError(
            f"`model` must be a BayesianModel, got {_checks.described(model)}, which draws none of {list(draw)[:5]}; "
            "or pass the Pyro model of the posterior."
        )
    _require_latents(nodes, draw, rows)
    sites = {name: node for name, node in nodes.items() if node["type"] == "sample" and name not in draw}
    observed = [name for name, node in sites.items() if not node["is_observed"] and node["fn"].shape()[:1] == (rows,)]
    if site is None:
        site = observed[0] if len(observed) == 1 else RETURN
    if site != RETURN and site not in sites:
        raise ValueError(
            f"`site` must be an observed site of the model ({', '.join(sites) or 'there is none'}) or {RETURN!r}, the "
            f"return value, got {site!r}."
        )
    if site == RETURN:
        _require_values(nodes[RETURN]["value"], rows, sites, observed)
        if y is not None:
            raise ValueError(
                f"`y` needs an observed site, whose density is evaluated, but the return value is predicted; name one "
                f"of {observed} as `site`, or leave `y` out."
            )
        if keep is None:
            keep = num_samples * nodes[RETURN]["value"].numel() <= MOST_KEPT
        return _Sum(site, _Values(), lambda node: node["value"], keep=keep)
    distribution = nodes[site]["fn"]
    if distribution.shape()[:1] != (rows,):
        raise ValueError(
            f"the site `{site}` must have one row for each of {rows} inputs, got shape {tuple(distribution.shape())}."
        )
    y = None if y is None else _checked_targets(site, nodes[site], y)
    accumulator = _accumulator_of(unwrap(distribution))
    if keep is None:
        drawn = unwrap(distribution)
        keep = are_few(drawn.expand(torch.Size([1, *drawn.batch_shape])), num_samples * rows)
    if accumulator is None:
        return _Sum(site, _Values(), _drawn, y, keep=keep)
    return _Sum(site, accumulator, lambda node: unwrap(node["fn"]), y, keep=keep)


def _accumulator_of(distribution: Distribution) -> Accumulator | None:
    """Return an accumulator for classes, or for independent numbers with finite variances; None for other values."""
    if isinstance(distribution, (Categorical, Bernoulli)):
        return ClassAccumulator()
    if isinstance(distribution, NormalMixture):
        return MixtureAccumulator()
    try:
        has_moments = bool(distribution.mean.isfinite().all() and distribution.variance.isfinite().all())
    except NotImplementedError:
        return None
    return MomentAccumulator() if has_moments and not distribution.event_shape else None


def _require_latents(nodes: Mapping[str, Any], draw: Draw, num_rows: int) -> None:
    """Raise unless a draw has all latent variables, in their shapes, except sites in a plate or of the data's rows."""
    nodes = {name: node for name, node in nodes.items() if node["type"] == "sample"}
    unknown = [name for name in draw if name not in nodes]
    latent = {name: n for name, n in nodes.items() if not (n["is_observed"] or n["cond_indep_stack"])}
    missing = [name for name, n in latent.items() if name not in draw and num_rows not in n["value"].shape]
    if unknown:
        _refuse(f"has values of {unknown}, which the model does not draw")
    if missing:
        _refuse(f"lacks {missing}")
    for name, value in draw.items():
        expected = nodes[name]["fn"].shape()
        if value.shape != expected:
            _refuse(f"has `{name}` of shape {tuple(value.shape)}, which must be {tuple(expected)}")


def _refuse(problem: str) -> NoReturn:
    raise ValueError(f"the posterior belongs to another model: it {problem}; pass the model that was fitted.")


def _require_values(value: object, rows: int, sites: Mapping[str, Any], observed: list[str]) -> None:
    """Raise unless a model returns floats in `rows` rows. If several sites are observed, the error asks for `site`."""
    if isinstance(value, Tensor) and value.is_floating_point() and value.shape[:1] == (rows,):
        return
    got = f"shape {_checks.shape(value)}" if isinstance(value, Tensor) else _checks.described(value)
    if len(observed) > 1:
        raise ValueError(
            f"`site` must say which of the observed sites {observed} is predicted, since the model has several and "
            f'returns no values to predict, got {got} from it; pass one, such as `site="{observed[0]}"`.'
        )
    shapes = [f"`{name}` of shape {tuple(node['fn'].shape())}" for name, node in sites.items()]
    found = f"; its observed sites are {', '.join(shapes)}" if shapes else ""
    raise ValueError(
        "`model` must have one observed site with a row for each input, or return the values to predict, a tensor "
        f"of floats with {rows} rows, got {got}{found}."
    )


def _checked_targets(site: str, node: Any, y: Tensor) -> Tensor:
    """Return targets with the dtype of the site's values. Raise if the site cannot have these values."""
    distribution, value = node["fn"], node["value"]
    if y.shape != distribution.shape():
        raise ValueError(
            f"`y` must have the shape of the site `{site}`, {tuple(distribution.shape())}, got {_checks.shape(y)}."
        )
    if y.is_floating_point() and not value.is_floating_point():
        raise ValueError(f"`y` must hold whole numbers, as the site `{site}` does, got {y.dtype}; call `y.long()`.")
    _checks.finite("y", y)
    y = y.to(value)
    possible = distribution.support.check(y)
    if not bool(possible.all()):
        raise ValueError(
            f"`y` must be possible values of the site `{site}`, got {int((~possible).sum())} outside of "
            f"{distribution.support}; check the targets."
        )
    return y


# --- sums over draws --------------------------------------------------------------------------------------------------


class _Sum:
    """Adds up predictions at a site. `part` returns the summand from the site's node in a trace."""

    def __init__(
        self,
        site: str,
        accumulator: "Accumulator | _Values",
        part: Callable[[Any], Any],
        y: Tensor | None = None,
        *,
        keep: bool,
    ) -> None:
        self._site, self._accumulator, self._part, self._y, self._keep = site, accumulator, part, y, keep
        self._log_density: Tensor | None = None

    def add(self, nodes: Mapping[str, Any]) -> None:
        node = nodes[self._site]
        self._accumulator.add(self._part(node), keep=self._keep)
        if self._y is not None:
            log_prob = node["fn"].log_prob(self._y).reshape(len(self._y), -1).sum(-1)  # (N,)
            previous = self._log_density
            self._log_density = log_prob if previous is None else torch.logaddexp(previous, log_prob)

    def prediction(self) -> Prediction:
        density = self._log_density
        density = None if density is None else density - math.log(self._accumulator.num_samples)
        return replace(self._accumulator.prediction(density), targets=self._y)


class _Values:
    def __init__(self) -> None:
        self._moments, self._kept = RunningMoments(), list[Tensor]()

    @property
    def num_samples(self) -> int:
        return self._moments.count

    def add(self, value: Tensor, *, keep: bool) -> None:
        self._dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        self._moments.add(value.detach().double()[None])
        if keep:
            self._kept.append(value.detach().to(self._dtype))

    def prediction(self, log_density: Tensor | None) -> Prediction:
        variance = self._moments.variance
        return ValuePrediction(
            num_samples=self.num_samples,
            log_density=log_density,
            mean=self._moments.mean.to(self._dtype),
            variance_of_values=None if variance is None else variance.to(self._dtype),
            values=torch.stack(self._kept) if self._kept else None,
        )


def _drawn(node: Any) -> Tensor:
    """Return the value of a site; for an observed site, draw one."""
    value: Tensor = node["fn"].sample() if node["is_observed"] else node["value"]
    return value
