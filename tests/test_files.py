"""Files appear whole or not at all, and a damaged file is never accepted."""

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pyro_bnn._core import files as _files
from pyro_bnn._core.files import DamagedFileError, read_state, write_atomically, write_state

STATE = {
    "numbers": [1, 2.5, True, None, "text", float("inf")],
    "losses": [float(value) / 7 for value in range(50)],
    "pair": (1, torch.arange(3)),
    "by number": {0: {"step": torch.tensor(2.0)}, 1: {}},
    "half": torch.randn(3, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
    "mask": torch.tensor([True, False]),
    "empty": torch.empty(0, 2),
    "view": torch.arange(6.0).view(2, 3).mT,
}


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert a == b


def test_a_state_comes_back_to_the_bit_with_its_types(tmp_path):
    write_state(tmp_path / "file", "fit", STATE)
    assert_same(read_state(tmp_path / "file", "fit"), STATE)


def test_every_flipped_bit_is_found(tmp_path):
    write_state(tmp_path / "file", "fit", STATE)
    content = (tmp_path / "file").read_bytes()
    taken = []
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            read_state(tmp_path / "damaged", "fit")
            taken.append(position)
        except DamagedFileError:
            pass
    assert taken == []


def test_a_truncated_file_is_found(tmp_path):
    write_state(tmp_path / "file", "fit", STATE)
    content = (tmp_path / "file").read_bytes()
    for length in (0, 1, 8, 100, len(content) - 1):
        (tmp_path / "damaged").write_bytes(content[:length])
        with pytest.raises(DamagedFileError, match="damaged"):
            read_state(tmp_path / "damaged", "fit")


def test_other_files_and_kinds_are_refused(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "pickle")
    with pytest.raises(DamagedFileError, match="no fit that pyro_bnn wrote"):
        read_state(tmp_path / "pickle", "fit")
    write_state(tmp_path / "file", "posterior", {})
    with pytest.raises(ValueError, match="must be a fit, got a posterior"):
        read_state(tmp_path / "file", "fit")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_state(tmp_path / "nothing", "fit")


def test_a_later_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "VERSION", 2)
    write_state(tmp_path / "file", "fit", {})
    monkeypatch.undo()
    with pytest.raises(ValueError, match="install a later pyro_bnn"):
        read_state(tmp_path / "file", "fit")


def test_what_is_not_plain_data_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"state\['a'\]\[1\] is of type set"):
        write_state(tmp_path / "file", "fit", {"a": [1, {2}]})
    assert not (tmp_path / "file").exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"good")

    def fail(file):
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"good"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path):
    def fail(file):
        raise OSError(errno.ENOSPC, "No space left on device")  # as the system does, which names no file

    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"):
        write_atomically(tmp_path / "file", fail)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not let such a file be")
def test_a_file_whose_name_is_not_in_utf8_is_not_called_damaged(tmp_path):
    write_state(tmp_path / "file", "fit", STATE)
    path = tmp_path / os.fsdecode(b"bad\xff")
    (tmp_path / "file").rename(path)
    with pytest.raises(ValueError, match="must be in UTF-8") as error:
        read_state(path, "fit")
    assert not isinstance(error.value, DamagedFileError)


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomically(tmp_path / "link", lambda file: file.write(b"new"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_permissions_are_those_of_other_new_files(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "file", lambda file: file.write(b""))
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    code = "import os, signal, sys; from pyro_bnn._core.files import write_atomically; "
    code += "write_atomically(sys.argv[1], lambda file: os.kill(os.getpid(), signal.SIGKILL))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "file")], check=False)
    assert len(os.listdir(tmp_path)) == 1  # a part

    def write_another(file):
        write_atomically(tmp_path / "file", lambda _: None)  # from another thread, in the middle
        file.write(b"whole")

    with ThreadPoolExecutor() as pool:
        write_atomically(tmp_path / "file", lambda file: pool.submit(write_another, file).result())
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"whole"


@pytest.mark.parametrize(
    "make", [lambda: torch.zeros(3, 5)[:1, :1], lambda: torch.zeros(4, 2)[:, 0], lambda: torch.ones(())]
)
def test_tensors_with_any_strides_are_written(tmp_path, make):
    write_state(tmp_path / "file", "test", {"value": make()})
    assert torch.equal(read_state(tmp_path / "file", "test")["value"], make())
