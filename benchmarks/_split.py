"""Split MNIST: five tasks of two digits each, and a network that learns them one after the other."""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import pyro_bnn as pb
from pyro_bnn import metrics
from pyro_bnn.data import Images, load_images
from pyro_bnn.modelling.priors import PosteriorPrior

NUM_TASKS = 5
NUM_UNITS = 256

Rows = tuple[Tensor, Tensor]
"""Pixels, shape (N, D), and labels 0 or 1, shape (N,)."""

Numbers = dict[str, Tensor]
"""Parameters of a guide by name, those of all tasks so far."""


@dataclass(frozen=True)
class Setting:
    """How a network learns the tasks."""

    # whether to learn means and standard deviations; otherwise a point estimate by maximum likelihood
    is_bayesian: bool = True
    # whether the posterior of a task is the prior of the next task; otherwise the prior stays N(0, 1)
    remembers: bool = True
    is_joint: bool = False  # whether to learn all tasks at once
    is_natural: bool = False  # whether to use natural gradients; otherwise Adam
    # whether to use local reparameterisation; otherwise all rows of a step share draws of the weights
    is_local: bool = True
    num_draws: int = 1  # number of these draws
    lr: float = 5e-3  # learning rate
    is_decayed: bool = True  # whether the rate falls along a cosine, anew for each task; otherwise it is constant
    hessian_decay: float = 0.99  # decay of the Hessian of natural gradients
    # initial Hessian of natural gradients: a new task starts with the precisions of the prior plus this number times
    # the number of images
    initial_hessian: float | None = None
    num_warmup: int = 0  # number of first steps of each task over which the rate of natural gradients rises
    first_scale: float = 0.01  # initial standard deviation of the weights
    epochs: int = 10  # passes over the images of a task
    batch_size: int | None = 256  # number of images in a step; with None, all
    # number of epochs of maximum likelihood before the first task, whose means start at the result
    first_epochs: int = 0
    # number of images of each task that are kept for later, chosen at random. Before a prediction for a task, a copy of
    # the posterior also learns from the images that were kept of this task
    coreset: int = 0


class MultiHead(nn.Module):
    """Two hidden layers for all tasks, and an output layer for each of some tasks."""

    def __init__(self, num_inputs: int, tasks: range) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Linear(num_inputs, NUM_UNITS), nn.ReLU()), *(nn.Linear(NUM_UNITS, NUM_UNITS), nn.ReLU())
        )
        self.heads = nn.ModuleDict({str(task): nn.Linear(NUM_UNITS, 2) for task in tasks})

    def forward(self, x: Tensor, task: Tensor | None = None) -> Tensor:
        """Logits, shape (N, 2); each row's task is needed if there are several output layers."""
        hidden = self.body(x)
        outputs = [head(hidden) for head in self.heads.values()]
        if task is None:
            return outputs[0]
        return torch.stack(outputs, 1)[torch.arange(len(x)), task]


def load(root: Path | None, validation: int) -> Images:
    """MNIST; with validation, the last training images replace the test images."""
    images = load_images("mnist", root=root)
    if not validation:
        return images
    x, y = images.x_train, images.y_train
    return Images(x[:-validation], y[:-validation], x[-validation:], y[-validation:], images.classes)


def task_of(x: Tensor, y: Tensor, task: int) -> Rows:
    """The images of the digits 2 t and 2 t + 1, and whether a digit is odd."""
    rows = torch.div(y, 2, rounding_mode="floor") == task
    return x[rows].flatten(1), y[rows] % 2


class Learner:
    """A network that learns one task after the other, or all at once; the seed is that of everything random."""

    def __init__(self, setting: Setting, images: Images, seed: int) -> None:
        self._setting, self._seed = setting, seed
        self._train = [task_of(images.x_train, images.y_train, task) for task in range(NUM_TASKS)]
        self._test = [task_of(images.x_test, images.y_test, task) for task in range(NUM_TASKS)]
        self._kept = []
        if setting.coreset:
            generator = torch.Generator().manual_seed(seed)
            for task, (x, y) in enumerate(self._train):
                order = torch.randperm(len(x), generator=generator)
                kept, rest = order[: setting.coreset], order[setting.coreset :]
                self._kept.append((x[kept], y[kept]))
                self._train[task] = x[rest], y[rest]
        self._numbers: Numbers = {}
        self.cpu_seconds = 0.0
        """Time of training so far."""

    def accuracies(self, num_samples: int) -> Iterator[list[float]]:
        """Test accuracies of all tasks so far, after each task; after joint learning, those of all tasks once."""
        if self._setting.is_joint:
            self._learn_jointly()
            yield [self.accuracy(task, num_samples) for task in range(NUM_TASKS)]
            return
        for task in range(NUM_TASKS):
            self.learn(task)
            yield [self.accuracy(known, num_samples) for known in range(task + 1)]

    def learn(self, task: int) -> None:
        """Learn from the images of a task, starting at the present posterior."""
        setting, rows = self._setting, self._train[task]
        prior: pb.Prior = pb.NormalPrior(1.0)
        if task == 0 and setting.first_epochs:
            start = self._model(len(rows[0]), prior, range(1))
            self._fit(start, pb.DeltaGuide(start), rows, epochs=setting.first_epochs, seed=task)
        elif task > 0 and setting.remembers and setting.is_bayesian:
            prior = self.as_prior()
        model = self._model(len(rows[0]), prior, range(task, task + 1))
        self._fit(model, self._guide(model), rows, epochs=setting.epochs, seed=task)

    def _learn_jointly(self) -> None:
        x, y = (torch.cat(parts) for parts in zip(*self._train, strict=True))
        which = torch.cat([torch.full((len(rows[0]),), task) for task, rows in enumerate(self._train)])
        model = self._model(len(x), pb.NormalPrior(1.0), range(NUM_TASKS))
        self._fit(model, self._guide(model), ((x, which), y), epochs=self._setting.epochs, seed=0)

    def as_prior(self) -> pb.Prior:
        """The posterior of all tasks so far, as a prior; for the output layer of a new task the prior is N(0, 1)."""
        model = self._model(1, pb.NormalPrior(1.0), range(NUM_TASKS))
        posterior = pb.GuidePosterior(self._guide(model)).as_prior()
        known = {name.removeprefix("loc.") for name in self._numbers if name.startswith("loc.")}
        locations, scales = (
            {name: values[name] for name in values if name in known}
            for values in (posterior.locations, posterior.scales)
        )
        return PosteriorPrior(locations, scales, otherwise=pb.NormalPrior(1.0))

    def _model(self, num_data: int, prior: pb.Prior, tasks: range) -> pb.BayesianModel:
        with torch.random.fork_rng():
            torch.manual_seed(1000 * self._seed + tasks.start)
            net = MultiHead(self._train[0][0].shape[1], tasks)
        return pb.BayesianModel(net, prior=prior, likelihood=pb.CategoricalLikelihood(), num_data=num_data)

    def _guide(self, model: pb.BayesianModel) -> nn.Module:
        """A guide that starts where the last one ended."""
        if not self._setting.is_bayesian:
            return self._continued(pb.DeltaGuide(model))
        scale_map = pb.scale_maps.Precision() if self._setting.is_natural else pb.scale_maps.Softplus()
        init = pb.NetworkInit(scale=self._setting.first_scale)
        return self._continued(pb.MeanFieldGuide(model, init=init, scale_map=scale_map))

    def _continued(self, guide: nn.Module) -> nn.Module:
        fresh = guide.state_dict()
        guide.load_state_dict({name: self._numbers.get(name, value) for name, value in fresh.items()})
        return guide

    def _fit(self, model: pb.BayesianModel, guide: nn.Module, rows: object, *, epochs: int, seed: int) -> None:
        begin = time.process_time()
        self._fitted(model, guide, rows, epochs=epochs, seed=seed)
        self.cpu_seconds += time.process_time() - begin
        self._numbers |= {name: value.clone() for name, value in guide.state_dict().items()}

    def _fitted(self, model: pb.BayesianModel, guide: nn.Module, rows: object, *, epochs: int, seed: int) -> None:
        setting = self._setting
        is_point = not isinstance(guide, pb.MeanFieldGuide)
        is_local = setting.is_local and not (is_point or setting.is_natural)
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
        if setting.is_natural and not is_point:
            optimizer = pb.optim.natural_gradient(
                setting.lr,
                hessian_decay=setting.hessian_decay,
                initial_hessian=setting.initial_hessian,
                clip=1.0,
                num_warmup=setting.num_warmup,
            )
        else:
            optimizer = functools.partial(torch.optim.Adam, lr=setting.lr, fused=True)
        cosine = functools.partial(CosineAnnealingLR, T_max=epochs)
        bound = Trace_ELBO if setting.is_natural else TraceMeanField_ELBO
        pb.fit_svi(
            model,
            rows,
            guide,
            optimizer=pb.optim.scheduled(optimizer, cosine) if setting.is_decayed else optimizer,
            num_epochs=epochs,
            batch_size=setting.batch_size,
            elbo=None if is_point else bound(num_particles=setting.num_draws),
            estimator=pb.LocalReparameterization() if is_local else None,
            kl_weight=0.0 if is_point else 1.0,
            seed=1000 * self._seed + seed,
        )

    def accuracy(self, task: int, num_samples: int) -> float:
        """Share of a task's test images that are classified correctly."""
        x, y = self._test[task]
        if self._setting.is_joint:
            model = self._model(1, pb.NormalPrior(1.0), range(NUM_TASKS))
            inputs: object = x, torch.full((len(x),), task)
        else:
            model, inputs = self._model(1, pb.NormalPrior(1.0), range(task, task + 1)), x
        guide = self._guide(model)
        if self._kept:
            model, guide = self._refreshed(task)
        if not self._setting.is_bayesian:
            return metrics.accuracy(pb.predict_point(model, pb.GuidePosterior(guide).median(), inputs).probs, y)
        return metrics.accuracy(pb.predict(model, guide, inputs, num_samples=num_samples, seed=self._seed).probs, y)

    def _refreshed(self, task: int) -> tuple[pb.BayesianModel, nn.Module]:
        """The posterior after learning from the images that were kept of a task; the learner itself does not change."""
        rows = self._kept[task]
        model = self._model(len(rows[0]), self.as_prior(), range(task, task + 1))
        guide = self._guide(model)
        self._fitted(model, guide, rows, epochs=self._setting.epochs, seed=NUM_TASKS + task)
        return model, guide
