"""`ModuleNames`: which module an op belongs to, in forward by hooks, in backward by the autograd node's number.

An autograd node is numbered when forward makes it, just before the op that it differentiates reaches the dispatcher;
remembering the module for each number gives backward ops the module of the forward op that they differentiate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as module_hooks

from trainfit import torch_compat
from trainfit.progress import tell
from trainfit.records import Phase
from trainfit.stacks import find_blocks


class ModuleNames:
    """Use `watching(model)` around the step; `current(phase)` answers inside it."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._layers: dict[int, int] = {}  # the model's layers, counted from 1, for whoever watches the progress
        self._stack: list[str] = [""]
        self._module_of_node: dict[int, str] = {}
        self._next_node = 0

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._layers = {id(model.get_submodule(name)): n for n, name in enumerate(find_blocks(model), start=1)}
        self._next_node = torch_compat.next_sequence_number()
        enter = module_hooks.register_module_forward_pre_hook(self._enter)
        leave = module_hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            enter.remove()
            leave.remove()

    def current(self, phase: Phase) -> str:
        node = torch_compat.current_autograd_node()
        # What is run again without its module being called, a plan's replay, is for the node that asks for it.
        if phase is Phase.BACKWARD or (phase is Phase.RECOMPUTE and not self._stack[-1]):
            return self._module_of_node.get(node._sequence_nr(), "") if node is not None else ""
        name = self._stack[-1]
        next_node = torch_compat.next_sequence_number()
        while self._next_node < next_node:
            self._module_of_node[self._next_node] = name
            self._next_node += 1
        return name

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._stack.append(self._names.get(id(module), self._stack[-1]))
        if id(module) in self._layers:
            tell("tracing layer", self._layers[id(module)], len(self._layers))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()
