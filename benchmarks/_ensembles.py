"""An ensemble by `fit`, whose members several processes train side by side, compared with one fit."""

import functools
import time
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

import pyro_bnn as pb

EPOCHS = 2


@dataclass
class Problem:
    """LeNet-5, and random images and labels."""

    num_data: int
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.rand(self.num_data, 28, 28, generator=generator)
        self.y = torch.randint(10, (self.num_data,), generator=generator)

    def fit(self, **options) -> float:
        """Seconds of a fit of points."""
        model = pb.BayesianModel(
            pb.nets.lenet5(), prior=pb.NormalPrior(0.3), likelihood=pb.CategoricalLikelihood(), num_data=self.num_data
        )
        guide = {} if options["method"] == "ensemble" else {"guide": pb.DeltaGuide(model)}
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pb.fit(
                model,
                (self.x, self.y),
                optimizer=functools.partial(torch.optim.Adam, lr=1e-3, fused=True),
                max_epochs=EPOCHS,
                batch_size=128,
                seed=0,
                **guide,
                **options,
            )
        return time.perf_counter() - begin


@dataclass(frozen=True)
class OneFit:
    """One network, with all threads."""

    problem: Problem

    def burst(self) -> float:
        return self.problem.fit(method="svi")


@dataclass(frozen=True)
class Ensemble:
    """Several networks, in several processes with one thread each."""

    problem: Problem
    num_members: int
    num_workers: int

    def burst(self) -> float:
        return self.problem.fit(method="ensemble", num_members=self.num_members, num_workers=self.num_workers)
