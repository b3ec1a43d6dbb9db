"""Networks by the name of a function, such as ``lenet.py:make`` or ``mypackage.nets:make``."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..._scope import eval_mode
from .specs import parts_of

__all__ = ["check_network", "make_network"]


def make_network(spec: str, *, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
    """The network that a function of the user returns.

    Args:
        spec: The function, as ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``. Modules are found in the current folder and
            where Python finds its own. The function gets `input_shape` and `num_outputs` by keyword, as far as it has
            arguments of these names.
        input_shape: Shape of one row of the inputs.
        num_outputs: Number of outputs that the likelihood needs.

    Raises:
        ValueError: If the function cannot be imported or called, or returns no module.
    """
    place, name = parts_of(spec)
    module = _imported(spec, place)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"--net {spec}: {place} has no function {name}.")
    offered = {"input_shape": tuple(input_shape), "num_outputs": num_outputs}
    arguments = _arguments(spec, function, offered)
    try:
        net = function(**arguments)
    except Exception as error:
        raise ValueError(f"--net {spec}: the function raised {_described(error)}.") from error
    if not isinstance(net, nn.Module):
        raise ValueError(f"--net {spec}: the function must return a torch.nn.Module, got {type(net).__name__}.")
    return net.to(torch.get_default_dtype())


def _imported(spec: str, place: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            path = Path(place)
            if not path.is_file():
                raise ValueError(f"--net {spec}: there is no file {path}.")
            with _found_in(path.resolve().parent):
                found = importlib.util.spec_from_file_location(path.stem, path)
                assert found is not None
                assert found.loader is not None
                module = importlib.util.module_from_spec(found)
                found.loader.exec_module(module)
                return module
        with _found_in(Path.cwd()):
            return importlib.import_module(place)
    except ValueError as error:
        if str(error).startswith("--net"):
            raise
        raise ValueError(f"--net {spec}: importing {place} raised {_described(error)}.") from error
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise ValueError(f"--net {spec}: importing {place} raised {_described(error)}.") from error


@contextmanager
def _found_in(folder: Path) -> Iterator[None]:
    """A context in which modules of a folder can be imported."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _arguments(spec: str, function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the offered arguments that a function takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        and (p.name not in offered or p.kind is p.POSITIONAL_ONLY)
    ]
    if needed:
        raise ValueError(
            f"--net {spec}: the function gets input_shape and num_outputs by keyword, and needs {', '.join(needed)} "
            "too; give those a default."
        )
    return {name: value for name, value in offered.items() if takes_all or name in by_name}


def check_network(spec: str, net: nn.Module, x: Tensor, num_outputs: int, reason: str) -> None:
    """Check that a network gives one row of outputs for each row of inputs.

    Args:
        spec: Name of its function.
        net: The network.
        x: Some inputs, shape (N, ...).
        num_outputs: Number of outputs that it must have.
        reason: What they are for, such as ``3 classes``.

    Raises:
        ValueError: If it cannot take the inputs, or its output has another shape.
    """
    try:
        with torch.no_grad(), eval_mode(net):
            output = net(x)
    except Exception as error:
        raise ValueError(
            f"--net {spec}: the network cannot take inputs of shape {tuple(x.shape)}: {_described(error)}."
        ) from error
    expected = (len(x), num_outputs)
    if not isinstance(output, Tensor) or tuple(output.shape) != expected:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"--net {spec}: the network must give outputs of shape {expected} for {reason}, got {got}; let the "
            "function take num_outputs."
        )


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")
