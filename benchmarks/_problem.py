"""The posterior on which every sampler is timed."""

import torch
from torch import Tensor, nn

import pyro_bnn as pb

NUM_HIDDEN, PRIOR_SCALE, NOISE = 20, 1.0, 0.2
GRID = torch.linspace(-1, 1, 15, dtype=torch.float64)[:, None]


def data() -> tuple[Tensor, Tensor]:
    """The 92 points of `regression_problem`, x and y scaled to unit range."""
    x, y = pb.data.regression_problem()
    return 2 * x.double(), y.double() / 10


def model() -> pb.BayesianModel:
    """A network of 61 weights with known noise."""
    net = nn.Sequential(nn.Linear(1, NUM_HIDDEN), nn.Tanh(), nn.Linear(NUM_HIDDEN, 1)).double()
    return pb.BayesianModel(
        net, prior=pb.NormalPrior(PRIOR_SCALE), likelihood=pb.GaussianLikelihood(NOISE), num_data=len(data()[0])
    )


def functions(samples: dict[str, Tensor]) -> Tensor:
    """The network at GRID for weights of shape (K, S, *event), shape (K, S, M)."""
    hidden_weight, hidden_bias, weight, bias = (
        samples[f"net.{name}"].double() for name in ("0.weight", "0.bias", "2.weight", "2.bias")
    )
    hidden = (GRID @ hidden_weight.mT + hidden_bias.unsqueeze(-2)).tanh()
    return (hidden @ weight.mT + bias.unsqueeze(-2)).squeeze(-1)
