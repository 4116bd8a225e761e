"""When the kernels of one training step were issued and ran, and how long the CPU takes to issue the step.

`timeline(step)` profiles one step: for every kernel, copy and fill when the CPU launched it, when it began, how long it
took and which it is, and when each phase of the step began on the CPU. Launches take some 10 us longer from then on, so
`issued(step)` times the CPU's phases before any profiler was started in the process; `small(case)` is the same model on
two samples, whose kernels take next to no time. All times are nanoseconds from the step's begin.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

from zoo.case import Case

SAMPLES = 2
"""One sample leaves batch norms nothing to compare."""
NAME_LENGTH = 60


def timeline(step: Callable[[], None]) -> dict[str, Any]:
    """`kernels` has a row per kernel: launched, begun, duration, number of its name; `phases` when phases began."""
    with profile(activities=[ProfilerActivity.CUDA]):  # its first start is slow
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler, _phases(time.time_ns) as phases:
        torch.cuda.synchronize()
        begin_ns = time.time_ns()
        step()
        torch.cuda.synchronize()
    results: Any = profiler.profiler
    events = list(results.kineto_results.events())
    on_gpu = [event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]
    launched = {
        event.correlation_id(): event.start_ns() - begin_ns
        for event in events
        if event.device_type() == torch.autograd.DeviceType.CPU and event.name().startswith("cu")
    }
    names: dict[str, int] = {}
    rows = [
        (
            launched.get(event.correlation_id()),
            event.start_ns() - begin_ns,
            event.duration_ns(),
            names.setdefault(event.name()[:NAME_LENGTH], len(names)),
        )
        for event in sorted(on_gpu, key=lambda event: event.start_ns())
        if not event.name().startswith(("Optimizer.", "Profiler"))
    ]
    return {"kernels": rows, "names": list(names), "phases": [(name, at_ns - begin_ns) for name, at_ns in phases]}


def issued(step: Callable[[], None], times: int) -> dict[str, list[int]]:
    """What the CPU took over forward, backward and optimizer, each time; with few kernels in the queue it never waits
    but for values that it reads."""
    found: dict[str, list[int]] = {"forward": [], "backward": [], "optimizer": [], "whole": []}
    for _ in range(times):
        torch.cuda.synchronize()
        begin_ns = time.perf_counter_ns()
        with _phases(time.perf_counter_ns) as phases:
            step()
        end_ns = time.perf_counter_ns()
        torch.cuda.synchronize()
        found["whole"].append(time.perf_counter_ns() - begin_ns)
        spent: Counter[str] = Counter()
        moments = [("forward", begin_ns), *phases, ("", end_ns)]
        for (name, at_ns), (_, next_ns) in pairwise(moments):
            spent[name] += next_ns - at_ns
        for name, spent_ns in spent.items():
            found[name].append(spent_ns)
    return found


def small(case: Case) -> Case:
    """The case on its first samples."""

    def batch(device: str) -> Mapping[str, Any]:
        whole = case.batch(device)
        sizes = Counter(len(value) for value in whole.values() if isinstance(value, torch.Tensor) and value.dim())
        usual = sizes.most_common(1)[0][0]
        return {
            key: value[:SAMPLES].clone()
            if isinstance(value, torch.Tensor) and value.dim() and len(value) == usual
            else value
            for key, value in whole.items()
        }

    return replace(case, batch=batch)


@contextmanager
def _phases(clock: Callable[[], int]) -> Iterator[list[tuple[str, int]]]:
    """When backward passes begin, and what follows them; what follows the last is the optimizer's."""
    found: list[tuple[str, int]] = []
    backward = torch.Tensor.backward

    def noted(*args: Any, **kwargs: Any) -> None:
        if found:
            found[-1] = ("forward", found[-1][1])
        found.append(("backward", clock()))
        backward(*args, **kwargs)
        found.append(("optimizer", clock()))

    with mock.patch.object(torch.Tensor, "backward", noted):
        yield found
