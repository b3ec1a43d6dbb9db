"""Every argument of every public callable is given wrong values: it takes them, or says in a sentence why not.

What was made with a wrong value is used, and the methods that users call on models, guides, posteriors and predictions
are swept in the same way.

An answer is right if the library takes the value, or raises an error of its own. An error is raw if Python, torch or
Pyro raised it. Each night all callables are swept, with each push a few.
"""

import ast
import enum
import functools
import inspect
import linecache
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.inference.guides import Init
from pyro_bnn.inference.sgmcmc import StochasticGradientSampler
from pyro_bnn.modelling.likelihoods import Likelihood
from pyro_bnn.modelling.priors import WeightPrior

PACKAGE = Path(pb.__file__).parent
SPACES = (
    *("acquisition", "calibration", "data", "distributions", "interop", "kl", "likelihoods", "metrics"),
    *("nets", "optim"),
    *("plotting", "pruning", "scale_maps", "uncertainty"),
)

WRONG = {
    "None": lambda: None,
    "True": lambda: True,
    "zero": lambda: 0,
    "three": lambda: 3,
    "minus one": lambda: -1,
    "a fraction": lambda: 1.5,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "1e50": lambda: 1e50,
    "1e-50": lambda: 1e-50,
    "2**70": lambda: 2**70,
    "2**62": lambda: 2**62,
    "10**400": lambda: 10**400,
    "a float that is whole": lambda: 3.0,
    "a complex number": lambda: 1j,
    "no text": lambda: "",
    "text": lambda: "nonsense",
    "bytes": lambda: b"\x00",
    "an empty list": list,
    "a list": lambda: ["a", 1],
    "a dict": lambda: {"a": 1},
    "an object": object,
    "a class": lambda: int,
    "a function": lambda: lambda *_: None,
    "an empty tensor": lambda: torch.zeros(0),
    "a tensor of NaN": lambda: torch.full((6, 4), float("nan")),
    "a tensor of texts' lengths": lambda: torch.zeros(2, 3, 4, 5, dtype=torch.long),
}


class Pool:
    """Right arguments, by the callable and the name of its parameter, or by that name alone."""

    def __init__(self, folder):
        torch.manual_seed(0)
        self.folder = folder
        self.x, self.y = torch.randn(6, 4), torch.randn(6, 2)
        self.labels = torch.arange(6) % 3
        net = torch.nn.Linear(4, 2)
        self.model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=6)
        self.guide = pb.MeanFieldGuide(self.model)
        self.posterior = pb.GuidePosterior(self.guide)
        self.path = folder / "posterior.safetensors"
        probs = torch.full((6, 3), 1 / 3)
        self.by_name = {
            "model": self.model, "guide": self.guide, "posterior": self.posterior, "x": self.x, "y": self.y,
            "data": (self.x, self.y), "net": net, "prior": pb.NormalPrior(), "likelihood": pb.GaussianLikelihood(1.0),
            "num_data": 6, "optimizer": functools.partial(torch.optim.Adam, lr=1e-2), "num_epochs": 1,
            "num_samples": 2, "num_warmup": 2, "num_chains": 1, "max_tree_depth": 2,
            "rank": 2, "lr": 1e-3, "path": self.path,
            "scale": 1.0, "loc": 0.0, "scales": (0.1, 0.2), "sampler": pb.SGLD(lr=1e-4),
            "posteriors": [self.posterior, self.posterior], "probs": probs, "values": self.guide.median(),
            "mean": self.y, "lower": self.y - 1, "upper": self.y + 1, "draws": torch.randn(3, 6, 2),
            "pool": torch.randn(3, 6, 4), "targets": torch.randn(3, 5, 4), "num_rows": 2,
            "predictions": probs[:, :, None],
            "log_probs": torch.randn(3, 6), "in_domain": torch.rand(6), "out_of_domain": torch.rand(6),
            "name": "digits", "priors": {"**": pb.NormalPrior()}, "variance": torch.ones(6, 2), "fraction": 0.5,
        }  # fmt: skip
        self.by_callable = {
            ("fit_mcmc", "sampler"): pb.NUTS(max_tree_depth=2),
            ("compare", "posteriors"): {"a": self.posterior, "b": self.posterior},
        }

    def right(self, name, parameter):
        return self.by_callable.get((name, parameter), self.by_name.get(parameter, inspect.Parameter.empty))


SHORT = {"num_epochs", "num_samples", "num_warmup", "num_chains", "max_tree_depth"}
"""Arguments that are always given, so that a call is short."""

MADE_BY_FITS = {"GaussNewtonPosterior", "LaplacePosterior", "MCMCPosterior", "PinnedPosterior", "NaturalGradient"}
"""Classes of results, whose objects the library makes."""


def callables():
    """(name, callable) of all public functions and classes."""
    for name in dir(pb):
        value = getattr(pb, name)
        if not name.startswith("_") and callable(value) and name not in MADE_BY_FITS and not is_skipped(value):
            yield name, value
    for space in SPACES:
        module = getattr(pb, space)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and value is not pb.kl.KLWeight and not is_skipped(value):
                yield f"{space}.{name}", value


def is_skipped(value):
    """Abstract classes, enumerations and errors, which no user makes."""
    if not inspect.isclass(value):
        return False
    return inspect.isabstract(value) or issubclass(value, (enum.Enum, BaseException))


def is_raw(error):
    """Whether an error was raised outside of the package, or by an operation and not by `raise`."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    if not frames or isinstance(error, AssertionError):
        return True
    last = frames[-1]
    if not Path(last.filename).is_relative_to(PACKAGE):
        # A callback, loader or optimizer of the user's own may raise what it likes; files are answered by the system.
        return not isinstance(error, OSError)
    tree = ast.parse("".join(linecache.getlines(last.filename)))
    raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return not any(node.lineno <= last.lineno <= node.end_lineno for node in raised)


def is_endless(value, what):
    """Whether a call would run for years: there is no end of epochs, steps or draws that are made one by one."""
    return what == "2**62" and value in ENDLESS


ENDLESS = {
    "num_epochs", "num_warmup", "max_iter", "num_parts", "num_cycles", "max_tree_depth",
    "max_steps", "steps_per_draw", "num_steps", "num_samples", "num_chains", "rows", "columns",
    "num_members", "num_components", "rank", "num_classes", "in_channels", "width", "every", "start",
    "num_scales", "size",
}  # fmt: skip
"""Counts of what is done one after the other; those that are made at once are in `test_extreme_numbers`."""


def use(made, pool):
    """Use what was made, as the next call of a user would."""
    if isinstance(made, Iterator):
        next(made, None)
    options = {"prior": pb.NormalPrior(), "likelihood": pb.GaussianLikelihood(1.0)}
    if isinstance(made, WeightPrior):
        options["prior"] = made
    elif isinstance(made, Likelihood):
        options["likelihood"] = made
    elif isinstance(made, pb.BayesianModel):
        pb.MeanFieldGuide(made)(pool.x)
        return
    net = torch.nn.Linear(4, 2)
    model = pb.BayesianModel(net, num_data=6, **options)
    if isinstance(made, WeightPrior | Likelihood):
        pb.MeanFieldGuide(model)
    elif isinstance(made, Init):
        pb.MeanFieldGuide(model, init=made)
    elif isinstance(made, pb.scale_maps.ScaleMap):
        pb.MeanFieldGuide(model, scale_map=made)
    elif isinstance(made, StochasticGradientSampler):
        pb.fit_sgmcmc(model, (pool.x, pool.y), sampler=made, num_epochs=2, num_samples=1)
    elif isinstance(made, pb.Execution):
        fit(model, pool, execution=made)


def fit(model, pool, **options):
    optimizer = functools.partial(torch.optim.Adam, lr=1e-2)
    return pb.fit_svi(
        model, (pool.x, pool.y), pb.MeanFieldGuide(model), **{"optimizer": optimizer, "num_epochs": 1, **options}
    )


def answers(name, value, pool):
    """(argument, wrong value, error) of each call that ends in a raw error."""
    parameters = inspect.signature(value).parameters
    base = {}
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty or parameter.name in SHORT:
            right = pool.right(name.rpartition(".")[2], parameter.name)
            if right is not parameter.empty:
                base[parameter.name] = right
            elif parameter.default is parameter.empty:
                base[parameter.name] = 1.0
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            continue
        if parameter.name == "validate_args":  # of torch.distributions, which takes any truth value
            continue
        for what, make in WRONG.items():
            if is_endless(parameter.name, what):
                continue
            try:
                use(value(**{**base, parameter.name: make()}), pool)
            except Warning:
                continue
            except Exception as error:  # that is what is looked for
                if is_raw(error):
                    line = traceback.extract_tb(error.__traceback__)[-1]
                    place = f"{Path(line.filename).name}:{line.lineno}"
                    yield parameter.name, what, f"{type(error).__name__}: {str(error)[:90]!r} at {place}"


ALL = dict(callables())
FEW = {"NormalPrior", "GaussianLikelihood", "MeanFieldGuide", "predict"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.nightly) for n in ALL])
@pytest.mark.uses_param_store
def test_wrong_arguments_are_taken_or_answered(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pool = Pool(tmp_path)
    with torch.random.fork_rng(devices=[]):
        raw = [f"{argument} = {what}: {error}" for argument, what, error in answers(name, ALL[name], pool)]
    assert raw == []


METHODS = {
    "model": ("prior_of", "log_likelihood"),
    "guide": ("draws", "quantiles", "kept", "median", "scales"),
    "low rank": ("draws", "quantiles"),
    "posterior": ("sample", "moments", "diagnose", "as_prior", "centers", "draws"),
    "ensemble": ("sample", "moments"),
    "Laplace": ("sample", "moments"),
    "Gauss-Newton": ("sample", "moments"),
    "numbers": ("sample", "quantile", "cdf", "log_prob", "score", "to_frame", "as_kind"),
    "classes": ("score", "to_frame", "as_kind"),
}
"""Methods that users call, by what they are called on."""


def an_object(name, pool):
    """A model, a guide, a posterior or a prediction."""
    if name == "model":
        return pool.model
    if name in ("guide", "low rank"):
        return pool.guide if name == "guide" else pb.LowRankGuide(pool.model, rank=1)
    if name == "classes":
        likelihood = pb.CategoricalLikelihood()
        model = pb.BayesianModel(torch.nn.Linear(4, 3), prior=pb.NormalPrior(), likelihood=likelihood, num_data=6)
        return pb.predict(model, pb.MeanFieldGuide(model), pool.x, num_samples=4, keep_draws=True)
    if name in ("Laplace", "Gauss-Newton"):
        make = pb.fit_laplace if name == "Laplace" else pb.fit_gauss_newton
        return make(pool.model, (pool.x, pool.y))
    posterior = fit(pool.model, pool)
    if name == "numbers":
        return pb.predict(pool.model, posterior, pool.x, num_samples=4, keep_draws=True)
    return pb.EnsemblePosterior([posterior, posterior]) if name == "ensemble" else posterior


FEW_OBJECTS = {"guide"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FEW_OBJECTS else pytest.mark.nightly) for n in METHODS]
)
@pytest.mark.uses_param_store
def test_wrong_arguments_of_methods_are_taken_or_answered(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pool = Pool(tmp_path)
    with torch.random.fork_rng(devices=[]):
        owner = an_object(name, pool)
        raw = [
            f"{method}({argument} = {what}): {error}"
            for method in METHODS[name]
            for argument, what, error in answers(method, getattr(owner, method), pool)
        ]
    assert raw == []


def test_raw_errors_are_told_from_answers():
    for call in (lambda: torch.zeros(2) @ torch.zeros(3), lambda: {}[1], lambda: torch.Size("a")):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            call()
        assert is_raw(caught.value)
    with pytest.raises(ValueError, match="scale") as caught:
        pb.NormalPrior(-1.0)
    assert not is_raw(caught.value)
