"""Which modules of a model are its blocks, and the program of each, recorded in one forward on a ghost GPU.

Blocks whose programs are equal are of one class: equal programs are one object. Blocks that are alike before they run
(`likeness`) have equal programs, and one of them is recorded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trainfit.apply.alike import likeness
from trainfit.apply.order import refuse_sharded
from trainfit.apply.record import record_block
from trainfit.errors import BadDecision
from trainfit.ghost import ghost_gpu
from trainfit.gpus.catalogue import Gpu
from trainfit.parallel import distribute, ranks_of_step
from trainfit.records import BlockProgram
from trainfit.stacks import find_blocks as find_blocks
from trainfit.stacks import find_parts
from trainfit.step import Step
from trainfit.trace.placement import place_batch, place_model


class BlockRecorder:
    """Records the blocks of a model at their first calls. `names` says which modules are the blocks."""

    def __init__(self, gpu: Gpu, names: Sequence[str] | None = None) -> None:
        self._gpu = gpu
        self._names = names
        self._recorded: dict[str, BlockProgram] = {}
        self._classes: dict[BlockProgram, BlockProgram] = {}
        self._alike: dict[Any, BlockProgram] = {}

    def watch(self, model: nn.Module) -> None:
        """Record in the model's next forward; it is on a ghost GPU, and not sharded yet."""
        modules = dict(model.named_modules())
        refuse_sharded(modules)
        wanted = find_parts(model) if self._names is None else list(self._names)
        if unknown := [name for name in wanted if name not in modules]:
            raise BadDecision(
                f"the model has no module {unknown[0]!r}", hint="name blocks as model.named_modules() does"
            )
        for name in wanted:
            modules[name].register_forward_pre_hook(functools.partial(self._note, name), with_kwargs=True)

    def programs(self) -> tuple[tuple[str, BlockProgram], ...]:
        """(block, program) in the order of the blocks' calls; one that is called several times is there once."""
        return tuple(self._recorded.items())

    def _note(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in self._recorded:
            return
        key = likeness(module, type(module), args, kwargs)
        if key not in self._alike:
            program = record_block(module, args, kwargs, gpu=self._gpu)
            self._alike[key] = self._classes.setdefault(program, program)
        self._recorded[name] = self._alike[key]


def record_blocks(step: Step, gpu: Gpu, names: Sequence[str] | None = None) -> tuple[tuple[str, BlockProgram], ...]:
    """(block, program) for the step's blocks as `gpu` would run them, found in one forward; see `BlockRecorder`."""
    recorder = BlockRecorder(gpu, names)
    with ghost_gpu(gpu), ranks_of_step(step):
        model = place_model(step.model)
        recorder.watch(model)
        called = distribute(model, step).model
        args, kwargs = place_batch(step.batch)
        with torch.autocast("cuda", step.autocast) if step.autocast is not None else contextlib.nullcontext():
            called(*args, **kwargs)
    return recorder.programs()
