import functools

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy import integrate

import pyro_bnn as pb
from pyro_bnn import metrics, plotting, pruning

from .cases import small_model


@pytest.fixture
def figures():
    yield
    plt.close("all")


@pytest.fixture
def history():
    model, x, y = small_model(num_data=6)
    optimizer = functools.partial(torch.optim.Adam, lr=0.01)
    return pb.fit_svi(model, pb.MeanFieldGuide(model), (x, y), optimizer=optimizer, num_epochs=4, seed=0).history


@pytest.mark.usefixtures("figures")
def test_loss_curves_show_what_was_recorded(history):
    axes = plotting.loss_curves(history)
    for ax, sign, column in zip(axes, (1, -1, 1), ("elbo", "expected_log_likelihood", "kl"), strict=True):
        expected = [sign * getattr(record, column) / 6 for record in history.epochs]
        np.testing.assert_allclose(ax.lines[0].get_ydata(), expected)
        assert ax.get_ylabel() == "nats per data point"


@pytest.mark.usefixtures("figures")
def test_accuracy_curves_show_what_was_recorded_and_published():
    ax = plotting.accuracy_curves((0.8, 0.9), (0.7, 0.8), published=((0.5,), (0.4,)))
    shown = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}
    assert shown["train"] == ([1, 2], [80, 90])
    assert shown["test"] == ([1, 2], [70, 80])
    assert shown["published, train"] == ([1], [50])
    assert shown["published, test"] == ([1], [40])
    assert len(plotting.accuracy_curves((0.8,), (0.7,)).lines) == 2


@pytest.mark.usefixtures("figures")
def test_vote_histograms_stand_under_their_images():
    votes = torch.tensor([[10, 0, 0], [3, 3, 4]])
    axes = plotting.vote_histograms(torch.rand(2, 5, 5), votes, ["a", "b", "c"], titles=["sure", "torn"])
    assert axes.shape == (2, 2)
    assert [bar.get_height() for bar in axes[1, 1].patches] == [3, 3, 4]
    assert [label.get_text() for label in axes[1, 0].get_xticklabels()] == ["a", "b", "c"]
    assert axes[0, 0].get_title() == "sure"


@pytest.mark.usefixtures("figures")
def test_score_histograms_show_both_sets_on_the_same_bins():
    ax = plotting.score_histograms(torch.rand(100), 1 + torch.rand(100), score="entropy (nats)")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["in domain", "out of domain"]
    assert ax.get_xlabel() == "entropy (nats)"
    assert len(ax.patches) == 100


@pytest.mark.usefixtures("figures")
def test_reliability_diagram_of_a_calibrated_forecaster_follows_the_diagonal():
    probs = torch.randn(20_000, 3).softmax(-1)
    y = torch.distributions.Categorical(probs).sample()
    ax = plotting.reliability_diagram(probs, y, num_bins=10)
    bins = metrics.calibration_bins(probs, y, num_bins=10)
    heights = np.array([bar.get_height() for bar in ax.patches])
    filled = bins.counts.numpy() > 0
    np.testing.assert_allclose(heights[filled], bins.accuracy.numpy()[filled])
    np.testing.assert_allclose(heights[filled], bins.confidence.numpy()[filled], atol=0.05)
    share = ax.lines[-1].get_ydata()
    np.testing.assert_allclose(share[:-1], bins.counts.numpy() / 20_000)


@pytest.mark.usefixtures("figures")
def test_regression_bands_are_two_around_the_mean():
    model, x, y = small_model(likelihood="gaussian-learned", net=pb.nets.mlp([1, 5, 1]))
    grid = torch.linspace(-1, 1, 20)[:, None]
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    prediction = pb.predict(model, guide, grid, num_samples=20, seed=0)
    ax = plotting.regression_bands(grid, prediction, data=(x[:, :1], y), num_scales=2)
    outer, inner = (band.get_paths()[0].vertices[:, 1] for band in ax.collections)
    assert outer.max() == pytest.approx(float((prediction.mean + 2 * prediction.total.sqrt()).max()))
    assert inner.max() == pytest.approx(float((prediction.mean + 2 * prediction.epistemic.sqrt()).max()))
    assert len(ax.get_legend().get_texts()) == 4


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize("likelihood", ["gaussian-learned", "mixture-density"])
def test_the_image_of_a_density_holds_the_density(likelihood):
    net = pb.nets.mlp([1, 5, 1 if likelihood == "gaussian-learned" else 9])
    model, x, y = small_model(likelihood=likelihood, net=net)
    x_grid, y_grid = torch.linspace(-1, 1, 20)[:, None], torch.linspace(-2, 2, 30)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    prediction = pb.predict(model, guide, x_grid, num_samples=20, seed=0, keep_draws=True)
    ax = plotting.predictive_density(x_grid, prediction, y_grid, data=(x[:, :1], y[:, :1]))
    shown = np.asarray(ax.collections[0].get_array()).reshape(30, 20)
    at = pb.predict(model, guide, x_grid, y=y_grid[17].expand(20, 1), num_samples=20, seed=0)
    np.testing.assert_allclose(shown[17], at.log_density.exp().numpy())
    assert (ax.get_xlim(), ax.get_ylim()) == ((-1, 1), (-2, 2))


@pytest.mark.usefixtures("figures")
def test_given_axes_are_used_and_returned(history):
    axes = plt.subplots(1, 3)[1]
    assert plotting.loss_curves(history, axes) is axes
    ax = plt.subplots()[1]
    assert plotting.score_histograms(torch.rand(5), torch.rand(5), score="s", ax=ax) is ax


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("figures")
def test_signal_to_noise_shows_density_and_distribution_in_decibel():
    ratios = {"net.0.weight": torch.tensor([[0.1, 1.0], [10.0, 0.0]]), "net.0.bias": torch.tensor([100.0])}
    density, distribution = plotting.signal_to_noise(ratios)
    counts = [bar.get_height() * bar.get_width() for bar in density.patches]
    assert sum(counts) == pytest.approx(1)
    lines = {line.get_label(): line for line in distribution.lines}
    assert set(lines) == {"all", "net.0"}
    np.testing.assert_allclose(lines["all"].get_xdata(), [-np.inf, -10, 0, 10, 20], atol=1e-5)
    np.testing.assert_allclose(lines["all"].get_ydata(), [0.2, 0.4, 0.6, 0.8, 1.0], atol=1e-6)


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian-fixed"])
def test_pruning_curve_shows_the_report(likelihood):
    model, x, y = small_model(likelihood=likelihood, num_data=6)
    report = pruning.snr_report(model, pb.MeanFieldGuide(model), x, y, fractions=(1, 0, 0.5), num_samples=4)
    error, nll = plotting.pruning_curve(report)
    rows = [report.rows[1], report.rows[2], report.rows[0]]
    mean, ensemble = error.lines
    if likelihood == "categorical":
        np.testing.assert_allclose(mean.get_ydata(), [100 * (1 - row.mean_accuracy) for row in rows])
    else:
        np.testing.assert_allclose(ensemble.get_ydata(), [row.rmse for row in rows])
    np.testing.assert_allclose(nll.lines[1].get_ydata(), [row.nll for row in rows])
    assert [label.get_text() for label in nll.get_xticklabels()] == ["0", "50", "100"]


@pytest.mark.usefixtures("figures")
def test_weight_density_integrates_to_one_and_shows_the_prior():
    ax = plotting.weight_density(0.3, 0.1, name="w", prior=torch.distributions.Normal(0.0, 1.0))
    x, y = ax.collections[0].get_paths()[0].vertices.T
    assert abs(integrate.trapezoid(y, x)) == pytest.approx(1, abs=1e-3)
    assert ax.get_xlabel() == "w"
    assert "signal-to-noise 4.77 dB" in ax.get_title()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["posterior", "prior"]
    with pytest.raises(ValueError, match="the weight was removed, it has no density"):
        plotting.weight_density(0.0, 0.0)


@pytest.mark.usefixtures("figures")
def test_weight_histograms_leave_out_what_was_removed():
    model, _, _ = small_model()
    guide = pruning.prune(pb.MeanFieldGuide(model), fraction=0.5, where="net.0.weight").guide
    axes = plotting.weight_histograms(guide.locations(), guide.scales())
    assert axes.shape == (4, 2)
    assert [sum(bar.get_height() for bar in ax.patches) for ax in axes[:, 1]] == [10, 5, 15, 3]
