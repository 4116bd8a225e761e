"""Collectives that were timed on the machine itself, and what they say about any other. No torch.

In: a profile's `collectives`, a table per kind and group of ranks. Out: by `correction` the factor by which the time of
`network.collective_ns` is to be multiplied: measured over modelled at the same size, in the table whose group is most
like the one asked for. At a size and group that was measured the product is the measured time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Any

from trainfit.cost.network import Network, collective_ns

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all_gather", "reduce_scatter", "all_reduce"
KINDS = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """One kind of collective in one group of ranks, by size."""

    kind: str
    num_ranks: int
    num_nodes: int
    points: tuple[tuple[int, float], ...]
    """(bytes of the whole buffer, ns), the smallest first."""

    def correction(self, nbytes: int, network: Network) -> float:
        """Measured over modelled: between two sizes along their logarithms, beyond the ends as at the ends."""
        ratios = [(log2(size), time_ns / self._modelled_ns(size, network)) for size, time_ns in self.points]
        place = log2(nbytes)
        if place <= ratios[0][0]:
            return ratios[0][1]
        for (low, below), (high, above) in pairwise(ratios):
            if place <= high:
                return below + (above - below) * (place - low) / (high - low)
        return ratios[-1][1]

    def _modelled_ns(self, nbytes: int, network: Network) -> float:
        return collective_ns(self.kind == ALL_REDUCE, nbytes, self.num_ranks, self.num_nodes, network)

    def distance(self, num_ranks: int, num_nodes: int) -> float:
        """How unlike the groups are."""
        return abs(log2(num_ranks / self.num_ranks)) + abs(log2(num_nodes / self.num_nodes))


def nearest(
    tables: Sequence[CollectiveTable], kind: str, num_ranks: int, num_nodes: int, network: Network
) -> CollectiveTable | None:
    """The table that speaks for such a collective; None where there is none, or the user said what the links carry.

    One node says nothing about several, nor several about one.
    """
    if network.intra_is_given if num_nodes == 1 else network.inter_is_given:
        return None
    fitting = [table for table in tables if table.kind == kind and (table.num_nodes == 1) == (num_nodes == 1)]
    return min(fitting, key=lambda table: table.distance(num_ranks, num_nodes), default=None)


def parse_collectives(content: Any) -> tuple[CollectiveTable, ...]:
    """The tables in a profile's file; ValueError, TypeError or KeyError says what is wrong with them."""
    tables = tuple(_parse(table) for table in content)
    groups = [(table.kind, table.num_ranks, table.num_nodes) for table in tables]
    if len(set(groups)) < len(groups):
        raise ValueError("two tables of collectives are of one kind and group")
    return tables


def _parse(table: Mapping[str, Any]) -> CollectiveTable:
    kind, num_ranks, num_nodes = table["kind"], table["ranks"], table["nodes"]
    points = tuple((size, float(time_ns)) for size, time_ns in table["points"])
    if kind not in KINDS:
        raise ValueError(f"no collective is called {kind!r}: {', '.join(KINDS)}")
    if not (
        isinstance(num_ranks, int) and isinstance(num_nodes, int) and num_ranks >= 2 and 1 <= num_nodes <= num_ranks
    ):
        raise ValueError(f"{kind} among {num_ranks!r} ranks of {num_nodes!r} nodes")
    sizes = [size for size, _ in points]
    is_rising = all(isinstance(size, int) and size > 0 for size in sizes) and sizes == sorted(set(sizes))
    if not points or not is_rising or any(time_ns <= 0 for _, time_ns in points):
        raise ValueError(f"{kind} among {num_ranks} ranks needs rising sizes in bytes and positive times in ns")
    return CollectiveTable(kind, num_ranks, num_nodes, points)
