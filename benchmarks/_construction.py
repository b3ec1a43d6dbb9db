"""Time and peak memory of building a model and a guide for a large network, each in a process of its own."""

import functools
import time

import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.guides import tree

from . import _memory
from ._measure import Cell, in_new_process

GIGABYTE = 1e9


def _network(quick: bool) -> nn.Module:
    if quick:
        return nn.Sequential(*(nn.Linear(500, 500) for _ in range(16)))
    from torchvision.models import vit_b_16

    return vit_b_16()


def _model(net: nn.Module) -> pb.BayesianModel:
    return pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=100)


def build(quick: bool) -> dict[str, dict[str, float]]:
    """Seconds, additional peak bytes, and bytes of the tensors, each for the model and for the guide."""
    pb.MeanFieldGuide(_model(nn.Linear(2, 2)))  # so that the one-time cost of libraries is not counted
    net = _network(quick)
    result = {}
    made: list[nn.Module] = []
    for name, make in (("model", lambda: _model(net)), ("guide", lambda: pb.MeanFieldGuide(made[0]))):  # type: ignore[arg-type]
        before, begin = _memory.start("cpu"), time.perf_counter()
        made.append(make())
        seconds = time.perf_counter() - begin
        held = sum(value.numel() * value.element_size() for value in made[-1].state_dict().values())
        result[name] = {"seconds": seconds, "bytes": _memory.peak("cpu") - before, "held": held}
    return result


def build_also_from_a_list() -> dict[str, dict[str, float]]:
    """:func:`build`, and the bytes of a guide that lists the initial values of all sites before it copies them."""
    result = build(quick=True)
    guide = pb.MeanFieldGuide(_model(_network(quick=True)))
    before = _memory.start("cpu")
    starts = [parameter.detach().clone() for parameter in guide.parameters()]
    assert tree({str(index): start for index, start in enumerate(starts)})
    return {**result, "list": {"bytes": _memory.peak("cpu") - before}}


@functools.cache
def _builds(quick: bool, threads: int) -> list[dict[str, dict[str, float]]]:
    results = [in_new_process("_construction:build", quick, threads=threads) for _ in range(1 if quick else 3)]
    return [result for result in results if isinstance(result, dict)]


def cell(device: str, part: str, unit: str, quick: bool, threads: int) -> Cell:
    """Seconds of the model's or the guide's construction, or its peak memory in gigabytes, without earlier memory."""
    assert torch.device(device).type == "cpu"
    found = [result[part] for result in _builds(quick, threads)]
    held = f"its tensors take {found[0]['held'] / GIGABYTE:.3g} GB"
    if unit == " s":
        return Cell([each["seconds"] for each in found], unit, held)
    return Cell([each["bytes"] / GIGABYTE for each in found], unit, held)
