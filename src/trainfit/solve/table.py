"""Dynamic programming over the blocks: for every amount that they can drop, the fastest way to drop it.

In: a `Problem`, whose menus have all options that count, and a budget. Out: a bound on the recompute time of every
choice within the budget (`bound_ns`), or choices (`Table.of_choices`).

Memory at position p is the unplanned step's less D(p), what the blocks before p drop (`whole`). So blocks are taken in
forward order, and of all ways to have dropped so much by then only the fastest counts; at each position what has not
dropped enough is out. Amounts are counted in units of some KiB, so that the table has a bounded size. For the bound
each drop is rounded up, extras are nothing and forward is taken to be rid of dropped casts: whatever is within the
budget is then still in the table. For choices drops are rounded to the nearest, and `Problem.peak` has the last word.

The best mixture of options (`milp`) can be far below every choice where few blocks are equal; this bound is that of
whole choices. And its cost is known in advance: blocks times options times units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainfit.solve.graph import ALLOCATION_UNIT_BYTES
from trainfit.solve.whole import Problem, Run

if TYPE_CHECKING:
    from numpy import dtype, float64, int16, ndarray

    _Times = ndarray[tuple[int], dtype[float64]]

_BOUND_UNITS = 2**16
"""Units that the bound counts in, at most: 16 blocks that drop 3 GiB lose 0.4 MiB by it."""
_CHOICE_UNITS = 2**14


@dataclass(frozen=True, slots=True)
class _Entry:
    """An option as the table sees it."""

    index: int  # in the menu
    units: int  # that it drops
    ns: int
    extra_bytes: int


def bound_ns(problem: Problem, budget_bytes: int) -> int | None:
    """No choice from the menus whose modelled peak is within the budget recomputes less; None if none is within it."""
    most_bytes = _most_bytes(problem) - budget_bytes
    table = Table(problem, budget_bytes, most_bytes, _unit_bytes(most_bytes, _BOUND_UNITS), is_bound=True)
    return None if math.isinf(table.best_ns) else round(table.best_ns)


class Table:
    """Times by units dropped; the last of these stands for all that is more."""

    def __init__(
        self, problem: Problem, budget_bytes: int, most_bytes: int, unit_bytes: int, *, is_bound: bool = False
    ) -> None:
        """Drops up to `most_bytes` in all are told apart, in units of so many bytes."""
        import numpy as np

        memory = problem.memory
        self._problem = problem
        self._unit_bytes = unit_bytes
        self._is_bound = is_bound
        self._entries: list[list[_Entry]] = []  # by block
        self._taken: list[ndarray[tuple[int], dtype[int16]]] = []  # by block and units dropped: the number of the entry
        self._last_from: list[int] = []  # by block: the units before that lead to the last
        ns = np.full(self._units(most_bytes) + 1, np.inf)
        ns[0] = 0.0
        for run in problem.runs:
            entries = self._of_run(run)
            for block in range(run.first, run.first + run.length):
                there_bytes = max(memory.forward_bytes[block], memory.other_bytes[block])
                ns[: self._units(there_bytes - budget_bytes)] = np.inf
                ns = self._after(ns, entries, memory.backward_bytes[block] - budget_bytes)
        ns[: self._units(max(memory.forward_bytes[-1], memory.other_bytes[-1]) - budget_bytes)] = np.inf
        self._ns = ns
        self.best_ns = float(ns.min())

    @classmethod
    def of_choices(cls, problem: Problem, budget_bytes: int, least_bytes: int, room_bytes: int) -> Table:
        """For choices within the budget and down to `room_bytes` below it; units are the same for all budgets."""
        highest_bytes = _most_bytes(problem)
        unit_bytes = _unit_bytes(highest_bytes - least_bytes, _CHOICE_UNITS)
        return cls(problem, budget_bytes, highest_bytes - budget_bytes + room_bytes, unit_bytes)

    def fastest(self) -> tuple[int, ...]:
        """The options by block of the fastest choice."""
        return _heaviest_first(self._problem, self._options(int(self._ns.argmin())))

    def unbeaten(self, before_ns: float) -> list[tuple[int, ...]]:
        """Options by block, from the slowest choice that takes less than `before_ns` to the fastest.

        Each is the fastest of those that drop as much. Within a run heavier drops come first, which no order beats.
        """
        found: list[tuple[int, ...]] = []
        best_ns = before_ns
        for units in reversed(range(len(self._ns))):
            if self._ns[units] < best_ns:
                best_ns = float(self._ns[units])
                found.append(_heaviest_first(self._problem, self._options(units)))
        return found

    def _options(self, units: int) -> tuple[int, ...]:
        options = []
        last = len(self._ns) - 1
        for block in reversed(range(len(self._entries))):
            entry = self._entries[block][self._taken[block][units]]
            options.append(entry.index)
            units = self._last_from[block] if units == last else units - entry.units
        return tuple(reversed(options))

    def _units(self, nbytes: int) -> int:
        return -(-max(0, nbytes) // self._unit_bytes)

    def _of_run(self, run: Run) -> list[_Entry]:
        """Of options that drop as much, and need as much besides, the fastest."""
        problem = self._problem
        fastest: dict[tuple[int, int], _Entry] = {}
        for index, option in enumerate(problem.menus[run.class_index]):
            drop_bytes = max(0, problem.drop_bytes(run.class_index, option))
            units = self._units(drop_bytes if self._is_bound else drop_bytes - self._unit_bytes // 2)
            extra_bytes = 0 if self._is_bound else problem.extra_bytes(run, option)
            entry = _Entry(index, units, option.recompute_ns, extra_bytes)
            known = fastest.setdefault((units, extra_bytes), entry)
            if entry.ns < known.ns:
                fastest[units, extra_bytes] = entry
        return list(fastest.values())

    def _after(self, ns: _Times, entries: list[_Entry], need_bytes: int) -> _Times:
        """The times after one more block, which needs so much to be dropped before it, and its extra."""
        import numpy as np

        last = len(ns) - 1
        after, taken, last_from = np.full(last + 1, np.inf), np.zeros(last + 1, np.int16), 0
        for number, entry in enumerate(entries):
            first = self._units(need_bytes + entry.extra_bytes)
            if first > last:
                continue
            beyond = max(first, last - entry.units)  # from here on the last is reached
            if first < beyond:
                here = slice(first + entry.units, beyond + entry.units)
                candidates = ns[first:beyond] + entry.ns
                is_better = candidates < after[here]
                after[here][is_better] = candidates[is_better]
                taken[here][is_better] = number
            start = beyond + int(np.argmin(ns[beyond:]))
            if ns[start] + entry.ns < after[last]:
                after[last], taken[last], last_from = ns[start] + entry.ns, number, start
        self._entries.append(entries)
        self._taken.append(taken)
        self._last_from.append(last_from)
        return after


def _most_bytes(problem: Problem) -> int:
    """The most that the unplanned step has."""
    memory = problem.memory
    return max(*memory.forward_bytes, *memory.other_bytes, *memory.backward_bytes)


def _unit_bytes(most_bytes: int, most_units: int) -> int:
    """A power of two."""
    return max(ALLOCATION_UNIT_BYTES, 1 << (max(0, most_bytes) // most_units).bit_length())


def _heaviest_first(problem: Problem, options: tuple[int, ...]) -> tuple[int, ...]:
    """The same with the options of each run in another order; its last block keeps its own."""
    sorted_options = list(options)
    for run in problem.runs:
        menu = problem.menus[run.class_index]
        here = slice(run.first, run.last)
        sorted_options[here] = sorted(options[here], key=lambda index: (menu[index].kept_bytes, index))
    return tuple(sorted_options)
