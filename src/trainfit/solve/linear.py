"""A small integer program, solved by HiGHS: columns with costs, rows with bounds, one call to solve.

Deterministic: one thread, a fixed seed, no time limit. Programs are small enough to be solved in milliseconds, so
Ctrl-C waits for the end of a solve. Rarely one takes thousands of times longer; a limit to the tree that is searched
can end that, and then the solution says how far from the best it may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Solution:
    """A best point; integer columns are rounded to whole numbers."""

    values: tuple[float, ...]
    objective: float
    duals: tuple[float, ...]  # by row: what the objective gains per unit of its bound; of the relaxed program only
    gap: float = 0.0  # the share of the objective that a better point could save at most


class IntegerProgram:
    """Minimise the sum of cost * column subject to the rows. Columns are known by number."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._upper: list[float] = []
        self._is_integer: list[bool] = []
        self._rows: list[tuple[dict[int, float], float, float]] = []

    def add_binary(self, cost: float) -> int:
        return self.add_integer(cost, upper=1)

    def add_integer(self, cost: float, *, upper: float) -> int:
        return self._add_column(cost, upper, True)

    def add_continuous(self, cost: float) -> int:
        return self._add_column(cost, math.inf, False)

    def add_row(self, terms: Mapping[int, float], *, lower: float = -math.inf, upper: float = math.inf) -> int:
        self._rows.append((dict(terms), lower, upper))
        return len(self._rows) - 1

    def solve(self, *, relaxed: bool = False, gap: float = 0.0, max_nodes: int | None = None) -> Solution | None:
        """A best point, None if the rows contradict each other. Relaxed: integer columns may take any value. With a
        `gap`, a point that is worse than the best by at most this share of its objective will do; with `max_nodes`, the
        best one that a search tree of this size finds."""
        if not self._costs:  # a program without columns, which HiGHS does not take
            return (
                Solution((), 0.0, (0.0,) * len(self._rows))
                if all(low <= 0 <= high for _, low, high in self._rows)
                else None
            )
        import highspy

        solver = highspy.Highs()
        options = {"output_flag": False, "threads": 1, "random_seed": 0, "mip_rel_gap": gap}
        if max_nodes is not None:  # without restarts, one of which was seen never to end
            options |= {"mip_max_nodes": max_nodes, "mip_allow_restart": False}
        for option, value in options.items():
            solver.setOptionValue(option, value)
        # Costs and coefficients are scaled by powers of two, so that nothing is rounded: HiGHS's tolerances are
        # absolute, and bytes and nanoseconds are large.
        cost_scale = _scale(self._costs)
        solver.addVars(len(self._costs), [0.0] * len(self._costs), self._upper)
        for column, cost in enumerate(self._costs):
            solver.changeColCost(column, cost * cost_scale)
            if self._is_integer[column] and not relaxed:
                solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        for terms, lower, upper in self._rows:
            scale = _scale(terms.values())
            columns = [column for column, weight in terms.items() if weight != 0]
            weights = [terms[column] * scale for column in columns]
            solver.addRow(lower * scale, upper * scale, len(columns), columns, weights)
        solver.run()
        status = solver.getModelStatus()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return None
        is_cut_short = status == highspy.HighsModelStatus.kSolutionLimit and math.isfinite(solver.getInfo().mip_gap)
        if status != highspy.HighsModelStatus.kOptimal and not is_cut_short:
            raise RuntimeError(f"HiGHS stopped with status {solver.modelStatusToString(status)}")
        values = tuple(
            float(round(value)) if is_integer and not relaxed else float(value)
            for value, is_integer in zip(solver.getSolution().col_value, self._is_integer, strict=True)
        )
        duals = tuple(
            dual * _scale(terms.values()) / cost_scale
            for dual, (terms, _, _) in zip(solver.getSolution().row_dual if relaxed else (), self._rows, strict=relaxed)
        )
        objective = sum(cost * value for cost, value in zip(self._costs, values, strict=True))
        is_exact = relaxed or not (gap or is_cut_short)
        return Solution(values, objective, duals, 0.0 if is_exact else max(0.0, solver.getInfo().mip_gap))

    def _add_column(self, cost: float, upper: float, is_integer: bool) -> int:
        self._costs.append(cost)
        self._upper.append(upper)
        self._is_integer.append(is_integer)
        return len(self._costs) - 1


def _scale(numbers: Iterable[float]) -> float:
    """The power of two that brings the largest of the numbers near 1024."""
    largest = max((abs(number) for number in numbers), default=1.0)
    return 1.0 if largest == 0 else 2.0 ** (10 - math.frexp(largest)[1])
