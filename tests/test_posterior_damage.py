"""A file that is damaged, forged or of another kind is refused with a message that names the fault."""

import copy
import pickle
import random

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn._core.files import DamagedFileError, read_state, write_state

from .posteriors import make, make_model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Path of a file of each kind, with the plain data that it holds."""
    torch.set_default_dtype(torch.float64)
    folder, contents = tmp_path_factory.mktemp("files"), {}
    for name in ("mean-field", "pruned", "batch-norm", "ensemble", "laplace", "nuts", "kronecker"):
        model, _, posterior = make(name)
        pb.save_posterior(posterior, folder / name, model)
        contents[name] = read_state(folder / name, "posterior")
    return folder, contents


def forged(files, name, change, path):
    """Write a file whose content was changed, with a checksum that fits the new content."""
    content = copy.deepcopy(files[1][name])
    change(content)
    write_state(path, "posterior", content)


def guide(content):
    return content["posterior"]["content"]["guide"]


def history(content):
    return content["posterior"]["content"]["history"]


def inner(content):
    return content["posterior"]["content"]


def put(where, **items):
    """A change: set items of a part of the content; two underscores stand for a dot."""
    return lambda content: where(content).update({name.replace("__", "."): value for name, value in items.items()})


def spoil(where, name, change):
    """A change of one tensor in place."""

    def spoil_it(content):
        part = where(content)
        part[name] = part[name].clone()
        change(part[name].reshape(-1))

    return spoil_it


def first(value):
    """Set the first element."""
    return lambda flat: flat[:1].fill_(value)


def converted(where, name, convert):
    return lambda content: where(content).update({name: convert(where(content)[name])})


def state(content):
    return guide(content)["state"]


def model_state(content):
    return content["model"]["state"]


def covariance(content):
    return inner(content)["covariance"]


def statistics(content):
    return inner(content)["statistics"]


def samples(content):
    return inner(content)["samples"]


LOC, RHO, KEEP = "loc.net.0.weight", "rho.net.0.weight", "keep.net.0.weight"

# what is wrong -> (posterior, change of what its file holds, message)
FORGED = {
    "nan": ("mean-field", spoil(state, LOC, first(torch.nan)), rf"`{LOC}` of the guide must be finite, got 1"),
    "infinity": ("mean-field", spoil(state, RHO, first(torch.inf)), rf"`{RHO}` of the guide must be finite"),
    "float-for-double": ("mean-field", converted(state, LOC, torch.Tensor.float), "must be torch.float64, got torch.f"),
    "ints": ("mean-field", converted(state, LOC, torch.Tensor.long), "must be torch.float64, got torch.int64"),
    "shape": ("mean-field", converted(state, LOC, torch.t), r"must have shape \(5, 4\), got \(4, 5\)"),
    "number": ("mean-field", put(state, loc__net__0__weight=1.0), "must be of type Tensor, got 1.0"),
    "missing": ("mean-field", lambda c: state(c).pop(LOC), rf"the file lacks `{LOC}` of the guide"),
    "unknown": ("mean-field", put(state, extra=torch.ones(1)), "has `extra`, which the guide lacks"),
    "scale": ("mean-field", spoil(state, RHO, first(-1e4)), rf"`{RHO}` of the guide must give scales above 0"),
    "scale-map": ("mean-field", put(guide, scale_map="square"), "scale map 'square' is not of this package"),
    "mask-short": ("pruned", put(state, keep__net__0__weight=torch.zeros(1, dtype=torch.uint8)), "have 3 bytes for 20"),
    "mask-kind": (
        "pruned",
        converted(state, KEEP, torch.Tensor.float),
        "must have 3 bytes for 20 weights, got tor",
    ),
    "mask-other": ("pruned", spoil(state, KEEP, first(255)), r"must have shape .*one number for each remaining weight"),
    "mask-shape": ("pruned", lambda c: guide(c)["removed"].update({"net.0.weight": (4, 5)}), r"of shape \(4, 5\)"),
    "mask-site": ("pruned", lambda c: guide(c)["removed"].update({"net.9": (4, 5)}), "weights of `net.9`"),
    "left-out": (
        "pruned",
        lambda c: c["model"]["left_out"].append("likelihood.scale"),
        "lacks the values of `likelihood.sc",
    ),
    "model-nan": (
        "mean-field",
        spoil(model_state, "net.0.bias", first(torch.nan)),
        "`net.0.bias` of the model must",
    ),
    "model-shape": (
        "mean-field",
        converted(model_state, "net.0.bias", lambda b: b[:2]),
        r"`net.0.bias` .*shape \(5,",
    ),
    "variance": ("batch-norm", spoil(model_state, "net.1.running_var", first(-1.0)), "running_var` .*negative, got -1"),
    "count": (
        "batch-norm",
        converted(model_state, "net.1.num_batches_tracked", torch.Tensor.double),
        "num_batches_tracked` of the model in the file must be torch.int64",
    ),
    "history-nan": ("mean-field", lambda c: history(c)["elbo"].__setitem__(1, torch.nan), r"history\.elbo\[1\]` must"),
    "history-text": (
        "mean-field",
        lambda c: history(c)["kl"].append("2"),
        r"history\.kl\[2\]` must be a finite",
    ),
    "history-kind": ("mean-field", put(history, elbo=5), r"history\.elbo` must be a list, got 5"),
    "epoch": ("mean-field", lambda c: history(c)["epochs"][0].pop("kl"), r"history\.epochs\[0\]` must have the fields"),
    "epoch-number": ("mean-field", lambda c: history(c)["epochs"][0].update(epoch=0.5), "epoch` must be of type int"),
    "status": ("mean-field", lambda c: inner(c)["status"].update(ok=1), "status.ok` must be of type bool, got 1"),
    "no-history": ("mean-field", lambda c: inner(c).pop("history"), r"must have the fields \['guide', 'history'"),
    "kind": (
        "mean-field",
        lambda c: c["posterior"].update(kind="magic"),
        "kind must be one of Ensemble.*, GuidePosterior, .*got 'magic'",
    ),
    "other-kind": (
        "mean-field",
        lambda c: c["posterior"].update(kind="LaplacePosterior"),
        "`posterior` must have the fields",
    ),
    "nothing": ("mean-field", lambda c: c.clear(), "`file` must have the fields"),
    "no-member": ("ensemble", lambda c: inner(c)["members"].clear(), "at least one posterior"),
    "member": ("ensemble", lambda c: inner(c)["members"].append(3), r"members\[2\]` must have the fields"),
    "precision": ("laplace", spoil(inner, "precision", lambda p: p.neg_()), "must be positive definite"),
    "precision-nan": (
        "laplace",
        spoil(inner, "precision", first(torch.nan)),
        "`precision` of the posterior must be",
    ),
    "location": ("laplace", converted(inner, "location", lambda m: m[1:]), r"`location` of the posterior .* shape"),
    "location-kind": (
        "laplace",
        converted(inner, "location", torch.Tensor.long),
        "must be torch.float32 or",
    ),
    "peak": ("laplace", put(inner, peak=torch.inf), "peak` must be a finite number, got inf"),
    "point": ("kronecker", put(lambda c: inner(c)["location"], net__0__bias=torch.zeros(4).double()), r"shape \(5,\)"),
    "point-nan": ("kronecker", spoil(lambda c: inner(c)["location"], "net.0.bias", first(torch.nan)), "must be finite"),
    "random": ("kronecker", lambda c: inner(c)["random"].append("net.9"), r"random sites .* must be some of"),
    "fewer": ("kronecker", lambda c: inner(c)["prior_precisions"].popitem(), "prior precisions of .* but the random"),
    "prior": (
        "kronecker",
        put(lambda c: inner(c)["prior_precisions"], net__0__bias=-torch.ones(()).double()),
        "the prior precisions of `net.0.bias` must be one number or one for each weight, above 0",
    ),
    "scales": ("kronecker", spoil(covariance, "scales", first(-1.0)), "scales of the covariance must be above 0"),
    "left": (
        "kronecker",
        converted(covariance, "left.0", lambda q: q[1:]),
        r"`left.0` of the covariance .* shape \(5, 5\)",
    ),
    "no-right": ("kronecker", lambda c: covariance(c).pop("right.0"), "lacks `right.0` of the covariance"),
    "too-many": ("kronecker", put(covariance, more=torch.ones(1).double()), "has `more`, which the covariance lacks"),
    "half": (
        "kronecker",
        converted(covariance, "left.0", torch.Tensor.float),
        "must be torch.float64, got torch.float32",
    ),
    "structure": ("kronecker", put(inner, structure="odd"), "structure must be one of full, kronecker, diagonal"),
    "factor": ("kronecker", put(inner, structure="full"), "lacks `factor` of the covariance"),
    "chains-nan": ("nuts", spoil(samples, "net.0.weight", first(torch.nan)), "`net.0.weight` of the chains must be"),
    "chains-support": ("nuts", spoil(samples, "likelihood.scale", first(-1.0)), r"`likelihood.scale` .*must lie in"),
    "chains-zero": ("nuts", spoil(samples, "likelihood.scale", first(0.0)), r"`likelihood.scale` .*must lie in"),
    "chains-short": ("nuts", converted(samples, "net.0.bias", lambda s: s[:1]), r"`net.0.bias` .*shape \(2, 4, 5\)"),
    "chains-missing": ("nuts", lambda c: samples(c).pop("net.0.bias"), "lack the latent variable `net.0.bias`"),
    "chains-unknown": ("nuts", put(samples, more=torch.ones(2, 4).double()), "has `more`, which the model lacks"),
    "energy": ("nuts", converted(statistics, "energy", torch.t), r"`energy` of the chains must have shape \(2, 4\)"),
    "energy-nan": ("nuts", spoil(statistics, "energy", first(torch.nan)), "`energy` of the chains must be finite"),
    "diverging": ("nuts", converted(statistics, "diverging", torch.Tensor.double), "`diverging` .*must be torch.bool"),
    "step": ("nuts", spoil(statistics, "step_size", first(0.0)), "`step_size` of the chains must be above 0"),
    "mass": ("nuts", converted(statistics, "inverse_mass", lambda m: m[:, 1:]), "`inverse_mass` .*shape"),
    "statistic": ("nuts", put(statistics, accept=0.8), "statistics.accept` must be of type Tensor"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_wrong_state_is_refused_by_name_and_changes_nothing(files, tmp_path, what):
    name, change, message = FORGED[what]
    forged(files, name, change, tmp_path / "file")
    model, *_ = make_model(name, seed=1)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=f"file cannot be loaded: .*{message}"):
        pb.load_posterior(tmp_path / "file", model)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["mean-field", "pruned", "ensemble", "laplace", "nuts", "kronecker"])
def test_the_same_forger_without_a_change_is_believed(files, tmp_path, name):
    forged(files, name, lambda content: None, tmp_path / "file")
    assert pb.load_posterior(tmp_path / "file", make_model(name, seed=1)[0]).sample(2, seed=0)


def test_a_status_must_have_all_its_fields(files, tmp_path):
    forged(files, "nuts", lambda content: inner(content)["status"].pop("is_slight"), tmp_path / "file")
    with pytest.raises(ValueError, match=r"status` must have the fields .*'is_slight'"):
        pb.load_posterior(tmp_path / "file", make_model("nuts", seed=1)[0])


@pytest.mark.parametrize("name", ["mean-field", "pruned"])
def test_a_flipped_bit_anywhere_is_found(files, tmp_path, name):
    content = (files[0] / name).read_bytes()
    model, *_ = make_model(name)
    numbers = random.Random(0)
    for position in numbers.sample(range(len(content)), 100):
        damaged = bytearray(content)
        damaged[position] ^= 1 << numbers.randrange(8)
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(DamagedFileError, match="damaged is"):
            pb.load_posterior(tmp_path / "damaged", model)


class Bomb:
    """An object whose pickle runs code when it is read."""

    def __reduce__(self):
        return (open, ("exploded", "w"))


def pickled(content):
    return lambda path: path.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize(
    "write",
    [
        pickled(Bomb()),
        lambda path: torch.save(Bomb(), path),
        lambda path: torch.save({"model": {}, "guide": {}}, path),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("{}"),
        lambda path: path.write_bytes(b"\xff" * 64),
        lambda path: path.mkdir(),
    ],
)
def test_a_file_of_something_else_is_one_sentence_and_runs_nothing(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "file")
    with pytest.raises((DamagedFileError, FileNotFoundError)) as caught:
        pb.load_posterior(tmp_path / "file", make_model("mean-field")[0])
    assert str(tmp_path / "file") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "exploded").exists()
