"""The replay as one function: what is written, and that it is the ops themselves."""

from __future__ import annotations

import re

import pytest
import torch

from apply_blocks import NOTHING, Function, X
from trainfit.apply.compiled import Compiled, compile_plan
from trainfit.apply.record import record
from trainfit.apply.replay import plan_replay
from trainfit.errors import PlanMismatch


def compiled(function: object) -> Compiled:
    block = Function(function)  # type: ignore[arg-type]
    recording = record(block, Function, (X.clone().requires_grad_(),), {})
    return compile_plan(recording, plan_replay(recording.program, NOTHING))


def no_restore(save: int) -> None:
    raise AssertionError(f"nothing is random here, and the state at save {save} is asked for")


def test_a_line_per_op_and_what_is_not_read_again_is_deleted() -> None:
    replay = compiled(lambda x: (x * 2).t().exp().sin()).replay
    # x 0, product 1, exp 2 of its transpose; sin saves exp(x), and is not needed itself
    text = re.sub(r"\b([cfg])\d+", r"\1", replay.__doc__ or "")
    assert text == "\n    ".join([
        "def replay(at_hand, device, restore):",
        "v0 = at_hand.pop(0)",
        "v1 = f(v0, c)",
        "check(v1, g)",
        "del v0",
        "v2 = f(as_strided(v1, (4, 3), (1, 4), v1.storage_offset()))",
        "del v1",
        "return {2: v2}",
    ])  # fmt: skip
    rebuilt = replay({0: X}, X.device, no_restore)
    assert torch.equal(rebuilt[2], (X * 2).t().exp())


def test_an_op_that_writes_gives_its_storage_a_new_name() -> None:
    replay = compiled(lambda x: (x * 2).exp_()).replay
    text = replay.__doc__ or ""
    assert [line.strip() for line in text.splitlines()[-3:]] == ["v2 = v1", "del v1", "return {2: v2}"]
    assert torch.equal(replay({0: X}, X.device, no_restore)[2], (X * 2).exp())


def test_a_layout_that_differs_from_the_recorded_one_is_noticed() -> None:
    replay = compiled(lambda x: (x * 2).t().exp().sin()).replay
    with pytest.raises(PlanMismatch, match=r"replaying aten.mul.Tensor gave .*\(1, 3\).*, recorded was .*\(4, 1\)"):
        replay({0: X.t().contiguous().t()}, X.device, no_restore)


def test_nothing_leads_from_the_function_back_to_it() -> None:
    replay = compiled(torch.exp).replay
    assert replay not in replay.__globals__.values()  # type: ignore[attr-defined]
