"""`Bands`: more choices near the fastest for each modelled peak, the same for every budget.

In: a `Problem`, and by how much the blocks of memory for a tensor of some size are larger than it on average. Out:
bands of choices; each choice of a band takes less time than any of the band before.

The classic allocator does not split off what is 1 MiB or less of a block, and what is not split off counts as
allocated. How much that is depends on where blocks lie, but some sizes waste more than others: 1.1 MiB mostly take 2.
So here a kept tensor has the bytes that it takes on average, all options that no other beats by these bytes count, and
a band's choices are all that are fastest for some peak between two that are near each other (`table`). Which of them
fits a budget the exact simulation must say.

Band j holds what the table for the peak G(j) has that takes less time than all that is within G(j - 1). Of two tables
the one for the larger peak has all that the other has, so bands follow one another in time, whatever budget is asked
for (`search`). What a band's choices have beyond G(j) is told from one band of every `_TOLD_TOGETHER`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from trainfit.solve.graph import ALLOCATION_UNIT_BYTES, BlockGraph
from trainfit.solve.ladder import ModelLadder
from trainfit.solve.memory import BaseMemory
from trainfit.solve.menu import frontier
from trainfit.solve.milp import Choice
from trainfit.solve.pareto import undominated
from trainfit.solve.replay import Option, evaluate
from trainfit.solve.table import Table
from trainfit.solve.whole import Problem

_NUM_BANDS = 1024
_TOLD_TOGETHER = 32
_SAMPLES = 8
_MOST_ABOVE = 2e-4
"""Of the step: options are left out that take so much more than the best mixture of two others for the same bytes."""


class Bands:
    """Choices by falling time in bands from 0 on."""

    def __init__(self, problem: Problem, slack_bytes: Mapping[int, int], sketch: Callable[[Choice], int]) -> None:
        self._padded = _with_near_options(_padded(problem, slack_bytes))
        same = (
            tuple(option if option.is_rerun else _same(graph, option) for option in menu)
            for graph, menu in zip(problem.graphs, self._padded.menus, strict=True)
        )
        self._plain = replace(problem, menus=tuple(same))  # the same menus, by index
        self._sketch = sketch
        self._highest_bytes = self._padded.peak((0,) * len(problem.class_of))[0]
        least = [min(range(len(menu)), key=lambda i, menu=menu: menu[i].kept_bytes) for menu in self._padded.menus]  # type: ignore[misc]
        self._lowest_bytes = self._padded.peak(tuple(least[c] for c in problem.class_of))[0]
        self._tables: dict[int, Table] = {}
        self._bands: dict[int, list[Choice]] = {}

    def first_below(self, choice: Choice) -> int:
        """The first band that has choices which take less time than this one."""
        share = (self._padded_bytes(choice) - self._lowest_bytes) / max(1, self._highest_bytes - self._lowest_bytes)
        band = min(_NUM_BANDS, max(0, int(share * _NUM_BANDS)))
        while band < _NUM_BANDS and self._table(band).best_ns >= choice.recompute_ns:
            band += 1
        while band > 0 and self._table(band - 1).best_ns < choice.recompute_ns:
            band -= 1
        return band

    def at(self, band: int) -> list[Choice]:
        """From the fastest on; none beyond the last band."""
        if band > _NUM_BANDS:
            return []
        if band not in self._bands:
            before_ns = self._table(band - 1).best_ns if band else math.inf
            found = reversed(self._table(band).unbeaten(before_ns))
            self._bands[band] = [self._choice(options) for options in found]
        return self._bands[band]

    def expected_bytes(self, band: int) -> int:
        """The peak that the band's choices may be expected to have."""
        told = band // _TOLD_TOGETHER * _TOLD_TOGETHER
        return self._peak_bytes(band) + self._sketch(self._choice(self._table(told).fastest())) - self._peak_bytes(told)

    def _choice(self, options: tuple[int, ...]) -> Choice:
        return Choice(self._plain, options, self._plain.recompute_ns(options))

    def _padded_bytes(self, choice: Choice) -> int:
        """The choice's modelled peak with what tensors take on average."""
        options = _same_options(self._padded, choice)
        problem = replace(self._padded, menus=(tuple(options),) * len(self._padded.menus))
        return problem.peak(range(len(options)))[0]

    def _peak_bytes(self, band: int) -> int:
        return self._lowest_bytes + (self._highest_bytes - self._lowest_bytes) * band // _NUM_BANDS

    def _table(self, band: int) -> Table:
        if band not in self._tables:
            peak_bytes = self._peak_bytes(band)
            room_bytes = peak_bytes - self._peak_bytes(max(0, band - 1))
            self._tables[band] = Table.of_choices(self._padded, peak_bytes, self._lowest_bytes, room_bytes)
        return self._tables[band]


class PaddedLadder(ModelLadder):
    """A `ModelLadder` with what tensors take on average: slower than bands, but it sees all that the model sees."""

    def __init__(self, problem: Problem, slack_bytes: Mapping[int, int]) -> None:
        padded = _padded(problem, slack_bytes)
        super().__init__(padded, is_fine=True)
        self._plain = problem
        self._padding_bytes = padded.memory.forward_bytes[-1] - problem.memory.forward_bytes[-1]

    def least_bytes(self, step: int) -> int:
        return self._modelled_bytes(step) - self._padding_bytes

    def _make(self, step: int) -> Choice:
        choice = super()._make(step)
        options = _same_options(self._plain, choice)
        by_class = {
            c: [o for o, other in zip(options, self._plain.class_of, strict=True) if other == c]
            for c in self._plain.class_of
        }
        plain = self._plain.with_options(by_class)
        indices = [plain.menus[c].index(o) for c, o in zip(plain.class_of, options, strict=True)]
        return Choice(plain, tuple(indices), choice.recompute_ns)


def average_slack(problem: Problem, slack: Callable[[Choice], Mapping[int, tuple[int, int]]]) -> dict[int, int]:
    """By size, how much larger blocks are than tensors on average, in choices in which all blocks do much the same.

    `slack` says of a choice how many blocks were taken for a size, and by how much they were larger in all.
    """
    numbers: dict[int, int] = {}
    slack_bytes: dict[int, int] = {}
    for part in range(_SAMPLES):
        options = [len(menu) * part // _SAMPLES for menu in problem.menus]
        choice = tuple(options[class_index] for class_index in problem.class_of)
        for size, (number, more_bytes) in slack(Choice(problem, choice, problem.recompute_ns(choice))).items():
            numbers[size] = numbers.get(size, 0) + number
            slack_bytes[size] = slack_bytes.get(size, 0) + more_bytes
    return {size: slack_bytes[size] // number for size, number in numbers.items()}


def _padded(problem: Problem, slack_bytes: Mapping[int, int]) -> Problem:
    """The problem with tensors as large as they are taken to be, and the vertices of its frontiers in the menus."""
    graphs = [_padded_graph(graph, slack_bytes) for graph in problem.graphs]
    more_bytes = [wide.saved_bytes - graph.saved_bytes for graph, wide in zip(problem.graphs, graphs, strict=True)]
    memory = _padded_memory(problem.memory, [more_bytes[class_index] for class_index in problem.class_of])
    reruns = ([option for option in menu if option.is_rerun] for menu in problem.menus)
    menus = tuple((*frontier(graph), *more) for graph, more in zip(graphs, reruns, strict=True))
    return replace(problem, memory=memory, graphs=tuple(graphs), menus=menus)


def _with_near_options(problem: Problem) -> Problem:
    """With all options in the menus that may be of use between the vertices."""
    near = [_near_hull(undominated(graph).options, _MOST_ABOVE * problem.base_ns) for graph in problem.graphs]
    return problem.with_options({class_index: list(options) for class_index, options in enumerate(near)})


def _padded_memory(memory: BaseMemory, more_bytes: Sequence[int]) -> BaseMemory:
    """With so much more of what each block saves: at position p that of the blocks before, in backward its own too."""
    before = list(accumulate(more_bytes, initial=0))

    def padded(sizes: Sequence[int], ahead: int) -> tuple[int, ...]:
        return tuple(size + before[position + ahead] for position, size in enumerate(sizes))

    return replace(
        memory,
        forward_bytes=padded(memory.forward_bytes, 0),
        other_bytes=padded(memory.other_bytes, 0),
        backward_bytes=padded(memory.backward_bytes, 1),
        start_bytes=padded(memory.start_bytes, 1),
    )


def _padded_graph(graph: BlockGraph, slack_bytes: Mapping[int, int]) -> BlockGraph:
    unit = ALLOCATION_UNIT_BYTES
    return replace(graph, nbytes=tuple(size + slack_bytes.get(size, 0) // unit * unit for size in graph.nbytes))


def _near_hull(options: Sequence[Option], most_ns: float) -> tuple[Option, ...]:
    """Those that take at most so much more than the lower convex hull of time by kept bytes at their bytes."""
    hull: list[Option] = []
    for option in options:
        while len(hull) > 1 and _above_ns(hull[-2], hull[-1], option) >= 0:
            hull.pop()
        hull.append(option)
    near = [*hull[:1]]
    for one, two in pairwise(hull):
        between = [option for option in options if two.kept_bytes < option.kept_bytes < one.kept_bytes]
        near += [option for option in between if _above_ns(one, option, two) <= most_ns]
        near.append(two)
    return tuple(near)


def _above_ns(one: Option, middle: Option, two: Option) -> float:
    """By how much the middle option takes more than a mixture of the others that keeps as much."""
    share = (one.kept_bytes - middle.kept_bytes) / max(1, one.kept_bytes - two.kept_bytes)
    return middle.replay_ns - one.replay_ns - share * (two.replay_ns - one.replay_ns)


def _same_options(problem: Problem, choice: Choice) -> list[Option]:
    """What the choice takes for each block, with the sizes of this problem."""
    options = (choice.problem.option(block, index) for block, index in enumerate(choice.options))
    return [
        option if option.is_rerun else _same(problem.graphs[class_index], option)
        for class_index, option in zip(problem.class_of, options, strict=True)
    ]


def _same(graph: BlockGraph, option: Option) -> Option:
    same = evaluate(graph, option.kept)
    assert same is not None, "what serves backward does not depend on sizes"
    return same
