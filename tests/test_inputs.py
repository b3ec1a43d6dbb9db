"""Networks with several inputs: in tuples, dictionaries and trees of these; and inputs that are not tensors."""

import warnings

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb

from .fits import ADAM
from .tolerances import IDENTITY


class Pair(nn.Module):
    """``forward(a, b)``: two linear layers, added."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, a, b):
        return torch.tanh(self.a(a)) + self.b(b)


class Named(Pair):
    """``forward(**batch)``."""

    def forward(self, **batch):
        return super().forward(batch["left"], batch["right"])


class Nested(Pair):
    """``forward(pair, mask)``, with a nested tuple and whole numbers."""

    def forward(self, pair, mask):
        a, b = pair
        return super().forward(a * mask[:, None], b)


class Whole(Pair):
    """``forward(x)``: the same function of one tensor."""

    def forward(self, x):
        return super().forward(x[:, :3], x[:, 3:])


def rows(num_rows=12):
    """Inputs a and b, and targets."""
    generator = torch.Generator().manual_seed(2)
    return (torch.randn(num_rows, size, generator=generator, dtype=torch.float64) for size in (3, 2, 2))


def inputs_of(kind, a, b):
    return {
        Pair: (a, b),
        Named: {"left": a, "right": b},
        Nested: ([a, b], torch.ones(len(a), dtype=torch.long)),
        Whole: torch.cat([a, b], 1),
    }[kind]


def problem(kind, scale=0.5):
    """A model, its inputs and targets; every kind of network computes the same function of the same numbers."""
    torch.manual_seed(3)
    likelihood = pb.GaussianLikelihood(scale)
    model = pb.BayesianModel(kind(), prior=pb.NormalPrior(0.7), likelihood=likelihood, num_data=12)
    a, b, y = rows()
    return model, inputs_of(kind, a, b), y


SEVERAL = [Pair, Named, Nested]


def check_same(found, expected, **tolerance):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), **(tolerance or IDENTITY))


@pytest.mark.parametrize("kind", SEVERAL)
def test_model_density_and_targets(kind):
    def results(kind):
        model, x, y = problem(kind, dist.LogNormal(0.0, 1.0))
        trace = pyro.poutine.trace(model).get_trace(x, y)
        values = {name: trace.nodes[name]["value"] for name in model.latent_names}
        distribution = model.observation_given(values, x)
        with pytest.raises(ValueError, match=r"expects `y` of shape \(12, 2\)"):
            model.check_targets(x, y[:, :1])
        with pytest.raises(ValueError, match="`x` and `y` must have the same number of rows"):
            model.check_targets(x, y[:5])
        return trace.log_prob_sum(), model.log_likelihood(values, x, y), distribution.mean

    check_same(results(kind), results(Whole))


@pytest.mark.parametrize("as_loader", [False, True])
@pytest.mark.parametrize("kind", SEVERAL)
def test_a_fit(kind, as_loader, path):
    def results(kind):
        model, x, y = problem(kind)
        guide = pb.MeanFieldGuide(model)
        data = [(inputs_of(kind, a, b), t) for a, b, t in batches()] if as_loader else (x, y)
        size = None if as_loader else 5
        posterior = pb.fit_svi(model, data, guide, optimizer=ADAM, num_epochs=3, batch_size=size, seed=1)
        assert posterior.history.path.startswith(path)
        return [*guide.median().values(), posterior.history.epochs[-1].elbo]

    check_same(results(kind), results(Whole))


def batches():
    return list(zip(*(part.split(5) for part in rows()), strict=True))


@pytest.mark.parametrize("estimator", [pb.LocalReparameterization(), pb.Flipout()])
def test_an_estimator_and_a_step(estimator):
    def results(kind):
        model, x, y = problem(kind)
        guide = pb.MeanFieldGuide(model)
        torch.manual_seed(4)
        with pb.svi_step(model, guide, ADAM, estimator=estimator) as step:
            return [step(x, y).elbo for _ in range(3)]

    check_same(results(Named), results(Whole))


@pytest.mark.parametrize("kind", SEVERAL)
def test_chains_and_laplace(kind):
    def results(kind):
        model, x, y = problem(kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ConvergenceWarning)  # of five draws
            chains = pb.fit_nuts(model, (x, y), num_samples=5, num_warmup=5, num_chains=2, max_tree_depth=3, seed=0)
        laplace = pb.fit_laplace(model, (x, y))
        prediction = pb.predict(model, chains, x, y=y)
        return [*chains.chains.values(), laplace.log_evidence, *laplace.median().values(), prediction.mean]

    check_same(results(kind), results(Whole), rtol=1e-6, atol=1e-7)  # rounding grows along a trajectory


@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker"])
@pytest.mark.parametrize("kind", SEVERAL)
def test_gauss_newton_matrices(kind, structure):
    def results(kind):
        model, x, y = problem(kind)
        posterior = pb.fit_gauss_newton(model, (x, y), structure=structure, batch_size=5)
        draws = posterior.sample(3, seed=0).values()
        return [posterior.log_evidence, *draws, pb.predict(model, posterior, x, seed=0).mean]

    check_same(results(kind), results(Whole))


@pytest.mark.parametrize("kind", SEVERAL)
def test_predictions_by_batches_and_by_loaders_are_those_of_all_rows(kind):
    def results(kind):
        model, x, y = problem(kind)
        guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
        options = {"num_samples": 5, "seed": 0}
        at_once = pb.predict(model, guide, x, y=y, **options)
        pairs = [(inputs_of(kind, a, b), t) for a, b, t in batches()]
        alone = [(inputs_of(kind, a, b),) for a, b, _ in batches()]
        for prediction in (
            pb.predict(model, guide, x, y=y, batch_size=7, **options),
            pb.predict(model, guide, pairs, **options),
            pb.predict(model, guide, alone, **options),
        ):
            check_same([prediction.mean, prediction.total], [at_once.mean, at_once.total])
        assert prediction.log_density is None  # of x alone
        point = pb.predict_point(model, guide.median(), x, y=y, batch_size=5)
        scores = pb.compare(model, {"one": guide, "two": guide}, x, y=y, num_samples=40).methods
        return [at_once.mean, at_once.log_density, point.mean, *(s.value for s in scores[0].scores.values())]

    check_same(results(kind), results(Whole))


def test_a_dictionary_alone_is_a_batch_of_inputs():
    model, x, _ = problem(Named)
    guide = pb.MeanFieldGuide(model)
    loader = DataLoader([{name: part[row] for name, part in x.items()} for row in range(12)], batch_size=5)
    found, expected = (pb.predict(model, guide, given, num_samples=3, seed=0).mean for given in (loader, x))
    check_same([found], [expected])


def as_frame(x):
    return pd.DataFrame(x.numpy(), columns=list("abcde"))


FORMS = {
    "array": lambda x: x.numpy(),
    "single-precision": lambda x: x.numpy().astype(np.float32).astype(np.float64),
    "list": lambda x: x.tolist(),
    "frame": as_frame,
}


@pytest.mark.parametrize("form", FORMS)
def test_arrays_lists_and_frames_are_converted(form):
    model, x, y = problem(Whole)
    x = x.float().double()
    guide, given, targets = pb.MeanFieldGuide(model), FORMS[form](x), y.numpy()
    assert pb.predict(model, guide, x, y=y, num_samples=3, seed=0).nll == pytest.approx(
        pb.predict(model, guide, given, y=targets, num_samples=3, seed=0).nll
    )
    assert pb.fit_laplace(model, (given, targets)).log_evidence == pytest.approx(
        pb.fit_laplace(model, (x, y)).log_evidence
    )
    entries = {"one": guide, "two": pb.fit_laplace(model, (x, y))}
    compared = [pb.compare(model, entries, *data, num_samples=40, seed=0).pairs for data in [(x,), (given,)]]
    assert compared[0] == compared[1]


def test_a_loader_of_a_tensor_data_set_alone():
    model, x, _ = problem(Whole)
    guide = pb.MeanFieldGuide(model)
    expected = pb.predict(model, guide, x, num_samples=3, seed=0).mean
    for loader in (DataLoader(TensorDataset(x), batch_size=5), DataLoader(x, batch_size=5), list(x.split(5))):
        check_same([pb.predict(model, guide, loader, num_samples=3, seed=0).mean], [expected])


a, b, y = rows()


@pytest.mark.parametrize(
    ("kind", "x", "message"),
    [
        (Pair, (a, b[:5]), r"same number of rows, got 12 in `x\[0\]` and 5 in `x\[1\]`"),
        (Pair, (a, b, y), "is called with 3 input"),
        (Pair, {"a": a, "c": b}, r"is called with the inputs \['a', 'c'\]"),
        (Pair, (a, b.float()), r"`x\[1\]` is torch.float32 but the network is torch.float64"),
        (Pair, (a, b.index_fill(0, torch.tensor(3), torch.nan)), r"`x\[1\]` must be finite"),
        (Pair, (b, a), r"cannot take `x` of shape \(\(12, 2\), \(12, 3\)\)"),
        (Pair, (a[:0], b[:0]), "must have at least one row"),
        (Pair, (), "must hold at least one tensor"),
        (Whole, "train.csv", "got str"),
        (Whole, [(a, b, y)], "a batch must be x alone or a pair"),
        (Whole, [], "the loader is empty"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(kind, x, message):
    model, *_ = problem(kind)
    with pytest.raises(ValueError, match=message):
        pb.predict(model, pb.MeanFieldGuide(model), x, num_samples=2)


@pytest.mark.parametrize("x", [None, 3.0, (a, None), {"a": a, "b": [1.0]}])
def test_a_model_called_with_something_else(x):
    model, *_ = problem(Pair)
    with pytest.raises(ValueError, match="must be a tensor, got"):
        model(x)
