"""Shapes that are remembered are those that torch would work out again; optimizers' ops on shards are DTensor's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import trainfit
from trainfit.ghost import dispatch, ghost_gpu
from trainfit.gpus.catalogue import find_gpu
from trainfit.trace import trace_step

aten = torch.ops.aten


def geometry(tensor: torch.Tensor) -> Any:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.untyped_storage().nbytes()


def operands() -> dict[str, torch.Tensor]:
    x = torch.empty(4, 6, device="cuda")
    return {
        "plain": x,
        "other": torch.empty(4, 6, device="cuda"),
        "transposed": torch.empty(6, 4, device="cuda").t(),
        "row": torch.empty(6, device="cuda"),
        "column": torch.empty(4, 1, device="cuda"),
        "expanded": torch.empty(1, 6, device="cuda").expand(4, 6),
        "sliced": torch.empty(4, 12, device="cuda")[:, ::2],
        "half": torch.empty(4, 6, device="cuda", dtype=torch.bfloat16),
        "whole": torch.empty(4, 6, device="cuda", dtype=torch.int64),
        "scalar": torch.empty((), device="cuda"),
    }


def test_results_are_the_same_the_second_time_and_those_of_meta_tensors() -> None:
    with ghost_gpu("h200"):
        first = {(a, b): geometry(x + y) for a, x in operands().items() for b, y in operands().items()}
        again = {(a, b): geometry(x + y) for a, x in operands().items() for b, y in operands().items()}
        shapes = {name: (tuple(x.shape), x.stride(), x.dtype) for name, x in operands().items()}

    def meta(name: str) -> torch.Tensor:
        shape, stride, dtype = shapes[name]
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

    assert first == again
    assert first == {(a, b): geometry(meta(a) + meta(b)) for a, b in first}


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("memory_format", [torch.preserve_format, torch.contiguous_format])
def test_zeros_and_square_roots_are_laid_out_as_torch_does_it(
    memory_format: torch.memory_format, dtype: torch.dtype | None
) -> None:
    with ghost_gpu("h200"):
        shapes = {name: (tuple(x.shape), x.stride(), x.dtype) for name, x in operands().items()}
        zeros = {
            name: geometry(torch.zeros_like(x, memory_format=memory_format, dtype=dtype))
            for name, x in operands().items()
        }
        roots = {name: geometry(torch._foreach_sqrt([x])[0]) for name, x in operands().items() if x.is_floating_point()}
    meta = {
        name: torch.empty_strided(shape, stride, dtype=kind, device="meta")
        for name, (shape, stride, kind) in shapes.items()
    }
    like = {name: torch.zeros_like(x, memory_format=memory_format, dtype=dtype) for name, x in meta.items()}
    assert zeros == {name: geometry(x) for name, x in like.items()}
    assert roots == {name: geometry(torch.sqrt(meta[name])) for name in roots}


def test_random_numbers_come_in_place() -> None:
    with ghost_gpu("h200"):
        x = torch.empty(4, 6, device="cuda").t()
        before = geometry(x)
        assert x.uniform_(-1.0, 1.0) is x
        assert x.normal_(0.0, 2.0) is x
        assert geometry(x) == before


def test_numbers_and_types_are_part_of_what_is_remembered() -> None:
    with ghost_gpu("h200"):
        whole = operands()["whole"]
        for _ in range(2):
            assert torch.clamp(whole, min=1).dtype is torch.int64
            assert torch.clamp(whole, min=1.0).dtype is torch.float32
            assert torch.cat([operands()["half"], operands()["plain"]]).dtype is torch.float32
            assert torch.cat([operands()["half"]] * 2).shape == (8, 6)
            assert torch.cat([operands()["half"]] * 2, dim=1).shape == (4, 12)
        results = []
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            try:
                results.append(torch.sigmoid(whole).dtype)
            finally:
                torch.set_default_dtype(torch.float32)
    assert results == [torch.float32, torch.float64]


def test_what_torch_refuses_is_refused_every_time() -> None:
    with ghost_gpu("h200"):
        x, y = torch.empty(4, 6, device="cuda"), torch.empty(5, device="cuda")
        for _ in range(2):
            with pytest.raises(RuntimeError):
                x + y
            with pytest.raises(RuntimeError):
                torch._foreach_add_([x, x], [x, y])
            with pytest.raises(RuntimeError):
                torch._foreach_add_([x, x], [x])


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.sum()


@pytest.mark.parametrize(
    "optimizer", [torch.optim.AdamW, torch.optim.Adagrad, lambda p: torch.optim.SGD(p, momentum=0.9)]
)
def test_sharded_optimizers_do_on_the_ghost_what_dtensor_does(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = trainfit.Step(
        model=Stack,
        batch=(torch.empty(8, 64, device="meta"),),
        optimizer=optimizer,
        clip_grad_norm=1.0,
        fsdp=trainfit.FSDP(world_size=4),
    )
    ours = trace_step(step, find_gpu("h200"))
    done = []
    monkeypatch.setattr(dispatch, "on_shards", lambda op, args, kwargs: done.append(op))
    assert trace_step(step, find_gpu("h200")) == ours
    assert any("_foreach" in str(op) for op in done)


def test_grouped_products_of_fp32_have_the_shapes_of_bf16_ones() -> None:
    """Meta knows bf16 alone; CUDA takes fp32 too. Rows begin at 16 bytes, so that 6 fp32 columns lie 8 apart."""
    with ghost_gpu("h200"):
        ends = torch.tensor([3, 10], dtype=torch.int32, device="cuda")
        found = {}
        for dtype in (torch.bfloat16, torch.float32):
            tokens = torch.empty(10, 16, dtype=dtype, device="cuda", requires_grad=True)
            weights = torch.empty(2, 16, 24, dtype=dtype, device="cuda", requires_grad=True)
            result = nn.functional.grouped_mm(tokens, weights, offs=ends)
            gradients = torch.autograd.grad(result.square().sum(), (tokens, weights))
            found[dtype] = [(tuple(each.shape), each.stride()) for each in (result, *gradients)]
            assert {each.dtype for each in (result, *gradients)} == {dtype}
        narrow = torch.empty(2, 16, 6, device="cuda")
        odd = nn.functional.grouped_mm(torch.empty(10, 16, device="cuda"), narrow, offs=ends)
    assert found[torch.float32] == found[torch.bfloat16]
    assert found[torch.float32][0] == ((10, 24), (24, 1))
    assert (tuple(odd.shape), odd.stride()) == ((10, 6), (8, 1))
