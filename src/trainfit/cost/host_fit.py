"""`HostCosts` from what was timed. In: single ops and small models, in several processes. Out: its fields.

Weights follow from single ops that were issued over and over, without what it took to launch their further kernels; so
do the costs of what small models have little of, and of inner ops, which no model's Python makes dearer. What else is
charged follows from the times of small models' phases and how often they are charged, by least squares: the same
charges as a step's, so that what is fitted is what is used. Times add up, so a usual time is a mean and no median
(`_usual_ns`), and errors count relative to what is predicted, so that measured / predicted is 1 on average (`_fit`). A
host's speed varies within seconds and from process to process, so its spread is part of the costs.
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
_REWEIGHTED = 4
"""How often the fit begins again with errors relative to what it predicted; the fourth time changes no cost by 0.1%."""
_PAUSE = 2
"""What takes so many times the median was held up, most likely by Python's garbage collector: 0.3 s in a process that
has many libraries, once in hundreds of steps. A host that is fast and slow by turns stays below: on a virtual machine,
a loop in Python took 0.19 ms or 0.36."""
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


def _usual_ns(times_ns: Sequence[int]) -> float:
    """The mean without pauses. Medians do not add up: a host that is slow most of the time would seem so always."""
    limit_ns = _PAUSE * statistics.median(times_ns)
    return statistics.mean(time_ns for time_ns in times_ns if time_ns <= limit_ns)


def reduce_weights(processes: Sequence[SingleTimes], kernels: Mapping[str, int]) -> dict[str, int]:
    """Weights from the times of single ops and how many kernels each launches: of each process by its usual times, and
    of several that timed a kind the median."""
    found = [_weights(_first_kernels_ns(times_ns, kernels)) for times_ns in processes]
    return {kind: max(1, round(100 * statistics.median(one[kind] for one in found if kind in one))) for kind in WEIGHED}


def _first_kernels_ns(times_ns: SingleTimes, kernels: Mapping[str, int]) -> dict[str, float]:
    """What an op of each kind takes with one kernel; products of a backward pass are two ops."""
    usual_ns = {kind: _usual_ns(ns) for kind, ns in times_ns.items()}
    further_ns = (usual_ns[FOUR_LAUNCHES] - usual_ns[ONE_LAUNCH]) / 3
    num_ops = {BACKWARD_PRODUCTS: 2, LEAF_AGAIN: 2}
    return {
        kind: time_ns - further_ns * max(kernels[kind] - num_ops.get(kind, 1), 0) for kind, time_ns in usual_ns.items()
    }


def _weights(usual_ns: Mapping[str, float]) -> dict[str, float]:
    plain_ns = statistics.mean(usual_ns[kind] for kind in PLAIN_KINDS)
    backward_ns = statistics.mean(usual_ns[kind] for kind in BACKWARD_PLAIN_KINDS)
    inner_ns = usual_ns[LEAF_AGAIN] - usual_ns[LEAF]
    costs_ns = dict(usual_ns) | {
        BACKWARD_LEAF: usual_ns[LEAF] - usual_ns[BACKWARD_PLAIN],
        BACKWARD_KINDS["product"]: usual_ns[BACKWARD_PRODUCTS] - inner_ns * usual_ns["product"] / plain_ns,
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
        return statistics.mean(_usual_ns(times_ns[kind]) for times_ns in processes if kind in times_ns)

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
_Times = np.ndarray[Any, np.dtype[np.float64]]
"""Nanoseconds by row."""


def reduce_host(timings: Mapping[str, Timing], weights: Weights, known_ns: Mapping[str, float]) -> dict[str, Any]:
    """The fields of `HostCosts` from what `trainfit.calibrate.host` timed, the weights by which it was charged, and
    what single ops tell of costs that small models have few of.

    A phase's usual time is the mean over the processes of each one's: some are fast and some slow, with little between,
    and the median of a few would be either. The spread is that of single steps around what costs say that were found
    from all other models, so it holds both: how far the host strays, and how far costs of some models are from
    explaining another.
    """
    rows: list[_Row] = []
    names: list[str] = []
    steps: dict[str, tuple[Mapping[str, float], list[int]]] = {}
    for name, timing in timings.items():
        counts, processes = timing["charges"], timing["processes_ns"]
        rows += [(counts[part], statistics.mean(_usual_ns(one[part]) for one in processes)) for part in counts]
        names += [name] * len(counts)
        single = [step for one in processes for step in zip(*(one[part] for part in counts), strict=True)]
        steps[name] = _whole(counts), [sum(step) for step in single]
    costs, expected_ns = _fit(rows, dict.fromkeys(KINDS, 0.0) | dict(known_ns))
    spread = []
    for name, (whole, found_ns) in steps.items():
        others = [place for place, other in enumerate(names) if other != name]
        without = _least_squares([rows[place] for place in others], expected_ns[others], costs, _ROUNDS // 20)
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


def _fit(rows: Sequence[_Row], start: Mapping[str, float]) -> tuple[dict[str, float], _Times]:
    """Costs, and the nanoseconds that they predict of each row.

    Errors relative to what was measured would make costs too small: a row that took 20% less than usual would weigh
    twice as much as one that took 20% more. So they are made relative to what is predicted, in turns with predicting.
    """
    measured_ns = np.array([time_ns for _, time_ns in rows])
    expected_ns, costs = measured_ns, dict(start)
    for _ in range(1 + _REWEIGHTED):
        costs = _least_squares(rows, expected_ns, costs, _ROUNDS)
        predicted_ns = np.array([sum(costs[kind] * count for kind, count in counts.items()) for counts, _ in rows])
        expected_ns = np.where(predicted_ns > 0, predicted_ns, measured_ns)
    return costs, expected_ns


def _least_squares(
    rows: Sequence[_Row], expected_ns: _Times, start: Mapping[str, float], rounds: int
) -> dict[str, float]:
    """Costs that are not negative, with the smallest sum of squared errors, each relative to what is expected, one
    after the other. What is known, or no row is charged for, stays as it was."""
    counted = np.array([[counts.get(kind, 0.0) for kind in KINDS] for counts, _ in rows]).reshape(-1, len(KINDS))
    shares = counted / expected_ns[:, None]
    products, sums = shares.T @ shares, shares.T @ (np.array([time_ns for _, time_ns in rows]) / expected_ns)
    costs = np.array([start[kind] for kind in KINDS])
    asked = [place for place, kind in enumerate(KINDS) if products[place, place] and kind not in _KNOWN]
    for _ in range(rounds):
        for place in asked:
            change = (sums[place] - products[place] @ costs) / products[place, place]
            costs[place] = max(costs[place] + change, 0.0)
    return dict(zip(KINDS, costs.tolist(), strict=True))
