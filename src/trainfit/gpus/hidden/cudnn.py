"""Workspaces of cuDNN's convolutions: which kind of kernel runs, and what it takes from the allocator.

In: a `Problem`, one pass of one convolution as cuDNN sees it. Out: `workspace_bytes`. Two steps:
* Which form a workspace has depends on the engine that cuDNN's heuristics put first (torch runs that one:
  Conv_v8.cpp). The heuristics are a model inside the library; `cudnn_plans.npz` has three decision trees per pass and
  precision that imitate them, of which the middle counts. They were fitted to what cuDNN 9.19 itself proposes for an
  H200 (benchmarks/probe_convolutions.py; fit_convolutions.py): 2.5 million passes of random convolutions and of those
  of public architectures, with batch, precision and layout drawn, asked without a GPU, and 1.1 million products, asked
  on one. The file's "accuracy" has the shares of unseen shapes that come out right; the measured models' own
  convolutions are among the unseen. Other GPUs are taken to choose alike.
* How large a form is follows from the shapes, by the formulas below. Kernels read channels-last, so operands in the
  usual layout are copied; channels are padded to 16 bytes. Products are cut into tiles; where the last wave of tiles
  does not fill the GPU, its tiles are cut along the sum, and the partial tiles are kept in fp32.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.cudnn_library import Convolution, Plan
from trainfit.gpus.hidden.tensors import ceil_div, item_bytes, product, round_up

Kind = Literal["output", "input gradient", "weight gradient"]
_VECTOR_BYTES = 16
_IMAGE_RANK = 4
# Blocks that run at once on an H200 when they come in clusters of this size: clusters do not span processor groups.
_BLOCKS_BY_CLUSTER = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120, 16: 112}
_H200_SMS = 132
PLAN_BYTES = 175  # what a plan takes besides its copies and sums, give or take 16; mostly within one unit of 512 bytes
# Beyond two waves blocks draw their tiles from a counter, for which room is made; others know theirs. 245 plans of
# hidden_calls_h200.jsonl.gz tell it apart.
_MOST_WAVES_WITHOUT_COUNTER, _COUNTER_BYTES = 2, 131
# How sums are cut into parts, which are added in pairs (44,700 plans of the probe, 98% of them exact). Sums advance in
# steps; a round of adding costs as much as so many steps for a tile of 64 x 64, less for larger ones, and half of that
# where more than one wave runs. Then no part is shorter than four steps; in a single wave one of many parts is longer.
_STEP_BYTES = 128
_STEPS_PER_ROUND = {"float32": 24.7, "bfloat16": 99.5, "float16": 13.0}
_SMALLEST_TILE, _LESS_PER_DOUBLING = 64 * 64, 0.4
_SHARE_AMONG_WAVES, _MOST_ROUNDS_AMONG_WAVES, _FEWEST_STEPS_AMONG_WAVES = 0.47, 3.2, 4
_CHOSEN_SPLITS, _SUMMANDS_OF_MANY_PARTS = (1, 2, 4, 8), 1024
# Groups of up to so many channels are computed at once, with channels padded to a power of two, wider ones singly.
_WIDEST_FUSED_GROUP = 256
# An input gradient with a stride is as many convolutions as the stride has phases, with kernels of one size.
_PADDED = ("padded", "padded in fp32", "grouped", "phases")
COPIES = ("", *_PADDED, "all", "x and y", "x and w", "y and w")

# Engines of compute capability 9.0 whose blocks share tiles, and their knobs: the tile's number, blocks of a cluster
# along its rows and columns, and whether nothing is shared.
_SHARING_CAPABILITY = (9, 0)
SHARING_ENGINES = {
    "output, fp32": 67,
    "output, half": 62,
    "input gradient, fp32": 71,
    "input gradient, half": 67,
    "weight gradient, fp32": 68,
    "weight gradient, half": 65,
}
_TILE_KNOB, _ALONE_KNOB, _CLUSTER_ROWS_KNOB, _CLUSTER_COLUMNS_KNOB = 2, 25, 27, 28
TILES = {0: (128, 128), 1: (128, 64), 3: (256, 128), 4: (256, 64), 5: (64, 64), 6: (128, 256), 7: (64, 128)}
TILES |= {9: (64, 256), 16: (256, 32), 18: (64, 192)}


@dataclass(frozen=True, slots=True)
class Problem:
    """Shapes have at least two image dimensions; all tensors have one layout."""

    kind: Kind
    dtype: str  # "float32" with TF32 allowed, "bfloat16" or "float16"
    channels_last: bool
    x: tuple[int, ...]
    weight: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def item_bytes(self) -> int:
        return item_bytes(self.dtype)

    @property
    def groups(self) -> int:
        return self.x[1] // self.weight[1]

    @property
    def widest_group(self) -> int:
        return max(self.x[1], self.weight[0]) // self.groups

    @property
    def kernel_pixels(self) -> int:
        return product(self.weight[2:])

    @property
    def pixels_of_phases(self) -> int:
        settings = zip(self.weight[2:], self.stride, self.padding, strict=True)
        return product(tuple(stride * ceil_div(size + padding, stride) for size, stride, padding in settings))

    def described(self) -> Convolution:
        shapes, settings = (self.x, self.weight, self.y), (self.stride, self.padding, self.dilation)
        return Convolution(*shapes, *settings, self.dtype, self.channels_last)

    def product_sizes(self) -> tuple[int, int, int]:
        """Rows, columns and summands of the pass as a product of matrices."""
        num_outputs, num_inputs = product(self.y) // self.y[1], product(self.x) // self.x[1]
        if self.kind == "output":
            return num_outputs, self.weight[0], self.weight[1] * self.kernel_pixels
        if self.kind == "input gradient":
            return num_inputs, self.x[1], self.weight[0] * self.kernel_pixels
        return self.weight[0], self.weight[1] * self.kernel_pixels, num_outputs

    def features(self) -> tuple[int, ...]:
        """What the trees ask about; those that told cuDNN's choices apart best, with others they learned worse."""
        x_pixels, y_pixels = self.x[0] * product(self.x[2:]), self.x[0] * product(self.y[2:])
        in_channels, out_channels = self.weight[1], self.weight[0] // self.groups  # of a group
        depth = self.kernel_pixels * (out_channels if self.kind == "input gradient" else in_channels)
        return (
            self.x[0],
            self.x[1],
            self.weight[0],
            out_channels,
            self.groups,
            self.x[2],
            self.x[-1],
            self.weight[2],
            self.weight[-1],
            self.kernel_pixels,
            self.stride[-1],
            self.padding[0],
            self.dilation[-1],
            len(self.x),
            int(self.channels_last),
            x_pixels if self.kind == "output" else y_pixels,
            y_pixels % 64,
            in_channels % 64,
            out_channels % 64,
            depth,
            depth % 64,
        )


@dataclass(frozen=True, slots=True)
class Form:
    """What a workspace consists of; as text `copies/partials`, as in "padded/t128x64c1x2"."""

    copies: str
    tile: tuple[int, int, int, int] | None = None  # rows, columns, and the cluster's blocks along them
    splits: int = 0  # whole fp32 weights
    per_sample: int = 0  # whole fp32 weights per sample
    per_block_bytes: int = 0  # a tile for every block

    def __str__(self) -> str:
        if self.tile:
            rows, columns, down, across = self.tile
            return f"{self.copies}/t{rows}x{columns}c{down}x{across}"
        if self.per_block_bytes:
            return f"{self.copies}/b{self.per_block_bytes}"
        return f"{self.copies}/s{self.splits}" if self.splits else f"{self.copies}/n{self.per_sample}"

    @staticmethod
    def parse(text: str) -> Form:
        copies, partials = text.split("/")
        kind, rest = partials[0], partials[1:]
        if kind == "t":
            rows, columns, down, across = map(int, rest.replace("c", "x").split("x"))
            return Form(copies, (rows, columns, down, across))
        number = int(rest)
        if kind == "b":
            return Form(copies, per_block_bytes=number)
        return Form(copies, splits=number) if kind == "s" else Form(copies, per_sample=number)

    def workspace_bytes(self, problem: Problem, num_sms: int) -> int:
        if self.tile:
            return _tiled_bytes(problem, self.copies, self.tile, num_sms)
        padded_in, padded_out = _padded_channels(problem, self.copies)
        weights = problem.kernel_pixels * padded_in * padded_out // problem.groups
        partials_bytes = 4 * weights * (self.splits + self.per_sample * problem.x[0]) + self.per_block_bytes * num_sms
        is_cublas = self.per_sample > 0 and not self.copies  # which has no plan
        total = _copies_bytes(problem, self.copies) + partials_bytes
        return total + PLAN_BYTES if total and not is_cublas else total


def _padded_channels(problem: Problem, copies: str) -> tuple[int, int]:
    """Channels of x and y in the copies; fp32 inputs are padded only if the copies say so."""
    in_channels, out_channels, groups = problem.x[1], problem.weight[0], problem.groups
    if copies not in _PADDED:
        return in_channels, out_channels
    unit = _VECTOR_BYTES // problem.item_bytes
    if copies == "grouped" and problem.widest_group <= _WIDEST_FUSED_GROUP:
        padded = groups * max(unit, 1 << (problem.widest_group - 1).bit_length())
        return padded, padded
    pads_in = problem.item_bytes == 2 or copies != "padded"
    padded_in = groups * round_up(in_channels // groups, unit) if pads_in else in_channels
    return padded_in, groups * round_up(out_channels // groups, unit)


def _copies_bytes(problem: Problem, copies: str) -> int:
    size, unit = problem.item_bytes, _VECTOR_BYTES // problem.item_bytes
    x, weight, y = (size * product(shape) for shape in (problem.x, problem.weight, problem.y))
    if copies not in _PADDED:
        return {"": 0, "all": x + weight + y, "x and y": x + y, "x and w": x + weight, "y and w": y + weight}[copies]
    in_channels, out_channels = problem.x[1], problem.weight[0]
    padded_in, padded_out = _padded_channels(problem, copies)
    is_taken_apart = copies == "phases" or (copies == "grouped" and problem.widest_group > _WIDEST_FUSED_GROUP)
    # Images of one pixel are the same in both layouts.
    copies_in = (not problem.channels_last and product(problem.x[2:]) > 1) or in_channels // problem.groups % unit != 0
    copies_out = not problem.channels_last and product(problem.y[2:]) > 1
    total = 0
    if copies_in or padded_in != in_channels or is_taken_apart:
        total += x // in_channels * padded_in
    if copies_out or padded_out != out_channels or is_taken_apart:
        total += y // out_channels * padded_out
    is_padded = (padded_in, padded_out) != (in_channels, out_channels)
    changes_layout = problem.kernel_pixels > 1 and not (problem.channels_last and is_taken_apart)
    if is_padded or copies == "phases" or (total and changes_layout):
        pixels = problem.pixels_of_phases if copies == "phases" else problem.kernel_pixels
        total += size * pixels * padded_in * padded_out // problem.groups
    return total


Tile = tuple[int, int, int, int]


def _tiled_bytes(problem: Problem, copies: str, tile: Tile, num_sms: int) -> int:
    """Of all groups: narrow ones are tiles of one product, wide ones are products."""
    group, num_products, times = _products(problem, tile)
    partials_bytes = times * _partial_tiles_bytes(group, num_products, tile, num_sms)
    copied_bytes = _copies_bytes(problem, copies)
    if partials_bytes:
        return copied_bytes + partials_bytes + PLAN_BYTES
    counter_bytes = _COUNTER_BYTES if _has_counter(problem, tile, num_sms) else 0
    return copied_bytes + counter_bytes + (_VECTOR_BYTES if copied_bytes else 0)


def _products(problem: Problem, tile: Tile) -> tuple[Problem, int, int]:
    """One group, how many products it is taken for (narrow groups share one where it has room), and how many times."""
    groups = problem.groups
    if groups == 1:
        return problem, 1, 1
    padded_in, padded_out = (padded // groups for padded in _padded_channels(problem, "grouped"))
    group = replace(
        problem,
        x=(problem.x[0], padded_in, *problem.x[2:]),
        weight=(padded_out, padded_in, *problem.weight[2:]),
        y=(problem.y[0], padded_out, *problem.y[2:]),
    )
    if problem.widest_group > _WIDEST_FUSED_GROUP:
        return group, 1, groups
    return group, ceil_div(groups, max(1, tile[1] // padded_in)), 1


def _tiles_and_blocks(problem: Problem, num_products: int, tile: Tile, num_sms: int) -> tuple[int, int]:
    """How many tiles there are, and how many blocks run at once."""
    tile_rows, tile_columns, down, across = tile
    rows, columns, _ = problem.product_sizes()
    num_columns = ceil_div(columns, tile_columns)
    if problem.kind == "weight gradient":  # a tile lies within one pixel of the kernel
        num_columns = ceil_div(problem.weight[1], tile_columns) * problem.kernel_pixels
    num_tiles = num_products * round_up(ceil_div(rows, tile_rows), down) * round_up(num_columns, across)
    return num_tiles, _BLOCKS_BY_CLUSTER.get(down * across, 112) * num_sms // _H200_SMS


def _has_counter(problem: Problem, tile: Tile, num_sms: int) -> bool:
    group, num_products, _ = _products(problem, tile)
    num_tiles, num_blocks = _tiles_and_blocks(group, num_products, tile, num_sms)
    return num_tiles > _MOST_WAVES_WITHOUT_COUNTER * num_blocks


def _partial_tiles_bytes(problem: Problem, num_products: int, tile: Tile, num_sms: int) -> int:
    """fp32 partial sums of the tiles of the last wave, which as many blocks share as there are."""
    tile_rows, tile_columns, *_ = tile
    depth = problem.product_sizes()[2]
    num_tiles, num_blocks = _tiles_and_blocks(problem, num_products, tile, num_sms)
    last_wave = num_tiles if num_tiles < num_blocks else num_tiles % num_blocks
    if last_wave == 0:
        return 0
    summands_per_step = _STEP_BYTES // problem.item_bytes
    num_steps = ceil_div(depth, summands_per_step)
    if problem.kind != "weight gradient":
        num_steps = ceil_div(depth // problem.kernel_pixels, summands_per_step) * problem.kernel_pixels
    doublings = math.log2(tile_rows * tile_columns / _SMALLEST_TILE)
    steps_per_round = _STEPS_PER_ROUND[problem.dtype] / (1 + _LESS_PER_DOUBLING * doublings)
    room = num_blocks // last_wave
    if num_tiles < num_blocks:
        fewest_steps = _SUMMANDS_OF_MANY_PARTS // summands_per_step + 1
        num_splits = _splits_of_one_wave(room, num_steps, fewest_steps, steps_per_round)
    else:
        num_splits = _splits_among_waves(room, num_steps, steps_per_round * _SHARE_AMONG_WAVES)
    if num_splits <= 1:
        return 0
    return last_wave * (4 * tile_rows * tile_columns * num_splits + 4 * _num_pairs(num_splits))


def _num_pairs(num_splits: int) -> int:
    """Pairs of parts, pairs of those and so on, each of which has a counter."""
    pairs = 0
    while num_splits > 1:
        num_splits = ceil_div(num_splits, 2)
        pairs += num_splits
    return pairs


def _splits_of_one_wave(room: int, num_steps: int, fewest_steps: int, steps_per_round: float) -> int:
    """Into how many parts sums are cut, if up to `room` blocks may share one."""
    many = min(room, num_steps // fewest_steps)
    if many > _CHOSEN_SPLITS[-1]:
        return many
    rounds = {splits: (splits - 1).bit_length() for splits in (*_CHOSEN_SPLITS, room) if splits <= room}
    rounds = {splits: number for splits, number in rounds.items() if splits <= _CHOSEN_SPLITS[-1]}
    return min(rounds, key=lambda splits: num_steps / splits + steps_per_round * rounds[splits])


def _splits_among_waves(room: int, num_steps: int, steps_per_round: float) -> int:
    """The same for the last of several waves."""
    most = min(room, max(1, num_steps // _FEWEST_STEPS_AMONG_WAVES))
    rounds = {splits: min(math.log2(splits), _MOST_ROUNDS_AMONG_WAVES) for splits in (*_CHOSEN_SPLITS, most)}
    chosen = (splits for splits in rounds if splits <= room)
    best = min(chosen, key=lambda splits: (num_steps / splits + steps_per_round * rounds[splits], splits))
    return ceil_div(num_steps, ceil_div(num_steps, best))  # parts are equal, but for the last


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes level by level; the children of a node are neighbours."""

    feature: Sequence[int]  # -1 at a leaf
    value: Sequence[int]  # threshold, or at a leaf the number of a form
    first_child: Sequence[int]

    @staticmethod
    def of(feature: Any, value: Any) -> Tree:
        """The n-th node with children has nodes 2n + 1 and 2n + 2."""
        return Tree(feature.tolist(), value.tolist(), (2 * (feature >= 0).cumsum() - 1).tolist())

    def form_number(self, features: Sequence[int]) -> int:
        node = 0
        while (asked := self.feature[node]) >= 0:
            node = self.first_child[node] + (features[asked] > self.value[node])
        return self.value[node]


@cache
def _stored() -> Any:
    import numpy as np

    return np.load(io.BytesIO((files(__package__) / "cudnn_plans.npz").read_bytes()))


@cache
def _forms() -> tuple[Form, ...]:
    return tuple(map(Form.parse, json.loads(str(_stored()["about"]))["forms"]))


@cache
def _trees(name: str) -> tuple[Tree, ...]:
    stored = _stored()
    numbers = range(json.loads(str(stored["about"]))["trees"])
    return tuple(Tree.of(*(stored[f"{name}/{number}/{part}"] for part in ("feature", "value"))) for number in numbers)


def family(problem: Problem) -> str:
    return f"{problem.kind}, {'fp32' if problem.item_bytes == 4 else 'half'}"


def _is_product(problem: Problem) -> bool:
    """Plain products of matrices, for which cuBLASLt competes; it computes no weight gradients of volumes."""
    is_of_volumes = problem.kind == "weight gradient" and len(problem.x) > _IMAGE_RANK
    is_product = problem.kernel_pixels == 1 and set(problem.stride) == {1} and problem.groups == 1
    return is_product and not is_of_volumes


def tree_name(problem: Problem) -> str:
    """Products have trees of their own."""
    return f"{family(problem)}, product" if _is_product(problem) else family(problem)


def is_left_to_cublas(problem: Problem) -> bool:
    """Is it a product that is probably computed without copies, as cuBLASLt does?"""
    if not _is_product(problem):
        return False
    numbers = [tree.form_number(problem.features()) for tree in _trees(tree_name(problem))]
    return 2 * sum(not _forms()[number].copies for number in numbers) > len(numbers)


def workspace_bytes(problem: Problem, num_sms: int) -> int:
    if has_depthwise_engine(problem):
        return _depthwise_bytes(problem)
    return middle_bytes(problem, _trees(tree_name(problem)), _forms(), num_sms)


def middle_bytes(problem: Problem, trees: Sequence[Tree], forms: Sequence[Form], num_sms: int) -> int:
    """The median of what an odd number of trees say, so that one that errs does not count."""
    features = problem.features()
    found = (forms[tree.form_number(features)].workspace_bytes(problem, num_sms) for tree in trees)
    return sorted(found)[len(trees) // 2]


def has_depthwise_engine(problem: Problem) -> bool:
    """One filter per channel, channels-last halves, small odd kernels without gaps: 118 of 161 plans, others mostly
    take less."""
    is_depthwise = problem.groups > 1 and problem.weight[:2] == (problem.x[1], 1)
    kernel, stride = problem.weight[-1], problem.stride[-1]
    is_small = len(problem.x) == 4 and kernel in (1, 3, 5, 7) and stride <= min(kernel, 2)
    is_small = is_small and set(problem.dilation) == {1}
    return is_depthwise and is_small and problem.channels_last and problem.item_bytes == 2


def _depthwise_bytes(problem: Problem) -> int:
    """Eight fp32 sums per sample and weight for the weight gradient, channels padded to 32; other passes need none."""
    if problem.kind != "weight gradient":
        return 0
    return 8 * 4 * problem.x[0] * problem.kernel_pixels * round_up(problem.x[1], 32)


def shared_copies(problem: Problem) -> str:
    """What engines copy whose blocks share tiles."""
    return "padded in fp32" if problem.groups == 1 else "grouped"


def planned_bytes(problem: Problem, plan: Plan, gpu: Gpu) -> int:
    """The workspace of a plan that cuDNN made without a GPU.

    It is what the GPU's own plan takes, save where blocks share tiles: how many run at once only a GPU tells.
    """
    knobs = dict(plan.knobs)
    is_sharing = gpu.compute_capability == _SHARING_CAPABILITY and plan.engine == SHARING_ENGINES[family(problem)]
    sizes = TILES.get(knobs.get(_TILE_KNOB, -1))
    if not is_sharing or sizes is None:
        return plan.workspace_bytes
    tile = (*sizes, knobs[_CLUSTER_ROWS_KNOB], knobs[_CLUSTER_COLUMNS_KNOB])
    copies = shared_copies(problem)
    if not knobs[_ALONE_KNOB]:
        return _tiled_bytes(problem, copies, tile, gpu.num_sms)
    counts_in_vain = not _has_counter(problem, tile, gpu.num_sms)
    has_room = plan.workspace_bytes >= _copies_bytes(problem, copies) + _COUNTER_BYTES
    return plan.workspace_bytes - (_COUNTER_BYTES if counts_in_vain and has_room else 0)
