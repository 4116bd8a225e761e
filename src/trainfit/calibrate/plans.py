"""What cuDNN plans for the convolutions that are timed. In: the GPU's name, and all calls. Out: a plan per call.

A plan is the engine that cuDNN proposes, and how it cuts the product, as far as it says. A process of its own asks,
which holds nothing of the GPU, while others get ready.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from trainfit.calibrate.calls import Call, all_calls
from trainfit.calibrate.processes import Process
from trainfit.cost.convolution_op import ENGINE, TILING
from trainfit.cost.described import read_op
from trainfit.cost.host import OP_KINDS
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.gpus.hidden.convolution import first_pass
from trainfit.gpus.hidden.cudnn_kernels import asked
from trainfit.records import Phase

_SERVE = "from trainfit.calibrate.plans import serve; serve()"
Plans = Mapping[str, dict[str, Any]]
"""By the text of the call."""


class PlanProcess(Process):
    def __init__(self, gpu: Gpu) -> None:
        super().__init__(_SERVE, "the process that asks cuDNN for plans", environment={"CUDA_VISIBLE_DEVICES": ""})
        self.tell(gpu.name)

    def plans(self) -> Plans:
        """All; waits until the last one is known. Only once."""
        found: Plans = json.loads(self.last_answer())
        return found


@contextlib.contextmanager
def planning(gpu: Gpu) -> Iterator[PlanProcess]:
    """It asks while others get ready; it ends with the context."""
    process = PlanProcess(gpu)
    try:
        yield process
    finally:
        process.end()


def serve() -> None:
    """What such a process does."""
    gpu = find_gpu(sys.stdin.readline().strip())
    sys.stdout.write(json.dumps({str(call): plan_of(call, gpu) for call in all_calls() if is_planned(call)}) + "\n")


def is_planned(call: Call) -> bool:
    return call.short_name in OP_KINDS["convolution"]


def plan_of(call: Call, gpu: Gpu) -> dict[str, Any]:
    """As a sample has it among its arguments; nothing where cuDNN cannot be asked."""
    problem = first_pass(read_op(call.name, *call.described(), [], Phase.BACKWARD))
    choice = asked(problem, gpu)
    if choice is None:
        return {}
    return {ENGINE: choice.engine} | ({TILING: list(dataclasses.astuple(choice.tiling))} if choice.tiling else {})
