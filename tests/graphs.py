"""A small graph, and networks that get it as shared inputs or have it in their buffers."""

import torch
from torch import nn

import pyro_bnn as pb

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
