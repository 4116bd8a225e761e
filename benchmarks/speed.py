"""How long estimates and plans take and how much memory, beside one plain FakeTensor forward and backward.

    python benchmarks/speed.py            # prints three Markdown tables; each row is a fresh process, no GPU needed

First table, after imports: `estimate` is tracing and simulating (classic allocator) one step; `fake` is one forward and
backward of the same model and batch under torch's FakeTensorMode on the CPU device, without optimizer. Growth: the same
model with a quarter and with half of its layers.

Second table, after tracing and pricing: the solve of two plans, by what it spends: menus and integer programs, and
playing candidates through the allocator, which a budget of reserved bytes needs. The rows that a plan is compared with
and the last trace, which judges it, are not in it.

Third table, from process start to its end: whole commands, imports included, the best of two runs.

Seconds are of the CPU (user and system), with one thread: on a machine that others use too, those of the clock say how
busy it was.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

CASES = [("llama3-8b", 32), ("llama3-70b", 20), ("llama3-70b", 40), ("llama3-70b", 80)]


SOLVES = [("llama3-8b", 2, "120GiB"), ("llama3-70b", 4, "750GiB")]
COMMANDS = [
    "estimate llama3-8b --gpu h200",
    "estimate llama3-70b --gpu h200",
    "plan llama3-8b --batch 2 --seq 8192 --gpu h200 --budget 120GiB",
    "plan llama3-8b --batch 2 --seq 8192 --gpu h100-80gb --budget 72GiB",
    "plan llama3-70b --batch 4 --seq 8192 --gpu h200 --budget 750GiB",
    "plan llama3-70b --batch 1 --seq 8192 --gpu h200 --fsdp 64 --budget 60GiB",
]
RUNS = 2
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def step_with_layers(preset: str, layers: int) -> Any:
    """The preset's step at batch 1 and its default length, with so many layers."""
    from trainfit.targets import resolve

    step = resolve(preset, batch=1, seq=8192)

    def build() -> Any:
        model = step.model()
        model.blocks = model.blocks[:layers]
        return model

    return replace(step, model=build)


def measure_estimate(preset: str, layers: int) -> dict[str, float]:
    from trainfit.gpus.catalogue import find_gpu
    from trainfit.gpus.hidden import hidden_memory
    from trainfit.simulate import simulate_memory
    from trainfit.trace import trace_step

    step, gpu = step_with_layers(preset, layers), find_gpu("h200")
    start_s = time.process_time()
    trace = trace_step(step, gpu)
    traced_s = time.process_time()
    simulate_memory(trace, hidden_memory(gpu, trace.torch_version), "classic")
    return {"trace_s": traced_s - start_s, "simulate_s": time.process_time() - traced_s, "num_ops": len(trace.ops)}


def measure_fake(preset: str, layers: int) -> dict[str, float]:
    import torch
    from torch._subclasses import FakeTensorMode

    step = step_with_layers(preset, layers)
    start_s = time.process_time()
    with FakeTensorMode():
        model = step.model()
        batch = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in step.batch.items()}
        output = model(**batch)
        (step.loss(output) if step.loss else output).backward()
    return {"fake_s": time.process_time() - start_s}


def measure_solve(preset: str, batch: int, budget: str) -> dict[str, float]:
    """`number` candidates are simulated; a plan is judged by its written trace here, which is left out too."""
    from ten_budgets import search
    from trainfit._plan import Planner, trace_for_plans
    from trainfit.gpus.catalogue import find_gpu
    from trainfit.targets import resolve
    from trainfit.trace import garbage_collection_off
    from trainfit.units import parse_bytes

    step, gpu = resolve(preset, batch=batch, seq=8192), find_gpu("h200")
    spent: dict[str, list[float]] = {"written": [], "sketch": []}

    def timed(name: str) -> Any:
        method = getattr(Planner, name)

        def run(*args: Any) -> Any:
            start_s = time.process_time()
            result = method(*args)
            spent[name].append(time.process_time() - start_s)
            return result

        return run

    Planner.written, Planner.sketch = timed("written"), timed("sketch")  # type: ignore[method-assign]
    with garbage_collection_off():
        planner = Planner(step, gpu, "reserved", "classic", traced=trace_for_plans(step, gpu))
        assert planner.base
        start_s = time.process_time()
        search(planner).within(parse_bytes(budget, of_bytes=gpu.memory_bytes))
        solve_s = time.process_time() - start_s - sum(spent["written"])
    return {"solve_s": solve_s, "simulate_s": sum(spent["sketch"]), "number": len(spent["sketch"])}


def fresh(kind: str, preset: str, *arguments: object) -> dict[str, float]:
    """One measurement in a process of its own, with its peak memory."""
    command = [sys.executable, __file__, kind, preset, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ONE_THREAD)
    return json.loads(done.stdout)


def command_seconds(command: str) -> tuple[float, float]:
    """(CPU seconds, seconds by the clock) of one run of `trainfit command`."""
    before, start_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "trainfit", *command.split()], capture_output=True, env=ONE_THREAD, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return cpu_s, time.perf_counter() - start_s


def main() -> None:
    if len(sys.argv) > 3:
        kind, preset, number, *rest = sys.argv[1:]
        measure: Any = {"estimate": measure_estimate, "fake": measure_fake, "solve": measure_solve}[kind]
        result = measure(preset, int(number), *rest)
        units_per_gib = 2**30 if sys.platform == "darwin" else 2**20  # macOS counts bytes, Linux KiB
        result["peak_rss_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units_per_gib
        print(json.dumps(result))
        return
    import torch

    print(f"Python {platform.python_version()}, torch {torch.__version__}, seconds of one CPU core, after imports.\n")
    print("| preset | layers | ops | trace s | simulate s | fake fwd+bwd s | estimate / fake | peak RSS GiB |")
    print("|---|---|---|---|---|---|---|---|")
    for preset, layers in CASES:
        ours, fake = fresh("estimate", preset, layers), fresh("fake", preset, layers)
        ratio = (ours["trace_s"] + ours["simulate_s"]) / fake["fake_s"]
        print(
            f"| {preset} | {layers} | {ours['num_ops']} | {ours['trace_s']:.2f} | {ours['simulate_s']:.2f} |"
            f" {fake['fake_s']:.2f} | {ratio:.2f} | {ours['peak_rss_gib']:.2f} |",
            flush=True,
        )
    print("\nThe solve alone, after tracing and pricing, best of 2.\n")
    print("| preset, batch, budget | menus and programs s | candidates simulated | simulating them s | together s |")
    print("|---|---|---|---|---|")
    for solve in SOLVES:
        row = min((fresh("solve", *solve) for _ in range(RUNS)), key=lambda row: row["solve_s"])
        name, total_s, simulate_s = ", ".join(map(str, solve)), row["solve_s"], row["simulate_s"]
        parts = f"{total_s - simulate_s:.2f} | {row['number']} | {simulate_s:.2f} | {total_s:.2f}"
        print(f"| {name} | {parts} |", flush=True)
    load = os.getloadavg()[0]
    print(f"\nWhole commands, imports included, best of {RUNS}; the machine's load was {load:.1f} beside them.\n")
    print("| command | CPU s | clock s |")
    print("|---|---|---|")
    for command in COMMANDS:
        runs = [command_seconds(command) for _ in range(RUNS)]
        print(f"| `trainfit {command}` | {min(r[0] for r in runs):.1f} | {min(r[1] for r in runs):.1f} |", flush=True)


if __name__ == "__main__":
    main()
