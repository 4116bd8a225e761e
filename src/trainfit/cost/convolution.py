"""The rule for convolutions, pass by pass, by the kind of kernels that run.

In: an `Op`. Out: `Work`s of its first pass, the most special rule first (`convolution`), and what it does beside that
(`others`): the other gradient, the bias, copies of operands that do not lie as the convolution's.

A pass is the result of a plain convolution, the gradient of its input, or that of its weight; a transposed convolution
is the gradient of an input. Each is (pixels of the smaller images) x (output channels) x (input channels x window).
Kernels that change the layout run before and after the product, so traffic adds to arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from trainfit.cost.convolution_kernels import (
    AMPERE,
    HOPPER,
    TURING,
    Kernels,
    Name,
    Pass,
    computing_ns,
    padding_share,
    times_moved,
    total_taps,
)
from trainfit.cost.work import (
    VECTOR_BYTES,
    Work,
    argument,
    base_name,
    contiguous_stride,
    is_channels_last,
    item_bytes,
    log,
    parts_of,
    peak_tflops,
    resizable,
    row_alignment,
    tensors_of,
    traffic_bytes,
)
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden.convolution import first_pass
from trainfit.gpus.hidden.cudnn import is_left_to_cublas
from trainfit.gpus.hidden.cudnn_kernels import (
    Tiling,
    asked,
    imitated,
    is_of_hopper,
    kernels_of,
    tiling_of,
    usual_engine,
)
from trainfit.gpus.hidden.cudnn_transforms import frames_of, is_transformed
from trainfit.records import Op, TensorRef

# How far apart, in doublings, two convolutions are of which one has twice the pixels of a window, windows spread twice
# as far, channels aligned to twice as much, one more dimension, twice as many groups, twice the images in groups,
# windows twice as long along one dimension as along another; a type of 16 bits or the other.
_WINDOW_WEIGHT, _GROUPED_WINDOW_WEIGHT, _DILATION_WEIGHT, _ALIGNMENT_WEIGHT, _DIMS_WEIGHT = 2.0, 1.0, 2.0, 1.0, 2.0
_GROUP_WEIGHT, _GROUPED_CHANNEL_WEIGHT, _BATCH_WEIGHT, _OBLONG_WEIGHT, _TYPE_WEIGHT = 1.0, 2.0, 0.5, 1.0, 1.0
_PRODUCT_ALIGNMENT_WEIGHT, _PRODUCT_BATCH_WEIGHT, _ENGINE_WEIGHT = 2.0, 1.0, 0.5
_FEW_IMAGES, _FEW_WEIGHT = 4, 2.0
"""Of convolutions in groups cuDNN runs others where there are fewer images, up to ten times as slow."""
_TOPS = {"plain": (20, 11, 11), "depthwise": (21, 12, 0)}
"""log2 of the most pixels and channels that are measured, about."""
_LIFT, _LIFTS = 1.05, {"product": 1.07, "channelwise": 1.0, "own": 1.0}
"""Of passes that were held out, by kernels."""
_ORDINARY_WINDOW, _SPECIAL_WINDOWS = 49, (1, 3, 5, 7)
"""Pixels; sides of windows per channel for which cuDNN has kernels that read channels-last."""
_WORD_BYTES = 4
_SUMMED_BYTES = 8
"""Written and read for each weight of each image, where a product per image gives a weight's gradient."""
_PLANNED_FOR = find_gpu("h200")
"""Other GPUs are taken to choose alike."""
_MEASURED, _TILING, _ENGINE = "kernels", "tiling", "engine"
_DIRECT_NAMES = (
    "convolve", "dgrad_engine", "wgrad_alg", "dgrad_alg", "dgrad2d_alg", "conv1D", "f32f32_f32f32_f32_nchw",
)  # fmt: skip
_FOURIER_NAMES, _WINOGRAD_NAMES = ("fft", "cf32"), ("winograd", "xmma_gemm_", "simt_sgemm")
_NAIVE_NAMES = ("_direct_", "c1_k1", "shmem_tiling")
_PRODUCT_NAMES = ("nvjet", "cutlass::Kernel2", "xmma_gemm", "splitK", "gemv", "gemmSN", "reduce_wgrad_nchw")
_TILED, _PADDING = ("fused", "singly", "loose"), ("fused", "singly")
_WITHOUT_ENGINES = ("product", "fourier", "channelwise", "own")
_WEIGHT_ALONE = (False, True, False)
_COPIED, _GRADIENT, _BIAS = -1, -2, -3
"""Storages of what the op makes on the way."""


@dataclass(frozen=True, slots=True)
class _Convolution:
    """An op, read."""

    image: TensorRef
    weight: TensorRef
    out: TensorRef
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    is_transposed: bool
    wanted: tuple[bool, ...] | None
    """Which gradients: of the image, of the weight, of the bias; None forward."""
    has_bias: bool

    @staticmethod
    def of(op: Op) -> _Convolution:
        is_backward = base_name(op).endswith("_backward")
        tensors = tensors_of(op.args)
        image, weight, out = (*tensors[1:3], tensors[0]) if is_backward else (*tensors[:2], op.outputs[0])
        wanted, has_bias = None, len(tensors) > 2
        if is_backward:
            mask = argument(op, 10, "output_mask", ())
            wanted = tuple(value is True for value in mask) if isinstance(mask, tuple) else (True, True, False)
            has_bias = wanted[2]
        first, dims = 4 if is_backward else 3, len(image.shape) - 2
        stride, padding, dilation = (_each(argument(op, first + place, "", ()), dims) for place in range(3))
        groups = argument(op, first + 5, "groups", 1)
        return _Convolution(
            image, weight, out, stride, padding, dilation, groups if isinstance(groups, int) else 1,
            argument(op, first + 3, "transposed", False) is True, wanted, has_bias,
        )  # fmt: skip

    @property
    def images(self) -> tuple[TensorRef, TensorRef]:
        """The smaller and the larger."""
        return (self.image, self.out) if self.is_transposed else (self.out, self.image)

    @property
    def window(self) -> tuple[int, ...]:
        return self.weight.shape[2:]

    @property
    def kind(self) -> str:
        """Channels come alone, all together or in groups. A transposed one with a window per channel is as groups are:
        torch has no kernel of its own for it."""
        if self.groups == 1:
            return "plain"
        return "depthwise" if self.weight.shape[1] == 1 and not self.is_transposed else "grouped"

    @property
    def is_nhwc(self) -> bool:
        return is_channels_last(self.image) or is_channels_last(self.weight)

    @property
    def name(self) -> Name:
        """Of the first pass."""
        if self.wanted is not None and not self.wanted[0]:
            return "weight"
        return "forward" if (self.wanted is None) != self.is_transposed else "input"

    def alignment(self, kernels: Kernels) -> int:
        """The power of two at which the channels of every pixel start, were they last; of products each channel's
        pixels, as they lie, and each output's weights."""
        if kernels == "product" and not self.is_nhwc:
            rows = prod(self.image.shape[2:]), self.weight.shape[1]
            return min(row_alignment(count, self.image.dtype) for count in rows)
        return min(row_alignment(count, self.image.dtype) for count in (self.image.shape[1], self.out.shape[1]))

    @property
    def is_product(self) -> bool:
        """Of matrices, as they lie."""
        return self.groups == 1 and prod(self.window) == prod(self.stride) == 1

    def is_ordinary(self, kernels: Kernels) -> bool:
        """Products, and images of aligned channels and small windows: for these more does not take less, save where
        cuDNN says so itself."""
        is_small = len(self.window) == 2 and prod(self.window) <= _ORDINARY_WINDOW and max(self.dilation) == 1
        return self.kind == "plain" and ((is_small and self.alignment(kernels) == VECTOR_BYTES) or self.is_product)

    @property
    def has_special_kernels(self) -> bool:
        """Of windows per channel: cuDNN's for small squares, channels-last; in the usual layout of float16 alone, and
        of signals too."""
        sides, step = set(self.window), max(self.stride)
        if max(self.dilation) > 1:
            return False
        if self.is_nhwc:
            return len(sides) == 1 and sides <= set(_SPECIAL_WINDOWS) and step <= 2 and self.groups == self.out.shape[1]
        if self.image.dtype != "float16" or self.groups < 2 * VECTOR_BYTES:
            return False
        is_signal = len(self.window) == 1
        return step == 1 and (is_signal or (len(sides) == 1 and max(sides) <= 5 and len(self.window) == 2))

    @property
    def is_torch_s_own(self) -> bool:
        return self.kind == "depthwise" and not self.is_nhwc and not self.has_special_kernels

    def kernels(self, op: Op) -> Kernels:
        if self.kind == "depthwise":
            return "own" if self.is_torch_s_own else "channelwise"
        if not self.image.numel or not self.out.numel:
            return "fused"
        measured: Kernels | None = dict(op.kwargs).get(_MEASURED)  # type: ignore[assignment]
        if measured is not None:
            return measured
        problem = first_pass(op)
        if self.is_product:
            return "product" if is_left_to_cublas(problem) else "fused"
        if is_transformed(problem):
            return "fourier"
        return kernels_of(problem, self.engine(op))

    def engine(self, op: Op) -> int:
        """cuDNN's, as it says, or as it said when the op was measured. Where it cannot be asked ordinary ones are taken
        to have the usual one."""
        known = dict(op.kwargs).get(_ENGINE)
        if isinstance(known, int):
            return known
        problem = first_pass(op)
        found = asked(problem, _PLANNED_FOR)
        if found is None:
            found = usual_engine(problem) if self.is_ordinary("fused") else imitated(problem)
        return found

    def tiling(self, op: Op, kernels: Kernels) -> Tiling | None:
        """As cuDNN says it, or said when the op was measured."""
        if kernels not in _TILED or self.kind == "grouped":  # whose tiles many groups share, or each its own
            return None
        said = dict(op.kwargs)
        if _TILING in said or _ENGINE in said:  # when it was measured: an engine alone has none
            known = said.get(_TILING)
            return Tiling(*known) if isinstance(known, tuple) else None
        return tiling_of(first_pass(op), _PLANNED_FOR)

    def capability(self, op: Op, kernels: Kernels, engine: int) -> int:
        """For which the kernels are made: products whose rows are not aligned have old ones."""
        if kernels == "product":
            aligned = self.alignment(kernels)
            return HOPPER if aligned == VECTOR_BYTES else AMPERE if aligned >= _WORD_BYTES else TURING
        return HOPPER if kernels == "fused" and is_of_hopper(first_pass(op), engine) else AMPERE

    def as_pass(self, kernels: Kernels, tiling: Tiling | None, capability: int) -> Pass:
        small, large = self.images
        sizes = (large.shape[2:], small.shape[2:], self.window, self.stride, self.padding, self.dilation)
        pixels = prod(small.shape[2:])
        return Pass(
            name=self.name,
            kernels=kernels,
            item_bytes=min(max(item_bytes(self.image.dtype), 2), 4),
            window=prod(self.window),
            taps=total_taps(sizes) if kernels in ("direct", "channelwise", "own") else 0.0,
            stride=prod(self.stride),
            spread=max(prod(large.shape[2:]) / max(pixels, 1), 1 / max(pixels, 1)),
            groups=self.groups,
            products=max(small.shape[0], 1) if kernels == "product" and not self.is_nhwc else 1,
            images=max(small.shape[0], 1),
            tiling=tiling,
            capability=capability,
            changes_layout=not self.is_nhwc and kernels in _TILED,
            pads_channels=self.is_nhwc and kernels in _PADDING and self.groups == 1 and not self.is_product,
        )

    def alike(self, kernels: Kernels, engine: int) -> tuple[float, ...]:
        """The coordinates that are no sizes."""
        is_grouped = self.kind == "grouped"
        grouping = batch = 0.0
        if is_grouped:
            grouping = _GROUP_WEIGHT * log(self.groups)[0] + _FEW_WEIGHT * (self.out.shape[0] < _FEW_IMAGES)
            batch = _BATCH_WEIGHT * log(self.out.shape[0])[0]
        if kernels == "product" and not self.is_nhwc:
            batch = _PRODUCT_BATCH_WEIGHT * log(self.out.shape[0])[0]
        longest, shortest = max(self.window, default=1), min(self.window, default=1)
        is_oblong = self.kind == "depthwise"
        return (
            (_GROUPED_WINDOW_WEIGHT if is_grouped else _WINDOW_WEIGHT) * log(prod(self.window))[0],
            grouping,
            log(prod(self.stride))[0],
            _DILATION_WEIGHT * log(max(self.dilation, default=1))[0],
            (_PRODUCT_ALIGNMENT_WEIGHT if kernels == "product" else _ALIGNMENT_WEIGHT)
            * log(self.alignment(kernels))[0],
            _DIMS_WEIGHT * len(self.window),
            batch,
            _OBLONG_WEIGHT * log(longest / max(shortest, 1))[0] * is_oblong,
            _TYPE_WEIGHT * (self.image.dtype == "float16"),
            _ENGINE_WEIGHT * engine,
        )

    def rules(self, kernels: Kernels) -> Iterator[str]:
        """The most special first."""
        dtype = "half" if item_bytes(self.image.dtype) == 2 else "fp32"
        own, other = ("nhwc", "nchw") if self.is_nhwc else ("nchw", "nhwc")
        name = f"convolution {self.name}"
        if self.kind == "depthwise":
            kinds = ("special", "any") if self.has_special_kernels else ("any", "special")
            yield from (f"{name} depthwise {dtype} {own} {kind}" for kind in kinds)
            yield f"{name} depthwise {dtype} {other} any"
        else:
            if kernels != "fused":
                yield from (f"{name} {self.kind} {dtype} {layout} {kernels}" for layout in (own, other))
            yield from (f"{name} {self.kind} {dtype} {layout} fused" for layout in (own, other))
        yield f"{name} plain {dtype} {own} fused"


def convolution(op: Op) -> tuple[Work, ...]:
    """The op's only pass, or its first one."""
    read = _Convolution.of(op)
    kernels = read.kernels(op)
    engine = 0 if kernels in _WITHOUT_ENGINES else read.engine(op)
    capability = read.capability(op, kernels, engine)
    one, alike = read.as_pass(kernels, read.tiling(op, kernels), capability), read.alike(kernels, engine)
    if kernels == "fourier":
        one = replace(one, frames=frames_of(first_pass(op)))
    small, large = read.images
    pixels = max(prod(small.shape) // max(small.shape[1], 1), 1)
    own = (pixels, read.weight.shape[0], read.weight.shape[1])
    large_axes = (0, 1) if read.kind == "depthwise" else (0, 2)
    small_parts, large_parts, weight_parts = (
        parts_of([part], own) for part in ((small, (0, 1)), (large, large_axes), (read.weight, (1, 2)))
    )
    has_units = kernels not in ("direct", "naive", "fourier", "channelwise", "own")
    dtype = "tf32" if read.image.dtype == "float32" else read.image.dtype  # torch lets cuDNN round to TF32
    flops_dtype = dtype if has_units else "float32"
    weight = _GROUPED_CHANNEL_WEIGHT if read.kind == "grouped" else 1.0

    summed = one.products if one.name == "weight" and one.products > 1 else 0
    is_copied = one.changes_layout or (one.pads_channels and read.alignment(kernels) < VECTOR_BYTES)

    def work(rule: str, *sizes: int) -> Work:
        pixels, first, second = sizes
        flops = 2 * prod(sizes) * one.window
        ideal_ns = flops / (1e3 * peak_tflops(_PLANNED_FOR, flops_dtype)) if flops else 1.0
        stretch = computing_ns(one, *sizes) / ideal_ns
        padded = padding_share(one, first, second)
        nbytes = _SUMMED_BYTES * summed * first * second
        for share, parts, channels, per_image in (
            (1.0, weight_parts, second, one.window),
            (padded, small_parts, first, prod(small.shape[2:])),
            (padded, large_parts, second * one.groups, prod(large.shape[2:])),
        ):
            nbytes += round(share * times_moved(one, channels, per_image) * traffic_bytes(parts, sizes))
        coordinates = (*log(pixels), *(weight * value for value in log(first, second)), *alike)
        return Work(
            rule, coordinates, flops, flops_dtype, nbytes, is_serial=is_copied or summed > 0 or not has_units,
            stretch=stretch, num_sizes=3, num_alike=len(alike),
        )  # fmt: skip

    rules = dict.fromkeys(read.rules(kernels))
    if (
        one.tiling
        or one.frames
        or read.kind == "grouped"
        or not (read.is_ordinary(kernels) or read.kind == "depthwise")
    ):
        return tuple(replace(work(rule, *own), num_sizes=0) for rule in rules)
    tops: tuple[int, ...] = _TOPS[read.kind]
    if read.alignment(kernels) < VECTOR_BYTES and not read.is_product:  # as first layers: others say nothing of these
        tops = (tops[0], *((channels - 1).bit_length() for channels in own[1:]))
    return tuple(resizable(partial(work, rule), own, tops, _LIFTS.get(kernels, _LIFT)) for rule in rules)


def as_measured(op: Op, kernel: str, num_kernels: int) -> Op:
    """The op of a sample, which knows by what kind of kernels it ran: by the name of the longest and their number."""
    read = _Convolution.of(op)
    is_by_group = 3 < read.groups <= num_kernels and max(read.image.shape[1], read.out.shape[1]) <= 256 * read.groups
    kernels: Kernels = "fused"
    if read.is_product:
        kernels = "product" if any(name in kernel for name in _PRODUCT_NAMES) else "fused"
    elif any(name in kernel for name in _FOURIER_NAMES):
        kernels = "fourier"
    elif any(name in kernel for name in _NAIVE_NAMES):
        kernels = "naive"
    elif any(name in kernel for name in _DIRECT_NAMES):
        kernels = "direct"
    elif "wo_smem" in kernel:
        kernels = "loose"
    elif "cutlass__5x" in kernel or ("xmma" not in kernel and is_by_group):
        kernels = "singly"
    elif "xmma" not in kernel:  # what changes the layout took longest
        kernels = kernels_of(first_pass(op), read.engine(op))
    return replace(op, kwargs=(*op.kwargs, (_MEASURED, kernels)))


def is_by_winograd(op: Op, kernel: str) -> bool:
    """Whether a sample ran on Winograd's transforms of its images: cuDNN does not tell so without a GPU, so that such
    samples say nothing of what is priced."""
    if _Convolution.of(op).is_product or any(name in kernel for name in _FOURIER_NAMES):
        return False
    return any(name in kernel for name in _WINOGRAD_NAMES)


def others(op: Op) -> tuple[Op, ...]:
    """What the op runs beside its first pass, each as an op of its own."""
    read = _Convolution.of(op)
    operands = (read.image, read.weight) if read.wanted is None else (read.image, read.weight, read.out)
    found = [
        Op("aten.clone.default", op.phase, op.module, (tensor,), (), (agreed,))
        for tensor in operands
        if tensor.numel > 1 and (agreed := _agreed(tensor, read)) != tensor
    ]
    if read.wanted is not None and all(read.wanted[:2]):
        image, weight, out = (_agreed(tensor, read) for tensor in (read.image, read.weight, read.out))
        args = (out, image, weight, None, *op.args[4:10], _WEIGHT_ALONE)
        found.append(replace(op, args=args, outputs=(replace(weight, storage=_GRADIENT),)))
    if read.has_bias and not (read.wanted is None and read.is_torch_s_own):
        found.append(_biased(op, read))
    return tuple(found)


def _agreed(tensor: TensorRef, read: _Convolution) -> TensorRef:
    """The tensor as it lies when the kernels read it."""
    stride = contiguous_stride(tensor.shape)
    if read.is_nhwc:
        rows, channels, *sides = tensor.shape
        first, *rest, last = contiguous_stride((rows, *sides, channels))
        stride = (first, last, *rest)
    is_so = all(own == to or size == 1 for own, to, size in zip(tensor.stride, stride, tensor.shape, strict=True))
    return tensor if is_so else replace(tensor, storage=_COPIED, stride=stride)


def _biased(op: Op, read: _Convolution) -> Op:
    """The bias added to the result, or its gradient summed."""
    channels = read.out.shape[1]
    out = _agreed(read.out, read)
    bias = TensorRef(_BIAS, read.out.dtype, (channels,), (1,), 0)
    if read.wanted is None:
        ones = (1,) * (len(out.shape) - 2)
        bias = replace(bias, shape=(1, channels, *ones), stride=(channels, 1, *ones))
        return Op("aten.add_.Tensor", op.phase, op.module, (out, bias), (), (out,))
    reduced = (0, *range(2, len(out.shape)))
    return Op("aten.sum.dim_IntList", op.phase, op.module, (out, reduced), (), (bias,))


def _each(setting: object, dims: int) -> tuple[int, ...]:
    """One number stands for all dimensions."""
    found = tuple(value for value in setting if isinstance(value, int)) if isinstance(setting, tuple) else ()
    return found if len(found) > 1 else (found or (1,)) * dims
