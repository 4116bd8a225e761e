"""`Table`: measured ratios at scattered coordinates, and the ratio anywhere between them.

In: points (coordinates, ratio of measured to ideal time). Out: the ratio at a coordinate: the measured one where it was
measured, otherwise the mean of the nearest measurements, weighted by the inverse of their distance. Coordinates are
log2 of sizes, so a distance of 1 is a factor of 2. Beyond the measured range the nearest points speak.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import exp, log

NEIGHBOURS = 6
SMOOTH_NEIGHBOURS = 24
_POWER = 1.5  # of the squared distance
_SAME = 1e-4


@dataclass(frozen=True, slots=True)
class Table:
    """The measurements of one rule."""

    points: tuple[tuple[tuple[float, ...], float], ...]

    def ratio(self, coordinates: tuple[float, ...]) -> float:
        """Measured over ideal time at the coordinates."""
        return self._around(coordinates, excluded=None)

    def _around(self, coordinates: tuple[float, ...], excluded: tuple[float, ...] | None) -> float:
        candidates = ((_distance(point, coordinates), ratio) for point, ratio in self.points if point != excluded)
        nearest = heapq.nsmallest(NEIGHBOURS, candidates)
        if nearest[0][0] < _SAME:
            return nearest[0][1]
        weights = [distance**-_POWER for distance, _ in nearest]
        total = sum(weight * log(ratio) for weight, (_, ratio) in zip(weights, nearest, strict=True))
        return exp(total / sum(weights))

    def without_sags(self) -> Table:
        """Points that are slower than their neighbours suggest take the neighbours' ratio."""
        return Table(tuple((place, min(ratio, self._around(place, excluded=place))) for place, ratio in self.points))

    def smooth_ratio(self, coordinates: tuple[float, ...]) -> float:
        """The same from a wide neighbourhood: the level of such ops, without the steps of one GPU's kernels."""
        nearest = heapq.nsmallest(
            SMOOTH_NEIGHBOURS, ((_distance(point, coordinates), ratio) for point, ratio in self.points)
        )
        weights = [1 / (1 + distance) for distance, _ in nearest]
        total = sum(weight * log(ratio) for weight, (_, ratio) in zip(weights, nearest, strict=True))
        return exp(total / sum(weights))


def _distance(point: tuple[float, ...], other: tuple[float, ...]) -> float:
    return sum((a - b) * (a - b) for a, b in zip(point, other, strict=True))
