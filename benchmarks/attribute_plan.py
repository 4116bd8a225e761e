"""Where a planned step's time goes: ways of training one model in turns, and one step of each under the profiler.

    python benchmarks/attribute_plan.py --plans DIR --out DIR gpt2m "every layer" "plan peak_every_layer"
    python benchmarks/attribute_plan.py --plans DIR --out DIR gpt2m --device cpu --tiny

Per way: milliseconds until all is issued and until the GPU is done (medians of turns), and of one profiled step the
GPU's busy time, its kernels, and its idle time by the kernel that ended the wait. Then, for each pair of neighbouring
ways, the kernels by whose time or number they differ most. Everything is written to OUT/CASE.json as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from curve import KINDS, Training, take_turn, ways
from zoo import select

TOP = 12


def profiled(training: Training, run: Any) -> dict[str, Any]:
    """One step's kernels: (name, start, duration) of each, in microseconds, by start."""
    activities = [
        torch.profiler.ProfilerActivity.CUDA if training.device == "cuda" else torch.profiler.ProfilerActivity.CPU
    ]
    training.step(run)
    training.synchronize()
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        training.step(run)
        training.synchronize()
    kernels = sorted(
        (event.start_ns() / 1e3, event.duration_ns() / 1e3, event.name())
        for event in profiler.profiler.kineto_results.events()
        if event.device_type() != torch.autograd.DeviceType.CPU or training.device == "cpu"
    )
    return summary([(start, length, name) for start, length, name in kernels])


def summary(kernels: list[tuple[float, float, str]]) -> dict[str, Any]:
    time_us: Counter[str] = Counter()
    count: Counter[str] = Counter()
    idle_us: Counter[str] = Counter()
    end_us = kernels[0][0] if kernels else 0.0
    for start, length, name in kernels:
        short = name[:90]
        time_us[short] += length
        count[short] += 1
        if start > end_us:
            idle_us[short] += start - end_us
        end_us = max(end_us, start + length)
    return {
        "busy_ms": sum(time_us.values()) / 1e3,
        "idle_ms": sum(idle_us.values()) / 1e3,
        "kernels": len(kernels),
        "time_us": dict(time_us),
        "count": dict(count),
        "idle_us": dict(idle_us),
    }


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The kernels by whose time two steps differ most."""
    names = first["time_us"].keys() | second["time_us"].keys()

    def change(name: str) -> float:
        return second["time_us"].get(name, 0.0) - first["time_us"].get(name, 0.0)

    return [
        f"  {change(name) / 1e3:+8.3f} ms  {first['count'].get(name, 0):5} -> {second['count'].get(name, 0):5}  {name}"
        for name in sorted(names, key=lambda name: -abs(change(name)))[:TOP]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case")
    parser.add_argument("ways", nargs="*", help="as curve.py names them; all when none is given")
    parser.add_argument("--plans", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    case = select([args.case], tiny=args.tiny)[0]
    training = Training(case, args.device)
    running = {}
    for name, change in ways(case, args.plans, KINDS, args.device):
        if not args.ways or name in args.ways:
            running[name] = training.modules_again()
            change(running[name])
    for name, model in list(running.items()):
        try:
            for _ in range(2):
                training.step(model)
        except Exception as error:  # one way that fails must not hide the others
            print(f"{case.name} {name} failed: {type(error).__name__}: {error}", flush=True)
            training.optimizer.zero_grad(set_to_none=True)
            del running[name]
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
    for _ in range(args.rounds):
        for name, model in running.items():
            turns[name].append(take_turn(training, model))
    results = {}
    for name, model in running.items():
        times = {key: [ms for turn in turns[name] for ms in turn[key]] for key in ("issued_ms", "done_ms")}
        results[name] = {**times, **profiled(training, model)}
        middle = {key: statistics.median(values) for key, values in times.items()}
        print(
            f"{case.name} {name:30} issued {middle['issued_ms']:7.1f}  done {middle['done_ms']:7.1f}"
            f" (fastest {min(times['done_ms']):.1f})  profiled: busy {results[name]['busy_ms']:7.1f}"
            f"  idle {results[name]['idle_ms']:6.1f}  kernels {results[name]['kernels']}",
            flush=True,
        )
        for kernel, us in sorted(results[name]["idle_us"].items(), key=lambda item: -item[1])[:TOP]:
            print(f"    idle {us / 1e3:7.3f} ms before  {kernel}")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{case.name}.json").write_text(json.dumps(results))
    for first, second in zip(list(results)[:-1], list(results)[1:], strict=True):
        print(f"{first} -> {second}", *differences(results[first], results[second]), sep="\n")


if __name__ == "__main__":
    main()
