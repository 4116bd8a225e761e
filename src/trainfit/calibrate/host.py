"""What the CPU pays to issue work: single ops, and small models that are trained phase by phase, in processes of their
own.

In: a GPU and its host. Out: the nanoseconds of single ops by kind and of every timed step by model and phase
(`time_in_a_fresh_process`), and what each phase is charged for (`charges_of`; see `trainfit.cost.host`). Phases:
forward, backward, optimizer.

The tensors are tiny, so the GPU is always ahead and the clock on the wall is the CPU's. How fast that is depends on
where the machine puts a process and on what else runs there: on a virtual machine, a loop in Python took 0.7 ms on some
cores and 1.3 on others, and seconds later it was other cores. So all ops and models take turns, and several processes
are asked, at different times.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

import torch

from trainfit.calibrate.models import SmallModel, small_models
from trainfit.calibrate.single_ops import time_single_ops
from trainfit.cost.host import Weights, count_charges
from trainfit.cost.price import num_kernels
from trainfit.cost.profile import Measured
from trainfit.gpus.catalogue import Gpu
from trainfit.step import Step
from trainfit.trace import trace_step

WARM_UP, TIMED = 2, 7
_WRITE_TIMES = "from trainfit.calibrate.host import write_times; write_times()"

Times = dict[str, list[int]]


class HostTimes(TypedDict):
    """What one process timed."""

    op_times_ns: Times
    host_times_ns: dict[str, Times]
    """By model."""


def time_in_a_fresh_process() -> HostTimes:
    """All ops and models, each as it runs in a process that has just been started; takes some ten seconds."""
    result = subprocess.run([sys.executable, "-c", _WRITE_TIMES], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"the process that times small models failed:\n{result.stderr.strip()[-2000:]}")
    found: HostTimes = json.loads(result.stdout.splitlines()[-1])
    return found


def write_times() -> None:
    """What the process started by `time_in_a_fresh_process` does."""
    models = small_models()
    times = dict(zip(models, time_models(models.values()), strict=True))
    sys.stdout.write(json.dumps(HostTimes(op_times_ns=time_single_ops(), host_times_ns=times)))


def time_models(models: Iterable[SmallModel], device: str = "cuda") -> list[Times]:
    """Nanoseconds of every timed step of each model by phase; gradients are set to None in the optimizer's. Steps of
    all models take turns, so that a host that changes its speed changes it for all."""
    trainings = [_training(model, device) for model in models]
    found: list[Times] = [{} for _ in trainings]
    for number in range(WARM_UP + TIMED):
        for training, times in zip(trainings, found, strict=True):
            for phase, elapsed_ns in training():
                if number >= WARM_UP:
                    times.setdefault(phase, []).append(elapsed_ns)
    return found


def _training(small: SmallModel, device: str) -> Callable[[], list[tuple[str, int]]]:
    """One training step of the model: its phases and how long the CPU took over each."""
    torch.manual_seed(0)
    with torch.device(device):
        model = small.build().to(small.dtype)
    optimizer = small.optimizer(model.parameters())
    inputs = small.inputs(device)

    def timed(work: Callable[[], Any]) -> tuple[int, Any]:
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        result = work()
        return time.perf_counter_ns() - begin, result

    def forward() -> Any:
        with torch.autocast(device, small.autocast or torch.bfloat16, enabled=small.autocast is not None):
            return model(**inputs)

    def update() -> None:
        if small.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), small.clip_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    def step() -> list[tuple[str, int]]:
        forward_ns = backward_ns = 0
        for _ in range(small.micro_batches):
            passed_ns, loss = timed(forward)
            forward_ns += passed_ns
            backward_ns += timed(loss.backward)[0]
            del loss
        return [("forward", forward_ns), ("backward", backward_ns), ("optimizer", timed(update)[0])]

    return step


def charges_of(
    small: SmallModel, gpu: Gpu, tables: Mapping[str, Measured], weights: Weights
) -> dict[str, dict[str, float]]:
    """What a training step of the model is charged for, by phase, from a trace of it; `tables` are the profile's."""
    step = Step(
        model=lambda: small.build().to(small.dtype),
        batch=small.inputs("cpu"),
        optimizer=small.optimizer,
        autocast=small.autocast,
        micro_batches=small.micro_batches,
        clip_grad_norm=small.clip_grad_norm,
    )
    trace = trace_step(step, gpu)
    sections = (trace.sections[index] for index in trace.steady_step)
    ops = [op for section in sections for op in trace.ops[section.first_op : section.last_op]]
    return count_charges(ops, [num_kernels(op, gpu, tables) for op in ops], weights)
