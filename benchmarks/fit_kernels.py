"""Fits the trees of src/trainfit/gpus/hidden/cudnn_kernels.py: by what kind of kernels cuDNN convolves.

    python benchmarks/fit_kernels.py ask FILE.gz [COUNT]      # where cuDNN is installed; no GPU is needed
    python benchmarks/fit_kernels.py fit FILE.gz              # needs scikit-learn

Convolutions are drawn as `calibrate` draws its filters, half of them as nets have them, every eighth as
probe_convolutions.py does, every eighth is one of those that tell speech models where tokens stand, by seeds of their
own. A tree is grown on four fifths of them, which says the engine; the shares of the last fifth of which the engine
comes out right, and the kind of its kernels, of all and of each kind, are written into the file.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch

from drawn_filters import Drawn, frequent_layers, layers
from probe_convolutions import DTYPES, draw, is_moderate
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden.cudnn import Kind, Problem, family
from trainfit.gpus.hidden.cudnn_kernels import asked, features, kernels_of
from usual_filters import usual_layers

SEED, COUNT = 901, 90_000
KINDS: tuple[Kind, ...] = ("output", "input gradient", "weight gradient")
MAX_LEAVES, FEWEST = 600, 5
OUT = Path(__file__).parents[1] / "src/trainfit/gpus/hidden/cudnn_kernels.npz"
GPU = find_gpu("h200")


def as_image(shape: tuple[int, ...], first: int) -> tuple[int, ...]:
    return shape if len(shape) > 1 else (first, *shape)


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


def problems(count: int) -> Iterator[Problem]:
    """All passes of convolutions; those of a window per channel are left out, and products, which cuBLASLt does."""
    drawn, often, usual, random = layers(SEED), frequent_layers(SEED), usual_layers(SEED), Random(SEED)
    for number in range(count):
        if number % 8:
            turn = {2: often, 3: drawn, 4: drawn}.get(number % 8, usual)
            layer = positions(random) if number % 8 == 1 else next(turn)
            dtype, is_last = str(layer.dtype).removeprefix("torch."), layer.nhwc
            x, y = (layer.out, layer.x) if layer.is_transposed else (layer.x, layer.out)
            shapes = tuple((*shape[:2], *as_image(shape[2:], 1)) for shape in (x, layer.weight, y))
            settings = as_image(layer.stride, 1), as_image(layer.padding, 0), as_image(layer.dilation, 1)
        else:
            other = draw(random)
            if not is_moderate(other):
                continue
            dtype, is_last = DTYPES[other.dtype], other.channels_last
            shapes, settings = (other.x, other.w, other.y), (other.stride, other.padding, other.dilation)
        is_product = all(size == 1 for size in (*shapes[1][2:], *settings[0])) and shapes[0][1] == shapes[1][1]
        if not is_product and not shapes[0][1] > shapes[1][1] == 1:
            yield from (Problem(kind, dtype, is_last, *shapes, *settings) for kind in KINDS)


def ask(path: Path, count: int) -> None:
    with gzip.open(path, "wt") as file:
        for problem in problems(count):
            engine = asked(problem, GPU)
            if engine is not None:
                known = family(problem), features(problem), engine, kernels_of(problem, engine)
                file.write(json.dumps(known) + "\n")


def fit(path: Path) -> None:
    import numpy as np
    from sklearn.tree import DecisionTreeClassifier

    from fit_convolutions import nodes  # needs sklearn, which asking does not

    rows: dict[str, list[tuple[list[int], int]]] = defaultdict(list)
    kinds: dict[str, dict[int, str]] = defaultdict(dict)
    for line in gzip.decompress(path.read_bytes()).splitlines():
        name, known, engine, kind = json.loads(line)
        rows[name].append((known, engine))
        kinds[name][engine] = kind
    stored: dict[str, Any] = {}
    accuracy = {}
    for name, found in sorted(rows.items()):
        inputs, labels = (np.array(column) for column in zip(*found, strict=True))
        seen = len(found) * 4 // 5
        tree = DecisionTreeClassifier(max_leaf_nodes=MAX_LEAVES, min_samples_leaf=FEWEST, random_state=0)
        tree.fit(inputs[:seen], labels[:seen])
        predicted, unseen = tree.predict(inputs[seen:]), labels[seen:]
        guessed, true = (np.array([kinds[name][engine] for engine in engines]) for engines in (predicted, unseen))
        shares = {"engine": predicted == unseen, "kind": guessed == true}
        shares |= {kind: (guessed == true)[true == kind] for kind in sorted(set(true.tolist()))}
        accuracy[name] = {key: round(float(share.mean()), 3) for key, share in shares.items()} | {"rows": len(unseen)}
        stored[f"{name}/feature"], stored[f"{name}/value"] = nodes(tree)
        print(name, accuracy[name], flush=True)
    np.savez_compressed(OUT, accuracy=np.array(json.dumps(accuracy)), **stored)


def main() -> None:
    action, path, *rest = sys.argv[1:]
    if action == "ask":
        ask(Path(path), int(rest[0]) if rest else COUNT)
    else:
        fit(Path(path))


if __name__ == "__main__":
    main()
