"""What `calibrate` does in one go: calls on the GPU, or the host. In: all calls. Out: `all_chunks`, in order.

Calls of a chunk are alike, and so are chunks whose numbers are close, so that a process that has loaded a kernel for
one has use for it again. They are timed in an order of a seed, the host among them: whatever changes with time (the
GPU's clock, others on the machine) changes for all kinds of calls. Products of matrices are dealt out among the others,
in an order of a seed too, as steps have them: the clock sinks while they follow each other, by up to a fifth of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainfit.calibrate.calls import Call, all_calls
from trainfit.cost.host import OP_KINDS

CALLS_PER_CHUNK = 480
"""What is lost at most when a run is cut short. Fewer would make more sessions of the profiler."""
SLOW_TO_PREPARE = {
    "convolutions": ("convolution",),
    "attention": ("_scaled_dot_product",),
    "recurrent layers": ("_cudnn_rnn",),
}
"""Ops whose libraries load or compile a kernel for nearly every call, the slowest first."""
SLOW_CALLS_PER_CHUNK = 96
"""With more of those, processes would wait for the last one to have rehearsed."""
HOST_STRETCHES = 2
"""The host is timed before, after and between so many stretches of the GPU's measurements."""
_OTHERS = "ops"
_SEED = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is measured in one go: calls on the GPU, or, where there are none, the host."""

    name: str
    calls: tuple[Call, ...] = ()

    @property
    def kind(self) -> str:
        return self.name.rpartition(" ")[0]

    @property
    def number(self) -> int:
        return int(self.name.rpartition(" ")[2])


def all_chunks() -> list[Chunk]:
    """Pieces of all calls, each with a name of its own, and the host among them."""
    pieces = list(_pieces(all_calls()))
    random.Random(_SEED).shuffle(pieces)
    stretch = -(-len(pieces) // HOST_STRETCHES)
    found: list[Chunk] = []
    for first in range(0, len(pieces), stretch):
        found += [Chunk(f"host {first // stretch}"), *pieces[first : first + stretch]]
    return [*found, Chunk(f"host {-(-len(pieces) // stretch)}")]


def shares(chunks: Sequence[Chunk], count: int) -> list[list[Chunk]]:
    """The chunks in so many parts, each with as many of every kind that follow one another, the slowest kind first."""
    found: list[list[Chunk]] = [[] for _ in range(count)]
    for kind in (*SLOW_TO_PREPARE, _OTHERS):
        members = sorted((chunk for chunk in chunks if chunk.kind == kind), key=lambda chunk: chunk.number)
        for place, share in enumerate(found):
            share += members[len(members) * place // count : len(members) * (place + 1) // count]
    return found


def _pieces(calls: Sequence[Call]) -> Iterator[Chunk]:
    kinds: dict[str, list[Call]] = {kind: [] for kind in (*SLOW_TO_PREPARE, _OTHERS)}
    for call in calls:
        slow = (kind for kind, names in SLOW_TO_PREPARE.items() if call.short_name.startswith(names))
        kinds[next(slow, _OTHERS)].append(call)
    for kind in SLOW_TO_PREPARE:
        for first in range(0, len(kinds[kind]), SLOW_CALLS_PER_CHUNK):
            yield Chunk(f"{kind} {first}", tuple(kinds[kind][first : first + SLOW_CALLS_PER_CHUNK]))
    yield from _mixed(kinds[_OTHERS])


def _mixed(calls: Sequence[Call]) -> Iterator[Chunk]:
    """Each with its share of the products."""
    products = [call for call in calls if call.short_name in OP_KINDS["product"]]
    others = [call for call in calls if call.short_name not in OP_KINDS["product"]]
    count = -(-len(calls) // CALLS_PER_CHUNK)
    for number in range(count):
        members = [
            call
            for kind in (products, others)
            for call in kind[len(kind) * number // count : len(kind) * (number + 1) // count]
        ]
        random.Random(f"{_SEED} {number}").shuffle(members)
        yield Chunk(f"{_OTHERS} {number * CALLS_PER_CHUNK}", tuple(members))
