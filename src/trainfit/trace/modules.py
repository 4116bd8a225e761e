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
from trainfit.records import Phase


class ModuleNames:
    """Use `watching(model)` around the step; `current(phase)` answers inside it."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._stack: list[str] = [""]
        self._module_of_node: dict[int, str] = {}
        self._next_node = 0

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._next_node = torch_compat.next_sequence_number()
        enter = module_hooks.register_module_forward_pre_hook(self._enter)
        leave = module_hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            enter.remove()
            leave.remove()

    def current(self, phase: Phase) -> str:
        if phase is Phase.BACKWARD:
            node = torch_compat.current_autograd_node()
            return self._module_of_node.get(node._sequence_nr(), "") if node is not None else ""
        name = self._stack[-1]
        next_node = torch_compat.next_sequence_number()
        while self._next_node < next_node:
            self._module_of_node[self._next_node] = name
            self._next_node += 1
        return name

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._stack.append(self._names.get(id(module), self._stack[-1]))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()
