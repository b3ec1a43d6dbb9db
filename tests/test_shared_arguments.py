"""Shared arguments of Pyro models of one's own, what is refused, and the small parts."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core.inputs import leaves, num_rows, take, to_device

from .fits import ADAM
from .graphs import ROWS, Graph, averaged, check_same, graph, problem


def own(nodes, features, edges, y=None):
    weight = pyro.sample("weight", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    mean = (averaged(features, edges) @ weight)[nodes]
    with pyro.plate("data", len(nodes)):
        pyro.sample("obs", dist.Normal(mean, 0.3), obs=y)
    return mean


@pytest.mark.daily("True-4", "False-None")
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("first", [False, True])
def test_arguments_of_a_pyro_model(batch_size, first):
    """Wherever the shared arguments are, the first one included."""
    nodes, shared = torch.arange(ROWS), tuple(map(pb.Shared, graph()))
    y = torch.linspace(-1, 1, ROWS)

    def turned(features, edges, nodes, y=None):
        return own(nodes, features, edges, y)

    def closed(nodes, y=None):
        return own(nodes, *values, y)

    values = graph()
    model, x = (turned, (*shared, nodes)) if first else (own, (nodes, *shared))

    def results(model, x):
        guide, options = AutoNormal(model), {"optimizer": ADAM, "num_epochs": 2, "seed": 1, "batch_size": batch_size}
        posterior = pb.fit_svi(model, (*x, y), guide, **options)
        chains = pb.fit_nuts(model, (*x, y), num_samples=20, num_warmup=5, num_chains=1, seed=0)
        predictions = [pb.predict(model, p, x, num_samples=5, seed=2).mean for p in (posterior, chains)]
        return [posterior.history.elbo[-1], *predictions]

    check_same(results(model, x), results(closed, (nodes,)))


# --- what is refused --------------------------------------------------------------------------------------------------


def fit(model, x, y, **options):
    return pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=1, **options)


REFUSED = {
    "no input with rows": (
        lambda m, x, y: fit(m, (pb.Shared(x[0]), *x[1:]), y),
        r"must hold at least one input with rows, got \(Shared\(\(9,\)\), Shared.*`torch.arange\(N\)`",
    ),
    "not wrapped": (
        lambda m, x, y: fit(m, (x[0], x[1].value, x[2]), y),
        r"got 9 in `x\[0\]` and 14 in `x\[1\]`.*wrap an input that all rows share in `Shared\(...\)`",
    ),
    "shared targets": (lambda m, x, y: fit(m, x, pb.Shared(y)), r"`y` must be one tensor of targets, got the input"),
    "a batch without its own tuple": (
        lambda m, x, y: pb.predict(m, pb.MeanFieldGuide(m), [(x[0], x[1])]),
        r"in a tuple of their own, as in \(\(x_1, Shared\(x_2\)\), y\)|put all inputs of the network into a tuple",
    ),
    "NaN": (
        lambda m, x, y: fit(m, (x[0], pb.Shared(x[1].value.log()), x[2]), y),
        r"`x\[1\]` must be finite",
    ),
    "another dtype": (
        lambda m, x, y: fit(m, (x[0], pb.Shared(x[1].value.float()), x[2]), y),
        r"`x\[1\]` is torch.float32 but the network is torch.float64",
    ),
    "a sparse matrix": (
        lambda m, x, y: fit(m, (x[0], pb.Shared(x[1].value.to_sparse()), x[2]), y),
        r"`x\[1\]` must be a dense tensor",
    ),
    "an estimator": (
        lambda m, x, y: fit(m, x, y, estimator=pb.LocalReparameterization()),
        "an estimator draws noise for each row, but a shared input .* leave the estimator out",
    ),
    "all nodes as output": (
        lambda m, x, y: fit(m, (x[0][:5], *x[1:]), y[:5]),
        "`num_data` is 9 but the data has 5 rows",
    ),
    "a text": (lambda m, x, y: fit(m, (x[0], pb.Shared("graph"), x[2]), y), "value of `Shared` must be a tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_the_remedy(name):
    model, x, y, _ = problem(Graph)
    run, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        run(model, x, y)


class Changing(Graph):
    def forward(self, nodes, features, edges):
        return super().forward(nodes, features.add_(1), edges)


def test_a_network_that_changes_a_shared_input_is_refused():
    model, x, y, _ = problem(Graph)
    changing = pb.BayesianModel(Changing(), prior=model.prior, likelihood=pb.CategoricalLikelihood(), num_data=ROWS)
    with pytest.raises(ValueError, match="in place"):
        fit(changing, x, y)


WRONG = {
    "a text": ("edges", "must be a tensor, an array or a list, or .* of these, got 'edges'; convert it to a tensor"),
    "None": (None, "got None; leave it out"),
    "a number": (2.0, r"got 2.0; pass `torch.tensor\(...\)` of it"),
    "a class": (nn.Linear, "got the class Linear"),
    "shared already": (pb.Shared(torch.zeros(2)), "got a Shared itself; wrap it once"),
    "a part": ({"a": (torch.zeros(2), None)}, r"its part `value\['a'\]\[1\]` is None"),
    "a text in a list": ([torch.zeros(2), "edges"], r"its part `value\[1\]` is 'edges'"),
    "a part that is shared": ((torch.zeros(2), pb.Shared(torch.zeros(2))), r"`value\[1\]` is a Shared itself"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_that_cannot_be_shared_is_refused_at_once(name):
    value, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        pb.Shared(value)


SHOWN = {
    "Shared((2, 3))": np.zeros((2, 3)),
    "Shared((2,))": [1.0, 2],
    "Shared((1, 2))": [[1, 2]],
    "Shared(((2,), (3, 1)))": [torch.zeros(2), np.zeros((3, 1))],
    "Shared({'a': ((2,), ())})": {"a": ([1, 2], torch.tensor(1.0))},
    "Shared(())": torch.tensor(1.0),
}


@pytest.mark.parametrize("shown", SHOWN)
def test_every_value_that_can_be_shared_is_shown(shown):
    assert repr(pb.Shared(SHOWN[shown])) == shown


# --- small parts ------------------------------------------------------------------------------------------------------


def test_a_shared_number_and_arrays():
    """A tensor without axes may be shared; arrays and lists get the dtype of the model."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, x, factor, shift):
            return factor * self.linear(x) + shift

    options = {"prior": pb.NormalPrior(), "likelihood": pb.GaussianLikelihood(0.1), "num_data": 5}
    model = pb.BayesianModel(Scaled(), **options)
    x = torch.randn(5, 2)
    guide = pb.MeanFieldGuide(model)
    number, shift = pb.Shared(torch.tensor(2.0)), pb.Shared([1.0])
    shifted = pb.predict(model, guide, (x, number, shift), num_samples=3, seed=0).mean
    plain = pb.predict(model, guide, (x, number, pb.Shared([0.0])), num_samples=3, seed=0).mean
    check_same([shifted], [plain + 1])


def test_all_tensors_move_to_a_device():
    moved = to_device((torch.arange(3), pb.Shared({"graph": torch.zeros(2, 2)})), torch.device("meta"))
    assert [leaf.device.type for leaf in leaves(moved)] == ["meta", "meta"]
    assert isinstance(moved[1], pb.Shared)


def test_rows_are_taken_and_shared_inputs_stay():
    x = {"rows": torch.arange(6), "both": [pb.Shared(torch.zeros(2, 3)), torch.ones(6, 1)]}
    part = take(x, torch.tensor([1, 3]))
    assert num_rows(x) == 6
    assert num_rows(part) == 2
    assert part["both"][0].value is x["both"][0].value
    assert str(part["both"][0]) == "Shared((2, 3))"
