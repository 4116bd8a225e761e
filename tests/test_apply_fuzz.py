"""Random blocks under random plans: gradients bit-identical, nothing leaked, memory as simulated.

TRAINFIT_FUZZ=500 python -m pytest tests/test_apply_fuzz.py runs as many blocks as the variable says.
"""

from __future__ import annotations

import copy
import gc
import os
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from apply_blocks import NOTHING, Counter
from apply_zoo import Cube, assert_same, holdable, plan
from trainfit.apply import record_block
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import BlockDecision
from trainfit.step import Step
from trainfit.trace import trace_step

NUM_BLOCKS = int(os.environ.get("TRAINFIT_FUZZ", "25"))
WIDTH = 6
Pool = list[torch.Tensor]
Action = Callable[["RandomBlock", Pool, random.Random], torch.Tensor]


def pick(pool: Pool, rng: random.Random) -> torch.Tensor:
    return rng.choice(pool)


def in_place(block: RandomBlock, pool: Pool, rng: random.Random) -> torch.Tensor:
    """A chain of in-place ops on something fresh."""
    fresh = pick(pool, rng) * 0.5
    for _ in range(rng.randint(0, 2)):
        fresh.add_(pick(pool, rng)).mul_(0.5)
    return rng.choice([torch.tanh_, torch.sigmoid_, torch.relu_])(fresh)


def write_slice(block: RandomBlock, pool: Pool, rng: random.Random) -> torch.Tensor:
    target = torch.zeros_like(pick(pool, rng))
    half = WIDTH // 2
    target[:, :half] = pick(pool, rng)[:, half:]
    target[:, half:].add_(pick(pool, rng)[:, :half])
    return target


def views(block: RandomBlock, pool: Pool, rng: random.Random) -> torch.Tensor:
    left, right = pick(pool, rng).chunk(2, dim=1)
    return torch.cat([right.flip(1), left.t().contiguous().t().exp()], dim=1)


def attention(block: RandomBlock, pool: Pool, rng: random.Random) -> torch.Tensor:
    q, k, v = (block.linears[0](pick(pool, rng)).view(1, 2, -1, WIDTH // 2) for _ in range(3))
    return F.scaled_dot_product_attention(q, k, v, is_causal=rng.random() < 0.5).reshape(-1, WIDTH)


def shared_buffer(block: RandomBlock, pool: Pool, rng: random.Random) -> torch.Tensor:
    return pick(pool, rng) * block.scale + torch.rand(WIDTH)


def checkpointed(block: RandomBlock, pool: Pool, rng: random.Random) -> torch.Tensor:
    linear = rng.choice(list(block.linears))
    return checkpoint(lambda t: linear(t).tanh(), pick(pool, rng), use_reentrant=False)


def complex_turn(block: RandomBlock, pool: Pool, rng: random.Random) -> torch.Tensor:
    pairs = torch.view_as_complex((pick(pool, rng) * 1).unflatten(1, (-1, 2)))
    return torch.view_as_real(pairs * pairs).flatten(1).tanh()


SAME_ON_THE_GPU: tuple[Action, ...] = (
    lambda block, pool, rng: rng.choice(list(block.linears))(pick(pool, rng)),
    lambda block, pool, rng: block.norm(pick(pool, rng)),
    lambda block, pool, rng: rng.choice([torch.sin, torch.tanh, F.gelu, F.silu, torch.sigmoid])(pick(pool, rng)),
    lambda block, pool, rng: pick(pool, rng) * pick(pool, rng).cos(),
    lambda block, pool, rng: pick(pool, rng) + pick(pool, rng),
    lambda block, pool, rng: Cube.apply(pick(pool, rng).tanh()),
    lambda block, pool, rng: pick(pool, rng).softmax(dim=rng.choice([0, 1])),
    lambda block, pool, rng: pick(pool, rng).mean(0, keepdim=True).expand(pool[0].shape),
    in_place,
    write_slice,
    views,
    checkpointed,
    complex_turn,
)
ACTIONS: tuple[Action, ...] = (
    *SAME_ON_THE_GPU,
    lambda block, pool, rng: F.dropout(pick(pool, rng), 0.3),
    lambda block, pool, rng: block.nested(pick(pool, rng)),
    attention,
    shared_buffer,
)


class RandomBlock(nn.Module):
    """Does what its seed says, the same in every call; several inputs and outputs."""

    def __init__(self, seed: int, actions: tuple[Action, ...]) -> None:
        super().__init__()
        self.seed = seed
        self.actions = actions
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.nested = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.register_buffer("scale", torch.linspace(0.5, 1, WIDTH))
        if seed % 3 == 0:
            self.linears[1].requires_grad_(False)

    def forward(self, x: torch.Tensor, side: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rng = random.Random(self.seed)
        pool = [x, side]
        for _ in range(rng.randint(4, 14)):
            pool.append(rng.choice(self.actions)(self, pool, rng))
        return pool[-1] + x, pool[rng.randint(2, len(pool) - 1)].tanh()


class Model(nn.Module):
    def __init__(self, seed: int, actions: tuple[Action, ...]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.block = RandomBlock(seed, actions)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x, side = self.block(self.first(x), x)
            x = x.tanh() * side
        return x


def run(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    model.zero_grad()
    out = model(x)
    out.square().sum().backward()
    return (out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None), torch.rand(1))


def candidates(model: Model) -> list[int]:
    """What a decision about the model's block may keep."""
    example = (torch.zeros(4, WIDTH, requires_grad=True), torch.zeros(4, WIDTH))
    return holdable(record_block(model.block, example, {}))


@pytest.mark.parametrize("seed", range(NUM_BLOCKS))
def test_random_blocks_under_random_plans(seed: int) -> None:
    torch.manual_seed(seed)
    model = Model(seed, ACTIONS)
    x = torch.randn(4, WIDTH)
    expected = run(copy.deepcopy(model), x)
    rng = random.Random(seed)
    if seed % 2:
        plan(model, {"block.nested": NOTHING})  # a planned block inside a planned block
    for share in (0.0, 0.3, 0.7):
        kept = tuple(storage for storage in candidates(model) if rng.random() < share)
        handle = plan(model, {"block": BlockDecision(kept)})
        assert_same(expected, run(model, x))
        assert handle.stats()[0].reruns == 0
        assert_nothing_outlives_backward(model, x)
        handle.remove()


def assert_nothing_outlives_backward(model: nn.Module, x: torch.Tensor) -> None:
    made: list[weakref.ref[Any]] = []
    hooks = [
        module.register_forward_hook(lambda module, args, out: made.append(weakref.ref(out.untyped_storage())))
        for module in model.modules()
        if isinstance(module, (nn.Linear, nn.LayerNorm, nn.Dropout))
    ]
    gc.collect()
    gc.disable()
    try:
        run(model, x)
        assert made
        assert all(storage() is None for storage in made)
    finally:
        gc.enable()
        for hook in hooks:
            hook.remove()


def loss_of(out: torch.Tensor) -> torch.Tensor:
    return out.square().sum()


def counted_peak(model: Model, x: torch.Tensor) -> int:
    """The most bytes of a forward and backward, beyond what was there before."""
    loss_of(model(x)).backward()
    model.zero_grad()
    with Counter([*model.parameters(), *model.buffers(), x]) as counter:
        loss = loss_of(model(x))
        loss.backward()
        del loss
    return counter.peak_bytes


def simulated_peak(seed: int, kept: tuple[int, ...], x: torch.Tensor) -> int:
    """The same of the step on a ghost GPU, by the storages of its trace."""

    def build() -> nn.Module:
        model = Model(seed, SAME_ON_THE_GPU)
        plan(model, {"block": BlockDecision(kept)})
        return model

    trace = trace_step(Step(model=build, batch=(x,), loss=loss_of, optimizer=torch.optim.SGD), find_gpu("h200"))
    (section,) = (trace.sections[i] for i in trace.steady_step if trace.sections[i].name == "micro_batch")
    live_bytes = peak_bytes = 0
    for event in section.events:
        live_bytes += trace.storages[event.storage].nbytes * (1 if event.is_alloc else -1)
        peak_bytes = max(peak_bytes, live_bytes)
    return peak_bytes


@pytest.mark.parametrize("seed", range(0, NUM_BLOCKS, 2 if NUM_BLOCKS < 100 else 1))
def test_the_peak_of_random_blocks_is_as_simulated(seed: int, no_collection: None) -> None:
    torch.manual_seed(seed)
    model = Model(seed, SAME_ON_THE_GPU)
    x = torch.randn(4, WIDTH)
    rng = random.Random(seed)
    kept = tuple(storage for storage in candidates(model) if rng.random() < 0.4)
    plan(model, {"block": BlockDecision(kept)})
    assert counted_peak(model, x) == simulated_peak(seed, kept, x)
