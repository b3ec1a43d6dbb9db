"""Threads: computations of the library in one thread do not affect those in another."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.poutine.runtime import _PYRO_STACK
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core import scope as _scope
from pyro_bnn.inference.joint import network_potential

NUM_THREADS = 8


@pytest.fixture(autouse=True)
def fine_turns():
    """Threads take turns every 10 microseconds instead of every 5 milliseconds, so that they meet everywhere."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(jobs):
    """The results of functions that begin together, one in each thread."""
    gate = threading.Barrier(len(jobs))

    def begin(job):
        gate.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(begin, jobs))


def network(kind, num_outputs=2):
    middle = {
        "dropout": [nn.Dropout(0.5)],
        "batch norm": [nn.BatchNorm1d(5)],
        "mc dropout": [pb.nets.MCDropout(0.5)],
        "plain": [],
    }[kind]
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), *middle, nn.Linear(5, num_outputs))


KINDS = [  # of the eight threads; the last two share a model
    ("dropout", "categorical"),
    ("batch norm", "categorical"),
    ("mc dropout", "categorical"),
    ("plain", "latent"),
    ("dropout", "latent"),
    ("plain", "learned"),
    ("dropout", "learned"),
]


def members():
    """Eight models in train mode, of which two are the same, with a guide and data each."""
    torch.manual_seed(1)
    found = []
    for kind, noise in KINDS:
        likelihood = {
            "categorical": pb.CategoricalLikelihood(),
            "latent": pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0)),
            "learned": pb.GaussianLikelihood(None),
        }[noise]
        model = pb.BayesianModel(network(kind), prior=pb.NormalPrior(), likelihood=likelihood, num_data=12)
        x = torch.randn(12, 4)
        y = torch.arange(12) % 2 if noise == "categorical" else torch.randn(12, 2)
        found.append((model, pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3)), x, y))
    return [*found, found[-1]]


def values_of(prediction):
    moments = prediction.probs if isinstance(prediction, pb.uncertainty.ClassificationPrediction) else prediction.total
    return torch.stack([moments.sum(), prediction.log_density.sum()])


def predicting(index, member):
    model, guide, x, y = member
    batches = list(zip(x.split(6), y.split(6), strict=True))

    def job():
        results = [values_of(pb.predict(model, guide, x, y=y, num_samples=9, seed=index + s)) for s in range(4)]
        return [*results, values_of(pb.predict(model, guide, batches, num_samples=9, seed=index))]

    return job


def everything_clean(models):
    assert not _PYRO_STACK
    assert not list(pyro.get_param_store().keys())
    assert all_in_train_mode(models)


def all_in_train_mode(models):
    return all(module.training for model in models for module in model.modules())


def results_differ(first, second):
    return any(
        not torch.equal(a, b) for one, two in zip(first, second, strict=True) for a, b in zip(one, two, strict=True)
    )


def test_predictions_in_threads_are_those_of_one_thread():
    every = members()
    jobs = [predicting(index, member) for index, member in enumerate(every)]
    expected = [job() for job in jobs]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert not results_differ(at_once(jobs), expected)
    assert torch.equal(torch.get_rng_state(), before)
    everything_clean([model for model, *_ in every])


@pytest.mark.nightly
def test_without_the_lock_they_would_not_be(monkeypatch):
    every = members()
    jobs = [predicting(index, member) for index, member in enumerate(every)]
    expected = [job() for job in jobs]
    for module in list(sys.modules.values()):
        if module.__name__.startswith("pyro_bnn") and vars(module).get("EXCLUSIVE") is _scope.EXCLUSIVE:
            monkeypatch.setattr(module, "EXCLUSIVE", NoLock())
    assert any(spoilt(jobs, expected) for _ in range(10))


class NoLock(nullcontext):
    """Stands in for the lock, and does nothing."""

    def acquire(self):
        pass

    release = acquire


def spoilt(jobs, expected):
    try:
        return results_differ(at_once(jobs), expected)
    except Exception:  # such as a generator's state that is torn
        return True


def stepping(index, step, x, y):
    stream = _scope.Stream(index)

    def job():
        terms = []
        for _ in range(25):
            with stream:
                terms.append(step(x, y).values.clone())
        return terms

    return job


def fitted(run):
    """Results of 25 steps of each member, and the final parameters; a given function runs the jobs."""
    every = members()
    every[-1] = (every[-1][0], pb.LowRankGuide(every[-1][0], rank=2), *every[-1][2:])  # two guides of one model
    for model, *_ in every:
        model.requires_grad_(False)  # two fits of one model would both change its parameters, in some order
    contexts = [
        pb.svi_step(model, guide, torch.optim.Adam(guide.parameters(), lr=0.01), elbo=elbo)
        for (model, guide, *_), elbo in zip(every, [pyro.infer.TraceMeanField_ELBO(), Trace_ELBO()] * 4, strict=True)
    ]
    steps = [context.__enter__() for context in contexts]
    for step, (_, _, x, y) in zip(steps, every, strict=True):
        step.prepared(x, y)
    results = run([stepping(i, step, x, y) for i, (step, (_, _, x, y)) in enumerate(zip(steps, every, strict=True))])
    assert {step.path for step in steps} == {"direct"}
    for context in contexts:
        context.__exit__(None, None, None)
    assert all_in_train_mode([model for model, *_ in every])
    parameters = [[p.detach() for p in guide.parameters()] for _, guide, *_ in every]
    return [[*terms, *values] for terms, values in zip(results, parameters, strict=True)]


def in_turn(jobs):
    return [job() for job in jobs]


@pytest.mark.nightly
def test_direct_steps_in_threads_are_those_of_one_thread():
    assert not results_differ(fitted(at_once), fitted(in_turn))
    everything_clean([])


def evaluating(potential, seed):
    points = potential.start + torch.randn(
        10, 3, potential.layout.num_elements, generator=torch.Generator().manual_seed(seed)
    )

    def job():
        with torch.no_grad():
            return [part for z in points for part in potential.value_and_grad(z)]

    return job


def potentials():
    """Potentials without learned parameters; two belong to one model."""
    hierarchical = pb.BayesianModel(
        network("plain"), prior=pb.HierarchicalNormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=12
    )
    every = [member for member, (kind, noise) in zip(members(), KINDS, strict=False) if noise != "learned"]
    every = [(model, x, y) for model, _, x, y in every if not has_mc_dropout(model)]
    every += [(hierarchical, *every[0][1:]), every[0], every[-1], every[1], every[2]]
    assert len(every) == NUM_THREADS + 1
    return [network_potential(model, x, y, None) for model, x, y in every]


def has_mc_dropout(model):
    return any(isinstance(module, pb.nets.MCDropout) for module in model.modules())


def test_potentials_in_threads_are_those_of_one_thread():
    jobs = [evaluating(potential, seed) for seed, potential in enumerate(potentials())]
    assert not results_differ(at_once(jobs), in_turn(jobs))
    everything_clean([])


class PlainPyro(threading.Thread):
    """Runs a fit and traces of plain Pyro without pause, with handlers and without random numbers."""

    def __init__(self):
        super().__init__()
        pyro.clear_param_store()
        self.goes_on, self.started = True, threading.Event()
        self.losses, self.sites = [], set()
        guide = pyro.infer.autoguide.AutoDelta(self.model)
        self.svi = SVI(self.model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        guide()

    def model(self):
        loc = pyro.param("loc", torch.tensor(0.5))
        w = pyro.sample("w", dist.Normal(loc, 1.0))
        with pyro.plate("rows", 3):
            pyro.sample("seen", dist.Normal(w, 0.5), obs=torch.tensor([1.0, 2.0, 3.0]))

    def again(self):
        self.losses.append(self.svi.step())
        handled = poutine.scale(poutine.condition(self.model, data={"w": torch.tensor(0.3)}), scale=0.5)
        trace = poutine.trace(handled).get_trace()
        self.sites.add((*trace.nodes, float(trace.log_prob_sum().detach())))

    def run(self):
        while self.goes_on:
            self.again()
            self.started.set()


@pytest.mark.nightly
@pytest.mark.uses_param_store
def test_plain_pyro_in_another_thread_is_not_disturbed_and_does_not_disturb():
    every = members()
    jobs = [predicting(index, member) for index, member in enumerate(every)]
    jobs += [evaluating(potential, seed) for seed, potential in enumerate(potentials())]
    expected = in_turn(jobs)
    steps = fitted(in_turn)

    def beside(jobs):  # steps are prepared before, since a trial call of the network needs Pyro
        other.start()
        other.started.wait()
        return at_once(jobs)

    other = PlainPyro()
    try:
        assert not results_differ(fitted(beside), steps)
        assert not results_differ(in_turn(jobs), expected)
    finally:
        other.goes_on = False
        other.join()
    alone = PlainPyro()
    for _ in other.losses:
        alone.again()
    assert other.losses == alone.losses
    assert other.sites == alone.sites
    assert not _PYRO_STACK
