"""Dynamic programming over the blocks against brute force, and choices by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from solve_cases import UNIT, cast_and_product, equal_blocks, memory_of, op, problems, program
from trainfit.records import BlockProgram
from trainfit.solve.graph import build_graph
from trainfit.solve.menu import frontier
from trainfit.solve.milp import fastest_within, is_bound_by_casts, recompute_bound_ns
from trainfit.solve.pareto import undominated
from trainfit.solve.table import Table, bound_ns
from trainfit.solve.whole import Problem

FUZZ = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def relaxed_peak_bytes(problem: Problem, options: tuple[int, ...]) -> int:
    """Without extras, and with dropped casts gone in forward."""
    memory, dropped, peaks = problem.memory, 0, []
    for block, index in enumerate(options):
        peaks += [sizes[block] - dropped for sizes in (memory.forward_bytes, memory.other_bytes, memory.backward_bytes)]
        dropped += problem.drop_bytes(problem.class_of[block], problem.option(block, index))
    return max(*peaks, memory.forward_bytes[-1] - dropped, memory.other_bytes[-1] - dropped)


@FUZZ
@given(problems(), st.integers(0, 40))
def test_the_bound_is_the_fastest_of_all_whole_choices(
    case: tuple[Problem, list[BlockProgram]], budget_units: int
) -> None:
    problem, _ = case
    problem = replace(problem, menus=tuple(undominated(graph).options for graph in problem.graphs))
    assume(math.prod(len(problem.menus[c]) for c in problem.class_of) <= 2000)
    choices = product(*(range(len(problem.menus[c])) for c in problem.class_of))
    within = [o for o in choices if relaxed_peak_bytes(problem, o) <= budget_units * UNIT]
    fastest_ns = min((problem.recompute_ns(options) for options in within), default=None)
    assert bound_ns(problem, budget_units * UNIT) == fastest_ns  # units are 512 bytes here: nothing is rounded


def test_whole_choices_bound_what_a_mixture_does_not() -> None:
    # One block that saves 10 units, all or nothing, 7 ns: for 5 units less a mixture of both takes half the time.
    graph = build_graph(program([op("aten.mm.default", [0], [1])], [1, 10], inputs=[0], saved=[1]), [7])
    problem = Problem(memory_of([(11, 0)], 20), (0,), (graph,), (frontier(graph),), base_ns=100)
    budget_bytes = (11 + 20 - 5) * UNIT
    assert recompute_bound_ns(problem, budget_bytes, enough_ns=0) == 3  # the mixture's will do; rounded down
    assert recompute_bound_ns(problem, budget_bytes) == 7
    choice = fastest_within(problem, budget_bytes)
    assert choice is not None
    assert choice.recompute_ns == 7


def test_of_casts_that_stay_in_forward_the_bound_counts_none_there() -> None:
    # A cast (4 units, 1 ns) stays until forward ends, where the peak is; only the product (4 units, 10 ns) helps.
    graph = cast_and_product()
    memory = memory_of([(9, 0)], 0)
    memory = replace(memory, forward_bytes=(0, 30 * UNIT), other_bytes=(0, 9 * UNIT), backward_bytes=(12 * UNIT,))
    problem = Problem(memory, (0,), (graph,), (frontier(graph),), base_ns=100)
    assert bound_ns(problem, 29 * UNIT) == 1
    assert recompute_bound_ns(problem, 29 * UNIT) == 10
    assert is_bound_by_casts(problem, 29 * UNIT)
    later = replace(problem, memory=replace(memory, forward_bytes=(0, 9 * UNIT), other_bytes=(0, 30 * UNIT)))
    assert not is_bound_by_casts(later, 29 * UNIT)


def test_choices_are_the_fastest_for_what_they_drop_with_the_heavier_drops_first() -> None:
    # 44 saved and 5 at the loss: for 25 units 24 must go. Blocks drop 10 units in 11 ns or 4 in 1.
    problem = equal_blocks(4)
    table = Table.of_choices(problem, 25 * UNIT, 17 * UNIT, room_bytes=4 * UNIT)
    assert table.best_ns == 23
    assert table.fastest() == (2, 2, 1, 0)
    found = [(options, problem.recompute_ns(options)) for options in table.unbeaten(before_ns=math.inf)]
    assert found == [((2, 2, 1, 1), 24), ((2, 2, 1, 0), 23)]
    assert table.unbeaten(before_ns=24) == [(2, 2, 1, 0)]
