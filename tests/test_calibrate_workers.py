"""Processes that time kernels, without a GPU: how chunks are shared, what is told and answered, what is rehearsed."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from trainfit import ghost_gpu, progress
from trainfit.calibrate import chunks, workers
from trainfit.calibrate.measure import Sample, keep_pool, rehearse
from trainfit.calibrate.processes import ProcessFailed
from trainfit.calibrate.workers import gpu_workers, rehearse_all
from trainfit.gpus.catalogue import find_gpu

H200 = find_gpu("h200")
MEASURE = sys.modules["trainfit.calibrate.measure"]
ECHO = "while True: print(input(), flush=True)"
SAMPLE = Sample("aten.neg.default", ["float32[8]"], {}, ["float32[8]"], 2, 3, 1, "neg", 1.0)


def test_orders_are_carried_out_one_by_one_with_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed: list[int] = []
    measured: list[tuple[int, set[str]]] = []

    def measure(
        workloads: Sequence[Callable[[], Any]], repeats: int, known: set[str], when_over: Callable[[], None]
    ) -> Iterator[Sample | str]:
        measured.append((repeats, set(known)))
        workloads[0]()
        when_over()
        yield SAMPLE
        yield "one failed"

    monkeypatch.setattr(chunks, "groups", lambda: [("small", 3, [int] * 2), ("large", 2, [float])])
    monkeypatch.setattr(workers, "rehearse", lambda workloads: rehearsed.append(len(workloads)))
    monkeypatch.setattr(workers, "measure", measure)
    orders = [
        {"rehearse": "small 0"},
        {"measure": "large 0", "known": ["a"]},
        {"measure": "small 0", "known": ["b"]},
    ]
    answers = io.StringIO()
    workers.answer(io.StringIO("".join(json.dumps(order) + "\n" for order in orders)), answers)
    found = {"sample": {name: getattr(SAMPLE, name) for name in Sample.__slots__}}
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"rehearsed": "small 0"},
        {"told": ["calibrating large", 3, 3]}, {"over": True}, found, {"failed": "one failed"}, {"chunk": "large 0"},
        {"told": ["calibrating small", 1, 3]}, {"over": True}, found, {"failed": "one failed"}, {"chunk": "small 0"},
    ]  # fmt: skip
    assert rehearsed == [2]
    assert measured == [(2, {"a"}), (3, {"a", "b"})]


def test_a_worker_is_told_what_is_new_and_its_progress_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        {"told": ["calibrating", 1, 2]}, {"sample": 1}, {"over": True}, {"failed": "it"}, {"chunk": "small 0"},
    ]  # fmt: skip
    code = "".join(f"print({json.dumps(line)!r}); " for line in answers)
    monkeypatch.setattr(workers, "_SERVE", f"while True:\n    order = input(); {code}print(order, flush=True)")
    told: list[tuple[str, int, int]] = []
    with gpu_workers(H200, 1) as (worker,), progress.listening(lambda *what: told.append(what)):
        worker.begin("small 0", ["a"])
        assert worker.finish() == [{"sample": 1}, {"failed": "it"}]
        assert json.loads(worker.answer()) == {"measure": "small 0", "known": ["a"]}
        worker.begin("small 0", ["a", "b"])
        assert worker.finish() == [{"sample": 1}, {"failed": "it"}]
        assert json.loads(worker.answer()) == {"measure": "small 0", "known": ["b"]}
    assert told == [("calibrating", 1, 2)] * 2


def test_every_chunk_is_rehearsed_by_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_SERVE", ECHO)
    monkeypatch.setattr(workers, "_num_cores", lambda: 4)
    names = [f"small {number}" for number in range(20)]
    told: list[tuple[str, int, int]] = []
    with gpu_workers(H200, 20) as found, progress.listening(lambda *what: told.append(what)):
        assert len(found) == 3
        by_name = rehearse_all(found, names, lambda line: None)
        assert by_name.keys() == set(names)
        assert set(by_name.values()) <= set(found)
    assert sorted(done for _, done, _ in told)[-1] == 20


@pytest.mark.parametrize(
    ("gpu", "num_cores", "num_chunks", "count"),
    [
        ("h200", 64, 50, 12),
        ("h200", 8, 50, 6),
        ("rtx4090", 64, 50, 2),
        ("h200", 1, 50, 1),
        ("h200", 64, 3, 3),
        ("h200", 64, 0, 0),
    ],
)
def test_there_are_as_many_workers_as_the_machine_has_use_for(
    gpu: str, num_cores: int, num_chunks: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_SERVE", ECHO)
    monkeypatch.setattr(workers, "_num_cores", lambda: num_cores)
    with gpu_workers(find_gpu(gpu), num_chunks) as found:
        assert len(found) == count


def test_a_worker_that_ends_while_it_rehearses_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print(input(), flush=True); input(); raise SystemExit('an illegal instruction')"
    monkeypatch.setattr(workers, "_SERVE", code)
    reports: list[str] = []
    with gpu_workers(H200, 1) as found:
        by_name = rehearse_all(found, ["small 80", "small 40", "small 0"], reports.append)
    assert list(by_name) == ["small 0", "small 40", "small 80"]
    assert reports == ["small 40, rehearsed: an illegal instruction"]


def test_a_worker_that_never_worked_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "KeyError: first\n" + 3000 * "x" + "\nValueError: second"
    monkeypatch.setattr(workers, "_SERVE", f"import sys; sys.stderr.write({told!r}); sys.exit(1)")
    with gpu_workers(H200, 1) as found, pytest.raises(ProcessFailed) as failure:
        rehearse_all(found, ["small 0"], lambda line: None)
    assert failure.value.cause == "KeyError: first"
    message = str(failure.value)
    assert message.startswith("the process that times kernels failed:\nKeyError: first ... xxx")
    assert message.endswith("ValueError: second")


def test_a_rehearsal_runs_everything_once_also_after_a_failure() -> None:
    ran: list[str] = []

    def work() -> None:
        ran.append("work")

    def fail() -> None:
        ran.append("failure")
        raise ValueError

    with ghost_gpu("h200"):
        rehearse([fail, work])
    assert ran == ["failure", "work"]


@pytest.mark.parametrize(("reserved_gib", "steps"), [(0, ["emptied", 6]), (6, []), (7, []), (8, ["emptied", 6])])
def test_a_process_holds_its_memory_in_one_piece(
    reserved_gib: int, steps: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[object] = []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved_gib * 2**30)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: taken.append("emptied"))
    monkeypatch.setattr(torch, "empty", lambda nbytes, **_: taken.append(nbytes // 2**30))
    keep_pool()
    assert taken == steps
