"""Every map from a free parameter to a scale: its slope, its inverse, and what it writes in place."""

import functools
import math

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn import scale_maps

from .cases import SCALE_MAPS, small_model
from .fits import assert_same, fit_both, problem
from .tolerances import assert_identical

ROUGH = 1e-8
"""Torch's own softplus is the parameter itself above 20, and so 2e-9 too small there."""


def parameters(name, dtype=torch.float64):
    """Parameters for scales from tiny to very large."""
    return SCALE_MAPS[name].inverse(torch.logspace(-30, 1.9, 2001, dtype=torch.float64)).to(dtype)


def test_every_map_is_in_the_table():
    assert set(scale_maps.__all__) == {"ScaleMap", *(type(scale_map).__name__ for scale_map in SCALE_MAPS.values())}


@pytest.mark.parametrize("name", SCALE_MAPS)
def test_scales_are_positive_and_monotone_in_the_parameter(name):
    parameter = parameters(name)
    scale = SCALE_MAPS[name](parameter)
    assert bool((scale > 0).all())
    assert bool((scale.diff() > 0).all())
    assert bool((parameter.diff() > 0).all() if name != "precision" else (parameter.diff() < 0).all())


@pytest.mark.parametrize("name", SCALE_MAPS)
def test_the_slope_is_that_of_autograd(name):
    scale_map, parameter = SCALE_MAPS[name], parameters(name).requires_grad_()
    scale = scale_map(parameter)
    (expected,) = torch.autograd.grad(scale.sum(), parameter)
    out = torch.empty(2001)
    assert scale_map.slope(parameter.detach(), scale.detach(), out) is out
    torch.testing.assert_close(out, expected, rtol=ROUGH, atol=0)
    assert not torch.allclose(out, 1.1 * expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", SCALE_MAPS)
def test_the_inverse_undoes_the_map(name):
    scale_map = SCALE_MAPS[name]
    scale = torch.logspace(-12, 8, 2001)
    torch.testing.assert_close(scale_map(scale_map.inverse(scale)), scale, rtol=ROUGH, atol=0)
    parameter = torch.linspace(1e-3, 25, 2001) if name == "precision" else torch.linspace(-25, 25, 2001)
    torch.testing.assert_close(scale_map.inverse(scale_map(parameter)), parameter, rtol=ROUGH, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SCALE_MAPS)
def test_what_is_written_in_place_is_what_a_call_returns(name, dtype):
    scale_map, parameter = SCALE_MAPS[name], parameters(name, dtype)
    out, scratch = torch.empty_like(parameter), parameter.new_empty(2, 2001)
    before = parameter.clone()
    scale_map.write(parameter, out, scratch)
    rtol = {torch.float32: 1e-5, torch.float64: ROUGH}[dtype]
    torch.testing.assert_close(out, scale_map(parameter), rtol=rtol, atol=0)
    assert torch.equal(parameter, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_have_full_relative_precision(dtype):
    rho = torch.cat([torch.linspace(-80, 79, 5001), torch.linspace(-20, 5, 5001)]).to(dtype)
    for extreme, rtol in ((0.0, 4 * torch.finfo(dtype).eps), (500.0, 1e-6)):  # torch's own is rough above 20
        x = torch.cat([rho, torch.tensor([extreme], dtype=dtype)])
        out, scratch = torch.empty_like(x), torch.empty(2, len(x), dtype=dtype)
        scale_maps.Softplus().write(x, out, scratch)
        exact = torch.tensor([math.log1p(math.exp(-abs(v))) + max(v, 0.0) for v in x.tolist()])
        torch.testing.assert_close(out.double(), exact, rtol=rtol, atol=0)


@pytest.mark.parametrize("make", [pb.MeanFieldGuide, lambda model, **kwargs: pb.LowRankGuide(model, rank=2, **kwargs)])
@pytest.mark.parametrize("name", SCALE_MAPS)
def test_a_guide_starts_with_the_same_scales_and_names_its_parameters_after_the_map(name, make):
    model, _, _ = small_model()
    guide = make(model, init=pb.NetworkInit(scale=0.07), scale_map=SCALE_MAPS[name])
    for scale in guide.scales().values():
        assert_identical(scale, torch.full_like(scale, 0.07))
    names = {parameter.partition(".")[0] for parameter, _ in guide.named_parameters()}
    assert names - {"factor"} == {"loc", name}
    with pytest.raises(ValueError, match=r"`scale_map` must be a ScaleMap, such as"):
        make(model, scale_map=torch.exp)


class Square(scale_maps.ScaleMap):
    """The scale is the square of the parameter."""

    name = "root"

    def __call__(self, parameter):
        return parameter.square()

    def inverse(self, scale):
        return scale.sqrt()

    def slope(self, parameter, scale, out):
        return torch.mul(parameter, 2, out=out)


class WrongSquare(Square):
    """Its slope is not."""

    def slope(self, parameter, scale, out):
        return torch.mul(parameter, 3, out=out)


def test_a_map_of_ones_own_needs_its_three_functions_alone(monkeypatch):
    for scale_map in (Square(), WrongSquare()):
        make = problem("mixture", make_guide=functools.partial(pb.MeanFieldGuide, scale_map=scale_map))
        found = fit_both(monkeypatch, make)
        if isinstance(scale_map, WrongSquare):
            with pytest.raises(AssertionError):
                assert_same(found)
        else:
            assert_same(found)
