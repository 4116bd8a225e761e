"""Which attention kernel the target GPU would run, and running it.

`choose_backend` is a pure function of what CUDA's selector looks at: architecture, torch version, dtype, mask, head
size, grouped heads, dropout, strides, determinism (torch's sdp_utils.cpp). `attend` calls the chosen aten op with the
arguments that torch's composite would give it, so that what it saves and allocates is what the GPU's would.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainfit.gpus.catalogue import Gpu

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What the selector looks at; sizes are of [batch, heads, length, head size]."""

    dtype: torch.dtype
    head_dim_qk: int
    head_dim_v: int
    length_q: int
    length_k: int
    is_grouped: bool
    is_broadcast: bool  # batches or heads of query, key and value differ, and grouping was not asked for
    has_mask: bool
    mask_fits: bool  # for cuDNN: two or four dimensions, each of the scores' size or 1; true without a mask
    mask_needs_grad: bool
    is_causal: bool
    dropout: float
    needs_grad: bool
    last_stride_one: bool  # of query, key, value and mask
    is_four_dimensional: bool
    deterministic: bool


def choose_backend(call: AttentionCall, gpu: Gpu, torch_version: tuple[int, int]) -> str:
    """One of "cudnn", "flash", "efficient", "math"."""
    if call.is_broadcast:  # no fused kernel does that
        return "math"
    usable = {
        "cudnn": _cudnn_can(call, gpu, torch_version) and torch.backends.cuda.cudnn_sdp_enabled(),
        "flash": _flash_can(call, gpu) and torch.backends.cuda.flash_sdp_enabled(),
        "efficient": _efficient_can(call, gpu) and torch.backends.cuda.mem_efficient_sdp_enabled(),
    }
    cudnn_first = _is_datacenter(gpu) and torch_version >= (2, 11)
    order = ("cudnn", "flash", "efficient") if cudnn_first else ("flash", "efficient", "cudnn")
    return next((name for name in order if usable[name]), "math")


def _is_datacenter(gpu: Gpu) -> bool:
    """Hopper and datacenter Blackwell, for which torch prefers cuDNN since the bundled one is 9.15 or later."""
    return gpu.vendor == "nvidia" and gpu.compute_capability[0] in (9, 10)


def _cudnn_can(call: AttentionCall, gpu: Gpu, torch_version: tuple[int, int]) -> bool:
    if torch_version >= (2, 12) and not (call.dropout * 16).is_integer():  # the resolution of its random numbers
        return False
    return (
        gpu.compute_capability >= (8, 0)
        and call.dtype in HALF
        and call.is_four_dimensional
        and call.last_stride_one
        and call.head_dim_qk % 8 == 0
        and call.head_dim_v % 8 == 0
        and (max(call.head_dim_qk, call.head_dim_v) <= 128 or _cudnn_can_be_wide(call, gpu, torch_version))
        and call.length_k > 1
        and call.mask_fits
        and not call.mask_needs_grad
        and not call.deterministic
    )


def _cudnn_can_be_wide(call: AttentionCall, gpu: Gpu, torch_version: tuple[int, int]) -> bool:
    """Head sizes over 128: since torch 2.14 (cuDNN 9.24) Blackwell as Hopper, and for training two pairs only."""
    sizes = (call.head_dim_qk, call.head_dim_v)
    if torch_version >= (2, 14):
        return _is_datacenter(gpu) and (max(sizes) <= 256 if not call.needs_grad else sizes in ((192, 128), (256, 256)))
    if gpu.compute_capability[0] == 9:
        return max(sizes) <= 256
    return _is_datacenter(gpu) and sizes == (192, 128)


def _flash_can(call: AttentionCall, gpu: Gpu) -> bool:
    head = call.head_dim_qk
    consumer = gpu.compute_capability in ((8, 6), (8, 9), (12, 0))
    if consumer and call.needs_grad and (192 < head <= 224 or (head > 224 and call.dropout > 0)):
        return False
    return (
        gpu.compute_capability >= (8, 0)
        and call.dtype in HALF
        and call.is_four_dimensional
        and call.last_stride_one
        and head == call.head_dim_v
        and head <= 256
        and not call.has_mask
        and not (call.is_causal and call.length_q != call.length_k)
    )


def _efficient_can(call: AttentionCall, gpu: Gpu) -> bool:
    if call.dtype == torch.bfloat16 and gpu.compute_capability < (8, 0):
        return False
    alignment = 4 if call.dtype == torch.float32 else 8
    return (
        call.dtype in (*HALF, torch.float32)
        and call.is_four_dimensional
        and call.last_stride_one
        and call.head_dim_qk % alignment == 0
        and call.head_dim_v % alignment == 0
        and not call.is_grouped
    )


def attend(
    gpu: Gpu,
    torch_version: tuple[int, int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` as the target GPU runs it; same signature after the first two arguments."""
    needs_grad = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    call = AttentionCall(
        dtype=query.dtype,
        head_dim_qk=query.size(-1),
        head_dim_v=value.size(-1),
        length_q=query.size(-2),
        length_k=key.size(-2),
        is_grouped=enable_gqa and query.dim() == 4 and query.size(-3) != key.size(-3),
        is_broadcast=_is_broadcast(query, key, value, enable_gqa),
        has_mask=attn_mask is not None,
        mask_fits=attn_mask is None or _mask_fits(attn_mask, query, key),
        mask_needs_grad=attn_mask is not None and attn_mask.requires_grad,
        is_causal=is_causal,
        dropout=dropout_p,
        needs_grad=needs_grad,
        last_stride_one=all(
            t.stride(-1) == 1 or t.size(-1) == 1 for t in (query, key, value, attn_mask) if t is not None
        ),
        is_four_dimensional=query.dim() == 4,
        deterministic=torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    backend = choose_backend(call, gpu, torch_version)
    if backend == "flash":  # takes no mask
        return _flash(query, key, value, dropout_p, is_causal, scale)
    bias = None if attn_mask is None else _as_bias(attn_mask, query.dtype)
    if backend == "math":
        if bias is not None or is_causal:
            return _masked_math(query, key, value, bias, dropout_p, scale, enable_gqa)
        return aten._scaled_dot_product_attention_math(
            query, key, value, None, dropout_p, False, scale=scale, enable_gqa=enable_gqa
        )[0]
    if backend == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, bias, needs_grad, dropout_p, is_causal, False, scale=scale
        )[0]
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, _padded_bias(bias, query, key), needs_grad, dropout_p, is_causal, scale=scale
    )[0]


def _is_broadcast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> bool:
    compared = 1 if enable_gqa else 2
    return query.dim() == 4 and not query.shape[:compared] == key.shape[:compared] == value.shape[:compared]


def _mask_fits(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> bool:
    scores = (*query.shape[:-1], key.size(-2))
    return mask.dim() in (2, 4) and all(
        size in (1, whole) for size, whole in zip(reversed(mask.shape), reversed(scores), strict=False)
    )


def _masked_math(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    p: float,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """Attention by plain ops, causal where there is no bias.

    The same ops as torch's own, but for one: it adds a mask in place to plain tensors and out of place to whatever it
    takes for a subclass, as it does ghosts. What it computes stays until the end, except for the scores.
    """
    dtype = q.dtype
    is_half = dtype in (torch.float16, torch.bfloat16)
    if is_half and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        q, k, v = q.float(), k.float(), v.float()
    root = (q.size(-1) ** -0.5 if scale is None else scale) ** 0.5
    scaled = aten.mul.Scalar(q, root)
    if bias is None:
        triangle = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril()
        bias = _as_bias(triangle, q.dtype)
    if enable_gqa:
        k, v = (t.repeat_interleave(q.size(-3) // t.size(-3), -3) for t in (k, v))
    weights = torch.matmul(scaled, aten.mul.Scalar(k.transpose(-2, -1), root)).add_(bias)
    weights = aten._safe_softmax(weights, -1)
    if p > 0:
        weights = torch.dropout(weights, p, True)
    returned = weights.to(dtype)  # torch makes it before the product and throws it away last
    out = torch.matmul(weights, v).to(dtype)
    del q, k, v, scaled, weights
    del returned
    return out


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, p: float, causal: bool, scale: float | None
) -> torch.Tensor:
    """Flash wants head sizes in multiples of 8: torch pads, and cuts the result."""
    head = q.size(-1)
    missing = -head % 8
    if missing:
        scale = head**-0.5 if scale is None else scale
        q, k, v = (torch.nn.functional.pad(t, (0, missing)) for t in (q, k, v))
    out = aten._scaled_dot_product_flash_attention(q, k, v, p, causal, False, scale=scale)[0]
    return out[..., :head] if missing else out


def _as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    kept, masked = (torch.scalar_tensor(value, dtype=dtype, device=mask.device) for value in (0.0, float("-inf")))
    return torch.where(mask, kept, masked)


def _padded_bias(bias: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """The efficient kernel reads the bias in eights: torch pads a copy and hands over a slice of it."""
    if bias is None:
        return None
    if bias.size(-1) % 8:
        length = bias.size(-1)
        bias = torch.nn.functional.pad(bias, (0, -length % 8))[..., :length]
    return bias.expand(q.size(0), q.size(1), q.size(2), k.size(2))
