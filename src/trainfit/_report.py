"""Pages and exports of a result: its step is profiled, and the profile becomes a view, a page or a file.

This file composes the stages and has no logic of theirs. A plan that `trainfit.plan` made knows its planner, which has
traced the step; a plan that was read from a file needs the step to be named, and without it the page shows what the
file has and says what it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

import trainfit
from trainfit._estimate import Estimate, with_throughput
from trainfit._plan import Planner, describe_batch
from trainfit._plan_record import Plan
from trainfit._profile import profile_step
from trainfit._verify_record import Verification
from trainfit.apply import structure_of
from trainfit.errors import BadPlan, UsageError
from trainfit.fingerprint import first_difference
from trainfit.gpus.catalogue import find_gpu
from trainfit.progress import part_of, tell
from trainfit.records import BlockProgram, Op, Phase, StepProfile, Trace
from trainfit.report import view
from trainfit.report.plan_text import blocks_in_words
from trainfit.report.strip import BlockClass, BlockValue
from trainfit.solve import Choice, Option, Verdict, evaluate
from trainfit.solve.graph import BlockGraph
from trainfit.step import Step
from trainfit.units import format_bytes

FRONTIER_CHOICES = 13


def estimate_page(estimate: Estimate, *, command: str | None = None) -> view.Page:
    """The page of an estimate; its timeline is there if the estimate was not read from a file."""
    return view.estimate_page(estimate, estimate_profile(estimate), trainfit=trainfit.__version__, command=command)


def estimate_profile(estimate: Estimate) -> StepProfile | None:
    """The estimated step op by op; None if the estimate was read from a file."""
    if estimate.source is None:
        return None
    return profile_step(estimate.source.trace, estimate.source.pricing, estimate.allocator)


def plan_page(
    plan: Plan, planner: Planner | None, *, measured: Verification | None = None, command: str | None = None
) -> view.Page:
    """The page of a plan; everything is on it if there is a planner of the plan's step."""
    if measured is not None:
        _check_measured(plan, measured)
    details = None if planner is None else plan_details(plan, planner)
    return view.plan_page(plan, details, measured=measured, command=command)


def planner_for(plan: Plan, step: Step) -> Planner:
    """A planner of the step that `plan` is for."""
    planner = Planner(step, find_gpu(plan.gpu), plan.memory, plan.allocator)
    difference = first_difference(plan.model, planner.fingerprint)
    if difference is not None:
        raise BadPlan(f"the plan is for another model: {difference}", hint="name the target that it was made for")
    inputs = describe_batch(step.batch)
    if inputs != plan.inputs:
        raise BadPlan(
            f"the plan is for the inputs {', '.join(plan.inputs)}, and the target has {', '.join(inputs)}",
            hint="pass the --batch and --seq that the plan was made with",
        )
    return planner


def plan_profile(plan: Plan, planner: Planner | None) -> StepProfile:
    """The planned step op by op."""
    if planner is None:
        raise UsageError("the plan's file has no ops to export", hint="name the target that the plan was made for")
    return _profile(_planned_trace(plan, planner), plan, planner)


def plan_details(plan: Plan, planner: Planner) -> view.PlanDetails:
    """What is known of the plan beyond its file."""
    trace, estimate = planner.base
    planned = _planned_trace(plan, planner)
    after = planner.estimate(planned)
    _check_predicted(plan, after)
    assert after.time is not None
    after = replace(after, budget_bytes=plan.budget_bytes, time=with_throughput(after.time, planner.step))
    return view.PlanDetails(
        before=view.Side(estimate, profile_step(trace, planner.pricing, plan.allocator)),
        after=view.Side(after, _profile(planned, plan, planner)),
        points=_points(plan, planner),
        classes=_classes(plan, planner),
    )


def load_verification(path: str | Path) -> Verification:
    """What `trainfit verify --json` printed."""
    hint = "name a file with what 'trainfit verify --json' printed"
    try:
        fields: dict[str, Any] = json.loads(Path(path).read_text())
        derived = {"passed", "checks"}
        return msgspec.convert({k: v for k, v in fields.items() if k not in derived}, Verification)
    except (OSError, ValueError, AttributeError, msgspec.ValidationError) as error:
        raise BadPlan(f"{path} is no verification: {error}", hint=hint) from error


def _check_predicted(plan: Plan, found: Estimate) -> None:
    """The model and the batch are the plan's; this is about the rest: the optimizer, autocast, ranks, torch."""
    peaks = [(e.peak_allocated_bytes, e.peak_reserved_bytes) for e in (plan.predicted, found)]
    if peaks[0] != peaks[1]:
        predicted, here = (f"{format_bytes(allocated)} allocated" for allocated, _ in peaks)
        raise BadPlan(
            f"the plan predicts {predicted} on torch {plan.torch}, and the step as named takes {here} on {found.torch}",
            hint="name the target, ranks and torch that the plan was made with, or no target",
        )


def _check_measured(plan: Plan, measured: Verification) -> None:
    predicted = plan.predicted.peak_allocated_bytes, plan.predicted.peak_reserved_bytes, plan.predicted_step_ns
    if predicted != (
        measured.predicted_allocated_bytes,
        measured.predicted_reserved_bytes,
        measured.predicted_step_ns,
    ):
        raise BadPlan(
            "the verification is of another plan: its predictions are not this plan's",
            hint="run 'trainfit verify --json' with this plan",
        )


def _planned_trace(plan: Plan, planner: Planner) -> Trace:
    with part_of("the plan"):
        return planner.planned_trace(plan.block_decisions())


def _profile(planned: Trace, plan: Plan, planner: Planner) -> StepProfile:
    """The planned step op by op; what is replayed has the module of the op that it repeats."""
    profile = profile_step(planned, planner.pricing, plan.allocator)
    programs = dict(planner.programs)
    options = _options(plan, planner).items()
    replayed = {block: [programs[block].ops[op] for op in option.replayed] for block, option in options}
    # Only now: no module is called in a replay, and what the CPU takes depends on which are called.
    return replace(profile, trace=replace(planned, ops=_named_replays(planned.ops, replayed)))


def _named_replays(ops: tuple[Op, ...], replayed: dict[str, list[Op]]) -> tuple[Op, ...]:
    """Replayed ops come in the order of their program, views between them."""
    named: list[Op] = []
    block, pending = "", list[Op]()
    for op in ops:
        owner = _owner(op.module, replayed) if op.phase is Phase.RECOMPUTE else ""
        if owner != block:
            block, pending = owner, list(replayed.get(owner, ()))
        if block and pending and op.name == pending[0].name:
            inner = pending.pop(0).module
            named.append(replace(op, module=f"{block}.{inner}" if inner else block))
        else:
            named.append(replace(op, module=block) if block else op)
    return tuple(named)


def _owner(module: str, blocks: dict[str, list[Op]]) -> str:
    parts = module.split(".")
    paths = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next((path for path in paths if path in blocks), "")


def _graphs(planner: Planner) -> dict[int, tuple[BlockProgram, BlockGraph]]:
    """By class, in the order in which the step comes to them."""
    programs, problem = dict(planner.programs), planner.problem
    a_block = dict(zip(problem.class_of, problem.memory.blocks, strict=True))
    return {number: (programs[name], problem.graphs[number]) for number, name in a_block.items()}


def _points(plan: Plan, planner: Planner) -> tuple[view.FrontierPoint, ...]:
    """The plan, and what none of the others beats of some choices from the smallest peak to recomputing nothing."""
    row = plan.rows[-1]
    mine = view.FrontierPoint(row.peak_bytes, row.step_ns, _in_words(plan.decisions), is_plan=True)
    weigh = _scales(plan, planner)
    points = [mine]
    choices = planner.search.outline(FRONTIER_CHOICES)
    for number, choice in enumerate(choices, start=1):
        tell("simulating the frontier", number, len(choices))
        verdict = weigh(choice)
        words = _in_words(planner.decisions(choice))
        points.append(view.FrontierPoint(verdict.peak_bytes, verdict.step_ns, words, is_plan=False))
    best = [mine]
    for point in sorted(points, key=lambda point: (point.peak_bytes, point.step_ns)):
        is_beaten = any(p.peak_bytes <= point.peak_bytes and p.step_ns <= point.step_ns for p in best)
        if not is_beaten:
            best.append(point)
    return tuple(sorted(best, key=lambda point: point.peak_bytes))


def _scales(plan: Plan, planner: Planner) -> Callable[[Choice], Verdict]:
    """By traces that are written without running the step, if they are right about the plan; else by running it."""
    row = plan.rows[-1]
    if all(map(planner.planned_traces.knows, planner.problem.memory.blocks)):
        written = planner.written(_options(plan, planner))
        if (written.peak_bytes, written.step_ns) == (row.peak_bytes, row.step_ns):
            return lambda choice: planner.written(planner.ways(choice))
    return planner.judge


def _options(plan: Plan, planner: Planner) -> dict[str, Option]:
    """What each planned block keeps and replays."""
    programs, graphs = dict(planner.programs), dict(_graphs(planner).values())
    options = {}
    for block, decision in plan.block_decisions().items():
        option = evaluate(graphs[programs[block]], decision.kept)
        assert option is not None, "the planned step has been run"
        options[block] = option
    return options


def _in_words(decisions: Any) -> tuple[str, ...]:
    lines = (f"{blocks_in_words(decision.blocks)}: {decision.summary}" for decision in decisions)
    return tuple(lines) or ("every block keeps everything",)


def _classes(plan: Plan, planner: Planner) -> tuple[BlockClass, ...]:
    """The blocks by class, each class with its values in the order in which they are made."""
    problem, kept = planner.problem, dict[str, set[int]]()
    for decision in plan.decisions:
        kept.setdefault(decision.structure or "", set()).update(decision.kept)
    classes = []
    for index, (program, graph) in _graphs(planner).items():
        held = kept.get(structure_of(program), set())
        needed = set(graph.needed)
        values = []
        for value, storage in enumerate(graph.storage):
            maker = graph.maker[value]
            if maker is None or not (value in needed or (storage in held and graph.is_keepable[value])):
                continue
            op = program.ops[maker]
            output = _short_name(op) + (f"[{_position(op, storage)}]" if len(op.outputs) > 1 else "")
            nbytes, time_ns = graph.nbytes[value], graph.time_ns[maker]
            values.append(BlockValue(storage, op.module, output, nbytes, time_ns, value in needed))
        blocks = (name for name, number in zip(problem.memory.blocks, problem.class_of, strict=True) if number == index)
        classes.append(BlockClass(tuple(blocks), tuple(values)))
    return tuple(classes)


def _short_name(op: Op) -> str:
    return op.name.removeprefix("aten.").removesuffix(".default")


def _position(op: Op, storage: int) -> int:
    """Which of the op's outputs is the storage; an op that writes into it makes its first."""
    return next((position for position, ref in enumerate(op.outputs) if ref.storage == storage), 0)
