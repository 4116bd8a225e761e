"""Which allocations does an aten op make beside its outputs? A dispatch mode that tags them, and what the tags say.

In: code run under `OpRecorder` on a GPU. Out: `OpRow`s, one per distinct (op, inputs, allocations). The source is the
allocator's own history (requested bytes, in order); each entry carries the number of the op during which it was made,
also on autograd's threads, since dispatch modes follow it there.

The events of an op, in order: ["out", bytes], ["tmp", bytes], ["kept", bytes] are allocations: an output, one that is
freed before the op returns, one that stays but is no output (a workspace). ["free", k] frees the op's k-th allocation
(from 0), ["free outer", bytes] something from before the op.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Event = list[Any]
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64", torch.bool: "b8"}
MANY_TENSORS = 12  # longer lists (foreach ops) are described by their totals


@dataclass(frozen=True)
class Call:
    """One op that ran."""

    name: str
    inputs: str
    output_addresses: frozenset[int]
    start_us: int


@dataclass(frozen=True)
class OpRow:
    name: str
    inputs: str
    events: tuple[tuple[Any, ...], ...]
    count: int
    first_call: int  # number of the op's first appearance; -1 outside any op

    @property
    def hidden_peak_bytes(self) -> int:
        """How far memory rose above what the op's outputs take."""
        live = peak = outputs = 0
        sizes: list[int] = []
        for kind, value in self.events:
            if kind == "free":
                live -= sizes[value]
            elif kind != "free outer":
                sizes.append(value)
                live += value
                outputs += value if kind == "out" else 0
            peak = max(peak, live)
        return peak - outputs

    @property
    def is_hidden(self) -> bool:
        return any(kind in ("tmp", "kept") for kind, _ in self.events)


def describe(value: Any) -> str:
    """An argument as text: `bf16[8,1024]`, with strides in braces unless contiguous, and plain values as they are."""
    if isinstance(value, torch.Tensor):
        dtype = DTYPES.get(value.dtype, str(value.dtype).removeprefix("torch."))
        strides = "" if value.is_contiguous() else "{" + ",".join(map(str, value.stride())) + "}"
        place = "" if value.is_cuda else f"@{value.device.type}"
        return f"{dtype}[{','.join(map(str, value.shape))}]{strides}{place}"
    if isinstance(value, list | tuple):
        if len(value) > MANY_TENSORS and all(isinstance(item, torch.Tensor) for item in value):
            numels = [item.numel() for item in value]
            return f"({len(value)} x {value[0].dtype}: {sum(numels)} elements, largest {max(numels)})"
        return "(" + ", ".join(map(describe, value)) + ")"
    return str(value).removeprefix("torch.")


class OpRecorder(TorchDispatchMode):
    """Numbers every op and tags the allocations made during it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call | None] = []  # None: the op raised
        self.tagging = hasattr(torch._C, "_cuda_setMemoryMetadata")

    def tag(self, text: str) -> None:
        if self.tagging:
            torch.cuda.memory._set_memory_metadata(text)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        index = len(self.calls)
        self.calls.append(None)
        inputs = ", ".join([*map(describe, args), *(f"{key}={describe(value)}" for key, value in kwargs.items())])
        self.tag(str(index))
        start_us = time.time_ns() // 1000
        try:
            output = func(*args, **kwargs)
        finally:
            self.tag("")
        addresses = frozenset(
            leaf.untyped_storage().data_ptr() for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)
        )
        self.calls[index] = Call(str(func), inputs, addresses, start_us)
        return output


def start_history() -> None:
    """Begin the allocator's history, without stack traces; once per process."""
    torch.cuda.init()
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=4_000_000)


def history() -> list[dict[str, Any]]:
    """The allocator's history so far."""
    return list(torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()])


def op_rows(calls: list[Call | None], entries: list[dict[str, Any]]) -> list[OpRow]:
    """Distinct ops with what they allocated; ops that allocated nothing are left out."""
    seen: dict[tuple[str, str, tuple[tuple[Any, ...], ...]], list[int]] = {}
    for index, own in by_op(calls, entries):
        call = calls[index] if index is not None else Call("(outside any op)", "", frozenset(), 0)
        if call is None:
            continue
        events = events_of(own, call.output_addresses)
        if any(kind not in ("free", "free outer") for kind, _ in events):
            seen.setdefault((call.name, call.inputs, events), []).append(-1 if index is None else index)
    return [OpRow(*key, count=len(indices), first_call=indices[0]) for key, indices in seen.items()]


def by_op(calls: list[Call | None], entries: list[dict[str, Any]]) -> Iterator[tuple[int | None, list[dict[str, Any]]]]:
    """The history cut into the stretches of each op, in order; None between ops."""
    tagged = any(entry.get("user_metadata") for entry in entries)
    starts = [(call.start_us, index) for index, call in enumerate(calls) if call is not None]

    def owner(entry: dict[str, Any]) -> int | None:
        if tagged:
            return int(entry["user_metadata"]) if entry.get("user_metadata") else None
        position = bisect_right(starts, (entry["time_us"], len(calls))) - 1
        return starts[position][1] if position >= 0 else None

    current: int | None = None
    stretch: list[dict[str, Any]] = []
    for entry in entries:
        if (index := owner(entry)) != current:
            if stretch:
                yield current, stretch
            current, stretch = index, []
        stretch.append(entry)
    if stretch:
        yield current, stretch


def events_of(entries: Iterable[dict[str, Any]], output_addresses: frozenset[int]) -> tuple[tuple[Any, ...], ...]:
    """The events of one op, as the module's docstring says."""
    events: list[Event] = []
    allocations: list[Event] = []
    live: dict[int, int] = {}  # address -> number of the allocation
    for entry in entries:
        address, size = entry.get("addr", 0), entry.get("size", 0)
        if entry["action"] == "alloc":
            live[address] = len(allocations)
            allocations.append(["tmp", size])
            events.append(allocations[-1])
        elif entry["action"] == "free_completed":
            events.append(["free", live.pop(address)] if address in live else ["free outer", size])
    for address, number in live.items():
        allocations[number][0] = "out" if address in output_addresses else "kept"
    return tuple(tuple(event) for event in events)
