"""`RuntimeEstimator`: how long whatever runs inside it would take on a GPU, per module, and in which order modules run.

In: a training step on ghosts, fake, CPU or CUDA tensors. Out: milliseconds of GPU time. A module's time is that of all
ops that run inside it, its children's included; "Global" has everything. Recomputation counts as backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from trainfit.autosac.mem_tracker import backward_spans
from trainfit.autosac.mod_tracker import GLOBAL
from trainfit.autosac.op_times import COST_MODEL, OpTimes
from trainfit.autosac.recording import Recording
from trainfit.autosac.tables import depth_of, show
from trainfit.records import Phase

__all__ = ["RuntimeEstimator"]


class RuntimeEstimator:
    """A context manager, called with the mode: `with RuntimeEstimator()("operator-level-cost-model"): ...`. `gpu` names
    the GPU whose times are estimated; the ghost, or the one at hand, when None. Each entry starts afresh."""

    def __init__(
        self, gpu: str | None = None, *, recording: Recording | None = None, times: OpTimes | None = None
    ) -> None:
        self._gpu = gpu
        self.recording = recording if recording is not None else Recording(gpu)
        self._times = times if times is not None else OpTimes(COST_MODEL)
        self._listening: Any = None

    def __call__(self, estimate_mode_type: str) -> Self:
        """Choose "operator-level-cost-model" or "operator-level-benchmark"."""
        self._times = OpTimes(estimate_mode_type)
        return self

    def __enter__(self) -> Self:
        self.recording = Recording(self._gpu)
        self._times = OpTimes(self._times.mode)
        self._times.watch(self.recording)
        self._listening = self.recording.listening()
        self._listening.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._listening.__exit__(*exc)

    @property
    def total_runtime(self) -> float:
        """All ops, in ms."""
        return sum(self._times.times_ms(self.recording))

    @property
    def mod_runtimes(self) -> dict[str, dict[str, float]]:
        """By module, {"fw": ms, "bw": ms}."""
        runtimes: dict[str, dict[str, float]] = {GLOBAL: {"fw": 0.0, "bw": 0.0}}
        for span in self.recording.spans:
            runtimes.setdefault(span.call.fqn, {"fw": 0.0, "bw": 0.0})
        calls = self.recording.tracker.calls
        for op, time in zip(self.recording.ops, self._times.times_ms(self.recording), strict=True):
            way = "bw" if op.phase in (Phase.BACKWARD, Phase.RECOMPUTE) else "fw"
            for name in calls[int(op.module)].names if op.module else (GLOBAL,):
                runtimes[name][way] += time
        return runtimes

    @property
    def mod_fw_pre_order(self) -> list[str]:
        """Modules in the order in which their forwards begin; one that is called twice is here twice."""
        return [span.call.fqn for span in self.recording.spans if not span.call.is_recompute]

    @property
    def mod_fw_post_order(self) -> list[str]:
        """Modules in the order in which their forwards end."""
        done = [span for span in self.recording.spans if span.end is not None and not span.call.is_recompute]
        # Of calls that end between the same two ops the inner one, which began later, ends first.
        return [span.call.fqn for span in _sorted_by_end((s.end.ops, s.call.number, s) for s in done if s.end)]

    @property
    def mod_bw_pre_order(self) -> list[str]:
        """Modules in the order in which their backwards begin; those that need no backward are left out."""
        spans = backward_spans(self.recording)
        return [call.fqn for call in sorted(spans, key=lambda call: (spans[call][0].ops, call.number))]

    @property
    def mod_bw_post_order(self) -> list[str]:
        """Modules in the order in which their backwards end."""
        spans = backward_spans(self.recording)
        return [call.fqn for call in _sorted_by_end((spans[call][1].ops, call.number, call) for call in spans)]

    def display_modulewise_stats(self, depth: int = 2) -> None:
        """Print the orders and the modules' times, down to a depth."""
        orders = (("Pre-Forward", self.mod_fw_pre_order), ("Pre-Backward", self.mod_bw_pre_order))
        for title, order in orders:
            show(f"{title} Execution Order: ", *(fqn for fqn in order if depth_of(fqn) <= depth))
        for fqn, times in self.mod_runtimes.items():
            if depth_of(fqn) <= depth:
                show(f"{fqn} fw: {times['fw']:.3f}ms bw: {times['bw']:.3f}ms")


def _sorted_by_end(ends: Iterable[tuple[int, int, Any]]) -> list[Any]:
    """In the order of the ends; among equal ones the later beginning first."""
    return [item for _, _, item in sorted(ends, key=lambda end: (end[0], -end[1]))]
