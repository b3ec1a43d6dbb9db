"""The benchmark of split MNIST, on scikit-learn's digits: tasks start from the task before, and nothing runs twice."""

import json
from dataclasses import replace

import pytest
import torch

import pyro_bnn as pb
from benchmarks import _split, continual
from benchmarks._split import NUM_TASKS, Learner, Setting

QUICK = Setting(epochs=4, batch_size=32)


@pytest.fixture
def digits():
    torch.set_default_dtype(torch.float32)
    yield pb.data.load_images("digits")
    torch.set_default_dtype(torch.float64)


def test_each_image_is_in_one_task_with_the_parity_of_its_digit(digits):
    parts = [_split.task_of(digits.x_test, digits.y_test, task) for task in range(NUM_TASKS)]
    assert sum(len(x) for x, _ in parts) == len(digits.x_test)
    x, y = parts[3]
    torch.testing.assert_close(x[y == 1], digits.x_test[digits.y_test == 7].flatten(1))
    torch.testing.assert_close(x[y == 0], digits.x_test[digits.y_test == 6].flatten(1))


@pytest.mark.parametrize("is_natural", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_the_posterior_of_one_task_is_the_prior_of_the_next(digits, is_natural):
    hessian = 0.03 if is_natural else None
    setting = Setting(epochs=4, batch_size=32, is_natural=is_natural, initial_hessian=hessian)
    learner = Learner(setting, digits, seed=0)
    learner.learn(0)
    prior = learner.as_prior()
    assert any(float(value.abs().max()) > 0 for value in prior.locations.values())
    assert {name.partition("heads.")[2].partition(".")[0] for name in prior.locations} == {"", "0"}
    new = prior("net.heads.1.bias", torch.zeros(2), torch.nn.Linear(1, 2))
    torch.testing.assert_close(new.stddev, torch.ones(2))

    def shift(setting):
        """How far the body moves in the second task, in standard deviations after the first."""
        learner = Learner(setting, digits, seed=0)
        learner.learn(0)
        before = learner.as_prior()
        learner.learn(1)
        after = learner.as_prior().locations
        name = "net.body.0.weight"
        return float(((after[name] - before.locations[name]) / before.scales[name]).square().mean())

    forgetful = replace(setting, remembers=False)
    assert shift(setting) < shift(forgetful)


def test_a_coreset_is_kept_back_and_teaches_before_a_prediction_only(digits):
    learner = Learner(Setting(epochs=4, batch_size=32, coreset=10), digits, seed=0)
    learner.learn(0)
    before = learner.as_prior()
    first, second = (learner.accuracy(0, num_samples=10) for _ in range(2))
    assert first == second
    after = learner.as_prior()
    for name, location in before.locations.items():
        torch.testing.assert_close(after.locations[name], location, rtol=0, atol=0)
    plain = Learner(QUICK, digits, seed=0)
    plain.learn(0)
    assert not torch.equal(plain.as_prior().locations["net.body.0.weight"], before.locations["net.body.0.weight"])


@pytest.mark.nightly
def test_tables_have_a_row_for_each_method_and_what_ran_is_not_run_again(digits, tmp_path, monkeypatch, capsys):
    loads = []

    def load(root, validation):
        loads.append(validation)
        return digits

    monkeypatch.setattr(continual, "load", load)
    methods = ["fine-tuning", "vcl-natural", "joint"]
    options = ["--out", str(tmp_path), "--methods", *methods, "--seeds", "0", "1", "--epochs", "1", "--samples", "2"]
    continual.main(options)
    first = capsys.readouterr().out.partition("Mean test")[2]
    continual.main(options)
    assert capsys.readouterr().out.partition("Mean test")[2] == first
    assert len(loads) == 2 * len(methods)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    lengths = {row["method"]: [len(part) for part in row["accuracies"]] for row in rows}
    assert lengths == {"fine-tuning": [1, 2, 3, 4, 5], "vcl-natural": [1, 2, 3, 4, 5], "joint": [5]}
    final = [100 * sum(row["accuracies"][-1]) / NUM_TASKS for row in rows if row["method"] == "joint"]
    mean, error = sum(final) / 2, abs(final[0] - final[1]) / 2
    assert f"| joint | 2 |  |  |  |  | {mean:.2f} ± {error:.2f} |" in first
    assert (tmp_path / "tables.md").read_text().partition("Mean test")[2] in first
