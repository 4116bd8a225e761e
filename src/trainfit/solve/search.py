"""From a budget of true peak to a plan that the exact simulation confirms.

In: a `Problem`, a sketch, a judge, a budget. Out: `Found`. The sketch plays a choice through the allocator without
running it, in hundredths of a second; the judge runs the planned step on a ghost GPU, which takes seconds, and has the
last word. Invariant: the peak of what is found, as judged, is within the budget.

The choices that are tried do not depend on the budget. Most are on ladders (`ladder`), each in some arrangements: from
the highest rung that may fit down to the first that does, and then by halves between it and the next. Whatever fits a
budget fits a larger one, so what is found for a larger budget lies no lower on the ladder, in another call as well:
going down, the larger budget stops no later, and at every halving it goes up wherever the smaller does. Of what is
found on the ladders the fastest is taken; of one ladder what could not beat the other is left out, which changes
nothing about that. So time never rises with the budget.

Allocated bytes are what the linear model says, but for the blocks that the allocator does not split to the byte, so one
ladder will do, and from what it finds a faster choice is looked for in the next bands or steps (`bands`). This
keeps the order: a choice that the smaller budget finds there takes as long as what the larger one begins with, or it
lies in the bands that the larger one goes through, and fits it. Reserved bytes are what is allocated and what the
allocator wastes, which depends on which tensors are kept and is not monotone; there is a second ladder, and a list of
choices in two parts, of which the fastest that fits counts.

The gap is certified by the best mixture of options, or by whole choices (`milp`), for a budget of allocated bytes: no
plan within a budget of reserved bytes allocates more than that. So it has two parts: how far the plan is from the best
one that allocates as little as it does, and what could be had for the bytes that the allocator wastes, if it did not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Literal

from trainfit.solve.bands import Bands, PaddedLadder, average_slack
from trainfit.solve.ladder import Ladder, MeasuredLadder, ModelLadder, arrangements, exchanges, in_two_parts
from trainfit.solve.milp import Choice, is_bound_by_casts, recompute_bound_ns
from trainfit.solve.whole import Moment, Problem

CERTIFIED = 1e-3
"""The gap, as a share of the step's time, up to which a plan is called optimal."""
WORTH_ARRANGING = {"allocated": 1.005, "reserved": 1.03}
"""A choice whose sketch takes more than this share of the budget is not tried in other arrangements."""
HEADROOM_RUNGS = 1
"""So many rungs higher than its modelled peak a choice may fit: the model is too high where blocks overlap."""
RESORTS = 8
"""Shares of the blocks that are as on the lowest rung where no rung fits."""
MAX_JUDGED = 4
"""Choices judged per budget at most."""
BANDS_TRIED = 16
"""Bands, from that of the ladder's choice on, in which a faster one is looked for."""
TIMES_WASTED, TIMES_ON_LADDER = (1, 3, 6, 12), 6
"""What is kept wastes more than what is taken and given back at once: how often the average waste of a size counts."""
STEPS_ABOVE = 4
"""Steps of the ladder above the first that fits that are tried with two blocks exchanged, where there are no bands."""
NEAR_LOWEST = 1.02
"""The share of the smallest modelled peak that a choice in two parts has at most."""
EXCHANGES, NEAR_BYTES = 8, 2**21
"""So many exchanges are tried of a choice that is not further than this above the budget."""

Status = Literal["nothing to recompute", "optimal", "feasible", "interrupted"]
Kept = tuple[tuple[int, ...] | None, ...]


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
    gap_as_allocated: float  # the same, if it may allocate no more than this one does
    moment: Moment  # what limits: when the plan's memory is highest
    num_judged: int


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No plan is within the budget; the smallest judged peak, and the plan that has it."""

    minimum_bytes: int
    choice: Choice


class Search:
    """The judged choices of one problem; `within` may be asked for many budgets."""

    def __init__(
        self,
        problem: Problem,
        judge: Callable[[Choice], Verdict],
        sketch: Callable[[Choice, int | None], int],
        base: Verdict,
        *,
        hidden_bytes: int,
        is_modelled: bool,
        slack: Callable[[Choice], Mapping[int, tuple[int, int]]] | None = None,
    ) -> None:
        """`sketch` gets a choice and a limit; if there is one, any peak that is beyond it will do for what is, and what
        is not may be somewhat too small.
        `base` is the verdict on the unplanned step, `hidden_bytes` what every plan allocates beyond the model.

        `is_modelled` says that the budget binds what the linear model is about, allocated bytes; `slack` says how much
        more the blocks of memory for tensors of each size take under a choice (`average_slack`).
        """
        self._problem = problem
        self._judge = judge
        self._sketch = sketch
        self._hidden_bytes = hidden_bytes
        self._is_modelled = is_modelled
        self._slack = slack
        self._nothing = Choice(problem, (0,) * len(problem.class_of), 0)
        self._verdicts: dict[Kept, Verdict] = {self._nothing.kept(): base}
        # By what is kept, with the limit that the sketch had.
        self._sketches: dict[Kept, tuple[Choice, int, int | None]] = {
            self._nothing.kept(): (self._nothing, base.peak_bytes, None)
        }
        self._pool: list[tuple[Choice, Verdict]] = [(self._nothing, base)]
        self._model_ladder = ModelLadder(problem, is_fine=is_modelled)

    @property
    def base(self) -> Verdict:
        return self._pool[0][1]

    def smallest(self) -> Infeasible:
        """The smallest peak that a choice on a ladder's rung or in two parts has, judged."""
        lowest = self._model_ladder.lowest
        best = min((lowest, *self._last_resorts), key=lambda c: (self._sketched(c), c.recompute_ns))
        for ladder in self._ladders:
            for step in range(0, ladder.num_steps, ladder.stride):
                if ladder.least_bytes(step) + self._hidden_bytes >= self._sketched(best):
                    break  # from here on all choices allocate more than that one reserves
                choice, least_bytes = ladder.at(step), self._sketched(best)
                if (self._sketched(choice, least_bytes), choice.recompute_ns) < (least_bytes, best.recompute_ns):
                    best = choice
        for choice in self._two_parts:
            if self._sketched(choice, self._sketched(best)) < self._sketched(best):
                best = choice
        self._verdict(best)
        choice, verdict = min(self._pool, key=lambda judged: (judged[1].peak_bytes, judged[1].step_ns))
        return Infeasible(verdict.peak_bytes, choice)

    def within(self, budget_bytes: int) -> Found | Infeasible:
        """The fastest plan whose judged peak is within the budget."""
        judged_before = len(self._pool)
        was_interrupted = False
        try:
            self._look(budget_bytes)
        except KeyboardInterrupt:
            was_interrupted = True
            if self._best(budget_bytes) is None:
                self._judge_best_sketch(budget_bytes)
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

    def outline(self, num_choices: int) -> tuple[Choice, ...]:
        """Choices from the smallest modelled peak to that of recomputing nothing, evenly spread, unjudged."""
        last = self._model_ladder.num_steps
        ladder = (self._model_ladder.at(last * index // (num_choices - 1)) for index in range(num_choices))
        return tuple({choice.kept(): choice for choice in ladder}.values())

    def _found(self, budget_bytes: int, num_judged: int) -> Found:
        """The best of what was judged, with what is known about it."""
        best = self._best(budget_bytes)
        assert best is not None, "what has the smallest peak is within the budget"
        choice, verdict = best
        gap = self._gap(choice, verdict, budget_bytes - self._hidden_bytes)
        status: Status = "optimal" if gap <= CERTIFIED else "feasible"
        if not any(choice.options):
            status = "nothing to recompute"
        moment = choice.problem.peak(choice.options)[1]
        gap_as_allocated = min(gap, self._gap(choice, verdict, choice.peak_bytes))
        return Found(choice, verdict, status, gap, gap_as_allocated, moment, num_judged)

    def _gap(self, choice: Choice, verdict: Verdict, modelled_bytes: int) -> float:
        """What a better plan could save at most, with a modelled peak up to this."""
        # What hides is by the average of the blocks, and checkpointing by that of all: the judge knows what came of it.
        worse = max if choice.problem.hidden_ns else min
        cost_ns = worse(choice.recompute_ns, verdict.step_ns - self.base.step_ns)
        # Whole choices are looked at where that can certify the plan: with reserved bytes it is waste that is between.
        enough_ns = cost_ns - CERTIFIED * verdict.step_ns if self._is_modelled else 0
        bound_ns = recompute_bound_ns(choice.problem, modelled_bytes, enough_ns)
        return max(0, cost_ns - bound_ns) / max(1, verdict.step_ns)

    def _look(self, budget_bytes: int) -> None:
        """Judge what is best by its sketch; where the judge differs, the next must be that much smaller."""
        if self.base.peak_bytes <= budget_bytes:
            return
        limit_bytes = budget_bytes
        for _ in range(MAX_JUDGED):
            choice = self._first_within(limit_bytes)
            if choice is None:
                return
            quick_bytes = self._sketched(choice, limit_bytes)
            peak_bytes = self._sketched(choice)
            if peak_bytes <= budget_bytes:
                peak_bytes = self._verdict(choice).peak_bytes
            if peak_bytes <= budget_bytes:
                return
            limit_bytes -= max(1, peak_bytes - quick_bytes)

    def _first_within(self, limit_bytes: int) -> Choice | None:
        """The fastest of the choices that are tried whose sketch is within the limit."""
        best: Choice | None = None
        for ladder in self._ladders:
            best = self._on_ladder(ladder, limit_bytes, best) or best
        for last in self._last_resorts:
            if best is not None and last.recompute_ns >= best.recompute_ns:
                break
            if self._sketched(last, limit_bytes) <= limit_bytes:
                best = last
                break
        best = self._in_two_parts(limit_bytes, best) or best
        if best is not None:
            for bands in self._bands:
                best = self._in_bands(bands, limit_bytes, best) or best
        return best

    def _in_two_parts(self, limit_bytes: int, to_beat: Choice | None) -> Choice | None:
        """The fastest choice in two parts that fits; None if it is not faster than the other."""
        for choice in self._two_parts:
            if to_beat is not None and choice.recompute_ns >= to_beat.recompute_ns:
                return None
            may_fit = choice.peak_bytes + self._hidden_bytes <= limit_bytes
            if may_fit and self._sketched(choice, limit_bytes) <= limit_bytes:
                return choice
        return None

    def _in_bands(self, bands: Bands, limit_bytes: int, to_beat: Choice) -> Choice | None:
        """The fastest choice of the next bands whose sketch is within the limit; None if none beats the other."""
        wasted_bytes = self.base.peak_bytes - self._hidden_bytes - self._nothing.peak_bytes
        most_bytes = limit_bytes + max(0, wasted_bytes)  # what is expected beyond it is not tried
        first = bands.first_below(to_beat)
        for band in reversed(range(first, first + BANDS_TRIED)):
            if bands.expected_bytes(band) > most_bytes:
                continue
            for choice in bands.at(band):
                if choice.recompute_ns >= to_beat.recompute_ns:
                    break
                fitting = self._exchanged(choice, limit_bytes)
                if fitting is not None:
                    return fitting
        return None

    @cached_property
    def _slack_bytes(self) -> dict[int, int]:
        return {} if self._slack is None else average_slack(self._problem, self._slack)

    @cached_property
    def _bands(self) -> tuple[Bands, ...]:
        """With so many times what tensors waste on average. None where their tables would leave out what counts: that
        the calls of a block must agree, or that casts which are dropped are still there in forward."""
        if self._slack is None or self._problem.tied:
            return ()
        halfway_bytes = (self._model_ladder.lowest.peak_bytes + self._nothing.peak_bytes) // 2
        if is_bound_by_casts(self._problem, halfway_bytes):
            return ()
        return tuple(
            Bands(self._problem, self._times_wasted(times), self._sketched)
            for times in (TIMES_WASTED if any(self._slack_bytes.values()) else TIMES_WASTED[:1])
        )

    def _times_wasted(self, times: int) -> dict[int, int]:
        return {size: times * slack_bytes for size, slack_bytes in self._slack_bytes.items()}

    def _on_ladder(self, ladder: Ladder, limit_bytes: int, to_beat: Choice | None) -> Choice | None:
        """The highest choice within the limit that the descent finds; None if it is not faster than the other."""
        stride, last = ladder.stride, ladder.num_steps - 1
        for step in reversed(range(0, ladder.num_steps, stride)):
            if not self._may_fit(ladder, step, limit_bytes):
                continue
            next_ns = ladder.at(step + stride).recompute_ns if to_beat is not None and step + stride <= last else 0
            if to_beat is not None and next_ns >= to_beat.recompute_ns:
                return None  # the next rung is no faster, nor what is below it
            best = self._fitting(ladder, step, limit_bytes)
            if best is None:
                continue
            half = stride // 2
            while half:
                higher = self._fitting(ladder, step + half, limit_bytes) if step + half <= last else None
                if higher is not None:
                    step, best = step + half, higher
                half //= 2
            if self._is_modelled and not self._bands:
                best = self._just_above(ladder, step, limit_bytes) or best
            return best if to_beat is None or best.recompute_ns < to_beat.recompute_ns else None
        return None

    def _just_above(self, ladder: Ladder, step: int, limit_bytes: int) -> Choice | None:
        """The fastest choice of the next steps that fits with two blocks exchanged."""
        for higher in reversed(range(step + 1, min(step + STEPS_ABOVE, ladder.num_steps))):
            fitting = self._exchanged(ladder.at(higher), limit_bytes)
            if fitting is not None:
                return fitting
        return None

    def _exchanged(self, choice: Choice, limit_bytes: int) -> Choice | None:
        """The choice, or with two blocks exchanged, if it fits; others are not tried where it is far from that."""
        if self._sketched(choice) > limit_bytes + NEAR_BYTES:
            return None
        same = islice(exchanges(choice), EXCHANGES)
        return next((choice for choice in same if self._sketched(choice) <= limit_bytes), None)

    def _fitting(self, ladder: Ladder, step: int, limit_bytes: int) -> Choice | None:
        """The first arrangement of the step's choice whose sketch is within the limit."""
        if not self._may_fit(ladder, step, limit_bytes):
            return None
        arranged = arrangements(ladder.at(step))
        choice = next(arranged)
        too_much = int(WORTH_ARRANGING["allocated" if self._is_modelled else "reserved"] * limit_bytes)
        peak_bytes = self._sketched(choice, too_much)
        if peak_bytes <= limit_bytes:
            return choice
        if peak_bytes > too_much:
            return None
        return next((choice for choice in arranged if self._sketched(choice, limit_bytes) <= limit_bytes), None)

    def _may_fit(self, ladder: Ladder, step: int, limit_bytes: int) -> bool:
        """What is reserved is no less than what is allocated; that may be somewhat less than the model says."""
        if self._is_modelled:
            step = max(0, step - HEADROOM_RUNGS * ladder.stride)
        return ladder.least_bytes(step) + self._hidden_bytes <= limit_bytes

    @cached_property
    def _ladders(self) -> tuple[Ladder, ...]:
        if self._is_modelled and (self._bands or not any(self._slack_bytes.values())):
            return (self._model_ladder,)
        if self._is_modelled:
            return self._model_ladder, PaddedLadder(self._problem, self._times_wasted(TIMES_ON_LADDER))
        return MeasuredLadder(self._problem, self._sketched), self._model_ladder

    @cached_property
    def _two_parts(self) -> list[Choice]:
        """Choices in two parts near the smallest modelled peak, by rising time; none where all choices are near it."""
        most_bytes = NEAR_LOWEST * self._model_ladder.lowest.peak_bytes
        if self._is_modelled or self._problem.tied or self._nothing.peak_bytes <= most_bytes:
            return []
        return [choice for choice in in_two_parts(self._problem) if choice.peak_bytes <= most_bytes]

    @cached_property
    def _checkpointed(self) -> Choice:
        """Every block that may be is checkpointed, the others keep least: the last resort where much is reserved."""
        last = [len(menu) - 1 for menu in self._problem.menus]
        options = tuple(last[class_index] for class_index in self._problem.class_of)
        return Choice(self._problem, options, self._problem.recompute_ns(options))

    @cached_property
    def _last_resorts(self) -> list[Choice]:
        """What may fit where no rung does, by rising time: every block checkpointed. Where the last MiB of allocated
        bytes decide, also what the model finds for a few MiB more than the smallest peak, every block replayed as far
        as it goes, and that or checkpointing with some blocks as on the lowest rung."""
        if not self._is_modelled:
            return [self._checkpointed]
        lowest = self._model_ladder.lowest
        problem, least, most = lowest.problem, self._replayed.options, self._checkpointed.options
        tied = [class_index in problem.tied for class_index in problem.class_of]
        choices = {self._checkpointed.options, least}
        for part in range(1, RESORTS + 1):
            cut = len(most) * part // RESORTS
            for rest in (most, least):
                mixed = (*lowest.options[:cut], *rest[cut:])
                choices.add(tuple(r if is_tied else m for r, m, is_tied in zip(rest, mixed, tied, strict=True)))
        resorts = [Choice(problem, options, problem.recompute_ns(options)) for options in choices]
        resorts += self._model_ladder.near_lowest
        return sorted(resorts, key=lambda choice: (choice.recompute_ns, choice.options))

    @cached_property
    def _replayed(self) -> Choice:
        """Every block keeps least without being checkpointed."""
        least = [
            min(range(len(menu)), key=lambda index, menu=menu: (menu[index].is_rerun, menu[index].kept_bytes))  # type: ignore[misc]
            for menu in self._problem.menus
        ]
        options = tuple(least[class_index] for class_index in self._problem.class_of)
        return Choice(self._problem, options, self._problem.recompute_ns(options))

    def _judge_best_sketch(self, budget_bytes: int) -> None:
        """After an interrupt: the fastest of what was sketched and fits."""
        fits = [choice for choice, peak_bytes, _ in self._sketches.values() if peak_bytes <= budget_bytes]
        if not fits:
            raise KeyboardInterrupt
        self._verdict(min(fits, key=lambda choice: choice.recompute_ns))

    def _sketched(self, choice: Choice, limit_bytes: int | None = None) -> int:
        """The choice's peak, exactly if there is no limit; if it is beyond the limit, perhaps another beyond it."""
        kept = choice.kept()
        _, peak_bytes, limit = self._sketches.get(kept, (choice, -1, -1))
        is_known = limit is None
        if limit is not None and limit_bytes is not None:
            is_known = 0 <= peak_bytes <= limit or peak_bytes > limit_bytes
        if not is_known:
            peak_bytes = self._sketch(choice, limit_bytes)
            self._sketches[kept] = choice, peak_bytes, limit_bytes
        return peak_bytes

    def _verdict(self, choice: Choice) -> Verdict:
        kept = choice.kept()
        if kept not in self._verdicts:
            self._verdicts[kept] = self._judge(choice)
            self._pool.append((choice, self._verdicts[kept]))
        return self._verdicts[kept]

    def _best(self, budget_bytes: int) -> tuple[Choice, Verdict] | None:
        within = [judged for judged in self._pool if judged[1].peak_bytes <= budget_bytes]
        return min(within, key=lambda judged: (judged[1].step_ns, judged[1].peak_bytes), default=None)
