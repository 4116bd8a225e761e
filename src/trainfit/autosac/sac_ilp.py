"""Which modules to checkpoint and how much of each to drop, and which ops of a module to keep.

`sac_milp`: a `Graph` and a budget in -> the share of memory that each checkpointed module drops. Every module with
children has one option per point of its trade-off curve; an integer program chooses at most one per module, none inside
another, so that recomputation takes least. Its rows are moments of the step: the memory then, less what the chosen
options have dropped and not yet brought back, plus what running a module again takes (see `step_memory`), is at most
the budget. Equal modules in a row are counted and not told apart (see `runs`), so depth costs nothing.

`get_optimal_checkpointing_policy_per_module` and its greedy sibling: a module's `SACStats` and the share of its memory
that may be kept in -> SAVE or RECOMPUTE for each op.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

from trainfit.autosac.ilp_utils import Graph, is_self_or_submodule, is_submodule, memory_of
from trainfit.autosac.moments import Moment, Unit, dropped_bytes, make_moments, make_units, without_parts
from trainfit.autosac.runs import Run, deal, find_runs
from trainfit.autosac.tradeoff import SACStats, greedy_order, groups_of, must_store
from trainfit.solve.linear import IntegerProgram

__all__ = [
    "SACDecision",
    "SACSolution",
    "get_greedy_checkpointing_policy_per_module",
    "get_optimal_checkpointing_policy_per_module",
    "sac_milp",
]

GIB = 2**30
GAP = 1e-4
"""The solver stops when no choice can be better by more than this share of the recomputation."""


class SACDecision(IntEnum):
    """What happens to an op's result between forward and backward."""

    RECOMPUTE = 0
    SAVE = 1


class SACSolution(tuple[dict[str, float], float, int]):
    """Unpacks into (decisions, recomputation ms, peak bytes); ({}, 0, -1) if no choice fits the budget."""

    status: Literal["optimal", "feasible", "infeasible"]
    gap: float
    """The share of the recomputation that a better choice could save at most."""

    def __new__(
        cls, decisions: dict[str, float], time_ms: float, peak_bytes: int, status: str, gap: float
    ) -> SACSolution:
        solution = super().__new__(cls, (decisions, time_ms, peak_bytes))
        solution.status, solution.gap = status, gap  # type: ignore[assignment]
        return solution


def sac_milp(
    graph: Graph,
    memory_budget: float,  # GiB
    world_size: int = 1,
    ac_units: list[str] | None = None,
    fsdp_units: list[str] | None = None,
    *,
    optimizer_state: bool = True,
) -> SACSolution:
    """The fastest choice whose peak is at most `memory_budget` GiB per rank.

    Parameters, gradients and optimizer state are divided by `world_size`. Only `ac_units` are checkpointed if given,
    else any module, but parts of a layer only where whole layers do not fit: fewer checkpoints, as people place them.
    `fsdp_units` are the modules that FSDP gathers at a time: their unsharded parameters and gradients count, and
    modules around them are not checkpointed. `optimizer_state` counts what the optimizer keeps.
    """
    unsharded_bytes = _unsharded_bytes(graph, world_size, fsdp_units)
    memory = memory_of(graph).by_op(world_size, optimizer_state) + unsharded_bytes
    budget_bytes = memory_budget * GIB
    if memory.max(initial=0) <= budget_bytes:
        return SACSolution({}, 0, math.ceil(memory.max(initial=0)), "optimal", 0.0)
    units = every = make_units(graph, ac_units, fsdp_units)
    if not ac_units:
        units = without_parts(every)
    moments = make_moments(memory, units)
    solution = _choose(units, moments, budget_bytes)
    if solution is None and len(units) < len(every):
        units, moments = every, make_moments(memory, every)
        solution = _choose(units, moments, budget_bytes)
    if solution is None:
        return SACSolution({}, 0, -1, "infeasible", 0.0)
    time_ms, gap, chosen = solution
    peak_bytes = max(
        moment.nbytes + sum(moment.change_bytes(n, units[n], units[n].options[o]) for n, o in chosen.items())
        for moment in moments
    )
    decisions = {units[n].fqn: units[n].options[o].ratio for n, o in sorted(chosen.items())}
    status = "optimal" if gap <= 2 * GAP else "feasible"
    return SACSolution(decisions, time_ms, math.ceil(peak_bytes), status, gap)


Choice = tuple[float, float, dict[int, int]]
"""Time in ms, the share of it that could be saved at most, and the option of every unit that is checkpointed."""


def _choose(units: Sequence[Unit], moments: Sequence[Moment], budget_bytes: float) -> Choice | None:
    """The fastest choice, runs counted; where that finds none and one may exist, every unit told apart."""
    runs = find_runs(units, moments)
    choice = _Program(units, moments, budget_bytes, runs).solve(exact=True)
    if all(run.length == 1 for run in runs):
        return choice
    bound = _Program(units, moments, budget_bytes, runs).solve(exact=False)
    if bound is None:
        return None
    if choice is None:
        alone = [Run(((number,),)) for number in range(len(units))]
        return _Program(units, moments, budget_bytes, alone).solve(exact=True)
    time_ms, _, chosen = choice
    bound_ms = bound[0] * (1 - bound[1])
    return time_ms, max(0.0, 1 - bound_ms / time_ms) if time_ms > 0 else 0.0, chosen


class _Program:
    """The integer program: per run a count of each option in its blocks but the last, and a binary for the last."""

    def __init__(
        self, units: Sequence[Unit], moments: Sequence[Moment], budget_bytes: float, runs: Sequence[Run]
    ) -> None:
        self._units = units
        self._moments = moments
        self._budget_bytes = budget_bytes
        self._runs = runs

    def solve(self, *, exact: bool) -> Choice | None:
        """The best choice; None if nothing fits. Not exact: rows that every choice within the budget meets, whichever
        blocks of a run it is for, so that the best time is a bound."""
        self._program = IntegerProgram()
        self._extras: dict[tuple[object, ...], int] = {}
        self._used: dict[tuple[int, int, int], int] = {}
        self._counts: list[dict[tuple[int, int], int]] = []  # by run: (position, option) -> column
        self._lasts: list[dict[tuple[int, int], int]] = []
        for run in self._runs:
            self._add_run(run)
        self._forbid_nesting()
        rows: set[tuple[tuple[tuple[int, float], ...], float]] = set()
        for m, moment in enumerate(self._moments):
            if moment.nbytes + moment.most_extra_bytes(self._units) <= self._budget_bytes:
                continue
            terms = self._row(m, exact)
            if moment.nbytes + sum(change for change in terms.values() if change > 0) > self._budget_bytes:
                rows.add((tuple(sorted(terms.items())), self._budget_bytes - moment.nbytes))
        for terms_, upper in sorted(rows):
            self._program.add_row(dict(terms_), upper=upper)
        solution = self._program.solve(gap=GAP)
        return None if solution is None else (solution.objective, solution.gap, self._chosen(solution.values))

    def _add_run(self, run: Run) -> None:
        counts, lasts = {}, {}
        for position, number in enumerate(run.blocks[0]):
            for index, option in enumerate(self._units[number].options):
                if run.length > 1:
                    counts[position, index] = self._program.add_integer(option.time_ms, upper=run.length - 1)
                lasts[position, index] = self._program.add_binary(option.time_ms)
        self._counts.append(counts)
        self._lasts.append(lasts)

    def _forbid_nesting(self) -> None:
        """Of the units around each innermost one at most one is checkpointed, in every block."""
        homes = {number: (r, p) for r, run in enumerate(self._runs) for p, number in enumerate(run.blocks[0])}
        for number, (r, _) in homes.items():
            fqn, others = self._units[number].fqn, [n for n in homes if n != number]
            if any(is_submodule(self._units[other].fqn, fqn) for other in others):
                continue  # the rows of what is inside say as much
            around = [homes[n] for n in homes if is_self_or_submodule(fqn, self._units[n].fqn)]
            same = {p for home, p in around if home == r}
            outside = [c for home, p in around if home != r for (q, _), c in self._lasts[home].items() if q == p]
            for columns, times in ((self._counts[r], self._runs[r].length - 1), (self._lasts[r], 1)):
                if columns:
                    own = {column: 1.0 for (p, _), column in columns.items() if p in same}
                    self._program.add_row(own | dict.fromkeys(outside, float(times)), upper=times)

    def _row(self, m: int, exact: bool) -> dict[int, float]:
        """What each column adds to the memory at moment m."""
        terms: dict[int, float] = {}
        moment = self._moments[m]
        for r, run in enumerate(self._runs):
            place = run.places[m] if run.places else None
            counted = run.length - 1
            if place is None or place.dropped >= counted:  # the last block, and what is after it
                for (position, index), column in self._lasts[r].items():
                    number = run.blocks[-1][position]
                    unit = self._units[number]
                    terms[column] = moment.change_bytes(number, unit, unit.options[index])
            if place is None or place.dropped == 0 == place.is_inside:
                continue
            share = min(place.dropped, counted) / counted if exact else float(place.dropped > 0)
            for (position, index), column in self._counts[r].items():
                unit = self._units[run.blocks[0][position]]
                terms[column] = -share * dropped_bytes(unit.calls[0], unit.options[index])
            if exact and place.is_inside and place.dropped < counted:
                extra = self._extra(r, moment, run.blocks[place.dropped])
                if extra is not None:
                    terms[extra] = 1.0
        return {column: change for column, change in terms.items() if change != 0}

    def _extra(self, r: int, moment: Moment, block: tuple[int, ...]) -> int | None:
        """A column for the most that any option in use adds in the block that runs; None if none adds anything."""
        sizes = {}
        for position, index in self._counts[r]:
            unit = self._units[block[position]]
            change = moment.change_bytes(block[position], unit, unit.options[index])
            if change > 0:
                sizes[position, index] = change
        key = (r, tuple(sizes.items()))
        if sizes and key not in self._extras:
            self._extras[key] = extra = self._program.add_continuous(0.0)
            for (position, index), change in sizes.items():
                used = self._in_use(r, position, index)
                self._program.add_row({extra: 1.0, used: -float(change)}, lower=0)
        return self._extras.get(key)

    def _in_use(self, r: int, position: int, index: int) -> int:
        if (r, position, index) not in self._used:
            used = self._used[r, position, index] = self._program.add_binary(0.0)
            count = self._counts[r][position, index]
            self._program.add_row({used: float(self._runs[r].length - 1), count: -1.0}, lower=0)
        return self._used[r, position, index]

    def _chosen(self, values: Sequence[float]) -> dict[int, int]:
        chosen: dict[int, int] = {}
        for run, counts, lasts in zip(self._runs, self._counts, self._lasts, strict=True):
            hands = deal(self._units, run, {key: round(values[column]) for key, column in counts.items()})
            hands.append([key for key, column in lasts.items() if values[column] > 0.5])
            for block, hand in zip(run.blocks, hands, strict=True):
                chosen |= {block[position]: index for position, index in hand}
        return chosen


def _unsharded_bytes(graph: Graph, world_size: int, fsdp_units: list[str] | None) -> int:
    """What FSDP holds unsharded at most: two units' parameters, one being fetched ahead, and a unit's gradients, once
    more while they are reduced."""
    if world_size == 1 or not fsdp_units:
        return 0
    parameters = [graph.name2node[unit]["param_per_module"] for unit in fsdp_units]
    gradients = [graph.name2node[unit]["grad_per_module"] for unit in fsdp_units]
    return sum(sorted(parameters)[-2:]) + 2 * max(gradients)


def get_optimal_checkpointing_policy_per_module(sac_stats: SACStats, memory_budget: float) -> list[int]:
    """SAVE (1) or RECOMPUTE (0) per op: the least recomputation with at most that share of the memory kept."""
    max_bytes = _kept_bytes(sac_stats, memory_budget)
    policy = [int(SACDecision.RECOMPUTE)] * len(sac_stats.func_names)
    program = IntegerProgram()
    columns: dict[int, set[int]] = {}
    for group in _storable(sac_stats):
        if must_store(sac_stats, group):
            _save(policy, group)
            max_bytes -= sum(sac_stats.memory[op] for op in group)
        else:
            columns[program.add_binary(-sum(sac_stats.runtimes[op] for op in group))] = group
    sizes = {column: float(sum(sac_stats.memory[op] for op in group)) for column, group in columns.items()}
    program.add_row(sizes, upper=max(0, max_bytes))
    solution = program.solve()
    assert solution is not None, "keeping nothing more is always allowed"
    for column, group in columns.items():
        if solution.values[column] > 0.5 or sizes[column] == 0:
            _save(policy, group)
    return policy


def get_greedy_checkpointing_policy_per_module(sac_stats: SACStats, memory_budget: float) -> list[int]:
    """The same by dropping groups of ops in the greedy order, until what is left fits."""
    max_bytes = _kept_bytes(sac_stats, memory_budget)
    policy = [int(SACDecision.RECOMPUTE)] * len(sac_stats.func_names)
    groups = {min(group): group for group in _storable(sac_stats)}
    for group in groups.values():
        _save(policy, group)
    kept_bytes = sum(sac_stats.memory)
    for candidate in greedy_order(sac_stats).msps_meta:
        if kept_bytes <= max_bytes or candidate.memory == 0:
            break
        kept_bytes -= candidate.memory
        for op in groups[candidate.op_idx]:
            policy[op] = SACDecision.RECOMPUTE.value
    return policy


def _kept_bytes(sac_stats: SACStats, memory_budget: float) -> int:
    if not 0 <= memory_budget <= 1:
        raise ValueError(f"memory_budget is a share of the module's memory, between 0 and 1, not {memory_budget}")
    return math.ceil(memory_budget * sum(sac_stats.memory) - 1e-6)


def _storable(sac_stats: SACStats) -> list[set[int]]:
    """The groups of ops whose results can be kept: all but views, which are made again for nothing."""
    views = set(sac_stats.view_like_ops)
    return [group for group in groups_of(sac_stats) if not group <= views]


def _save(policy: list[int], group: set[int]) -> None:
    for op in group:
        policy[op] = SACDecision.SAVE.value
