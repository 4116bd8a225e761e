"""Fits the trees of src/trainfit/gpus/hidden/cudnn_kernels.npz: which kernels cuDNN chooses, and how they cut.

    python benchmarks/public_convolutions.py --out PUBLIC.jsonl
    python benchmarks/fit_kernels.py ask FILE.gz SEED COUNT PUBLIC.jsonl SAMPLES.gz    # needs a cuDNN, but no GPU
    python benchmarks/fit_kernels.py fit FILE.gz ...                                  # needs scikit-learn

SAMPLES are `calibrate`'s (h200.json.partial.gz): convolutions that nets call. Three quarters of what is asked are these
and those of public architectures, whose batch, images, channels, precision and layout are drawn; the others are drawn
as `calibrate`'s list once was. 1,000 passes take a second.

Per pass and precision some trees are grown that say the engine and the tile, of which most votes count, and one that
says into how many parts a weight's gradient is cut, if into any. The very convolutions of measured nets (but for those
of libraries) are not learned. Written into the file: of windows that a hash chooses, one in ten, the shares of passes
of which the whole choice comes out right where trees were grown without these windows, the engine, and the kind of its
kernels, for each kind too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import torch

from drawn_filters import Drawn, frequent_layers, layers
from trainfit.cost.described import read_op
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden.convolution import first_pass
from trainfit.gpus.hidden.cudnn import Kind, Problem, family
from trainfit.gpus.hidden.cudnn_kernels import Choice, Tiling, asked, features, features_of_parts, kernels_of
from trainfit.records import Phase
from usual_filters import usual_layers

KINDS: tuple[Kind, ...] = ("output", "input gradient", "weight gradient")
DTYPES, DTYPE_SHARES, LAST_SHARE = ("bfloat16", "float32", "float16"), (0.4, 0.36, 0.24), 0.33
SOURCE_SHARES = {"nets": 0.75, "usual": 0.16, "frequent": 0.03, "drawn": 0.045, "positions": 0.015}
SCALES, CHANNEL_SCALES = (0.5, 0.75, 7 / 8, 8 / 7, 1.25, 1.5, 2), (0.5, 0.75, 1.25, 1.5, 2)
ELEMENTS, MOST_MULTIPLICATIONS = (2**10, 2**30), 2**42
NUM_TREES, HELD_OUT = 3, 10
OUT = Path(__file__).parents[1] / "src/trainfit/gpus/hidden/cudnn_kernels.npz"
GPU = find_gpu("h200")
Shape = tuple[int, ...]
Shapes = tuple[Shape, Shape, Shape, Shape, Shape]
"""Image, weight, stride, padding, dilation."""
Row = tuple[Problem, int, Tiling | None]


def as_image(shape: Sequence[int], first: int) -> Shape:
    return tuple(shape) if len(shape) > 1 else (first, *shape)


def positions(random: Random) -> Drawn:
    """Wide windows in groups over sequences of tokens."""
    groups, width = random.choice((8, 16, 16, 16, 32)), random.choice((16, 24, 32, 48, 48, 64, 64, 80))
    window, step = random.choice((9, 19, 31, 48, 64, 128, 128, 128)), random.choice((1, 1, 1, 2))
    length, images = random.choice((random.randrange(40, 1600), 249, 499, 749, 999, 1499)), random.randrange(1, 65)
    return Drawn(
        (random.choice((images, random.randrange(1, 9))), groups * width, length),
        (groups * width, width, window),
        stride=(step,),
        padding=(window // 2,),
        dilation=(1,),
        groups=groups,
        is_transposed=False,
        dtype=random.choice((torch.float32, torch.bfloat16, torch.float16)),
        nhwc=False,
    )


def public_shapes(path: Path) -> dict[str, list[Shapes]]:
    """By family of nets."""
    found: dict[str, list[Shapes]] = defaultdict(list)
    for line in path.read_text().splitlines():
        name, (channels, *sides), (outputs, inputs, *window), stride, padding, dilation = json.loads(line)
        image, weight = (1, channels, *as_image(sides, 1)), (outputs, inputs, *as_image(window, 1))
        found[name].append((image, weight, as_image(stride, 1), as_image(padding, 0), as_image(dilation, 1)))
    return found


def sampled_shapes(path: Path) -> list[Shapes]:
    found = set()
    with gzip.open(path, "rt") as file:
        for line in file:
            if '"aten.convolution' in line and "sample" in (record := json.loads(line)):
                problem = first_pass(read_op(record["sample"]["op"], record["sample"]["args"], {}, [], Phase.BACKWARD))
                found.add((problem.x, problem.weight, problem.stride, problem.padding, problem.dilation))
    return sorted(found)


def varied(shapes: Shapes, random: Random) -> Problem:
    """With another batch, other images or other channels."""
    image, weight, stride, padding, dilation = shapes
    (images, channels, *sides), (outputs, inputs, *window) = image, weight
    if random.random() < 0.6:
        images = round(2 ** random.uniform(0, 9))
    if random.random() < 0.45:
        scale = random.choice((*SCALES, random.uniform(0.4, 2.5)))
        sides = [max(1, round(scale * side)) if side > 1 else side for side in sides]
    if random.random() < 0.2 and channels == inputs:
        scale = random.choice(CHANNEL_SCALES)
        outputs = max(1, round(scale * outputs)) if random.random() < 0.6 else outputs
        channels = inputs = max(1, round(scale * inputs)) if random.random() < 0.6 else inputs
    settings = zip(sides, window, stride, padding, dilation, strict=True)
    out = (images, outputs, *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in settings))
    return Problem(
        "output", random.choices(DTYPES, DTYPE_SHARES)[0], random.random() < LAST_SHARE,
        (images, channels, *sides), (outputs, inputs, *window), out, stride, padding, dilation,
    )  # fmt: skip


def of_layer(layer: Drawn) -> Problem:
    x, y = (layer.out, layer.x) if layer.is_transposed else (layer.x, layer.out)
    shapes = ((*shape[:2], *as_image(shape[2:], 1)) for shape in (x, layer.weight, y))
    settings = as_image(layer.stride, 1), as_image(layer.padding, 0), as_image(layer.dilation, 1)
    return Problem("output", str(layer.dtype).removeprefix("torch."), layer.nhwc, *shapes, *settings)


def is_moderate(problem: Problem) -> bool:
    shapes = problem.x, problem.weight, problem.y
    elements = max(math.prod(problem.x), math.prod(problem.y))
    return (
        min(map(min, shapes)) > 0
        and ELEMENTS[0] <= elements < ELEMENTS[1]
        and elements * math.prod(problem.weight[1:]) < MOST_MULTIPLICATIONS
    )


def problems(seed: int, public: dict[str, list[Shapes]], sampled: list[Shapes]) -> Iterator[Problem]:
    """All passes of each convolution; without end."""
    random, names = Random(seed), sorted(public)
    drawn = {"usual": usual_layers(seed), "frequent": frequent_layers(seed), "drawn": layers(seed)}
    while True:
        (source,) = random.choices(tuple(SOURCE_SHARES), tuple(SOURCE_SHARES.values()))
        if source == "nets":
            chosen = sampled if random.random() < 0.5 else public[random.choice(names)]
            problem = varied(random.choice(chosen), random)
        else:
            problem = of_layer(positions(random) if source == "positions" else next(drawn[source]))
        if is_moderate(problem):
            yield from (replace(problem, kind=kind) for kind in KINDS)


def ask(path: Path, seed: int, count: int, public: Path, samples: Path) -> None:
    drawn = islice(problems(seed, public_shapes(public), sampled_shapes(samples)), count)
    with gzip.open(path, "wt", compresslevel=3) as file:
        for problem in drawn:
            choice = asked(problem, GPU)
            if choice is not None:
                tiling = choice.tiling and astuple(choice.tiling)
                file.write(json.dumps([*astuple(problem), choice.engine, tiling]) + "\n")


def read(paths: Sequence[Path]) -> dict[str, list[Row]]:
    """By family."""
    found: dict[str, list[Row]] = defaultdict(list)
    for path in paths:
        with gzip.open(path, "rt") as file:
            for line in file:
                kind, dtype, is_last, *shapes, engine, tiling = json.loads(line)
                problem = Problem(kind, dtype, is_last, *map(tuple, shapes))
                found[family(problem)].append((problem, engine, tiling and Tiling(*tiling)))
    return found


def is_held_out(problem: Problem) -> bool:
    return crc32(repr((problem.weight, problem.stride, problem.padding)).encode()) % HELD_OUT == 0


def choice_of(engine: int, tiling: Tiling | None) -> str:
    """Without the number of parts, if there are several."""
    return json.dumps((engine, tiling and (*astuple(tiling)[:3], min(tiling.parts, 2))))


def fit(paths: Sequence[Path]) -> None:
    from fit_convolutions import shapes, shapes_of_measured_models

    left_out = shapes_of_measured_models()
    stored: dict[str, Any] = {}
    choices, accuracies = {}, {}
    for name, rows in sorted(read(paths).items()):
        rows = [row for row in rows if shapes(row[0]) not in left_out]
        numbers = Counter(choice_of(engine, tiling) for _, engine, tiling in rows)
        common = sorted(numbers)
        found = fitted(rows, common)
        choices[name], accuracies[name] = [json.loads(text) for text in common], found.pop("accuracy")
        stored |= {f"{name}/{key}": value for key, value in found.items()}
        print(name, len(rows), accuracies[name], flush=True)
    about = json.dumps({"accuracy": accuracies, "choices": choices, "trees": NUM_TREES})
    np.savez_compressed(OUT, about=np.array(about), **stored)
    print(OUT.stat().st_size, "bytes")


def fitted(rows: Sequence[Row], choices: Sequence[str]) -> dict[str, Any]:
    """The nodes of the trees of a family, and the "accuracy" of trees that were grown without what is held out."""
    from fit_convolutions import nodes

    known = np.array([features(problem) for problem, _, _ in rows], dtype=np.float32)
    numbers = {text: number for number, text in enumerate(choices)}
    labels = np.array([numbers[choice_of(engine, tiling)] for _, engine, tiling in rows])
    is_unseen = np.array([is_held_out(problem) for problem, _, _ in rows])
    votes = [tree.predict(known[is_unseen]) for tree in grown(known[~is_unseen], labels[~is_unseen])]
    chosen = [Counter(each).most_common(1)[0][0] for each in np.stack(votes, axis=1).tolist()]
    unseen = [row for row, own in zip(rows, is_unseen, strict=True) if own]
    found: dict[str, Any] = {"accuracy": accuracy(unseen, labels[is_unseen], np.array(chosen), choices)}
    for number, tree in enumerate(grown(known, labels)):
        found[f"choice/{number}/feature"], found[f"choice/{number}/value"] = nodes(tree)
    cut = [(problem, Choice(engine, tiling)) for problem, engine, tiling in rows if tiling and tiling.parts > 1]
    if cut:
        found["parts/feature"], found["parts/value"] = nodes_of_parts(cut)
    return found


def grown(known: Any, labels: Any) -> list[Any]:
    from sklearn.tree import DecisionTreeClassifier

    seeds = range(NUM_TREES)
    return [DecisionTreeClassifier(max_features=0.8, random_state=seed).fit(known, labels) for seed in seeds]


def nodes_of_parts(cut: Sequence[tuple[Problem, Choice]]) -> tuple[Any, Any]:
    """As `fit_convolutions.nodes`; a leaf has the geometric mean."""
    from sklearn.tree import DecisionTreeRegressor

    from fit_convolutions import by_level

    known = np.array([features_of_parts(problem, choice) for problem, choice in cut], dtype=np.float32)
    parts = np.log([choice.tiling.parts for _, choice in cut if choice.tiling])
    tree = DecisionTreeRegressor(max_features=0.8, random_state=0).fit(known, parts).tree_
    order = by_level(tree)
    is_inner = tree.feature[order] >= 0
    values = np.where(is_inner, np.floor(tree.threshold[order]), np.round(np.exp(tree.value[order, 0, 0])))
    return np.where(is_inner, tree.feature[order], -1).astype(np.int8), values.astype(np.int32)


def accuracy(unseen: Sequence[Row], labels: Any, chosen: Any, choices: Sequence[str]) -> dict[str, float]:
    engines = np.array([json.loads(text)[0] for text in choices])
    true = np.array([kernels_of(problem, engine) for problem, engine, _ in unseen])
    pairs = zip(unseen, engines[chosen].tolist(), strict=True)
    guessed = np.array([kernels_of(problem, engine) for (problem, _, _), engine in pairs])
    shares = {"choice": chosen == labels, "engine": engines[chosen] == engines[labels], "kind": guessed == true}
    shares |= {kind: (guessed == true)[true == kind] for kind in sorted(set(true.tolist()))}
    return {key: round(float(share.mean()), 3) for key, share in shares.items()} | {"rows": len(unseen)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    asking, fitting = actions.add_parser("ask"), actions.add_parser("fit")
    asking.add_argument("path", type=Path)
    asking.add_argument("seed", type=int)
    asking.add_argument("count", type=int)
    asking.add_argument("public", type=Path)
    asking.add_argument("samples", type=Path)
    fitting.add_argument("paths", type=Path, nargs="+")
    args = parser.parse_args()
    if args.action == "ask":
        ask(args.path, args.seed, args.count, args.public, args.samples)
    else:
        fit(args.paths)


if __name__ == "__main__":
    main()
