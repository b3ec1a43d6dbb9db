"""Every test is seeded, runs in float64 on one thread, and must leave all global state as it found it."""

import fnmatch
import functools
import gc
import os
import random
import signal
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread for each process, and for those that it starts; read at import
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pyro
import pytest
import sklearn.datasets  # noqa: F401  # importing it moves Python's random state: not inside a test
import sklearn.metrics  # noqa: F401
import torch

from pyro_bnn.inference.mcmc import _native

from .fits import forbid_direct

mpl.use("Agg")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["recipes"]
"""Members that `test_recipes.py` puts into copies of the package; here their imports lead nowhere."""

LONG_EXAMPLES = (
    *("SGHMC", "SGLD", "fit_sgmcmc", "loss_curves", "ChainStatistics", "Descent"),
    *("compare", "export_onnx", "fit_surrogate"),
)
"""Examples in docstrings that run at night: a test or another example does the same."""

SEED = int(os.environ.get("PYRO_BNN_TEST_SEED", "0"))

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and the command line would wrap lines

set_seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
"""Without a device, `torch.manual_seed` takes more time than the rest of a short test."""


def global_state():
    return {
        "default dtype": torch.get_default_dtype(),
        "grad enabled": torch.is_grad_enabled(),
        "validation": torch.distributions.Distribution._validate_args,
        "pyro settings": pyro.settings.get(),
        "parameter store": sorted(pyro.get_param_store().keys()),
        "numpy": np.random.get_state()[1].tobytes(),  # noqa: NPY002
        "python": random.getstate(),
        "threads": torch.get_num_threads(),
        "signals": (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)),
    }


@pytest.fixture(autouse=True)
def clean_slate(request):
    """Seeds before; afterwards, asserts that no global changed (a test may mark itself `uses_param_store`)."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    set_seed(SEED)
    before = global_state()
    yield
    plt.close("all")  # pyplot is imported here, so it shows the figures of `plotting`
    if "uses_param_store" in request.keywords:
        pyro.clear_param_store()
    after = global_state()
    torch.set_default_dtype(torch.float32)
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed


FLAGS, OPTIMIZED = _native.FLAGS, type(_native._kept)()


@pytest.fixture(autouse=True, scope="module")
def quick_compiler(request):
    """C compiles in a third of the time, except at night and in tests that use `optimized`."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.option.markexpr != "nightly":
            patch.setattr(_native, "FLAGS", ("-Og", *FLAGS[1:]))
        yield


@pytest.fixture
def optimized(monkeypatch):
    """C is compiled as for users, in tests of what the compiler makes."""
    monkeypatch.setattr(_native, "FLAGS", FLAGS)
    monkeypatch.setattr(_native, "_kept", OPTIMIZED)


@pytest.fixture(params=["direct", "pyro"])
def path(request, monkeypatch):
    """How gradients of our own models and guides are computed: directly, or by Pyro as for all other models."""
    if request.param == "pyro":
        forbid_direct(monkeypatch)
    return request.param


def shorten_chains(patch, most_steps=600):
    """Make fits that choose for themselves compare two designs in two folds by few steps."""
    from pyro_bnn.app import chains
    from pyro_bnn.auto.choosing import _budget, _chosen
    from pyro_bnn.interop.scikit import _classifier, _regressor

    patch.setattr(_budget, "FEWEST_SECONDS", _budget.FEWEST_SECONDS / 8)
    patch.setattr(_budget, "MOST_DESCENT", 500)
    patch.setattr(_budget, "MOST_STEPS", most_steps)
    patch.setattr(_chosen, "NUM_FOLDS", 2)
    for module, name in ((_regressor, "OF_NUMBERS"), (chains, "OF_NUMBERS"), (_classifier, "OF_CLASSES")):
        patch.setattr(module, name, getattr(module, name)[::3])


@pytest.fixture
def short_chains(monkeypatch):
    """Short fits, see :func:`shorten_chains`."""
    shorten_chains(monkeypatch)


def run_shortened(run):
    """Run an example in a docstring, with fits that are just long enough not to warn."""
    from pyro_bnn.auto.fitting import _variational

    with pytest.MonkeyPatch.context() as patch:
        shorten_chains(patch, most_steps=3000)
        patch.setattr(_variational, "WINDOW_STEPS", 100)
        patch.setattr(_native, "FLAGS", ("-Og", *FLAGS[1:]))
        run()


@pytest.fixture
def short_fits(monkeypatch):
    """Variational fits without `num_epochs` take few steps."""
    from pyro_bnn.auto.fitting import _variational

    monkeypatch.setattr(_variational, "MOST_STEPS", 300)
    monkeypatch.setattr(_variational, "FEWEST_EPOCHS", 20)


@pytest.fixture
def real_data():
    """The folder with MNIST and FashionMNIST."""
    folder = os.environ.get("PYRO_BNN_DATA")
    if not folder or not (Path(folder) / "MNIST" / "raw").is_dir():
        pytest.skip("needs the real data: set PYRO_BNN_DATA to the folder that holds MNIST/raw and FashionMNIST/raw")
    return Path(folder)


@pytest.fixture
def real_uci():
    """The folder with the UCI data sets."""
    folder = os.environ.get("PYRO_BNN_DATA")
    if not folder or not (Path(folder) / "uci" / "yacht").is_dir():
        pytest.skip("needs the real data: set PYRO_BNN_DATA to the folder that holds uci/yacht and the other sets")
    return Path(folder)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """What is imported and collected stays: looking for garbage in it takes a quarter of the time of a collection."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before those are left out that are not asked for
def pytest_collection_modifyitems(config, items):
    unused = {}  # globs of each function that have matched none of its cases
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.dtest.globs = {}  # an example must import what it uses, so that it can be copied
            item.runtest = functools.partial(run_shortened, item.runtest)
            if item.name.endswith(LONG_EXAMPLES):
                item.add_marker(pytest.mark.nightly)
        if daily := item.get_closest_marker("daily"):
            matches = {glob for glob in daily.args if fnmatch.fnmatchcase(item.callspec.id, glob)}
            unused[item.function] = unused.get(item.function, {*daily.args}) - matches
            if not matches:
                item.add_marker(pytest.mark.nightly)
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    misspelt = {function.__name__: sorted(globs) for function, globs in unused.items() if globs}
    if misspelt and not any("::" in argument for argument in config.args):  # then all cases were collected
        raise pytest.UsageError(f"marks `daily` with globs that match no case: {misspelt}; mend them.")
