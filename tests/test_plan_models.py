"""Plans of models of many shapes: what must hold for every one of them, asked of planners that share no search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import trainfit
from test_plan import Block
from trainfit._plan import Planner, trace_for_plans
from trainfit.gpus.catalogue import find_gpu

WIDTH = 64
H200 = find_gpu("h200")


class CrossBlock(nn.Module):
    """Attends from one sequence to another."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        key, value = self.kv(memory).chunk(2, dim=-1)
        weights = torch.softmax(self.q(x) @ key.transpose(-1, -2), dim=-1)
        return x + self.out(nn.functional.gelu(weights @ value))


class EncoderDecoder(nn.Module):
    """Two classes; every decoder block reads the last encoder block's output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Block(WIDTH, 0.1) for _ in range(3))
        self.decoder = nn.ModuleList(CrossBlock() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(-1, 64, WIDTH)
        memory, y = x, x.flip(1)
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            y = block(y, memory)
        return y.sum()


class Convolutions(nn.Module):
    """Batch norms keep running statistics, which a replay must not touch; activations are in place."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.1))
                for _ in range(5)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x.view(-1, 8, 16, 16)).square().sum()


class OneBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(WIDTH, 0.0)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[0](x).square().sum()


class NothingRepeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Block(WIDTH, 0.0)
        self.two = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x)).square().sum()


class Nested(nn.Module):
    """Stacks in the blocks of a stack: the outer ones are planned."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(Block(WIDTH, 0.0), Block(WIDTH, 0.0)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        return x.sum()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grads[0]


class OpaqueBlock(nn.Module):
    """A custom function in the middle cannot be replayed; what comes before it can."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(Cube.apply(nn.functional.gelu(self.up(x))))


class Opaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(OpaqueBlock() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


class GatedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class GatedMlps(nn.Module):
    """Sixteen gated MLPs: the case in which torch.compile's activation_memory_budget has its highest peak at its
    lowest budget (pytorch#197838)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GatedBlock() for _ in range(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    blocks: int

    def step(self, rows: int) -> trainfit.Step:
        return trainfit.Step(model=self.model, batch=(torch.empty(rows, WIDTH, device="meta"),))


CASES = {
    "encoder-decoder": Case(EncoderDecoder, 6),
    "convolutions": Case(Convolutions, 5),
    "one block": Case(OneBlock, 1),
    "nothing repeated": Case(NothingRepeated, 2),
    "nested": Case(Nested, 3),
    "opaque": Case(Opaque, 4),
    "gated MLPs": Case(GatedMlps, 16),
}


@pytest.mark.parametrize("memory", ["allocated", "reserved"])
@pytest.mark.parametrize("name", CASES)
def test_a_larger_budget_never_costs_time_and_none_is_exceeded(name: str, memory: Any) -> None:
    step = CASES[name].step(2**17)
    traced = trace_for_plans(step, H200)

    def asked_alone(budget: str) -> trainfit.Plan:
        return Planner(step, H200, memory, "classic", traced).plan(budget)

    smallest = asked_alone("min")
    assert len(smallest.rows) == 5
    low, high = smallest.budget_bytes, smallest.rows[0].peak_bytes
    assert low < high or name == "one block"  # of which nothing that is dropped is not needed at once
    assert low <= smallest.rows[1].peak_bytes  # every layer checkpointed
    times = [smallest.predicted_step_ns]
    for third in range(1, 4):
        budget_bytes = low + (high - low) * third // 3
        made = asked_alone(f"{budget_bytes}B")
        peaks = {"allocated": made.predicted.peak_allocated_bytes, "reserved": made.predicted.peak_reserved_bytes}
        assert peaks[memory] <= budget_bytes
        times.append(made.predicted_step_ns)
    assert times == sorted(times, reverse=True)
    assert times[-1] == smallest.rows[0].step_ns


class CountingBlock(OpaqueBlock):
    """Counts its calls in a buffer: running it again would count one more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize(("block", "may_run_again"), [(OpaqueBlock, True), (CountingBlock, False)])
def test_a_block_that_changes_what_was_there_before_is_not_run_again(
    block: Callable[[], nn.Module], may_run_again: bool
) -> None:
    step = trainfit.Step(
        model=lambda: nn.Sequential(*(block() for _ in range(4))), batch=(torch.ones(4096, WIDTH),), loss=torch.sum
    )
    planned = trainfit.plan(step, "h200", budget="min", memory="allocated")
    assert any(decision.rerun for decision in planned.block_decisions().values()) == may_run_again
