"""Replays that hide behind communication, by hand: what is hidden costs nothing, and the plan spreads what it can.

The block computes t (5 ns, saved by nobody), and from it a and b (4 units and 1 ns each), which backward needs. To drop
one of them takes 6 ns of replay, to drop both 7: on one GPU, two blocks that must lose 8 units lose them in one block.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainfit
from fsdp_steps import make_step
from solve_cases import UNIT, memory_of, op, program
from trainfit.solve.graph import BlockGraph, build_graph
from trainfit.solve.menu import frontier
from trainfit.solve.milp import _best_mixture, enriched, fastest_within, recompute_bound_ns
from trainfit.solve.pareto import undominated
from trainfit.solve.replay import rerun
from trainfit.solve.whole import Problem

BLOCK = program(
    [op("aten.mm.default", [0], [1]), op("aten.silu.default", [1], [2]), op("aten.relu.default", [1], [3])],
    [1, 1, 4, 4],
    inputs=[0],
    saved=[2, 3],
)


def graph_of(hidden_ns: int) -> BlockGraph:
    return build_graph(BLOCK, [5, 1, 1], hidden_ns=hidden_ns)


def two_blocks(hidden_ns: int) -> Problem:
    graph = graph_of(hidden_ns)
    return Problem(memory_of([(9, 0)] * 2, 20), (0, 0), (graph,), (frontier(graph),), base_ns=10)


@pytest.mark.parametrize(("hidden_ns", "one_ns", "both_ns"), [(0, 6, 7), (6, 0, 1), (100, 0, 0)])
def test_what_hides_is_not_paid_for(hidden_ns: int, one_ns: int, both_ns: int) -> None:
    graph = graph_of(hidden_ns)
    nothing, both = frontier(graph)
    one = undominated(graph).options[1]
    assert [(o.kept_bytes // UNIT, o.recompute_ns, o.replay_ns) for o in (nothing, one, both, rerun(graph, 3))] == [
        (8, 0, 0),
        (4, one_ns, 6),
        (0, both_ns, 7),
        (0, both_ns, 7),
    ]


def test_replays_are_spread_over_the_blocks_behind_whose_communication_they_hide() -> None:
    budget_bytes = (18 + 20 - 8) * UNIT
    together, spread = (fastest_within(enriched(two_blocks(hidden_ns)), budget_bytes) for hidden_ns in (0, 6))
    assert together is not None
    assert spread is not None
    assert sorted(o.kept_bytes // UNIT for o in map(together.problem.option, (0, 1), together.options)) == [0, 8]
    assert together.recompute_ns == 7
    assert [o.kept_bytes // UNIT for o in map(spread.problem.option, (0, 1), spread.options)] == [4, 4]
    assert spread.recompute_ns == 0


def test_of_what_takes_as_long_the_least_is_replayed() -> None:
    roomy = fastest_within(enriched(two_blocks(100)), (18 + 20) * UNIT)
    assert roomy is not None
    assert roomy.options == (0, 0)


def test_the_bound_on_any_choice_allows_for_what_hides() -> None:
    # Any choice replays 7 ns, of which each block may hide 2; bounds are rounded down.
    problem, budget_bytes = enriched(two_blocks(2)), (18 + 20 - 8) * UNIT
    mixture = _best_mixture(problem, budget_bytes)
    assert mixture is not None
    assert mixture[1] == 7 - 1 - 2 * 2
    assert recompute_bound_ns(problem, budget_bytes) == 7 - 2  # of two blocks every choice is known
    choice = fastest_within(problem, budget_bytes)
    assert choice is not None
    assert choice.recompute_ns == 7 - 2


def test_a_plan_says_what_it_replays_though_all_of_it_hides() -> None:
    slow = trainfit.FSDP(world_size=4, intra_node_gb_per_s=1e-4)
    plan = trainfit.plan(make_step(slow), "h200", budget="min", memory="allocated")
    fast = trainfit.plan(make_step(replace(slow, intra_node_gb_per_s=1e4)), "h200", budget="min", memory="allocated")
    assert all(decision.recompute_ns > 0 for decision in (*plan.decisions, *fast.decisions))


def test_the_written_trace_of_a_plan_waits_for_the_same_collectives_as_the_traced_one() -> None:
    plan = trainfit.plan(
        make_step(trainfit.FSDP(world_size=4, intra_node_gb_per_s=1e-4)), "h200", budget="min", memory="allocated"
    )
    rows = {row.name: row for row in plan.rows}
    # Collectives take all of the step; more work beside them may hide, and cannot make the step shorter.
    base_ns = rows.pop("nothing recomputed").step_ns
    assert all(base_ns <= row.step_ns <= 1.001 * base_ns for row in rows.values())
