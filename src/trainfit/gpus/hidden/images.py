"""Ops on images and other grids: resampling, pooling, padding, patches, sampling at points.

In: an op of one of them. Out: the copies and stand-ins that its CUDA kernel makes, in order. Most kernels walk over
dense tensors, in one order of dimensions or in either, and copy what does not lie so; some cannot write channels last,
write a plain stand-in of the result and copy that. Ops of these families without a rule here walk over any strides.
Every rule names the source that allocates (aten/src/ATen/native, read at several commits of main; deterministic
algorithms off). All calls of these ops in benchmarks/results/hidden_calls_h200.jsonl.gz took as much on an H200.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.tensors import (
    Rule,
    integers,
    is_channels_last,
    is_contiguous,
    item_bytes,
    nbytes,
    product,
    suggests_channels_last,
    tensor_argument,
)
from trainfit.records import OUTPUT, Op, TensorRef

_FEWEST_CHANNELS = 4
_FEWEST_CHANNELS_BILINEAR = 16
"""From how many channels on a resampling has a kernel for channels that come last."""


def _suggests_channels_last(tensor: TensorRef) -> bool:
    """`suggest_memory_format`, of volumes too, dense or not (c10's is_channels_last_strides_3d)."""
    if len(tensor.shape) != 5:
        return len(tensor.shape) == 4 and suggests_channels_last(tensor)
    least = 0
    for dim in (1, 4, 3, 2, 0):
        size, stride = tensor.shape[dim], tensor.stride[dim]
        if not size or not tensor.stride[1] or stride < least or (dim == 0 and least == tensor.stride[1]):
            return False
        least = stride * size
    return True


def _copy(tensor: TensorRef, channels_last: bool = False) -> tuple[int, ...]:
    """The buffer of `.contiguous(memory_format)`."""
    if not tensor.numel or (is_channels_last(tensor) if channels_last else is_contiguous(tensor)):
        return ()
    return (nbytes(tensor),)


def _stand_in(like: TensorRef, shape: Sequence[int], *dtypes: str) -> tuple[int, ...]:
    """Plain buffers for results of this shape that lie as `like` does, where that is channels last."""
    if not _suggests_channels_last(like) or shape[1] == 1 or product(shape[2:]) == 1 or not product(shape):
        return ()
    return tuple(product(shape) * item_bytes(dtype) for dtype in dtypes or (like.dtype,))


def _first(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The first argument, contiguous, beside the result."""
    return _copy(tensor_argument(op, 0))


def _upsampled_shape(op: Op) -> tuple[int, ...]:
    return (*tensor_argument(op, 0).shape[:2], *integers(op.args[1]))


def _resample2d(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """UpSampleNearest2d.cu, backward also UpSampleBilinear2d.cu: the input's copy in its own memory format, or
    `output_c`, then the input's plain copy; and backward the same of gradients."""
    x = tensor_argument(op, 0)
    shape = integers(op.args[2]) if "_backward." in op.name else _upsampled_shape(op)
    if shape == x.shape:
        return ()  # copied straight into the result
    if _suggests_channels_last(x) and x.shape[1] >= _FEWEST_CHANNELS:
        return _copy(x, channels_last=True)
    return (*_stand_in(x, shape), *_copy(x))


def _upsample_bilinear2d(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """UpSampleBilinear2d.cu: `input.contiguous(ChannelsLast)`; the other kernel walks over strides."""
    x = tensor_argument(op, 0)
    resamples_last = x.shape[1] >= _FEWEST_CHANNELS_BILINEAR and _suggests_channels_last(x)
    return _copy(x, channels_last=True) if resamples_last and _upsampled_shape(op) != x.shape else ()


def _upsample_plain(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """UpSampleBilinear2d.cu (antialias), UpSampleNearest3d.cu: `output_c`, then `input_.contiguous()`."""
    x = tensor_argument(op, 0)
    return (*_stand_in(x, _upsampled_shape(op)), *_copy(x))


def _upsample_trilinear3d_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """UpSampleTrilinear3d.cu: `grad_output_.contiguous()`, then `grad_input_.contiguous()`."""
    gradient = tensor_argument(op, 0)
    return (*_copy(gradient), *_stand_in(gradient, integers(op.args[2])))


def _pool(op: Op, gpu: Gpu, like: int, copied: Sequence[int], volumes: bool = False) -> tuple[int, ...]:
    """AveragePool2d.cu, DilatedMaxPool2d.cu, DilatedMaxPool3d.cu: these arguments in the input's memory format; one
    volume is looked at as a batch of it."""
    tensors = [tensor_argument(op, index) for index in (like, *copied)]
    if volumes and len(tensors[0].shape) == 4:
        tensors = [replace(one, shape=(1, *one.shape), stride=(one.numel, *one.stride)) for one in tensors]
    channels_last = _suggests_channels_last(tensors[0])
    return tuple(step for tensor in tensors[1:] for step in _copy(tensor, channels_last))


def _adaptive_pool(op: Op, gpu: Gpu, batched: int, like: int = 0) -> tuple[int, ...]:
    """AdaptiveAveragePooling.cu, AdaptiveAveragePooling3d.cu, AdaptiveMaxPooling3d.cu: `.contiguous()`, forward of
    batches only; averages of images whose channels come last walk over strides, backward too."""
    x = tensor_argument(op, like)
    any_strides = len(x.shape) < batched or (batched < 5 and _suggests_channels_last(x))
    return () if any_strides else _first(op, gpu)


def _adaptive_max_pool2d(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """AdaptiveMaxPooling2d.cu: `output_c`, `indices_c`, then `input.contiguous()`, all of batches only."""
    x = tensor_argument(op, 0)
    return (*_stand_in(x, _upsampled_shape(op), x.dtype, "int64"), *_copy(x)) if len(x.shape) == 4 else ()


def _adaptive_max_pool2d_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """AdaptiveMaxPooling2d.cu: `gradOutput.contiguous()`, `indices.contiguous()`, `gradInput_c`."""
    gradient, x, indices = (tensor_argument(op, index) for index in range(3))
    return (*_copy(gradient), *_copy(indices), *_stand_in(x, x.shape))


def _im2col(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Im2Col.cu: the result is made like the input (`empty_like`), and once more when it is resized."""
    x = tensor_argument(op, 0)
    kernel, dilation, padding, stride = (integers(arg) for arg in op.args[1:5])
    spans = zip(x.shape[-2:], kernel, dilation, padding, stride, strict=True)
    places = [(size + 2 * pad - dilate * (width - 1) - 1) // step + 1 for size, width, dilate, pad, step in spans]
    return _resized(x, product(x.shape[:-2]) * product(kernel) * product(places))


def _col2im(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Col2Im.cu, as Im2Col.cu. A result smaller than its input keeps the input's size: that is its storage."""
    x = tensor_argument(op, 0)
    return _resized(x, product(x.shape[:-1]) // product(integers(op.args[2])) * product(integers(op.args[1])))


def _resized(x: TensorRef, numel: int) -> tuple[int, ...]:
    if numel <= x.numel or not x.numel:
        return _copy(x)
    return (nbytes(x), *_copy(x), OUTPUT, -nbytes(x))


def _grid_sampler(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """cudnn/GridSampler.cpp: `contiguousIfZeroInStrides` of images, `contiguous` of the grid; then the results."""
    tensors = [arg for arg in op.args if isinstance(arg, TensorRef)]
    wanted = [tensor for index, tensor in enumerate(tensors) if index == 1 or 0 in tensor.stride]
    copies = tuple(step for tensor in wanted for step in _copy(tensor))
    return (*copies, *(OUTPUT,) * (len(tensors) - 1)) if copies else ()


_OPS: tuple[tuple[Rule, str], ...] = (
    # UpSample*.cu, AveragePool3d.cu, Adaptive*Pooling3d.cu, ReflectionPad.cu
    (_first, "upsample_nearest1d upsample_nearest1d_backward upsample_linear1d_backward upsample_bicubic2d_backward"),
    (_first, "_upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_bilinear2d_aa_backward"),
    (_first, "_upsample_bicubic2d_aa_backward upsample_nearest3d_backward _upsample_nearest_exact3d_backward"),
    (_first, "avg_pool3d avg_pool3d_backward _adaptive_avg_pool3d_backward adaptive_max_pool3d_backward"),
    (_first, "reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d"),
    (_resample2d, "upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d_backward"),
    (_resample2d, "_upsample_nearest_exact2d _upsample_nearest_exact2d_backward"),
    (_upsample_bilinear2d, "upsample_bilinear2d"),
    (_upsample_plain, "_upsample_bilinear2d_aa _upsample_bicubic2d_aa upsample_nearest3d _upsample_nearest_exact3d"),
    (_upsample_trilinear3d_backward, "upsample_trilinear3d_backward"),
    (partial(_pool, like=0, copied=(0,)), "avg_pool2d max_pool2d_with_indices"),
    (partial(_pool, like=1, copied=(1, 0)), "avg_pool2d_backward"),
    (partial(_pool, like=1, copied=(1, 0, 7)), "max_pool2d_with_indices_backward"),
    (partial(_pool, like=0, copied=(0,), volumes=True), "max_pool3d_with_indices"),
    (partial(_pool, like=1, copied=(0, 7), volumes=True), "max_pool3d_with_indices_backward"),
    (partial(_adaptive_pool, batched=4), "_adaptive_avg_pool2d"),
    (partial(_adaptive_pool, batched=5), "_adaptive_avg_pool3d adaptive_max_pool3d"),
    (partial(_adaptive_pool, batched=3, like=1), "_adaptive_avg_pool2d_backward"),
    (_adaptive_max_pool2d, "adaptive_max_pool2d"),
    (_adaptive_max_pool2d_backward, "adaptive_max_pool2d_backward"),
    (_im2col, "im2col"),
    (_col2im, "col2im"),
    (_grid_sampler, "cudnn_grid_sampler cudnn_grid_sampler_backward"),
)
RULES: dict[str, Rule] = {f"aten.{name}.default": rule for rule, names in _OPS for name in names.split()}
