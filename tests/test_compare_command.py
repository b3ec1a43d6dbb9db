"""`pyro-bnn compare`: methods, or a run, beside chains of NUTS."""

# ruff: noqa: F811  # tests take the imported fixture as a parameter

import functools
import json
import re
import time

import pytest
import torch

from pyro_bnn.app import demo
from pyro_bnn.app.beside import side_by_side
from pyro_bnn.app.cli.compare import expected_time
from pyro_bnn.inference.mcmc import Draws, Kernel, Sampler, seconds_of_step
from pyro_bnn.inference.posterior import Status
from pyro_bnn.results.comparison import Comparison, Estimate, Scores

from .cases import small_model
from .own_data import houses, scores_in, write_table
from .test_cli import PNG, pyro_bnn  # noqa: F401  # a fixture


@pytest.mark.nightly
def test_compare_sets_the_methods_beside_nuts(pyro_bnn, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "compare", functools.partial(demo.compare, num_samples=80))
    monkeypatch.setattr(demo, "ENSEMBLE", 2)
    out = tmp_path / "compared"
    code, printed, err = pyro_bnn("compare", "--out", out, "--num-samples", 40, "--num-steps", 20)
    assert (code, err) == (0, "")
    assert "four chains of 40 draws each" in printed
    assert "with seed 0" in printed
    assert "NLL is in nats per point." in printed
    assert "NUTS did not converge, so small distances from it are not certain." in printed  # after 40 draws
    assert "draw more (--num-samples 160: about 4 times the time).\n" in printed
    assert "nuts: NUTS" not in printed
    for word in ("nuts", "laplace", "full-rank", "mean-field, LRT", "mixture", "mc-dropout", "ensemble", "gap:", "±"):
        assert word in printed
    assert (out / "comparison.png").read_bytes().startswith(PNG)
    pairs = json.loads((out / "comparison.json").read_text())["pairs"]
    assert {pair["region"] for pair in pairs} == {"data", "gap", "outside"}
    assert len(pairs) == 3 * 28
    code, _, err = pyro_bnn("compare", "--out", out)
    assert code == 2
    assert "--force" in err


def test_compare_sets_chains_beside_a_run(pyro_bnn, tmp_path):
    table = write_table(tmp_path / "houses.csv", houses())
    run = tmp_path / "run"
    out = run / "compare"
    options = ("--target", "price", "--likelihood", "gaussian", "--hidden", 4, "--method", "svi", "--epochs", 200)
    assert pyro_bnn("train", table, *options, "--out", run)[0] == 0
    code, printed, err = pyro_bnn("compare", run, "--num-samples", 40, "--seed", 7)
    assert (code, err) == (0, "")
    assert printed.startswith(
        "NUTS draws four chains of 40 draws each (and as many of warm-up) for 48 rows, with seed 7 ...\nThis takes a"
    )
    assert "test rows; the last 6 rows compare with NUTS:" in printed
    assert "equal predictions have ratios of 1, and distances of 0. The smaller NLL is better." in printed
    assert "may differ from that of `evaluate`, which uses other draws." in printed
    verdict = re.search("Not decided|The run (predicts|does not predict) like", printed).start()
    assert verdict < printed.index("test rows; the last 6 rows")  # what the numbers are worth comes before them
    assert max(len(line) for line in printed.splitlines() if " ± " in line) <= 60
    assert ("Not decided: the root mean" in printed) != (
        "The run does not predict like NUTS.\nThe standard dev" in printed
    )
    assert "The limits (R-hat 1.01, and an effective sample size, ESS, of 100 a chain) are stricter than in" in printed
    assert re.search(r"\n 10-90 % +\d\.\d\d to \d", printed)
    assert re.search(r"\nin 90 % +\d+\.\d %  ", printed)
    assert "draw more (--num-samples 160: about 4 times the time), or compare a run" in printed
    assert "nuts" not in printed
    assert "mean-field" not in printed  # the run and NUTS have these names everywhere
    assert "Numbers from NUTS have no ±: its chains have not converged" in printed
    content = json.loads((out / "comparison.json").read_text())
    assert (
        "NLL is in nats per row; sd and distances are in the units of 'price'. Standard deviations (sd) are" in printed
    )
    assert pyro_bnn("evaluate", run)[0] == 0
    nll = scores_in(run)["mean of 100 draws"]["nll"]
    assert content["methods"][1]["scores"]["nll"]["value"] == pytest.approx(nll, abs=0.4)  # log(scale) is 4
    assert [row["method"] for row in content["methods"]] == ["nuts", "mean-field"]
    distance = content["pairs"][0]["scores"]["rms mean difference"]
    assert (distance["standard_error"], distance["value"] > 0) == (None, True)
    assert content["methods"][1]["scores"]["total sd"]["standard_error"] > 0
    assert {"rms mean difference", "epistemic sd ratio"} <= content["pairs"][0]["scores"].keys()
    for arguments, message in [
        ((run,), "compare exists; choose another --out, or pass --force"),
        ((run, "--out", run, "--force"), "is the run itself"),
        ((run, "--num-steps", 3), "--num-steps is for the sine"),
        (("--download",), "--data and --download need a run"),
        ((tmp_path / "no", "--out", tmp_path / "new"), "holds no training run"),
    ]:
        code, _, err = pyro_bnn("compare", *arguments)
        assert (code, message in err) == (2, True)


class Sleepy(Sampler):
    """A sampler whose draws take 0.01 s: 2 steps of the first chain, and 3 of the second."""

    def kernel(self, value_and_grad, z, *, compile=False):
        return SleepyKernel(value_and_grad, z)


class SleepyKernel(Kernel):
    def draw(self):
        time.sleep(0.01)
        steps, ends = torch.tensor([2, 3, 999]), torch.tensor([True, True, False])
        return Draws(ends, self.inverse_mass, steps, None, None, ~ends, steps)


def test_the_steps_of_chains_are_timed():
    model, x, y = small_model(num_data=6)
    assert 0.002 <= seconds_of_step(model, (x, y), Sleepy(), num_chains=3) < 0.02  # at least 0.01 s for 5 steps


def test_a_short_comparison_tells_no_number():
    assert expected_time(9.9, 400) == "This takes a few seconds."


@pytest.mark.parametrize(
    ("seconds", "num_samples", "said", "remedy"),
    [
        (12.34, 400, "12 s", None),
        (118, 400, "2 min", None),
        (847, 400, "14 min", "draw less (--num-samples 100), or compare a run with fewer training rows: "),
        (847, 100, "14 min", "draw less (--num-samples 40), or compare a run with fewer training rows: "),
        (20_000, 40, "5 h 33 min", "compare a run with fewer training rows: "),
    ],
)
def test_a_long_comparison_says_how_to_be_faster(seconds, num_samples, said, remedy):
    found = expected_time(seconds, num_samples)
    start = f"This takes at most about {said} at the present speed of this machine."
    if remedy is None:
        assert found == start
    else:
        assert found.startswith(f"{start} If that is too long, stop with Ctrl-C; then {remedy}")


@pytest.mark.parametrize("error", [1.0, 3.0])
def test_numbers_that_chains_do_not_tell_are_explained(error):
    sd = {"total sd": Estimate(4.0, error)}
    distances = {"rms mean difference": Estimate(1.0, 0.1), "wasserstein": Estimate(1.0, 0.1)}
    pair = distances | {"total sd ratio": Estimate(0.5, 0.1, 0.35, 0.7)}
    methods = [Scores("nuts", "rows", sd), Scores("mean-field", "rows", {"total sd": Estimate(2.0, 0.1)})]
    status = Status(False, "NUTS.")
    shown = side_by_side(
        Comparison(methods, [Scores("mean-field", "rows", pair, "nuts")], {}, torch.zeros(1, 1), status)
    )
    assert ("not known: the standard error of a standard deviation (sd) is more than half of it" in shown) == (
        error > 2
    )
    assert (" ± " in shown, "1 ± " in shown) == (True, False)  # only the numbers of the run have errors
    assert shown.count("not known") == (4 if error > 2 else 0)  # the sd, its ratio, the distance, and the reason


def test_huge_numbers_are_short():
    assert str(Estimate(1212995829402882539520.0, 1.2e21)) == "1.21e+21 ± 1.2e+21"
    assert str(Estimate(1234.5, 6.7)) == "1,234.5 ± 6.7"
    assert str(Estimate(4.05e-9, 8.5e-10)) == "4.05e-09 ± 8.5e-10"
