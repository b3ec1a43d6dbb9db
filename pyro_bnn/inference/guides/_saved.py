"""The record of a guide in a file: its class and its parameters. In the file, a removed weight takes only one bit."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pyro.infer.autoguide import AutoGuide, AutoLowRankMultivariateNormal
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.records import check_finite, check_tensors, require_tensors
from ...modelling.model import BayesianModel
from .. import scale_maps
from ..history import History
from ..joint import Site
from ..posterior import Status
from ..scale_maps import ScaleMap
from ._auto import KINDS, auto_guide
from ._batch_ensemble import BatchEnsembleGuide
from ._delta import DeltaGuide
from ._flat import FlatGuide, GaussianGuide
from ._low_rank import LowRankGuide
from ._mean_field import MeanFieldGuide

SCALE_MAPS: dict[str, type[ScaleMap]] = {
    kind.name: kind for kind in map(vars(scale_maps).__getitem__, scale_maps.__all__) if not inspect.isabstract(kind)
}


@dataclass(frozen=True)
class GuideRecord:
    family: str
    scale_map: str | None
    settings: dict[str, float]  # of the scale map, such as a cap
    rank: int | None
    state: dict[str, Tensor]  # without removed elements
    removed: dict[str, tuple[int, ...]]  # shape of each site with removed elements
    frozen: list[str]  # parameters that are not learned

    def map_of_scales(self) -> ScaleMap:
        if self.scale_map not in SCALE_MAPS:
            raise ValueError(f"its scale map {self.scale_map!r} is not of this package; pass a `guide` made with it.")
        try:
            return SCALE_MAPS[self.scale_map](**self.settings)
        except TypeError:
            raise ValueError(f"its scale map {self.scale_map!r} has no settings {sorted(self.settings)}.") from None


@dataclass(frozen=True)
class FittedGuide:
    guide: GuideRecord
    status: Status
    history: History


FAMILIES: dict[type[nn.Module], Callable[[BayesianModel, GuideRecord], nn.Module]] = {
    MeanFieldGuide: lambda model, record: MeanFieldGuide(model, scale_map=record.map_of_scales()),
    LowRankGuide: lambda model, record: LowRankGuide(model, rank=record.rank or 0, scale_map=record.map_of_scales()),
    DeltaGuide: lambda model, _: DeltaGuide(model),
    BatchEnsembleGuide: lambda model, record: BatchEnsembleGuide(model, num_members=_num_members(record)),
    **{kind: lambda model, r, kind=kind: auto_guide(kind, model, rank=r.rank) for kind in KINDS},  # type: ignore[misc]
}
"""Functions that rebuild a guide from its model and its record. Guides of other classes cannot be rebuilt."""


def _num_members(record: GuideRecord) -> int:
    members = record.state.get("members")
    if members is None or members.dim() != 2 or not members.numel():
        raise ValueError(
            "`members` of the guide in the file must have a row for each member, got "
            f"{'none' if members is None else _checks.shape(members)}; save the posterior again."
        )
    return len(members)


def record_of(guide: object) -> GuideRecord:
    if not isinstance(guide, nn.Module):
        raise ValueError(
            f"the guide must be a module to be saved, got {type(guide).__name__}; save the parameters of a function, "
            "which are in Pyro's global store, with `pyro.get_param_store().save(...)`."
        )
    scale_map = guide.scale_map if isinstance(guide, GaussianGuide) else None
    masks = _masks(guide)
    return GuideRecord(
        family=type(guide).__name__,
        scale_map=None if scale_map is None else scale_map.name,
        settings=vars(scale_map) if type(scale_map) in SCALE_MAPS.values() else {},
        rank=guide.rank if isinstance(guide, LowRankGuide | AutoLowRankMultivariateNormal) else None,
        state=_packed(require_tensors("the guide", guide.state_dict()), masks),
        removed={site: tuple(mask.shape) for site, mask in masks.items()},
        frozen=[name for name, parameter in guide.named_parameters() if not parameter.requires_grad],
    )


def made_from(record: GuideRecord, model: BayesianModel | None) -> nn.Module:
    found = [make for kind, make in FAMILIES.items() if kind.__name__ == record.family]
    if not found or model is None:
        raise ValueError(
            f"a guide of type {record.family} cannot be made from the file alone; build one like the saved guide, and "
            "pass it as `guide`."
        )
    guide = found[0](model, record)
    parameters = dict(guide.named_parameters())
    unknown = [name for name in record.frozen if name not in parameters]
    if unknown:
        raise ValueError(f"it has frozen parameters {unknown} that its guide lacks; save the posterior again.")
    for name in record.frozen:
        parameters[name].requires_grad_(False)
    return guide


def checked_state(record: GuideRecord, guide: nn.Module, sites: Sequence[Site] | None) -> dict[str, Tensor]:
    """Check a record, and return the complete state of its guide. If the model is known, `sites` are its sites."""
    if type(guide).__name__ != record.family:
        raise ValueError(f"its guide is a {record.family}, but `guide` is a {type(guide).__name__}; pass another.")
    if isinstance(guide, FlatGuide) and sites is not None:
        own, expected_sites = ({site.name: tuple(site.start.shape) for site in s} for s in (guide.sites, sites))
        if own != expected_sites:
            raise ValueError(f"the guide has the sites {own}, but the model has others; pass the guide's own model.")
    present = require_tensors("the guide", guide.state_dict())
    if isinstance(guide, AutoGuide) and not present:
        raise ValueError(
            "the guide has no parameters yet; call it once with the model's arguments, including the targets, or make "
            "it by `auto_guide`."
        )
    expected = {name: value for name, value in present.items() if name.partition(".")[0] != "keep" or not _masks(guide)}
    state = _unpacked(record, expected)
    expected |= {f"keep.{site}": expected[f"loc.{site}"].bool() for site in record.removed}
    check_tensors("the guide", state, expected)
    if isinstance(guide, GaussianGuide):
        _check_scales(state, guide, record)
    return state


def _masks(guide: nn.Module) -> Mapping[str, Tensor]:
    return guide.masks if isinstance(guide, MeanFieldGuide) else {}


def _check_scales(state: Mapping[str, Tensor], guide: GaussianGuide, record: GuideRecord) -> None:
    if record.scale_map != guide.scale_map.name:
        raise ValueError(f"its scale map is {record.scale_map}, but `guide` has {guide.scale_map.name}; pass another.")
    if record.scale_map in SCALE_MAPS and record.map_of_scales() != guide.scale_map:
        found = record.map_of_scales()
        raise ValueError(
            f"its scale map is {found}, but `guide` has {guide.scale_map}; pass a guide with the file's map."
        )
    for site in guide.sites:
        name = f"{guide.scale_map.name}.{site.name}"
        scale = guide.scale_map(state[name])
        if not bool((scale > 0).all()):
            raise ValueError(f"`{name}` of the guide must give scales above 0, got {float(scale.min())}; fit again.")
        check_finite(f"`{name}` of the guide, as scales,", scale)


# --- removed weights --------------------------------------------------------------------------------------------------


def _packed(state: dict[str, Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pack the masks of a guide's state into bits, and leave out the removed elements of parameters."""
    for site, keep in masks.items():
        bits = torch.from_numpy(np.packbits(keep.cpu().numpy()))
        state = state | {name: state[name][keep] for name in _named_after(site, state)} | {f"keep.{site}": bits}
    return state


def _named_after(site: str, state: Mapping[str, Tensor]) -> list[str]:
    """Return the names of a site's entries in `state`, such as ``loc.net.0.weight``, without the site's mask."""
    return [name for name in state if name.partition(".")[2] == site and name != f"keep.{site}"]


def _unpacked(record: GuideRecord, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo :func:`_packed`. Removed weights get a mean of 0 and a moderate scale."""
    state = dict(record.state)
    for site, shape in record.removed.items():
        if f"loc.{site}" not in expected or tuple(expected[f"loc.{site}"].shape) != shape:
            raise ValueError(f"the file has removed weights of `{site}` of shape {shape}, which the guide lacks.")
        count, packed = math.prod(shape), state.get(f"keep.{site}")
        if packed is None or packed.dtype != torch.uint8 or packed.shape != (-(-count // 8),):
            got = "none" if packed is None else f"{packed.dtype} of shape {_checks.shape(packed)}"
            raise ValueError(f"the mask of `{site}` must have {-(-count // 8)} bytes for {count} weights, got {got}.")
        keep = torch.from_numpy(np.unpackbits(packed.cpu().numpy(), count=count)).bool().view(shape)
        for name in _named_after(site, state):
            kept = state[name].cpu()
            if kept.shape != (int(keep.sum()),):
                raise ValueError(
                    f"`{name}` of the guide in the file must have shape {(int(keep.sum()),)}, one number for each "
                    f"remaining weight, got {_checks.shape(kept)}."
                )
            kind = SCALE_MAPS.get(name.partition(".")[0])
            state[name] = kept.new_full(shape, 0.0 if kind is None else kind.moderate).masked_scatter_(keep, kept)
        state[f"keep.{site}"] = keep
    return state
