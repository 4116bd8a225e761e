"""The menu of a block against brute force over everything it could keep, and against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from solve_cases import UNIT, op, program, programs

from trainfit.records import BlockProgram
from trainfit.solve.graph import build_graph
from trainfit.solve.menu import frontier, option_within
from trainfit.solve.mincut import Network
from trainfit.solve.replay import evaluate

FUZZ = settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def costs(drawn: BlockProgram, time_ns: list[int]) -> set[tuple[int, int]]:
    """(bytes, ns) of every decision that serves backward, from the program itself and by the slowest means.

    A decision is a set of kept storages and a set of replayed ops. It is legal if the replay, run op by op, finds each
    version that it reads, writes into nothing but what it has made itself, and leaves what backward needs. A version is
    told by how many ops have written the storage.
    """
    free = {0, 1}
    writers: dict[int, list[int]] = {}
    for i, o in enumerate(drawn.ops):
        for out in o.outputs:
            writers.setdefault(out.storage, []).append(i)
    last = {s: len(writers.get(s, ())) for s in range(len(drawn.storage_bytes))}
    saved = {r.storage for r in drawn.saved} - free
    keepable = sorted((saved | {s for _, s in drawn.submodule_outputs}) - free)
    outputs = {r.storage for r in drawn.outputs}
    replayable = [i for i in range(len(drawn.ops)) if i not in drawn.opaque]
    found = set()
    for replayed in subsets(replayable):
        if not random_ops_are_together(drawn, set(replayed)):
            continue
        for kept in subsets(keepable):
            at_hand = {(s, last[s]) for s in free | set(kept)}
            rebuilt: set[tuple[int, int]] = set()
            legal = True
            for i in replayed:
                for r in drawn.ops[i].input_refs():
                    version = (r.storage, sum(w < i for w in writers.get(r.storage, ())))
                    legal &= version in at_hand or version in rebuilt
                for out in drawn.ops[i].outputs:
                    version = (out.storage, sum(w < i for w in writers[out.storage]))
                    overwrites = drawn.ops[i].name == "aten.add_.Tensor"
                    legal &= not overwrites or version in rebuilt
                    rebuilt.discard(version)
                    rebuilt.add((out.storage, version[1] + 1))
            if legal and all((s, last[s]) in at_hand | rebuilt for s in saved):
                nbytes = sum(drawn.storage_bytes[s] for s in kept if s not in outputs)
                found.add((nbytes, sum(time_ns[i] for i in replayed)))
    return found


def subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(items, n) for n in range(len(items) + 1))


def random_ops_are_together(drawn: BlockProgram, replayed: set[int]) -> bool:
    """A random op runs after the random ops before it, back to where the generator's state is known."""
    for op in replayed & set(drawn.random):
        known = max((after for after in drawn.saved_after if after <= op), default=0)
        if any(known <= other < op and other not in replayed for other in drawn.random):
            return False
    return True


@FUZZ
@given(programs(max_ops=6))
def test_the_frontier_is_the_lower_envelope_of_every_legal_decision(case: tuple[BlockProgram, list[int]]) -> None:
    drawn, time_ns = case
    options = frontier(build_graph(drawn, time_ns))
    points = costs(drawn, time_ns)
    assert {(o.kept_bytes, o.recompute_ns) for o in options} <= points
    fastest = min(points, key=lambda p: (p[1], p[0]))
    smallest = min(points)
    assert (options[0].kept_bytes, options[0].recompute_ns) == fastest
    assert (options[-1].kept_bytes, options[-1].recompute_ns) == smallest
    for a, b in zip(options, options[1:], strict=False):
        ns, nbytes = b.recompute_ns - a.recompute_ns, a.kept_bytes - b.kept_bytes
        assert nbytes > 0
        line = nbytes * a.recompute_ns + ns * a.kept_bytes
        assert min(nbytes * t + ns * size for size, t in points) == line


@FUZZ
@given(programs(max_ops=6), st.integers(0, 20))
def test_the_fastest_option_within_a_cap_is_that_of_brute_force(
    case: tuple[BlockProgram, list[int]], cap_units: int
) -> None:
    drawn, time_ns = case
    cap_bytes = cap_units * UNIT
    option = option_within(build_graph(drawn, time_ns), cap_bytes)
    legal = [(ns, nbytes) for nbytes, ns in costs(drawn, time_ns) if nbytes <= cap_bytes]
    if option is None:
        assert not legal
    else:
        assert (option.recompute_ns, option.kept_bytes) == min(legal)


@FUZZ
@given(programs(), st.data())
def test_an_option_is_a_fixed_point_of_its_own_evaluation(
    case: tuple[BlockProgram, list[int]], data: st.DataObject
) -> None:
    graph = build_graph(*case)
    candidates = [graph.storage[v] for v, keepable in enumerate(graph.is_keepable) if keepable]
    kept = data.draw(st.sets(st.sampled_from(candidates))) if candidates else set()
    option = evaluate(graph, kept)
    if option is not None:
        assert set(option.kept) <= kept
        assert evaluate(graph, option.kept) == option
        assert option.kept_bytes - option.held_bytes + sum(
            graph.nbytes[v] for v in graph.needed if graph.storage[v] not in option.kept
        ) == graph.saved_bytes
