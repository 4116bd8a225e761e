"""`MemTracker`: the memory of whatever runs inside it, by device and purpose, and around every module.

In: a training step on ghosts, fake, CPU or CUDA tensors. Out: snapshots {device: {purpose: bytes, "Total": bytes}},
current and at the peak, and per module at the moments of `_ModState`. On a GPU a snapshot holds what its allocator
would have given out: sizes rounded, temporaries and workspaces of the kernels included.

Modules may be called several times, by several micro-batches and steps: each state has a snapshot per call. In
backward a module's time is that of the ops of its own autograd nodes, so no tensor is hooked and none needs a gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import torch
from torch import nn, optim

from trainfit.autosac.ledger import TOTAL, Ledger, Snapshot, make_ledger
from trainfit.autosac.mod_tracker import Call
from trainfit.autosac.recording import Mark, Recording, Span, _MemRefType
from trainfit.autosac.tables import depth_of, in_unit, show, show_table
from trainfit.records import Phase
from trainfit.torch_compat import tree_flatten

__all__ = ["MemTracker"]

DeviceSnapshots = dict[torch.device, Snapshot]


class _ModState(StrEnum):
    """The moments of a module call at which memory is looked at."""

    PRE_FW = "Pre-Forward"
    POST_FW = "Post-Forward"
    PEAK_FW = "Peak-Forward"
    PRE_BW = "Pre-Backward"
    PRE_FW_AC = "Pre-Forward-AC"  # a forward that runs again inside backward
    POST_FW_AC = "Post-Forward-AC"
    POST_BW = "Post-Backward"
    PEAK_BW = "Peak-Backward"


@dataclass(slots=True)
class _ModMemStats:
    """One module's memory; sizes are bytes on its device, snapshots one per call."""

    mod_fqn: str
    parameter_mem: int
    buffer_mem: int
    input_mem: int
    output_mem: int
    local_peak: dict[torch.device, int] = field(default_factory=dict)
    snapshots: dict[_ModState, list[DeviceSnapshots]] = field(default_factory=dict)


class MemTracker:
    """A context manager; `track_external` tells it of what exists before. `gpu` names the GPU whose kernels' hidden
    memory is counted; the ghost, or the one at hand, when None."""

    def __init__(self, gpu: str | None = None, *, recording: Recording | None = None) -> None:
        self.recording = recording if recording is not None else Recording(gpu)
        self._ledgers: tuple[Mark, dict[torch.device, Ledger]] | None = None
        self._entered: Mark | None = None
        self._first_span = 0
        self._listening: Any = None

    def track_external(self, *external: Any) -> None:
        """Count modules, optimizers and tensors that were made outside."""
        for item in tree_flatten(external)[0]:
            if isinstance(item, torch.Tensor):
                self.recording.note(item, _MemRefType.OTH)
            elif isinstance(item, nn.Module):
                self.recording.note_module(item)
            elif isinstance(item, optim.Optimizer):
                self.recording.note_optimizer(item)
            elif item is not None:
                raise TypeError(f"a {type(item).__name__} cannot be tracked: pass modules, optimizers or tensors")
        self._ledgers = None

    def __enter__(self) -> Self:
        self._listening = self.recording.listening()
        self._listening.__enter__()
        self._entered = self.recording.mark()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._listening.__exit__(*exc)

    def get_tracker_snapshot(self, type: str = "current") -> DeviceSnapshots:
        """Memory now, or at the highest moment since the tracker was entered."""
        if type not in ("current", "peak"):
            raise ValueError(f"no snapshot is called {type!r}: ask for 'current' or 'peak'")
        now, ledgers = self.recording.mark(), self.ledgers()
        if type == "current":
            snapshots = {device: ledger.at(now) for device, ledger in ledgers.items()}
        else:
            first = self._entered if self._entered is not None else now
            snapshots = {device: ledger.peak(first, now) for device, ledger in ledgers.items()}
        return {device: snapshot for device, snapshot in snapshots.items() if snapshot[TOTAL] > 0}

    def peak_reserved_bytes(self) -> int:
        """What the GPU's caching allocator would have reserved at most, fragmentation included."""
        return max((ledger.peak_reserved_bytes for ledger in self.ledgers().values()), default=0)

    @property
    def memory_tracking(self) -> dict[nn.Module, _ModMemStats]:
        """Every module that was called and is still there, and its memory, in the order of the first calls."""
        return self._by_module()

    def reset_mod_stats(self) -> None:
        """Forget the modules' snapshots; those of calls from now on will count."""
        self._first_span = len(self.recording.spans)

    def spans(self) -> list[Span]:
        """The forward calls that count, in order."""
        spans = self.recording.spans[self._first_span :]
        return [span for span in spans if not span.call.is_recompute]

    def display_snapshot(self, type: str = "current", units: str = "B", tabulate: bool = False) -> None:
        """Print a snapshot."""
        _show_rows([("", snapshot) for snapshot in (self.get_tracker_snapshot(type),)], units, tabulate)

    def display_modulewise_snapshots(self, depth: int = 2, units: str = "B", tabulate: bool = False) -> None:
        """Print the snapshots of all modules down to a depth."""
        for stats in sorted(self._by_module().values(), key=lambda stats: _natural(stats.mod_fqn)):
            if depth_of(stats.mod_fqn) <= depth:
                show(f"Module:  {stats.mod_fqn}")
                rows = [
                    (f"{state.value} # {number}", snapshot)
                    for state, snapshots in stats.snapshots.items()
                    for number, snapshot in enumerate(snapshots, start=1)
                ]
                _show_rows(rows, units, tabulate)

    def ledgers(self) -> dict[torch.device, Ledger]:
        """By device, what is recorded so far."""
        now = self.recording.mark()
        if self._ledgers is None or self._ledgers[0] != now:
            self.recording.note_gradients()
            now = self.recording.mark()
            devices = dict.fromkeys(self.recording.devices)
            self._ledgers = now, {device: make_ledger(self.recording, device) for device in devices}
        return self._ledgers[1]

    def _by_module(self) -> dict[nn.Module, _ModMemStats]:
        recording, ledgers = self.recording, self.ledgers()
        found: dict[nn.Module, _ModMemStats] = {}
        backwards = backward_spans(recording)
        for span in recording.spans[self._first_span :]:
            module = span.call.module()
            if module is None:
                continue
            if module not in found:
                memory = recording.modules[module]
                found[module] = _ModMemStats(
                    span.call.fqn, self._bytes(memory.parameters), self._bytes(memory.buffers), 0, 0
                )
            stats = found[module]
            if not span.call.is_recompute:
                stats.input_mem, stats.output_mem = self._bytes(span.inputs), self._bytes(span.outputs)
            for state, snapshot in self._snapshots(span, backwards.get(span.call), ledgers):
                stats.snapshots.setdefault(state, []).append(snapshot)
                if state in (_ModState.PEAK_FW, _ModState.PEAK_BW):
                    stats.local_peak = {device: parts[TOTAL] for device, parts in snapshot.items()}
        return found

    def _snapshots(
        self, span: Span, backward: tuple[Mark, Mark] | None, ledgers: dict[torch.device, Ledger]
    ) -> Iterator[tuple[_ModState, DeviceSnapshots]]:
        def at(mark: Mark) -> DeviceSnapshots:
            return {device: ledger.at(mark) for device, ledger in ledgers.items()}

        def peak(first: Mark, last: Mark) -> DeviceSnapshots:
            return {device: ledger.peak(first, last) for device, ledger in ledgers.items()}

        end = span.end if span.end is not None else self.recording.mark()
        again = span.call.is_recompute
        yield _ModState.PRE_FW_AC if again else _ModState.PRE_FW, at(span.start)
        if span.end is not None:
            yield _ModState.POST_FW_AC if again else _ModState.POST_FW, at(end)
        if not again:
            yield _ModState.PEAK_FW, peak(span.start, end)
        if backward is not None:
            first, last = backward
            yield _ModState.PRE_BW, at(first)
            yield _ModState.PEAK_BW, peak(first, last)
            yield _ModState.POST_BW, at(last)

    def _bytes(self, storages: tuple[int, ...]) -> int:
        return sum(self.recording.device_bytes(storage) for storage in storages)


def backward_spans(recording: Recording) -> dict[Call, tuple[Mark, Mark]]:
    """By forward call, from where to where the backward ops of its nodes reach; calls without any are left out."""
    first: dict[Call, int] = {}
    last: dict[Call, int] = {}
    for number, op in enumerate(recording.ops):
        if op.module and op.phase in (Phase.BACKWARD, Phase.RECOMPUTE):
            for call in recording.tracker.calls[int(op.module)].chain():
                for whose in (call, call.original):
                    if whose is not None and not whose.is_recompute:
                        first.setdefault(whose, number)
                        last[whose] = number
    before = _events_before(recording)
    return {
        call: (Mark(first[call], before[first[call]]), Mark(last[call] + 1, before[last[call] + 1])) for call in first
    }


def _events_before(recording: Recording) -> list[int]:
    """By op, how many events come before it; one more entry for the end."""
    counts, event = [], 0
    events = recording.events
    for op in range(len(recording.ops) + 1):
        while event < len(events) and events[event].op < op:
            event += 1
        counts.append(event)
    return counts


def _show_rows(rows: list[tuple[str, DeviceSnapshots]], units: str, tabulate: bool) -> None:
    shown = [(name, device, parts) for name, devices in rows for device, parts in devices.items() if parts[TOTAL] > 0]
    if not shown:
        show("No memory tracked.")
        return
    names = [*(kind.value for kind in _MemRefType), TOTAL]
    if tabulate:
        cells = [[name, str(device), *(in_unit(n, units) for n in parts.values())] for name, device, parts in shown]
        show_table(["State & Call", "Device", *names], cells, ruled=True)
        return
    for name, device, parts in shown:
        sizes = zip(names, parts.values(), strict=True)
        show(*([name] if name else []), f"Device: {device}", *(f"\t{key}: {in_unit(n, units)}" for key, n in sizes))


def _natural(fqn: str) -> list[tuple[int, str]]:
    """Orders "layers.2" before "layers.10"."""
    return [(int(part), "") if part.isdigit() else (-1, part.lower()) for part in re.split(r"(\d+)", fqn)]
