"""An imitated accelerator for every machine: torch's `meta` device, with the tensors' values stored on the CPU.

A tensor on `meta` has shape, type, device and storage, but no values. :class:`Accelerator` is a dispatch mode that
keeps the values of each storage in a second one on the CPU, and computes every operation there. So whole programs run
on a device that is not the CPU, and give the numbers that they give on the CPU:

- an operation that mixes devices raises an error, also where the kernels of `meta` would let it pass;
- a read of a value, for which a program waits for a GPU, is answered and counted, and so is a copy to the device;
- a fused optimizer of torch runs unchanged.

The mode cannot show what a GPU computes, how fast it is, or what its kernels refuse. Tests marked `gpu` show this.
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import adam
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
CPU = torch.device("cpu")

aten = torch.ops.aten

COPIES = {aten._to_copy, aten.copy_}

INDEXING = {aten.index, aten.index_put_, aten._unsafe_index, aten._index_put_impl_}
"""Operations that copy indices on the CPU to the device, in CUDA too."""

CHECKS_ERRORS = {aten._linalg_check_errors, aten.linalg_cholesky, aten.linalg_inv, aten.linalg_solve, aten.linalg_eigh}
"""Operations of linear algebra that read whether they succeeded."""

TAKES_NUMBERS = {aten.fill_.Tensor, aten.masked_fill.Tensor, aten.masked_fill_.Tensor, aten.where.self}
"""Operations that take a number on the CPU as a tensor, in addition to those of single elements."""

IS_META = Tensor.is_meta.__get__  # type: ignore[attr-defined]

PACKAGE = Path(__file__).parent.parent / "pyro_bnn"


class WrongDeviceError(RuntimeError):
    """An operation got tensors, or a generator of random numbers, of different devices."""


class Accelerator(TorchDispatchMode):
    """A context in which tensors on `meta` have values.

    Attributes:
        reads: Number of waits for values, by the line of the package, or of a test, that caused them.
        transfers: Number of copies of tensors or numbers from the CPU to the device, for which a program waits too,
            except if the memory is pinned.
        scalars: Number of tensors of one number on the CPU that were used with tensors on the device. CUDA takes these
            as numbers, without a copy or a wait, so they are allowed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.transfers: Counter[str] = Counter()
        self.scalars: Counter[str] = Counter()
        self._storages: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Accelerator":
        self._stack.enter_context(_Functions(self))
        name = "_get_fused_kernels_supported_devices"
        supported = getattr(optimizers, name)
        for module in (optimizers, adam):  # before torch 2.5, each optimizer asks by itself
            if hasattr(module, name):
                self._stack.callback(setattr, module, name, supported)
                setattr(module, name, lambda: [*supported(), DEVICE.type])
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    @property
    def num_reads(self) -> int:
        """Number of reads so far."""
        return self.reads.total()

    @property
    def num_transfers(self) -> int:
        """Number of transfers so far."""
        return self.transfers.total()

    def reset(self) -> None:
        """Count from zero."""
        for counter in (self.reads, self.transfers, self.scalars):
            counter.clear()

    def values(self, tensor: Tensor) -> Tensor:
        """The values of a tensor on the device: a tensor on the CPU, in memory that all views of it share."""
        storage = tensor.untyped_storage()
        assert storage._cdata in self._storages, f"a tensor of shape {tuple(tensor.shape)} has come from outside"
        memory = self._storages[storage._cdata][1]
        return torch.empty(0, dtype=tensor.dtype).set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        device = _device_of(kwargs)
        if device != DEVICE and not any(map(_is_here, tensors)):
            return func(*args, **kwargs)
        if _needs_no_values(func):
            return func(*args, **kwargs)
        self._judge(func, args, kwargs, tensors)
        values, keywords = self._on_cpu(args), self._on_cpu(kwargs)
        if device is None:
            return self._returned(func, args, kwargs, func(*values, **keywords))
        result = func(*values, **{**keywords, "device": CPU})
        if device == DEVICE:
            return self._returned(func, args, kwargs, result)
        return result.clone()  # else it may be the device's own memory

    def _on_cpu(self, tree: Any) -> Any:
        return tree_map(lambda leaf: self.values(leaf) if _is_here(leaf) else leaf, tree)

    def _judge(self, func: Any, args: tuple, kwargs: Mapping[str, Any], tensors: list[Tensor]) -> None:
        """Count what makes a program wait; raise where CUDA would."""
        if func.overloadpacket in COPIES:
            self._judge_copy(args, kwargs)
            return
        if any(map(_is_here, tensors)) and _reads(func, args):
            self.reads[_place()] += 1
        generator = kwargs.get("generator")
        if generator is not None and generator.device != DEVICE:
            raise WrongDeviceError(f"{func} on {DEVICE} got a generator of {generator.device}")
        for tensor in tensors:
            if _is_here(tensor) or _device_of(kwargs) is not None:  # an example of a new tensor's shape
                continue
            if func.overloadpacket in INDEXING and not tensor.is_floating_point() and tensor is not args[0]:
                self.transfers[_place()] += 1
            elif tensor.dim() == 0 and _takes_numbers(func) and not (_writes(func) and tensor is args[0]):
                self.scalars[_place()] += 1
            else:
                raise WrongDeviceError(f"{func} got a tensor of shape {tuple(tensor.shape)} on {tensor.device}")

    def _judge_copy(self, args: tuple, kwargs: Mapping[str, Any]) -> None:
        is_in_place = len(args) > 1 and isinstance(args[1], Tensor)
        source = args[1] if is_in_place else args[0]
        target = args[0].device if is_in_place else _device_of(kwargs)
        if _is_here(source) and target not in (None, DEVICE):
            self.reads[_place()] += 1
        elif not _is_here(source):
            self.transfers[_place()] += 1

    def _returned(self, func: Any, args: tuple, kwargs: Mapping[str, Any], result: Any) -> Any:
        """What an operation returns on the device: arguments that it wrote to, and new tensors."""
        arguments, returns = func._schema.arguments, func._schema.returns
        given = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | dict(kwargs)
        written = {
            label: given[argument.name]
            for argument in arguments
            if argument.alias_info is not None and argument.name in given
            for label in argument.alias_info.before_set
        }
        results = list(result) if isinstance(result, tuple) else [result]
        for index, returned in enumerate(returns):
            if returned.alias_info is None:
                results[index] = tree_map(self._adopted, results[index])
            else:
                results[index] = written[next(iter(returned.alias_info.before_set))]
        return tuple(results) if isinstance(result, tuple) else results[0]

    def _adopted(self, value: Any) -> Any:
        """A new tensor on the device with the values of one on the CPU."""
        if not isinstance(value, Tensor):
            return value
        adopted = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=DEVICE)
        storage, memory = adopted.untyped_storage(), value.untyped_storage()
        if value.storage_offset() or memory.nbytes() < storage.nbytes():
            memory = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype).copy_(value).untyped_storage()
        if len(self._storages) % 1000 == 999:
            self._storages = {key: pair for key, pair in self._storages.items() if not pair[0].expired()}
        self._storages[storage._cdata] = StorageWeakRef(storage), memory
        return adopted


class _Functions(TorchFunctionMode):
    """Functions that torch runs without a dispatch: tensors from numbers, lists from tensors, and queries of memory."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == IS_META:
            return False  # the package refuses tensors without values, and these have some
        if func is torch.as_tensor and _is_here(args[0]):
            return args[0].to(**kwargs)
        if func in (torch.tensor, torch.as_tensor) and _device_of(kwargs) == DEVICE:
            return func(*args, **{**kwargs, "device": CPU}).to(DEVICE)
        if not (args and _is_here(args[0])):
            return func(*args, **kwargs)
        if func is Tensor.data_ptr:
            with _disable_current_modes():
                return self._accelerator.values(args[0]).data_ptr()
        if func is Tensor.new_tensor and _device_of(kwargs) in (None, DEVICE):
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs, "device": CPU}).to(DEVICE)
        if func is Tensor.tolist:
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


def _is_here(value: object) -> bool:
    return isinstance(value, Tensor) and value.device == DEVICE


def _device_of(kwargs: Mapping[str, Any]) -> torch.device | None:
    device = kwargs.get("device")
    return None if device is None else torch.device(device)


@functools.cache
def _needs_no_values(func: Any) -> bool:
    """Whether an operation only makes a view of an argument, or turns an argument into a view."""
    aliases = [returned.alias_info for returned in func._schema.returns]
    is_view = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    return is_view or torch.Tag.inplace_view in func.tags or func.overloadpacket is aten.set_


@functools.cache
def _writes(func: Any) -> bool:
    return any(argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments)


def _takes_numbers(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags or func in TAKES_NUMBERS


def _reads(func: Any, args: tuple) -> bool:
    """Whether a program waits for the values of an operation's arguments: its result, or its shape, needs them."""
    if func.overloadpacket in INDEXING:
        masks = [index for index in args[1] if _is_here(index) and index.dtype in (torch.bool, torch.uint8)]
        is_fill = len(args) > 2 and args[2].numel() == 1 and len(args[1]) == 1
        return bool(masks) and not is_fill
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return bool(tags & set(func.tags)) or func.overloadpacket in CHECKS_ERRORS


def _place() -> str:
    """The innermost line of the package on the stack; without one, the innermost line of a test."""
    frame: Any = sys._getframe(1)
    of_test = "elsewhere"
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parents:
            return f"{path.relative_to(PACKAGE)}:{frame.f_lineno}"
        if of_test == "elsewhere" and path.parent == Path(__file__).parent and path != Path(__file__):
            of_test = f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return of_test
