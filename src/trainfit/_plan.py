"""`plan`: the stages in a row, Step -> trace -> price -> solve -> `Plan`, judged by the stages in a row again.

This file composes the stages and has no logic of theirs. The judge of a decision applies it to the ghost model and
traces that: the same executor makes the same allocations as on a GPU, so the predicted peak is exact by construction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import trainfit
from trainfit._estimate import Estimate, estimate_trace, free_bytes, network_of_step
from trainfit._plan_record import SCHEMA, Decision, MemoryKind, Plan, Row, for_plan
from trainfit._sketch import Sketches
from trainfit._time_estimate import hidden_behind_communication_ns, steady_step_ns, time_step
from trainfit.apply import BlockRecorder, apply_decisions, structure_of
from trainfit.cost import Pricing, issue_times_ns, load_profile, price_with, pricing_for
from trainfit.errors import InfeasibleBudget, UsageError
from trainfit.fingerprint import fingerprint
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.gpus.hidden import hidden_memory
from trainfit.progress import part_of, tell
from trainfit.records import BlockDecision, BlockProgram, Category, Trace
from trainfit.simulate import AllocatorMode
from trainfit.simulate.time import KERNEL_GAP_NS
from trainfit.solve import (
    CHECKPOINTED,
    BaseMemory,
    Choice,
    Found,
    Infeasible,
    Option,
    PlannedTraces,
    Problem,
    Search,
    Verdict,
    Way,
    base_memory,
    build_graph,
    frontier,
    greedy,
    rerun,
    resident_storages,
    summarize,
)
from trainfit.solve.graph import BlockGraph
from trainfit.solve.search import Kept
from trainfit.step import Step
from trainfit.trace import garbage_collection_off, trace_step
from trainfit.trace.placement import place_model
from trainfit.units import format_bytes, parse_bytes

MARGIN = 0.02
"""The share of the GPU that the default budget leaves free, for what is not modelled."""
FRONTIER_POINTS = 12

Budget = str | Literal["min"] | None


def plan(
    step: Step,
    gpu: str = "h200",
    *,
    budget: Budget = None,
    memory: MemoryKind = "reserved",
    allocator: AllocatorMode = "classic",
    profile: str | Path | None = None,
) -> Plan:
    """The fastest step whose true peak is within `budget`, found and simulated without a GPU.

    `budget` is a size ("27GiB", "90%" of the GPU), or "min" for the smallest that works; when None, the GPU's memory
    less the driver's context and a margin of 2%. `memory` says which peak it binds. `profile` is a file that
    `trainfit calibrate` wrote on such a GPU. Raises InfeasibleBudget.
    """
    with garbage_collection_off():  # a trace is many objects that stay
        return Planner(step, find_gpu(gpu), memory, allocator, profile=profile).plan(budget)


def plan_frontier(
    step: Step,
    gpu: str = "h200",
    *,
    memory: MemoryKind = "reserved",
    allocator: AllocatorMode = "classic",
    profile: str | Path | None = None,
) -> tuple[Plan, ...]:
    """Plans from the smallest peak to that of recomputing nothing; their times fall as their budgets rise."""
    with garbage_collection_off():
        return frontier_of(Planner(step, find_gpu(gpu), memory, allocator, profile=profile))


def frontier_of(planner: Planner) -> tuple[Plan, ...]:
    """As `plan_frontier`, by a planner that may have planned already."""
    with garbage_collection_off():
        points = planner.search.frontier(FRONTIER_POINTS)
        return tuple(planner.make_plan(found, budget_bytes) for budget_bytes, found in points)


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step before anything is priced; it serves every GPU that has the kernels of the one it was traced for."""

    trace: Trace
    programs: tuple[tuple[str, BlockProgram], ...]


def trace_for_plans(step: Step, gpu: Gpu) -> TracedStep:
    """What planners of the step have in common."""
    blocks = BlockRecorder(gpu)
    trace = trace_step(step, gpu, blocks.watch)
    return TracedStep(trace, blocks.programs())


@dataclass(frozen=True)
class Planner:
    """One step on one GPU; what is traced and solved is traced and solved once."""

    step: Step
    gpu: Gpu
    memory: MemoryKind
    allocator: AllocatorMode
    traced: TracedStep | None = None
    """The step as it was traced before; None to trace it here."""
    profile: str | Path | None = None
    """The file with what was measured of the GPU; None for what comes with the package, or else the datasheet."""

    def plan(self, budget: Budget) -> Plan:
        if self.memory not in ("reserved", "allocated"):
            raise UsageError(f"no memory is called {self.memory!r}", hint="pass reserved or allocated")
        if budget == "min":
            budget_bytes = self.search.smallest().minimum_bytes
        elif budget is None:
            budget_bytes = int(free_bytes(self.gpu) - MARGIN * self.gpu.memory_bytes)
        else:
            budget_bytes = parse_bytes(budget, of_bytes=self.gpu.memory_bytes)
        found = self.search.within(budget_bytes)
        if isinstance(found, Infeasible):
            wanted, minimum = format_bytes(budget_bytes), format_bytes(found.minimum_bytes)
            if wanted == minimum:
                minimum = f"{format_bytes(found.minimum_bytes - budget_bytes)} more"
            raise InfeasibleBudget(
                f"no plan fits {wanted} {self.memory}: the smallest peak is {minimum}",
                hint="pass --budget min for that plan, a smaller batch, or a larger GPU",
                minimum_bytes=found.minimum_bytes,
            )
        return self.make_plan(found, budget_bytes)

    @cached_property
    def search(self) -> Search:
        estimate = self.base[1]
        return Search(
            self.problem,
            self.judge,
            self.sketch,
            self.verdict(estimate),
            hidden_bytes=estimate.breakdown_bytes[Category.WORKSPACES],
            is_modelled=self.memory == "allocated",
            slack=self.slack if self.memory == "allocated" else None,
        )

    @cached_property
    def problem(self) -> Problem:
        """The step as its blocks' menus and its memory with nothing recomputed."""
        trace, by_name, memory = self.base[0], dict(self.programs), self._base_memory
        # Equal programs are of one class, but the calls of a block, which must all do the same, have one of their own.
        keys = [(by_name[name], name if memory.blocks.count(name) > 1 else "") for name in memory.blocks]
        classes = dict(zip(reversed(keys), reversed(memory.blocks), strict=True))  # each with the first of its blocks
        graphs = tuple(
            self._graph(program, resident_storages(trace, name, program)) for (program, _), name in classes.items()
        )
        class_index = {key: index for index, key in enumerate(classes)}
        tell("solving")
        problem = Problem(
            memory=memory,
            class_of=tuple(class_index[key] for key in keys),
            graphs=graphs,
            menus=tuple(_menu(program, graph) for (program, _), graph in zip(classes, graphs, strict=True)),
            base_ns=self.verdict(self.base[1]).step_ns,
        )
        return self._with_priced_reruns(problem)

    @cached_property
    def _base_memory(self) -> BaseMemory:
        trace, _ = self.base
        return base_memory(trace, dict(self.programs), hidden_memory(self.gpu, trace.torch_version).temporaries)

    def _with_priced_reruns(self, problem: Problem) -> Problem:
        """The problem with what checkpointing a block takes by the written trace in which every block is.

        That is more than the ops that are run again where the CPU, which has more to do then, cannot keep up.
        """
        if not self._checkpointed:
            return problem
        ops_ns = sum(problem.menus[class_index][-1].recompute_ns for class_index in problem.class_of)
        factor = max(1.0, (self._checkpointed[0][1].step_ns - problem.base_ns) / max(1, ops_ns))

        def priced(option: Option) -> Option:
            return replace(option, recompute_ns=round(factor * option.recompute_ns)) if option.is_rerun else option

        return replace(problem, menus=tuple(tuple(map(priced, menu)) for menu in problem.menus))

    def make_plan(self, found: Found, budget_bytes: int) -> Plan:
        """The plan's record."""
        estimate = self._judged[found.choice.kept()] if any(found.choice.options) else self.base[1]
        return Plan(
            schema=SCHEMA,
            trainfit=trainfit.__version__,
            torch=estimate.torch,
            gpu=self.gpu.name,
            allocator=self.allocator,
            memory=self.memory,
            budget_bytes=budget_bytes,
            status=found.status,
            gap=round(found.gap, 6),
            gap_as_allocated=round(found.gap_as_allocated, 6),
            predicted=for_plan(replace(estimate, budget_bytes=budget_bytes)),
            predicted_step_ns=found.verdict.step_ns,
            rows=self._rows(found, budget_bytes),
            decisions=self.decisions(found.choice),
            inputs=describe_batch(self.step.batch),
            model=self.fingerprint,
        ).made_by(self)

    @cached_property
    def _traced(self) -> TracedStep:
        return self.traced or trace_for_plans(self.step, self.gpu)

    @cached_property
    def base(self) -> tuple[Trace, Estimate]:
        """The step with nothing recomputed."""
        trace = self._traced.trace
        return trace, self.estimate(trace)

    @property
    def programs(self) -> tuple[tuple[str, BlockProgram], ...]:
        """(block, program) in the order of their calls."""
        return self._traced.programs

    @cached_property
    def _judged(self) -> dict[Kept, Estimate]:
        return {}

    @cached_property
    def planned_traces(self) -> PlannedTraces:
        return PlannedTraces(self.base[0], dict(self.programs))

    @cached_property
    def sketches(self) -> Sketches:
        trace = self.base[0]
        return Sketches(trace, self.planned_traces, hidden_memory(self.gpu, trace.torch_version), self.allocator)

    def sketch(self, choice: Choice, limit_bytes: int | None = None) -> int:
        """The peak that the budget binds, of the choice's trace as it is written without running it.

        Where a block's program is not found in the trace, the linear model, and what it leaves out of the unplanned
        step. What reserves more than the limit is not played to its end.
        """
        if not all(map(self.planned_traces.knows, self.problem.memory.blocks)):
            return choice.peak_bytes + self.search.base.peak_bytes - self.problem.peak((0,) * len(choice.options))[0]
        ways = self.ways(choice)
        if self.memory == "allocated":
            return self.sketches.peaks(ways).allocated_bytes
        if limit_bytes is None:
            return self.sketches.peaks(ways).reserved_bytes
        return self.sketches.reserved_within(ways, limit_bytes)

    def slack(self, choice: Choice) -> dict[int, tuple[int, int]]:
        """By the size of tensors: the blocks taken for them, and by how much these are larger in all."""
        is_known = all(map(self.planned_traces.knows, self.problem.memory.blocks))
        return self.sketches.slack_bytes(self.ways(choice)) if self.allocator == "classic" and is_known else {}

    def ways(self, choice: Choice) -> dict[str, Way]:
        """The option of each block that recomputes something."""
        blocks = zip(self.problem.memory.blocks, choice.options, strict=True)
        options = ((name, choice.problem.option(block, index)) for block, (name, index) in enumerate(blocks))
        return {name: CHECKPOINTED if option.is_rerun else option for name, option in options if option.replayed}

    def judge(self, choice: Choice) -> Verdict:
        """What the step takes when each block keeps these storages: applied to the ghost model, traced, simulated."""
        problem, by_name, kept = self.problem, dict(self.programs), choice.kept()
        decisions = {
            name: BlockDecision(kept=storages or (), structure=structure_of(by_name[name]), rerun=storages is None)
            for block, (name, storages) in enumerate(zip(problem.memory.blocks, kept, strict=True))
            if storages != problem.option(block, 0).kept
        }
        with part_of(f"plan {len(self._judged) + 1}"):
            trace = self.planned_trace(decisions)
        self._judged[kept] = self.estimate(trace)
        tell("solving")
        return self.verdict(self._judged[kept])

    def planned_trace(self, decisions: Mapping[str, BlockDecision]) -> Trace:
        """The step with these decisions applied to its model, on the ghost GPU."""

        def planned_model() -> Any:
            model = place_model(self.step.model)
            apply_decisions(model, decisions, strict=True)
            return model

        return trace_step(replace(self.step, model=planned_model), self.gpu)

    def verdict(self, estimate: Estimate) -> Verdict:
        """An estimate as the search sees it: the peak that the budget binds, and the time."""
        peak_bytes = estimate.peak_reserved_bytes if self.memory == "reserved" else estimate.peak_allocated_bytes
        return Verdict(peak_bytes, round(estimate.step_time_ms * 1e6))

    def _graph(self, program: BlockProgram, resident: Collection[int]) -> BlockGraph:
        time_ns, hidden_ns = self._recompute_ns(program)
        return build_graph(program, time_ns, resident, hidden_ns)

    def _recompute_ns(self, program: BlockProgram) -> tuple[list[int], int]:
        """What each op adds to the step when it is replayed: its kernels, or where the GPU waits for the CPU, more; and
        how much of a replay hides behind communication."""
        costs = price_with(program.ops, self.pricing)
        gpu_ns = [cost.time_ns and cost.time_ns + KERNEL_GAP_NS for cost in costs]
        trace, time = self.base[0], self.base[1].time
        if time is None or not time.launch_bound:
            blocks = [name for name, other in self.programs if other is program]
            return gpu_ns, hidden_behind_communication_ns(trace, self.pricing, blocks, sum(gpu_ns))
        host_ns = issue_times_ns(program.ops, [cost.kernels for cost in costs], self.pricing.profile.host)
        return [max(pair) for pair in zip(gpu_ns, host_ns, strict=True)], 0

    @cached_property
    def pricing(self) -> Pricing:
        measured = None if self.profile is None else load_profile(self.profile)
        return replace(pricing_for(self.gpu, measured), network=network_of_step(self.step, self.gpu))

    def estimate(self, trace: Trace) -> Estimate:
        """Memory and time of a traced step."""
        estimate = estimate_trace(trace, self.gpu, self.allocator)
        return replace(estimate, parallelism=self.step.parallelism, time=time_step(trace, self.pricing))

    @cached_property
    def fingerprint(self) -> tuple[str, ...]:
        import torch

        if isinstance(self.step.model, torch.nn.Module):
            return fingerprint(self.step.model)
        with torch.device("meta"):
            return fingerprint(self.step.model())

    def _rows(self, found: Found, budget_bytes: int) -> tuple[Row, ...]:
        """The plan beside what people do without one; greedy gets the allocated bytes that the plan has."""
        rows: list[tuple[str, Verdict]] = [("nothing recomputed", self.search.base), *self._checkpointed]
        if self._checkpointed:
            steps = greedy(self.problem, found.choice.peak_bytes)
            if steps is not None:
                rows.append(("greedy", self.written(self.ways(steps))))
        rows.append(("plan", found.verdict))
        return tuple(
            Row(
                name=name,
                peak_bytes=row.peak_bytes,
                step_ns=row.step_ns,
                fits=row.peak_bytes <= budget_bytes,
            )
            for name, row in rows
        )

    @cached_property
    def _checkpointed(self) -> list[tuple[str, Verdict]]:
        """Checkpointing by layers, which is the same for every budget; nothing where that cannot be written."""
        blocks = tuple(dict.fromkeys(self._base_memory.blocks))  # one that is called several times is one
        if not blocks or not all(map(self.planned_traces.knows, blocks)):
            return []
        ways = ((1, "every layer checkpointed"), (2, "every second layer"))
        return [(name, self.written(dict.fromkeys(blocks[::n], CHECKPOINTED))) for n, name in ways]

    def written(self, ways: Mapping[str, Way]) -> Verdict:
        """What the step takes by the trace that is written without running it."""
        peaks, step_ns = self.sketches.peaks(ways), steady_step_ns(self.planned_traces.of(ways), self.pricing)
        return Verdict(peaks.reserved_bytes if self.memory == "reserved" else peaks.allocated_bytes, step_ns)

    def decisions(self, choice: Choice) -> tuple[Decision, ...]:
        """Equal blocks that keep the same in one decision; blocks that keep everything are left out."""
        problem, by_name = choice.problem, dict(self.programs)
        groups: dict[tuple[int, int], list[str]] = {}
        for block, index in enumerate(choice.options):
            if problem.option(block, index).replayed:
                groups.setdefault((problem.class_of[block], index), []).append(problem.memory.blocks[block])
        return tuple(
            Decision(
                blocks=tuple(dict.fromkeys(blocks)),  # one that is called several times is one
                summary=summarize(by_name[blocks[0]], problem.graphs[class_index], option),
                kept_bytes=option.kept_bytes,
                recompute_ns=option.replay_ns,
                structure=structure_of(by_name[blocks[0]]),
                kept=option.kept,
                rerun=option.is_rerun,
            )
            for (class_index, index), blocks in groups.items()
            for option in (problem.menus[class_index][index],)
        )


def _menu(program: BlockProgram, graph: BlockGraph) -> tuple[Option, ...]:
    """The frontier, and last the block checkpointed, unless running it again would do more than compute."""
    there_before = {ref.storage for ref in (*program.inputs, *(ref for _, ref in program.parameters))}
    does_more = (
        any("batch_norm" in op.name for op in program.ops)
        or any("c10d" in program.ops[op].name for op in program.opaque)
        or any(
            not there_before.isdisjoint(written) for op, written in program.writes if _is_known_to_write(program, op)
        )
    )
    num_ops = max(program.saved_after, default=0)
    return frontier(graph) if does_more or not num_ops else (*frontier(graph), rerun(graph, num_ops))


def _is_known_to_write(program: BlockProgram, op: int) -> bool:
    """Of a Triton kernel nobody knows what it writes; one that changes its input must tell autograd so."""
    return not program.ops[op].name.startswith("triton.")


def describe_batch(batch: Mapping[str, Any] | tuple[Any, ...]) -> tuple[str, ...]:
    """The tensors of a batch in words: "input_ids int64[1, 8192]"."""
    items = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
    return tuple(
        f"{name} {str(value.dtype).removeprefix('torch.')}{list(value.shape)}" if hasattr(value, "dtype") else str(name)
        for name, value in items
    )
