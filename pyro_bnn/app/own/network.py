"""Networks that a function of the user makes, such as ``lenet.py:make`` or ``mypackage.nets:make``."""

import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.scope import eval_mode
from ..specs import parts_of


def make_network(spec: str, *, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
    """Call the user's function that `spec` names, with the keywords that it takes, and return its network."""
    place, name = parts_of(spec)
    if place.endswith(".py") and not Path(place).is_file():
        raise ValueError(f"--net {spec}: there is no file {place}; correct the path.")
    path = Path(place).resolve() if place.endswith(".py") else None
    with (
        own_code(spec, otherwise=f"importing {place} raised "),
        _found_in(path.parent if path is not None else Path.cwd()),
    ):
        module = importlib.import_module(place) if path is None else _executed(path)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"--net {spec}: {place} has no function {name}.")
    arguments = _arguments(spec, function, {"input_shape": tuple(input_shape), "num_outputs": num_outputs})
    with own_code(spec, otherwise="the function raised "):
        net = function(**arguments)
    if not isinstance(net, nn.Module):
        raise ValueError(f"--net {spec}: the function must return a torch.nn.Module, got {type(net).__name__}.")
    return net.to(torch.get_default_dtype())


def _executed(path: Path) -> ModuleType:
    """Run a file as a module. The module gets a name, since dataclasses and pickles look up modules by name."""
    name = f"pyro-bnn --net {path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class OwnCodeError(ValueError):
    """Raised for an error in the user's code. The message has the file and the line of the error."""


@contextmanager
def own_code(spec: str, *, doing: str = "", otherwise: str = "") -> Iterator[None]:
    """Run the user's code in a `with` block, and turn its error into an `OwnCodeError` that shows the user's line.

    If a line of the user's code raised the error, the message ends with `doing`. For another error, the message
    begins with `otherwise`. If `otherwise` is empty, the other error is raised unchanged. If `spec` is ``mlp``,
    no error comes from the user's code, so `doing` is not used.
    """
    here = Path.cwd()
    try:
        yield
    except (OwnCodeError, MemoryError, torch.cuda.OutOfMemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's code may raise anything, such as `SystemExit`
        line = None if spec == "mlp" else _own_line(error)
        said = f"{type(error).__name__}: {_text(error)}".rstrip(".: ")
        if line is None and not otherwise:
            raise
        what = f"{otherwise}{said}" if line is None else f"{line}, raised {said}{doing}"
        raise OwnCodeError(f"--net {spec}: {what}.") from error
    finally:
        os.chdir(here)


def _text(error: BaseException) -> str:
    """Return the text of an error. `str(error)` may fail if the user's code defines the class of the error."""
    try:
        return str(error)
    except Exception as other:
        return f"its text cannot be shown ({type(other).__name__})"


def _own_line(error: BaseException) -> str | None:
    """Return the last line of the user's code in a traceback; None if a line of this library comes after it."""
    paths = sysconfig.get_paths()
    package = str(Path(__file__).parents[2])
    others = (paths["stdlib"], paths["purelib"], paths["platlib"], "<")
    line = None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(package):
            line = None
        elif not frame.filename.startswith(others):
            line = f"{Path(frame.filename).name}, line {frame.lineno}, `{frame.line}`"
    return line


@contextmanager
def _found_in(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _arguments(spec: str, function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}
    kinds = {name: part.kind for name, part in signature.parameters.items()}
    takes_all = inspect.Parameter.VAR_KEYWORD in kinds.values()
    by_name = {name for name, kind in kinds.items() if kind in (kind.POSITIONAL_OR_KEYWORD, kind.KEYWORD_ONLY)}
    taken = {name: value for name, value in offered.items() if takes_all or name in by_name}
    try:
        signature.bind(**taken)
    except TypeError as error:
        raise ValueError(
            f"--net {spec}: the function gets input_shape and num_outputs by keyword, but is {error}; give other "
            "arguments a default."
        ) from error
    return taken


def check_network(spec: str, net: nn.Module, x: Tensor, num_outputs: int, reason: str) -> None:
    """Raise unless a network returns `num_outputs` outputs for each row.

    The error message contains the text `reason`, which says what the outputs are for, such as "3 classes".
    """
    shape = tuple(x.shape)
    doing, otherwise = f" on inputs of shape {shape}", f"the network cannot take inputs of shape {shape}: "
    with own_code(spec, doing=doing, otherwise=otherwise), torch.no_grad(), eval_mode(net):
        output = net(x)
    expected = (len(x), num_outputs)
    if not isinstance(output, Tensor) or tuple(output.shape) != expected:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"--net {spec}: the network must give outputs of shape {expected} for {reason}, got {got}; let the "
            "function take num_outputs."
        )
