"""GPU time of calls of single ops, each alone.

In: calls, and a GPU. Out: one `Sample` per call.

A marker kernel is launched before each run of a call, so that the profile of the whole stretch falls into segments,
each with the kernels of one run: the time of an op is the sum of its kernels' times, which is what a step pays when the
CPU is ahead, and has no launch gaps in it. Every op is timed warm (run again on the same tensors) and cold (after a
buffer larger than L2 was read); one that lasts long is timed once, since filling the cache is nothing to it.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from trainfit.calibrate.arguments import Pool, arguments
from trainfit.calibrate.calls import Call, describe
from trainfit.cost.host import OP_KINDS
from trainfit.torch_compat import gpu_marker, tree_flatten

NUMBERS_BYTES = 2**29
"""Of random numbers of each type."""
RESULTS_BYTES = 3 * 2**30
"""Of the GPU's memory, held by each process for what calls return."""
FLUSH_BYTES = 256 * 2**20
"""Read between cold runs; larger than any GPU's L2."""
REPEATS, FEW_NS = 2, 300_000
"""How often a call is run warm and cold; one that takes longer than that, and is no product, once."""
CYCLES_PER_NS = 2
"""About, of the GPUs' clocks."""
LONGEST_MARKER_NS = 5_000_000
LONG_NS = 1_000_000
"""An op that takes longer is run once: what L2 holds is read in a hundredth of that. Products are not: the first ones
are up to a tenth faster than those of a step, until they have drawn so much power that the clock sinks (those of 4 ms
and more in bfloat16 2.4% between the first two runs and the first four)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One op as it was called, in JSON's terms (see `calls`), and the median of its kernels' times."""

    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    outputs: list[str]
    warm_ns: int
    cold_ns: int
    num_kernels: int
    kernel: str
    """Name of the longest kernel."""
    overlap: float
    """How many kernels ran at once on average: libraries may use streams of their own. The times are sums of all."""

    @property
    def call(self) -> str:
        """Its text."""
        return json.dumps([self.op, self.args, self.kwargs])


class LostMarkers(Exception):
    """The profiler dropped events, so kernels cannot be told apart."""


class Kernel(NamedTuple):
    start_ns: int
    duration_ns: int
    name: str


class _Run(NamedTuple):
    """What follows a marker: a run of call `call`, or something that is not counted (None)."""

    call: int | None
    is_cold: bool


class _Stretch:
    """Calls that are run between the begin and the end of a profiler's session; `samples` closes the books."""

    def __init__(self) -> None:
        self._flush = torch.zeros(FLUSH_BYTES // 4, device="cuda")
        self._calls: list[tuple[Call, list[str]]] = []
        self._runs: list[_Run] = []

    def run(self, call: Call, pool: Pool) -> None:
        """A call that fails leaves nothing but markers of nobody."""
        self._mark(None, is_cold=False)  # what makes arguments is no part of the call before
        args, kwargs = arguments(call, pool)
        with call.precision():
            self._run(call, partial(call.function, *args, **kwargs))

    def _run(self, call: Call, work: Callable[[], Any]) -> None:
        result, issue_ns, whole_ns = _run_alone(work)
        self._calls.append((call, described_outputs(result)))
        del result
        number = len(self._calls) - 1
        is_product = call.short_name in OP_KINDS["product"]
        if whole_ns > LONG_NS and not is_product and self._is_long(number, call, work):
            return
        lasting_ns = min(issue_ns, LONGEST_MARKER_NS)
        repeats = 1 if is_of_library(call) or (whole_ns > FEW_NS and not is_product) else REPEATS
        for _ in range(repeats):
            self._mark(number, is_cold=False, lasting_ns=lasting_ns)
            begin_ns = time.perf_counter_ns()
            work()
            lasting_ns = min(time.perf_counter_ns() - begin_ns, LONGEST_MARKER_NS)
        for _ in range(repeats):
            self._mark(None, is_cold=True)
            self._flush.sum()
            self._mark(number, is_cold=True, lasting_ns=lasting_ns)
            work()

    def _is_long(self, number: int, call: Call, work: Callable[[], Any]) -> bool:
        """Whether the op lasts long: the first time, it may have been a library that looked for a kernel. If it does,
        this is its one run, but for an op that the GPU has to wait for, which is run once more behind a marker.
        Recurrent layers are not: in a step the GPU waits for them too, and their streams seldom run side by side."""
        self._mark(number, is_cold=False)
        _, issue_ns, whole_ns = _run_alone(work)
        is_long = whole_ns > LONG_NS
        is_awaited = issue_ns > whole_ns // 4 and not call.short_name.startswith("_cudnn_rnn")
        if not is_long or is_awaited:
            self._runs[-1] = _Run(None, is_cold=False)
        if is_long and is_awaited:
            self._mark(number, is_cold=False, lasting_ns=min(issue_ns, LONGEST_MARKER_NS))
            work()
        return is_long

    def end(self) -> None:
        """What comes after the last run is not its."""
        self._mark(None, is_cold=False)
        torch.cuda.synchronize()

    def samples(self, kernels: list[Kernel], marker: str) -> Iterator[Sample]:
        """One sample per call, from the session's kernels in the order in which they ran."""
        segments = split_at_markers(kernels, marker)
        if len(segments) != len(self._runs):
            raise LostMarkers(f"{len(self._runs)} markers were launched and {len(segments)} profiled")
        warm: dict[int, list[int]] = {}
        cold: dict[int, list[int]] = {}
        longest: dict[int, list[Kernel]] = {}
        for run, segment in zip(self._runs, segments, strict=True):
            if run.call is not None:
                times = cold if run.is_cold else warm
                times.setdefault(run.call, []).append(sum(kernel.duration_ns for kernel in segment))
                longest[run.call] = segment
        for number, (call, outputs) in enumerate(self._calls):
            if number not in warm:
                continue  # it failed in the middle
            args, kwargs = call.described()
            segment = longest[number]
            yield Sample(
                op=call.name,
                args=args,
                kwargs=kwargs,
                outputs=outputs,
                warm_ns=round(statistics.median(warm[number])),
                cold_ns=round(statistics.median(cold.get(number, warm[number]))),
                num_kernels=len(segment),
                kernel=max(segment, key=lambda kernel: kernel.duration_ns).name if segment else "",
                overlap=_overlap(segment),
            )

    def _mark(self, call: int | None, is_cold: bool, lasting_ns: int = 0) -> None:
        """Kernels of one call that may overlap do so only if they wait for the GPU, as in a step, so the marker lasts
        until the CPU has issued them."""
        self._runs.append(_Run(call, is_cold))
        gpu_marker(1 + CYCLES_PER_NS * lasting_ns)


def is_of_library(call: Call) -> bool:
    """Convolutions and recurrent layers, whose library makes many calls, each of which the profiler keeps."""
    return call.short_name.startswith(("convolution", "_cudnn_rnn"))


def _run_alone(work: Callable[[], Any]) -> tuple[Any, int, int]:
    """The call's result, how long the CPU took to issue it, and how long it took until it was done."""
    torch.cuda.synchronize()
    begin_ns = time.perf_counter_ns()
    result = work()
    issued_ns = time.perf_counter_ns()
    torch.cuda.synchronize()
    return result, issued_ns - begin_ns, time.perf_counter_ns() - begin_ns


def measure(calls: Sequence[Call], pool: Pool, when_over: Callable[[], None] = lambda: None) -> Iterator[Sample | str]:
    """Samples of the calls, and one line of text for each that failed. `when_over` is called when the GPU and its
    profiler have done all; what they did is read after that."""
    marker = marker_name()
    stretch = _Stretch()
    failures = []
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for call in calls:
            try:
                stretch.run(call, pool)
            except Exception as error:  # this torch or this GPU lacks it; the rest is worth having
                failures.append(f"{type(error).__name__}: {error}".splitlines()[0][:200] + f": {call}"[:200])
        stretch.end()
    hold_memory()
    when_over()
    try:
        yield from stretch.samples(gpu_kernels(profiler), marker)
    except LostMarkers as error:
        failures.append(str(error))
    yield from failures


def rehearse(calls: Iterable[Call], pool: Pool) -> None:
    """Run them once, so that libraries have their kernels when they are measured."""
    for call in calls:
        with contextlib.suppress(Exception):  # what fails will fail again
            args, kwargs = arguments(call, pool)
            with call.precision():
                call.function(*args, **kwargs)
    torch.cuda.synchronize()
    hold_memory()


def hold_memory() -> None:
    """Hold as much of the GPU's memory as a process may, in one piece, of which calls get their results': asking the
    driver for it would take longer than most calls. What was taken beyond it is given back."""
    free_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if RESULTS_BYTES <= free_bytes <= 1.25 * RESULTS_BYTES:
        return
    torch.cuda.empty_cache()
    with contextlib.suppress(torch.cuda.OutOfMemoryError):  # others have it now; pieces are asked for one by one
        torch.empty(RESULTS_BYTES, dtype=torch.uint8, device="cuda")


def _overlap(kernels: list[Kernel]) -> float:
    """The sum of the kernels' times over the time during which at least one ran."""
    busy_ns, reached_ns = 0, 0
    for start_ns, duration_ns, _ in sorted(kernels):
        end_ns = start_ns + duration_ns
        busy_ns += max(0, end_ns - max(start_ns, reached_ns))
        reached_ns = max(reached_ns, end_ns)
    return round(sum(kernel.duration_ns for kernel in kernels) / busy_ns, 3) if busy_ns else 1.0


@cache
def marker_name() -> str:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        gpu_marker()
        torch.cuda.synchronize()
    kernels = gpu_kernels(profiler)
    if len(kernels) != 1:
        raise RuntimeError(f"the profiler saw {len(kernels)} kernels where one was launched")
    return kernels[0].name


def gpu_kernels(profiler: Any) -> list[Kernel]:
    """Kernels, copies and fills of a closed profiler session, in the order in which they ran."""
    kernels = []
    on_gpu = torch.autograd.DeviceType.CUDA.value
    for event in profiler.profiler.kineto_results.events():
        if event.device_type().value == on_gpu:  # comparing what is not yet a number takes as long as all the rest
            name = event.name()
            if not name.startswith(("Optimizer.", "Profiler")):  # annotations stand on the GPU's rows too
                kernels.append(Kernel(event.start_ns(), event.duration_ns(), name))
    return sorted(kernels)


def split_at_markers(kernels: list[Kernel], marker: str) -> list[list[Kernel]]:
    """The kernels after each marker; those before the first belong to nobody."""
    segments: list[list[Kernel]] = []
    for kernel in kernels:
        if kernel.name == marker:
            segments.append([])
        elif segments:
            segments[-1].append(kernel)
    return segments


def described_outputs(result: Any) -> list[str]:
    return [describe(leaf) for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor) and leaf.is_cuda]
