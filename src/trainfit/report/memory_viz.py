"""A step's predicted allocations as a memory snapshot, for pytorch.org/memory_viz. In: a `StepProfile`. Out: a dict.

The dict has the form of what torch.cuda.memory._snapshot() returns. An allocation's stack, innermost first, is the op
that made it and then its module, the module's parent, and so on, so that views by stack are views by module.
"""

from __future__ import annotations

from typing import Any

from trainfit.records import BlockEvent, Segment, StepProfile, Trace
from trainfit.report.moments import event_times_ns

PICKLE_PROTOCOL = 4  # the viewer reads no later one
_LOWEST_ADDRESS = 0x7F00_0000_0000
_SMALL_SEGMENT_BYTES = 2 * 2**20


def snapshot(profile: StepProfile) -> dict[str, Any]:
    """The steady step as a snapshot: what was there comes first, at time 0."""
    frames = _Frames(profile.trace)
    lowest = min((segment.address for segment in profile.segments), default=0)
    shift = _LOWEST_ADDRESS - lowest
    live: dict[int, BlockEvent] = {}
    entries = []
    for event, time_ns in zip(profile.events, event_times_ns(profile), strict=True):
        for action in ("alloc",) if event.is_alloc else ("free_requested", "free_completed"):
            entries.append(
                {
                    "action": action,
                    "addr": event.address + shift,
                    "size": event.size_bytes,
                    "stream": 0,
                    "time_us": time_ns // 1000,
                    "frames": frames.of(event),
                }
            )
        if event.is_alloc:
            live[event.address] = event
        else:
            del live[event.address]
    return {
        "segments": [_segment(segment, live, shift, frames) for segment in profile.segments],
        "device_traces": [entries],
    }


def _segment(segment: Segment, live: dict[int, BlockEvent], shift: int, frames: _Frames) -> dict[str, Any]:
    blocks = []
    used_bytes = requested_bytes = 0
    for address, size_bytes, is_used in segment.blocks:
        event = live[address] if is_used else None
        if event is not None:
            used_bytes += event.size_bytes
            requested_bytes += event.requested_bytes
        blocks.append(
            {
                "address": address + shift,
                "size": size_bytes,
                "requested_size": 0 if event is None else event.requested_bytes,
                "state": "inactive" if event is None else "active_allocated",
                "frames": [] if event is None else frames.of(event),
            }
        )
    return {
        "device": 0,
        "address": segment.address + shift,
        "total_size": segment.size_bytes,
        "allocated_size": used_bytes,
        "active_size": used_bytes,
        "requested_size": requested_bytes,
        "stream": 0,
        "segment_type": "small" if segment.size_bytes <= _SMALL_SEGMENT_BYTES else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


class _Frames:
    """Stacks of allocations; those of one op and category are one object, which pickles small."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._known: dict[tuple[int | None, str], list[dict[str, Any]]] = {}

    def of(self, event: BlockEvent) -> list[dict[str, Any]]:
        key = event.maker, event.category.value
        if key not in self._known:
            self._known[key] = list(self._make(event))
        return self._known[key]

    def _make(self, event: BlockEvent) -> list[dict[str, Any]]:
        outermost = [_frame(event.category.value, "category")]
        if event.maker is None:
            return outermost
        op = self._trace.ops[event.maker]
        parts = op.module.split(".") if op.module else []
        paths = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        return [_frame(op.name, op.phase.value), *(_frame(path, "module") for path in paths), *outermost]


def _frame(name: str, filename: str) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": 0}
