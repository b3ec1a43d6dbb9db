"""Fits an ensemble of point estimates, all members at once: a GPU updates all members in one fast step."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from pyro.infer import Trace_ELBO
from torch import nn
from torch.optim import Optimizer

from ..._core.copies import copied
from ..._core.functional import EMBEDDINGS, call, can_be_vectorised, has_hooks_of_others
from ..._core.inputs import Inputs, map_inputs, take
from ..._core.processes import Processes
from ..._core.reflection import are_equal
from ..._core.scope import silent_fits
from ..._core.summary import counted
from ...inference.guides import DeltaGuide, GuidePosterior
from ...inference.history import History
from ...inference.svi import Data, direct_joint, require_maker, whole_data
from ...modelling.model import BayesianModel, network_values
from ._stacked import StackedNetwork, site_of_member, stacked_model
from ._variational import fit_variational

Start = Callable[[int], tuple[BayesianModel, nn.Module]]
"""Function of the index of a member that returns its model, with new weights, and its guide."""

OPTIONS = {"optimizer", "max_epochs", "batch_size", "kl_weight", "execution"}
"""Options of a variational fit that mean the same for all members at once as for each of them."""

ELEMENTWISE = {
    *(torch.optim.SGD, torch.optim.ASGD, torch.optim.Rprop, torch.optim.RMSprop, torch.optim.Adagrad),
    *(torch.optim.Adadelta, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam),
    torch.optim.RAdam,
}
"""Optimizers whose update of a number depends on the gradients of this number only."""

NUM_TRIED = 8
"""Number of rows with which the network is tried out."""


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
    """Fit at least two point members side by side; return their posteriors, or why they must be fitted separately."""
    if unusual := sorted(options.keys() - OPTIONS):
        return f"`{unusual[0]}` is given"
    if Processes.present().are_many:
        return "this process shares its fits with others by `torch.distributed`"
    rows = whole_data(model, data)
    if rows is None:
        return "the data are a loader"
    if reason := _obstacle_of_model(model):
        return reason
    model.check_targets(*rows)
    guides = _guides(model, start, num_members)
    if isinstance(guides, str):
        return guides
    stacked = stacked_model(model, [guide.median() for guide in guides])
    guide, few = DeltaGuide(stacked), take(rows[0], slice(NUM_TRIED))
    joint = direct_joint(model, guides[0], Trace_ELBO(), few)
    if isinstance(joint, str):
        return joint
    if reason := _obstacle_of_optimizer(options.get("optimizer"), guides[0], guide) or _obstacle_of_network(
        stacked, few
    ):
        return reason
    try:
        with silent_fits():  # the status says how the members ended
            fitted = fit_variational(stacked, rows, guide=guide, progress=progress, seed=seed, **options)
    except torch.cuda.OutOfMemoryError:
        return "the GPU has too little memory for all members at once"
    return _apart(fitted, guides)


def _obstacle_of_model(model: BayesianModel) -> str:
    if model.latent_names != model.site_names:
        return "the model has latent variables besides the weights"
    if any(parameter.requires_grad for parameter in model.parameters()):
        return "the model learns parameters that have no prior"
    if any(map(has_hooks_of_others, model.network.modules())):
        return "the network has hooks"
    if any(isinstance(layer, EMBEDDINGS) and layer.padding_idx is not None for layer in model.network.modules()):
        return "an embedding has a padding row, which each member keeps"
    return ""


def _guides(model: BayesianModel, start: Start, num_members: int) -> list[DeltaGuide] | str:
    """Return the guides of the members, or a reason if members differ in more than their weights."""
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
    """Return why one optimizer for all members may differ from one for each member, or an empty text."""
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
    """Return why the stacked network cannot replace the members' networks (in double precision), or an empty text."""
    network = copied(stacked.network).double()
    assert isinstance(network, StackedNetwork)
    member, weights = network.member, {path: value.detach()[:2] for path, value in network.weights().items()}
    x = map_inputs(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, x)
    others = list(member.buffers())
    before = [buffer.clone() for buffer in others]
    try:
        call(member, {path: value[0] for path, value in weights.items()}, x)
        if not all(map(torch.equal, others, before)):
            return "each batch changes buffers of the network, such as statistics of batch normalisation"
        is_same = can_be_vectorised(member, weights, x)
    except Exception as error:
        return f"the network could not be tried out ({type(error).__name__})"
    return "" if is_same else "`torch.func.vmap` cannot run the network, or gives other numbers"


def _apart(fitted: GuidePosterior, guides: list[DeltaGuide]) -> list[GuidePosterior]:
    """Return a posterior for each member; the guides in `guides` get the fitted parameters of their members."""
    count = len(guides)
    assert isinstance(fitted.guide, DeltaGuide)
    for name, values in fitted.guide.locations().items():
        for guide, value in zip(guides, values, strict=True):
            guide.locations()[site_of_member(name)].copy_(value)
    message = (
        f"side by side with {counted(count - 1, 'other member')} in one step: {fitted.status.message} Here the ELBO is "
        "the sum over members, and in their histories the mean."
    )
    status = replace(fitted.status, message=message)
    return [GuidePosterior(guide, status, _mean(fitted.history, count)) for guide in guides]


def _mean(history: History, count: int) -> History:
    """Return the mean of the histories of `count` members, given the sum of these histories."""

    def mean(values: list[float]) -> list[float]:
        return [value / count for value in values]

    fields = "elbo", "expected_log_likelihood", "kl", "seconds"
    return replace(
        history,
        elbo=mean(history.elbo),
        expected_log_likelihood=mean(history.expected_log_likelihood),
        kl=mean(history.kl),
        kl_weight=list(history.kl_weight),
        epochs=[replace(r, **{name: getattr(r, name) / count for name in fields}) for r in history.epochs],
    )
