"""The rule for convolutions: the products they are, by layout, groups, window and everything else cuDNN chooses by.

In: an `Op`. Out: `Work`s, the most special rule first. A convolution is (images x pixels) x (output channels) x (input
channels x window). Kernels that change the layout run before and after the product, so traffic adds to arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from trainfit.cost.work import (
    VECTOR_BYTES,
    Parts,
    Work,
    argument,
    base_name,
    is_channels_last,
    item_bytes,
    log,
    parts_of,
    resizable,
    row_alignment,
    tensors_of,
    traffic_bytes,
)
from trainfit.records import Op, TensorRef

_BATCH_WEIGHT = 0.5
"""How far apart two convolutions in groups over as many pixels are of which one has twice the images: cuDNN chooses by
it."""
_GROUP_WEIGHT, _GROUPED_CHANNEL_WEIGHT = 2.0, 3.0
"""The same for twice as many groups, and for twice the channels in them: cuDNN's kernels for groups are for certain
numbers of both."""
_FEW_IMAGES, _FEW_WEIGHT = 4, 2.0
"""Of convolutions in groups cuDNN runs others where there are fewer images, up to ten times as slow."""
_MOST_IMAGES = 256
"""More images count as larger ones."""
_WINDOW_WEIGHT = 2.0
"""The same for windows of twice as many pixels."""
_BIAS_WEIGHT = 2.0
"""How far apart convolutions with a bias and without are: a kernel of its own adds it, or sums its gradient."""
_CHANNEL_WEIGHT = 1.0
"""The same for channels aligned to different powers of two: few kernels take any number."""
_PASS_WEIGHT = 2.0
"""The same for one gradient and for two."""
_DIMS_WEIGHT = 2.0
"""The same for signals, images and volumes."""
_TOPS = {"plain": (16, 8, 11, 11), "transposed": (16, 8, 11, 11), "depthwise": (17, 9, 12, 0)}
"""log2 of the most pixels, images and channels that are measured, about."""


@dataclass(frozen=True, slots=True)
class _Convolution:
    """An op, read."""

    image: TensorRef
    weight: TensorRef
    out: TensorRef
    is_backward: bool
    is_transposed: bool
    groups: int
    stride: int
    """How many pixels of the larger image there are to one of the smaller."""
    passes: int
    """Gradients that are computed, of the image and of the weight; 1 in forward."""
    has_bias: bool

    @staticmethod
    def of(op: Op) -> _Convolution:
        is_backward = base_name(op).endswith("_backward")
        tensors = tensors_of(op.args)
        image, weight, out = (*tensors[1:3], tensors[0]) if is_backward else (*tensors[:2], op.outputs[0])
        passes, has_bias = 1, len(tensors) > 2
        if is_backward:
            mask = argument(op, 10, "output_mask", ())
            needed = mask if isinstance(mask, tuple) else (True, True, False)
            passes, has_bias = max(1, sum(value is True for value in needed[:2])), needed[2:] == (True,)
        first_option = 4 if is_backward else 3
        stride = argument(op, first_option, "stride", (1,))
        groups = argument(op, first_option + 5, "groups", 1)
        return _Convolution(
            image,
            weight,
            out,
            is_backward,
            bool(argument(op, first_option + 3, "transposed", False)),
            groups if isinstance(groups, int) else 1,
            prod(value for value in stride if isinstance(value, int)) if isinstance(stride, tuple) else 1,
            passes,
            has_bias,
        )

    @property
    def kind(self) -> str:
        if self.is_transposed:
            return "transposed"
        if self.groups == 1:
            return "plain"
        return "depthwise" if self.weight.shape[1] == 1 else "grouped"

    @property
    def is_grouped(self) -> bool:
        """Whether channels come in groups of several: cuDNN has kernels for these that are ten times as fast, and not
        for all sizes, so that more may take less."""
        return self.kind == "grouped"

    @property
    def alignment(self) -> int:
        """The power of two at which the channels of every pixel start, were they last."""
        return min(row_alignment(count, self.image.dtype) for count in (self.image.shape[1], self.out.shape[1]))

    def sizes(self) -> tuple[int, int, int, int]:
        """Pixels, images, the weight's first and second channels."""
        pixels = (self.image if self.is_transposed else self.out).shape
        images = min(pixels[0], _MOST_IMAGES)
        return prod(pixels) // (pixels[1] * images), images, self.weight.shape[0], self.weight.shape[1]

    def parts(self, op: Op) -> Parts:
        """What is moved, by sizes."""
        image_axes, out_axes = ((0, 1, 2), (0, 1, 3)) if self.is_transposed else ((0, 1, 3), (0, 1, 2))
        if self.kind == "depthwise":
            image_axes = out_axes
        read = [(self.image, image_axes), (self.weight, (2, 3)), *([(self.out, out_axes)] * self.is_backward)]
        made: list[tuple[TensorRef, tuple[int, ...]]] = [(self.out, out_axes)]
        if self.is_backward:  # the bias's gradient is not worth counting
            axes: dict[tuple[int, ...], tuple[int, ...]] = {self.image.shape: image_axes, self.weight.shape: (2, 3)}
            made = [(tensor, axes.get(tensor.shape, ())) for tensor in op.outputs]
        biased = [(self.out, out_axes)] * (
            self.has_bias * (1 if self.is_backward else 2)
        )  # summed, or read and written
        return parts_of([*(read * self.passes), *made, *biased], self.sizes())

    def alike(self) -> tuple[float, ...]:
        """The coordinates that are no sizes."""
        return (
            _WINDOW_WEIGHT * log(prod(self.weight.shape[2:]))[0],
            self._grouping(),
            0.0 if self.is_transposed else log(self.stride)[0],
            _PASS_WEIGHT * (self.passes - 1),
            _BIAS_WEIGHT * self.has_bias,
            _CHANNEL_WEIGHT * log(self.alignment)[0],
            _DIMS_WEIGHT * (len(self.image.shape) - 2),
        )

    def _grouping(self) -> float:
        if not self.is_grouped:
            return 0.0
        return _GROUP_WEIGHT * log(self.groups)[0] + _FEW_WEIGHT * (self.out.shape[0] < _FEW_IMAGES)

    def rules(self) -> Iterator[str]:
        """The most special first."""
        direction = "backward" if self.is_backward else "forward"
        half = item_bytes(self.image.dtype) == 2
        nhwc = is_channels_last(self.image) or is_channels_last(self.weight)  # 1-d ones are made contiguous first
        layouts = ["nhwc", "nchw"] if nhwc else ["nchw", "nhwc"]
        if self.is_backward and not nhwc and is_channels_last(self.out):  # patches become tokens, so do their gradients
            layouts = ["mixed", *layouts]
        dtypes = [self.image.dtype, "bfloat16" if half else "float32"]
        if half and self.kind == "plain":  # both 16-bit types run the same kernels
            dtypes = ["bfloat16"]
        yield from (f"convolution {direction} {self.kind} {dtype} {layout}" for dtype in dtypes for layout in layouts)
        if not self.is_grouped:
            yield from (f"convolution {direction} plain {dtype} nchw" for dtype in dtypes)


def convolution(op: Op) -> tuple[Work, ...]:
    """Forward, or one or both gradients."""
    read = _Convolution.of(op)
    own, parts, alike = read.sizes(), read.parts(op), read.alike()
    window = prod(read.weight.shape[2:])
    flops_dtype = "tf32" if read.image.dtype == "float32" else read.image.dtype  # torch lets cuDNN round to TF32
    channel_weight = _GROUPED_CHANNEL_WEIGHT if read.is_grouped else 1.0

    def work(rule: str, *sizes: int) -> Work:
        positions, images, first, second = sizes
        channels = tuple(channel_weight * value for value in log(first, second))
        coordinates = (*log(images * positions), *channels, *alike, _BATCH_WEIGHT * log(images)[0])
        flops, nbytes = 2 * read.passes * prod(sizes) * window, traffic_bytes(parts, sizes)
        return Work(
            rule, coordinates, flops, flops_dtype, nbytes, is_serial=True, num_sizes=3, num_alike=len(alike)
        )  # fmt: skip

    rules = dict.fromkeys(read.rules())
    if read.is_grouped:
        return tuple(replace(work(rule, *own), num_sizes=0) for rule in rules)
    tops: tuple[int, ...] = _TOPS[read.kind]
    if read.alignment < VECTOR_BYTES:  # as first layers: kernels for other channels say nothing of these
        tops = (*tops[:2], *((channels - 1).bit_length() for channels in own[2:]))
    return tuple(resizable(partial(work, rule), own, tops) for rule in rules)
