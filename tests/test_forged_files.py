"""Files with a right checksum and any content: wrong content is refused, and never causes a raw error."""

import copy
import functools
import hashlib
import json
import random

import pytest
import torch
from safetensors.torch import save
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core.files import DamagedFileError, read_state, write_state
from pyro_bnn.app.folders import updating

from .chains import quietly
from .posteriors import make, make_model
from .test_cli import pyro_bnn  # noqa: F401  # a fixture
from .test_damaged_files import run, trained  # noqa: F401  # fixtures

ADAM = functools.partial(torch.optim.Adam, lr=0.01)

# --- the header -------------------------------------------------------------------------------------------------------

GOOD = {"format": "pyro_bnn", "version": "1", "kind": "fit", "state": '{"dict": []}'}


def write_header(path, **items):
    header = {name: text for name, text in {**GOOD, **items}.items() if text is not None}
    digest = hashlib.sha256()
    for name in sorted(header):
        part = f"{name}={header[name]}".encode()
        digest.update(len(part).to_bytes(8, "little") + part)
    path.write_bytes(save({}, {**header, "sha256": digest.hexdigest()}))


def test_the_forger_of_headers_without_a_change_is_believed(tmp_path):
    write_header(tmp_path / "file")
    assert read_state(tmp_path / "file", "fit") == {}


@pytest.mark.parametrize("version", [None, "null", "", "-1", "1.0", "9" * 5000, "\u0661", " 1", "[]"])
def test_a_version_that_is_no_number_is_refused(tmp_path, version):
    write_header(tmp_path / "file", version=version)
    with pytest.raises(DamagedFileError, match="is no fit that pyro_bnn wrote"):
        read_state(tmp_path / "file", "fit")


@pytest.mark.parametrize(
    "state",
    [
        *(None, "", "3", "null", "[]", '"text"', "{", "{}", '{"dict": 5}', '{"dict": [[1]]}', '{"dict": [[1, 2, 3]]}'),
        *('{"magic": []}', '{"tensor": "0"}', '{"tensor": []}', '{"floats": 3}', '{"list": 3}', '{"dict": [], "a": 1}'),
        *("[" * 100_000, '{"list": [' * 20_000, '{"a":' * 100_000, '{"dict": [[{"list": []}, 1]]}', "1" * 5000),
    ],
    ids=lambda state: str(state)[:20],
)
def test_a_state_that_is_none_is_refused(tmp_path, state):
    write_header(tmp_path / "file", state=state)
    with pytest.raises(DamagedFileError, match="is no fit that"):
        read_state(tmp_path / "file", "fit")


# --- the content ------------------------------------------------------------------------------------------------------


def places(content, depth=4):
    """All places in nested dictionaries and lists, as paths of keys."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items if depth else ():
        yield (key,)
        yield from ((key, *rest) for rest in places(value, depth - 1))


REMOVE, ADD = object(), object()


def changed(content, place, value):
    content = copy.deepcopy(content)
    part = functools.reduce(lambda part, key: part[key], place[:-1], content)
    if value is REMOVE:
        del part[place[-1]]
    elif value is ADD and isinstance(part, dict):
        part["more"] = 1
    elif value is ADD:
        part.append(part[-1])
    else:
        part[place[-1]] = value
    return content


def forgeries(content, count=80):
    """Many contents with one change each."""
    numbers = random.Random(0)
    every = [*places(content)]
    values = [REMOVE, ADD, None, 3, -1.5, "text", [], {}, [[]], torch.ones(2)]
    for _ in range(count):
        yield changed(content, numbers.choice(every), numbers.choice(values))


def refusals(path, kind, read):
    """Number of forgeries of a file that were refused; any other error than a refusal fails."""
    content, refused = read_state(path, kind), 0
    for forgery in forgeries(content):
        write_state(path, kind, forgery)
        try:
            quietly(read)
        except ValueError as error:
            refused += "\n" not in str(error)
    return refused


@pytest.mark.daily("nested", "kronecker")
@pytest.mark.parametrize("name", ["nested", "pinned", "laplace", "kronecker", "nuts", "stored"])
def test_forged_posteriors_are_refused(tmp_path, name):
    model, _, posterior = make(name)
    path = tmp_path / "file"
    pb.save_posterior(posterior, path, model)
    fresh = make_model(name, seed=1)[0]
    assert refusals(path, "posterior", lambda: pb.load_posterior(path, fresh)) > 40


def line(num_data=6):
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=num_data)
    return model, torch.randn(num_data, 2), torch.randn(num_data, 1)


def test_forged_checkpoints_of_fits_are_refused(tmp_path):
    def fit(**options):
        model, x, y = line()
        guide = pb.MeanFieldGuide(model)
        pb.fit_svi(model, (x, y), guide, optimizer=ADAM, num_epochs=2, batch_size=3, seed=0, **options)

    fit(checkpoint=tmp_path / "file")
    assert refusals(tmp_path / "file", "checkpoint of a fit", lambda: fit(resume=tmp_path / "file")) > 40


def test_forged_checkpoints_of_chains_are_refused(tmp_path):
    def fit(**options):
        model, *data = line()
        pb.fit_nuts(model, tuple(data), num_samples=4, num_warmup=2, num_chains=2, seed=0, **options)

    quietly(fit, checkpoint=tmp_path / "file")
    assert refusals(tmp_path / "file", "checkpoint of chains", lambda: fit(resume=tmp_path / "file")) > 40


@pytest.mark.nightly
def test_forged_checkpoints_of_minibatch_chains_are_refused(tmp_path):
    def fit(**options):
        model, x, y = line()
        sampler = pb.SGLD(1e-3)
        pb.fit_sgmcmc(model, (x, y), sampler=sampler, num_epochs=4, num_samples=2, seed=0, **options)

    quietly(fit, checkpoint=tmp_path / "file")
    assert refusals(tmp_path / "file", "checkpoint of a fit", lambda: fit(resume=tmp_path / "file")) > 40


# --- runs -----------------------------------------------------------------------------------------------------------

HUGE = 10**400


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("data.json", "num_train", HUGE),
        ("data.json", "num_train", 0),
        ("data.json", "num_test", -1),
        ("data.json", "input_shape", []),
        ("data.json", "input_shape", [1, HUGE]),
        ("data.json", "input_shape", [-1]),
        ("data.json", "input_shape", [2**62]),
        ("history.json", "num_data", HUGE),
        ("history.json", "num_data", 0),
        ("history.json", "kl", []),
    ],
    ids=str,
)
def test_wrong_values_in_files_whose_checksums_fit_are_refused(pyro_bnn, run, name, field, value):  # noqa: F811
    content = {**json.loads((run / name).read_text()), field: value}
    with updating(run, command="train") as folder:
        folder.write_json(name, content)
    code, out, err = pyro_bnn("report", run, "--out", run.parent / "page.html")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert field in err
    assert len(err) < 400
