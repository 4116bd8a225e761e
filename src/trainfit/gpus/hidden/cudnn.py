"""Workspaces of cuDNN's convolutions: which kind of kernel runs, and what it takes from the allocator.

In: a `Problem`, one pass of one convolution as cuDNN sees it. Out: `workspace_bytes`. Two steps:
* Which form a workspace has depends on the engine that cuDNN's heuristics put first (torch runs that one:
  Conv_v8.cpp). The heuristics are a model inside the library; `cudnn_plans.npz` has five decision trees per pass and
  precision that imitate them, of which the middle counts. They were fitted to what cuDNN 9.19 itself proposes for an
  H200 (benchmarks/probe_convolutions.py; fit_convolutions.py): 587,000 passes of random convolutions and of those of
  public architectures, with batch, precision and layout drawn, asked without a GPU, and 305,000 products, asked on one.
  The file's "accuracy" has the shares of unseen shapes that come out right; the measured models' own convolutions are
  among the unseen. Other GPUs are taken to choose alike.
* How large a form is follows from the shapes, by the formulas below. Kernels read channels-last, so operands in the
  usual layout are copied; channels are padded to 16 bytes. Products are cut into tiles; where the last wave of tiles
  does not fill the GPU, its tiles are cut along the sum, and the partial tiles are kept in fp32.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.cudnn_library import Plan
from trainfit.gpus.hidden.tensors import ceil_div, item_bytes, product, round_up

Kind = Literal["output", "input gradient", "weight gradient"]
_VECTOR_BYTES = 16
# Blocks that run at once on an H200 when they come in clusters of this size: clusters do not span processor groups.
_BLOCKS_BY_CLUSTER = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120, 16: 112}
_H200_SMS = 132
PLAN_BYTES = 175  # what a plan takes besides its copies and sums, give or take 16; mostly within one unit of 512 bytes
# fp32: (steps of 32 summands, into how many parts such a sum is cut at most) by whether there is one wave
_MOST_SPLITS: dict[bool, tuple[tuple[int, int], ...]] = {
    True: ((256, 16), (150, 8), (64, 4), (33, 2)),
    False: ((24, 4), (14, 2)),
}
_STEPS_OF_LONG_SUMS, _STEPS_PER_SPLIT = 300, 33
_STEPS_PER_SPLIT_OF_WAVES = ((64, 4), (50, 5), (40, 6))  # more than one wave: (steps, fewest in a part)
# Halves: parts are added in pairs. A round of that costs as much as so many steps, times the root of a tile's numbers.
_STEPS_PER_ROUND = {"bfloat16": 12_672, "float16": 1_750}
_ROUNDS_OF_WAVES = ((5.0, _H200_SMS), (3.4, 8), (2.1, 4), (1.05, 2))  # (rounds that the steps are worth, most parts)
_STEPS_PER_SPLIT_OF_HALVES, _MOST_CHOSEN_SPLITS = 35, 8
COPIES = ("", "padded", "padded in fp32", "all", "x and y", "x and w", "y and w")

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

    @property
    def item_bytes(self) -> int:
        return item_bytes(self.dtype)

    @property
    def groups(self) -> int:
        return self.x[1] // self.weight[1]

    @property
    def kernel_pixels(self) -> int:
        return product(self.weight[2:])

    def product_sizes(self) -> tuple[int, int, int]:
        """Rows, columns and summands of the pass as a product of matrices."""
        num_outputs, num_inputs = product(self.y) // self.y[1], product(self.x) // self.x[1]
        if self.kind == "output":
            return num_outputs, self.weight[0], self.weight[1] * self.kernel_pixels
        if self.kind == "input gradient":
            return num_inputs, self.x[1], self.weight[0] * self.kernel_pixels
        return self.weight[0], self.weight[1] * self.kernel_pixels, num_outputs

    def features(self) -> tuple[int, ...]:
        """What the trees ask about."""
        unit = _VECTOR_BYTES // self.item_bytes
        rows, columns, depth = self.product_sizes()
        in_pixels, out_pixels = product(self.x[2:]), product(self.y[2:])
        tiles = ceil_div(rows, 128) * ceil_div(columns, 128)
        return (
            self.x[0],
            self.x[1],
            self.weight[0],
            self.weight[1],
            self.groups,
            self.kernel_pixels,
            self.weight[-1],
            self.stride[-1],
            self.x[2],
            self.x[-1],
            self.y[-1],
            in_pixels,
            out_pixels,
            self.x[0] * out_pixels,
            rows,
            columns,
            depth,
            tiles,
            tiles % _H200_SMS,
            rows * columns // 1024 * depth // 1024,
            int(self.channels_last),
            len(self.x),
            _largest_power_of_two(self.x[1], 16),
            _largest_power_of_two(self.weight[0], 16),
            _largest_power_of_two(in_pixels, 16),
            _largest_power_of_two(out_pixels, 16),
            round_up(self.x[1], unit) - self.x[1],
            self.x[2] * 2 - self.y[2] * self.stride[0] * 2,
            product(self.x) * self.item_bytes // 2**16,
            product(self.y) * self.item_bytes // 2**16,
            product(self.weight) * self.item_bytes // 2**12,
        )


def _largest_power_of_two(value: int, limit: int) -> int:
    return min(value & -value, limit)


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
        padded_in, padded_out = _padded_channels(problem, self.copies)
        weights = problem.kernel_pixels * padded_in * padded_out // problem.groups
        partials_bytes = 4 * weights * (self.splits + self.per_sample * problem.x[0]) + self.per_block_bytes * num_sms
        if self.tile:
            partials_bytes = _partial_tiles_bytes(problem, self.tile, num_sms)
        is_cublas = self.per_sample > 0 and not self.copies  # which has no plan
        total = _copies_bytes(problem, self.copies) + partials_bytes
        return total + PLAN_BYTES if total and not is_cublas else total


def _padded_channels(problem: Problem, copies: str) -> tuple[int, int]:
    """Channels of x and y in the copies; fp32 inputs are padded only if the copies say so."""
    in_channels, out_channels = problem.x[1], problem.weight[0]
    if not copies.startswith("padded"):
        return in_channels, out_channels
    unit, groups = _VECTOR_BYTES // problem.item_bytes, problem.groups
    pads_in = problem.item_bytes == 2 or copies == "padded in fp32"
    padded_in = groups * round_up(in_channels // groups, unit) if pads_in else in_channels
    return padded_in, groups * round_up(out_channels // groups, unit)


def _copies_bytes(problem: Problem, copies: str) -> int:
    size, unit = problem.item_bytes, _VECTOR_BYTES // problem.item_bytes
    x, weight, y = (size * product(shape) for shape in (problem.x, problem.weight, problem.y))
    if not copies.startswith("padded"):
        return {"": 0, "all": x + weight + y, "x and y": x + y, "x and w": x + weight, "y and w": y + weight}[copies]
    in_channels, out_channels = problem.x[1], problem.weight[0]
    padded_in, padded_out = _padded_channels(problem, copies)
    copies_in = not problem.channels_last or in_channels // problem.groups % unit != 0
    copies_out = not problem.channels_last or padded_out != out_channels
    total = 0
    if copies_in:
        total += x // in_channels * padded_in
    if copies_out:
        total += y // out_channels * padded_out
    is_same_layout = problem.kernel_pixels == 1 and (padded_in, padded_out) == (in_channels, out_channels)
    if (copies_in or copies_out) and not is_same_layout:
        total += size * problem.kernel_pixels * padded_in * padded_out // problem.groups
    return total


def _partial_tiles_bytes(problem: Problem, tile: tuple[int, int, int, int], num_sms: int) -> int:
    """fp32 partial sums of the tiles of the last wave, which as many blocks share as there are."""
    tile_rows, tile_columns, down, across = tile
    rows, columns, depth = problem.product_sizes()
    num_columns = ceil_div(columns, tile_columns)
    if problem.kind == "weight gradient":  # a tile lies within one pixel of the kernel
        num_columns = ceil_div(problem.weight[1], tile_columns) * problem.kernel_pixels
    num_tiles = round_up(ceil_div(rows, tile_rows), down) * round_up(num_columns, across)
    cluster = down * across
    num_blocks = _BLOCKS_BY_CLUSTER.get(cluster, 112) * num_sms // _H200_SMS
    last_wave = num_tiles if num_tiles < num_blocks else num_tiles % num_blocks
    if last_wave == 0:
        return 0
    is_one_wave = num_tiles < num_blocks
    num_steps = ceil_div(depth, 32)
    if problem.kind != "weight gradient":
        num_steps = ceil_div(depth // problem.kernel_pixels, 32) * problem.kernel_pixels
    room = num_blocks // last_wave
    if problem.item_bytes == 2:
        steps_per_round = _STEPS_PER_ROUND[problem.dtype] / math.sqrt(tile_rows * tile_columns)
        num_splits = _splits_of_halves(room, num_steps, steps_per_round, is_one_wave)
    else:
        num_splits = min(room, _most_splits(num_steps, is_one_wave))
    if num_splits > 1 and not is_one_wave:
        num_splits = ceil_div(num_steps, ceil_div(num_steps, num_splits))  # parts are equal, but for the last
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


def _splits_of_halves(room: int, num_steps: int, steps_per_round: float, is_one_wave: bool) -> int:
    """Into how many parts sums are cut, if up to `room` blocks may share one (12,700 plans of the probe, 97% exact)."""
    if not is_one_wave:
        most = (most for rounds, most in _ROUNDS_OF_WAVES if num_steps >= rounds * steps_per_round)
        return min(room, next(most, 1))
    if room > _MOST_CHOSEN_SPLITS:
        return min(room, round(num_steps / _STEPS_PER_SPLIT_OF_HALVES)) if num_steps >= _STEPS_OF_LONG_SUMS else 1
    rounds = {splits: (splits - 1).bit_length() for splits in (1, 2, 4, 8, room) if splits <= room}
    return min(rounds, key=lambda splits: num_steps / splits + steps_per_round * rounds[splits])


def _most_splits(num_steps: int, is_one_wave: bool) -> int:
    """Short sums of fp32 are not worth cutting much (14,100 plans of the probe, 94% of them exact)."""
    if is_one_wave and num_steps >= _STEPS_OF_LONG_SUMS:
        return num_steps // _STEPS_PER_SPLIT
    if not is_one_wave:
        for steps, fewest in _STEPS_PER_SPLIT_OF_WAVES:
            if num_steps >= steps:
                return ceil_div(num_steps, fewest)
    return next((most for steps, most in _MOST_SPLITS[is_one_wave] if num_steps >= steps), 0)


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


def tree_name(problem: Problem) -> str:
    """Plain products of matrices have trees of their own: cuBLASLt competes for them."""
    is_product = problem.kernel_pixels == 1 and set(problem.stride) == {1} and problem.groups == 1
    return f"{family(problem)}, product" if is_product else family(problem)


def is_left_to_cublas(problem: Problem) -> bool:
    """Is a product probably computed without copies, as cuBLASLt does?"""
    numbers = [tree.form_number(problem.features()) for tree in _trees(tree_name(problem))]
    return 2 * sum(not _forms()[number].copies for number in numbers) > len(numbers)


def workspace_bytes(problem: Problem, num_sms: int) -> int:
    if _has_depthwise_engine(problem):
        return _depthwise_bytes(problem)
    return middle_bytes(problem, _trees(tree_name(problem)), _forms(), num_sms)


def middle_bytes(problem: Problem, trees: Sequence[Tree], forms: Sequence[Form], num_sms: int) -> int:
    """The median of what an odd number of trees say, so that one that errs does not count."""
    features = problem.features()
    found = (forms[tree.form_number(features)].workspace_bytes(problem, num_sms) for tree in trees)
    return sorted(found)[len(trees) // 2]


def _has_depthwise_engine(problem: Problem) -> bool:
    """One filter per channel, channels-last halves, small odd kernels: 118 of 161 plans, others mostly take less."""
    is_depthwise = problem.groups > 1 and problem.weight[:2] == (problem.x[1], 1)
    kernel, stride = problem.weight[-1], problem.stride[-1]
    is_small = len(problem.x) == 4 and kernel in (1, 3, 5, 7) and stride <= min(kernel, 2)
    return is_depthwise and is_small and problem.channels_last and problem.item_bytes == 2


def _depthwise_bytes(problem: Problem) -> int:
    """Eight fp32 sums per sample and weight for the weight gradient, channels padded to 32; other passes need none."""
    if problem.kind != "weight gradient":
        return 0
    return 8 * 4 * problem.x[0] * problem.kernel_pixels * round_up(problem.x[1], 32)


def planned_bytes(problem: Problem, plan: Plan, gpu: Gpu) -> int:
    """The workspace of a plan that cuDNN made without a GPU.

    It is what the GPU's own plan takes, save where blocks share tiles: how many run at once only a GPU tells.
    """
    knobs = dict(plan.knobs)
    is_sharing = gpu.compute_capability == _SHARING_CAPABILITY and plan.engine == SHARING_ENGINES[family(problem)]
    tile = TILES.get(knobs.get(_TILE_KNOB, -1))
    if not is_sharing or knobs[_ALONE_KNOB] or tile is None:
        return plan.workspace_bytes
    shared = Form("padded in fp32", (*tile, knobs[_CLUSTER_ROWS_KNOB], knobs[_CLUSTER_COLUMNS_KNOB]))
    return shared.workspace_bytes(problem, gpu.num_sms)
