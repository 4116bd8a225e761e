"""Convolutions: copies in the layout that cuDNN's kernels read, and partial sums of split weight gradients.

cuDNN does not say how large a plan's workspace is without a GPU, but nearly all of it has structure (Conv_v8.cpp asks
for it; probe: the convolution sweeps and the models' rows, where tests/test_hidden.py counts what is exact):
* The fast kernels read channels-last. Every operand in the usual layout is copied, and so is its result before it is
  turned back; channels are padded to 16 bytes, save the inputs of fp32.
* A kernel of one pixel with stride 1 is a product of matrices and needs no copies where the pixels of a channel fill
  whole units of 8 bytes; with 16 bytes its weight gradient needs none either, and has one fp32 partial sum per sample.
* A weight gradient is cut into tiles of 128 x 128; as many partial sums as fill the GPU are kept in fp32. For halves
  that number also depends on cuDNN's estimates of time, which are not known: it is off by some MiB in a third of rows.
* Few input channels under a small kernel, and depthwise convolutions, have kernels of their own without copies.
torch itself first makes the operands agree on one layout (ConvShared.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.reductions import staging
from trainfit.gpus.hidden.tensors import (
    HALVES,
    Rule,
    ceil_div,
    freed,
    integers,
    is_channels_last,
    is_contiguous,
    item_bytes,
    nbytes,
    product,
    round_up,
    tensor_argument,
)
from trainfit.records import OUTPUT, Op, TensorRef

_VECTOR_BYTES = 16
_PLAN_BYTES = 147  # what a plan takes besides its copies; never more than one unit of 512 bytes
_TILE = 128
_PIXELS_PER_SPLIT = 8192
_Purpose = Literal["output", "input gradient", "weight gradient"]


@dataclass(frozen=True, slots=True)
class _Convolution:
    """One convolution as cuDNN sees it: x and its result y in their logical order, and the filter."""

    x: TensorRef
    weight: TensorRef
    y_shape: tuple[int, ...]
    stride: tuple[int, ...]
    groups: int

    @property
    def is_channels_last(self) -> bool:
        return any(is_channels_last(t) and not is_contiguous(t) for t in (self.x, self.weight))

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.x.shape[1]

    @property
    def kernel_pixels(self) -> int:
        return product(self.weight.shape[2:])

    @property
    def is_pointwise(self) -> bool:
        return self.kernel_pixels == 1 and set(self.stride) == {1}

    @property
    def has_few_inputs(self) -> bool:
        """Up to 4 channels under a small kernel; one-dimensional ones only in fp32."""
        few = self.x.shape[1] <= 4 and self.kernel_pixels <= 16 and self.groups == 1
        return few and not self.is_channels_last and (not self.is_half or len(self.x.shape) == 4)

    @property
    def is_half(self) -> bool:
        return self.x.dtype in HALVES

    def is_direct(self, purpose: _Purpose) -> bool:
        """Does a kernel read the operands as they are?"""
        if self.is_depthwise or (self.has_few_inputs and not self.is_half):
            return True
        row_bytes = product(self.x.shape[2:]) * item_bytes(self.x.dtype)
        unit_bytes = _VECTOR_BYTES if purpose == "weight gradient" else _VECTOR_BYTES // 2
        return self.is_pointwise and (self.is_channels_last or row_bytes % unit_bytes == 0)

    def copies_bytes(self, purpose: _Purpose) -> int:
        """The operands in channels-last with padded channels; those that are so already are not copied."""
        is_forward = purpose == "output"
        if self.is_direct(purpose) or (is_forward and self.has_few_inputs):
            return 0
        size = item_bytes(self.x.dtype)
        in_channels, out_channels = self.x.shape[1], self.y_shape[1]
        padded_in, padded_out = self._padded(in_channels, is_input=True), self._padded(out_channels, is_input=False)
        # fp32 inputs of odd channels are copied even when they are channels-last.
        copies_in = not self.is_channels_last or in_channels * size % _VECTOR_BYTES != 0
        copies_out = not self.is_channels_last or padded_out != out_channels
        if not self.is_half and not is_forward:
            copies_out = copies_out or copies_in
        total = 0
        if copies_in:
            total += size * self.x.numel // in_channels * padded_in
        if copies_out:
            total += size * product(self.y_shape) // out_channels * padded_out
        if self.kernel_pixels > 1 and (copies_in or copies_out):
            total += size * self.kernel_pixels * padded_in * padded_out // self.groups
        return total

    def _padded(self, channels: int, is_input: bool) -> int:
        if self.groups > 1 or (is_input and not self.is_half):
            return channels
        return round_up(channels, _VECTOR_BYTES // item_bytes(self.x.dtype))

    def weight_partials_bytes(self, gpu: Gpu) -> int:
        """Partial sums of the weight gradient, fp32."""
        sums_bytes = 4 * self.weight.numel
        if self.is_depthwise:
            return 8 * self.x.shape[0] * sums_bytes if self.is_half and self.is_channels_last else 0
        is_direct = self.is_direct("weight gradient")
        if is_direct and self.has_few_inputs:
            return 0
        if is_direct and not self.is_channels_last:
            return self.x.shape[0] * sums_bytes
        columns = self.kernel_pixels * self._padded(self.weight.shape[1], is_input=True)
        tiles = ceil_div(self.weight.shape[0], _TILE) * ceil_div(columns, _TILE)
        # Two blocks fit on a multiprocessor for products of fp32 and for few channels.
        is_doubled = is_direct if not self.is_half else self.x.shape[1] <= 4
        blocks = gpu.num_sms * (2 if is_doubled else 1)
        splits = blocks // tiles
        if self.is_half and self.x.shape[1] > 4 and not is_direct:
            # Halves are cut no finer than some thousand pixels, and not at all where the GPU is nearly full.
            num_pixels = product(self.y_shape) // self.y_shape[1]
            splits = min(splits, num_pixels // _PIXELS_PER_SPLIT) if splits > 2 else 0
        elif tiles > blocks:
            return 4 * _TILE * _TILE * blocks
        return splits * 4 * self.weight.shape[0] * columns


def _agreeing(tensor: TensorRef, channels_last: bool) -> tuple[int, ...]:
    """torch's own copy of an operand in another layout than the convolution's."""
    fits = is_channels_last(tensor) if channels_last else is_contiguous(tensor)
    return () if fits else (nbytes(tensor),)


def _forward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    x, weight = tensor_argument(op, 0), tensor_argument(op, 1)
    stride, padding, dilation = (integers(op.args[index]) for index in (3, 4, 5))
    is_transposed, groups = bool(op.args[6]), integers(op.args[8])[0]
    y_shape = _transposed_shape(op) if is_transposed else _output_shape(x, weight, stride, padding, dilation)
    conv = _Convolution(x, weight, y_shape, stride, groups)
    before = _agreeing(x, conv.is_channels_last)
    workspace = conv.copies_bytes("output") + _PLAN_BYTES
    return (*before, OUTPUT, *_agreeing(weight, conv.is_channels_last), workspace)


def _output_shape(
    x: TensorRef, weight: TensorRef, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    pixels = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    return (x.shape[0], weight.shape[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in pixels))


def _transposed_shape(op: Op) -> tuple[int, ...]:
    x, weight = tensor_argument(op, 0), tensor_argument(op, 1)
    stride, padding, dilation, extra = (integers(op.args[index]) for index in (3, 4, 5, 7))
    groups = integers(op.args[8])[0]
    pixels = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, extra, strict=True)
    sizes = ((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in pixels)
    return (x.shape[0], weight.shape[1] * groups, *sizes)


def _backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Input gradient, weight gradient, bias gradient, each with its workspace, one after the other."""
    gradient, x, weight = (tensor_argument(op, index) for index in range(3))
    mask = op.args[10]
    wants_input, wants_weight, wants_bias = mask if isinstance(mask, tuple | list) else (True, True, False)
    conv = _Convolution(x, weight, gradient.shape, integers(op.args[4]), integers(op.args[9])[0])
    layout = conv.is_channels_last
    before = (*_agreeing(gradient, layout), *_agreeing(x, layout))
    steps = before
    if wants_input:
        workspace = (*_agreeing(weight, layout), conv.copies_bytes("input gradient") + _PLAN_BYTES)
        steps += (OUTPUT, *workspace, *freed(workspace))
    if wants_weight:
        workspace_bytes = conv.copies_bytes("weight gradient") + conv.weight_partials_bytes(gpu) + _PLAN_BYTES
        steps += (OUTPUT, workspace_bytes, -workspace_bytes)
    if wants_bias:
        sums = staging(gradient, (0, *range(2, len(gradient.shape))), gpu)
        steps += (*freed(before), OUTPUT, *sums)
    return steps


RULES: dict[str, Rule] = {
    "aten.convolution.default": _forward,
    "aten.convolution_backward.default": _backward,
}
