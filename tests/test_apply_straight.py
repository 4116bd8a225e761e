"""The replay as one function: what is written, and that it is the ops themselves."""

from __future__ import annotations

import re

import pytest
import torch

from apply_blocks import NOTHING, Function, X
from trainfit import torch_compat
from trainfit.apply.compiled import Compiled, compile_plan
from trainfit.apply.geometry import geometry_of, has_geometry
from trainfit.apply.packing import Save, write_packing
from trainfit.apply.record import record
from trainfit.apply.replay import plan_replay
from trainfit.errors import PlanMismatch


def compiled(function: object) -> Compiled:
    block = Function(function)  # type: ignore[arg-type]
    recording = record(block, Function, (X.clone().requires_grad_(),), {})
    return compile_plan(recording, plan_replay(recording.program, NOTHING))


def nothing_random(save: int) -> None:
    raise AssertionError(f"nothing is random here, and the state at save {save} is asked for")


def test_a_line_per_op_and_what_is_not_read_again_is_deleted() -> None:
    replay = compiled(lambda x: (x * 2).t().exp().sin()).replay
    # x 0, product 1, exp 2 of its transpose; sin saves exp(x), and is not needed itself
    text = re.sub(r"\b([cfg])\d+", r"\1", replay.__doc__ or "")
    assert text == "\n    ".join([
        "def replay(at_hand, device, go_back):",
        "global is_checked",
        "v0, = at_hand",
        "at_hand.clear()",
        "v1 = f(v0, c)",
        "if not is_checked: check(v1, g)",
        "del v0",
        "v2 = f(as_strided(v1, (4, 3), (1, 4), 0))",
        "del v1",
        "is_checked = True",
        "return {2: v2}",
    ])  # fmt: skip
    rebuilt = replay([X], X.device, nothing_random)
    assert torch.equal(rebuilt[2], (X * 2).t().exp())


def test_an_op_that_writes_gives_its_storage_a_new_name() -> None:
    replay = compiled(lambda x: (x * 2).exp_()).replay
    text = replay.__doc__ or ""
    assert [line.strip() for line in text.splitlines()[-4:]] == [
        "v2 = v1",
        "del v1",
        "is_checked = True",
        "return {2: v2}",
    ]
    assert torch.equal(replay([X], X.device, nothing_random)[2], (X * 2).exp())


def test_a_layout_that_differs_from_the_recorded_one_is_noticed() -> None:
    replay = compiled(lambda x: (x * 2).t().exp().sin()).replay
    with pytest.raises(PlanMismatch, match=r"replaying aten.mul.Tensor gave .*\(1, 3\).*, recorded was .*\(4, 1\)"):
        replay([X.t().contiguous().t()], X.device, nothing_random)


def test_nothing_leads_from_the_function_back_to_it() -> None:
    replay = compiled(torch.exp).replay
    assert replay not in replay.__globals__.values()  # type: ignore[attr-defined]


aten = torch.ops.aten
META = torch.empty(2, 4, 8, 16, device="meta", dtype=torch.bfloat16)


def test_ops_are_called_by_the_functions_of_torch_that_come_down_to_them() -> None:
    assert torch_compat.shorter_way(aten.mul.Tensor, (META, 2.0), {}) == torch.mul
    assert torch_compat.shorter_way(aten.add_.Tensor, (META, META), {}) is torch.Tensor.add_


def test_an_op_that_has_no_function_or_another_one_is_called_itself() -> None:
    assert torch_compat.shorter_way(aten._to_copy.default, (META,), {"dtype": torch.float32}) is None
    assert torch_compat.shorter_way(aten.sum.default, (META, 0), {}) is None  # with these it is another overload


def test_an_op_that_returns_numbers_beside_tensors_is_called_itself() -> None:
    """torch's function for it wraps the numbers in tensors, which shifts its results."""
    op = aten._scaled_dot_product_cudnn_attention.default
    assert torch_compat.shorter_way(op, (META, META, META, None, True, 0.1, True), {"scale": None}) is None


def strided(stride: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(64).as_strided((2, 1, 8), stride)


@pytest.mark.parametrize(("stride", "same"), [((8, 8, 1), True), ((8, 1, 1), True), ((16, 8, 1), False)])
def test_the_stride_of_a_dimension_of_one_element_says_nothing(stride: tuple[int, ...], same: bool) -> None:
    assert has_geometry(strided(stride), geometry_of(strided((8, 8, 1)))) == same


@pytest.mark.parametrize(
    ("stride", "is_whole", "same"),
    [((8, 8, 1), False, True), ((8, 1, 1), True, True), ((8, 1, 1), False, False), ((16, 8, 1), True, False)],
)
def test_a_saved_tensor_may_have_such_strides_where_none_is_cut_from_what_is_rebuilt(
    stride: tuple[int, ...], is_whole: bool, same: bool
) -> None:
    save = Save(geometry_of(strided((8, 8, 1))), value=0, is_dropped=True, is_whole=is_whole)
    packing = write_packing([save], [0])(None, ["mark"], lambda number, tensor: "differs")
    next(packing)
    assert packing.send(strided(stride)) == (("mark", 0) if same else "differs")
