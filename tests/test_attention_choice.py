"""Which attention kernel runs where. Rows for the H200 are what an H200 with torch 2.11 chose (benchmarks/)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from trainfit import ghost_gpu
from trainfit.ghost.attention import AttentionCall, _masked_math, choose_backend
from trainfit.gpus.catalogue import find_gpu

CAUSAL = AttentionCall(
    dtype=torch.bfloat16,
    head_dim_qk=128,
    head_dim_v=128,
    length_q=2048,
    length_k=2048,
    is_grouped=False,
    is_broadcast=False,
    has_mask=False,
    mask_fits=True,
    mask_needs_grad=False,
    is_causal=True,
    dropout=0.0,
    needs_grad=True,
    last_stride_one=True,
    is_four_dimensional=True,
    deterministic=False,
)
MASKED = replace(CAUSAL, has_mask=True, is_causal=False)


@pytest.mark.parametrize(
    ("gpu", "version", "call", "expected"),
    [
        # measured on an H200
        ("h200", (2, 11), CAUSAL, "cudnn"),
        ("h200", (2, 11), replace(CAUSAL, head_dim_qk=256, head_dim_v=256), "cudnn"),
        ("h200", (2, 11), replace(CAUSAL, is_grouped=True, dropout=0.1), "cudnn"),
        ("h200", (2, 11), MASKED, "cudnn"),
        ("h200", (2, 11), replace(MASKED, mask_needs_grad=True), "efficient"),
        ("h200", (2, 11), replace(MASKED, mask_needs_grad=True, mask_fits=False), "efficient"),
        ("h200", (2, 11), replace(MASKED, mask_needs_grad=True, is_grouped=True), "math"),
        ("h200", (2, 11), replace(CAUSAL, dtype=torch.float32), "efficient"),
        ("h200", (2, 11), replace(CAUSAL, dtype=torch.float32, is_grouped=True), "math"),
        ("h200", (2, 11), replace(MASKED, mask_needs_grad=True, last_stride_one=False), "math"),
        ("h200", (2, 11), replace(MASKED, is_broadcast=True), "math"),
        # by torch's sdp_utils.cpp
        ("h200", (2, 11), replace(CAUSAL, dropout=0.1), "cudnn"),
        ("h200", (2, 12), replace(CAUSAL, dropout=0.1), "flash"),
        ("h200", (2, 12), replace(MASKED, dropout=0.1), "efficient"),
        ("h200", (2, 12), replace(CAUSAL, dropout=0.125), "cudnn"),
        ("h200", (2, 13), replace(MASKED, mask_fits=False), "efficient"),
        ("h200", (2, 13), replace(CAUSAL, head_dim_qk=192, head_dim_v=128), "cudnn"),
        ("h200", (2, 13), replace(CAUSAL, head_dim_qk=160, head_dim_v=160), "cudnn"),
        ("h200", (2, 14), replace(CAUSAL, head_dim_qk=160, head_dim_v=160), "flash"),
        ("h200", (2, 14), replace(CAUSAL, head_dim_qk=160, head_dim_v=160, needs_grad=False), "cudnn"),
        ("b200", (2, 13), replace(CAUSAL, head_dim_qk=192, head_dim_v=128), "cudnn"),
        ("b200", (2, 13), replace(CAUSAL, head_dim_qk=256, head_dim_v=256), "flash"),
        ("b200", (2, 14), replace(CAUSAL, head_dim_qk=256, head_dim_v=256), "cudnn"),
        ("rtx5090", (2, 14), replace(CAUSAL, head_dim_qk=256, head_dim_v=256, is_grouped=True, has_mask=True), "math"),
        ("h200", (2, 10), CAUSAL, "flash"),
        *[(gpu, (2, 13), CAUSAL, "cudnn") for gpu in ("h100-80gb", "h100-pcie", "b200", "gb200")],
        *[(gpu, (2, 13), CAUSAL, "flash") for gpu in ("a10g", "l4", "l40s", "rtx3090", "rtx4090", "a100-40gb")],
        ("a100-80gb", (2, 13), CAUSAL, "flash"),
        ("a100-80gb", (2, 13), replace(CAUSAL, is_grouped=True), "flash"),
        ("a100-80gb", (2, 13), MASKED, "efficient"),
        ("a100-80gb", (2, 13), replace(MASKED, is_grouped=True), "cudnn"),
        ("a100-80gb", (2, 13), replace(CAUSAL, length_k=1024), "efficient"),
        ("a100-80gb", (2, 13), replace(CAUSAL, dtype=torch.float32), "efficient"),
        ("rtx4090", (2, 13), replace(CAUSAL, head_dim_qk=224, head_dim_v=224), "efficient"),
        ("rtx3090", (2, 13), replace(CAUSAL, head_dim_qk=224, head_dim_v=224, needs_grad=False), "flash"),
        ("rtx3090", (2, 13), replace(CAUSAL, head_dim_qk=192, head_dim_v=192, dropout=0.1), "flash"),
        ("l4", (2, 13), replace(CAUSAL, head_dim_qk=256, head_dim_v=256), "flash"),
        ("l4", (2, 13), replace(CAUSAL, head_dim_qk=256, head_dim_v=256, dropout=0.1), "efficient"),
        ("a100-80gb", (2, 13), replace(CAUSAL, head_dim_qk=256, head_dim_v=256, dropout=0.1), "flash"),
        ("rtx5090", (2, 13), CAUSAL, "flash"),
        ("v100-32gb", (2, 13), replace(CAUSAL, dtype=torch.float16), "efficient"),
        ("v100-32gb", (2, 13), CAUSAL, "math"),
        ("t4", (2, 13), replace(CAUSAL, dtype=torch.float32), "efficient"),
        ("h200", (2, 13), replace(CAUSAL, head_dim_qk=100, head_dim_v=100), "flash"),
        ("h200", (2, 13), replace(CAUSAL, dtype=torch.float64), "math"),
        ("h200", (2, 13), replace(CAUSAL, deterministic=True), "flash"),
    ],
)
def test_choice(gpu: str, version: tuple[int, int], call: AttentionCall, expected: str) -> None:
    assert choose_backend(call, find_gpu(gpu), version) == expected


def attention_ops(gpu: str, dtype: torch.dtype, **options: object) -> list[str]:
    names: list[str] = []
    with ghost_gpu(gpu) as mode:
        q, k, v = (torch.randn(2, 4, 32, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
        mode.listener = lambda func, args, kwargs, result: names.append(str(func).removeprefix("aten."))
        F.scaled_dot_product_attention(q, k, v, **options).sum().backward()  # type: ignore[arg-type]
    return [name for name in names if "attention" in name or "bmm" in name]


@pytest.mark.parametrize(
    ("gpu", "dtype", "expected"),
    [
        ("h200", torch.bfloat16, "_scaled_dot_product_cudnn_attention"),
        ("a100-80gb", torch.bfloat16, "_scaled_dot_product_flash_attention"),
        ("t4", torch.float16, "_scaled_dot_product_efficient_attention"),
    ],
)
def test_the_chosen_kernel_runs_forward_and_backward(gpu: str, dtype: torch.dtype, expected: str) -> None:
    assert attention_ops(gpu, dtype, is_causal=True) == [f"{expected}.default", f"{expected}_backward.default"]


def test_math_is_taken_apart_into_matrix_products() -> None:
    assert attention_ops("v100-32gb", torch.bfloat16, is_causal=True).count("bmm.default") == 6


def masked_ops(query_shape: tuple[int, ...], key_shape: tuple[int, ...], mask_shape: tuple[int, ...], gqa: bool) -> str:
    """What attends on an H200: "math" if products do, else whose kernel."""
    names: list[str] = []
    with ghost_gpu("h200") as mode:
        query, key, mask = (
            torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in (query_shape, key_shape, mask_shape)
        )
        mode.listener = lambda func, args, kwargs, result: names.append(str(func))
        out = F.scaled_dot_product_attention(query, key, key, mask, enable_gqa=gqa)
        assert out.shape == query_shape
    found = [kind for kind in ("cudnn", "efficient", "bmm") if any(kind in name for name in names)]
    assert len(found) == 1
    return found[0].replace("bmm", "math")


@pytest.mark.parametrize(
    ("key_outer", "gqa", "expected"),
    [((2, 1), False, "math"), ((1, 4), False, "math"), ((2, 1), True, "cudnn"), ((2, 4), False, "cudnn")],
)
def test_keys_that_are_broadcast_to_the_queries_take_plain_ops(
    key_outer: tuple[int, int], gqa: bool, expected: str
) -> None:
    assert masked_ops((2, 4, 32, 64), (*key_outer, 32, 64), (32, 32), gqa) == expected


@pytest.mark.parametrize(
    ("mask_shape", "expected"),
    [((32, 16), "cudnn"), ((1, 16), "cudnn"), ((2, 1, 1, 16), "cudnn"), ((4, 32, 16), "efficient")],
)
def test_masks_of_any_shape_that_broadcasts_take_fused_kernels(mask_shape: tuple[int, ...], expected: str) -> None:
    assert masked_ops((2, 4, 32, 64), (2, 4, 16, 64), mask_shape, False) == expected


def test_the_user_can_forbid_kernels() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        assert "efficient" in attention_ops("h200", torch.bfloat16)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("is_causal", [True, False])
def test_masked_math_runs_the_ops_of_torch_but_adds_the_mask_in_place(
    dtype: torch.dtype, dropout_p: float, heads: int, is_causal: bool
) -> None:
    def ops(attention: Callable[..., torch.Tensor]) -> list[str]:
        names: list[str] = []
        with ghost_gpu("h200") as mode:
            query, key = (torch.empty(2, n, 8, 16, dtype=dtype, device="cuda", requires_grad=True) for n in (4, heads))
            bias = None if is_causal else torch.empty(8, 8, dtype=dtype, device="cuda")
            mode.listener = lambda func, args, kwargs, result: names.append(str(func).removeprefix("aten."))
            attention(query, key, bias).sum().backward()
        return names

    def torchs(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, key, bias, dropout_p, is_causal, enable_gqa=heads < 4
        )[0]

    def ours(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return _masked_math(query, key, key, bias, dropout_p, None, heads < 4)

    expected = ops(torchs)
    expected[expected.index("add.Tensor")] = "add_.Tensor"
    assert ops(ours) == expected
