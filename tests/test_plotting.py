import functools
import threading

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy import integrate, stats

import pyro_bnn as pb
from pyro_bnn import metrics, plotting, pruning
from pyro_bnn.inference.history import EpochRecord, History

from .cases import small_model


@pytest.fixture
def history():
    model, x, y = small_model(num_data=6)
    optimizer = functools.partial(torch.optim.Adam, lr=0.01)
    return pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=optimizer, num_epochs=4, seed=0).history


def test_loss_curves_show_what_was_recorded(history):
    axes = plotting.loss_curves(history)
    for ax, sign, column in zip(axes, (1, -1, 1), ("elbo", "expected_log_likelihood", "kl"), strict=True):
        expected = [sign * getattr(record, column) / 6 for record in history.epochs]
        np.testing.assert_allclose(ax.lines[0].get_ydata(), expected)
        assert ax.get_ylabel().endswith("\nnats per row")
        assert ax.get_xlabel() == "epoch"


@pytest.mark.parametrize(("start", "is_cut"), [(-40.0, True), (-1.2, False)])
def test_the_end_of_a_loss_curve_can_be_read(start, is_cut):
    ends = [-0.5 - 0.2 * 0.5**epoch for epoch in range(20)]
    elbos = [start * (20 - epoch) / 20 + ends[0] * epoch / 20 for epoch in range(20)] + ends
    records = [EpochRecord(epoch, elbo, elbo, 0.0, 1.0, 0.01, 0.0) for epoch, elbo in enumerate(elbos)]
    ax = plotting.loss_curves(History(1, epochs=records))[0]
    low, high = ax.get_ylim()
    assert low < min(ends) < max(ends) < high
    assert (low > min(elbos)) == is_cut
    assert (high - low < 3.4 * (max(ends) - min(ends))) == is_cut
    left, _ = ax.get_xlim()
    shown = [elbo for epoch, elbo in enumerate(elbos, start=1) if epoch > left]
    assert low < min(shown) < max(shown) < high  # no part of the curve leaves the axes
    assert ax.get_xlabel() == (f"epoch (from {len(elbos) - len(shown) + 1} on)" if is_cut else "epoch")


def test_histograms_have_fewer_bins_than_weights_and_bars_of_possible_values():
    mean, scale = {"one": torch.tensor([0.3]), "many": torch.randn(61)}, {"one": torch.tensor([0.03])}
    axes = plotting.weight_histograms(mean, scale | {"many": torch.rand(61) + 0.1})
    (bar,) = [patch for patch in axes[0, 1].patches if patch.get_height()]
    assert 0 < bar.get_x() < 0.03 < bar.get_x() + bar.get_width() < 0.06
    assert axes[0, 1].get_xlim()[0] > 0
    density = plotting.signal_to_noise({"w": torch.rand(61) + 0.1})[0]
    assert len(axes[1, 0].patches) == len(density.patches) == 8  # Rice's rule, 2 * 61 ** (1 / 3) = 7.9


def test_accuracy_curves_show_what_was_recorded():
    ax = plotting.accuracy_curves((0.8, 0.9), np.array([0.7, 0.8]))
    shown = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}
    assert shown["train"] == ([1, 2], [80, 90])
    assert shown["test"] == ([1, 2], [70, 80])
    assert len(ax.lines) == 2


def test_vote_histograms_stand_under_their_images():
    votes = torch.tensor([[10, 0, 0], [3, 3, 4]])
    axes = plotting.vote_histograms(torch.rand(2, 5, 5), votes, ["a", "b", "c"], titles=["sure", "torn"])
    assert axes.shape == (2, 2)
    assert [bar.get_width() for bar in axes[1, 1].patches] == [3, 3, 4]
    assert [label.get_text() for label in axes[1, 0].get_yticklabels()] == ["a", "b", "c"]
    assert axes[0, 0].get_title() == "sure"


def test_vote_histograms_start_new_rows():
    axes = plotting.vote_histograms(torch.rand(7, 5, 5), torch.ones(7, 2), ["a", "b"])
    places = [ax.get_subplotspec() for ax in axes[0]]
    assert [place.rowspan.start for place in places] == [0] * 5 + [2] * 2
    assert [bool(ax.get_ylabel()) for ax in axes[1]] == [True, *[False] * 4, True, False]


def test_reliability_diagram_of_a_calibrated_forecaster_follows_the_diagonal():
    probs = torch.randn(20_000, 3).softmax(-1)
    y = torch.distributions.Categorical(probs).sample()
    accuracy, counts = plotting.reliability_diagram(probs, y, num_bins=10)
    bins = metrics.calibration_bins(probs, y, num_bins=10)
    filled = bins.counts.numpy() > 0
    (points, _, (bars,)), *_ = accuracy.containers
    np.testing.assert_allclose(points.get_xdata(), bins.confidence.numpy()[filled])
    np.testing.assert_allclose(points.get_ydata(), bins.accuracy.numpy()[filled])
    np.testing.assert_allclose(points.get_ydata(), points.get_xdata(), atol=0.05)
    ends = np.array(bars.get_segments())[:, :, 1]
    for bin_ends, right, total in zip(
        ends, (bins.accuracy * bins.counts).numpy()[filled], bins.counts.numpy()[filled], strict=True
    ):
        expected = stats.binomtest(round(right), int(total)).proportion_ci(0.9, method="wilson")
        np.testing.assert_allclose(bin_ends, expected, atol=1e-9)
    assert [bar.get_height() for bar in counts.patches] == bins.counts.tolist()
    assert f"{metrics.expected_calibration_error(probs, y, num_bins=10):.4f}" in accuracy.get_title()


# --- scores of the unknown --------------------------------------------------------------------------------------------


def test_detection_curves_show_distributions_and_areas():
    known, unknown = (
        {"a (nats)": torch.randn(300), "b": torch.rand(300)},
        {"a (nats)": 1 + torch.randn(5000), "b": torch.rand(5000)},
    )
    *distributions, roc = plotting.detection_curves(known, unknown)
    assert [ax.get_xlabel() for ax in distributions] == ["a (nats)", "b"]
    for ax, name in zip(distributions, known, strict=True):
        for line, values in zip(ax.lines, (known[name], unknown[name]), strict=True):
            levels, shares = line.get_data()
            assert (shares[0], shares[-1]) == (0, 1)
            assert (np.diff(levels) >= 0).all()
            expected = [float((values <= level).double().mean()) for level in levels[2:-1]]
            np.testing.assert_allclose(shares[2:-1], expected, atol=1e-9)
    for line, name in zip(roc.lines, known, strict=False):
        found = metrics.ood_scores(known[name], unknown[name])
        assert f"{found.auroc:.3f} ± {found.auroc_standard_error:.3f}" in line.get_label()
        assert line.get_label().startswith(name[0])
        area = integrate.trapezoid(*line.get_data()[::-1])
        assert area == pytest.approx(found.auroc, abs=1e-3)
        assert 1 - area != pytest.approx(found.auroc, abs=1e-3) or name == "b"  # swapped axes would show


def test_detection_curves_of_predictions_show_entropy_and_mutual_information():
    model, x, _ = small_model(likelihood="categorical")
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    known, unknown = (pb.predict(model, guide, scale * x, num_samples=5, seed=0) for scale in (1, 5))
    entropy, information, roc = plotting.detection_curves(known, unknown)
    assert (entropy.get_xlabel(), information.get_xlabel()) == ("entropy (nats)", "mutual information (nats)")
    np.testing.assert_allclose(entropy.lines[1].get_xdata()[1:], unknown.total.sort().values)
    np.testing.assert_allclose(information.lines[0].get_xdata()[1:], known.epistemic.sort().values)
    assert len(roc.lines) == 3
    single = [pb.predict(model, guide, x, num_samples=1, seed=0) for _ in range(2)]
    assert len(plotting.detection_curves(*single)) == 2  # one draw has no mutual information


def test_regression_bands_are_two_around_the_mean():
    model, x, y = small_model(likelihood="gaussian-learned", net=pb.nets.mlp([1, 5, 1]))
    grid = torch.linspace(-1, 1, 20)[:, None]
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    prediction = pb.predict(model, guide, grid, num_samples=20, seed=0)
    ax = plotting.regression_bands(grid, prediction, data=(x[:, :1], y), truth=grid, num_scales=2)
    *edges, _, truth, _ = ax.lines
    np.testing.assert_allclose(truth.get_ydata(), grid.flatten())
    assert len(edges) == 4
    assert all((np.diff(edge.get_xdata()) > 0).all() for edge in edges)  # no vertical line at an end of a band
    assert all((band.get_linewidth() == 0).all() for band in ax.collections)
    outer, inner = (band.get_paths()[0].vertices[:, 1] for band in ax.collections)
    assert outer.max() == pytest.approx(float((prediction.mean + 2 * prediction.total.sqrt()).max()))
    assert inner.max() == pytest.approx(float((prediction.mean + 2 * prediction.epistemic.sqrt()).max()))
    assert len(ax.get_legend().get_texts()) == 5


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


def test_given_axes_are_used_and_returned(history):
    axes = plt.subplots(1, 3)[1]
    assert plotting.loss_curves(history, axes) is axes
    ax = plt.subplots()[1]
    assert plotting.accuracy_curves((0.8,), (0.7,), ax=ax) is ax
    axes = plt.subplots(1, 2)[1]
    assert plotting.detection_curves({"s": torch.rand(5)}, {"s": torch.rand(5)}, axes=axes) is axes
    with pytest.raises(ValueError, match="`axes` must be 3 axes, or None, got 2"):
        plotting.loss_curves(history, axes)


# --- whole posteriors, and other objects in place of the right ones ---------------------------------------------------


@pytest.fixture
def posteriors(history):
    """A model, and posteriors by name: of a guide with a history, of Laplace's method, of draws, and of a point."""
    model, x, y = small_model(num_data=6)
    guide = pruning.prune(pb.MeanFieldGuide(model), fraction=0.5, where="net.0.weight").guide
    fitted = pb.GuidePosterior(guide, history=history)
    return model, {
        "guide": fitted,
        "laplace": pb.fit_laplace(model, (x, y)),
        "draws": pb.StoredPosterior.of(fitted, 30, seed=0),
        "members": pb.EnsemblePosterior([fitted, pb.GuidePosterior(pb.DeltaGuide(model))]),
        "point": pb.GuidePosterior(pb.DeltaGuide(model)),
    }


def test_curves_of_a_posterior_are_those_of_its_history(posteriors, history):
    model, found = posteriors
    for ours, theirs in zip(plotting.loss_curves(found["guide"]), plotting.loss_curves(history), strict=True):
        np.testing.assert_array_equal(drawn(ours), drawn(theirs))
    for name, remedy in {
        "laplace": r'got a posterior of .*Laplace.*which has none; .*fit\(model, data, method="svi"\)',
        "members": r"got a posterior of ensemble of 2 .*loss_curves\(posterior.members\[0\]\)",
    }.items():
        with pytest.raises(ValueError, match=remedy):
            plotting.loss_curves(found[name])
    with pytest.raises(ValueError, match=r"a History, .*got BayesianModel; call `plotting.loss_curves\(posterior\)`"):
        plotting.loss_curves(model, found["guide"])


@pytest.mark.parametrize("name", ["guide", "laplace", "draws", "members"])
def test_weights_of_a_posterior_are_drawn_with_their_moments(posteriors, name):
    posterior = posteriors[1][name]
    marginals = posterior.marginals()
    mean, scale = posterior.moments(seed=0) if not marginals else parts_of(marginals)
    ours, theirs = plotting.weight_histograms(posterior), plotting.weight_histograms(mean, scale)
    for first, second in zip(ours.flat, theirs.flat, strict=True):
        assert bars(first) == bars(second)
        assert sum(height for _, height in bars(first)) > 0
    ratios = {site: torch.where(loc == 0, loc, loc.abs() / scale[site]) for site, loc in mean.items()}
    for first, second in zip(plotting.signal_to_noise(posterior), plotting.signal_to_noise(ratios), strict=True):
        assert bars(first) == bars(second)
        for one, other in zip(drawn(first), drawn(second), strict=True):
            np.testing.assert_array_equal(one, other)


def parts_of(marginals):
    return [{site: pair[part] for site, pair in marginals.items()} for part in range(2)]


def bars(ax):
    return [(bar.get_x(), bar.get_height()) for bar in ax.patches]


def test_weights_of_a_posterior_are_those_of_its_guide(posteriors):
    posterior = posteriors[1]["guide"]
    ours = plotting.signal_to_noise(posterior)[1]
    theirs = plotting.signal_to_noise(pruning.signal_to_noise(posterior))[1]
    np.testing.assert_array_equal(drawn(ours)[0], drawn(theirs)[0])
    before = torch.get_rng_state()
    plotting.weight_histograms(posteriors[1]["members"])
    assert torch.equal(torch.get_rng_state(), before)


def test_what_has_no_picture_of_weights_is_told_the_call(posteriors):
    model, found = posteriors
    for draw in (plotting.weight_histograms, plotting.signal_to_noise):
        with pytest.raises(ValueError, match=r'of DeltaGuide, a single point.*method="svi"'):
            draw(found["point"])
    with pytest.raises(ValueError, match=r"got BayesianModel; call `plotting.weight_histograms\(posterior\)`"):
        plotting.weight_histograms(model, found["guide"])
    with pytest.raises(ValueError, match=r"`scales` must be left out with a posterior, got dict; call"):
        plotting.weight_histograms(found["guide"], {})
    with pytest.raises(ValueError, match=r"`ratios` must be a posterior, or a dict .*got MeanFieldGuide"):
        plotting.signal_to_noise(found["guide"].guide)


def test_a_prediction_in_the_wrong_place_is_told_the_call():
    model, x, _ = small_model()
    classes = pb.predict(model, pb.MeanFieldGuide(model), x, num_samples=3, seed=0)
    model, x, y = small_model(likelihood="gaussian-fixed")
    numbers = pb.predict(model, pb.MeanFieldGuide(model), x, num_samples=3, seed=0)
    swapped = "got RegressionPrediction; the prediction is the second argument: call `plotting"
    with pytest.raises(ValueError, match=swapped + r".regression_bands\(x, prediction\)`"):
        plotting.regression_bands(numbers, x)
    with pytest.raises(ValueError, match=swapped + r".predictive_density\(x, prediction, y\)`"):
        plotting.predictive_density(numbers, x, y)
    with pytest.raises(ValueError, match=r"got ClassificationPrediction; for classes call `plotting.reliability_diag"):
        plotting.regression_bands(x, classes)
    for_numbers = r"`plotting.regression_bands\(x, prediction\)`.*`metrics.interval_coverage\(\*prediction"
    with pytest.raises(ValueError, match=f"of classes, got RegressionPrediction, a .*{for_numbers}"):
        plotting.reliability_diagram(numbers, y)
    with pytest.raises(ValueError, match=r"first argument: call `plotting.reliability_diagram\(prediction, y\)`"):
        plotting.reliability_diagram(torch.arange(6), classes)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_signal_to_noise_shows_density_and_distribution_in_decibel():
    ratios = {"net.0.weight": torch.tensor([[0.1, 1.0], [10.0, 0.0]]), "net.0.bias": torch.tensor([100.0])}
    density, distribution = plotting.signal_to_noise(ratios)
    counts = [bar.get_height() * bar.get_width() for bar in density.patches]
    assert sum(counts) == pytest.approx(1)
    lines = {line.get_label(): line for line in distribution.lines}
    assert set(lines) == {"all (5)", "net.0 (5)"}
    np.testing.assert_allclose(lines["all (5)"].get_xdata(), [-np.inf, -10, 0, 10, 20], atol=1e-5)
    np.testing.assert_allclose(lines["all (5)"].get_ydata(), [0.2, 0.4, 0.6, 0.8, 1.0], atol=1e-6)


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian-fixed"])
def test_pruning_curve_shows_the_report(likelihood):
    model, x, y = small_model(likelihood=likelihood, num_data=6)
    report = pruning.snr_report(model, pb.MeanFieldGuide(model), x, y, fractions=(1, 0, 0.5), num_samples=4)
    error, nll = plotting.pruning_curve(report)
    rows = [report.rows[1], report.rows[2], report.rows[0]]
    shown = [bars.lines[0].get_ydata() for bars in error.containers]  # two curves, each with its end apart
    if likelihood == "categorical":
        np.testing.assert_allclose(np.concatenate(shown[:2]), [100 * (1 - row.mean_accuracy) for row in rows])
        (low, high), *_ = error.containers[2].lines[2][0].get_segments()
        expected = 100 * (rows[0].accuracy * (1 - rows[0].accuracy) / 6) ** 0.5
        assert (high - low)[1] / 2 == pytest.approx(expected)
    else:
        np.testing.assert_allclose(np.concatenate(shown[2:]), [row.rmse for row in rows])
    np.testing.assert_allclose(
        np.concatenate([bars.lines[0].get_ydata() for bars in nll.containers[2:]]), [row.nll for row in rows]
    )
    (low, high), *_ = nll.containers[2].lines[2][0].get_segments()
    assert (high - low)[1] / 2 == pytest.approx(rows[0].nll_standard_error)
    assert nll.get_xscale() == "log"
    kept = nll.containers[0].lines[0].get_xdata()
    np.testing.assert_allclose(kept, [100, 100 * rows[1].num_weights / report.num_weights], rtol=0.03)
    assert [label.get_text() for label in nll.get_xticklabels()] == ["100", "50", "0"]
    assert nll.get_xlim()[0] > nll.get_xlim()[1]


def test_weight_density_integrates_to_one_and_shows_the_prior():
    ax = plotting.weight_density(0.3, 0.1, name="w", prior=torch.distributions.HalfNormal(1.0))
    x, y = ax.collections[0].get_paths()[0].vertices.T
    assert abs(integrate.trapezoid(y, x)) == pytest.approx(1, abs=1e-3)
    (drawn_prior,) = (line.get_xydata() for line in ax.lines if line.get_label() == "prior")
    assert {y for x, y in drawn_prior if x < 0} == {0}  # outside of its support
    assert ax.get_xlabel() == "w"
    assert "signal-to-noise 4.77 dB" in ax.get_title()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["posterior", "posterior mean", "zero", "prior"]
    with pytest.raises(ValueError, match="the weight was removed, it has no density"):
        plotting.weight_density(0.0, 0.0)


def test_weight_histograms_leave_out_what_was_removed():
    model, _, _ = small_model()
    guide = pruning.prune(pb.MeanFieldGuide(model), fraction=0.5, where="net.0.weight").guide
    axes = plotting.weight_histograms(guide.locations(), guide.scales())
    assert axes.shape == (4, 2)
    assert [sum(bar.get_height() for bar in ax.patches) for ax in axes[:, 1]] == [10, 5, 15, 3]


def test_pyplot_shows_new_figures_if_it_is_imported():
    ax = plotting.new_axes(1, 1, size=("column", 2.0))[0, 0]
    assert plt.get_fignums() == [ax.figure.number]  # those that `plt.show()` shows
    plotting.accuracy_curves([0.5], [0.5])
    assert len(plt.get_fignums()) == 2
    thread = threading.Thread(target=plotting.accuracy_curves, args=([0.5], [0.5]))
    thread.start()
    thread.join()
    assert len(plt.get_fignums()) == 2  # windows cannot be opened by other threads


def drawn(ax):
    """The numbers of all lines of a plot."""
    return [np.asarray(line.get_xydata(), float) for line in ax.lines]


def test_arrays_are_drawn_like_tensors():
    x, y = torch.linspace(-1, 1, 20)[:, None], torch.arange(20) % 2
    model, inputs, _ = small_model()
    prediction = pb.predict(model, pb.MeanFieldGuide(model), inputs, num_samples=3, seed=0)
    probs = torch.rand(20, 2).softmax(-1)
    numbers = pb.uncertainty.RegressionPrediction(
        num_samples=3,
        log_density=None,
        mean=x,
        aleatoric=torch.ones(20, 1),
        variance_of_means=torch.ones(20, 1),
        components=None,
    )
    scores = {"score": torch.rand(20)}
    pairs = [
        (plotting.regression_bands(x, numbers, data=(x, x)), plotting.regression_bands(*a(x), numbers, data=a(x, x))),
        (plotting.reliability_diagram(probs, y)[0], plotting.reliability_diagram(*a(probs, y))[0]),
        (plotting.detection_curves(scores, scores)[0], plotting.detection_curves(of(scores), of(scores))[0]),
    ]
    for ours, theirs in pairs:
        assert len(drawn(ours)) > 1
        for first, second in zip(drawn(ours), drawn(theirs), strict=True):
            np.testing.assert_array_equal(first, second)
    ours, theirs = (plotting.reliability_diagram(given, y[:6])[0] for given in (prediction, prediction.probs))
    assert ours.get_title() == theirs.get_title()


def a(*tensors):
    return [tensor.numpy() for tensor in tensors]


def of(scores):
    return {name: tensor.numpy() for name, tensor in scores.items()}


def test_what_a_function_returns_can_be_saved(history, tmp_path):
    axes = plotting.loss_curves(history)
    for index, given in enumerate((axes, list(axes), axes[0])):
        plotting.save(given, tmp_path / f"{index}.png")
    assert (tmp_path / "0.png").read_bytes() == (tmp_path / "2.png").read_bytes()
    with pytest.raises(ValueError, match=r"`ax` must be axes, .* got list"):
        plotting.save([], tmp_path / "none.png")
