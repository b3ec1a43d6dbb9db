"""Files of runs and data that were damaged, edited or mixed up are named, and never accepted."""

import gzip
import hashlib
import json
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from pyro_bnn.app import recipes, runs
from pyro_bnn.app.datasets import load_data
from pyro_bnn.app.folders import Folder, updating
from pyro_bnn.app.manifest import Manifest
from pyro_bnn.data import MissingDataError, load_images, load_uci

from .folders import train_run
from .test_cli import FILES as FROM_THE_COMMAND
from .test_cli import pyro_bnn  # noqa: F401  # a fixture
from .test_data import write_uci

FILES = FROM_THE_COMMAND - {"asked.json"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run on scikit-learn's digits, made once."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = replace(recipes.RECIPES["digits", "default"], epochs=1, hidden=(4,), accuracy=True)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        train_run(config, load_data(config, root=None)[0], folder)
    finally:
        torch.set_default_dtype(before)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy, to damage."""
    return shutil.copytree(trained, tmp_path / "run")


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("place", [0.1, 0.9])
def test_a_flipped_bit_in_any_file_of_a_run_is_found_and_named(pyro_bnn, run, name, place):  # noqa: F811
    path = run / name
    damaged = bytearray(path.read_bytes())
    damaged[int(place * len(damaged))] ^= 4
    path.write_bytes(damaged)
    code, out, err = pyro_bnn("weights", run)
    assert (code, out) == (1, "")
    assert f"{path} is damaged or was edited" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", sorted(FILES - {"manifest.json"}))
def test_a_missing_or_truncated_file_of_a_run_is_named(pyro_bnn, run, name):  # noqa: F811
    path = run / name
    path.write_bytes(path.read_bytes()[:-1])
    code, _, err = pyro_bnn("weights", run)
    assert (code, f"{path} is damaged or was edited" in err) == (1, True)
    path.unlink()
    code, _, err = pyro_bnn("weights", run)
    assert (code, f"{path} is missing; take it from a copy" in err) == (1, True)


def test_an_edited_configuration_is_refused_with_the_remedy(pyro_bnn, run):  # noqa: F811
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "epochs": 5}))
    code, _, err = pyro_bnn("evaluate", run)
    assert code == 1
    assert "config.json is damaged or was edited" in err
    assert "settings are options of `pyro-bnn train`" in err


def test_recorded_accuracies_are_verified(run):
    assert len(runs.load_accuracy(run).train) == 1
    (run / "accuracy.json").write_text('{"train": [0.99], "test": [0.99]}')
    with pytest.raises(ValueError, match=r"accuracy\.json is damaged or was edited"):
        runs.load_accuracy(run)


def test_a_configuration_of_a_later_version_asks_for_that(pyro_bnn, run):  # noqa: F811
    config = json.loads((run / "config.json").read_text())
    with updating(run, command="train") as folder:
        folder.write_json("config.json", {**config, "version": 9, "colour": "red"})
    code, _, err = pyro_bnn("evaluate", run)
    assert (code, "`version` must be 2, got 9; install a later pyro-bnn" in err) == (2, True)


def test_a_manifest_of_a_later_version_asks_for_that(run, monkeypatch):
    manifest = Manifest.read(run)
    with monkeypatch.context() as patch:
        patch.setattr("pyro_bnn.app.manifest.VERSION", 2)
        manifest.write(run)
    with pytest.raises(ValueError, match="was written by a later version of pyro-bnn; install that version"):
        runs.load_config(run)


def test_a_manifest_cannot_reach_out_of_its_folder(run):
    (run.parent / "mine.txt").write_text("mine")
    Manifest("train", is_finished=True, files={"../mine.txt": None}).write(run)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        runs.load_config(run)


def forged(folder, **changes):
    """A manifest with changes, and with the checksum that fits them; a change to None removes the key."""
    content = {**json.loads((folder / "manifest.json").read_text()), **changes}
    content = {name: value for name, value in content.items() if name != "sha256" and value is not REMOVED}
    checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**content, "sha256": checksum}))


REMOVED = object()
RECORD = {"size": 1, "sha256": "0" * 64}
FORGED = [
    *({name: REMOVED} for name in ("format", "version", "command", "is_finished", "replaces", "files")),
    *({"version": version} for version in (None, "1", 0, True, 1.0, [])),
    *({"files": files} for files in ([], None, "config.json", {"config.json": 3}, {"config.json": []})),
    *({"files": {"config.json": {**RECORD, **change}}} for change in ({"size": "1"}, {"sha256": 5}, {"more": 1})),
    *({"files": {name: None}} for name in ("n" * 300, "", "..", ".lock", "a/b", "a*", "manifest.json", "bad\udcff")),
    {"colour": "red"},
    {"command": 3},
    {"is_finished": "yes"},
]


@pytest.mark.parametrize("changes", FORGED)
def test_a_forged_manifest_is_refused_by_every_command_and_nothing_is_moved(pyro_bnn, run, changes):  # noqa: F811
    (run / "mine.txt").write_text("mine")
    forged(run, **changes)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for command in (("weights", run), ("train", "digits", "--epochs", 1, "--hidden", 3, "--out", run, "--force")):
        code, out, err = pyro_bnn(*command)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "manifest.json is damaged" in err
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert [path.name for path in run.parent.iterdir()] == ["run"]


NESTED = ["[" * 100_000, '{"a":' * 100_000]


@pytest.mark.parametrize("name", ["config.json", "data.json", "history.json", "accuracy.json", "manifest.json"])
def test_deeply_nested_files_give_one_line(pyro_bnn, run, name):  # noqa: F811
    for text in NESTED:
        (run / name).write_text(text)
        if name != "manifest.json":
            with updating(run, command="train") as folder:
                folder.write_text(name, text)
        if name == "accuracy.json":
            with pytest.raises(ValueError, match=r"accuracy\.json does not fit this version"):
                runs.load_accuracy(run)
            continue
        code, out, err = pyro_bnn("weights", run)
        assert (code in (1, 2), out, err.count("\n")) == (True, "", 1)
        assert name in err


def test_a_deeply_nested_lock_is_no_obstacle(pyro_bnn, run):  # noqa: F811
    (run.parent / ".run.lock").write_text(NESTED[0])
    assert pyro_bnn("weights", run)[0] == 0


def test_a_folder_without_a_run_says_so(pyro_bnn, tmp_path):  # noqa: F811
    (tmp_path / "config.json").write_text("{}")
    for folder in (tmp_path, "/"):
        code, _, err = pyro_bnn("evaluate", folder)
        assert (code, "holds no training run: there is no" in err) == (2, True)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device", "posterior.safetensors"), MemoryError()], ids=["disk", "memory"]
)
def test_a_run_that_cannot_be_saved_leaves_the_earlier_one(pyro_bnn, run, monkeypatch, error):  # noqa: F811
    before = {path.name: path.read_bytes() for path in run.iterdir()}

    @contextmanager
    def full(folder, name):
        with new(folder, name) as path:
            yield path
            if name == runs.POSTERIOR:
                raise error

    new = Folder.new
    monkeypatch.setattr(Folder, "new", full)
    code, out, err = pyro_bnn("train", "digits", "--epochs", 1, "--hidden", 4, "--out", run, "--force")
    assert (code, out) == (1, "")
    assert err == (
        "error: posterior.safetensors: no space left on device.\n"
        if error.args
        else "error: the memory is exhausted; make --hidden, --batch-size or --num-samples smaller.\n"
    )
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert sorted(path.name for path in run.parent.iterdir()) == [".run.part", "run"]  # with the checkpoint
    monkeypatch.undo()
    assert pyro_bnn("train", "--resume", run)[0] == 0
    assert [path.name for path in run.parent.iterdir()] == ["run"]


# --- images -----------------------------------------------------------------------------------------------------------

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TRAIN, TRAIN_LABELS, TEST, TEST_LABELS = NAMES


def idx(values, *, code=8):
    header = bytes([0, 0, code, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + values.tobytes()


def write_images(root, *, seed=0, num_train=40, num_test=20, size=(5, 4)):
    """A small data set in the files of MNIST."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    for images, labels, number in ((TRAIN, TRAIN_LABELS, num_train), (TEST, TEST_LABELS, num_test)):
        (raw / images).write_bytes(idx(generator.integers(0, 256, (number, *size), np.uint8)))
        (raw / labels).write_bytes(idx((np.arange(number) % 10).astype(np.uint8)))
    return raw


def test_small_idx_files_are_read_packed_or_not(tmp_path):
    raw = write_images(tmp_path)
    plain = load_images("mnist", root=tmp_path)
    assert plain.x_train.shape == (40, 5, 4)
    assert plain.y_test.tolist() == [*range(10), *range(10)]
    assert torch.equal(
        (plain.x_test[3] * 255).round().byte().flatten(), torch.tensor([*(raw / TEST).read_bytes()[76:96]])
    )
    for name in NAMES:
        (raw / f"{name}.gz").write_bytes(gzip.compress((raw / name).read_bytes()))
        (raw / name).unlink()
    packed = load_images("mnist", root=tmp_path)
    assert torch.equal(packed.x_train, plain.x_train)
    assert torch.equal(packed.y_test, plain.y_test)


def change(name, function):
    def do(raw):
        (raw / name).write_bytes(function((raw / name).read_bytes()))

    return do


def pack(name, function):
    def do(raw):
        (raw / f"{name}.gz").write_bytes(function(gzip.compress((raw / name).read_bytes())))
        (raw / name).unlink()

    return do


def swap(raw):
    content = [(raw / name).read_bytes() for name in (TRAIN, TRAIN_LABELS)]
    (raw / TRAIN).write_bytes(content[1])
    (raw / TRAIN_LABELS).write_bytes(content[0])


def folder_in_the_place_of_a_file(raw):
    (raw / TEST).unlink()
    (raw / TEST).mkdir()


LONG = idx(np.zeros((41,), np.uint8))
DAMAGES = [
    (change(TRAIN, lambda old: b""), f"{TRAIN} is damaged: it must begin with 00 00 08 03 and 3 sizes"),
    (change(TEST, lambda old: b"\x1f\x8b\x08\x00" + old), "but it begins with 1f 8b 08 00"),
    (change(TEST, lambda old: old[:2]), "but it begins with 00 00;"),
    (change(TRAIN, lambda old: old[:2] + b"\x0d" + old[3:]), "but it begins with 00 00 0d 03"),
    (change(TRAIN, lambda old: old[:7]), "but it begins with 00 00 08 03 00 00 00;"),
    (change(TRAIN, lambda old: old[:-1]), "40 x 5 x 4 values need 800 bytes, but there are 799"),
    (change(TEST_LABELS, lambda old: old + b"0"), f"{TEST_LABELS} is damaged: 20 values need 20 bytes"),
    (change(TEST, lambda old: idx(np.zeros((0, 5, 4), np.uint8))), "is empty: 0 x 5 x 4"),
    (swap, f"{TRAIN} is damaged: it must begin with 00 00 08 03 and 3 sizes (images have 3 and labels 1)"),
    (change(TRAIN_LABELS, lambda old: LONG), f"{TRAIN} has 40 images, but "),
    (change(TEST_LABELS, lambda old: old[:-1] + b"\x0a"), "labels are from 0 to 9, but it has 10"),
    (change(TEST, lambda old: idx(np.zeros((20, 5, 5), np.uint8))), f"{TEST} has images of 5 x 5 pixels, but "),
    (pack(TRAIN, lambda new: new[:-20]), f"{TRAIN}.gz is damaged: it cannot be unpacked"),
    (pack(TRAIN, lambda new: b"PK" + new[2:]), f"{TRAIN}.gz is damaged: it cannot be unpacked"),
    (pack(TRAIN, lambda new: new[:-8] + b"12345678"), f"{TRAIN}.gz is damaged: it cannot be unpacked"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damaged_image_files_are_named(pyro_bnn, tmp_path, damage, message):  # noqa: F811
    damage(write_images(tmp_path / "data"))
    code, out, err = pyro_bnn("train", "mnist", "--data", tmp_path / "data", "--out", tmp_path / "run")
    assert (code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_missing_image_files_are_named(tmp_path):
    raw = write_images(tmp_path)
    (raw / TEST).unlink()
    with pytest.raises(MissingDataError, match=rf"MNIST was not found in {raw} \({TEST}\); pass its folder"):
        load_images("mnist", root=tmp_path)
    (raw / TEST).mkdir()
    with pytest.raises(MissingDataError, match=TEST):
        load_images("mnist", root=tmp_path)


def test_only_missing_image_files_are_downloaded(tmp_path, monkeypatch):
    asked = []

    def download(folder, *, download):
        asked.append((folder, download))
        if len(asked) > 1:
            raise RuntimeError("no network")
        write_images(folder)

    monkeypatch.setattr("torchvision.datasets.MNIST", download)
    for _ in range(2):  # the second time, all files are there
        assert len(load_images("mnist", root=tmp_path, download=True).x_train) == 40
    assert asked == [(tmp_path, True)]
    with pytest.raises(MissingDataError, match=r"MNIST could not be downloaded into .*: no network"):
        load_images("mnist", root=tmp_path / "other", download=True)


@pytest.fixture
def small(pyro_bnn, tmp_path):  # noqa: F811
    """A run on a small data set in the files of MNIST, and these."""
    write_images(tmp_path / "data")
    options = ("--hidden", 3, "--epochs", 1, "--inputs", "raw")
    code, _, err = pyro_bnn("train", "mnist", *options, "--data", tmp_path / "data", "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    return tmp_path / "run"


@pytest.mark.parametrize("command", ["evaluate", "prune", "weights"])
def test_a_run_is_not_judged_by_other_images_than_it_was_trained_on(pyro_bnn, small, tmp_path, command):  # noqa: F811
    write_images(tmp_path / "other", seed=1)
    code, out, err = pyro_bnn(
        command, small, "--data", tmp_path / "other", *(["--ood", "digits"] * (command == "evaluate"))
    )
    assert (code, out) == (2, "")
    assert "are not those that" in err or "images are (8, 8)" in err


def test_a_run_is_not_judged_by_its_training_images(pyro_bnn, small, tmp_path):  # noqa: F811
    raw = tmp_path / "data" / "MNIST" / "raw"
    fashion = tmp_path / "data" / "FashionMNIST"
    shutil.copytree(raw.parent, fashion)
    code, _, err = pyro_bnn("evaluate", small, "--data", tmp_path / "data", "--ood", "mnist")
    assert (code, "--ood must be another data set than mnist, on which the run was trained" in err) == (2, True)
    for name, other in ((TEST, TRAIN), (TEST_LABELS, TRAIN_LABELS)):
        shutil.copy(raw / other, fashion / "raw" / name)
    code, _, err = pyro_bnn("evaluate", small, "--data", tmp_path / "data")
    assert (code, "40 of the 40 unknown images are also training images" in err) == (2, True)
    for name, other in ((TEST, TRAIN), (TEST_LABELS, TRAIN_LABELS)):
        shutil.copy(raw / other, raw / name)
    for command in ("evaluate", "prune"):
        code, _, err = pyro_bnn(command, small, "--data", tmp_path / "data")
        assert (code, "40 of the 40 test images are also training images" in err) == (2, True)
    assert not (small / "metrics.json").exists()


def test_a_run_is_evaluated_on_its_own_images(pyro_bnn, small, tmp_path):  # noqa: F811
    write_images(tmp_path / "other", seed=1)
    shutil.copytree(tmp_path / "other" / "MNIST", tmp_path / "data" / "FashionMNIST")
    code, out, err = pyro_bnn("evaluate", small, "--data", tmp_path / "data", "--num-samples", 2)
    assert (code, err) == (0, "")
    assert "against 20 unknown images" in out
    assert {"metrics.json", "votes.png"} <= Manifest.read(small).files.keys()
    assert sorted(path.name for path in small.iterdir()) == sorted([*Manifest.read(small).files, "manifest.json"])


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("data.txt", "1 2 3\n4 five 6\n", r"data\.txt is damaged: could not convert string 'five'"),
        ("data.txt", "1 2 3\n4 5\n", r"data\.txt is damaged: the number of columns changed"),
        ("data.txt", "", r"data\.txt is damaged: .*no data"),
        ("data.txt", "1 2 nan\n" * 12, r"data\.txt is damaged: it has numbers that are not finite"),
        ("index_train_0.txt", "0\n1\n99\n", "damaged: rows must be whole numbers from 0 to 11, each at most once"),
        ("index_train_0.txt", "0\n1\n-1\n", "damaged: rows must be"),
        ("index_train_0.txt", "0\n1\n3\n", "damaged: rows must be"),  # row 3 is in the test set
        ("index_features.txt", "0.5\n", "damaged: columns must be whole numbers from 0 to 2"),
        ("index_target.txt", "1\n", "damaged: columns must be"),  # the first input
    ],
)
def test_damaged_tables_are_named(tmp_path, file, text, message):
    write_uci(tmp_path, "yacht")
    (tmp_path / "uci" / "yacht" / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_uci("yacht", 0, root=tmp_path)
