"""Recording on ghosts, and planned models on the ghost GPU: the trace of a planned step is that of the executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainfit.apply import apply_decisions, record, record_block, record_blocks, structure_of
from trainfit.ghost import ghost_gpu
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import BlockDecision, Phase, Trace
from trainfit.step import Step
from trainfit.trace import trace_step

H200 = find_gpu("h200")


class Block(nn.Module):
    """Saves exp(x) twice and sin(exp(x)) once: 4 KiB each."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin().cos()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.dropout = nn.Linear(64, 192), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4).unbind(0)
        return x + self.dropout(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Stack(nn.Module):
    def __init__(self, make: Callable[[], nn.Module], width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width, bias=False)
        self.layers = nn.ModuleList(make() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def step(
    make: Callable[[], nn.Module],
    x: torch.Tensor,
    decisions: Mapping[str, BlockDecision] | None = None,
    autocast: torch.dtype | None = None,
) -> Step:
    def build() -> nn.Module:
        model = Stack(make, x.shape[-1])
        if decisions:
            apply_decisions(model, decisions, strict=True)
        return model

    return Step(model=build, batch=(x,), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), autocast=autocast)


def live_bytes_at_backward(trace: Trace) -> int:
    """Bytes that came in the first forward and are there when backward starts."""
    section = next(s for s in trace.sections if s.name == "micro_batch")
    start = next(i for i in range(section.first_op, section.last_op) if trace.ops[i].phase is not Phase.FORWARD)
    live: dict[int, int] = {}
    for event in section.events:
        if event.op >= start:
            break
        if event.is_alloc:
            live[event.storage] = trace.storages[event.storage].nbytes
        else:
            live.pop(event.storage, None)
    return sum(live.values())


X = torch.zeros(16, 64)  # 4 KiB
ALL = ("layers.0", "layers.1", "layers.2")


def trace_of(kept: tuple[int, ...] | None) -> Trace:
    decisions = None if kept is None else {name: BlockDecision(kept) for name in ALL}
    return trace_step(step(Block, X, decisions), H200)


def test_what_is_alive_when_backward_starts_is_what_the_plan_keeps() -> None:
    # Input 0, exp 1, sin 2, cos 3, each 4 KiB; the loss takes 4 bytes. Autograd saves 1 and 2; a replay that starts
    # from the block's input holds it, which without a plan nobody does.
    program = dict(record_blocks(step(Block, X), H200, names=ALL))["layers.1"]
    assert program.storage_bytes == (4096,) * 4
    assert [ref.storage for ref in program.saved] == [1, 1, 2]
    alive = {kept: live_bytes_at_backward(trace_of(kept)) for kept in (None, (1, 2), (1,), (2,), ())}
    assert alive == {
        None: 3 * 8192 + 4,
        (1, 2): 3 * 8192 + 4,
        (1,): 3 * 4096 + 4,  # exp, from which sin is rebuilt
        (2,): 3 * 8192 + 4,  # sin, and the input from which exp is rebuilt
        (): 3 * 4096 + 4,  # the input
    }


def test_the_trace_of_a_planned_step_shows_the_replay_and_no_recording() -> None:
    plain, planned = trace_of(None), trace_of(())

    def names(trace: Trace, phase: Phase) -> list[str]:
        return [op.name for op in trace.ops if op.phase is phase and "detach" not in op.name]

    assert names(planned, Phase.FORWARD) == names(plain, Phase.FORWARD)
    replay = ["aten.exp.default", "aten.sin.default"] * 3
    assert names(planned, Phase.RECOMPUTE) == replay
    assert names(plain, Phase.RECOMPUTE) == []


def test_blocks_of_a_class_share_one_program() -> None:
    recorded = record_blocks(step(Attention, torch.zeros(2, 16, 64), autocast=torch.bfloat16), H200)
    assert [name for name, _ in recorded] == list(ALL)
    assert len({id(program) for _, program in recorded[1:]}) == 1


def test_kernels_are_those_of_the_target_gpu_and_recording_inside_a_ghost_is_unseen() -> None:
    ops_by_gpu = {}
    for gpu in ("h200", "a100-80gb"):
        recorded = dict(record_blocks(step(Attention, torch.zeros(2, 16, 64), autocast=torch.bfloat16), find_gpu(gpu)))
        names = [op.name.split(".")[1] for op in recorded["layers.0"].ops]
        ops_by_gpu[gpu] = [name for name in names if "attention" in name or "dropout" in name]
    assert ops_by_gpu == {
        "h200": ["_scaled_dot_product_cudnn_attention", "native_dropout"],
        "a100-80gb": ["_scaled_dot_product_flash_attention", "native_dropout"],
    }


def test_the_listener_of_an_outer_ghost_does_not_hear_a_recording() -> None:
    heard: list[str] = []

    def listen(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        heard.append(str(func))

    with ghost_gpu("h200") as mode:
        x = torch.ones(4, 4, device="cuda", requires_grad=True)
        mode.listener = listen
        program = record_block(Block(), (x,), {})
        assert mode.listener is listen
    assert heard == []
    assert [op.name for op in program.ops] == ["aten.exp.default", "aten.sin.default", "aten.cos.default"]


def test_what_a_block_on_the_gpu_draws_on_the_host_is_put_back() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rand(4).to("cuda")

    before = torch.get_rng_state()
    with ghost_gpu("h200"):
        program = record_block(Noise(), (torch.ones(4, 4, device="cuda", requires_grad=True),), {})
    assert torch.equal(torch.get_rng_state(), before)
    assert [program.ops[op].name for op in program.opaque] == ["aten._to_copy.default"]  # nobody can repeat the copy


def test_the_structure_on_the_gpu_is_not_that_on_the_cpu() -> None:
    x = torch.zeros(2, 16, 64, requires_grad=True)
    on_gpu = dict(record_blocks(step(Attention, x), H200))["layers.0"]
    on_cpu = record_block(Attention(), (x,), {})
    assert structure_of(on_gpu) != structure_of(on_cpu)


def test_a_block_of_real_tensors_is_recorded_as_its_gpu_would_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a GPU no ghost context is open; here the CPU's tensors stand for the GPU's."""
    x = torch.zeros(2, 16, 64)
    in_ghost = dict(record_blocks(step(Attention, x), H200))["layers.0"]
    monkeypatch.setattr(record, "_device_of", lambda tensors: torch.device("cuda:0"))
    block = Attention()
    program = record_block(block, (x.clone().requires_grad_() * 1,), {}, gpu=H200)
    assert program == in_ghost
    assert block.qkv.weight.device.type == "cpu"
    assert not torch.cuda.is_available()
