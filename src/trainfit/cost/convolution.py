"""The rule for convolutions, pass by pass, by the kind of kernels that run.

In: an `Op`. Out: `Work`s of its first pass, the most special rule first (`convolution`), and what it does beside that
(`others`): the other gradient, the bias, copies of operands that do not lie as the convolution's.

A pass is the result of a plain convolution, the gradient of its input, or that of its weight; a transposed convolution
is the gradient of an input. Each is (pixels of the smaller images) x (output channels) x (input channels x window).
Kernels that change the layout run before and after the product, so traffic adds to arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from math import prod

from trainfit.cost.convolution_channelwise import named_kernels
from trainfit.cost.convolution_kernels import TILED, Kernels, computing_ns, padding_share, times_moved
from trainfit.cost.convolution_op import ENGINE, MEASURED, PLANNED_FOR, WITHOUT_ENGINES, Convolution
from trainfit.cost.work import (
    VECTOR_BYTES,
    Work,
    contiguous_stride,
    is_channels_last,
    log,
    parts_of,
    peak_tflops,
    resizable,
    traffic_bytes,
)
from trainfit.gpus.hidden.convolution import first_pass
from trainfit.gpus.hidden.cudnn_kernels import kernels_of
from trainfit.gpus.hidden.cudnn_transforms import frames_of
from trainfit.records import Op, TensorRef

_GROUPED_CHANNEL_WEIGHT = 2.0
"""How far apart two convolutions are of which one has twice the channels in a group."""
_OWN_TOPS = (21, 12, 0)
"""log2 of the most pixels and channels for which torch's own kernels are measured, about."""
_LEAST_SHARE = 1e-3
"""Of traffic in arithmetic."""
_SUMMED_BYTES = 8
"""Written and read for each weight of each image, where a product per image gives a weight's gradient."""
_DIRECT_NAMES = (
    "convolve", "dgrad_engine", "wgrad_alg", "dgrad_alg", "dgrad2d_alg", "conv1D", "f32f32_f32f32_f32_nchw",
)  # fmt: skip
_FOURIER_NAMES, _WINOGRAD_NAMES = ("fft", "cf32"), ("winograd", "xmma_gemm_", "simt_sgemm")
_TRANSFORMED_NAME = "mult_and_sum_complex"
"""Of Fourier transforms over signals in groups, ninety times as slow as what cuDNN proposes without a GPU."""
_NAIVE_NAMES = ("_direct_", "c1_k1", "shmem_tiling")
_PRODUCT_NAMES = ("nvjet", "cutlass::Kernel2", "xmma_gemm", "splitK", "gemv", "gemmSN", "reduce_wgrad_nchw")
_WITHOUT_UNITS = ("direct", "naive", "fourier", "winograd")
_WEIGHT_ALONE = (False, True, False)
_COPIED, _GRADIENT, _BIAS, _TURNED = -1, -2, -3, -4
"""Storages of what the op makes on the way."""


def convolution(op: Op) -> tuple[Work, ...]:
    """The op's only pass, or its first one."""
    read = Convolution.of(op)
    kernels = read.kernels(op)
    has_engines = kernels == "direct" if read.kind == "depthwise" else kernels not in WITHOUT_ENGINES
    engine = read.choice(op).engine if has_engines else 0
    one = read.as_pass(kernels, read.tiling(op, kernels), read.capability(op, kernels, engine))
    one = replace(one, turns_groups=read.turns_groups(op, kernels, engine), engine=engine)
    if kernels == "fourier":
        one = replace(one, frames=frames_of(first_pass(op)))
    small, large = read.images
    own = (max(prod(small.shape) // max(small.shape[1], 1), 1), *read.weight.shape[:2])
    parts = (
        parts_of([(read.weight, (1, 2))], own),
        parts_of([(small, (0, 1))], own),
        parts_of([(large, (0, 1) if read.kind == "depthwise" else (0, 2))], own),
    )
    has_units = kernels not in _WITHOUT_UNITS and read.kind != "depthwise"
    dtype = "tf32" if read.image.dtype == "float32" else read.image.dtype  # torch lets cuDNN round to TF32
    flops_dtype = dtype if has_units else "float32"
    channel_weight = _GROUPED_CHANNEL_WEIGHT if read.kind == "grouped" else 1.0
    place = read.place(kernels, engine)
    summed = one.products if one.name == "weight" and one.products > 1 else 0
    is_added = kernels == "product" and (one.name != "weight" or summed > 0)
    is_copied = (
        one.changes_layout or (one.pads_channels and read.alignment(kernels) < VECTOR_BYTES) or one.group_width > 0
    )

    @cache
    def costs(*sizes: int) -> tuple[float, int]:
        """Nanoseconds of arithmetic, and bytes."""
        _, first, second = sizes
        padded = padding_share(one, first, second)
        nbytes = _SUMMED_BYTES * summed * first * second
        per_image = one.window, prod(small.shape[2:]), prod(large.shape[2:])
        channels = second, first, second * one.groups
        for share, part, count, pixels in zip((1.0, padded, padded), parts, channels, per_image, strict=True):
            nbytes += round(share * times_moved(one, count, pixels, part is parts[0]) * traffic_bytes(part, sizes))
        return computing_ns(one, *sizes), nbytes

    def work(rule: str, *sizes: int) -> Work:
        arithmetic_ns, nbytes = costs(*sizes)
        flops = 2 * prod(sizes) * one.window
        ideal_ns = flops / (1e3 * peak_tflops(PLANNED_FOR, flops_dtype)) if flops else 1.0
        made = partial(
            Work, rule, flops=flops, flops_dtype=flops_dtype, nbytes=nbytes, stretch=arithmetic_ns / ideal_ns,
            is_serial=is_copied or is_added or not has_units,
        )  # fmt: skip
        if rule.endswith(TILED):
            share = nbytes / PLANNED_FOR.dram_gb_per_s / max(arithmetic_ns, 1.0)
            return made(coordinates=read.tiled_place(one, sizes, max(share, _LEAST_SHARE), engine))
        coordinates = (*log(sizes[0]), *(channel_weight * value for value in log(*sizes[1:])), *place)
        return made(coordinates=coordinates, num_sizes=3, num_alike=len(place))

    rules = dict.fromkeys(read.rules(kernels))
    if kernels == "own":
        return tuple(resizable(partial(work, rule), own, _OWN_TOPS, lift=1.0) for rule in rules)
    return tuple(replace(work(rule, *own), num_sizes=0) for rule in rules)  # cuDNN may have better kernels for more


def as_measured(op: Op, kernel: str, num_kernels: int) -> Op:
    """The op of a sample, which knows by what kind of kernels it ran: by the name of the longest; where that only moved
    images, by what cuDNN said, or else by how many there were."""
    read = Convolution.of(op)
    is_narrow = max(read.image.shape[1], read.out.shape[1]) <= 256 * read.groups
    is_by_group = ENGINE not in dict(op.kwargs) and is_narrow and 3 < read.groups <= num_kernels
    kernels: Kernels = "fused"
    if read.windows is not None:
        named = named_kernels(kernel)
        kernels = read.kernels(op) if named is None else named
    elif read.is_product and any(name in kernel for name in _PRODUCT_NAMES):
        kernels = "product"
    elif any(name in kernel for name in _FOURIER_NAMES):
        kernels = "fourier"
    elif read.has_short_gradient and any(name in kernel for name in _WINOGRAD_NAMES):
        kernels = "winograd"
    elif any(name in kernel for name in _NAIVE_NAMES):
        kernels = "naive"
    elif any(name in kernel for name in _DIRECT_NAMES):
        kernels = "direct"
    elif "first_layer" in kernel:
        kernels = "first"
    elif "wo_smem" in kernel:
        kernels = "loose"
    elif "cutlass__5x" in kernel or ("xmma" not in kernel and is_by_group):
        kernels = "singly"
    elif "xmma" not in kernel:  # what changes the layout took longest
        kernels = kernels_of(first_pass(op), read.choice(op).engine)
    return replace(op, kwargs=(*op.kwargs, (MEASURED, kernels)))


def is_by_winograd(op: Op, kernel: str) -> bool:
    """Whether a sample ran on Winograd's transforms of its images where cuDNN does not tell so without a GPU, so that
    it says nothing of what is priced."""
    read = Convolution.of(op)
    if read.groups > 1 and _TRANSFORMED_NAME in kernel:
        return True
    if read.is_product or read.has_short_gradient or any(name in kernel for name in _FOURIER_NAMES):
        return False
    return any(name in kernel for name in _WINOGRAD_NAMES)


def others(op: Op) -> tuple[Op, ...]:
    """What the op runs beside its first pass, each as an op of its own."""
    read = Convolution.of(op)
    copies = [(tensor, _agreed(tensor, read.is_nhwc)) for tensor in _operands(read)]
    if _is_turned_twice(read):
        turned = replace(_agreed(read.out, is_nhwc=False), storage=_TURNED)
        copies += [(read.out, turned), (turned, _agreed(turned, is_nhwc=True))]
    found = [
        Op("aten.clone.default", op.phase, op.module, (tensor,), (), (agreed,))
        for tensor, agreed in copies
        if tensor.numel > 1 and agreed != tensor
    ]
    if read.wanted is not None and all(read.wanted[:2]):
        image, weight, out = (_agreed(tensor, read.is_nhwc) for tensor in (read.image, read.weight, read.out))
        args = (out, image, weight, None, *op.args[4:10], _WEIGHT_ALONE)
        found.append(replace(op, args=args, outputs=(replace(weight, storage=_GRADIENT),)))
    if read.has_bias and not (read.wanted is None and read.is_torch_s_own):
        found.append(_biased(op, read))
    return tuple(found)


def _operands(read: Convolution) -> Iterator[TensorRef]:
    """What the passes read: an image's gradient does not need the image, nor a weight's the weight."""
    wants_image, wants_weight = (True, True) if read.wanted is None else read.wanted[:2]
    if wants_weight:
        yield read.image
    if wants_image:
        yield read.weight
    if read.wanted is not None:
        yield read.out


def _is_turned_twice(read: Convolution) -> bool:
    """Of an image's gradient alone: torch makes what it is computed from lie as the image (ConvShared.cpp) and then as
    the weight, if channels come last there."""
    if read.wanted is None or read.wanted[1] or not read.is_nhwc:
        return False
    return is_channels_last(read.out) and not is_channels_last(read.image)


def _agreed(tensor: TensorRef, is_nhwc: bool) -> TensorRef:
    """The tensor as it lies when the kernels read it."""
    stride = contiguous_stride(tensor.shape)
    if is_nhwc:
        rows, channels, *sides = tensor.shape
        first, *rest, last = contiguous_stride((rows, *sides, channels))
        stride = (first, last, *rest)
    is_so = all(own == to or size == 1 for own, to, size in zip(tensor.stride, stride, tensor.shape, strict=True))
    return tensor if is_so else replace(tensor, storage=_COPIED, stride=stride)


def _biased(op: Op, read: Convolution) -> Op:
    """The bias added to the result, or its gradient summed."""
    channels = read.out.shape[1]
    out = _agreed(read.out, read.is_nhwc)
    bias = TensorRef(_BIAS, read.out.dtype, (channels,), (1,), 0)
    if read.wanted is None:
        ones = (1,) * (len(out.shape) - 2)
        bias = replace(bias, shape=(1, channels, *ones), stride=(channels, 1, *ones))
        return Op("aten.add_.Tensor", op.phase, op.module, (out, bias), (), (out,))
    reduced = (0, *range(2, len(out.shape)))
    return Op("aten.sum.dim_IntList", op.phase, op.module, (out, reduced), (), (bias,))
