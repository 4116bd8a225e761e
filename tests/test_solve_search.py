"""The search against judges that differ from the linear model, as the real one does."""

from __future__ import annotations

import pytest

from solve_cases import UNIT, equal_blocks
from trainfit.solve.baselines import every_nth, greedy, nothing, uniform
from trainfit.solve.search import Found, Infeasible, Kept, Search, Verdict
from trainfit.solve.whole import Problem


class Judge:
    """The linear model, with `offset_bytes` of hidden memory and allocations in pages of `page_bytes`."""

    def __init__(self, problem: Problem, offset_bytes: int = 7 * UNIT, page_bytes: int = 1) -> None:
        self.problem = problem
        self.offset_bytes = offset_bytes
        self.page_bytes = page_bytes
        self.calls: list[Kept] = []

    def __call__(self, kept: Kept) -> Verdict:
        self.calls.append(kept)
        by_kept = {option.kept: index for index, option in enumerate(self.problem.menus[0])}
        return self.verdict(tuple(by_kept[k] for k in kept))

    def verdict(self, options: tuple[int, ...]) -> Verdict:
        peak_bytes = self.problem.peak(options)[0] + self.offset_bytes
        pages = -(-peak_bytes // self.page_bytes)
        return Verdict(pages * self.page_bytes, self.problem.base_ns + self.problem.recompute_ns(options))

    def search(self) -> Search:
        return Search(self.problem, self, self.verdict((0,) * len(self.problem.class_of)))


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
    for budget_bytes in range(smallest, search.base.peak_bytes + UNIT, UNIT):
        found = found_within(search, budget_bytes)
        assert found.verdict.peak_bytes <= budget_bytes
        assert step_ns is None or found.verdict.step_ns <= step_ns
        step_ns = found.verdict.step_ns
    assert step_ns == 1000
    assert len(judge.calls) == len(set(judge.calls))


def test_below_the_smallest_peak_the_smallest_peak_is_reported() -> None:
    judge = Judge(equal_blocks(4))
    smallest = judge.search().smallest()
    assert smallest.minimum_bytes == 24 * UNIT  # the last block's backward: 44 + 3, less 3 * 10 dropped, and 7 hidden
    result = judge.search().within(24 * UNIT - 1)
    assert isinstance(result, Infeasible)
    assert result.minimum_bytes == 24 * UNIT
    assert found_within(judge.search(), 24 * UNIT).verdict.peak_bytes == 24 * UNIT


def test_the_smallest_peak_is_not_above_that_of_checkpointing_every_layer() -> None:
    for gradient_units in (0, 3, 20):
        problem = equal_blocks(5, gradient_units=gradient_units)
        judge = Judge(problem)
        every_layer_bytes = problem.peak(every_nth(problem, 1).options)[0] + judge.offset_bytes
        assert judge.search().smallest().minimum_bytes <= every_layer_bytes


def test_an_interrupt_gives_the_best_plan_so_far_with_its_gap() -> None:
    judge = Judge(equal_blocks(6))
    patience = [2]  # the judgements of `smallest`

    def impatient(kept: Kept) -> Verdict:
        patience[0] -= 1
        if patience[0] < 0:
            raise KeyboardInterrupt
        return judge(kept)

    search = Search(judge.problem, impatient, judge.verdict((0,) * 6))
    minimum_bytes = search.smallest().minimum_bytes
    found = found_within(search, 50 * UNIT)
    assert (found.status, found.verdict.peak_bytes) == ("interrupted", minimum_bytes)
    # 43 units besides what is hidden: five b and one a for the last backward, half a b more for the loss, 15.5 ns.
    assert found.gap == (56 - 15) / 1056


def test_an_interrupt_before_any_plan_is_passed_on() -> None:
    def interrupted(kept: Kept) -> Verdict:
        raise KeyboardInterrupt

    problem = equal_blocks(4)
    search = Search(problem, interrupted, Verdict(problem.peak((0,) * 4)[0], 1000))
    with pytest.raises(KeyboardInterrupt):
        search.within(30 * UNIT)


def test_the_frontier_falls_from_the_smallest_peak_to_nothing_recomputed() -> None:
    points = Judge(equal_blocks(4)).search().frontier(8)
    peaks = [found.verdict.peak_bytes for _, found in points]
    times = [found.verdict.step_ns for _, found in points]
    assert (peaks[0], times[-1]) == (24 * UNIT, 1000)
    assert times == sorted(times, reverse=True)
    assert all(found.verdict.peak_bytes <= budget_bytes for budget_bytes, found in points)


def test_the_baselines_by_hand() -> None:
    problem = equal_blocks(4)
    assert nothing(problem).options == (0, 0, 0, 0)
    every_layer, every_second = every_nth(problem, 1), every_nth(problem, 2)
    assert (every_layer.options, every_layer.recompute_ns) == ((2, 2, 2, 2), 44)
    assert (every_second.options, every_second.recompute_ns) == ((2, 0, 2, 0), 22)
    same = uniform(problem, 35 * UNIT)
    assert same is not None
    assert (same.options, same.recompute_ns) == ((1, 1, 1, 1), 4)
    steps = greedy(problem, 25 * UNIT)
    assert steps is not None
    assert (steps.options, steps.recompute_ns) == ((2, 2, 1, 1), 24)
    assert greedy(problem, 10 * UNIT) is None
