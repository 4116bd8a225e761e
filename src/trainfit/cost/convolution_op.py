"""`Convolution`: an op, read; by what kernels its first pass runs, where cuDNN says so or as if it did.

In: an `Op`. Out: a `Pass` for `convolution_kernels`, and the rules and coordinates by which its price is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2, prod

from trainfit.cost.convolution_channelwise import (
    LINE_BYTES,
    Channelwise,
    Windows,
    engine_kernels,
    like,
    line_alignment,
)
from trainfit.cost.convolution_direct import PROCESSORS
from trainfit.cost.convolution_kernels import (
    AMPERE,
    HOPPER,
    TILED,
    TURING,
    Kernels,
    Name,
    Pass,
    cut_of,
    group_width,
    total_taps,
)
from trainfit.cost.work import (
    VECTOR_BYTES,
    argument,
    base_name,
    is_channels_last,
    item_bytes,
    log,
    row_alignment,
    tensors_of,
)
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden.convolution import first_pass
from trainfit.gpus.hidden.cudnn import Problem, is_left_to_cublas
from trainfit.gpus.hidden.cudnn_kernels import (
    Choice,
    Tiling,
    chosen,
    is_of_hopper,
    kernels_of,
    turns_groups,
    usual_engine,
)
from trainfit.gpus.hidden.cudnn_transforms import is_transformed
from trainfit.gpus.hidden.tensors import suggests_channels_last
from trainfit.records import Op, TensorRef

# How far apart, in doublings, two convolutions are of which one has twice the pixels of a window, windows spread twice
# as far, channels aligned to twice as much, one more dimension, twice as many groups, twice the images in groups,
# windows twice as long along one dimension as along another; a type of 16 bits or the other.
_WINDOW_WEIGHT, _GROUPED_WINDOW_WEIGHT, _DILATION_WEIGHT, _ALIGNMENT_WEIGHT, _DIMS_WEIGHT = 2.0, 1.0, 2.0, 1.0, 2.0
_GROUP_WEIGHT, _BATCH_WEIGHT, _OBLONG_WEIGHT, _TYPE_WEIGHT = 1.0, 0.5, 1.0, 1.0
_PRODUCT_ALIGNMENT_WEIGHT, _PRODUCT_BATCH_WEIGHT, _ENGINE_WEIGHT = 2.0, 1.0, 0.5
_SIDE_WEIGHTS = {"own": {"forward": 0.5, "input": 0.0, "weight": 1.0}}
_SIDE_WEIGHT = 0.5
"""Of windows per channel: images of which rows are twice as long."""
_TILED_WEIGHT, _TILE_WEIGHT, _WIDTH_WEIGHT = 0.5, 2.0, 2.0
"""Of what is cut into tiles: all that does not change how many there are; a tile twice as large, groups twice as wide.
"""
_FEW_IMAGES, _FEW_WEIGHT = 4, 2.0
"""Of convolutions in groups cuDNN runs others where there are fewer images, up to ten times as slow."""
_WORD_BYTES = 4
PLANNED_FOR = find_gpu("h200")
"""Other GPUs are taken to choose alike."""
MEASURED, TILING, ENGINE = "kernels", "tiling", "engine"
_PADDING = ("fused", "singly", "first")
_WINOGRAD_S, _SHORT_CHANNELS, _SHORT_WINDOWS, _SHORT_PIXELS = 50, 32, ((3, 3), (5, 5)), 4096
"""The engine that cuDNN proposes without a GPU where it would run Winograd's transforms, if there are so many channels,
of such windows, the larger of which on so many pixels at most: 53 of the 60 passes that it names ran so."""
_SOLID, _SOLID_CHANNELS, _SOLID_PIXELS = 3, 8, 200
"""Dimensions: windows of one pixel are cuBLASLt's products, of weights' gradients those of so many channels and pixels
of an image at least, if cuDNN's kernels would be the usual ones, or those below."""
_SHORT_SOLID, _OLD_SOLID, _LOOSE_SOLID = 9, (30, 39), 40
"""Engines that it proposes where sums are short; such as give all weights' gradients away; such as do so in float32."""
WITHOUT_ENGINES = ("product", "fourier", "winograd")
# torch gives windows per channel to cuDNN, where channels do not come last, for float16 alone: squares of these sides,
# rows of so many pixels and so many channels at least; with a stride of 2 more channels, or some more and longer rows.
_CUDNN_SIDES, _LEAST_ROW, _LEAST_CHANNELS, _STRIDED_CHANNELS, _STRIDED_ROW = (1, 3, 5), 7, 32, (512, 256), 28


@dataclass(frozen=True, slots=True)
class Convolution:
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
    def of(op: Op) -> Convolution:
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
        return Convolution(
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
        return is_channels_last(self.image) or suggests_channels_last(self.weight)

    @property
    def name(self) -> Name:
        """Of the first pass."""
        if self.wanted is not None and not self.wanted[0]:
            return "weight"
        return "forward" if (self.wanted is None) != self.is_transposed else "input"

    @property
    def is_product_per_image(self) -> bool:
        """What has one pixel is the same in both layouts."""
        return not self.is_nhwc and prod(self.image.shape[2:]) > 1

    def alignment(self, kernels: Kernels) -> int:
        """The power of two at which the channels of every pixel start, were they last; of products each channel's
        pixels, as they lie, and each output's weights."""
        if kernels == "product" and self.is_product_per_image:
            rows = prod(self.image.shape[2:]), self.weight.shape[1]
            return min(row_alignment(count, self.image.dtype) for count in rows)
        return min(row_alignment(count, self.image.dtype) for count in (self.image.shape[1], self.out.shape[1]))

    @property
    def is_product(self) -> bool:
        """Of matrices, as they lie."""
        return self.groups == 1 and prod(self.window) == prod(self.stride) == 1

    @property
    def is_torch_s_own(self) -> bool:
        """Of windows per channel: torch has kernels, but cuDNN's run where channels come last, and for some float16."""
        if self.kind != "depthwise" or self.is_nhwc:
            return False
        sides, step, row, channels = self.window, set(self.stride), self.image.shape[-1], self.image.shape[1]
        is_asked = self.image.dtype == "float16" and max(self.dilation) == 1 and channels >= _LEAST_CHANNELS
        if not is_asked or len(sides) > 2 or len(step) > 1 or max(step) > 2:
            return True
        if len(sides) == 1 or self.image.shape[2] == 1:
            return max(step) > 1
        if len(set(sides)) > 1 or sides[0] not in _CUDNN_SIDES or row < _LEAST_ROW:
            return True
        many, some = _STRIDED_CHANNELS
        is_wide = channels >= many or (channels >= some and row >= _STRIDED_ROW) or self.image.shape[0] == 1
        return max(step) == 2 and not (is_wide and sides[0] > 1)

    @property
    def windows(self) -> Windows | None:
        """What decides about the kernels, where there is a window per channel."""
        if self.kind != "depthwise":
            return None
        channels = max(self.image.shape[1], 1)
        return Windows(
            self.name, _item_bytes(self.image), self.window, max(self.stride), max(self.dilation),
            max(self.out.shape[1] // channels, 1), self.image.shape[0], channels, self.images[0].shape[2:],
            self.is_nhwc,
        )  # fmt: skip

    def kernels(self, op: Op) -> Kernels:
        if not self.image.numel or not self.out.numel:
            return "own" if self.is_torch_s_own else "fused"
        measured: Kernels | None = dict(op.kwargs).get(MEASURED)  # type: ignore[assignment]
        if measured is not None:
            return measured
        problem = first_pass(op)
        if self.windows is not None:
            return self._channelwise_kernels(op, self.windows)
        if self.is_product:
            engine = self.choice(op).engine
            otherwise: Kernels = kernels_of(problem, engine)
            is_solid = len(self.window) == _SOLID and self._is_solid_product(problem, engine)
            return "product" if is_solid or self._is_left_to_cublas(problem, engine) else otherwise
        if is_transformed(problem):
            return "fourier"
        engine = self.choice(op).engine
        is_shortened = self.has_short_gradient and engine == _WINOGRAD_S and self._is_worth_transforming
        return "winograd" if is_shortened else kernels_of(problem, engine)

    def _is_left_to_cublas(self, problem: Problem, engine: int) -> bool:
        """Whether cuBLASLt computes a product, which cuDNN does not say without a GPU: as the trees have it, but for
        products of which the best of cuDNN's own kernels are old ones. Right for 7,861 of 8,244 passes, the trees alone
        for 7,774."""
        is_left = is_left_to_cublas(problem)
        if is_of_hopper(problem, engine):
            return is_left
        otherwise = kernels_of(problem, engine)
        if otherwise == "singly":
            return is_left or not (self.is_product_per_image or self.name == "forward")
        if self.name == "weight":
            return is_left and (self.is_nhwc or otherwise not in ("direct", "naive"))
        return is_left or not self.is_nhwc

    def _is_solid_product(self, problem: Problem, engine: int) -> bool:
        """Whether volumes are cuBLASLt's; their weight's gradient, an image at a time, if images are long enough, and
        wherever cuDNN's own kernels are old ones. Right for 173 of 214 gradients."""
        if self.name != "weight" or engine in _OLD_SOLID or (engine == _LOOSE_SOLID and self.image.dtype == "float32"):
            return True
        is_usual = engine in (usual_engine(problem), _SHORT_SOLID)
        is_wide = min(self.weight.shape[:2]) >= _SOLID_CHANNELS
        return is_usual and is_wide and prod(self.out.shape[2:]) >= _SOLID_PIXELS

    @property
    def has_short_gradient(self) -> bool:
        """Whether a weight's gradient may be computed by Winograd's transforms."""
        is_float = self.name == "weight" and self.image.dtype == "float32" and not self.is_nhwc
        return is_float and self.window in _SHORT_WINDOWS and {*self.stride, *self.dilation} == {1}

    @property
    def _is_worth_transforming(self) -> bool:
        is_small = self.window == _SHORT_WINDOWS[0] or self.out.numel <= _SHORT_PIXELS * self.out.shape[1]
        return is_small and min(self.weight.shape[:2]) >= _SHORT_CHANNELS

    def _channelwise_kernels(self, op: Op, windows: Windows) -> Channelwise:
        if self.is_torch_s_own:
            return "own"
        return engine_kernels(windows, self.choice(op).engine)

    def choice(self, op: Op) -> Choice:
        """cuDNN's, or as it was when the op was measured."""
        said = dict(op.kwargs)
        engine, tiling = said.get(ENGINE), said.get(TILING)
        if not isinstance(engine, int):
            return chosen(first_pass(op), PLANNED_FOR)
        return Choice(engine, Tiling(*tiling) if isinstance(tiling, tuple) else None)

    def tiling(self, op: Op, kernels: Kernels) -> Tiling | None:
        return self.choice(op).tiling if kernels in TILED else None

    def capability(self, op: Op, kernels: Kernels, engine: int) -> int:
        """For which the kernels are made: products whose rows are not aligned have old ones."""
        if kernels == "product":
            aligned = self.alignment(kernels)
            return HOPPER if aligned == VECTOR_BYTES else AMPERE if aligned >= _WORD_BYTES else TURING
        return HOPPER if kernels == "fused" and is_of_hopper(first_pass(op), engine) else AMPERE

    def turns_groups(self, op: Op, kernels: Kernels, engine: int) -> bool:
        """Whether the images of each group are copied into a layout of their own."""
        return kernels == "direct" and self.kind == "grouped" and turns_groups(first_pass(op), engine)

    def as_pass(self, kernels: Kernels, tiling: Tiling | None, capability: int) -> Pass:
        small, large = self.images
        sizes = (large.shape[2:], small.shape[2:], self.window, self.stride, self.padding, self.dilation)
        pixels = prod(small.shape[2:])
        is_channelwise = self.kind == "depthwise"
        is_grouped = self.is_nhwc and kernels == "fused" and self.kind == "grouped"
        return Pass(
            name=self.name,
            kernels=kernels,
            item_bytes=_item_bytes(self.image),
            window=prod(self.window),
            taps=total_taps(sizes) if kernels == "direct" or is_channelwise else 0.0,
            stride=prod(self.stride),
            spread=max(prod(large.shape[2:]) / max(pixels, 1), 1 / max(pixels, 1)),
            groups=self.groups,
            products=max(small.shape[0], 1) if kernels == "product" and self.is_product_per_image else 1,
            images=max(small.shape[0], 1),
            tiling=tiling,
            capability=capability,
            changes_layout=not self.is_nhwc and kernels in (*TILED, "first"),
            pads_channels=self.is_nhwc and kernels in _PADDING and self.groups == 1,
            group_width=group_width(self.weight.shape[1], self.weight.shape[0] // self.groups) if is_grouped else 0,
            windows=self.windows,
        )

    def place(self, kernels: Kernels, engine: int) -> tuple[float, ...]:
        """The coordinates that are no sizes, of what is not cut into tiles."""
        grouping, batch = self._grouping()
        if kernels == "product" and self.is_product_per_image:
            batch = _PRODUCT_BATCH_WEIGHT * log(self.out.shape[0])[0]
        alignment = _ALIGNMENT_WEIGHT * log(self.alignment(kernels))[0]
        if kernels == "product":
            alignment *= _PRODUCT_ALIGNMENT_WEIGHT
        windows = self.windows
        if windows is not None:
            weights = _SIDE_WEIGHTS.get(kernels)
            grouping = (weights[self.name] if weights else _SIDE_WEIGHT) * log(windows.pixels[-1])[0]
            alignment = log2(line_alignment(windows) / LINE_BYTES) if kernels == "naive" else 0.0
        longest, shortest = max(self.window, default=1), min(self.window, default=1)
        return (
            (_GROUPED_WINDOW_WEIGHT if self.kind == "grouped" else _WINDOW_WEIGHT) * log(prod(self.window))[0],
            grouping,
            log(prod(self.stride))[0],
            _DILATION_WEIGHT * log(max(self.dilation, default=1))[0],
            alignment,
            _DIMS_WEIGHT * len(self.window),
            batch,
            _OBLONG_WEIGHT * log(longest / max(shortest, 1))[0] * (windows is not None),
            _TYPE_WEIGHT * (self.image.dtype == "float16"),
            _ENGINE_WEIGHT * engine,
        )

    def _grouping(self) -> tuple[float, float]:
        """By groups and by images, where there are groups."""
        if self.kind != "grouped":
            return 0.0, 0.0
        grouping = _GROUP_WEIGHT * log(self.groups)[0] + _FEW_WEIGHT * (self.out.shape[0] < _FEW_IMAGES)
        return grouping, _BATCH_WEIGHT * log(self.out.shape[0])[0]

    def tiled_place(self, one: Pass, sizes: tuple[int, ...], share: float, engine: int) -> tuple[float, ...]:
        """The coordinates of what is cut into tiles: waves of these and steps of each, how much longer traffic takes
        than arithmetic, and the tile."""
        cut = cut_of(one, *sizes)
        parts = max(cut.parts, 1.0)
        grouping, batch = self._grouping()
        return (
            log2(max(cut.tiles * parts, 1) / PROCESSORS),
            *log(cut.depth / parts / cut.step),
            log2(share),
            _TILED_WEIGHT * log(prod(self.window))[0],
            grouping,
            _WIDTH_WEIGHT * log(self.weight.shape[1])[0] * (self.kind == "grouped"),
            _TILED_WEIGHT * log(prod(self.stride))[0],
            _TILED_WEIGHT * log(max(self.dilation, default=1))[0],
            _ALIGNMENT_WEIGHT * log(self.alignment(one.kernels))[0],
            _TILED_WEIGHT * _DIMS_WEIGHT * len(self.window),
            batch,
            _TILED_WEIGHT * _TYPE_WEIGHT * (self.image.dtype == "float16"),
            _ENGINE_WEIGHT * engine,
            *(_TILE_WEIGHT * value for value in log(cut.rows, cut.columns, cut.step)),
            *log(parts),
        )

    def rules(self, kernels: Kernels) -> Iterator[str]:
        """The most special first."""
        dtype = "half" if item_bytes(self.image.dtype) == 2 else "fp32"
        is_last = self.is_nhwc or (kernels == "product" and not self.is_product_per_image)
        own, other = ("nhwc", "nchw") if is_last else ("nchw", "nhwc")
        name = f"convolution {self.name}"
        if self.kind == "depthwise":
            yield from (
                f"{name} depthwise {dtype} {layout} {kind}" for layout in (own, other) for kind in like(kernels)
            )
        else:
            if kernels != "fused":
                yield from (f"{name} {self.kind} {dtype} {layout} {kernels}" for layout in (own, other))
            yield from (f"{name} {self.kind} {dtype} {layout} fused" for layout in (own, other))
        yield f"{name} plain {dtype} {own} fused"


def _item_bytes(tensor: TensorRef) -> int:
    return min(max(item_bytes(tensor.dtype), 2), 4)


def _each(setting: object, dims: int) -> tuple[int, ...]:
    """One number stands for all dimensions."""
    found = tuple(value for value in setting if isinstance(value, int)) if isinstance(setting, tuple) else ()
    return found if len(found) > 1 else (found or (1,)) * dims
