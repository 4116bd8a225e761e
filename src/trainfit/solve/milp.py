"""The fastest choice for a whole model within a budget: one small integer program over counts, not over blocks.

In: a `Problem` and a budget. Out: a `Choice`. Why counts are enough: take a run of N equal blocks. Let z be the option
of its last block, and n(o) the number of the others that take option o.

Claim. If any order of a run's options meets the budget, so does the order in which heavier drops come first, the last
block staying where it is. Within a run the unplanned bytes at position k lie on or below the straight line from its
first to its last block, raised by `bend` (equal blocks add equal bytes; 0 in practice). With heavier drops first, D(k)
grows by less and less: it is concave in k up to the last block. A line less a concave function is convex, and a convex
function is largest at an end. So the order meets the budget at all positions of the run if it does at the first and at
the last. There D is the drops of all runs before, and that plus the sum of n(o) drop(o): neither depends on the order.
Hence the order that was given, and every order, meets the same two constraints, and the sorted one needs no other.
(In forward, where dropped casts still count, this holds if the heavier drop is also the heavier one without its casts.
Where it is not, forward in the middle of a run may be higher than at its ends; `Problem.peak` sees it, and the judge.)

So the program has, per run, whole numbers n(o) that sum to N - 1, one-hot z(o), used(o), and the run's extra. Its size
does not depend on N. The runs of a class that is tied (`Problem.tied`) take one option for all their blocks, which only
the bound below leaves out. Rows: at the first and last block of each run, and at the end of forward,

    bytes - drops before (+ extra of the run, in backward) <= budget.

The bound. Let options be mixed in any proportion, and extras and bends be nothing. The best mixture is a linear
program over all options there are, of which few matter: it is solved over the menus, its duals are prices of kept bytes
at each run, a minimum cut finds the best option at these prices, and it joins the menu if it is better than all that
are in it. When none is, no option there is could improve the mixture: its time is below that of every plan
(`Choice.bound_ns`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from trainfit.solve.linear import IntegerProgram, Solution
from trainfit.solve.menu import best_at_price, option_within, undominated
from trainfit.solve.replay import Option
from trainfit.solve.whole import Problem, Run

_GOOD_ENOUGH = 1e-4
"""A gap, as a share of the step's time, below which no options between the menu's are looked for."""
_CERTIFIED = 5e-4
"""A gap above which options between those in use are tried, and then all undominated ones where there are few."""
_ROOM_BYTES = 2**20
"""Added to a budget that is the smallest peak itself, where rounding decides whether there is a mixture."""
_STEPS_BETWEEN = 8
_MAX_ROUNDS = 4
_MAX_OPTIONS = 32
_HIDDEN_PRICE = 1e-4
"""Of a nanosecond that hides behind communication: of choices that take as long, the one that replays less."""


@dataclass(frozen=True)
class Choice:
    """One option per block, and how far from the best it can be at most."""

    problem: Problem  # whose menus the options are in
    options: tuple[int, ...]  # by block
    recompute_ns: int
    budget_bytes: int
    bound_ns: int  # no choice within the budget recomputes less

    @cached_property
    def peak_bytes(self) -> int:
        """By the linear model."""
        return self.problem.peak(self.options)[0]

    @property
    def gap(self) -> float:
        """How much of the step's time could be saved at most, as a share of it."""
        return (self.recompute_ns - self.bound_ns) / max(1, self.problem.base_ns + self.recompute_ns)

    def kept(self) -> tuple[tuple[int, ...] | None, ...]:
        """What each block keeps; None for one that is checkpointed."""
        options = (self.problem.option(block, index) for block, index in enumerate(self.options))
        return tuple(None if option.is_rerun else option.kept for option in options)


def fastest_within(problem: Problem, budget_bytes: int) -> Choice | None:
    """The choice that recomputes least with a peak within the budget; None if none has.

    The options of the best mixture come first. What the best choice of them leaves of the budget is then offered to
    one block at a time, as an option between two others, until that helps no more. If a gap is left, options between
    those in use come in; and if one is left still, which takes a model of few blocks, every undominated option of the
    classes that have few.
    """
    mixture = _best_mixture(problem, budget_bytes)
    if mixture is None:
        return None
    problem, bound_ns = mixture
    choice = _solve(problem, budget_bytes, bound_ns)
    for _ in range(_MAX_ROUNDS):
        if choice is None or choice.gap <= _GOOD_ENOUGH:
            break
        more = _options_for_the_slack(choice, budget_bytes)
        better = _solve(choice.problem.with_options(more), budget_bytes, bound_ns) if more else None
        if better is None or better.recompute_ns >= choice.recompute_ns:
            break
        choice = better
    if choice is not None and choice.gap > _CERTIFIED:
        choice = _solve(choice.problem.with_options(_options_between(choice)), budget_bytes, bound_ns)
    if choice is not None and choice.gap > _CERTIFIED:
        more = {index: list(undominated(graph, _MAX_OPTIONS)) for index, graph in enumerate(problem.graphs)}
        problem = choice.problem.with_options(more)
        if all(more.values()) and not any(graph.saved_cast_bytes for graph in problem.graphs):
            incautious = _solve(problem, budget_bytes, bound_ns, cautious=False)
            assert incautious is not None, "what is within the budget with extras is so without"
            bound_ns = incautious.recompute_ns  # of all options there are, in whole numbers
        choice = _solve(problem, budget_bytes, bound_ns)
    return choice


def smallest_peak(problem: Problem) -> Choice:
    """A choice of the smallest peak, and of those one that recomputes least."""
    program = IntegerProgram()
    budget = program.add_continuous(1.0)
    columns = _Columns(program, problem, cost=lambda option: 0.0)
    columns.tie()
    columns.bound_memory({budget: -1.0}, 0.0)
    solution = program.solve()
    assert solution is not None, "without a budget every choice is allowed"
    choice = _solve(problem, round(solution.values[budget]) + 1, 0)
    assert choice is not None, "the budget is that of a choice"
    return choice


def recompute_bound_ns(problem: Problem, budget_bytes: int) -> int:
    """A recompute time below which no choice within the budget is; 0 where the budget is too small for any."""
    for room_bytes in (0, _ROOM_BYTES):  # of a larger budget the bound is lower, and holds for the smaller one too
        mixture = _best_mixture(problem, budget_bytes + room_bytes)
        if mixture is not None:
            return mixture[1]
    return 0


class _Columns:
    """The columns of every run in one program, and the rows that bound its memory."""

    def __init__(self, program: IntegerProgram, problem: Problem, cost: Callable[[Option], float]) -> None:
        self._program = program
        self._problem = problem
        self.counts: list[list[int]] = []  # by run and option
        self.lasts: list[list[int]] = []
        self._extras: list[int] = []
        self._forward_rows: list[
            tuple[int, frozenset[int]]
        ] = []  # (row, its columns); dropped casts still count in these
        self._later_rows: list[tuple[int, frozenset[int]]] = []
        for run in problem.runs:
            menu = problem.menus[run.class_index]
            counts = [program.add_integer(cost(option), upper=run.length - 1) for option in menu]
            lasts = [program.add_binary(cost(option)) for option in menu]
            program.add_row(dict.fromkeys(counts, 1.0), lower=run.length - 1, upper=run.length - 1)
            program.add_row(dict.fromkeys(lasts, 1.0), lower=1, upper=1)
            self.counts.append(counts)
            self.lasts.append(lasts)
            self._extras.append(self._add_extra(run, counts, lasts))

    def tie(self) -> None:
        """Rows: the calls of one block take the same option."""
        firsts: dict[int, list[int]] = {}  # by tied class, the columns of its first run
        for run, counts, lasts in zip(self._problem.runs, self.counts, self.lasts, strict=True):
            if run.class_index not in self._problem.tied:
                continue
            same = firsts.setdefault(run.class_index, lasts)
            for count, last, first in zip(counts, lasts, same, strict=True):
                self._program.add_row({count: 1.0, first: -float(run.length - 1)}, lower=0, upper=0)
                if last != first:
                    self._program.add_row({last: 1.0, first: -1.0}, lower=0, upper=0)

    def _add_extra(self, run: Run, counts: list[int], lasts: list[int]) -> int:
        extra = self._program.add_continuous(0.0)
        for option, count, last in zip(self._problem.menus[run.class_index], counts, lasts, strict=True):
            extra_bytes = self._problem.extra_bytes(run, option)
            if extra_bytes == 0:
                continue
            used = self._program.add_binary(0.0)
            self._program.add_row({used: float(run.length - 1), count: -1.0}, lower=0)
            self._program.add_row({used: 1.0, last: -1.0}, lower=0)
            self._program.add_row({extra: 1.0, used: -float(extra_bytes)}, lower=0)
        return extra

    def bound_memory(self, budget_terms: dict[int, float], budget_bytes: float, *, cautious: bool = True) -> None:
        """Rows: memory + budget_terms <= budget_bytes at every position that can bind.

        Cautious: extras and bends are added. Without them the rows hold for every choice that is within the budget.
        """
        problem, memory = self._problem, self._problem.memory
        kinds = (
            (memory.forward_bytes, problem.forward_drop_bytes, False, self._forward_rows),
            (memory.other_bytes, problem.drop_bytes, False, self._later_rows),
            (memory.backward_bytes, problem.drop_bytes, cautious, self._later_rows),
        )

        def add_row(terms: dict[int, float], bytes_left: float, rows: list[tuple[int, frozenset[int]]]) -> None:
            rows.append((self._program.add_row(terms, upper=bytes_left), frozenset(terms)))

        for sizes, drop_bytes, has_extra, rows in kinds:
            dropped = dict(budget_terms)
            for run, counts, lasts, extra in zip(problem.runs, self.counts, self.lasts, self._extras, strict=True):
                drops = [-float(drop_bytes(run.class_index, option)) for option in problem.menus[run.class_index]]
                terms = {extra: 1.0} if has_extra else {}
                bend = _bend(sizes[run.first : run.first + run.length]) if cautious else 0
                add_row({**dropped, **terms}, budget_bytes - sizes[run.first] - bend, rows)
                dropped |= dict(zip(counts, drops, strict=True))
                add_row({**dropped, **terms}, budget_bytes - sizes[run.last] - bend, rows)
                dropped |= dict(zip(lasts, drops, strict=True))
            for size in sizes[len(problem.class_of) :]:  # the end of forward; backward has no position of its own there
                add_row(dropped, budget_bytes - size, rows)

    def better_options(self, solution: Solution) -> dict[int, list[Option]]:
        """By class, options that would improve the relaxed solution."""
        better: dict[int, list[Option]] = {}
        for run, counts, lasts in zip(self._problem.runs, self.counts, self.lasts, strict=True):
            for column in (counts[0], lasts[0]):
                forward_price, later_price = (
                    -sum(solution.duals[row] for row, columns in rows if column in columns)
                    for rows in (self._forward_rows, self._later_rows)
                )
                option = self._cheapest(run.class_index, later_price + forward_price, later_price)
                if option is not None:
                    better.setdefault(run.class_index, []).append(option)
        return better

    def _cheapest(self, class_index: int, byte_price: float, cast_price: float) -> Option | None:
        """The best of all options at these ns per byte, if no option of the menu is as good."""
        graph, menu = self._problem.graphs[class_index], self._problem.menus[class_index]
        ns_price = 2**40  # prices in whole numbers
        byte_price, cast_price = round(max(0.0, byte_price) * ns_price), round(max(0.0, cast_price) * ns_price)

        def value(option: Option) -> int:
            other_bytes = option.kept_bytes - option.cast_bytes
            return ns_price * option.replay_ns + byte_price * other_bytes + cast_price * option.cast_bytes

        best = best_at_price(graph, ns_price, byte_price, cast_price)
        return best if value(best) < min(map(value, menu)) - ns_price else None  # more than a nanosecond


def _solve(problem: Problem, budget_bytes: int, bound_ns: int, *, cautious: bool = True) -> Choice | None:
    program = IntegerProgram()
    columns = _Columns(program, problem, cost=lambda option: option.recompute_ns + _HIDDEN_PRICE * option.hidden_ns)
    columns.tie()
    columns.bound_memory({}, float(budget_bytes), cautious=cautious)
    solution = program.solve()
    if solution is None:
        return None
    options: list[int] = []
    for run, counts, lasts in zip(problem.runs, columns.counts, columns.lasts, strict=True):
        menu = problem.menus[run.class_index]
        heaviest_first = sorted(range(len(menu)), key=lambda index: (menu[index].kept_bytes, index))
        for index in heaviest_first:
            options += [index] * round(solution.values[counts[index]])
        options += [index for index, last in enumerate(lasts) if solution.values[last] > 0.5]
    return Choice(problem, tuple(options), problem.recompute_ns(options), budget_bytes, bound_ns)


def _best_mixture(problem: Problem, budget_bytes: int) -> tuple[Problem, int] | None:
    """The problem with every option that the best mixture needs, and a bound on the recompute time of any choice.

    The mixture replays least, so no choice replays less; and each block hides what it can at most.
    """
    while True:
        program = IntegerProgram()
        columns = _Columns(program, problem, cost=lambda option: float(option.replay_ns))
        columns.bound_memory({}, float(budget_bytes), cautious=False)
        solution = program.solve(relaxed=True)
        if solution is None:
            return None
        more = columns.better_options(solution)
        grown = problem.with_options(more)
        if grown.menus == problem.menus:
            return problem, max(0, int(solution.objective - 1e-6) - problem.hidden_ns)
        problem = grown


def _options_for_the_slack(choice: Choice, budget_bytes: int) -> dict[int, list[Option]]:
    """For each option in use, the fastest one that keeps as much more as the budget leaves."""
    problem = choice.problem
    slack_bytes = budget_bytes - problem.peak(choice.options)[0]
    in_use = {(problem.class_of[block], index) for block, index in enumerate(choice.options)}
    more: dict[int, list[Option]] = {}
    for class_index, index in sorted(in_use):
        menu = problem.menus[class_index]
        option = option_within(problem.graphs[class_index], menu[index].kept_bytes + slack_bytes)
        if option is not None and option not in menu and option not in more.get(class_index, ()):
            more.setdefault(class_index, []).append(option)
    return more


def _options_between(choice: Choice) -> dict[int, list[Option]]:
    """By class, options between neighbours among those in use, evenly spaced by what they keep."""
    problem = choice.problem
    sizes: dict[int, set[int]] = {}
    for block, index in enumerate(choice.options):
        sizes.setdefault(problem.class_of[block], set()).add(problem.option(block, index).kept_bytes)
    more: dict[int, list[Option]] = {}
    for class_index, in_use in sizes.items():
        for small, large in pairwise(sorted(in_use)):
            caps = [small + (large - small) * step // _STEPS_BETWEEN for step in range(1, _STEPS_BETWEEN)]
            options = (option_within(problem.graphs[class_index], cap) for cap in caps)
            more.setdefault(class_index, []).extend(option for option in options if option is not None)
    return more


def _bend(sizes: tuple[int, ...]) -> int:
    """How far the sizes rise above the straight line from the first to the last."""
    steps = len(sizes) - 1
    if steps < 2:
        return 0
    lines = (sizes[0] + (sizes[-1] - sizes[0]) * k / steps for k in range(steps + 1))
    return max(0, *(math.ceil(size - line) for line, size in zip(lines, sizes, strict=True)))
