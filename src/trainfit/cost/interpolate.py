"""`Table`: measured ratios at scattered coordinates, and the ratio anywhere between them.

In: points (coordinates, ratio of measured to ideal time). Out: the ratio at coordinates: the measured one where it was
measured, otherwise that of a plane through the logarithms of the nearest measurements, the nearest counting most.
Coordinates are log2 of sizes, so a distance of 1 is a factor of 2, and a plane is a power law. Slopes are held back, so
that few points make none, and the ratio stays between the smallest and the largest of the nearest few. `doubt` says how
far off it is likely to be.

How many neighbours, which weights and how much slopes are held back were chosen by leaving each of the H200's samples
out and predicting it from the others: the median error was 4.5%, 6.2% without slopes; it is 4.9% of the 19,700 of now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_FEW, _MANY = (12, 0.03), (20, 0.3)
"""How many neighbours there are, and what is added to their spread along each coordinate, in doublings squared, when
slopes are computed: in tables of few coordinates and of many."""
_MOST_OF_FEW = 7
SMOOTH_NEIGHBOURS = 24
_BOUNDING = 4
"""How many of them bound the ratio: far from all measurements a slope would lead to that of any odd one among more."""
_POWER = 1.5  # of the squared distance
_SAME = 1e-4
_TIE = 1e-9
"""Squared distances that differ by less, which is far more than rounding, are equal."""
_CLOSE = 0.1
"""Squared distances below this count as this when neighbours are asked how far they agree."""
_DOUBT, _DOUBT_OF_SPREAD, _DOUBT_PER_DOUBLING, _FAR = 0.01, 0.37, 0.03, 4.0
"""How far off a ratio is on average: this even where all neighbours agree, a share of how much they disagree, and more
with each doubling up to the nearest, of which no more than a few count. Least squares on 7,300 samples of nets' ops
that the H200's profile does not contain (benchmarks/held_out_samples.py)."""
_ROUNDED = 0.01
"""By how much a point's coordinates may be off: they are rounded when they are written."""

_Array = np.ndarray[Any, np.dtype[np.float64]]
Places = Sequence[tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Table:
    """The measurements of one rule."""

    points: tuple[tuple[tuple[float, ...], float], ...]
    times_ns: tuple[float, ...] = ()
    """What each point was measured to take, where that bounds what lies between; otherwise none."""
    _places: _Array = field(init=False, repr=False, compare=False)
    _logs: _Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", np.array([place for place, _ in self.points], dtype=np.float64))
        object.__setattr__(self, "_logs", np.log([ratio for _, ratio in self.points]))

    @property
    def _neighbours(self) -> int:
        return (_FEW if self._places.shape[-1] <= _MOST_OF_FEW else _MANY)[0]

    @property
    def _hold(self) -> float:
        return (_FEW if self._places.shape[-1] <= _MOST_OF_FEW else _MANY)[1]

    def ratio(self, coordinates: tuple[float, ...]) -> float:
        """Measured over ideal time at the coordinates."""
        return self.ratios([coordinates])[0]

    def ratios(self, places: Places) -> list[float]:
        """The same at several coordinates at once."""
        at = np.array(places, dtype=np.float64)
        return self._around(at, self._distances(at))

    def smooth_ratio(self, coordinates: tuple[float, ...]) -> float:
        """The same from a wide neighbourhood: the level of such ops, without the steps of one GPU's kernels."""
        at = np.array([coordinates], dtype=np.float64)
        near, distances = _nearest(self._distances(at), SMOOTH_NEIGHBOURS)
        return float(np.exp(self._on_planes(at, near, 1 / (1 + distances)))[0])

    def doubt(self, coordinates: tuple[float, ...]) -> float:
        """How far off the ratio is on average, as a share: less where neighbours agree and are near."""
        near, distances = _nearest(self._distances(np.array([coordinates], dtype=np.float64)), self._neighbours)
        logs, weights = self._logs[near[0]], 1 / np.maximum(distances[0], _CLOSE)
        spread = np.sqrt(np.average((logs - np.average(logs, weights=weights)) ** 2, weights=weights))
        doublings = min(float(np.sqrt(distances[0, 0])), _FAR)
        return float(_DOUBT + _DOUBT_OF_SPREAD * spread + _DOUBT_PER_DOUBLING * doublings)

    def bounded(self, coordinates: tuple[float, ...], time_ns: float, num_sizes: int, num_alike: int) -> float:
        """No less than what was smaller in every size took, and no more than what was larger.

        The first coordinates are sizes, the next must be alike for points to count, the rest is not looked at. Both
        bounds rise with the sizes. Where measurements contradict each other they change places.
        """
        if not self.times_ns:
            return time_ns
        excess = np.array(coordinates) - self._places
        sizes, others = excess[:, :num_sizes], excess[:, num_sizes : num_sizes + num_alike]
        alike = (np.abs(others) <= _ROUNDED).all(axis=1)
        measured = np.array(self.times_ns)
        low = measured[alike & (sizes >= -_ROUNDED).all(axis=1)].max(initial=0.0)
        high = measured[alike & (sizes <= _ROUNDED).all(axis=1)].min(initial=np.inf)
        return float(min(max(time_ns, min(low, high)), max(low, high)))

    def _distances(self, at: _Array) -> _Array:
        """Squared, of all places to all points."""
        own, other = (np.einsum("pa,pa->p", places, places) for places in (at, self._places))
        distances: _Array = own[:, None] + other - 2 * at @ self._places.T
        return np.maximum(distances, 0.0)

    def _around(self, at: _Array, distances: _Array) -> list[float]:
        near, distances = _nearest(distances, self._neighbours)
        logs = self._on_planes(at, near, np.maximum(distances, _SAME) ** -_POWER)
        logs = np.where(distances[:, 0] < _SAME, self._logs[near[:, 0]], logs)
        found: list[float] = np.exp(logs).tolist()
        return found

    def _on_planes(self, at: _Array, near: _Array, weights: _Array) -> _Array:
        """Logarithms of the ratios by weighted least squares with slopes held back."""
        shares = weights / weights.sum(axis=1, keepdims=True)
        values, points = self._logs[near], self._places[near]
        level = (shares * values).sum(axis=1)
        middle = np.einsum("qk,qka->qa", shares, points)
        offsets = points - middle[:, None]
        weighted = shares[..., None] * offsets
        spread = np.einsum("qka,qkb->qab", weighted, offsets) + self._hold * np.eye(at.shape[1])
        trend = np.einsum("qka,qk->qa", weighted, values - level[:, None])
        slopes = np.linalg.solve(spread, trend[..., None])[..., 0]
        bounds = values[:, :_BOUNDING]
        found: _Array = level + (slopes * (at - middle)).sum(axis=1)
        return np.clip(found, bounds.min(axis=1), bounds.max(axis=1))


def _nearest(distances: _Array, count: int) -> tuple[Any, _Array]:
    """Which points are nearest to each place, the nearest first, and how far they are. Of those that are equally far
    the first ones, whichever way a processor rounds."""
    count = min(count, int(np.isfinite(distances).sum(axis=1).min()))
    ranks = distances + _TIE * np.arange(distances.shape[1])
    near = np.argpartition(ranks, count - 1, axis=1)[:, :count]
    near = np.take_along_axis(near, np.take_along_axis(ranks, near, axis=1).argsort(axis=1), axis=1)
    return near, np.take_along_axis(distances, near, axis=1)
