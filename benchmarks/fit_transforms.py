"""Fits the trees of src/trainfit/gpus/hidden/cudnn_transforms.py: when cuDNN transforms images to convolve them.

    python benchmarks/fit_transforms.py ask FILE.gz [SECONDS [PROCESSES]]    # on a GPU; nothing is timed
    python benchmarks/fit_transforms.py fit FILE.gz

Small images in float32 are drawn, and the GPU's own cuDNN is asked for its first plan of each pass. A tree is grown on
four fifths of them; what it finds of the last fifth, and of what it names is right, is printed.
"""

from __future__ import annotations

import gzip
import heapq
import itertools
import json
import math
import multiprocessing
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from probe_convolutions import handle_target
from trainfit.gpus.hidden import cudnn_library
from trainfit.gpus.hidden.cudnn import Kind, Problem
from trainfit.gpus.hidden.cudnn_library import Convolution, CudnnError
from trainfit.gpus.hidden.cudnn_transforms import features

ENGINES: dict[Kind, int] = {"output": 3, "input gradient": 50, "weight gradient": 18}
"""Of cuDNN 9.19."""
MAX_LEAVES, FEWEST = 300, 5
OUT = Path(__file__).parents[1] / "src/trainfit/gpus/hidden/cudnn_transforms.npz"


def between(random: Random, low: int, high: int) -> int:
    return round(2 ** random.uniform(math.log2(low), math.log2(high)))


def width(random: Random) -> int:
    if random.random() < 0.85:
        return random.choice((8, 8, 8, 4, 1)) * max(1, between(random, 8, 512) // 8)
    return random.choice((1, 3, 4))


def draw(random: Random) -> Convolution:
    side = random.choice((2, 3, 3, 3, 4, 5, 5, 5, 7, 7, 9, 11, 13, 15))
    window = (side, side) if random.random() < 0.9 else random.choice(((1, side), (side, 1)))
    rows = between(random, 2, 128)
    size = rows, rows if random.random() < 0.6 else between(random, 2, 128)
    inputs = width(random)
    outputs = inputs if random.random() < 0.4 else width(random)
    padding = tuple((one - 1) // 2 if random.random() < 0.8 else 0 for one in window)
    images = between(random, 1, 2048)
    results = (a + 2 * p - b + 1 for a, p, b in zip(size, padding, window, strict=True))
    x, weight, y = (images, inputs, *size), (outputs, inputs, *window), (images, outputs, *results)
    return Convolution(x, weight, y, (1, 1), padding, (1, 1), "float32", channels_last=False)


def is_moderate(one: Convolution) -> bool:
    largest = max(math.prod(one.x), math.prod(one.y))
    return min(one.y) >= 1 and largest <= 2**27 and math.prod(one.y) * math.prod(one.weight[1:]) >= 2**20


def ask(seed: int, seconds: float) -> list[tuple[Any, ...]]:
    target, loaded, random = handle_target(), cudnn_library.library(), Random(seed)
    end_s, found = time.monotonic() + seconds, []
    while time.monotonic() < end_s:
        one = draw(random)
        if not is_moderate(one):
            continue
        for kind in ENGINES:
            try:
                plan = cudnn_library.proposed_plan(loaded, one, kind, target)
            except CudnnError:
                continue
            found.append((kind, one.x, one.weight, one.y, one.padding, plan.engine if plan else -1))
    return found


def ask_all(path: Path, seconds: float, processes: int) -> None:
    with multiprocessing.get_context("spawn").Pool(processes) as pool, gzip.open(path, "wt") as file:
        for rows in pool.starmap(ask, [(seed, seconds) for seed in range(processes)]):
            file.writelines(json.dumps(row) + "\n" for row in rows)


def best_split(inputs: Any, labels: Any) -> tuple[float, int, int]:
    """What splitting gains by Gini's measure, the feature, and the most of it that goes left."""
    count, marked = len(labels), labels.sum()
    best = (0.0, -1, 0)
    for feature in range(inputs.shape[1]):
        order = np.argsort(inputs[:, feature], kind="stable")
        values, left_marked = inputs[order, feature], np.cumsum(labels[order])[:-1]
        left = np.arange(1, count)
        fits = (values[1:] != values[:-1]) & (left >= FEWEST) & (count - left >= FEWEST)
        mixed = left_marked * (1 - left_marked / left)
        mixed += (marked - left_marked) * (1 - (marked - left_marked) / (count - left))
        mixed = np.where(fits, mixed, np.inf)
        if mixed.size and np.isfinite(mixed.min()):
            at = int(mixed.argmin())
            gain = float(marked * (1 - marked / count) - mixed[at])
            best = max(best, (gain, feature, int((values[at] + values[at + 1]) // 2)))
    return best


def grow(inputs: Any, labels: Any) -> dict[str, Any]:
    """The most gainful split first."""
    numbers, open_nodes = itertools.count(), []

    def node(rows: Any) -> dict[str, Any]:
        made = {"rows": rows, "label": int(2 * labels[rows].sum() > len(rows))}
        gain, feature, most = best_split(inputs[rows], labels[rows])
        if gain > 0:
            heapq.heappush(open_nodes, (-gain, next(numbers), made, feature, most))
        return made

    root, leaves = node(np.arange(len(labels))), 1
    while open_nodes and leaves < MAX_LEAVES:
        _, _, parent, feature, most = heapq.heappop(open_nodes)
        goes_left = inputs[parent["rows"], feature] <= most
        children = [node(parent["rows"][goes_left]), node(parent["rows"][~goes_left])]
        parent.update(feature=feature, most=most, children=children)
        leaves += 1
    return root


def levels(root: dict[str, Any]) -> tuple[Any, Any]:
    """As `Tree` reads them: nodes level by level, features (-1 of leaves), and what goes left at most, or the label."""
    nodes, position = [root], 0
    while position < len(nodes):
        nodes += nodes[position].get("children", ())
        position += 1
    found = [(node.get("feature", -1), node.get("most", node["label"])) for node in nodes]
    feature, value = zip(*found, strict=True)
    return np.array(feature, dtype=np.int8), np.array(value, dtype=np.int32)


def fit(path: Path) -> None:
    rows: dict[Kind, list[tuple[tuple[int, ...], bool]]] = {kind: [] for kind in ENGINES}
    for line in gzip.decompress(path.read_bytes()).splitlines():
        kind, *shapes, padding, engine = json.loads(line)
        x, weight, y, pads = (tuple(shape) for shape in (*shapes, padding))
        problem = Problem(kind, "float32", False, x, weight, y, (1, 1), pads, (1, 1))
        rows[kind].append((features(problem), engine == ENGINES[kind]))
    stored = {}
    for kind, found in rows.items():
        inputs, labels = (np.array(column) for column in zip(*found, strict=True))
        seen = len(found) * 4 // 5
        root = grow(inputs[:seen], labels[:seen])
        feature, value = stored[f"{kind}/feature"], stored[f"{kind}/value"] = levels(root)
        named, true = guessed(feature, value, inputs[seen:]), labels[seen:]
        hits = (named & true).sum()
        print(kind, len(true), f"found {hits / true.sum():.3f}, right {hits / named.sum():.3f}", flush=True)
    np.savez_compressed(OUT, **stored)


def guessed(feature: Any, value: Any, inputs: Any) -> Any:
    from trainfit.gpus.hidden.cudnn import Tree

    tree = Tree.of(feature, value)
    return np.array([tree.form_number(row) > 0 for row in inputs.tolist()])


def main() -> None:
    action, path, *rest = sys.argv[1:]
    if action == "ask":
        ask_all(Path(path), float(rest[0]) if rest else 60.0, int(rest[1]) if len(rest) > 1 else 8)
    else:
        fit(Path(path))


if __name__ == "__main__":
    main()
