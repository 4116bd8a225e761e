"""Peak against time, side by side in one run: eager, checkpointing, torch's selective, compile's budgets, our plans.

    python benchmarks/curve.py --plans DIR --out curve.jsonl                        # llama1b gpt2m bertl on the GPU
    python benchmarks/curve.py --plans DIR --out curve.jsonl --only llama1b --no-compile
    python benchmarks/curve.py --out curve.jsonl --compile-only
    python benchmarks/curve.py --table curve.jsonl                                  # no GPU: the tables again
    python benchmarks/curve.py --plans DIR --out curve.jsonl --device cpu --tiny    # shows that it is spelt right

Per case one process has one model and one optimizer, and per way of training a copy of the modules around the same
parameters. First every way is run from an empty cache and an empty optimizer, for its peaks. Then all of them take
turns, round after round, so that a slow minute of the host is everybody's: the times are medians over the rounds, and
their spread is shown. compile's budgets have processes of their own, which compile at the same time and are timed one
after another, beside eager. A step is forward, backward and AdamW. The plans in DIR (make_plans.py) were made without
the GPU: at five budgets, and at the simulated peaks of what people do without a plan.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trainfit
from children import emit, ready, run_all, wait_for_turn
from curve_tables import promises, table
from loop import default_loss
from recompute import KEPT_OPS, checkpointed, replayed, selective
from trainfit.apply import Handle, record_blocks
from trainfit.gpus.catalogue import find_gpu
from zoo import Case, make_step, select

Change = Callable[[nn.Module], Handle | None]
KINDS = ["peak", "budget"]
WARM_UP_STEPS = 2
STEPS_A_TURN = 2


def ways(case: Case, plans: Path, kinds: list[str], device: str) -> Iterator[tuple[str, Change]]:
    """(name, what is done to the model) for everything but compile."""
    yield "eager", lambda model: None
    yield "every second layer", lambda model: checkpointed(model, 2)
    yield "every layer", lambda model: checkpointed(model, 1)
    for name, is_kept in KEPT_OPS.items():
        yield f"torch {name}", partial(selective, is_kept=is_kept)
    if device == "cuda":
        programs = dict(record_blocks(make_step(case), find_gpu(torch.cuda.get_device_name())))
        for name, is_kept in KEPT_OPS.items():
            yield f"replay, ops of {name}", partial(replayed, is_kept=is_kept, programs=programs)
    for kind in kinds:
        for path in sorted(plans.glob(f"{case.name}_{kind}_*.json")):
            plan = trainfit.Plan.load(path)
            yield f"plan {path.stem.removeprefix(case.name + '_')}", plan.apply


class Training:
    """A case on a device: parameters, optimizer and batch, which all ways share."""

    def __init__(self, case: Case, device: str) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            self.model = case.module()
        self.device = device
        self._case = case
        self.optimizer = case.optimizer(self.model.parameters())
        self._batch = dict(case.batch(device))
        self._loss_of = case.loss or default_loss

    def modules_again(self) -> nn.Module:
        """A copy of the modules around the same parameters and buffers."""
        shared = {id(tensor): tensor for tensor in (*self.model.parameters(), *self.model.buffers())}
        return copy.deepcopy(self.model, shared)

    def step(self, run: Callable[..., Any]) -> None:
        case = self._case
        with torch.autocast(self.device, case.autocast or torch.bfloat16, enabled=case.autocast is not None):
            loss = self._loss_of(run(**self._batch))
        loss.backward()
        del loss
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def clean(self) -> None:
        """As at the start of training: no optimizer state, nothing cached, peaks forgotten."""
        self.optimizer.state.clear()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> tuple[int, int]:
        """Allocated and reserved, since they were last forgotten."""
        if self.device != "cuda":
            return 0, 0
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def measure_peaks(training: Training, run: Callable[..., Any]) -> dict[str, Any]:
    """Peaks from an empty cache: of the first step, and of all."""
    training.clean()
    start_s = time.perf_counter()
    training.step(run)
    training.synchronize()
    first_allocated, _ = training.peaks()
    first_s = time.perf_counter() - start_s
    for _ in range(WARM_UP_STEPS):
        training.step(run)
    allocated_bytes, reserved_bytes = training.peaks()
    return {
        "allocated_bytes": allocated_bytes,
        "reserved_bytes": reserved_bytes,
        "first_step_allocated_bytes": first_allocated,
        "first_s": round(first_s, 2),
    }


def take_turn(training: Training, run: Callable[..., Any]) -> dict[str, Any]:
    """A step to settle in, then timed ones: until the CPU had issued all, and until the GPU was done."""
    training.step(run)
    training.synchronize()
    issued_ms, done_ms = [], []
    for _ in range(STEPS_A_TURN):
        start_s = time.perf_counter()
        training.step(run)
        issued_ms.append((time.perf_counter() - start_s) * 1e3)
        training.synchronize()
        done_ms.append((time.perf_counter() - start_s) * 1e3)
    return {"issued_ms": issued_ms, "done_ms": done_ms}


def told(case: Case, way: str, act: Callable[[], dict[str, Any]]) -> bool:
    """Emit what was measured, or the error: one way that fails must not hide the others."""
    try:
        row = act()
    except Exception as error:
        emit(model=case.name, way=way, error=f"{type(error).__name__}: {str(error)[:300]}")
        return False
    emit(model=case.name, way=way, **row)
    return True


def child(args: argparse.Namespace) -> None:
    case = select([args.child], tiny=args.tiny)[0]
    wait_for_turn()
    training = Training(case, args.device)
    running: dict[str, nn.Module] = {}
    for name, change in ways(case, args.plans, args.kinds, args.device):
        model = training.modules_again()
        handle = change(model)
        if told(case, name, partial(measure_peaks, training, model)):
            running[name] = model
        if handle is not None:
            stats = handle.stats()
            replayed_ops, reruns = sum(s.replayed_ops for s in stats), sum(s.reruns for s in stats)
            emit(model=case.name, way=name, replayed_ops=replayed_ops, reruns=reruns)
    training.clean()
    for _ in range(args.rounds):
        for name, model in list(running.items()):
            if not told(case, name, partial(take_turn, training, model)):
                del running[name]


def compile_child(args: argparse.Namespace) -> None:
    """torch.compile with an activation memory budget, a share of what it would save; it compiles before its turn."""
    import torch._functorch.config

    case = select([args.child], tiny=args.tiny)[0]
    torch._functorch.config.activation_memory_budget = args.compile_budget
    training = Training(case, args.device)
    model = training.modules_again()
    run: Callable[..., Any] = torch.compile(model)
    start_s = time.perf_counter()
    training.step(run)
    emit(compile_s=round(time.perf_counter() - start_s, 1))
    training.clean()
    ready()
    wait_for_turn()
    way = f"compile, budget {args.compile_budget}"
    told(case, way, partial(measure_peaks, training, run))
    for _ in range(args.rounds):
        told(case, way, partial(take_turn, training, run))
        told(case, f"eager beside {way}", partial(take_turn, training, training.model))
    training.clean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=Path, help="folder with the plans")
    parser.add_argument("--out", type=Path, help="jsonl to append to")
    parser.add_argument("--kinds", nargs="*", default=KINDS, help="of plans, as make_plans.py names their files")
    parser.add_argument("--only", action="append", help="cases; default: llama1b gpt2m bertl")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rounds", type=int, default=5, help=f"turns of {STEPS_A_TURN} timed steps each")
    parser.add_argument("--timeout-s", type=float, default=120, help="for a process: all ways of one model")
    parser.add_argument("--budgets", type=float, nargs="*", default=[1.0, 0.5], help="compile's activation budgets")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--table", type=Path, nargs="*", help="print the tables of files")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--compile-budget", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args) if args.compile_budget is None else compile_child(args)
        return
    if args.table:
        rows = [json.loads(text) for path in args.table for text in path.read_text().splitlines()]
        print(*table(rows), "", *promises(rows), sep="\n")
        return
    common = ["--plans", str(args.plans), "--device", args.device, "--rounds", str(args.rounds)]
    common += ["--kinds", *args.kinds]
    common += ["--tiny"] if args.tiny else []
    names = args.only or ["llama1b", "gpt2m", "bertl"]
    rows: list[dict[str, Any]] = []
    if not args.compile_only:
        cases = [[*common, "--child", name] for name in names]
        rows += tellingly(run_all(__file__, cases, args.out, args.timeout_s))
    if not args.no_compile:
        cases = [
            [*common, "--compile-budget", str(budget), "--child", name] for budget in args.budgets for name in names
        ]
        rows += tellingly(run_all(__file__, cases, args.out, args.timeout_s, together=True))
    print("", *table(rows), "", *promises(rows), sep="\n")


def tellingly(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows, with a word on stdout when a process is done or something failed."""
    for row in rows:
        if "seconds" in row or "error" in row or "compile_s" in row:
            print({key: value for key, value in row.items() if key != "case"}, row["case"][-2:], flush=True)
        yield row


if __name__ == "__main__":
    main()
