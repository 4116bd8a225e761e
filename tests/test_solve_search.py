"""The search against judges that differ from the linear model, as the real one does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solve_cases import UNIT, equal_blocks
from trainfit.solve.baselines import greedy, uniform
from trainfit.solve.milp import Choice
from trainfit.solve.search import Found, Infeasible, Kept, Search, Verdict
from trainfit.solve.whole import Problem


class Judge:
    """The linear model, with `offset_bytes` of hidden memory and allocations in pages of `page_bytes`."""

    def __init__(self, problem: Problem, offset_bytes: int = 7 * UNIT, page_bytes: int = 1) -> None:
        self.problem = problem
        self.unsketched_bytes = 0
        self.offset_bytes = offset_bytes
        self.page_bytes = page_bytes
        self.calls: list[Kept] = []

    def __call__(self, choice: Choice) -> Verdict:
        self.calls.append(choice.kept())
        return self.verdict(choice.options, choice.problem)

    def sketch(self, choice: Choice, limit_bytes: int | None = None) -> int:
        return self.verdict(choice.options, choice.problem).peak_bytes - self.unsketched_bytes

    def verdict(self, options: tuple[int, ...], problem: Problem | None = None) -> Verdict:
        problem = problem or self.problem
        peak_bytes = problem.peak(options)[0] + self.offset_bytes
        pages = -(-peak_bytes // self.page_bytes)
        return Verdict(pages * self.page_bytes, problem.base_ns + problem.recompute_ns(options))

    def search(self) -> Search:
        return self.search_with(self)

    def search_with(self, judge: Callable[[Choice], Verdict]) -> Search:
        base = self.verdict((0,) * len(self.problem.class_of))
        return Search(
            self.problem, judge, self.sketch, base, hidden_bytes=self.offset_bytes, is_modelled=self.page_bytes == 1
        )


def found_within(search: Search, budget_bytes: int) -> Found:
    found = search.within(budget_bytes)
    assert isinstance(found, Found)
    return found


def test_a_constant_difference_is_learnt_from_the_unplanned_step() -> None:
    judge = Judge(equal_blocks(4))
    found = found_within(judge.search(), 32 * UNIT)
    assert found.choice.options == (2, 2, 1, 0)
    assert found.verdict == Verdict(peak_bytes=32 * UNIT, step_ns=1023)
    assert (found.status, found.num_judged, len(judge.calls)) == ("optimal", 1, 1)


def test_nothing_is_recomputed_or_judged_when_everything_fits() -> None:
    judge = Judge(equal_blocks(4))
    found = found_within(judge.search(), 56 * UNIT)
    assert (found.status, found.gap, found.choice.options, judge.calls) == ("nothing to recompute", 0.0, (0,) * 4, [])


@pytest.mark.parametrize("page_units", [1, 3, 8])
def test_the_judged_peak_is_within_the_budget_and_time_never_rises_with_it(page_units: int) -> None:
    judge = Judge(equal_blocks(6), page_bytes=page_units * UNIT)
    search = judge.search()
    smallest = search.smallest().minimum_bytes
    step_ns = None
    for budget_bytes in range(smallest, search.base.peak_bytes + UNIT, 3 * UNIT):
        found = found_within(search, budget_bytes)
        assert found.verdict.peak_bytes <= budget_bytes
        assert step_ns is None or found.verdict.step_ns <= step_ns
        step_ns = found.verdict.step_ns
    assert found_within(search, search.base.peak_bytes).verdict.step_ns == 1000
    assert len(judge.calls) == len(set(judge.calls))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(2, 5), st.integers(0, 3), st.integers(2, 9), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_budget_never_costs_time_in_searches_that_share_nothing(
    num_blocks: int, gradient_units: int, page_units: int, one: float, other: float
) -> None:
    problem = equal_blocks(num_blocks, gradient_units=gradient_units)

    def search() -> Search:
        return Judge(problem, page_bytes=page_units * UNIT).search()

    low, high = search().smallest().minimum_bytes, search().base.peak_bytes
    smaller, larger = (int(low + share * (high - low)) for share in sorted((one, other)))
    assert found_within(search(), larger).verdict.step_ns <= found_within(search(), smaller).verdict.step_ns


def test_below_the_smallest_peak_the_smallest_peak_is_reported() -> None:
    judge = Judge(equal_blocks(4))
    smallest = judge.search().smallest()
    assert smallest.minimum_bytes == 24 * UNIT  # the last block's backward: 44 + 3, less 3 * 10 dropped, and 7 hidden
    result = judge.search().within(24 * UNIT - 1)
    assert isinstance(result, Infeasible)
    assert result.minimum_bytes == 24 * UNIT
    assert found_within(judge.search(), 24 * UNIT).verdict.peak_bytes == 24 * UNIT


def test_the_smallest_peak_is_not_above_that_of_keeping_least_everywhere() -> None:
    for gradient_units in (0, 3, 20):
        problem = equal_blocks(5, gradient_units=gradient_units)
        judge = Judge(problem)
        assert judge.search().smallest().minimum_bytes <= problem.peak((2,) * 5)[0] + judge.offset_bytes


def test_an_interrupt_gives_the_best_plan_so_far_with_its_gap() -> None:
    judge = Judge(equal_blocks(6))
    patience = [1]  # the judgement of `smallest`

    def impatient(choice: Choice) -> Verdict:
        patience[0] -= 1
        if patience[0] < 0:
            raise KeyboardInterrupt
        return judge(choice)

    search = judge.search_with(impatient)
    minimum_bytes = search.smallest().minimum_bytes
    found = found_within(search, 50 * UNIT)
    assert (found.status, found.verdict.peak_bytes) == ("interrupted", minimum_bytes)
    # 43 units besides what is hidden: five b and one a for the last backward, half a b more for the loss, 15.5 ns.
    assert found.gap == (56 - 15) / 1056


def test_an_interrupt_before_any_plan_is_passed_on() -> None:
    def interrupted(choice: Choice) -> Verdict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Judge(equal_blocks(4)).search_with(interrupted).within(37 * UNIT)


def test_the_frontier_falls_from_the_smallest_peak_to_nothing_recomputed() -> None:
    points = Judge(equal_blocks(4)).search().frontier(8)
    peaks = [found.verdict.peak_bytes for _, found in points]
    times = [found.verdict.step_ns for _, found in points]
    assert (peaks[0], times[-1]) == (24 * UNIT, 1000)
    assert times == sorted(times, reverse=True)
    assert all(found.verdict.peak_bytes <= budget_bytes for budget_bytes, found in points)


def test_the_simpler_ways_by_hand() -> None:
    problem = equal_blocks(4)
    same, steps = uniform(problem, 35 * UNIT), greedy(problem, 25 * UNIT)
    assert same is not None
    assert (same.options, same.recompute_ns) == ((1, 1, 1, 1), 4)
    assert steps is not None
    assert (steps.options, steps.recompute_ns) == ((2, 2, 1, 1), 24)
    assert greedy(problem, 10 * UNIT) is None
