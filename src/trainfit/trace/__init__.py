"""Step -> Trace: run one training step on a ghost GPU and write down everything it does.

The program is traced in sections, each once: building, a micro-batch, a further micro-batch (gradients exist), the
first optimizer step (it makes its state), a later one, zero_grad. First and steady steps are sequences of sections. A
model that its first pass has changed (`settling.py`) takes another step after these, which is the steady one.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from trainfit.ghost import ghost_gpu
from trainfit.gpus.catalogue import Gpu
from trainfit.parallel import ranks_of_step
from trainfit.records import Trace
from trainfit.step import Step
from trainfit.trace.categories import categorize
from trainfit.trace.check import check_step
from trainfit.trace.modules import ModuleNames
from trainfit.trace.program import Program
from trainfit.trace.recorder import Recorder


def trace_step(
    step: Step,
    gpu: Gpu,
    watch: Callable[[nn.Module], None] | None = None,
    torch_version: str = str(torch.__version__),
) -> Trace:
    """One step of `step` on `gpu`, from process start to steady state, with the kernels that `torch_version` chooses.

    `watch` gets the model before it is spread over GPUs and run, and may register hooks that change nothing.
    """
    check_step(step)
    modules = ModuleNames()
    recorder = Recorder(modules)
    with garbage_collection_off(), _same_draws(), ghost_gpu(gpu, torch_version) as mode, ranks_of_step(step):
        mode.listener, mode.resize_listener = recorder, recorder.resize
        mode.wait_listener, mode.host_listener = recorder.wait, recorder.compute
        recorder.streams = mode.streams
        program = Program(step, recorder, watch)
        with modules.watching(program.model):
            program.run()
        storages = categorize(recorder, program)
        trace = Trace(
            gpu=gpu.name,
            torch_version=torch_version,
            num_parameters=program.num_parameters,
            ops=tuple(recorder.ops),
            storages=storages,
            sections=tuple(recorder.sections),
            first_step=program.first_step(),
            steady_step=program.steady_step(),
        )
        mode.listener = mode.resize_listener = mode.wait_listener = mode.host_listener = None
    return trace


@contextlib.contextmanager
def garbage_collection_off() -> Iterator[None]:
    """A collection in the middle of a step would free cycles at a moment that depends on everything else."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _same_draws() -> Iterator[None]:
    """What a program draws on the host, such as which layers to drop, is the same in every trace, and the caller's own
    generators stay where they are."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    torch.default_generator.manual_seed(0)  # the CPU's alone: `torch.manual_seed` would also move the GPUs' own
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
