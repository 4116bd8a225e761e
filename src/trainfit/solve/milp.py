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
are in it. When none is, no option there is could improve the mixture: its time is below that of every plan. Where few
blocks are equal that can be far below; the bound of whole choices (`table`) then is closer.

The menus that plans are made of do not depend on the budget (`enriched`), and the program over them is solved to its
optimum. So of two budgets the larger never takes more time: all that is within the smaller is within the larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from trainfit.solve.graph import BlockGraph
from trainfit.solve.linear import IntegerProgram, Solution
from trainfit.solve.menu import best_at_price
from trainfit.solve.pareto import undominated
from trainfit.solve.replay import Option
from trainfit.solve.table import bound_ns
from trainfit.solve.whole import Problem, Run

_ROOM_BYTES = 2**20
"""Added to a budget that is the smallest peak itself, where rounding decides whether there is a mixture."""
_MIXTURES = 16
"""Budgets, evenly spread, whose best mixtures give options to the menus."""
_STEPS_BETWEEN = 16
"""Stretches that a menu's range of kept bytes is divided into, with the fastest option at the end of each."""
_FEW_BLOCKS = 8
"""Where there are no more blocks than this, all undominated options count, up to `_MAX_OPTIONS` in a class."""
_MAX_OPTIONS = 32
_MAX_NODES = 4000
"""Of the tree that a program's search may have."""
_HIDDEN_PRICE = 1e-4
"""Of a nanosecond that hides behind communication: of choices that take as long, the one that replays less."""


@dataclass(frozen=True)
class Choice:
    """One option per block."""

    problem: Problem  # whose menus the options are in
    options: tuple[int, ...]  # by block
    recompute_ns: int

    @cached_property
    def peak_bytes(self) -> int:
        """By the linear model."""
        return self.problem.peak(self.options)[0]

    def kept(self) -> tuple[tuple[int, ...] | None, ...]:
        """What each block keeps; None for one that is checkpointed."""
        options = (self.problem.option(block, index) for block, index in enumerate(self.options))
        return tuple(None if option.is_rerun else option.kept for option in options)


def enriched(problem: Problem, *, between: bool = True) -> Problem:
    """The problem with richer menus, the same for every budget.

    To what is in the menus come the options of the best mixtures for some budgets from the smallest to that of
    recomputing nothing, which have other prices for casts, and the fastest options for some sizes between. In a model
    of few blocks an option between those can matter: there all undominated ones come in. Without `between` it is only
    the mixtures' options: within 0.2% of the step, where the allocator's waste counts for more, in less time.
    """
    low_bytes, high_bytes = smallest_peak(problem).peak_bytes, problem.peak((0,) * len(problem.class_of))[0]
    for step in range(_MIXTURES):
        mixture = _best_mixture(problem, low_bytes + (high_bytes - low_bytes) * step // _MIXTURES + _ROOM_BYTES)
        if mixture is not None:
            problem = mixture[0]
    if not between:
        return problem
    more = _all_options(problem) or {
        index: _options_between(graph, menu)
        for index, (graph, menu) in enumerate(zip(problem.graphs, problem.menus, strict=True))
    }
    return problem.with_options(more)


def fastest_within(problem: Problem, budget_bytes: int) -> Choice | None:
    """Of the choices from the problem's menus the one that recomputes least with a peak within the budget."""
    return _solve(problem, budget_bytes)


def smallest_peak(problem: Problem) -> Choice:
    """A choice of the smallest peak, and of those one that recomputes least."""
    program = IntegerProgram()
    budget = program.add_continuous(1.0)
    columns = _Columns(program, problem, cost=lambda option: 0.0)
    columns.tie()
    columns.bound_memory({budget: -1.0}, 0.0)
    solution = program.solve()
    assert solution is not None, "without a budget every choice is allowed"
    choice = _solve(problem, round(solution.values[budget]) + 1)
    assert choice is not None, "the budget is that of a choice"
    return choice


def recompute_bound_ns(problem: Problem, budget_bytes: int, enough_ns: float = math.inf) -> int:
    """A recompute time below which no choice of any options within the budget is; 0 where it is too small for any.

    The mixture's; if that is not `enough_ns` and all options can be listed, that of whole choices, which looks at all
    but the casts that are dropped and still there in forward, or at nothing but forward.
    """
    for room_bytes in (0, _ROOM_BYTES):  # of a larger budget the bound is lower, and holds for the smaller one too
        mixture = _best_mixture(problem, budget_bytes + room_bytes)
        if mixture is None:
            continue
        bounds_ns = [mixture[1]]
        for relaxed in (problem, _forward_alone(problem)):
            whole = _with_all_options(relaxed) if max(bounds_ns) < enough_ns else None
            if whole is not None:
                bounds_ns.append(bound_ns(whole, budget_bytes + room_bytes) or 0)
        return max(bounds_ns)
    return 0


def is_bound_by_casts(problem: Problem, budget_bytes: int) -> bool:
    """Whether forward, in which dropped casts still count, costs the best mixture for the budget any time."""
    program, columns = _mixture(problem, budget_bytes)
    solution = program.solve(relaxed=True)
    return (
        solution is not None and columns.forward_price(solution) > 0 and any(g.saved_cast_bytes for g in problem.graphs)
    )


class _Columns:
    """The columns of every run in one program, and the rows that bound its memory."""

    def __init__(
        self, program: IntegerProgram, problem: Problem, cost: Callable[[Option], float], later_ns: float = 0.0
    ) -> None:
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
            costs = [cost(option) + later_ns * run.first * bool(option.replayed) for option in menu]
            counts = [program.add_integer(ns, upper=run.length - 1) for ns in costs]
            lasts = [program.add_binary(ns) for ns in costs]
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

    def forward_price(self, solution: Solution) -> float:
        """What a byte less in forward would save, in ns."""
        return -sum(solution.duals[row] for row, _ in self._forward_rows)

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


def _solve(problem: Problem, budget_bytes: int, *, cautious: bool = True) -> Choice | None:
    program = IntegerProgram()
    # Of choices that take as long, the one that drops in earlier blocks: less than a ns in all, and times are whole.
    later_ns = 1 / (len(problem.class_of) + 1) ** 2
    columns = _Columns(
        program, problem, lambda option: option.recompute_ns + _HIDDEN_PRICE * option.hidden_ns, later_ns
    )
    columns.tie()
    columns.bound_memory({}, float(budget_bytes), cautious=cautious)
    solution = program.solve(max_nodes=_MAX_NODES)
    if solution is None or (not cautious and solution.gap > 0):  # a bound that is not proved is none
        return None
    options: list[int] = []
    for run, counts, lasts in zip(problem.runs, columns.counts, columns.lasts, strict=True):
        menu = problem.menus[run.class_index]
        heaviest_first = sorted(range(len(menu)), key=lambda index: (menu[index].kept_bytes, index))
        for index in heaviest_first:
            options += [index] * round(solution.values[counts[index]])
        options += [index for index, last in enumerate(lasts) if solution.values[last] > 0.5]
    return Choice(problem, tuple(options), problem.recompute_ns(options))


def _best_mixture(problem: Problem, budget_bytes: int) -> tuple[Problem, int] | None:
    """The problem with every option that the best mixture needs, and a bound on the recompute time of any choice.

    The mixture replays least, so no choice replays less; and each block hides what it can at most.
    """
    while True:
        program, columns = _mixture(problem, budget_bytes)
        solution = program.solve(relaxed=True)
        if solution is None:
            return None
        more = columns.better_options(solution)
        grown = problem.with_options(more)
        if grown.menus == problem.menus:
            return problem, max(0, int(solution.objective - 1e-6) - problem.hidden_ns)
        problem = grown


def _mixture(problem: Problem, budget_bytes: int) -> tuple[IntegerProgram, _Columns]:
    """The program whose relaxed solution is the best mixture of the menus' options."""
    program = IntegerProgram()
    columns = _Columns(program, problem, cost=lambda option: float(option.replay_ns))
    columns.bound_memory({}, float(budget_bytes), cautious=False)
    return program, columns


def _with_all_options(problem: Problem) -> Problem | None:
    """With every option that no other beats in the menus, and no other; None where they cannot be listed."""
    listed = [undominated(graph) for graph in problem.graphs]
    if not all(found.is_complete for found in listed):
        return None
    reruns = ([option for option in menu if option.is_rerun] for menu in problem.menus)
    return replace(problem, menus=tuple((*found.options, *more) for found, more in zip(listed, reruns, strict=True)))


def _forward_alone(problem: Problem) -> Problem:
    """As if nothing came after forward: casts weigh nothing, since they stay however they are decided on."""
    graphs = [
        replace(
            graph, nbytes=tuple(0 if cast else size for size, cast in zip(graph.nbytes, graph.is_cast, strict=True))
        )
        for graph in problem.graphs
    ]
    memory = problem.memory
    nothing = replace(
        memory,
        other_bytes=(0,) * len(memory.other_bytes),
        backward_bytes=(0,) * len(memory.backward_bytes),
        start_bytes=(0,) * len(memory.start_bytes),
    )
    return replace(problem, graphs=tuple(graphs), memory=nothing)


def _all_options(problem: Problem) -> dict[int, list[Option]] | None:
    """By class, all undominated options of a model of few blocks; None where that would be many."""
    whole = _with_all_options(problem) if len(problem.class_of) <= _FEW_BLOCKS else None
    if whole is None or any(len(menu) > _MAX_OPTIONS for menu in whole.menus):
        return None
    return {index: list(menu) for index, menu in enumerate(whole.menus)}


def _options_between(graph: BlockGraph, menu: Sequence[Option]) -> list[Option]:
    """The fastest options for sizes that are evenly spread over those of the menu."""
    sizes = [option.kept_bytes for option in menu if not option.is_rerun]
    low_bytes, high_bytes = min(sizes), max(sizes)
    if low_bytes == high_bytes:
        return []
    caps = [low_bytes + (high_bytes - low_bytes) * step // _STEPS_BETWEEN for step in range(1, _STEPS_BETWEEN)]
    listed = undominated(graph).options  # the fastest that keeps at most so much is the first that does
    options = (next((option for option in listed if option.kept_bytes <= cap), None) for cap in caps)
    return [option for option in options if option is not None]


def _bend(sizes: tuple[int, ...]) -> int:
    """How far the sizes rise above the straight line from the first to the last."""
    steps = len(sizes) - 1
    if steps < 2:
        return 0
    lines = (sizes[0] + (sizes[-1] - sizes[0]) * k / steps for k in range(steps + 1))
    return max(0, *(math.ceil(size - line) for line, size in zip(lines, sizes, strict=True)))
