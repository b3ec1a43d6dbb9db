"""Comparisons against answers by hand: two Gaussians, two class distributions."""

import csv
import json
import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import plotting
from pyro_bnn.results.comparison import Estimate, in_digits

from .cases import small_model
from .tolerances import STANDARD_ERRORS

NOISE = 0.5


class Weights(pb.Posterior):
    """N(mean, scale^2) for the one weight of a line through the origin."""

    def __init__(self, mean, scale, seconds=None):
        self.mean, self.scale, self.status = mean, scale, pb.Status(True, "made up")
        self._seconds = seconds

    @property
    def seconds(self):
        return self._seconds

    def draws(self, num_samples: int, *args: object) -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(num_samples):
            yield {"net.weight": self.mean + self.scale * torch.randn(1, 1)}


def line():
    return pb.BayesianModel(
        nn.Linear(1, 1, bias=False),
        prior=pb.NormalPrior(1.0),
        likelihood=pb.GaussianLikelihood(NOISE),
        num_data=3,
    )


A, B = (1.0, 0.4), (1.3, 0.2)
X = torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)


@pytest.fixture
def result():
    y = torch.tensor([[1.0], [2.5], [-1.0]])
    entries = {"a": Weights(*A, seconds=3.0), "b": (line(), Weights(*B))}
    return pb.compare(line(), entries, X, y=y, num_samples=4000, seed=0)


def scores(result, kind="pairs", index=0):
    return getattr(result, kind)[index].scores


def close(estimate, expected):
    assert 0 < estimate.standard_error < 0.2
    return abs(estimate.value - expected) < STANDARD_ERRORS * estimate.standard_error


def test_pairs_of_gaussians_by_hand(result):
    pair = scores(result)
    x = X.flatten()
    assert close(pair["rms mean difference"], 0.3 * x.square().mean().sqrt())
    assert close(pair["epistemic sd ratio"], 0.5)
    totals = [(scale * x).square() + NOISE**2 for _, scale in (A, B)]
    assert close(pair["total sd ratio"], float((totals[1].mean() / totals[0].mean()).sqrt()))
    expected = (totals[1] / totals[0]).sqrt().quantile(torch.tensor([0.1, 0.9])).tolist()
    assert [pair["total sd ratio"].quantile_10, pair["total sd ratio"].quantile_90] == pytest.approx(expected, rel=0.03)
    assert expected[0] < 0.9 * expected[1]
    levels = (np.arange(20_000) + 0.5) / 20_000
    quantiles = [
        scipy.stats.norm.ppf(levels[:, None], loc=mean * x.numpy(), scale=total.sqrt().numpy())
        for (mean, _), total in zip((A, B), totals, strict=True)
    ]
    assert close(pair["wasserstein"], np.abs(quantiles[0] - quantiles[1]).mean())


@pytest.mark.parametrize(
    "likelihood",
    [
        pb.PoissonLikelihood(),
        pb.likelihoods.DistributionLikelihood(lambda out: torch.distributions.Weibull(out.exp(), 2.0)),
        pb.likelihoods.NegativeBinomial(3.0),
    ],
    ids=["counts", "moments by draws", "no distribution function"],
)
def test_wasserstein_of_other_distributions_is_that_of_their_observations(likelihood):
    model = pb.BayesianModel(nn.Linear(1, 1, bias=False), prior=pb.NormalPrior(1.0), likelihood=likelihood, num_data=3)
    result = pb.compare(model, {"a": Weights(0.9, 0.3), "b": Weights(0.3, 0.1)}, X, num_samples=400, seed=0)
    observations = [prediction.sample(20_000, seed=1) for prediction in result.predictions.values()]
    expected = (observations[0].sort(0).values - observations[1].sort(0).values).abs().double().mean()
    assert abs(scores(result)["wasserstein"].value / float(expected) - 1) < 0.05


def test_wasserstein_of_one_posterior_with_itself_is_small():
    """It was dominated by the noise of one simulated observation per draw."""
    result = pb.compare(line(), {"a": Weights(*A), "b": (line(), Weights(*A))}, X, num_samples=4000, seed=0)
    distance = scores(result)["wasserstein"]
    assert distance.value < 3 * distance.standard_error
    assert distance.value < 0.015


def test_wrong_answers_are_far(result):
    pair = scores(result)
    assert not close(pair["epistemic sd ratio"], 2.0)
    assert not close(pair["epistemic sd ratio"], 0.25)  # the ratio of variances
    assert not close(pair["total sd ratio"], 0.5)


def test_standard_errors_are_what_repetitions_show():
    def once(seed):
        entries = {"a": Weights(*A), "b": Weights(*B)}
        return pb.compare(line(), entries, X, num_samples=200, seed=seed).pairs[0].scores

    runs = [once(2 * seed) for seed in range(24)]
    for name in ("rms mean difference", "epistemic sd ratio", "total sd ratio", "wasserstein"):
        values = torch.tensor([run[name].value for run in runs])
        claimed = torch.tensor([run[name].standard_error for run in runs]).square().mean().sqrt()
        assert 0.6 < values.std() / claimed < 1.6, name


class Lines(pb.Posterior):
    """N(mean, 1) for the weights of a linear classifier."""

    def __init__(self, mean):
        self.status, self._mean = pb.Status(True, "made up"), mean

    def draws(self, num_samples: int, *args: object) -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(num_samples):
            yield {"net.weight": self._mean + torch.randn(3, 2)}


@pytest.mark.nightly
def test_the_error_of_the_agreement_is_what_repetitions_show():
    """The agreement changes in jumps, so a jackknife would give errors that are two to three times too large."""
    likelihood = pb.CategoricalLikelihood()
    model = pb.BayesianModel(nn.Linear(2, 3, bias=False), prior=pb.NormalPrior(), likelihood=likelihood, num_data=3)
    x, mean = torch.randn(150, 2), torch.randn(3, 2)

    def once(seed):
        posteriors = {"a": Lines(mean), "b": Lines(mean + torch.tensor([0.3, -0.2]) * torch.tensor([[1], [0], [-1]]))}
        return pb.compare(model, posteriors, x, num_samples=100, seed=seed).pairs[0].scores["agreement"]

    runs = [once(seed) for seed in range(40)]
    claimed = torch.tensor([run.standard_error for run in runs]).square().mean().sqrt()
    ratio = torch.tensor([run.value for run in runs]).std() / claimed
    assert 0.6 < ratio < 1.6
    assert not 0.6 < ratio / 2.7 < 1.6  # what the jackknife claims


def test_methods_by_hand(result):
    method = scores(result, "methods")
    assert result.methods[0].seconds == 3.0
    assert result.methods[1].seconds is None
    expected = float((0.4 * X).square().mean().sqrt())  # not the mean of 0.4 |x|, which is 6 % smaller
    assert method["epistemic sd"].value == pytest.approx(expected, rel=0.03)
    total = ((0.4 * X).square() + NOISE**2).sqrt()
    densities = scipy.stats.norm.logpdf([1.0, 2.5, -1.0], loc=X.flatten(), scale=total.flatten())
    assert method["nll"].value == pytest.approx(-densities.mean(), abs=0.05)
    assert 0 <= method["coverage_50"].value <= method["coverage_90"].value <= 1


def test_a_method_compared_with_itself():
    same = {"a": Weights(*A), "again": Weights(*A), "point": Weights(1.0, 0.0)}
    result = pb.compare(line(), same, X, num_samples=1000, seed=1)
    ratio = scores(result)["epistemic sd ratio"]
    assert close(ratio, 1.0)
    assert ratio.quantile_10 == pytest.approx(ratio.value) == ratio.quantile_90  # one weight: the same at all points
    assert 0 < scores(result)["wasserstein"].value < 0.1
    assert scores(result, index=1)["epistemic sd ratio"].value == 0


def test_regions():
    masks = {"one": torch.tensor([True, False, False]), "two": [False, True, True]}
    result = pb.compare(line(), {"a": Weights(*A), "b": Weights(*B)}, X, regions=masks, num_samples=2000)
    assert [row.region for row in result.pairs] == ["one", "two"]
    assert close(scores(result)["rms mean difference"], 0.3)
    assert close(scores(result, index=1)["rms mean difference"], 0.3 * math.sqrt(2.5))
    assert "two:" in str(result)
    with pytest.raises(ValueError, match="region 'none' must be a boolean of shape"):
        pb.compare(line(), {"a": Weights(*A), "b": Weights(*B)}, X, regions={"none": torch.zeros(3)})


class Biases(pb.Posterior):
    """A network that ignores its input: given logits, with a given chance of other ones."""

    def __init__(self, model, logits, other, chance):
        self.status = pb.Status(True, "made up")
        self._zeros = {name: torch.zeros_like(model.initial_value(name)) for name in model.site_names}
        self._logits, self._other, self._chance = logits, other, chance

    def draws(self, num_samples: int, *args: object) -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(num_samples):
            logits = self._other if torch.rand(()) < self._chance else self._logits
            yield {**self._zeros, "net.2.bias": logits}


def test_classes_by_hand():
    model, x, y = small_model()
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.1, 0.8, 0.1])
    first = Biases(model, p.log(), p.log(), 0.5)
    second = Biases(model, p.log(), q.log(), 0.25)
    result = pb.compare(model, {"first": first, "second": second}, x, y=y, num_samples=2000)
    pair = scores(result)
    assert pair["agreement"].value == 1
    assert close(pair["total variation"], 0.25 * 0.6)
    assert scores(result, "methods")["accuracy"].value == pytest.approx(1 / 3)
    assert scores(result, "methods")["entropy"].value == pytest.approx(float(-(p * p.log()).sum()))
    assert plotting.comparison(result).shape == (1, 2)
    assert "\n\nEqual predictions have an agreement of 1 and a total variation of 0.\n\n" in str(result)
    assert result.verdict.startswith(
        "second and first agree on the most probable class of 100.0 % of the points. Their"
    )


def test_tables(result, tmp_path):
    result.to_csv(tmp_path / "table.csv")
    result.to_json(tmp_path / "table.json")
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    ratio = next(row for row in rows if row["score"] == "epistemic sd ratio")
    assert (ratio["reference"], ratio["method"]) == ("a", "b")
    assert [float(row["value"]) for row in rows if row["score"] == "seconds"] == [3.0]
    assert float(ratio["value"]) == scores(result)["epistemic sd ratio"].value
    content = json.loads((tmp_path / "table.json").read_text())
    assert content["pairs"][0]["scores"]["wasserstein"]["value"] == scores(result)["wasserstein"].value
    text = str(result)
    assert "±" in text
    assert "coverage_90" in text
    assert len({len(line) for line in text.split("\n\n", maxsplit=1)[0].splitlines()[1:]}) == 1  # columns line up
    assert text.startswith("all points (sd: root mean square over points):\n")
    assert "all points, compared with a (10-90 %: quantiles over points):\n" in text
    spread = scores(result)["total sd ratio"]
    assert re.search(rf"\n  10-90 % .*{spread.quantile_10:.2f} to {spread.quantile_90:.2f}\n", text)
    assert "\n\nEqual predictions have ratios of 1; the two other scores, in units of y, are 0.\n\n" in text


def test_print_ends_with_the_result_in_words(result):
    pair = scores(result)
    total, epistemic = pair["total sd ratio"], pair["epistemic sd ratio"]
    assert result.verdict == (
        f"The standard deviation of the predictions of b is {total.value:.3f} times that of a ({total.range} times at "
        f"80 % of the points), and its epistemic part {epistemic.value:.3f} times ({epistemic.range} times at 80 % of "
        f"the points). Their means differ by {pair['rms mean difference'].value:.3f} (root mean square over points)."
    )
    last = str(result).rpartition("\n\n")[2]
    assert last.split() == result.verdict.split()
    assert max(map(len, last.splitlines())) <= 80


def test_one_kind_of_average_in_the_table_the_words_and_predictions(result):
    own, others = (row.scores["epistemic sd"].value for row in result.methods)
    ratio = scores(result)["epistemic sd ratio"].value
    assert others / own == pytest.approx(ratio, rel=1e-6)
    assert f"its epistemic part {ratio:.3f} times" in result.verdict
    for row in result.methods:
        assert f"epistemic_sd {row.scores['epistemic sd'].value:.3g} (root mean squares)" in str(
            result.predictions[row.method]
        )


def test_of_several_methods_the_closest_is_named_in_each_region():
    entries = {"exact": Weights(*A), "far": Weights(5.0, 0.4), "near": Weights(1.1, 0.4)}
    regions = {"left": torch.tensor([False, False, True]), "right": torch.tensor([True, True, False])}
    first, second = pb.compare(line(), entries, X, regions=regions, num_samples=100, seed=0).verdict.splitlines()
    assert first.startswith("left: near is the closest of 2 methods to exact (wasserstein 0.")
    assert second.startswith("right: near is the closest of 2 methods to exact (wasserstein 0.")


def test_a_reference_that_went_wrong_tells_nothing_about_the_others():
    reference = Weights(*A)
    said = "NUTS: 4 chains of 100 draws each; the chains disagree."
    reference.status = pb.Status(False, said, remedy="Sample longer.", verdict="the chains disagree. Also, it rains.")
    result = pb.compare(line(), {"nuts": reference, "b": Weights(*B)}, X, num_samples=100, seed=0)
    assert result.verdict.startswith("NOT OK: nuts: The chains disagree. Sample longer. Until then, these numbers")
    first, second, blank, *_ = str(result).splitlines()  # wrapped, and without the facts of the status
    assert (f"{first} {second}", blank) == (result.verdict, "")
    assert max(len(first), len(second)) <= 80
    assert "4 chains" not in str(result)
    assert repr(result).splitlines()[1] == "  NOT OK: nuts: The chains disagree."
    assert len(result.to_frame()) == len(result.rows())


def test_a_reference_with_slight_trouble_still_tells_about_the_others():
    reference = Weights(*A)
    reference.status = pb.Status(False, "R-hat is 1.011.", is_slight=True)
    result = pb.compare(line(), {"nuts": reference, "b": Weights(*B)}, X, num_samples=100, seed=0)
    doubt = "NOT OK: nuts: R-hat is 1.011. Until then, small differences are uncertain."
    assert result.verdict == f"{doubt}\n{result.differences}"
    assert " ".join(str(result).split()).endswith(result.differences)


def test_another_method_that_went_wrong_is_named_in_red():
    other = Weights(*B)
    other.status = pb.Status(False, "The loss still falls.", remedy="Fit longer.")
    result = pb.compare(line(), {"nuts": Weights(*A), "b": other}, X, num_samples=100, seed=0)
    first, second = result.verdict.splitlines()
    assert (
        first
        == "NOT OK: b: The loss still falls. Fit longer. Until then, its numbers do not tell how good the method is."
    )
    assert second.startswith("The standard deviation of the predictions of b")
    top, *_, last = str(result).split("\n\n")  # the warning is above the numbers, and the result below
    assert (" ".join(top.split()), " ".join(last.split())) == (first, second)
    assert re.search(r'style="color[^"]*">NOT OK: b: The loss', result._repr_html_())
    assert "NOT OK" not in pb.compare(line(), {"a": Weights(*A), "b": Weights(*B)}, X, num_samples=100, seed=0).verdict


def test_the_picture_of_curves(result, tmp_path):
    axes = plotting.comparison(result, data=(X, X))
    assert [ax.get_title().partition(":")[0] for ax in axes[:2]] == ["a", "b"]
    assert {line.get_label() for line in axes[-1].get_lines()} == {"a", "b", "data"}
    plotting.save(axes[0], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_yes_or_no_with_one_output():
    model, x, y = small_model(likelihood="bernoulli", net=nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)))
    guides = [pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=scale)) for scale in (0.1, 0.5)]
    result = pb.compare(model, {"a": guides[0], "b": guides[1]}, x, y=y[:, :1], num_samples=100)
    assert 0 < scores(result)["total variation"].value < 0.5


def test_ensembles_of_chains_and_things_that_are_infinite(tmp_path):
    class Stored(Weights):
        num_stored = 50

    class TooFew(Weights):
        num_stored = 30

    with pytest.raises(ValueError, match=r"the number of draws that 'b' stores.* at least 40, got 30"):
        pb.compare(line(), {"a": Weights(*A), "b": TooFew(*B)}, X)

    ensemble = pb.EnsemblePosterior([Stored(*A), Stored(*B)])
    assert ensemble.num_stored == 100
    posteriors = {"point": Weights(1.0, 0.0), "ensemble": ensemble}
    result = pb.compare(line(), posteriors, X, num_samples=400)
    assert [p.num_samples for p in result.predictions.values()] == [400, 100]
    assert "inf" in str(result)
    assert "times at 80 % of the points), and point has no epistemic part. Their" in result.verdict
    result.to_json(tmp_path / "table.json")
    content = json.loads((tmp_path / "table.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content["pairs"][0]["scores"]["epistemic sd ratio"]["value"] is None
    assert len(repr(result)) < 5000


def test_what_cannot_be_compared():
    model, x, _ = small_model()
    with pytest.raises(ValueError, match=r"at least two methods .*; add a reference, such as"):
        pb.compare(line(), {"a": Weights(*A)}, X)
    with pytest.raises(ValueError, match="`num_samples` must be a whole number of at least 40"):
        pb.compare(line(), {"a": Weights(*A), "b": Weights(*B)}, X, num_samples=10)
    classes = Biases(model, torch.zeros(3), torch.zeros(3), 0.5)
    other = pb.BayesianModel(
        nn.Linear(4, 1), prior=pb.NormalPrior(1.0), likelihood=pb.GaussianLikelihood(1.0), num_data=3
    )
    guide = pb.GuidePosterior(pb.MeanFieldGuide(other))
    with pytest.raises(ValueError, match=r"be a dict .*, got BayesianModel; call `compare\(model, \{.*\}, x\)`"):
        pb.compare({"a": Weights(*A), "b": Weights(*B)}, line(), X)
    with pytest.raises(ValueError, match=r"`posteriors\['b'\]` must be a posterior"):
        pb.compare(line(), {"a": Weights(*A), "b": None}, X)
    with pytest.raises(ValueError, match="`regions` is empty"):
        pb.compare(line(), {"a": Weights(*A), "b": Weights(*B)}, X, regions={})
    wide = pb.BayesianModel(
        nn.Linear(1, 2), prior=pb.NormalPrior(1.0), likelihood=pb.GaussianLikelihood(1.0), num_data=3
    )
    with pytest.raises(ValueError, match="of the same shape"):
        pb.compare(line(), {"a": Weights(*A), "b": (wide, pb.MeanFieldGuide(wide))}, X, num_samples=40)
    with pytest.raises(ValueError, match="must all predict classes or all numbers"):
        pb.compare(model, {"a": classes, "b": (other, guide)}, x, num_samples=40)


def test_a_notebook_shows_the_scores_of_all_methods_and_the_distances_from_the_first(result):
    page = result._repr_html_()
    for name in ("epistemic sd", "coverage_90", "nll", "wasserstein"):
        assert f">{name}</th>" in page
    assert page.count("<tr>") == 3
    assert str(scores(result)["wasserstein"]) in page
    assert in_digits("nll", [row.scores["nll"] for row in result.methods])[0] in page
    assert f"({scores(result)['total sd ratio'].range})</td>" in page
    assert "in brackets are the 10 % and 90 % quantiles of the ratio over points." in page


def test_estimates_side_by_side_have_the_same_digits():
    estimates = [Estimate(2.392, 0.061), Estimate(0.9903, 0.0010), Estimate(1.0, math.nan)]
    assert in_digits("epistemic sd", estimates) == ["2.392 ± 0.061", "0.990 ± 0.001", "1.000"]
    assert in_digits("coverage_90", [Estimate(0.9, 0.05), Estimate(0.25, 0.1)]) == ["90.0 ± 5.0 %", "25.0 ± 10.0 %"]
    assert in_digits("total sd ratio", [Estimate(1.0, math.nan), Estimate(1234.5, 0.0)]) == ["1.00", "1,234"]
