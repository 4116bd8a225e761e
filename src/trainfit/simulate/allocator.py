"""A model of PyTorch's CUDA caching allocator: sizes in, exact allocated and reserved bytes out.

In: `malloc` and `free` in program order. Out: `allocated_bytes` (what `torch.cuda.memory_allocated` says, the sum of
blocks in use), `requested_bytes` (what was asked for), `reserved_bytes` (what `memory_reserved` says), and peaks.

Invariants: the blocks of a segment tile it without gap or overlap, and no two neighbours are both free.
Nothing is ever given back to the GPU: the allocator does that only when memory runs out or on `empty_cache`, so
reserved bytes only grow and are their own peak, and the unmapped part of an expandable segment is always its end.

The rules (torch 2.11 to 2.15, default settings):
- A size is rounded up to 512 bytes. Up to 1 MiB it comes from the small pool of its stream, else from the large one.
- The smallest free block that fits is taken, at the lowest address among equals.
- Classic: when none fits, a new segment is reserved: 2 MiB for the small pool, 20 MiB for sizes under 10 MiB,
  otherwise the size rounded up to 2 MiB. What is left of a large block is split off only if it is over 1 MiB, so a
  large block can carry up to 1 MiB of slack, which counts as allocated. Where a segment lies is up to the driver, and
  matters among equals: see `_DriverAddresses`.
- Expandable: a pool is one segment that grows at its end by pages of 2 MiB (small) or 20 MiB (large). What is left of a
  block is always split off. The free block at the end of the mapped pages counts as being as large as it could grow
  to, so any other block that fits is taken before it.
- A freed block merges with free neighbours in its segment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

AllocatorMode = Literal["classic", "expandable"]

_MIB = 2**20
_BLOCK_UNIT_BYTES = 512
_LARGEST_SMALL_BYTES = _MIB
_SMALL_SEGMENT_BYTES = 2 * _MIB
_LARGE_SEGMENT_BYTES = 20 * _MIB
_OWN_SEGMENT_FROM_BYTES = 10 * _MIB
_SEGMENT_UNIT_BYTES = 2 * _MIB
_FIRST_PLACES_BYTES = (408 * _MIB, 22 * _MIB)
_RANGE_UNIT_BYTES = 32 * _MIB
# Addresses are compared only within a pool; expandable pools are kept apart so that an address names one block.
_POOL_ADDRESS_SPACE_BYTES = 2**48


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment, in use or free, between its neighbours of the same segment."""

    pool: Pool
    address: int
    size_bytes: int
    previous: Block | None
    next: Block | None
    is_free: bool
    requested_bytes: int = 0  # of its latest use


PoolKey = tuple[int, bool]
"""A stream, and whether blocks are small."""


def place(nbytes: int, stream: int = 0) -> tuple[int, PoolKey]:
    """The size of the block for so many bytes, and the pool that it comes from."""
    size_bytes = _round_up(nbytes, _BLOCK_UNIT_BYTES)
    return size_bytes, (stream, size_bytes <= _LARGEST_SMALL_BYTES)


class CachingAllocator:
    """The allocator of one GPU in a fresh process."""

    def __init__(self, mode: AllocatorMode) -> None:
        self._mode = mode
        self._addresses = _DriverAddresses()
        self._pools: dict[PoolKey, Pool] = {}
        self.allocated_bytes = 0
        self.requested_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_requested_bytes = 0

    @property
    def reserved_bytes(self) -> int:
        return sum(pool.reserved_bytes for pool in self._pools.values())

    def malloc(self, nbytes: int, stream: int = 0) -> Block:
        if nbytes <= 0:
            raise ValueError(f"cannot allocate {nbytes} bytes: an empty storage takes no block, skip it")
        size_bytes, key = place(nbytes, stream)
        block = self.pool(key).take(size_bytes)
        block.requested_bytes = nbytes
        self.allocated_bytes += block.size_bytes
        self.requested_bytes += nbytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        if self.requested_bytes > self.peak_requested_bytes:
            self.peak_requested_bytes = self.requested_bytes
        return block

    def free(self, block: Block) -> None:
        if block.is_free:
            raise ValueError(f"the block of {block.size_bytes} bytes at {block.address:#x} is freed twice")
        self.allocated_bytes -= block.size_bytes
        self.requested_bytes -= block.requested_bytes
        block.pool.give_back(block)

    def free_blocks(self) -> list[Block]:
        """What is reserved and not in use."""
        return [block for pool in self._pools.values() for block in pool.free_blocks()]

    def reset_peaks(self) -> None:
        """As `torch.cuda.reset_peak_memory_stats`: peaks start again from what is in use now."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_requested_bytes = self.requested_bytes

    def pool(self, key: PoolKey) -> Pool:
        """Where `place` says that a block comes from; taken from there, it is not counted as allocated."""
        pool = self._pools.get(key)
        if pool is None:
            _, is_small = key
            if self._mode == "classic":
                pool = _ClassicPool(is_small, self._addresses)
            else:
                pool = _ExpandablePool(is_small, first_address=len(self._pools) * _POOL_ADDRESS_SPACE_BYTES)
            self._pools[key] = pool
        return pool


class _DriverAddresses:
    """Where cudaMalloc puts segments, as recordings show it (tests/data; H200, Linux).

    Of a first range of 512 MiB the driver keeps some (the context, code of kernels); what it leaves, 408 MiB and above
    them 22 MiB, is filled upwards. After that every range lies below the one before; it is a multiple of 32 MiB, and
    what a segment leaves of it is filled upwards by later ones that fit. The lowest place is taken.
    """

    def __init__(self) -> None:
        lower_bytes, upper_bytes = _FIRST_PLACES_BYTES
        # What is left of ranges: bytes -> a heap of addresses. There are thousands of places, but of few sizes, since a
        # range leaves less than its unit. The driver's part keeps the first two from being one.
        self._places = {lower_bytes: [0], upper_bytes: [lower_bytes + _MIB]}
        self._lowest_address = 0

    def reserve(self, segment_bytes: int) -> int:
        fitting = [(heap[0], nbytes) for nbytes, heap in self._places.items() if nbytes >= segment_bytes]
        if fitting:
            address, left_bytes = min(fitting)
            heappop(self._places[left_bytes])
            if not self._places[left_bytes]:
                del self._places[left_bytes]
        else:
            left_bytes = _round_up(segment_bytes, _RANGE_UNIT_BYTES)
            self._lowest_address -= left_bytes
            address = self._lowest_address
        if left_bytes > segment_bytes:
            heappush(self._places.setdefault(left_bytes - segment_bytes, []), address + segment_bytes)
        return address


class Pool(ABC):
    """The segments of one stream and one size class; subclasses say how they grow and what is worth splitting off.

    Plans are found by playing them, so `take` and `give_back` run millions of times: they call as little as they can.
    """

    _unmapped: Block | None = None
    """Where an expandable segment ends."""

    def __init__(self, is_small: bool, min_remainder_bytes: int) -> None:
        self.is_small = is_small
        self.reserved_bytes = 0
        self._min_remainder_bytes = min_remainder_bytes
        self._free: list[tuple[int, int, Block]] = []  # (size, address, block), sorted: best fit is a bisection

    def take(self, size_bytes: int) -> Block:
        free = self._free
        index = bisect_left(free, (size_bytes,))
        if index < len(free):
            if self._unmapped is not None and free[index][2].next is self._unmapped and index + 1 < len(free):
                index += 1
            block = free.pop(index)[2]
        else:
            block = self._grow(size_bytes)
        rest_bytes = block.size_bytes - size_bytes
        if rest_bytes >= self._min_remainder_bytes:  # what is left becomes a free block after it
            following = block.next
            rest = Block(self, block.address + size_bytes, rest_bytes, block, following, True)
            if following is not None:
                following.previous = rest
            block.next = rest
            block.size_bytes = size_bytes
            insort(free, (rest_bytes, rest.address, rest))
        block.is_free = False
        return block

    def give_back(self, block: Block) -> None:
        free = self._free
        previous, following = block.previous, block.next
        if previous is not None and previous.is_free:
            del free[bisect_left(free, (previous.size_bytes, previous.address))]
            block.address = previous.address
            block.size_bytes += previous.size_bytes
            block.previous = previous.previous
            if block.previous is not None:
                block.previous.next = block
        if following is not None and following.is_free:
            del free[bisect_left(free, (following.size_bytes, following.address))]
            block.size_bytes += following.size_bytes
            block.next = following.next
            if block.next is not None:
                block.next.previous = block
        block.is_free = True
        insort(free, (block.size_bytes, block.address, block))

    def free_blocks(self) -> list[Block]:
        return [block for _, _, block in self._free]

    @abstractmethod
    def _grow(self, size_bytes: int) -> Block:
        """Reserve more memory; returns a block of at least that size which is not in the free list."""


class _ClassicPool(Pool):
    """Many segments of fixed size."""

    def __init__(self, is_small: bool, addresses: _DriverAddresses) -> None:
        super().__init__(is_small, _BLOCK_UNIT_BYTES if is_small else _MIB + _BLOCK_UNIT_BYTES)
        self._addresses = addresses

    def _grow(self, size_bytes: int) -> Block:
        if self.is_small:
            segment_bytes = _SMALL_SEGMENT_BYTES
        elif size_bytes < _OWN_SEGMENT_FROM_BYTES:
            segment_bytes = _LARGE_SEGMENT_BYTES
        else:
            segment_bytes = _round_up(size_bytes, _SEGMENT_UNIT_BYTES)
        address = self._addresses.reserve(segment_bytes)
        block = Block(self, address, segment_bytes, previous=None, next=None, is_free=False)
        self.reserved_bytes += segment_bytes
        return block


class _ExpandablePool(Pool):
    """One segment, mapped page by page."""

    def __init__(self, is_small: bool, first_address: int) -> None:
        super().__init__(is_small, _BLOCK_UNIT_BYTES)
        self._page_bytes = _SMALL_SEGMENT_BYTES if is_small else _LARGE_SEGMENT_BYTES
        # Stands for all address space not mapped yet, so that the last mapped block is found as its neighbour.
        # Not free: nothing merges with it.
        self._unmapped = Block(self, first_address, 0, previous=None, next=None, is_free=False)

    def _grow(self, size_bytes: int) -> Block:
        unmapped = self._unmapped
        assert unmapped is not None
        last = unmapped.previous
        if last is not None and last.is_free:
            del self._free[bisect_left(self._free, (last.size_bytes, last.address))]
            block = last
        else:
            block = Block(self, unmapped.address, 0, previous=last, next=unmapped, is_free=False)
            if last is not None:
                last.next = block
            unmapped.previous = block
        mapped_bytes = _round_up(size_bytes - block.size_bytes, self._page_bytes)
        block.size_bytes += mapped_bytes
        unmapped.address += mapped_bytes
        self.reserved_bytes += mapped_bytes
        return block


def _round_up(nbytes: int, unit_bytes: int) -> int:
    return -(-nbytes // unit_bytes) * unit_bytes
