"""Which modules of a model are its blocks, and the program of each, recorded in one forward on a ghost GPU.

A block is a child of a stack: an nn.ModuleList or nn.Sequential with two or more children of one class, outermost
stacks first. Blocks whose programs are equal are of one class: equal programs are one object.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trainfit.apply.record import record_block
from trainfit.errors import BadDecision
from trainfit.ghost import ghost_gpu
from trainfit.gpus.catalogue import Gpu
from trainfit.records import BlockProgram
from trainfit.step import Step
from trainfit.trace.placement import place_batch, place_model


def find_blocks(model: nn.Module) -> list[str]:
    """The names of the model's blocks, in the model's order; none is inside another."""
    found: list[str] = []

    def search(module: nn.Module, name: str) -> None:
        children = [(f"{name}.{key}" if name else key, child) for key, child in module.named_children()]
        classes = {type(child) for _, child in children}
        is_stack = isinstance(module, (nn.ModuleList, nn.Sequential)) and len(children) > 1 and len(classes) == 1
        if is_stack and any(True for _ in module.parameters()):
            found.extend(child_name for child_name, _ in children)
            return
        for child_name, child in children:
            search(child, child_name)

    search(model, "")
    return found


def record_blocks(step: Step, gpu: Gpu, names: Sequence[str] | None = None) -> tuple[tuple[str, BlockProgram], ...]:
    """(block, program) for the step's blocks as `gpu` would run them, in the order of their calls; a block that is
    called several times appears once, by its first call. `names` says which modules are the blocks."""
    recorded: dict[str, BlockProgram] = {}
    classes: dict[BlockProgram, BlockProgram] = {}
    with ghost_gpu(gpu):
        model = place_model(step.model).train()
        modules = dict(model.named_modules())
        wanted = find_blocks(model) if names is None else list(names)
        if unknown := [name for name in wanted if name not in modules]:
            raise BadDecision(
                f"the model has no module {unknown[0]!r}", hint="name blocks as model.named_modules() does"
            )

        def note(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if name not in recorded:
                program = record_block(module, args, kwargs, gpu=gpu)
                recorded[name] = classes.setdefault(program, program)

        for name in wanted:
            modules[name].register_forward_pre_hook(functools.partial(note, name), with_kwargs=True)
        args, kwargs = place_batch(step.batch)
        with torch.autocast("cuda", step.autocast) if step.autocast is not None else contextlib.nullcontext():
            model(*args, **kwargs)
    return tuple(recorded.items())
