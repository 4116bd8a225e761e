"""`Lines`: measured times of ops that move bytes, along which more bytes never take less time.

In: points (log2 of bytes, what else matters, time), the GPU they were measured on. Out: the ratio of the time to the
ideal one at any coordinates, as a `Table` gives it.

Points that differ in nothing but their bytes are a line. Along a line, from one point to the next, the time follows
the ideal (a launch, then bytes at the memory's rate) times a power of the bytes, and never falls below the first
point's; beyond the ends it follows the ideal. Coordinates between lines get the mean of all lines' logarithms, the
nearest counting most, by what else matters alone.

Why it never falls: the logarithm of launch plus bytes is convex in the logarithm of the bytes, and stays so with a
straight line added. A convex curve that ends no lower than it began, cut off below at its beginning, does not fall.
Weights that do not depend on the bytes, all positive, leave it so.

Leaving each of the H200's samples out and predicting it from the others: the median error of pointwise ops is 2.7%
(3.0% by a `Table`), of pooling 5% (9%), of softmax and norms the same by both. It is not used where it would be worse:
reductions (12%, 6%), embeddings' gradients, multi-tensor ops, and everything whose kernels a library chooses.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log, log2, sqrt

from trainfit.cost.work import LAUNCH_NS, streaming_ns
from trainfit.gpus.catalogue import Gpu

_POWER = 1.5  # of the squared distance
_NEAR = 0.001
"""Added to squared distances, in doublings, so that there is a weight where the coordinates lie on a line."""
_DOUBT, _DOUBT_OF_SPREAD = 0.03, 1.0
"""How far off a ratio is on average: this, and as much as lines disagree. 4,100 samples of nets' ops that the H200's
profile does not contain were off by 3.3% on average, wherever they lay (benchmarks/held_out_samples.py)."""


@dataclass(frozen=True, slots=True)
class _Line:
    others: tuple[float, ...]
    sizes: tuple[float, ...]
    """log2 of bytes, rising."""
    logs: tuple[float, ...]
    """log2 of nanoseconds, never falling."""

    def at(self, size: float, gpu: Gpu) -> float:
        """log2 of the time for so many bytes."""
        after = bisect(self.sizes, size)
        if after in (0, len(self.sizes)):
            end = 0 if after == 0 else -1
            return self.logs[end] + _guide(size, gpu) - _guide(self.sizes[end], gpu)
        low, high = after - 1, after
        share = (size - self.sizes[low]) / (self.sizes[high] - self.sizes[low])
        above_low, above_high = (self.logs[end] - _guide(self.sizes[end], gpu) for end in (low, high))
        return max(self.logs[low], _guide(size, gpu) + (1 - share) * above_low + share * above_high)


@dataclass(frozen=True, slots=True)
class Lines:
    """The measurements of one rule."""

    gpu: Gpu
    lines: tuple[_Line, ...]

    @staticmethod
    def of(points: Iterable[Sequence[float]], gpu: Gpu) -> Lines:
        """From (log2 of bytes, ..., nanoseconds)."""
        found: dict[tuple[float, ...], list[tuple[float, float]]] = {}
        for size, *others, time_ns in points:
            found.setdefault(tuple(others), []).append((size, log2(time_ns)))
        lines = []
        for key, line in found.items():
            line.sort()
            logs = tuple(log_ns for _, log_ns in line)
            if any(later < earlier for earlier, later in itertools.pairwise(logs)):
                raise ValueError("more bytes take less time")
            lines.append(_Line(key, tuple(size for size, _ in line), logs))
        return Lines(gpu, tuple(lines))

    def ratio(self, coordinates: tuple[float, ...]) -> float:
        """Measured over ideal time at the coordinates."""
        log_ns, _ = self._around(coordinates)
        return float(2**log_ns / streaming_ns(2 ** coordinates[0], self.gpu))

    def doubt(self, coordinates: tuple[float, ...]) -> float:
        """How far off the ratio is on average, as a share: less where lines agree."""
        _, spread = self._around(coordinates)
        return _DOUBT + _DOUBT_OF_SPREAD * spread

    def _around(self, coordinates: tuple[float, ...]) -> tuple[float, float]:
        """log2 of the time by all lines, and how far they disagree about it, as a share."""
        size, *others = coordinates
        total = squares = weights = 0.0
        for line in self.lines:
            distance = sum((a - b) * (a - b) for a, b in zip(line.others, others, strict=True))
            weight = len(line.sizes) / (distance + _NEAR) ** _POWER
            log_ns = line.at(size, self.gpu)
            total += weight * log_ns
            squares += weight * log_ns * log_ns
            weights += weight
        mean = total / weights
        return mean, log(2) * sqrt(max(squares / weights - mean * mean, 0.0))

    smooth_ratio = ratio
    """How well memory is used carries over to another GPU as it is: there are no kernels to choose between."""


def _guide(size: float, gpu: Gpu) -> float:
    """log2 of the ideal time, caches aside."""
    return log2(LAUNCH_NS + 2**size / gpu.dram_gb_per_s)
