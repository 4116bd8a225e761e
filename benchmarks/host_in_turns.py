"""Steps that wait for the CPU, beside predictions for the very host on which they were timed, at the very time.

    python benchmarks/host_in_turns.py measure rows.jsonl --processes 3      # on a GPU; adds a row per process
    python benchmarks/host_in_turns.py table rows.jsonl                      # no GPU: predicts what the rows measured

A host changes its speed within seconds and from process to process, so here nets (host_nets.py) and all small models of
`trainfit calibrate` take turns in one process, and costs that follow from a process's small models predict the nets of
the same process. Processes get ready side by side, and then each is timed alone. In a round, each net's step is timed
phase by phase, the clock being the CPU's and the GPU idle before each phase, with the full batch and a tiny one; then a
whole step until the GPU is done; then a part of the small models. Single ops come last. Rows have nanoseconds: "nets"
and "small" by phase, "whole", "ops", and in "loops" and "loop" what a fixed loop in Python took.

The table prices kernels by the shipped profile, and counts those of small models and single ops by the records of the
calibration that made it. The first round warms up and is left out. A step is launch-bound when the GPU, by the
predicted time of its kernels, idles for more than 15% of what was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from host_nets import NETS, Net
from trainfit._time_estimate import LAUNCH_BOUND_IDLE, TimeEstimate, time_step
from trainfit.calibrate.host import Prepared, host_costs, prepare_host, time_ops, traced_models
from trainfit.calibrate.processes import Process
from trainfit.cost import Profile, pricing_for
from trainfit.cost.host import HostCosts, count_charges
from trainfit.cost.price import kernels_launched
from trainfit.cost.profile import shipped_profile
from trainfit.gpus.catalogue import Gpu
from trainfit.records import Op, Trace
from trainfit.step import Step
from trainfit.trace import trace_step

WARM_UP, TIMED = 1, 6
"""Rounds."""
LOOP = 5000
GPU = "h200"
KERNELS = Path(__file__).parent / "results" / "h200.json.partial.gz"
PHASES = ("forward", "backward", "optimizer")
NEAR = 0.2
_READY = "ready"
_SERVE = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from host_in_turns import serve; serve()"

Row = dict[str, Any]
"""What one process timed."""


class TrainedNet:
    """A net on the GPU, with its optimizer and both batches; its steps are timed."""

    def __init__(self, net: Net) -> None:
        torch.manual_seed(0)
        with torch.device("cuda"):
            self._model = net.build()
        self._model.to("cuda", net.dtype)
        self._autocast = net.autocast
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._batches = net.batches("cuda")

    def phases_ns(self, batch: str) -> dict[str, int]:
        """What the CPU takes over each phase of a step; the GPU has nothing to do when one begins."""
        found: dict[str, int] = {}

        def timed(phase: str, work: Callable[[], Any]) -> Any:
            torch.cuda.synchronize()
            begin_ns = time.perf_counter_ns()
            result = work()
            found[phase] = time.perf_counter_ns() - begin_ns
            return result

        loss = timed("forward", lambda: self._loss(batch))
        timed("backward", loss.backward)
        del loss
        timed("optimizer", self._update)
        torch.cuda.synchronize()
        return found

    def whole_ns(self) -> int:
        """A step with the full batch, until the GPU is done."""
        torch.cuda.synchronize()
        begin_ns = time.perf_counter_ns()
        self._loss("full").backward()
        self._update()
        torch.cuda.synchronize()
        return time.perf_counter_ns() - begin_ns

    def _loss(self, batch: str) -> torch.Tensor:
        with torch.autocast("cuda", self._autocast or torch.bfloat16, enabled=self._autocast is not None):
            return self._model(**self._batches[batch])

    def _update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


def serve() -> None:
    """What a process does: gets ready, waits for a line, writes its row, and waits until it is ended, since taking CUDA
    down would slow whoever is timed next."""
    prepared = prepare_host()
    nets = {}
    for name, net in NETS.items():
        nets[name] = TrainedNet(net)
        for batch in ("full", "tiny", "full"):
            nets[name].phases_ns(batch)
    print(_READY, flush=True)
    sys.stdin.readline()
    print(json.dumps(time_in_turns(nets, prepared)), flush=True)
    sys.stdin.readline()


def time_in_turns(nets: Mapping[str, TrainedNet], prepared: Prepared) -> Row:
    """All rounds, in which a part of the small models follows each net, and the single ops."""
    times: Row = {"nets": {name: [] for name in nets}, "whole": {name: [] for name in nets}}
    small: dict[str, list[dict[str, int]]] = {name: [] for name in prepared.trainings}
    loops: list[int] = []
    for _ in range(WARM_UP + TIMED):
        for number, (name, net) in enumerate(nets.items()):
            phases_ns = {batch: net.phases_ns(batch) for batch in ("full", "tiny")}
            times["nets"][name].append({**phases_ns, "loop": loop_ns()})
            times["whole"][name].append(net.whole_ns())
            for model in list(prepared.trainings)[number :: len(nets)]:
                small[model].append(_small_ns(prepared, model))
        loops.append(loop_ns())
    ops = time_ops(prepared.ops, torch.cuda.synchronize)
    return {**times, "small": small, "loops": loops, "ops": ops}


def _small_ns(prepared: Prepared, model: str) -> dict[str, int]:
    """A step of a small model by phase; micro-batches add up."""
    found: dict[str, int] = {}
    for phase, elapsed_ns in prepared.trainings[model](torch.cuda.synchronize):
        found[phase] = found.get(phase, 0) + elapsed_ns
    return found


def loop_ns() -> int:
    """How fast the CPU is now."""
    begin_ns = time.perf_counter_ns()
    total = 0
    for number in range(LOOP):
        total += number & 7
    return time.perf_counter_ns() - begin_ns


def measure(out: Path, num_processes: int, run: int) -> None:
    """Adds to the file what each process times in its turn."""
    processes = [Process(_SERVE, "the process that times nets") for _ in range(num_processes)]
    try:
        for process in processes:
            while process.answer() != _READY:  # libraries may print, too
                pass
        for process in processes:
            process.tell("go")
            while not (line := process.answer()).startswith("{"):
                pass
            with out.open("a") as file:
                file.write(json.dumps({"run": run, **json.loads(line)}) + "\n")
    finally:
        for process in processes:
            process.end()


class TracedNet(NamedTuple):
    """A step of a net, and the ops of each batch in a steady one."""

    full: Trace
    ops: dict[str, list[Op]]


class Compared(NamedTuple):
    """Something that was measured and predicted."""

    net: str
    process: str
    """The run and the number of the process in it."""
    batch: str
    times_ms: list[float]
    """Of all rounds; of one number, where medians were added up."""
    predicted_ms: float

    @property
    def run(self) -> int:
        return int(self.process.partition(".")[0])

    @property
    def measured_ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


class ComparedStep(NamedTuple):
    """A whole step, which what was predicted of it calls launch-bound or not."""

    compared: Compared
    estimate: TimeEstimate

    @property
    def launch_bound(self) -> bool:
        """By what was measured, and the predicted time of the kernels."""
        measured_ms = self.compared.measured_ms
        return measured_ms - self.estimate.gpu_busy_ms > LAUNCH_BOUND_IDLE * measured_ms


def traced_net(net: Net, gpu: Gpu) -> TracedNet:
    traces = {}
    for batch, inputs in net.batches("meta").items():
        step = Step(
            model=lambda: net.build().to(net.dtype), batch=inputs, optimizer=torch.optim.AdamW, autocast=net.autocast
        )
        traces[batch] = trace_step(step, gpu)
    return TracedNet(traces["full"], {batch: _steady_ops(trace) for batch, trace in traces.items()})


def _steady_ops(trace: Trace) -> list[Op]:
    sections = (trace.sections[index] for index in trace.steady_step)
    return [op for section in sections for op in trace.ops[section.first_op : section.last_op]]


def own_hosts(rows: Sequence[Row], profile: Profile) -> list[HostCosts]:
    """What the CPU's work costs in each row's process, by its own small models and single ops."""
    records = map(json.loads, gzip.decompress(KERNELS.read_bytes()).splitlines())
    counted = next(record for record in records if "op_kernels" in record)
    kernels = {key: counted[key] for key in ("op_kernels", "host_kernels")}
    models = traced_models(profile.gpu)
    found = []
    for row in rows:
        times = {name: _by_phase(rounds) for name, rounds in row["small"].items()}
        record = {"op_times_ns": row["ops"], "host_times_ns": times, **kernels}
        found.append(HostCosts.parse(host_costs([record], profile.gpu, profile.tables, models)))
    return found


def _by_phase(rounds: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """Without the rounds that warm up."""
    return {phase: [times_ns[phase] for times_ns in rounds[WARM_UP:]] for phase in PHASES}


def compare_phases(
    row: Row, process: str, host: HostCosts, nets: Mapping[str, TracedNet], profile: Profile
) -> dict[str, list[Compared]]:
    """By phase what was measured and predicted of each net and batch; "all" are medians of the phases, added up."""
    found: dict[str, list[Compared]] = {phase: [] for phase in (*PHASES, "all")}
    for name, rounds in row["nets"].items():
        for batch, ops in nets[name].ops.items():
            launched = kernels_launched(ops, profile.gpu, profile.tables)
            charged = count_charges(ops, launched, host.weights_percent)
            predicted_ms = {phase: _charged_ms(charges, host) for phase, charges in charged.items()}
            times_ns = _by_phase([times[batch] for times in rounds])
            times_ms = {phase: [ns / 1e6 for ns in times] for phase, times in times_ns.items()}
            for phase in PHASES:
                found[phase].append(Compared(name, process, batch, times_ms[phase], predicted_ms[phase]))
            total_ms = sum(statistics.median(times) for times in times_ms.values())
            found["all"].append(Compared(name, process, batch, [total_ms], sum(predicted_ms.values())))
    return found


def _charged_ms(charges: Mapping[str, float], host: HostCosts) -> float:
    return sum(getattr(host, f"{kind}_ns") * count for kind, count in charges.items()) / 1e6


def compare_steps(
    row: Row, process: str, host: HostCosts, nets: Mapping[str, TracedNet], profile: Profile
) -> Iterator[ComparedStep]:
    """The whole step of each net, and what is predicted of it on this host."""
    pricing = pricing_for(profile.gpu, dataclasses.replace(profile, host=host))
    for name, times_ns in row["whole"].items():
        estimate = time_step(nets[name].full, pricing)
        times_ms = [ns / 1e6 for ns in times_ns[WARM_UP:]]
        yield ComparedStep(Compared(name, process, "full", times_ms, estimate.step_ms), estimate)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Everything that was measured beside what is predicted, and how many are near."""
    profile = shipped_profile(GPU)
    if profile is None:
        raise SystemExit(f"the package ships no profile of the {GPU}")
    names = dict.fromkeys(name for row in rows for name in row["nets"])
    nets = {name: traced_net(NETS[name], profile.gpu) for name in names}
    phases: dict[str, list[Compared]] = {}
    steps: list[ComparedStep] = []
    for row, process, host in zip(rows, process_names(rows), own_hosts(rows, profile), strict=True):
        for phase, compared in compare_phases(row, process, host, nets, profile).items():
            phases.setdefault(phase, []).extend(compared)
        steps += compare_steps(row, process, host, nets, profile)
    yield from step_table(steps)
    yield ""
    yield from phase_table(phases["all"])
    yield ""
    yield from summary(steps, phases)


def process_names(rows: Sequence[Row]) -> list[str]:
    """The run and the number of the process in it."""
    runs = [row["run"] for row in rows]
    return [f"{run}.{runs[: number + 1].count(run)}" for number, run in enumerate(runs)]


def step_table(steps: Iterable[ComparedStep]) -> Iterator[str]:
    yield "| net | process | step, measured: median (fastest to slowest) | predicted | error | GPU busy | bound by |"
    yield "|---|---|---|---|---|---|---|"
    for step in sorted(steps, key=lambda step: list(NETS).index(step.compared.net)):
        one = step.compared
        bound = "CPU" if step.launch_bound else "GPU"
        told = bound if step.launch_bound == step.estimate.launch_bound else f"{bound}, predicted otherwise"
        yield (
            f"| {one.net} | {one.process} | {one.measured_ms:.1f} ({min(one.times_ms):.1f} to {max(one.times_ms):.1f}) "
            f"| {one.predicted_ms:.1f} | {one.error:+.1%} | {step.estimate.gpu_busy_ms:.1f} | {told} |"
        )


def phase_table(sums: Iterable[Compared]) -> Iterator[str]:
    yield "| net | batch | process | CPU's time of the phases, measured | predicted | error |"
    yield "|---|---|---|---|---|---|"
    for one in sorted(sums, key=lambda one: (list(NETS).index(one.net), one.batch)):
        yield (
            f"| {one.net} | {one.batch} | {one.process} | {one.measured_ms:.1f} | {one.predicted_ms:.1f} "
            f"| {one.error:+.1%} |"
        )


def summary(steps: Sequence[ComparedStep], phases: Mapping[str, Sequence[Compared]]) -> Iterator[str]:
    """How many are near, of all and of each run."""
    recognised = sum(step.launch_bound == step.estimate.launch_bound for step in steps)
    full, tiny = ([one for one in phases["all"] if one.batch == batch] for batch in ("full", "tiny"))
    yield from _counts_by_run("launch-bound steps", [step.compared for step in steps if step.launch_bound])
    yield from _counts_by_run("GPU-bound steps", [step.compared for step in steps if not step.launch_bound])
    yield f"- launch-bound or not: {recognised} of {len(steps)} recognised."
    yield from _counts_by_run("CPU's time, full batches", full)
    for phase in PHASES:
        yield _counts(f"CPU's time, full batches, {phase} only", [one for one in phases[phase] if one.batch == "full"])
    yield from _counts_by_run("CPU's time, tiny batches", tiny)


def _counts_by_run(what: str, chosen: Sequence[Compared]) -> Iterator[str]:
    """One line for all, and one for each run where there are several."""
    runs = sorted({one.run for one in chosen})
    if runs:
        yield _counts(what, chosen)
    if len(runs) > 1:
        for run in runs:
            yield _counts(f"{what}, run {run}", [one for one in chosen if one.run == run])


def _counts(what: str, chosen: Sequence[Compared]) -> str:
    near = sum(abs(one.error) <= NEAR for one in chosen)
    worst = max(chosen, key=lambda one: abs(one.error))
    return (
        f"- {what}: {near} of {len(chosen)} within {NEAR:.0%}, median error "
        f"{statistics.median(one.error for one in chosen):+.1%}, without its sign "
        f"{statistics.median(abs(one.error) for one in chosen):.1%}, "
        f"worst {worst.error:+.1%} ({worst.net}, process {worst.process})."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="on a GPU")
    measuring.add_argument("out", type=Path, help="file to which rows are added")
    measuring.add_argument("--processes", type=int, default=3)
    measuring.add_argument("--run", type=int, default=1, help="number that the rows carry")
    printing = commands.add_parser("table", help="no GPU is needed")
    printing.add_argument("rows", type=Path, nargs="+")
    args = parser.parse_args()
    if args.command == "measure":
        measure(args.out, args.processes, args.run)
        return
    rows = [json.loads(line) for path in args.rows for line in path.read_text().splitlines()]
    print(f"Predicted with torch {torch.__version__}, no GPU. Milliseconds; errors are predicted / measured - 1.\n")
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    main()
