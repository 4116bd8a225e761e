"""GPU time of every aten op that a piece of torch code runs, forward and backward.

In: code that runs on a GPU. Out: one `Sample` per op call with a new signature (op, shapes, strides, dtypes, scalars);
a convolution gives one for each pass.

`OpTimer` sees each op below autograd and runs it several times. A marker kernel is launched before each run, so that
the profile of the whole stretch falls into segments, each with the kernels of one run: the time of an op is the sum of
its kernels' times, which is what a step pays when the CPU is ahead, and has no launch gaps in it. Every op is timed
warm (run again and again on the same tensors) and cold (after a buffer larger than L2 was read); one that lasts long is
timed once, since filling the cache is nothing to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from trainfit.calibrate.workloads import is_aside
from trainfit.cost.convolution_op import ENGINE, TILING
from trainfit.cost.described import read_op
from trainfit.cost.host import OP_KINDS
from trainfit.cost.work import contiguous_stride, short_name
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden.convolution import first_pass
from trainfit.gpus.hidden.cudnn_kernels import asked, tiling_of
from trainfit.records import Phase
from trainfit.torch_compat import DispatchMode, gpu_marker, is_rounded_product, is_view, tree_flatten

POOL_BYTES = 6 * 2**30
"""Of the GPU's memory, for each process that runs workloads."""
FLUSH_BYTES = 256 * 2**20
"""Read between cold runs; larger than any GPU's L2."""
MARKERS_PER_SESSION = 8192
"""A profiler session is closed after so many, so that its buffers stay small."""
SECONDS_PER_SESSION = 5.0
"""And after so long, since an op may launch thousands of kernels."""
CYCLES_PER_NS = 2
"""About, of the GPUs' clocks."""
LONGEST_MARKER_NS = 5_000_000
LONG_NS = 1_000_000
"""An op that takes longer is run once: what L2 holds is read in a hundredth of that. Products are not: the first ones
are up to a tenth faster than those of a step, until they have drawn so much power that the clock sinks."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One op as it was called, in JSON's terms (see `describe`), and the median of its kernels' times."""

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


class OpTimer(DispatchMode):
    """Times the ops that run inside it; `samples` closes the books."""

    def __init__(self, repeats: int, known: set[str]) -> None:
        super().__init__()
        self._repeats = repeats
        self._known = known  # signatures that need no second measurement; grows
        self._flush = torch.zeros(FLUSH_BYTES // 4, device="cuda")
        self._calls: list[tuple[str, list[Any], dict[str, Any], list[str]]] = []
        self._runs: list[_Run] = []
        self._done: set[int] = set()  # calls that were run as often as they should

    @property
    def num_markers(self) -> int:
        return len(self._runs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_aside():
            return func(*args, **(kwargs or {}))
        passes = single_passes(func, args)
        if not passes:
            return self._timed(func, args, kwargs or {})
        for one in passes:
            self._timed(func, one, {})
        return func(*args)

    def _timed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The call's result, after it was run several times if none like it was before."""
        described_args, described_kwargs = describe(args), {key: describe(kwargs[key]) for key in kwargs}
        if is_rounded_product(func, args):
            described_kwargs["tf32"] = True
        signature = signature_of(str(func), described_args, described_kwargs)
        is_new = signature not in self._known and not is_view(func)
        if not is_new or not _is_on_gpu(args, kwargs) or _reads_twice(args, kwargs):
            return func(*args, **kwargs)
        self._known.add(signature)
        call = len(self._calls)
        result, _, whole_ns = _run_alone(func, args, kwargs)
        outputs = [describe(leaf) for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
        self._calls.append((str(func), described_args, described_kwargs, outputs))
        is_product = short_name(str(func)) in OP_KINDS["product"]
        if whole_ns > LONG_NS and not is_product and self._is_long(call, func, args, kwargs):
            self._done.add(call)
            return result
        issue_ns = 0
        for _ in range(self._repeats):
            self._mark(call, is_cold=False, lasting_ns=issue_ns)
            begin_ns = time.perf_counter_ns()
            func(*args, **kwargs)
            issue_ns = min(time.perf_counter_ns() - begin_ns, LONGEST_MARKER_NS)
        for _ in range(self._repeats):
            self._mark(None, is_cold=True)
            self._flush.sum()
            self._mark(call, is_cold=True, lasting_ns=issue_ns)
            func(*args, **kwargs)
        self._mark(None, is_cold=False)
        self._done.add(call)
        return result

    def _is_long(self, call: int, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether the op lasts long: the first time, it may have been a library that looked for a kernel. If it does,
        this is its one run, but for an op that the GPU has to wait for, which is run once more behind a marker.
        Recurrent layers are not: in a step the GPU waits for them too, and their streams seldom run side by side."""
        self._mark(call, is_cold=False)
        _, issue_ns, whole_ns = _run_alone(func, args, kwargs)
        is_long = whole_ns > LONG_NS
        is_awaited = issue_ns > whole_ns // 4 and not short_name(str(func)).startswith("_cudnn_rnn")
        if not is_long or is_awaited:
            self._runs[-1] = _Run(None, is_cold=False)
        if is_long and is_awaited:
            self._mark(call, is_cold=False, lasting_ns=min(issue_ns, LONGEST_MARKER_NS))
            func(*args, **kwargs)
        self._mark(None, is_cold=False)
        return is_long

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
        for call, (op, args, kwargs, outputs) in enumerate(self._calls):
            if call not in self._done:
                continue  # the workload failed in the middle of it
            segment = longest[call]
            yield Sample(
                op=op,
                args=args,
                kwargs=kwargs | _plan(op, args),
                outputs=outputs,
                warm_ns=round(statistics.median(warm[call])),
                cold_ns=round(statistics.median(cold.get(call, warm[call]))),
                num_kernels=len(segment),
                kernel=max(segment, key=lambda kernel: kernel.duration_ns).name if segment else "",
                overlap=_overlap(segment),
            )

    def _mark(self, call: int | None, is_cold: bool, lasting_ns: int = 0) -> None:
        """Kernels of one call that may overlap do so only if they wait for the GPU, as in a step, so the marker lasts
        until the CPU has issued them."""
        self._runs.append(_Run(call, is_cold))
        gpu_marker(1 + CYCLES_PER_NS * lasting_ns)


def _run_alone(func: Any, args: Any, kwargs: Any) -> tuple[Any, int, int]:
    """The call's result, how long the CPU took to issue it, and how long it took until it was done."""
    torch.cuda.synchronize()
    begin_ns = time.perf_counter_ns()
    result = func(*args, **kwargs)
    issued_ns = time.perf_counter_ns()
    torch.cuda.synchronize()
    return result, issued_ns - begin_ns, time.perf_counter_ns() - begin_ns


def measure(
    workloads: Sequence[Callable[[], Any]], repeats: int, known: set[str], when_over: Callable[[], None] = lambda: None
) -> Iterator[Sample | str]:
    """Samples of all ops of the workloads, and one line of text for each workload that failed. `when_over` is called
    when the GPU and its profiler have done all; what they did is read after that."""
    marker = marker_name()
    pending = list(workloads)
    while pending:
        timer = OpTimer(repeats, known)
        failures = []
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            until_s = time.monotonic() + SECONDS_PER_SESSION
            while pending and timer.num_markers < MARKERS_PER_SESSION and time.monotonic() < until_s:
                workload = pending.pop(0)
                try:
                    with timer:
                        workload()
                except Exception as error:  # this torch or this GPU lacks it; the rest is worth having
                    failures.append(f"{workload}: {type(error).__name__}: {error}".splitlines()[0][:200])
            torch.cuda.synchronize()
        keep_pool()
        if not pending:
            when_over()
        try:
            yield from timer.samples(gpu_kernels(profiler), marker)
        except LostMarkers as error:
            failures.append(str(error))
        yield from failures


def rehearse(workloads: Iterable[Callable[[], Any]]) -> None:
    """Run them once, so that libraries have their kernels when they are measured."""
    for workload in workloads:
        with contextlib.suppress(Exception):  # what fails will fail again
            workload()
    torch.cuda.synchronize()
    keep_pool()


def keep_pool() -> None:
    """Hold as much of the GPU's memory as a process may, in one piece, of which workloads get theirs: asking the driver
    for it would take longer than most workloads. What was taken beyond it is given back."""
    reserved_bytes = torch.cuda.memory_reserved()
    if POOL_BYTES <= reserved_bytes <= 1.25 * POOL_BYTES:
        return
    torch.cuda.empty_cache()
    with contextlib.suppress(torch.cuda.OutOfMemoryError):  # others have it now; pieces are asked for one by one
        torch.empty(POOL_BYTES, dtype=torch.uint8, device="cuda")


def single_passes(func: Any, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The arguments with which a convolution does nothing but convolve, or computes one gradient; none where it does no
    more as it is called. Biases and their gradients are kernels of their own, which are timed as the sums they are."""
    if func is torch.ops.aten.convolution.default and args[2] is not None:
        return [(*args[:2], None, *args[3:])]
    if func is torch.ops.aten.convolution_backward.default and sum(args[10]) > 1:
        masks = ([True, False, False], [False, True, False])
        return [(*args[:3], None, *args[4:10], mask) for mask, wanted in zip(masks, args[10], strict=False) if wanted]
    return []


def _plan(op: str, described_args: list[Any]) -> dict[str, Any]:
    """Of a convolution's pass: the engine that cuDNN proposes, and how it cuts the product, as far as it says. It takes
    up to seconds and no GPU, so it is asked when the GPU is left to others."""
    if short_name(op) not in OP_KINDS["convolution"]:
        return {}
    problem = first_pass(read_op(op, described_args, {}, [], Phase.BACKWARD))
    gpu = find_gpu(torch.cuda.get_device_name())
    engine, tiling = asked(problem, gpu), tiling_of(problem, gpu)
    found = {ENGINE: engine, TILING: tiling and list(dataclasses.astuple(tiling))}
    return {name: value for name, value in found.items() if value is not None}


def signature_of(op: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    """What tells an op apart from others. A plan does not: it follows from the rest."""
    return f"{op}{args}{ {name: value for name, value in kwargs.items() if name not in (ENGINE, TILING)} }"


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


def describe(value: Any) -> Any:
    """An argument in JSON's terms. A tensor on the GPU is "bfloat16[8,4]{1,8}", without strides where these are what a
    contiguous one's would be.

    Runs of equal tensors in a list become "3*bfloat16[8,4]"; a tensor of the host is None, as in a trace.
    """
    if isinstance(value, torch.Tensor):
        if not value.is_cuda:
            return None
        text = f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
        is_plain = value.stride() == contiguous_stride(tuple(value.shape))
        return text if is_plain else f"{text}{{{','.join(map(str, value.stride()))}}}"
    if isinstance(value, (list, tuple)):
        return _run_lengths([describe(item) for item in value])
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, torch.UntypedStorage | torch.TypedStorage):
        return "storage"  # its str would print every byte, fetched one by one
    return str(value)


def _run_lengths(items: list[Any]) -> list[Any]:
    packed: list[Any] = []
    position = 0
    while position < len(items):
        end = position
        while end < len(items) and items[end] == items[position]:
            end += 1
        is_tensor = isinstance(items[position], str) and "[" in items[position]
        if is_tensor and end - position > 1:
            packed.append(f"{end - position}*{items[position]}")
        else:
            packed += items[position:end]
        position = end
    return packed


def _reads_twice(args: Any, kwargs: Any) -> bool:
    """Whether an operand stands in two places: it comes from the cache the second time, which a sample cannot say."""
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor) and leaf.is_cuda]
    places = [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors if tensor.numel() > 1]
    return len(set(places)) < len(places)


def _is_on_gpu(args: Any, kwargs: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in tree_flatten((args, kwargs))[0])
