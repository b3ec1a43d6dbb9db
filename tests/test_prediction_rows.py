"""How many rows the network gets at once in a prediction."""

import torch
from torch import Tensor, nn

import pyro_bnn as pb


class _Counter(nn.Module):
    """The identity, which counts the rows of each run."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.runs.append(len(x))
        return x


def _rows_of_runs(layers: list[nn.Module], x: Tensor, **options: int) -> list[int]:
    model = pb.BayesianModel(
        nn.Sequential(*layers, _Counter()),
        prior=pb.NormalPrior(),
        likelihood=pb.CategoricalLikelihood(),
        num_data=len(x),
    )
    pb.predict(model, pb.DeltaGuide(model), x, num_samples=1, **options)
    counter = model.network[-1]  # a copy
    assert isinstance(counter, _Counter)
    return counter.runs


def _convolutional() -> list[nn.Module]:
    return [nn.Conv2d(1, 1, 64), nn.Flatten(), nn.Linear(1, 2)]


def test_a_network_with_convolutions_gets_few_rows_at_once() -> None:
    x = torch.rand(300, 1, 64, 64)  # 4096 elements each
    assert _rows_of_runs(_convolutional(), x) == [128, 128, 44]
    assert _rows_of_runs(_convolutional(), x, batch_size=200) == [200, 100]


def test_other_networks_get_all_rows_at_once() -> None:
    x = torch.rand(300, 1, 64, 64)
    assert _rows_of_runs([nn.Flatten(), nn.Linear(4096, 2)], x) == [300]


def test_the_prediction_does_not_depend_on_the_number_of_rows_at_once() -> None:
    x = torch.rand(300, 1, 64, 64)
    net = nn.Sequential(*_convolutional())
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=300)
    guide = pb.MeanFieldGuide(model)
    few, all_rows = (pb.predict(model, guide, x, num_samples=3, batch_size=size, seed=0) for size in (None, 300))
    torch.testing.assert_close(few.probs, all_rows.probs)
