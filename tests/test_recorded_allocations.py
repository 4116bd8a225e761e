"""The allocator's model against allocation histories of whole training runs, recorded on a GPU from process start.

The recordings are those of benchmarks/record_allocations.py (H200, torch 2.11): four small models, the zoo's
conv1d_fp32, whose large buffers show what the driver leaves of its first range, and resnet34_amp of the blind test,
which the model of the allocator had not seen; build and three steps each, with classic and expandable segments.
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
MODELS = ("conv1d", "gpt2", "llama_checkpointed", "lstm", "resnet34", "unet")


@cache
def recording(model: str, mode: AllocatorMode) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(gzip.decompress((DATA / f"{model}.json.gz").read_bytes()))[mode]
    return recorded


class RecordedAddresses:
    """The driver put the segments where the recording says."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        segment_alloc = recorded["actions"].index("segment_alloc")
        self._segments = iter([event for event in recorded["events"] if event[0] == segment_alloc])

    def reserve(self, segment_bytes: int) -> int:
        _, nbytes, address, _ = next(self._segments)
        assert nbytes == segment_bytes
        return int(address)


def replayed(model: str, mode: AllocatorMode, allocator: CachingAllocator) -> CachingAllocator:
    """The allocator after the recorded run, having reserved memory at the same allocations as the GPU."""
    recorded = recording(model, mode)
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
    return allocator


def assert_peaks(allocator: CachingAllocator, recorded: dict[str, Any]) -> None:
    assert allocator.peak_allocated_bytes == recorded["peak_allocated_bytes"]
    assert allocator.peak_requested_bytes == recorded["peak_requested_bytes"]
    assert allocator.reserved_bytes == recorded["peak_reserved_bytes"]


@pytest.mark.parametrize("mode", ["classic", "expandable"])
@pytest.mark.parametrize("model", MODELS)
def test_a_recorded_run_has_the_recorded_peaks(model: str, mode: AllocatorMode) -> None:
    assert_peaks(replayed(model, mode, CachingAllocator(mode)), recording(model, mode))


@pytest.mark.parametrize("model", MODELS)
def test_classic_segments_at_the_recorded_addresses_give_the_recorded_peaks(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = recording(model, "classic")
    allocator = CachingAllocator("classic")
    monkeypatch.setattr(allocator, "_addresses", RecordedAddresses(recorded))
    assert_peaks(replayed(model, "classic", allocator), recorded)
