"""`Recorder`: listens to the ghost GPU and writes down ops, storages and the moments storages come and go.

In: the dispatch mode's calls, in program order. Out: the lists that become a `Trace`. A storage is known by identity
and its end by a weak reference, so lifetimes are those of the real program, whoever holds the tensor.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from trainfit import torch_compat
from trainfit.errors import TraceError
from trainfit.ghost.streams import Streams
from trainfit.ghost.tensor import Ghost
from trainfit.records import HostWork, MemoryEvent, Op, Phase, Section, TensorRef

_BELOW_CALLS = ("trainfit.apply", "trainfit.ghost", "trainfit.trace", "trainfit.torch_compat", "torch._ops")
"""Modules that come between a call of the program's and the ops that it issues."""


class NamesModules(Protocol):
    """Knows which module is running."""

    def current(self, phase: Phase) -> str:
        """What stands in `Op.module` for an op of that phase."""


class _StorageEnd(weakref.ref):
    """A weak reference that remembers which storage it watched."""

    __slots__ = ("address", "number")
    address: int
    number: int


class Recorder:
    """One per trace; `section` opens a stretch of the program, `phase` says what it is doing."""

    def __init__(self, modules: NamesModules) -> None:
        self.ops: list[Op] = []
        self.storage_bytes: list[int] = []
        self.sections: list[Section] = []
        self.phase = Phase.BUILD
        self._modules = modules
        self._is_paused = False
        self._events: list[MemoryEvent] = []
        self.streams = Streams()  # the ghost GPU's, when there is one
        self.resized: set[int] = set()  # storages that were emptied or filled again
        self._emptied: set[int] = set()  # those that are empty now
        self._numbers: dict[int, int] = {}  # address of a live storage -> its number
        self._watches: dict[int, _StorageEnd] = {}
        self._dtype_names: dict[torch.dtype, str] = {}
        self._refs: dict[tuple[Any, ...], TensorRef] = {}  # optimizers list all parameters again and again
        self._before: HostWork | None = None  # what the CPU did since the last op
        self._call: tuple[object, str] = None, ""  # what issued the last op, and the first that it issued

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        first_op = len(self.ops)
        self._events = []
        self._before, self._call = None, (None, "")
        yield
        self.sections.append(Section(name, first_op, len(self.ops), tuple(self._events)))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside is not part of the program."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def live_storages(self) -> frozenset[int]:
        return frozenset(self._watches) - self._emptied

    def storage_of(self, tensor: torch.Tensor) -> int:
        """The number of the storage under a ghost; a storage not seen before appears now."""
        local = tensor if type(tensor) is Ghost else torch_compat.local_tensor(tensor)
        storage = local.untyped_storage()
        address = storage._cdata
        number = self._numbers.get(address)
        return self._appear(storage, address) if number is None else number

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._is_paused:
            return
        phase = self.phase
        if phase is Phase.BACKWARD and torch.is_grad_enabled() and torch_compat.current_autograd_node() is not None:
            phase = Phase.RECOMPUTE  # a node of the engine that records a graph runs a forward again
        plain_args = tuple([self._plain(arg) for arg in args])
        plain_kwargs = tuple([(key, self._plain(value)) for key, value in kwargs.items()])
        outputs: list[TensorRef] = []
        self._find_outputs(result, outputs)
        tf32 = torch_compat.is_rounded_product(func, args)
        self._add(str(func), phase, plain_args, plain_kwargs, tuple(outputs), kwargs.get("ranks"), tf32)

    def allocate(self, tensor: torch.Tensor) -> None:
        """What was made while the recorder was paused is allocated now, by an op of its own."""
        self.storage_of(tensor)
        self._add("aten.empty.memory_format", self.phase, (), (), (), None)

    def wait(self) -> None:
        """The CPU waits for all that it has issued."""
        if not self._is_paused:
            self._before = HostWork(True, 0, 0)

    def compute(self, num_elements: int) -> None:
        """The CPU runs an op on tensors of its own. What optimizers do with theirs, a step count per parameter, is part
        of what their ops cost."""
        if not self._is_paused and self.phase is not Phase.OPTIMIZER:
            done = self._before or HostWork(False, 0, 0)
            self._before = HostWork(done.waited, done.num_ops + 1, done.num_elements + num_elements)

    def resize(self, storage: torch.UntypedStorage) -> None:
        """A storage was emptied, which frees its memory, or filled again; written down as an op of its own."""
        number = self._numbers.get(storage._cdata)
        if number is None:
            return  # nobody has used it yet: it appears when somebody does
        if storage.nbytes() not in (0, self.storage_bytes[number]):
            raise TraceError(
                f"a storage of {self.storage_bytes[number]} bytes was resized to {storage.nbytes()}",
                hint="only emptying a storage and filling it again to its old size is understood",
            )
        self.resized.add(number)
        if storage.nbytes() > 0 and number in self._emptied:
            self._emptied.remove(number)
            self._events.append(MemoryEvent(len(self.ops), number, True, self.streams.current.stream_id))
        self._add("storage.resize_", self.phase, (storage.nbytes(),), (), (), None)
        if storage.nbytes() == 0 and number not in self._emptied:
            self._emptied.add(number)
            self._events.append(MemoryEvent(len(self.ops) - 1, number, False))

    def _add(
        self,
        name: str,
        phase: Phase,
        args: tuple[object, ...],
        kwargs: tuple[tuple[str, object], ...],
        outputs: tuple[TensorRef, ...],
        ranks: tuple[int, ...] | None,
        tf32: bool = False,
    ) -> None:
        number = len(self.ops)
        stream, waits = self.streams.issue(number, ranks)
        back = tuple(number - waited for waited in waits)
        module, before, self._before = self._modules.current(phase), self._before, None
        continues = phase is not Phase.OPTIMIZER and self._continues_call(name, module)
        self.ops.append(Op(name, phase, module, args, kwargs, outputs, stream, back, tf32, before, continues))

    def _continues_call(self, name: str, module: str) -> bool:
        """Whether what issued the last op issues this one, too: the same node of a backward pass, and the same line of
        the program. A loop comes back to its line, so a call from Python is over when its first op comes again."""
        node, frame = torch_compat.current_autograd_node(), sys._getframe(2)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_BELOW_CALLS):
            frame = frame.f_back
        number = None if node is None else node._sequence_nr()
        place, (last, first) = (number, id(frame.f_code), frame.f_lasti, module), self._call
        may_loop = frame.f_code is not torch_compat.ENGINE_CODE or number == torch_compat.LEAF_SEQUENCE_NUMBER
        if last == place and not (may_loop and name == first):
            return True
        self._call = place, name
        return False

    def _appear(self, storage: torch.UntypedStorage, address: int) -> int:
        number = len(self.storage_bytes)
        self.storage_bytes.append(storage.nbytes())
        self._numbers[address] = number
        watch = _StorageEnd(storage, self._disappear)
        watch.address, watch.number = address, number
        self._watches[number] = watch
        self._events.append(MemoryEvent(len(self.ops), number, True, self.streams.current.stream_id))
        return number

    def _disappear(self, watch: _StorageEnd) -> None:
        del self._watches[watch.number], self._numbers[watch.address]
        if watch.number not in self._emptied:
            self._events.append(MemoryEvent(len(self.ops) - 1, watch.number, False))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._ref(value) if self._follows(value) else None
        if isinstance(value, (list, tuple)):
            return tuple([self._plain(item) for item in value])
        if isinstance(value, torch.dtype):
            return self._dtype_name(value)
        return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)

    def _find_outputs(self, result: Any, outputs: list[TensorRef]) -> None:
        if isinstance(result, torch.Tensor):
            if self._follows(result):
                outputs.append(self._ref(result))
        elif isinstance(result, (list, tuple)):
            for item in result:
                self._find_outputs(item, outputs)

    def _follows(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is part of the program: host tensors cost nothing."""
        return isinstance(tensor, Ghost) or tensor.is_meta

    def _ref(self, tensor: torch.Tensor) -> TensorRef:
        storage, shape, stride, offset = self.storage_of(tensor), tensor.shape, tensor.stride(), tensor.storage_offset()
        key = storage, tensor.dtype, shape, stride, offset
        ref = self._refs.get(key)
        if ref is None:
            ref = TensorRef(storage, self._dtype_name(tensor.dtype), tuple(shape), stride, int(offset))
            self._refs[key] = ref
        return ref

    def _dtype_name(self, dtype: torch.dtype) -> str:
        name = self._dtype_names.get(dtype)
        if name is None:
            name = self._dtype_names[dtype] = str(dtype).removeprefix("torch.")
        return name
