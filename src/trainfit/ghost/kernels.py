"""Shape rules for ops that CUDA has and meta has not; each returns what the CUDA kernel would, as meta tensors.

They run inside a kernel (`inside_kernel`), where ghosts behave as meta tensors. Keyed by op in `GHOST_KERNELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainfit.ghost import losses
from trainfit.ghost.answers import count_bins, count_nonzero, count_repeats, count_unique, note_written_through
from trainfit.ghost.tensor import META
from trainfit.torch_compat import host_kernels, suggest_memory_format

aten = torch.ops.aten


def _like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """As `empty_like` of a contiguous tensor, or of any with the contiguous format; that is Python in torch."""
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=META)


def _rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = x.shape[: x.dim() - len(normalized_shape)]
    rstd_shape = (*rows, *(1 for _ in normalized_shape))
    rstd_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return _like(x), x.new_empty(rstd_shape, dtype=rstd_dtype)


def _rms_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    grad_x = _like(x) if output_mask[0] else None
    grad_weight = _like(weight) if output_mask[1] and weight is not None else None
    return grad_x, grad_weight


def _layer_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Contiguous results whatever the gradient's layout (native/cuda/layer_norm_kernel.cu)."""
    wanted = zip((x, weight, bias), output_mask, strict=True)
    return tuple(_like(tensor) if wants and tensor is not None else None for tensor, wants in wanted)


def _efficient_attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """The random seed and offset stay on the host, unlike those of the other attention kernels."""
    out, log_sum_exp, *_ = aten._scaled_dot_product_efficient_attention.default(*args, **kwargs)
    with host_kernels():
        return out, log_sum_exp, torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


def _rnn_flatten_weight(
    weights: Sequence[torch.Tensor], stride0: int, input_size: int, mode: int, *sizes: Any
) -> torch.Tensor:
    """One buffer that holds all weights; each weight becomes a window on it."""
    flat = weights[0].new_empty(sum(w.numel() for w in weights))
    offset = 0
    for weight in weights:
        weight.set_(flat.untyped_storage(), offset, weight.shape, weight.stride())
        offset += weight.numel()
    return flat


def _rnn(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    stride0: int,
    weight_buf: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    directions = 2 if bidirectional else 1
    out = _time_first(x, (proj_size or hidden_size) * directions, batch_first)
    cy = _like(cx) if cx is not None else x.new_empty(0)
    reserve_bytes = _rnn_reserve_bytes(x, mode, hidden_size, num_layers, directions, dropout) if train else 0
    return out, _like(hx), cy, x.new_empty(reserve_bytes, dtype=torch.uint8), _flat_weights(weights)


def _rnn_reserve_bytes(
    x: torch.Tensor, mode: int, hidden_size: int, num_layers: int, directions: int, dropout: float
) -> int:
    """What cuDNN keeps for backward: per layer and direction the gates and the state of every time step.

    Besides, what goes from layer to layer, and for each number of it a bit of dropout per direction. Equal to what
    cuDNN said of 3,300 networks (benchmarks/probe_recurrent.py); of plain ones (modes 0 and 1) the state is all.
    """
    kept = {2: 5, 3: 6}.get(mode, 1)
    states = x.numel() // x.shape[-1] * hidden_size  # of one layer and direction, all time steps
    states_bytes = states * x.element_size()
    between_layers = (num_layers - 1) * directions
    kept_bytes = (kept * num_layers * directions + between_layers) * states_bytes
    bits = directions if dropout else 0
    return kept_bytes + between_layers * states * bits // 8 + 256


def _time_first(x: torch.Tensor, features: int, batch_first: bool) -> torch.Tensor:
    """cuDNN's results have the time in front; for a batch-first network they are seen transposed."""
    if not batch_first or x.dim() == 2:
        return x.new_empty((*x.shape[:-1], features))
    return x.new_empty((x.size(1), x.size(0), features)).transpose(0, 1)


def _flat_weights(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The one buffer behind all weights, or a copy of them in one buffer where they were never flattened."""
    total = sum(w.numel() for w in weights)
    first = weights[0]
    is_flat = all(w.untyped_storage()._cdata == first.untyped_storage()._cdata for w in weights)
    return first.as_strided((total,), (1,), 0) if is_flat else first.new_empty(total)


def _rnn_backward(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    stride0: int,
    weight_buf: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    *rest: Any,
) -> tuple[Any, ...]:
    batch_first, output_mask = rest[8], rest[-1]
    flat = torch.empty_like(weight_buf)  # weight gradients are windows on one buffer, as the weights are
    grads, offset = [], 0
    for weight in weights:
        grads.append(flat[offset : offset + weight.numel()].view(weight.shape))
        offset += weight.numel()
    grad_cx = _like(cx) if cx is not None else x.new_empty(0)  # made whether wanted or not
    grad_x = _time_first(x, x.size(-1), batch_first)
    return grad_x, _like(hx), grad_cx, grads if output_mask[3] else [x.new_empty(0) for _ in weights]


def _convolution(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    return _in_format(aten.convolution.default(x, weight, *rest), _cudnn_format(x, weight))


def _convolution_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
    grad_x, grad_weight, grad_bias = aten.convolution_backward.default(grad, x, weight, *rest)
    layout = _cudnn_format(x, weight)
    grad_x = None if grad_x is None else _in_format(grad_x, layout)
    return grad_x, None if grad_weight is None else _in_format(grad_weight, layout), grad_bias


def _cudnn_format(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """cuDNN computes channels-last as soon as the input or the weight is (ATen/native/ConvUtils.h).

    Not in float64, and not in one dimension, where torch makes the input contiguous first.
    """
    if x.dim() == 3 or x.dtype == torch.float64 or weight.dtype == torch.float64:
        return torch.contiguous_format
    formats = {suggest_memory_format(t) for t in (x, weight)}
    return next((f for f in (torch.channels_last, torch.channels_last_3d) if f in formats), torch.contiguous_format)


def _in_format(x: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    return torch.empty_like(x, memory_format=layout)


def _gru_cell(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *biases: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new state, and five numbers per unit for backward (native/cuda/RNN.cu)."""
    return _like(hx), hx.new_empty((hx.size(0), 5 * hx.size(1)))


def _gru_cell_backward(grad: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[torch.Tensor | None, ...]:
    rows, gates = grad.size(0), 3 * grad.size(1)
    gate_grads = [grad.new_empty((rows, gates)) for _ in range(2)]
    bias_grads = [grad.new_empty(gates) if has_bias else None for _ in range(2)]
    return (*gate_grads, _like(grad), *bias_grads)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each sequence, and a table of its time steps by twice the longest target and one."""
    length, batch = log_probs.size(0), log_probs.size(1)
    return log_probs.new_empty(batch), log_probs.new_empty((batch, length, 2 * max(target_lengths) + 1))


def _ctc_loss_backward(grad: torch.Tensor, log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:
    return _like(log_probs)


def _log_softmax_backward(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    """Contiguous, however the gradient lies: meta's would lie as that does."""
    return grad.new_empty(grad.shape, dtype=input_dtype)


def _masked_fill(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor | float) -> torch.Tensor:
    """A contiguous copy is filled; the value may be a scalar on the host, which the meta kernel refuses."""
    return x.new_empty(torch.broadcast_shapes(x.shape, mask.shape))


def _log_sigmoid(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Its buffer is the CPU's alone (native/cuda/Activation.cpp)."""
    return aten.empty_like.default(x), x.new_empty(0)


def _pixel_unshuffle(x: torch.Tensor, factor: int) -> torch.Tensor:
    *batch, channels, height, width = x.shape
    return x.new_empty((*batch, channels * factor**2, height // factor, width // factor))


def _patches(kernel: Any) -> Callable[..., torch.Tensor]:
    """Made as large as the input, and resized, which shrinks no storage (native/cuda/Im2Col.cu, Col2Im.cu)."""

    def patches(x: torch.Tensor, *sizes: Any) -> torch.Tensor:
        result = kernel(x, *sizes)
        return x.new_empty(max(x.numel(), result.numel())).as_strided(result.shape, result.stride())

    return patches


def _batch_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor | None,
    training: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Channels come last where the input's do and its own statistics were used; else it is contiguous, however the
    gradient lies (1,822 calls on an H200)."""
    channels = x.shape[1]
    dtype = x.dtype if weight is None else weight.dtype
    layout = suggest_memory_format(x) if training else torch.contiguous_format
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=META, memory_format=layout) if output_mask[0] else None
    return grad_x, *(x.new_empty(channels, dtype=dtype) if wanted else None for wanted in output_mask[1:])


def _nonzero(x: torch.Tensor) -> torch.Tensor:
    # CUDA writes the coordinates transposed, hence the strides.
    return x.new_empty((x.dim(), count_nonzero("aten.nonzero", x)), dtype=torch.int64).t()


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.new_empty(count_nonzero("aten.masked_select", mask))


def _index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Indexing; a boolean mask stands for as many int64 index vectors as it has dimensions."""
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            found = count_nonzero("indexing with a boolean mask", index)
            expanded += [index.new_empty(found, dtype=torch.int64) for _ in range(index.dim())]
        else:
            expanded.append(index)
    return aten.index.Tensor(x, expanded)


def _index_put(op: Any) -> Callable[..., torch.Tensor]:
    """Writing through a boolean mask, whose backward reads as many elements as were written."""

    def run(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, *rest: Any) -> torch.Tensor:
        masks = [index for index in indices if index is not None and index.dtype in (torch.bool, torch.uint8)]
        for mask in masks if values.requires_grad else ():
            has_rows = len(indices) == 1 and values.dim() == x.dim() - mask.dim() + 1 and values.shape[0] != 1
            note_written_through(mask, values.shape[0] if has_rows else None)
        return op(x, indices, values, *rest)

    return run


def _unique(
    x: torch.Tensor, is_sorted: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What was not asked for is empty."""
    size = count_unique(x)
    places = x.new_empty(x.shape if inverse else 0, dtype=torch.int64)
    return x.new_empty(size), places, x.new_empty(size if counts else 0, dtype=torch.int64)


def _unique_consecutive(
    x: torch.Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    size = count_unique(x, is_consecutive=True, dim=dim)
    shape = list(x.shape if dim is not None else (size,))
    if dim is not None:
        shape[dim] = size
    places = x.new_empty((x.shape if dim is None else (x.shape[dim],)) if inverse else 0, dtype=torch.int64)
    return x.new_empty(shape), places, x.new_empty(size if counts else 0, dtype=torch.int64)


def _bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    return x.new_empty(count_bins(x, minlength), dtype=dtype)


def _repeat_interleave(repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
    return repeats.new_empty(count_repeats(repeats) if output_size is None else output_size)


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """CUDA multiplies fp32 and fp16 too, group by group, where meta knows bf16 alone; rows begin at 16 bytes."""
    if a.dtype == torch.bfloat16:
        return aten._grouped_mm.default(a, b, offs, bias, out_dtype)
    shape = [a.shape[-2], b.shape[-1]]
    if a.dim() == b.dim():
        shape.insert(0, offs.shape[0] if offs is not None else a.shape[0])
    unit = 16 // a.element_size()
    width = -(-shape[-1] // unit) * unit
    return a.new_empty_strided(shape, [shape[-2] * width, width, 1][-len(shape) :])


def _square_roots(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Torch's own rule for these lists is Python, and every step of Adam has one as long as the parameters."""
    if not all(tensor.dtype.is_floating_point for tensor in tensors):
        return aten._foreach_sqrt.default(tensors)
    return [_like(tensor) if tensor.is_contiguous() else torch.empty_like(tensor) for tensor in tensors]


def _zeros_like(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    **options: Any,
) -> torch.Tensor:
    """Optimizers make their state by this, tensor by tensor."""
    if tensor.is_contiguous() and memory_format in (None, torch.preserve_format):
        return _like(tensor, dtype)
    return aten.empty_like.default(tensor, dtype=dtype, memory_format=memory_format, **options)


def _drawn(tensor: torch.Tensor, *numbers: float, generator: None = None) -> torch.Tensor:
    """Random numbers in place, by which models are initialised: what there is to check has a rule in Python."""
    return tensor


def _in_place(*args: Any, **kwargs: Any) -> None:
    """Writes its lists of tensors, and makes nothing."""


def _grid_sampler(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:2], *grid.shape[1:3]))


def _grid_sampler_backward(x: torch.Tensor, grid: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Both gradients, whichever is needed."""
    return x.new_empty(x.shape), grid.new_empty(grid.shape)


GHOST_KERNELS: dict[Any, Callable[..., Any]] = {
    aten.cudnn_grid_sampler.default: _grid_sampler,
    aten.cudnn_grid_sampler_backward.default: _grid_sampler_backward,
    aten._fused_sgd_.default: _in_place,
    aten._fused_sgd_.tensor_lr: _in_place,
    aten._fused_adagrad_.default: _in_place,
    aten._fused_adagrad_.tensor_lr: _in_place,
    aten.zeros_like.default: _zeros_like,
    aten.uniform_.default: _drawn,
    aten.normal_.default: _drawn,
    aten._foreach_sqrt.default: _square_roots,
    aten._grouped_mm.default: _grouped_mm,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss_backward.default: _ctc_loss_backward,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.masked_fill.Tensor: _masked_fill,
    aten.masked_fill.Scalar: _masked_fill,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    **{kernel: _patches(kernel) for kernel in (aten.im2col.default, aten.col2im.default)},
    **losses.KERNELS,
    aten._scaled_dot_product_efficient_attention.default: _efficient_attention,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._fused_rms_norm.default: _rms_norm,
    aten._fused_rms_norm_backward.default: _rms_norm_backward,
    aten._cudnn_rnn.default: _rnn,
    aten._cudnn_rnn_flatten_weight.default: _rnn_flatten_weight,
    aten._cudnn_rnn_backward.default: _rnn_backward,
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten.index_put.default: _index_put(aten.index_put.default),
    aten.index_put_.default: _index_put(aten.index_put_.default),
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique_consecutive,
    aten.bincount.default: _bincount,
    aten.repeat_interleave.Tensor: _repeat_interleave,
}
