"""The commands, as a user types them."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pyro_bnn import NormalPrior, ScaleMixturePrior, metrics, predict, predict_point
from pyro_bnn._core import progress
from pyro_bnn.app import recipes, runs, specs
from pyro_bnn.app.cli import main
from pyro_bnn.app.datasets import known_classes, load_data
from pyro_bnn.data import load_images
from pyro_bnn.results.plotting import _figures

from .folders import train_run
from .tolerances import SINGLE, assert_identical

PNG = b"\x89PNG"
FILES = {"asked.json", "config.json", "history.json", "data.json", "manifest.json", "posterior.safetensors"}
DEMO = pytest.mark.slow if "PYRO_BNN_DEMO" in os.environ else pytest.mark.nightly
"""In CI the demo has run already, and a test looks at its files; otherwise running it is left to the nightly run."""


@pytest.fixture
def pyro_bnn(monkeypatch, capsys):
    """Runs a command line; returns exit code, standard output and standard error, which has no lines on progress."""
    monkeypatch.setattr(progress, "EVERY", 1e6)
    monkeypatch.setitem(_figures.SETTINGS, "savefig.dpi", 50)  # a third of the time of a picture is that of its pixels

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pyro-bnn", *map(str, arguments)])
        torch.set_default_dtype(torch.float32)
        with pytest.raises(SystemExit) as stop:
            main()
        torch.set_default_dtype(torch.float64)
        printed = capsys.readouterr()
        return stop.value.code or 0, printed.out, printed.err

    return run


def test_train_then_evaluate_on_digits(pyro_bnn, tmp_path):
    run = tmp_path / "run"
    code, out, err = pyro_bnn("train", "digits", "--epochs", 25, "--seed", 3, "--out", run)
    assert (code, err) == (0, "")
    assert f"pyro-bnn evaluate {run}" in out
    assert {path.name for path in run.iterdir()} == FILES
    config = json.loads((run / "config.json").read_text())
    assert (config["seed"], config["epochs"], config["hold_out"]) == (3, 25, [7, 8, 9])
    assert len(json.loads((run / "history.json").read_text())["epochs"]) == 25

    code, out, err = pyro_bnn("evaluate", run, "--num-samples", 20)
    assert (code, err) == (0, "")
    for row in ("one draw (mean of 10)", "mean weights", "mean of 10 draws", "mean of 20 draws", "mutual information"):
        assert row in out
    metrics = json.loads((run / "metrics.json").read_text())
    accuracy = {row["name"]: row["accuracy"] for row in metrics["rows"]}
    assert accuracy["mean of 20 draws"] > 0.95
    assert metrics["ood"]["entropy"]["auroc"] > 0.85
    for picture in ("loss.png", "votes.png", "ood.png", "reliability.png"):
        assert (run / picture).read_bytes().startswith(PNG)


@pytest.mark.parametrize("guide", ["mean-field", "auto-normal"])
def test_a_reloaded_run_predicts_as_the_trained_one(tmp_path, guide):
    torch.set_default_dtype(torch.float32)
    config = replace(recipes.RECIPES["digits", "default"], epochs=2, guide=guide)
    images, _ = load_data(config, root=None)
    model, posterior = train_run(config, images, tmp_path / "run")
    again = runs.load_run(tmp_path / "run", images)
    a, b = (predict(*pair, images.x_test, num_samples=5, seed=1).probs for pair in ((model, posterior), again))
    torch.set_default_dtype(torch.float64)
    assert torch.equal(a, b)


def test_same_seed_same_posterior_other_seed_other(pyro_bnn, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        pyro_bnn("train", "digits", "--epochs", 1, "--out", tmp_path / name, "--seed", seed)
    a, b, c = ((tmp_path / name / "history.json").read_text() for name in "abc")
    a, b, c = (json.loads(text)["elbo"] for text in (a, b, c))
    assert a == b
    assert a != c


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "cifar", "--out", "r"], "unknown data set 'cifar'; choose fashion-mnist, mnist, digits, or a file"),
        (["train", "fashion-mnits"], "unknown data set 'fashion-mnits' (did you mean 'fashion-mnist'?); choose"),
        (["train", "digits", "--out", "r", "--recipe", "x"], "unknown recipe 'x'; choose one of article, default,"),
        (["train", "digits", "--recipe", "fats"], "unknown recipe 'fats' (did you mean 'fast'?)"),
        (["train", "a.csv", "--out", "r", "--time-limit", "0"], "--time-limit must be above 0 seconds, got 0; leave"),
        (["train", "digits", "--out", "r", "--prior", "cauchy:1"], "unknown prior 'cauchy:1'; choose normal:SCALE"),
        (["train", "digits", "--out", "r", "--prior", "norml:1"], "unknown prior 'norml:1' (did you mean 'normal:1'?)"),
        (
            ["train", "digits", "--out", "r", "--prior", "normal:-1"],
            "`scale` must be a finite number above 0",
        ),
        (["train", "digits", "--out", "r", "--prior", "mixture:1"], "needs 3 numbers after the colon"),
        (["train", "digits", "--out", "r", "--guide", "flow"], "must be 'mean-field' or 'auto-normal', got 'flow'."),
        (["train", "digits", "--out", "r", "--init", "zeros"], "--init: unknown initialisation 'zeros'"),
        (["train", "digits", "--out", "r", "--inputs", "white"], "unknown inputs 'white'; choose raw, standardized or"),
        (["train", "digits", "--out", "r", "--inputs", "scaled:0"], "needs a factor above 0 after the colon"),
        (["train", "digits", "--out", "r", "--inputs", "scaled:1/0"], "needs a factor above 0 after the colon"),
        (["train", "digits", "--out", "r", "--inputs", "scaled"], "'scaled' needs a factor above 0"),
        (
            ["train", "digits", "--out", "r", "--recipe", "tutorial", "--batch-size", "0"],
            "--batch-size must be at least 1, got 0",
        ),
        (["train", "digits", "--out", "r", "--optimizer", "lion"], "unknown optimizer 'lion'; choose adam, sgd,"),
        (["train", "digits", "--out", "r", "--schedule", "cosin"], "got 'cosin' (did you mean 'cosine'?)."),
        (["train", "digits", "--out", "r", "--kl-weight", "warm"], "bad KL weight 'warm'; choose a number"),
        (["train", "digits", "--out", "r", "--kl-weight", "-1"], "bad KL weight '-1'"),
        (["train", "digits", "--out", "r", "--kl-weight", "warmup:1,2,3"], "needs 2 numbers"),
        (["train", "digits", "--out", "r", "--init", "uniform:3"], "unknown initialisation 'uniform:3'"),
        (["train", "digits", "--out", "r", "--device", "meta"], "unknown device 'meta'; choose cpu or cuda"),
        (["train", "digits", "--out", "r", "--hidden", "a,b"], "--hidden must be whole numbers separated by commas"),
        (["train", "digits", "--out", "r", "--hidden", "0"], "--hidden must be at least 1, got 0"),
        (["train", "digits", "--out", "r", "--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["train", "digits", "--out", "r", "--epochs", "many"], "--epochs"),
        (["train", "digits", "--out", "r", "--hold-out", "11"], "held-out classes must be among 0, ..., 9"),
        (["train", "digits", "--out", "r", "--validation", "5000"], "--validation must lie between 1 and"),
        (["train", "digits", "--out", ".", "--device", "abacus"], "unknown device 'abacus'"),
        (["train", "mnist", "--out", "r", "--data", "nowhere"], "pass its folder (--data or $PYRO_BNN_DATA), or down"),
        (["train", "digits"], "Missing --out. Example: pyro-bnn train digits --out FOLDER"),
        (["train", "digits", "--lr", "3"], "Missing --out. Example: pyro-bnn train digits --lr 3 --out FOLDER"),
        (["train", "--out", "r"], "Missing the data set. Example: pyro-bnn train digits --out r\n"),
        (["fit", "t.csv"], "No such command: fit; did you mean train? Try --help."),
        (["trian", "digits"], "No such command: trian; did you mean train? Try --help."),
        (["train", "digits", "--epochs", "x"], "--epochs: it must be a whole number, got 'x'. Try --help."),
        (["train", "digits", "--lr", "x"], "--lr: it must be a number, got 'x'. Try --help."),
        (["compare", "--num-samples", "10"], "--num-samples must be at least 40, got 10. Try --help."),
        (["prune", "a", "--keep", "2"], "--keep must be at most 1, got 2. Try --help."),
        (["prune", "a", "--per", "node"], "--per must be one of 'network', 'layer', got 'node'. Try --help."),
        (["train", ".", "--target", "y", "--out", "r"], ". is a folder; name a file of your own: a table (*.csv,"),
        (["compare", "a", "b"], "compare takes one run, which it compares with NUTS, and got also b. To compare runs"),
        (["train", "h.csv", "the price"], "data set, and got also the price; did you mean --target 'the price'? Try"),
        (["train", "h.csv", "target", "the price"], "and got also target the price; did you mean --target 'the pr"),
        (["train", "h.csv", "price", "--target", "y"], "and got also price; leave it out. Try --help."),
        (["evaluate", "a", "b"], "got one argument too many, b; write pyro-bnn evaluate [OPTIONS] RUN. Try --help."),
        (["train", "digits", "--out", "r", "--init", "unifrom"], "network:F*weight (did you mean 'uniform'?)."),
        (["train", "digits", "--out", "r", "--optimizer", "adma"], "DECAY,CLIP (did you mean 'adam'?)."),
        (["train", "digits", "--out", "r", "--format", "pgn"], "got 'pgn'; did you mean png? Try --help."),
        (["prune", "a", "--per", "layers"], "got 'layers'; did you mean layer? Try --help."),
        (["evaluate", "nowhere"], "nowhere holds no training run"),
        (["evaluate", "nowhere", "--num-samples", "1"], "--num-samples must be at least 2"),
    ],
)
def test_mistakes_give_one_line_and_exit_code_two(pyro_bnn, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYRO_BNN_DATA", raising=False)
    code, out, err = pyro_bnn(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_ctrl_c_gives_one_line_and_leaves_nothing(pyro_bnn, tmp_path, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "fit_svi", stop)
    code, out, err = pyro_bnn("train", "digits", "--out", tmp_path / "r")
    assert (code, out, err.count("\n")) == (130, "", 1)
    assert f"{tmp_path / 'r'} was stopped, and nothing of it is kept: only variational fits (--method svi) can" in err
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_memory_does_not_hold_gives_one_line(pyro_bnn, tmp_path):
    code, out, err = pyro_bnn("train", "digits", "--hidden", 10**13, "--out", tmp_path / "r")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: `sizes` of 10000000000000 needs \S+ GB, and this machine has .*; choose fewer.\n", err)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_asking_for_a_missing_gpu(pyro_bnn, tmp_path):
    code, _, err = pyro_bnn("train", "digits", "--out", tmp_path / "r", "--device", "cuda")
    assert code == 2
    assert "needs a GPU that torch can use, and there is none here; choose cpu" in err


def test_out_of_domain_images_must_have_the_same_size(pyro_bnn, tmp_path, real_data):
    pyro_bnn("train", "digits", "--epochs", 1, "--out", tmp_path / "r")
    code, _, err = pyro_bnn("evaluate", tmp_path / "r", "--ood", "mnist", "--data", real_data)
    assert code == 2
    assert "mnist images are (28, 28) but the run's (8, 8)" in err


@pytest.mark.parametrize("command", [[], ["demo"], ["train"], ["evaluate"]])
def test_help_reads_well(pyro_bnn, command):
    code, out, err = pyro_bnn(*command, "--help-all" if command == ["train"] else "--help")
    assert (code, err) == (0, "")
    assert "Usage" in out
    options = {
        "train": ["--prior", "--kl-weight", "--recipe", "--optimizer", "--no-accuracy"],
        "evaluate": ["--ood"],
    }
    for option in options.get("".join(command), []):
        assert option in out


def test_module_and_script_are_the_same_command(tmp_path):
    results = [
        subprocess.run([*command, "trian"], capture_output=True, text=True, cwd=tmp_path, check=False)
        for command in ([sys.executable, "-m", "pyro_bnn"], [str(Path(sys.executable).parent / "pyro-bnn")])
    ]
    assert results[0].returncode == results[1].returncode == 2
    assert results[0].stderr == results[1].stderr
    assert results[0].stderr.startswith("error: No such command: trian")


@DEMO
def test_the_demo_shows_what_it_promises(pyro_bnn, tmp_path):
    """In CI the demo has run already; PYRO_BNN_DEMO is the folder of its files and of what it printed."""
    if folder := os.environ.get("PYRO_BNN_DEMO"):
        out, text = Path(folder) / "out", (Path(folder) / "printed").read_text()
    else:
        out = tmp_path / "demo"
        code, text, _ = pyro_bnn("demo", "--out", out)
        assert code == 0
    assert text.index("7, 8 and 9 were never shown") < text.index("of the true curve lies") < text.index("accuracy")
    assert {path.name for path in out.glob("*.png")} == {
        "loss.png",
        "ood.png",
        "regression.png",
        "reliability.png",
        "votes.png",
    }
    metrics = json.loads((out / "metrics.json").read_text())
    nll = {row["name"]: row["nll"] for row in metrics["rows"]}
    components = sorted(value for name, value in nll.items() if name.startswith("component"))
    assert nll["mean of 100 draws"] < components[5]
    assert metrics["rows"][-1]["accuracy"] > 0.97
    assert metrics["ood"]["entropy"]["auroc"] > 0.95
    regression = json.loads((out / "regression.json").read_text())
    assert regression["epistemic_scale_outside"] > 3 * regression["epistemic_scale_inside"]
    assert abs(regression["aleatoric_scale_inside"] - 2.0) < 0.7
    said = " ".join(text.split())
    assert f"± 2 sd is {regression['band_inside']:.0f} wide" in said
    assert f"and {regression['band_at_end']:.0f} wide at x = -1" in said
    assert regression["band_at_end"] > 5 * regression["band_inside"]
    assert regression["truth_in_band"] > 0.9
    assert "7, 8 and 9 were never shown" in text
    assert "Pictures in" in text


def test_held_out_classes_are_never_trained_on():
    images = load_images("digits")
    known, unknown = known_classes(images, (7, 8, 9))
    assert len(unknown) == int((images.y_test >= 7).sum())
    assert set(known.y_train.tolist()) == set(range(7))
    assert len(known.x_train) == int((images.y_train < 7).sum())
    assert known.classes == tuple("0123456")
    middle, _ = known_classes(images, (0,))
    assert middle.classes[int(middle.y_test[0])] == str(int(images.y_test[images.y_test > 0][0]))


def test_a_validation_set_takes_the_place_of_the_test_set():
    config = replace(recipes.RECIPES["digits", "default"], validation=100, hold_out=())
    split, _ = load_data(config, root=None)
    everything = load_images("digits")
    assert (len(split.x_train), len(split.x_test)) == (1247, 100)
    together = torch.cat([split.x_train, split.x_test]).sum()
    torch.testing.assert_close(together, everything.x_train.sum())


def test_the_articles_recipe_is_the_articles():
    article = recipes.RECIPES["fashion-mnist", "article"]
    assert specs.make_prior(article.prior) == ScaleMixturePrior()
    assert (article.hidden, article.epochs, article.batch_size, article.lr) == ((400, 400), 20, 100, 1e-3)
    assert (article.num_particles, article.kl_weight, article.inputs, article.init) == (2, "1", "raw", "uniform")


def test_the_tutorials_recipes_are_the_tutorials():
    plain, mixture = (recipes.RECIPES["mnist", name] for name in ("tutorial", "tutorial-mixture"))
    assert specs.make_prior(plain.prior) == NormalPrior(1.0)
    assert specs.make_prior(mixture.prior) == ScaleMixturePrior(mixing=0.25, scale1=0.75, scale2=0.1)
    for recipe in (plain, mixture):
        assert (recipe.hidden, recipe.epochs, recipe.batch_size, recipe.lr) == ((400, 400), 10, 128, 1e-3)
        assert (recipe.num_particles, recipe.kl_weight, recipe.schedule) == (1, "1", "constant")
        assert (recipe.optimizer, recipe.init, recipe.accuracy) == ("sgd", "normal", True)
    images, _ = load_data(replace(plain, dataset="digits"), root=None)
    model, guide = runs.build(replace(plain, dataset="digits", hidden=(500,)), images)
    scaled = model.net[1](torch.tensor([126 / 255, 1.0]))
    torch.testing.assert_close(scaled, torch.tensor([1.0, 255 / 126]), **SINGLE)
    rho = torch.cat([parameter.flatten() for parameter in guide.rho.parameters()])
    assert bool((rho == -3).all())
    loc = torch.cat([parameter.detach().flatten() for parameter in guide.loc.parameters()])
    assert abs(float(loc.std()) - 0.1) < 5 * 0.1 / (2 * len(loc)) ** 0.5


def test_an_epoch_of_sgd_adds_up_to_the_gradient_of_the_loss_of_all_data(tmp_path):
    """The learning rate multiplies the gradient of a batch's summed NLL and its share of the KL, for any batch size."""
    config = replace(recipes.RECIPES["digits", "tutorial"], hidden=(6,), epochs=1, lr=1e-9, init="network:1e-12")
    images, _ = load_data(config, root=None)
    x, y = images.x_train[:900].double(), images.y_train[:900]
    images = replace(images, x_train=x, y_train=y, x_test=images.x_test.double())
    model, guide = runs.build(config, images)
    start = {name: value.clone().requires_grad_() for name, value in guide.locations().items()}
    logits = torch.func.functional_call(model.net, {name.removeprefix("net."): w for name, w in start.items()}, x)
    loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    loss = loss + sum(w.square().sum() / 2 for w in start.values())  # minus the log-density of the prior N(0, 1)
    loss.backward()
    for batch_size in (225, 450, 900):
        run = replace(config, batch_size=batch_size)
        _, posterior = train_run(run, images, tmp_path / str(batch_size))
        for name, end in posterior.guide.locations().items():
            moved = start[name].detach() - end
            torch.testing.assert_close(moved, 1e-9 * start[name].grad, rtol=1e-3, atol=1e-11)


def test_accuracy_is_recorded_and_shown(pyro_bnn, tmp_path):
    run = tmp_path / "run"
    code, out, err = pyro_bnn("train", "digits", "--recipe", "tutorial", "--epochs", 2, "--out", run)
    assert (code, err) == (0, "")
    assert "accuracy at mean weights" in out
    curve = runs.load_accuracy(run)
    assert len(curve.train) == len(curve.test) == 2
    assert (run / "accuracy.csv").read_text().splitlines()[0] == "epoch,train,test"
    assert (run / "accuracy.csv").read_text().splitlines()[2] == f"2,{curve.train[1]},{curve.test[1]}"
    assert (run / "accuracy.png").read_bytes().startswith(PNG)
    torch.set_default_dtype(torch.float32)
    images, _ = load_data(runs.load_config(run), root=None)
    model, posterior = runs.load_run(run, images)
    probs = predict_point(model, posterior.median(), images.x_test).probs
    torch.set_default_dtype(torch.float64)
    assert metrics.accuracy(probs, images.y_test) == curve.test[-1]

    options = ("--recipe", "tutorial", "--epochs", 2, "--no-accuracy", "--force")
    assert "mean weights" not in pyro_bnn("train", "digits", *options, "--out", run)[1]
    assert {path.name for path in run.iterdir()} == FILES
    assert runs.load_accuracy(run) is None


@pytest.mark.parametrize("guide", ["mean-field", "auto-normal"])
def test_recording_the_accuracy_does_not_change_the_fit(tmp_path, guide):
    torch.set_default_dtype(torch.float32)
    config = replace(recipes.RECIPES["digits", "default"], epochs=2, guide=guide)
    images, _ = load_data(config, root=None)
    fits = [train_run(replace(config, accuracy=on), images, tmp_path / str(on))[1] for on in (False, True)]
    torch.set_default_dtype(torch.float64)
    assert fits[0].history.elbo == fits[1].history.elbo
    for name, value in fits[0].median().items():
        assert torch.equal(value, fits[1].median()[name])


@pytest.mark.nightly
@pytest.mark.daily("tutorial-mixture")
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tutorial", "tutorial-mixture"])
def test_the_tutorials_column_is_followed(pyro_bnn, tmp_path, real_data, recipe):
    run = tmp_path / "run"
    code, _, err = pyro_bnn("train", "mnist", "--recipe", recipe, "--epochs", 1, "--data", real_data, "--out", run)
    assert code == 0, err
    assert abs(runs.load_accuracy(run).test[0] - 0.9455) < 0.01  # what the tutorial prints


def test_priors_by_name_from_the_command_line():
    prior = specs.make_prior("net.2.*=normal:0.2; **=laplace:0.1")
    layer = torch.nn.Linear(2, 1)
    assert_identical(prior("net.2.weight", layer.weight.detach(), layer).stddev, torch.full((1, 2), 0.2))
    assert_identical(prior("net.4.weight", layer.weight.detach(), layer).variance, torch.full((1, 2), 0.02))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["default", "fast", "article"])
def test_garments_are_learned_and_digits_noticed(pyro_bnn, tmp_path, real_data, recipe):
    run = tmp_path / "run"
    options = ("--recipe", recipe, "--epochs", 1, "--data", real_data, "--out", run)
    code, _, err = pyro_bnn("train", "fashion-mnist", *options)
    assert code == 0, err
    code, out, err = pyro_bnn("evaluate", run, "--data", real_data, "--num-samples", 10)
    assert code == 0, err
    assert "against 10000 unknown images" in out
    metrics = json.loads((run / "metrics.json").read_text())
    assert {row["name"]: row["accuracy"] for row in metrics["rows"]}["mean of 10 draws"] > 0.8
    assert metrics["ood"]["entropy"]["auroc"] > 0.7


def test_a_run_whose_elbo_still_rises_says_what_to_do(pyro_bnn, tmp_path):
    code, out, _ = pyro_bnn("train", "digits", "--epochs", 8, "--out", tmp_path / "run", "--schedule", "constant")
    assert code == 0
    assert re.search(r"\nThe training stopped too early\. Raise --epochs, or --lr\.\n", out)
