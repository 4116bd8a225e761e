"""`Recording`: what the trackers look at: the ops, storages and module calls of whatever runs while it listens.

In: a training step, or any part of one, on ghosts, on torch's fake tensors, on CPU or CUDA tensors. Out: the lists of a
`trainfit.trace` recorder, plus what every storage is for and where every module call began and ended.

On a ghost GPU it listens to the ghost; elsewhere a dispatch mode that changes nothing tells it of each op.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from unittest import mock

import torch
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trainfit import torch_compat
from trainfit.autosac.mod_tracker import Call, ModTracker
from trainfit.errors import TraceError, UsageError
from trainfit.ghost.dispatch import GhostMode
from trainfit.ghost.tensor import CUDA
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.records import MemoryEvent, Phase
from trainfit.trace import garbage_collection_off
from trainfit.trace.recorder import Recorder

ALLOCATION_UNIT_BYTES = 512
"""Torch's CUDA allocator hands out multiples of this."""


class _MemRefType(StrEnum):
    """What a storage is for."""

    PARAM = "Parameter"
    BUFFER = "Buffer"
    GRAD = "Gradient"
    ACT = "Activation"  # made in forward, recomputation included
    TEMP = "Temp"  # made in backward or by the optimizer, hidden memory of kernels included
    OPT = "Optstate"
    OTH = "Other"  # whatever else was there, and library workspaces


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment: so many ops and memory events had come."""

    ops: int
    events: int


@dataclass(slots=True)
class Span:
    """Where one module call lies in the recording, and the storages that went in and came out."""

    call: Call
    is_leaf: bool  # a module without children
    start: Mark
    inputs: tuple[int, ...]
    has_tensor_inputs: bool
    end: Mark | None = None  # None while it runs
    outputs: tuple[int, ...] = ()


@dataclass(slots=True)
class ModuleMemory:
    """The storages that a module holds."""

    parameters: tuple[int, ...] = ()
    buffers: tuple[int, ...] = ()


class Recording(Recorder):
    """Ops in `ops`, the functions behind them in `funcs`, module calls in `spans`."""

    def __init__(self, gpu: str | None = None) -> None:
        self.tracker = ModTracker()
        super().__init__(self.tracker)
        self.funcs: list[Any] = []
        self.spans: list[Span] = []
        self.devices: list[torch.device] = []  # by storage
        self.kinds: dict[int, _MemRefType] = {}  # by storage, where somebody said what it is for
        self.saved: set[int] = set()  # storages that autograd keeps for backward
        self.observer: Callable[[Any, tuple[Any, ...], dict[str, Any]], None] | None = None
        self.modules: weakref.WeakKeyDictionary[nn.Module, ModuleMemory] = weakref.WeakKeyDictionary()
        self._gpu_name = gpu
        self._func: Any = None
        self._in_optimizer = False
        self._ghost: GhostMode | None = None
        self._makers: tuple[int, list[int | None]] | None = None
        if gpu is not None:
            find_gpu(gpu)  # an unknown name is an error now and not after the step

    @property
    def gpu(self) -> Gpu:
        """The GPU that ops are priced for: the one named, else the ghost, else the real one."""
        if self._gpu_name is None:
            raise UsageError(
                "no GPU was named and there is none here: ops cannot be priced",
                hint='name the target, as in RuntimeEstimator(gpu="h200"), or run under trainfit.ghost_gpu("h200")',
            )
        return find_gpu(self._gpu_name)

    @property
    def events(self) -> list[MemoryEvent]:
        return self._events

    def is_on_ghost(self) -> bool:
        """Whether a ghost GPU is what it listens to, or would."""
        return any(isinstance(mode, GhostMode) for mode in torch_compat.active_modes())

    def mark(self) -> Mark:
        return Mark(len(self.ops), len(self._events))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Everything that runs inside is written down."""
        modes = torch_compat.active_modes()
        self._ghost = next((mode for mode in reversed(modes) if isinstance(mode, GhostMode)), None)
        if self._gpu_name is None and torch.cuda.is_available():
            self._gpu_name = torch.cuda.get_device_name()
        self.tracker.register_user_hooks(pre_fw_hook=self._begin_call, post_fw_hook=self._end_call)
        handles = (
            register_optimizer_step_pre_hook(self._begin_optimizer_step),
            register_optimizer_step_post_hook(self._end_optimizer_step),
        )
        source = _ghost_listener(self._ghost, self) if self._ghost else _ListeningMode(self)
        try:
            with garbage_collection_off(), self.tracker, source:
                yield
        finally:
            self.tracker.clear_user_hooks()
            for handle in handles:
                handle.remove()

    def note(self, tensor: torch.Tensor, kind: _MemRefType) -> tuple[int, ...]:
        """Say what a tensor is for; the storages under it, which appear now if they were not known."""
        numbers = []
        for part in torch_compat.plain_tensors(tensor):
            if not self._follows(part):
                continue
            known = len(self._events)
            number = self.storage_of(part)
            if len(self._events) > known:  # it was there before, not made by the op that comes
                self._events[-1] = MemoryEvent(len(self.ops) - 1, number, True)
            if self.kinds.get(number) is not _MemRefType.PARAM:  # a parameter is one whoever else holds it
                self.kinds[number] = kind
            numbers.append(number)
        return tuple(dict.fromkeys(numbers))

    def note_module(self, module: nn.Module) -> ModuleMemory:
        """A module's parameters, buffers and gradients, those of its children included."""
        parameters: list[int] = []
        buffers: list[int] = []
        for parameter in module.parameters():
            parameters += self.note(parameter, _MemRefType.PARAM)
            if parameter.grad is not None:
                self.note(parameter.grad, _MemRefType.GRAD)
        for buffer in module.buffers():
            buffers += self.note(buffer, _MemRefType.BUFFER)
        return ModuleMemory(tuple(dict.fromkeys(parameters)), tuple(dict.fromkeys(buffers)))

    def note_gradients(self) -> None:
        """The gradients that are there now: FSDP puts them in place without autograd."""
        for span in self.spans:
            module = span.call.module() if span.call.parent is None else None
            for parameter in module.parameters() if module is not None else ():
                if parameter.grad is not None:
                    self.note(parameter.grad, _MemRefType.GRAD)

    def note_optimizer(self, optimizer: optim.Optimizer) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self.note(value, _MemRefType.OPT)

    def kind_of(self, storage: int, maker: int | None) -> _MemRefType:
        """What the storage, made by that op, is for."""
        if storage in self.kinds:
            return self.kinds[storage]
        if maker is None:
            return _MemRefType.OTH
        return _MemRefType.ACT if self.ops[maker].phase in (Phase.FORWARD, Phase.RECOMPUTE) else _MemRefType.TEMP

    def makers(self) -> list[int | None]:
        """By storage, the op that made it; None for what was there before anything used it."""
        if self._makers is not None and self._makers[0] == len(self._events):
            return self._makers[1]
        makers: list[int | None] = [None] * len(self.storage_bytes)
        for event in self._events:
            if event.is_alloc and makers[event.storage] is None and 0 <= event.op < len(self.ops):
                op = self.ops[event.op]
                if any(ref.storage == event.storage for ref in op.outputs) and not any(
                    ref.storage == event.storage for ref in op.input_refs()
                ):
                    makers[event.storage] = event.op
        self._makers = len(self._events), makers
        return makers

    def device_bytes(self, storage: int) -> int:
        """What the storage takes of its device."""
        nbytes = self.storage_bytes[storage]
        if self.devices[storage].type != "cuda":
            return nbytes
        return -(-nbytes // ALLOCATION_UNIT_BYTES) * ALLOCATION_UNIT_BYTES

    def storage_of(self, tensor: torch.Tensor) -> int:
        number = super().storage_of(tensor)
        if number == len(self.devices):
            self.devices.append(CUDA if self._ghost else torch_compat.local_tensor(tensor).device)
        return number

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """A hook for what autograd saves: it is remembered and saved as it is."""
        self.saved.update(self.storage_of(part) for part in torch_compat.plain_tensors(tensor) if self._follows(part))
        return tensor

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        in_backward = torch_compat.is_in_backward()
        self.phase = Phase.OPTIMIZER if self._in_optimizer else Phase.BACKWARD if in_backward else Phase.FORWARD
        self._func = func
        super().__call__(func, args, kwargs, result)
        if self.observer is not None:
            self.observer(func, args, kwargs)
        if in_backward:
            node = torch_compat.current_autograd_node()
            if node is not None and torch_compat.is_accumulating_gradient(node):
                for ref in self.ops[-1].outputs:
                    self.kinds.setdefault(ref.storage, _MemRefType.GRAD)

    def _add(self, *fields: Any) -> None:
        super()._add(*fields)
        self.funcs.append(self._func)

    def _follows(self, tensor: torch.Tensor) -> bool:
        if self._ghost is not None:
            return super()._follows(tensor)
        if tensor.device.type not in ("cpu", "cuda"):
            raise TraceError(
                f"a tensor of shape {tuple(tensor.shape)} is on {tensor.device}, where nothing can be tracked",
                hint="use CPU or CUDA tensors, torch's FakeTensorMode where there is a GPU, or trainfit.ghost_gpu(...)",
            )
        return True

    def _begin_call(self, module: nn.Module, inputs: Any) -> None:
        call = self.tracker.stack[-1]
        if module not in self.modules or call.parent is None:
            self.modules[module] = self.note_module(module)
        tensors = [leaf for leaf in torch_compat.tree_flatten(inputs)[0] if isinstance(leaf, torch.Tensor)]
        is_leaf = next(module.children(), None) is None
        self.spans.append(Span(call, is_leaf, self.mark(), self._storages(tensors), bool(tensors)))

    def _end_call(self, module: nn.Module, inputs: Any, output: Any) -> None:
        span = self.spans[self.tracker.stack[-1].number]
        span.end = self.mark()
        span.outputs = self._storages(torch_compat.tree_flatten(output)[0])

    def _storages(self, values: list[Any]) -> tuple[int, ...]:
        parts = (
            part for value in values if isinstance(value, torch.Tensor) for part in torch_compat.plain_tensors(value)
        )
        return tuple(dict.fromkeys(self.storage_of(part) for part in parts if self._follows(part)))

    def _begin_optimizer_step(self, optimizer: optim.Optimizer, *args: Any) -> None:
        self._in_optimizer = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.note(parameter.grad, _MemRefType.GRAD)

    def _end_optimizer_step(self, optimizer: optim.Optimizer, *args: Any) -> None:
        self._in_optimizer = False
        self.note_optimizer(optimizer)


@contextlib.contextmanager
def _ghost_listener(ghost: GhostMode, recording: Recording) -> Iterator[None]:
    """The recording hears the ghost GPU, and so does whoever did before."""
    heard, heard_resize = ghost.listener, ghost.resize_listener

    def hear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if heard is not None:
            heard(func, args, kwargs, result)
        recording(func, args, kwargs, result)

    def hear_resize(storage: torch.UntypedStorage) -> None:
        if heard_resize is not None:
            heard_resize(storage)
        recording.resize(storage)

    recording.streams = ghost.streams
    ghost.listener, ghost.resize_listener = hear, hear_resize
    try:
        yield
    finally:
        ghost.listener, ghost.resize_listener = heard, heard_resize


class _ListeningMode(torch_compat.DispatchMode):
    """Runs each op as it is and tells the recording."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording
        self._fake_mode = torch_compat.active_fake_mode()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Any:
        resize = torch.UntypedStorage.resize_

        def told(storage: torch.UntypedStorage, nbytes: int) -> Any:
            result = resize(storage, nbytes)
            self._recording.resize(storage)
            return result

        self._open.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", told))
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._open.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(torch_compat.wraps_others(kind) for kind in types):
            return NotImplemented  # it takes its ops apart, and those on what it wraps come here
        result = func(*args, **(kwargs or {}))
        if func in torch_compat.QUESTIONS:
            return result
        if torch_compat.active_fake_mode() is self._fake_mode:  # another one is DTensor's, which works out shapes
            self._recording(func, args, kwargs or {}, result)
        return result
