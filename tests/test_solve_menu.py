"""The menu of a block against brute force over everything it could keep, and against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solve_cases import UNIT, op, program, programs
from trainfit.records import BlockProgram
from trainfit.solve.graph import build_graph
from trainfit.solve.menu import frontier
from trainfit.solve.mincut import Network
from trainfit.solve.pareto import undominated
from trainfit.solve.replay import evaluate

FUZZ = settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def costs(drawn: BlockProgram, time_ns: list[int], ends_stay: bool) -> set[tuple[int, int]]:
    """(bytes, ns) of every decision that serves backward, from the program itself and by the slowest means.

    A decision is a set of kept storages and a set of replayed ops. It is legal if the replay, run op by op, finds each
    version that it reads, writes into nothing but what it has made itself, and leaves what backward needs. A version is
    told by how many ops have written the storage. Unless its ends stay in any case, the block pays for its input if the
    replay reads it, and for its output if it keeps it.
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
            legal, reads_input = True, False
            for i in replayed:
                for r in drawn.ops[i].input_refs():
                    version = (r.storage, sum(w < i for w in writers.get(r.storage, ())))
                    legal &= version in at_hand or version in rebuilt
                    reads_input |= r.storage == 0
                for out in drawn.ops[i].outputs:
                    version = (out.storage, sum(w < i for w in writers[out.storage]))
                    overwrites = drawn.ops[i].name == "aten.add_.Tensor"
                    legal &= not overwrites or version in rebuilt
                    rebuilt.discard(version)
                    rebuilt.add((out.storage, version[1] + 1))
            if legal and all((s, last[s]) in at_hand | rebuilt for s in saved):
                nbytes = sum(drawn.storage_bytes[s] for s in kept if not (ends_stay and s in outputs))
                nbytes += drawn.storage_bytes[0] if reads_input and not ends_stay else 0
                found.add((nbytes, sum(time_ns[i] for i in replayed)))
    return found


def subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(items, n) for n in range(len(items) + 1))


def random_ops_are_together(drawn: BlockProgram, replayed: set[int]) -> bool:
    """A random op runs after the random ops before it, back to where the generator's state is known."""
    for draws in replayed & set(drawn.random):
        known = max((after for after in drawn.saved_after if after <= draws), default=0)
        if any(known <= other < draws and other not in replayed for other in drawn.random):
            return False
    return True


@FUZZ
@given(programs(max_ops=6), st.booleans())
def test_the_frontier_is_the_lower_envelope_of_every_legal_decision(
    case: tuple[BlockProgram, list[int]], ends_stay: bool
) -> None:
    drawn, time_ns = case
    options = frontier(build_graph(drawn, time_ns, None if ends_stay else ()))
    points = costs(drawn, time_ns, ends_stay)
    assert {(o.kept_bytes, o.recompute_ns) for o in options} <= points
    fastest = min(points, key=lambda p: (p[1], p[0]))
    smallest = min(points)
    assert (options[0].kept_bytes, options[0].recompute_ns) == fastest
    assert (options[-1].kept_bytes, options[-1].recompute_ns) == smallest
    for a, b in pairwise(options):
        ns, nbytes = b.recompute_ns - a.recompute_ns, a.kept_bytes - b.kept_bytes
        assert nbytes > 0
        line = nbytes * a.recompute_ns + ns * a.kept_bytes
        assert min(nbytes * t + ns * size for size, t in points) == line


@FUZZ
@given(programs(max_ops=6), st.booleans())
def test_the_undominated_options_are_those_of_brute_force(
    case: tuple[BlockProgram, list[int]], ends_stay: bool
) -> None:
    drawn, time_ns = case
    listed = undominated(build_graph(drawn, time_ns, None if ends_stay else ()))
    points = costs(drawn, time_ns, ends_stay)
    unbeaten = {
        (size, ns) for size, ns in points if not any(s <= size and t <= ns and (s, t) != (size, ns) for s, t in points)
    }
    assert listed.is_complete
    assert [(o.kept_bytes, o.recompute_ns) for o in listed.options] == sorted(unbeaten, reverse=True)


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
        assert (
            option.kept_bytes
            - option.held_bytes
            + sum(graph.nbytes[v] for v in graph.needed if graph.storage[v] not in option.kept)
            == graph.saved_bytes
        )


def options_of(drawn: BlockProgram, time_ns: list[int]) -> list[tuple[tuple[int, ...], int, int, tuple[int, ...]]]:
    options = frontier(build_graph(drawn, time_ns))
    return [(o.kept, o.kept_bytes // UNIT, o.recompute_ns, o.replayed) for o in options]


def test_a_chain_drops_the_cheap_link_first_then_both() -> None:
    # x -> mm -> 2 -> silu -> 3 -> mm -> 4 (output); autograd saves 2 and 3.
    chain_of_three = program(
        [op("aten.mm.default", [0, 1], [2]), op("aten.silu.default", [2], [3]), op("aten.mm.default", [3, 1], [4])],
        [1, 1, 10, 10, 1],
        inputs=[0],
        parameters=[1],
        saved=[2, 3],
        outputs=[4],
    )
    assert options_of(chain_of_three, [100, 5, 100]) == [
        ((2, 3), 20, 0, ()),
        ((2,), 10, 5, (1,)),
        ((), 0, 105, (0, 1)),
    ]


def test_an_op_with_two_outputs_is_paid_once() -> None:
    two_outputs = program([op("aten.f.default", [0], [2, 3])], [1, 1, 4, 4], inputs=[0], saved=[2, 3])
    assert options_of(two_outputs, [7]) == [((2, 3), 8, 0, ()), ((), 0, 7, (0,))]


def test_a_submodule_output_is_held_where_it_saves_an_expensive_replay() -> None:
    # 2 is a projection that autograd does not save; from it the two saved values follow cheaply.
    held = program(
        [op("aten.mm.default", [0], [2]), op("aten.f.default", [2], [3]), op("aten.g.default", [2], [4])],
        [1, 1, 2, 8, 8],
        inputs=[0],
        saved=[3, 4],
        submodule_outputs=[2],
    )
    assert options_of(held, [100, 1, 1]) == [
        ((3, 4), 16, 0, ()),
        ((2,), 2, 2, (1, 2)),
        ((), 0, 102, (0, 1, 2)),
    ]
    option = frontier(build_graph(held, [100, 1, 1]))[1]
    assert (option.held_bytes, option.replay_peak_bytes) == (2 * UNIT, 16 * UNIT)


def test_a_random_op_brings_the_random_ops_before_it_unless_autograd_packed_something_in_between() -> None:
    ops = [op("aten.native_dropout.default", [0], [2]), op("aten.native_dropout.default", [0], [3])]
    together = program(ops, [1, 1, 1, 9], inputs=[0], saved=[3], saved_after=[2])
    assert options_of(together, [50, 3]) == [((3,), 9, 0, ()), ((), 0, 53, (0, 1))]
    apart = program(ops, [1, 1, 1, 9], inputs=[0], saved=[0, 3], saved_after=[1, 2])
    assert options_of(apart, [50, 3]) == [((3,), 9, 0, ()), ((), 0, 3, (1,))]


def test_what_a_collective_makes_is_kept() -> None:
    gathered = program(
        [op("c10d.all_gather.default", [0], [2]), op("aten.f.default", [2], [3])],
        [1, 1, 5, 5],
        inputs=[0],
        saved=[2, 3],
    )
    assert options_of(gathered, [1, 1]) == [((2, 3), 10, 0, ()), ((2,), 5, 1, (1,))]


def test_an_early_version_is_rebuilt_in_memory_of_its_own() -> None:
    # 2 is made, read by g, then overwritten; 3 needs the first version, backward needs the last one of 2 and 3.
    in_place = program(
        [op("aten.f.default", [0], [2]), op("aten.g.default", [2], [3]), op("aten.add_.Tensor", [2, 0], [2])],
        [1, 1, 4, 6],
        inputs=[0],
        saved=[2, 3],
    )
    assert options_of(in_place, [10, 1, 30]) == [((2, 3), 10, 0, ()), ((2,), 4, 11, (0, 1)), ((), 0, 41, (0, 1, 2))]


def test_a_value_read_before_an_input_was_overwritten_is_kept() -> None:
    overwritten = program(
        [op("aten.f.default", [0], [2]), op("aten.add_.Tensor", [0, 1], [0])],
        [1, 1, 4],
        inputs=[0],
        parameters=[1],
        saved=[2],
    )
    assert options_of(overwritten, [1, 1]) == [((2,), 4, 0, ())]


def test_the_minimum_cut_of_a_known_network() -> None:
    # The textbook's example: 0 is the source, 5 the sink, the largest flow is 23.
    network = Network(6)
    edges = [
        (0, 1, 16),
        (0, 2, 13),
        (1, 2, 10),
        (2, 1, 4),
        (1, 3, 12),
        (3, 2, 9),
        (2, 4, 14),
        (4, 3, 7),
        (3, 5, 20),
        (4, 5, 4),
    ]
    for tail, head, capacity in edges:
        network.add_edge(tail, head, capacity)
    assert network.min_cut(0, 5) == (23, [True, True, True, False, True, False])


def test_a_long_chain_needs_no_recursion() -> None:
    network = Network(5000)
    for node in range(4999):
        network.add_edge(node, node + 1, 3 if node == 4000 else 10)
    flow, on_source_side = network.min_cut(0, 4999)
    assert (flow, sum(on_source_side)) == (3, 4001)


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="0 -> 1 has capacity -1"):
        Network(2).add_edge(0, 1, -1)


def test_an_input_that_would_be_gone_is_paid_for_by_whoever_replays_from_it() -> None:
    # The input takes 5 units; 2 is rebuilt from it in 1 ns, 3 from 2 in 4.
    cast = program(
        [op("aten.f.default", [0], [2]), op("aten.g.default", [2], [3])], [5, 1, 4, 4], inputs=[0], saved=[2, 3]
    )
    assert options_of(cast, [1, 4]) == [((2, 3), 8, 0, ()), ((3,), 4, 1, (0,)), ((), 0, 5, (0, 1))]
    options = frontier(build_graph(cast, [1, 4], resident=()))
    # Dropping 2 alone would save 4 units and hold 5. Dropping 3 saves 4; the input takes the place of 2 for nothing.
    assert [(o.kept, o.kept_bytes // UNIT, o.recompute_ns) for o in options] == [((2, 3), 8, 0), ((2,), 4, 4)]
