"""`HostCosts` from what was timed. In: single ops and small models, in several processes. Out: its fields.

Weights follow from single ops that were issued over and over, without what it took to launch their further kernels; so
do the costs of what small models have little of, and of inner ops, which no model's Python makes dearer. What else is
charged follows from the times of small models' phases and how often they are charged, by least squares: the same
charges as a step's, so that what is fitted is what is used. A host's speed varies within seconds and from process to
process, so its spread is part of the costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from trainfit.cost.host import (
    BACKWARD_CAST,
    BACKWARD_KINDS,
    BACKWARD_LEAF,
    BACKWARD_PLAIN,
    BACKWARD_VIEW,
    KINDS,
    OP_KINDS,
    PLAIN,
    VIEW,
    WEIGHED,
    Weights,
)

_ROUNDS = 2000
_LEFT_OUT = 80
"""One in so many of the small models' steps is left out of the spread at each end. With one in twenty, 87% of the steps
of real models were inside: those were timed at other times, when the host's speed was another. So it is 94%, and 86%
of models that no cost was made with."""
_KNOWN = frozenset({"inner", "backward_inner", "inner_view", "further_kernel", "wait", "host_op", "host_elements"})
"""What single ops tell, and least squares do not ask for."""

SingleTimes = Mapping[str, Sequence[int]]
"""Nanoseconds of an op of a kind in a process, again and again."""
PLAIN_KINDS = (PLAIN, "binary", "activation")
BACKWARD_PLAIN_KINDS = (BACKWARD_PLAIN, "backward activation")
"""What is called plain are several: with a number, with another tensor, of one tensor."""
WITH_INNER_VIEWS = "product with views"
"""Products of a batch with a weight that is transposed: three views of their own making."""
BACKWARD_PRODUCTS = "backward products"
"""The gradients of both operands, and transposes for them."""
ONE_LAUNCH, FOUR_LAUNCHES = "list of one", "list of one large"
"""Multi-tensor ops on a list of one: a small tensor, and one so large that it takes four kernels."""
READ = "read"
"""A value that the CPU asks for when the GPU has nothing else to do."""
HOST_OP, HOST_OPS_LARGE = "host op", "host ops large"
"""An op on a tensor of the host, of few elements; four of them on `HOST_ELEMENTS` each."""
HOST_ELEMENTS = 2**16
LEAF, LEAF_AGAIN = "leaf", "leaf again"
"""A plain node and a parameter behind it; and one that has a gradient already."""
SINGLE_KINDS = (
    *PLAIN_KINDS, VIEW, WITH_INNER_VIEWS, *OP_KINDS, ONE_LAUNCH, FOUR_LAUNCHES,
    READ, HOST_OP, HOST_OPS_LARGE,
    *BACKWARD_PLAIN_KINDS, BACKWARD_VIEW, BACKWARD_CAST, BACKWARD_PRODUCTS, LEAF, LEAF_AGAIN,
    *(BACKWARD_KINDS[kind] for kind in BACKWARD_KINDS if kind != "product"),
)  # fmt: skip
"""All that is timed."""


def reduce_weights(processes: Sequence[SingleTimes], kernels: Mapping[str, int]) -> dict[str, int]:
    """Weights from the times of single ops and how many kernels each launches: of each process by its medians, and of
    several that timed a kind the median."""
    found = [_weights(_first_kernels_ns(times_ns, kernels)) for times_ns in processes]
    return {kind: max(1, round(100 * statistics.median(one[kind] for one in found if kind in one))) for kind in WEIGHED}


def _first_kernels_ns(times_ns: SingleTimes, kernels: Mapping[str, int]) -> dict[str, float]:
    """What an op of each kind takes with one kernel; products of a backward pass are two ops."""
    median_ns = {kind: statistics.median(ns) for kind, ns in times_ns.items()}
    further_ns = (median_ns[FOUR_LAUNCHES] - median_ns[ONE_LAUNCH]) / 3
    usual = {BACKWARD_PRODUCTS: 2, LEAF_AGAIN: 2}
    return {
        kind: time_ns - further_ns * max(kernels[kind] - usual.get(kind, 1), 0) for kind, time_ns in median_ns.items()
    }


def _weights(median_ns: Mapping[str, float]) -> dict[str, float]:
    plain_ns = statistics.mean(median_ns[kind] for kind in PLAIN_KINDS)
    backward_ns = statistics.mean(median_ns[kind] for kind in BACKWARD_PLAIN_KINDS)
    inner_ns = median_ns[LEAF_AGAIN] - median_ns[LEAF]
    costs_ns = dict(median_ns) | {
        BACKWARD_LEAF: median_ns[LEAF] - median_ns[BACKWARD_PLAIN],
        BACKWARD_KINDS["product"]: median_ns[BACKWARD_PRODUCTS] - inner_ns * median_ns["product"] / plain_ns,
    }
    return {
        kind: costs_ns[kind] / (backward_ns if kind.startswith("backward") else plain_ns)
        for kind in WEIGHED
        if kind in costs_ns
    }


def reduce_known(processes: Sequence[SingleTimes]) -> dict[str, float]:
    """What single ops alone tell, means over the processes that timed them: a further kernel of an op, around which no
    Python is that would make it dearer in a model, a value that is read, and ops on tensors of the host."""

    def mean(kind: str) -> float:
        return statistics.mean(statistics.median(times_ns[kind]) for times_ns in processes if kind in times_ns)

    large_ns = mean(HOST_OPS_LARGE) / 4 - mean(HOST_OP)
    return {
        "inner": statistics.mean(map(mean, PLAIN_KINDS)),
        "backward_inner": mean(LEAF_AGAIN) - mean(LEAF),
        "inner_view": (mean(WITH_INNER_VIEWS) - mean("product")) / 3,
        "further_kernel": (mean(FOUR_LAUNCHES) - mean(ONE_LAUNCH)) / 3,
        "wait": mean(READ),
        "host_op": mean(HOST_OP),
        "host_elements": large_ns * 1024 / HOST_ELEMENTS,
    }


class Timing(TypedDict):
    """A small model, by phase: how often it is charged for what, and the nanoseconds of its steps in each process."""

    charges: Mapping[str, Mapping[str, float]]
    processes_ns: Sequence[Mapping[str, Sequence[int]]]


_Row = tuple[Mapping[str, float], float]
"""How often a phase is charged for what, and the nanoseconds it took."""


def reduce_host(timings: Mapping[str, Timing], weights: Weights, known_ns: Mapping[str, float]) -> dict[str, Any]:
    """The fields of `HostCosts` from what `trainfit.calibrate.host` timed, the weights by which it was charged, and
    what single ops tell of costs that small models have few of.

    A phase's usual time is the mean over the processes of each one's median: some are fast and some slow, with little
    between, and the median of a few would be either. The spread is that of single steps around what costs say that were
    found from all other models, so it holds both: how far the host strays, and how far costs of some models are from
    explaining another.
    """
    rows: dict[str, list[_Row]] = {}
    steps: dict[str, tuple[Mapping[str, float], list[int]]] = {}
    for name, timing in timings.items():
        counts = timing["charges"]
        medians = [{part: statistics.median(ns) for part, ns in one.items()} for one in timing["processes_ns"]]
        rows[name] = [(counts[part], statistics.mean(one[part] for one in medians)) for part in counts]
        single = [step for one in timing["processes_ns"] for step in zip(*(one[part] for part in counts), strict=True)]
        steps[name] = _whole(counts), [sum(step) for step in single]
    start = dict.fromkeys(KINDS, 0.0) | dict(known_ns)
    costs = _least_squares([row for found in rows.values() for row in found], start, _ROUNDS)
    spread = []
    for name, (whole, found_ns) in steps.items():
        others = [row for other, found in rows.items() if other != name for row in found]
        without = _least_squares(others, costs, _ROUNDS // 20)
        usual_ns = sum(without[kind] * count for kind, count in whole.items())
        spread += [step_ns / usual_ns for step_ns in found_ns]
    spread.sort()
    low, high = spread[len(spread) // _LEFT_OUT], spread[-1 - len(spread) // _LEFT_OUT]
    return {f"{kind}_ns": round(cost) for kind, cost in costs.items()} | {
        "fast_percent": round(100 * low),
        "slow_percent": round(100 * high),
        "weights_percent": dict(weights),
    }


def _whole(counts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {kind: sum(charged.get(kind, 0) for charged in counts.values()) for kind in KINDS}


def _least_squares(rows: Sequence[_Row], start: Mapping[str, float], rounds: int) -> dict[str, float]:
    """Costs that are not negative, with the smallest sum of squared relative errors, one after the other. What is
    known, or no row is charged for, stays as it was."""
    shares = np.array([[counts.get(kind, 0.0) / time_ns for kind in KINDS] for counts, time_ns in rows])
    shares = shares.reshape(-1, len(KINDS))  # also of no rows
    products, sums = shares.T @ shares, shares.sum(axis=0)
    costs = np.array([start[kind] for kind in KINDS])
    asked = [place for place, kind in enumerate(KINDS) if products[place, place] and kind not in _KNOWN]
    for _ in range(rounds):
        for place in asked:
            change = (sums[place] - products[place] @ costs) / products[place, place]
            costs[place] = max(costs[place] + change, 0.0)
    return dict(zip(KINDS, costs.tolist(), strict=True))
