"""Functions that several processes run together, and the same computations in one process."""

import functools
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import pyro_bnn as pb

from .test_exact import Problem

ADAM = functools.partial(torch.optim.Adam, lr=0.01)


def rows(num_rows=41):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(num_rows, 4, generator=generator)
    return x, x[:, :1] - x[:, 1:2].sin()


def made(path="direct", num_data=41, seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(None), num_data=num_data)
    if path == "precise":
        return model, pb.MeanFieldGuide(model, scale_map=pb.scale_maps.Precision())
    return model, pb.MeanFieldGuide(model) if path == "direct" else pb.auto_guide(AutoNormal, model)


def learned(model, guide):
    return {f"{name}.{key}": v for name, m in (("m", model), ("g", guide)) for key, v in m.state_dict().items()}


def plain(history):
    values = history.to_dict()
    for record in values["epochs"]:
        del record["seconds"]
    return values


def fit(rank, path, num_epochs, **options):
    """A fit from starts that differ between the processes."""
    model, guide = made(path, seed=rank)
    options = {"batch_size": 8, "seed": 3, **options}
    posterior = pb.fit_svi(model, rows(), guide, optimizer=ADAM, num_epochs=num_epochs, **options)
    return learned(model, guide), plain(posterior.history)


def one_step(rank, path, share):
    """Terms and gradients of a step on this process's rows, with its own noise."""
    model, guide = made(path)
    model.net.eval()
    x, y = (part[slice(*share[rank])] for part in rows())
    optimizer = functools.partial(torch.optim.SGD, lr=0.0)
    with pb.svi_step(model, guide, optimizer) as step:
        torch.manual_seed(100 + rank)
        values = step(x, y).values
        gradients = {name: p.grad.clone() for module in (guide, model) for name, p in module.named_parameters()}
    return values, gradients


def with_checkpoint(rank, folder, stop_after):
    """A fit that a signal to one process stops in all processes, and a fit that continues from its checkpoint."""
    path, count = Path(folder) / "fit", [0]

    def stops(history):
        count[0] += 1
        if rank == 1 and count[0] == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(pb.Interrupted, match="resume="):
        fit(rank, "direct", 4, checkpoint=str(path), callbacks=[stops])
    assert count[0] == stop_after
    return fit(rank, "direct", 4, resume=str(path), callbacks=[lambda history: None])


def refused(rank, what):
    """The message of an error that every process raises."""
    model, guide = made()
    data, options = rows(), {"batch_size": 8}
    if what == "shards":
        data = tuple(part[rank * 20 : rank * 20 + 20] for part in data)
        model, guide = made(num_data=20)
    elif what == "batch size":
        options = {"batch_size": 1}
    elif what == "KL weight":
        options["kl_weight"] = 1.0 + rank
    elif what == "wrapped":
        net, parts = DistributedDataParallel(nn.Linear(4, 1)), {"prior": pb.NormalPrior(), "num_data": 41}
        with pytest.raises(ValueError, match="got") as caught:
            pb.BayesianModel(net, likelihood=pb.GaussianLikelihood(None), **parts)
        return str(caught.value)
    elif what == "num_epochs":
        options["num_epochs"] = 1 + rank
    elif what == "optimizer's settings":
        options["optimizer"] = functools.partial(ADAM, lr=0.01 + rank)
    elif what == "checkpoint":
        options["checkpoint"] = "here" if rank == 0 else None
    with pytest.raises(ValueError, match="process") as caught:
        pb.fit_svi(model, data, guide, **{"optimizer": ADAM, "num_epochs": 1, **options})
    return str(caught.value)


def by_loader(rank):
    """A fit on a loader that gives each process its share."""
    data = TensorDataset(*(part[:40] for part in rows()))
    loader = DataLoader(data, batch_size=5, sampler=DistributedSampler(data, seed=1))
    model, guide = made(num_data=40)
    posterior = pb.fit_svi(model, loader, guide, optimizer=ADAM, num_epochs=3, seed=0)
    return learned(model, guide), plain(posterior.history)


def natural_gradient(rank):
    """A fit by natural gradients from starts that differ, and one step on a share of the rows with noise of its own."""
    model, guide = made("precise", seed=rank)
    options = {
        "optimizer": pb.optim.natural_gradient(0.05, hessian_decay=0.95),
        "num_epochs": 5,
        "batch_size": 8,
        "seed": 3,
    }
    posterior = pb.fit_svi(model, rows(), guide, **options)
    return learned(model, guide), plain(posterior.history), natural_products(rank)


def natural_products(rank):
    """The gradients of a step and their products with the deviations of the draw."""
    model, guide = made("precise")
    model.net.eval()
    x, y = (part[slice(*[(0, 20), (20, 33)][rank])] for part in rows())
    with pb.svi_step(model, guide, pb.optim.natural_gradient(), elbo=Trace_ELBO(num_particles=2)) as step:
        step.prepared(x, y)
        torch.manual_seed(100 + rank)
        step(x, y)
        return {name: parameter.grad.clone() for name, parameter in guide.named_parameters()}


def chains(rank):
    """Draws of stochastic-gradient MCMC, one after each of the last steps."""
    torch.manual_seed(0)
    net, parts = nn.Linear(4, 1), {"prior": pb.NormalPrior(), "num_data": 41}
    model = pb.BayesianModel(net, likelihood=pb.GaussianLikelihood(0.5), **parts)
    options = {"num_epochs": 4, "num_samples": 10, "batch_size": 8, "num_chains": 2, "seed": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)
        posterior = pb.fit_sgmcmc(model, rows(), sampler=pb.SGHMC(lr=1e-3), **options)
    return dict(posterior.chains)


NUTS = {"num_samples": 8, "num_warmup": 10, "num_chains": 3, "max_tree_depth": 3}


def terminate_at_work(file):
    """Send a signal to this process once it has begun to draw."""
    while not Path(file).exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def shared_chains(rank, folder):
    """Chains of NUTS that the processes share, with and without seeds, resumed, interrupted and refused."""
    problem, seen = Problem(), {}

    def fit(name, **options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            posterior = pb.fit_nuts(problem.model, (problem.x, problem.y), **{**NUTS, **options})
        statistics = posterior.statistics
        tensors = [*posterior.chains.values(), statistics.num_steps, statistics.step_size, statistics.inverse_mass]
        seen[name] = tensors, posterior.status.message, len(caught)

    def refused(name, x, **options):
        try:
            pb.fit_nuts(problem.model, (x, problem.y), **{**NUTS, **options})
        except ValueError as error:
            seen[name] = str(error)

    def interrupted(name, **options):
        with pytest.raises(pb.Interrupted) as caught:
            pb.fit_nuts(problem.model, (problem.x, problem.y), **{**NUTS, **options})
        seen[name] = str(caught.value)

    torch.manual_seed(rank)
    fit("first", seed=0, checkpoint=f"{folder}/chains")
    fit("again", seed=0)
    fit("other seed", seed=1)
    fit("without a seed")
    fit("resumed", seed=0, resume=f"{folder}/chains")
    threading.Thread(target=terminate_at_work, args=(f"{folder}/long.{rank}-of-2",)).start()
    interrupted("interrupted", num_samples=10**6, checkpoint=f"{folder}/long")
    refused("too few", problem.x, num_chains=1)
    refused("shards", problem.x + rank, seed=0)
    return seen


class Share(IterableDataset):
    """The rows from a begin to an end, of a data set without a length."""

    def __init__(self, begin, end):
        self.begin, self.end = begin, end

    def __iter__(self):
        return zip(*(part[self.begin : self.end] for part in rows()), strict=True)


def without_length(rank, *shares):
    """The message of a fit on loaders without a length, or the KL weights of its steps."""
    model, guide = made()
    loader = DataLoader(Share(*shares[rank]), batch_size=4)
    counts = []

    def kl_weight(epoch, index, num_batches):
        counts.append(num_batches)
        return 1.0

    try:
        pb.fit_svi(model, loader, guide, optimizer=ADAM, num_epochs=2, seed=0, kl_weight=kl_weight)
    except ValueError as error:
        return str(error)
    return counts


def odd_tensors(rank):
    """Tensors of types and layouts that the communication library does not support: those of process 0, and sums."""
    generator = torch.Generator().manual_seed(rank)
    tensors = [
        torch.tensor(rank + 1, dtype=torch.int16),
        torch.randn(2, 3, generator=generator).t(),
        torch.ones(1).expand(3),
    ]
    processes = pb.Execution().processes
    processes.broadcast_(tensors)
    total = torch.full((2, 3), 1.0 + rank).t()
    processes.sum_([total])
    return *tensors, total


def separate(rank):
    """Fits that are independent of each other."""
    return fit(rank, "direct", 2, batch_size=7, execution=pb.Execution(distributed=False))


class Elbo(nn.Module):
    """A model and its guide as one module, for `DistributedDataParallel`."""

    def __init__(self, model, guide):
        super().__init__()
        self.model, self.guide = model, guide
        self.loss = Trace_ELBO()(model, guide)

    def forward(self, x, y):
        return self.loss(x, y)


def torchs_own(rank):
    """Pyro's ELBO inside torch's `DistributedDataParallel`."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=41)
    guide = pb.MeanFieldGuide(model)
    x, y = (part[rank * 20 : rank * 20 + 20] for part in rows())
    loss = DistributedDataParallel(Elbo(model, guide))
    optimizer = ADAM(guide.parameters())
    torch.manual_seed(rank)
    for _ in range(10):
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()
    return guide.state_dict()
