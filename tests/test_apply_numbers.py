"""Arguments that a block does not use change nothing that a plan says about it."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from trainfit.apply import apply_decisions, structure_of
from trainfit.apply.numbers import renumberings
from trainfit.apply.record import LiveCall, Recording, record_block
from trainfit.records import BlockDecision, BlockProgram, Op, Phase, TensorRef


def ref(storage: int) -> TensorRef:
    return TensorRef(storage, "float32", (2,), (1,), 0)


def recording(inputs: tuple[int, ...], weight: int, made: int) -> Recording:
    """made = [last input] * weight."""
    arguments = ([ref(inputs[-1])], ref(weight))
    program = BlockProgram(
        ops=(Op("aten.mul.Tensor", Phase.FORWARD, "", (tuple(arguments[0]), ref(weight)), (), (ref(made),)),),
        storage_bytes=tuple(10 + storage for storage in range(made + 1)),
        inputs=tuple(ref(storage) for storage in inputs),
        parameters=(("weight", ref(weight)),),
        saved=(ref(weight),),
        outputs=(ref(made),),
        submodule_outputs=(("inner", made),),
        writes=((0, (made,)),),
        freed_after=tuple(range(made + 1)),
    )
    return Recording(program, (LiveCall(None, arguments, {"out": ref(made)}),))


def test_a_recording_that_uses_its_inputs_has_no_other_numbers() -> None:
    assert list(renumberings(recording(inputs=(0,), weight=1, made=2))) == []


def test_an_input_that_nothing_uses_can_be_numbered_last() -> None:
    (moved,) = renumberings(recording(inputs=(0, 1), weight=2, made=3))
    program = moved.program
    assert program.inputs == (ref(3), ref(0))
    assert program.parameters == (("weight", ref(1)),)
    assert program.ops[0].args == ((ref(0),), ref(1))
    assert (program.saved, program.outputs) == ((ref(1),), (ref(2),))
    assert (program.submodule_outputs, program.writes) == ((("inner", 2),), ((0, (2,)),))
    assert (program.storage_bytes, program.freed_after) == ((11, 12, 13, 10), (1, 2, 3, 0))
    assert moved.calls == (LiveCall(None, ([ref(0)], ref(1)), {"out": ref(2)}),)
    assert structure_of(program) == structure_of(recording(inputs=(0,), weight=1, made=2).program)


def test_each_choice_of_ignored_inputs_is_offered() -> None:
    moved = renumberings(recording(inputs=(0, 1, 2), weight=3, made=4))
    assert [tuple(ref.storage for ref in each.program.inputs) for each in moved] == [(3, 4, 0), (4, 0, 1), (0, 4, 1)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, position: torch.Tensor, **passed_by: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def test_a_planned_block_replays_though_it_is_passed_one_tensor_more() -> None:
    model = nn.Sequential(Block())
    x, position = torch.ones(2, 4, requires_grad=True), torch.arange(2)
    program = record_block(model[0], (x, position), {})
    handle = apply_decisions(model, {"0": BlockDecision(kept=(), structure=structure_of(program))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model[0](x, position, num_items=torch.tensor(7)).sum().backward()
    (stats,) = handle.stats()
    assert (stats.replays, stats.reruns) == (1, 0)
    handle.remove()
    planned = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model[0](x, position).sum().backward()
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), planned, strict=True))
