"""`SACEstimator`: per module, what each op makes and takes, and what dropping and recomputing it would trade.

In: a forward pass, or a whole step, on ghosts, fake, CPU or CUDA tensors. Out: `SACStats` for every module with
children that was called, the greedy order and, after `pwlf_sac_tradeoff_curve`, the trade-off curve. Of a module that
is called several times the latest call is described.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch

from trainfit import torch_compat
from trainfit.autosac.op_times import COST_MODEL, OpTimes
from trainfit.autosac.recording import Mark, Recording, Span
from trainfit.autosac.tables import depth_of, show, show_table
from trainfit.autosac.tradeoff import (
    MSPS,
    SACGreedyOrderMeta,
    SACStats,
    SACTradeOffStats,
    greedy_order,
    tradeoff,
)
from trainfit.records import Op, Phase

__all__ = ["MSPS", "SACEstimator", "SACGreedyOrderMeta", "SACStats", "SACTradeOffStats"]


class SACEstimator:
    """A context manager, called with the mode as a `RuntimeEstimator` is. `gpu` names the GPU whose times are
    estimated; the ghost, or the one at hand, when None."""

    def __init__(
        self, gpu: str | None = None, *, recording: Recording | None = None, times: OpTimes | None = None
    ) -> None:
        self.recording = recording if recording is not None else Recording(gpu)
        self.sac_mod_tradeoff_stats: dict[str, SACTradeOffStats] = {}
        self._times = times if times is not None else OpTimes(COST_MODEL)
        self._listening: Any = None
        self._hooks: Any = None
        self._seen: tuple[Mark, dict[str, SACStats]] | None = None

    def __call__(self, estimate_mode_type: str) -> Self:
        """Choose "operator-level-cost-model" or "operator-level-benchmark"."""
        self._times = OpTimes(estimate_mode_type)
        return self

    def __enter__(self) -> Self:
        self._times.watch(self.recording)
        self._listening = self.recording.listening()
        self._listening.__enter__()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.recording.pack, lambda packed: packed)
        self._hooks.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._hooks.__exit__(*exc)
        self._listening.__exit__(*exc)

    @property
    def sac_mod_stats(self) -> dict[str, SACStats]:
        """By module."""
        now = self.recording.mark()
        if self._seen is None or self._seen[0] != now:
            self._seen = now, all_stats(self.recording, self._times.times_ms(self.recording))
        return self._seen[1]

    @property
    def sac_mod_greedy_order_meta(self) -> dict[str, SACGreedyOrderMeta]:
        """By module, the order in which its ops are dropped."""
        return {fqn: greedy_order(stats) for fqn, stats in self.sac_mod_stats.items()}

    def pwlf_sac_tradeoff_curve(self, n_segments: int = 2, save_tradeoff_graphs: bool = False) -> None:
        """Fill `sac_mod_tradeoff_stats`: the exact curve, and at most `n_segments` lines above it. The graphs are saved
        as tables of numbers, tradeoff_graphs/MODULE.csv."""
        for fqn, stats in self.sac_mod_stats.items():
            fitted = tradeoff(stats, greedy_order(stats), n_segments)
            self.sac_mod_tradeoff_stats[fqn] = fitted
            if save_tradeoff_graphs:
                rows = [f"{dropped},{recomputed}" for dropped, recomputed in fitted.tradeoff_curve.items()]
                path = Path("tradeoff_graphs") / f"{fqn}.csv"
                path.parent.mkdir(exist_ok=True)
                path.write_text("\n".join(["memory dropped,time", *rows, ""]))

    def display_sac_stats(self, sac_stats: SACStats, print_tabular: bool = False) -> None:
        """Print the ops of one module."""
        show(
            f"Total Memory: {sum(sac_stats.memory)} B Total Runtime: {sum(sac_stats.runtimes)} ms"
            f" Store Random: {sac_stats.force_store_random}"
        )
        parents = dict(sac_stats.inplace_ops)
        rows = [
            [
                *(str(op), name, f"{sac_stats.runtimes[op]:.4f}", str(sac_stats.memory[op])),
                *(str(op in ops) for ops in (sac_stats.view_like_ops, sac_stats.rand_ops)),
                *(str(op in sac_stats.saved_autograd_ops), str(parents.get(op))),
            ]
            for op, name in enumerate(sac_stats.func_names)
        ]
        headers = "Op Idx,Op Name,Runtimes(ms),Memory (B),View-like,Random,Saved Autograd,In-place".split(",")
        show_table(headers, rows, ruled=print_tabular)

    def display_sac_tradeoff_stats(
        self, greedy_order_meta: SACGreedyOrderMeta, sac_stats: SACStats, print_tabular: bool = False
    ) -> None:
        """Print the greedy order of one module and what is dropped and recomputed after each step."""
        total_bytes, total_ms = max(1, sum(sac_stats.memory)), sum(sac_stats.runtimes) or 1.0
        dropped, recomputed, rows = 0, 0.0, []
        steps = [(str(op), sac_stats.func_names[op], 0, 0.0, "nan") for op in sorted(greedy_order_meta.recomputed_ops)]
        for group in greedy_order_meta.msps_meta:
            names = ", ".join(sorted(group.func_names))
            steps.append((str(group.op_idx), names, group.memory, group.runtime, f"{group.msps:.2e}"))
        for number, (op, name, memory, runtime, msps) in enumerate(steps):
            dropped, recomputed = dropped + memory, recomputed + runtime
            rows.append(
                [
                    *(op, name, f"{dropped / total_bytes:.4f}", str(dropped), f"{recomputed / total_ms:.4f}"),
                    *(f"{recomputed:.4f}", msps, "False", str(number < len(greedy_order_meta.recomputed_ops))),
                ]
            )
        for stored in sorted(greedy_order_meta.stored_ops):
            rows.append([str(stored), sac_stats.func_names[stored], "-", "-", "-", "-", "nan", "True", "False"])
        headers = (
            "Op Id,Op Name(s),Discarded Mem (%),Discarded Mem (B),Recomp time (%),Recomp time (ms),MSPS,"
            "Always Stored,Always Recomputed"
        )
        show_table(headers.split(","), rows, ruled=print_tabular)

    def display_modulewise_sac_stats(self, depth: int = 2, print_tabular: bool = False) -> None:
        """Print both tables for every module down to a depth."""
        for fqn, stats in self.sac_mod_stats.items():
            if depth_of(fqn) <= depth:
                show(f"Module: {fqn}")
                self.display_sac_stats(stats, print_tabular)
                show(f"AC Trade-off for Module: {fqn} MSPS = Memory/Runtime")
                self.display_sac_tradeoff_stats(greedy_order(stats), stats, print_tabular)


def all_stats(recording: Recording, times_ms: list[float]) -> dict[str, SACStats]:
    """By module with children, the ops of its latest complete call."""
    latest = {
        span.call.fqn: span
        for span in recording.spans
        if span.end is not None and not span.is_leaf and not span.call.is_recompute
    }
    makers = recording.makers()
    made: dict[int, list[int]] = {}  # by op, the storages that it makes
    for storage, maker in enumerate(makers):
        if maker is not None:
            made.setdefault(maker, []).append(storage)
    return {fqn: _stats(recording, span, times_ms, makers, made) for fqn, span in latest.items()}


def ops_of(recording: Recording, span: Span) -> list[int]:
    """The ops of a call as torch's selective checkpointing counts them."""
    end = span.end.ops if span.end is not None else len(recording.ops)
    return [
        number
        for number in range(span.start.ops, end)
        if recording.ops[number].phase is Phase.FORWARD
        and recording.funcs[number] is not None
        and recording.funcs[number] not in torch_compat.IGNORED_BY_CHECKPOINT
    ]


def _stats(
    recording: Recording, span: Span, times_ms: list[float], makers: list[int | None], made: dict[int, list[int]]
) -> SACStats:
    numbers = ops_of(recording, span)
    position = {number: index for index, number in enumerate(numbers)}
    # What comes out of the module and is saved by whoever uses it stays whether the module keeps it or not.
    free = {storage for storage in span.outputs if storage in recording.saved}
    names, memory, views, random, saved, inplace = [], [], [], [], [], []
    for index, number in enumerate(numbers):
        op, func = recording.ops[number], recording.funcs[number]
        new = made.get(number, [])
        names.append(func._overloadpacket.__name__)
        memory.append(sum(recording.device_bytes(storage) for storage in new if storage not in free))
        written = torch_compat.written_storages(func, op.args, op.outputs)
        if written:
            inplace.append((index, min((position.get(_maker(makers, s), index) for s in written), default=index)))
        elif not new:
            views.append(index)
        if _is_random(func, op):
            random.append(index)
        if op.outputs and all(ref.storage in recording.saved for ref in op.outputs):
            saved.append(index)
    return SACStats(
        func_names=names,
        runtimes=[times_ms[number] for number in numbers],
        memory=memory,
        view_like_ops=views,
        rand_ops=random,
        saved_autograd_ops=saved,
        inplace_ops=inplace,
        force_store_random=not span.has_tensor_inputs,
    )


def _maker(makers: list[int | None], storage: int) -> int:
    maker = makers[storage]
    return -1 if maker is None else maker


def _is_random(func: Any, op: Op) -> bool:
    """Whether the op draws random numbers: attention does so only with dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = op.args[index] if index < len(op.args) else dict(op.kwargs).get("dropout_p", argument.default_value)
            return given != 0
    return True
