"""An accelerator that every machine has: torch's `meta` device, with the values of its tensors kept beside them.

A tensor on `meta` has shape, type, device and storage, but no values. :class:`Accelerator` is a dispatch mode that keeps
the values of each storage in a storage on the CPU, and computes every operation there. So whole programs run, with the
numbers that they have on the CPU, on a device that is not the CPU:

- an operation that mixes devices raises, as on a GPU, also where the kernels of `meta` would let it pass;
- a read of a value, for which a program waits for a GPU, is answered and counted, and so is a copy to the device;
- a fused optimizer of torch runs as it is.

It cannot show what a GPU computes, how fast, or what its kernels refuse: that is for the tests marked `gpu`.
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
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")

aten = torch.ops.aten

COPIES = {aten._to_copy, aten.copy_, aten._copy_from}

MAY_TAKE_INDICES = {aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_, aten._unsafe_index}
"""Operations that copy indices on the CPU to the device of the values, in CUDA too."""

CHECKS_ERRORS = {aten._linalg_check_errors, aten.linalg_cholesky, aten.linalg_inv, aten.linalg_solve, aten.linalg_eigh}
"""Operations of linear algebra that read whether they succeeded."""

IS_META = Tensor.is_meta.__get__  # type: ignore[attr-defined]

PACKAGE = Path(__file__).parent.parent / "pyro_bnn"


class WrongDeviceError(RuntimeError):
    """An operation got tensors, or a generator of random numbers, of different devices."""


class Accelerator(TorchDispatchMode):
    """A context in which tensors on `meta` have values.

    Attributes:
        reads: Number of waits for a value, by the line of the package, or of a test, that caused them.
        transfers: Number of copies of a tensor, list or number on the CPU to the device; a program waits for these too.
        scalars: Number of tensors of one number on the CPU that were used with tensors on the device. CUDA takes these
            as numbers, without a copy or a wait.
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
        self._supported = optimizers._get_fused_kernels_supported_devices
        optimizers._get_fused_kernels_supported_devices = lambda: [*self._supported(), DEVICE.type]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        optimizers._get_fused_kernels_supported_devices = self._supported
        self._stack.close()

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of reads and of transfers so far."""
        return self.reads.total(), self.transfers.total()

    def reset(self) -> None:
        """Count from zero."""
        for counter in (self.reads, self.transfers, self.scalars):
            counter.clear()

    def values(self, tensor: Tensor) -> Tensor:
        """The values of a tensor on the device: a tensor on the CPU that shares memory with all views of it."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            raise AssertionError(f"a tensor of shape {tuple(tensor.shape)} came to the device unseen")
        memory = self._storages[storage._cdata][1]
        offset = tensor.storage_offset()
        return torch.empty(0, dtype=tensor.dtype).set_(memory, offset, tensor.size(), tensor.stride())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        if not any(map(_is_here, tensors)) and _device_of(kwargs) != DEVICE:
            return func(*args, **kwargs)
        if _makes_view(func):
            return func(*args, **kwargs)
        self._judge(func, args, kwargs, tensors)
        on_cpu = functools.partial(tree_map, lambda leaf: self.values(leaf) if _is_here(leaf) else leaf)
        keywords = on_cpu(kwargs)
        target = _device_of(kwargs)
        if target is not None:
            keywords["device"] = torch.device("cpu")
        result = func(*on_cpu(args), **keywords)
        if target is not None and target != DEVICE:
            return result.clone()  # never the memory of the device itself
        return self._returned(func, args, kwargs, result)

    def _judge(self, func: Any, args: tuple, kwargs: Mapping[str, Any], tensors: list[Tensor]) -> None:
        """Count what makes a program wait; raise where CUDA would."""
        kind = func.overloadpacket
        if kind in COPIES:
            self._judge_copy(args, kwargs)
            return
        if _reads(func, args) and any(map(_is_here, tensors)):
            self.reads[_place()] += 1
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != DEVICE.type:
            raise WrongDeviceError(f"{func} on {DEVICE} got a generator of {generator.device.type}")
        for tensor in tensors:
            if _is_here(tensor) or func is aten._fused_adam_.default:
                continue
            if kind in MAY_TAKE_INDICES and not tensor.is_floating_point() and tensor is not args[0]:
                self.transfers[_place()] += 1
            elif tensor.dim() == 0 and tensor is not args[0] and _takes_numbers(func):
                self.scalars[_place()] += 1
            elif tensor.dim() == 0 and torch.Tag.pointwise in func.tags and not _writes(func):
                self.scalars[_place()] += 1
            else:
                raise WrongDeviceError(f"{func} got tensors on {DEVICE} and on cpu, the latter of {tuple(tensor.shape)}")

    def _judge_copy(self, args: tuple, kwargs: Mapping[str, Any]) -> None:
        if len(args) > 1 and isinstance(args[1], Tensor):
            target, source = args[0].device, args[1].device
        else:
            source = args[0].device
            target = _device_of(kwargs) or source
        if source == DEVICE and target != DEVICE:
            self.reads[_place()] += 1
        elif source != DEVICE and target == DEVICE:
            self.transfers[_place()] += 1

    def _returned(self, func: Any, args: tuple, kwargs: Mapping[str, Any], result: Any) -> Any:
        """What an operation returns on the device: arguments that it wrote to, and new tensors."""
        schema = func._schema
        given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | dict(kwargs)
        written = {
            label: given[argument.name]
            for argument in schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
            for label in argument.alias_info.before_set
        }
        results = list(result) if isinstance(result, tuple) else [result]
        for index, returned in enumerate(schema.returns):
            if returned.alias_info is not None:
                results[index] = written[next(iter(returned.alias_info.before_set))]
            else:
                results[index] = tree_map(self._adopted, results[index])
        for argument in schema.arguments:  # `out=` may have got another shape
            if argument.alias_info is not None and argument.is_out and _is_here(given.get(argument.name)):
                self._require_room(given[argument.name])
        return tuple(results) if isinstance(result, tuple) else results[0]

    def _require_room(self, out: Tensor) -> None:
        assert self.values(out).shape == out.shape

    def _adopted(self, value: Any) -> Any:
        """A new tensor on the device with the values of one on the CPU."""
        if not isinstance(value, Tensor):
            return value
        adopted = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=DEVICE)
        if value.storage_offset() or value.untyped_storage().nbytes() < adopted.untyped_storage().nbytes():
            value = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype).copy_(value)
        self._keep(adopted, value)
        return adopted

    def _keep(self, tensor: Tensor, values: Tensor) -> None:
        storage = tensor.untyped_storage()
        if len(self._storages) % 1000 == 999:
            self._storages = {key: pair for key, pair in self._storages.items() if not pair[0].expired()}
        self._storages[storage._cdata] = StorageWeakRef(storage), values.untyped_storage()


class _Functions(TorchFunctionMode):
    """What torch does without a dispatch: numbers to tensors, and questions about memory and lists of values."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == IS_META:
            return False  # it has values
        if func is Tensor.data_ptr and _is_here(args[0]):
            with torch.utils._python_dispatch._disable_current_modes():
                return self._accelerator.values(args[0]).data_ptr()
        if func in (torch.tensor, torch.as_tensor) and _device_of(kwargs) == DEVICE:
            return func(*args, **{**kwargs, "device": None}).to(DEVICE)
        if func is Tensor.new_tensor and _device_of(kwargs) in (None, DEVICE) and _is_here(args[0]):
            dtype = kwargs.pop("dtype", None) or args[0].dtype
            return torch.tensor(*args[1:], **kwargs, dtype=dtype).to(DEVICE)
        if func is Tensor.tolist and _is_here(args[0]):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


def _is_here(value: object) -> bool:
    return isinstance(value, Tensor) and value.device == DEVICE


def _device_of(kwargs: Mapping[str, Any]) -> torch.device | None:
    device = kwargs.get("device")
    return None if device is None else torch.device(device)


@functools.cache
def _makes_view(func: Any) -> bool:
    """Whether an operation touches no values: its result has the memory of an argument."""
    returns = func._schema.returns
    aliases = [r.alias_info is not None and not r.alias_info.is_write for r in returns]
    is_view = bool(aliases) and all(aliases)
    return is_view or torch.Tag.inplace_view in func.tags or func.overloadpacket is aten.set_


@functools.cache
def _writes(func: Any) -> bool:
    return any(argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments)


def _takes_numbers(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags or func in (aten.fill_.Tensor, aten.masked_fill.Tensor, aten.where.self)


def _reads(func: Any, args: tuple) -> bool:
    """Whether an operation ends only when the values of its arguments are known to the program."""
    kind = func.overloadpacket
    if kind in MAY_TAKE_INDICES:
        by_value = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8) and _is_here(i)]
        fills = kind is not aten.index and len(args) > 2 and args[2].numel() == 1 and len(args[1]) == 1
        return bool(by_value) and not fills
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return bool(tags & set(func.tags)) or kind in CHECKS_ERRORS


def _place() -> str:
    """The innermost line of the package on the stack, or if there is none that of a test."""
    frame: Any = sys._getframe(1)
    of_test = None
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parents:
            return f"{path.relative_to(PACKAGE)}:{frame.f_lineno}"
        if of_test is None and path.parent == Path(__file__).parent and path.name != Path(__file__).name:
            of_test = f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return of_test or "elsewhere"
