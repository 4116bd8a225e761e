"""Measures cases on a GPU, each in a process of its own: memory, step time, GPU time and the kernels of a step.

    python benchmarks/survey_measure.py --out OUT --predicted PREDICTIONS NAME NAME:every ...
    python benchmarks/survey_measure.py --out OUT --predicted PREDICTIONS --look NAME ...      # ops, too
    python benchmarks/survey_measure.py --out OUT --predicted PREDICTIONS --device cpu NAME    # small ones, no GPU

OUT/rows.jsonl: a line per case and variant. OUT/NAME.kernels.json.gz: every kernel of one profiled step, as timeline.py
has it. With `--look`, OUT/NAME.ops.jsonl.gz has the rows of attribute_time.py, another step with a marker before every
op, and the rows what the CPU takes to issue a step of two samples.

Processes are forked as measure_host.py does it. Those of a round get ready side by side: three steps, the peaks are
reset, three steps more, whose peaks count. Then each in its turn is timed while nothing else runs, and only when all
have been, each in its turn is profiled: in a process whose profiler has run, launches take the CPU longer. How many fit
on the GPU together is known from the predictions; one that ran out of memory is measured again alone.
"""

from __future__ import annotations

import os

# CUDA must not start in the parent of forked processes.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import argparse
import contextlib
import gzip
import json
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attribute_time import attributed_ops
from loop import training_step
from measure_host import Child, core
from measure_memory import peaks, step_ms, union_ns
from measure_time import jobs_of
from timeline import issued, small, timeline
from trainfit.calibrate.measure import marker_name
from zoo import select
from zoo.libraries import STARTS_CUDA

GPU_BYTES, CONTEXT_BYTES, WIDTH = 128 * 2**30, 2**30, 16
BESIDE = 1.4
"""With `--look` a second model stands beside the first."""
WARM_UP, TIMED = 2, 9
READY_S, TURN_S = 50.0, 25.0
"""Whoever takes longer to get ready, or for a turn, is ended."""
THREADS = torch.get_num_threads()
Job = tuple[str, str]


def measure(
    job: Job, out: Path, device: str, look: bool, wait: Callable[[], None], answer: Callable[..., None]
) -> None:
    """One case: an answer when it is ready, when it was timed, when its profiler runs, and when it was profiled."""
    torch.set_num_threads(THREADS)
    name, variant = job
    case, is_checkpointed = select([name], tiny=device == "cpu")[0], variant == "every layer"
    step = training_step(case, device, is_checkpointed)
    for _ in range(3):
        step()
    row: dict[str, Any] = {"torch": torch.__version__} | (peaks(step) if device == "cuda" else {})
    small_step = None
    if look:
        try:
            small_step = training_step(small(case), device, is_checkpointed)
            for _ in range(2):
                small_step()
        except Exception as error:  # two samples are too few for it; the rest of the row is worth having
            small_step, row["small_error"] = None, f"{type(error).__name__}: {error}"[:200]
    answer(row)
    wait()
    before = core()
    times_ms = [step_ms(step, device) for _ in range(WARM_UP + TIMED)][WARM_UP:]
    row = {
        "step_ms": statistics.median(times_ms),
        "fastest_ms": min(times_ms),
        "slowest_ms": max(times_ms),
        "cores": [before, core()],
    }
    if small_step is not None and device == "cuda":
        row["issued"] = issued(small_step, 7)
    answer(row)
    wait()
    marker = marker_name() if device == "cuda" else ""
    answer({})
    wait()
    row = profiled(job, step, out) if device == "cuda" else {}
    answer(row | (looked(job, step, out, marker) if device == "cuda" and look else {}))


def profiled(job: Job, step: Callable[[], None], out: Path) -> dict[str, Any]:
    found = timeline(step)
    write(out / f"{stem(job)}.kernels.json.gz", json.dumps(found, separators=(",", ":")))
    spans = [(begin_ns, begin_ns + duration_ns) for _, begin_ns, duration_ns, _ in found["kernels"]]
    return {
        "kernels_ms": sum(end - begin for begin, end in spans) / 1e6,
        "gpu_busy_ms": union_ns(spans) / 1e6,
        "num_kernels": len(spans),
    }


def looked(job: Job, step: Callable[[], None], out: Path, marker: str) -> dict[str, Any]:
    try:
        rows = list(attributed_ops(step, marker, {"case": job[0], "variant": job[1]}))
    except RuntimeError as error:  # some ops are others under a dispatch mode; the rest of the row is worth having
        return {"ops_error": str(error)[:200]}
    write(out / f"{stem(job)}.ops.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows))
    return {}


def stem(job: Job) -> str:
    return f"{job[0]}{'_every' if job[1] != 'plain' else ''}"


def write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def rounds(jobs: Sequence[Job], needed_bytes: dict[Job, int]) -> list[list[Job]]:
    """Those that fit on the GPU beside each other; each job goes into the first round with room."""
    found: list[list[Job]] = []
    for job in jobs:
        for chosen in found:
            if len(chosen) < WIDTH and sum(needed_bytes[other] for other in [*chosen, job]) <= GPU_BYTES:
                chosen.append(job)
                break
        else:
            found.append([job])
    return found


def run_round(jobs: Sequence[Job], children: Sequence[Child]) -> Iterator[tuple[Job, dict[str, Any]]]:
    rows: list[dict[str, Any]] = [{} for _ in jobs]

    def advance(number: int, deadline_s: float) -> None:
        rows[number] |= {} if "error" in rows[number] else line_within(children[number], deadline_s)

    def turn() -> None:
        for number, child in enumerate(children):
            child.go()
            advance(number, time.monotonic() + TURN_S)

    def together() -> None:
        deadline_s = time.monotonic() + READY_S
        for number in range(len(children)):
            advance(number, deadline_s)

    try:
        together()
        turn()  # each is timed
        for child in children:
            child.go()
        together()  # all start their profilers
        turn()  # each is profiled
        yield from zip(jobs, rows, strict=True)
    finally:
        for child in children:
            child.end()


def line_within(child: Child, deadline_s: float) -> dict[str, Any]:
    """The child's next answer; it is ended when none comes before that moment of the monotonic clock."""
    timer = threading.Timer(max(0.1, deadline_s - time.monotonic()), os.kill, [child.pid, signal.SIGKILL])
    timer.start()
    try:
        return child.line()
    finally:
        timer.cancel()


def import_models(jobs: Sequence[Job]) -> None:
    """What building a case imports, before anything is forked. On the meta device little is computed; by one thread,
    since a forked process cannot use the threads of its parent and would wait for them forever."""
    torch.set_num_threads(1)
    names = {name for name, _ in jobs if not name.startswith(tuple(f"{library}_" for library in STARTS_CUDA))}
    for case in select(sorted(names), tiny=True) if names else ():
        with contextlib.suppress(Exception), torch.device("meta"):
            case.module()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="cases; NAME:plain and NAME:every are one variant of a case")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--predicted", type=Path, nargs="+", required=True, help="rows with the memory of each")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--look", action="store_true")
    parser.add_argument("--seconds", type=float, default=300, help="start no further round after this")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    jobs = jobs_of(args.names)
    import_models(jobs)
    print(f"{time.monotonic() - start_s:.0f} s: {len(jobs)} jobs", flush=True)
    lines = [json.loads(line) for path in args.predicted for line in path.read_text().splitlines()]
    needed = {
        (line["case"], line["variant"]): round(line["classic"][1] * (BESIDE if args.look else 1)) + CONTEXT_BYTES
        for line in lines
    }
    waiting = rounds(jobs, needed)
    for chosen in waiting:
        if time.monotonic() - start_s > args.seconds:
            print(f"no time left for {chosen}", file=sys.stderr)
            continue
        children = [Child(partial(measure, job, args.out, args.device, args.look)) for job in chosen]
        for job, row in run_round(chosen, children):
            is_crowded = row.get("alloc_retries") or "out of memory" in row.get("error", "")
            if is_crowded and len(chosen) > 1:
                waiting.append([job])
                continue
            with (args.out / "rows.jsonl").open("a") as file:
                file.write(json.dumps({"case": job[0], "variant": job[1], **row}) + "\n")
            text = row.get("error") or f"{row['step_ms']:.1f} ms, kernels {row.get('kernels_ms', 0):.1f} ms"
            print(f"{time.monotonic() - start_s:.0f} s: {' '.join(job)}: {text[:300]}", flush=True)


if __name__ == "__main__":
    main()
