"""All options of a block that matter: for each pair of kept bytes and time that no other beats in both, one option.

In: a `BlockGraph`. Out: `Option`s by falling kept bytes and rising time, and whether these are all.

The ops are gone through from the last to the first. What is still wanted, of all that the ops before it make, is the
state: at first what backward needs. Of an op that makes something wanted there are two ways to go on: what is wanted of
it is kept, which costs bytes, or the op is replayed, which costs time, and then all that it reads is wanted. (To keep
some of it and replay the op all the same only costs bytes.) An op that a replayed one requires is wanted itself. Of all
ways to a state only those matter that no other to the same state beats: what is to come depends on the state alone.
What is wanted in the end comes from outside: it is held at its price, or cannot be had.

A block is narrow, between two of its ops few values are alive, so there are few states: a transformer's layer has up to
four, of at most a few hundred ways each, which takes a millisecond. Where there are too many ways some are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from trainfit.solve.graph import BlockGraph
from trainfit.solve.replay import Option, evaluate

_MOST_WAYS = 20_000
"""Ways at one op, to all states together, that are followed."""

_Way = tuple[int, int, int]  # (kept bytes, replay ns, the values that are kept as bits)


@dataclass(frozen=True, slots=True)
class Undominated:
    """Options that no other beats in both kept bytes and time, one for each pair of these."""

    options: tuple[Option, ...]
    is_complete: bool


@lru_cache(maxsize=64)
def undominated(graph: BlockGraph) -> Undominated:
    """The options that matter; none at all where even the states are too many."""
    is_complete = True
    num_values = len(graph.storage)
    requires = dict(graph.requires)
    there = _bits(value for value in range(num_values) if graph.is_keepable[value] or graph.is_input[value])
    states: dict[int, list[_Way]] = {_bits(graph.needed): [(0, 0, 0)]}  # wanted values, and above them wanted ops
    for op in reversed(range(len(graph.time_ns))):
        makes, itself = _bits(graph.makes[op]), 1 << num_values + op
        reads = _bits(value for value in graph.reads[op] if not graph.is_free[value])
        if op in requires:
            reads |= 1 << num_values + requires[op]
        further: dict[int, list[_Way]] = {}
        for wanted, ways in states.items():
            made, rest = wanted & makes, wanted & ~makes & ~itself
            if rest == wanted:
                further.setdefault(wanted, []).extend(ways)
                continue
            if not wanted & itself and not made & ~there:
                made_bytes = _bytes_of(graph, made)
                further.setdefault(rest, []).extend((size + made_bytes, ns, kept | made) for size, ns, kept in ways)
            if not graph.is_opaque[op]:
                op_ns = graph.time_ns[op]
                further.setdefault(rest | reads, []).extend((size, ns + op_ns, kept) for size, ns, kept in ways)
        states = {wanted: _unbeaten(ways) for wanted, ways in further.items()}
        if sum(map(len, states.values())) > _MOST_WAYS:
            if 2 * len(states) > _MOST_WAYS:
                return Undominated((), is_complete=False)
            is_complete = False
            states = {wanted: _spread(ways, _MOST_WAYS // len(states)) for wanted, ways in states.items()}
    last = [
        (size + _bytes_of(graph, wanted), ns, kept | wanted)
        for wanted, ways in states.items()
        if not wanted & ~there
        for size, ns, kept in ways
    ]
    return Undominated(tuple(_option(graph, kept) for _, _, kept in reversed(_unbeaten(last))), is_complete)


def _option(graph: BlockGraph, kept: int) -> Option:
    storages = [graph.storage[value] for value in _numbers(kept) if graph.is_keepable[value]]
    option = evaluate(graph, storages)
    assert option is not None, "a way to the end serves backward"
    return option


def _unbeaten(ways: list[_Way]) -> list[_Way]:
    """Those that no other beats, by rising bytes and falling time."""
    best: list[_Way] = []
    for way in sorted(ways):
        if not best or way[1] < best[-1][1]:
            best.append(way)
    return best


def _spread(ways: list[_Way], number: int) -> list[_Way]:
    """So many of them, at least two, the first and the last among them."""
    if len(ways) <= number:
        return ways
    return [ways[(len(ways) - 1) * k // (number - 1)] for k in range(number)]


def _bits(numbers: Iterable[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def _numbers(bits: int) -> list[int]:
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


def _bytes_of(graph: BlockGraph, values: int) -> int:
    return sum(graph.nbytes[value] for value in _numbers(values))
