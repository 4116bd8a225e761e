"""The allocator's history of a planned step on a GPU, beside the stream that was simulated for it.

    python benchmarks/record_plan.py PLAN.json --out FILE.json.gz       # on the GPU: build and four steps
    python benchmarks/record_plan.py PLAN.json --compare FILE.json.gz   # no GPU: where the two streams part

The file is as record_allocations.py's recordings, with the number of the first event of each step.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trainfit
from record_allocations import ACTIONS, compact
from recorder import history, start_history
from trainfit import _verify
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import hidden_memory
from trainfit.simulate.memory import _moments
from trainfit.trace import trace_step
from zoo import make_step, select

STEPS = 4


def record(path: Path, tiny: bool) -> dict[str, Any]:
    """The history of building the step, applying the plan and running it."""
    start_history()
    case = select([path.name.split("_")[0]], tiny=tiny)[0]
    run = _verify._Run(make_step(case), "cuda")
    trainfit.Plan.load(path).apply(run.model)
    torch.cuda.reset_peak_memory_stats()
    starts = []
    for _ in range(STEPS):
        starts.append(len(compact(history())))
        run.step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "actions": ACTIONS,
        "starts": starts,
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_requested_bytes": stats["requested_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "device_bytes": torch.cuda.get_device_properties(0).total_memory,
        "events": compact(history()),
    }


Entry = tuple[str, int]  # "alloc" or "free", bytes


def simulated(path: Path, tiny: bool) -> list[list[tuple[Entry, str]]]:
    """Per step, the first and a steady one, what the allocator is asked, and which op asks."""
    case = select([path.name.split("_")[0]], tiny=tiny)[0]
    plan = trainfit.Plan.load(path)

    def build() -> nn.Module:
        model = case.module()
        plan.apply(model)
        return model

    gpu = find_gpu(plan.gpu)
    trace = trace_step(replace(make_step(case), model=build), gpu)
    hidden = hidden_memory(gpu, torch.__version__)
    steps = []
    for sections in (trace.first_step, trace.steady_step):
        steps.append([
            (
                ("alloc" if action.is_alloc else "free", action.nbytes),
                "-" if op is None else f"{op} {trace.ops[op].phase.value} {trace.ops[op].name} {trace.ops[op].module}",
            )
            for index in sections
            for op, actions in _moments(trace, trace.sections[index], hidden)
            for action in actions
            if not str(action.key).endswith("workspace")  # asked for by every op, there since the first
        ])  # fmt: skip
    return steps


def compare(path: Path, recorded: dict[str, Any], tiny: bool) -> Iterator[str]:
    """Where the recorded stream of a steady step and the simulated one part."""
    names = [recorded["actions"].index(name) for name in ("alloc", "free_completed")]
    start, end = recorded["starts"][-2:]
    there: list[Entry] = [
        ("alloc" if action == names[0] else "free", nbytes)
        for action, nbytes, *_ in recorded["events"][start:end]
        if action in names
    ]
    _, steady = simulated(path, tiny)
    here = [entry for entry, _ in steady]
    yield f"recorded {len(there)} events of a steady step, simulated {len(here)}"
    matcher = difflib.SequenceMatcher(None, there, here, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            yield f"recorded {i1}: {there[i1:i2]}"
            yield f"  simulated {j1}: {[*zip(here[j1:j2], [op for _, op in steady[j1:j2]], strict=True)]}"
            yield f"  after {steady[max(0, j1 - 1)][1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, help="file to write, on a GPU")
    parser.add_argument("--compare", type=Path, help="file that was written")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.compare:
        print(*compare(args.plan, json.loads(gzip.decompress(args.compare.read_bytes())), args.tiny), sep="\n")
        return
    recorded = record(args.plan, args.tiny)
    args.out.write_bytes(gzip.compress(json.dumps(recorded, separators=(",", ":")).encode(), mtime=0))
    print({key: value for key, value in recorded.items() if key.startswith("peak")}, len(recorded["events"]), "events")


if __name__ == "__main__":
    main()
