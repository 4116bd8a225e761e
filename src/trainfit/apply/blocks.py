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


def record_blocks(step: Step, gpu: Gpu, names: Sequence[str] | None = None) -> tuple[tuple[str, BlockProgram], ...]:
    """(block, program) for the step's blocks as `gpu` would run them, in the order of their calls; a block that is
    called several times appears once, by its first call. `names` says which modules are the blocks."""
    recorded: dict[str, BlockProgram] = {}
    classes: dict[BlockProgram, BlockProgram] = {}
    alike: dict[Any, BlockProgram] = {}
    with ghost_gpu(gpu), ranks_of_step(step):
        model = place_model(step.model).train()
        refuse_sharded(dict(model.named_modules()))
        called = distribute(model, step).model
        modules = dict(model.named_modules())
        wanted = find_parts(model) if names is None else list(names)
        if unknown := [name for name in wanted if name not in modules]:
            raise BadDecision(
                f"the model has no module {unknown[0]!r}", hint="name blocks as model.named_modules() does"
            )

        def note(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if name in recorded:
                return
            key = likeness(module, type(module), args, kwargs)
            if key not in alike:
                program = record_block(module, args, kwargs, gpu=gpu)
                alike[key] = classes.setdefault(program, program)
            recorded[name] = alike[key]

        for name in wanted:
            modules[name].register_forward_pre_hook(functools.partial(note, name), with_kwargs=True)
        args, kwargs = place_batch(step.batch)
        with torch.autocast("cuda", step.autocast) if step.autocast is not None else contextlib.nullcontext():
            called(*args, **kwargs)
    return tuple(recorded.items())
