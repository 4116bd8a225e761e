"""A planned block inside a planned block: each packs and replays its own."""

from __future__ import annotations

import copy

import torch
from torch import nn

from apply_blocks import NOTHING
from apply_zoo import assert_same, mlp_block, plan
from trainfit.apply import record_block
from trainfit.records import BlockDecision

X = torch.linspace(-1, 1, 120).view(3, 5, 8)


def step(model: nn.Module) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(3)
    model.zero_grad()
    model(X).square().sum().backward()
    return tuple(p.grad.clone() for p in model.parameters() if p.grad is not None)


DECISIONS = {"1": NOTHING, "1.0": NOTHING, "1.0.3": NOTHING, "1.2": NOTHING}


def nested_model() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3), nn.Sequential(nn.Linear(8, 8), nn.GELU()))
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(inner, nn.Sigmoid(), mlp_block(), nn.SiLU()))


def test_each_replays_its_own_and_gradients_are_bit_identical() -> None:
    model = nested_model()
    expected = step(copy.deepcopy(model))
    handle = plan(model, DECISIONS)
    for _ in range(2):
        assert_same(expected, step(model))
    assert [(stats.name, stats.replays, stats.reruns) for stats in handle.stats()] == [
        ("1", 2, 0), ("1.0", 2, 0), ("1.0.3", 2, 0), ("1.2", 2, 0),
    ]  # fmt: skip


def test_what_the_inner_one_saves_is_no_part_of_the_outer_ones_program() -> None:
    model, x = nested_model(), torch.ones(3, 8, requires_grad=True)
    alone = record_block(model[1], (x,), {})
    plan(model, {"1.2": NOTHING})
    assert len(record_block(model[1], (x,), {}).saved) == len(alone.saved) - len(
        record_block(model[1][2], (x,), {}).saved
    )


def test_what_the_outer_one_holds_of_the_inner_ones_submodules_is_of_the_real_step() -> None:
    """The inner one is recorded in the middle of the outer one's forward, when hooks of the outer one are on it."""
    model = nested_model()
    expected = step(copy.deepcopy(model))
    plan(model, {"1.0": NOTHING})
    program = record_block(model[1], (torch.ones(3, 5, 8, requires_grad=True),), {})
    saved = {ref.storage for ref in program.saved}
    kept = [storage for name, storage in program.submodule_outputs if name == "0.0"]
    assert len(kept) == 1
    assert saved.isdisjoint(kept)
    plan(model, {"1": BlockDecision(tuple(kept))})
    for _ in range(2):
        assert_same(expected, step(model))


def test_an_inner_plan_that_is_removed_leaves_the_outer_one_right() -> None:
    model = nested_model()
    expected = step(copy.deepcopy(model))
    outer, inner = plan(model, {"1": NOTHING}), plan(model, {"1.2": NOTHING})
    assert_same(expected, step(model))
    inner.remove()
    assert_same(expected, step(model))
    assert [(stats.replays, stats.reruns) for stats in outer.stats()] == [(2, 0)]


def test_an_inner_block_in_eval_mode_leaves_its_saves_to_the_outer_one() -> None:
    model = nested_model()
    model[1][2].eval()
    expected = step(copy.deepcopy(model))
    handle = plan(model, DECISIONS)
    assert_same(expected, step(model))
    assert [stats.replays for stats in handle.stats()] == [1, 1, 1, 0]
