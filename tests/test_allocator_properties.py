"""The caching allocator's model on random sequences, against a slow allocator written out here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainfit.simulate.allocator import AllocatorMode, Block, CachingAllocator

KIB = 2**10
MIB = 2**20
BOTH_MODES = pytest.mark.parametrize("mode", ["classic", "expandable"])


@dataclass
class Span:
    start: int
    size: int
    state: str  # "used", "free" or "unmapped"


class SlowAllocator:
    """The rules, literally: every segment is a list of spans, searched from end to end and tidied after every call.

    Unlike the model under test it knows address space that is not mapped, and searches it in full generality.
    """

    ADDRESS_SPACE = 2**40

    def __init__(self, mode: AllocatorMode) -> None:
        self.mode = mode
        self.segments: dict[tuple[int, bool], list[list[Span]]] = {}
        self.ranges = [(0, 408 * MIB), (409 * MIB, 22 * MIB)]  # of the driver

    def malloc(self, nbytes: int, stream: int) -> Span:
        size = max(512, (nbytes + 511) // 512 * 512)
        is_small = size <= MIB
        segments = self.segments.setdefault((stream, is_small), [])
        span = self.search(segments, size)
        if span is None:
            if self.mode == "classic":
                self.add_segment(segments, is_small, size)
            else:
                self.map_pages(segments, 2 * MIB if is_small else 20 * MIB, size)
            span = self.search(segments, size)
            assert span is not None
        rest = span.size - size
        if rest > MIB or (rest > 0 and (is_small or self.mode == "expandable")):
            segment = next(segment for segment in segments if span in segment)
            segment.insert(segment.index(span) + 1, Span(span.start + size, rest, "free"))
            span.size = size
        span.state = "used"
        return span

    def free(self, span: Span) -> None:
        span.state = "free"
        self.tidy()

    def search(self, segments: list[list[Span]], size: int) -> Span | None:
        """Best fit, in which a span counts with the unmapped span after it."""
        found = []
        for segment in segments:
            for span, after in zip(segment, [*segment[1:], None], strict=True):
                if span.state == "free" and span.size >= size:
                    growth = after.size if after is not None and after.state == "unmapped" else 0
                    found.append((span.size, span.start, span.size + growth, span))
        found.sort(key=lambda entry: entry[:2])
        while len(found) > 1 and found[1][2] < found[0][2]:
            found.pop(0)
        return found[0][3] if found else None

    def add_segment(self, segments: list[list[Span]], is_small: bool, size: int) -> None:
        if is_small:
            segment_size = 2 * MIB
        elif size < 10 * MIB:
            segment_size = 20 * MIB
        else:
            segment_size = (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
        segments.append([Span(self.place(segment_size), segment_size, "free")])

    def place(self, segment_size: int) -> int:
        """After the segments of the lowest range with room, or in a new one of whole 32 MiB below all others."""
        taken = [segment[-1].start + segment[-1].size for segments in self.segments.values() for segment in segments]
        for start, size in sorted(self.ranges):
            filled_to = max((end for end in taken if start < end <= start + size), default=start)
            if start + size - filled_to >= segment_size:
                return filled_to
        range_size = (segment_size + 32 * MIB - 1) // (32 * MIB) * (32 * MIB)
        lowest = min(start for start, _ in self.ranges)
        self.ranges.append((lowest - range_size, range_size))
        return lowest - range_size

    def map_pages(self, segments: list[list[Span]], page: int, size: int) -> None:
        if not segments:
            segments.append([Span(0, self.ADDRESS_SPACE, "unmapped")])
        (segment,) = segments
        index = next(index for index, span in enumerate(segment) if span.state == "unmapped")
        unmapped = segment[index]
        start = segment[index - 1].start if index > 0 and segment[index - 1].state == "free" else unmapped.start
        mapped_end = (start + size + page - 1) // page * page
        mapped = Span(unmapped.start, mapped_end - unmapped.start, "free")
        segment[index : index + 1] = [mapped, Span(mapped_end, unmapped.size - mapped.size, "unmapped")]
        self.tidy()

    def tidy(self) -> None:
        for segments in self.segments.values():
            for segment in segments:
                index = 0
                while index + 1 < len(segment):
                    here, after = segment[index], segment[index + 1]
                    if here.state == after.state == "free":
                        segment[index : index + 2] = [Span(here.start, here.size + after.size, "free")]
                    else:
                        index += 1

    def total(self, *states: str) -> int:
        every = [span for segments in self.segments.values() for segment in segments for span in segment]
        return sum(span.size for span in every if span.state in states)


EDGES = [512, 1024, 512 * KIB, MIB, 2 * MIB, 5 * MIB, 10 * MIB, 19 * MIB, 20 * MIB, 21 * MIB, 40 * MIB, 64 * MIB]
SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 3 * MIB),
    st.integers(1, 70 * MIB),
    st.builds(lambda edge, delta: edge + delta, st.sampled_from(EDGES), st.integers(-511, 513)),
)
# A positive size allocates on that stream; None frees the live block at that position, counted round and round.
COMMANDS = st.lists(st.tuples(st.one_of(SIZES, st.none()), st.integers(0, 1000)), max_size=60)


def play_both(mode: AllocatorMode, commands: list[tuple[int | None, int]]) -> None:
    allocator, slow = CachingAllocator(mode), SlowAllocator(mode)
    live: list[tuple[Block, Span, int]] = []
    first_address: dict[int, int] = {}  # of expandable pools; the slow allocator's all start at 0
    peak_bytes = peak_requested_bytes = 0
    for size, number in commands:
        if size is not None:
            block, span = allocator.malloc(size, stream=number % 2), slow.malloc(size, stream=number % 2)
            first = 0 if mode == "classic" else first_address.setdefault(id(block.pool), block.address)
            assert (block.address - first, block.size_bytes) == (span.start, span.size)
            live.append((block, span, size))
        elif live:
            block, span, _ = live.pop(number % len(live))
            allocator.free(block)
            slow.free(span)
        requested_bytes = sum(size for _, _, size in live)
        peak_bytes = max(peak_bytes, slow.total("used"))
        peak_requested_bytes = max(peak_requested_bytes, requested_bytes)
        assert allocator.allocated_bytes == slow.total("used")
        assert allocator.requested_bytes == requested_bytes
        assert allocator.reserved_bytes == slow.total("used", "free")
        ranges = sorted((block.address, block.address + block.size_bytes) for block, _, _ in live)
        assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    assert (allocator.peak_allocated_bytes, allocator.peak_requested_bytes) == (peak_bytes, peak_requested_bytes)


@BOTH_MODES
@given(commands=COMMANDS)
def test_random_sequences_go_as_in_the_slow_allocator(
    mode: AllocatorMode, commands: list[tuple[int | None, int]]
) -> None:
    play_both(mode, commands)


@BOTH_MODES
def test_long_fragmented_sequences_go_as_in_the_slow_allocator(mode: AllocatorMode) -> None:
    random = Random(0)
    commands: list[tuple[int | None, int]] = []
    for _ in range(800):
        size = random.choice([random.randrange(1, 2 * MIB), random.randrange(1, 50 * MIB), random.choice(EDGES)])
        commands.append((size, random.randrange(1000)))
        commands += [(None, random.randrange(1000)) for _ in range(random.choice([0, 0, 1, 1, 2]))]
    play_both(mode, commands)


@BOTH_MODES
@given(sizes=st.lists(SIZES, min_size=1, max_size=30), order=st.randoms(use_true_random=False))
def test_after_everything_is_freed_all_of_it_can_be_used_again(
    mode: AllocatorMode, sizes: list[int], order: Random
) -> None:
    allocator, slow = CachingAllocator(mode), SlowAllocator(mode)
    blocks = []
    for size in sizes:
        blocks.append(allocator.malloc(size))
        slow.malloc(size, stream=0)
    order.shuffle(blocks)
    for block in blocks:
        allocator.free(block)
    assert (allocator.allocated_bytes, allocator.requested_bytes) == (0, 0)

    reserved_bytes = allocator.reserved_bytes
    for (_, is_small), segments in slow.segments.items():
        mapped = [sum(span.size for span in segment if span.state != "unmapped") for segment in segments]
        # The largest request that the pool serves fills every segment to the last byte.
        for segment_bytes in sorted(mapped, reverse=True):
            request_bytes = MIB if is_small else segment_bytes
            for _ in range(segment_bytes // request_bytes):
                allocator.malloc(request_bytes)
    assert allocator.allocated_bytes == allocator.reserved_bytes == reserved_bytes
