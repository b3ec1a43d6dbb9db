"""Bad arguments and data are refused, with a remedy."""

import math

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import nn

import pyro_bnn as pb

from .cases import log_joint, small_model, small_net
from .tolerances import agrees_in_mean, assert_identical


def test_wrong_shape_of_x_names_what_the_first_layer_takes():
    model, _, y = small_model()
    with pytest.raises(ValueError, match=r"cannot take `x` of shape \(6, 5\).*Linear `0`, takes 4 features"):
        model(torch.randn(6, 5), y)
    model = pb.BayesianModel(
        nn.Linear(1, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(None), num_data=6
    )
    with pytest.raises(ValueError, match=r"takes 1 feature\)"):
        model(torch.randn(6, 5))


def test_a_missing_axis_of_rows_is_told_only_where_it_would_help():
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=2)
    guide, x = pb.MeanFieldGuide(model), torch.randn(3, 2, 2)
    with pytest.raises(ValueError, match=r"cannot take `x` of shape \(2, 2\).*pass `x\[None\]` for a single row"):
        pb.predict(model, guide, x[0])
    with pytest.raises(ValueError, match=r"give `x` the shape and type that the first layer takes"):
        pb.predict(model, guide, x[:, :1])


def test_a_missing_axis_of_columns_is_told():
    net = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=6)
    x, y = torch.randn(6), torch.randn(6, 1)
    advice = r"^`x` is of shape \(6,\); the axis of columns is missing, so pass `x\[:, None\]`\.$"
    for targets in (y, y[:, 0]):
        with pytest.raises(ValueError, match=advice):
            pb.fit(model, (x, targets))
    with pytest.raises(ValueError, match=r"the axis of columns is missing, so pass `x\[:, None\]`\."):
        pb.predict(model, pb.MeanFieldGuide(model), x)


@pytest.mark.parametrize(
    "layer", [nn.Linear(2, 1), nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 1, 2), nn.Flatten())]
)
def test_whole_numbers_for_a_layer_of_numbers_are_refused_with_the_remedy(layer):
    model = pb.BayesianModel(layer, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=2)
    guide = pb.MeanFieldGuide(model)
    with pytest.raises(ValueError, match=r"torch.int64.*; give floats \(1.0 instead of 1, or"):
        pb.predict(model, guide, [[1, 2], [3, 4]], num_samples=2)
    assert pb.predict(model, guide, [[1.0, 2.0], [3.0, 4.0]], num_samples=2).mean.shape == (2, 1)


def test_an_index_beyond_an_embedding_gets_no_remedy_for_layers_of_numbers():
    net = nn.Sequential(nn.Embedding(3, 1), nn.Flatten(), nn.Linear(2, 1))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=2)
    with pytest.raises(ValueError, match=r"out of range.*; give `x` the shape and type that the first layer takes"):
        pb.predict(model, pb.MeanFieldGuide(model), [[1, 2], [2, 3]], num_samples=2)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (
            "categorical",
            lambda: torch.zeros(6, 1, dtype=torch.long),
            r"expects `y` of shape \(6,\), got \(6, 1\).*squeeze",
        ),
        (
            "categorical",
            lambda: torch.zeros(5, dtype=torch.long),
            r"same number of rows, got shapes \(6, 4\) and \(5,\)",
        ),
        ("categorical", lambda: torch.tensor([0, 1, 2, 3, 0, 1]), r"lie in 0, ..., 2 .*got 0 to 3"),
        ("categorical", lambda: torch.tensor([0, 1, 2, -1, 0, 1]), r"got -1 to 2"),
        ("categorical", lambda: torch.tensor([0, -2, -1, -1, 0, -1]), r"count from 0, as in `y \+ 2`"),
        ("categorical", lambda: torch.tensor([1, 2, -1, -1, 1, 2]), r"as in `\(y > 0\).long\(\)` for labels -1 and 1"),
        (
            "categorical",
            lambda: torch.full((6, 1), 0.5),
            r"must hold classes, got numbers such as 0.5; for numbers use G",
        ),
        ("categorical", lambda: torch.zeros(6), r"must be integers, got torch.float64.*y.long"),
        ("gaussian-learned", lambda: torch.zeros(6), r"expects `y` of shape \(6, 1\), got \(6,\); pass `y\[:, None\]`"),
        ("gaussian-learned", lambda: torch.full((6, 1), math.nan), r"`y` must be finite, got 6 NaN"),
        ("gaussian-learned", lambda: torch.zeros(6, 1, dtype=torch.long), r"must be floating point"),
        ("bernoulli", lambda: torch.full((6, 2), 0.5), r"must hold classes, got numbers such as 0.5; for numbers"),
        ("bernoulli", lambda: 1.0 + torch.eye(6)[:, :2], r"got 1 to 2; convert them, as in `y > 1`\."),
        ("poisson", lambda: torch.full((6, 1), -1.0), r"whole numbers of at least 0"),
        ("poisson", lambda: torch.full((6, 1), 1.5), r"whole numbers of at least 0"),
    ],
)
def test_wrong_targets_are_named_with_their_remedy(likelihood, y, message):
    model, x, _ = small_model(likelihood=likelihood)
    with pytest.raises(ValueError, match=message):
        model(x, y())
    with pytest.raises(ValueError, match=message):
        pb.predict(model, pb.MeanFieldGuide(model), x, y=y(), num_samples=2)


def test_a_vector_of_outputs_refuses_a_column_of_targets():
    """Broadcasting (N,) against (N, 1) would silently learn an N x N table."""
    model, x, _ = small_model(net=nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), likelihood="gaussian-fixed")
    assert model(x, torch.zeros(6)).shape == (6,)
    with pytest.raises(ValueError, match=r"expects `y` of shape \(6,\), got \(6, 1\); call `y.squeeze\(-1\)`"):
        model(x, torch.zeros(6, 1))


def test_more_rows_than_num_data():
    model, x, y = small_model(num_data=5)
    with pytest.raises(ValueError, match="`num_data` is 5 but the batch has 6 rows"):
        model(x, y)


def test_dtype_mismatch_has_a_remedy():
    model, x, y = small_model()
    with pytest.raises(ValueError, match=r"`x` is torch.float32 but the network is torch.float64; call `x.to"):
        model(x.float(), y)


@pytest.mark.parametrize("num_data", [0, -3, 1.5])
def test_num_data_must_be_a_positive_whole_number(num_data):
    with pytest.raises(ValueError, match="`num_data` must be a whole number of at least 1"):
        small_model(num_data=num_data)


def test_a_prior_of_the_wrong_shape_is_refused():
    class Scalar(pb.Prior):
        def elementwise(self, name, parameter, module):
            return dist.Normal(0.0, 1.0)

        def __call__(self, name, parameter, module):
            return dist.Normal(0.0, 1.0)

    with pytest.raises(ValueError, match=r"prior of `net.0.weight` must have no batch shape and event shape \(5, 4\)"):
        small_model(prior=Scalar())


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (0.0, "`scale` must be a finite number above 0"),
        (lambda: dist.Normal(0.0, 1.0), "must live on positive numbers"),
        (lambda: dist.Gamma(torch.ones(2), 1.0), "must have no batch shape"),
        (lambda: torch.distributions.Gamma(1.0, 1.0), "one of `pyro.distributions`"),
    ],
)
def test_impossible_noise_scales(scale, message):
    with pytest.raises(ValueError, match=message):
        pb.GaussianLikelihood(scale() if callable(scale) else scale)


def test_a_network_that_changes_the_number_of_rows():
    model, x, _ = small_model(net=nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)))
    with pytest.raises(ValueError, match=r"one row per input, got output \(18,\) for x \(6, 4\)"):
        model(x)


def test_prior_draws_have_the_priors_variance():
    model, x, _ = small_model(prior=pb.NormalPrior(0.7), net=nn.Linear(4, 3, bias=False))
    outputs = torch.stack([model(x) for _ in range(1000)])
    assert agrees_in_mean(outputs.square(), 0.49 * x.square().sum(-1, keepdim=True))
    assert not agrees_in_mean(outputs.square(), 0.36 * x.square().sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"where": []}, "`where` is empty"),
        ({"net": lambda x: x}, "`net` must be a torch.nn.Module, got function; call it in the `forward`"),
        ({"net": nn.Linear}, r"`net` must be a torch.nn.Module, got the class Linear; pass an instance, Linear\("),
        ({"net": [nn.Linear(1, 1)]}, r"got list; join its layers by `nn.Sequential\(\*layers\)`"),
        ({"net": nn.ModuleList([nn.Linear(1, 1)])}, "got ModuleList, which has no `forward`; join its layers"),
        ({"net": small_model()[0]}, "`net` must have no priors, got a BayesianModel; pass the module"),
        ({"prior": {"**": pb.NormalPrior()}}, r"got dict; call PriorByName with it"),
        ({"likelihood": lambda output: output}, r"got function; write likelihoods.DistributionLikelihood\("),
        ({"likelihood": 0.5}, r"got float; write GaussianLikelihood\(0.5\)"),
        ({"prior": 1.0}, "`prior` must be a Prior, such as NormalPrior"),
        (
            {"likelihood": pb.PoissonLikelihood},
            r"a Likelihood, got the class PoissonLikelihood; write PoissonLikelihood\(\)\.",
        ),
        (
            {"likelihood": "gaussian"},
            r"got 'gaussian'; write GaussianLikelihood\(\)\.",
        ),
        ({"likelihood": "Normal"}, r"got 'Normal'; write GaussianLikelihood\(\)\."),
        ({"likelihood": "categorial"}, r"got 'categorial'; write CategoricalLikelihood\(\)\."),
        ({"likelihood": "student_t"}, r"got 'student_t'; write likelihoods.StudentT\(\)\."),
        ({"likelihood": nn.CrossEntropyLoss()}, r"got CrossEntropyLoss; write CategoricalLikelihood\(\)\."),
        ({"likelihood": dist.Bernoulli(0.5)}, r"got Bernoulli; write BernoulliLikelihood\(\)\."),
        ({"likelihood": "unknown"}, r"got 'unknown'; write GaussianLikelihood\(0.5\) for"),
        ({"likelihood": None}, r"got NoneType; write GaussianLikelihood\(0.5\) for"),
    ],
)
def test_arguments_of_the_wrong_kind(change, message):
    arguments = {
        "net": small_net(),
        "prior": pb.NormalPrior(),
        "likelihood": pb.CategoricalLikelihood(),
        "num_data": 6,
        **change,
    }
    with pytest.raises(ValueError, match=message):
        pb.BayesianModel(arguments.pop("net"), **arguments)


def test_inputs_and_outputs_of_the_wrong_kind():
    model, x, _ = small_model()
    with pytest.raises(ValueError, match="`x` must be a tensor, got ndarray"):
        model(x.numpy())
    recurrent = pb.BayesianModel(
        nn.LSTM(3, 4, batch_first=True), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=5
    )
    with pytest.raises(ValueError, match="must return one tensor, got tuple"):
        recurrent(torch.randn(5, 7, 3))


@pytest.mark.parametrize("dtype", [torch.long, torch.uint8, torch.bool, torch.float32])
def test_yes_or_no_targets_of_any_type(dtype):
    model, x, y = small_model(likelihood="bernoulli")
    reference = log_joint(poutine.condition(model, data={n: model.initial_value(n) for n in model.site_names}), x, y)[1]
    same = log_joint(
        poutine.condition(model, data={n: model.initial_value(n) for n in model.site_names}), x, y.to(dtype)
    )[1]
    assert_identical(same, reference)
    guide = pb.MeanFieldGuide(model)
    assert pb.predict(model, guide, x, y=y.to(dtype), num_samples=3, seed=0).nll == pytest.approx(
        pb.predict(model, guide, x, y=y, num_samples=3, seed=0).nll
    )
