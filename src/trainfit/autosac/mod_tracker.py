"""`ModTracker`: which modules are running, in forward and in backward, and hooks around both.

In: any code that calls modules, inside the context. Out: `parents`, the names of the modules that are running now.
A module's name is its path under the class of the first module that was called: "Transformer.layers.0.attention".

In forward the calls nest, so a stack is enough. In backward the module is that of the autograd node which runs now:
nodes are numbered as forward makes them, so the numbers at which calls begin and end say whose node it is. That holds
whichever inputs or outputs need a gradient.
"""

from __future__ import annotations

import bisect
import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.modules import module as module_hooks

from trainfit import torch_compat
from trainfit.records import Phase

GLOBAL = "Global"
"""The name under which everything runs, inside modules or not."""

Hook = Callable[..., Any]


@dataclass(eq=False, slots=True)
class Call:
    """One call of a module's forward."""

    number: int
    fqn: str
    module: Callable[[], nn.Module | None]  # a weak reference
    parent: Call | None
    is_recompute: bool  # inside backward: activation checkpointing runs it again
    original: Call | None = None  # the call that is run again, where it is one of the module's own
    names: frozenset[str] = field(init=False)  # the module and all that it runs in

    def __post_init__(self) -> None:
        self.names = frozenset({self.fqn}) | (self.parent.names if self.parent else {GLOBAL})

    def chain(self) -> Iterator[Call]:
        """This call and those that it runs in, innermost first."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.parent


class ModTracker:
    """A context manager; see the module's docstring."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._roots: dict[str, int] = {}  # how many roots of each class there were
        self._hooks: dict[str, Hook] = {}
        self._shown: set[str] = set()  # modules that are shown as running while their own hook is called
        self._at_end: list[Callable[[], None]] = []  # post-backward hooks of modules whose inputs need no gradient
        self._open = contextlib.ExitStack()
        self.calls: list[Call] = []
        self.stack: list[Call] = []
        self._first_nodes = [0]  # from this node on ...
        self._callers: list[Call | None] = [None]  # ... nodes are made by this call

    @property
    def is_bw(self) -> bool:
        """Whether a backward pass is running."""
        return torch_compat.is_in_backward()

    @property
    def parents(self) -> set[str]:
        """The names of all modules that are running, and always "Global"."""
        call = self.running()
        return {GLOBAL, *self._shown} | (call.names if call is not None else frozenset())

    def get_known_fqn(self, mod: nn.Module) -> str | None:
        """The module's name; None for a module that no call has led to."""
        return self._known.get(mod)

    def register_user_hooks(
        self,
        pre_fw_hook: Hook | None = None,
        post_fw_hook: Hook | None = None,
        pre_bw_hook: Hook | None = None,
        post_bw_hook: Hook | None = None,
    ) -> None:
        """Call back around each module: pre_fw(module, inputs), post_fw(module, inputs, output), pre_bw(module,
        gradients of outputs), post_bw(module, gradients of inputs). The module is None in backward if it is gone."""
        given = {"pre_fw": pre_fw_hook, "post_fw": post_fw_hook, "pre_bw": pre_bw_hook, "post_bw": post_bw_hook}
        for name, hook in given.items():
            if hook is not None:
                if name in self._hooks:
                    raise AssertionError(f"there is a {name}_hook already; clear_user_hooks() removes it")
                self._hooks[name] = hook

    def clear_user_hooks(self) -> None:
        self._hooks.clear()

    def __enter__(self) -> Self:
        self.stack.clear()
        self._mark_nodes(None)
        handles = (
            module_hooks.register_module_forward_pre_hook(self._enter_module),
            module_hooks.register_module_forward_hook(self._leave_module, always_call=True),
        )
        for handle in handles:
            self._open.callback(handle.remove)
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def running(self) -> Call | None:
        """The innermost call that is running, or in backward whose node is."""
        if self.stack:
            return self.stack[-1]
        node = torch_compat.current_autograd_node() if self.is_bw else None
        return self._caller_of(node) if node is not None else None

    def current(self, phase: Phase) -> str:
        """The number of the running call as a recorder writes it down; empty outside modules."""
        call = self.running()
        return "" if call is None else str(call.number)

    def _caller_of(self, node: Any) -> Call | None:
        return self._callers[bisect.bisect_right(self._first_nodes, node._sequence_nr()) - 1]

    def _mark_nodes(self, call: Call | None) -> None:
        first_node = torch_compat.next_sequence_number()
        if first_node >= self._first_nodes[-1]:  # another thread, which recomputes, counts its nodes from 0
            self._first_nodes.append(first_node)
            self._callers.append(call)

    def _name(self, module: nn.Module) -> str:
        if module not in self._known:
            kind = type(module).__name__
            number = self._roots[kind] = self._roots.get(kind, 0) + 1
            root = kind if number == 1 else f"{kind}#{number}"
            for path, inner in module.named_modules():
                self._known.setdefault(inner, f"{root}.{path}" if path else root)
        return self._known[module]

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        fqn, is_bw, outer, original = self._name(module), self.is_bw, self.running(), None
        if is_bw and not self.stack and outer is not None:  # the node is of the call that is now run again
            original = next((call for call in outer.chain() if call.fqn == fqn), None)
            outer = original.parent if original is not None else outer
        call = Call(len(self.calls), fqn, weakref.ref(module), outer, is_bw, original)
        self.calls.append(call)
        self.stack.append(call)
        self._mark_nodes(call)
        if "pre_fw" in self._hooks:
            self._hooks["pre_fw"](module, inputs)
        if "post_bw" in self._hooks and not is_bw:
            self._hook_inputs(call, inputs)

    def _leave_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        call = self.stack[-1]
        if "post_fw" in self._hooks:
            self._hooks["post_fw"](module, inputs, output)
        self.stack.pop()
        self._mark_nodes(self.stack[-1] if self.stack else None)
        tensors = _need_gradient(output)
        if {"pre_bw", "post_bw"} & self._hooks.keys() and tensors and not call.is_recompute:
            register_multi_grad_hook(tensors, lambda *grads: self._tell("pre_bw", call, grads), mode="any")

    def _hook_inputs(self, call: Call, inputs: Any) -> None:
        tensors = _need_gradient(inputs)
        if tensors:
            register_multi_grad_hook(tensors, lambda *grads: self._tell("post_bw", call, grads))
        else:
            self._at_end.append(lambda: self._tell("post_bw", call, ()))

    def _tell(self, name: str, call: Call, grads: tuple[Any, ...]) -> None:
        """Call a backward hook, its module shown as running."""
        for at_end in reversed(self._at_end):  # the first hook of a backward pass comes by here
            torch_compat.after_backward(at_end)
        self._at_end.clear()
        if name in self._hooks:
            self._shown = set(call.names)
            try:
                self._hooks[name](call.module(), grads)
            finally:
                self._shown = set()


def _need_gradient(values: Any) -> list[torch.Tensor]:
    leaves = torch_compat.tree_flatten(values)[0]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
