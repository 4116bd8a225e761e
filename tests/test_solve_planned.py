"""Traces that are written without running the planned model, against the traces of the planned model."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainfit
from test_plan import Shared, Stack, UNet, step_of
from trainfit._plan import Planner, trace_for_plans
from trainfit.apply import record_blocks, structure_of
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import BlockDecision, Phase
from trainfit.simulate import AllocatorMode, simulate_memory
from trainfit.solve import CHECKPOINTED, Choice, PlannedTraces
from trainfit.trace import trace_step
from trainfit.trace.placement import place_model

STEPS = {
    "stack": step_of(Stack),
    "dropout": step_of(functools.partial(Stack, dropout=0.1)),
    "autocast": replace(step_of(functools.partial(Stack, dropout=0.1)), autocast=torch.bfloat16),
    "two micro-batches": replace(step_of(Stack), micro_batches=2),
    "skips": step_of(UNet),
}


def planner(step: trainfit.Step, memory: Any = "allocated", allocator: AllocatorMode = "classic") -> Planner:
    return Planner(step, find_gpu("h200"), memory, allocator)


def any_choice(made: Planner, seed: int) -> Choice:
    """Options of the menus, drawn block by block."""
    draw, problem = random.Random(seed), made.problem
    options = tuple(draw.randrange(len(problem.menus[class_index])) for class_index in problem.class_of)
    return Choice(problem, options, problem.recompute_ns(options))


@pytest.mark.parametrize("name", STEPS)
def test_peaks_of_written_traces_are_those_of_the_planned_model(name: str) -> None:
    allocated = planner(STEPS[name])
    reserved = planner(STEPS[name], "reserved")
    for seed in range(3):
        choice = any_choice(allocated, seed)
        assert any(choice.options)
        allocated.judge(choice)
        judged = allocated._judged[choice.kept()]
        assert allocated.sketch(choice) == judged.peak_allocated_bytes
        assert reserved.sketch(choice) == judged.peak_reserved_bytes


def test_saving_for_a_plan_does_not_interrupt_the_call_that_saves() -> None:
    # nn.Linear issues a view of its weights, what the plan does with what is saved, and the product: one call.
    made = planner(STEPS["stack"])
    kept, structure = made.problem.option(0, 1).kept, structure_of(made.programs[0][1])
    assert kept is not None
    planned = made.planned_trace({made.problem.memory.blocks[0]: BlockDecision(kept, structure, rerun=False)})
    for trace in (made.base[0], planned):
        forward = [op for op in trace.ops if op.phase is Phase.FORWARD]
        assert {op.continues for op in forward if op.name == "aten.addmm.default"} == {True}


@pytest.mark.parametrize("allocator", ["classic", "expandable"])
def test_sketches_are_the_peaks_of_written_traces_and_stop_beyond_a_limit(allocator: AllocatorMode) -> None:
    made = planner(STEPS["autocast"], "reserved", allocator)
    for seed in range(3):
        ways = made.ways(any_choice(made, seed))
        trace = made.planned_traces.of(ways)
        memory = simulate_memory(trace, hidden_memory(made.gpu, trace.torch_version), allocator)
        peaks = made.sketches.peaks(ways)
        assert peaks == (memory.peak_allocated_bytes, memory.peak_reserved_bytes)
        assert made.sketches.reserved_within(ways, peaks.reserved_bytes) == peaks.reserved_bytes
        half = peaks.reserved_bytes // 2
        assert half < made.sketches.reserved_within(ways, half) < peaks.reserved_bytes


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(8, 8, num_layers=2, dropout=0.5) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        return x.square().mean()


@pytest.mark.parametrize("name", [*STEPS, "shared", "sharded", "replicated", "recurrent"])
def test_blocks_are_recorded_in_the_traced_forward_as_in_one_of_their_own(name: str) -> None:
    stack = STEPS["autocast"]
    others = {
        "shared": step_of(Shared),
        "sharded": replace(stack, fsdp=trainfit.FSDP(world_size=2)),
        "replicated": replace(stack, ddp=trainfit.DDP(world_size=2)),
        "recurrent": trainfit.Step(model=Recurrent, batch=(torch.zeros(4, 3, 8),)),
    }
    step, gpu = (STEPS | others)[name], find_gpu("h200")
    traced = trace_for_plans(step, gpu)
    assert traced.trace == trace_step(step, gpu)
    assert traced.programs == record_blocks(step, gpu) != ()


@pytest.mark.parametrize("memory", ["reserved", "allocated"])
def test_a_way_to_run_the_step_takes_what_its_written_trace_is_estimated_to_take(memory: str) -> None:
    made = planner(STEPS["dropout"], memory)
    blocks = made.problem.memory.blocks
    for ways in (dict.fromkeys(blocks, CHECKPOINTED), {blocks[0]: CHECKPOINTED}, made.ways(any_choice(made, 1))):
        assert made.written(ways) == made.verdict(made.estimate(made.planned_traces.of(ways)))


def checkpointed(step: trainfit.Step, names: tuple[str, ...]) -> trainfit.Step:
    def build() -> nn.Module:
        model = place_model(step.model)
        modules = dict(model.named_modules())
        for name in names:
            again = functools.partial(checkpoint, modules[name].forward, use_reentrant=False)
            modules[name].forward = again  # type: ignore[method-assign]
        return model

    return replace(step, model=build)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("n", [1, 2])
def test_checkpointing_is_written_as_torch_does_it(name: str, n: int) -> None:
    step, made = STEPS[name], planner(STEPS[name])
    names = made.problem.memory.blocks[::n]
    traced = made.estimate(trace_step(checkpointed(step, names), made.gpu))
    written = made.estimate(made.planned_traces.of(dict.fromkeys(names, CHECKPOINTED)))
    assert written.peak_allocated_bytes == traced.peak_allocated_bytes
    assert written.peak_reserved_bytes == traced.peak_reserved_bytes
    assert written.step_time_ms == pytest.approx(traced.step_time_ms, rel=0.01)


def test_nothing_chosen_is_the_unplanned_trace() -> None:
    made = planner(STEPS["dropout"])
    trace = made.base[0]
    assert made.planned_traces.of({}) == trace


def test_a_block_that_is_not_found_in_the_trace_is_not_known() -> None:
    made = planner(step_of(Stack))
    trace, programs = made.base[0], dict(made.programs)
    name, program = next(iter(programs.items()))
    other = replace(program, ops=(*program.ops, replace(program.ops[0], name="aten.no_such_op.default")))
    assert PlannedTraces(trace, programs).knows(name)
    assert not PlannedTraces(trace, programs | {name: other}).knows(name)


def test_where_the_executor_does_otherwise_the_judge_has_the_last_word() -> None:
    made = planner(step_of(Shared), "reserved")  # blocks that are called twice
    search = made.search
    low, high = search.smallest().minimum_bytes, search.base.peak_bytes
    found = search.within((low + high) // 2)
    assert found.verdict.peak_bytes <= (low + high) // 2  # type: ignore[union-attr]
