"""An architecture with data and its model, and the numbers that the model must compute, computed by hand."""

import copy

import pyro.distributions as dist
import torch
from torch import nn

import pyro_bnn as pb

from .architecture_nets import CLASSES, ROWS
from .architectures import Architecture
from .tolerances import assert_identical

PRIOR_SCALE = 0.5


class Case:
    """A caller's network and its data; computations by hand use new copies of the network."""

    def __init__(self, architecture: Architecture, *, dtype: torch.dtype = torch.float64) -> None:
        self.architecture = architecture
        torch.manual_seed(0)
        self.net = architecture.make().to(dtype).train(architecture.is_training)
        self.x = converted(architecture.inputs(), dtype)
        self.y = torch.arange(ROWS) % CLASSES
        self._before = {name: value.clone() for name, value in self.net.state_dict().items()}

    def model(self, net: nn.Module | None = None, *, is_training: bool | None = None) -> pb.BayesianModel:
        """The model of the caller's network, or of another."""
        where = self.architecture.where
        model = pb.BayesianModel(
            self.net if net is None else net,
            prior=pb.NormalPrior(PRIOR_SCALE),
            likelihood=pb.CategoricalLikelihood(),
            num_data=ROWS,
            where=where if isinstance(where, str) else list(where),
        )
        return model.train(self.architecture.is_training if is_training is None else is_training)

    def repeatable(self) -> pb.BayesianModel:
        """The model in a mode in which it gives the same output twice."""
        return self.model(is_training=self.architecture.is_training and not self.architecture.is_random)

    def drawn(self, model: pb.BayesianModel, *draws: int) -> dict[str, torch.Tensor]:
        """Values of all sites."""
        return {
            name: PRIOR_SCALE * torch.randn((*draws, *model.initial_value(name).shape)) for name in model.site_names
        }

    def with_state_of(self, model: pb.BayesianModel) -> nn.Module:
        """A network made anew, without this package: learned numbers and buffers of a model, and its mode."""
        net = self.architecture.make().to(model.dtype)
        net.load_state_dict(self.net.state_dict())
        sites = {path for paths in model.parameter_paths.values() for path in paths}
        state = model.network.state_dict()
        net.load_state_dict({path: value for path, value in state.items() if path not in sites}, strict=False)
        return net.train(model.training)

    def put(self, values: dict[str, torch.Tensor], net: nn.Module) -> nn.Module:
        """Put values of all sites into a network of :meth:`with_state_of`; rows of padding stay."""
        with torch.no_grad():
            for path, parameter in net.named_parameters():
                if f"net.{path}" in values:
                    before = parameter.clone()
                    parameter.copy_(values[f"net.{path}"])
                    for row in _padding_rows(net, path):
                        parameter[row] = before[row]
        return net

    def plain(self, values: dict[str, torch.Tensor], model: pb.BayesianModel) -> nn.Module:
        """A network without this package that computes what the model must compute with some values."""
        return self.put(values, self.with_state_of(model))

    def logits(self, net: nn.Module) -> torch.Tensor:
        x = self.x
        return net(**x) if isinstance(x, dict) else net(*x) if isinstance(x, tuple) else net(x)

    def log_likelihood(self, net: nn.Module) -> torch.Tensor:
        return self.logits(net).log_softmax(-1)[torch.arange(ROWS), self.y].sum()

    def value_and_gradients(
        self, net: nn.Module, model: pb.BayesianModel
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The log-likelihood, and its gradient by site."""
        value = self.log_likelihood(net)
        parameters = {f"net.{path}": parameter for path, parameter in net.named_parameters()}
        used = [parameters[name] for name in model.site_names]
        found = torch.autograd.grad(value, used, allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(used, found, strict=True)]
        return value.detach(), dict(zip(model.site_names, gradients, strict=True))

    def log_prior(self, values: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum(dist.Normal(0.0, PRIOR_SCALE).log_prob(value).sum() for value in values.values())

    def assert_unchanged(self) -> None:
        """The caller's network is bit for bit as it was."""
        state = self.net.state_dict()
        assert list(state) == list(self._before)
        assert all(torch.equal(value, self._before[name]) for name, value in state.items())
        assert all(parameter.grad is None for parameter in self.net.parameters())
        assert self.net.training is self.architecture.is_training


class Recorder(pb.Posterior):
    """A posterior that remembers its draws."""

    status = pb.Status(True, "")

    def __init__(self, posterior: pb.Posterior) -> None:
        self._posterior, self.recorded = posterior, []

    def draws(self, num_samples, *args):
        for draw in self._posterior.draws(num_samples, *args):
            self.recorded.append(copy.copy(draw))
            yield draw


def assert_predicts(case: Case, model: pb.BayesianModel, posterior: pb.Posterior) -> list[dict[str, torch.Tensor]]:
    """The prediction is the average over draws by hand; returns the draws."""
    recorder = Recorder(posterior)
    probs = pb.predict(model, recorder, case.x, num_samples=3, seed=1).probs
    with torch.no_grad():
        expected = [case.logits(case.plain(draw, model).eval()).softmax(-1) for draw in recorder.recorded]
    assert_identical(probs, torch.stack(expected).mean(0))
    return recorder.recorded


def converted(x: object, dtype: torch.dtype) -> object:
    if isinstance(x, dict):
        return {key: converted(part, dtype) for key, part in x.items()}
    if isinstance(x, tuple):
        return tuple(converted(part, dtype) for part in x)
    return x.to(dtype) if x.is_floating_point() else x


def _padding_rows(net: nn.Module, path: str) -> list[int]:
    layer = net.get_submodule(path.rpartition(".")[0])
    is_table = isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.padding_idx is not None
    return [layer.padding_idx] if is_table else []
