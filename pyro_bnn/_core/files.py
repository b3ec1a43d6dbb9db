"""Files of states, which are written completely or not at all, have a checksum, and contain no code.

A state consists of None, numbers, texts and tensors, in lists, tuples and dictionaries. The file has the safetensors
format. Its header holds the values other than tensors as JSON, and a SHA-256 checksum of all values.
"""

import glob
import hashlib
import json
import os
import platform
import re
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

FORMAT = "pyro_bnn"
VERSION = 1  # version of the format; later ones are refused
MANY = 16  # lists of at least this many floats are stored as tensors


class DamagedFileError(ValueError):
    """Raised if the checksum or the structure of a file is wrong."""


def write_atomically(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file completely or not at all. A symbolic link stays, and its target is replaced."""
    target = Path(path).resolve()
    _remove_parts_of_dead_processes(target)
    part = target.with_name(_part_of(target, os.getpid(), str(threading.get_ident())))
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            part.chmod(target.stat().st_mode & 0o777)
        part.replace(target)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(target)  # if the disk is full, the system's error names no file
        raise
    synchronise(target.parent)


def check_name(path: str | Path) -> None:
    """Raise unless a path can be encoded in UTF-8, which safetensors needs."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"the name of a file or folder must be in UTF-8, got {os.fsencode(path)!r}; rename it."
        ) from None


def _part_of(target: Path, process: int, thread: str) -> str:
    """Return the name of a temporary file, made from numbers that identify the machine, the process and the thread."""
    machine = zlib.crc32(platform.node().encode())
    return f".{target.name}.{machine:x}-{process}-{thread}.part"


def _remove_parts_of_dead_processes(target: Path) -> None:
    """Remove the temporary files that dead processes of this machine have left."""
    before, after = _part_of(target, 0, "*").split("-0-")
    for part in target.parent.glob(f"{glob.escape(before)}-*-{after}"):
        process = part.name[len(before) + 1 :].partition("-")[0]
        if process.isdecimal() and not _is_alive(int(process)):
            part.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # on Windows, signal 0 would end the process
        return True
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def synchronise(folder: Path) -> None:
    """Make renamed files in a folder survive a power failure. On Windows, nothing is done."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_state(path: str | Path, kind: str, state: Mapping[str, Any]) -> None:
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encoded(state, tensors, "state"))
    metadata = {"format": FORMAT, "version": str(VERSION), "kind": kind, "state": text}
    metadata["sha256"] = _digest(metadata, tensors)
    content = save(tensors, metadata)
    write_atomically(path, lambda file: file.write(content))


def read_state(path: str | Path, kind: str) -> dict[str, Any]:
    """Read a state from :func:`write_state` onto the CPU, without running code."""
    check_name(path)
    foreign = f"{path} is no {kind} that pyro_bnn wrote; pass a {kind} that pyro_bnn wrote."
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}; pass a {kind} that pyro_bnn wrote.")
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
            digest = _digest(metadata, tensors)  # before copying, which changes booleans other than 0 and 1
            # Copies are aligned in memory, on which results depend.
            tensors = {name: value.clone() for name, value in tensors.items()}
    except (safetensors.SafetensorError, OSError, UnicodeDecodeError, ValueError, RuntimeError) as error:
        raise DamagedFileError(
            f"{path} is damaged, or is no {kind} that pyro_bnn wrote; make it again, or use a copy of it."
        ) from error
    if metadata.get("format") != FORMAT:
        raise DamagedFileError(foreign)
    if metadata.get("sha256") != digest:
        raise DamagedFileError(
            f"{path} is damaged: its checksum does not fit its content; make it again, or use a copy of it."
        )
    if not re.fullmatch("[0-9]{1,9}", metadata.get("version", "")) or "kind" not in metadata:
        raise DamagedFileError(foreign)
    if int(metadata["version"]) > VERSION:
        raise ValueError(
            f"{path} has version {metadata['version']} of the format, and this version of pyro_bnn reads up to "
            f"{VERSION}; install a later pyro_bnn."
        )
    if metadata["kind"] != kind:
        raise ValueError(f"{path} must be a {kind}, got a {metadata['kind']}; pass the other file.")
    try:
        state = _decoded(json.loads(metadata["state"]), tensors)
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(foreign) from error
    if not isinstance(state, dict):
        raise DamagedFileError(foreign)
    return state


@contextmanager
def understood(path: str | Path, kind: str) -> Iterator[None]:
    """In a `with` block, turn errors about the content of a file into a DamagedFileError."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise DamagedFileError(
            f"{path} is no {kind} that this version of pyro_bnn wrote; pass a {kind} that it wrote."
        ) from error


def raw_bytes(value: Tensor) -> memoryview:
    flat = value.detach().reshape(-1)
    if flat.stride(0) != 1:  # a tensor of one element may have any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data


def _digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key in sorted(metadata.keys() - {"sha256"}):
        _add(digest, f"{key}={metadata[key]}".encode())
    for name in sorted(tensors):
        value = tensors[name]
        _add(digest, f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(raw_bytes(value))
    return digest.hexdigest()


def _add(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little") + part)


def _encoded(value: object, tensors: dict[str, Tensor], where: str) -> Any:
    """Convert a value to data for JSON. Tensors are put into `tensors`, and the data have their keys instead."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return {"tensor": _stored(value, tensors)}
    if isinstance(value, list) and len(value) >= MANY and all(type(item) is float for item in value):
        return {"floats": _stored(torch.tensor(value, dtype=torch.float64), tensors)}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encoded(item, tensors, f"{where}[{index}]") for index, item in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = [[_encoded(k, tensors, where), _encoded(v, tensors, f"{where}[{k!r}]")] for k, v in value.items()]
        return {"counter" if isinstance(value, Counter) else "dict": pairs}
    raise ValueError(
        f"a file holds numbers, texts, tensors, lists, tuples and dictionaries only, but {where} is of type "
        f"{type(value).__name__}; turn it into one of these."
    )


def _stored(value: Tensor, tensors: dict[str, Tensor]) -> str:
    name = str(len(tensors))
    tensors[name] = value.detach().to("cpu", copy=True).contiguous()
    return name


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "floats":
        return tensors[content].tolist()
    if kind in ("dict", "counter"):  # `MultiStepLR` has a `Counter`
        pairs = {_decoded(key, tensors): _decoded(item, tensors) for key, item in content}
        return Counter(pairs) if kind == "counter" else pairs
    items = [_decoded(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
