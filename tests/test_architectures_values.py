"""Every architecture computes with the drawn weights what the caller's own network computes with them."""

import pytest
import torch
from torch import nn

from pyro_bnn._core import functional as _functional

from .architecture_case import Case, converted
from .architectures import ARCHITECTURES, NAMES
from .tolerances import assert_identical

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),  # torch's own, of its encoder
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_likelihood_and_its_gradient_are_those_of_the_callers_network(name):
    case = Case(ARCHITECTURES[name])
    model = case.model()
    values = {name: value.requires_grad_() for name, value in case.drawn(model).items()}
    plain = case.plain(values, model)
    torch.manual_seed(1)
    expected, gradients = case.value_and_gradients(plain, model)
    torch.manual_seed(1)
    result = model.log_likelihood(values, case.x, case.y)
    assert_identical(result, expected)
    found = torch.autograd.grad(result, list(values.values()), allow_unused=True)
    for site, gradient in zip(values, found, strict=True):
        assert_identical(torch.zeros_like(values[site]) if gradient is None else gradient, gradients[site])
    assert sum(bool(gradient.any()) for gradient in gradients.values()) > len(gradients) / 2
    case.assert_unchanged()


@pytest.mark.parametrize("name", NAMES)
def test_in_eval_mode_without_gradients_too(name):
    """In eval mode, attention uses fused operations."""
    case = Case(ARCHITECTURES[name])
    model = case.model(is_training=False)
    values, others = case.drawn(model), case.drawn(model)
    plain = case.plain(values, model)
    with torch.no_grad():
        torch.manual_seed(1)
        logits = model.observation_given(values, case.x).logits
        torch.manual_seed(1)
        assert_identical(logits, case.logits(plain).log_softmax(-1))
        torch.manual_seed(1)
        assert not torch.allclose(logits, model.observation_given(others, case.x).logits)
    case.assert_unchanged()


@pytest.mark.parametrize("name", NAMES)
def test_in_double_precision_it_is_the_same_function_of_more_digits(name):
    case = Case(ARCHITECTURES[name], dtype=torch.float32)
    single = case.model(is_training=False)
    values = {site: value.float() for site, value in case.drawn(single).items()}
    torch.manual_seed(1)
    rough = single.log_likelihood(values, case.x, case.y)
    assert rough.dtype == torch.float32
    double = single.double()
    case.x = converted(case.x, torch.float64)
    values = {site: value.double() for site, value in values.items()}
    torch.manual_seed(1)
    exact = double.log_likelihood(values, case.x, case.y)
    assert exact.dtype == torch.float64
    if not ARCHITECTURES[name].refusal:  # noise has other numbers in another dtype
        torch.testing.assert_close(rough.double(), exact, rtol=1e-4, atol=1e-4)
    plain = case.plain(values, double)
    torch.manual_seed(1)
    assert_identical(exact, case.log_likelihood(plain))


@pytest.mark.parametrize("name", ["`nn.RNN`", "`nn.LSTM`", "`nn.GRU(num_layers=2, dropout=0.3)`"])
def test_the_comparison_notices_recurrent_layers_that_keep_their_own_weights(name, monkeypatch):
    monkeypatch.setattr(_functional, "refresh_recurrent_weights", lambda net: None)
    monkeypatch.setattr(nn.RNNBase, "_weights_have_changed", lambda layer: False)  # newer versions of torch look too
    case = Case(ARCHITECTURES[name])
    model = case.model(is_training=False)
    values = case.drawn(model)
    expected = case.log_likelihood(case.plain(values, model)).detach()
    assert not torch.allclose(model.log_likelihood(values, case.x, case.y), expected, rtol=1e-3)


def test_the_comparison_notices_a_drawn_row_of_padding(monkeypatch):
    monkeypatch.setattr(_functional, "_with_padding", lambda layer, attribute, value: value)
    case = Case(ARCHITECTURES["`nn.Embedding(padding_idx=0)`"])
    model = case.model()
    values = case.drawn(model)
    expected = case.log_likelihood(case.plain(values, model)).detach()
    assert not torch.allclose(model.log_likelihood(values, case.x, case.y), expected, rtol=1e-3)
