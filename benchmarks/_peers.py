"""The same step by other libraries, in the way that each recommends.

`check` inspects one step first: locations and scales have the shapes of the network's parameters, and the network runs
once. With almost no weight on the data every location and scale still changes, so the gradient of the KL reaches them.
All libraries start at the same weights with standard deviation 0.01. These differences remain:

- bayesian-torch 0.5.0: the closed-form KL is averaged over each tensor, at the same cost.
- blitz-bayesian-pytorch 0.2.8: KL of the drawn weights; 1e-6 is added to the prior's density; values are validated.
- torchbnn 1.2: closed-form KL; scales are exponentials, which are cheaper than softplus.
- posteriors 0.1.3: functional, with new tensors in each step and TorchOpt's Adam, not fused; scales are exponentials.
- Pyro 1.9.2: `AutoNormal` with one fused Adam per tensor, and validation, as by default.
- laplace-torch 0.3: compared on prediction with a diagonal Gaussian; it draws all weights at once.
- TyXe 0.0.2: not compared; its own guide fails on Pyro 1.9.2, and with `AutoNormal` its step is Pyro's.
"""

import importlib
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ._steps import INITIAL_SCALE, PRIOR_SCALE, Differentiable, Loop, Setting

INITIAL_RHO = math.log(math.expm1(INITIAL_SCALE))
INITIAL_LOG_SCALE = math.log(INITIAL_SCALE)

IMPORT_WARNINGS = {
    "posteriors": "The Tensor default of the field",  # tensordict's, about the classes of `posteriors`
    "laplace": "`torch.jit.script",
}
"""First words of known warnings when a peer is imported, which do not concern its users."""


def import_peer(name: str) -> ModuleType:
    """A module of a peer."""
    with warnings.catch_warnings():
        if message := IMPORT_WARNINGS.get(name.partition(".")[0]):
            warnings.filterwarnings("ignore", message=message)
        return importlib.import_module(name)


class Peer(Loop):
    """A peer's step, with access to the learned parameters for :func:`check`."""

    package: str

    @abstractmethod
    def parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        """The locations, and the scales before their transformation to positive numbers, in any order."""


class BayesianTorch(Peer, Differentiable):
    """Layers that return their output and their KL; the KL is the mean over each tensor instead of the sum."""

    package = "bayesian-torch"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        make = import_peer("bayesian_torch.layers").LinearReparameterization
        linear = [layer for layer in setting.net() if isinstance(layer, nn.Linear)]
        self._layers = nn.ModuleList(
            make(layer.in_features, layer.out_features, prior_mean=0.0, prior_variance=PRIOR_SCALE) for layer in linear
        )
        self._layers.to(setting.device)
        for new, old in zip(self._layers, linear, strict=True):
            _set(new.mu_weight, new.rho_weight, old.weight, INITIAL_RHO)
            _set(new.mu_bias, new.rho_bias, old.bias, INITIAL_RHO)
        self.optimizer = setting.optimizer(list(self._layers.parameters()))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        kl = 0.0
        for index, layer in enumerate(self._layers):
            x, own = layer(x if index == 0 else F.relu(x))
            kl = kl + own
        return self.setting.num_rows * F.cross_entropy(x, y) + kl

    def parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        return _named(self._layers, "mu_"), _named(self._layers, "rho_")


class Blitz(Peer, Differentiable):
    """`sample_elbo` of a network of the library's layers; the KL is estimated from the drawn weights."""

    package = "blitz-bayesian-pytorch"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        make = import_peer("blitz.modules").BayesianLinear
        estimator = import_peer("blitz.utils").variational_estimator
        prior = torch.distributions.Normal(0.0, PRIOR_SCALE)  # the default is a mixture, which needs two densities

        def convert(layer: nn.Module) -> nn.Module:
            if not isinstance(layer, nn.Linear):
                return layer
            new = make(layer.in_features, layer.out_features, prior_dist=prior)
            _set(new.weight_sampler.mu, new.weight_sampler.rho, layer.weight, INITIAL_RHO)
            _set(new.bias_sampler.mu, new.bias_sampler.rho, layer.bias, INITIAL_RHO)
            return new

        self._net: Any = estimator(type("Net", (nn.Sequential,), {}))(*map(convert, setting.net())).to(setting.device)
        self.optimizer = setting.optimizer(list(self._net.parameters()))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        def criterion(logits: Tensor, y: Tensor) -> Tensor:
            return self.setting.num_rows * F.cross_entropy(logits, y)

        return self._net.sample_elbo(x, y, criterion, sample_nbr=1)

    def parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        return _named(self._net, "sampler.mu"), _named(self._net, "sampler.rho")


class TorchBNN(Peer, Differentiable):
    """Layers with a closed-form KL, which a separate call computes; scales are exponentials of parameters."""

    package = "torchbnn"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        torchbnn = import_peer("torchbnn")

        def convert(layer: nn.Module) -> nn.Module:
            if not isinstance(layer, nn.Linear):
                return layer
            new = torchbnn.BayesLinear(0.0, PRIOR_SCALE, layer.in_features, layer.out_features)
            _set(new.weight_mu, new.weight_log_sigma, layer.weight, INITIAL_LOG_SCALE)
            _set(new.bias_mu, new.bias_log_sigma, layer.bias, INITIAL_LOG_SCALE)
            return new

        self._net = nn.Sequential(*map(convert, setting.net())).to(setting.device)
        self._kl = torchbnn.BKLLoss(reduction="sum")
        self.optimizer = setting.optimizer(list(self._net.parameters()))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        kl = self._kl(self._net).squeeze()
        return self.setting.num_rows * F.cross_entropy(self._net(x), y) + kl

    def parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        return _named(self._net, "_mu"), _named(self._net, "_log_sigma")


class Posteriors(Peer):
    """`vi.diag` with TorchOpt's Adam; scales are exponentials, and the KL is estimated from the drawn weights."""

    package = "posteriors"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        posteriors, torchopt = import_peer("posteriors"), import_peer("torchopt")
        net = setting.net()
        function = posteriors.model_to_function(net)

        def log_posterior(parameters: dict, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            logits = function(parameters, batch[0])
            log_prior = posteriors.diag_normal_log_prob(parameters, sd_diag=PRIOR_SCALE)
            return log_prior - setting.num_rows * F.cross_entropy(logits, batch[1]), torch.tensor([])

        self._transform = posteriors.vi.diag.build(
            log_posterior, torchopt.adam(lr=1e-3), stl=False, init_log_sds=INITIAL_LOG_SCALE
        )
        start = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
        self._state = self._transform.init(start)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self._state, _ = self._transform.update(self._state, (x, y))
        return self._state.nelbo.detach()

    def parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        return list(self._state.params.values()), list(self._state.log_sd_diag.values())


class StockPyro(Peer):
    """A `PyroModule` with an `AutoNormal` guide and `SVI`, as in Pyro's tutorials."""

    package = "pyro-ppl"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        net = setting.net()
        start = {f"net.{name}": parameter.detach().clone() for name, parameter in net.named_parameters()}
        model = _StockModel(net, setting.num_rows)
        self._guide = AutoNormal(model, init_loc_fn=init_to_value(values=start), init_scale=INITIAL_SCALE)
        optimizer = PyroOptim(torch.optim.Adam, {"lr": 1e-3, "fused": True})
        self._svi = SVI(model, self._guide, optimizer, loss=Trace_ELBO())
        with pyro.get_param_store().scope() as self._store:
            self._guide(*(part[: setting.batch_size] for part in setting.data))

    def step(self, x: Tensor, y: Tensor) -> float:
        return self._svi.step(x, y)

    def burst(self) -> float:
        with pyro.get_param_store().scope(self._store) as self._store:
            return super().burst()

    def parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        return _named(self._guide, "locs."), _named(self._guide, "scales.")


class Ivon(Loop):
    """Natural gradients by the released package `ivon-opt`, with the same prior, data and initial scales as ours."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._net = setting.net()
        num_rows, precision = setting.num_rows, PRIOR_SCALE**-2
        self._optimizer = import_peer("ivon").IVON(
            self._net.parameters(),
            lr=0.1,
            ess=num_rows,
            weight_decay=precision / num_rows,
            hess_init=(INITIAL_SCALE**-2 - precision) / num_rows,
            beta2=0.999,
            rescale_lr=False,
        )

    def step(self, x: Tensor, y: Tensor) -> float:
        with self._optimizer.sampled_params(train=True):
            self._optimizer.zero_grad()
            loss = F.cross_entropy(self._net(x), y)
            loss.backward()
        self._optimizer.step()
        return loss.item()


class _StockModel(PyroModule):
    def __init__(self, net: nn.Module, num_rows: float) -> None:
        super().__init__()
        to_pyro_module_(net)
        for module in net.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                zeros = torch.zeros_like(parameter.detach())
                prior = dist.Normal(zeros, PRIOR_SCALE).to_event(parameter.dim())
                setattr(module, name, PyroSample(prior))
        self.net, self._num_rows = net, num_rows

    def forward(self, x: Tensor, y: Tensor) -> None:
        logits = self.net(x)
        with pyro.plate("data", len(x)), poutine.scale(scale=self._num_rows / len(x)):
            pyro.sample("obs", dist.Categorical(logits=logits), obs=y)


PEERS: dict[str, type[Peer]] = {peer.package: peer for peer in (BayesianTorch, Blitz, TorchBNN, Posteriors, StockPyro)}


def _set(loc: Tensor, raw_scale: Tensor, value: Tensor, raw: float) -> None:
    with torch.no_grad():
        loc.copy_(value)
        raw_scale.fill_(raw)


def _named(module: nn.Module, part: str) -> list[Tensor]:
    return [parameter for name, parameter in module.named_parameters() if part in name]


class _LinearCalls(TorchFunctionMode):
    """The shapes of weights in calls of `linear`."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        if func is F.linear:
            self.shapes.append(tuple(args[1].shape))
        return func(*args, **(kwargs or {}))


def check(make: Callable[[Setting], Peer], setting: Setting) -> int:
    """Check that a step is one of mean-field SVI with one draw; returns the number of random weights.

    The weight of the data term is almost 0, so only the gradient of the KL moves locations and scales. One step must
    move all of them, since the KL is over all weights. The step must run the network once, with weights of the expected
    shapes.

    Raises:
        RuntimeError: If the step is not such a step.
    """
    expected = [tuple(parameter.shape) for parameter in setting.net().parameters()]
    alone = Setting(setting.sizes, batch_size=4, num_steps=1, num_data=1e-30, device=setting.device)
    peer = make(alone)
    before = [part.detach().clone() for parts in peer.parameters() for part in parts]
    calls = _LinearCalls()
    with calls:
        peer.burst()
    locations, scales = peer.parameters()
    for kind, parts in (("locations", locations), ("scales", scales)):
        if sorted(tuple(part.shape) for part in parts) != sorted(expected):
            raise RuntimeError(f"the {kind} have shapes {[tuple(p.shape) for p in parts]}, expected {expected}")
    if calls.shapes != [shape for shape in expected if len(shape) == 2]:
        raise RuntimeError(f"one step ran linear layers of shapes {calls.shapes}, expected one run of {expected}")
    for part, old in zip([*locations, *scales], before, strict=True):
        if int((part == old).sum()) > 1 + part.numel() // 100:  # where a weight is near 0, gradients round to 0
            raise RuntimeError(f"the KL moved {int((part != old).sum())} elements of a tensor of {part.numel()}")
    return sum(part.numel() for part in locations)
