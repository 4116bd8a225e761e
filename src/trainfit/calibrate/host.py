"""What the CPU pays to issue work: single ops, and small models that are trained phase by phase, in processes of their
own.

In: a GPU and its host. Out: the nanoseconds of single ops by kind and of every timed step by model and phase, and how
many kernels each of them launches (`host_processes`); and what each phase is charged for (`charges_of`; see
`trainfit.cost.host`). Phases: forward, backward, optimizer.

The tensors are tiny, so the GPU is always ahead and the clock on the wall is the CPU's. How fast that is depends on
where the machine puts a process and on what else runs there: on a virtual machine, a loop in Python took 0.7 ms on some
cores and 1.3 on others, and seconds later it was other cores. So all ops and models take turns, and several processes
are asked, at different times. Most of what such a process does is to import torch and to run everything a first time,
so all get ready at once, and then wait for their turn.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

import torch
from torch.profiler import ProfilerActivity, profile

from trainfit.calibrate.measure import gpu_kernels, marker_name, split_at_markers
from trainfit.calibrate.models import SmallModel, small_models
from trainfit.calibrate.processes import Process
from trainfit.calibrate.single_ops import CALLS, Prepare, single_ops, time_single_ops
from trainfit.cost.host import Weights, count_charges, timed_with
from trainfit.cost.host_fit import HOST_OPS_LARGE, Timing, reduce_host, reduce_known, reduce_weights
from trainfit.cost.price import kernels_launched
from trainfit.cost.profile import Measured
from trainfit.gpus.catalogue import Gpu
from trainfit.records import Op
from trainfit.step import Step
from trainfit.torch_compat import gpu_marker
from trainfit.trace import trace_step

WARM_UP, TIMED = 1, 5
_SERVE = "from trainfit.calibrate.host import serve; serve()"
_READY, _TIME, _COUNT = "ready", "time", "time and count"

Times = dict[str, list[int]]
Training = Callable[[Callable[[], None]], list[tuple[str, int]]]
"""Runs one step, and calls its argument before each phase."""


class HostTimes(TypedDict):
    """What one process timed."""

    op_times_ns: Times
    host_times_ns: dict[str, Times]
    """By model."""
    op_kernels: NotRequired[dict[str, int]]
    host_kernels: NotRequired[dict[str, dict[str, int]]]
    """By model and phase."""


class HostProcess(Process):
    """One that gets everything ready and then waits to be asked."""

    def __init__(self) -> None:
        super().__init__(_SERVE, "the process that times small models")

    def wait(self) -> None:
        """Until it is ready."""
        while self.answer() != _READY:  # libraries may print, too
            pass

    def times(self, with_kernels: bool) -> HostTimes:
        """What it times now, and with the numbers of kernels if it should count them. Only once."""
        self.tell(_COUNT if with_kernels else _TIME)
        found: HostTimes = json.loads(self.last_answer())
        return found


@contextlib.contextmanager
def host_processes(count: int) -> Iterator[list[HostProcess]]:
    """So many, which get ready; they end with the context."""
    processes = [HostProcess() for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.end()


def serve() -> None:
    """What such a process does."""
    prepared = prepare_host()
    sys.stdout.write(_READY + "\n")
    sys.stdout.flush()
    told = sys.stdin.readline().strip()
    if told:
        sys.stdout.write(json.dumps(time_host(prepared, told == _COUNT)) + "\n")


class Prepared(NamedTuple):
    """All ops and models; each was run once."""

    trainings: dict[str, Training]
    ops: dict[str, Prepare]


def prepare_host() -> Prepared:
    """In this process; takes some ten seconds, most of which the libraries spend on loading kernels."""
    trainings = {name: training_of(model, "cuda") for name, model in small_models().items()}
    for training in trainings.values():
        training(torch.cuda.synchronize)
    ops = single_ops("cuda")
    for prepare in ops.values():
        prepare()()
    return Prepared(trainings, ops)


def time_host(prepared: Prepared, with_kernels: bool) -> HostTimes:
    """All ops and models in this process. Time nothing in it after kernels were counted: a profiler slows launches for
    good."""
    trainings, ops = prepared
    times = dict(zip(trainings, time_models(trainings.values(), torch.cuda.synchronize), strict=True))
    found = HostTimes(op_times_ns=time_ops(ops, torch.cuda.synchronize), host_times_ns=times)
    if with_kernels:
        found["op_kernels"], found["host_kernels"] = _count_kernels(ops, trainings)
    return found


def time_ops(ops: Mapping[str, Prepare], begin: Callable[[], None]) -> Times:
    """Nanoseconds of single ops by kind. Large ones on tensors of the host come after all others: right after them a
    product with a number took 25 to 45 us in a backward pass, beside 16 to 20 for a GELU, most likely because the
    threads that compute them go on spinning."""
    large = {kind: prepare for kind, prepare in ops.items() if kind == HOST_OPS_LARGE}
    others = {kind: prepare for kind, prepare in ops.items() if kind not in large}
    return time_single_ops(others, begin) | time_single_ops(large, begin)


def time_models(trainings: Iterable[Training], begin: Callable[[], None]) -> list[Times]:
    """Nanoseconds of every timed step of each model by phase; gradients are set to None in the optimizer's. Steps of
    all models take turns, so that a host that changes its speed changes it for all. Before each phase comes `begin`."""
    known = list(trainings)
    found: list[Times] = [{} for _ in known]
    for number in range(WARM_UP + TIMED):
        for training, times in zip(known, found, strict=True):
            spent: Counter[str] = Counter()
            for phase, elapsed_ns in training(begin):
                spent[phase] += elapsed_ns
            if number >= WARM_UP:
                for phase, spent_ns in spent.items():
                    times.setdefault(phase, []).append(spent_ns)
    return found


def _count_kernels(
    ops: Mapping[str, Prepare], trainings: Mapping[str, Training]
) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Of one op of each kind, and of a step of each model by phase."""
    marker = marker_name()
    labels: list[tuple[int, str]] = []
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for kind, prepare in ops.items():
            run = prepare()
            gpu_marker()
            run()
            labels.append((-1, kind))
            gpu_marker()  # what prepares the next kind is nobody's
            labels.append((-1, ""))
        for number, training in enumerate(trainings.values()):
            labels += [(number, phase) for phase, _ in training(gpu_marker)]
        torch.cuda.synchronize()
    counted: list[Counter[str]] = [Counter() for _ in range(len(trainings) + 1)]
    for (number, label), segment in zip(labels, split_at_markers(gpu_kernels(profiler), marker), strict=True):
        counted[number][label] += len(segment)
    return (
        {kind: round(counted[-1][kind] / CALLS) for kind in ops},
        {name: dict(count) for name, count in zip(trainings, counted[:-1], strict=True)},
    )


def training_of(small: SmallModel, device: str) -> Training:
    """One training step of the model: its phases in order and how long the CPU took over each."""
    torch.manual_seed(0)
    with torch.device(device):
        model = small.build().to(small.dtype)
    optimizer = small.optimizer(model.parameters())
    inputs = small.inputs(device)

    def forward() -> Any:
        with torch.autocast(device, small.autocast or torch.bfloat16, enabled=small.autocast is not None):
            return model(**inputs)

    def update() -> None:
        if small.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), small.clip_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    def step(begin: Callable[[], None]) -> list[tuple[str, int]]:
        phases: list[tuple[str, int]] = []

        def timed(phase: str, work: Callable[[], Any]) -> Any:
            begin()
            begin_ns = time.perf_counter_ns()
            result = work()
            phases.append((phase, time.perf_counter_ns() - begin_ns))
            return result

        for _ in range(small.micro_batches):
            loss = timed("forward", forward)
            timed("backward", loss.backward)
            del loss
        timed("optimizer", update)
        return phases

    return step


def traced_models(gpu: Gpu) -> dict[str, list[Op]]:
    """The ops of a training step of each small model; takes some ten seconds."""
    return {name: traced(model, gpu) for name, model in small_models().items()}


def traced(small: SmallModel, gpu: Gpu) -> list[Op]:
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
    return [op for section in sections for op in trace.ops[section.first_op : section.last_op]]


def host_costs(
    records: Sequence[Mapping[str, Any]],
    gpu: Gpu,
    tables: Mapping[str, Measured],
    models: Mapping[str, Sequence[Op]],
) -> dict[str, Any]:
    """The fields of `HostCosts` from what processes timed, each in a record; other records are passed over. Kernels
    were counted in at least one. `tables` are the profile's, `models` what `traced_models` gives."""
    op_times_ns = [record["op_times_ns"] for record in records if "op_times_ns" in record]
    host_times_ns = [record["host_times_ns"] for record in records if "host_times_ns" in record]
    op_kernels, host_kernels = next(
        (record["op_kernels"], record["host_kernels"]) for record in records if "op_kernels" in record
    )
    weights = reduce_weights(op_times_ns, op_kernels)
    timings = {
        name: Timing(
            charges=charges_of(ops, gpu, tables, weights, host_kernels[name]),
            processes_ns=[times_ns[name] for times_ns in host_times_ns if name in times_ns],
        )
        for name, ops in models.items()
    }
    return reduce_host(timings, weights, reduce_known(op_times_ns))


def charges_of(
    ops: Sequence[Op], gpu: Gpu, tables: Mapping[str, Measured], weights: Weights, kernels: Mapping[str, int]
) -> dict[str, dict[str, float]]:
    """What a training step of these ops is charged for, by phase. `tables` are the profile's; how many kernels so small
    convolutions take they do not know, so those of a phase, which were counted, say how many there are beyond one per
    op."""
    num_launched = kernels_launched(ops, gpu, tables)
    charged = count_charges(ops, num_launched, weights)
    for phase, counts in charged.items():
        launches = sum(count > 0 for op, count in zip(ops, num_launched, strict=True) if timed_with(op) == phase)
        if "recurrent_kernel" not in counts:
            counts["further_kernel"] = max(kernels[phase] - launches, 0)
    return charged
