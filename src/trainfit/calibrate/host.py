"""What the CPU pays to issue work: small models that are trained, phase by phase, and what each phase is charged for.

In: a GPU and its host. Out: per model `charges` (how often the phase pays for a kernel, a view, a module; see
`trainfit.cost.host`) and `times_ns` (every timed step's), for forward, backward and optimizer.

The tensors are tiny, so the GPU is always ahead and the clock on the wall is the CPU's. All models take turns, round
after round, so that a stretch in which the host is slow does not fall on one of them alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from trainfit.calibrate.models import SmallModel, small_models
from trainfit.cost.classify import works
from trainfit.cost.host import count_charges
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.step import Step
from trainfit.trace import trace_step

ROUNDS, WARM_UP, TIMED = 4, 2, 5

Times = dict[str, list[int]]


def host_costs() -> dict[str, dict[str, Any]]:
    """All models; takes some twenty seconds."""
    models = small_models()
    gpu = find_gpu(torch.cuda.get_device_name())
    charged = {name: charges_of(model, gpu) for name, model in models.items()}
    found = time_models(models.values())
    return {name: {"charges": charged[name], "times_ns": times} for name, times in zip(models, found, strict=True)}


def time_models(models: Iterable[SmallModel], device: str = "cuda", rounds: int = ROUNDS) -> list[Times]:
    """Nanoseconds of every timed step of each model by phase; gradients are set to None in the optimizer's."""
    trainings = [_training(model, device) for model in models]
    found: list[Times] = [{} for _ in trainings]
    for _ in range(rounds):
        for training, times in zip(trainings, found, strict=True):
            for number in range(WARM_UP + TIMED):
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
        optimizer.step()
        optimizer.zero_grad()

    def step() -> list[tuple[str, int]]:
        forward_ns, loss = timed(forward)
        backward_ns, _ = timed(loss.backward)
        del loss
        return [("forward", forward_ns), ("backward", backward_ns), ("optimizer", timed(update)[0])]

    return step


def charges_of(small: SmallModel, gpu: Gpu) -> dict[str, dict[str, int]]:
    """What a training step of the model is charged for, by phase, from a trace of it."""
    step = Step(
        model=lambda: small.build().to(small.dtype),
        batch=small.inputs("cpu"),
        optimizer=small.optimizer,
        autocast=small.autocast,
    )
    trace = trace_step(step, gpu)
    sections = (trace.sections[index] for index in trace.steady_step)
    ops = [op for section in sections for op in trace.ops[section.first_op : section.last_op]]
    ways = (works(op, gpu.num_sms) for op in ops)
    return count_charges(ops, [way[0].kernels if way else 0 for way in ways])
