"""Fits the decision trees of src/trainfit/gpus/hidden/cudnn.py to the plans that cuDNN proposed on a GPU.

    python benchmarks/fit_convolutions.py PLANS.jsonl.gz ...      # rows of probe_convolutions.py, with or without a GPU

Every row gets the form whose formula gives its workspace (the nearest one where none does: its error counts as one in
the accuracy). Per pass and precision a tree is grown on two thirds of the shapes; the others (by a hash) are only
counted, and what is counted is written into the file: the share whose workspace comes out within 1,024 bytes, and
within 1 MiB or 1%. In the shipped file the trees of one-pixel convolutions are from a run of their own
(--leaves 1000).
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden.cudnn import COPIES, SHARING_ENGINES, TILES, Form, Kind, Problem, family, tree_name

KINDS: dict[str, Kind] = {
    "forward": "output",
    "input gradient": "input gradient",
    "weight gradient": "weight gradient",
}
OUT = Path(__file__).parents[1] / "src/trainfit/gpus/hidden/cudnn_plans.json"
NUM_SMS = find_gpu("h200").num_sms
RARE_SHARE = 0.001  # forms that are rarer are not learned
EXACT_BYTES = 1024  # semaphores and alignment
SPLIT_NUMBERS = range(1, 300)


@dataclass(frozen=True)
class Row:
    problem: Problem
    workspace_bytes: int
    form: Form
    is_unseen: bool


def rows(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            problem = described(row)
            is_depthwise = problem.groups > 1 and problem.weight[1] == 1
            if is_depthwise and not problem.channels_last:
                continue  # torch computes these itself
            is_product = problem.kernel_pixels == 1 and set(problem.stride) == {1} and problem.groups == 1
            if "plans" not in row and (is_depthwise or is_product):
                continue  # without a GPU some engines are missing
            proposed = row.get("plans", row.get("offline", ()))
            plan = next((plan for plan in proposed if plan["workspace_bytes"] is not None), None)
            if plan is None:
                continue
            tile_form = shared_tiles(problem, plan)
            if "plans" not in row and tile_form:  # blocks per wave are known only on a GPU
                plan["workspace_bytes"] = tile_form.workspace_bytes(problem, NUM_SMS)
            is_unseen = crc32(repr((problem.x, problem.weight, problem.stride)).encode()) % 3 == 0
            yield Row(problem, plan["workspace_bytes"], form_of(problem, plan), is_unseen)


def shared_tiles(problem: Problem, plan: dict[str, Any]) -> Form | None:
    knobs = plan["knobs"]
    if plan["engine"] != SHARING_ENGINES[family(problem)] or knobs.get("25", 1) or knobs["2"] not in TILES:
        return None
    return Form("padded in fp32", (*TILES[knobs["2"]], knobs["27"], knobs["28"]))


def described(row: dict[str, Any]) -> Problem:
    x, weight = tuple(row["x"]), tuple(row["w"])
    pixels = zip(x[2:], weight[2:], row["stride"], row["padding"], row["dilation"], strict=True)
    y = (x[0], weight[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in pixels))
    size = 4 if row["dtype"] == "f32" else 2
    return Problem(KINDS[row["kind"]], size, row["channels_last"], x, weight, y, tuple(row["stride"]))


def form_of(problem: Problem, plan: dict[str, Any]) -> Form:
    """The first form that gives the plan's workspace, else the nearest one."""
    candidates = list(forms(problem, plan))
    errors = [abs(form.workspace_bytes(problem, NUM_SMS) - plan["workspace_bytes"]) for form in candidates]
    return next(
        (form for form, error in zip(candidates, errors, strict=True) if error < EXACT_BYTES),
        candidates[int(np.argmin(errors))],
    )


def forms(problem: Problem, plan: dict[str, Any]) -> Iterator[Form]:
    if tile_form := shared_tiles(problem, plan):
        yield tile_form
    plain = [Form(copies) for copies in COPIES]
    yield from plain
    if problem.kind == "weight gradient":
        yield from (Form("", per_sample=number) for number in (1, 8))
        yield from (Form("", per_block_bytes=4 * rows * columns) for rows, columns in ((128, 128), (128, 64)))
        for form in plain:
            without_bytes = form.workspace_bytes(problem, NUM_SMS)
            split_bytes = Form(form.copies, splits=1).workspace_bytes(problem, NUM_SMS) - without_bytes
            wanted_bytes = plan["workspace_bytes"] - without_bytes
            if wanted_bytes > 0:
                number = min(SPLIT_NUMBERS, key=lambda number: abs(number * split_bytes - wanted_bytes))
                yield Form(form.copies, splits=number)


class Tree:
    """Grown leaf by leaf, the split that separates most first; children of a node are neighbours."""

    def __init__(self, features: Any, labels: Any, weights: Any, max_leaves: int, min_rows: int) -> None:
        self.features, self.labels, self.weights = features, labels, weights
        self.num_labels = int(labels.max()) + 1
        self.min_rows = min_rows
        self.feature, self.threshold, self.next = [-1], [0], [0]
        members = [np.arange(len(labels))]
        self.next[0] = self.majority(members[0])
        best = [self.best_split(members[0])]
        for _ in range(max_leaves - 1):
            node = max(range(len(best)), key=lambda index: best[index][0])
            gain, feature, threshold = best[node]
            if gain <= 0:
                break
            is_right = features[members[node], feature] > threshold
            self.feature[node], self.threshold[node], self.next[node] = feature, threshold, len(best)
            for chosen in (members[node][~is_right], members[node][is_right]):
                members.append(chosen)
                self.feature.append(-1)
                self.threshold.append(0)
                self.next.append(self.majority(chosen))
                best.append(self.best_split(chosen))
            best[node] = (0.0, -1, 0)

    def majority(self, members: Any) -> int:
        return int(np.argmax(np.bincount(self.labels[members], self.weights[members], self.num_labels)))

    def best_split(self, members: Any) -> tuple[float, int, int]:
        """(gain in Gini impurity, feature, threshold)"""
        present, labels = np.unique(self.labels[members], return_inverse=True)
        if len(present) == 1 or len(members) < 2 * self.min_rows:
            return 0.0, -1, 0
        hot = np.zeros((len(members), len(present)))
        hot[np.arange(len(members)), labels] = self.weights[members]
        total = hot.sum(axis=0)
        whole = (total**2).sum() / total.sum()
        found = (0.0, -1, 0)
        for feature in range(self.features.shape[1]):
            values = self.features[members, feature]
            order = np.argsort(values, kind="stable")
            ordered = values[order]
            ends = np.flatnonzero(ordered[1:] != ordered[:-1])
            ends = ends[(ends + 1 >= self.min_rows) & (len(members) - ends - 1 >= self.min_rows)]
            if not len(ends):
                continue
            left = np.cumsum(hot[order], axis=0)[ends]
            right = total - left
            gains = (left**2).sum(axis=1) / left.sum(axis=1) + (right**2).sum(axis=1) / right.sum(axis=1) - whole
            where = int(np.argmax(gains))
            if gains[where] > found[0] + 1e-9:
                found = (float(gains[where]), feature, int(ordered[ends[where]]))
        return found

    def predict(self, features: Any) -> list[int]:
        found = []
        for values in features:
            node = 0
            while self.feature[node] >= 0:
                node = self.next[node] + int(values[self.feature[node]] > self.threshold[node])
            found.append(self.next[node])
        return found

    def as_dict(self) -> dict[str, list[int]]:
        return {"feature": self.feature, "threshold": self.threshold, "next": self.next}


def accuracy(chosen: Sequence[Row], predicted: Sequence[Form]) -> dict[str, float]:
    errors = np.array(
        [
            abs(form.workspace_bytes(row.problem, NUM_SMS) - row.workspace_bytes)
            for row, form in zip(chosen, predicted, strict=True)
        ]
    )
    allowed = np.array([max(2**20, row.workspace_bytes // 100) for row in chosen])
    exact, close = float((errors < EXACT_BYTES).mean()), float((errors < allowed).mean())
    return {"rows": len(chosen), "exact": round(exact, 3), "close": round(close, 3)}


def importance(row: Row) -> float:
    """Large operands decide what a step reserves."""
    largest = max(row.problem.x, row.problem.y, key=lambda shape: float(np.prod(shape)))
    return 1.0 + min(float(np.prod(largest)) * row.problem.item_bytes / 2**24, 3.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path, nargs="+")
    parser.add_argument("--leaves", type=int, default=1500, help="per tree")
    parser.add_argument("--min-rows", type=int, default=2, help="per leaf")
    args = parser.parse_args()
    everything = [row for path in args.plans for row in rows(path)]
    names = sorted({str(row.form) for row in everything})
    number = {name: index for index, name in enumerate(names)}
    trees, accuracies = {}, {}
    for name in sorted({tree_name(row.problem) for row in everything}):
        family = [row for row in everything if tree_name(row.problem) == name]
        frequency = Counter(row.form for row in family)
        seen = [row for row in family if not row.is_unseen and frequency[row.form] >= RARE_SHARE * len(family)]
        unseen = [row for row in family if row.is_unseen]
        features = np.array([row.problem.features() for row in seen], dtype=np.int64)
        labels = np.array([number[str(row.form)] for row in seen])
        tree = Tree(features, labels, np.array([importance(row) for row in seen]), args.leaves, args.min_rows)
        trees[name] = tree.as_dict()
        guesses = tree.predict([row.problem.features() for row in unseen])
        accuracies[name] = accuracy(unseen, [Form.parse(names[guess]) for guess in guesses])
        formulas = accuracy(unseen, [row.form for row in unseen])
        print(name, "leaves", tree.feature.count(-1), accuracies[name], "formulas alone", formulas, flush=True)
    source = "cuDNN 9.19, H200: first plans for random convolutions; benchmarks/fit_convolutions.py"
    content = {"source": source, "accuracy": accuracies, "forms": names, "trees": trees}
    OUT.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    print(OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
