"""An ensemble by `fit`, which trains all members in one step, and one fit."""

import functools
import time
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

import pyro_bnn as pb

EPOCHS = {"cpu": 2, "cuda": 10}
"""On a GPU an epoch takes a fraction of a second, so that two would measure the preparations of a fit."""


@dataclass
class Problem:
    """LeNet-5, and random images and labels."""

    num_data: int
    device: str
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.rand(self.num_data, 28, 28, generator=generator).to(self.device)
        self.y = torch.randint(10, (self.num_data,), generator=generator).to(self.device)

    def fit(self, said: str = "", **options) -> float:
        """Seconds of a fit of points, whose status must contain `said`."""
        model = pb.BayesianModel(
            pb.nets.lenet5(), prior=pb.NormalPrior(0.3), likelihood=pb.CategoricalLikelihood(), num_data=self.num_data
        ).to(self.device)
        guide = {} if options["method"] == "ensemble" else {"guide": pb.DeltaGuide(model)}
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = pb.fit(
                model,
                (self.x, self.y),
                optimizer=functools.partial(torch.optim.Adam, lr=1e-3, fused=True),
                num_epochs=EPOCHS[self.device],
                batch_size=128,
                seed=0,
                **guide,
                **options,
            )
        seconds = time.perf_counter() - begin
        if said not in str(posterior.status):
            raise RuntimeError(f"not fitted `{said}`: {posterior.status}")
        return seconds


@dataclass(frozen=True)
class OneFit:
    """One network, with all threads."""

    problem: Problem

    def burst(self) -> float:
        return self.problem.fit(method="svi")


@dataclass(frozen=True)
class Ensemble:
    """Several networks, trained in one step."""

    problem: Problem
    num_members: int

    def burst(self) -> float:
        return self.problem.fit(method="ensemble", num_members=self.num_members, said="in one step")
