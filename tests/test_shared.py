"""Inputs that all rows share: a graph network whose graph is an input, beside one that has the graph in its buffers."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import pyro_bnn as pb
from pyro_bnn._core.inputs import leaves, num_rows, take, to_device
from pyro_bnn.inference.batch_norm import RefreshedPosterior
from pyro_bnn.inference.scale_maps import Precision

from .fits import ADAM
from .tolerances import IDENTITY

NODES, ROWS = 14, 9


def averaged(values, edges):
    """The mean of the values of the neighbours of each node."""
    source, target = edges
    total = torch.zeros_like(values).index_add(0, target, values[source])
    count = torch.zeros(len(values), 1, dtype=values.dtype).index_add(0, target, values.new_ones(len(source), 1))
    return total / count


class Graph(nn.Module):
    """``forward(nodes, features, edges)``: two graph convolutions, and the outputs of some nodes."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, nodes, features, edges):
        hidden = torch.tanh(self.first(averaged(features, edges)))
        return self.last(averaged(hidden, edges)[nodes])


class Named(Graph):
    """``forward(nodes=..., graph={"features": ..., "edges": ...})``: one shared tree."""

    def forward(self, nodes, graph):
        return super().forward(nodes, graph["features"], graph["edges"])


class Own(Graph):
    """``forward(nodes)``: the same function, with the graph as buffers."""

    def __init__(self):
        super().__init__()
        features, edges = graph()
        self.register_buffer("features", features)
        self.register_buffer("edges", edges)

    def forward(self, nodes):
        return super().forward(nodes, self.features, self.edges)


def graph(seed=5):
    """Features and edges of a ring with some chords; each node is its own neighbour."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(NODES, 2, generator=generator, dtype=torch.float64)
    node = torch.arange(NODES)
    pairs = [(node, node), (node, (node + 1) % NODES), (node, (node + 5) % NODES)]
    edges = torch.cat([torch.stack(pair) for pair in pairs], 1)
    return features, torch.cat([edges, edges.flip(0)], 1)


def inputs(kind, nodes, graph):
    features, edges = graph
    return {
        Graph: (nodes, pb.Shared(features), pb.Shared(edges)),
        Named: {"nodes": nodes, "graph": pb.Shared({"features": features, "edges": edges})},
        Own: nodes,
    }[kind]


def problem(kind, where="**", of=None):
    """A model of all nine rows, its inputs, its targets, and inputs for prediction."""
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(4)
    net, likelihood = kind(), pb.CategoricalLikelihood()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(0.7), likelihood=likelihood, num_data=ROWS, where=where)
    order = torch.randperm(NODES, generator=generator)
    of = of or graph()
    return model, inputs(kind, order[:ROWS], of), order[:ROWS] % 3, inputs(kind, order, of)


def check_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), **IDENTITY)


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
        posterior = pb.fit_svi(model, guide, (x, y), **options)
        assert posterior.history.path.startswith(path)
        whole = pb.predict(model, posterior, everywhere, num_samples=5, seed=2)
        parts = pb.predict(model, posterior, everywhere, num_samples=5, seed=2, batch_size=4)
        check_same([whole.probs, whole.epistemic], [parts.probs, parts.epistemic])
        point = pb.predict_point(model, posterior, everywhere)
        return [*guide.median().values(), posterior.history.elbo[-1], whole.probs, point.probs]

    check_same(results(kind), results(Own))
    with pytest.raises(AssertionError):  # the twin: another graph gives another fit
        check_same(results(kind, graph(seed=6)), results(Own))


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


MORE_FITS = {
    "in parts": lambda model, data: pb.fit_svi(
        model, pb.MeanFieldGuide(model), data, optimizer=ADAM, num_epochs=3, execution=pb.Execution(num_parts=2), seed=1
    ),
    "by Pyro's guide": lambda model, data: pb.fit_svi(
        model, pb.auto_guide(AutoNormal, model), data, optimizer=ADAM, num_epochs=3, batch_size=4, seed=1
    ),
    "natural gradients": lambda model, data: pb.fit_svi(
        model,
        pb.MeanFieldGuide(model, scale_map=Precision()),
        data,
        optimizer=pb.optim.natural_gradient(lr=0.1),
        num_epochs=3,
        seed=1,
    ),
    "stochastic gradients": lambda model, data: pb.fit_sgmcmc(
        model, data, sampler=pb.SGLD(lr=1e-3), num_epochs=12, num_samples=10, batch_size=4, seed=1
    ),
    "by default": lambda model, data: pb.fit(model, data, max_epochs=20, seed=1),
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
        posterior = pb.fit_svi(model, pb.MeanFieldGuide(model), batches(kind), optimizer=ADAM, num_epochs=2, seed=1)
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
    found = pb.fit_svi(model, pb.MeanFieldGuide(model), loader, **options)
    expected = pb.fit_svi(model, pb.MeanFieldGuide(model), batches(Graph), **options)
    check_same(found.history.elbo, expected.history.elbo)


def test_all_rows_of_a_loader_need_the_same_shared_inputs():
    model, x, y, _ = problem(Graph)
    check_same([pb.fit_laplace(model, batches(Graph)).location], [pb.fit_laplace(model, (x, y)).location])
    mixed = [*batches(Graph)[:1], *batches(Graph, graph(seed=6))[1:]]
    with pytest.raises(ValueError, match=r"shared input `x\[1\]` must be the same in all batches"):
        pb.fit_laplace(model, mixed)
    pb.fit_svi(model, pb.MeanFieldGuide(model), mixed, optimizer=ADAM, num_epochs=1)  # samples of a large graph


def test_files(tmp_path):
    model, x, y, everywhere = problem(Graph)
    options = {"optimizer": ADAM, "num_epochs": 2, "seed": 1, "batch_size": 4}
    posterior = pb.fit_svi(model, pb.MeanFieldGuide(model), (x, y), **options, checkpoint=tmp_path / "fit.pt")
    pb.save_posterior(posterior, tmp_path / "saved.pt", model)
    other, *_ = problem(Graph)
    loaded = pb.load_posterior(tmp_path / "saved.pt", other)
    expected = pb.predict(model, posterior, everywhere, num_samples=5, seed=2)
    check_same([pb.predict(other, loaded, everywhere, num_samples=5, seed=2).probs], [expected.probs])
    _, elsewhere, *_ = problem(Graph, of=graph(seed=6))
    again = pb.MeanFieldGuide(other)
    with pytest.raises(ValueError, match="data"):  # the same rows of another graph
        pb.fit_svi(other, again, (elsewhere, y), **options | {"num_epochs": 3}, resume=tmp_path / "fit.pt")
    pb.fit_svi(other, again, (x, y), **options | {"num_epochs": 3}, resume=tmp_path / "fit.pt")


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


# --- Pyro models of one's own -----------------------------------------------------------------------------------------


def own(nodes, features, edges, y=None):
    weight = pyro.sample("weight", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    mean = (averaged(features, edges) @ weight)[nodes]
    with pyro.plate("data", len(nodes)):
        pyro.sample("obs", dist.Normal(mean, 0.3), obs=y)
    return mean


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
        posterior = pb.fit_svi(model, guide, (*x, y), **options)
        chains = pb.fit_nuts(model, (*x, y), num_samples=20, num_warmup=5, num_chains=1, seed=0)
        predictions = [pb.predict(model, p, x, num_samples=5, seed=2).mean for p in (posterior, chains)]
        return [posterior.history.elbo[-1], *predictions]

    check_same(results(model, x), results(closed, (nodes,)))


# --- what is refused --------------------------------------------------------------------------------------------------


def fit(model, x, y, **options):
    return pb.fit_svi(model, pb.MeanFieldGuide(model), (x, y), optimizer=ADAM, num_epochs=1, **options)


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
    "a text": (lambda m, x, y: fit(m, (x[0], pb.Shared("graph"), x[2]), y), r"`x\[1\]` must be a tensor"),
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
