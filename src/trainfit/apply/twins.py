"""Twins: tensors without data in place of a block's inputs and parameters, and a copy of the block that holds them.

Must be called inside the context that makes data-free tensors (a ghost GPU, or fake tensors on the CPU). Tensors that
share a storage have twins that share one. The block itself is not touched: its modules are copied one level deep, so
that attributes that forward sets land in the copy, and another thread that runs the block notices nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from trainfit import torch_compat
from trainfit.ghost.tensor import Ghost

PLAIN_TYPES = (torch.Tensor, nn.Parameter, nn.Buffer, Ghost)


PLANNED = "__trainfit_block__"
"""An attribute of the classes of planned blocks."""


def is_planned(module: nn.Module | None) -> bool:
    return hasattr(type(module), PLANNED)


TABLES = frozenset(vars(nn.Module())) - {"training"}
"""What every module has: tables, hooks and flags."""


def _is_of_every_module(name: str) -> bool:
    """Whether the attribute is not the module's own; what `fully_shard` keeps there leads to all that is sharded."""
    return name in TABLES or name.startswith(torch_compat.COMPOSED_STATE)


class OwnHook:
    """A forward hook that the executor puts on a module for one forward of a block around it: twins do without."""


class NotRecordable(Exception):
    """The block cannot be run on twins; the text says why."""


class Twins:
    """Makes twins on `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._bases: dict[int, torch.Tensor] = {}
        self._twins: dict[
            int, tuple[torch.Tensor, torch.Tensor]
        ] = {}  # the tensor is held so that its id stays its own

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The twin of a tensor; always the same for the same tensor."""
        if id(tensor) not in self._twins:
            self._twins[id(tensor)] = (tensor, self._make(tensor))
        return self._twins[id(tensor)][1]

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if torch_compat.wraps_others(type(tensor)):
            return self._make_wrapping(tensor)
        if not (type(tensor) in PLAIN_TYPES or isinstance(tensor, Ghost)):
            raise NotRecordable(f"it has a tensor of type {type(tensor).__name__}")
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            raise NotRecordable(f"it has a tensor of layout {tensor.layout}, conjugated or negated")
        storage = tensor.untyped_storage()
        base = self._bases.get(storage._cdata)
        with torch.no_grad():
            if base is None:
                length = storage.nbytes() // tensor.element_size()
                base = torch.empty(length, dtype=tensor.dtype, device=self._device)
                self._bases[storage._cdata] = base
            flat = base if base.dtype == tensor.dtype else base.view(tensor.dtype)
            twin = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()
        return _as_graph_has_it(tensor, twin)

    def _make_wrapping(self, tensor: torch.Tensor) -> torch.Tensor:
        """The twin of a tensor that wraps others (a DTensor): the same wrapping around their twins."""
        with torch.no_grad():
            twin = torch_compat.wrap_again(tensor, self.of)
        return _as_graph_has_it(tensor, twin)


def _as_graph_has_it(tensor: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
    """The twin as a leaf, a parameter or a tensor with a history, whatever the tensor is."""
    if not tensor.requires_grad:
        return twin
    twin.requires_grad_()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin)
    return twin if tensor.is_leaf else _Arrive.apply(twin)


class _Arrive(torch.autograd.Function):
    """Gives a twin a history, as an input from an earlier layer has one: in-place ops on it are then allowed."""

    @staticmethod
    def forward(ctx: Any, twin: torch.Tensor) -> torch.Tensor:
        return twin.data

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def map_tensors(convert: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """`value` with the tensors in it converted; tuples, lists and dicts are opened, other objects are left alone."""
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, (tuple, list)):
        items = [map_tensors(convert, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, map_tensors(convert, item)) for key, item in value.items())
    return value


MOST_ITEMS = 10_000
"""A larger container is data that forward reads, and no note that it makes."""


DEPTH = 3
"""How far to copy objects in objects: what is farther may be the whole program."""


class Copies:
    """Copies of values that forward may change: containers and plain objects (a cache of keys and values), with the
    tensors in them converted. Everything else is the same object; what comes twice is copied once."""

    def __init__(self, convert: Callable[[torch.Tensor], Any]) -> None:
        self._convert = convert
        self._depth = 0
        self._made: dict[int, tuple[Any, Any]] = {}  # the value is held so that its id stays its own

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._convert(value)
        if isinstance(value, (tuple, list)) and not (type(value) is list and len(value) > MOST_ITEMS):
            if type(value) is list:
                return self._once(value, [], lambda made: made.extend(map(self.of, value)))
            items = [self.of(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if type(value) in (dict, OrderedDict) and len(value) <= MOST_ITEMS:
            entries = ((key, self.of(item)) for key, item in value.items())
            return self._once(value, type(value)(), lambda made: made.update(entries))
        if type(value) is set:
            return self._once(value, set(value), lambda made: None)
        if self._depth < DEPTH and _is_plain_object(value):
            self._depth += 1
            state = ((key, self.of(item)) for key, item in vars(value).items())
            made = self._once(value, object.__new__(type(value)), lambda made: vars(made).update(state))
            self._depth -= 1
            return made
        return value

    def _once(self, value: Any, made: Any, fill: Callable[[Any], None]) -> Any:
        if id(value) not in self._made:
            self._made[id(value)] = value, made
            fill(made)
        return self._made[id(value)][1]


def _is_plain_object(value: Any) -> bool:
    """Whether an object is all in its __dict__, as far as Python can see."""
    kind: Any = type(value)
    return (
        kind.__new__ is object.__new__
        and isinstance(getattr(value, "__dict__", None), dict)
        and not isinstance(value, (nn.Module, type, OwnHook))
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
    )


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in `value`, in order; opens what `map_tensors` opens."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif type(value) in (dict, OrderedDict):
        for item in value.values():
            yield from tensors_in(item)


def named_tensors(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, str]]:
    """(dotted name, module, table in its __dict__ or "", key) of every parameter, buffer and plain tensor attribute."""
    for prefix, inner in module.named_modules():
        state = vars(inner)
        for table in ("_parameters", "_buffers", ""):
            for key, value in (state[table] if table else state).items():
                if isinstance(value, torch.Tensor):
                    yield f"{prefix}.{key}" if prefix else key, inner, table, key


def twin_module(
    module: nn.Module,
    original_class: type[nn.Module],
    convert: Callable[[torch.Tensor], torch.Tensor],
    enter: Callable[[str], None],
    leave: Callable[[str, Any], None],
) -> nn.Module:
    """The module with twins for tensors; `enter(name)` and `leave(name, output)` are called around its submodules."""
    return _Copier(convert, enter, leave).copy(module, "", original_class)


class _Copier:
    """Copies a tree of modules; nothing it makes leads back to it, so all is freed at once."""

    def __init__(
        self,
        convert: Callable[[torch.Tensor], torch.Tensor],
        enter: Callable[[str], None],
        leave: Callable[[str, Any], None],
    ) -> None:
        self._convert, self._enter, self._leave = convert, enter, leave
        self._own = Copies(lambda tensor: tensor)  # a tensor in an object is not guessed: it stays what it is
        self._copies: dict[int, nn.Module] = {}

    def copy(self, source: nn.Module, name: str, cls: type[nn.Module]) -> nn.Module:
        if id(source) in self._copies:
            return self._copies[id(source)]
        twin: nn.Module = object.__new__(cls)
        self._copies[id(source)] = twin
        state: dict[str, Any] = {
            k: self._convert(v) if isinstance(v, torch.Tensor) else v if _is_of_every_module(k) else self._own.of(v)
            for k, v in vars(source).items()
        }
        for table in ("_parameters", "_buffers"):
            state[table] = {k: None if t is None else self._convert(t) for k, t in state[table].items()}
        state["_modules"] = {
            k: None if m is None else self.copy(m, f"{name}.{k}" if name else k, type(m))
            for k, m in state["_modules"].items()
        }
        state["_compiled_call_impl"] = None
        for hooks in ("_forward_pre_hooks", "_forward_hooks"):
            others = ((key, hook) for key, hook in state[hooks].items() if not isinstance(hook, OwnHook))
            state[hooks] = OrderedDict(others)
        object.__setattr__(twin, "__dict__", state)
        if name:
            enter, leave = self._enter, self._leave
            twin.register_forward_pre_hook(lambda _module, _args: enter(name))
            twin.register_forward_hook(lambda _module, _args, output: leave(name, output))
        return twin
