"""trainfit.autosac where there is a GPU: under torch's FakeTensorMode, on real CUDA tensors, and beside torch's tools.

    python benchmarks/autosac_h200.py > benchmarks/results/autosac_h200.md

Prints one table per subject, each row with what was expected; the exit status is 1 if any row fails. `--device cpu`
runs the same code without a GPU, to see that it runs; rows that need one are left out.

Segments are expandable: with torch's default ones the allocator hands out up to 1 MiB more than it was asked for, per
large block, which `trainfit estimate` models and the trackers leave out.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # before torch is loaded

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import trainfit
from autosac_model import Sizes, make_training
from autosac_model import train_step as step
from measure_memory import kernels
from trainfit.autosac import MemTracker, RuntimeEstimator, apply_sac, collect_stats, parse_module_info, sac_milp
from trainfit.autosac.ilp_utils import get_peak_memory_runtime_baseline
from trainfit.autosac.op_times import BENCHMARK, COST_MODEL

GIB, MIB = 2**30, 2**20
FAILED: list[str] = []


def table(title: str, *headers: str) -> None:
    print(f"\n## {title}\n\n| {' | '.join(headers)} |\n|{'---|' * len(headers)}")


def row(name: str, *cells: object, passed: bool | None = None) -> None:
    verdict = [] if passed is None else ["pass" if passed else "**FAIL**"]
    if passed is False:
        FAILED.append(name)
    print(f"| {' | '.join([name, *map(str, cells), *verdict])} |", flush=True)


@contextlib.contextmanager
def attempt(name: str) -> Iterator[None]:
    """A case that raises is a row that fails, and the others go on."""
    try:
        yield
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        row(name, f"{type(error).__name__}: {error}".splitlines()[0][:200], passed=False)


def collected(device: str, sizes: Sizes = Sizes(), dtype: torch.dtype = torch.float32) -> Any:  # noqa: B008
    """Two steps, of which the second is recorded; model, optimizer, tokens, module_info, SAC estimator."""
    model, optimizer, tokens = make_training(sizes, device=device, dtype=dtype)
    step(model, optimizer, tokens)
    info, sac = collect_stats(
        model, lambda: step(model, optimizer, tokens), optimizer, tokens, gpu="a100-80gb" if device == "cpu" else None
    )
    return model, optimizer, tokens, info, sac


def solve_cases(device: str) -> None:
    """The budgets of torch's own test, 4 ranks: nothing to do, something, infeasible; on fakes and on a ghost."""
    table("The GPT of torch's tests: fakes beside the ghost", "case", "FakeTensorMode", "ghost", "verdict")
    with FakeTensorMode():
        fake = parse_module_info(collected(device)[3])
    name = torch.cuda.get_device_name() if device == "cuda" else "a100-80gb"
    with trainfit.ghost_gpu(name):
        ghost = parse_module_info(collected("cuda")[3])
    baselines = [get_peak_memory_runtime_baseline(graph) for graph in (fake, ghost)]
    ratio = baselines[0][0] / baselines[1][0]
    slower = baselines[0][1] / baselines[1][1]
    on_gpu = device == "cuda"  # the host has other kernels

    def verdict(passed: bool) -> bool | None:
        return passed if on_gpu else None

    row("baseline MiB", *(round(b / MIB, 1) for b, _ in baselines), passed=verdict(abs(ratio - 1) < 0.05))
    row("compute ms", *(round(ms, 2) for _, ms in baselines), passed=verdict(abs(slower - 1) < 0.05))
    for budget, wanted in ((2.4, "nothing"), (1.6, "layers 0 to 3"), (0.8, "infeasible")):
        answers = []
        for graph in (fake, ghost):
            decisions, _, peak = solution = sac_milp(graph, budget, world_size=4)
            layers = sorted({fqn.split(".")[2] for fqn in decisions})
            answers.append((solution.status, peak > 0, layers))
        fine = all(
            (budget == 2.4 and fits and not layers)
            or (budget == 1.6 and fits and set(layers) <= set("0123") and set("012") <= set(layers))
            or (budget == 0.8 and not fits)
            for _, fits, layers in answers
        )
        row(
            f"{budget} GiB: {wanted}",
            *(f"{status}, layers {layers}" for status, _, layers in answers),
            passed=verdict(fine),
        )


def peak_of(run: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # those of earlier cases stay with their threads otherwise
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def tracked_peak(model: nn.Module, optimizer: Any, inputs: torch.Tensor, run: Callable[[], Any], device: str) -> int:
    tracker = MemTracker()
    tracker.track_external(model, optimizer, inputs)
    with tracker:
        run()
    snapshot = tracker.get_tracker_snapshot("peak")
    return next(parts["Total"] for where, parts in snapshot.items() if where.type == device)


class Blocks(nn.Module):
    """MLP blocks of which all but the first are checkpointed."""

    def __init__(self, count: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim)) for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number >= 1 else block(x)
            x = torch.relu(x)
        return x


def memory_cases(device: str) -> None:
    """`MemTracker` on real tensors against what torch's allocator counted in the same program without it."""
    table("MemTracker on real tensors", "case", "tracked MiB", "measured MiB", "ratio", "verdict")
    small = {"layers": 4, "heads": 4, "dim": 64, "vocabulary": 512, "sequence": 128} if device == "cpu" else {}
    cases = {
        "4 x (Linear 512, ReLU), bf16, batch 16": lambda: (
            nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU()))).bfloat16(),
            torch.randn(16, 512, dtype=torch.bfloat16),
        ),
        "4 checkpointed MLPs 1024-2048, fp16": lambda: (
            Blocks(4, 1024, 2048).half(),
            torch.randn(*((128, 1024, 1024) if device == "cuda" else (2, 8, 1024)), dtype=torch.float16),
        ),
        "GPT, fp32": lambda: make_training(Sizes(**small), device=device)[::2],
        "GPT, bf16 (flash attention)": lambda: make_training(Sizes(**small), device=device, dtype=torch.bfloat16)[::2],
    }
    for name, make in cases.items():
        with attempt(name):
            with torch.device(device):
                model, inputs = make()
            optimizer = torch.optim.Adam(model.parameters(), foreach=True)

            def run(model: Any = model, optimizer: Any = optimizer, inputs: Any = inputs) -> None:
                step(model, optimizer, inputs)

            run()
            before = torch.cuda.memory_allocated() if device == "cuda" else 0
            measured = peak_of(run) if device == "cuda" else 1
            tracked = tracked_peak(model, optimizer, inputs, run, device)
            ratio = tracked / measured
            passed = abs(ratio - 1) < 0.1 if device == "cuda" else tracked > before
            row(name, round(tracked / MIB, 1), round(measured / MIB, 1), f"{ratio:.4f}", passed=passed)
            del model, optimizer, inputs, run
            if device == "cuda":
                torch.cuda.empty_cache()


def sound_cases(device: str) -> None:
    """Decide, apply to the real model, measure: the peak is at most the predicted one."""
    if device != "cuda":
        return
    table(
        "Decisions applied to the real model (GPT, fp32)",
        *("budget", "status", "predicted MiB", "tracked MiB", "measured MiB", "recompute ms", "verdict"),
    )
    model, optimizer, tokens, info, sac = collected(device)
    graph = parse_module_info(info)
    base, _ = get_peak_memory_runtime_baseline(graph, optimizer_state=True)
    for share in (0.95, 0.9, 0.8, 0.7, 0.65):
        with attempt(f"{share:.0%}"):
            decisions, ms, predicted = solution = sac_milp(graph, share * base / GIB)
            if not decisions:
                row(f"{share:.0%}", solution.status, "", "", "", "", passed=False)
                continue
            undo = apply_sac(model, decisions, sac)
            try:
                step(model, optimizer, tokens)
                measured = peak_of(lambda: step(model, optimizer, tokens))
                tracked = tracked_peak(model, optimizer, tokens, lambda: step(model, optimizer, tokens), device)
            finally:
                undo()
            fine = max(tracked, measured) <= predicted <= share * base + 1
            sizes = [round(n / MIB, 1) for n in (predicted, tracked, measured)]
            row(f"{share:.0%}", solution.status, *sizes, round(ms, 2), passed=fine)


def step_ms(run: Callable[[], Any]) -> float:
    for _ in range(3):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 10


def runtime_cases(device: str) -> None:
    """`RuntimeEstimator` in both modes, and torch's, against the time the GPU was busy in the real step.

    Both estimators add up the GPU times of the ops, so that is what they are held against; the step itself takes longer
    where the host is slower than the GPU, as it is in the bf16 case.
    """
    if device != "cuda":
        return
    headers = ("case", "step", "GPU busy", "ours", "error", "torch's", "error", "verdict")
    table("RuntimeEstimator, ms of a step; errors against GPU busy", *headers)
    for dtype in (torch.float32, torch.bfloat16):
        run = functools.partial(step, *make_training(dtype=dtype))
        whole, measured = step_ms(run), kernels(run)["gpu_busy_ms"]
        del run
        torch.cuda.empty_cache()
        for mode in (COST_MODEL, BENCHMARK):
            name = f"GPT, {dtype}, {mode}"
            with attempt(name):
                ours = fake_runtime(RuntimeEstimator(), mode, dtype)
                print(f"{name}: {ours:.2f} ms", file=sys.stderr, flush=True)
                theirs = their_runtime(mode, dtype)
                errors = [
                    f"{value / measured - 1:+.1%}" if isinstance(value, float) else "" for value in (ours, theirs)
                ]
                shown = [f"{value:.2f}" if isinstance(value, float) else value for value in (ours, theirs)]
                cells = (f"{whole:.2f}", f"{measured:.2f}", shown[0], errors[0], shown[1], errors[1])
                row(name, *cells, passed=abs(ours / measured - 1) < 0.08)


def fake_runtime(estimator: Any, mode: str, dtype: torch.dtype) -> float:
    with FakeTensorMode():
        model, optimizer, tokens = make_training(dtype=dtype)
        step(model, optimizer, tokens)
        with estimator(mode), contextlib.redirect_stdout(io.StringIO()):
            step(model, optimizer, tokens)
    return float(estimator.total_runtime)


def their_runtime(mode: str, dtype: torch.dtype) -> float | str:
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator as Theirs

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return fake_runtime(Theirs(), mode, dtype)
    except Exception as error:
        return f"raises {type(error).__name__}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    device = parser.parse_args().device
    faulthandler.enable()
    gpu = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    versions = f"torch {torch.__version__}, trainfit {trainfit.__version__}, expandable segments"
    print(f"# trainfit.autosac on a GPU\n\n{gpu}, {versions}")
    start = time.perf_counter()
    for cases in (solve_cases, memory_cases, sound_cases, runtime_cases):
        with attempt(cases.__name__):
            cases(device)
    took = time.perf_counter() - start
    print(f"\n{'all rows pass' if not FAILED else 'failed: ' + ', '.join(FAILED)}; {took:.0f} s")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
