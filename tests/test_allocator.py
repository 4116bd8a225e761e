"""The caching allocator's model on hand-computed sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest

from trainfit.simulate.allocator import AllocatorMode, Block, CachingAllocator

KIB = 2**10
MIB = 2**20
BOTH_MODES = pytest.mark.parametrize("mode", ["classic", "expandable"])


class Peaks(NamedTuple):
    allocated_bytes: int
    requested_bytes: int
    reserved_bytes: int


def replay(events: Iterable[tuple[str, int, int, int]], mode: AllocatorMode) -> Peaks:
    """Peaks of a history recorded by `torch.cuda.memory._record_memory_history`, as (action, size, address, stream).

    The history must start with the process. Sizes are as requested; addresses only tell which allocation ends.
    """
    allocator = CachingAllocator(mode)
    blocks: dict[int, Block] = {}
    for action, nbytes, address, stream in events:
        if action == "alloc":
            assert address not in blocks, f"the history allocates {address:#x} twice"
            blocks[address] = allocator.malloc(nbytes, stream)
        elif action == "free_completed":
            allocator.free(blocks.pop(address))
        else:  # the requests for what is completed later, and what the allocator itself did about it
            assert action in {"free_requested", "segment_alloc", "segment_map", "snapshot"}, f"no model of {action!r}"
    return Peaks(allocator.peak_allocated_bytes, allocator.peak_requested_bytes, allocator.reserved_bytes)


def offset(block: Block, first: Block) -> int:
    """Where a block lies, counted from the first one that its pool served."""
    assert block.pool is first.pool
    return block.address - first.address


# ---- both modes


@BOTH_MODES
def test_sizes_are_rounded_up_to_512_bytes(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    assert [allocator.malloc(nbytes).size_bytes for nbytes in (1, 512, 513, 1024)] == [512, 512, 1024, 1024]
    assert allocator.allocated_bytes == 3072
    assert allocator.requested_bytes == 1 + 512 + 513 + 1024
    assert allocator.reserved_bytes == 2 * MIB


@BOTH_MODES
def test_one_mib_is_small_and_a_byte_more_is_large(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    allocator.malloc(MIB)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.malloc(MIB + 1)
    assert allocator.reserved_bytes == 2 * MIB + 20 * MIB
    assert allocator.allocated_bytes == MIB + MIB + 512


@BOTH_MODES
def test_the_small_pool_splits_down_to_512_bytes(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    first = allocator.malloc(MIB)
    second = allocator.malloc(MIB - 512)
    third = allocator.malloc(512)
    assert [offset(block, first) for block in (second, third)] == [MIB, 2 * MIB - 512]
    assert allocator.allocated_bytes == allocator.reserved_bytes == 2 * MIB


@BOTH_MODES
def test_a_small_request_does_not_use_a_free_large_block(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(512)
    assert allocator.reserved_bytes == 22 * MIB


@BOTH_MODES
def test_streams_do_not_share_blocks(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    allocator.free(allocator.malloc(20 * MIB, stream=0))
    allocator.malloc(20 * MIB, stream=7)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.malloc(20 * MIB, stream=0)
    assert allocator.reserved_bytes == 40 * MIB


@BOTH_MODES
def test_a_freed_block_merges_with_free_neighbours_on_both_sides(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    first, second, third, fourth = [allocator.malloc(512 * KIB) for _ in range(4)]
    start = first.address
    allocator.free(first)
    allocator.free(third)
    allocator.free(second)  # 1.5 MiB free in one piece, then 0.5 MiB in use
    whole = allocator.malloc(MIB)
    rest = allocator.malloc(512 * KIB)
    assert (whole.address - start, rest.address - start) == (0, MIB)
    assert rest.next is fourth
    assert allocator.reserved_bytes == 2 * MIB


@BOTH_MODES
def test_free_blocks_that_do_not_touch_are_not_one(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    blocks = [allocator.malloc(512 * KIB) for _ in range(4)]
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    allocator.malloc(MIB)
    assert allocator.reserved_bytes == 4 * MIB


@BOTH_MODES
def test_the_smallest_block_that_fits_is_taken(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    blocks = {}
    for size_mib in (60, 40, 48):
        blocks[size_mib] = allocator.malloc(size_mib * MIB)
        allocator.malloc(20 * MIB)  # keeps the blocks apart
    addresses = {size_mib: block.address for size_mib, block in blocks.items()}
    for block in blocks.values():
        allocator.free(block)
    assert allocator.malloc(41 * MIB).address == addresses[48]
    assert allocator.malloc(40 * MIB).address == addresses[40]


@BOTH_MODES
def test_among_equal_blocks_the_lowest_address_is_taken(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    blocks = [allocator.malloc(20 * MIB) for _ in range(5)]
    addresses = [block.address for block in blocks]
    for index in (3, 1):
        allocator.free(blocks[index])
    assert [allocator.malloc(20 * MIB).address for _ in range(2)] == [addresses[1], addresses[3]]


@BOTH_MODES
def test_peaks_start_again_from_what_is_in_use(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    allocator.malloc(100)
    block = allocator.malloc(1000)
    allocator.free(block)
    assert (allocator.allocated_bytes, allocator.peak_allocated_bytes) == (512, 1536)
    assert (allocator.requested_bytes, allocator.peak_requested_bytes) == (100, 1100)
    allocator.reset_peaks()
    assert (allocator.peak_allocated_bytes, allocator.peak_requested_bytes) == (512, 100)
    allocator.malloc(1)
    assert (allocator.peak_allocated_bytes, allocator.peak_requested_bytes) == (1024, 101)


@BOTH_MODES
def test_freeing_twice_is_an_error(mode: AllocatorMode) -> None:
    allocator = CachingAllocator(mode)
    block = allocator.malloc(1)
    allocator.free(block)
    with pytest.raises(ValueError, match="freed twice"):
        allocator.free(block)


@BOTH_MODES
def test_allocating_nothing_is_an_error(mode: AllocatorMode) -> None:
    with pytest.raises(ValueError, match="cannot allocate 0 bytes"):
        CachingAllocator(mode).malloc(0)


# ---- classic segments


@pytest.mark.parametrize(
    ("nbytes", "segment_bytes"),
    [
        (2 * MIB, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),  # rounded to 512 first
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (501 * MIB, 502 * MIB),
    ],
)
def test_classic_segment_sizes(nbytes: int, segment_bytes: int) -> None:
    allocator = CachingAllocator("classic")
    allocator.malloc(nbytes)
    assert allocator.reserved_bytes == segment_bytes


@pytest.mark.parametrize(
    ("nbytes", "block_bytes"),
    [
        (15 * MIB + 512 * KIB, 16 * MIB),  # 0.5 MiB left: kept
        (19 * MIB, 20 * MIB),  # exactly 1 MiB left: kept
        (19 * MIB - 512, 19 * MIB - 512),  # more than 1 MiB left: split off
        (10 * MIB + 512, 10 * MIB + 512),
    ],
)
def test_classic_large_blocks_keep_up_to_one_mib_of_slack(nbytes: int, block_bytes: int) -> None:
    allocator = CachingAllocator("classic")
    block = allocator.malloc(nbytes)
    assert block.size_bytes == allocator.allocated_bytes == block_bytes
    assert allocator.requested_bytes == nbytes


def test_classic_slack_is_allocated_only_while_the_block_is_in_use() -> None:
    allocator = CachingAllocator("classic")
    allocator.free(allocator.malloc(20 * MIB))
    block = allocator.malloc(19 * MIB + 100)
    assert allocator.allocated_bytes == 20 * MIB
    allocator.free(block)
    assert allocator.allocated_bytes == allocator.requested_bytes == 0


def test_classic_segments_do_not_merge_with_each_other() -> None:
    allocator = CachingAllocator("classic")
    for block in [allocator.malloc(10 * MIB) for _ in range(2)]:
        allocator.free(block)
    allocator.malloc(20 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_classic_takes_the_rest_of_a_segment_before_a_new_one() -> None:
    allocator = CachingAllocator("classic")
    first = allocator.malloc(4 * MIB)
    assert [offset(allocator.malloc(8 * MIB), first) for _ in range(2)] == [4 * MIB, 12 * MIB]
    assert allocator.reserved_bytes == allocator.allocated_bytes == 20 * MIB


def test_classic_segments_lie_upwards_at_first_and_then_downwards() -> None:
    """The driver leaves 408 and 22 MiB, then come ranges of whole 32 MiB, each below the last; the lowest gap first."""
    allocator = CachingAllocator("classic")
    sizes_mib = [400, 20, 12, 12, 600, 8]
    addresses = [allocator.malloc(size * MIB).address // MIB for size in sizes_mib]
    # 20 fits into the 22; 12 needs a range of 32 below, which has room for another; 600 has a range of 608; 8 is a
    # segment of 20 of its own.
    assert addresses == [0, 409, -32, -20, -640, -672]


# ---- expandable segments


def test_expandable_maps_pages_of_2_and_20_mib() -> None:
    allocator = CachingAllocator("expandable")
    allocator.malloc(1)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.malloc(41 * MIB)
    assert allocator.reserved_bytes == 2 * MIB + 60 * MIB


def test_expandable_always_splits() -> None:
    allocator = CachingAllocator("expandable")
    first = allocator.malloc(20 * MIB - 512)
    assert allocator.allocated_bytes == 20 * MIB - 512
    # The 512 bytes that are left are too few for a large request, but they are the start of it.
    second = allocator.malloc(20 * MIB)
    assert offset(second, first) == 20 * MIB - 512
    assert allocator.reserved_bytes == 40 * MIB


def test_expandable_grows_from_the_free_end() -> None:
    allocator = CachingAllocator("expandable")
    first = allocator.malloc(15 * MIB)
    second = allocator.malloc(25 * MIB)  # 5 MiB are there, one page more makes 25
    assert offset(second, first) == 15 * MIB
    assert allocator.reserved_bytes == allocator.allocated_bytes == 40 * MIB
    third = allocator.malloc(2 * MIB)
    assert offset(third, first) == 40 * MIB
    assert allocator.reserved_bytes == 60 * MIB


def test_expandable_grows_a_wholly_free_segment_in_place() -> None:
    allocator = CachingAllocator("expandable")
    first = allocator.malloc(30 * MIB)
    start = first.address
    allocator.free(first)
    assert allocator.malloc(50 * MIB).address == start
    assert allocator.reserved_bytes == 60 * MIB


def test_expandable_fills_a_hole_before_it_grows() -> None:
    allocator = CachingAllocator("expandable")
    first = allocator.malloc(30 * MIB)
    start = first.address
    allocator.malloc(30 * MIB)
    allocator.free(first)
    assert allocator.malloc(25 * MIB).address == start
    assert allocator.malloc(5 * MIB).address == start + 25 * MIB
    assert allocator.reserved_bytes == allocator.allocated_bytes == 60 * MIB


def test_expandable_takes_a_larger_hole_before_the_end_that_could_grow() -> None:
    allocator = CachingAllocator("expandable")
    first = allocator.malloc(30 * MIB)
    start = first.address
    allocator.malloc(4 * MIB)  # 34 of 40 MiB in use: 6 MiB free at the end
    allocator.free(first)
    assert allocator.malloc(5 * MIB).address == start  # 6 MiB would fit better
    assert allocator.malloc(26 * MIB).address == start + 34 * MIB  # the hole has only 25 MiB left
    assert allocator.reserved_bytes == 60 * MIB


def test_expandable_takes_the_end_when_nothing_else_fits() -> None:
    allocator = CachingAllocator("expandable")
    first = allocator.malloc(4 * MIB)
    start = first.address
    allocator.malloc(10 * MIB)
    allocator.free(first)  # a hole of 4 MiB, and 6 MiB at the end
    assert allocator.malloc(5 * MIB).address == start + 14 * MIB
    assert allocator.reserved_bytes == 20 * MIB


# ---- recorded histories


def test_replay_pairs_frees_with_allocations_by_address() -> None:
    history = [
        ("segment_alloc", 20 * MIB, 0x1000, 0),
        ("alloc", 15 * MIB, 0x1000, 0),
        ("alloc", 700, 0x9000, 0),
        ("free_requested", 15 * MIB, 0x1000, 0),
        ("free_completed", 15 * MIB, 0x1000, 0),
        ("alloc", 16 * MIB, 0x1000, 0),
    ]
    # Classic: 15 MiB reserve 16 and keep the slack; the second one takes that block whole.
    assert replay(history, "classic") == Peaks(16 * MIB + 1024, 16 * MIB + 700, 18 * MIB)
    assert replay(history, "expandable") == Peaks(16 * MIB + 1024, 16 * MIB + 700, 22 * MIB)


def test_replay_refuses_a_history_in_which_memory_was_given_back() -> None:
    with pytest.raises(AssertionError, match="no model of 'segment_free'"):
        replay([("segment_free", 2 * MIB, 0x1000, 0)], "classic")
