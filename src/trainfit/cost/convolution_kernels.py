"""How long the kernels of a convolution compute, by what kind of kernels they are: how that goes with sizes.

In: one pass (`Pass`) and its sizes. Out: `computing_ns`, on an H200's processors, before what was measured corrects it.

Products are cut into tiles, tiles are computed in waves of as many as there are processors, and each wave takes a while
to begin. A step along the sum lasts as long as its operands take to load. Channels are padded to vectors and sums to
whole steps. Only a weight's gradient is split among processors along its sum, and not always. Where cuDNN can be asked
tiles, steps and parts are those of its plan. Constants were fitted to 9,000 passes of the H200 that a seed drew, kernel
by kernel; they say how times go with sizes (within 14% for half of 6,000 others), so that a table of scattered
measurements has little left to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import Literal

from trainfit.cost import convolution_channelwise
from trainfit.cost.convolution_channelwise import Windows, channelwise_ns
from trainfit.cost.convolution_direct import PROCESSORS, Directly, Name, direct_ns
from trainfit.gpus.hidden.cudnn_kernels import Tiling
from trainfit.gpus.hidden.cudnn_transforms import Frames

Kernels = Literal[
    "fused", "singly", "first", "loose", "direct", "naive", "product", "fourier", "winograd",
    "own", "specialized", "channelwise", "banded", "widened",
]  # fmt: skip
"""As trainfit.gpus.hidden.cudnn_kernels has them, cuBLASLt's products, those of transformed images, and for a window
per channel torch's own and those of `convolution_channelwise`."""
TILED = ("fused", "singly", "loose")

HOPPER, AMPERE, TURING = 90, 80, 75
"""Ten times the compute capability."""
_OPERATIONS_PER_NS = {2: 989_500.0, 4: 494_500.0}
"""By the bytes of a number; those of 4 are rounded to TF32."""
VECTOR_OPERATIONS_PER_NS = 66_900.0
"""Without the units of matrix products."""
_TILES = ((128, 64), (128, 128), (256, 64), (256, 128), (128, 256), (64, 64), (64, 128), (256, 32))
"""Rows and columns, of which the best is taken where it is not known which cuDNN takes."""
_CHOSEN: dict[Name, float] = {"forward": 1.12, "input": 1.17, "weight": 1.3}
"""How many times as long the tiles that cuDNN chooses take as the best of these, by this file's reckoning."""
_PRODUCT_COSTS = {
    (90, 2): (1010.0, 0.0, 4.0, 83.0, 0.88, 560.0), (90, 4): (917.0, 0.26, 66.0, 115.0, 1.75, 1060.0),
    (80, 2): (2015.0, 1.49, 125.0, 306.0, 0.0, 361.0), (80, 4): (2072.0, 2.03, 104.0, 237.0, 0.0, 276.0),
    (75, 2): (2170.0, 2.36, 246.0, 492.0, 0.0, 0.0),
}  # fmt: skip
"""Of cuBLASLt's products that give images, by capability and bytes of a number: what they take to begin; a step, as
below, a row of pixels and a column of channels, and the least of a step; what a wave takes to begin."""
_PRODUCT_MOVED = {(90, 2): 0.69, (90, 4): 0.73, (80, 2): 1.34, (80, 4): 1.13, (75, 2): 1.85}
"""How often memory could move the images beside that."""
_PRODUCT_TILES = (*_TILES, (16, 64), (16, 128), (32, 64), (32, 128))
_STEP_COSTS = {90: (0.33, 103.0, 15.0), 80: (0.97, 83.0, 83.0), 75: (2.4, 210.0, 210.0)}
"""By the compute capability for which kernels are made: what a step of a tile takes, in units of what its operations
take at the units' rate; and what loading adds: a row as much as so many columns, a column as so many rows. Those of 9.0
gather rows of pixels, which lasts longer than their operations."""
_UNGATHERED_STEP_COSTS = (0.58, 52.0, 52.0)
"""Those of 9.0 for a weight's gradient, and products."""
_LEAST_STEP_COST = {"forward": 1.15, "input": 1.15, "weight": 1.45}
"""However large the tile."""
_TURNED_COST = 2.0
"""TF32 units of 9.0 read sums along memory: the operands of a weight's gradient are turned on the way."""
_VECTOR_BYTES, _STEP_BYTES = 16, 128
_WAVE_NS, _SHARED_SUM_NS, _SHORTEST_SHARE = 1250.0, 5800.0, 76
_PARTIAL_WAVES = 0.4
"""How far the last wave's length goes with how full it is."""
_LOOSE_BLOCKS, _LOOSE_STEP_NS = 4, {True: 450.0, False: 450.0}
"""Of kernels that wait for memory at every step: as many take no longer on a processor than one; and a step of each, of
a weight's gradient and of others, whatever its size."""
_BEGIN_NS, _CHANGED_LAYOUT_NS, _GROUP_NS = 2600.0, 7200.0, 1000.0
_SUMMED_IMAGE_NS = 60.0
"""Where a product per image gives a weight's gradient, threads walk along the images to add them up."""
_PADDED_OUTPUTS_NS = 8500.0
"""Of a kernel for any layout, which pads output channels to vectors; input channels are padded on the way."""
_BLOCK, _CHANGED_TIMES, _PADDED_TIMES = 32, {2: 4.3, 4: 2.7}, {2: 8.3, 4: 4.1}
"""Of what changes the layout, and of what pads channels; element by element, so that halves take as long as floats."""
_SHORT_NS, _SHORT_TIMES, _SHORT_MOVED = {9: 8000.0, 25: 30_000.0}, 4, 10.0
"""Of Winograd's transforms: to begin, for each group, by a window's pixels; how many times fewer multiplications, and
how often images are moved."""
_TURNED_TIMES = 75.0
"""How often memory could move images of which each group's part is copied element by element."""
_FIRST_CHANNELS, _FIRST_OPERATIONS_PER_NS = 4, 130_000.0
"""Of kernels for first layers, which pad channels."""
_WIDEST_FUSED_GROUP, _NARROWEST_GROUP = 256, 4
"""Groups of as many channels share tiles, with channels padded to a power of two."""
_WIDENED_TIMES = {2: (10.0, 12.0), 4: (5.0, 6.0)}
"""Of what pads channels in groups that come last: by what is read, and by what is written."""
# Naive kernels: what a result or a weight takes beside its taps or pixels, and each of these.
_NAIVE_TAPS_PER_RESULT, _NAIVE_TAPS_PER_NS, _LOOKED_AT_PER_NS, _LOOKED_AT_ALONE_NS = 20.0, 1310.0, 786.0, 200.0
_WEIGHT_NS, _WEIGHT_PIXEL_NS, _WEIGHT_ALONE_NS = 0.45, 1.85e-3, 7.0
_COMPLEX_OPERATIONS, _COMPLEX_BYTES, _FOURIER_OPERATIONS_PER_NS, _TRANSFORMED_BYTES_PER_NS = 8, 8, 30_000.0, 2000.0
# Torch's own kernels: a result costs as much as so many taps and its own; a weight has a block of threads.
_TAPS_PER_NS, _TAPS_PER_RESULT, _SKIPPED = 2000.0, 15.0, 0.3
# Of volumes' gradients all taps are looked at, at this cost; less where the window's size, or all, was compiled in.
_SOLID, _SOLID_TAP_COST, _STRIDED_TAP_COST = 3, 4.0, 2.1
_BLOCK_NS, _BLOCK_PIXEL_NS, _ALONE_NS, _WARPS, _LANES = 2.2, 1.4e-3, 1.0, 4, 32


@dataclass(frozen=True, slots=True)
class Pass:
    """What does not change with its sizes."""

    name: Name
    kernels: Kernels
    item_bytes: int
    window: int
    """Pixels of it."""
    taps: float
    """Those that lie inside the image, on average."""
    stride: int
    """Pixels of the larger image for one of the smaller, as the stride says."""
    spread: float
    """The same, as the images have it."""
    groups: int
    products: int
    """Images of which each is a product of its own."""
    images: int
    tiling: Tiling | None
    """None where it is not known."""
    capability: int
    """Ten times the compute capability for which its kernels are made."""
    changes_layout: bool
    pads_channels: bool = False
    """Whether channels come last, and must be whole vectors."""
    group_width: int = 0
    """As wide as tiles take groups, where channels come last in some."""
    turns_groups: bool = False
    """Whether each group's part of the images is copied before and after."""
    frames: Frames | None = None
    """Where images are transformed."""
    windows: Windows | None = None
    """Where each channel has one."""
    engine: int = 0
    """cuDNN's, where its kernels are direct ones."""


def taps_inside(size: int, results: int, window: int, stride: int, padding: int, dilation: int) -> float:
    """Along one dimension: how many of the window's pixels lie inside the image, on average."""
    inside = 0
    for place in range(window):
        first = place * dilation - padding
        low, high = max(0, ceil(-first / stride)), min(results - 1, (size - 1 - first) // stride)
        inside += max(0, high - low + 1)
    return inside / max(results, 1)


def computing_ns(one: Pass, pixels: int, first: int, second: int) -> float:
    """Of so many pixels of the smaller images, by the weight's first and second channels."""
    if one.windows is not None and one.kernels in convolution_channelwise.CHANNELWISE and one.kernels != "own":
        share, per_channel = (one.spread, one.windows.multiplier) if one.name == "input" else (1.0, 1)
        return channelwise_ns(one.kernels, one.windows, pixels * share, first / per_channel, one.taps)
    if one.kernels == "direct":
        return _direct_ns(one, pixels, first, second)
    if one.kernels == "winograd":
        operations = 2 * pixels * first * second * one.window / _SHORT_TIMES
        return _SHORT_NS[one.window] * one.groups + operations / VECTOR_OPERATIONS_PER_NS
    if one.kernels == "first":
        operations = 2 * pixels * first * _FIRST_CHANNELS * one.window
        return _BEGIN_NS + _CHANGED_LAYOUT_NS * one.changes_layout + operations / _FIRST_OPERATIONS_PER_NS
    if one.kernels == "naive":
        return _naive_ns(one, pixels, first, second)
    if one.kernels == "own":
        return _own_ns(one, pixels, first)
    if one.frames is not None:
        return _fourier_ns(one.frames, one.images, first, second)
    if one.kernels == "product" and one.name != "weight":
        return _matrices_ns(one, pixels, first, second)
    begin_ns = _BEGIN_NS + _CHANGED_LAYOUT_NS * one.changes_layout
    if one.changes_layout and one.name != "weight" and first // one.groups % (_VECTOR_BYTES // one.item_bytes):
        begin_ns += _PADDED_OUTPUTS_NS
    cut = cut_of(one, pixels, first, second)
    product_ns = _product_ns(one, cut)
    if one.tiling is None and one.kernels != "product":
        product_ns *= _CHOSEN[one.name]
    if one.name == "weight" and one.products > 1:
        begin_ns += _SUMMED_IMAGE_NS * one.products
    if one.kernels == "singly" and one.groups > 1:
        return begin_ns + one.groups * (_GROUP_NS + product_ns)
    return begin_ns + product_ns


def times_moved(one: Pass, channels: int, pixels: int, is_weight: bool = False) -> float:
    """How often memory could move an image, or the weight, while the kernels do so that read it in another layout than
    it has: once in the convolution, and read and written before or after it, in blocks of so many channels and pixels,
    be they there or not. What has one pixel is the same in both layouts. Where channels come last, those that must be
    padded are."""
    if one.windows is not None and one.kernels in convolution_channelwise.CHANNELWISE and one.kernels != "own":
        return convolution_channelwise.times_moved(one.kernels, one.windows)
    if one.kernels == "product" and one.name != "weight":
        return _PRODUCT_MOVED[one.capability, one.item_bytes]
    if one.group_width:
        return 1.0 if is_weight else _times_widened(one, channels)
    if one.kernels == "winograd":
        return _SHORT_MOVED
    if one.turns_groups:
        return 1.0 if is_weight else _TURNED_TIMES
    if one.pads_channels and channels % (_VECTOR_BYTES // one.item_bytes):
        return 1 + _PADDED_TIMES[one.item_bytes]
    if not one.changes_layout or pixels == 1 or channels == 1:
        return 1.0
    padded = prod(ceil(count / _BLOCK) * _BLOCK / max(count, 1) for count in (channels, pixels))
    return 1 + _CHANGED_TIMES[one.item_bytes] * padded


def padding_share(one: Pass, first: int, second: int) -> float:
    """How many times as large images are once their channels are padded."""
    if one.groups == 1 or one.kernels != "fused" or one.group_width:
        return 1.0
    inputs, outputs = _channels(one, first, second)
    return (inputs / max(second, 1) + outputs * one.groups / max(first, 1)) / 2


def _times_widened(one: Pass, channels: int) -> float:
    """Groups of other widths than tiles take, and channels that are no whole vectors, are copied element by element."""
    width = max(channels // one.groups, 1)
    if width == one.group_width and not channels * one.item_bytes % _VECTOR_BYTES:
        return 1.0
    once, widened = _WIDENED_TIMES[one.item_bytes]
    return 1 + once + widened * one.group_width / width


def group_width(inputs: int, outputs: int) -> int:
    """As wide as tiles take groups of so many channels in and out; 0 where they take them as they are."""
    widest = max(inputs, outputs)
    return max(1 << (widest - 1).bit_length(), _NARROWEST_GROUP) if widest <= _WIDEST_FUSED_GROUP else 0


def _channels(one: Pass, first: int, second: int) -> tuple[int, int]:
    """Of a group, in and out, as the kernels have them."""
    if one.group_width:
        return one.group_width, one.group_width
    vector = _VECTOR_BYTES // one.item_bytes
    inputs, outputs = (ceil(count / vector) * vector for count in (second, first / one.groups))
    widest = max(inputs, outputs)
    if one.groups > 1 and one.kernels == "fused" and widest <= _WIDEST_FUSED_GROUP:
        inputs = outputs = 1 << (widest - 1).bit_length()
    return inputs, outputs


@dataclass(frozen=True, slots=True)
class Cut:
    """A product cut into tiles: their rows and columns, their number, what the operations of one weigh, the length of a
    sum, its steps and the parts into which it is cut."""

    rows: int
    columns: int
    step: int
    tiles: int
    weighed: float
    depth: float
    parts: float


def cut_of(one: Pass, pixels: int, first: int, second: int) -> Cut:
    """As cuDNN says, or the best."""
    return min(_cuts(one, pixels, first, second), key=lambda cut: _product_ns(one, cut))


def _cuts(one: Pass, pixels: int, first: int, second: int) -> Iterator[Cut]:
    """For every shape of tiles."""
    inputs, outputs = _channels(one, first, second)
    is_loose = one.kernels == "loose"  # channels follow each other from pixel to pixel of the window
    known = one.tiling
    step = known.step if known else _STEP_BYTES // one.item_bytes
    tiles_of = [(known.rows, known.columns)] if known else _PRODUCT_TILES if one.kernels == "product" else _TILES
    for tile_rows, tile_columns in tiles_of:
        rows, columns, depth = float(pixels), outputs, float(one.window * ceil(inputs / step) * step)
        if is_loose:
            depth = float(ceil(one.window * second / step) * step)
        if one.name == "input":
            rows, columns = pixels * one.spread, inputs
            depth = max(one.window / one.stride, 1) * ceil(outputs / step) * step
        elif one.name == "weight":
            columns = (second if is_loose else inputs) * one.window
            rows, depth = outputs, ceil(pixels / one.products / step) * step
            if one.capability == HOPPER:  # a tile lies within one pixel of the window
                columns = ceil(inputs / tile_columns) * tile_columns * one.window
            rows *= one.products
        tiles = one.products * ceil(rows / one.products / tile_rows) * ceil(columns / tile_columns)
        if one.kernels == "fused" and one.groups > 1:
            tiles *= ceil(one.groups / max(1, tile_columns // max(inputs, outputs)))
        is_gathered = one.capability < HOPPER or (one.name != "weight" and one.kernels != "product")
        step_cost, row, column = _STEP_COSTS[one.capability] if is_gathered else _UNGATHERED_STEP_COSTS
        cost = max(step_cost + row / tile_columns + column / tile_rows, _LEAST_STEP_COST[one.name])
        if one.name == "weight" and one.kernels == "fused" and one.capability == HOPPER and one.item_bytes == 4:
            cost *= _TURNED_COST
        parts = _parts(one, tiles, depth)
        yield Cut(tile_rows, tile_columns, step, tiles, tile_rows * tile_columns * cost, depth, parts)


def _matrices_ns(one: Pass, pixels: int, first: int, second: int) -> float:
    """Of the pixels of each image, or of all, by channels, and sums along channels: waves of the best tiles."""
    begin_ns, step_cost, row, column, least, wave_ns = _PRODUCT_COSTS[one.capability, one.item_bytes]
    columns, depth = (first, second) if one.name == "forward" else (second, first)
    step, operations_per_ns = _STEP_BYTES // one.item_bytes, _OPERATIONS_PER_NS[one.item_bytes] / PROCESSORS
    best_ns = inf
    for tile_rows, tile_columns in _PRODUCT_TILES:
        tiles = one.products * ceil(pixels / one.products / tile_rows) * ceil(columns / tile_columns)
        waves = max(tiles / PROCESSORS, 1.0)
        waves = _PARTIAL_WAVES * waves + (1 - _PARTIAL_WAVES) * ceil(waves)
        cost = max(step_cost + row / tile_columns + column / tile_rows, least)
        operations = 2 * tile_rows * tile_columns * ceil(depth / step) * step
        best_ns = min(best_ns, waves * (operations * cost / operations_per_ns + wave_ns))
    return begin_ns + best_ns


def _product_ns(one: Pass, cut: Cut) -> float:
    """Waves of tiles."""
    waves = max(cut.tiles * cut.parts / PROCESSORS, 1.0)
    if one.kernels == "loose":
        steps = ceil(cut.depth / cut.step / cut.parts)
        return max(waves, _LOOSE_BLOCKS) * steps * _LOOSE_STEP_NS[one.name == "weight"]
    if one.tiling is None or one.tiling.parts:  # the last wave is not shared
        waves = _PARTIAL_WAVES * waves + (1 - _PARTIAL_WAVES) * ceil(waves)
    operations_per_ns = _OPERATIONS_PER_NS[one.item_bytes] / PROCESSORS
    step_ns = 2 * cut.weighed * cut.depth / cut.parts / operations_per_ns
    return waves * (step_ns + _WAVE_NS) + _SHARED_SUM_NS * (cut.parts > 1)


def _parts(one: Pass, tiles: int, depth: float) -> float:
    """Into which each sum is cut."""
    if one.name != "weight" or one.products > 1:
        return 1.0
    if one.tiling is not None and one.tiling.parts:
        return one.tiling.parts
    room = max(1.0, min(PROCESSORS / tiles, depth / _SHORTEST_SHARE))
    return room if one.tiling is not None else float(int(room))


def _direct_ns(one: Pass, pixels: int, first: int, second: int) -> float:
    directly = Directly(
        one.name, one.engine, one.item_bytes, one.images, one.window, one.spread, one.stride, one.groups
    )  # fmt: skip
    return direct_ns(directly, pixels, first / one.groups, second)


def _naive_ns(one: Pass, pixels: int, first: int, second: int) -> float:
    """A thread for each result, which costs as much as so many taps; a block for each weight."""
    if one.name == "weight":
        weights = first * second * one.window
        return max(weights * (_WEIGHT_NS + _WEIGHT_PIXEL_NS * pixels), _WEIGHT_ALONE_NS * pixels)
    if one.name == "forward":
        return pixels * first * (_NAIVE_TAPS_PER_RESULT + second * one.window) / _NAIVE_TAPS_PER_NS
    taps = first / one.groups * one.window  # those that a stride skips are looked at too
    return max(pixels * one.spread * second * one.groups / _LOOKED_AT_PER_NS, _LOOKED_AT_ALONE_NS) * taps


def _fourier_ns(frames: Frames, images: int, first: int, second: int) -> float:
    """Transforms are written and read, and multiplied frequency by frequency."""
    framed = images * frames.per_image
    products_ns = _COMPLEX_OPERATIONS * framed * first * second / _FOURIER_OPERATIONS_PER_NS
    transforms_ns = _COMPLEX_BYTES * (framed * (first + second) + first * second) / _TRANSFORMED_BYTES_PER_NS
    return _BEGIN_NS + frames.frequencies * (products_ns + transforms_ns)


def _own_ns(one: Pass, pixels: int, channels: int) -> float:
    if one.name == "weight":
        blocks, pixels = channels * one.window, one.images * ceil(pixels / one.images / _LANES) * _LANES
        alone_ns = _ALONE_NS * _WARPS / min(one.images, _WARPS) * pixels
        return max(blocks * (_BLOCK_NS + _BLOCK_PIXEL_NS * pixels), alone_ns)
    results, taps = pixels * channels, _TAPS_PER_RESULT + one.taps
    if one.name == "input" and one.windows is not None and len(one.windows.sides) == _SOLID:
        cost = _SOLID_TAP_COST if set(one.windows.sides) != {3} else _STRIDED_TAP_COST if one.stride > 1 else 1.0
        results, taps = round(results * one.spread), _TAPS_PER_RESULT + cost * one.window
    elif one.name == "input":
        results, taps = round(results * one.spread), taps + _SKIPPED * one.window - one.taps * (1 - 1 / one.spread)
    return results * taps / _TAPS_PER_NS


def total_taps(sizes: tuple[tuple[int, ...], ...]) -> float:
    """Over all dimensions, of (image, result, window, stride, padding, dilation) along each."""
    return prod(taps_inside(*along) for along in zip(*sizes, strict=True))
