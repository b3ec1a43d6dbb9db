"""Arithmetic operations per second of predictions, compared with plain matrix products and with a peer."""

import itertools

import torch
from torch import nn

import pyro_bnn as pb

from ._peers import import_peer
from ._steps import FitSVI, Setting


def num_flops(sizes: tuple[int, ...], num_rows: int) -> float:
    """Floating-point operations of the matrix products in one run of the network."""
    return 2.0 * num_rows * sum(a * b for a, b in itertools.pairwise(sizes))


class Predict:
    """`predict` with a mean-field guide; a burst's unit is one floating-point operation."""

    def __init__(self, setting: Setting, num_samples: int) -> None:
        self.setting, self.num_samples = setting, num_samples
        self.num_flops = num_samples * num_flops(setting.sizes, len(setting.data[0]))
        self.prepare()

    def prepare(self) -> None:
        contender = FitSVI(self.setting)
        self._model, self._guide = contender.model, contender.guide

    def predict(self) -> object:
        return pb.predict(self._model, self._guide, self.setting.data[0], num_samples=self.num_samples)

    def burst(self) -> float:
        return self.setting.seconds(self.predict) / self.num_flops


class LaplaceTorch(Predict):
    """laplace-torch's Monte Carlo prediction with a diagonal Gaussian over all weights: the same work as `predict`."""

    def prepare(self) -> None:
        laplace = import_peer("laplace")
        net, (x, y) = self.setting.net(), self.setting.data
        self._laplace = laplace.Laplace(net, "classification", subset_of_weights="all", hessian_structure="diag")
        few = torch.utils.data.TensorDataset(x[:8], y[:8])
        self._laplace.fit(torch.utils.data.DataLoader(few, batch_size=8))
        num_random = sum(parameter.numel() for parameter in net.parameters())
        if self._laplace.n_params != num_random:
            raise RuntimeError(f"{self._laplace.n_params} random weights, expected {num_random}")

    def predict(self) -> object:
        with torch.no_grad():
            return self._laplace(self.setting.data[0], pred_type="nn", link_approx="mc", n_samples=self.num_samples)


class MeanWeights:
    """The network at the mean weights of a pruned posterior; a burst's unit is one run over all images.

    Unless the layers are sparse, zeros are multiplied like other numbers.
    """

    def __init__(self, setting: Setting, removed: float, *, is_sparse: bool) -> None:
        self._setting = setting
        fresh = FitSVI(setting)
        values = pb.pruning.prune(fresh.guide, fraction=removed).median()
        self._net = pb.pruning.sparse_network(fresh.model, values, max_density=1.0 if is_sparse else None)

    @torch.no_grad()
    def burst(self) -> float:
        return self._setting.seconds(lambda: self._net(self._setting.data[0]), repeats=5)


class Products:
    """Matrix products with the shapes of one run of a network, or one large square product."""

    def __init__(self, setting: Setting, shapes: list[tuple[int, int, int]]) -> None:
        self._setting = setting
        self._pairs = [
            (torch.randn(n, i, device=setting.device), torch.randn(o, i, device=setting.device)) for n, i, o in shapes
        ]
        self._num_flops = 2.0 * sum(n * i * o for n, i, o in shapes)

    def multiply(self) -> None:
        for a, b in self._pairs:
            nn.functional.linear(a, b)

    def burst(self) -> float:
        return self._setting.seconds(self.multiply, repeats=5) / self._num_flops


def square(setting: Setting, size: int) -> Products:
    return Products(setting, [(size, size, size)])


def layers(setting: Setting) -> Products:
    num_rows = len(setting.data[0])
    return Products(setting, [(num_rows, i, o) for i, o in itertools.pairwise(setting.sizes)])


class Reused:
    """100 draws of a ResNet-18 with a random last layer, for images of 3 x `size` x `size`.

    By hand the other layers run once, and then the 100 drawn last layers, without any library.
    """

    def __init__(self, setting: Setting, num_rows: int, size: int, *, by_hand: bool) -> None:
        torchvision = import_peer("torchvision")
        self._setting, self._by_hand = setting, by_hand
        self._net = torchvision.models.resnet18(weights=None, num_classes=10).to(setting.device).eval()
        self._body = nn.Sequential(*list(self._net.children())[:-1])
        self._x = torch.randn(num_rows, 3, size, size, device=setting.device)
        last_layer = {"prior": pb.NormalPrior(), "where": "net.fc.*", "num_data": 1000}
        self._model = pb.BayesianModel(self._net, likelihood=pb.CategoricalLikelihood(), **last_layer)
        self._guide = pb.MeanFieldGuide(self._model)

    def predict(self) -> None:
        if not self._by_hand:
            pb.predict(self._model, self._guide, self._x, num_samples=100)
            return
        features = self._body(self._x).flatten(1)
        for _ in range(100):
            weight, bias = (loc + 0.1 * torch.randn_like(loc) for loc in self._net.fc.parameters())
            nn.functional.linear(features, weight, bias).softmax(-1)

    @torch.no_grad()
    def burst(self) -> float:
        return self._setting.seconds(self.predict)


class OneRow(Predict):
    """`predict` for one row, as in a web service; the unit of a burst is a prediction."""

    def __init__(self, setting: Setting, num_samples: int) -> None:
        super().__init__(setting, num_samples)
        self.num_flops = 1.0

    def burst(self) -> float:
        return min(super(OneRow, self).burst() for _ in range(3))


class OneRowByHand:
    """The same arithmetic by hand: plain torch draws all weights of every draw and multiplies them with the row."""

    def __init__(self, setting: Setting, num_samples: int) -> None:
        self._setting, self._num_samples = setting, num_samples
        self._locs = [parameter.detach().clone() for parameter in setting.net().parameters()]
        self._scales = [torch.full_like(loc, 0.01) for loc in self._locs]

    @torch.no_grad()
    def burst(self) -> float:
        return min(self._setting.seconds(self.predict) for _ in range(3))

    def predict(self) -> None:
        x = self._setting.data[0]
        probs = torch.zeros(len(x), self._setting.sizes[-1], device=x.device)
        for _ in range(self._num_samples):
            value = x
            for index in range(0, len(self._locs), 2):
                weight, bias = (
                    torch.addcmul(loc, scale, torch.randn_like(loc))
                    for loc, scale in zip(self._locs[index : index + 2], self._scales[index : index + 2], strict=True)
                )
                value = nn.functional.linear(value if index == 0 else value.relu(), weight, bias)
            probs += value.softmax(-1)
