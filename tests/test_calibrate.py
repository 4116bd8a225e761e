"""`calibrate` without a GPU: what it keeps, how it goes on after a cut, and how profiles of kernels fall into ops."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from trainfit import calibrate, ghost_gpu
from trainfit.calibrate import chunks, host
from trainfit.calibrate.arguments import Pool
from trainfit.calibrate.calls import Call, read_call
from trainfit.calibrate.chunks import HOST_STRETCHES
from trainfit.calibrate.host import TIMED, charges_of, host_processes, time_models, traced, training_of
from trainfit.calibrate.measure import Kernel, Sample, describe, split_at_markers
from trainfit.calibrate.models import small_models
from trainfit.calibrate.processes import ProcessFailed
from trainfit.calibrate.single_ops import CALLS, ROUNDS, single_ops, time_single_ops
from trainfit.cost import load_profile
from trainfit.cost.host import WEIGHED
from trainfit.cost.host_fit import SINGLE_KINDS
from trainfit.cost.lines import Lines
from trainfit.cost.profile import Measured, shipped_profile
from trainfit.cost.reduce import reduce_samples
from trainfit.errors import UnknownGpu, UsageError
from trainfit.gpus.catalogue import find_gpu

ROOT = Path(__file__).parents[1]
H200 = find_gpu("h200")
MEASURE = sys.modules["trainfit.calibrate.measure"]  # the package has a function of that name
PARTIAL = ROOT / "benchmarks" / "results" / "h200.json.partial.gz"
SHIPPED = ROOT / "src" / "trainfit" / "cost" / "profiles" / "h200.json"
HEADER = {"schema": 1, "gpu": "NVIDIA H200", "torch": "2.11.0"}
CHARGES = {
    "forward": {"forward": 2},
    "backward": {"backward": 1},
    "optimizer": {"optimizer_call": 1},
}
OP_TIMES = {kind: [7] for kind in SINGLE_KINDS} | {
    "plain": [12], "binary": [10], "activation": [8], "product with views": [10],
    "backward plain": [15], "backward activation": [13], "leaf": [22], "leaf again": [29], "backward products": [28],
    "list of one large": [13],
}  # fmt: skip
TIMES = {
    "op_times_ns": OP_TIMES, "op_kernels": dict.fromkeys(SINGLE_KINDS, 1),
    "host_times_ns": {"small": {"forward": [8], "backward": [3], "optimizer": [5]}},
    "host_kernels": {"small": {"forward": 1, "backward": 1, "optimizer": 1}},
}  # fmt: skip
MEASURED = [{"chunk": f"host {number}", **TIMES} for number in range(4)]
"""The host before, between and after the three chunks of the machine below."""


def sample(numel: int) -> Sample:
    tensor = f"float32[{numel}]"
    return Sample(
        "aten.neg.default", [tensor], {}, [tensor], warm_ns=2000, cold_ns=3000, num_kernels=1, kernel="neg", overlap=1.0
    )


class Process:
    """As if one were waiting."""

    def __init__(self, times: dict[str, Any]) -> None:
        self._times = times
        self.is_ready = self.with_kernels = False

    def wait(self) -> None:
        self.is_ready = True

    def times(self, with_kernels: bool) -> dict[str, Any]:
        assert self.is_ready
        self.with_kernels = with_kernels
        return self._times


class Worker:
    """As if one were there: every call gives one sample, and a chunk one failure."""

    def __init__(self, measured: list[str]) -> None:
        self._measured = measured
        self._rehearsed: list[str] = []
        self._unread: list[str] = []
        self.num_restarts = 0

    def rehearse(self, chunk: str) -> None:
        self._rehearsed.append(chunk)

    def restart(self) -> None:
        self.num_restarts += 1

    def begin(self, chunk: str) -> None:
        assert chunk in self._rehearsed
        assert not self._unread
        self._unread = [chunk]
        self._measured.append(chunk)

    def finish(self) -> list[dict[str, Any]]:
        (chunk,), self._unread = self._unread, []
        calls = next(one.calls for one in chunks.all_chunks() if one.name == chunk)
        samples = [sample(call.args[0].numel) for call in calls]
        return [*({"sample": dataclasses.asdict(one)} for one in samples), {"failed": "it"}]


class Planner:
    """As if cuDNN had been asked."""

    def plans(self) -> dict[str, dict[str, Any]]:
        return {}


def negation(numel: int) -> Call:
    return read_call("aten.neg.default", [f"float32[{numel}]"], {})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with a GPU on which every call gives one sample; returns what was measured."""
    measured: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(calibrate, "_header", lambda: HEADER)
    monkeypatch.setattr(
        calibrate, "host_processes", lambda count: contextlib.nullcontext([Process(TIMES) for _ in range(count)])
    )
    monkeypatch.setattr(
        calibrate, "gpu_workers", lambda gpu, num_chunks: contextlib.nullcontext([Worker(measured) for _ in range(2)])
    )
    monkeypatch.setattr(calibrate, "traced_models", lambda gpu: {"small": []})
    monkeypatch.setattr(host, "charges_of", lambda *_: CHARGES)
    monkeypatch.setattr(calibrate, "planning", lambda gpu: contextlib.nullcontext(Planner()))
    monkeypatch.setattr(chunks, "CALLS_PER_CHUNK", 40)
    monkeypatch.setattr(chunks, "HOST_STRETCHES", 3)
    monkeypatch.setattr(chunks, "all_calls", lambda: (*[negation(8)] * 100, negation(64)))
    monkeypatch.setattr(chunks.random.Random, "shuffle", lambda self, pieces: None)
    return measured


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.with_name(path.name + ".partial").read_text().splitlines()]


@pytest.mark.usefixtures("machine")
def test_the_profile_and_the_raw_samples_are_written(tmp_path: Path) -> None:
    reports: list[str] = []
    calibrate.calibrate(tmp_path / "gpu.json", reports.append)
    assert [report.split(":")[0] for report in reports] == [
        "host 0", "ops 0", "host 1", "ops 40", "host 2", "ops 80", "host 3", "writing the profile",
    ]  # fmt: skip
    profile = load_profile(tmp_path / "gpu.json")
    assert list(profile.tables) == ["pointwise contiguous"]
    measured = profile.tables["pointwise contiguous"]
    assert isinstance(measured, Lines)
    assert [(line.sizes, line.others) for line in measured.lines] == [((6.0, 9.0), (3.0, 1.0))]  # 8 and 64 elements
    assert profile.host.forward_ns == 4
    assert sum("sample" in line for line in lines(tmp_path / "gpu.json")) == 101
    assert sum("failed" in line for line in lines(tmp_path / "gpu.json")) == 3


def test_a_run_that_was_cut_goes_on_after_the_last_chunk_it_finished(tmp_path: Path, machine: list[str]) -> None:
    partial = tmp_path / "gpu.json.partial"
    done = [
        HEADER,
        MEASURED[0],
        {"begun": "ops 0"},
        {"chunk": "ops 0"},
        *MEASURED[1:],
        {"begun": "ops 40"},
    ]
    partial.write_text("".join(json.dumps(line) + "\n" for line in done) + '{"sample": {"op": "aten.n')
    calibrate.calibrate(tmp_path / "gpu.json", lambda line: None)
    assert machine == ["ops 40", "ops 80"]
    assert load_profile(tmp_path / "gpu.json").tables


def test_a_chunk_that_never_finished_in_two_runs_is_left_out(tmp_path: Path, machine: list[str]) -> None:
    begun = [HEADER, MEASURED[0], {"begun": "ops 40"}, {"begun": "ops 40"}]
    (tmp_path / "gpu.json.partial").write_text("".join(json.dumps(line) + "\n" for line in begun))
    reports: list[str] = []
    calibrate.calibrate(tmp_path / "gpu.json", reports.append)
    assert machine == ["ops 0", "ops 80"]
    assert "ops 40: left out, it did not finish in 2 runs" in reports


def test_what_was_timed_is_read_when_its_process_is_wanted_again_or_at_the_end() -> None:
    events: list[str] = []

    class Told(Worker):
        def begin(self, chunk: str) -> None:
            super().begin(chunk)
            events.append(f"begin {chunk}")

        def finish(self) -> list[dict[str, Any]]:
            events.append(f"finish {self._unread[0]}")
            self._unread = []
            return []

    first, second = Told([]), Told([])
    by_name = {"a": first, "b": second, "c": first}
    for name, worker in by_name.items():
        worker.rehearse(name)
    left = [chunks.Chunk(name, (negation(8),)) for name in by_name]
    calibrate._measure(left, by_name, [], [], lambda record: None, lambda line: None)  # type: ignore[arg-type]
    assert events == ["begin a", "begin b", "finish a", "begin c", "finish b", "finish c"]


@pytest.mark.parametrize("method", ["begin", "finish"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_chunk_over_which_its_process_ends_is_tried_once_more_by_another(
    times: int, method: str, tmp_path: Path, machine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    works = getattr(Worker, method)
    failures: list[Worker] = []

    def fail(self: Worker, *args: Any) -> Any:
        if "ops 40" in (*args, *self._unread) and len(failures) < times:
            failures.append(self)
            self._unread = []
            raise ProcessFailed("the process", "CudaError: an illegal instruction\nAfterwards: more")
        return works(self, *args)

    monkeypatch.setattr(Worker, method, fail)
    reports: list[str] = []
    calibrate.calibrate(tmp_path / "gpu.json", reports.append)
    told = [report for report in reports if "illegal" in report]
    assert (
        told
        == [
            "ops 40: CudaError: an illegal instruction; it will be tried again",
            "ops 40: CudaError: an illegal instruction; left out",
        ][:times]
    )
    assert [worker.num_restarts for worker in failures] == [times] * times
    found = lines(tmp_path / "gpu.json")
    assert found.count({"begun": "ops 40"}) == 2
    assert found.count({"chunk": "ops 40"}) == 2 - times
    assert {"chunk": "ops 80"} in found
    assert load_profile(tmp_path / "gpu.json").tables


@pytest.mark.usefixtures("machine")
def test_what_was_begun_elsewhere_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "gpu.json.partial").write_text(json.dumps(HEADER | {"torch": "2.12.0"}) + "\n")
    with pytest.raises(UsageError, match="begun on another GPU, or with another torch or trainfit"):
        calibrate.calibrate(tmp_path / "gpu.json", lambda line: None)


@pytest.mark.usefixtures("machine")
def test_a_gpu_that_is_not_in_the_catalogue_is_refused_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H9000")
    with pytest.raises(UnknownGpu):
        calibrate.calibrate(tmp_path / "gpu.json", lambda line: None)
    assert not list(tmp_path.iterdir())


def test_where_everything_was_measured_the_profile_is_written_again_without_a_gpu(
    tmp_path: Path, machine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    calibrate.calibrate(path, lambda line: None)
    first = path.read_text()
    path.unlink()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reports: list[str] = []
    assert calibrate.calibrate(path, reports.append)
    assert path.read_text() == first
    assert len(machine) == 3  # chunks of the first run
    assert [report.split(":")[-1] for report in reports] == [" writing the profile again"]


@pytest.mark.usefixtures("machine")
def test_without_plans_of_convolutions_nothing_is_written_where_there_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    calibrate.calibrate(path, lambda line: None)
    path.unlink()
    partial = tmp_path / "gpu.json.partial"
    partial.write_text("".join(json.dumps(line) + "\n" for line in lines(path) if "plans" not in line))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        calibrate.calibrate(path, lambda line: None)
    assert not path.exists()


@pytest.mark.usefixtures("machine")
def test_the_host_s_usual_time_is_the_mean_of_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = TIMES | {"host_times_ns": {"small": {"forward": [16], "backward": [7], "optimizer": [9]}}}
    processes = [Process(times) for times in (TIMES, slow, TIMES, slow)]
    monkeypatch.setattr(calibrate, "host_processes", lambda count: contextlib.nullcontext(processes))
    calibrate.calibrate(tmp_path / "gpu.json", lambda line: None)
    costs = load_profile(tmp_path / "gpu.json").host
    assert (costs.forward_ns, costs.backward_ns, costs.optimizer_call_ns) == (6, 5, 7)  # two ops in forward
    assert costs.weights_percent == dict.fromkeys(WEIGHED, 70) | {"backward product": 165} | {
        kind: 50 for kind in WEIGHED if kind.startswith("backward") and kind != "backward product"
    }  # fmt: skip
    assert (costs.inner_ns, costs.backward_inner_ns, costs.inner_view_ns, costs.further_kernel_ns) == (10, 7, 1, 2)
    assert (costs.fast_percent, costs.slow_percent) == (67, 133)  # 16 and 32 ns where costs say 24


@pytest.mark.usefixtures("machine")
def test_kernels_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [Process(TIMES) for _ in range(4)]
    monkeypatch.setattr(calibrate, "host_processes", lambda count: contextlib.nullcontext([*processes]))
    calibrate.calibrate(tmp_path / "gpu.json", lambda line: None)
    assert [process.with_kernels for process in processes] == [False, False, False, True]  # the last is asked first


def test_models_are_timed_in_processes_that_wait_until_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os; print('chatter'); print('ready', flush=True); told = input(); print('{\"told\": \"' + told + '\"}')"
    )
    monkeypatch.setattr(host, "_SERVE", code)
    with host_processes(2) as (one, other):
        other.wait()
        one.wait()
        assert other.times(with_kernels=False) == {"told": "time"}
        assert one.times(with_kernels=True) == {"told": "time and count"}


def test_processes_that_were_not_asked_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_SERVE", "print('ready', flush=True); input()")
    with host_processes(1) as (one,):
        one.wait()
    assert one._process.returncode == -signal.SIGKILL


def asked(process: host.HostProcess) -> host.HostTimes:
    process.wait()
    return process.times(with_kernels=False)


@pytest.mark.parametrize("before", ["", "print('ready', flush=True); input(); "])
def test_a_process_that_cannot_time_the_models_says_why(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_SERVE", f"{before}raise SystemExit('no CUDA driver')")
    with (
        pytest.raises(RuntimeError, match="the process that times small models failed:\nno CUDA driver"),
        host_processes(1) as (one,),
    ):
        asked(one)


WARM, COLD, NOTHING = (0, False), (0, True), (None, False)
FLUSH = (None, True)
TWICE = [NOTHING, WARM, WARM, FLUSH, COLD, FLUSH, COLD]
ONCE = [NOTHING, WARM, FLUSH, COLD]
MS = 1_000_000


@pytest.mark.parametrize(
    ("alone_ns", "runs"),
    [
        ([(10_000, 20_000)], TWICE),
        ([(10_000, 400_000)], ONCE),
        ([(5 * MS, 6 * MS), (10_000, 20_000)], [NOTHING, NOTHING, WARM, FLUSH, COLD]),  # a library chose a kernel
        ([(5 * MS, 9 * MS), (10_000, 4 * MS)], [NOTHING, WARM]),
        ([(5 * MS, 9 * MS), (3 * MS, 4 * MS)], [NOTHING, NOTHING, WARM]),  # behind a marker: the GPU waited for the CPU
    ],
)
def test_an_op_that_lasts_long_is_timed_once(
    alone_ns: list[tuple[int, int]], runs: list[tuple[int | None, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = read_call("aten.mul.Tensor", ["2*float32[4,4]"], {})
    assert timed_runs(call, alone_ns, monkeypatch) == [*runs, NOTHING]


def test_products_are_timed_as_often_as_others_however_long_they_last(monkeypatch: pytest.MonkeyPatch) -> None:
    call = read_call("aten.mm.default", ["2*float32[4,4]"], {})
    assert timed_runs(call, [(10_000, 9 * MS)], monkeypatch) == [*TWICE, NOTHING]


def test_convolutions_are_timed_once_warm_and_once_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    call = read_call("aten.convolution.default", ["float32[1,2,4,4]", "float32[2,2,1,1]", *settings], {})
    assert timed_runs(call, [(10_000, 20_000)], monkeypatch) == [*ONCE, NOTHING]


def timed_runs(
    call: Call, alone_ns: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int | None, bool]]:
    """What is marked where the op takes so long to issue, and to run, when it runs alone."""
    times = iter(alone_ns)
    monkeypatch.setattr(MEASURE, "_run_alone", lambda work: (work(), *next(times)))
    monkeypatch.setattr(MEASURE, "gpu_marker", lambda cycles: None)
    monkeypatch.setattr(MEASURE, "FLUSH_BYTES", 64)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with ghost_gpu("h200"):
        stretch = MEASURE._Stretch()
        stretch.run(call, Pool("cuda", 4096))
        stretch.end()
    assert not list(times)
    kernels = [kernel for _ in stretch._runs for kernel in (Kernel(0, 1, "marker"), Kernel(0, 7, "own"))]
    (found,) = stretch.samples(kernels, "marker")
    assert (found.warm_ns, found.cold_ns, found.call) == (7, 7, str(call))
    return [tuple(run) for run in stretch._runs]


def test_the_shipped_profile_is_what_the_command_made_of_its_samples() -> None:
    with gzip.open(PARTIAL, "rt") as file:
        records = [json.loads(line) for line in file]
    shipped = json.loads(SHIPPED.read_text())
    assert {key: shipped[key] for key in records[0] if key != "schema"} == {
        key: value for key, value in records[0].items() if key != "schema"
    }
    reduced = reduce_samples(find_gpu("h200"), calibrate.samples_of(records))
    assert len(reduced.tables) + len(reduced.lines) > 400
    assert reduced._asdict() == {name: shipped[name] for name in reduced._fields}
    assert sum("host_times_ns" in record for record in records) == HOST_STRETCHES + 1


def test_without_a_gpu_it_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        calibrate.calibrate(tmp_path / "gpu.json", lambda line: None)


def test_every_call_is_in_one_chunk_whose_calls_are_of_one_kind() -> None:
    found = [chunk for chunk in chunks.all_chunks() if chunk.calls]
    assert len({chunk.name for chunk in found}) == len(found)
    assert Counter(call for chunk in found for call in chunk.calls) == Counter(chunks.all_calls())
    for chunk in found:
        assert len({call.short_name.startswith("convolution") for call in chunk.calls}) == 1


def test_shares_have_chunks_of_every_kind_that_follow_one_another_the_slowest_first() -> None:
    found = chunks.shares([chunks.Chunk(f"{kind} {n}") for n in (2, 0, 3, 1) for kind in ("ops", "convolutions")], 2)
    assert [[chunk.name for chunk in share] for share in found] == [
        ["convolutions 0", "convolutions 1", "ops 0", "ops 1"],
        ["convolutions 2", "convolutions 3", "ops 2", "ops 3"],
    ]


def test_samples_of_convolutions_have_their_plans_among_their_arguments() -> None:
    one, other = ({"sample": {"op": "aten.convolution.default", "args": [n], "kwargs": {}}} for n in (1, 2))
    plans = {json.dumps(["aten.convolution.default", [1], {}]): {"engine": 62}}
    found = list(calibrate.samples_of([HEADER, one, other, {"plans": plans}]))
    assert [sample["kwargs"] for sample in found] == [{"engine": 62}, {}]


def test_kernels_belong_to_the_marker_before_them() -> None:
    names = ["lost", "mark", "a", "b", "mark", "mark", "c"]
    kernels = [Kernel(start, 1, name) for start, name in enumerate(names)]
    assert [[kernel.name for kernel in segment] for segment in split_at_markers(kernels, "mark")] == [
        ["a", "b"],
        [],
        ["c"],
    ]


def test_strides_are_described_where_they_are_not_those_of_a_plain_tensor() -> None:
    x = torch.zeros(2, 3, dtype=torch.bfloat16)
    assert [describe(x), describe(x.t())] == ["bfloat16[2,3]", "bfloat16[3,2]{1,3}"]


@pytest.mark.usefixtures("machine")
def test_of_several_ranks_the_first_writes_the_profile_with_their_collectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    table = {"kind": "all_gather", "ranks": 8, "nodes": 1, "points": [[2**20, 100_000]]}
    for name, value in {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 8}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(calibrate, "gpu_group", lambda ranks: contextlib.nullcontext())
    monkeypatch.setattr(calibrate, "measure_collectives", lambda num_per_node, device, report: [table])
    assert not calibrate.calibrate(path, lambda line: None)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("RANK", "0")
    assert calibrate.calibrate(path, lambda line: None)
    (measured,) = load_profile(path).collectives
    assert (measured.kind, measured.num_ranks, measured.points) == ("all_gather", 8, ((2**20, 100_000.0),))
    # A later run without torchrun keeps what was measured with it.
    monkeypatch.delenv("WORLD_SIZE")
    assert calibrate.calibrate(path, lambda line: None)
    assert load_profile(path).collectives == (measured,)


def shipped_tables() -> Mapping[str, Measured]:
    shipped = shipped_profile("h200")
    assert shipped is not None
    return shipped.tables


COUNTED = {"forward": 1000, "backward": 3000, "optimizer": 2}
"""Kernels of a step by phase."""


def test_a_small_model_is_charged_for_what_its_trace_has() -> None:
    weights = dict.fromkeys(WEIGHED, 100) | {"convolution": 200, "batch norm": 200}
    charged = charges_of(traced(small_models()["images checkpointed"], H200), H200, shipped_tables(), weights, COUNTED)
    # The stem; ten blocks of a sum and twice a convolution, a norm, its count of batches and an activation; mean, head,
    # log-softmax. The loss comes with log-softmax, the head's transpose with its product. Convolutions and batch norms
    # weigh twice as much. Every block is a region that is run again.
    assert charged["forward"]["forward"] == 1 + 10 * (1 + 2 * 4) + 3
    assert charged["forward"]["inner"] == 2 + 10 * (1 + 2 * (2 + 2 + 1 + 1)) + 3 + 1
    assert charged["forward"]["inner_view"] == 1
    assert charged["forward"]["checkpoint"] == 10
    # Of the kernels that were counted one is each op's own: stem, nine per block, and the last four.
    assert charged["forward"]["further_kernel"] == 1000 - (1 + 10 * 9 + 4)
    assert charged["optimizer"]["further_kernel"] == 0
    # 13 lists of 64 parameters; three of its ops go through so many lists that they are launched twice.
    optimizer = charged["optimizer"]
    assert (optimizer["optimizer_call"], optimizer["optimizer_tensor"]) == (8, 13 * 64)


def test_reentrant_regions_of_a_small_model_are_charged_as_such_and_micro_batches_each() -> None:
    weights = dict.fromkeys(WEIGHED, 100)
    plain, reentrant, twice = (
        charges_of(traced(small_models()[name], H200), H200, shipped_tables(), weights, COUNTED)
        for name in ("flat", "flat reentrant", "flat accumulated")
    )
    assert reentrant["backward"]["reentrant"] == 10
    assert reentrant["backward"].keys().isdisjoint({"checkpoint", "hook"})
    both = plain["forward"].keys() - {"further_kernel"}
    assert {kind: twice["forward"][kind] for kind in both} == {kind: 2 * plain["forward"][kind] for kind in both}
    assert twice["optimizer"] == plain["optimizer"]


@pytest.mark.usefixtures("one_thread")
def test_single_ops_are_timed_in_every_round_by_kind() -> None:
    times = time_single_ops(single_ops("cpu", large=64), lambda: None)
    assert set(times) == set(SINGLE_KINDS)
    assert {len(found) for found in times.values()} == {ROUNDS}


def test_kernels_are_counted_by_op_and_by_phase_and_those_that_prepare_an_op_are_nobody_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[Kernel] = []

    def launch(name: str, times: int = 1) -> None:
        ran.extend(Kernel(len(ran), 1, name) for _ in range(times))

    def prepare() -> Callable[[], None]:
        launch("made", 50)
        return lambda: launch("op", 3 * CALLS)

    def train(begin: Callable[[], None]) -> list[tuple[str, int]]:
        phases = [("forward", 4), ("backward", 7), ("forward", 4), ("backward", 9), ("optimizer", 2)]
        for phase, times in phases:
            begin()
            launch(phase, times)
        return [(phase, 0) for phase, _ in phases]

    monkeypatch.setattr(host, "marker_name", lambda: "mark")
    monkeypatch.setattr(host, "gpu_marker", lambda: launch("mark"))
    monkeypatch.setattr(host, "profile", lambda activities: contextlib.nullcontext())
    monkeypatch.setattr(host, "gpu_kernels", lambda profiler: ran)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    ops, models = host._count_kernels({"one": prepare, "other": prepare}, {"small": train})
    assert ops == {"one": 3, "other": 3}
    assert models == {"small": {"forward": 8, "backward": 16, "optimizer": 2}}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other make tiny training slow on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_every_timed_step_of_a_small_model_counts_and_those_that_warm_it_up_do_not() -> None:
    (found,) = time_models([training_of(small_models()["images"], "cpu")], lambda: None)
    assert {phase: len(times) for phase, times in found.items()} == dict.fromkeys(found, TIMED)
    assert list(found) == ["forward", "backward", "optimizer"]
