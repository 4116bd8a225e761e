"""What a module can drop and what that costs to recompute: the greedy order, its curve, and lines above the curve.

In: `SACStats` of one module. Out: `SACGreedyOrderMeta`, then `SACTradeOffStats`. Pure functions, the same result for
the same input.

Ops that must go together are one group: the ops that write to one storage, and all random ops, which share a
generator. Groups are dropped in the order of bytes per millisecond, the best first. The curve has one point per group:
the share of the memory that is dropped, and the share of the forward's time that its recomputation takes. Dropping at
least r takes the time of the first point at or beyond r, a staircase. The fitted lines are never below it.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


@dataclass
class SACStats:
    """The ops of one call of a module; positions are those at which torch's selective checkpointing sees them."""

    func_names: list[str]
    """"addmm", "relu_", ..."""
    runtimes: list[float]
    """In ms."""
    memory: list[int]
    """Bytes that an op makes and that keeping its result holds: 0 for views and for what writes in place."""
    view_like_ops: list[int]
    """Ops that make nothing new: recomputing them is free."""
    rand_ops: list[int]
    """Ops that draw random numbers."""
    saved_autograd_ops: list[int]
    """Ops whose results autograd keeps for backward."""
    inplace_ops: list[tuple[int, int]]
    """(op, the op that made what it writes to); (op, op) when that was made outside the module."""
    force_store_random: bool


class MSPS(NamedTuple):
    """One group: what dropping it frees, what recomputing it takes, and bytes per ms."""

    func_names: set[str]
    op_idx: int  # its first op
    memory: int
    runtime: float  # ms
    msps: float


@dataclass
class SACGreedyOrderMeta:
    """Which ops are always recomputed, which always stored, and the others by group in the order of dropping."""

    recomputed_ops: set[int]
    """Views."""
    stored_ops: set[int]
    inplace_op_groups: dict[int, set[int]]
    """By the op that made a storage, all ops that write to it."""
    random_ops_group: dict[int, set[int]]
    """By the first random op, all of them."""
    msps_meta: list[MSPS]


@dataclass
class SACTradeOffStats:
    """The curve {share of memory dropped: share of time}, and lines above it."""

    n_segments: int
    slopes: list[float]
    """Of the lines, in the order of the curve."""
    intercepts: list[float]
    fit_breaks: list[float]
    """Where the lines begin and end."""
    tradeoff_curve: OrderedDict[float, float]
    sac_memory: int
    """Bytes that the module's ops make."""
    sac_runtime: float
    """ms of its forward."""


def groups_of(stats: SACStats) -> list[set[int]]:
    """The ops that are kept or dropped together, each op in one group, in the order of their first ops."""
    group_of = {op: {op} for op in range(len(stats.func_names))}

    def join(first: int, second: int) -> None:
        if group_of[first] is not group_of[second]:
            group_of[first] |= group_of[second]
            for op in group_of[second]:
                group_of[op] = group_of[first]

    for op, parent in stats.inplace_ops:
        join(parent, op)
    for first, second in pairwise(stats.rand_ops):
        join(first, second)
    return list({id(group): group for group in group_of.values()}.values())


def must_store(stats: SACStats, group: Iterable[int]) -> bool:
    """Whether the group can only be kept: it writes to what the module was given, or random ops are to be stored."""
    random = set(stats.rand_ops) if stats.force_store_random else set()
    written_inputs = {op for op, parent in stats.inplace_ops if op == parent}
    return not written_inputs.isdisjoint(group) or not random.isdisjoint(group)


def greedy_order(stats: SACStats) -> SACGreedyOrderMeta:
    """The groups by what they free per ms, the most first."""
    views, stored = set(stats.view_like_ops), set()
    candidates = []
    for group in groups_of(stats):
        if group <= views:
            continue
        if must_store(stats, group):
            stored |= group
            continue
        memory, runtime = sum(stats.memory[op] for op in group), sum(stats.runtimes[op] for op in group)
        msps = memory / runtime if runtime > 0 else sys.float_info.max
        candidates.append(MSPS({stats.func_names[op] for op in group}, min(group), memory, runtime, msps))
    inplace: dict[int, set[int]] = {}
    for op, parent in stats.inplace_ops:
        inplace.setdefault(parent, {parent}).add(op)
    return SACGreedyOrderMeta(
        recomputed_ops=views,
        stored_ops=stored,
        inplace_op_groups=inplace,
        random_ops_group={min(stats.rand_ops): set(stats.rand_ops)} if stats.rand_ops else {},
        msps_meta=sorted(candidates, key=lambda candidate: (-candidate.msps, candidate.op_idx)),
    )


def tradeoff(stats: SACStats, order: SACGreedyOrderMeta, n_segments: int = 2) -> SACTradeOffStats:
    """The curve of the greedy order, and `n_segments` lines above it or fewer."""
    total_bytes, total_ms = sum(stats.memory), sum(stats.runtimes)
    dropped_bytes, recompute_ms = 0, sum(stats.runtimes[op] for op in order.recomputed_ops)
    curve = OrderedDict({0.0: _share(recompute_ms, total_ms)})
    for group in order.msps_meta:
        if group.memory > 0:  # what frees nothing is never dropped
            dropped_bytes += group.memory
            recompute_ms += group.runtime
            curve[dropped_bytes / total_bytes] = _share(recompute_ms, total_ms)
    breaks, values = lines_above(list(curve.items()), n_segments)
    slopes = [(after - before) / (right - left) for (left, before), (right, after) in
              pairwise(zip(breaks, values, strict=True))]  # fmt: skip
    return SACTradeOffStats(
        n_segments=len(slopes),
        slopes=slopes,
        intercepts=[value - slope * left for slope, value, left in zip(slopes, values, breaks, strict=False)],
        fit_breaks=breaks,
        tradeoff_curve=curve,
        sac_memory=total_bytes,
        sac_runtime=total_ms,
    )


def lines_above(points: list[tuple[float, float]], n_segments: int) -> tuple[list[float], list[float]]:
    """Breaks and values of connected lines that are never below the staircase through `points`.

    The staircase from x(k) on has the height of point k + 1, so lines through those corners are above it. Corners are
    then taken out, the one whose removal lifts the lines least first. Where a corner sticks out above the line between
    its neighbours, these are raised until the line passes over it, the right one first, but not above the staircase's
    end: the lines only rise, and end no higher than the curve.
    """
    if len(points) == 1:
        return [], []
    heights = [y for _, y in points]
    corners = [(x, heights[min(k + 1, len(points) - 1)]) for k, (x, _) in enumerate(points)]
    top = heights[-1]
    lifts = [_lift(corners, k, top) for k in range(len(corners))]
    while len(corners) - 1 > max(1, n_segments):
        k = lifts.index(min(lifts))
        corners[k - 1 : k + 2] = _without(corners, k, top)
        del lifts[k]
        for near in range(max(0, k - 3), min(len(corners), k + 3)):  # those whose neighbours have moved
            lifts[near] = _lift(corners, near, top)
    return [x for x, _ in corners], [y for _, y in corners]


Corners = list[tuple[float, float]]


def _without(corners: Corners, k: int, top: float) -> Corners:
    """The neighbours of corner k as they are without it."""
    (left, low), (x, y), (right, high) = corners[k - 1 : k + 2]
    if y > low + (high - low) * (x - left) / (right - left):
        high = min(top, low + (y - low) * (right - left) / (x - left))
        low = max(low, y - (high - y) * (x - left) / (right - x))
    return [(left, low), (right, high)]


def _lift(corners: Corners, k: int, top: float) -> float:
    """By how much the area under the lines grows when corner k is taken out; the ends stay."""
    if not 0 < k < len(corners) - 1:
        return math.inf
    before, after = corners[max(0, k - 2) : k - 1], corners[k + 2 : k + 3]
    return _area([*before, *_without(corners, k, top), *after]) - _area([*before, *corners[k - 1 : k + 2], *after])


def _area(corners: Corners) -> float:
    return sum((y + z) * (right - left) / 2 for (left, y), (right, z) in pairwise(corners))


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
