"""Exported predictions are those of `predict`: as a module, by torch.export and torch.compile, and in onnxruntime."""

import functools
import math
from concurrent.futures import ThreadPoolExecutor

import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.interop import PredictiveModule
from pyro_bnn.interop.export import _onnx
from pyro_bnn.interop.export._module import largest_difference

from .cases import LIKELIHOODS, small_model
from .tolerances import assert_identical

onnxruntime = pytest.importorskip("onnxruntime")

ANSWERS = {True: ("probs", "aleatoric", "epistemic"), False: ("mean", "aleatoric", "epistemic")}
NUM_DRAWS = 6
ROWS = {0: torch.export.Dim("rows")}


def in_runtime(path, *inputs):
    """Results of a file in onnxruntime, by name."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feed = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs, strict=True)}
    return dict(zip(names, map(torch.from_numpy, session.run(None, feed)), strict=True))


def by_predict(model, posterior, x, *, seed=0):
    prediction = pb.predict(model, posterior, x, num_samples=NUM_DRAWS, seed=seed)
    return {name: getattr(prediction, name) for name in ANSWERS[hasattr(prediction, "probs")]}


def assert_close(found, expected, tolerance=1e-5):
    assert [*found] == [*expected]
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


def a_model(net, likelihood, **options):
    return pb.BayesianModel(net, prior=pb.NormalPrior(0.3), likelihood=likelihood, num_data=100, **options)


# --- likelihoods ------------------------------------------------------------------------------------------------------


@pytest.mark.daily(
    "categorical", "gaussian-latent*", "heteroscedastic", "mixture-density", "ordinal", "own", "zero-inflated"
)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_module_predicts_like_predict(likelihood):
    model, x, _ = small_model(likelihood=likelihood)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    module = PredictiveModule(model, guide, x, num_samples=NUM_DRAWS, seed=0)
    found, twin = module(x), by_predict(model, guide, x, seed=1)  # the twin has other draws
    for name, value in by_predict(model, guide, x).items():
        assert_identical(found[name], value)
        assert name == "aleatoric" or not torch.allclose(found[name], twin[name], rtol=1e-3)


@pytest.mark.parametrize(
    "likelihood",
    [pytest.param(name, marks=() if name == "categorical" else pytest.mark.nightly) for name in LIKELIHOODS],
)
def test_a_file_predicts_like_predict_for_any_number_of_rows_and_says_how_it_was_made(likelihood, tmp_path):
    model, x, _ = small_model(likelihood=likelihood)
    model, x = model.float(), x.float()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    pb.export_onnx(model, guide, x, tmp_path / "file.onnx", num_samples=NUM_DRAWS, seed=5)
    for rows in (torch.randn(1, 4, dtype=x.dtype), torch.randn(50, 4, dtype=x.dtype)):
        assert_close(in_runtime(tmp_path / "file.onnx", rows), by_predict(model, guide, rows, seed=5))
    assert not torch.allclose(
        in_runtime(tmp_path / "file.onnx", rows)["epistemic"], by_predict(model, guide, rows, seed=1)["epistemic"]
    )
    session = onnxruntime.InferenceSession(tmp_path / "file.onnx")
    assert {value.shape[0] for value in (*session.get_inputs(), *session.get_outputs())} == {"rows"}
    assert session.get_modelmeta().custom_metadata_map == {"num_samples": str(NUM_DRAWS), "seed": "5"}
    assert b".py" not in (tmp_path / "file.onnx").read_bytes()  # no paths of this machine


# --- networks ---------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


class Words(nn.Module):
    """Two inputs, of which one are whole numbers; a padding row; tied weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3, padding_idx=0)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words, shift):
        return self.head(self.embedding(words).sum(1) + shift)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


def networks():
    scale = pb.nets.Standardize(torch.randn(4), torch.rand(4) + 0.5)
    images = torch.randn(5, 28, 28)
    rows, twice = torch.randn(6, 4), nn.Linear(4, 4)
    words = (torch.arange(12).reshape(4, 3) % 7, torch.randn(4, 3))
    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return {
        "mlp": (nn.Sequential(scale, twice, nn.Tanh(), twice, nn.Linear(4, 3)), rows, {}, "vmap"),
        "LeNet": (pb.nets.lenet5(), images, {}, "scan"),
        "batch norm": (body, rows, {}, "scan"),
        "attention": (Attention(), torch.randn(5, 6, 8), {}, "scan"),
        "last layer": (pb.nets.lenet5(), images, {"where": "net.linear3.*"}, "vmap"),
        "two inputs": (Words(), words, {}, "scan"),
        "named inputs": (Words(), dict(zip(("words", "shift"), words, strict=True)), {}, "scan"),
    }


def leaves(x):
    return [x] if isinstance(x, torch.Tensor) else [*(x.values() if isinstance(x, dict) else x)]


def shapes(x):
    """Shapes with any number of rows, for `torch.export`."""
    if isinstance(x, torch.Tensor):
        return ROWS
    return dict.fromkeys(x, ROWS) if isinstance(x, dict) else tuple(ROWS for _ in x)


def some(x, rows):
    """Some rows of inputs."""
    if isinstance(x, torch.Tensor):
        return x[rows]
    return {key: part[rows] for key, part in x.items()} if isinstance(x, dict) else tuple(part[rows] for part in x)


NETWORKS = ["mlp", "LeNet", "batch norm", "attention", "last layer", "two inputs", "named inputs"]


@functools.cache
def a_fit(name):
    """Model, posterior and inputs in single precision, and how the module computes; made once for all tests."""
    torch.set_default_dtype(torch.float32)
    try:
        net, x, options, way = networks()[name]
        model = a_model(net, pb.CategoricalLikelihood(), **options)
        if name == "batch norm":
            net.train()(torch.randn(50, 4) + 2)
            model = a_model(net, pb.CategoricalLikelihood())
        posterior = pb.GuidePosterior(pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1)))
        if name == "batch norm":
            posterior = pb.RefreshedPosterior(model, posterior, torch.randn(40, 4))
    finally:
        torch.set_default_dtype(torch.float64)
    return model, posterior, x, way


@functools.cache
def a_module(name):
    """The module of :func:`a_fit`, made once for all tests."""
    model, posterior, x, _ = a_fit(name)
    return PredictiveModule(model, posterior, x, num_samples=NUM_DRAWS, seed=0)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.daily("batch norm")  # of these, `test_networks_run_in_onnxruntime` exports one with several inputs
def test_networks_are_exported_and_compiled(name):
    model, posterior, x, way = a_fit(name)
    module = a_module(name)
    assert module.computation == way
    more = some(x, torch.arange(9) % len(leaves(x)[0]))
    expected = by_predict(model, posterior, more)
    assert_close(module(more), expected)
    before = torch.distributions.Distribution._validate_args
    program = torch.export.export(module, (x,), dynamic_shapes=(shapes(x),), strict=False)
    assert_close(program.module()(more), expected)
    expected = by_predict(model, posterior, x)
    try:
        assert_close(torch.compile(module, fullgraph=True, backend="eager")(x), expected)
    finally:  # `torch.compile` turns off all checks of distributions
        torch.distributions.Distribution.set_default_validate_args(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.daily("named inputs")
def test_networks_run_in_onnxruntime(name, tmp_path):
    model, posterior, x, _ = a_fit(name)
    pb.export_onnx(model, posterior, x, tmp_path / "file.onnx", num_samples=NUM_DRAWS, seed=0)
    more = some(x, torch.arange(9) % len(leaves(x)[0]))
    assert_close(in_runtime(tmp_path / "file.onnx", *leaves(more)), by_predict(model, posterior, more))


def test_each_draw_keeps_its_own_statistics_of_batch_normalisation():
    held = a_module("batch norm").state_dict()
    mean = next(held[name] for name in held if "running_mean" in name and name.endswith("values"))
    assert mean.shape == (NUM_DRAWS, 8)
    assert float(mean.std(0).min()) > 0


def test_a_module_stays_in_evaluation_mode():
    x, module = a_fit("batch norm")[2], a_module("batch norm")
    before = module(x)
    torch.nn.Sequential(module).train()
    torch.testing.assert_close(module(x), before, rtol=0, atol=0)


def test_inputs_have_names_in_a_file(tmp_path):
    for name, expected in (("two inputs", ["x_0", "x_1"]), ("named inputs", ["words", "shift"])):
        assert _onnx.input_names(a_fit(name)[2]) == expected


def test_a_missing_folder_is_told(tmp_path):
    model, x, _ = small_model()
    guide = pb.MeanFieldGuide(model)
    with pytest.raises(FileNotFoundError, match=r"must lie in an existing folder"):
        pb.export_onnx(model, guide, x, tmp_path / "missing" / "file.onnx", num_samples=2)


# --- size -------------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_pruned_posterior_makes_a_small_file(tmp_path):
    torch.set_default_dtype(torch.float32)
    model = a_model(pb.nets.mlp([64, 200, 3]), pb.CategoricalLikelihood())
    x, guide = torch.randn(6, 64), pb.MeanFieldGuide(model)
    torch.set_default_dtype(torch.float64)
    pruned = pb.pruning.prune(guide, fraction=0.9)
    pb.export_onnx(model, pruned, x, tmp_path / "pruned", num_samples=NUM_DRAWS, seed=0)
    of_whole = 4 * NUM_DRAWS * sum(location.numel() for location in guide.locations().values())  # bytes of all draws
    assert (tmp_path / "pruned").stat().st_size < of_whole / 4
    assert_close(in_runtime(tmp_path / "pruned", x), by_predict(model, pruned, x))


def test_weights_that_do_not_differ_are_stored_once():
    model, x, _ = small_model()
    module = PredictiveModule(model, pb.DeltaGuide(model), x, num_samples=NUM_DRAWS, seed=0)
    assert sum(value.numel() for value in module.state_dict().values()) == 5 * 4 + 5 + 3 * 5 + 3
    assert float(module(x)["epistemic"].max()) < 1e-30
    assert_close(module(x), by_predict(model, pb.DeltaGuide(model), x))


# --- use --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "batch norm"])
def test_threads_may_share_a_module(name):
    module = a_module(name)
    requests = [torch.randn(20, 4, dtype=torch.float32) for _ in range(64)]
    alone = [module(rows) for rows in requests]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(module, requests))
    assert all(torch.equal(a[key], b[key]) for a, b in zip(alone, together, strict=True) for key in a)


def test_a_module_moves_to_another_dtype_and_says_what_it_is():
    model, x, _ = small_model(likelihood="gaussian-latent")
    module = PredictiveModule(model, pb.MeanFieldGuide(model), x, num_samples=NUM_DRAWS, seed=3)
    assert "num_samples=6, seed=3, computation='vmap'" in repr(module)
    assert not any(parameter.requires_grad for parameter in module.parameters())
    expected = module(x)["mean"]
    torch.testing.assert_close(module.float()(x.float())["mean"], expected.float(), rtol=1e-5, atol=1e-5)


def test_a_stored_posterior_is_exported_whole():
    model, x, _ = small_model()
    stored = pb.StoredPosterior.of(pb.MeanFieldGuide(model), 7, seed=0)
    module = PredictiveModule(model, stored, x)
    assert module.num_samples == 7
    assert_identical(module(x)["probs"], pb.predict(model, stored, x).probs)


# --- refusals ---------------------------------------------------------------------------------------------------------


class OwnObservation(pb.BayesianModel):
    def observation_given(self, values, x):
        return super().observation_given(values, x)


class Noisy(pb.GaussianLikelihood):
    """Its mean is drawn anew in each call."""

    def forward(self, output):
        return dist.Normal(output + torch.randn_like(output), 1.0)


def refused():
    net = pb.nets.mlp([4, 5, 3], dropout=0.5)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    options = {"prior": pb.NormalPrior(), "num_data": 6}
    plain = pb.BayesianModel(pb.nets.mlp([4, 5, 3]), likelihood=pb.CategoricalLikelihood(), **options)
    return {
        "dropout": (a_model(net, pb.CategoricalLikelihood()), pb.MeanFieldGuide, "MCDropout"),
        "noise": (a_model(pb.nets.mlp([4, 3]), Noisy(1.0)), pb.MeanFieldGuide, "random numbers"),
        "linearised": (plain, lambda model: pb.fit_gauss_newton(model, (x, y)), "fit_svi"),
        "own class": (
            OwnObservation(pb.nets.mlp([4, 3]), likelihood=pb.CategoricalLikelihood(), **options),
            pb.MeanFieldGuide,
            "OwnObservation, which overrides",
        ),
        "no model": (pb.nets.mlp([4, 3]), lambda _: pb.GuidePosterior(pb.MeanFieldGuide(plain)), "a BayesianModel"),
    }


@pytest.mark.parametrize("name", ["dropout", "noise", "linearised", "own class", "no model"])
def test_what_cannot_be_exported_is_refused_with_a_remedy(name, tmp_path):
    model, make, message = refused()[name]
    posterior = make(model)
    with pytest.raises(ValueError, match=message):
        pb.export_onnx(model, posterior, torch.randn(6, 4), tmp_path / "file.onnx", num_samples=3)
    assert not (tmp_path / "file.onnx").exists()


def test_what_torch_cannot_export_is_still_a_module(tmp_path):
    model, x = a_model(Recurrent(), pb.CategoricalLikelihood()), torch.randn(5, 6, 4)
    guide = pb.MeanFieldGuide(model)
    module = PredictiveModule(model, guide, x, num_samples=NUM_DRAWS, seed=0)
    assert module.computation == "loop"
    assert_close(module(x), by_predict(model, guide, x))
    with pytest.raises(ValueError, match=r"cannot export this model .*; serve it with `predict`"):
        pb.export_onnx(model, guide, x, tmp_path / "file.onnx", num_samples=NUM_DRAWS)
    assert [*tmp_path.iterdir()] == []


def test_the_operation_that_torch_cannot_export_is_named(tmp_path, monkeypatch):
    def export(*args, **options):
        raise RuntimeError("\x1b[96mThis is step 3/3\x1b[0m of exporting the model") from ValueError("no lgamma")

    model, x, _ = small_model()
    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(ValueError, match=r"cannot export this model \(no lgamma\)"):
        pb.export_onnx(model, pb.MeanFieldGuide(model), x, tmp_path / "file.onnx", num_samples=2)


def test_one_draw_has_no_epistemic_part():
    model, x, _ = small_model()
    with pytest.raises(ValueError, match="`num_samples` must be a whole number of at least 2"):
        PredictiveModule(model, pb.MeanFieldGuide(model), x, num_samples=1)


def test_an_old_torch_is_told_what_to_do(monkeypatch, tmp_path):
    model, x, _ = small_model()
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    with pytest.raises(ValueError, match=r"needs torch 2\.6 or later, got 2\.4\.1"):
        pb.export_onnx(model, pb.MeanFieldGuide(model), x, tmp_path / "file.onnx")


def test_results_that_are_not_finite_hide_no_difference():
    one = torch.ones(3)
    expected = {"mean": one, "aleatoric": one / 0, "epistemic": one}
    assert largest_difference(expected, expected) == 0
    assert largest_difference(expected | {"mean": one + 3}, expected) == 3
    assert math.isnan(largest_difference(expected | {"epistemic": one * math.nan}, expected))


@pytest.mark.nightly
def test_a_file_with_other_results_is_not_written(monkeypatch, tmp_path):
    model, x, _ = small_model()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    other = PredictiveModule(model, guide, x, num_samples=NUM_DRAWS, seed=1)
    written = functools.partial(_onnx.file_content, other)
    monkeypatch.setattr(_onnx, "file_content", lambda _, x: written(x))
    with pytest.raises(ValueError, match="results of onnxruntime must be those of `predict`"):
        pb.export_onnx(model, guide, x, tmp_path / "file.onnx", num_samples=NUM_DRAWS, seed=0)
    assert [*tmp_path.iterdir()] == []


def test_a_file_above_the_limit_is_refused(monkeypatch, tmp_path):
    model, x, _ = small_model()
    monkeypatch.setattr(_onnx, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="2 GiB at most"):
        pb.export_onnx(model, pb.MeanFieldGuide(model), x, tmp_path / "file.onnx", num_samples=3)
