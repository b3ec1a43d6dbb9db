"""Convolutions, pooling, embeddings, normalisation and attention have the same numbers in C as in torch."""

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.joint import network_potential
from pyro_bnn.inference.mcmc._native import native
from pyro_bnn.inference.mcmc._traced import UnsupportedError

from .chains import quietly
from .tolerances import IDENTITY


class Words(nn.Module):
    """Embeddings of three words."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(5, 3), nn.Linear(9, 3)

    def forward(self, x):
        return self.last(self.table(x).flatten(1))


class Attention(nn.Module):
    """Self-attention, averaged over the sequence."""

    def __init__(self):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Masked(nn.Module):
    """Attention with a mask that hides everything from one position."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 12), nn.Linear(4, 3)
        mask = torch.ones(5, 5, dtype=torch.bool)
        mask[2] = False
        mask[0, 1:] = False
        self.register_buffer("mask", mask)

    def forward(self, x):
        parts = self.first(x)[:, None].chunk(3, -1)
        return self.last(nn.functional.scaled_dot_product_attention(*parts, attn_mask=self.mask)[:, 0].mean(1))


class Sequence(nn.Module):
    """A convolution along the rows, each of whose outputs depends on three rows."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Conv1d(4, 3, 3, padding=1)

    def forward(self, x):
        return self.rows(x.T.unsqueeze(0))[0].T


class Reversed(nn.Module):
    """Reads the rows from the last to the first."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(x).tanh().flip(0)


def images(layers, size=3):
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), *layers(), nn.Flatten(), nn.Linear(4 * size * size, 3))


IMAGE, ROW, SEQUENCE = (1, 8, 8), (4,), (2, 8)
NETS = {
    "convolution with padding": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Flatten(), nn.Linear(192, 3)),
        IMAGE,
    ),
    "stride": (images(lambda: [nn.Conv2d(4, 4, 3, stride=2, padding=1)]), IMAGE),
    "stride that leaves out the last pixels": (images(lambda: [nn.Conv2d(4, 4, 2, stride=3)], size=2), IMAGE),
    "dilation": (images(lambda: [nn.Conv2d(4, 4, 2, dilation=3)]), IMAGE),
    "stride, dilation and padding of each axis": (
        images(lambda: [nn.Conv2d(4, 4, (2, 3), stride=(2, 1), padding=(0, 2), dilation=(1, 2)), nn.MaxPool2d((1, 2))]),
        IMAGE,
    ),
    "groups": (images(lambda: [nn.Conv2d(4, 4, 3, groups=2, padding=1)], size=6), IMAGE),
    "groups without bias": (images(lambda: [nn.Conv2d(4, 4, 3, groups=4, bias=False)], size=4), IMAGE),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)), SEQUENCE),
    "three dimensions": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(16, 3)), (1, 3, 3, 3)),
    "largest": (images(lambda: [nn.MaxPool2d(2)]), IMAGE),
    "largest of overlapping windows": (images(lambda: [nn.MaxPool2d(3, 2, padding=1)]), IMAGE),
    "largest in a sequence": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(12, 3)),
        SEQUENCE,
    ),
    "mean": (images(lambda: [nn.AvgPool2d(2)]), IMAGE),
    "mean of overlapping windows": (images(lambda: [nn.AvgPool2d(3, 2, padding=1)]), IMAGE),
    "mean of each channel": (images(lambda: [nn.AdaptiveAvgPool2d(1)], size=1), IMAGE),
    "embedding": (Words, None),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)), ROW),
    "group norm": (images(lambda: [nn.GroupNorm(2, 4)], size=6), IMAGE),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)), ROW),
    "batch norm of images": (images(lambda: [nn.BatchNorm2d(4)], size=6), IMAGE),
    "softmax": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Softmax(-1), nn.Linear(6, 3)), ROW),
    "attention": (Attention, (5, 4)),
    "attention with a mask": (Masked, (5, 4)),
    "many pixels": (
        lambda: nn.Sequential(nn.Conv2d(1, 40, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 3)),
        (1, 14, 14),
    ),
    "encoder of a transformer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), nn.Flatten(), nn.Linear(12, 3)
        ),
        (3, 4),
    ),
    "convolution along the rows": (Sequence, ROW),
    "rows from last to first": (Reversed, ROW),
}


def potential_of(build, shape, num_data):
    net = build()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):  # the values of its start hide a wrong use of them
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    x = torch.randint(5, (num_data, 3)) if shape is None else torch.randn(num_data, *shape)
    y = torch.randint(3, (num_data,))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(1.0), likelihood=pb.CategoricalLikelihood(), num_data=num_data)
    return network_potential(model, x, y, torch.float64)


DAILY = [
    "stride, dilation and padding of each axis",
    "groups",
    "largest of overlapping windows",
    "embedding",
    "layer norm",
    "group norm",
    "batch norm of images",
    "softmax",
    "convolution along the rows",
    "rows from last to first",
]


@pytest.mark.daily(*(f"{name}-517" for name in DAILY), "attention-9", "attention with a mask-9", "many pixels-9")
@pytest.mark.parametrize("num_data", [9, 517])  # no blocks, and several of them with a rest
@pytest.mark.parametrize("name", NETS)
def test_potentials_and_gradients_are_those_of_torch(name, num_data):
    if name == "attention with a mask" and torch.__version__ < "2.5":
        pytest.skip("torch 2.4 fills the mask in place, which C cannot write; the sampler then runs eager")
    potential = potential_of(*NETS[name], num_data if "encoder" not in name else min(num_data, 40))
    z = 0.5 * torch.randn(3, sum(site.start.numel() for site in potential.sites))
    sampler = native(potential.value_and_grad, z[:1], 3)
    for found, expected in zip(sampler.value_and_grad(z), potential.value_and_grad(z), strict=True):
        torch.testing.assert_close(found, expected, rtol=IDENTITY["rtol"], atol=1e-9)


REFUSED = {
    "transposed": images(lambda: [nn.ConvTranspose2d(4, 4, 3, padding=2)], size=4),
    "ceil mode": images(lambda: [nn.MaxPool2d(4, ceil_mode=True)], size=2),
    "padding is not counted": images(lambda: [nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_c_cannot_write_says_so(name):
    potential = potential_of(REFUSED[name], IMAGE, 9)
    with pytest.raises(UnsupportedError, match=r"not written in C \(aten\.(convolution|max_pool2d|avg_pool2d)"):
        native(potential.value_and_grad, potential.from_prior(1), 3)


def test_chains_of_a_convolutional_network_are_drawn_in_c():
    x = torch.randn(60, 1, 6, 6)
    y = (x[:, 0, :3].mean((1, 2)) > x[:, 0, 3:].mean((1, 2))).long()
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 2))
    model = pb.BayesianModel(net, prior=pb.FanInNormalPrior(2.0), likelihood=pb.CategoricalLikelihood(), num_data=60)
    posterior = quietly(pb.fit_nuts, model, (x, y), num_samples=100, num_warmup=200, num_chains=2, compile=True, seed=0)
    assert posterior.path == "C"
    assert (pb.predict(model, posterior, x).probs.argmax(-1) == y).double().mean() > 0.9
