"""Processes that time kernels, without a GPU: how chunks are shared, what is told and answered, what is rehearsed."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from trainfit import progress
from trainfit.calibrate import workers
from trainfit.calibrate.arguments import Pool
from trainfit.calibrate.calls import Call, read_call
from trainfit.calibrate.chunks import Chunk
from trainfit.calibrate.measure import Sample, hold_memory, rehearse
from trainfit.calibrate.processes import ProcessFailed
from trainfit.calibrate.workers import gpu_workers, rehearse_all
from trainfit.gpus.catalogue import find_gpu
from trainfit.torch_compat import DispatchMode

H200 = find_gpu("h200")
MEASURE = sys.modules["trainfit.calibrate.measure"]
ECHO = "while True: print(input(), flush=True)"
POOL = Pool("cpu", 4096)
CALL = read_call("aten.neg.default", ["float32[8]"], {})
SAMPLE = Sample("aten.neg.default", ["float32[8]"], {}, ["float32[8]"], 2, 3, 1, "neg", 1.0)


def test_orders_are_carried_out_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed: list[int] = []
    measured: list[int] = []

    def measure(calls: Sequence[Call], pool: Pool, when_over: Callable[[], None]) -> Iterator[Sample | str]:
        measured.append(len(calls))
        when_over()
        yield SAMPLE
        yield "one failed"

    monkeypatch.setattr(workers, "all_chunks", lambda: [Chunk("ops 0", (CALL,) * 2), Chunk("ops 2", (CALL,))])
    monkeypatch.setattr(workers, "rehearse", lambda calls, pool: rehearsed.append(len(calls)))
    monkeypatch.setattr(workers, "measure", measure)
    orders = [{"rehearse": "ops 0"}, {"measure": "ops 2"}, {"measure": "ops 0"}]
    answers = io.StringIO()
    workers.answer(io.StringIO("".join(json.dumps(order) + "\n" for order in orders)), answers, POOL)
    found = {"sample": {name: getattr(SAMPLE, name) for name in Sample.__slots__}}
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"rehearsed": "ops 0"},
        {"over": True}, found, {"failed": "one failed"}, {"chunk": "ops 2"},
        {"over": True}, found, {"failed": "one failed"}, {"chunk": "ops 0"},
    ]  # fmt: skip
    assert rehearsed == [2]
    assert measured == [1, 2]


def test_a_worker_is_told_a_chunk_and_tells_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{"over": True}, {"sample": 1}, {"failed": "it"}, {"chunk": "ops 0"}]
    code = "".join(f"print({json.dumps(line)!r}); " for line in answers)
    monkeypatch.setattr(workers, "_SERVE", f"while True:\n    order = input(); {code}print(order, flush=True)")
    with gpu_workers(H200, 1) as (worker,):
        worker.begin("ops 0")
        assert worker.finish() == [{"sample": 1}, {"failed": "it"}]
        assert json.loads(worker.answer()) == {"measure": "ops 0"}


def test_every_chunk_is_rehearsed_by_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_SERVE", ECHO)
    monkeypatch.setattr(workers, "_num_cores", lambda: 4)
    names = [f"ops {number}" for number in range(20)]
    told: list[tuple[str, int, int]] = []
    with gpu_workers(H200, 20) as found, progress.listening(lambda *what: told.append(what)):
        assert len(found) == 4
        by_name = rehearse_all(found, [Chunk(name) for name in names], lambda line: None)
        assert by_name.keys() == set(names)
        assert set(by_name.values()) <= set(found)
    assert sorted(done for _, done, _ in told)[-1] == 20


@pytest.mark.parametrize(
    ("gpu", "num_cores", "num_chunks", "count"),
    [
        ("h200", 64, 50, 15),
        ("h200", 8, 50, 8),
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
        by_name = rehearse_all(found, [Chunk("ops 80"), Chunk("ops 40"), Chunk("ops 0")], reports.append)
    assert list(by_name) == ["ops 0", "ops 40", "ops 80"]
    assert reports == ["ops 40, rehearsed: an illegal instruction"]


def test_a_worker_that_never_worked_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "KeyError: first\n" + 3000 * "x" + "\nValueError: second"
    monkeypatch.setattr(workers, "_SERVE", f"import sys; sys.stderr.write({told!r}); sys.exit(1)")
    with gpu_workers(H200, 1) as found, pytest.raises(ProcessFailed) as failure:
        rehearse_all(found, [Chunk("ops 0")], lambda line: None)
    assert failure.value.cause == "KeyError: first"
    message = str(failure.value)
    assert message.startswith("the process that times kernels failed:\nKeyError: first ... xxx")
    assert message.endswith("ValueError: second")


def test_a_rehearsal_runs_everything_once_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: ran.append("waited"))
    monkeypatch.setattr(MEASURE, "hold_memory", lambda: None)
    unlike = read_call("aten.mm.default", ["float32[2,3]", "float32[2,3]"], {})

    class Recorder(DispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.neg.default:
                ran.append("neg")
            return func(*args, **(kwargs or {}))

    with Recorder():
        rehearse([unlike, CALL], POOL)
    assert ran == ["neg", "waited"]


@pytest.mark.parametrize(("free_gib", "steps"), [(0, ["emptied", 3]), (3, []), (3.5, []), (4, ["emptied", 3])])
def test_a_process_holds_memory_for_results_in_one_piece(
    free_gib: float, steps: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[object] = []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: (2 + free_gib) * 2**30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2 * 2**30)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: taken.append("emptied"))
    monkeypatch.setattr(torch, "empty", lambda nbytes, **_: taken.append(nbytes // 2**30))
    hold_memory()
    assert taken == steps
