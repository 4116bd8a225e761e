"""`GhostMode`: the dispatch mode that runs every op on ghosts by its meta kernel and tells a listener about it.

In: aten ops below autograd and autocast, with ghosts, meta or CPU tensors among the arguments.
Out: ghosts for everything that would live on the GPU. Ops that touch only CPU tensors run as they are. A tensor that
wraps others (DTensor) takes its ops apart itself, and the ops on what it wraps come here.
The listener sees each op once, in program order, after it ran; what it sees is what the GPU's dispatcher would see.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from trainfit import torch_compat
from trainfit.ghost import collectives
from trainfit.ghost.answers import answer_scalar, are_unknown_equal, guessed_number
from trainfit.ghost.formulas import ADDING_NODES, IN_PLACE, WRITES_IN_PLACE
from trainfit.ghost.kernels import GHOST_KERNELS
from trainfit.ghost.shapes import Shapes
from trainfit.ghost.shards import on_shards
from trainfit.ghost.streams import Streams
from trainfit.ghost.tensor import META, Ghost, inside_kernel
from trainfit.ghost.values import follow, is_known, known_value, learn

aten = torch.ops.aten
ANY_OPS = frozenset({aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default})
PRODUCTS = frozenset({aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default})
COMPARISONS = frozenset({aten.equal.default, aten.allclose.default})
OpListener = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
ResizeListener = Callable[[torch.UntypedStorage], None]
WaitListener = Callable[[], None]
"""Told when the CPU waits for the GPU: it asks for a value, or copies from the host."""
HostListener = Callable[[int], None]
"""Told how many elements an op on tensors of the host has written."""

LARGEST_HOST_COPY = 2**20
"""Elements up to which a copy to the host is filled; memory that nobody writes or reads takes no room."""


class GhostMode(torch_compat.DispatchMode):
    """One instance per ghost context; the listeners may be set while a trace is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.listener: OpListener | None = None
        self.resize_listener: ResizeListener | None = None
        self.wait_listener: WaitListener | None = None
        self.host_listener: HostListener | None = None
        self.streams = Streams()
        self._shapes = Shapes()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch_compat.is_fake_mode_on():
            return func(*args, **(kwargs or {}))  # somebody asks for shapes only (DTensor does so of whole tensors)
        if any(kind is not torch.Tensor and not issubclass(kind, Ghost) for kind in types):
            with self:
                done = on_shards(func, args, kwargs or {})
            return NotImplemented if done is None else done[0]
        kwargs = dict(kwargs) if kwargs else {}
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = None  # pinned memory is the host's, and of no GPU that is not there
        device = kwargs.get("device")
        if device is not None:
            device = torch.device(device)
            if device.type == "cuda":
                kwargs["device"] = META
            elif device.type != "meta":
                return self._leave_gpu(args, kwargs) if _holds_ghost(args) else self._on_host(func, args, kwargs)
        elif not _holds_ghost(args) and not _holds_ghost(tuple(kwargs.values())):
            return self._on_host(func, args, kwargs)
        if func is aten._local_scalar_dense.default:
            self._wait()
            return answer_scalar(args[0])
        if func in COMPARISONS:
            self._wait()
            return _compare(func, args, kwargs)
        if func is aten.copy_.default and args[0].is_cpu:
            return args[0].copy_(self._leave_gpu(args[1:], {"device": torch.device("cpu")}))
        if func.namespace in collectives.NAMESPACES:
            return self._communicate(func, args, kwargs)
        if func is aten._to_copy.default and not _holds_ghost(args):
            return self._enter_gpu(func, args, kwargs)
        if device is None:  # else the tensors only say what is to be made there
            _refuse_mixed_devices(func, args)
        if func in PRODUCTS:
            _refuse_mixed_types(args)
        if func is aten.add.Tensor and _is_engine_sum(args, kwargs):
            func, args = aten.add_.Tensor, (args[0].detach(), args[1])
        elif func in IN_PLACE and _is_formula_in_place(func, args):
            func, args = IN_PLACE[func], (args[0].detach(), *args[1:])
        if kwargs.get("generator") is not None:
            kwargs["generator"] = None
        if func in INDEXING:
            args = (args[0], [self._with_index_here(index) for index in args[1]], *args[2:])
        kernel = GHOST_KERNELS.get(func, func)
        replaced = [w.untyped_storage() for w in args[0]] if func is aten._cudnn_rnn_flatten_weight.default else []
        with inside_kernel():
            result = _wrap(self._shapes.run(func, kernel, args, kwargs))
        follow(func, args, kwargs, result)
        _state_answers(func, args, result)
        if self.listener is not None:
            self.listener(func, args, kwargs, result)
        if _asks_for_sizes(func, args) or _asks_for_indices(func, args):
            self._wait()
        del replaced  # what the op put aside goes after it, as on the GPU
        return result

    def launch(self, kernel: Any, tensors: tuple[torch.Tensor, ...]) -> None:
        """A kernel that is no op runs on these tensors, and may write any of them."""
        if self.listener is not None:
            self.listener(kernel, tensors, {}, None)

    def _communicate(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A collective: those of c10d work in place, the functional ones make their result."""
        if func.namespace == "c10d":
            result, made = collectives.finished(func, args), None
        else:
            with inside_kernel():
                result = made = _wrap(func(*args, **kwargs))
        if self.listener is not None:
            self.listener(func, collectives.tensor_arguments(args), {"ranks": collectives.ranks_of(func, args)}, made)
        return result

    def _enter_gpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A copy from the host: only the result lives on the GPU. The CPU converts what it copies, and closes gaps."""
        source: torch.Tensor = args[0]
        dtype = kwargs.get("dtype") or source.dtype
        if self.host_listener is not None and (dtype != source.dtype or not source.is_contiguous()):
            self.host_listener(source.numel())
        with inside_kernel():
            plain = torch.empty_like(source, dtype=dtype, device=META)
        result = Ghost(plain)
        learn(result, source.to(dtype))
        if self.listener is not None:
            self.listener(func, (), {}, result)
        self._wait()
        return result

    def _with_index_here(self, index: torch.Tensor | None) -> torch.Tensor | None:
        """Indices on the host are copied to the GPU by the op itself, and go with it."""
        if index is None or isinstance(index, Ghost) or not index.is_cpu or index.dtype in (torch.bool, torch.uint8):
            return index
        copied: torch.Tensor = self._enter_gpu(aten._to_copy.default, (index,), {})
        return copied

    def _leave_gpu(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        self._wait()
        return _copied_to_host(args, kwargs)

    def _on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if self.host_listener is not None and func not in FIRST_VALUES:
            is_written = isinstance(result, torch.Tensor) and not func.is_view
            self.host_listener(result.numel() if is_written else 0)
        return result

    def _wait(self) -> None:
        if self.wait_listener is not None:
            self.wait_listener()


@contextlib.contextmanager
def resizes_told_to(mode: GhostMode) -> Iterator[None]:
    """Storages are resized below the dispatcher: FSDP frees and allocates unsharded parameters so."""
    resize = torch.UntypedStorage.resize_

    def told(storage: torch.UntypedStorage, nbytes: int) -> Any:
        result = resize(storage, nbytes)
        if mode.resize_listener is not None and storage.device.type == "meta":
            mode.resize_listener(storage)
        return result

    with mock.patch.object(torch.UntypedStorage, "resize_", told):
        yield


def _state_answers(func: Any, args: tuple[Any, ...], result: Any) -> None:
    """Answers other than the usual ones, see answers.py, where the value is not known."""
    if func in ANY_OPS and not is_known(result):
        learn(result, torch.zeros(result.shape, dtype=torch.bool))
    elif func is aten._amp_foreach_non_finite_check_and_unscale_.default:
        found_overflow = args[1]
        found_overflow.stated_value = 0.0


def _holds_ghost(values: Sequence[Any]) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            if isinstance(value, Ghost) or value.is_meta:
                return True
        elif isinstance(value, (list, tuple)) and _holds_ghost(value):
            return True
    return False


def _wrap(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result if isinstance(result, Ghost) or not result.is_meta else Ghost(result)
    if isinstance(result, (list, tuple)):
        return type(result)(_wrap(item) for item in result)
    return result


def _copied_to_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """A ghost copied to the CPU brings its values if they are known; otherwise the answers of `.item()`."""
    ghost = next(a for a in args if isinstance(a, torch.Tensor))
    dtype = kwargs.get("dtype") or ghost.dtype
    values = known_value(ghost)
    if values is None:
        if ghost.numel() > LARGEST_HOST_COPY:
            return torch.empty(ghost.shape, dtype=dtype, device=kwargs["device"])
        return torch.full(ghost.shape, guessed_number(ghost.dtype), dtype=dtype, device=kwargs["device"])
    return values.to(dtype, copy=True)


# Ops that take CPU tensors beside CUDA ones: copies, and indexing with indices on the host.
TAKES_HOST_TENSORS = frozenset(
    {aten.copy_.default, aten._to_copy.default, aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
    | {aten._index_put_impl_.default, aten._cudnn_rnn.default, aten._pack_padded_sequence.default}
)


# What makes parameters and gives them their first values: where a forward pass does so, only the first one does.
FIRST_VALUES = frozenset({aten.empty.memory_format, aten.uniform_.default, aten.normal_.default})

# Ops whose result is as large as values say: the CPU asks for the size.
SIZED_BY_VALUES = frozenset(
    {aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_dim.default}
    | {aten.unique_consecutive.default, aten.repeat_interleave.Tensor, aten.bincount.default}
)


def _asks_for_sizes(func: Any, args: tuple[Any, ...]) -> bool:
    """Products of groups have a kernel in bfloat16 alone; in other types torch goes through the groups one by one."""
    return func in SIZED_BY_VALUES or (func is aten._grouped_mm.default and args[0].dtype != torch.bfloat16)


INDEXING = frozenset(
    {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
)


def _asks_for_indices(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a mask says what is meant: torch counts its elements first."""
    return func in INDEXING and any(
        isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )


def _refuse_mixed_devices(func: Any, args: tuple[Any, ...]) -> None:
    """The error that CUDA would give for a CPU tensor among CUDA ones; a CPU scalar is welcome everywhere."""
    for arg in args:
        if isinstance(arg, torch.Tensor) and arg.dim() > 0 and arg.is_cpu and func not in TAKES_HOST_TENSORS:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two, cuda:0 and cpu ({func})"
            )


def _compare(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors are equal; what is not known of them is taken to be."""
    values = [known_value(tensor) for tensor in args[:2]]
    if any(value is None for value in values):
        return are_unknown_equal() and bool(args[0].shape == args[1].shape)
    with torch_compat.host_kernels():
        return bool(func(*values, *args[2:], **kwargs))


def _refuse_mixed_types(args: tuple[Any, ...]) -> None:
    """The error that CUDA would give for a product of matrices of two types, which meta tensors do not mind."""
    first, second = args[-2:]
    if first.dtype != second.dtype:
        raise RuntimeError(f"expected mat1 and mat2 to have the same dtype, but got: {first.dtype} != {second.dtype}")


def _is_engine_sum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this add is the autograd engine summing gradients into a buffer that nobody else holds.

    On real tensors the engine then adds in place (torch/csrc/autograd/input_buffer.cpp); under a dispatch mode it adds
    out of place, so the in-place add is put back here. The engine calls with no Python frame of its own in between.
    """
    if kwargs or len(args) != 2 or not isinstance(args[0], Ghost) or not isinstance(args[1], Ghost):
        return False
    if sys._getframe(2).f_code is not torch_compat.ENGINE_CODE or torch.is_grad_enabled():
        return False
    if torch_compat.current_autograd_node().name() in ADDING_NODES:
        return False
    total, addend = args
    return (
        total.shape == addend.shape
        and total.dtype == addend.dtype
        and torch_compat.is_held_by_engine_alone(total)
        and _is_dense(total)
    )


def _is_formula_in_place(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the op is part of a formula of the autograd engine's that writes a tensor of its own in place."""
    if sys._getframe(2).f_code is not torch_compat.ENGINE_CODE or torch.is_grad_enabled():
        return False
    if func not in WRITES_IN_PLACE.get(torch_compat.current_autograd_node().name(), ()):
        return False
    return func is not aten.mul.Tensor or torch_compat.is_temporary(args[0])  # others never write what was saved


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their stretch of memory without gaps or overlaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
