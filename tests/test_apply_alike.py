"""Blocks that are alike are recorded once; a block that differs in anything its program may depend on is not alike."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from trainfit.apply import alike, apply_decisions, blocks, executor
from trainfit.apply.alike import likeness
from trainfit.apply.record import record_block
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import BlockDecision
from trainfit.step import FSDP, Step


@dataclass
class Settings:
    power: int = 2


class Block(nn.Module):
    def __init__(self, width: int = 8, **attributes: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return torch.relu(self.linear(x))


def key(block: nn.Module, *args: Any) -> Any:
    return likeness(block, Block, args or (torch.zeros(2, 8),), {})


def test_layers_with_equal_settings_are_alike() -> None:
    assert key(Block(settings=Settings(), act=torch.relu)) == key(Block(settings=Settings(), act=torch.relu))


def frozen() -> Block:
    block = Block()
    block.linear.weight.requires_grad_(False)
    return block


def tied() -> Block:
    block = Block()
    block.other = block.linear
    return block


def hooked() -> Block:
    block = Block()
    block.linear.register_forward_hook(lambda module, args, output: output * 2)
    return block


@pytest.mark.parametrize(
    "other",
    [
        lambda: Block(settings=Settings(power=3)),
        lambda: Block(layer_number=1),
        lambda: Block(act=torch.tanh),
        lambda: Block(act=lambda x: x),
        lambda: Block(unseen=iter(())),
        lambda: Block().eval(),
        lambda: Block().double(),
        frozen,
        tied,
        hooked,
    ],
)
def test_what_a_program_may_depend_on_makes_a_difference(other: Any) -> None:
    plain = Block(settings=Settings(), act=torch.relu, layer_number=0)
    assert key(plain) == key(Block(settings=Settings(), act=torch.relu, layer_number=0))
    assert key(plain) != key(other())


def test_functions_are_alike_by_their_code_and_what_they_enclose() -> None:
    def scaled(factor: float) -> Any:
        return lambda x: x * factor

    assert key(Block(act=scaled(2.0))) == key(Block(act=scaled(2.0)))
    assert key(Block(act=scaled(2.0))) != key(Block(act=scaled(3.0)))


def test_inputs_differ_by_shape_tie_and_gradient() -> None:
    block, x, y = Block(), torch.zeros(2, 8), torch.zeros(2, 8)
    assert key(block, x, x) == key(block, y, y)
    assert key(block, x, y) != key(block, x, x)
    assert key(block, x) != key(block, torch.zeros(3, 8))
    assert key(block, x) != key(block, torch.zeros(2, 8, requires_grad=True))
    assert key(block, x[:, :4]) != key(block, x[:, 4:])


def test_a_mask_must_be_the_same_tensor_unchanged() -> None:
    block, x, mask = Block(), torch.zeros(2, 8), torch.ones(2, dtype=torch.bool)
    before = key(block, x, mask)
    assert before == key(block, x, mask)
    assert before != key(block, x, torch.ones(2, dtype=torch.bool))
    mask[0] = False
    assert before != key(block, x, mask)


def test_an_objects_value_counts_at_the_moment_of_the_call() -> None:
    shared = Settings()
    before = key(Block(settings=shared))
    shared.power += 1
    assert before != key(Block(settings=shared))


def enclosing(block: Block) -> Any:
    return lambda x: block(x)


def test_no_key_keeps_a_module_alive() -> None:
    block = Block()
    block.act = enclosing(block)
    block.method = block.linear.forward
    kept, gone = key(block), weakref.ref(block.linear)
    del block
    gc.collect()
    assert gone() is None
    assert kept[0] is Block


class Numbered(Block):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x) * 2 if self.number % 2 else super().forward(x)


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    calls: list[Any] = []
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_record_blocks_records_equal_layers_once_and_others_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, blocks, "record_block")
    step = Step(model=lambda: Stack(*(Block() for _ in range(6))), batch=(torch.zeros(2, 8, requires_grad=True),))
    programs = dict(blocks.record_blocks(step, find_gpu("h200")))
    # The first one's input is a leaf of the graph, which the others' are not; the programs turn out equal.
    assert (len(calls), len(programs), len(set(map(id, programs.values())))) == (2, 6, 1)
    step = Step(
        model=lambda: Stack(*(Numbered(number=n) for n in range(4))), batch=(torch.zeros(2, 8, requires_grad=True),)
    )
    calls.clear()
    programs = dict(blocks.record_blocks(step, find_gpu("h200")))
    assert (len(calls), len(set(map(id, programs.values())))) == (4, 2)
    assert [len(program.ops) for program in programs.values()] == [2, 3, 2, 3]


def test_sharded_layers_are_alike_though_each_leads_to_all_that_is_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, blocks, "record_block")
    step = Step(
        model=lambda: Stack(*(Block() for _ in range(6))),
        batch=(torch.zeros(2, 8, requires_grad=True),),
        fsdp=FSDP(world_size=2),
    )
    programs = dict(blocks.record_blocks(step, find_gpu("h200")))
    # The first one's input went through a node of FSDP2, so it is no leaf of the graph.
    assert (len(calls), len(programs), len(set(map(id, programs.values())))) == (1, 6, 1)


def test_equal_planned_layers_share_a_recording_and_gradients_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, executor, "record")
    torch.manual_seed(0)
    layers = [Block(), Block(), Numbered(number=0), Numbered(number=1), Block()]
    model, x = Stack(*layers), torch.randn(2, 8)
    model(x).backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    handle = apply_decisions(model, {f"layers.{n}": BlockDecision(kept=()) for n in range(5)}, strict=True)
    model(x).backward()
    # The first layer's input needs no gradient; the last is like the second.
    assert len(calls) == 4
    assert [stats.replays for stats in handle.stats()] == [1] * 5
    assert all(torch.equal(a, b) for a, b in zip(expected, [p.grad for p in model.parameters()], strict=True))


def test_a_shared_program_is_the_one_that_the_layer_itself_gives() -> None:
    one, other, x = Block(), Block(), torch.zeros(2, 8, requires_grad=True)
    assert alike.likeness(one, Block, (x,), {}) == alike.likeness(other, Block, (x,), {})
    assert record_block(one, (x,), {}) == record_block(other, (x,), {})
