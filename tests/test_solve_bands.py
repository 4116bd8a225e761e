"""Bands of choices, and what a search finds in them where blocks of memory are larger than what is in them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from solve_cases import UNIT, equal_blocks, memory_of, op, program
from trainfit.solve.bands import Bands, PaddedLadder, average_slack
from trainfit.solve.graph import build_graph
from trainfit.solve.ladder import exchanges, in_two_parts
from trainfit.solve.menu import frontier
from trainfit.solve.milp import Choice
from trainfit.solve.search import Found, Search, Verdict
from trainfit.solve.whole import Problem

SMALL, LARGE = 3, 4  # units of two tensors that each block saves


def two_tensors(num_blocks: int) -> Problem:
    """Blocks that save 3 units (rebuilt in 3 ns) and 4 units (rebuilt in 5), after which one unit stays besides."""
    block = program(
        [op("aten.mm.default", [0], [1]), op("aten.silu.default", [0], [2])],
        [1, SMALL, LARGE],
        inputs=[0],
        saved=[1, 2],
    )
    graph = build_graph(block, [3, 5])
    memory = memory_of([(8, 0)] * num_blocks, 9)
    return Problem(memory, (0,) * num_blocks, (graph,), (frontier(graph),), base_ns=1000)


def kept_units(choice: Choice) -> list[tuple[int, ...]]:
    sizes = {1: SMALL, 2: LARGE}
    return [tuple(sizes[storage] for storage in kept or ()) for kept in choice.kept()]


class Wasteful:
    """An allocator that gives every large tensor two units more than it asks for."""

    def __init__(self, num_blocks: int) -> None:
        self.problem = two_tensors(num_blocks)
        self.base = Verdict(self.sketch(Choice(self.problem, (0,) * num_blocks, 0)), 1000)

    def sketch(self, choice: Choice, limit_bytes: int | None = None) -> int:
        return choice.peak_bytes + 2 * UNIT * sum(kept.count(LARGE) for kept in kept_units(choice))

    def slack(self, choice: Choice) -> Mapping[int, tuple[int, int]]:
        number = sum(kept.count(LARGE) for kept in kept_units(choice))
        return {SMALL * UNIT: (1, 0), LARGE * UNIT: (number, 2 * UNIT * number)} if number else {SMALL * UNIT: (1, 0)}

    def judge(self, choice: Choice) -> Verdict:
        return Verdict(self.sketch(choice), 1000 + choice.recompute_ns)

    def search(self, *, knows_waste: bool) -> Search:
        slack = self.slack if knows_waste else None
        return Search(self.problem, self.judge, self.sketch, self.base, hidden_bytes=0, is_modelled=True, slack=slack)


def test_the_average_slack_is_that_of_all_blocks_taken_for_a_size() -> None:
    wasteful = Wasteful(4)
    assert average_slack(wasteful.problem, wasteful.slack) == {SMALL * UNIT: 0, LARGE * UNIT: 2 * UNIT}


def test_what_wastes_is_dropped_first() -> None:
    # 32 units saved and 9 at the loss, and 8 wasted. By the model 3 units cost 3 ns and 4 cost 5, so small tensors go
    # first; in truth dropping a large one frees 6.
    wasteful = Wasteful(4)
    budget_bytes = (32 + 9 + 8 - 12) * UNIT
    without, with_waste = (wasteful.search(knows_waste=known).within(budget_bytes) for known in (False, True))
    assert isinstance(without, Found)
    assert isinstance(with_waste, Found)
    assert (without.verdict.step_ns, with_waste.verdict.step_ns) == (1011, 1010)
    assert kept_units(without.choice) == [(LARGE,), (LARGE,), (SMALL, LARGE), (SMALL,)]
    assert kept_units(with_waste.choice) == [(SMALL,), (SMALL,), (SMALL, LARGE), (SMALL, LARGE)]


def test_each_band_takes_less_time_than_the_one_before() -> None:
    problem = two_tensors(5)
    bands = Bands(problem, {LARGE * UNIT: 2 * UNIT}, lambda choice: choice.peak_bytes)
    times = [[choice.recompute_ns for choice in bands.at(band)] for band in range(1025)]
    in_order = [time for band in times for time in reversed(band)]
    assert in_order == sorted(in_order, reverse=True)
    assert len(set(in_order)) == len(in_order) > 5
    assert in_order[-1] == 0
    assert bands.at(1025) == []
    nothing = Choice(problem, (0,) * 5, 0)
    slowest = Choice(problem, (len(problem.menus[0]) - 1,) * 5, 40)
    assert bands.first_below(nothing) == 1024
    first = bands.first_below(slowest)
    assert all(time < 40 for time in times[first])
    assert not any(time < 40 for band in times[:first] for time in band)


def test_a_padded_ladder_makes_its_choices_of_the_plain_problem() -> None:
    problem = two_tensors(4)
    ladder = PaddedLadder(problem, {LARGE * UNIT: 2 * UNIT})
    choices = [ladder.at(step) for step in range(0, ladder.num_steps + 1, ladder.stride)]
    assert all(choice.problem.graphs == problem.graphs for choice in choices)
    assert all(choice.recompute_ns == choice.problem.recompute_ns(choice.options) for choice in choices)
    times = [choice.recompute_ns for choice in choices]
    assert (times, times[0], times[-1]) == (sorted(times, reverse=True), 29, 0)
    # With 8 wasted there are 49 units, and 16 at least; halfway are 32.5, for which three large ones go, 6 units each.
    assert kept_units(ladder.at(ladder.num_steps // 2)) == [(SMALL,), (SMALL,), (SMALL,), (SMALL, LARGE)]
    assert ladder.least_bytes(ladder.num_steps) == (32 + 9) * UNIT


def search_of(problem: Problem, seed: int, most_units: int) -> Search:
    def wasted_bytes(choice: Choice) -> int:
        kept = repr((seed, choice.kept())).encode()
        return UNIT * (zlib.crc32(kept) % (most_units + 1)) + UNIT * sum(k.count(LARGE) for k in kept_units(choice))

    def sketch(choice: Choice, limit_bytes: int | None = None) -> int:
        return choice.peak_bytes + wasted_bytes(choice)

    def slack(choice: Choice) -> Mapping[int, tuple[int, int]]:
        number = sum(kept.count(LARGE) for kept in kept_units(choice))
        return {LARGE * UNIT: (number, UNIT * number)} if number else {}

    base = Choice(problem, (0,) * len(problem.class_of), 0)
    return Search(
        problem,
        lambda choice: Verdict(sketch(choice), problem.base_ns + choice.recompute_ns),
        sketch,
        Verdict(sketch(base), problem.base_ns),
        hidden_bytes=0,
        is_modelled=True,
        slack=slack,
    )


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(2, 5), st.integers(0, 255), st.integers(1, 9), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_budget_never_costs_time_though_bands_are_searched(
    num_blocks: int, seed: int, most_units: int, one: float, other: float
) -> None:
    problem = two_tensors(num_blocks)
    search = search_of(problem, seed, most_units)
    low, high = search.smallest().minimum_bytes, search.base.peak_bytes
    step_ns = []
    for share in sorted((one, other)):
        budget_bytes = int(low + share * max(0, high - low))
        found = search_of(problem, seed, most_units).within(budget_bytes)
        assert isinstance(found, Found)
        assert found.verdict.peak_bytes <= budget_bytes
        step_ns.append(found.verdict.step_ns)
    assert step_ns[1] <= step_ns[0]


def test_exchanges_are_of_two_blocks_that_differ() -> None:
    problem = equal_blocks(3)
    assert [choice.options for choice in exchanges(Choice(problem, (2, 1, 1), 13))] == [(2, 1, 1), (1, 2, 1), (1, 1, 2)]


def test_in_two_parts_the_first_blocks_keep_everything() -> None:
    choices = in_two_parts(equal_blocks(4))
    assert [(choice.options, choice.recompute_ns) for choice in choices] == [
        *(((0, 0, 0, 0), 0), ((0, 0, 0, 1), 1), ((0, 0, 1, 1), 2), ((0, 1, 1, 1), 3), ((1, 1, 1, 1), 4)),
        *(((0, 0, 0, 2), 11), ((0, 0, 2, 2), 22), ((0, 2, 2, 2), 33), ((2, 2, 2, 2), 44)),
    ]


def test_a_choice_in_two_parts_is_taken_where_only_that_does_not_waste() -> None:
    # In the first block's backward there are 94 units whatever is dropped, 11 saved, 80 of gradients and 3 more, and in
    # every later one one unit more: by the model it is enough to drop 4 units, in 1 ns.
    problem = equal_blocks(8, gradient_units=10)
    assert problem.peak((0,) * 8)[0] == 101 * UNIT

    def sketch(choice: Choice, limit_bytes: int | None = None) -> int:
        is_in_two_parts = choice.options[0] == 0 and len(set(choice.options[1:])) == 1 and choice.options[1] > 0
        return choice.peak_bytes + 40 * UNIT * (not is_in_two_parts)

    search = Search(
        problem,
        lambda choice: Verdict(sketch(choice), 1000 + choice.recompute_ns),
        sketch,
        Verdict(141 * UNIT, 1000),
        hidden_bytes=0,
        is_modelled=False,
    )
    found = search.within(95 * UNIT)
    assert isinstance(found, Found)
    assert (found.choice.options, found.verdict) == ((0, *[1] * 7), Verdict(95 * UNIT, 1007))
