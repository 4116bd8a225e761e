"""The two tasks of a sweep, wherever they run: trace a family, solve a group. Pure functions of what can be sent.

Neither raises for what a step does wrong: that is a `Failure`, which becomes the row of each configuration it hits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from trainfit.errors import BadStep, InfeasibleBudget
from trainfit.gpus.catalogue import find_gpu
from trainfit.step import FSDP, Step
from trainfit.sweeps.grid import AUTO, Configuration, Family, Group
from trainfit.sweeps.results import DOES_NOT_FIT, Failure, SweepResult, failed, failure_of

if TYPE_CHECKING:
    from trainfit._plan import Planner, TracedStep


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a sweep need."""

    make_step: Callable[..., Step]
    memory: Literal["reserved", "allocated"]
    allocator: Literal["classic", "expandable"]


def trace_family(job: Job, family: Family, gpu: str) -> TracedStep | Failure:
    """The trace that the family shares; `gpu` is any of its GPUs."""
    from trainfit._plan import trace_for_plans

    try:
        _one_thread()
        return trace_for_plans(step_of(job, family), find_gpu(gpu))
    except (Exception, SystemExit) as error:
        return failure_of(error)


def solve_group(job: Job, group: Group, traced: TracedStep | Failure) -> Iterator[SweepResult]:
    """The best plan for each configuration of the group, as they are found."""
    planner = traced if isinstance(traced, Failure) else _planner(job, group, traced)
    for configuration in group.configurations:
        if isinstance(planner, Failure):
            yield failed(configuration, planner)
        else:
            yield _best_plan(planner, configuration)


def _planner(job: Job, group: Group, traced: TracedStep) -> Planner | Failure:
    from trainfit._plan import Planner, TracedStep

    try:
        _one_thread()
        gpu = find_gpu(group.gpu)
        own = TracedStep(replace(traced.trace, gpu=gpu.name), traced.programs)
        return Planner(step_of(job, group.family), gpu, job.memory, job.allocator, own)
    except (Exception, SystemExit) as error:
        return failure_of(error)


def _best_plan(planner: Planner, configuration: Configuration) -> SweepResult:
    from trainfit._estimate import work_of_step

    try:
        plan = planner.plan(None if configuration.budget == AUTO else configuration.budget)
    except InfeasibleBudget as error:
        return SweepResult(
            configuration=configuration,
            status=DOES_NOT_FIT,
            minimum_budget_bytes=error.minimum_bytes,
            error=error.message,
            hint=error.hint,
        )
    except (Exception, SystemExit) as error:
        return failed(configuration, failure_of(error))
    samples, tokens = work_of_step(planner.step)
    steps_per_second = 1e9 / plan.predicted_step_ns
    return SweepResult(
        configuration=configuration,
        status=plan.status,
        # The step is that of one rank, which is one GPU.
        tokens_per_second_per_gpu=None if tokens is None else tokens * steps_per_second,
        samples_per_second_per_gpu=None if samples is None else samples * steps_per_second,
        step_time_ns=plan.predicted_step_ns,
        unplanned_step_time_ns=plan.rows[0].step_ns,
        peak_allocated_bytes=plan.predicted.peak_allocated_bytes,
        peak_reserved_bytes=plan.predicted.peak_reserved_bytes,
        budget_bytes=plan.budget_bytes,
        plan_json=json.dumps(json.loads(plan.to_json())),
    )


def step_of(job: Job, family: Family) -> Step:
    """The step of the family, spread over as many GPUs as it says."""
    step = job.make_step(**dict(family.arguments))
    if not isinstance(step, Step):
        raise BadStep(
            f"the function that makes the step returned a {type(step).__name__}",
            hint="end it with return trainfit.Step(model=..., batch=...)",
        )
    if family.world_size is None:
        return step
    if family.world_size == 1:
        return replace(step, fsdp=None, ddp=None)
    if step.ddp is not None:
        return replace(step, ddp=replace(step.ddp, world_size=family.world_size))
    fsdp = FSDP(world_size=family.world_size) if step.fsdp is None else step.fsdp
    return replace(step, fsdp=replace(fsdp, world_size=family.world_size))


def _one_thread() -> None:
    """Tasks run side by side, one per core."""
    import torch

    torch.set_num_threads(1)
