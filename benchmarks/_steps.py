"""Training steps of one network on the same data with the same optimizer: ours, written by hand, and deterministic.

A burst is an epoch as `fit_svi` runs it: rows shuffled, batches indexed, the loss read as a number at every step.
"""

import functools
import itertools
import math
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from pyro.infer import ELBO, Trace_ELBO
from torch import Tensor, nn
from torch.nn import functional as F

import pyro_bnn as pb
from pyro_bnn._core.files import read_state, write_state
from pyro_bnn.inference.estimators import Estimator
from pyro_bnn.inference.guides import FlatGuide

KIND = "checkpoint of a fit"
INITIAL_SCALE = 0.01
PRIOR_SCALE = 1.0


@dataclass(frozen=True)
class Setting:
    """Settings of all contenders."""

    # sizes of the layers of the ReLU network; for a convolutional network, numbers of channels
    sizes: tuple[int, ...] = (784, 400, 400, 10)
    # whether the network has two convolutions and a linear layer, for images of 28 x 28, instead of linear layers
    is_conv: bool = False
    batch_size: int = 128  # rows of a step
    num_steps: int = 20  # steps of a burst, and batches of the data
    num_data: float | None = None  # size of the data set in the ELBO; with None, the number of rows
    device: str = "cpu"  # where to compute

    def net(self) -> nn.Sequential:
        """A new network."""
        if self.is_conv:
            first, second = self.sizes
            layers: list[nn.Module] = [
                *(nn.Conv2d(1, first, 5), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(16 * second, 10)),
            ]
        else:
            layers = [layer for i, o in itertools.pairwise(self.sizes) for layer in (nn.Linear(i, o), nn.ReLU())][:-1]
        return nn.Sequential(*layers).to(self.device)

    @cached_property
    def data(self) -> tuple[Tensor, Tensor]:
        """Standard normal inputs, random labels."""
        num_rows = self.batch_size * self.num_steps
        shape = (1, 28, 28) if self.is_conv else self.sizes[:1]
        labels = torch.randint(10 if self.is_conv else self.sizes[-1], (num_rows,))
        return torch.randn(num_rows, *shape).to(self.device), labels.to(self.device)

    @property
    def where(self) -> tuple[str, ...]:
        """Globs of the parameters that are random."""
        return ("**",)

    @property
    def num_rows(self) -> float:
        """The number N of data points in the ELBO."""
        return self.batch_size * self.num_steps if self.num_data is None else self.num_data

    def optimizer(self, parameters: list) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def seconds(self, work: Callable[[], object], repeats: int = 1) -> float:
        """Seconds of some work, until the device has finished; the mean of some repeats in a row."""
        wait = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        wait()
        begin = time.perf_counter()
        for _ in range(repeats):
            work()
        wait()
        return (time.perf_counter() - begin) / repeats


@dataclass(frozen=True)
class ResidualSetting(Setting):
    """ResNet-20 on images of 3 x 32 x 32; the parameters of batch normalisation are not random."""

    width: int = 16  # channels of the first stage

    def net(self) -> nn.Sequential:
        return pb.nets.resnet20(width=self.width).to(self.device)

    @cached_property
    def data(self) -> tuple[Tensor, Tensor]:
        num_rows = self.batch_size * self.num_steps
        return torch.randn(num_rows, 3, 32, 32).to(self.device), torch.randint(10, (num_rows,)).to(self.device)

    @property
    def where(self) -> tuple[str, ...]:
        """The weights of convolutions and of the linear layer."""
        return ("**.conv.weight", "**.conv1.weight", "**.conv2.weight", "**.linear.*")


class Loop(ABC):
    """Steps in a hand-written training loop."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.losses: list[float] = []  # losses of the last burst

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> Tensor | float:
        """One step; returns the loss. As in `fit_svi`, a tensor is read only after all steps, so no step waits."""

    def epoch(self) -> None:
        x, y = self.setting.data
        order = torch.randperm(len(x)).to(x.device).split(self.setting.batch_size)
        losses = [self.step(x[rows], y[rows]) for rows in order]
        self.losses = torch.stack([torch.as_tensor(loss) for loss in losses]).tolist()

    def burst(self) -> float:
        return self.setting.seconds(self.epoch) / self.setting.num_steps


class Differentiable(Loop):
    """A loop around a loss and a torch optimizer."""

    optimizer: torch.optim.Optimizer

    @abstractmethod
    def loss(self, x: Tensor, y: Tensor) -> Tensor: ...

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class HandWritten(Differentiable):
    """Mean-field SVI of a ReLU network in plain torch. The library must not be slower.

    The KL is estimated from the drawn weights unless `closed_form` is set.
    """

    def __init__(self, setting: Setting, *, closed_form: bool = False) -> None:
        super().__init__(setting)
        self._closed_form = closed_form
        self.loc = [parameter.detach().clone().requires_grad_() for parameter in setting.net().parameters()]
        rho = math.log(math.expm1(INITIAL_SCALE))
        self.rho = [torch.full_like(loc, rho).requires_grad_() for loc in self.loc]
        self.optimizer = setting.optimizer([*self.loc, *self.rho])

    def draw(self) -> tuple[list[Tensor], Tensor]:
        """A draw of all weights, and its KL."""
        weights, terms = [], []
        for loc, rho in zip(self.loc, self.rho, strict=True):
            scale, noise = F.softplus(rho), torch.randn_like(loc)
            weight = loc + scale * noise
            if self._closed_form:
                ratio = (loc.square() + scale.square()) / (2 * PRIOR_SCALE**2)
                terms.append((ratio - scale.log()).sum() + loc.numel() * (math.log(PRIOR_SCALE) - 0.5))
            else:
                log_q = -0.5 * noise.square() - scale.log()  # log_q and log_p both omit log(2 pi) / 2
                log_p = -weight.square() / (2 * PRIOR_SCALE**2) - math.log(PRIOR_SCALE)
                terms.append((log_q - log_p).sum())
            weights.append(weight)
        return weights, torch.stack(terms).sum()

    def negative_elbo(self, weights: list[Tensor], kl: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Negative ELBO of the whole data set, in nats."""
        for index in range(0, len(weights), 2):
            x = F.linear(x if index == 0 else F.relu(x), weights[index], weights[index + 1])
        return self.setting.num_rows * F.cross_entropy(x, y) + kl

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.negative_elbo(*self.draw(), x, y)


class Deterministic(Differentiable):
    """The plain network."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.net = setting.net()
        self.optimizer = setting.optimizer(list(self.net.parameters()))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), y)


class CapturedDeterministic(Loop):
    """The plain network's whole step as one CUDA graph; needs a GPU."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        net = setting.net()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=True)
        self._x, self._y = (part[: setting.batch_size].clone() for part in setting.data)

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(net(self._x), self._y)
            loss.backward()
            optimizer.step()
            return loss

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm-up on a stream of its own, as torch's manual asks
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        self._used = net, optimizer  # a graph does not keep the tensors that it reads
        with torch.cuda.graph(self._graph):
            self._loss = step()

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self._x.copy_(x)
        self._y.copy_(y)
        self._graph.replay()
        return self._loss.detach().clone()


MakeGuide = Callable[[pb.BayesianModel], FlatGuide]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def mean_field(model: pb.BayesianModel) -> pb.MeanFieldGuide:
    """The guide of all rows that do not name another guide."""
    return pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=INITIAL_SCALE))


class FitSVI:
    """`fit_svi` as a user calls it; the time is that of the second epoch, divided by its number of steps.

    Args:
        setting: The setting; a `num_data` other than that of the data needs batches.
        prior: Prior of all weights.
        elbo: Class of the ELBO.
        estimator: Gradient estimator.
        make_guide: Function from the model to its guide.
        optimizer: Function from parameters to an optimizer; with None, the default of all contenders.
        in_batches: Whether `fit_svi` gets a list of batches instead of the two tensors.
        execution: How steps are computed; with None, they are recorded on a GPU.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        prior: pb.Prior | None = None,
        elbo: type[ELBO] = Trace_ELBO,
        estimator: Estimator | None = None,
        make_guide: MakeGuide = mean_field,
        optimizer: MakeOptimizer | None = None,
        in_batches: bool = False,
        execution: pb.Execution | None = None,
    ) -> None:
        self.setting = setting
        self.model = pb.BayesianModel(
            setting.net(),
            prior=prior or pb.NormalPrior(PRIOR_SCALE),
            likelihood=pb.CategoricalLikelihood(),
            num_data=int(setting.num_rows),
            where=setting.where,
        )
        self.guide = make_guide(self.model)
        data: object = setting.data
        if in_batches:
            data = list(zip(*(part.split(setting.batch_size) for part in setting.data), strict=True))
        self._fit = functools.partial(
            pb.fit_svi,
            self.model,
            data,
            self.guide,
            optimizer=optimizer or setting.optimizer,
            num_epochs=2,
            batch_size=None if in_batches else setting.batch_size,
            elbo=elbo(),
            estimator=estimator,
            execution=execution or execution_on(setting),  # recorded in the first epoch, replayed in the second
        )

    def burst(self, **options: object) -> float:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`num_data` is")  # it differs from the number of rows on purpose
            posterior = self._fit(**options)
        return posterior.history.epochs[-1].seconds / self.setting.num_steps


def natural(setting: Setting) -> FitSVI:
    """Natural-gradient inference; parameters without a distribution have the same optimizer as in all other rows."""

    def guide(model: pb.BayesianModel) -> pb.MeanFieldGuide:
        init = pb.NetworkInit(scale=INITIAL_SCALE)
        return pb.MeanFieldGuide(model, init=init, scale_map=pb.scale_maps.Precision())

    return FitSVI(
        setting,
        make_guide=guide,
        optimizer=pb.optim.natural_gradient(1e-3, others=setting.optimizer),
    )


class OwnLoop:
    """The same steps in a hand-written loop around `svi_step`, over the same batches as `FitSVI(in_batches=True)`."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._fit = FitSVI(setting, in_batches=True)
        self._batches = list(zip(*(part.split(setting.batch_size) for part in setting.data), strict=True))

    def burst(self) -> float:
        model, guide = self._fit.model, self._fit.guide
        optimizer = self.setting.optimizer(list(guide.parameters()))
        with pb.svi_step(model, guide, optimizer, execution=execution_on(self.setting)) as step:
            for _ in range(2):
                start = time.perf_counter()
                elbos = [step(x, y).elbo for x, y in self._batches]
                torch.stack(elbos).tolist()  # waits for a GPU
                seconds = time.perf_counter() - start
        return seconds / self.setting.num_steps


def execution_on(setting: Setting) -> pb.Execution:
    """Steps on a GPU are recorded and replayed."""
    return pb.Execution(cuda_graph=setting.device == "cuda")


class Checkpoint:
    """Writes the state of a fit to a file, as at the end of an epoch."""

    def __init__(self, setting: Setting) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "fit"
        fit = FitSVI(setting)
        fit.burst(checkpoint=self._path)
        self._state = read_state(self._path, KIND)

    def burst(self) -> float:
        start = time.perf_counter()
        write_state(self._path, KIND, self._state)
        return time.perf_counter() - start


class Epoch:
    """An epoch over 60,000 rows."""

    def __init__(self, setting: Setting) -> None:
        self._fit, self._num_steps = FitSVI(setting), math.ceil(60_000 / setting.batch_size)

    def burst(self) -> float:
        return self._fit.burst() * self._num_steps
