"""Scores of active learning, against their definitions by enumeration of all labels."""

import collections
import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal
from torch.utils._python_dispatch import TorchDispatchMode

import pyro_bnn as pb
from pyro_bnn import acquisition
from pyro_bnn.scores.uncertainty import RegressionPrediction

from .tolerances import STANDARD_ERRORS


def logits_of(num_samples=6, num_rows=5, num_classes=3, scale=2.0, dtype=torch.float64):
    return scale * torch.randn(num_samples, num_rows, num_classes, dtype=dtype)


def joint_information(logits, rows):
    """I[labels of rows; draw] by enumeration: the entropy of all combinations minus that given the draw."""
    probs = logits.softmax(-1)
    joint = 0.0
    for labels in itertools.product(range(logits.shape[2]), repeat=len(rows)):
        of_draws = torch.stack([probs[:, row, label] for row, label in zip(rows, labels, strict=True)]).prod(0)
        joint -= float(torch.special.xlogy(of_draws.mean(), of_draws.mean()))
    return joint - float(sum(torch.special.entr(probs[:, row]).sum(-1).mean() for row in rows))


def test_bald_entropy_and_variation_ratios_by_hand():
    certain, torn = [1.0, 0.0], [0.5, 0.5]
    probs = torch.tensor([[certain, torn, certain], [certain, torn, certain[::-1]]])
    logits = probs.log()
    log2 = math.log(2)
    assert acquisition.entropy(logits).tolist() == pytest.approx([0, log2, log2])
    assert acquisition.bald(logits).tolist() == pytest.approx([0, 0, log2], abs=1e-12)
    assert acquisition.variation_ratios(logits).tolist() == pytest.approx([0, 0.5, 0.5])


def test_a_prediction_has_the_scores_of_its_draws():
    model = pb.BayesianModel(
        torch.nn.Linear(4, 3), prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=6
    )
    prediction = pb.predict(model, pb.MeanFieldGuide(model), torch.randn(7, 4), num_samples=8, keep_draws=True, seed=0)
    for score in (acquisition.entropy, acquisition.bald, acquisition.variation_ratios):
        torch.testing.assert_close(score(prediction), score(prediction.logits))
    torch.testing.assert_close(
        acquisition.epig(prediction, prediction[:2]), acquisition.epig(prediction.logits, prediction.logits[:, :2])
    )
    of_both = [acquisition.batch_bald(pool, 3, seed=0) for pool in (prediction, prediction.logits)]
    assert torch.equal(of_both[0][0], of_both[1][0])


def test_epig_is_its_definition():
    """The mean over targets of the divergence of the joint probabilities from the product of the two."""
    pool, targets = logits_of(), logits_of(num_rows=4, num_classes=2)
    p, q = pool.softmax(-1), targets.softmax(-1)
    expected = torch.zeros(5)
    for n, m, c, d in itertools.product(range(5), range(4), range(3), range(2)):
        joint = (p[:, n, c] * q[:, m, d]).mean()
        expected[n] += joint * (joint / (p[:, n, c].mean() * q[:, m, d].mean())).log() / 4
    torch.testing.assert_close(acquisition.epig(pool, targets), expected)
    assert (expected > 1e-3).all()


def test_epig_is_at_most_bald_and_zero_without_common_draws():
    pool, targets = logits_of(num_samples=50, num_rows=20), logits_of(num_samples=50, num_rows=10)
    scores = acquisition.epig(pool, targets)
    assert (scores >= 0).all()
    assert (scores <= acquisition.bald(pool) + 1e-12).all()  # a target label tells no more than the draw
    same = logits_of(num_samples=1, num_rows=10).expand(50, -1, -1)
    assert (acquisition.epig(pool, same) < 1e-12).all()


def test_a_batch_of_one_is_the_row_with_the_largest_bald():
    logits = logits_of(num_rows=30)
    rows, information = acquisition.batch_bald(logits, 1)
    bald = acquisition.bald(logits)
    assert rows.tolist() == [int(bald.argmax())]
    assert float(information) == pytest.approx(float(bald.max()), abs=1e-12)


def test_batch_bald_is_the_greedy_choice_by_enumeration():
    logits = logits_of(num_samples=8, num_rows=7)
    rows, information = acquisition.batch_bald(logits, 4)
    chosen = []
    for row, found in zip(rows.tolist(), information.tolist(), strict=True):
        scores = {n: joint_information(logits, [*chosen, n]) for n in range(7) if n not in chosen}
        assert row == max(scores, key=scores.get)
        assert found == pytest.approx(scores[row], abs=1e-10)
        chosen.append(row)
    pair = max(itertools.combinations(range(7), 2), key=lambda rows: joint_information(logits, rows))
    assert information[1] >= (1 - 1 / math.e) * joint_information(logits, pair)


def test_batch_bald_takes_a_row_once_and_leaves_its_copies():
    """The twin: the rows with the largest BALD are copies."""
    logits = logits_of(num_samples=40, num_rows=6, scale=4.0)
    best = int(acquisition.bald(logits).argmax())
    pool = torch.cat([logits[:, [best] * 3], logits], 1)
    rows, information = acquisition.batch_bald(pool, 4, seed=0)
    copies = {0, 1, 2, 3 + best}
    assert len(set(rows.tolist())) == 4
    assert len(copies & set(rows.tolist())) < 4
    top = acquisition.bald(pool).topk(4).indices.tolist()
    assert copies == set(top)
    assert float(information[-1]) > 1.2 * joint_information(pool, top)
    assert (information.diff() <= information.diff()[0] + 1e-9).all()  # each label tells less than the one before


def test_rows_that_are_passed_over_could_not_have_been_chosen(monkeypatch):
    """One row at a time, most are passed over; all at once, none is."""
    logits = logits_of(num_samples=30, num_rows=60)
    rows, information = acquisition.batch_bald(logits, 5)
    monkeypatch.setattr("pyro_bnn.scores.acquisition._batch.NUMBERS", 1)
    with Largest() as measured:
        singly = acquisition.batch_bald(logits, 5)
    assert torch.equal(singly[0], rows)
    torch.testing.assert_close(singly[1], information)
    assert 5 < measured.counts["aten::special_entr"] / 2 < 5 * 60 / 2


def test_a_batch_of_all_rows_has_each_once():
    rows, _ = acquisition.batch_bald(logits_of(), 5)
    assert sorted(rows.tolist()) == [0, 1, 2, 3, 4]


def test_sampled_combinations_estimate_the_joint_information():
    logits = logits_of(num_samples=10, num_rows=5, num_classes=3, scale=1.5)
    exact = acquisition.batch_bald(logits, 5, num_combinations=3**5)[1]
    assert float(exact[-1]) == pytest.approx(joint_information(logits, range(5)), abs=1e-10)
    drawn = torch.stack([acquisition.batch_bald(logits, 5, num_combinations=20, seed=s)[1][-1] for s in range(200)])
    error = float(drawn.std()) / 200**0.5
    assert 0 < error < 0.02
    assert abs(float(drawn.mean() - exact[-1])) < STANDARD_ERRORS * error
    independent = acquisition.bald(logits).sum()  # the twin: labels that told nothing of one another
    assert abs(float(drawn.mean() - independent)) > STANDARD_ERRORS * error


def test_a_seed_repeats_the_batch_and_no_generator_changes():
    logits = logits_of(num_samples=20, num_rows=30)
    state = torch.get_rng_state()
    first, second = (acquisition.batch_bald(logits, 6, num_combinations=9, seed=1) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_impossible_labels_and_sure_draws_are_no_difficulty():
    logits = torch.full((4, 3, 2), -torch.inf)
    logits[:2, :, 0], logits[2:, :, 1] = 0.0, 0.0
    for limit in (1, 2, 1000):
        rows, information = acquisition.batch_bald(logits, 3, num_combinations=limit, seed=0)
        assert information.tolist() == pytest.approx([math.log(2)] * 3, abs=1e-12)
        assert sorted(rows.tolist()) == [0, 1, 2]
    assert acquisition.epig(logits, logits).tolist() == pytest.approx([math.log(2)] * 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_scores_have_the_precision_of_the_draws(dtype):
    logits = logits_of(dtype=dtype)
    expected = torch.promote_types(dtype, torch.float32)
    for score in (acquisition.entropy, acquisition.bald, acquisition.variation_ratios):
        assert score(logits).dtype == expected
    assert acquisition.epig(logits, logits).dtype == acquisition.batch_bald(logits, 2)[1].dtype == expected


# --- numbers --------------------------------------------------------------------------------------


def numbers(means=None, noise=1.0, **changes):
    """A prediction of numbers: means of draws, shape (S, N), and the standard deviation of the noise."""
    means = torch.randn(4, 2) if means is None else means
    components = Normal(means[:, :, None], noise)
    prediction = RegressionPrediction(
        num_samples=len(means),
        log_density=None,
        mean=means.mean(0)[:, None],
        aleatoric=components.variance.mean(0),
        variance_of_means=components.mean.var(0),
        components=components,
    )
    return replace(prediction, **changes)


def test_scores_of_numbers_are_those_of_gaussians():
    """Of a Gaussian vector of labels, with the covariances of the draws."""
    means = torch.randn(40, 3) @ torch.tensor([[1.0, 0.9, 0.0], [0.0, 0.4, 0.0], [0.0, 0.0, 0.2]])
    prediction = numbers(means, 0.5)
    covariance = means.T.cov() + 0.25 * torch.eye(3)
    variance = covariance.diag()
    entropy = (2 * math.pi * math.e * variance).log() / 2
    torch.testing.assert_close(acquisition.entropy(prediction), entropy)
    torch.testing.assert_close(acquisition.bald(prediction), (variance / 0.25).log() / 2)
    pairs = torch.tensor([[covariance[[i, j]][:, [i, j]].logdet() for j in (1, 2)] for i in range(2)])
    expected = (variance[:2, None].log() + variance[1:].log() - pairs) / 2  # for different rows, whose noise differs
    scores = torch.cat([acquisition.epig(prediction[:1], prediction[n : n + 1]) for n in (1, 2)])
    torch.testing.assert_close(scores, expected[0])
    torch.testing.assert_close(acquisition.epig(prediction[:1], prediction[1:]), expected[0].mean()[None])


def test_a_label_of_a_number_tells_most_where_draws_spread():
    means = torch.randn(30, 2) * torch.tensor([0.1, 3.0])
    prediction = numbers(means, 1.0)
    assert acquisition.bald(prediction)[1] > 10 * acquisition.bald(prediction)[0]
    assert acquisition.epig(prediction, prediction[1:]).argmax() == 1


# --- arrays of baal, memory, errors ---------------------------------------------------------------


def test_arrays_in_the_shape_of_baal():
    logits = logits_of()
    probs = logits.softmax(-1).permute(1, 2, 0).numpy()  # (N, C, S)
    torch.testing.assert_close(acquisition.from_baal(probs).softmax(-1), logits.softmax(-1))
    torch.testing.assert_close(acquisition.bald(acquisition.from_baal(probs)), acquisition.bald(logits))
    assert torch.equal(acquisition.from_baal(logits.permute(1, 2, 0), logits=True), logits)
    mean = probs.mean(-1)
    expected = -(mean * np.log(mean)).sum(1) + (probs * np.log(probs)).sum(1).mean(-1)
    np.testing.assert_allclose(acquisition.bald(acquisition.from_baal(probs)), expected)


class Largest(TorchDispatchMode):
    """The size of the largest result of an operation, in bytes, without views; and how often each operation ran."""

    def __init__(self):
        super().__init__()
        self.nbytes, self.counts = 0, collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.counts[function._schema.name] += 1
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in known:
            self.nbytes = max(self.nbytes, result.nbytes)
        return result


MEASURED = {
    "entropy": acquisition.entropy,
    "bald": acquisition.bald,
    "variation_ratios": acquisition.variation_ratios,
    "epig": lambda pool: acquisition.epig(pool, pool[:, :50]),
    "batch_bald": lambda pool: acquisition.batch_bald(pool, 3, num_combinations=50, seed=0),
}


@pytest.mark.parametrize("name", MEASURED)
def test_memory_does_not_grow_with_the_pool(name, monkeypatch):
    """Except for results of one number per row; with parts as large as the pool, the memory would grow."""

    def largest(num_rows):
        pool = torch.randn(20, num_rows, 5, dtype=torch.float32)
        with Largest() as measured:
            MEASURED[name](pool)
        return measured.nbytes

    for module in ("_scores", "_batch"):
        monkeypatch.setattr(f"pyro_bnn.scores.acquisition.{module}.NUMBERS", 6000)
    small, large = largest(300), largest(1200)
    assert large <= max(small, 8 * 1200)
    for module in ("_scores", "_batch"):
        monkeypatch.setattr(f"pyro_bnn.scores.acquisition.{module}.NUMBERS", 10**9)
    assert largest(1200) > 2 * large  # the twin: all rows at once


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: acquisition.bald(torch.zeros(1, 3, 2)), "at least 2 draws, got 1; call `predict` with a larger"),
        (lambda: acquisition.bald(torch.zeros(3, 2)), r"shape \(S, N, C\), none of them 0, got \(3, 2\)"),
        (lambda: acquisition.bald(torch.zeros(3, 2, 2, dtype=torch.long)), "must be floating point"),
        (lambda: acquisition.bald([1.0]), "prediction of classes or a tensor, got list"),
        (lambda: acquisition.bald(torch.full((2, 2, 2), torch.nan)), "got NaN; drop the rows"),
        (lambda: acquisition.variation_ratios(torch.full((2, 2, 2), torch.inf)), "finite logits, got NaN or infinity"),
        (lambda: acquisition.epig(torch.zeros(2, 3, 2), torch.zeros(3, 3, 2)), "same draws, got 2 and 3; predict both"),
        (lambda: acquisition.epig(numbers(), torch.zeros(4, 3, 2)), "must be a prediction of numbers, got Tensor"),
        (lambda: acquisition.bald(numbers(aleatoric=torch.zeros(2, 1))), "must have noise, got a variance of 0"),
        (lambda: acquisition.bald(numbers(aleatoric=torch.ones(2, 1) / 0)), "`pool` must have finite variances"),
        (lambda: acquisition.bald(numbers(variance_of_means=None)), "at least 2 draws, got 1"),
        (
            lambda: acquisition.bald(numbers(mean=torch.zeros(2, 3))),
            r"one number for each row, got .* \(3",
        ),
        (lambda: acquisition.batch_bald(torch.zeros(2, 3, 2), 4), "at most the 3 rows of `pool`, got 4"),
        (lambda: acquisition.batch_bald(torch.zeros(2, 3, 2), 0), "`num_rows` must be a whole number of at least 1"),
        (lambda: acquisition.batch_bald(torch.zeros(2, 3, 2), 1, num_combinations=0), "`num_combinations` must be a"),
        (lambda: acquisition.batch_bald(numbers(), 1), "prediction of classes or a tensor"),
        (lambda: acquisition.from_baal(torch.randn(3, 2, 4)), "pass `logits=True`"),
        (lambda: acquisition.from_baal(torch.zeros(3, 2)), r"must have shape \(N, C, S\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_prediction_without_draws_says_how_to_keep_them():
    model = pb.BayesianModel(
        torch.nn.Linear(4, 3), prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=6
    )
    prediction = pb.predict(model, pb.MeanFieldGuide(model), torch.randn(7, 4), num_samples=8, keep_draws=False)
    acquisition.bald(prediction)
    for call in (functools.partial(acquisition.epig, targets=prediction), lambda p: acquisition.batch_bald(p, 2)):
        with pytest.raises(ValueError, match="keep_draws=True"):
            call(prediction)


def test_several_labels_for_each_row_are_refused():
    model = pb.BayesianModel(
        torch.nn.Linear(4, 3), prior=pb.NormalPrior(), likelihood=pb.BernoulliLikelihood(), num_data=6
    )
    prediction = pb.predict(model, pb.MeanFieldGuide(model), torch.randn(7, 4), num_samples=8, keep_draws=True)
    with pytest.raises(ValueError, match="one label for each row"):
        acquisition.bald(prediction)
    with pytest.raises(ValueError, match=r"shape \(S, N, C\)"):
        acquisition.batch_bald(prediction, 2)


# --- that it helps --------------------------------------------------------------------------------


@functools.cache
def digits():
    """Pool, targets and test set of the digits 3, 8, 9 and 5 with the labels 0 to 3; in the pool 3 and 8 are rare."""
    data, label = pb.data.load_images("digits"), torch.full((10,), -1)
    label[[3, 8, 9, 5]] = torch.arange(4)
    train, test = (
        [(x.flatten(1).double()[y == number], label[y[y == number]]) for number in (3, 8, 9, 5)]
        for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))
    )
    parts = [[(x[:15], y[:15]) if y[0] < 2 else (x[40:], y[40:]) for x, y in train]]
    parts += [[(x[15:40], y[15:40]) for x, y in train], test]
    return [tuple(torch.cat(column) for column in zip(*part, strict=True)) for part in parts]


def error_after(choose, *, step, num_labels, seed, num_tested=4):
    """Error on some test classes after so many labels: one of each class, and then the rows chosen in steps.

    `choose` has the predictions of pool and targets, and the number of rows.
    """
    (x, y), *others = digits()
    (x_target, _), (x_test, y_test) = ((x[y < num_tested], y[y < num_tested]) for x, y in others)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    labelled = torch.stack([order[y[order] == label][0] for label in range(4)])
    while True:
        net, prior, num_data = torch.nn.Linear(64, 4), pb.NormalPrior(2.0), len(labelled)
        model = pb.BayesianModel(net, prior=prior, likelihood=pb.CategoricalLikelihood(), num_data=num_data)
        posterior = pb.fit_laplace(model, (x[labelled], y[labelled]), seed=0)
        predict = functools.partial(pb.predict, model, posterior, num_samples=50, seed=0)
        if num_data >= num_labels:
            return 1 - pb.metrics.accuracy(predict(x_test).probs, y_test)
        rows = order[~torch.isin(order, labelled)]
        pool, targets = (predict(some, keep_draws=True) for some in (x[rows], x_target))
        labelled = torch.cat([labelled, rows[choose(pool, targets, step)]])


def highest(score):
    return lambda pool, targets, step: score(pool, targets).topk(step).indices


CHOICES = {
    "BALD": highest(lambda pool, targets: acquisition.bald(pool)),
    "BatchBALD": lambda pool, targets, step: acquisition.batch_bald(pool, step, num_combinations=100, seed=0)[0],
    "EPIG": highest(acquisition.epig),
    "smallest BALD": highest(lambda pool, targets: -acquisition.bald(pool)),
    "smallest EPIG": highest(lambda pool, targets: -acquisition.epig(pool, targets)),
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["BALD", "BatchBALD", "smallest BALD"], {"num_labels": 32, "step": 7}),
        (
            ["EPIG", "smallest EPIG"],
            {"num_labels": 24, "step": 5, "num_tested": 2},
        ),  # the rare ones
    ],
)
def test_the_same_number_of_labels_teaches_more_than_at_random(names, problem):
    """By more than three standard errors. The twins, which choose the smallest scores, are not better."""

    def errors(choose, **changes):
        return torch.tensor([error_after(choose, seed=seed, **{**problem, **changes}) for seed in range(4)])

    num_new = problem["num_labels"] - 4
    at_random = errors(lambda *_: torch.arange(num_new), step=num_new)
    for name in names:
        saved = at_random - errors(CHOICES[name])
        is_better = bool(saved.mean() > 3 * saved.std() / len(saved) ** 0.5)
        assert is_better == (not name.startswith("smallest")), name
