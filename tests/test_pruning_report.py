"""The report on pruning agrees with predictions, and sparse networks with dense networks."""

import copy

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import pruning

from .cases import small_model
from .pruned import ADAM, scattered, two_weights
from .tolerances import assert_identical


def trained(likelihood="categorical"):
    model, x, y = small_model(likelihood=likelihood, num_data=6)
    return model, pb.fit_svi(model, (x, y), scattered(model), optimizer=ADAM, num_epochs=50, seed=0), x, y


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian-fixed", "heteroscedastic"])
def test_the_report_says_what_predictions_say(likelihood):
    model, posterior, x, y = trained(likelihood)
    report = pruning.snr_report(model, posterior, x, y, fractions=(0, 0.5, 1), num_samples=9, seed=4)
    for row, fraction in zip(report.rows, (0, 0.5, 1), strict=True):
        pruned = pruning.prune(posterior, fraction=fraction)
        ensemble = pb.predict(model, pruned, x, y=y, num_samples=9, seed=4)
        mean = pb.predict_point(model, pruned.median(), x, y=y)
        assert_identical([row.nll, row.mean_nll], [ensemble.nll, mean.nll])
        if likelihood in ("categorical", "bernoulli"):
            assert row.accuracy == pytest.approx(float((ensemble.probs.argmax(-1) == y).double().mean()))
            assert row.rmse is None
        else:
            assert row.rmse == pytest.approx(float((ensemble.mean - y).square().mean().sqrt()))
            assert row.accuracy is None
    assert report.rows[0].nll == pytest.approx(pb.predict(model, posterior, x, y=y, num_samples=9, seed=4).nll)
    assert len(str(report).splitlines()) == 7
    assert "largest ratio: of |mean| to standard deviation, among the removed weights" in str(report)


def test_the_report_is_written(tmp_path):
    model, posterior, x, y = trained()
    report = pruning.snr_report(model, posterior, x, y, fractions=(0, 0.9), num_samples=3)
    report.to_csv(tmp_path / "report.csv")
    header, *rows = (tmp_path / "report.csv").read_text().splitlines()
    assert header.startswith("fraction,threshold,num_weights,accuracy,nll,")
    assert rows[1].startswith(f"0.9,{report.rows[1].threshold!r},4,")
    with pytest.raises(ValueError, match="at least one share"):
        pruning.snr_report(model, posterior, x, y, fractions=())


@pytest.mark.parametrize("max_density", [None, 0.0, 0.1, 1.0])
def test_a_sparse_network_computes_the_same(max_density):
    model, posterior, x, _ = trained()
    values = pruning.prune(posterior, fraction=0.9).median()
    net = pruning.sparse_network(model, values, max_density=max_density)
    probs = pb.predict_point(model, values, x).probs
    torch.testing.assert_close(net(x).softmax(-1), probs)
    torch.testing.assert_close(copy.deepcopy(net)(x.expand(2, 6, 4))[1].softmax(-1), probs)
    num_sparse = sum(isinstance(layer, pruning.SparseLinear) for layer in net.modules())
    assert num_sparse == {None: 0, 0.0: int(not values["net.2.weight"].any()), 0.1: num_sparse, 1.0: 2}[max_density]
    fresh = pruning.sparse_network(model, values, max_density=max_density)
    fresh.load_state_dict(net.state_dict())
    assert torch.equal(fresh(x), net(x))


def test_a_sparse_network_needs_all_weights_and_a_lone_layer_may_be_sparse():
    model, _, _, _ = trained()
    with pytest.raises(ValueError, match=r"lacks the random parameters \['net.0.weight'"):
        pruning.sparse_network(model, {})
    model, guide = two_weights([3.0, -0.4], [2.0, 0.1])
    net = pruning.sparse_network(model, pruning.prune(guide, fraction=0.5).median(), max_density=0.5)
    assert isinstance(net, pruning.SparseLinear)
    assert_identical(net(torch.ones(1, 2)), [[-0.4]])
    with pytest.raises(ValueError, match=r"must have shape \(O, D\)"):
        pruning.SparseLinear(torch.ones(3), None)


def test_modules_used_twice_hooks_and_looks_at_the_weight():
    layer = nn.Linear(4, 4)
    for net in (nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3)), TiedDecoder(), hooked()):
        model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=6)
        values = pruning.prune(pb.MeanFieldGuide(model), fraction=0.5).median()
        x = torch.randn(6, 4)
        sparse = pruning.sparse_network(model, values, max_density=1.0)
        torch.testing.assert_close(sparse(x).softmax(-1), pb.predict_point(model, values, x).probs)


class TiedDecoder(nn.Module):
    """Uses the weight of another layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x @ self.layer.weight.T @ self.layer.weight)


def hooked():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    net[0].register_forward_hook(lambda module, inputs, output: output.relu())
    return net


def test_mistakes_about_sparse_networks_and_reports_are_named():
    model, posterior, x, y = trained()
    with pytest.raises(ValueError, match=r"must be a dict of weights, such as `posterior.median\(\)`"):
        pruning.sparse_network(model, posterior)
    with pytest.raises(ValueError, match=r"`net.0.weight` must have shape \(5, 4\), got \(3, 5, 4\): give one draw"):
        pruning.sparse_network(model, posterior.sample(3))
    with pytest.raises(ValueError, match=r"`x` must have shape \(..., 2\), got \(3, 3\)"):
        pruning.SparseLinear(torch.ones(1, 2), None)(torch.ones(3, 3))
    with pytest.raises(ValueError, match=r"`y` must be a tensor, an array, .* got NoneType"):
        pruning.snr_report(model, posterior, x, None)
    report = pruning.snr_report(
        model, posterior, x.numpy(), y.tolist(), fractions=torch.tensor([0, 0.5]), num_samples=2
    )
    assert [row.fraction for row in report.rows] == [0, 0.5]
