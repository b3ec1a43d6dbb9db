"""`pyro-bnn train` on tables: held-out rows choose a network, and chains explore its modes."""

import html
import json
import re
import shlex
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pyro_bnn.app import runs, sources, starting
from pyro_bnn.app.chains import with_verdict
from pyro_bnn.app.config import RunConfig
from pyro_bnn.app.folders import creating
from pyro_bnn.app.numbers import number
from pyro_bnn.app.recipes import OWN
from pyro_bnn.app.reports.page.fit import training_command
from pyro_bnn.app.starting import VARIATIONAL, method_for, new_config
from pyro_bnn.auto import choosing
from pyro_bnn.auto.choosing import Chosen
from pyro_bnn.inference.mcmc import ChainStatistics, MCMCPosterior, Modes
from pyro_bnn.inference.posterior import Status

from .own_data import houses, predictions_in, scores_in, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture

FEW = ("--hidden", 3, "--activation", "relu", "--prior", "normal:1")


def shorten(patch):
    """Fits in a second rather than in half a minute; their lengths still follow from the rows."""
    patch.setattr(choosing._budget, "FEWEST_SECONDS", 0.5)
    patch.setattr(choosing._budget, "MOST_DESCENT", 200)
    patch.setattr(choosing._budget, "MOST_STEPS", 150)
    patch.setattr(choosing._choose, "FEWEST_STEPS", 100)
    patch.setattr(choosing._chosen, "NUM_FOLDS", 2)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of chains on houses, made once, and its output."""
    folder = tmp_path_factory.mktemp("chains")
    before = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        torch.set_default_dtype(torch.float32)
        config, notes = new_config(
            str(write_table(folder / "houses.csv", houses())),
            None,
            {"target": "price", "hidden": (3,), "activation": "relu", "prior": "normal:1"},
        )
        with creating(folder / "run", command="train") as place:
            _, posterior = runs.fit(config, sources.load(config), place, given=["hidden", "activation", "prior"])
        torch.set_default_dtype(before)
    return folder, [*notes, str(posterior.status)]


@pytest.fixture
def place(made, tmp_path):
    """A copy of that run, to write into."""
    return shutil.copytree(made[0], tmp_path / "place")


def train(pyro_bnn, folder, *options, out="run", num_rows=60):  # noqa: F811
    table = folder / "houses.csv"
    if not table.exists():
        write_table(table, houses(num_rows))
    return pyro_bnn("train", table, "--target", "price", *options, "--out", folder / out)


def config_of(run):
    return json.loads((run / "config.json").read_text())


def choice_of(run):
    """What the run says of the choice of its network."""
    return json.loads((run / "choice.json").read_text())["sentence"]


def draws_of(run):
    """The draws of a run's chains."""
    torch.set_default_dtype(torch.float32)
    posterior = runs.load_run(run)[1]
    torch.set_default_dtype(torch.float64)
    return posterior.chains


def test_a_network_is_chosen_and_its_settings_are_kept(made):
    folder, (note, status) = made
    assert note == "Target 'price' holds numbers: regression."
    assert status.startswith("Chosen: 3 relu units, ")
    assert "MCLMC: 8 chains" in status
    config = config_of(folder / "run")
    assert (config["method"], config["hidden"], config["prior"]) == ("mclmc", [3], "normal:1")
    assert config["likelihood"] in ("gaussian", "heteroscedastic")
    names = {path.name for path in (folder / "run").iterdir()}
    assert names == {"choice.json", "config.json", "data.json", "manifest.json", "posterior.safetensors"}


def test_evaluate_measures_a_single_network_and_all_of_them(pyro_bnn, place):  # noqa: F811
    code, _, err = pyro_bnn("evaluate", place / "run")
    assert (code, err) == (0, "")
    scores = scores_in(place / "run")
    ensemble = next(name for name in scores if name.endswith(" draws"))
    baselines = {f"baseline: {name}" for name in ("mean of the targets", "linear regression")}
    assert set(scores) == {"one draw (mean of 50)", ensemble, *baselines}
    guess, single = scores["baseline: mean of the targets"], scores["one draw (mean of 50)"]
    assert scores[ensemble]["rmse"] < 0.5 * guess["rmse"]
    assert scores[ensemble]["nll"] < min(guess["nll"], single["nll"])


def test_predict_uses_all_chains(pyro_bnn, place):  # noqa: F811
    code, _, err = pyro_bnn("predict", place / "run", place / "houses.csv", "--out", place / "out.csv")
    assert code == 0, err
    assert "Chosen:" not in err
    prices = [float(row[-1]) for row in houses()]
    assert np.corrcoef(prices, [float(row["mean"]) for row in predictions_in(place / "out.csv")])[0, 1] > 0.9


def test_the_report_has_a_section_on_chains_in_place_of_those_on_training_and_weights(
    pyro_bnn,  # noqa: F811
    made,
    place,
):
    _, _, unjudged = pyro_bnn("predict", place / "run", place / "houses.csv", "--out", place / "first.csv")
    code, out, err = pyro_bnn("report", place / "run")
    assert (code, err) == (0, "")
    page = (place / "run" / "report.html").read_text()
    assert ">Chains</h2>" in page
    assert ">Training</h2>" not in page
    assert ">Weights</h2>" not in page
    assert "of the draws diverged" in out or "too short to explore" in out
    assert "Diagnostics of 8 chains" in page
    assert re.search(r"\d+ steps of each chain in C, with warm-up, [^.]* in all", made[1][1])[0] in page
    whole, shown = re.search(r"(\d+) s in all", made[1][1]), re.search(r"The whole fit took (\d+) s", page)
    assert shown[1] == whole[1]
    for cell in ("draws with a divergent step", "largest R-hat of a chain&#39;s halves", "at most 1.1"):
        assert cell in page
    assert "time_limit=" not in page
    trained = re.search(r"R-hat within chains up to (\S+) \(limit 1.1\), between them (\S+);", made[1][1])
    for r_hat in trained.groups():  # `train` and `report` judge predictions of the same rows
        assert f">{r_hat}<" in page
    is_short = float(trained[1]) > 1.1
    assert is_short == ("too short to explore" in out)
    _, _, said = pyro_bnn("predict", place / "run", place / "houses.csv", "--out", place / "out.csv")
    few = re.search(r"\d of 8 chains (is|are) too short to explore (its mode|their modes)", out)
    assert (few is not None) == is_short
    if few is not None:
        doubt = "(but longer sampling should hardly change the predictions|and [a-z ]*)"
        assert re.match(rf"{few[0]}, {doubt}\. To see whether the predictions are usable: ", unjudged)
        is_told = "may change" in unjudged  # otherwise, only the report has it
        assert bool(re.search(rf"^Verdict on the test rows: Usable.*{few[0]}, and [a-z ]*\. Why: ", said)) == is_told
        assert "To see whether" not in said
        listed = json.loads(pyro_bnn("predict", place / "run", place / "houses.csv", "--json")[1])["notes"]
        assert any("too short to explore" in note for note in listed) == is_told
    assert "Warning" not in said  # the report calls such a run usable


@pytest.mark.parametrize("command", ["prune", "weights"])
def test_commands_on_single_weights_name_the_remedy(pyro_bnn, place, command, monkeypatch):  # noqa: F811
    monkeypatch.setattr(runs, "load_asked", lambda run: {"target": "price", "ignore": ["the id"], "recipe": None})
    code, _, err = pyro_bnn(command, place / "run")
    assert code == 2
    assert f"`pyro-bnn {command}` needs one distribution for each weight, but this run holds chains" in err
    again = f"--target price --ignore 'the id' --seed 0 --method svi --out {place}/run-svi"
    assert re.search(rf"train with --method svi: pyro-bnn train .*houses.csv {again}$", err)


def test_the_command_of_a_report_repeats_the_fit_to_the_bit(pyro_bnn, made, tmp_path):  # noqa: F811
    config = runs.load_config(made[0] / "run")
    asked = {name: getattr(config, name) for name in ("target", "method", "hidden", "prior", "likelihood")}
    subject = SimpleNamespace(config=config, run=tmp_path / "run", asked=asked)
    _, *command = shlex.split(training_command(subject, "again"))
    code, out, err = pyro_bnn(*command)
    assert (code, err, "best of" in choice_of(tmp_path / "run-again")) == (0, "", False)  # nothing was left to choose
    first, again = draws_of(made[0] / "run"), draws_of(tmp_path / "run-again")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert pyro_bnn("evaluate", tmp_path / "run-again")[0] == 0
    assert brief_of(tmp_path / "run-again") in out
    saved = f"Saved in {tmp_path / 'run-again'}; next: pyro-bnn evaluate {tmp_path / 'run-again'}"
    assert saved in out.splitlines()[-2:]  # advice on the time may follow
    assert not re.search("R-hat|modes|MCLMC|variance| in C|nats", out)  # the report and the status have these numbers


def brief_of(run):
    """What `train` says of the test rows, from the scores that `evaluate` wrote."""
    rmse = {name.removeprefix("baseline: "): number(each["rmse"]) for name, each in scores_in(run).items()}
    own = next(name for name in rmse if name.endswith(" draws"))
    others = [name for name in rmse if name != own and not name.startswith(("one draw", "mean weights"))]
    others.sort(key=lambda name: float(rmse[name].replace(",", "")))
    compared = ", ".join(f"{name} {rmse[name]}" for name in others)
    share = scores_in(run)[own]["coverage_90"]
    assert len(others) == 2
    return (
        f"RMSE       {rmse[own]} on 12 test rows\nbaselines  {compared}\n"
        f"coverage   90 % intervals hold {100 * share:.1f} % of the targets\nfit        "
    )


@pytest.mark.nightly
def test_a_variational_fit_is_also_compared_with_baselines(pyro_bnn, tmp_path):  # noqa: F811
    code, out, _ = train(pyro_bnn, tmp_path, *FEW, "--method", "svi", "--epochs", 30)
    assert code == 0
    assert pyro_bnn("evaluate", tmp_path / "run")[0] == 0
    assert f"\n{brief_of(tmp_path / 'run')}" in out
    code, out, _ = train(pyro_bnn, tmp_path, *FEW, "--method", "svi", "--epochs", 2, "--test-fraction", 0, out="all")
    assert (code, "baselines" in out) == (0, False)


@pytest.mark.parametrize(
    ("within", "between", "hidden", "expected"),
    [
        (
            1.47,
            1.6,
            (3,),
            "up to 1.47 (limit 1.1), between them 1.60; 5 % of the variance of predictions lies between chains. 9",
        ),
        (1.04, 1.6, (3,), "R-hat within chains is at most 1.1, so each chain is long enough for the mode"),
        (1.04, 1.05, (3,), "R-hat is at most 1.1 within and between chains, so the chains are long enough."),
        (1.04, 1.6, (), "R-hat between chains is above 1.1, but a linear model has one mode, so the chains are too"),
    ],
)
def test_a_sentence_judges_the_chains(within, between, hidden, expected):
    found = Modes(torch.full((8,), within), between, 0.05)
    config = RunConfig.from_json(json.dumps(replace(OWN, hidden=hidden).to_dict()))
    posterior = MCMCPosterior(
        {"w": torch.zeros(8, 9)}, ChainStatistics(seconds=19.0), Status(True, "well."), sampler="MCLMC", modes=found
    )
    status = with_verdict(Chosen("", None, posterior, {}, "Chosen: this.", "8 chains.", "9 steps."), config)
    assert expected in str(status)
    assert hidden or not (status or "modes" in str(status))  # `predict` and `report` say so, too


@pytest.mark.nightly
def test_classes_get_a_network_of_classes(pyro_bnn, tmp_path):  # noqa: F811
    rows = [[*row[:-1], "high" if float(row[-1]) > 220 else "low"] for row in houses(90)]
    table = write_table(tmp_path / "houses.csv", rows)
    code, _, err = pyro_bnn("train", table, "--target", "price", "--prior", "normal:1", "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    assert " (best of 3 networks, " in choice_of(tmp_path / "run")  # a linear model, one hidden layer, two
    assert config_of(tmp_path / "run")["likelihood"] == "categorical"
    assert pyro_bnn("evaluate", tmp_path / "run")[0] == 0
    scores = scores_in(tmp_path / "run")
    assert (
        next(scores[name] for name in scores if name.endswith(" draws"))["nll"]
        < 0.7 * scores["baseline: shares of the classes"]["nll"]
    )
    assert pyro_bnn("report", tmp_path / "run")[0] == 0
    code, _, err = pyro_bnn("predict", tmp_path / "run", table, "--level", ".9")
    assert (code, "--level is for intervals around predicted numbers, but this run" in err) == (2, True)


@pytest.mark.nightly
def test_arrays_and_a_network_of_ones_own_are_explored_too(pyro_bnn, tmp_path):  # noqa: F811
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def make(input_shape, num_outputs):\n"
        "    return nn.Sequential(nn.Linear(*input_shape, 3), nn.Softplus(), nn.Linear(3, num_outputs))\n"
    )
    x = np.random.default_rng(0).normal(size=(60, 2))
    np.savez(tmp_path / "data.npz", x=x, y=x[:, 0] * x[:, 1])
    net = f"{tmp_path / 'net.py'}:make"
    code, _, err = pyro_bnn("train", tmp_path / "data.npz", "--net", net, "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    assert " (best of 3 networks, " in choice_of(tmp_path / "run")  # two priors, two kinds of noise
    assert config_of(tmp_path / "run")["net"] == net
    assert pyro_bnn("evaluate", tmp_path / "run")[0] == 0


def test_a_target_of_few_values_has_the_same_noise_everywhere(pyro_bnn, tmp_path):  # noqa: F811
    rows = [[*row[:-1], round(float(row[-1]), -1)] for row in houses()]
    write_table(tmp_path / "houses.csv", rows)
    code, out, _ = train(pyro_bnn, tmp_path, *FEW, "--likelihood", "gaussian")
    assert code == 0
    assert "among" not in out
    code, out, _ = train(pyro_bnn, tmp_path, *FEW, out="open")
    assert (code, config_of(tmp_path / "open")["likelihood"]) == (0, "gaussian")


@pytest.mark.parametrize("setting", sorted(VARIATIONAL - {"accuracy"}))
def test_each_setting_of_a_variational_fit_makes_it_variational(setting):
    assert method_for({setting: 1, "hidden": (3,)}) == "svi"
    with pytest.raises(ValueError, match=f"has no --{setting.replace('_', '-')}; leave"):
        method_for({setting: 1, "method": "auto"})


def test_a_variational_fit_says_why_it_is_one(pyro_bnn, tmp_path):  # noqa: F811
    code, out, _ = train(pyro_bnn, tmp_path, *FEW, "--epochs", 3, "--lr", 0.01)
    assert code == 0
    assert "The fit is variational (--method svi) because of --epochs and --lr." in out
    assert "free core" not in out
    assert "3 epochs (3 steps): too few to tell whether the loss had settled. Raise --epochs, or --lr.\n" in out
    assert config_of(tmp_path / "run")["method"] == "svi"
    code, out, _ = train(pyro_bnn, tmp_path, *FEW, "--epochs", 3, "--method", "svi", out="named")
    assert code == 0
    assert "since" not in out


@pytest.mark.nightly
def test_without_a_compiler_the_fit_is_variational_and_says_why(pyro_bnn, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("CC", "/bin/false")
    monkeypatch.setattr(starting, "MOST_EPOCHS", 100)
    code, out, err = train(pyro_bnn, tmp_path, "--hidden", 5, num_rows=31)
    assert (code, err) == (0, "")
    assert "The fit is variational, since" in " ".join(out.split())
    said = "free cores?; --time-limit sets another time."
    assert re.search(f"The fit takes about [0-9]+ s on [0-9] {said}", " ".join(out.split()))
    assert "the C compiler failed" in out
    config = config_of(tmp_path / "run")
    assert (config["method"], config["hidden"], config["likelihood"]) == ("svi", [5], "gaussian")
    code, _, err = train(pyro_bnn, tmp_path, "--hidden", 6, "--method", "mclmc", out="chains")
    assert code == 2
    assert "the C compiler failed" in err
    assert "choose --method svi" in err
    assert not (tmp_path / "chains").exists()


@pytest.mark.parametrize(("options", "message"), [(("--method", "nuts"), "nuts"), (("--time-limit", -1), "-1")])
def test_wrong_settings_are_refused_by_name(pyro_bnn, tmp_path, options, message):  # noqa: F811
    code, _, err = train(pyro_bnn, tmp_path, *options)
    assert code == 2
    assert message in err


def test_image_sets_have_no_method(pyro_bnn, tmp_path):  # noqa: F811
    code, _, err = pyro_bnn("train", "digits", "--method", "auto", "--out", tmp_path / "run")
    assert code == 2
    assert "--method goes with tables and arrays only" in err


def test_an_interrupted_choice_leaves_nothing(pyro_bnn, tmp_path, monkeypatch):  # noqa: F811
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(choosing._choose, "fit_mcmc", stop)
    code, _, _ = train(pyro_bnn, tmp_path, *FEW)
    assert code == 130
    assert {path.name for path in tmp_path.iterdir()} == {"houses.csv"}


@pytest.mark.nightly
def test_a_limit_of_time_is_kept(pyro_bnn, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(choosing._in_time, "slowdown", lambda: 1e6)
    code, out, _ = train(pyro_bnn, tmp_path, *FEW, "--likelihood", "gaussian", "--time-limit", 0.5)
    assert code == 0
    assert " s of the time limit are left" in out
    assert re.search(r"\nfit +\d+ s, \d+ of 3,000 epochs\n", out)
    assert re.match(r"The fit is variational, since .*\.\nTrained on ", out)
    pattern = (
        r"\n(The time limit ended the training after (\d+) of 3,000 epochs\. "
        r"For chains, which are often more accurate, pass --time-limit (\d+)\.)\n"
    )
    assert (found := re.search(pattern, out))
    assert int(found[3]) > 0.5
    config = RunConfig.from_json((tmp_path / "run" / "config.json").read_text())
    assert (config.method, config.time_limit) == ("svi", 0.5)
    assert pyro_bnn("predict", tmp_path / "run", tmp_path / "houses.csv")[2].startswith(
        f"The time limit ended the training after {found[2]} of 3,000 epochs. To see whether the predictions "
        f"are usable: pyro-bnn report {tmp_path / 'run'}\n"
    )
    code, out, _ = pyro_bnn("report", tmp_path / "run")
    said, *verdicts = out.splitlines()
    assert f"the time limit ended the training after {found[2]} of 3,000 epochs" in said.lower()
    assert next(line for line in verdicts if line.startswith("note:")) == f"note:     {found[1]}"  # before other notes
    assert "Most weights learned" not in out
    page = (tmp_path / "run" / "report.html").read_text()
    commands = re.findall(r"<pre>(pyro.*)$", re.sub("</?span[^>]*>", "", page), re.MULTILINE)
    longer, command = (html.unescape(found) for found in commands)
    assert f" --time-limit {found[3]} " in longer
    assert "--time-limit 0.5 " in command
    assert f"The time limit ended the fit after {found[2]} of 3000 epochs." in page
    code, out, _ = pyro_bnn(*shlex.split(command)[1:])
    assert code == 0
    assert re.search(r"The time limit ended the training after \d+ of 3,000 epochs", out)
    lines = pyro_bnn("evaluate", tmp_path / "run")[1].splitlines()
    assert any(line and said.startswith(line.rstrip(".")) for line in lines)  # the decision
    assert lines[-1] == f"Metrics and pictures in {tmp_path / 'run'}; next: pyro-bnn report {tmp_path / 'run'}"


@pytest.mark.nightly
def test_a_limit_of_time_is_repeated_as_typed(pyro_bnn, tmp_path):  # noqa: F811
    code, out, _ = train(pyro_bnn, tmp_path, *FEW, "--epochs", 3, "--time-limit", 300)
    assert (code, "The time limit" in out) == (0, False)
    assert config_of(tmp_path / "run")["time_limit"] == 300
    assert pyro_bnn("report", tmp_path / "run")[0] == 0
    page = " ".join((tmp_path / "run" / "report.html").read_text().split())
    assert "--time-limit</span> 300" in page
    assert "if the time limit again does not end the fit." in page
