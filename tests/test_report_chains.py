"""Verdicts of `pyro-bnn report` on chains, and the command that repeats them."""

import functools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.app.chains import Choice, Drift, are_slightly_short, drift, fault_of, in_plain_words
from pyro_bnn.app.chains import has_one_mode as has_one_mode_of
from pyro_bnn.app.recipes import OWN
from pyro_bnn.app.remedies import longer_chains
from pyro_bnn.app.reports.page import page_of
from pyro_bnn.app.reports.page.chains import calmed, chains_section, diagnostics_of, of_chains, of_choice
from pyro_bnn.app.reports.page.fit import about_section, configuration_section, longer, training_command
from pyro_bnn.app.reports.page.section import Headline, Verdict, first_line
from pyro_bnn.auto.choosing import longer_limit
from pyro_bnn.inference.mcmc import ChainStatistics, MCMCPosterior, Modes
from pyro_bnn.inference.posterior import Status

from .test_report import Page
from .test_report_verdicts import regressed


@pytest.mark.parametrize(
    ("diverged", "within", "between", "level", "words", "shown"),
    [
        (
            0,
            [1.0, 1.02],
            1.0,
            "good",
            "The chains ran long enough: each of 2 chains has explored its mode, and 0.0 % of the draws",
            ["few enough", "each chain has explored its mode", "the chains agree"],
        ),
        (
            2,
            [1.0, 1.02],
            2.5,
            "good",
            "The chains ran long enough: each of 2 chains has explored its mode, and 1.0 % of the draws",
            ["few enough", "each chain has explored its mode", "no fault: the chains are in different modes"],
        ),
        (
            0,
            [1.0, 1.5],
            2.5,
            "note",
            "1 of 2 chains is too short to explore its mode, and intervals may change with longer sampling. The",
            [
                "few enough",
                "1 of 2 chains too short to explore a mode",
                "unclear until each chain has explored its mode",
            ],
        ),
        (30, [1.0, 1.5], 1.0, "problem", "many draws diverged.", ["too many: ", "1 of 2 chains", "the chains agree"]),
    ],
)
def test_chains_are_judged_in_words_and_in_a_table(diverged, within, between, level, words, shown):
    diverging = (torch.arange(200) < diverged).reshape(2, 100)
    posterior = MCMCPosterior(
        {"w": torch.zeros(2, 100)},
        ChainStatistics(diverging=diverging),
        Status(level == "good", "many draws diverged." if diverged else "well.", remedy="Pass --time-limit 9."),
        sampler="MCLMC",
    )
    found = Modes(torch.tensor(within), between, 0.25)
    verdict = of_chains(OWN, posterior, found)
    assert verdict.level == fault_of(posterior)[0] == level  # `predict` says the latter
    assert verdict.text.startswith(words)
    assert ("Pass --time-limit 9." in verdict.text) == (level == "note")  # the advice of `train`
    values, thresholds, verdicts = zip(*(row[1:] for row in diagnostics_of(posterior, found)), strict=True)
    assert values == (f"{diverged} of 200 ({diverged / 2:.1f} %)", f"{max(within):.2f}", f"{between:.2f}", "25 %")
    assert thresholds == ("at most 1 %", "at most 1.1", "at most 1.1 if they agree", "none")
    assert all(said.startswith(start) for said, start in zip(verdicts[:3], shown, strict=True))


@pytest.mark.parametrize(
    ("r_hat", "said", "advice"),
    [
        (1.12, "", "pass --time-limit 110."),
        (1.2, "", "pass --time-limit 150."),
        (9.0, "", ""),
        (1.2, "Chains of 100,000 steps, the most that a fit makes.", ""),
    ],
)
def test_the_advised_limit_follows_from_r_hat_unless_chains_are_the_longest(r_hat, said, advice):
    modes = Modes(torch.tensor([1.0, r_hat]), 2.0, 0.25)
    status = Status(False, said)
    posterior = MCMCPosterior({"w": torch.zeros(2, 100)}, ChainStatistics(), status, sampler="MCLMC", modes=modes)
    limit_for = functools.partial(longer_limit, 17.0, 60.0, 40)
    found = longer_chains(posterior, 0, limit_for)
    assert advice in found
    assert bool(found) == bool(advice)
    assert longer_chains(posterior, 2, limit_for).endswith("pass --time-limit 260.")  # one limit for both faults
    posterior.status = replace(status, is_slight=True)
    assert not longer_chains(posterior, 0, limit_for)


@pytest.mark.parametrize(
    ("modes", "clause"),
    [
        (
            Modes(torch.tensor([1.0, 1.5]), 2.5, 0.25),
            "1 of 2 chains is too short to explore its mode, and intervals may change with longer sampling",
        ),
        (None, "some chains are too short to explore their modes"),
    ],
)
def test_predict_says_how_many_chains_are_too_short(modes, clause):
    chains, status = {"w": torch.zeros(2, 9)}, Status(False, "short.", remedy="pass --time-limit 9.")
    posterior = MCMCPosterior(chains, ChainStatistics(), status, sampler="MCLMC", modes=modes)
    assert fault_of(posterior) == ("note", clause)


@pytest.mark.parametrize("is_slight", [True, False])
def test_short_chains_whose_halves_agree_need_no_longer_sampling(is_slight):
    chains, status = {"w": torch.zeros(2, 9)}, Status(False, "short.", is_slight=is_slight)
    modes = Modes(torch.tensor([1.0, 1.5]), 2.5, 0.25)
    posterior = MCMCPosterior(chains, ChainStatistics(), status, sampler="MCLMC", modes=modes)
    verdict = of_chains(OWN, posterior, modes)
    assert fault_of(posterior)[0] == verdict.level == "note"
    hardly = "is too short to explore its mode, but longer sampling should hardly change"
    assert (hardly in verdict.text) == (hardly in fault_of(posterior)[1]) == is_slight
    assert (verdict.about, verdict.is_named) == ("chains", False)
    change = Drift(0.012, (0.01, 0.02))
    assert ("they change by 1.2 % of the predicted sd" in of_chains(OWN, posterior, modes, change).text) == is_slight
    rows = diagnostics_of(posterior, modes, change)
    assert rows[1][3] == ("1 of 2 chains short, harmless to the predictions" if is_slight else rows[1][3])
    assert rows[2][1:3] == ("1.2 %", "at most 20 % of the sd")
    assert ("and more time is unlikely to suffice" in fault_of(posterior)[1]) == (not is_slight)
    few = Verdict("note", "limit", "too few rows to judge the intervals", "", "")
    trees = Verdict("note", "baseline", "beaten by trees", "", "")
    assert [each.level for each in calmed([verdict, trees])] == ["good", "note"]  # nothing that chains can cause
    assert calmed([verdict, few]) == [verdict, few]
    idle = replace(trees, about="weights")
    assert calmed([idle])[0].level == "good"
    assert first_line([few, idle], "").reasons == "Too few rows to judge the intervals; 1 more note."


@pytest.mark.parametrize(
    ("within", "change", "expected"),
    [
        (1.4, Drift(0.1, (0.05, 0.2)), True),
        (1.4, Drift(0.3, (0.05, 0.2)), False),
        (1.4, Drift(0.1, (0.15, 0.2)), False),
        (1.4, Drift(0.1, (0.05, 0.3)), False),
        (2.4, Drift(0.1, (0.05, 0.2)), False),
        (1.4, Drift(0.04, is_class=True), True),
        (1.4, Drift(0.1, is_class=True), False),
    ],
)
def test_chains_are_slightly_short_if_predictions_and_widths_agree_and_they_moved(within, change, expected):
    assert are_slightly_short(change, Modes(torch.tensor([1.0, within]), 2.5, 0.25)) == expected


@pytest.mark.parametrize("has_one_mode", [False, True])
def test_chains_of_a_linear_model_must_agree(has_one_mode):
    status = Status(not has_one_mode, "well.", remedy="pass --time-limit 9.")
    posterior = MCMCPosterior({"w": torch.zeros(2, 9)}, ChainStatistics(), status, sampler="MCLMC")
    modes = Modes(torch.tensor([1.0, 1.02]), 2.5, 0.25)
    config = replace(OWN, hidden=() if has_one_mode else (3,))
    verdict = of_chains(config, posterior, modes)
    apart = "The chains are too short: they disagree, but a linear model has one mode (R-hat between chains is 2.50). "
    assert verdict.level == ("note" if has_one_mode else "good")
    assert verdict.text.startswith(apart) == has_one_mode
    row = diagnostics_of(posterior, modes, has_one_mode=has_one_mode)[2]
    assert row[3].startswith("the chains are too short" if has_one_mode else "no fault")
    assert has_one_mode_of(config) == has_one_mode


def test_chains_that_are_too_short_to_judge_are_said_to_be_so():
    posterior = MCMCPosterior({"w": torch.zeros(2, 4)}, ChainStatistics(), Status(True, "well."), sampler="MCLMC")
    assert [(row[1], row[3]) for row in diagnostics_of(posterior, None)] == [
        ("not reported", "unknown"),
        ("unknown", "too few draws to tell"),
    ]


def test_chains_that_are_not_explored_are_named_in_the_first_line():
    status = Status(False, "short.", remedy="pass --time-limit 9.")
    posterior = MCMCPosterior({"w": torch.zeros(2, 9)}, ChainStatistics(), status, sampler="MCLMC")
    short = of_chains(OWN, posterior, Modes(torch.tensor([1.0, 1.5]), 1.0, 0.0))
    wide = Verdict("problem", "uncertainty", "too wide", "", "")
    reasons = first_line([wide, short], "RMSE 2").reasons
    assert reasons.startswith("Too wide; possible cause: 1 of 2 chains is too short")
    unknown = of_chains(OWN, posterior, None)
    assert (unknown.level, unknown.short) == (
        "note",
        "too few draws to tell whether the chains have explored their modes",
    )


@pytest.mark.parametrize(
    ("sentence", "short"),
    [
        ("A linear model; 4 networks not compared, for lack of time (more).", "4 of 5 networks were not compared"),
        (
            "Chosen: a (best of 3 networks); 1 network not compared, for lack of time; 1 network not compared, for C.",
            "1 of 5 networks was not compared",
        ),
        ("Chosen: a (best of 5 networks, x).", None),
    ],
)
def test_networks_that_were_not_compared_are_named_with_more_time(sentence, short):
    status = Status(True, "well.", remedy="To compare more, pass --time-limit 40.")
    subject = SimpleNamespace(choice=Choice(sentence), posterior=SimpleNamespace(status=status))
    found = [(verdict.short, verdict.changes) for verdict in of_choice(subject)]
    assert found == ([] if short is None else [(f"{short}, for lack of time", {"time_limit": 40.0})])


@pytest.mark.parametrize("longer", [360, 0])
def test_the_remedy_for_short_chains_is_a_whole_command(longer):
    chains, remedy = {"w": torch.zeros(2, 9)}, f"pass --time-limit {longer}." if longer else ""
    posterior = MCMCPosterior(chains, ChainStatistics(), Status(False, "short.", remedy=remedy), sampler="MCLMC")
    config = replace(OWN, dataset="a.csv", target="y", method="mclmc", hidden=(3,))
    verdict = of_chains(config, posterior, Modes(torch.tensor([1.0, 1.5]), 1.0, 0.0))
    assert ("The sampler would need longer to be exact." in verdict.text) == bool(longer)
    assert verdict.changes == ({"time_limit": longer} if longer else {})
    subject = SimpleNamespace(config=config, run=Path("some/run"), asked={"recipe": None, "target": "y", "seed": 3})
    command = training_command(subject, "2", verdict.changes)
    options = f" --time-limit {longer}" if longer else ""
    assert command == f"pyro-bnn train a.csv --target y --seed 0{options} --out some/run-2"
    assert verdict.text.endswith(remedy)


@pytest.mark.parametrize("is_class", [False, True])
def test_the_picture_of_chains_shows_what_each_chain_predicts(is_class):
    posterior = MCMCPosterior({"w": torch.zeros(3, 9)}, ChainStatistics(), Status(True, "well."), sampler="MCLMC")
    rows, means = torch.tensor([7, 2]), torch.tensor([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
    found = None if is_class else regressed().regressed
    run = {"posterior": posterior, "modes": None, "choice": None, "config": OWN, "regressed": found}
    (picture,) = chains_section(SimpleNamespace(**run, change=None, by_chain=(rows, means))).values["pictures"]
    dots = np.stack([line.get_xydata() for line in picture.ax.lines])
    average = means.mean(0)
    assert dots[..., 1].tolist() == (means if is_class else means - average).tolist()
    places = np.sort(dots[..., 0].ravel())
    assert np.diff(places).min() > 0.1  # no dot lies on another
    ends = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in picture.ax.patches]
    of_all = torch.stack([0 * average, average]) if found is None else found.interval(0.9)[:, rows, 0] - average
    np.testing.assert_allclose(ends, of_all.T, rtol=1e-6)
    names = [text.get_text() for text in picture.ax.get_legend().get_texts()]
    assert names == ["one chain", "average" if is_class else "90 % interval"]


@pytest.mark.parametrize(
    ("asked", "changes", "options"),
    [
        ({"target": "y"}, {}, "--target y --seed 0"),
        ({"target": "y", "time_limit": 20.0, "hidden": [4, 3]}, {}, "--target y --time-limit 20 --hidden 4,3 --seed 0"),
        ({"target": "y", "time_limit": 5.0}, {"time_limit": 40}, "--target y --time-limit 40 --seed 0"),
        (
            {"target": "y", "header": False, "method": "auto", "time_limit": 5.0},
            {"epochs": 80},
            "--target y --no-header --method svi --seed 0 --epochs 80",
        ),
        ({"target": "y"}, {"ignore": ("a", "b c")}, "--target y --seed 0 --ignore 'a,b c'"),
    ],
)
def test_the_command_to_train_again_is_that_of_the_user(asked, changes, options):
    """A fallback has the method svi, which the user did not ask for."""
    config = replace(OWN, dataset="a.csv", target="y", hidden=(50,), method="svi", time_limit=5.0)
    subject = SimpleNamespace(config=config, run=Path("run"), asked={"recipe": None, **asked})
    assert training_command(subject, "2", changes) == f"pyro-bnn train a.csv {options} --out run-2"


@pytest.mark.parametrize(("asked", "method"), [({}, "auto, which chose mclmc"), ({"method": "mclmc"}, "mclmc")])
def test_settings_that_were_not_given_are_words(asked, method):
    posterior = MCMCPosterior({"w": torch.zeros(2, 9)}, ChainStatistics(), Status(True, "well."), sampler="MCLMC")
    config = replace(OWN, dataset="a.csv", target="y", method="mclmc", test_fraction=0.2)
    subject = SimpleNamespace(config=config, data={}, posterior=posterior, asked={"target": "y", **asked})
    shown = configuration_section(subject).values["settings"]
    assert {name: shown[name] for name in ("method", "time limit", "calibrate", "features", "split by")} == {
        "method": method,
        "time limit": "none given: the number of rows determined the time",
        "calibrate": "none",
        "features": "all",
        "split by": "at random",
    }
    assert shown["test fraction"] == "0.2"
    subject.config, subject.posterior = replace(config, method="svi", calibrate=0.1), None
    subject.asked = {"epochs": 3}
    shown = configuration_section(subject).values["settings"]
    assert (shown["method"], shown["time limit"], shown["calibrate"]) == ("svi", "none", "0.1")


@pytest.mark.parametrize("limit", [20.0, 0.0])
def test_the_page_says_whether_the_commands_give_the_same_numbers(limit):
    posterior = MCMCPosterior({"w": torch.zeros(2, 9)}, ChainStatistics(), Status(True, "well."), sampler="MCLMC")
    config = replace(OWN, dataset="a.csv", target="y", method="mclmc", time_limit=limit)
    run = {"run": Path("run"), "num_samples": 18, "seed": 0, "model": SimpleNamespace(device=torch.device("cpu"))}
    subject = SimpleNamespace(posterior=posterior, config=config, asked={"target": "y"}, **run)
    assert longer(subject) == {}  # longer chains would not help, even if the run is not usable
    words = Page(page_of("", "", Headline(""), [], [about_section(subject)])).words
    same = "On the same kind of CPU and with the same versions, these commands give the same numbers."
    assert (same in words, "a repeated run has other chains and other scores" in words) == (not limit, bool(limit))


HARDLY = "1 of 2 chains is too short, but longer sampling should hardly change the predictions"
MAY = "1 of 2 chains is too short, and intervals may change with longer sampling"
STAYS = "chains not fully converged, and more time is unlikely to suffice: judge the run by its scores"


@pytest.mark.parametrize(
    ("diverged", "within", "is_slight", "said"),
    [
        (0, [1.0, 1.02], False, "the sampler ran long enough"),
        (0, [1.0, 1.5], False, MAY),
        (0, [1.0, 9.5], False, STAYS),
        (0, [1.0, 1.5], True, HARDLY),
        (0, [1.0, 1.02], None, "the sampler would need longer to be exact"),
        (30, [1.0, 1.5], True, "many steps of the sampler failed"),
    ],
)
def test_train_says_how_the_fit_went_without_jargon(diverged, within, is_slight, said):
    diverging = (torch.arange(200) < diverged).reshape(2, 100)
    remedy = "" if said == STAYS else "pass --time-limit 9."
    status = Status(within[1] <= 1.1 and is_slight is not None, "well.", is_slight=bool(is_slight), remedy=remedy)
    posterior = MCMCPosterior(
        {"w": torch.zeros(2, 100)},
        ChainStatistics(diverging=diverging),
        status,
        sampler="MCLMC",
        modes=Modes(torch.tensor(within), 1.0, 0.0),
    )
    assert in_plain_words(posterior) == said


@pytest.mark.parametrize(
    ("likelihood", "num_outputs", "shift", "expected"),
    [
        (pb.GaussianLikelihood(1.0), 1, 1.0, 1 / math.sqrt(1 + 50 / 199)),  # the variance of the mean is 50 / 199
        (pb.GaussianLikelihood(1.0), 1, 0.0, 0.0),
        (pb.CategoricalLikelihood(), 2, math.log(3), 0.25),  # probabilities 1 / 2 and 3 / 4
    ],
)
def test_a_drift_is_the_difference_of_the_predictions_of_both_halves(likelihood, num_outputs, shift, expected):
    net = torch.nn.Linear(2, num_outputs)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=5)
    chains = {name: torch.zeros(2, 100, *model.initial_value(name).shape) for name in model.site_names}
    next(value for name, value in chains.items() if name.endswith("bias"))[:, 50:, 0] = shift
    posterior = MCMCPosterior(chains, ChainStatistics(), Status(True, "well."), sampler="MCLMC")
    found = drift(model, posterior, torch.randn(5, 2))
    assert found.mean == pytest.approx(expected, abs=1e-6)
    assert found.widths == pytest.approx((0.0, 0.0))  # neither half has a spread of its own


def test_a_drift_has_the_change_of_the_widths_even_if_the_means_agree():
    model = pb.BayesianModel(
        torch.nn.Linear(2, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=5
    )
    chains = {name: torch.zeros(2, 100, *model.initial_value(name).shape) for name in model.site_names}
    bias = next(value for name, value in chains.items() if name.endswith("bias"))
    bias[:, 50::2], bias[:, 51::2] = 1.0, -1.0  # the variance is 1 in the first halves, and 1 + 1 in the second ones
    posterior = MCMCPosterior(chains, ChainStatistics(), Status(True, "well."), sampler="MCLMC")
    found = drift(model, posterior, torch.randn(5, 2))
    assert found.mean == pytest.approx(0, abs=1e-6)
    assert found.widths == pytest.approx((math.sqrt(2) - 1,) * 2, rel=1e-5)
    assert not found.is_small
