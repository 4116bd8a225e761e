"""DistributedDataParallel by hand: four weights of 1 MiB each, and the buckets in which their gradients are summed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import trainfit
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Category, Op, Trace
from trainfit.trace import trace_step

MIB = 2**20
SUM = "c10d.allreduce_.default"


def build() -> nn.Module:
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(4)))


def make_step(ddp: trainfit.DDP, **options: Any) -> trainfit.Step:
    batch = (torch.zeros(1, 512),)
    return trainfit.Step(model=build, batch=batch, loss=lambda output: output.sum(), ddp=ddp, **options)


def steady_ops(trace: Trace) -> Iterator[Op]:
    for index in trace.steady_step:
        yield from trace.ops[trace.sections[index].first_op : trace.sections[index].last_op]


@pytest.mark.parametrize(("cap_mib", "buckets_mib"), [(2, [2, 2]), (None, [1, 3])])
def test_buckets_fill_in_the_order_in_which_gradients_come(cap_mib: int | None, buckets_mib: list[int]) -> None:
    trace = trace_step(make_step(trainfit.DDP(world_size=4, bucket_cap_mb=cap_mib)), find_gpu("h200"))
    sums = [op for op in steady_ops(trace) if op.name == SUM]
    assert [ref.numel * 4 // MIB for op in sums for ref in op.input_refs()] == buckets_mib
    assert [dict(op.kwargs)["ranks"] for op in sums] == [(0, 1, 2, 3)] * 2
    assert {op.stream for op in sums} == {1}
    # Backward is over when the last bucket is: the next op of the default stream waits for all of them.
    ops = list(steady_ops(trace))
    last = max(number for number, op in enumerate(ops) if op.name == SUM)
    after = next(number for number, op in enumerate(ops) if number > last and op.stream == 0)
    assert {after - back for back in ops[after].waits} == {number for number, op in enumerate(ops) if op.name == SUM}


@pytest.mark.parametrize(("is_view", "gradients_mib"), [(False, 8), (True, 4)])
def test_buckets_are_beside_the_gradients_or_under_them(is_view: bool, gradients_mib: int) -> None:
    step = make_step(trainfit.DDP(world_size=4, gradient_as_bucket_view=is_view))
    estimate = trainfit.estimate(step, "h200")
    gradients = list(Category).index(Category.GRADIENTS)
    assert max(point.bytes_by_category[gradients] for point in estimate.timeline) == gradients_mib * MIB
    assert estimate.timeline[-1].bytes_by_category[gradients] == 4 * MIB  # the buckets stay


@pytest.mark.parametrize(("every", "sums"), [(True, 6), (False, 2)])
def test_micro_batches_are_summed_every_time_or_at_the_end(every: bool, sums: int) -> None:
    step = make_step(trainfit.DDP(world_size=4, sync_every_micro_batch=every), micro_batches=3)
    assert sum(op.name == SUM for op in steady_ops(trace_step(step, find_gpu("h200")))) == sums
