"""Steps that wait for the CPU, and what `trainfit calibrate` times of the host, on one machine and in turns.

    python benchmarks/measure_host.py --out OUT --for-s 400      # OUT/steps.jsonl, OUT/host.partial, OUT/cores.jsonl
    python benchmarks/measure_host.py --out OUT --for-s 60 --device cpu --tiny gemma llama_clip:plain    # tries it out
    python benchmarks/measure_host.py --out OUT --for-s 150 --look cvt_amp levit_fp32    # OUT/timelines.jsonl, too

A host changes its speed within seconds and from process to process, so what is compared must be spread over the same
time: round after round, every case runs in a process of its own, `WIDTH` of them at a time, and beside each batch
one more does the host's part of a calibration. They start together, and when all are ready each is told in turn to time
`TIMED` steps; nothing else runs meanwhile. Rows have every step's time, and what a fixed loop in Python took after it.
Batches are begun as long as one more is likely to end within `--for-s` seconds. With `--look` the processes of the
first round also profile one step, kernel by kernel, and time what the CPU takes to issue a step of two samples.
steps.jsonl is what predict_time.py reads as `--timed`, host.partial has lines as the partial file of
`trainfit calibrate` has them.

Processes are forked from one that has imported everything and touched neither CUDA nor autograd. Before it does
anything else, each collects garbage, which writes to every object: its memory is its own from then on. Twelve cases in
pairs, five turns each, took 0.98 (+- 0.02) of the time that they took in processes that were not forked.
"""

from __future__ import annotations

import os

# CUDA must not start in the parent of forked processes.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import argparse
import contextlib
import gc
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from loop import training_step
from measure_memory import step_ms
from measure_time import jobs_of
from timeline import issued, small, timeline
from trainfit.calibrate.host import prepare_host, time_host
from zoo import select
from zoo.libraries import STARTS_CUDA

CASES = (
    "qwen3", "qwen2_amp", "llama_adafactor", "gru_fp32", "gru_bf16", "lstm_amp", "wav2vec2", "llama_lora",
    "llama_fused", "llama_for_loop", "t5_amp", "t5_bf16", "roberta_padded", "llama_clip", "llama_accumulate",
    "mixtral", "bart", "vit_large", "whisper_small", "clip", "swin_base", "nanogpt_reentrant_amp", "gemma",
    "convnext_amp", "neox_dropout", "opt_fp16amp", "mistral_padded", "deberta", "segformer", "gpt2_fused",
    "gpt2_fp16amp_clip", "nanogpt_amp", "gpt2_accumulate_clip", "nanogpt_dropout_bf16", "encoder_post_norm_amp",
    "complex_rope_bf16",
)  # fmt: skip
"""Those that wait for the CPU, or nearly do."""
WARM_UP, TIMED = 2, 9
WIDTH = 12
NUM_THREADS = torch.get_num_threads()
"""Of each child. The parent has one: threads that it had started would be missing in children, which wait for them."""
BATCH_S = 150
"""A batch that takes longer is ended."""
HOST = "host"
Job = tuple[str, str]
"""The case's name, the variant; or the host."""


class Child:
    """A forked process: `line` is what it writes, `go` lets it go on to the next."""

    def __init__(self, work: Callable[[Callable[[], None], Callable[[dict[str, Any]], None]], None]) -> None:
        told, answers = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(told[1])
            os.close(answers[0])
            _be_child(work, told[0], answers[1])
        os.close(told[0])
        os.close(answers[1])
        self._told, self._answers = told[1], os.fdopen(answers[0])

    def go(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._told, b"g")

    def line(self) -> dict[str, Any]:
        text = self._answers.readline()
        return json.loads(text) if text else {"error": "the process failed or was too slow"}

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._told)
        self._answers.close()


def _be_child(work: Callable[..., None], told: int, answers: int) -> None:
    def wait() -> None:
        os.read(told, 1)

    def answer(found: dict[str, Any]) -> None:
        text = (json.dumps(found) + "\n").encode()
        while text:
            text = text[os.write(answers, text) :]

    try:
        gc.collect()
        torch.set_num_threads(NUM_THREADS)
        work(wait, answer)
        wait()  # for the end of the batch: taking CUDA down would slow whoever is timed next
    except BaseException as error:
        traceback.print_exc(limit=-6)
        answer({"error": f"{type(error).__name__}: {error}"[:400]})
    finally:
        os._exit(0)


def run_case(
    job: Job, device: str, tiny: bool, look: bool, wait: Callable[[], None], answer: Callable[..., None]
) -> None:
    begin_s = time.monotonic()
    name, variant = job
    case = select([name], tiny)[0]
    steps = [training_step(one, device, variant == "every layer") for one in ([case, small(case)] if look else [case])]
    built_s = time.monotonic()
    step = steps[0]
    for _ in range(WARM_UP):
        for one in steps:
            one()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # others need the memory in their turns
    answer({"started_s": [round(built_s - begin_s, 1), round(time.monotonic() - begin_s, 1)]})
    wait()
    times_ms, loops_ns = [], []
    before = core()
    for _ in range(WARM_UP + TIMED):
        times_ms.append(round(step_ms(step, device), 3))
        loops_ns.append(loop_ns(5000))
    after = core()
    if device == "cuda":
        torch.cuda.empty_cache()
    # A process in which a profiler was started launches more slowly ever after.
    looked = {"issued": issued(steps[1], TIMED), "timeline": timeline(step)} if look else {}
    answer(
        {
            **looked,
            "torch": torch.__version__,
            "step_ms": statistics.median(times_ms[WARM_UP:]),
            "fastest_ms": min(times_ms[WARM_UP:]),
            "slowest_ms": max(times_ms[WARM_UP:]),
            "times_ms": times_ms,
            "loops_ns": loops_ns,
            "cores": [before, after],
            "at_s": round(time.time(), 1),
        }
    )


def run_host(wait: Callable[[], None], answer: Callable[..., None]) -> None:
    prepared = prepare_host()
    answer({})
    wait()
    before = core()
    answer({**time_host(prepared, with_kernels=True), "cores": [before, core()], "at_s": time.time()})


def core() -> int:
    """The one on which this runs."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[36])


def loop_ns(length: int) -> int:
    begin = time.perf_counter_ns()
    total = 0
    for number in range(length):
        total += number & 7
    return time.perf_counter_ns() - begin


def cores() -> dict[str, Any]:
    """The loop on each core, alone and beside one that runs on the next core; the fastest of ten."""
    mine = os.sched_getaffinity(0)
    mhz = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "MHz" in line]
    alone, beside = {}, {}
    for one in sorted(mine):
        os.sched_setaffinity(0, {one})
        alone[one] = min(loop_ns(20000) for _ in range(10))
    for one in sorted(mine)[:-1:2]:
        command = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{one + 1}}})\nwhile True: pass"]
        spinning = subprocess.Popen(command)
        time.sleep(0.1)
        os.sched_setaffinity(0, {one})
        beside[one] = min(loop_ns(20000) for _ in range(10))
        spinning.kill()
        spinning.wait()
    os.sched_setaffinity(0, mine)
    return {"alone_ns": alone, "beside_ns": beside, "mhz": mhz, "at_s": round(time.time(), 1)}


def run_batch(jobs: Sequence[Job], device: str, tiny: bool, look: bool) -> Iterator[tuple[Job, dict[str, Any]]]:
    """What each process of the batch found; those that are late are ended."""
    children = [Child(run_host if job[0] == HOST else partial(run_case, job, device, tiny, look)) for job in jobs]
    deadline = threading.Timer(BATCH_S, _kill, [children])
    deadline.start()
    try:
        ready = [child.line() for child in children]
        for job, child, first in zip(jobs, children, ready, strict=True):
            if "error" not in first:
                child.go()
                yield job, first | child.line()
            else:
                yield job, first
    finally:
        deadline.cancel()
        for child in children:
            child.end()


def _kill(children: Sequence[Child]) -> None:
    for child in children:
        os.kill(child.pid, signal.SIGKILL)


def batches(jobs: Sequence[Job], with_host: bool) -> Iterator[list[Job]]:
    """Round after round; in each, the jobs meet others."""
    num_batches = -(-len(jobs) // WIDTH)
    for number in range(sys.maxsize):
        round_, first = divmod(number, num_batches)
        shift = 5 * round_ % len(jobs)
        chosen = [*jobs[shift:], *jobs[:shift]][first::num_batches]
        half = len(chosen) // 2
        yield [*chosen[:half], (HOST, ""), *chosen[half:]] if with_host else chosen


def import_models(jobs: Sequence[Job]) -> None:
    """What building a case imports, but for what starts CUDA; on the meta device nothing is computed."""
    starting = tuple(f"{library}_" for library in STARTS_CUDA)
    for name in (name for name in dict(jobs) if not name.startswith(starting)):
        with contextlib.suppress(Exception), torch.device("meta"):
            select([name], tiny=True)[0].module(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names; NAME:plain and NAME:every are one variant of a case")
    parser.add_argument("--out", type=Path, required=True, help="folder for what is found")
    parser.add_argument("--for-s", type=float, default=400)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--look", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    begin_s = time.monotonic()
    torch.set_num_threads(1)
    jobs = jobs_of(args.cases or CASES)
    import_models(jobs)
    lasted_s: dict[bool, float] = {}
    num_hosts = 0
    num_batches = -(-len(jobs) // WIDTH)
    for number, chosen in enumerate(batches(jobs, args.device == "cuda")):
        batch_s = time.monotonic()
        look = args.look and number < num_batches
        if batch_s + lasted_s.get(look, max(lasted_s.values(), default=0.0)) - begin_s > args.for_s:
            break
        _append(args.out / "cores.jsonl", cores())
        for (name, variant), found in run_batch(chosen, args.device, args.tiny, look):
            if name != HOST:
                if "timeline" in found:
                    looked = {key: found.pop(key) for key in ("issued", "timeline")}
                    _append(args.out / "timelines.jsonl", {"case": name, "variant": variant, **looked})
                _append(args.out / "steps.jsonl", {"case": name, "variant": variant, "allocator": "classic", **found})
            elif "error" not in found:
                _append(args.out / "host.partial", {"chunk": f"host {num_hosts}", **found})
                num_hosts += 1
            if "error" in found or "started_s" in found:
                print(name, variant, found.get("started_s"), found.get("step_ms", found.get("error")), flush=True)
        lasted_s[look] = max(lasted_s.get(look, 0.0), time.monotonic() - batch_s)
        print(f"{time.monotonic() - begin_s:.0f} s: a batch of {len(chosen)}, {num_hosts} hosts", flush=True)


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
