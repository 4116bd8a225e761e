"""Triton kernels in planned blocks: recorded without being launched, and what they may have written is kept.

A stand-in of the same shape takes Triton's place, whose kernels run on the CPU and write past the dispatcher; where
Triton is installed, kernels of its own are put on a ghost GPU as well. test_gpu.py launches them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

import trainfit
from apply_blocks import NOTHING, X, around, gradients
from apply_zoo import assert_same, plan
from trainfit.apply import record_block
from trainfit.cost import price_ops
from trainfit.ghost import ghost_gpu
from trainfit.gpus.catalogue import find_gpu
from trainfit.trace import trace_step

H200 = find_gpu("h200")


class KernelInterface:
    """As Triton's: what is launched as `kernel[grid](...)`."""

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn, self.launches = fn, 0

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)

    def run(self, *args: Any, grid: Any) -> None:
        assert grid == (1,)
        self.launches += 1
        self.fn(*(arg.detach().numpy() if isinstance(arg, torch.Tensor) else arg for arg in args))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("triton.runtime.jit")
    module.KernelInterface = KernelInterface  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)


def scale(source: Any, target: Any, factor: float) -> None:
    target[:] = source * factor


def through(kernel: KernelInterface, in_place: bool) -> type[torch.autograd.Function]:
    """A function whose forward is the kernel: its input times three, saved for backward."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            out = x.detach() if in_place else torch.empty_like(x)
            kernel[(1,)](x, out, 3.0)
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] * ctx.saved_tensors[0]

    return Scaled


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("in_place", [False, True])
def test_what_a_kernel_writes_is_kept_and_the_rest_is_replayed(in_place: bool) -> None:
    kernel = KernelInterface(scale)
    function: Any = through(kernel, in_place)
    model = around(lambda x: function.apply(x + 1).sin().exp())
    plain = copy.deepcopy(model)
    handle = plan(model, {"1": NOTHING})
    expected = gradients(plain, X)
    assert kernel.launches == 1
    assert_same(tuple(expected), tuple(gradients(model, X)))
    assert kernel.launches == 2  # neither to record the block nor to replay it
    (stats,) = handle.stats()
    assert (stats.replays, stats.reruns) == (1, 0)
    assert stats.dropped_bytes == X.nbytes  # exp; what the kernel wrote, which sin saves too, is kept
    assert stats.replayed_ops == 2  # sin and exp


@pytest.mark.usefixtures("stand_in")
def test_a_launch_is_an_op_that_may_have_written_all_its_tensors() -> None:
    kernel = KernelInterface(scale)
    function: Any = through(kernel, in_place=False)
    block = around(lambda x: function.apply(x + 1).sin())[1]  # type: ignore[index]
    program = record_block(block, (X.clone().requires_grad_(),), {})
    assert [op.name for op in program.ops] == [
        "aten.add.Tensor",
        "aten.empty_strided.default",
        "triton.scale.default",
        "aten.sin.default",
    ]
    shifted, made = program.ops[0].outputs[0].storage, program.ops[1].outputs[0].storage
    assert program.opaque == (1, 2)
    assert program.writes == ((2, (shifted, made)),)


@pytest.mark.usefixtures("stand_in")
def test_a_step_on_a_ghost_has_the_kernel_priced_by_the_bytes_of_its_tensors() -> None:
    kernel = KernelInterface(scale)
    function: Any = through(kernel, in_place=False)
    step = trainfit.Step(model=lambda: around(function.apply), batch=(torch.ones(2**20, 4),), loss=torch.sum)
    trace = trace_step(step, H200)
    assert kernel.launches == 0
    (launch,) = [number for number, op in enumerate(trace.ops) if op.name == "triton.scale.default"]
    assert [trace.storages[ref.storage].nbytes for ref in trace.ops[launch].input_refs()] == [2**24, 2**24]
    cost = price_ops(trace.ops, H200)[launch]
    assert cost.rule == "roofline"
    assert 1 < cost.time_ns * H200.dram_gb_per_s / 2**25 < 1.5


@pytest.mark.usefixtures("stand_in")
def test_a_launch_on_real_tensors_inside_a_ghost_is_done() -> None:
    kernel, source, target = KernelInterface(scale), torch.ones(3), torch.zeros(3)
    with ghost_gpu("h200"):
        kernel[(1,)](source, target, 2.0)
    assert target.tolist() == [2.0, 2.0, 2.0]
    assert KernelInterface.__getitem__.__qualname__ == "KernelInterface.__getitem__"  # as it was


def test_kernels_of_tritons_own_are_not_launched_on_ghosts() -> None:
    kernels = pytest.importorskip("triton_kernels", exc_type=ImportError)
    with ghost_gpu("h200") as mode:
        heard: list[str] = []
        mode.listener = lambda func, args, kwargs, result: heard.append(str(func))
        x = torch.empty(1000, device="cuda")
        kernels.scale[(4,)](x, x, 2.0, 1000, SIZE=256)
        kernels.tuned[(4,)](source=x, target=x, factor=2.0, count=1000)
    assert heard[-2:] == ["triton.scale.default"] * 2
