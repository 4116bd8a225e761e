"""What the GPU's allocator is asked for during calls of single ops, beside what trainfit's rules say.

    python benchmarks/probe_calls.py --out FILE.jsonl.gz                       # on a GPU: asks
    python benchmarks/probe_calls.py --compare FILE.jsonl.gz                   # anywhere: compares, op by op
    python benchmarks/probe_calls.py --compare FILE.jsonl.gz --op aten.sort    # and tells of every call that differs

The calls are `calibrate`'s, so many of each op as lie evenly among all of it, and those of hidden_calls.py, which has
ops and layouts that nets seldom call. Each is run twice, the second time under `OpRecorder`, alone; values are random,
and places lie inside of what they are places of. Rows have the call in `calibrate`'s terms, its results, and events as
recorder.py describes them. Compared is how far memory rose above the results, in the allocator's units.
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
from recorder import OpRecorder, by_op, events_of, history, start_history
from trainfit.calibrate.arguments import Pool, arguments
from trainfit.calibrate.calls import Call, all_calls
from trainfit.calibrate.measure import described_outputs
from trainfit.cost.described import read_op
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import RULES, hidden_memory
from trainfit.records import LAST_OUTPUT, OUTPUT, Phase

CALLS_OF_AN_OP, CALLS_OF_A_LIBRARY = 60, 800
LIBRARY_OPS = ("aten.convolution.default", "aten.convolution_backward.default")
"""Whose workspaces are a library's choice."""
LEFT_OUT = ("aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default")
"""probe_recurrent.py asks the library itself; many of them in one process may hang."""
POOL_BYTES, UNIT_BYTES = 2**29, 512
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


def rounded(nbytes: int) -> int:
    return -(-nbytes // UNIT_BYTES) * UNIT_BYTES


def measured_bytes(events: Sequence[tuple[str, int]]) -> int:
    """How far memory rose above the results."""
    sizes: list[int] = []
    live = peak = outputs = 0
    for kind, number in events:
        if kind == "free":
            live -= rounded(sizes[number])
        elif kind != "free outer":
            sizes.append(number)
            live += rounded(number)
            outputs += rounded(number) if kind == "out" else 0
        peak = max(peak, live)
    return peak - outputs


def predicted_bytes(steps: Sequence[int], events: Sequence[tuple[str, int]]) -> int:
    """The same, by the rules' steps and the results' real sizes."""
    outputs = [size for kind, size in events if kind == "out"]
    if LAST_OUTPUT in steps:
        outputs.sort(reverse=True)  # these ops return their largest output first, but make it last
    num_first = max(0, len(outputs) - steps.count(OUTPUT) - steps.count(LAST_OUTPUT))
    pending = outputs[num_first:]
    live = peak = sum(map(rounded, outputs[:num_first]))
    for step in steps:
        if step in (OUTPUT, LAST_OUTPUT):
            live += rounded(pending.pop(0 if step == OUTPUT else -1)) if pending else 0
        else:
            live += rounded(step) if step > 0 else -rounded(-step)
        peak = max(peak, live)
    return peak - sum(map(rounded, outputs))


def compare(path: Path, wanted: str | None) -> None:
    hidden = hidden_memory(find_gpu("h200"), torch.__version__)
    tables: dict[str, list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)
    failed: dict[str, list[str]] = defaultdict(list)
    for row in map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines()):
        if "error" in row:
            failed[row["op"]].append(row["error"])
            continue
        op = read_op(row["op"], row["args"], row["kwargs"], row["outputs"], Phase.FORWARD)
        events = row.get("events", [])
        tables[row["op"]].append((predicted_bytes(hidden.temporaries(op), events), measured_bytes(events), row))
    for name, found in sorted(tables.items()):
        if wanted and not name.startswith(wanted):
            continue
        wrong = [entry for entry in found if entry[0] != entry[1]]
        mark = "" if name in RULES else "  (no rule)"
        if wrong or wanted:
            print(f"{name}: {len(found) - len(wrong)} of {len(found)} equal{mark}")
        for predicted, measured, row in wrong if wanted else wrong[:1]:
            print(
                f"    {predicted} said, {measured} taken: {row['args']} {row['kwargs']} {row.get('events', [])}"[:900]
            )
    right = sum(said == taken for found in tables.values() for said, taken, _ in found)
    print(f"{right} of {sum(map(len, tables.values()))} calls of {len(tables)} ops equal")
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
