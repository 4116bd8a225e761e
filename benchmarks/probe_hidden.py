"""Finds the memory that ops take beside their outputs: temporaries and workspaces that no fake tensor shows.

    python benchmarks/probe_hidden.py --out OUT                 # every case of the zoo: OUT/hidden_models.jsonl
    python benchmarks/probe_hidden.py --out OUT gpt2m unet_amp  # these only
    python benchmarks/probe_hidden.py --out OUT --sweep         # single ops: OUT/hidden_ops.jsonl
    python benchmarks/probe_hidden.py --out OUT --device cpu    # no GPU: the tiny zoo, or with --sweep the meta device

A model is trained for two steps, then for one under `OpRecorder` (classic allocator, plain variant). Rows are distinct
(op, inputs, allocations), as recorder.py describes them: all that allocate something besides outputs, and all calls of
ops whose outputs themselves are hard to know (attention, batch norm, RNNs). A dispatch mode makes autograd more careful
(gradients are added out of place), so these steps say what ops allocate, not what a step's peak is.

The sweep has one process per family and a time limit for each; probes come in a fixed order, and what was skipped is
said. Its rows also name the first probe that showed them; "chosen" rows say which attention kernel torch chose.
"""

from __future__ import annotations

import os

# torch.cuda.is_available() must not start CUDA in the parent: forked children could not use it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import argparse
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import forks
import sweep
import sweep_attention
import sweep_ops
import sweep_shapes
from loop import training_step
from recorder import Call, OpRecorder, OpRow, history, op_rows, start_history
from zoo import Case, select

FAMILIES = {**sweep_attention.FAMILIES, **sweep_ops.FAMILIES, **sweep_shapes.FAMILIES}
OPAQUE = ("attention", "batch_norm", "cudnn", "rnn", "lstm", "gru")  # ops whose outputs the GPU's library sizes
MIB = 2**20


def is_wanted(row: OpRow) -> bool:
    return row.is_hidden or any(part in row.name for part in OPAQUE)


def as_dict(row: OpRow) -> dict[str, Any]:
    return {
        "op": row.name,
        "inputs": row.inputs,
        "events": [list(event) for event in row.events],
        "hidden_peak_bytes": row.hidden_peak_bytes,
        "count": row.count,
    }


def probe_case(case: Case, device: str) -> dict[str, Any]:
    """The rows of one model; runs in a process of its own."""
    step = training_step(case, device)
    for _ in range(2):
        step()
    if device == "cuda":
        start_history()
    with OpRecorder() as recorder:
        step()
    entries = history() if device == "cuda" else []
    found = op_rows(recorder.calls, entries)
    counts = Counter(call.name for call in recorder.calls if call is not None)
    return {"op_counts": dict(counts), "rows": [as_dict(row) for row in found if is_wanted(row)]}


def probe_family(name: str, device: str, limit_s: float) -> dict[str, Any]:
    """The rows of one family of op probes; runs in a process of its own."""
    sweep.device = device
    sweep.warm_up()
    if device == "cuda":
        start_history()
    probes = FAMILIES[name]()
    starts: list[int] = []
    extra: list[dict[str, Any]] = []
    begin_s = time.monotonic()
    with OpRecorder() as recorder:
        for label, run in probes:
            if time.monotonic() - begin_s > limit_s:
                break
            starts.append(len(recorder.calls))
            try:
                run()
            except Exception as error:
                extra.append({"probe": label, "error": f"{type(error).__name__}: {error}"[:200]})
            if name.startswith("attention"):
                extra.append({"probe": label, "chosen": attention_ops(recorder.calls[starts[-1] :])})
    rows = []
    for row in op_rows(recorder.calls, history() if device == "cuda" else []):
        position = bisect_right(starts, row.first_call) - 1
        if is_wanted(row) and position >= 0:
            rows.append(as_dict(row) | {"probe": probes[position][0]})
    return {"num_probes": len(starts), "num_skipped": len(probes) - len(starts), "rows": rows + extra}


def attention_ops(calls: list[Call | None]) -> list[str]:
    """The attention kernels among the calls; none means the mathematical form."""
    return [call.name for call in calls if call is not None and "attention" in call.name]


def model_rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    cases = select(args.names, tiny=args.device == "cpu")
    work = lambda case: probe_case(case, args.device)  # noqa: E731
    for case, result in forks.run(cases, work, width=args.width, timeout_s=args.timeout_s):
        yield from unpacked({"case": case.name}, result)


def sweep_rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    names = [name for name in FAMILIES if not args.names or any(name.startswith(wanted) for wanted in args.names)]
    device = "cuda" if args.device == "cuda" else "meta"
    work = lambda name: probe_family(name, device, args.limit_s)  # noqa: E731
    for name, result in forks.run(names, work, width=args.width, timeout_s=args.timeout_s):
        yield from unpacked({"family": name}, result)


def unpacked(head: dict[str, Any], result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A summary row, then the rows themselves."""
    rows = result.pop("rows", [])
    yield head | {"num_rows": len(rows), "torch": torch.__version__} | result
    for row in rows:
        yield head | row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases of the zoo; with --sweep, beginnings of families' names")
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON lines")
    parser.add_argument("--sweep", action="store_true", help="probe single ops instead of models")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--width", type=int, default=8, help="processes side by side")
    parser.add_argument("--timeout-s", type=float, default=90, help="for one round of processes")
    parser.add_argument("--limit-s", type=float, default=25, help="for the probes of one family")
    args = parser.parse_args()
    source, file = (sweep_rows, "hidden_ops.jsonl") if args.sweep else (model_rows, "hidden_models.jsonl")
    start_s = time.monotonic()
    worst: dict[str, tuple[int, str]] = {}
    for row in forks.write_lines(args.out / file, source(args)):
        if "num_rows" in row:
            print(*(f"{key}={value}" for key, value in row.items() if key not in ("torch", "op_counts")), flush=True)
        elif "error" in row and not row["probe"].startswith(("flash", "efficient", "cudnn")):  # forced: may refuse
            print(f"  {row['probe']}: {row['error'][:100]!r}", flush=True)
        if "op" in row and row["hidden_peak_bytes"] > worst.get(row["op"], (-1, ""))[0]:
            worst[row["op"]] = (row["hidden_peak_bytes"], row.get("case") or row["probe"])
    print("largest hidden memory by op:")
    for name, (size, where) in sorted(worst.items(), key=lambda item: -item[1][0])[:60]:
        print(f"  {size / MIB:10.3f} MiB  {name}  ({where})")
    print(f"{time.monotonic() - start_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
