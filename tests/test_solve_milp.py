"""The whole model's choice against brute force over every option of every block."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from solve_cases import UNIT, op, program, programs

from trainfit.records import BlockProgram
from trainfit.solve.graph import build_graph
from trainfit.solve.memory import BaseMemory
from trainfit.solve.menu import frontier, undominated
from trainfit.solve.milp import fastest_within, smallest_peak
from trainfit.solve.whole import Problem

FUZZ = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def memory_of(slopes: list[tuple[int, int]], loss_units: int) -> BaseMemory:
    """Blocks after which `saved` units stay, and in whose backward `gradient` units are added that stay."""
    num_blocks = len(slopes)
    other, backward = [], []
    for p in range(num_blocks):
        saved_before = sum(saved for saved, _ in slopes[: p + 1])
        gradients = sum(gradient for _, gradient in slopes[p:])
        other.append(UNIT * saved_before)
        backward.append(UNIT * (saved_before + gradients + 3))
    other.append(UNIT * (sum(saved for saved, _ in slopes) + loss_units))
    return BaseMemory(
        blocks=tuple(f"layers.{p}" for p in range(num_blocks)),
        forward_bytes=tuple(size - UNIT for size in other),
        other_bytes=tuple(other),
        backward_bytes=tuple(backward),
        start_bytes=tuple(size - 2 * UNIT for size in backward),
        forward_op=tuple(range(num_blocks + 1)),
        other_op=tuple(range(50, 51 + num_blocks)),
        backward_op=tuple(range(100, 100 + num_blocks)),
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, list[BlockProgram]]:
    """One or two classes of small blocks in runs of up to three."""
    cases = draw(st.lists(programs(max_ops=5), min_size=1, max_size=2))
    graphs = tuple(build_graph(drawn, times) for drawn, times in cases)
    class_of: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        class_of += [draw(st.integers(0, len(graphs) - 1))] * draw(st.integers(1, 3))
    class_of = class_of[:5]
    gradient_units = [draw(st.integers(0, 8)) for _ in graphs]
    slopes = [(graphs[c].saved_bytes // UNIT + 1, gradient_units[c]) for c in class_of]
    return (
        Problem(
            memory=memory_of(slopes, draw(st.integers(0, 8))),
            class_of=tuple(class_of),
            graphs=graphs,
            menus=tuple(frontier(graph) for graph in graphs),
            base_ns=1000,
        ),
        [drawn for drawn, _ in cases],
    )


@FUZZ
@given(problems(), st.integers(0, 40))
def test_no_assignment_of_any_options_in_any_order_beats_the_choice(
    case: tuple[Problem, list[BlockProgram]], budget_units: int
) -> None:
    problem, _ = case
    everything = tuple(undominated(graph, 100) for graph in problem.graphs)
    assume(all(len(menu) <= 6 for menu in everything))
    full = Problem(problem.memory, problem.class_of, problem.graphs, everything, problem.base_ns)
    assume(len(problem.class_of) <= 4 or all(len(menu) <= 4 for menu in everything))
    budget_bytes = budget_units * UNIT
    choice = fastest_within(problem, budget_bytes)
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
    assert choice.bound_ns <= choice.recompute_ns


@FUZZ
@given(problems())
def test_the_smallest_peak_is_that_of_brute_force_over_the_menus(case: tuple[Problem, list[BlockProgram]]) -> None:
    problem, _ = case
    assume(sum(len(problem.menus[c]) > 1 for c in problem.class_of) <= 5)
    choices = list(product(*(range(len(problem.menus[c])) for c in problem.class_of)))
    peak_bytes, recompute_ns = min((problem.peak(c)[0], problem.recompute_ns(c)) for c in choices)
    choice = smallest_peak(problem)
    assert (problem.peak(choice.options)[0], choice.recompute_ns) == (peak_bytes, recompute_ns)
