"""The allocator's model against allocation histories of whole training runs, recorded on a GPU from process start.

The recordings are those of benchmarks/record_allocations.py (H200, torch 2.11): four small models, build and three steps
each, with classic and expandable segments.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trainfit.simulate.allocator import AllocatorMode, Block, CachingAllocator

DATA = Path(__file__).parent / "data"
MODELS = ("gpt2", "llama_checkpointed", "lstm", "unet")


@cache
def recording(model: str, mode: AllocatorMode) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(gzip.decompress((DATA / f"{model}.json.gz").read_bytes()))[mode]
    return recorded


def replayed(model: str, mode: AllocatorMode) -> CachingAllocator:
    """The allocator after the recorded run, having reserved memory at the same allocations as the GPU.

    Among free blocks of equal size the one at the lowest address is taken, and where a classic segment lies is up to
    the driver: it is put where the driver put it.
    """
    recorded = recording(model, mode)
    allocator = CachingAllocator(mode)
    blocks: dict[int, Block] = {}
    reserved_bytes = 0
    for number, (action, nbytes, address, stream) in enumerate(recorded["events"]):
        name = recorded["actions"][action]
        if name == "alloc":
            blocks[address] = allocator.malloc(nbytes, stream)
            assert allocator.reserved_bytes == reserved_bytes, f"after event {number}, an allocation of {nbytes} bytes"
        elif name == "free_completed":
            allocator.free(blocks.pop(address))
        else:
            assert name in ("segment_alloc", "segment_map")
            reserved_bytes += nbytes
            if mode == "classic":
                is_small = recorded["events"][number + 1][1] <= 2**20
                allocator._pool(stream, is_small)._end_address = address
    return allocator


@pytest.mark.parametrize("mode", ["classic", "expandable"])
@pytest.mark.parametrize("model", MODELS)
def test_a_recorded_run_has_the_recorded_peaks(model: str, mode: AllocatorMode) -> None:
    recorded, allocator = recording(model, mode), replayed(model, mode)
    assert allocator.peak_allocated_bytes == recorded["peak_allocated_bytes"]
    assert allocator.peak_requested_bytes == recorded["peak_requested_bytes"]
    assert allocator.reserved_bytes == recorded["peak_reserved_bytes"]
