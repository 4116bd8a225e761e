"""What the CPU takes to issue a step's ops. In: small models that were timed. Out: `HostCosts`, and a time per op.

Each op is charged for a few things (`charges`): a kernel, a view, entering a module (the Python of the model's own
forward), running a checkpointed region again, tensors listed for a multi-tensor kernel. What each of them costs follows
from the times of small models' phases and how often they are charged, by least squares: the same charges, so that what
is fitted is what is used. A host's speed varies from process to process, so its spread is part of the costs.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypedDict

from trainfit.records import Op, Phase, TensorRef

_HOOKED = "aten.detach.default"
"""What a hook does to each saved tensor. In a planned block's forward it is not charged: torch's own checkpointing
spends as much there in hooks that no op shows, and charging it would make the one look slower than the other."""
_ROUNDS = 2000

Charge = tuple[str, int]
"""What is charged (a field of `HostCosts` less "_ns"), and how often."""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Nanoseconds of CPU time per charge."""

    forward_kernel_ns: int
    forward_view_ns: int
    module_ns: int
    backward_kernel_ns: int
    backward_view_ns: int
    further_kernel_ns: int
    """A kernel that an op launches after its first: no dispatch, only the launch."""
    recompute_ns: int
    """What a kernel of a checkpointed region costs beyond a forward kernel: hooks see every tensor that is saved."""
    checkpoint_ns: int
    """Per checkpointed region, in forward and backward together: states of random number generators, contexts."""
    optimizer_call_ns: int
    optimizer_tensor_ns: int
    fast_percent: int
    slow_percent: int
    """Between these percentages of what the costs say lay nine tenths of the models, each in several processes."""


KINDS = tuple(field.name.removesuffix("_ns") for field in fields(HostCosts) if field.name.endswith("_ns"))


def charges(ops: Sequence[Op], kernels: Sequence[int]) -> Iterator[tuple[Charge, ...]]:
    """What each op is charged for; `kernels` says how many it launches, 0 for a view."""
    module = ""
    regions = _checkpointed(ops)
    for index, (op, count) in enumerate(zip(ops, kernels, strict=True)):
        further = ("further_kernel", max(count - 1, 0))
        if op.name == _HOOKED and op.phase is Phase.FORWARD:
            yield ()
            continue
        if op.phase is Phase.OPTIMIZER:
            listed = sum(len(value) for value in op.args if isinstance(value, tuple) and _is_tensor_list(value))
            yield ("optimizer_call", 1), ("optimizer_tensor", listed)
        elif op.phase is Phase.BACKWARD:
            yield ("backward_kernel" if count else "backward_view", 1), further
        else:
            entered = ("module", int(op.module != module))
            own: tuple[Charge, ...] = (entered, ("forward_kernel" if count else "forward_view", 1), further)
            if index in regions:
                own = (*own, ("recompute", int(count > 0)), ("checkpoint", int(regions[index])))
            yield own
        module = op.module


def _checkpointed(ops: Sequence[Op]) -> dict[int, bool]:
    """The ops that torch's checkpointing runs again, and whether each is the first of its region.

    It calls modules; the replay of a plan calls none, so all of its ops have the module that asked for them.
    """
    found: dict[int, bool] = {}
    region: list[int] = []
    for index, op in enumerate((*ops, None)):
        if op is not None and op.phase is Phase.RECOMPUTE:
            region.append(index)
        elif op is None or op.name != _HOOKED:  # hooks run between the ops of a region
            if len({ops[member].module for member in region}) > 1:
                found |= {member: member == region[0] for member in region}
            region = []
    return found


def issue_times_ns(ops: Sequence[Op], kernels: Sequence[int], host: HostCosts) -> tuple[int, ...]:
    """CPU time before each op's kernels are in the queue."""
    cost_ns = {kind: getattr(host, f"{kind}_ns") for kind in KINDS}
    return tuple(sum(cost_ns[kind] * count for kind, count in charged) for charged in charges(ops, kernels))


def further_times_ns(kernels: Sequence[int], host: HostCosts) -> tuple[int, ...]:
    """The part of each op's CPU time that comes after its first kernel is in the queue."""
    return tuple(max(count - 1, 0) * host.further_kernel_ns for count in kernels)


def count_charges(ops: Sequence[Op], kernels: Sequence[int]) -> dict[str, dict[str, int]]:
    """How often each thing is charged, by what is timed: forward, backward with what runs again in it, optimizer."""
    totals: dict[str, Counter[str]] = {"forward": Counter(), "backward": Counter(), "optimizer": Counter()}
    for op, charged in zip(ops, charges(ops, kernels), strict=True):
        part = "backward" if op.phase is Phase.RECOMPUTE else op.phase.value
        for kind, count in charged:
            totals[part][kind] += count
    return {part: {kind: count for kind, count in total.items() if count} for part, total in totals.items()}


class Timing(TypedDict):
    """A small model, by phase: how often it is charged for what, and the nanoseconds of its steps in each process."""

    charges: Mapping[str, Mapping[str, int]]
    processes_ns: Sequence[Mapping[str, Sequence[int]]]


def reduce_host(timings: Mapping[str, Timing]) -> dict[str, int]:
    """The fields of `HostCosts` from what `trainfit.calibrate.host` timed.

    A phase's usual time is the mean over the processes of each one's median: some are fast and some slow, with little
    between, and the median of a few would be either. Checkpointing's own part of a forward pass is no op's; it is moved
    to the regions that are run again. The spread is that of the steps of single processes around what the costs say, so
    it holds both: how far the host strays, and how far costs are from explaining it.
    """
    rows: list[tuple[Mapping[str, int], float]] = []
    steps: list[tuple[Mapping[str, int], list[float]]] = []
    for timing in timings.values():
        counts = timing["charges"]
        medians = [{part: statistics.median(ns) for part, ns in one.items()} for one in timing["processes_ns"]]
        usual = {part: statistics.mean(one[part] for one in medians) for part in counts}
        if counts["backward"].get("checkpoint"):
            together = Counter[str](counts["forward"]) + Counter[str](counts["backward"])
            rows.append((together, usual["forward"] + usual["backward"]))
        else:
            rows += [(counts[part], usual[part]) for part in ("forward", "backward")]
        rows.append((counts["optimizer"], usual["optimizer"]))
        whole = sum((Counter[str](counts[part]) for part in counts), Counter[str]())
        steps.append((whole, [sum(one.values()) for one in medians]))
    costs = _least_squares(rows)
    spread = sorted(
        step_ns / sum(costs[kind] * count for kind, count in whole.items())
        for whole, found in steps
        for step_ns in found
    )
    low, high = spread[len(spread) // 20], spread[-1 - len(spread) // 20]
    return {f"{kind}_ns": round(cost) for kind, cost in costs.items()} | {
        "fast_percent": round(100 * low),
        "slow_percent": round(100 * high),
    }


def _least_squares(rows: Sequence[tuple[Mapping[str, int], float]]) -> dict[str, float]:
    """Costs that are not negative, with the smallest sum of squared relative errors, one after the other."""
    costs = dict.fromkeys(KINDS, 0.0)
    shares = [{kind: count / time_ns for kind, count in counts.items()} for counts, time_ns in rows]
    rest = [1.0] * len(rows)
    for _ in range(_ROUNDS):
        for kind in KINDS:
            own = [share.get(kind, 0.0) for share in shares]
            weight = sum(share * share for share in own)
            if weight:
                change = sum(share * left for share, left in zip(own, rest, strict=True)) / weight
                change = max(change, -costs[kind])
                costs[kind] += change
                rest = [left - change * share for share, left in zip(own, rest, strict=True)]
    return costs


def _is_tensor_list(value: tuple[object, ...]) -> bool:
    return bool(value) and isinstance(value[0], TensorRef)
