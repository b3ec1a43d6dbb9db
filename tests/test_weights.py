"""Class weights and row weights: a row of weight 2 is the same row twice, in every fit, and in no prediction."""

import copy
import functools
import pickle

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.mcmc import MCMC
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from pyro_bnn.inference.joint import network_potential

from .cases import ESTIMATORS, LIKELIHOODS, small_net
from .fits import assert_same, fit_both
from .tolerances import assert_identical

COPIES = torch.tensor([1, 3, 0, 2, 1, 4])
"""How often each of six rows is in the data that the weights stand for."""


def make_model(likelihood, num_outputs, num_data=6, net=None, prior=None):
    torch.manual_seed(5)
    net = small_net(num_outputs) if net is None else net
    return pb.BayesianModel(net, prior=prior or pb.NormalPrior(0.7), likelihood=likelihood, num_data=num_data)


def values_of(model, seed=1):
    torch.manual_seed(seed)
    with pyro.poutine.trace() as tracer, torch.no_grad():
        model.sample_latents()
    return {name: tracer.trace.nodes[name]["value"] for name in model.latent_names}


def pyro_log_likelihood(model, values, x, y):
    trace = pyro.poutine.trace(pyro.poutine.condition(model, data=values)).get_trace(x, y)
    trace.compute_log_prob()
    return trace.nodes["obs"]["log_prob_sum"].detach()


def potential_of(model, values, x, y):
    potential = network_potential(model, x, y, None)
    return potential.log_likelihood({name: value[None] for name, value in values.items()})[0]


WAYS = {
    "direct": lambda model, *rest: model.log_likelihood(*rest).detach(),
    "pyro": pyro_log_likelihood,
    "samplers": potential_of,
}
"""Ways in which the library computes the log-likelihood of a fit."""


@pytest.mark.filterwarnings("ignore:the model's learnable parameters")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_weight_of_two_is_the_row_twice(name, way):
    likelihood, num_outputs, targets, _ = LIKELIHOODS[name]
    x, y = torch.randn(6, 4), targets(6)
    weighted = make_model(likelihood.with_row_weights(), num_outputs)
    repeated = make_model(likelihood, num_outputs, num_data=int(COPIES.sum()))
    values = values_of(weighted)
    found = WAYS[way](weighted, values, x, likelihood.join_weights(y, COPIES))
    expected = WAYS[way](repeated, values, x.repeat_interleave(COPIES, 0), y.repeat_interleave(COPIES, 0))
    assert_identical(found, expected)
    assert not torch.isclose(found, WAYS[way](make_model(likelihood, num_outputs), values, x, y), rtol=0.01)


CLASSIFIERS = {
    "categorical": (pb.CategoricalLikelihood, 3, torch.tensor([0, 2, 1, 1, 0, 2]), [1, 2, 4]),
    "bernoulli": (pb.BernoulliLikelihood, 2, torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [0, 0], [1, 1]]), [1, 3]),
}


@pytest.mark.parametrize("with_rows", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_class_weights_multiply_log_probabilities_of_their_class(name, way, with_rows):
    kind, num_outputs, y, weights = CLASSIFIERS[name]
    x, of_rows = torch.randn(6, 4), torch.rand(6) if with_rows else torch.ones(6)
    likelihood = kind(class_weights=weights)
    given = y
    if with_rows:
        likelihood = likelihood.with_row_weights()
        given = likelihood.join_weights(y, of_rows)
    model, plain = make_model(likelihood, num_outputs), make_model(kind(), num_outputs)
    values = values_of(model)
    with torch.no_grad(), pyro.poutine.block(), pyro.poutine.condition(data=values):
        log_probs = plain.observation(x).log_prob(y.double() if name == "bernoulli" else y)
    factors = torch.tensor(weights).double()[y] * of_rows.reshape(-1, *[1] * (y.dim() - 1))
    assert_identical(WAYS[way](model, values, x, given), (factors * log_probs).sum())
    assert not torch.isclose(WAYS[way](plain, values, x, y), (factors * log_probs).sum(), rtol=0.01)


def test_positive_weights_are_those_of_torch():
    logits, y = torch.randn(8), torch.tensor([0.0, 1, 1, 0, 1, 0, 0, 1])
    likelihood = pb.BernoulliLikelihood(class_weights=(1.0, 2.5))
    expected = nn.functional.binary_cross_entropy_with_logits(logits, y, pos_weight=torch.tensor(2.5), reduction="sum")
    assert_identical(-likelihood.weighted(likelihood(logits), y, torch.float64).log_prob(y).sum(), expected)


@pytest.mark.parametrize(
    "weights", [[1, 2, 4], (1.0, 2.0, 4.0), torch.tensor([1, 2, 4]), torch.tensor([1, 2, 4]).numpy()]
)
def test_class_weights_are_any_numbers(weights):
    likelihood = pb.CategoricalLikelihood(class_weights=weights)
    assert_identical(likelihood.class_weights, torch.tensor([1.0, 2.0, 4.0]))
    assert make_model(likelihood, 3).float().likelihood.class_weights.dtype == torch.float32


@pytest.mark.parametrize("estimator", [None, *ESTIMATORS])
@pytest.mark.parametrize("with_rows", [False, True])
def test_both_paths_fit_the_same_with_every_estimator(monkeypatch, estimator, with_rows):
    def make():
        likelihood = pb.CategoricalLikelihood(class_weights=[1, 2, 4])
        x, y = torch.randn(6, 4), torch.tensor([0, 2, 1, 1, 0, 2])
        if with_rows:
            likelihood = likelihood.with_row_weights()
            y = likelihood.join_weights(y, COPIES)
        model = make_model(likelihood, 3)
        return model, pb.MeanFieldGuide(model), (x, y)

    assert_same(fit_both(monkeypatch, make, estimator=ESTIMATORS.get(estimator), batch_size=4))


# --- exact posteriors -------------------------------------------------------------------------------------------------


class WeightedRegression:
    """y = x w + noise with w ~ N(0, 1) and row weights: the posterior precision is X' diag(weights) X / s^2 + 1."""

    def __init__(self):
        self.x, self.y, self.weights = torch.randn(9, 2), torch.randn(9, 1), torch.rand(9) * 3
        self.precision = (self.x.T * self.weights) @ self.x / 0.25 + torch.eye(2)
        self.mean = torch.linalg.solve(self.precision, (self.x.T * self.weights) @ self.y / 0.25).flatten()
        likelihood = pb.GaussianLikelihood(0.5).with_row_weights()
        self.targets = likelihood.join_weights(self.y, self.weights)
        net = nn.Linear(2, 1, bias=False)
        self.model = make_model(likelihood, 1, num_data=9, net=net, prior=pb.NormalPrior(1.0))


def test_laplace_finds_the_exact_posterior():
    problem = WeightedRegression()
    posterior = pb.fit_laplace(problem.model, (problem.x, problem.targets))
    draws = posterior.sample(4000, seed=0)["net.weight"].reshape(-1, 2)
    expected = dist.MultivariateNormal(problem.mean, precision_matrix=problem.precision)
    z = (draws - problem.mean) / expected.variance.sqrt()
    assert bool((z.mean(0).abs() < 5 / 4000**0.5).all())
    assert bool((z.std(0) - 1).abs().max() < 5 / (2 * 4000) ** 0.5)
    unweighted = torch.linalg.solve(
        problem.x.T @ problem.x / 0.25 + torch.eye(2), problem.x.T @ problem.y / 0.25
    ).flatten()
    assert bool(((draws.mean(0) - unweighted) / expected.variance.sqrt()).abs().max() > 0.2)


def test_the_density_for_samplers_is_that_of_the_exact_posterior():
    problem = WeightedRegression()
    potential = network_potential(problem.model, problem.x, problem.targets, None)
    z = torch.randn(5, 2)
    exact = dist.MultivariateNormal(problem.mean, precision_matrix=problem.precision).log_prob(z)
    difference = potential.value(z) + exact
    assert_identical(difference, difference[:1].expand(5))


@pytest.mark.filterwarnings("ignore::pyro_bnn.inference.mcmc.ConvergenceWarning")  # few draws
def test_nuts_ours_and_pyros_run_on_weighted_data():
    problem = WeightedRegression()
    posterior = pb.fit_nuts(
        problem.model, (problem.x, problem.targets), num_chains=2, num_warmup=60, num_samples=60, seed=0
    )
    draws = posterior.chains["net.weight"].reshape(-1, 2)
    spread = torch.linalg.inv(problem.precision).diagonal().sqrt()
    assert bool(((draws.mean(0) - problem.mean) / spread).abs().max() < 5 / 25**0.5)  # at least 25 independent ones
    sampler = MCMC(pyro.infer.NUTS(problem.model), num_samples=3, warmup_steps=3, disable_progbar=True)
    sampler.run(problem.x, problem.targets)
    assert sampler.get_samples()["net.weight"].shape == (3, 1, 2)


# --- what weights do not touch ----------------------------------------------------------------------------------------


def test_predictions_do_not_count_the_weights():
    x, y = torch.randn(6, 4), torch.tensor([0, 2, 1, 1, 0, 2])
    plain = make_model(pb.CategoricalLikelihood(), 3)
    by_class = make_model(pb.CategoricalLikelihood(class_weights=[1, 20, 400]), 3)
    by_row = make_model(pb.CategoricalLikelihood(class_weights=[1, 20, 400]).with_row_weights(), 3)
    joined = by_row.likelihood.join_weights(y, COPIES)
    values = values_of(plain)
    expected = pb.predict_point(plain, values, x, y=y)
    loader = DataLoader(TensorDataset(x, joined), batch_size=4)
    for found in (
        pb.predict_point(by_class, values, x, y=y),
        pb.predict_point(by_row, values, x, y=joined),
        pb.predict_point(by_row, values, loader),
    ):
        assert_identical(found.log_density, expected.log_density)
        assert_identical(found.nll, expected.nll)
        assert found.score() == expected.score()
        assert torch.equal(found.targets, y)


def test_draws_of_observations_are_not_weighted():
    x = torch.randn(6, 4)
    draws = []
    for likelihood in (pb.CategoricalLikelihood(), pb.CategoricalLikelihood(class_weights=[1, 20, 400])):
        model = make_model(likelihood, 3)
        trace = pyro.poutine.trace(pyro.poutine.condition(model, data=values_of(model))).get_trace(x)
        draws.append(trace.nodes["obs"]["value"])
    assert torch.equal(*draws)


def test_pyros_own_svi_with_vectorised_particles_sees_the_weights():
    likelihood = pb.PoissonLikelihood().with_row_weights()
    x, y = torch.randn(6, 4), likelihood.join_weights(torch.randint(5, (6, 1)), COPIES)
    model = make_model(likelihood, 1)
    guide = pb.DeltaGuide(model)
    losses = [
        Trace_ELBO(num_particles=2, vectorize_particles=vectorised, max_plate_nesting=1).loss(model, guide, x, y)
        for vectorised in (False, True)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_fits_of_models_without_weights_have_no_new_entries_in_their_state():
    assert not [name for name in make_model(pb.CategoricalLikelihood(), 3).state_dict() if "weights" in name]


def test_a_fit_takes_a_loader_of_weighted_targets_in_single_precision():
    likelihood = pb.CategoricalLikelihood().with_row_weights()
    x, y = torch.randn(6, 4), likelihood.join_weights(torch.arange(6) % 3, torch.rand(6))
    model = make_model(likelihood, 3).float()
    loader = DataLoader(TensorDataset(x.float(), y), batch_size=3)
    adam = functools.partial(torch.optim.Adam, lr=0.01)
    posterior = pb.fit_svi(model, loader, pb.MeanFieldGuide(model), optimizer=adam, num_epochs=2, seed=0)
    assert posterior.history.path == "direct"


Y = torch.tensor([0, 1, 2, 0, 1, 2])
ROWS = pb.CategoricalLikelihood().with_row_weights()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pb.CategoricalLikelihood(class_weights=[1.0]), r"vector of C numbers, got shape \(1,\)"),
        (lambda: pb.CategoricalLikelihood(class_weights=2.0), r"vector of C numbers, got shape \(\)"),
        (lambda: pb.CategoricalLikelihood(class_weights=[1, 0]), r"finite and above 0, got \[1.0, 0.0\]"),
        (lambda: pb.CategoricalLikelihood(class_weights=[1, -2]), "finite and above 0"),
        (lambda: pb.CategoricalLikelihood(class_weights=[1, float("nan")]), "finite and above 0"),
        (lambda: pb.CategoricalLikelihood(class_weights=[1, float("inf")]), "finite and above 0"),
        (lambda: pb.CategoricalLikelihood(class_weights="balanced"), "one number per class, got 'balanced'"),
        (lambda: pb.BernoulliLikelihood(class_weights=[1, 2, 3]), "two numbers, for no and for yes, got 3"),
        (lambda: make_model(pb.CategoricalLikelihood([1, 2]), 3)(torch.zeros(6, 4)), "2 `class_weights`.*3 outputs"),
        (lambda: ROWS.join_weights(Y, torch.ones(5)), r"shape \(6,\) or \(6,\), got \(5,\)"),
        (lambda: ROWS.join_weights(Y, -torch.ones(6)), "at least 0, got values down to -1"),
        (lambda: ROWS.join_weights(Y, [float("nan")] * 6), "`y` must be finite"),
        (lambda: ROWS.join_weights(Y, "all"), "`weights` must be numbers, got str"),
        (lambda: ROWS.join_weights([0, 1]), "`y` must be a tensor of targets, got list"),
        (lambda: make_model(ROWS, 3)(torch.zeros(6, 4), Y), r"shape \(6, 2\), got \(6,\), values and weights; call"),
        (lambda: make_model(ROWS, 3)(torch.zeros(6, 4), torch.ones(6, 2).long()), "must be floating point"),
        (
            lambda: make_model(ROWS, 3)(torch.zeros(6, 4), ROWS.join_weights(Y + 0.5)),
            r"must hold classes, got numbers such as 0\.5",
        ),
        (lambda: make_model(ROWS, 3)(torch.zeros(6, 4), ROWS.join_weights(Y + 1)), "must lie in 0, ..., 2"),
        (lambda: make_model(ROWS, 3)(torch.zeros(6, 4), -ROWS.join_weights(Y)), "weights of targets must be at least"),
    ],
)
def test_impossible_weights_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- fixed numbers keep all their digits ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights", [[0.1, 0.7], (0.1, 0.7), np.array([0.1, 0.7]), torch.tensor([0.1, 0.7], dtype=torch.float64)]
)
def test_weights_are_exact_where_torchs_default_is_single_precision(weights):
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        likelihoods = [pb.CategoricalLikelihood(weights), pb.BernoulliLikelihood(weights)]
    finally:
        torch.set_default_dtype(default)
    for likelihood in likelihoods:
        assert likelihood.class_weights.tolist() == [0.1, 0.7]


FIXED_NUMBERS = {
    "scale": (lambda: pb.GaussianLikelihood(0.1), "fixed_scale"),
    "classes": (lambda: pb.CategoricalLikelihood([0.1, 0.7, 0.3]), "class_weights"),
    "yes and no": (lambda: pb.BernoulliLikelihood([0.1, 0.7]), "class_weights"),
}


@pytest.mark.parametrize("name", FIXED_NUMBERS)
def test_fixed_numbers_are_exact_after_single_precision(name):
    make, buffer = FIXED_NUMBERS[name]
    expected = make().get_buffer(buffer)
    model = make_model(make(), 3).float()
    assert model.likelihood.get_buffer(buffer).dtype == torch.float32
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model.likelihood))):
        likelihood = twin.double() if isinstance(twin, pb.Likelihood) else twin.double().likelihood
        assert torch.equal(likelihood.get_buffer(buffer), expected)


def test_a_number_that_was_loaded_is_not_replaced_by_the_first_one():
    likelihood = pb.GaussianLikelihood(0.1).float()
    likelihood.load_state_dict({"fixed_scale": torch.tensor(0.5)})
    assert float(likelihood.double().noise_scale()) == 0.5
