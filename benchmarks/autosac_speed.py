"""How long it takes to collect the statistics of a deep model, ours beside torch.distributed._tools, in one run.

    python benchmarks/autosac_speed.py [--layers 32] > benchmarks/results/autosac_speed.md

Both have seen a model of one layer before, so that nothing is loaded while the clock runs. Theirs needs three runs
(memory, where it traces two steps, runtime, trade-off) under FakeTensorMode; ours one step on a ghost GPU. Without a
GPU, theirs is told that one is there, with an A100's rates, since its cost model insists; without `pwlf`, its fit of
the trade-off curves, which is random search, is left out, in its favour.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import sys
import time
import types
from collections.abc import Iterator
from unittest import mock

import numpy as np
import torch
import torch.utils._runtime_estimation as rates
from torch._subclasses.fake_tensor import FakeTensorMode

import trainfit
from autosac_model import Sizes, make_training, train_step
from trainfit.autosac import collect_stats, get_peak_memory_runtime_baseline, parse_module_info, sac_milp

GIB = 2**30
COST_MODEL = "operator-level-cost-model"


class NoFit:
    """Stands for pwlf.PiecewiseLinFit where that is not installed."""

    def __init__(self, x: list[float], y: list[float]) -> None:
        self.intercepts = np.zeros(1)
        self.fit_breaks = np.zeros(2)

    def fit(self, n_segments: int) -> None:
        pass

    def calc_slopes(self) -> np.ndarray:
        return np.zeros(1)


@contextlib.contextmanager
def what_theirs_needs() -> Iterator[str]:
    """A GPU's rates and pwlf, or stand-ins; says which."""
    notes = []
    with contextlib.ExitStack() as stack:
        if not torch.cuda.is_available():
            stack.enter_context(mock.patch("torch.cuda.is_available", return_value=True))
            stack.enter_context(mock.patch.object(rates, "get_device_tflops", return_value=312.0))
            stack.enter_context(mock.patch.object(rates, "get_gpu_dram_gbps", return_value=2039.0))
            notes.append("told of an A100")
        try:
            import pwlf  # noqa: F401
        except ImportError:
            stack.enter_context(mock.patch.dict(sys.modules, pwlf=types.SimpleNamespace(PiecewiseLinFit=NoFit)))
            notes.append("without its curve fits (no pwlf)")
        yield ", ".join(notes) or "as it is"


def theirs(sizes: Sizes, device: str) -> tuple[dict[str, float], str]:
    """Seconds by part."""
    from torch.distributed._tools.ilp_utils import aggregate_stats
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator
    from torch.distributed._tools.sac_estimator import SACEstimator

    seconds = {}
    with FakeTensorMode(), contextlib.redirect_stdout(io.StringIO()), what_theirs_needs() as note:
        training = model, optimizer, _ = make_training(sizes, device=device)
        memory, runtime, sac = MemTracker(), RuntimeEstimator(), SACEstimator()
        start = time.perf_counter()
        memory.track_external(model, optimizer)
        with memory:
            for iteration in range(2):
                train_step(*training)
                if iteration == 0:
                    memory.reset_mod_stats()
        seconds["memory (2 steps)"] = time.perf_counter() - start
        for name, estimator in (("runtime", runtime), ("trade-off", sac)):
            start = time.perf_counter()
            with estimator(COST_MODEL):
                train_step(*training)
            seconds[name] = time.perf_counter() - start
        start = time.perf_counter()
        dev = next(model.parameters()).device
        aggregate_stats(model, memory, runtime, sac, torch.device(dev))
        seconds["aggregate"] = time.perf_counter() - start
    return seconds, note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    sizes = Sizes(layers=parser.parse_args().layers)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    one = Sizes(layers=1)
    theirs(one, device)
    with trainfit.ghost_gpu("a100-80gb"):
        for these in (one, sizes):
            training = make_training(these)
            start = time.perf_counter()
            info, _ = collect_stats(training[0], functools.partial(train_step, *training), *training[1:])
            collected = time.perf_counter()
        graph = parse_module_info(info)
        baseline, _ = get_peak_memory_runtime_baseline(graph)
        start_solve = time.perf_counter()
        solution = sac_milp(graph, 0.8 * baseline / GIB, optimizer_state=False)
        solved = time.perf_counter()
    parts, note = theirs(sizes, device)
    ours, total = collected - start, sum(parts.values())
    print(f"# Collecting the statistics of {sizes.layers} layers\n")
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; torch.distributed._tools on {device}, {note}\n"
    )
    print("| what | seconds |\n|---|---|")
    print(f"| trainfit.autosac, one step | {ours:.2f} |")
    for name, value in parts.items():
        print(f"| torch.distributed._tools, {name} | {value:.2f} |")
    print(f"| torch.distributed._tools, all | {total:.2f} |")
    print(
        f"| sac_milp at 80% of the baseline, {solution.status}, gap {solution.gap:.1e} | {solved - start_solve:.2f} |"
    )
    print(f"\n{total / ours:.0f} times faster")


if __name__ == "__main__":
    main()
