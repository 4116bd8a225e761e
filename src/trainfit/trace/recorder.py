"""`Recorder`: listens to the ghost GPU and writes down ops, storages and the moments storages come and go.

In: the dispatch mode's calls, in program order. Out: the lists that become a `Trace`. A storage is known by identity
and its end by a weak reference, so lifetimes are those of the real program, whoever holds the tensor.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from trainfit import torch_compat
from trainfit.ghost.tensor import Ghost
from trainfit.records import MemoryEvent, Op, Phase, Section, TensorRef
from trainfit.trace.modules import ModuleNames


class _StorageEnd(weakref.ref):
    """A weak reference that remembers which storage it watched."""

    __slots__ = ("address", "number")
    address: int
    number: int


class Recorder:
    """One per trace; `section` opens a stretch of the program, `phase` says what it is doing."""

    def __init__(self, modules: ModuleNames) -> None:
        self.ops: list[Op] = []
        self.storage_bytes: list[int] = []
        self.sections: list[Section] = []
        self.phase = Phase.BUILD
        self._modules = modules
        self._events: list[MemoryEvent] = []
        self._numbers: dict[int, int] = {}  # address of a live storage -> its number
        self._watches: dict[int, _StorageEnd] = {}
        self._dtype_names: dict[torch.dtype, str] = {}

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        first_op = len(self.ops)
        self._events = []
        yield
        self.sections.append(Section(name, first_op, len(self.ops), tuple(self._events)))

    def live_storages(self) -> frozenset[int]:
        return frozenset(self._watches)

    def storage_of(self, tensor: torch.Tensor) -> int:
        """The number of the storage under a ghost; a storage not seen before appears now."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        number = self._numbers.get(address)
        return self._appear(storage, address) if number is None else number

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        phase = self.phase
        if phase is Phase.BACKWARD and torch.is_grad_enabled() and torch_compat.current_autograd_node() is not None:
            phase = Phase.RECOMPUTE  # a node of the engine that records a graph runs a forward again
        self.ops.append(
            Op(
                name=str(func),
                phase=phase,
                module=self._modules.current(phase),
                args=tuple(self._plain(arg) for arg in args),
                kwargs=tuple((key, self._plain(value)) for key, value in kwargs.items()),
                outputs=tuple(self._outputs(result)),
            )
        )

    def _appear(self, storage: torch.UntypedStorage, address: int) -> int:
        number = len(self.storage_bytes)
        self.storage_bytes.append(storage.nbytes())
        self._numbers[address] = number
        watch = _StorageEnd(storage, self._disappear)
        watch.address, watch.number = address, number
        self._watches[number] = watch
        self._events.append(MemoryEvent(len(self.ops), number, True))
        return number

    def _disappear(self, watch: _StorageEnd) -> None:
        del self._watches[watch.number], self._numbers[watch.address]
        self._events.append(MemoryEvent(len(self.ops) - 1, watch.number, False))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._ref(value) if isinstance(value, Ghost) or value.is_meta else None  # host tensors cost nothing
        if isinstance(value, (list, tuple)):
            return tuple(self._plain(item) for item in value)
        if isinstance(value, torch.dtype):
            return self._dtype_name(value)
        return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)

    def _outputs(self, result: Any) -> Iterator[TensorRef]:
        if isinstance(result, torch.Tensor):
            if isinstance(result, Ghost):
                yield self._ref(result)
        elif isinstance(result, (list, tuple)):
            for item in result:
                yield from self._outputs(item)

    def _ref(self, tensor: torch.Tensor) -> TensorRef:
        return TensorRef(
            self.storage_of(tensor),
            self._dtype_name(tensor.dtype),
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
        )

    def _dtype_name(self, dtype: torch.dtype) -> str:
        name = self._dtype_names.get(dtype)
        if name is None:
            name = self._dtype_names[dtype] = str(dtype).removeprefix("torch.")
        return name
