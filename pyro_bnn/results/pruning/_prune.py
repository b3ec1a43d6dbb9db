"""Signal-to-noise ratios of weights, and removal of the weights with the lowest ratios."""

import copy
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.reflection import elementwise
from ...inference.guides import GuidePosterior, MeanFieldGuide
from ...inference.posterior import Status
from ...modelling.model import BayesianModel, Owned, Rules, owned, rules_of

Gaussians = MeanFieldGuide | GuidePosterior
Per = Literal["network", "layer"]


def signal_to_noise(guide: Gaussians) -> dict[str, Tensor]:
    r"""Return the absolute mean of each weight in units of its standard deviation, ``{site: shape (*event)}``.

    .. math:: \mathrm{SNR}_i = |\mu_i| / \sigma_i.

    The ratio of a removed weight is 0. Constrained latent variables, such as a noise scale, are left out.

    Args:
        guide: A mean-field guide, or the posterior from a fit of such a guide.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> ratios = pb.pruning.signal_to_noise(pb.MeanFieldGuide(model))
        >>> {site: tuple(value.shape) for site, value in ratios.items()}
        {'net.weight': (1, 1), 'net.bias': (1,)}
    """
    guide = mean_field(guide)
    locations, scales = guide.locations(), guide.scales()
    ratios = {}
    for site in guide.sites:
        if site.transform is None and not site.plates:
            loc, scale = locations[site.name].abs(), scales[site.name]
            ratios[site.name] = torch.where(loc == 0, loc, loc / scale)
    return ratios


def decibel(ratio: Tensor) -> Tensor:
    r"""Convert ratios to decibels, :math:`10 \log_{10} r`; zero gives minus infinity.

    Example:
        >>> import torch
        >>> from pyro_bnn import pruning
        >>> pruning.decibel(torch.tensor([0.1, 1.0, 100.0]))
        tensor([-10.,   0.,  20.])

    Raises:
        ValueError: If a ratio is below 0.
    """
    if bool((_checks.real_tensor("ratio", ratio) < 0).any()):
        raise ValueError(f"`ratio` must be at least 0, got {float(ratio.min()):g}; take `.abs()` of a signed number.")
    return 10 * ratio.log10()


def prune(
    guide: Gaussians,
    *,
    fraction: float | None = None,
    threshold: float | None = None,
    per: Per = "network",
    where: Rules = "**",
    exclude: Rules = (),
    model: BayesianModel | None = None,
) -> GuidePosterior:
    """Return a posterior in which the weights with the lowest signal-to-noise ratios are exactly 0.

    Removed weights are 0 in draws and in the mean. `guide` is not changed, and ``result.guide`` is a pruned copy of it.
    You can save the copy, load it into a new guide of the same model, and prune or train it further. Removed weights
    then stay 0, add nothing to the KL divergence, and get no gradient.

    Args:
        guide: A mean-field guide, or the posterior from a fit of such a guide.
        fraction: Fraction of the weights to remove. The fraction includes weights that were removed earlier. Pass
            either `fraction` or `threshold`.
        threshold: Weights with a lower signal-to-noise ratio are removed.
        per: Whether `fraction` is a share of all weights of the ``"network"``, or of each ``"layer"``. Biases count as
            weights.
        where: Which weights may be removed: a glob on site names, such as ``"**.weight"`` for all but biases, or other
            rules as for :class:`BayesianModel`.
        exclude: Which of these weights must stay: globs or rules, as for `where`.
        model: The guide's model, needed if `where` or `exclude` has layers or functions.

    Returns:
        The pruned posterior. Its status says how many weights were removed, and is ok if the status of `guide` is ok.

    Raises:
        ValueError: If both or neither of `fraction` and `threshold` are given, if a number is out of range, if no site
            matches, or if a ratio is NaN. The error is also raised if the prior of a site is learned, depends on other
            variables, or makes its elements depend on each other.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net = torch.nn.Linear(4, 3)
        >>> prior, labels = pb.NormalPrior(), pb.CategoricalLikelihood()
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=labels, num_data=150)
        >>> print(pb.pruning.prune(pb.MeanFieldGuide(model), fraction=0.8).status)
        12 of 15 weights are removed (80 %).
    """
    fitted = guide.status if isinstance(guide, GuidePosterior) else Status(None, "")
    guide = mean_field(guide)
    _checks.one_of("per", per, get_args(Per))
    if (fraction is None) == (threshold is None):
        raise ValueError(f"give either `fraction` or `threshold`, got {fraction!r} and {threshold!r}.")
    if fraction is not None and not 0 <= _checks.as_float(fraction) <= 1:
        raise ValueError(f"`fraction` must lie between 0 and 1, got {_checks.got(fraction)}.")
    if threshold is not None and not _checks.as_float(threshold) >= 0:
        raise ValueError(f"`threshold` must be at least 0, got {_checks.got(threshold)}.")
    threshold = None if threshold is None else _checks.as_float(threshold)
    if model is not None:
        _checks.kind("model", model, BayesianModel, "the BayesianModel of the guide")
    every = signal_to_noise(guide)
    chosen = _selected(guide, every, where, exclude, model)
    ratios = _removable(guide, {site: ratio for site, ratio in every.items() if site in chosen})
    keep = dict(guide.masks)
    if threshold is not None:
        keep |= {site: guide.kept(site) & (ratio >= threshold) for site, ratio in ratios.items()}
    else:
        assert fraction is not None
        ranks = {site: torch.where(guide.kept(site), ratio, -1) for site, ratio in ratios.items()}
        for group in _layers(ranks) if per == "layer" else [ranks]:
            keep |= {site: guide.kept(site) & mask for site, mask in _largest(group, fraction).items()}
    pruned = copy.deepcopy(guide)
    pruned.keep_only({site: mask for site, mask in keep.items() if not bool(mask.all())})
    num_kept, num_weights = count(pruned)
    removed = num_weights - num_kept
    percent = 100 * removed / num_weights
    message = f"{removed:,} of {num_weights:,} weights are removed ({percent:.4g} %)."
    if fitted.ok is False:
        status = replace(fitted, message=f"{message} {fitted.finding}", verdict=fitted.finding)
    else:
        status = Status(fitted.ok, message)
    return GuidePosterior(pruned, status)


def _selected(
    guide: MeanFieldGuide, names: Collection[str], where: Rules, exclude: Rules, model: BayesianModel | None
) -> set[str]:
    """Return the names that `where` selects and `exclude` does not. Without a model, all rules must be globs."""
    sites = _owned(guide, names, model)
    found: dict[str, set[str]] = {}
    for argument, value in (("where", where), ("exclude", exclude)):
        rules = rules_of(argument, value)
        if model is None and not all(rule.glob is not None for rule in rules):
            raise ValueError(
                f"`{argument}` must be globs, unless `model` is given, got {rules}: a guide has no layers; pass its "
                "model, `prune(..., model=model)`."
            )
        found[argument] = {site for rule in rules for site in rule.sites(sites, argument)}
    chosen = found["where"] - found["exclude"]
    if not chosen:
        raise ValueError(f"`where` and `exclude` leave none of the guide's sites, {list(names)}; widen `where`.")
    return chosen


def _owned(guide: MeanFieldGuide, names: Collection[str], model: BayesianModel | None) -> list[Owned]:
    """Return the weights of each site, and the layer that has them if the site is in the network."""
    paths = {} if model is None else model.parameter_paths
    if model is not None and not {site.name for site in guide.sites} >= paths.keys():
        raise ValueError("`model` must be the guide's model, got one with other sites; pass the model that was fitted.")
    locations, nothing = guide.locations(), nn.Module()
    result = []
    for name in names:
        if model is None or name not in paths:
            result.append(Owned(name, name, locations[name], nothing))
            continue
        parameters = [(path, model.network.get_buffer(path)) for path in paths[name]]
        result += [replace(item, site=name) for item in owned(model.network, parameters)]
    return result


def _removable(guide: MeanFieldGuide, ratios: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return `ratios`. Raise unless weights can be removed from all of its sites."""
    for site in (site for site in guide.sites if site.name in ratios):
        elementwise(site.name, site.prior, site.start.shape)
        if not site.is_fixed:
            raise ValueError(
                f"the prior of `{site.name}` is learned or depends on other variables, so removed weights would still "
                "affect it; choose other sites, or fit with a fixed prior."
            )
        if bool(ratios[site.name].isnan().any()):
            raise ValueError(f"the guide's parameters of `{site.name}` are not finite; fit again before pruning.")
    return ratios


def mean_field(guide: Gaussians) -> MeanFieldGuide:
    """Return the mean-field guide, given the guide itself or its posterior."""
    found = guide.guide if isinstance(guide, GuidePosterior) else guide
    _checks.kind("guide", found, MeanFieldGuide, "a MeanFieldGuide or a posterior fitted with one")
    assert isinstance(found, MeanFieldGuide)
    return found


def count(guide: MeanFieldGuide) -> tuple[int, int]:
    """Return the number of weights that are kept, and the number of all weights."""
    masks = [guide.kept(site) for site in signal_to_noise(guide)]
    return sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)


def _layers(ratios: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return a dictionary ``{site: ratios}`` for each layer."""
    layers: dict[str, dict[str, Tensor]] = {}
    for site, ratio in ratios.items():
        layers.setdefault(site.rpartition(".")[0], {})[site] = ratio
    return list(layers.values())


def _largest(ratios: Mapping[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """Return masks that keep the largest ratios and, among equal ones, the later weights."""
    flat = torch.cat([ratio.reshape(-1) for ratio in ratios.values()])
    num_removed = math.floor(fraction * len(flat) + 0.5)
    keep = torch.ones_like(flat, dtype=torch.bool)
    keep[flat.argsort(stable=True)[:num_removed]] = False
    pieces = keep.split([ratio.numel() for ratio in ratios.values()])
    return {site: piece.view(ratio.shape) for (site, ratio), piece in zip(ratios.items(), pieces, strict=True)}
