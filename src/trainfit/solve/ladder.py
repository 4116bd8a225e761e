"""Ladders: choices from the smallest to that of recomputing nothing, the same for every budget.

In: a `Problem`, and for the second kind a sketch of the peak. Out: the choice at a step; time falls as steps rise.

`ModelLadder` has the fastest choice for each of many modelled peaks. Reserved bytes are more than the model says, by
what the allocator wastes, and that depends on which tensors are kept: large ones find no hole between the optimizer's.
So `MeasuredLadder` goes by what is reserved when all blocks of a class take one option: of each class's options those
on the lower convex hull of (time, reserved bytes) are used, and from the top down one block at a time goes to the next
of them, first where most bytes are saved per ns. Where in a run the heavier drops are matters as well: `arrangements`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import combinations, pairwise, product

from trainfit.solve.milp import Choice, enriched, fastest_within, smallest_peak
from trainfit.solve.whole import Problem

RUNGS = 16
FINE_STEPS, COARSE_STEPS = 128, 32
"""Choices between two rungs of a `ModelLadder`."""
NEAREST_BYTES = 2**20
"""How much above the smallest peak the first choice is that is looked for below a `ModelLadder`'s first step."""


LEVELS, PARTS = 6, 8
"""Of choices in two parts: options of a menu that are used, evenly spread, and places at which the blocks are cut."""


class Ladder(ABC):
    """`num_steps` choices, by rising peak and falling time."""

    num_steps: int

    def __init__(self) -> None:
        self._choices: dict[int, Choice] = {}

    def at(self, step: int) -> Choice:
        if step not in self._choices:
            self._choices[step] = self._make(step)
        return self._choices[step]

    @property
    def stride(self) -> int:
        """From rung to rung."""
        return max(1, self.num_steps // RUNGS)

    @abstractmethod
    def least_bytes(self, step: int) -> int:
        """No less than this is allocated at the step, by the linear model."""

    @abstractmethod
    def _make(self, step: int) -> Choice: ...


class ModelLadder(Ladder):
    """The fastest choice for each modelled peak, evenly spread; if it is fine, of more options and more densely."""

    def __init__(self, problem: Problem, *, is_fine: bool) -> None:
        super().__init__()
        self.num_steps = RUNGS * (FINE_STEPS if is_fine else COARSE_STEPS)
        self._is_fine = is_fine
        self._unenriched = problem
        self._highest_bytes = problem.peak((0,) * len(problem.class_of))[0]

    @cached_property
    def _problem(self) -> Problem:
        return enriched(self._unenriched, between=self._is_fine)

    @cached_property
    def lowest(self) -> Choice:
        return smallest_peak(self._problem)

    @cached_property
    def near_lowest(self) -> tuple[Choice, ...]:
        """More choices below the first step, ever closer to the lowest: there keeping a few bytes saves a product."""
        low_bytes, next_bytes = self.lowest.peak_bytes, self.least_bytes(1)
        num_doublings = ((next_bytes - low_bytes) // NEAREST_BYTES).bit_length()
        found = (fastest_within(self._problem, low_bytes + (NEAREST_BYTES << n)) for n in range(num_doublings))
        return tuple(choice for choice in found if choice is not None)

    def least_bytes(self, step: int) -> int:
        return self._modelled_bytes(step)

    def _modelled_bytes(self, step: int) -> int:
        low, high = self.lowest.peak_bytes, self._highest_bytes
        return low + (high - low) * step // self.num_steps

    def _make(self, step: int) -> Choice:
        return (fastest_within(self._problem, self._modelled_bytes(step)) if step else None) or self.lowest


class MeasuredLadder(Ladder):
    """One block after the other to the next option that is worth its time by what is reserved."""

    def __init__(self, problem: Problem, sketch: Callable[[Choice, int | None], int]) -> None:
        super().__init__()
        self._problem = problem
        self._sketch = sketch
        self._moves = sorted(self._all_moves())
        self.num_steps = len(self._moves)

    def least_bytes(self, step: int) -> int:
        return self.at(step).peak_bytes

    def _all_moves(self) -> Iterator[tuple[float, int, int, int]]:
        """(ns per byte, number on the hull, block, the option's index) for every block and every option on its hull."""
        for class_index in range(len(self._problem.menus)):
            hull = self._hull(class_index)
            blocks = [block for block, its_class in enumerate(self._problem.class_of) if its_class == class_index]
            for number, (one, two) in enumerate(pairwise(hull)):
                price = len(blocks) * (two[0] - one[0]) / (one[1] - two[1])
                for block in blocks:
                    yield price, number, block, two[2]

    def _hull(self, class_index: int) -> list[tuple[int, int, int]]:
        """(ns, reserved bytes, the option's index), convex, from nothing recomputed on."""
        menu = self._problem.menus[class_index]
        hull: list[tuple[int, int, int]] = []
        for index in sorted(range(len(menu)), key=lambda index: (menu[index].recompute_ns, index)):
            limit_bytes = hull[-1][1] - 1 if hull else None
            point = (menu[index].recompute_ns, self._uniform_bytes(class_index, index, limit_bytes), index)
            if limit_bytes is not None and point[1] > limit_bytes:
                continue
            while len(hull) > 1 and _is_above(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        return hull

    def _uniform_bytes(self, class_index: int, index: int, limit_bytes: int | None) -> int:
        """What is reserved when all blocks of the class take the option, and the others keep everything."""
        options = tuple(index if c == class_index else 0 for c in self._problem.class_of)
        return self._sketch(_choice(self._problem, options), limit_bytes)

    def _make(self, step: int) -> Choice:
        options = [0] * len(self._problem.class_of)
        for _, _, block, index in self._moves[: self.num_steps - step]:
            options[block] = index
        return _choice(self._problem, tuple(options))


def arrangements(choice: Choice) -> Iterator[Choice]:
    """The choice, and the options of its runs in other orders: heavier drops first, and last."""
    seen = {choice.options}
    yield choice
    for heaviest_last in (False, True):
        options: list[int] = []
        for run in choice.problem.runs:
            menu = choice.problem.menus[run.class_index]
            here = choice.options[run.first : run.first + run.length]
            in_order = sorted(here, key=lambda index: (menu[index].kept_bytes, index))
            options += reversed(in_order) if heaviest_last else in_order
        if tuple(options) not in seen:
            seen.add(tuple(options))
            yield replace(choice, options=tuple(options))


def in_two_parts(problem: Problem) -> list[Choice]:
    """Choices in which the first blocks keep everything and the others drop much the same, by rising time.

    Where many choices have the smallest modelled peak, the optimizer's for one, the model takes the fastest of them, in
    which every block drops something. There these are worth a look: what the first blocks keep as it is fills whole
    segments, and what the last ones drop is gone before more are needed.
    """
    num_blocks = len(problem.class_of)
    last = [len(menu) - 1 for menu in problem.menus]
    found = set()
    for level, part in product(range(1, LEVELS), range(1, PARTS)):
        cut = num_blocks * part // PARTS
        dropping = (level * last[class_index] // (LEVELS - 1) for class_index in problem.class_of[cut:])
        found.add((*(0,) * cut, *dropping))
    return sorted((_choice(problem, options) for options in found), key=lambda c: (c.recompute_ns, c.options))


def exchanges(choice: Choice) -> Iterator[Choice]:
    """The choice, and the same with the options of two blocks of a run exchanged."""
    yield choice
    for run in choice.problem.runs:
        for one, two in combinations(range(run.first, run.first + run.length), 2):
            if choice.options[one] != choice.options[two]:
                options = list(choice.options)
                options[one], options[two] = options[two], options[one]
                yield replace(choice, options=tuple(options))


def _is_above(one: tuple[int, int, int], middle: tuple[int, int, int], two: tuple[int, int, int]) -> bool:
    """Whether the middle point is on or above the line between the others."""
    return (middle[0] - one[0]) * (one[1] - two[1]) >= (two[0] - one[0]) * (one[1] - middle[1])


def _choice(problem: Problem, options: tuple[int, ...]) -> Choice:
    return Choice(problem, options, problem.recompute_ns(options))
