"""Simpler ways to choose from the same menus: what a plan is compared with.

In: a `Problem` and a budget of the linear model. Out: a `Choice`, or None where even the last step does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainfit.solve.milp import Choice
from trainfit.solve.whole import Problem


def uniform(problem: Problem, budget_bytes: int) -> Choice | None:
    """The same option in all blocks of a class, every class as far down its menu: the fastest that fits."""
    depth = max((len(menu) for menu in problem.menus), default=1)
    candidates = (
        tuple(min(level, len(problem.menus[class_index]) - 1) for class_index in problem.class_of)
        for level in range(depth)
    )
    return _first_within(problem, budget_bytes, candidates)


def greedy(problem: Problem, budget_bytes: int) -> Choice | None:
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
            chosen = -max(moves)[1]
            for block in problem.tied_to(chosen):
                options[block] += 1
            yield tuple(options)

    return _first_within(problem, budget_bytes, steps())


def _first_within(problem: Problem, budget_bytes: int, candidates: Iterable[tuple[int, ...]]) -> Choice | None:
    for options in candidates:
        if problem.peak(options)[0] <= budget_bytes:
            return Choice(problem, options, problem.recompute_ns(options))
    return None
