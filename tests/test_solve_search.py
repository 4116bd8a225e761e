"""The search against judges that differ from the linear model, as the real one does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solve_cases import UNIT, equal_blocks, memory_of, op, program
from trainfit.solve.baselines import greedy, uniform
from trainfit.solve.graph import build_graph
from trainfit.solve.menu import frontier
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


def test_a_few_kib_above_the_smallest_budget_what_is_small_and_slow_to_rebuild_is_kept() -> None:
    # 512 MiB that take 1 ns, 1 MiB that takes 10 and 32 KiB that take 100. A ladder's next step is 3.5 MiB above its
    # lowest, where some of the middling ones are kept; for the small ones 256 KiB are enough.
    units = (2**20, 2**11, 64)
    ops = [op("aten.mm.default", [0], [storage]) for storage in (1, 2, 3)]
    graph = build_graph(program(ops, [1, *units], inputs=[0], saved=[1, 2, 3]), [1, 10, 100])
    memory = memory_of([(1 + sum(units), 0)] * 8, 5)
    judge = Judge(Problem(memory=memory, class_of=(0,) * 8, graphs=(graph,), menus=(frontier(graph),), base_ns=1000))
    smallest = judge.search().smallest().minimum_bytes
    found = found_within(judge.search(), smallest + 8 * 64 * UNIT)
    assert found.verdict.step_ns == 1000 + 7 * 11  # of the last block all is there when its backward begins


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
    # 43 units besides what is hidden, and 71 at the loss: at best five blocks drop b and one drops both.
    assert found.gap == (56 - 16) / 1056


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


def test_where_the_lowest_rung_does_not_fit_every_block_keeps_least() -> None:
    problem = equal_blocks(4)

    def sketch(choice: Choice, limit_bytes: int | None = None) -> int:
        return choice.peak_bytes + 3 * UNIT * (len(set(choice.options)) > 1)  # as if only equal blocks were packed well

    def judge(choice: Choice) -> Verdict:
        return Verdict(sketch(choice), problem.base_ns + choice.recompute_ns)

    search = Search(problem, judge, sketch, Verdict(49 * UNIT, 1000), hidden_bytes=0, is_modelled=True)
    assert search._model_ladder.lowest.options == (2, 2, 2, 1)  # what the last block drops does not lower the peak
    assert search.smallest().minimum_bytes == 17 * UNIT
    found = found_within(search, 17 * UNIT)
    assert (found.choice.options, found.verdict.step_ns) == ((2, 2, 2, 2), 1044)
