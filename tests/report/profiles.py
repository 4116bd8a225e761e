"""Profiles written by hand: ops that each take 10 ns on the GPU, and the memory that they take and give back."""

from __future__ import annotations

from collections.abc import Sequence

from trainfit.records import BlockEvent, Category, Op, OpRun, Phase, Section, Segment, StepProfile, Trace

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER
ACTIVATIONS, TEMPORARIES, PARAMETERS = Category.ACTIVATIONS, Category.TEMPORARIES, Category.PARAMETERS

Row = tuple[Phase, str, Sequence[tuple[Category, int]]]  # phase, module, blocks: more than 0 taken, less given back
"""A block that is given back is the latest of that category and size."""


def profile_of(rows: Sequence[Row], before: Sequence[tuple[Category, int]] = ()) -> StepProfile:
    """The n-th op is called "aten.op<n>.default", is issued from n to n + 1 ns and runs from 10 n to 10 n + 10 ns."""
    events: list[BlockEvent] = []
    live: list[BlockEvent] = []
    next_address = 0
    moments = [(None, before), *((number, blocks) for number, (_, _, blocks) in enumerate(rows))]
    for op, blocks in moments:
        for category, size in blocks:
            if size > 0:
                events.append(BlockEvent(op, op, next_address, size, size, category, True))
                live.append(events[-1])
                next_address += size
            else:
                taken = next(e for e in reversed(live) if (e.category, e.size_bytes) == (category, -size))
                live.remove(taken)
                events.append(BlockEvent(op, taken.maker, taken.address, -size, -size, category, False))
    ops = tuple(
        Op(f"aten.op{number}.default", phase, module, (), (), ()) for number, (phase, module, _) in enumerate(rows)
    )
    addresses = {event.address for event in live}
    tiles = tuple((e.address, e.size_bytes, e.address in addresses) for e in events if e.is_alloc)
    return StepProfile(
        trace=Trace("h200", "2.13", 0, ops, (), (Section("micro_batch", 0, len(ops), ()),), (), (0,)),
        runs=tuple(OpRun(n, n, n + 1, 10 * n, 10) for n in range(len(ops))),
        events=tuple(events),
        segments=(Segment(0, next_address, tiles),),
    )
