"""`Ledger`: the memory of one device at every moment of a recording, by what it is for.

In: a `Recording`. Out: snapshots at marks, and the highest one between two marks. The numbers are those of
`trainfit.simulate`, played once from the recording's start: on a GPU allocations are rounded as its allocator does, and
kernels take their hidden temporaries and workspaces; on the host every storage takes its bytes and no more.

Invariant: a snapshot's parts sum to its total.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from trainfit.autosac.recording import Mark, Recording, _MemRefType
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import Category, Op, Section, Storage, Trace
from trainfit.simulate.allocator import AllocatorMode, Block, CachingAllocator
from trainfit.simulate.memory import Action, HiddenMemory, Player

TOTAL = "Total"

_CATEGORIES = {
    _MemRefType.PARAM: Category.PARAMETERS,
    _MemRefType.BUFFER: Category.OTHER,
    _MemRefType.GRAD: Category.GRADIENTS,
    _MemRefType.ACT: Category.ACTIVATIONS,
    _MemRefType.TEMP: Category.TEMPORARIES,
    _MemRefType.OPT: Category.OPTIMIZER,
    _MemRefType.OTH: Category.OTHER,
}
_KINDS = tuple(_MemRefType)
Snapshot = dict[str, int]


@dataclass(frozen=True)
class Ledger:
    """One device's memory after each allocation and each free, in the order in which they happen."""

    device: torch.device
    by_kind: np.ndarray  # [action, kind]: bytes after it
    hidden_bytes: np.ndarray  # [action]: how many of those are temporaries of the kernel that runs
    ops: np.ndarray  # [action]: the op at which it happens; -1 before the first
    traced: np.ndarray  # [k]: the action that is the k-th event of a storage with bytes
    events: np.ndarray  # [n]: how many of the first n events are of storages with bytes, on this device
    peak_reserved_bytes: int
    """What the classic allocator would have reserved; 0 for the host."""

    def at(self, mark: Mark) -> Snapshot:
        """Memory at a mark, which lies between two ops."""
        count = int(self.events[mark.events])
        if count == 0:
            return _snapshot(np.zeros(len(_KINDS), dtype=np.int64))
        action = int(self.traced[count - 1])
        row = self.by_kind[action].copy()
        row[_KINDS.index(_MemRefType.TEMP)] -= self.hidden_bytes[action]  # gone when the op is done
        return _snapshot(row)

    def peak(self, first: Mark, last: Mark) -> Snapshot:
        """The highest moment between two marks; that of the first mark where nothing is higher."""
        start = self.at(first)
        begin, end = self._action(first), self._action(last)
        if begin >= end:
            return start
        highest = begin + int(self.totals[begin:end].argmax())
        return _snapshot(self.by_kind[highest]) if self.totals[highest] > start[TOTAL] else start

    @cached_property
    def totals(self) -> np.ndarray:
        return self.by_kind.sum(axis=1)

    def _action(self, mark: Mark) -> int:
        """The first action after a mark."""
        return int(np.searchsorted(self.ops, mark.ops, side="left"))


def make_ledger(recording: Recording, device: torch.device) -> Ledger:
    """The ledger of what `recording` holds so far."""
    is_gpu = device.type == "cuda"
    trace = _trace(recording, device)
    hidden: HiddenMemory = hidden_memory(recording.gpu, torch.__version__) if is_gpu else _NothingHidden()
    # With expandable segments a block is as large as its storage, rounded: no slack that depends on the past.
    player = _Writer(trace, hidden, CachingAllocator("expandable") if is_gpu else _HostMemory("classic"), recording)
    player.play(0)
    is_traced = [
        recording.devices[event.storage] == device and recording.storage_bytes[event.storage] > 0
        for event in recording.events
    ]
    rows = np.array(player.rows, dtype=np.int64).reshape(-1, len(_KINDS) + 3)
    return Ledger(
        device=device,
        by_kind=rows[:, : len(_KINDS)],
        hidden_bytes=rows[:, -3],
        ops=rows[:, -2],
        traced=np.flatnonzero(rows[:, -1]),
        events=np.concatenate([[0], np.cumsum(is_traced, dtype=np.int64)]),
        peak_reserved_bytes=_reserved(trace, hidden, "classic") if is_gpu else 0,
    )


def _reserved(trace: Trace, hidden: HiddenMemory, mode: AllocatorMode) -> int:
    allocator = CachingAllocator(mode)
    Player(trace, hidden, allocator).play(0)
    return allocator.reserved_bytes


def _trace(recording: Recording, device: torch.device) -> Trace:
    """The recording as one section, with the events of one device."""
    makers = recording.makers()
    storages = tuple(
        Storage(nbytes, _CATEGORIES[recording.kind_of(number, makers[number])])
        for number, nbytes in enumerate(recording.storage_bytes)
    )
    events = tuple(event for event in recording.events if recording.devices[event.storage] == device)
    section = Section("recorded", 0, len(recording.ops), events)
    return Trace("", torch.__version__, 0, tuple(recording.ops), storages, (section,), (0,), (0,))


class _Writer(Player):
    """A player that writes down the memory after every action."""

    def __init__(self, trace: Trace, hidden: HiddenMemory, allocator: CachingAllocator, recording: Recording) -> None:
        self.rows: list[tuple[int, ...]] = []
        self._buffers = {n for n, kind in recording.kinds.items() if kind is _MemRefType.BUFFER}
        self._buffer_bytes = self._hidden_bytes = 0
        super().__init__(trace, hidden, allocator)

    def _allocate(self, action: Action) -> None:
        if action.key not in self._live:
            super()._allocate(action)
            self._write(action, self._live[action.key].size_bytes)

    def _release(self, action: Action, section_index: int) -> None:
        size_bytes = self._live[action.key].size_bytes
        super()._release(action, section_index)
        self._write(action, -size_bytes)

    def _write(self, action: Action, change_bytes: int) -> None:
        is_traced = isinstance(action.key, int)
        if action.key in self._buffers:
            self._buffer_bytes += change_bytes
        if not is_traced and Category.TEMPORARIES is tuple(Category)[action.category_index]:
            self._hidden_bytes += change_bytes
        parts = dict(zip(Category, self._bytes_by_category, strict=True))
        other = parts[Category.OTHER] + parts[Category.WORKSPACES] - self._buffer_bytes
        by_kind = {kind: parts[category] for kind, category in _CATEGORIES.items()}
        by_kind |= {_MemRefType.BUFFER: self._buffer_bytes, _MemRefType.OTH: other}
        op = self._point_ops[-1] if self._point_ops else -1
        self.rows.append((*by_kind.values(), self._hidden_bytes, op, int(is_traced)))


class _NothingHidden:
    """Kernels of the host take what the dispatcher sees."""

    def temporaries(self, op: Op) -> tuple[int, ...]:
        return ()

    def workspaces(self, op: Op) -> tuple[tuple[str, int], ...]:
        return ()


class _HostMemory(CachingAllocator):
    """Memory without an allocator's rounding."""

    def malloc(self, nbytes: int, stream: int = 0) -> Block:
        self.allocated_bytes += nbytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return Block(None, 0, nbytes, None, None, False)  # type: ignore[arg-type]

    def free(self, block: Block) -> None:
        self.allocated_bytes -= block.size_bytes


def _snapshot(row: np.ndarray) -> Snapshot:
    parts: Snapshot = {kind: int(nbytes) for kind, nbytes in zip(_KINDS, row, strict=True)}
    return parts | {TOTAL: sum(parts.values())}
