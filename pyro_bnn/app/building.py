"""Models and guides of runs."""

import math

import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from .._core import checks as _checks
from .._core.scope import seeded
from ..auto.choosing import ACTIVATIONS
from ..inference.guides import MeanFieldGuide, auto_guide
from ..modelling.likelihoods import Likelihood, make_likelihood
from ..modelling.model import BayesianModel
from ..modelling.priors import PriorByName
from ..nets import mlp
from .config import RunConfig
from .datasets import Dataset, Facts
from .own.network import check_network, make_network
from .own.targets import Target
from .specs import make_init, make_inputs, make_prior, make_scale_map

CHECKED_ROWS = 2  # number of rows with which a user's network is called once to check it


def build(config: RunConfig, data: Dataset) -> tuple[BayesianModel, nn.Module]:
    """Return the untrained model and guide of a variational run, with initial values drawn with the run's seed."""
    with seeded(config.seed):
        model = _model(config, data.facts, data.x_train, len(data.x_train))
        return model, _guide(config, model)


def build_model(config: RunConfig, data: Dataset, num_data: int) -> BayesianModel:
    """Return the untrained model of a run for a data set of `num_data` rows."""
    with seeded(config.seed):
        return _model(config, data.facts, data.x_train, num_data)


def rebuild(config: RunConfig, facts: Facts) -> tuple[BayesianModel, nn.Module | None]:
    """Build the model and the guide of a run from facts about its data. The guide is None if the run has chains."""
    is_whole = facts.arrays is not None and facts.arrays.is_whole
    _checks.in_memory("input_shape", math.prod(facts.input_shape), CHECKED_ROWS * 8, "take the folder from a copy")
    stand_in = torch.zeros(CHECKED_ROWS, *facts.input_shape, dtype=torch.int64 if is_whole else None)
    with seeded(config.seed):
        model = _model(config, facts, stand_in, facts.num_train)
        return model, _guide(config, model) if config.method == "svi" else None


def unused_globs(config: RunConfig, data: Dataset) -> str:
    """Return a clause on the globs of a run's prior that choose no parameter, or "" if there are none."""
    prior = make_prior(config.prior)
    if not isinstance(prior, PriorByName):
        return ""
    names = build_model(config, data, len(data.x_train)).site_names
    used = [prior.prior_of(name) for name in names]
    unused = [glob for glob, chosen in prior.priors.items() if not any(chosen is other for other in used)]
    if not unused:
        return ""
    return f"{' and '.join(unused)} of the prior chooses none of the parameters {', '.join(names)}"


def _model(config: RunConfig, facts: Facts, x: Tensor, num_data: int) -> BayesianModel:
    config.check()
    likelihood = _likelihood(config.likelihood, facts.target)
    num_outputs = likelihood.num_outputs(facts.target.size)
    net = _mlp(config, x, num_outputs) if config.net == "mlp" else _own(config, facts, x, num_outputs)
    return BayesianModel(net, prior=make_prior(config.prior), likelihood=likelihood, num_data=num_data)


def _guide(config: RunConfig, model: BayesianModel) -> nn.Module:
    init = make_init(config.init)
    if config.guide == "auto-normal":
        return auto_guide(AutoNormal, model, init=init)
    return MeanFieldGuide(model, init=init, scale_map=make_scale_map(config.optimizer))


def _likelihood(spec: str, target: Target) -> Likelihood:
    """Make the likelihood; a known noise scale is divided by the target's scale, since targets are standardised."""
    name, _, number = spec.partition(":")
    if name != "gaussian" or not number:
        return make_likelihood(spec)
    if target.size > 1:
        raise ValueError(f"a known noise scale needs a single target, got {target.size}; choose gaussian.")
    return make_likelihood(f"gaussian:{float(number) / target.scale[0]!r}")


def _first(config: RunConfig, x: Tensor) -> list[nn.Module]:
    """Return the modules that transform images before the first layer of the network.

    For tables and arrays the list is empty, since their encoding already transforms the inputs.
    """
    return [*make_inputs(config.inputs, x)] if config.kind == "images" else []


def _mlp(config: RunConfig, x: Tensor, num_outputs: int) -> nn.Module:
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    first = [*([nn.Flatten()] if x.dim() > 2 else []), *_first(config, x.flatten(1))]
    net = mlp([x[0].numel(), *config.hidden, num_outputs], activation=ACTIVATIONS[config.activation], first=first)
    for layer in net.modules():
        if isinstance(layer, nn.Linear):  # He et al. (2015), https://arxiv.org/abs/1502.01852
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return net


def _own(config: RunConfig, facts: Facts, x: Tensor, num_outputs: int) -> nn.Module:
    net = make_network(config.net, input_shape=facts.input_shape, num_outputs=num_outputs)
    first = _first(config, x)
    whole = nn.Sequential(*first, net) if first else net
    size = facts.target.size
    targets = f"{size} target{'s' if size > 1 else ''} under {config.likelihood}"
    reason = f"{size} classes" if facts.target.is_class else targets
    check_network(config.net, whole, x[:CHECKED_ROWS], num_outputs, reason)
    return whole
