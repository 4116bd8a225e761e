"""`reduce_samples`: a calibration's raw samples become the tables that the rules look up.

In: the GPU and the samples. Out: per rule points (coordinates, ratio of measured to ideal time, or time), in JSON's
terms; and beside a rule's table, where its ops launch several kernels, how many they launch and how many run at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from trainfit.cost import convolution, lookups
from trainfit.cost.classify import ROOFLINE, hidden_ops, works
from trainfit.cost.described import read_op
from trainfit.cost.interpolate import Table
from trainfit.cost.work import Work, base_name
from trainfit.gpus.catalogue import Gpu
from trainfit.records import Phase

_COMPUTING = ("mm ", "addmm ", "bmm ", "baddbmm ", "_grouped_mm ", "attention ", "convolution ", "_cudnn_rnn")
"""Ops whose kernels a library chooses: a larger one may be faster (some of cuDNN's grouped convolutions by a factor of
nine), so their times stay as measured."""
_NO_OVERLAP = 1.03
"""Kernels on one stream overlap by as much where one begins while the last blocks of another run."""
_OVERLAP_IN_STEPS, _ISSUED_SINGLY, _SHORT_KERNEL_NS = 0.5, (" fused", " singly"), 30_000
"""Of how much more than one of a convolution's short kernels run at once behind a marker that lasts until all are
issued, so much is left in a step, which issues them one by one: 0.3 to 0.8 in 27 convolutions of eight nets."""
_FEW_LAUNCHES = 2
"""Where no op launches more kernels, the second one (a partial sum's) is not worth a table."""

_ROUNDED = 0.01
"""By how much coordinates may be off: they are rounded when they are written."""
Points = list[list[float]]


class Reduced(NamedTuple):
    """What samples become, by rule, in JSON's terms."""

    tables: dict[str, Points]
    """(coordinates, ratio of measured to ideal time)."""
    lines: dict[str, Points]
    """(coordinates, nanoseconds), for ops that are larger by their bytes alone."""
    times_ns: dict[str, list[int]]
    """What the points of a table took, for other ops that never get faster when they get larger."""


def reduce_samples(gpu: Gpu, samples: Iterable[Mapping[str, Any]]) -> Reduced:
    """Tables and lines."""
    found: dict[str, dict[tuple[float, ...], list[_Measured]]] = {}
    by_bytes: set[str] = set()
    bounded: dict[str, tuple[int, int]] = {}
    for sample in samples:
        outputs = [output for output in sample["outputs"] if output]
        op = read_op(sample["op"], sample["args"], sample["kwargs"], outputs, Phase.FORWARD)
        if base_name(op).startswith("convolution"):
            if convolution.is_by_winograd(op, sample["kernel"]):
                continue
            op = convolution.as_measured(op, sample["kernel"], sample["num_kernels"])
        work = next(iter(works(op, gpu.num_sms)), None)
        if work is None or work.rule == ROOFLINE or hidden_ops(op):  # its time is not that of its own kernel alone
            continue
        if not sample["num_kernels"] or lookups.checks_indices(op):  # the host's affair; not as in a step
            continue
        time_ns = in_a_step_ns(work, sample["cold_ns"], sample["warm_ns"], gpu)
        place = tuple(round(value, 2) for value in work.coordinates)
        overlap = sample["overlap"]
        launches = sample["num_kernels"] if work.kernels == 1 else 1  # a rule that counts them needs no table
        measured = _Measured(time_ns / overlap, work.ideal_ns(gpu), overlap, launches)
        found.setdefault(work.rule, {}).setdefault(place, []).append(measured)
        if work.is_by_bytes:
            by_bytes.add(work.rule)
        elif work.num_sizes:
            bounded[work.rule] = (work.num_sizes, work.num_alike)
    found = dict(sorted(found.items()))
    tables: dict[str, Points] = {}
    times_ns: dict[str, list[int]] = {}
    for rule in (rule for rule in found if rule not in by_bytes):
        points, taken_ns = _points(rule, found[rule])
        tables[rule] = points
        if rule in bounded:
            times_ns[rule] = _no_longer_than_larger(points, taken_ns, *bounded[rule])
    lines = {rule: _lines(points) for rule, points in found.items() if rule in by_bytes}
    return Reduced(tables | _kernels(found), lines, times_ns)


def _no_longer_than_larger(points: Points, times_ns: list[int], num_sizes: int, num_alike: int) -> list[int]:
    """The times, each no longer than those of what is larger in every size and alike: by these others are bounded, and
    what is slow for its size, as sizes are for which a library has a bad kernel, bounds nothing."""
    places = np.array([point[: num_sizes + num_alike] for point in points], dtype=np.float64)
    measured = np.array(times_ns)
    found = []
    for place in places:
        excess = places - place
        is_larger = (excess[:, :num_sizes] >= -_ROUNDED).all(axis=1)
        is_alike = (np.abs(excess[:, num_sizes:]) <= _ROUNDED).all(axis=1)
        found.append(int(measured[is_larger & is_alike].min()))
    return found


def _kernels(found: Mapping[str, Mapping[tuple[float, ...], list[_Measured]]]) -> dict[str, Points]:
    """How many kernels overlap, and how many there are, for rules where it matters."""
    tables: dict[str, Points] = {}
    for rule, points in found.items():
        overlaps = {place: runs[-1].overlap for place, runs in points.items()}
        if max(overlaps.values()) > _NO_OVERLAP:
            tables[overlap_table(rule)] = [
                [*map(_short, place), round(_overlap_in_step(rule, points[place][-1]), 3)] for place in sorted(overlaps)
            ]
        if max(run.launches for runs in points.values() for run in runs) > _FEW_LAUNCHES:
            tables[launch_table(rule)] = [
                [*map(_short, place), max(1, statistics.median_low(run.launches for run in points[place]))]
                for place in sorted(points)
            ]
    return tables


def _overlap_in_step(rule: str, run: _Measured) -> float:
    kernel_ns = run.time_ns * run.overlap / max(run.launches, 1)
    is_of_filters = rule.startswith("convolution") and rule.endswith(_ISSUED_SINGLY)
    is_short = is_of_filters and kernel_ns < _SHORT_KERNEL_NS
    return 1 + (_OVERLAP_IN_STEPS if is_short else 1.0) * (run.overlap - 1)


_LEAST_RISE = 0.3
"""Of what the ideal rises by, more bytes take at least so much longer: an op of which they did not would get faster
with them on a GPU whose cache is smaller."""


def _lines(found: Mapping[tuple[float, ...], list[_Measured]]) -> Points:
    """Times along each line made to rise: where more bytes were measured to take less time, all take their mean, by
    their logarithms, so that one that is slow for other reasons does not count for more."""
    lines: dict[tuple[float, ...], list[tuple[float, float, float]]] = {}
    for (size, *others), runs in sorted(found.items()):
        run = sorted(runs)[len(runs) // 2]
        if run.time_ns > 0:
            least = _LEAST_RISE * log(run.ideal_ns)
            lines.setdefault(tuple(others), []).append((size, least, log(run.time_ns) - least))
    return [
        [_short(size), *map(_short, others), round(exp(least + above))]
        for others, line in lines.items()
        for (size, least, _), above in zip(line, never_falling([above for _, _, above in line]), strict=True)
    ]


def overlap_table(rule: str) -> str:
    """The table that says how many kernels of such an op run at once."""
    return f"{rule} overlap"


def launch_table(rule: str) -> str:
    """The table that says how many kernels such an op launches."""
    return f"{rule} launches"


def in_a_step_ns(work: Work, cold_ns: float, warm_ns: float, gpu: Gpu) -> float:
    """What an op takes among others.

    Cold runs fetch all operands from memory, and in a step some are still in the cache; warm runs must first write what
    earlier ones left in the cache, and so must a step. So the worse of both counts, less a share of what is cold. Ops
    that compute are taken as they run cold.
    """
    if work.flops:
        return cold_ns
    if work.recalled is not None:
        is_run_cold = cold_ns != warm_ns
        return work.recalled * (cold_ns if is_run_cold else warm_ns / work.recalled_warm)
    fetched_ns = work.cached * max(cold_ns - warm_ns, 0.0)
    return max(warm_ns, cold_ns - fetched_ns) + work.evicted_bytes / gpu.dram_gb_per_s


class _Measured(NamedTuple):
    time_ns: float
    ideal_ns: float
    overlap: float
    launches: int


def _points(rule: str, found: _Found) -> tuple[Points, list[int]]:
    """(coordinates, ratio), and the nanoseconds of each."""
    middle = _middle(found)
    if not rule.startswith(_COMPUTING):
        middle = _never_faster_when_larger(middle)
    table = _table(middle)
    times_ns = [round(ratio * middle[place].ideal_ns) for place, ratio in table.points]
    return [[*map(_short, place), _short(float(f"{ratio:.4g}"))] for place, ratio in table.points], times_ns


_Found = Mapping[tuple[float, ...], list[_Measured]]
"""What was measured, by coordinates."""


def _middle(found: _Found) -> dict[tuple[float, ...], _Measured]:
    """The run in the middle of each place; of two that are, their mean."""
    return {place: _middle_run(sorted(runs)) for place, runs in sorted(found.items())}


def _middle_run(runs: Sequence[_Measured]) -> _Measured:
    below, above = runs[(len(runs) - 1) // 2], runs[len(runs) // 2]
    return above._replace(time_ns=sqrt(below.time_ns * above.time_ns))


def _table(points: Mapping[tuple[float, ...], _Measured]) -> Table:
    return Table(tuple((place, run.time_ns / run.ideal_ns) for place, run in points.items() if run.time_ns > 0))


def _never_faster_when_larger(points: dict[tuple[float, ...], _Measured]) -> dict[tuple[float, ...], _Measured]:
    """Times along each size made to rise: where a larger op was measured to be faster, both take the mean."""
    points = dict(points)
    for axis in range(len(next(iter(points)))):
        lines: dict[tuple[float, ...], list[tuple[float, ...]]] = {}
        for place in points:
            lines.setdefault(place[:axis] + place[axis + 1 :], []).append(place)
        for line in lines.values():
            line.sort(key=lambda place: points[place].ideal_ns)
            for place, time_ns in zip(line, never_falling([points[place].time_ns for place in line]), strict=True):
                points[place] = points[place]._replace(time_ns=time_ns)
    return points


def never_falling(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls: neighbours that do are replaced by their mean, again and again."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, count = pools.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]


def _short(value: float) -> float:
    return int(value) if value == int(value) else value
