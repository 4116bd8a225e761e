"""Fits the decision trees of src/trainfit/gpus/hidden/cudnn.py to the plans that cuDNN proposes.

    python benchmarks/fit_convolutions.py PLANS.jsonl.gz ...      # rows of probe_convolutions.py; needs scikit-learn

Every row gets a form whose formula gives its workspace (the nearest one where none does: its error counts as one in the
accuracy). Per pass and precision `--trees` trees are grown on four fifths of the shapes, each with four fifths of the
features per split; the other fifth (by a hash) is only counted, and what is counted is written into the file: the share
whose workspace comes out within 1,024 bytes, and within 1 MiB or 1%. The convolutions of measured models are not
learned either, so that their tables (results/memory_h200.md, blind_memory_h200.md) test the trees and not their memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
from sklearn.tree import DecisionTreeClassifier

from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import convolution, cudnn, cudnn_library
from trainfit.gpus.hidden.cudnn import (
    COPIES,
    SHARING_ENGINES,
    TILES,
    Form,
    Kind,
    Problem,
    family,
    shared_copies,
    tree_name,
)
from trainfit.trace import trace_step
from zoo import known_names, make_step, select
from zoo.libraries import library_cases

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
KINDS: dict[str, Kind] = {
    "forward": "output",
    "input gradient": "input gradient",
    "weight gradient": "weight gradient",
}
OUT = Path(__file__).parents[1] / "src/trainfit/gpus/hidden/cudnn_plans.npz"
NUM_SMS = find_gpu("h200").num_sms
RARE_SHARE = 0.0007  # rarer forms count as the nearest of the others
EXACT_BYTES = 1024  # semaphores and alignment
MOST_SPLITS = 300


@dataclass(frozen=True, slots=True)
class Row:
    problem: Problem
    features: Any
    workspace_bytes: int
    engine: tuple[str, int, bool]  # family, number, whether there are groups
    forms: tuple[str, ...]  # those that give the workspace, or the nearest
    is_unseen: bool


Shapes = tuple[tuple[int, ...], ...]


def shapes(problem: Problem) -> Shapes:
    return problem.x, problem.weight, problem.stride


def shapes_of_measured_models() -> set[Shapes]:
    found = set()

    def noted(problem: Problem, num_sms: int) -> int:
        found.add(shapes(problem))
        return 0

    gpu = find_gpu("h200")
    with (
        mock.patch.object(cudnn, "workspace_bytes", noted),
        mock.patch.object(cudnn, "is_left_to_cublas", return_value=True),
        mock.patch.object(cudnn_library, "first_plan", return_value=None),
    ):
        for case in select(sorted(set(known_names()) - {case.name for case in library_cases(tiny=False)})):
            for op in trace_step(make_step(case), gpu).ops:
                if op.name in convolution.RULES:
                    convolution.RULES[op.name](op, gpu)
    return found


def rows(path: Path, left_out: set[Shapes]) -> Iterator[Row]:
    with gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            problem = described(row)
            is_depthwise = problem.groups > 1 and problem.weight[1] == 1
            if is_depthwise and not problem.channels_last:
                continue  # torch computes these itself
            is_product = problem.kernel_pixels == 1 and set(problem.stride) == {1} and problem.groups == 1
            if "plans" not in row and ((is_depthwise and problem.item_bytes == 2) or is_product):
                continue  # without a GPU some engines are missing
            plan = next(iter(row.get("plans", row.get("offline", ()))), None)
            if plan is None:
                continue
            tile_form = shared_tiles(problem, plan)
            if "plans" not in row and tile_form:  # blocks per wave are known only on a GPU
                plan["workspace_bytes"] = tile_form.workspace_bytes(problem, NUM_SMS)
            found = (tile_form,) if tile_form else fitting(problem, plan)
            yield Row(
                problem,
                np.array(problem.features(), dtype=np.float32),
                plan["workspace_bytes"],
                (tree_name(problem), plan["engine"], problem.groups > 1),
                tuple(sys.intern(str(form)) for form in found),
                crc32(repr(shapes(problem)).encode()) % 5 == 0 or shapes(problem) in left_out,
            )


def shared_tiles(problem: Problem, plan: dict[str, Any]) -> Form | None:
    knobs = plan["knobs"]
    if plan["engine"] != SHARING_ENGINES[family(problem)] or knobs.get("25", 1) or knobs["2"] not in TILES:
        return None
    return Form(shared_copies(problem), (*TILES[knobs["2"]], knobs["27"], knobs["28"]))


def described(row: dict[str, Any]) -> Problem:
    x, weight = tuple(row["x"]), tuple(row["w"])
    pixels = zip(x[2:], weight[2:], row["stride"], row["padding"], row["dilation"], strict=True)
    y = (x[0], weight[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in pixels))
    settings = (tuple(row[name]) for name in ("stride", "padding", "dilation"))
    return Problem(KINDS[row["kind"]], DTYPES[row["dtype"]], row["channels_last"], x, weight, y, *settings)


def fitting(problem: Problem, plan: dict[str, Any]) -> tuple[Form, ...]:
    """The forms that give the plan's workspace, else the nearest one."""
    found, nearest, least_error = [], Form(""), float("inf")
    for form in forms(problem, plan):
        error = abs(form.workspace_bytes(problem, NUM_SMS) - plan["workspace_bytes"])
        is_plainer_found = bool(found) and not found[0].splits and form.splits > 0  # splits can be found for most
        if error < EXACT_BYTES and not is_plainer_found:
            found.append(form)
        if error < least_error:
            nearest, least_error = form, error
    return tuple(found) or (nearest,)


def forms(problem: Problem, plan: dict[str, Any]) -> Iterator[Form]:
    has_phases = problem.kind == "input gradient" and max(problem.stride) > 1
    is_possible = {"grouped": problem.groups > 1, "phases": has_phases}
    plain = [Form(copies) for copies in COPIES if is_possible.get(copies, True)]
    yield from plain
    if problem.kind == "weight gradient":
        yield from (Form("", per_sample=number) for number in (1, 8))
        yield from (Form("", per_block_bytes=4 * rows * columns) for rows, columns in ((128, 128), (128, 64)))
        for form in plain:
            without_bytes = form.workspace_bytes(problem, NUM_SMS)
            split_bytes = Form(form.copies, splits=1).workspace_bytes(problem, NUM_SMS) - without_bytes
            wanted_bytes = plan["workspace_bytes"] - without_bytes
            if wanted_bytes > 0:
                yield Form(form.copies, splits=min(max(round(wanted_bytes / split_bytes), 1), MOST_SPLITS))


def without_splits(form: str) -> str:
    return form.rstrip("0123456789") if "/s" in form else form


def labels_of(family_rows: Sequence[Row]) -> list[str]:
    """Of the forms that give a row's workspace the one that most rows of its engine have, so that one engine is one
    form wherever it can be: copies take nothing where a layout needs none."""
    numbers: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in family_rows:
        numbers[row.engine].update(map(without_splits, row.forms))
    return [max(row.forms, key=lambda form: numbers[row.engine][without_splits(form)]) for row in family_rows]


def nearest_form(row: Row, common: Sequence[Form]) -> str:
    return str(min(common, key=lambda form: abs(form.workspace_bytes(row.problem, NUM_SMS) - row.workspace_bytes)))


def grown(features: Any, labels: Any, weights: Any, seed: int, max_leaves: int) -> tuple[Any, Any]:
    classifier = DecisionTreeClassifier(max_features=0.8, max_leaf_nodes=max_leaves, random_state=seed)
    return nodes(classifier.fit(features, labels, weights))


def nodes(classifier: Any) -> tuple[Any, Any]:
    """(feature or -1, threshold or label) per node; nodes level by level, so that the children of the n-th node that
    has any are nodes 2n + 1 and 2n + 2."""
    tree = classifier.tree_
    order = by_level(tree)
    chosen = classifier.classes_[tree.value[:, 0, :].argmax(axis=1)]
    is_inner = tree.feature[order] >= 0
    values = np.where(is_inner, np.floor(tree.threshold[order]), chosen[order])
    return np.where(is_inner, tree.feature[order], -1).astype(np.int8), values.astype(np.int32)


def by_level(tree: Any) -> list[int]:
    order, level = [], [0]
    while level:
        order += level
        level = [c for n in level if tree.feature[n] >= 0 for c in (tree.children_left[n], tree.children_right[n])]
    return order


def accuracy(chosen: Sequence[Row], predicted_bytes: Sequence[int]) -> dict[str, float]:
    measured = np.array([row.workspace_bytes for row in chosen])
    errors = np.abs(np.array(predicted_bytes) - measured)
    allowed = np.maximum(2**20, measured // 100)
    exact, close = float((errors < EXACT_BYTES).mean()), float((errors < allowed).mean())
    return {"rows": len(chosen), "exact": round(exact, 3), "close": round(close, 3)}


def importance(row: Row) -> float:
    """Large operands decide what a step reserves."""
    largest = max(row.problem.x, row.problem.y, key=lambda shape: float(np.prod(shape)))
    return 1.0 + min(float(np.prod(largest)) * row.problem.item_bytes / 2**24, 3.0)


@dataclass(frozen=True, slots=True)
class Fitted:
    trees: list[tuple[Any, Any]]
    accuracy: dict[str, float]


def fitted(name: str, family_rows: Sequence[Row], names: list[str], num_trees: int, max_leaves: int) -> Fitted:
    """The trees of a family; forms that are new are put to the end of `names`."""
    labels = labels_of(family_rows)
    frequency = Counter(labels)
    common = [form for form, number in frequency.items() if number >= RARE_SHARE * len(family_rows)]
    names += [form for form in common if form not in names]
    number = {form: names.index(form) for form in common}
    known = [Form.parse(text) for text in names]
    rest = [known[n] for n in number.values()]
    pairs = zip(family_rows, labels, strict=True)
    labels = [label if label in number else nearest_form(row, rest) for row, label in pairs]
    learned = [(row, label) for row, label in zip(family_rows, labels, strict=True) if not row.is_unseen]
    features = np.array([row.features for row, _ in learned])
    chosen = np.array([number[label] for _, label in learned])
    weights = np.array([importance(row) for row, _ in learned])
    trees = [grown(features, chosen, weights, seed, max_leaves) for seed in range(num_trees)]
    made = [cudnn.Tree.of(*tree) for tree in trees]
    unseen = [(row, label) for row, label in zip(family_rows, labels, strict=True) if row.is_unseen]
    counted = [row for row, _ in unseen]
    found = accuracy(counted, [cudnn.middle_bytes(row.problem, made, known, NUM_SMS) for row in counted])
    formulas = [known[number[label]].workspace_bytes(row.problem, NUM_SMS) for row, label in unseen]
    print(name, "forms", len(common), found, "formulas alone", accuracy(counted, formulas), flush=True)
    return Fitted(trees, found)


def write(families: dict[str, list[Row]], num_trees: int, max_leaves: int) -> None:
    names: list[str] = []
    arrays: dict[str, Any] = {}
    accuracies = {}
    for name, family_rows in sorted(families.items()):
        found = fitted(name, family_rows, names, num_trees, max_leaves)
        accuracies[name] = found.accuracy
        for index, (feature, value) in enumerate(found.trees):
            arrays[f"{name}/{index}/feature"], arrays[f"{name}/{index}/value"] = feature, value
    source = "cuDNN 9.19, H200: first plans for random and for public architectures' convolutions"
    about = json.dumps({"source": source, "accuracy": accuracies, "forms": names, "trees": num_trees})
    np.savez_compressed(OUT, about=np.array(about), **arrays)
    print(OUT.stat().st_size, "bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path, nargs="+")
    parser.add_argument("--trees", type=int, default=3, help="per pass and precision")
    parser.add_argument("--leaves", type=int, default=14000, help="per tree")
    args = parser.parse_args()
    families: dict[str, list[Row]] = defaultdict(list)
    left_out = shapes_of_measured_models()
    for path in args.plans:
        for row in rows(path, left_out):
            families[row.engine[0]].append(row)
    write(families, args.trees, args.leaves)


if __name__ == "__main__":
    main()
