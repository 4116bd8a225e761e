"""Peak against time, side by side in one run: eager, checkpointing, torch's selective, compile's budgets, our plans.

    python benchmarks/curve.py --plans DIR --out curve.jsonl                        # llama1b gpt2m bertl on the GPU
    python benchmarks/curve.py --plans DIR --out curve.jsonl --only llama1b --no-compile
    python benchmarks/curve.py --table curve.jsonl                                  # no GPU: the tables again
    python benchmarks/curve.py --plans DIR --out curve.jsonl --device cpu --tiny    # shows that it is spelt right

Per case one process runs every way of training in turn, each built anew from the same seed: first steps, then timed
ones; a step is forward, backward and AdamW. The plans in DIR (make_plans.py) were made without the GPU: at five
budgets, and at the simulated peaks of what people do without a plan. compile has a process of its own, last.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trainfit
from children import emit, run_all, wait_for_turn
from loop import default_loss
from recompute import checkpointed, replayed, selective
from trainfit.apply import Handle, record_blocks
from trainfit.gpus.catalogue import find_gpu
from zoo import Case, make_step, select

GIB = 2**30
COMPILE_BUDGETS = (1.0, 0.5, 0.2, 0.05)
Change = Callable[[nn.Module], Handle | None]


def ways(case: Case, plans: Path, device: str) -> Iterator[tuple[str, Change]]:
    """(name, what is done to the model) for everything but compile."""
    yield "eager", lambda model: None
    yield "every second layer", lambda model: checkpointed(model, 2)
    yield "every layer", lambda model: checkpointed(model, 1)
    yield "torch selective", selective
    if device == "cuda":
        programs = dict(record_blocks(make_step(case), find_gpu(torch.cuda.get_device_name())))
        yield "replay, selective's ops", lambda model: replayed(model, programs)
    for kind in ("peak", "budget"):
        for path in sorted(plans.glob(f"{case.name}_{kind}_*.json")):
            plan = trainfit.Plan.load(path)
            yield f"plan {path.stem.removeprefix(case.name + '_')}", plan.apply
    yield "eager again", lambda model: None


class Training:
    """A case on a device, one call per training step."""

    def __init__(self, case: Case, device: str, change: Change) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            self.model = case.module()
        self.handle = change(self.model)
        self._case, self._device = case, device
        self._optimizer = case.optimizer(self.model.parameters())
        self._batch = dict(case.batch(device))
        self._loss_of = case.loss or default_loss
        self.run: Callable[..., Any] = self.model

    def step(self) -> None:
        case = self._case
        with torch.autocast(self._device, case.autocast or torch.bfloat16, enabled=case.autocast is not None):
            loss = self._loss_of(self.run(**self._batch))
        loss.backward()
        del loss
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def measure(self, steps: int) -> dict[str, Any]:
        """Peaks with the first step and without it, and the median time of a step."""
        start_s = time.perf_counter()
        self.step()
        first_allocated, _ = peaks(self._device)
        first_s = time.perf_counter() - start_s
        for _ in range(2):
            self.step()
        _, reserved_bytes = peaks(self._device)
        if self._device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        times_ms = [timed_ms(self.step, self._device) for _ in range(steps)]
        allocated_bytes, later_reserved = peaks(self._device)
        row = {
            "ms": statistics.median(times_ms),
            "fastest_ms": min(times_ms),
            "allocated_bytes": allocated_bytes,
            "reserved_bytes": max(reserved_bytes, later_reserved),
            "first_step_allocated_bytes": first_allocated,
            "first_s": round(first_s, 2),
        }
        if self.handle is not None:
            stats = self.handle.stats()
            row |= {"replayed_ops": sum(s.replayed_ops for s in stats), "reruns": sum(s.reruns for s in stats)}
        return row


def peaks(device: str) -> tuple[int, int]:
    return (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if device == "cuda" else (0, 0)


def timed_ms(step: Callable[[], None], device: str) -> float:
    """Milliseconds of one step, from the first statement until the GPU is done."""
    start_s = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start_s) * 1e3


def clean(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measure_way(case: Case, name: str, args: argparse.Namespace, make: Callable[[], Training]) -> None:
    clean(args.device)
    try:
        row = make().measure(args.steps)
    except Exception as error:  # one way that fails must not hide the others
        row = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    emit(model=case.name, way=name, **row)


def compiled(case: Case, device: str, budget: float) -> Training:
    """torch.compile with an activation memory budget, a share of what it would save."""
    import torch._functorch.config

    torch._dynamo.reset()
    torch._functorch.config.activation_memory_budget = budget
    training = Training(case, device, lambda model: None)
    training.run = torch.compile(training.model)
    return training


def child(args: argparse.Namespace) -> None:
    case = select([args.child], tiny=args.tiny)[0]
    wait_for_turn()
    if args.compile_only:
        for budget in COMPILE_BUDGETS:
            measure_way(case, f"compile, budget {budget}", args, partial(compiled, case, args.device, budget))
        return
    for name, change in ways(case, args.plans, args.device):
        measure_way(case, name, args, partial(Training, case, args.device, change))


def table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """As they come: a row per way, beside the eager of its model."""
    eager: dict[str, float] = {}
    yield "| model | | peak GiB | first step | reserved | ms | over eager | reruns |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        if "way" not in row:
            if "error" in row:
                yield f"| {' '.join(row['case'][-2:])} | failed: {' '.join(row['error'].split())[-200:]} |"
            continue
        if "error" in row:
            yield f"| {row['model']} | {row['way']} | failed: {' '.join(row['error'].split())[:200]} |"
            continue
        before = eager.setdefault(row["model"], row["ms"])
        sizes = [row[key] / GIB for key in ("allocated_bytes", "first_step_allocated_bytes", "reserved_bytes")]
        yield (
            f"| {row['model']} | {row['way']} | {sizes[0]:.3f} | {sizes[1]:.3f} | {sizes[2]:.3f} | {row['ms']:.1f}"
            f" | {row['ms'] / before - 1:+.1%} | {row.get('reruns', '')} |"
        )


LIMITS: dict[str, Callable[[float, float], float]] = {
    "torch selective": lambda eager, other: 0.8 * other,
    "every second layer": lambda eager, other: eager + 0.5 * (other - eager),
    "every layer": lambda eager, other: other,
}
"""(eager's time, the other's) -> what our plan at the other's peak may take."""


def promises(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What was promised about the curve, per model."""
    for model in dict.fromkeys(row["model"] for row in rows if "ms" in row):
        ms = {row["way"]: row["ms"] for row in rows if row.get("model") == model and "ms" in row}
        for way, limit_of in LIMITS.items():
            plan = f"plan peak_{way.removeprefix('torch ').replace(' ', '_')}"
            if way in ms and plan in ms:
                limit = limit_of(ms["eager"], ms[way])
                verdict = "holds" if ms[plan] <= limit else "does not hold"
                text = f"{ms[way]:.1f} ms, our plan at its peak {ms[plan]:.1f} ms (limit {limit:.1f})"
                yield f"{model}, {way}: {text}: {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=Path, help="folder with the plans")
    parser.add_argument("--out", type=Path, help="jsonl to append to")
    parser.add_argument("--only", action="append", help="cases; default: llama1b gpt2m bertl")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--timeout-s", type=float, default=120, help="for a process: all ways of one model")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--table", type=Path, help="print the tables of a file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    if args.table:
        rows = [json.loads(text) for text in args.table.read_text().splitlines()]
        print(*table(rows), "", *promises(rows), sep="\n")
        return
    common = ["--plans", str(args.plans), "--device", args.device, "--steps", str(args.steps)]
    common += ["--tiny"] if args.tiny else []
    names = args.only or ["llama1b", "gpt2m", "bertl"]
    cases = [] if args.compile_only else [[*common, "--child", name] for name in names]
    cases += [] if args.no_compile else [[*common, "--compile-only", "--child", name] for name in names]
    rows = []
    for text in table(noting(run_all(__file__, cases, args.out, args.timeout_s), rows)):
        print(text, flush=True)
    print("", *promises(rows), sep="\n")


def noting(rows: Iterable[dict[str, Any]], seen: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        seen.append(row)
        yield row


if __name__ == "__main__":
    main()
