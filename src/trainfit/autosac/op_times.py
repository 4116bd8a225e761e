"""How long each op of a recording takes on the GPU, by the cost model or by running it there.

In: a `Recording`, and for the benchmark the arguments of its ops as they came by. Out: milliseconds per op.

The cost model is `trainfit.cost`: the target's measured profile, or its datasheet. The benchmark runs every distinct op
on random data under the profiler (`trainfit.calibrate`), so it needs a real GPU; an op that fails there is priced by
the cost model, and `OpTimes.not_benchmarked` names it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from trainfit import torch_compat
from trainfit.autosac.recording import Mark, Recording
from trainfit.cost import price_with, pricing_for
from trainfit.errors import NoGpu
from trainfit.records import Op

if TYPE_CHECKING:
    from trainfit.calibrate.calls import Call

COST_MODEL = "operator-level-cost-model"
BENCHMARK = "operator-level-benchmark"


class OpTimes:
    """One per estimator; `watch` a recording before it starts, ask for `times_ms` whenever."""

    def __init__(self, mode: str = COST_MODEL) -> None:
        if mode not in (COST_MODEL, BENCHMARK):
            raise NotImplementedError(
                f"no estimate mode is called {mode!r}: there are {COST_MODEL!r} and {BENCHMARK!r}"
            )
        self.mode = mode
        self.not_benchmarked: list[str] = []
        self._signatures: dict[int, str] = {}  # by op
        self._seen: tuple[Mark, list[float]] | None = None
        self._waiting: dict[str, Call] = {}  # by its text
        self._measured_ms: dict[str, float] = {}

    def watch(self, recording: Recording) -> None:
        if self.mode == BENCHMARK:
            if recording.is_on_ghost() or not torch.cuda.is_available():
                raise NoGpu(
                    f"{BENCHMARK} runs every op on a GPU, and there is none",
                    hint=f"use {COST_MODEL!r}, which needs none, or run it on a machine with a GPU",
                )
            recording.observer = functools.partial(self._note, recording)

    def times_ms(self, recording: Recording) -> list[float]:
        """By op of the recording. Ops of the host take nothing where there are ops of a GPU."""
        now = recording.mark()
        if self._seen is None or self._seen[0] != now:
            self._seen = now, self._compute_ms(recording)
        return self._seen[1]

    def _compute_ms(self, recording: Recording) -> list[float]:
        on_gpu = _ops_on_gpu(recording)
        priced = price_with(recording.ops, pricing_for(recording.gpu))
        times = [cost.time_ns / 1e6 if on else 0.0 for cost, on in zip(priced, on_gpu, strict=True)]
        if self.mode == COST_MODEL:
            return times
        self._benchmark()
        measured = (self._measured_ms.get(self._signatures.get(number, "")) for number in range(len(times)))
        return [time if found is None else found for time, found in zip(times, measured, strict=True)]

    def _note(self, recording: Recording, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from trainfit.calibrate.calls import call_of

        call = call_of(func, args, kwargs)
        signature = str(call)
        self._signatures[len(recording.ops) - 1] = signature
        if signature in self._measured_ms or signature in self._waiting:
            return
        if torch_compat.is_view(func) or not _is_gpu_call(args, kwargs):
            self._measured_ms[signature] = 0.0
        elif _reads_a_seed(func):
            self.not_benchmarked.append(signature)
        else:
            self._waiting[signature] = call

    def _benchmark(self) -> None:
        """Run what was not run yet."""
        from trainfit.calibrate.arguments import Pool
        from trainfit.calibrate.measure import NUMBERS_BYTES, Sample, measure

        waiting = self._waiting
        self._waiting = {}
        with torch_compat.dispatch_modes_off(), torch.no_grad():
            for result in measure(list(waiting.values()), Pool("cuda", NUMBERS_BYTES)):
                if isinstance(result, Sample):
                    self._measured_ms[result.call] = result.cold_ns / 1e6
        self.not_benchmarked += [signature for signature in waiting if signature not in self._measured_ms]


def _reads_a_seed(func: Any) -> bool:
    """Whether the kernel follows a pointer to its dropout's seed, which lies on the host or on the GPU as the forward
    kernel left it: with an invented one the process crashes."""
    return any(argument.name == "philox_seed" for argument in func._schema.arguments)


def _is_gpu_call(args: Any, kwargs: Any) -> bool:
    leaves = torch_compat.tree_flatten((args, kwargs))[0]
    return any(isinstance(leaf, torch.Tensor) and leaf.device.type == "cuda" for leaf in leaves)


def _ops_on_gpu(recording: Recording) -> list[bool]:
    """By op, whether the GPU runs it; all ops where everything is on the host, which stands for the GPU then."""
    gpu_storages = {number for number, device in enumerate(recording.devices) if device.type == "cuda"}

    def touches_gpu(op: Op) -> bool:
        return any(ref.storage in gpu_storages for ref in (*op.outputs, *op.input_refs()))

    return [touches_gpu(op) for op in recording.ops] if gpu_storages else [True] * len(recording.ops)
