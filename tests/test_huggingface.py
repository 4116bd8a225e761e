"""A Trainer follows a plan from when it has its model until training ends."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import trainfit
from trainfit._plan_record import Plan
from trainfit.apply import apply_decisions, find_blocks
from trainfit.errors import BadPlan, UsageError
from trainfit.huggingface import PlanCallback
from trainfit.records import BlockDecision
from trainfit.units import format_bytes


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)).exp())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


@pytest.fixture(scope="module")
def plan() -> Plan:
    step = trainfit.Step(model=Model, batch=(torch.ones(4096, 64),))
    smallest = trainfit.plan(step, "h200", budget="min", memory="allocated")
    assert smallest.decisions, format_bytes(smallest.budget_bytes)
    return smallest


ON, OFF = SimpleNamespace(gradient_checkpointing=True), SimpleNamespace(gradient_checkpointing=False)


def test_the_plan_is_on_from_the_trainers_start_to_the_end_of_training(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    callback = PlanCallback(tmp_path / "plan.json")
    model = Model()
    callback.on_init_end(OFF, None, None, model=model)
    callback.on_train_begin(OFF, None, None, model=model)
    assert callback.handle is not None
    planned = {stats.name for stats in callback.handle.stats()}
    assert planned == set(plan.block_decisions())
    assert all(type(model.get_submodule(name)) is not Block for name in planned)
    callback.on_train_end(OFF, None, None, model=model)
    assert all(type(layer) is Block for layer in model.layers)


def test_gradient_checkpointing_must_be_off(plan: Plan) -> None:
    with pytest.raises(UsageError, match="gradient_checkpointing is on"):
        PlanCallback(plan).on_init_end(ON, None, None, model=Model())


def test_a_callback_that_came_too_late_says_so(plan: Plan) -> None:
    with pytest.raises(UsageError, match="after the Trainer was made"):
        PlanCallback(plan).on_train_begin(OFF, None, None, model=Model())


def test_another_model_is_refused(plan: Plan) -> None:
    model: Any = Model()
    model.layers.append(Block())
    with pytest.raises(BadPlan, match="another model"):
        PlanCallback(plan).on_init_end(OFF, None, None, model=model)


def test_a_model_that_fills_a_cache_has_the_same_gradients_and_cache() -> None:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=64, use_cache=True
    )
    torch.manual_seed(0)
    plain = LlamaForCausalLM(config).train()
    planned = copy.deepcopy(plain)
    handle = apply_decisions(planned, dict.fromkeys(find_blocks(planned), BlockDecision(())), strict=True)
    tokens = torch.arange(32).view(2, 16)
    keys = []
    for model in (plain, planned):
        out = model(input_ids=tokens, labels=tokens)
        out.loss.backward()
        keys.append(out.past_key_values.layers[1].keys)
    assert torch.equal(*keys)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), planned.parameters(), strict=True))
    assert [(stats.replays, stats.reruns) for stats in handle.stats()] == [(1, 0), (1, 0)]
