"""What the GPU's allocator is asked for during calls of single ops, beside what trainfit's rules say.

    python benchmarks/probe_calls.py --out FILE.jsonl.gz                       # on a GPU: asks
    python benchmarks/probe_calls.py --compare FILE.jsonl.gz                   # anywhere: compares, op by op
    python benchmarks/probe_calls.py --compare FILE.jsonl.gz --op aten.sort    # and tells of every call that differs

The calls are `calibrate`'s, so many of each op as lie evenly among all of it, and those of hidden_calls.py, which has
ops and layouts that nets seldom call. Each is run twice, the second time under `OpRecorder`, alone; values are random,
and places lie inside of what they are places of. Rows have the call in `calibrate`'s terms, its results, and events as
recorder.py describes them. Compared is how far memory rose above the results (hidden_peaks.py).
"""

from __future__ import annotations

import os

# torch.cuda.is_available() must not start CUDA in the parent: forked children could not use it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import forks
from hidden_calls import hidden_calls
from hidden_peaks import compared, rows_of
from recorder import OpRecorder, by_op, events_of, history, start_history
from trainfit.calibrate.arguments import Pool, arguments
from trainfit.calibrate.calls import Call, all_calls
from trainfit.calibrate.measure import described_outputs
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import RULES, hidden_memory

CALLS_OF_AN_OP, CALLS_OF_A_LIBRARY = 60, 800
LIBRARY_OPS = ("aten.convolution.default", "aten.convolution_backward.default")
"""Whose workspaces are a library's choice."""
LEFT_OUT = ("aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default")
"""probe_recurrent.py asks the library itself; many of them in one process may hang."""
POOL_BYTES = 2**29
CALLS_OF_A_PROCESS, PROCESSES, LIMIT_S = 1500, 12, 200


def wanted_calls() -> list[Call]:
    by_name: dict[str, list[Call]] = defaultdict(list)
    for call in all_calls():
        if call.name in LEFT_OUT:
            continue
        by_name[call.name].append(call)
    found = []
    for name, calls in by_name.items():
        most = CALLS_OF_A_LIBRARY if name in LIBRARY_OPS else CALLS_OF_AN_OP
        found += calls[:: -(-len(calls) // most)]
    return found + list(hidden_calls())


def probe(calls: Sequence[Call]) -> dict[str, Any]:
    """Rows of all, in a process of its own; memory that the calls' arguments take is tagged with no op."""
    pool = Pool("cuda", POOL_BYTES)
    start_history()
    recorder = OpRecorder()
    rows: list[dict[str, Any]] = []
    numbers: dict[int, dict[str, Any]] = {}
    for call in calls:
        args, kwargs = call.described()
        row: dict[str, Any] = {"op": call.name, "args": args, "kwargs": kwargs}
        number = len(recorder.calls)
        try:
            for run in ("first", "recorded"):
                torch.manual_seed(0)
                values, options = arguments(call, pool)
                with call.precision(), torch.no_grad():
                    if run == "first":
                        call.function(*values, **options)
                        continue
                    with recorder:
                        result = call.function(*values, **options)
            row["outputs"] = described_outputs(result)
            del result
            if len(recorder.calls) != number + 1:
                raise ValueError("torch takes it apart")
            numbers[number] = row
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        rows.append(row)
    torch.cuda.synchronize()
    for index, entries in by_op(recorder.calls, history()):
        recorded = recorder.calls[index] if index is not None and index in numbers else None
        if recorded is not None and index is not None:
            numbers[index]["events"] = events_of(entries, recorded.output_addresses)
    return {"rows": rows}


def compare(path: Path, wanted: str | None) -> None:
    tables = compared(path, hidden_memory(find_gpu("h200"), torch.__version__))
    for name, calls in sorted(tables.items()):
        if wanted and not name.startswith(wanted):
            continue
        wrong = [call for call in calls if not call.is_equal]
        mark = "" if name in RULES else "  (no rule)"
        if wrong or wanted:
            print(f"{name}: {len(calls) - len(wrong)} of {len(calls)} equal{mark}")
        for call in wrong if wanted else wrong[:1]:
            text = f"{call.row['args']} {call.row['kwargs']} {call.row.get('events', [])}"
            print(f"    {call.said_bytes} said, {call.taken_bytes} taken: {text}"[:900])
    right = sum(call.is_equal for calls in tables.values() for call in calls)
    print(f"{right} of {sum(map(len, tables.values()))} calls of {len(tables)} ops equal")
    failed = defaultdict(list)
    for row in rows_of(path):
        if "error" in row:
            failed[row["op"]].append(row["error"])
    for name, errors in failed.items():
        print(f"{name}: {len(errors)} failed: {errors[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where rows are written")
    parser.add_argument("--compare", type=Path, help="rows to compare")
    parser.add_argument("--op", help="beginning of the ops' names of which every call is told")
    args = parser.parse_args()
    if args.compare:
        compare(args.compare, args.op)
        return
    calls = wanted_calls()
    parts = [calls[first : first + CALLS_OF_A_PROCESS] for first in range(0, len(calls), CALLS_OF_A_PROCESS)]
    lines = []
    for part, result in forks.run(parts, probe, width=PROCESSES, timeout_s=LIMIT_S):
        print(f"from {part[0].name}: {len(result.get('rows', []))} calls {result.get('error', '')}", flush=True)
        lines += [json.dumps(row) + "\n" for row in result.get("rows", [])]
    args.out.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


if __name__ == "__main__":
    main()
