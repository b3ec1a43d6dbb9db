"""Summaries of objects at the prompt and in notebooks."""

import functools
import re
from collections import OrderedDict
from dataclasses import replace
from html.parser import HTMLParser

import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core.summary import Summary, in_lines
from pyro_bnn.inference.history import History
from pyro_bnn.inference.laplace import LaplacePosterior
from pyro_bnn.inference.mcmc import ChainStatistics
from pyro_bnn.results.pruning import prune

from . import cases
from .cases import small_model, small_net
from .chains import quietly


def fitted(num_epochs=3):
    model, x, y = small_model(num_data=6)
    guide = pb.MeanFieldGuide(model)
    adam = functools.partial(torch.optim.Adam, lr=1e-2)
    return model, x, pb.fit_svi(model, (x, y), guide, optimizer=adam, num_epochs=num_epochs, seed=0)


def chains(message="four chains."):
    samples = {"net.weight": torch.zeros(4, 50, 3, 2), "net.bias": torch.zeros(4, 50, 3)}
    nothing = dict.fromkeys(("log_density", "energy", "accept", "diverging", "num_steps", "step_size", "inverse_mass"))
    return pb.MCMCPosterior(
        samples, ChainStatistics(**nothing, seconds=7.25), pb.Status(False, message), sampler="NUTS"
    )


def prediction(likelihood, **kwargs):
    model, x, y = small_model(likelihood=likelihood)
    return pb.predict(model, pb.DeltaGuide(model), x, num_samples=4, y=y, seed=0, **kwargs)


@functools.cache
def objects():
    """One object of each kind, and unusual ones."""
    model, x, posterior = fitted()
    y = torch.randint(3, (len(x),))
    gaussian, x_gaussian, y_gaussian = small_model(likelihood="gaussian-latent", num_data=6)
    deep = nn.Sequential(*(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))) for _ in range(12)))
    long_names = nn.Sequential(OrderedDict({"a_name_of_a_layer_" * 12: nn.Linear(4, 3)}))
    build = functools.partial(pb.BayesianModel, prior=pb.HorseshoePrior(), likelihood=pb.GaussianLikelihood(None))
    return {
        "model": model,
        "model with latent noise": gaussian,
        "deep model": build(deep, num_data=10),
        "model with long names": build(long_names, num_data=10),
        "model with some random parameters": build(small_net(), num_data=10, where="**.bias"),
        **{f"guide {name}": make(model) for name, make in cases.GUIDES.items() if not name.startswith("auto")},
        "point": pb.DeltaGuide(model),
        "fit": posterior,
        "pruned": prune(posterior, fraction=0.5),
        "stock guide": pb.GuidePosterior(pb.auto_guide(AutoNormal, model)),
        "function": pb.GuidePosterior(lambda *_: None),
        "ensemble": pb.EnsemblePosterior([posterior, posterior]),
        "ensemble of ensembles": pb.EnsemblePosterior([pb.EnsemblePosterior([posterior] * 2)] * 3),
        "Laplace": quietly(pb.fit_laplace, gaussian, (x_gaussian, y_gaussian), max_iter=3),
        "chains": chains("R-hat is 1.3.\n" * 30),
        "history": posterior.history,
        "long history": fitted(num_epochs=40)[2].history,
        "empty history": History(),
        **{f"prediction of {name}": prediction(name) for name in cases.LIKELIHOODS},
        "prediction with draws": prediction("gaussian-fixed", keep_draws=True),
        "prediction of one draw": pb.predict_point(model, posterior.median(), x),
        "prediction of no rows": prediction("categorical")[:0],
        "comparison": pb.compare(model, {"a": posterior, "b": posterior}, x, num_samples=40, seed=0),
        "images": pb.data.load_images("digits"),
        "numbers": pb.data.Regression(x, x[:, :1], x, x[:, :1]),
        "diagnosis": posterior.diagnose(model),
        "gradient noise": pb.gradient_noise(model, posterior, x, y, num_samples=3, seed=0),
        "pruning report": pb.pruning.snr_report(model, posterior, x, y, num_samples=2, seed=0),
        "diagnostics": chains().diagnose(),
        "statistics": ChainStatistics(accept=torch.rand(4, 50), diverging=torch.rand(4, 50) < 0.1),
        "intervals": pb.calibration.ConformalIntervals(prediction("gaussian-fixed"), torch.zeros(6, 2)),
        "sets": pb.calibration.ConformalSets(prediction("categorical"), torch.tensor([0, 1] * 3)),
        "adaptive intervals": pb.calibration.AdaptiveIntervals(),
        "calibration bins": pb.metrics.calibration_bins(torch.full((6, 2), 0.5), [0, 1] * 3),
        **{f"half a {kind.__name__}": kind.__new__(kind) for kind in KINDS},
    }


KINDS = (
    *(pb.BayesianModel, pb.MeanFieldGuide, pb.LowRankGuide, pb.GuidePosterior, pb.EnsemblePosterior, LaplacePosterior),
    *(pb.MCMCPosterior, History, pb.uncertainty.ClassificationPrediction, pb.uncertainty.RegressionPrediction),
)


@pytest.fixture(scope="module", autouse=True)
def in_double_precision():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    return objects()


def is_short(text, width=80):
    lines = text.splitlines()
    return 1 <= len(lines) <= 13 and max(map(len, lines)) <= width


def test_every_object_has_few_short_lines_that_begin_with_its_class():
    for name, value in objects().items():
        text = repr(value)
        assert is_short(text, 100 if name == "diagnosis" else 80), f"{name}:\n{text}"
        assert text.startswith(type(value).__name__), name
        assert ("without details" in text) == name.startswith("half"), name


def test_a_status_is_shown_to_the_end_where_its_remedy_is():
    posterior = pb.MCMCPosterior(
        {"net.weight": torch.zeros(2, 50, 3)},
        ChainStatistics(accept=torch.ones(2, 50)),
        pb.Status(False, "The chains disagree. " * 30, remedy="Sample longer."),
        sampler="NUTS",
    )
    lines = repr(posterior).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(line.strip() for line in lines).count("The chains disagree.") == 30
    assert any(line.endswith("Sample longer.") for line in lines)


def test_long_texts_are_recognised():
    assert not is_short("a\n" * 14)
    assert not is_short("a" * 101)


def test_showing_an_object_draws_nothing_and_runs_nothing(monkeypatch):
    shown = objects()

    def never(*_, **__):
        raise AssertionError("it was run")

    for owner, name in ((nn.Linear, "forward"), (pb.MeanFieldGuide, "draws"), (pb.MCMCPosterior, "draws")):
        monkeypatch.setattr(owner, name, never)
    before = torch.get_rng_state()
    for value in shown.values():
        repr(value)
        value._repr_html_()
    assert torch.equal(torch.get_rng_state(), before)


# --- exact texts ------------------------------------------------------------------------------------------------------


def lines(*expected):
    return "\n".join(expected)


def test_a_model_shows_its_sites():
    assert repr(small_model(where="**.weight")[0]) == lines(
        "BayesianModel of Sequential: 35 numbers with a prior, 8 learned",
        "  prior: NormalPrior(scale=0.7)",
        "  likelihood: CategoricalLikelihood()",
        "  data: 20 rows, float64 on cpu",
        "  predictions: predict(model, posterior, x); model(x) only draws from the prior",
        "  parameter     shape   numbers  state",
        "  net.0.weight  (5, 4)       20  random",
        "  net.2.weight  (3, 5)       15  random",
        "  net.0.bias    (5,)          5  learned",
        "  net.2.bias    (3,)          3  learned",
    )


def test_many_parameters_are_counted_by_kind_of_layer():
    assert repr(objects()["deep model"]) == lines(
        "BayesianModel of Sequential: 1,044 numbers with a prior, 1 learned",
        "  prior: HorseshoePrior(global_scale=1.0, local='unit', slab_scale=None,",
        "  per='layer')",
        "  likelihood: GaussianLikelihood(learned scale), so fit(...) is variational",
        "  data: 10 rows, float64 on cpu",
        "  predictions: predict(model, posterior, x); model(x) only draws from the prior",
        "  layer and parameter  how many         numbers",
        "  prior.global_scale   36 of 36 random       36",
        "  prior.local_scales   72 of 72 random      288",
        "  Linear.weight, bias  36 of 36 random      720",
        "  likelihood.rho       1 of 1 learned         1",
    )


def test_what_is_random_what_is_learned_and_what_is_frozen():
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(4)), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    net.register_parameter("shift", nn.Parameter(torch.zeros(())))
    where = [pb.layers(nn.Linear) - "**.bias", "net.shift"]
    assert repr(small_model(net=net, where=where, exclude="net.1.*.*")[0]) == lines(
        "BayesianModel of Sequential: 61 numbers with a prior, 55 learned, 12 frozen",
        "  batch normalisation: fit(...) is variational; predict by a RefreshedPosterior",
        "  prior: NormalPrior(scale=0.7)",
        "  likelihood: CategoricalLikelihood()",
        "  data: 20 rows, float64 on cpu",
        "  predictions: predict(model, posterior, x); model(x) only draws from the prior",
        "  layer and parameter       how many        numbers  layers",
        "  Sequential.shift          1 of 1 random         1",
        "  Linear.weight             4 of 5 random        60",
        "  Linear.weight             1 of 5 learned       16  1.0",
        "  Linear.bias               4 of 5 learned       15",
        "  BatchNorm1d.weight, bias  3 of 4 learned       24",
        "  Linear.bias               1 of 5 frozen         4  0.0",
        "  BatchNorm1d.weight, bias  1 of 4 frozen         8  0.1",
    )


def test_the_middle_of_a_long_list_is_left_out():
    posterior = pb.GuidePosterior(pb.MeanFieldGuide(objects()["deep model"]))
    assert re.search(r"\n  \.\.\. \d+ more\n  net\.11\.\d\.", repr(posterior))


def test_a_guide_shows_its_sites():
    guide = pb.MeanFieldGuide(small_model(where="net.2.*")[0])
    assert repr(guide) == lines(
        "MeanFieldGuide of 18 numbers in 2 tensors: 36 parameters, float64 on cpu",
        "  net.2.weight  (3, 5)  15",
        "  net.2.bias    (3,)     3",
    )
    assert repr(prune(guide, fraction=0.5).guide).splitlines()[1] == "  9 weights of 2 sites are removed"


def test_a_title_of_ninety_characters_is_wrapped_and_not_cut():
    assert Summary("some words " * 9).text() == lines("some words " * 6 + "some words", "  some words some words")


def test_posteriors_show_method_status_and_sites():
    posterior = pb.GuidePosterior(pb.MeanFieldGuide(small_model(where="net.2.*")[0]))
    assert repr(posterior) == lines(
        "GuidePosterior: MeanFieldGuide, 18 numbers in 2 tensors",
        "  unknown: no fit of this guide is known. After a loop of your own, plot its",
        "  losses, and call `predict(..., y=y).score()` with held-out rows.",
        "  net.2.weight  (3, 5)  15",
        "  net.2.bias    (3,)     3",
    )
    assert repr(chains()) == lines(
        "MCMCPosterior: NUTS, 9 numbers in 2 tensors, 200 draws, 7.25 s",
        "  NOT OK: four chains.",
        "  net.weight  (3, 2)  6",
        "  net.bias    (3,)    3",
    )
    titles = {name: repr(objects()[name]).splitlines()[0] for name in ("fit", "ensemble", "Laplace", "stock guide")}
    assert re.fullmatch(r"GuidePosterior: SVI with MeanFieldGuide, 43 numbers in 4 tensors, [\d.e-]+ s", titles["fit"])
    assert titles["ensemble"].startswith("EnsemblePosterior: ensemble of 2 (SVI with MeanFieldGuide), 43 numbers")
    assert re.match(r"LaplacePosterior: Laplace, 38 numbers in 5 tensors, ", titles["Laplace"])
    assert titles["stock guide"] == "GuidePosterior: AutoNormal, 43 numbers in 4 tensors"


def test_a_prediction_shows_its_uncertainty():
    probs = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    numbers = {"aleatoric": torch.tensor([0.25, 0.5]), "mutual_information": torch.tensor([0.125, 0.25])}
    nothing = dict.fromkeys(("log_density", "votes", "variance_of_logits", "logits"))
    of_classes = pb.uncertainty.ClassificationPrediction(num_samples=1000, probs=probs, **numbers, **nothing)
    assert repr(of_classes) == lines(
        "ClassificationPrediction: 2 rows, 2 classes, 1,000 draws",
        "  mean entropy 0.562 nats = aleatoric 0.375 + epistemic 0.188; the most probable",
        "  class has probability 0.625 (mean)",
        "  row  label  total_nats  aleatoric_nats  epistemic_nats  prob_0  prob_1",
        "    0      0       0.375            0.25           0.125     0.5     0.5",
        "    1      1        0.75             0.5            0.25    0.25    0.75",
    )
    of_numbers = pb.uncertainty.RegressionPrediction(
        num_samples=4,
        log_density=torch.tensor([-1.0]),
        mean=torch.zeros(1, 2),
        aleatoric=torch.full((1, 2), 9.0),
        variance_of_means=torch.full((1, 2), 16.0),
        components=None,
    )
    assert repr(of_numbers) == lines(
        "RegressionPrediction: 1 row, 2 outputs, 4 draws",
        "  sd 5, aleatoric_sd 3, epistemic_sd 4 (root mean squares)",
        "  variances: total = sd², aleatoric = aleatoric_sd², epistemic = epistemic_sd²",
        "  mean negative log-density of the targets: 1 nats",
        "  first row; `prediction.to_frame()` has all rows and columns:",
        "  row  mean_0  mean_1  sd_0  sd_1  aleatoric_sd_0  aleatoric_sd_1  ...",
        "    0       0       0     5     5               3               3  ...",
    )


def test_rounding_errors_are_no_uncertainty():
    shown = [
        repr(objects()[f"prediction of {name}"]).split("\n  row ")[0] for name in ("categorical", "gaussian-fixed")
    ]
    assert all(re.search(r"epistemic(_sd)? 0\b", " ".join(text.split())) and "e-" not in text for text in shown)


def test_results_show_what_they_found():
    shown = {name: repr(objects()[name]).splitlines() for name in ("comparison", "images", "pruning report")}
    assert shown["comparison"][0] == "Comparison: 2 methods, compared with a"
    assert [line[:24] for line in shown["comparison"][1:3]] == ["  unknown: a: Not judged", "  unknown: b: Not judged"]
    assert re.fullmatch(r"  all points  b +100 % +0\.\d+ ± 0\.\d+", shown["comparison"][4])
    assert shown["images"] == [
        "Images: 1,347 to train, 450 to test, 8 x 8, float32 on cpu",
        "  10 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9",
    ]
    header = ["removed", "weights left", "accuracy, mean weights", "NLL", "accuracy, draws", "NLL"]
    assert re.split("  +", shown["pruning report"][1].strip()) == header


def test_a_text_of_several_lines_is_shown_without_quotes():
    text = in_lines("The fit ended. Raise `max_iter`.")
    assert isinstance(text, str)
    assert repr(text) == text == "The fit ended.\nRaise `max_iter`."


def test_likelihoods_show_their_settings():
    assert repr(pb.GaussianLikelihood(0.5)) == "GaussianLikelihood(scale=0.5)"
    assert repr(pb.GaussianLikelihood(None)) == "GaussianLikelihood(learned scale)"
    assert repr(pb.GaussianLikelihood()) == "GaussianLikelihood(latent scale)"
    assert repr(pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0))) == "GaussianLikelihood(latent scale)"
    assert repr(pb.MixtureDensityLikelihood(3)) == "MixtureDensityLikelihood(3)"


def test_numbers_that_are_nowhere_do_no_harm():
    prediction = objects()["prediction of categorical"]
    nowhere = replace(prediction, probs=prediction.probs.to("meta"), aleatoric=prediction.aleatoric.to("meta"))
    assert repr(nowhere) == "ClassificationPrediction (without details: RuntimeError)"


# --- notebooks --------------------------------------------------------------------------------------------------------


class Balance(HTMLParser):
    """Checks that every tag is closed, and collects tags and texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_notebooks_show_the_same_as_a_table():
    for value in objects().values():
        page = Balance(value._repr_html_())
        assert {*page.tags} <= {"div", "strong", "code", "table", "tr", "td", "th"}
        assert page.texts[0].startswith(type(value).__name__)
    page = Balance(objects()["fit"]._repr_html_())
    assert page.tags.count("tr") == 1 + 4
    assert {"site", "shape", "numbers", "net.0.weight", "(5, 4)", "20"} <= {*page.texts}


def test_a_notebook_shows_what_matters():
    """A bad status is in red, code has its own letters, and a comparison says what it found."""
    posterior = chains()
    assert 'style="color' in posterior._repr_html_().partition("NOT OK")[0]
    posterior.status = pb.Status(True, "try `<b>`.")
    shown = posterior._repr_html_()
    assert "ok: try <code>&lt;b&gt;</code>." in shown
    assert "color" not in shown
    comparison = objects()["comparison"]
    texts = Balance(comparison._repr_html_()).texts
    assert "seconds" in texts
    assert "".join(comparison.verdict.split()).replace("`", "") in "".join("".join(texts).split())


def test_numbers_are_aligned_at_the_right_and_names_at_the_left():
    for name in ("history", "comparison", "diagnosis", "calibration bins"):
        table = objects()[name]._repr_html_()
        cells = re.findall(r'<td style="text-align: (\w+); padding: [^"]+">([^<]+)</td>', table)
        assert cells, name
        for side, cell in cells:
            assert (side == "right") == bool(re.match(r"-?(\d|nan|inf)", cell)), (name, cell)


def test_texts_in_a_notebook_are_escaped():
    net = nn.Sequential()
    net.add_module("<script>alert(1)</script>", nn.Linear(4, 3))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=3)
    posterior = pb.GuidePosterior(pb.MeanFieldGuide(model), pb.Status(True, "<b>bold</b>"))
    for value in (model, posterior):
        assert "script" not in Balance(value._repr_html_()).tags
        assert "net.<script>alert(1)</script>.weight" in Balance(value._repr_html_()).texts
    assert "ok: <b>bold</b>" in Balance(posterior._repr_html_()).texts
