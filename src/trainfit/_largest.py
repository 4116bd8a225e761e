"""`largest_batch`: how far a step's batch can grow until recomputing nothing no longer fits.

In: a step that fits, a GPU, a budget. Out: the largest size of the batch's first dimension whose traced step is within
the budget while the next larger one's is not. Peaks are nearly straight lines in the size, so a few traces find it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainfit._estimate import estimate_trace, trace_step
from trainfit._plan_record import MemoryKind
from trainfit.gpus.catalogue import Gpu
from trainfit.progress import part_of
from trainfit.simulate import AllocatorMode
from trainfit.step import Step

_LARGEST = 2**20


def largest_batch(
    step: Step, gpu: Gpu, budget_bytes: int, *, memory: MemoryKind, allocator: AllocatorMode
) -> int | None:
    """The largest batch that fits with nothing recomputed; None where the batch has no tensor to grow."""
    size = batch_size(step)
    if size is None:
        return None

    def peak_bytes(size: int) -> int:
        with part_of(f"batch {size}"):
            estimate = estimate_trace(trace_step(with_batch_size(step, size), gpu), gpu, allocator)
        return estimate.peak_reserved_bytes if memory == "reserved" else estimate.peak_allocated_bytes

    low, low_bytes = size, peak_bytes(size)
    high, high_bytes = 2 * size, peak_bytes(2 * size)
    while high_bytes <= budget_bytes:
        if high >= _LARGEST:
            return None
        low, low_bytes, high = high, high_bytes, _crossing(low, low_bytes, high, high_bytes, budget_bytes)
        high_bytes = peak_bytes(high)
    while high - low > 1:
        middle = min(
            high - 1, max(low + 1, low + (high - low) * (budget_bytes - low_bytes) // (high_bytes - low_bytes))
        )
        middle_bytes = peak_bytes(middle)
        if middle_bytes <= budget_bytes:
            low, low_bytes = middle, middle_bytes
        else:
            high, high_bytes = middle, middle_bytes
    return low


def _crossing(low: int, low_bytes: int, high: int, high_bytes: int, budget_bytes: int) -> int:
    """The size just beyond which the straight line through both leaves the budget; at most sixteen times the larger."""
    per_sample = max(1, (high_bytes - low_bytes) // (high - low))
    return max(high + 1, min(16 * high, high + (budget_bytes - high_bytes) // per_sample + 1, _LARGEST))


def batch_size(step: Step) -> int | None:
    """The first dimension of the batch's first tensor."""
    values = step.batch.values() if isinstance(step.batch, Mapping) else step.batch
    return next((value.shape[0] for value in values if getattr(value, "ndim", 0) >= 1), None)


def sequence_length(step: Step) -> int | None:
    """The second dimension of the batch's first tensor that has one."""
    values = step.batch.values() if isinstance(step.batch, Mapping) else step.batch
    return next((value.shape[1] for value in values if getattr(value, "ndim", 0) >= 2), None)


def with_batch_size(step: Step, size: int) -> Step:
    """The same step with another first dimension of its batch's tensors.

    Integers that have data (tokens, masks) keep it, row after row, because it may steer the model; noise has none.
    """
    import torch

    now = batch_size(step)
    tensors: dict[int, torch.Tensor] = {}  # labels are often the very tensor that the inputs are

    def grown(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.ndim == 0 or value.shape[0] != now:
            return value
        if id(value) not in tensors:
            if value.is_meta or value.is_floating_point():
                empty = torch.empty((size, *value.shape[1:]), dtype=value.dtype, device="meta")
                tensors[id(value)] = empty.requires_grad_(value.requires_grad)
            else:
                tensors[id(value)] = value[torch.arange(size, device=value.device) % value.shape[0]]
        return tensors[id(value)]

    if isinstance(step.batch, Mapping):
        return replace(step, batch={name: grown(value) for name, value in step.batch.items()})
    return replace(step, batch=tuple(grown(value) for value in step.batch))
