"""Plans on a real GPU: `pytest -m gpu` on a machine that has one; skipped elsewhere."""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainfit
from apply_blocks import around, gradients
from apply_zoo import ZOO, Stack, TransformerBlock, ZooCase, assert_same, holdable, mlp_block
from trainfit._verify import deterministic_kernels
from trainfit.apply import apply_decisions, find_blocks, record_block
from trainfit.ghost.tensor import Ghost
from trainfit.records import BlockDecision, BlockProgram
from trainfit.targets import resolve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
NOTHING = BlockDecision(())
CASES = [name for name in ZOO if name != "gru"]  # cuDNN's RNNs are not deterministic


def on_gpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: on_gpu(item) for key, item in value.items()}
    return tuple(on_gpu(item) for item in value) if isinstance(value, tuple) else value.to("cuda")


def run(case: ZooCase, model: nn.Module) -> tuple[torch.Tensor, ...]:
    """One step: the loss, then gradients and buffers, with the same random numbers every time."""
    torch.manual_seed(1)
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=case.autocast):
        loss = case.loss(model(*on_gpu(case.inputs), **on_gpu(case.kwargs)))
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return (loss.detach(), *gradients, *(b.clone() for b in model.buffers()), torch.rand(1, device="cuda"))


def programs_of(case: ZooCase, model: nn.Module) -> dict[str, BlockProgram]:
    found: dict[str, BlockProgram] = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda module, args, kwargs, name=name: found.update({name: record_block(module, args, kwargs)}),
            with_kwargs=True,
        )
        for name in case.blocks
    ]
    run(case, model)
    for hook in hooks:
        hook.remove()
    return found


@pytest.fixture
def deterministic() -> Iterator[None]:
    with deterministic_kernels():
        yield


def transformer() -> nn.Module:
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Stack(TransformerBlock)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", CASES)
def test_gradients_on_the_gpu_are_bit_identical_whatever_is_kept(name: str) -> None:
    case = ZOO[name]()
    torch.manual_seed(0)
    model = case.build().train().to("cuda")
    expected = run(case, copy.deepcopy(model))
    assert_same(expected, run(case, copy.deepcopy(model)))
    programs = programs_of(case, copy.deepcopy(model))
    for every in (1, 2, 3, 1000):
        planned = copy.deepcopy(model)
        decisions = {name: BlockDecision(tuple(holdable(program)[::every])) for name, program in programs.items()}
        if every == 1000:
            decisions = dict.fromkeys(programs, NOTHING)
        handle = apply_decisions(planned, decisions, strict=True)
        assert_same(expected, run(case, planned))
        assert [stats.reruns for stats in handle.stats()] == [0, 0]


def first_of(value: Any) -> Any:
    return value[:1] if isinstance(value, torch.Tensor) else value


@pytest.mark.usefixtures("deterministic")
@pytest.mark.filterwarnings("ignore:block .* does not do what the plan says")
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_a_batch_of_one_are_bit_identical(name: str) -> None:
    """Kernels set strides of dimensions of one element as they like, ghosts otherwise: a block may be run again."""
    case = ZOO[name]()
    inputs = tuple(map(first_of, case.inputs))
    case = replace(case, inputs=inputs, kwargs={key: first_of(value) for key, value in case.kwargs.items()})
    torch.manual_seed(0)
    model = case.build().train().to("cuda")
    expected = run(case, copy.deepcopy(model))
    handle = apply_decisions(model, dict.fromkeys(case.blocks, NOTHING))
    assert_same(expected, run(case, model))
    assert [stats.replays + stats.reruns for stats in handle.stats()] == [1, 1]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_planned_step_never_waits_for_the_gpu() -> None:
    model = transformer()
    handle = apply_decisions(model, dict.fromkeys(find_blocks(model), NOTHING), strict=True)
    x = torch.randn(3, 5, 8, device="cuda")
    model(x).square().sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(x).square().sum().backward()  # dropout is replayed: the generator's state is taken and put back
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [stats.replays for stats in handle.stats()] == [2, 2]


def test_recording_takes_no_memory_of_the_gpu() -> None:
    model = transformer()
    x = torch.randn(64, 512, 8, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    record_block(model.layers[0], (x,), {})  # type: ignore[index]
    assert torch.cuda.max_memory_allocated() == before


@pytest.mark.parametrize("how", ["backward", "dropped", "error in backward"])
def test_nothing_of_a_step_is_left_on_the_gpu(how: str) -> None:
    model = transformer()
    apply_decisions(model, dict.fromkeys(find_blocks(model), NOTHING), strict=True)
    x = torch.randn(3, 5, 8, device="cuda")

    def fail(grad: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    def step() -> None:
        out = model(x)
        if how == "error in backward":
            model.layers[0].up.weight.register_post_accumulate_grad_hook(fail)  # type: ignore[index,union-attr]
            with pytest.raises(ZeroDivisionError):
                out.square().sum().backward()
            model.layers[0].up.weight._post_accumulate_grad_hooks = None  # type: ignore[index,union-attr]
        elif how == "backward":
            out.square().sum().backward()
        model.zero_grad(set_to_none=True)

    step()
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated()
        step()
        assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()


def test_a_plan_does_on_the_gpu_what_it_said(tmp_path: Path) -> None:
    step, gpu = resolve("gpt2", batch=8, seq=512), torch.cuda.get_device_name()
    estimate = trainfit.estimate(step, gpu)
    middle_bytes = estimate.peak_allocated_bytes - estimate.breakdown_bytes["activations"] // 3
    trainfit.plan(step, gpu, budget=f"{middle_bytes}B", memory="allocated").save(tmp_path / "plan.json")
    # In a process of its own, whose memory nothing else is in.
    command = [sys.executable, "-m", "trainfit", "verify", str(tmp_path / "plan.json"), "gpt2"]
    command += ["--batch", "8", "--seq", "512", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 4), done.stderr[-2000:]
    found = json.loads(done.stdout)
    failed = {check["name"] for check in found["checks"] if not check["passed"]}
    assert failed <= {"step time"}  # so small a step is the CPU's, whose speed no plan knows
    assert found["deterministic"]
    assert found["gradients"]["equal"] == found["gradients"]["count"] == found["noise"]["equal"]


@pytest.mark.usefixtures("deterministic")
def test_a_planned_step_can_be_captured_in_a_cuda_graph() -> None:
    torch.manual_seed(0)
    model = Stack(mlp_block).to("cuda")
    parameters = list(model.parameters())
    x = torch.randn(3, 5, 8, device="cuda")

    def step() -> list[torch.Tensor]:
        return list(torch.autograd.grad(model(x).square().sum(), parameters))

    expected = step()
    handle = apply_decisions(model, dict.fromkeys(find_blocks(model), NOTHING), strict=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for gradient in captured:
        gradient.zero_()
    graph.replay()
    assert_same(tuple(expected), tuple(captured))
    assert [(stats.replays, stats.reruns) for stats in handle.stats()] == [(4, 0), (4, 0)]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_triton_kernel_is_launched_once_and_what_it_writes_is_kept(in_place: bool) -> None:
    kernels = pytest.importorskip("triton_kernels", exc_type=ImportError)
    launches = 0

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            nonlocal launches
            launches += not isinstance(x, Ghost)
            out = x.detach() if in_place else torch.empty_like(x)
            kernels.scale[(1,)](x, out, 3.0, x.numel(), SIZE=256)
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] * ctx.saved_tensors[0]

    x = torch.linspace(-1, 1, 12, device="cuda").view(3, 4)
    model = around(lambda x: Scaled.apply(x + 1).sin().exp()).to("cuda")
    expected = gradients(copy.deepcopy(model), x)
    handle = apply_decisions(model, {"1": NOTHING}, strict=True)
    assert_same(tuple(expected), tuple(gradients(model, x)))
    (stats,) = handle.stats()
    assert (launches, stats.replays, stats.reruns, stats.dropped_bytes) == (2, 1, 0, x.nbytes)


def test_ten_steps_give_the_same_losses_bit_for_bit() -> None:
    def losses(planned: bool) -> list[float]:
        model = transformer()
        if planned:
            apply_decisions(model, dict.fromkeys(find_blocks(model), NOTHING), strict=True)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.linspace(-1, 1, 120, device="cuda").view(3, 5, 8)
        found = []
        for _ in range(10):
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    with deterministic_kernels():
        assert losses(planned=True) == losses(planned=False)
