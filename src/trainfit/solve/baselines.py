"""What people do without a planner, as choices of the same problem: the rows that a plan is compared with.

In: a `Problem`. Out: `Baseline`s: a name, a choice, its recompute time. Checkpointing a layer runs its whole forward
again, what backward does not need included; the other rows replay only what is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainfit.solve.whole import Problem


@dataclass(frozen=True, slots=True)
class Baseline:
    """One option per block, and the time that the recomputation takes."""

    name: str
    options: tuple[int, ...]
    recompute_ns: int


def nothing(problem: Problem) -> Baseline:
    """Everything that autograd saves is kept."""
    return Baseline("nothing recomputed", (0,) * len(problem.class_of), 0)


def every_nth(problem: Problem, n: int) -> Baseline:
    """Every n-th layer checkpointed, from the first on: nothing but its inputs kept, all of its ops run again."""
    smallest = _smallest(problem)
    checkpointed = [block for block in range(len(problem.class_of)) if block % n == 0]
    options = [0] * len(problem.class_of)
    for block in checkpointed:
        options[block] = smallest[block]
    time_ns = sum(sum(problem.graphs[problem.class_of[block]].time_ns) for block in checkpointed)
    names = {1: "every layer checkpointed", 2: "every second layer", 3: "every third layer"}
    return Baseline(names.get(n, f"every {n}th layer"), tuple(options), time_ns)


def uniform(problem: Problem, budget_bytes: int) -> Baseline | None:
    """The same option in all blocks of a class, every class as far down its menu: the fastest that fits."""
    depth = max((len(menu) for menu in problem.menus), default=1)
    candidates = (
        tuple(min(level, len(problem.menus[class_index]) - 1) for class_index in problem.class_of)
        for level in range(depth)
    )
    return _first_within(problem, budget_bytes, "uniform", candidates)


def greedy(problem: Problem, budget_bytes: int) -> Baseline | None:
    """From nothing recomputed, again and again the block whose next option frees most bytes per ns."""

    def steps() -> Iterable[tuple[int, ...]]:
        options = [0] * len(problem.class_of)
        yield tuple(options)
        while True:
            moves = []
            for block, index in enumerate(options):
                if index + 1 < len(problem.menus[problem.class_of[block]]):
                    now, then = problem.option(block, index), problem.option(block, index + 1)
                    freed = now.kept_bytes - then.kept_bytes
                    moves.append((freed / max(1, then.recompute_ns - now.recompute_ns), -block))
            if not moves:
                return
            options[-max(moves)[1]] += 1
            yield tuple(options)

    return _first_within(problem, budget_bytes, "greedy", steps())


def _first_within(
    problem: Problem, budget_bytes: int, name: str, candidates: Iterable[tuple[int, ...]]
) -> Baseline | None:
    for options in candidates:
        if problem.peak(options)[0] <= budget_bytes:
            return Baseline(name, options, problem.recompute_ns(options))
    return None


def _smallest(problem: Problem) -> list[int]:
    """For each block the option that keeps least."""
    by_class = [min(range(len(menu)), key=lambda i: (menu[i].kept_bytes, i)) for menu in problem.menus]
    return [by_class[class_index] for class_index in problem.class_of]
