"""A decision for a block that runs with other kernels than those it was made for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainfit.apply import carry_decision, record_blocks, structure_of
from trainfit.errors import PlanMismatch
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import BlockDecision, BlockProgram, Op, Phase, TensorRef
from trainfit.step import Step


def ref(storage: int) -> TensorRef:
    return TensorRef(storage, "float32", (4,), (1,), 0)


def program(attention: str, made: list[int], last: int) -> BlockProgram:
    """x 0, weight 1: h 2 = x @ w, attention of h makes `made`, and exp of its first output makes `last`."""
    ops = (("mm", [0, 1], [2]), (attention, [2], made), ("exp", [made[0]], [last]))
    return BlockProgram(
        ops=tuple(
            Op(f"aten.{name}", Phase.FORWARD, "", tuple(map(ref, reads)), (), tuple(map(ref, makes)))
            for name, reads, makes in ops
        ),
        storage_bytes=(16,) * (last + 1),
        inputs=(ref(0),),
        parameters=(("w", ref(1)),),
        saved=(ref(0), ref(1), ref(2), *map(ref, made[:3]), ref(last)),
        outputs=(ref(last),),
        submodule_outputs=(),
    )


CUDNN = program("cudnn", [3, 4], 5)
FLASH = program("flash", [3, 4, 5, 6], 7)  # the sixth is saved by nobody


def test_a_kept_storage_is_the_one_that_the_same_op_makes() -> None:
    assert carry_decision(BlockDecision((2, 5)), CUDNN, FLASH) == BlockDecision((2, 7), structure_of(FLASH))


def test_of_an_op_that_has_changed_everything_is_kept_that_can_be_held() -> None:
    assert carry_decision(BlockDecision((3,)), CUDNN, FLASH).kept == (3, 4, 5)
    assert carry_decision(BlockDecision(()), CUDNN, FLASH).kept == ()


def test_the_same_kernels_leave_the_decision_as_it_is() -> None:
    decision = BlockDecision((2, 4), structure_of(CUDNN))
    assert carry_decision(decision, CUDNN, CUDNN) == decision


def test_a_block_that_runs_again_as_a_whole_still_does() -> None:
    decision = BlockDecision((), structure_of(CUDNN), rerun=True)
    assert carry_decision(decision, CUDNN, FLASH) == BlockDecision((), structure_of(FLASH), rerun=True)


def test_programs_whose_ops_do_not_pair_up_are_refused() -> None:
    with pytest.raises(PlanMismatch, match="has 2 ops, the plan's has 3"):
        carry_decision(BlockDecision(()), CUDNN, replace(FLASH, ops=FLASH.ops[:2]))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4).unbind(0)
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def test_deterministic_settings_change_the_attention_kernel_and_nothing_else() -> None:
    step = Step(
        model=lambda: nn.Sequential(Attention(), Attention()),
        batch=(torch.ones(2, 8, 64, dtype=torch.bfloat16),),
        loss=lambda out: out.float().sum(),
    )
    before = dict(record_blocks(step, find_gpu("h200")))["0"]
    torch.use_deterministic_algorithms(True)
    try:
        now = dict(record_blocks(step, find_gpu("h200")))["0"]
    finally:
        torch.use_deterministic_algorithms(False)
    changed = [(a.name, b.name) for a, b in zip(before.ops, now.ops, strict=True) if a.name != b.name]
    assert changed == [
        ("aten._scaled_dot_product_cudnn_attention.default", "aten._scaled_dot_product_flash_attention.default")
    ]
    attention = next(op for op in before.ops if "attention" in op.name)
    kept = carry_decision(BlockDecision((attention.outputs[0].storage,)), before, now).kept
    made = [ref.storage for op in now.ops if "attention" in op.name for ref in op.outputs]
    assert kept == tuple(storage for storage in made if storage in {ref.storage for ref in now.saved})
    assert len(kept) >= 2  # the result and its log-sum-exp
