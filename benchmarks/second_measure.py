"""Measures the cases of the second blind test on a GPU: memory with both allocators, GPU time and step time.

    python benchmarks/second_measure.py --out OUT                        # second.jsonl, ops.jsonl, <case>.json.gz
    python benchmarks/second_measure.py --out OUT cvt_amp dit_amp:every  # these only
    python benchmarks/second_measure.py --out OUT --device cpu           # no GPU: small ones, to find what is misspelt

A row is a process. Those of a round start side by side, run three steps, reset the peaks and run three more; then each
in its turn is timed and profiled with nothing beside it, as in measure_time.py. In rounds of their own the expandable
allocator's processes measure memory only, and write down what the allocator was asked from the start, so that a
difference can be looked into. A case whose GPU time is not as predicted is profiled once more with a marker before
every op (attribute_time.py). How much fits beside each other is known from the predictions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from children import emit, ready, run_all, wait_for_turn

RESULTS = Path(__file__).parent / "results"
VARIANTS = ("plain", "every layer")
ALLOCATORS = ("classic", "expandable")
GPU_BYTES, WIDTH = 110 * 2**30, 8
WARM_UP, TIMED = 2, 9
ATTRIBUTE_BEYOND = 0.05
Job = tuple[str, str]


def predicted() -> dict[Job, dict[str, Any]]:
    """The predictions of now, and those of before of what is not among them."""
    files = [RESULTS / f"second_{when}_h200.jsonl" for when in ("predicted", "now")]
    rows = (json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines())
    return {(row["case"], row["variant"]): row for row in rows}


def measure(job: Job, allocator: str, out: Path, device: str) -> None:
    """One row; runs in a process of its own."""
    import torch

    from loop import training_step
    from measure_memory import peaks, step_ms
    from recorder import history, start_history
    from zoo import select

    name, variant = job
    is_recorded = allocator == "expandable" and device == "cuda"
    case = select([name], tiny=device == "cpu")[0]
    if is_recorded:
        start_history()
    step = training_step(case, device, variant == "every layer")
    for _ in range(3):
        step()
    if is_recorded:
        torch.cuda.synchronize()
        write_events(out / f"{name}{'_every' if variant != 'plain' else ''}.json.gz", history())
    if device == "cuda":
        emit(allocator=allocator, torch=torch.__version__, **peaks(step))
    ready()
    wait_for_turn()
    if allocator == "expandable":
        return
    times_ms = [step_ms(step, device) for _ in range(WARM_UP + TIMED)][WARM_UP:]
    emit(step_ms=statistics.median(times_ms), fastest_ms=min(times_ms), slowest_ms=max(times_ms))
    if device == "cuda":
        profiled(job, step, out)


def profiled(job: Job, step: Any, out: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    from attribute_time import attribute_step
    from measure_memory import kernels
    from trainfit.calibrate.measure import marker_name

    with profile(activities=[ProfilerActivity.CUDA]):  # its first start is slow
        torch.cuda.synchronize()
    row = kernels(step)
    row["kernels_ms"] = sum(row[f"{kind}_ms"] for kind in ("kernel", "memcpy", "memset"))
    emit(**row)
    expected_ms = predicted().get(job, {}).get("busy_ms")
    if expected_ms is None or abs(expected_ms / row["kernels_ms"] - 1) > ATTRIBUTE_BEYOND:
        with (out / "ops.jsonl").open("a") as file:
            for found in attribute_step(step, marker_name(), {"case": job[0], "variant": job[1]}):
                file.write(json.dumps(found) + "\n")


def write_events(path: Path, entries: list[dict[str, Any]]) -> None:
    """What was asked of the allocator, in order: bytes taken, or the number of the request that is given back."""
    events: list[int] = []
    taken: dict[int, int] = {}
    for entry in entries:
        if entry["action"] == "alloc":
            taken[entry["addr"]] = len(events)
            events.append(entry["size"])
        elif entry["action"] == "free_completed" and entry["addr"] in taken:
            events.append(-1 - taken.pop(entry["addr"]))
    path.write_bytes(gzip.compress(json.dumps(events, separators=(",", ":")).encode(), mtime=0))


def rounds(jobs: list[Job]) -> list[list[Job]]:
    """Those that fit on the GPU beside each other, the largest first."""
    known = predicted()
    needed = {job: known[job]["classic"][1] + 2**30 if job in known else 20 * 2**30 for job in jobs}
    found: list[list[Job]] = []
    for job in sorted(jobs, key=lambda job: -needed[job]):
        for chosen in found:
            if len(chosen) < WIDTH and sum(map(needed.__getitem__, chosen)) + needed[job] <= GPU_BYTES:
                chosen.append(job)
                break
        else:
            found.append([job])
    return found


def jobs_of(names: list[str]) -> list[Job]:
    from zoo.second import second_cases

    known = {case.name: case for case in second_cases()}
    jobs = []
    for name, _, wanted in (name.partition(":") for name in names or known):
        variants = VARIANTS if known[name].checkpoint else VARIANTS[:1]
        jobs += [(name, variant) for variant in variants if variant.startswith(wanted)]
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases; NAME:plain and NAME:every are one variant of a case")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--allocator", choices=ALLOCATORS, help="only this one")
    parser.add_argument("--seconds", type=float, default=290, help="start no further round after this")
    parser.add_argument("--timeout-s", type=float, default=45, help="until all of a round are ready, and for each turn")
    parser.add_argument("--child", nargs=2, metavar=("VARIANT", "ALLOCATOR"), help="be the process of one case")
    args = parser.parse_args()
    if args.child:
        variant, allocator = args.child
        measure((args.names[0], variant), allocator, args.out, args.device)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    jobs = jobs_of(args.names)
    for allocator in [args.allocator] if args.allocator else ALLOCATORS:
        for chosen in rounds(jobs):
            if time.monotonic() - start_s > args.seconds:
                print(f"no time left for {chosen}", file=sys.stderr)
                continue
            arguments = [
                (name, "--child", variant, allocator, "--out", str(args.out), "--device", args.device)
                for name, variant in chosen
            ]
            is_expandable = allocator == "expandable"
            for row in run_all(__file__, arguments, args.out / "second.jsonl", args.timeout_s, is_expandable, True):
                if "ready" not in row:
                    text = {key: value for key, value in row.items() if key != "case"}
                    print(row["case"][0], row["case"][2:4], text, f"{time.monotonic() - start_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
