"""Every block of a steady step as it comes and goes: the allocations behind `simulate_memory`'s numbers.

In: as `simulate_memory`. Out: `BlockEvent`s in order, and the allocator's `Segment`s at the end of the step. The first
events are those of what is there when the step begins. Invariants: an address is taken and given back by turns; the
largest running sum of the sizes is the peak that `simulate_memory` reports.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainfit.records import BlockEvent, Category, Segment, Trace
from trainfit.simulate.allocator import AllocatorMode, Block, CachingAllocator
from trainfit.simulate.memory import Action, HiddenMemory, Player

_CATEGORIES = tuple(Category)


def simulate_blocks(
    trace: Trace, hidden: HiddenMemory, mode: AllocatorMode
) -> tuple[tuple[BlockEvent, ...], tuple[Segment, ...]]:
    """The blocks of a steady step of `trace`, and how they lie in memory at its end."""
    allocator = CachingAllocator(mode)
    writer = _Writer(trace, hidden, allocator)
    writer.run()
    return tuple(writer.events), _segments([*writer.live_blocks(), *allocator.free_blocks()])


class _Writer(Player):
    """A player that writes down the latest step."""

    def __init__(self, trace: Trace, hidden: HiddenMemory, allocator: CachingAllocator) -> None:
        self._taken: dict[int | str, BlockEvent] = {}  # of what is live
        super().__init__(trace, hidden, allocator)

    def start_step(self) -> None:
        super().start_step()
        self.events = [
            BlockEvent(None, e.maker, e.address, e.size_bytes, e.requested_bytes, e.category, True)
            for e in self._taken.values()
        ]

    def live_blocks(self) -> Iterable[Block]:
        return self._live.values()

    def _allocate(self, action: Action) -> None:
        if action.key in self._live:
            return
        super()._allocate(action)
        block, category, op = self._live[action.key], _CATEGORIES[action.category_index], self._current_op()
        event = BlockEvent(op, op, block.address, block.size_bytes, block.requested_bytes, category, True)
        self._taken[action.key] = event
        self.events.append(event)

    def _release(self, action: Action, section_index: int) -> None:
        super()._release(action, section_index)
        e = self._taken.pop(action.key, None)
        if e is not None:
            self.events.append(
                BlockEvent(self._current_op(), e.maker, e.address, e.size_bytes, e.requested_bytes, e.category, False)
            )

    def _current_op(self) -> int | None:
        return self._point_ops[-1] if self._point_ops else None


def _segments(blocks: Iterable[Block]) -> tuple[Segment, ...]:
    segments = []
    for head in (block for block in blocks if block.previous is None):
        row = []
        block: Block | None = head
        while block is not None:
            if block.size_bytes:  # the end of an expandable segment is marked by a block of no size
                row.append((block.address, block.size_bytes, not block.is_free))
            block = block.next
        segments.append(Segment(head.address, sum(size for _, size, _ in row), tuple(row)))
    return tuple(sorted(segments, key=lambda segment: segment.address))
