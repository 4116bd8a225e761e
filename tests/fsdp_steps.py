"""Steps sharded by torch itself, small enough to be counted by hand.

A block is Linear(6, 10) followed by Linear(10, 6): dimension 0 of its weights is 10 and 6. On 4 ranks a shard has 3
rows of 10 (12 with padding) and 2 rows of 6 (8 with padding). Elements per shard: weight 3 x 6 = 18, bias 3, weight
2 x 10 = 20, bias 2: 43 in all. The head, Linear(6, 5), is the root's: weight 2 x 6 = 12, bias 2: 14 in all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import trainfit
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Op, Trace
from trainfit.trace import trace_step

H200 = find_gpu("h200")
SHARD, ROOT_SHARD = 43, 14
UNSHARDED = [12 * 6, 12, 8 * 10, 8]  # elements of each parameter of a block, gathered with padding
GATHER, REDUCE, SUM = "c10d._allgather_base_.default", "c10d._reduce_scatter_base_.default", "c10d.allreduce_.default"
COPY_IN_STREAM, GATHER_STREAM, REDUCE_STREAM, SUM_STREAM = 1, 2, 3, 4  # in the order in which FSDP2 makes them


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).sum()


def make_step(fsdp: trainfit.FSDP, **options: Any) -> trainfit.Step:
    return trainfit.Step(model=Model, batch=(torch.zeros(3, 6),), fsdp=fsdp, **options)


@functools.cache
def trace_of(fsdp: trainfit.FSDP, **options: Any) -> Trace:
    return trace_step(make_step(fsdp, **options), H200)


def steady_ops(trace: Trace) -> Iterator[Op]:
    for index in trace.steady_step:
        yield from trace.ops[trace.sections[index].first_op : trace.sections[index].last_op]


def refs(op: Op) -> list[tuple[str, tuple[int, ...]]]:
    return [(ref.dtype, ref.shape) for ref in op.input_refs()]


def ranks(op: Op) -> object:
    return dict(op.kwargs)["ranks"]


def named(trace: Trace, name: str) -> list[Op]:
    return [op for op in steady_ops(trace) if op.name == name]
