"""Times of collectives among the ranks that torchrun started, by size: a profile's `collectives`.

In: a process group of several ranks, and how many of them are in a node. Out: on every rank the tables of the groups it
is in, as JSON's values; those of rank 0 are the machine's. Three groups are timed, as far as there are such: the ranks
of a node, one rank of each node, and all ranks. A time is what a call takes among calls one after the other, on the
rank where it takes longest.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainfit.cost.measured_collectives import ALL_GATHER, ALL_REDUCE, KINDS, REDUCE_SCATTER

SIZES = tuple(2**exponent for exponent in range(16, 31, 2))
"""Of the whole buffer: 64 KiB to 1 GiB."""
ROUNDS = 5
FEW_BYTES = 2**22
"""Smaller ones are called 20 times in a row, larger ones 4 times."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that torchrun started."""

    rank: int
    local_rank: int
    num_ranks: int
    num_per_node: int

    @classmethod
    def of_environment(cls) -> Ranks | None:
        """None where torchrun started one process, or none."""
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            return None
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        return cls(*(int(os.environ[name]) for name in names))


@contextlib.contextmanager
def gpu_group(ranks: Ranks) -> Iterator[None]:
    """A process group over NCCL, each rank with a GPU of its own; afterwards there is none."""
    torch.cuda.set_device(ranks.local_rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", ranks.local_rank))
    try:
        yield
    finally:
        dist.destroy_process_group()


def measure_collectives(
    num_per_node: int, device: str, report: Callable[[str], None], sizes: Sequence[int] = SIZES
) -> list[dict[str, Any]]:
    """The tables of the groups that this rank is in; every rank must call it."""
    tables = []
    for ranks in _groups(dist.get_world_size(), num_per_node):
        group = dist.new_group(ranks)  # which all ranks take part in making
        if dist.get_rank() not in ranks:
            continue
        num_nodes = len({rank // num_per_node for rank in ranks})
        for kind in KINDS:
            points = [_time(kind, nbytes, len(ranks), group, device) for nbytes in sizes]
            tables.append({"kind": kind, "ranks": len(ranks), "nodes": num_nodes, "points": points})
        report(f"collectives: {len(ranks)} ranks, nodes: {num_nodes}")
    dist.barrier()
    return tables


def _groups(num_ranks: int, num_per_node: int) -> list[list[int]]:
    """Each node's ranks, one rank of each node, all ranks: those with more than one, each once."""
    nodes = [list(range(first, first + num_per_node)) for first in range(0, num_ranks, num_per_node)]
    groups = [*nodes, list(range(0, num_ranks, num_per_node)), list(range(num_ranks))]
    return [list(group) for group in dict.fromkeys(map(tuple, groups)) if len(group) > 1]


def _time(kind: str, nbytes: int, num_ranks: int, group: Any, device: str) -> list[int]:
    """[bytes of the whole buffer, ns per call]."""
    count = max(1, nbytes // (4 * num_ranks))
    whole, part = torch.zeros(count * num_ranks, device=device), torch.zeros(count, device=device)
    call = {
        ALL_GATHER: lambda: dist.all_gather_into_tensor(whole, part, group=group),
        REDUCE_SCATTER: lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        ALL_REDUCE: lambda: dist.all_reduce(whole, group=group),
    }[kind]
    calls = 20 if nbytes < FEW_BYTES else 4
    _run(call, 2, device)
    slowest = torch.tensor([_run(call, calls, device) for _ in range(ROUNDS)], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return [4 * count * num_ranks, max(1, round(1e9 * statistics.median(slowest.tolist()) / calls))]


def _run(call: Callable[[], Any], calls: int, device: str) -> float:
    """Seconds that so many calls take."""
    _finish(device)
    start_s = time.perf_counter()
    for _ in range(calls):
        call()
    _finish(device)
    return time.perf_counter() - start_s


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
