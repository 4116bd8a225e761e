"""`MemTracker`: torch's assertions about its tracker, exact numbers, what theirs gets wrong (D7, D8, D18, D22, D23)."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainfit
from trainfit.autosac.mem_tracker import MemTracker, _ModState
from trainfit.autosac.recording import _MemRefType
from trainfit.errors import TraceError

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
MIB = 2**20


class Layers(nn.Module):
    def __init__(self, count: int = 3, wide: int = 256) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(128, wide), nn.GELU(), nn.Linear(wide, 128), nn.GELU()) for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def parts(tracker: MemTracker, device: torch.device, kind: str = "current") -> dict[str, int]:
    return tracker.get_tracker_snapshot(kind)[device]


def test_parameters_gradients_and_optimizer_state_are_told_apart_to_the_byte() -> None:
    """Torch's attribution test, which allows 10%."""
    model, optimizer = (made := Layers()), torch.optim.Adam(made.parameters(), foreach=True)
    param_bytes = sum(p.numel() * 4 for p in model.parameters())
    state_bytes = 2 * param_bytes + 4 * len(list(model.parameters()))  # two moments, and a step count of 4 bytes each
    inputs = torch.randn(16, 128)
    tracker = MemTracker()
    tracker.track_external(model, optimizer, inputs)
    assert parts(tracker, CPU)["Total"] == param_bytes + inputs.numel() * 4
    with tracker:
        loss = model(inputs).sum()
        after_forward = parts(tracker, CPU)
        loss.backward()
        after_backward = parts(tracker, CPU)
        optimizer.step()
        after_step = parts(tracker, CPU)
        optimizer.zero_grad()
        after_zero = parts(tracker, CPU)
    names = _MemRefType.PARAM, _MemRefType.GRAD, _MemRefType.OPT
    assert [after_forward[name] for name in names] == [param_bytes, 0, 0]
    assert [after_backward[name] for name in names] == [param_bytes, param_bytes, 0]
    assert [after_step[name] for name in names] == [param_bytes, param_bytes, state_bytes]
    assert [after_zero[name] for name in names] == [param_bytes, 0, state_bytes]
    assert after_zero[_MemRefType.OTH] == inputs.numel() * 4


def test_d23_the_peak_is_that_of_the_simulated_gpu_hidden_memory_included() -> None:
    """Theirs rounds to 512 bytes and knows of nothing else: no workspaces, no temporaries of kernels, no reserved."""
    batch = (torch.empty(64, 128, device="meta"),)
    step = trainfit.Step(model=lambda: Layers(), batch=batch, loss=lambda out: out.sum())
    estimate = trainfit.estimate(step, "a100-80gb", allocator="expandable")
    with trainfit.ghost_gpu("a100-80gb"):
        with torch.device("cuda"):
            model, inputs = Layers(), torch.randn(64, 128)
        optimizer = torch.optim.AdamW(model.parameters())
        tracker = MemTracker()
        tracker.track_external(model, optimizer, inputs)
        with tracker:
            for _ in range(2):
                model(inputs).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    peak = parts(tracker, GPU, "peak")
    assert peak["Total"] == estimate.peak_allocated_bytes
    assert sum(value for name, value in peak.items() if name != "Total") == peak["Total"]
    assert peak[_MemRefType.OTH] > 8 * MIB  # cuBLAS
    assert tracker.peak_reserved_bytes() % (2 * MIB) == 0
    assert tracker.peak_reserved_bytes() > peak["Total"]


def test_each_module_has_its_sizes_and_a_snapshot_per_state() -> None:
    model, inputs = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4)
    with MemTracker() as tracker:
        model(inputs).sum().backward()
    stats = tracker.memory_tracking
    assert [stats[module].mod_fqn for module in model.modules()] == [
        *("Sequential", "Sequential.0", "Sequential.1", "Sequential.2"),
    ]
    first = stats[model[0]]
    assert (first.parameter_mem, first.buffer_mem, first.input_mem, first.output_mem) == (160, 0, 48, 96)
    whole = stats[model]
    assert list(whole.snapshots) == [
        *(_ModState.PRE_FW, _ModState.POST_FW, _ModState.PEAK_FW),
        *(_ModState.PRE_BW, _ModState.PEAK_BW, _ModState.POST_BW),
    ]
    # Two outputs of 96 bytes (linear, relu) stay, and the result of 24; the linear's own is let go by the relu.
    assert whole.snapshots[_ModState.POST_FW][0][CPU][_MemRefType.ACT] == 96 + 24
    assert whole.snapshots[_ModState.POST_BW][0][CPU][_MemRefType.GRAD] == 160 + 72
    assert whole.local_peak[CPU] == whole.snapshots[_ModState.PEAK_BW][0][CPU]["Total"]
    tracker.reset_mod_stats()
    assert tracker.memory_tracking == {}


def test_a_checkpointed_module_has_snapshots_of_its_second_forward() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(8, 8), nn.GELU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.block, x, use_reentrant=False)

    model, inputs = Model(), torch.ones(4, 8, requires_grad=True)
    with MemTracker() as tracker:
        model(inputs).sum().backward()
    block = tracker.memory_tracking[model.block].snapshots
    assert len(block[_ModState.PRE_FW_AC]) == len(block[_ModState.POST_FW_AC]) == 1
    # Only the result, 128 bytes, stays after forward. The second one brings back the linear's result, all that backward
    # needs, and stops; by then the block's own is gone, and there are the loss and its gradient of 4 bytes each.
    assert block[_ModState.POST_FW][0][CPU][_MemRefType.ACT] == 128
    assert block[_ModState.POST_FW_AC][0][CPU][_MemRefType.ACT] == 128 + 8


def test_d7_frozen_parameters_are_tracked() -> None:
    """Theirs hooks every parameter and raises for those that need no gradient."""
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))
    with MemTracker() as tracker:
        model(torch.ones(2, 4)).sum().backward()
        snapshot = parts(tracker, CPU)
    assert snapshot[_MemRefType.PARAM] == 160
    assert snapshot[_MemRefType.GRAD] == 80


def test_d8_gradient_accumulation_and_modules_that_are_called_twice() -> None:
    """Theirs raises NotImplementedError at the second forward of a root."""
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu)
    with MemTracker() as tracker:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
    stats = tracker.memory_tracking
    assert len(stats[model].snapshots[_ModState.PRE_FW]) == 3
    assert len(stats[relu].snapshots[_ModState.PRE_FW]) == 6
    assert parts(tracker, CPU)[_MemRefType.GRAD] == 160  # accumulated in place


def test_d18_the_work_per_module_does_not_grow_with_the_number_of_modules() -> None:
    """Theirs looks at every module at every op: 128 blocks take 3.5 times as long per block as 32."""

    def seconds_per_block(count: int) -> float:
        with torch.device("cuda"):
            model, inputs = Layers(count, 16), torch.ones(2, 128)
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            with MemTracker() as tracker:
                model(inputs).sum().backward()
            assert len(tracker.memory_tracking) == 5 * count + 1
            best = min(best, time.process_time() - start)
        return best / count

    with trainfit.ghost_gpu("h200"):  # which computes nothing: all the time is the tracker's and torch's own
        seconds_per_block(4)
        assert seconds_per_block(48) < 2.0 * seconds_per_block(12)


def test_d22_nothing_is_printed_until_a_display_method_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    """Theirs prints when it is left, and needs `tabulate` for tables."""
    model = nn.Linear(4, 4)
    with MemTracker() as tracker:
        model(torch.ones(2, 4)).sum().backward()
    assert capsys.readouterr() == ("", "")
    tracker.display_snapshot("peak", units="KiB", tabulate=True)
    tracker.display_modulewise_snapshots(depth=1, units="B")
    shown = capsys.readouterr().out
    assert "Device  Parameter" in shown
    assert "Module:  Linear\nPre-Forward # 1\nDevice: cpu\n\tParameter: 80 B" in shown
    with pytest.raises(ValueError, match="no unit is called 'MB'"):
        tracker.display_snapshot(units="MB")


def test_d22_all_storages_of_a_tensor_that_has_several_are_tracked() -> None:
    """Theirs stops at the first storage it knows."""
    values, offsets = torch.ones(6, 4), torch.tensor([0, 2, 6])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    tracker = MemTracker()
    tracker.track_external(values)
    tracker.track_external(nested)
    assert parts(tracker, CPU)["Total"] >= values.numel() * 4 + offsets.numel() * 8


def test_what_is_nowhere_cannot_be_tracked_and_the_error_says_what_can() -> None:
    with pytest.raises(TraceError, match=r"on meta.*ghost_gpu"), MemTracker():
        torch.ones(2, device="meta") + 1
    with pytest.raises(TypeError, match="a str cannot be tracked"):
        MemTracker().track_external("model")
    with pytest.raises(ValueError, match="no snapshot is called 'now'"):
        MemTracker().get_tracker_snapshot("now")


def test_trackers_can_be_nested_and_see_the_same() -> None:
    def run(model: nn.Module, inputs: torch.Tensor) -> Any:
        with MemTracker() as outer, MemTracker() as inner:
            model(inputs).sum().backward()
        return [tracker.get_tracker_snapshot("peak") for tracker in (outer, inner)]

    plain = run(nn.Linear(4, 4), torch.ones(2, 4))
    assert plain[0] == plain[1] != {}
    with trainfit.ghost_gpu("h200"), torch.device("cuda"):
        ghostly = run(nn.Linear(4, 4), torch.ones(2, 4))
    assert ghostly[0] == ghostly[1] != {}
