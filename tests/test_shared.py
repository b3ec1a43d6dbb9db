"""Inputs that all rows share: a graph network whose graph is an input, beside one that has the graph in its buffers."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import pyro_bnn as pb
from pyro_bnn.inference.batch_norm import RefreshedPosterior
from pyro_bnn.inference.gauss_newton._matrices import summed_matrices
from pyro_bnn.inference.scale_maps import Precision

from .fits import ADAM
from .graphs import NODES, ROWS, Graph, Named, Own, averaged, check_same, graph, inputs, problem

KINDS = [Graph, Named]


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_the_one_written_by_hand_in_pyro(kind):
    def by_hand(nodes, y):
        weights = {
            name: pyro.sample(name, dist.Normal(0.0, 0.7).expand(shape).to_event(len(shape)))
            for name, shape in {
                "net.first.weight": (4, 2),
                "net.first.bias": (4,),
                "net.last.weight": (3, 4),
                "net.last.bias": (3,),
            }.items()
        }
        features, edges = graph()
        adjacency = torch.zeros(NODES, NODES)
        for source, target in edges.T.tolist():
            adjacency[target, source] += 1
        adjacency = adjacency / adjacency.sum(1, keepdim=True)
        hidden = torch.tanh(adjacency @ features @ weights["net.first.weight"].T + weights["net.first.bias"])
        logits = adjacency @ hidden @ weights["net.last.weight"].T + weights["net.last.bias"]
        with pyro.plate("data", len(nodes)):
            pyro.sample("obs", dist.Categorical(logits=logits[nodes]), obs=y)

    model, x, y, _ = problem(kind)
    trace = pyro.poutine.trace(model).get_trace(x, y)
    values = {name: trace.nodes[name]["value"] for name in model.latent_names}
    nodes = x["nodes"] if kind is Named else x[0]
    expected = pyro.poutine.trace(pyro.poutine.condition(by_hand, data=values)).get_trace(nodes, y)
    check_same([trace.log_prob_sum()], [expected.log_prob_sum()])


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_fits_and_predictions_in_batches(kind, batch_size, path):
    def results(kind, of=None):
        model, x, y, everywhere = problem(kind, of=of)
        guide = pb.MeanFieldGuide(model)
        options = {"optimizer": ADAM, "num_epochs": 3, "batch_size": batch_size, "seed": 1}
        posterior = pb.fit_svi(model, (x, y), guide, **options)
        assert posterior.history.path.startswith(path)
        whole = pb.predict(model, posterior, everywhere, num_samples=5, seed=2)
        parts = pb.predict(model, posterior, everywhere, num_samples=5, seed=2, batch_size=4)
        check_same([whole.probs, whole.epistemic], [parts.probs, parts.epistemic])
        point = pb.predict_point(model, posterior, everywhere)
        return [*guide.median().values(), posterior.history.elbo[-1], whole.probs, point.probs]

    check_same(results(kind), results(Own))
    with pytest.raises(AssertionError):  # the twin: another graph gives another fit
        check_same(results(kind, graph(seed=6)), results(Own))


@pytest.mark.daily("Graph")
@pytest.mark.parametrize("kind", KINDS)
def test_chains(kind):
    def results(kind):
        model, x, y, everywhere = problem(kind)
        chains = pb.fit_nuts(model, (x, y), num_samples=20, num_warmup=10, num_chains=2, compile="auto", seed=0)
        assert "not written in C (aten.index_add" in chains.path
        with pytest.raises(ValueError, match=r"aten\.index_add"):
            pb.fit_nuts(model, (x, y), num_samples=20, num_warmup=10, num_chains=1, compile=True, seed=0)
        prediction = pb.predict(model, chains, everywhere, seed=2)
        diagnosed = chains.diagnose(model, everywhere).predictions
        return [*chains.sample(40).values(), prediction.probs, diagnosed.r_hat]

    with pytest.warns(pb.ConvergenceWarning):
        found, expected = results(kind), results(Own)
    check_same(found, expected)


class Dense(Graph):
    """The same function of the matrix of means, in place of the edges."""

    def forward(self, nodes, features, means):
        return self.last(means[nodes] @ torch.tanh(self.first(means @ features)))


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_chains_in_c_with_a_dense_matrix():
    """The matrix of a small graph needs no operation that C lacks."""
    model, _, y, _ = problem(Graph)
    features, edges = graph()
    nodes = problem(Own)[1]
    means = averaged(torch.eye(NODES), edges)
    torch.manual_seed(3)
    dense = pb.BayesianModel(Dense(), prior=model.prior, likelihood=pb.CategoricalLikelihood(), num_data=ROWS)
    x = nodes, pb.Shared(features), pb.Shared(means)
    draw = {name: torch.randn_like(model.initial_value(name)) for name in model.site_names}
    edged = nodes, pb.Shared(features), pb.Shared(edges)
    check_same([dense.log_likelihood(draw, x, y)], [model.log_likelihood(draw, edged, y)])
    options = {"num_samples": 20, "num_warmup": 10, "num_chains": 1, "compile": True, "seed": 0}
    assert pb.fit_nuts(dense, (x, y), **options).path == "C"


@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker"])
@pytest.mark.parametrize("kind", KINDS)
def test_laplace_of_the_last_layer(kind, structure):
    def results(kind):
        model, x, y, everywhere = problem(kind, where="net.last.*")
        with pytest.warns(UserWarning, match="stay at their present values"):
            exact = pb.fit_laplace(model, (x, y))
        posterior = pb.fit_gauss_newton(model, (x, y), structure=structure, init=exact)
        return [pb.predict(model, p, everywhere, num_samples=5, seed=2).probs for p in (exact, posterior)]

    check_same(results(kind), results(Own))


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_laplace_of_all_layers(structure):
    """The Jacobian of each row, with the graph the same for all."""

    def results(kind):
        model, x, y, everywhere = problem(kind)
        posterior = pb.fit_gauss_newton(model, (x, y), structure=structure)
        return [pb.predict(model, posterior, everywhere, num_samples=5, seed=2).probs]

    check_same(results(Graph), results(Own))


def test_the_diagonal_is_that_of_the_full_matrix():
    """Layers run on nodes, not on rows: formulas that square the gradient of each row of a layer would be wrong."""
    torch.manual_seed(0)
    for net, x in ((Graph(), problem(Graph)[1]), (Own(), problem(Own)[1])):
        options = {"num_scales": 1}
        data, likelihood = [(x, problem(Own)[2])], pb.CategoricalLikelihood()
        full, diagonal = (summed_matrices(net, data, likelihood, is_full=f, **options)[0] for f in (True, False))
        check_same([diagonal], [full.diagonal()])


def test_kronecker_factors_of_all_layers_are_refused():
    model, x, y, _ = problem(Graph)
    with pytest.raises(ValueError, match="a shared input may have other rows"):
        pb.fit_gauss_newton(model, (x, y), structure="kronecker")


MORE_FITS = {
    "in parts": lambda model, data: pb.fit_svi(
        model, data, pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=3, execution=pb.Execution(num_parts=2), seed=1
    ),
    "by Pyro's guide": lambda model, data: pb.fit_svi(
        model, data, pb.auto_guide(AutoNormal, model), optimizer=ADAM, num_epochs=3, batch_size=4, seed=1
    ),
    "natural gradients": lambda model, data: pb.fit_svi(
        model,
        data,
        pb.MeanFieldGuide(model, scale_map=Precision()),
        optimizer=pb.optim.natural_gradient(lr=0.1),
        num_epochs=3,
        seed=1,
    ),
    "stochastic gradients": lambda model, data: pb.fit_sgmcmc(
        model, data, sampler=pb.SGLD(lr=1e-3), num_epochs=12, num_samples=10, batch_size=4, seed=1
    ),
    "by default": lambda model, data: pb.fit(model, data, num_epochs=20, seed=1),
}


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning", "ignore::pyro_bnn.PosteriorWarning")
@pytest.mark.parametrize("name", MORE_FITS)
def test_other_ways_to_fit(name):
    def results(kind):
        model, x, y, everywhere = problem(kind)
        posterior = MORE_FITS[name](model, (x, y))
        return [pb.predict(model, posterior, everywhere, num_samples=5, seed=2).probs]

    check_same(results(Graph), results(Own))


def batches(kind, of=None):
    _, nodes, y, _ = problem(Own)
    return [(inputs(kind, n, of or graph()), t) for n, t in zip(nodes.split(4), y.split(4), strict=True)]


def test_loaders_give_the_shared_inputs_in_each_batch():
    def results(kind):
        model, x, y, _ = problem(kind)
        posterior = pb.fit_svi(model, batches(kind), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=2, seed=1)
        prediction = pb.predict(model, posterior, batches(kind), num_samples=5, seed=2)
        assert len(prediction) == ROWS
        whole = pb.predict(model, posterior, x, y=y, num_samples=5, seed=2)
        check_same([prediction.probs, prediction.log_density], [whole.probs, whole.log_density])
        return [posterior.history.elbo[-1], prediction.probs]

    check_same(results(Graph), results(Own))


def test_a_data_loader_with_a_collate_function():
    model, (nodes, *shared), y, _ = problem(Graph)

    def collate(rows):
        nodes, targets = default_collate(rows)
        return (nodes, *shared), targets

    options = {"optimizer": ADAM, "num_epochs": 2, "seed": 1}
    rows = TensorDataset(nodes, y)
    loader = DataLoader(rows, batch_size=4, collate_fn=collate, generator=torch.Generator().manual_seed(0))
    found = pb.fit_svi(model, loader, pb.MeanFieldGuide(model), **options)
    expected = pb.fit_svi(model, batches(Graph), pb.MeanFieldGuide(model), **options)
    check_same(found.history.elbo, expected.history.elbo)


def test_all_rows_of_a_loader_need_the_same_shared_inputs():
    model, x, y, _ = problem(Graph)
    check_same([pb.fit_laplace(model, batches(Graph)).location], [pb.fit_laplace(model, (x, y)).location])
    mixed = [*batches(Graph)[:1], *batches(Graph, graph(seed=6))[1:]]
    with pytest.raises(ValueError, match=r"shared input `x\[1\]` must be the same in all batches"):
        pb.fit_laplace(model, mixed)
    pb.fit_svi(model, mixed, pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=1)  # samples of a large graph


def test_files(tmp_path):
    model, x, y, everywhere = problem(Graph)
    options = {"optimizer": ADAM, "num_epochs": 2, "seed": 1, "batch_size": 4}
    posterior = pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), **options, checkpoint=tmp_path / "fit.pt")
    pb.save_posterior(posterior, tmp_path / "saved.pt", model)
    other, *_ = problem(Graph)
    loaded = pb.load_posterior(tmp_path / "saved.pt", other)
    expected = pb.predict(model, posterior, everywhere, num_samples=5, seed=2)
    check_same([pb.predict(other, loaded, everywhere, num_samples=5, seed=2).probs], [expected.probs])
    _, elsewhere, *_ = problem(Graph, of=graph(seed=6))
    again = pb.MeanFieldGuide(other)
    with pytest.raises(ValueError, match="data"):  # the same rows of another graph
        pb.fit_svi(other, (elsewhere, y), again, **options | {"num_epochs": 3}, resume=tmp_path / "fit.pt")
    pb.fit_svi(other, (x, y), again, **options | {"num_epochs": 3}, resume=tmp_path / "fit.pt")


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_a_chain_is_not_resumed_on_another_graph(tmp_path):
    model, x, y, _ = problem(Graph)
    options = {"num_samples": 20, "num_warmup": 5, "num_chains": 1, "seed": 0}
    pb.fit_nuts(model, (x, y), **options, checkpoint=tmp_path / "chain.pt")
    _, elsewhere, *_ = problem(Graph, of=graph(seed=6))
    with pytest.raises(ValueError, match="is of another `data`"):
        pb.fit_nuts(model, (elsewhere, y), **options, resume=tmp_path / "chain.pt")


def test_methods_are_compared():
    model, _, _, everywhere = problem(Graph)
    guide = pb.MeanFieldGuide(model)
    result = pb.compare(model, {"a": guide, "b": guide}, everywhere, num_samples=40, seed=0)
    assert len(result.predictions["a"]) == NODES


class Refreshed(Graph):
    """With batch normalisation of the rows."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, nodes, features, edges):
        return self.norm(super().forward(nodes, features, edges))


def test_refreshed_posteriors_are_saved_by_their_draws(tmp_path):
    torch.manual_seed(0)
    options = {"prior": pb.NormalPrior(), "likelihood": pb.CategoricalLikelihood(), "num_data": ROWS}
    model = pb.BayesianModel(Refreshed(), **options)
    _, x, _, everywhere = problem(Graph)
    refreshed = RefreshedPosterior(model, pb.MeanFieldGuide(model), x, batch_size=4)
    assert len(pb.predict(model, refreshed, everywhere, num_samples=3)) == NODES
    with pytest.raises(ValueError, match=r"shared inputs.*StoredPosterior"):
        pb.save_posterior(refreshed, tmp_path / "file.pt", model)
    stored = pb.StoredPosterior.of(refreshed, 3, seed=0)
    pb.save_posterior(stored, tmp_path / "file.pt", model)
    loaded = pb.load_posterior(tmp_path / "file.pt", model)
    check_same(*([pb.predict(model, p, everywhere).probs] for p in (stored, loaded)))
