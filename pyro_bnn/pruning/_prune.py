"""Signal-to-noise ratios, and the removal of the weights where they are lowest."""

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .. import _checks
from .._globs import matches
from .._reflection import elementwise
from ..guides import GuidePosterior, MeanFieldGuide
from ..posterior import Status

Gaussians = MeanFieldGuide | GuidePosterior


def signal_to_noise(guide: Gaussians) -> dict[str, Tensor]:
    r"""How many standard deviations the mean of each weight is away from zero.

    .. math:: \mathrm{SNR}_i = |\mu_i| / \sigma_i,

    0 for a weight that was removed. Latent variables that are constrained, such as a noise scale, are left out: zero
    is no value of theirs.

    Args:
        guide: A mean-field guide, or the posterior that a fit made of one.

    Returns:
        ``{site: shape (*event)}``.

    Raises:
        ValueError: If the guide is of another kind.
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
    r"""Ratios in decibel, :math:`10 \log_{10} r`; minus infinity for zero.

    Example:
        >>> decibel(torch.tensor([0.1, 1.0, 100.0]))
        tensor([-10.,   0.,  20.])
    """
    return 10 * ratio.log10()


def prune(
    guide: Gaussians,
    *,
    fraction: float | None = None,
    threshold: float | None = None,
    per_layer: bool = False,
    where: str | Sequence[str] = "**",
) -> GuidePosterior:
    """A posterior without the weights of lowest signal-to-noise ratio: exactly 0 in every draw and in the mean.

    The guide given is not changed. The pruned one is ``result.guide``; it can be saved, loaded into a fresh guide of
    the same model, pruned further, and trained further: what was removed stays 0, has no divergence, gets no gradient.

    Args:
        guide: A mean-field guide, or the posterior that a fit made of one.
        fraction: Share of the weights to remove, from 0 to 1, lowest ratio first; exactly that many, rounded, with
            what had been removed already counted in. Either this or `threshold`.
        threshold: Remove what has a ratio below this.
        per_layer: Remove `fraction` of each layer (its weights and biases together) instead of all layers together.
        where: Glob or globs on site names, such as ``"**.weight"`` to leave biases alone.

    Returns:
        The posterior, whose status says how many weights are left.

    Raises:
        ValueError: If not exactly one of `fraction` and `threshold` is given, one is out of range, no site matches, a
            ratio is NaN, elements depend on each other under the prior, or the prior on other variables.

    Example:
        >>> from pyro_bnn import BayesianModel, CategoricalLikelihood, NormalPrior
        >>> net = torch.nn.Linear(4, 3)
        >>> model = BayesianModel(net, prior=NormalPrior(), likelihood=CategoricalLikelihood(), num_data=150)
        >>> print(prune(MeanFieldGuide(model), fraction=0.8).status)
        12 of 15 weights are removed (80 %).
    """
    guide = mean_field(guide)
    if (fraction is None) == (threshold is None):
        raise ValueError(f"give either `fraction` or `threshold`, got {fraction!r} and {threshold!r}.")
    if fraction is not None and not (_checks.is_number(fraction) and 0 <= fraction <= 1):
        raise ValueError(f"`fraction` must lie between 0 and 1, got {fraction!r}.")
    if threshold is not None and not (_checks.is_number(threshold) and threshold >= 0):
        raise ValueError(f"`threshold` must be at least 0, got {threshold!r}.")
    ratios = _chosen(guide, [where] if isinstance(where, str) else where)
    keep = dict(guide.masks)
    if threshold is not None:
        keep |= {site: guide.kept(site) & (ratio >= threshold) for site, ratio in ratios.items()}
    else:
        assert fraction is not None
        ranks = {site: torch.where(guide.kept(site), ratio, -1) for site, ratio in ratios.items()}
        for group in _layers(ranks) if per_layer else [ranks]:
            keep |= {site: guide.kept(site) & mask for site, mask in _largest(group, fraction).items()}
    pruned = copy.deepcopy(guide)
    pruned.keep_only({site: mask for site, mask in keep.items() if not bool(mask.all())})
    num_kept, num_weights = count(pruned)
    removed = num_weights - num_kept
    share = 100 * removed / num_weights
    return GuidePosterior(pruned, Status(True, f"{removed:,} of {num_weights:,} weights are removed ({share:.4g} %)."))


def _chosen(guide: MeanFieldGuide, globs: Sequence[str]) -> dict[str, Tensor]:
    """The ratios of the sites from which weights may be removed."""
    every = signal_to_noise(guide)
    ratios = {site: ratio for site, ratio in every.items() if any(matches(glob, site) for glob in globs)}
    if not ratios:
        raise ValueError(f"`where` glob {globs!r} matches none of the guide's sites: {list(every)}.")
    for site in (site for site in guide.sites if site.name in ratios):
        elementwise(site.name, site.prior, site.start.shape)
        if not site.is_fixed:
            raise ValueError(
                f"the prior of `{site.name}` is learned or depends on other variables, on which removed weights would "
                "go on acting; choose other sites, or fit with a fixed prior."
            )
        if bool(ratios[site.name].isnan().any()):
            raise ValueError(f"the guide's parameters of `{site.name}` are not finite: the fit went wrong.")
    return ratios


def mean_field(guide: Gaussians) -> MeanFieldGuide:
    """The guide behind a posterior.

    Raises:
        ValueError: If it is no mean-field guide.
    """
    found = guide.guide if isinstance(guide, GuidePosterior) else guide
    _checks.kind("guide", found, MeanFieldGuide, "a MeanFieldGuide or a posterior fitted with one")
    assert isinstance(found, MeanFieldGuide)
    return found


def count(guide: MeanFieldGuide) -> tuple[int, int]:
    """How many weights are left, and how many there were."""
    masks = [guide.kept(site) for site in signal_to_noise(guide)]
    return sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)


def _layers(ratios: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The sites of each module."""
    layers: dict[str, dict[str, Tensor]] = {}
    for site, ratio in ratios.items():
        layers.setdefault(site.rpartition(".")[0], {})[site] = ratio
    return list(layers.values())


def _largest(ratios: Mapping[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """Masks of all weights but the lowest, which are those removed before; of equal ones the first go first."""
    flat = torch.cat([ratio.reshape(-1) for ratio in ratios.values()])
    num_removed = math.floor(fraction * len(flat) + 0.5)
    keep = torch.ones_like(flat, dtype=torch.bool)
    keep[flat.argsort(stable=True)[:num_removed]] = False
    pieces = keep.split([ratio.numel() for ratio in ratios.values()])
    return {site: piece.view(ratio.shape) for (site, ratio), piece in zip(ratios.items(), pieces, strict=True)}
