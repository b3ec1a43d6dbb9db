"""What notebooks show of predictions, comparisons and estimators, beyond the texts at the prompt."""

import re

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn._core.summary import Number, Summary
from pyro_bnn.inference.history import History

from .cases import small_model
from .test_repr import lines


def cells(page, tag="td"):
    return re.findall(rf"<{tag} [^>]*>([^<]*)</{tag}>", page)


def test_a_prediction_of_numbers_shows_its_first_rows():
    model, x, _ = small_model(likelihood="gaussian-fixed")
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    prediction = pb.predict(model, guide, torch.cat([x, x]), num_samples=4, seed=0)
    page = prediction._repr_html_()
    names = cells(page, "th")
    assert names == ["row", *prediction.to_frame().columns]
    shown = np.array(cells(page), float).reshape(5, len(names))
    np.testing.assert_array_equal(shown[:, 0], range(5))
    for name, outputs in (("mean", prediction.mean), ("sd", prediction.sd), ("epistemic_sd", prediction.epistemic_sd)):
        np.testing.assert_allclose(shown[:, names.index(f"{name}_0")], outputs[:5, 0], rtol=1e-3)
    assert "first 5 rows; <code>prediction.to_frame()</code> has all" in page
    assert "row" not in prediction[:0]._repr_html_().partition(",")[2]
    assert "first 3 rows" in repr(prediction)


def test_a_prediction_of_classes_shows_its_probabilities():
    model, x, _ = small_model()
    prediction = pb.predict(model, pb.MeanFieldGuide(model), x[:3], num_samples=4, seed=0)
    page = prediction._repr_html_()
    names = cells(page, "th")
    assert names == ["row", "label", "total_nats", "aleatoric_nats", "epistemic_nats", "prob_0", "prob_1", "prob_2"]
    shown = np.array(cells(page), float).reshape(3, len(names))
    np.testing.assert_allclose(shown[:, 5:], prediction.probs, rtol=1e-3)
    assert shown[:, 1].tolist() == prediction.labels.tolist()


def test_a_number_and_its_error_stay_on_one_line():
    page = Summary("title", rows=[("nuts", Number("0.1830 ± 0.0077"))], header=("method", "sd")).html()
    style = re.search(r'<td style="([^"]*)">0.1830 ± 0.0077</td>', page)[1]
    assert "white-space: nowrap" in style


@pytest.mark.parametrize("kind", [pb.BNNRegressor, pb.BNNClassifier])
def test_an_estimator_shows_its_network_and_the_status_of_the_fit(kind):
    X = np.linspace(-1, 1, 30)[:, None]
    y = X[:, 0] if kind is pb.BNNRegressor else X[:, 0] > 0
    estimator = kind((7, 5), method="laplace", max_iter=200, random_state=0)
    assert "status" not in estimator._repr_html_()
    estimator.fit(X, y)
    for page in (estimator._repr_html_(), estimator._repr_mimebundle_()["text/html"]):
        line = re.search(r"<summary>Fit: [^<]*, <strong style=.color: #2a9d4a[^>]*>ok</strong></summary>", page)
        end = page[page.index(line[0]) + len(line[0]) :]
        assert "1 input, 7 + 5 hidden units" in end
        assert "ok: The point lies" in end
        assert "Fit:" not in end  # once
        assert page.index(line[0]) > page.index("</style>")  # below the HTML of scikit-learn
        assert "1 input" not in line[0]
    estimator.posterior_.status = pb.Status(False, "The chains disagree: see `status_`.")
    shown = r'style="color[^"]*">NOT OK: The chains disagree: see <code>status_</code>\.'
    assert re.search(shown, estimator._repr_html_())


def test_the_first_clause_of_a_bad_status_is_red():
    model, _, _ = small_model(num_data=6)
    status = pb.Status(False, "it's too short, by 0.5; see `<b>`.", remedy="Sample longer.")
    shown = pb.GuidePosterior(pb.MeanFieldGuide(model), status)._repr_html_()
    red = re.search(r'<strong style="[^"]*">(.*?)</strong>(.*?)</div>', shown)
    assert red[1] == "NOT OK: it&#x27;s too short, by 0.5;"
    assert red[2] == " see <code>&lt;b&gt;</code>. Sample longer."


def test_at_the_prompt_no_line_begins_with_a_percent_sign():
    text = Summary("title", [f"{'word ' * 15}300 % of all"]).text()
    assert text.splitlines() == ["title", f"  {' '.join(['word'] * 15)}", "  300 % of all"]


def test_a_history_shows_its_first_and_last_epochs():
    history = History(num_data=20, path="direct")
    for epoch in range(30):
        history.add_step(-10.0 + epoch, 5.0, 1.0)
        history.end_epoch([20], 0.125, 2.0)
    assert repr(history) == lines(
        "History: 30 epochs, 30 steps, 20 data points, 60 s",
        "  gradients: direct",
        "  epoch  ELBO in nats  log-likelihood  KL  KL weight  learning rate",
        "      0           -15             -10   5          1          0.125",
        "      1           -14              -9   5          1          0.125",
        "      2           -13              -8   5          1          0.125",
        "      3           -12              -7   5          1          0.125",
        "  ... 22 more",
        "     26            11              16   5          1          0.125",
        "     27            12              17   5          1          0.125",
        "     28            13              18   5          1          0.125",
        "     29            14              19   5          1          0.125",
    )


def test_a_step_shows_its_elbo_in_words():
    model, x, y = small_model()
    with pb.svi_step(model, pb.MeanFieldGuide(model), torch.optim.Adam) as step:
        assert re.fullmatch(r"StepTerms: ELBO \S+ nats = log-likelihood \S+ - KL \S+, from \d+ rows", repr(step(x, y)))


def test_a_guide_with_other_shapes_is_refused_by_site():
    model, x, y = small_model()
    other = small_model(net=pb.nets.mlp([x.shape[1], 9, 3]))[0]
    guide = pb.MeanFieldGuide(other)
    raised = pytest.raises(ValueError, match="made for another model: it")
    with raised, pb.svi_step(model, guide, torch.optim.Adam) as step:
        step(x, y)


@pytest.mark.filterwarnings("ignore")
def test_too_few_draws_of_an_estimator_name_its_own_setting():
    x = np.linspace(-1, 1, 20)[:, None]
    regressor = pb.BNNRegressor(method="mclmc", max_iter=10, num_members=2, random_state=0).fit(x, x[:, 0])
    assert "Raise `max_iter`" in regressor.status_
    assert "target_accept" not in regressor.status_


@pytest.mark.parametrize("activation", ["tanh", torch.tanh, torch.nn.Tanh()])
def test_an_activation_that_is_no_function_of_nothing_names_the_class(activation):
    with pytest.raises(ValueError, match=r"such as torch\.nn\.ReLU, got .*; pass torch\.nn\.Tanh\."):
        pb.nets.mlp([1, 2, 1], activation=activation)
