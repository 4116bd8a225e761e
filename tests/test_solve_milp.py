"""The whole model's choice against brute force over every option of every block."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from solve_cases import UNIT, cast_and_product, equal_blocks, memory_of, problems
from trainfit.records import BlockProgram
from trainfit.solve.linear import IntegerProgram, Solution
from trainfit.solve.menu import frontier
from trainfit.solve.milp import enriched, fastest_within, recompute_bound_ns, smallest_peak
from trainfit.solve.pareto import undominated
from trainfit.solve.whole import Problem

FUZZ = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@FUZZ
@given(problems(), st.integers(0, 40))
def test_no_assignment_of_any_options_in_any_order_beats_the_choice(
    case: tuple[Problem, list[BlockProgram]], budget_units: int
) -> None:
    problem, _ = case
    everything = tuple(undominated(graph).options for graph in problem.graphs)
    assume(all(len(menu) <= 6 for menu in everything))
    full = Problem(problem.memory, problem.class_of, problem.graphs, everything, problem.base_ns)
    assume(len(problem.class_of) <= 4 or all(len(menu) <= 4 for menu in everything))
    budget_bytes = budget_units * UNIT
    choice = fastest_within(enriched(problem), budget_bytes)
    within = [
        full.recompute_ns(options)
        for options in product(*(range(len(full.menus[c])) for c in full.class_of))
        if full.peak(options)[0] <= budget_bytes
    ]
    if choice is None:
        assert not within
        return
    assert choice.problem.peak(choice.options)[0] <= budget_bytes
    assert choice.recompute_ns == min(within)
    assert recompute_bound_ns(problem, budget_bytes) <= choice.recompute_ns


@FUZZ
@given(problems())
def test_the_smallest_peak_is_that_of_brute_force_over_the_menus(case: tuple[Problem, list[BlockProgram]]) -> None:
    problem, _ = case
    assume(sum(len(problem.menus[c]) > 1 for c in problem.class_of) <= 5)
    choices = list(product(*(range(len(problem.menus[c])) for c in problem.class_of)))
    peak_bytes, recompute_ns = min((problem.peak(c)[0], problem.recompute_ns(c)) for c in choices)
    choice = smallest_peak(problem)
    assert (problem.peak(choice.options)[0], choice.recompute_ns) == (peak_bytes, recompute_ns)


def test_the_cheapest_bytes_go_first_and_the_heavier_drops_come_first() -> None:
    problem = equal_blocks(4)
    assert [(o.kept_bytes // UNIT, o.recompute_ns) for o in problem.menus[0]] == [(10, 0), (6, 1), (0, 11)]
    # 44 saved and 5 at the loss, where 24 units are to go: two whole blocks and one b.
    choice = fastest_within(problem, 25 * UNIT)
    assert choice is not None
    assert choice.options == (2, 2, 1, 0)
    assert (choice.recompute_ns, choice.problem.peak(choice.options)[0]) == (23, 25 * UNIT)


def test_gradients_that_accumulate_bind_at_the_first_block() -> None:
    problem = equal_blocks(4, gradient_units=20)
    # In the first block's backward there are 11 saved, 80 of gradients, 3 more: no drop of other blocks helps there.
    assert problem.peak(smallest_peak(problem).options)[0] == 94 * UNIT
    assert fastest_within(problem, 94 * UNIT - 1) is None
    _, moment = problem.peak((0, 0, 0, 0))
    assert (moment.block, moment.op) == ("layers.0", 100)


def test_casts_that_are_dropped_still_count_in_forward() -> None:
    graph = cast_and_product()
    assert graph.saved_cast_bytes == 4 * UNIT
    problem = Problem(memory_of([(9, 0)] * 2, 20), (0, 0), (graph,), (frontier(graph),), 1000)
    no_casts, nothing = frontier(graph)[1], frontier(graph)[-1]
    assert (no_casts.kept, nothing.kept) == ((3,), ())
    assert (problem.drop_bytes(0, no_casts), problem.forward_drop_bytes(0, no_casts)) == (4 * UNIT, 0)
    assert (problem.drop_bytes(0, nothing), problem.forward_drop_bytes(0, nothing)) == (8 * UNIT, 4 * UNIT)


def test_the_cost_of_a_solve_does_not_depend_on_the_number_of_equal_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = IntegerProgram.solve
    sizes: list[tuple[int, int]] = []

    def counted(program: IntegerProgram, *, relaxed: bool = False, max_nodes: int | None = None) -> Solution | None:
        sizes.append((len(program._costs), len(program._rows)))
        return solve(program, relaxed=relaxed, max_nodes=max_nodes)

    monkeypatch.setattr(IntegerProgram, "solve", counted)
    for num_blocks in (10, 100, 1000):
        sizes.clear()
        choice = fastest_within(enriched(equal_blocks(num_blocks)), 6 * num_blocks * UNIT)
        assert choice is not None
        # 5 units a block and 5 are too many: 4 from each block, and at 6 a block what is left.
        assert choice.recompute_ns == num_blocks + 10 * -(-(num_blocks + 5) // 6)
        assert len(sizes) <= 36
        assert max(sizes) <= (11, 12)


def test_a_search_that_grows_too_large_ends_with_the_best_so_far() -> None:
    # Market split: halves of three sums at once. HiGHS would search a tree of thousands.
    draw = random.Random(0)
    program = IntegerProgram()
    columns = [program.add_binary(0.0) for _ in range(20)]
    for _ in range(3):
        terms = {column: float(draw.randrange(100)) for column in columns}
        off_by = program.add_continuous(1.0)
        program.add_row({**terms, off_by: 1.0}, lower=sum(terms.values()) // 2)
        program.add_row({**terms, off_by: -1.0}, upper=sum(terms.values()) // 2)
    cut_short = program.solve(max_nodes=1)
    assert cut_short is not None
    assert 0 < cut_short.objective < 150
    assert cut_short.gap > 0
