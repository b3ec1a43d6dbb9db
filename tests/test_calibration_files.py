"""A calibration is kept in the file of its posterior, and comes back to the bit."""

import pickle

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn._core.files import DamagedFileError, read_state, write_state

from .test_conformal import QUICK, classes, labelled, numbers, wrong_model
from .test_forged_files import refusals


def counted(num_rows):
    """Counts, and a prediction of them that is too narrow."""
    rate = 1 + 5 * torch.rand(num_rows, 2)
    return numbers(rate, 0.3 * rate.sqrt()), torch.poisson(rate)


def series():
    """Adaptive intervals after 150 rows."""
    prediction, y = wrong_model(200)
    found = pb.calibration.AdaptiveIntervals(level=0.8, num_scores=70).start(prediction[:50], y[:50])
    found.update(prediction[50:], y[50:])
    return found


MADE = {
    "scaled": lambda: pb.calibration.ConformalIntervals(*wrong_model(60)),
    "absolute": lambda: pb.calibration.ConformalIntervals(*wrong_model(60), score="absolute"),
    "counts": lambda: pb.calibration.ConformalIntervals(*counted(60), is_count=True),
    "sets": lambda: pb.calibration.ConformalSets(*labelled(60)),
    "random sets": lambda: pb.calibration.ConformalSets(*labelled(60), penalty=0.1, num_free=2, seed=3),
    "temperature": lambda: pb.calibration.Temperature.fit(*labelled(60)),
    "spread": lambda: pb.calibration.SpreadFactor.fit(*counted(60)),
    "adaptive": series,
}


def used(name, calibration):
    """What a calibration makes of new rows; the rows are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        (of_numbers, y), (of_counts, _), (of_classes, _) = wrong_model(40), counted(40), labelled(40)
    if name in ("scaled", "absolute"):
        return torch.cat([calibration.interval(of_numbers, level) for level in (0.5, 0.9, 0.95)])
    if name in ("sets", "random sets"):
        return torch.cat([calibration.sets(of_classes, level) for level in (0.5, 0.9, 0.95)])
    return {
        "counts": lambda: calibration.interval(of_counts),
        "temperature": lambda: calibration.probs(of_classes),
        "spread": lambda: calibration.sd(of_counts),
        "adaptive": lambda: calibration.update(of_numbers, y),
    }[name]()


def line(seed=7):
    torch.manual_seed(seed)
    model = pb.BayesianModel(
        torch.nn.Linear(2, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=6
    )
    return model, pb.MeanFieldGuide(model)


@pytest.mark.parametrize("name", MADE)
def test_every_calibration_comes_back_to_the_bit(tmp_path, name):
    calibration, (model, guide), path = MADE[name](), line(), tmp_path / "posterior"
    pb.save_posterior(guide, path, model, calibration=calibration)
    loaded = pb.calibration.load_calibration(path)
    assert type(loaded) is type(calibration)
    again = pickle.loads(pickle.dumps(calibration))
    expected = used(name, calibration)
    assert torch.equal(used(name, loaded), expected)
    assert torch.equal(used(name, again), expected)
    assert not torch.equal(used(name, MADE[name]()), expected)  # made of other rows
    if name in ("scaled", "sets"):
        assert loaded.num_rows == 60


def test_the_posterior_beside_it_is_loaded_as_without_it(tmp_path):
    (model, guide), (other, _) = line(), line(1)
    pb.save_posterior(guide, tmp_path / "with", model, calibration=MADE["sets"]())
    pb.save_posterior(guide, tmp_path / "without", model)
    draws = [pb.load_posterior(tmp_path / name, other).sample(3, seed=0) for name in ("with", "without")]
    assert all(torch.equal(draws[0][site], draws[1][site]) for site in draws[0])
    with pytest.raises(ValueError, match=r"without holds a posterior without a calibration; save it with"):
        pb.calibration.load_calibration(tmp_path / "without")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        pb.calibration.load_calibration(tmp_path / "none")


@pytest.mark.parametrize("name", MADE)
def test_forged_calibrations_are_refused(tmp_path, name):
    model, guide = line()
    path = tmp_path / "file"
    pb.save_posterior(guide, path, model, calibration=MADE[name]())
    content = {"calibration": read_state(path, "posterior")["calibration"]}
    write_state(path, "posterior", content)
    assert refusals(path, "posterior", lambda: pb.calibration.load_calibration(path)) > 40


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("scaled", "scores", torch.full((60, 1), torch.nan), "scores of the calibration rows must be finite"),
        ("scaled", "scores", torch.ones(0, 1), r"must be numbers of shape \(n, \*O\)"),
        ("scaled", "score", "quantile", "`score` must be 'absolute' or 'scaled', got 'quantile'"),
        ("sets", "num_classes", 0, "`num_classes` must be at least 1"),
        ("spread", "value", torch.tensor([-1.0]), "`value` must be factors of at least 0, got -1"),
        ("adaptive", "level", 1.5, "`level` must lie strictly between 0 and 1"),
    ],
)
def test_wrong_numbers_in_a_file_are_named(tmp_path, name, field, value, message):
    (model, guide), path = line(), tmp_path / "file"
    pb.save_posterior(guide, path, model, calibration=MADE[name]())
    content = read_state(path, "posterior")
    assert field in content["calibration"]["content"]
    content["calibration"]["content"][field] = value
    write_state(path, "posterior", content)
    with pytest.raises(ValueError, match=rf"the calibration in .*file cannot be loaded: .*{message}"):
        pb.calibration.load_calibration(path)


def test_a_changed_byte_is_noticed(tmp_path):
    (model, guide), path = line(), tmp_path / "file"
    pb.save_posterior(guide, path, model, calibration=MADE["scaled"]())
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="checksum"):
        pb.calibration.load_calibration(path)


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        (
            lambda: pb.calibration.ConformalIntervals(*wrong_model(60), score="quantile"),
            'the calibration cannot be saved: .* choose score="scaled" or "absolute"',
        ),
        (lambda: line()[1], "`calibration` must be a member of `pyro_bnn.calibration`, or None, got MeanFieldGuide"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_leaves_the_old_file(tmp_path, calibration, message):
    (model, guide), path = line(), tmp_path / "file"
    pb.save_posterior(guide, path, model)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        pb.save_posterior(guide, path, model, calibration=calibration())
    assert path.read_bytes() == before


class Shifted(pb.calibration.Calibration):
    """A calibration of one's own."""

    def __init__(self, by):
        self.by = by

    def to_record(self):
        return {"by": self.by}

    @classmethod
    def from_record(cls, values):
        return cls(values["by"])


def test_a_class_of_ones_own_is_saved_by_its_two_methods(tmp_path):
    model, guide = line()
    pb.save_posterior(guide, tmp_path / "file", model, calibration=Shifted(3.0))
    assert pb.calibration.load_calibration(tmp_path / "file").by == 3.0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_sets_of_an_estimator_are_pickled_with_it():
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 2))
    classifier = pb.BNNClassifier(calibration_fraction=0.5, random_state=0, **QUICK).fit(x, x[:, 0] > 0)
    again = pickle.loads(pickle.dumps(classifier))
    assert (again.predict_set(x, 0.9) == classifier.predict_set(x, 0.9)).all()


def test_random_sets_are_the_same_in_single_precision_calls():
    """The numbers U follow from the seed and the probabilities alone, not from the device's generator."""
    sets = MADE["random sets"]()
    probs = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]])
    before = torch.random.get_rng_state()
    assert torch.equal(sets.sets(classes(probs)), sets.sets(classes(probs)))
    assert torch.equal(torch.random.get_rng_state(), before)
