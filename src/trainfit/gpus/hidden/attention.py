"""Attention kernels: partial results, gradient accumulators, the row sums of the backward pass.

Shapes: query [B, H, S_q, d], key [B, H_k, S_k, d]. Halves are fp16 and bf16.
"""

from __future__ import annotations

from math import ceil

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.tensors import (
    HALVES,
    Rule,
    argument,
    ceil_div,
    has_strides,
    nbytes,
    round_up,
    tensor_argument,
)
from trainfit.records import LAST_OUTPUT, OUTPUT, Op, TensorRef

_CUDNN_ALIGNMENT = 256


def _cudnn_forward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The random state comes first; cuDNN's plan takes 256 bytes (MHA.cpp; probe: all rows)."""
    return (LAST_OUTPUT, LAST_OUTPUT, OUTPUT, OUTPUT, 256)


def _cudnn_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """fp32 gradient of the queries and row sums; full heads of key and value gradients in the half type for GQA.

    Source: cudnn-frontend's scaled_dot_product_flash_attention.h; probe: the cudnn rows.
    """
    query, key, value = (tensor_argument(op, index) for index in (1, 2, 3))
    batch, heads, length, width = query.shape
    rows = batch * heads * length
    workspace = round_up(4 * rows * width, _CUDNN_ALIGNMENT) + round_up(4 * rows, _CUDNN_ALIGNMENT) + 256
    if key.shape[1] != heads:
        workspace += 2 * batch * heads * key.shape[2] * (width + value.shape[3])
    return (workspace,)


def _flash_forward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Partial outputs where the keys are split across blocks: few heads and queries (flash_api.cpp).

    Split kernels have no dropout; with dropout a random state of 16 bytes comes and goes instead.
    """
    query, key = tensor_argument(op, 0), tensor_argument(op, 1)
    if argument(op, 3, "dropout_p", 0.0):
        return (OUTPUT, OUTPUT, 16, OUTPUT, OUTPUT)
    batch, heads, length, width = query.shape
    splits = _flash_splits(gpu, batch * heads, length, key.shape[2], width)
    if splits == 1:
        return ()
    rows = splits * batch * heads * length
    return (OUTPUT, OUTPUT, 4 * rows, 4 * rows * _flash_width(width), OUTPUT, OUTPUT)


def _flash_splits(gpu: Gpu, batch_heads: int, length_q: int, length_k: int, width: int) -> int:
    """How many parts the keys are cut into: the fewest that fill 85% as much of the GPU as the best number would."""
    block_n = 256 if width <= 64 else (128 if width <= 128 else 64)
    blocks_n = ceil_div(length_k, block_n)
    blocks = batch_heads * ceil_div(length_q, 64)
    num_sms = gpu.num_sms * 2
    if blocks >= 0.8 * num_sms:
        return 1
    most = min(128, num_sms, blocks_n)
    efficiencies: dict[int, float] = {}
    for splits in range(1, most + 1):
        if splits == 1 or ceil_div(blocks_n, splits) != ceil_div(blocks_n, splits - 1):
            waves = blocks * splits / num_sms
            efficiencies[splits] = waves / ceil(waves)
    best = max(efficiencies.values())
    return next(splits for splits, efficiency in efficiencies.items() if efficiency >= 0.85 * best)


def _flash_width(width: int) -> int:
    return round_up(width, 32 if width <= 128 else 64)


def _flash_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Row sums, the fp32 gradient of the queries, full heads of key and value gradients for GQA (flash_api.cpp); first
    copies of the gradient and of the result unless they lie as the kernel has them (attention_backward.cu)."""
    gradient, query, key, out = (tensor_argument(op, index) for index in (0, 1, 2, 4))
    batch, heads, length, width = query.shape
    rows = batch * heads * round_up(length, 128)
    copies = tuple(nbytes(tensor) for tensor in (gradient, out) if not _is_transposed(tensor))
    steps: tuple[int, ...] = (4 * rows, 4 * rows * _flash_width(width))
    if key.shape[1] != heads:
        expanded = batch * key.shape[2] * heads * round_up(width, 8) * 2
        steps += (expanded, expanded)
    return (*copies, OUTPUT, OUTPUT, OUTPUT, *steps) if copies else steps


def _efficient_forward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """An fp32 accumulator for wide heads of halves, which do not stay in registers (kernel_forward.h)."""
    query, value = tensor_argument(op, 0), tensor_argument(op, 2)
    if query.dtype not in HALVES or value.shape[3] <= 128:
        return ()
    return (4 * query.numel // query.shape[3] * value.shape[3],)


def _efficient_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Row sums (delta) and the accumulators of kernel_backward.h; fp32 computes delta with three tensor ops."""
    gradient, query, key, value = (tensor_argument(op, index) for index in range(4))
    out = tensor_argument(op, 5)
    copies = () if _is_transposed(gradient) else (nbytes(gradient),)
    batch, heads, length, _ = query.shape
    delta = 4 * batch * heads * length
    workspace = _efficient_workspace(query, key, value)
    if query.dtype in HALVES:
        return (*copies, *(OUTPUT,) * _num_gradients(op), delta, workspace)
    products = nbytes(out)
    # A row sum, and its contiguous copy, which goes before the workspace does.
    return (*copies, *(OUTPUT,) * _num_gradients(op), products, delta, delta, -delta, -products, workspace, -delta)


def _num_gradients(op: Op) -> int:
    wanted = op.args[10]
    return sum(map(bool, wanted)) if isinstance(wanted, tuple | list) else 3


def _is_transposed(tensor: TensorRef) -> bool:
    return has_strides(tensor, (0, 2, 1, 3))


def _efficient_workspace(query: TensorRef, key: TensorRef, value: TensorRef) -> int:
    """Tiles of the query gradient, each with a lock of 16 bytes; wide halves also stage key and value gradients.

    The tile is that of the kernel chosen for the head size on sm80 and later.
    """
    is_half = query.dtype in HALVES
    batch, heads, length, width = query.shape
    rows, columns = (64, 64) if width <= 64 else ((128, 128) if is_half and width <= 128 else (128, 64))
    elements = ceil_div(length, rows) * ceil_div(width, columns) * (rows * columns + 4)
    if is_half and max(width, value.shape[3]) > 128:
        splits = ceil_div(key.shape[2], 64)
        if batch * heads < 256:
            splits = max(1, min(splits, 200 // (batch * heads)))
        elif key.shape[2] <= 128:
            splits = 1
        elements += splits * 64 * (round_up(width, 128) + round_up(value.shape[3], 128))
    return batch * heads * elements * 4


RULES: dict[str, Rule] = {
    "aten._scaled_dot_product_cudnn_attention.default": _cudnn_forward,
    "aten._scaled_dot_product_cudnn_attention_backward.default": _cudnn_backward,
    "aten._scaled_dot_product_flash_attention.default": _flash_forward,
    "aten._scaled_dot_product_flash_attention_backward.default": _flash_backward,
    "aten._scaled_dot_product_efficient_attention.default": _efficient_forward,
    "aten._scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
}
