"""What a model does in its first pass alone is in the first step, and not in the steady one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from test_trace import mean, steady_ops, trace
from trainfit.records import Trace


class ScaledByItsFirstBatch(nn.Module):
    """Notes in `note` that it has been; how, is left to who inherits."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_ready():
            self.scale.data.copy_(x.std(0))
            self.note()
        return x * self.scale

    def is_ready(self) -> bool:
        raise NotImplementedError

    def note(self) -> None:
        raise NotImplementedError


class ByBuffer(ScaledByItsFirstBatch):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ready", torch.tensor(False))

    def is_ready(self) -> bool:
        return bool(self.ready)

    def note(self) -> None:
        self.ready.fill_(True)


class ByFlag(ScaledByItsFirstBatch):
    ready = False

    def is_ready(self) -> bool:
        return self.ready

    def note(self) -> None:
        self.ready = True


class ByWhatIsMade(ScaledByItsFirstBatch):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", None)

    def is_ready(self) -> bool:
        return self.table is not None

    def note(self) -> None:
        self.table = torch.zeros(1024, device="cuda")


class CountsItsCalls(nn.Module):
    """What it counts is not what it decides by."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(8, 8), 0
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += 1
        return self.inner(x)


def names(trace: Trace) -> list[str]:
    return [section.name for section in trace.sections]


@pytest.mark.parametrize("model", [ByBuffer, ByFlag, ByWhatIsMade])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_what_only_the_first_pass_does_is_not_in_the_steady_step(
    model: type[ScaledByItsFirstBatch], micro_batches: int
) -> None:
    t = trace(model(), torch.empty(4, 8), micro_batches=micro_batches)
    first = [op.name for index in t.first_step for op in t.ops[slice(*ops_of(t, index))]]
    assert first.count("aten.std.correction") == 1
    assert [op.name for op in steady_ops(t)].count("aten.std.correction") == 0
    assert [op.name for op in steady_ops(t)].count("aten.mul.Tensor") == 2 * micro_batches  # forward, scale's gradient


def ops_of(trace: Trace, index: int) -> tuple[int, int]:
    return trace.sections[index].first_op, trace.sections[index].last_op


def test_a_model_that_decides_by_nothing_it_changes_is_traced_once() -> None:
    assert not any(name.startswith("settled") for name in names(trace(CountsItsCalls(), torch.empty(4, 8))))
    assert any(name.startswith("settled") for name in names(trace(ByFlag(), torch.empty(4, 8))))


def test_memory_that_the_first_pass_makes_stays_and_what_each_pass_makes_goes() -> None:
    t = trace(ByWhatIsMade(), torch.empty(4, 8), loss=mean)
    live: set[int] = set()
    for step in (t.first_step, t.steady_step, t.steady_step):
        for index in step:
            for event in t.sections[index].events:
                (live.add if event.is_alloc else live.remove)(event.storage)
    kept = sorted(t.storages[storage].nbytes for storage in live)
    assert kept == [8 * 4, 4 * 8 * 4, 1024 * 4]  # the scale, the batch, the table
