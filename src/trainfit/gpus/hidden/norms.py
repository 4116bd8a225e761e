"""Normalisation: blocks of partial weight gradients, Welford staging, per-channel factors.

Sources: layer_norm_kernel.cu, group_norm_kernel.cu, Normalization.cuh, Normalization.cu. Probes: the norms sweep and
benchmarks/results/hidden_calls_h200.jsonl.gz.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.reductions import WELFORD_BYTES, staging
from trainfit.gpus.hidden.tensors import (
    HALVES,
    Rule,
    ceil_div,
    copy_unless_contiguous,
    freed,
    integers,
    is_channels_last,
    is_contiguous,
    item_bytes,
    last_pow2,
    product,
    tensor_argument,
)
from trainfit.records import LAST_OUTPUT, OUTPUT, Op, TensorRef


def _layer_norm(op: Op, gpu: Gpu) -> tuple[int, ...]:
    copies = copy_unless_contiguous(tensor_argument(op, 0))
    return (*copies, OUTPUT, OUTPUT, OUTPUT) if copies else ()


def _layer_norm_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The input's copy first, then the outputs; the incoming gradient's copy comes after them."""
    gradient, x = tensor_argument(op, 0), tensor_argument(op, 1)
    num_weights = _num_wanted(op.args[7], op.args[5:7])
    head = copy_unless_contiguous(x)
    weights = _weight_gradients(op, x, integers(op.args[2]), num_weights, gpu)
    if weights:
        return (*head, OUTPUT, *copy_unless_contiguous(gradient), *weights)
    return (*head, OUTPUT, *(OUTPUT,) * num_weights, *copy_unless_contiguous(gradient))


def _rms_norm_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    gradient, x = tensor_argument(op, 0), tensor_argument(op, 1)
    num_weights = _num_wanted(op.args[5], op.args[4:5])
    weights = _weight_gradients(op, x, integers(op.args[2]), num_weights, gpu)
    copies = (*copy_unless_contiguous(x), *copy_unless_contiguous(gradient))
    return (*copies, OUTPUT, *weights) if weights else (*copies, *(OUTPUT,) * (1 + num_weights)) if copies else ()


def _num_wanted(output_mask: object, weights: Sequence[object]) -> int:
    """How many of the weights exist and want a gradient; the mask begins with the input's."""
    mask = output_mask[1:] if isinstance(output_mask, tuple | list) else (True,) * len(weights)
    return sum(bool(wanted) and isinstance(weight, TensorRef) for wanted, weight in zip(mask, weights, strict=True))


def _weight_gradients(
    op: Op, x: TensorRef, normalized_shape: tuple[int, ...], num_weights: int, gpu: Gpu
) -> tuple[int, ...]:
    """Many short rows: each block sums some rows on its own, and the blocks' sums are reduced by `sum(0)`."""
    columns = product(normalized_shape)
    rows = x.numel // columns
    if not num_weights or rows <= 64 * 1024 or columns // 32 >= gpu.num_sms // 2:
        return ()
    blocks = min(ceil_div(rows, 32), 32768 // ceil_div(columns, 32))
    weight = next(arg for arg in reversed(op.args) if isinstance(arg, TensorRef))
    width = weight.shape[-1]  # of weights of several dimensions, too: their sums are of the last alone
    partial = TensorRef(weight.storage, weight.dtype, (blocks, width), (width, 1), 0)
    size = item_bytes(weight.dtype)
    steps = (size * columns,) * num_weights + (size * blocks * width,) * num_weights
    reduction = staging(partial, (0,), gpu)
    for _ in range(num_weights):
        steps += (OUTPUT, *reduction, *freed(reduction), -size * columns)
    return steps


def _group_norm(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """A scale and a shift per sample and channel, fp32."""
    samples, channels, pixels = integers(op.args[3:6])
    if pixels == 1 or not any(isinstance(op.args[index], TensorRef) for index in (1, 2)):
        return ()
    return (4 * samples * channels,) * 2


def _group_norm_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Sums per sample and channel, and the factors per sample and group made of them, fp32; with a weight, its product
    with each sample's factor."""
    samples, channels, pixels, groups = integers(op.args[5:9])
    per_channel, per_group = 4 * samples * channels, 4 * samples * groups
    if pixels == 1:
        return (per_group, per_group)
    weighted = (per_channel,) if isinstance(op.args[4], TensorRef) else ()
    return (per_channel, per_channel, per_group, per_group, *weighted)


def _batch_norm(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Statistics, of what trains only (`batch_norm_mean_var` in Normalization.cu); what lies contiguous has them from
    one kernel, also of one channel, which is as contiguous with channels last."""
    x = tensor_argument(op, 0)
    if op.args[5] is not True or (is_contiguous(x) and not _is_table(x)):
        return ()
    return _any_statistics(x, gpu) if len(x.shape) == 3 else _welford(x, 4)


def _any_statistics(x: TensorRef, gpu: Gpu) -> tuple[int, ...]:
    """Of a sequence that lies otherwise: those of any reduction, for which bfloat16 becomes float32 first."""
    wide = replace(x, dtype="float32")
    copy = (wide.numel * item_bytes(wide.dtype),) if x.dtype == "bfloat16" else ()
    return (*copy, *staging(wide, (0, 2), gpu, WELFORD_BYTES))


def _batch_norm_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Two sums per channel, the weights' gradients, and last the input's; the sums' staging is gone by then. Evaluation
    that saved nothing has the inverse deviations of the running variances first."""
    x, saved = tensor_argument(op, 1), op.args[6]
    if not _is_channels_innermost(x):
        return ()
    is_saved = isinstance(saved, TensorRef) and saved.numel > 0
    sums = (4 * x.shape[1],) * (2 if is_saved else 3)
    reduction = _welford(x, 2)
    return (*sums, LAST_OUTPUT, LAST_OUTPUT, *reduction, *freed(reduction), OUTPUT)


_PLAN_CHANNELS, _ODD_PLAN_CHANNELS = 64, 16
"""cuDNN's channels-last plans go by so many channels at once, which fewer are padded to; of an odd number of channels
no two lie where they could be read as one."""


def _cudnn_batch_norm(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """cuDNN's channels-last plan: two sums per channel and block of rows, a flag per group of channels, counters
    (probe). Evaluation is another, which takes nothing."""
    x = tensor_argument(op, 0)
    if op.args[5] is not True or not is_channels_last(x) or is_contiguous(x):
        return ()
    groups, padded = _plan_groups(x)
    blocks = ceil_div(x.numel // x.shape[1], 160 if x.dtype in HALVES else 64)
    return (8 * padded * blocks + 4 * blocks * groups + 1072 + 4 * groups,)


def _cudnn_batch_norm_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    x = tensor_argument(op, 0)
    if not is_channels_last(x) or is_contiguous(x):
        return ()
    groups, padded = _plan_groups(x)
    return (8 * padded * ceil_div(x.numel // x.shape[1], 96) + 1056 + 4 * groups,)


def _plan_groups(x: TensorRef) -> tuple[int, int]:
    """Groups of channels, and the channels with those that pad the last."""
    channels = _ODD_PLAN_CHANNELS if x.shape[1] % 2 else _PLAN_CHANNELS
    groups = ceil_div(x.shape[1], channels)
    return groups, groups * channels


def _is_channels_innermost(x: TensorRef) -> bool:
    return is_channels_last(x) or _is_table(x)


def _is_table(x: TensorRef) -> bool:
    return len(x.shape) == 2


def _welford(x: TensorRef, numbers_per_channel: int) -> tuple[int, ...]:
    """Staging across blocks of the channels-last kernels: 4 numbers per channel and block forward, 2 backward."""
    if not _is_channels_innermost(x):
        return ()
    channels = x.shape[1]
    rows = x.numel // channels
    block_x = min(last_pow2(channels), 32)
    block_y = min(last_pow2(ceil_div(rows, 16)), 512 // block_x)
    if block_x * block_y != 512:
        block_x = min(last_pow2(channels), 512 // block_y)
    grid_y = min(ceil_div(rows, block_y * 16), 128)
    if grid_y < 8:
        return ()
    return (4 * numbers_per_channel * channels * grid_y, 4 * ceil_div(channels, block_x))


RULES: dict[str, Rule] = {
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten._fused_rms_norm_backward.default": _rms_norm_backward,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_group_norm_backward.default": _group_norm_backward,
    "aten.cudnn_batch_norm.default": _cudnn_batch_norm,
    "aten.cudnn_batch_norm_backward.default": _cudnn_batch_norm_backward,
    "aten.native_batch_norm.default": _batch_norm,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
}
