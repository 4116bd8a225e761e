"""What each op of a step asks of the allocator, by torch's profiler, which disturbs nothing.

In: a function that runs a step, on the CPU or a GPU. Out: `StepAllocations`. A dispatch mode, as recorder.py's, would
tell of ops as well, but under one autograd adds gradients out of place; the profiler's callbacks leave a step as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from recorder import DTYPES, MANY_TENSORS

UNIT_BYTES = 512
NOTHING = -1


@dataclass
class StepAllocations:
    """Texts are said once, and ops and events have their numbers."""

    texts: list[str] = field(default_factory=list)
    ops: list[tuple[int, int, int]] = field(default_factory=list)
    """Those that allocate or free, and what they are part of: number of what it is part of, name, inputs."""
    events: list[tuple[int, int, int]] = field(default_factory=list)
    """In order: op, bytes of the block, negative when it is given back, and its address in units of 512 bytes."""


def step_allocations(step: Callable[[], None], device: str) -> StepAllocations:
    """The step must have run before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profiler:
        step()
        if device == "cuda":
            torch.cuda.synchronize()
    results: Any = profiler.profiler
    return _Reader(device).read(results.kineto_results.experimental_event_tree())


class _Reader:
    def __init__(self, device: str) -> None:
        self._device = device
        self._texts: dict[str, int] = {}
        self._ops: list[tuple[int, int, int]] = []
        self._events: list[tuple[int, tuple[int, int, int]]] = []  # each after its time

    def read(self, roots: list[Any]) -> StepAllocations:
        for root in roots:
            self._visit(root, NOTHING)
        in_order = sorted(self._events, key=lambda event: event[0])  # every thread has a tree of its own
        return StepAllocations(list(self._texts), self._ops, [event for _, event in in_order])

    def _visit(self, node: Any, parent: int) -> None:
        kind, fields = node.typed
        if kind == _EventType.Allocation:
            if fields.device.type == self._device:
                event = (parent, fields.alloc_size, (fields.ptr or 0) // UNIT_BYTES)
                self._events.append((node.start_time_ns, event))
            return
        number, num_events = len(self._ops), len(self._events)
        self._ops.append((parent, NOTHING, NOTHING))
        for child in node.children:
            self._visit(child, number)
        if len(self._events) == num_events:
            del self._ops[number:]
            return
        inputs = ", ".join(map(_described, fields.inputs)) if kind == _EventType.TorchOp else ""
        self._ops[number] = (parent, self._text(node.name), self._text(inputs))

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))


def _described(value: Any) -> str:
    """An input as recorder.py's `describe` says it; the profiler keeps sizes of tensors, and only numbers beside."""
    if isinstance(value, list):
        shown = ", ".join(map(_described, value[:MANY_TENSORS]))
        return f"({shown})" if len(value) <= MANY_TENSORS else f"({len(value)}: {shown}, ...)"
    if not hasattr(value, "sizes"):
        return str(value)
    sizes, strides = ",".join(map(str, value.sizes)), ",".join(map(str, value.strides))
    return f"{DTYPES.get(value.dtype, str(value.dtype).removeprefix('torch.'))}[{sizes}]{{{strides}}}"
