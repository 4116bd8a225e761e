"""By what kind of kernels cuDNN convolves: all at once, group by group, or directly.

In: a `Problem` and a GPU. Out: its `Choice` (`chosen`), an engine and how its kernels cut the product; and of what
kind these are (`kernels_of`):
* "fused": one kernel on the units of matrix products, which has all groups in it;
* "singly": one such kernel for each group, of a library (CUTLASS) that does not share a sum among processors;
* "first": one for first layers in float16, of four channels at most;
* "loose": one that does not keep its operands in shared memory, several times as slow;
* "direct": in tiles, without such units, up to twenty times as slow;
* "naive": a thread for each result, up to a hundred times as slow as that.

The heuristics' first plan names an engine, and engines are of one kind (seen on the H200 by the names of 12,000 passes'
kernels: 97% as here). Where cuDNN 9.19 is installed it is asked. Else decision trees imitate it: per pass and
precision some vote for an engine and its tile, and one says into how many parts a weight's gradient is cut
(cudnn_kernels.npz, benchmarks/fit_kernels.py); the file's "accuracy" has the shares of unseen ones that come out right.
Other versions number their engines otherwise, so they are imitated too.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden import cudnn_library
from trainfit.gpus.hidden.cudnn import TILES, Kind, Problem, Tree, family

Kernels = Literal["fused", "singly", "first", "loose", "direct", "naive"]
_VERSION = 919  # of cuDNN, without its last two digits
# Knobs of plans (cudnn_graph.h): the tile's number, steps along the sum by the kernels of two libraries, into how many
# parts a sum is cut by each of them, and whether it is not cut by what is left of a wave.
_TILE_KNOB, _STEP_KNOBS, _PARTS_KNOBS, _ALONE_KNOB = 2, (13, 5), (0, 17), 25
_TILES = TILES | {
    2: (128, 32), 8: (64, 32), 10: (64, 16), 11: (32, 16), 12: (32, 32), 14: (16, 64), 15: (128, 16), 19: (128, 192),
    20: (256, 96), 23: (32, 128),
}  # fmt: skip
_STEPS = {13: {0: 32, 1: 64, 2: 16}, 5: {2: 16, 3: 32, 4: 64}}
"""Seen on the H200 by the names of 8,550 kernels, of which 8,536 are as here."""
_HOPPER_ENGINES = {
    "output, half": (62,), "output, fp32": (67,), "input gradient, half": (67, 73), "input gradient, fp32": (71, 76),
    "weight gradient, half": (65,), "weight gradient, fp32": (68,),
}  # fmt: skip
_TURNING_ENGINES = {"output, fp32": 70, "input gradient, fp32": 74}
_ENGINES: dict[str, dict[tuple[int, ...], Kernels]] = {
    "output, half": {(27, 45, 46): "singly", (63,): "first", (47,): "loose", (1, 28, 57): "direct", (0,): "naive"},
    "output, fp32": {(35, 46): "singly", (48,): "loose", (28, 70): "direct", (0,): "naive"},
    "input gradient, half": {(57, 59, 64): "singly", (1, 2, 25): "direct", (0,): "naive"},
    "input gradient, fp32": {(58, 60, 65): "singly", (2, 25, 74): "direct", (0,): "naive"},
    "weight gradient, half": {
        (33, 45, 47, 49): "singly", (63,): "first", (37, 39, 40): "loose", (1,): "direct", (0, 16, 19): "naive",
    },
    "weight gradient, fp32": {(34, 48, 50): "singly", (40,): "loose", (1, 20): "direct", (0,): "naive"},
}  # fmt: skip
_USUAL = {
    "output, half": 62, "output, fp32": 67, "input gradient, half": 67, "input gradient, fp32": 71,
    "weight gradient, half": 65, "weight gradient, fp32": 68,
}  # fmt: skip


def kernels_of(problem: Problem, engine: int) -> Kernels:
    kinds = (kind for engines, kind in _ENGINES[family(problem)].items() if engine in engines)
    return next(kinds, "fused")


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut: into tiles of the result, and their sums into steps."""

    rows: int
    columns: int
    step: int
    parts: int
    """Into which a sum is cut; 0 where as many processors share a tile as there are left."""


@dataclass(frozen=True, slots=True)
class Choice:
    engine: int
    tiling: Tiling | None
    """None of kernels without tiles."""


def chosen(problem: Problem, gpu: Gpu) -> Choice:
    """What cuDNN runs, as it says, or probably."""
    return asked(problem, gpu) or imitated(problem)


def asked(problem: Problem, gpu: Gpu) -> Choice | None:
    """As cuDNN says; None where it cannot be asked."""
    if cudnn_library.version() // 100 != _VERSION:
        return None
    plan = cudnn_library.first_proposal(problem.described(), problem.kind, gpu)
    return None if plan is None else Choice(plan.engine, _tiling(problem.kind, dict(plan.knobs)))


def _tiling(kind: Kind, knobs: dict[int, int]) -> Tiling | None:
    tile, knob = _TILES.get(knobs.get(_TILE_KNOB, -1)), next((knob for knob in _STEP_KNOBS if knob in knobs), None)
    if tile is None or knob is None:
        return None
    parts = 1
    if kind == "weight gradient":
        parts = 0 if knobs.get(_ALONE_KNOB) == 0 else max([1, *(knobs[one] for one in _PARTS_KNOBS if one in knobs)])
    return Tiling(*tile, _STEPS[knob][knobs[knob]], parts)


def is_of_hopper(problem: Problem, engine: int) -> bool:
    """Whether its kernels are made for compute capability 9.0; others were made for 8.0."""
    return engine in _HOPPER_ENGINES[family(problem)]


def turns_groups(problem: Problem, engine: int) -> bool:
    """Whether each group's part of the images is first copied, element by element: where there is more than one image
    it does not lie in one piece."""
    return problem.groups > 1 and problem.x[0] > 1 and engine == _TURNING_ENGINES.get(family(problem))


def usual_engine(problem: Problem) -> int:
    """Of ordinary convolutions, which is fused."""
    return _USUAL[family(problem)]


def imitated(problem: Problem) -> Choice:
    name, known = family(problem), features(problem)
    votes = Counter(tree.form_number(known) for tree in _choice_trees(name))
    choice = _choices(name)[votes.most_common(1)[0][0]]
    if choice.tiling is None or choice.tiling.parts <= 1:
        return choice
    parts = _tree(f"{name}/parts").form_number(features_of_parts(problem, choice))
    return replace(choice, tiling=replace(choice.tiling, parts=parts))


def features(problem: Problem) -> tuple[int, ...]:
    """What the trees ask about that choose."""
    reach = max(dilation * (size - 1) for dilation, size in zip(problem.dilation, problem.weight[2:], strict=True))
    settings = max(problem.dilation), max(problem.stride), problem.padding[-1], reach, problem.weight[1]
    return (*problem.features(), *settings, int(problem.dtype == "float16"))


def features_of_parts(problem: Problem, choice: Choice) -> tuple[int, ...]:
    """And the one that says into how many parts what was chosen cuts a sum."""
    assert choice.tiling is not None
    return (*features(problem), choice.engine, choice.tiling.rows, choice.tiling.columns, choice.tiling.step)


@cache
def _tree(name: str) -> Tree:
    return Tree.of(*(_stored()[f"{name}/{part}"] for part in ("feature", "value")))


@cache
def _choice_trees(name: str) -> tuple[Tree, ...]:
    return tuple(_tree(f"{name}/choice/{number}") for number in range(_about()["trees"]))


@cache
def _choices(name: str) -> tuple[Choice, ...]:
    """By number; two parts stand for any number of them."""
    return tuple(Choice(engine, tiling and Tiling(*tiling)) for engine, tiling in _about()["choices"][name])


@cache
def _about() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(str(_stored()["about"]))
    return found


@cache
def _stored() -> Any:
    import numpy as np

    return np.load(io.BytesIO((files(__package__) / "cudnn_kernels.npz").read_bytes()))
