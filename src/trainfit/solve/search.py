"""From a budget of true peak to a plan that the exact simulation confirms.

In: a `Problem`, a judge, a budget. Out: `Found`. The judge simulates a decision exactly and is slow (it runs the
planned step on a ghost GPU), so it is asked seldom and never twice about the same decision. Invariants: the peak of
what is found, as judged, is within the budget; among all that was judged nothing within the budget is faster, so along
the budgets of one `Search` the time never rises with the budget.

The linear model and the judge differ by what the model leaves out: hidden buffers, the allocator's waste. Each verdict
says by how much for that choice. The next target for the model is the budget less this difference: lower after a
verdict above the budget, higher after one that leaves room, half way between where that leads out of what is known,
until room is worth less than `WORTH_JUDGING` of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from trainfit.solve.milp import Choice, fastest_within, recompute_bound_ns, smallest_peak
from trainfit.solve.whole import Moment, Problem

WORTH_JUDGING = 1e-3
"""The share of the step's time that a choice must promise to save before it is judged."""
MAX_JUDGED = 4
"""Choices judged per budget at most."""

Status = Literal["nothing to recompute", "optimal", "feasible", "interrupted"]
Kept = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the exact simulation says of a decision."""

    peak_bytes: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan within a budget."""

    choice: Choice
    verdict: Verdict
    status: Status
    gap: float  # the share of the step's time that a better plan could save at most
    moment: Moment  # what limits: when the plan's memory is highest
    num_judged: int


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No plan is within the budget; the smallest judged peak, and the plan that has it."""

    minimum_bytes: int
    choice: Choice


class Search:
    """The judged choices of one problem; `within` may be asked for many budgets."""

    def __init__(self, problem: Problem, judge: Callable[[Kept], Verdict], base: Verdict) -> None:
        """`base` is the verdict on the unplanned step."""
        self._problem = problem
        self._judge = judge
        nothing = Choice(problem, (0,) * len(problem.class_of), 0, 0, 0)
        self._verdicts: dict[Kept, Verdict] = {nothing.kept(): base}
        self._pool: list[tuple[Choice, Verdict]] = [(nothing, base)]

    @property
    def base(self) -> Verdict:
        return self._pool[0][1]

    def smallest(self) -> Infeasible:
        """The smallest peak that any plan has, judged: by the model, or that of keeping least everywhere."""
        self._verdict(smallest_peak(self._problem))
        self._verdict(self._lightest())
        choice, verdict = min(self._pool, key=lambda judged: (judged[1].peak_bytes, judged[1].step_ns))
        return Infeasible(verdict.peak_bytes, choice)

    def within(self, budget_bytes: int) -> Found | Infeasible:
        """The fastest plan whose judged peak is within the budget."""
        judged_before = len(self._pool)
        was_interrupted = False
        try:
            self._look(budget_bytes)
        except KeyboardInterrupt:
            if self._best(budget_bytes) is None:
                raise
            was_interrupted = True
        if self._best(budget_bytes) is None:
            smallest = self.smallest()
            if smallest.minimum_bytes > budget_bytes:
                return smallest
        found = self._found(budget_bytes, len(self._pool) - judged_before)
        return replace(found, status="interrupted") if was_interrupted else found

    def frontier(self, num_points: int) -> list[tuple[int, Found]]:
        """(budget, plan) from the smallest peak to that of recomputing nothing; a point per plan, time falling."""
        low, high = self.smallest().minimum_bytes, self.base.peak_bytes
        budgets = [low + (high - low) * k // max(1, num_points - 1) for k in range(num_points)]
        for budget_bytes in budgets:
            self._look(budget_bytes)
        points: list[tuple[int, Found]] = []
        for budget_bytes in budgets:
            found = self._found(budget_bytes, num_judged=len(self._pool) - 1)
            if not points or found.verdict.step_ns < points[-1][1].verdict.step_ns:
                points.append((budget_bytes, found))
        return points

    def _found(self, budget_bytes: int, num_judged: int) -> Found:
        """The best of what was judged, with what is known about it."""
        best = self._best(budget_bytes)
        assert best is not None, "what has the smallest peak is within the budget"
        choice, verdict = best
        gap = self._gap(choice, verdict, budget_bytes)
        status: Status = "optimal" if gap <= WORTH_JUDGING else "feasible"
        if not any(choice.options):
            status = "nothing to recompute"
        moment = choice.problem.peak(choice.options)[1]
        return Found(choice, verdict, status, gap, moment, num_judged)

    def _gap(self, choice: Choice, verdict: Verdict, budget_bytes: int) -> float:
        """What a better plan could save at most, if it differed from the model by as much as this one."""
        modelled_bytes = choice.problem.peak(choice.options)[0]
        target = budget_bytes - verdict.peak_bytes + modelled_bytes
        bound_ns = recompute_bound_ns(choice.problem, target)
        if choice.budget_bytes >= target:
            bound_ns = max(bound_ns, choice.bound_ns)
        return max(0, choice.recompute_ns - bound_ns) / max(1, verdict.step_ns)

    def _look(self, budget_bytes: int) -> None:
        """Judge choices until more would not pay."""
        problem = self._problem
        if self.base.peak_bytes <= budget_bytes:
            return
        target = budget_bytes - (self.base.peak_bytes - problem.peak(self._pool[0][0].options)[0])
        too_much: int | None = None  # the smallest modelled peak that was judged to be over the budget
        for _ in range(MAX_JUDGED):
            choice = fastest_within(problem, target) or smallest_peak(problem)
            best = self._best(budget_bytes)
            if best is not None and best[0].recompute_ns - choice.recompute_ns < WORTH_JUDGING * best[1].step_ns:
                return
            is_new = choice.kept() not in self._verdicts
            verdict = self._verdict(choice)
            modelled_bytes = choice.problem.peak(choice.options)[0]
            target = budget_bytes - (verdict.peak_bytes - modelled_bytes)
            if verdict.peak_bytes > budget_bytes:
                too_much = modelled_bytes if too_much is None else min(too_much, modelled_bytes)
            best = self._best(budget_bytes)
            fits = best[0].problem.peak(best[0].options)[0] if best is not None else None
            if too_much is not None and fits is not None and not fits < target < too_much:
                target = (fits + too_much) // 2
            elif not is_new:
                return

    def _lightest(self) -> Choice:
        by_class = [min(range(len(menu)), key=lambda i: (menu[i].kept_bytes, i)) for menu in self._problem.menus]
        options = tuple(by_class[class_index] for class_index in self._problem.class_of)
        return Choice(self._problem, options, self._problem.recompute_ns(options), 0, 0)

    def _verdict(self, choice: Choice) -> Verdict:
        kept = choice.kept()
        if kept not in self._verdicts:
            self._verdicts[kept] = self._judge(kept)
            self._pool.append((choice, self._verdicts[kept]))
        return self._verdicts[kept]

    def _best(self, budget_bytes: int) -> tuple[Choice, Verdict] | None:
        within = [judged for judged in self._pool if judged[1].peak_bytes <= budget_bytes]
        return min(within, key=lambda judged: (judged[1].step_ns, judged[1].peak_bytes), default=None)
