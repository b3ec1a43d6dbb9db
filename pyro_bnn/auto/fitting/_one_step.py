"""Fits all members of an ensemble of plain networks at once: each step updates all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.infer import Trace_ELBO
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._core import functional, grouped
from ..._core.copies import copied
from ..._core.inputs import Inputs, map_inputs, take
from ..._core.processes import Processes
from ..._core.reflection import are_equal
from ..._core.scope import silent_fits
from ..._core.summary import counted
from ...inference.guides import DeltaGuide, GuidePosterior
from ...inference.history import History
from ...inference.svi import Data, direct_joint, require_maker, whole_data
from ...modelling.likelihoods import Likelihood
from ...modelling.model import SITE_PREFIX, BayesianModel, network_values, random_paths
from ...modelling.priors import WeightPrior
from ...scores.uncertainty import Accumulator
from ._variational import fit_variational

Start = Callable[[int], tuple[BayesianModel, nn.Module]]  # from a member's index: its new model and guide
OPTIONS = {"optimizer", "num_epochs", "batch_size", "kl_weight", "execution"}  # as good for members at once
ELEMENTWISE = {  # optimizers that update each element of a parameter by its own gradients only
    *(torch.optim.SGD, torch.optim.ASGD, torch.optim.Rprop, torch.optim.RMSprop, torch.optim.Adagrad),
    *(torch.optim.Adadelta, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam),
    torch.optim.RAdam,
}

NUM_TRIED = 8  # number of rows with which the network is tried out
MEMBER = f"{SITE_PREFIX}.member"  # prefix of the sites of the stacked model, in place of that of a member's sites


def fit_in_one_step(
    model: BayesianModel,
    data: Data,
    start: Start,
    num_members: int,
    *,
    progress: bool | None,
    seed: int,
    options: Mapping[str, Any],
) -> list[GuidePosterior] | str:
    """Fit two or more plain networks side by side; return their posteriors, or why this is impossible."""
    if reason := obstacle(model, options):
        return reason
    rows = whole_data(model, data)
    if rows is None:
        return "the data are a loader"
    model.check_targets(*rows)
    guides = _guides(model, start, num_members)
    if isinstance(guides, str):
        return guides
    stacked = stacked_model(model, [guide.median() for guide in guides])
    guide, few = DeltaGuide(stacked), take(rows[0], slice(NUM_TRIED))
    joint = direct_joint(model, guides[0], Trace_ELBO(), few)
    if isinstance(joint, str):
        return joint
    reason = _obstacle_of_optimizer(options.get("optimizer"), guides[0], guide)
    if reason := reason or _obstacle_of_network(stacked, few):
        return reason
    try:
        with silent_fits():  # the status says how the members ended
            fitted = fit_variational(stacked, rows, guide=guide, progress=progress, seed=seed, **options)
    except torch.cuda.OutOfMemoryError:
        return "the GPU has too little memory for all members at once"
    return _apart(fitted, guides)


def obstacle(model: BayesianModel, options: Mapping[str, Any]) -> str:
    """Return why the members must be fitted separately, or "" if `model` and `options` give no reason."""
    if unusual := sorted(options.keys() - OPTIONS):
        return f"`{unusual[0]}` is given"
    if Processes.present().are_many:
        return "this process shares its fits with others by `torch.distributed`"
    if model.latent_names != model.site_names:
        return "the model has latent variables besides the weights"
    if any(parameter.requires_grad for parameter in model.parameters()):
        return "the model learns parameters that have no prior"
    if any(map(functional.has_hooks_of_others, model.network.modules())):
        return "the network has hooks"
    embeddings = (layer for layer in model.network.modules() if isinstance(layer, functional.EMBEDDINGS))
    if any(layer.padding_idx is not None for layer in embeddings):
        return "an embedding has a padding row, which each member keeps"
    return ""


def _guides(model: BayesianModel, start: Start, num_members: int) -> list[DeltaGuide] | str:
    """Return the members' guides. If the members differ in more than their weights, return a text that says so."""
    guides, before = [], network_values(model)
    for index in range(num_members):
        member, guide = start(index)
        assert isinstance(guide, DeltaGuide)
        if not all(are_equal(member.prior_of(name), model.prior_of(name)) for name in model.site_names):
            return "the prior depends on the initial weights"
        if not all(torch.equal(value, before[name]) for name, value in network_values(member).items()):
            return "new networks differ in more than their weights"
        guides.append(guide)
    return guides


def _obstacle_of_optimizer(maker: Any, guide: DeltaGuide, stacked: DeltaGuide) -> str:
    """Return why a joint optimizer may update members differently from separate optimizers, or "" if it cannot."""
    if maker is None:
        return ""
    require_maker(maker)
    groups = []
    for each, name_of in ((guide, str), (stacked, site_of_member)):
        tree = each.tree("loc")
        names = {tree.get_parameter(site.name): name_of(site.name) for site in each.sites}
        made = maker([*names])
        optimizer = made[0] if isinstance(made, tuple) and made else made
        if not isinstance(optimizer, Optimizer) or type(optimizer) not in ELEMENTWISE:
            return f"an update by {type(optimizer).__name__} may depend on all numbers of a parameter"
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return "the optimizer clips gradients, or has other hooks"
        groups.append([{**group, "params": [names[p] for p in group["params"]]} for group in optimizer.param_groups])
    return "" if groups[0] == groups[1] else "the optimizer has other groups of parameters for all members at once"


def _obstacle_of_network(stacked: BayesianModel, x: Inputs) -> str:
    """Return why the stacked network cannot replace the networks of the members, or "" if it can."""
    network = copied(stacked.network).double()
    assert isinstance(network, StackedNetwork)
    member, weights = network.member, {path: value.detach()[:2] for path, value in network.weights().items()}
    x = map_inputs(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, x)
    others = list(member.buffers())
    before = [buffer.clone() for buffer in others]
    try:
        functional.call(member, {path: value[0] for path, value in weights.items()}, x)
        if not all(map(torch.equal, others, before)):
            return "each batch changes buffers of the network, such as statistics of batch normalisation"
        is_same = functional.equals_loop(network.run, member, weights, x)
    except Exception as error:
        return f"the network could not be tried out ({type(error).__name__})"
    return "" if is_same else "`torch.func.vmap` cannot run the network, or gives other numbers"


def _apart(fitted: GuidePosterior, guides: list[DeltaGuide]) -> list[GuidePosterior]:
    """Copy the fitted parameters into the members' `guides`, and return a posterior for each member."""
    count = len(guides)
    assert isinstance(fitted.guide, DeltaGuide)
    for name, values in fitted.guide.locations().items():
        for guide, value in zip(guides, values, strict=True):
            guide.locations()[site_of_member(name)].copy_(value)
    message = (
        f"{fitted.status.message} Fitted with {counted(count - 1, 'other member')} in one step: here the ELBO is the "
        "sum over members, and in their histories the mean."
    )
    status = replace(fitted.status, message=message)
    return [GuidePosterior(guide, status, _mean(fitted.history, count)) for guide in guides]


def _mean(history: History, count: int) -> History:
    """Return the mean of `count` histories, given their sum."""
    terms = "elbo", "expected_log_likelihood", "kl"
    steps: dict[str, Any] = {name: [value / count for value in getattr(history, name)] for name in terms}
    epochs = [replace(r, **{name: getattr(r, name) / count for name in (*terms, "seconds")}) for r in history.epochs]
    return replace(history, **steps, kl_weight=list(history.kl_weight), epochs=epochs)


# --- the model of all members: its log-density is the sum of theirs, so gradients are the same ---


class StackedNetwork(nn.Module):
    """Runs K networks with weights ``{path: shape (K, *parameter)}``. The outputs have shape (N, K, ...)."""

    def __init__(self, member: nn.Module, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.member = member
        parameters = {id(value): nn.Parameter(value) for value in weights.values()}
        for path, value in weights.items():
            functional.buffer_to_parameter(member, path, parameters[id(value)])
        self.paths = tuple(weights)
        is_on_cpu = all(value.device.type == "cpu" for value in weights.values())
        self.is_grouped = is_on_cpu and grouped.can_be_grouped(member, weights.keys())

    def weights(self) -> dict[str, Tensor]:
        return functional.present_values(self.member, self.paths)

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        return self.run(self.weights(), named or arguments).transpose(0, 1)

    def run(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """Run the networks with `weights`, ``{path: shape (K, *parameter)}``; return outputs of shape (K, N, ...)."""
        return (grouped.grouped if self.is_grouped else functional.vectorised)(self.member, weights, x)


class StackedPrior(WeightPrior):
    """Gives the weights of each member the prior that they have in `model`."""

    def __init__(self, model: BayesianModel) -> None:
        self._model = model

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        return self._model.prior_of(site_of_member(name)).expand([len(parameter)]).to_event(1)


class StackedLikelihood(Likelihood[Any]):
    """Applies a member's likelihood to outputs of K members, (N, K, ...), as if they were N draws for K rows."""

    def __init__(self, of_member: Likelihood[Any]) -> None:
        super().__init__()
        self.of_member = of_member

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        observation: TorchDistributionMixin = self.of_member(output)
        return observation

    def check_output(self, output: Tensor) -> None:
        self.of_member.check_output(output)

    def check_values(self, output: Tensor, y: Tensor) -> None:
        self.of_member.check_values(output[:, 0], y)

    def check_targets(self, output: Tensor, y: Tensor) -> None:
        self.of_member.check_targets(output[:, 0], y)

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return self.of_member.as_targets(y, dtype).unsqueeze(1)

    def target_shape(self, observed: Sequence[int]) -> tuple[int, ...]:
        return self.of_member.target_shape((observed[0], *observed[2:]))

    def fit_weights(self, y: Tensor, dtype: torch.dtype) -> Tensor | None:
        weights = self.of_member.fit_weights(y, dtype)
        return None if weights is None else weights.unsqueeze(1)

    def accumulator(self) -> Accumulator[Any]:
        return self.of_member.accumulator()


def site_of_member(name: str) -> str:
    """Return the name that a site of the stacked model has in a member's model."""
    return SITE_PREFIX + name.removeprefix(MEMBER)


def stacked_model(model: BayesianModel, points: Sequence[Mapping[str, Tensor]]) -> BayesianModel:
    """Return the model of all members, given each member's weights, ``{site: shape (*parameter)}``."""
    stacks = {name: torch.stack([point[name] for point in points]) for name in model.site_names}
    weights = {path: stacks[name] for name, paths in model.parameter_paths.items() for path in paths}
    assert weights.keys() == random_paths(model)
    return BayesianModel(
        StackedNetwork(copied(model.network), weights),
        prior=StackedPrior(model),
        likelihood=StackedLikelihood(model.likelihood),
        num_data=model.num_data,
        where=lambda name, parameter, module: parameter.requires_grad,
    )
