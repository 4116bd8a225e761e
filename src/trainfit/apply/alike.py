"""`likeness`: what the program of a call depends on, so that blocks that are alike are recorded once.

In: a module and the arguments that it is being called with. Out: a key; two calls that have the same key, in the same
surroundings (autocast, grad mode), run the same program. Modules and other objects are compared by value all the way
down: classes, attributes, shapes and ties of tensors, functions and what they enclose. So layers that have equal
settings are alike, and layers that know their own number are not. Integers and booleans may steer a program by their
values: tensors of them must be the same tensor, unchanged. What cannot be looked into is like nothing else. No key
keeps a tensor or a module alive.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from trainfit import torch_compat
from trainfit.apply.twins import PLAIN_TYPES, OwnHook

_VALUES = (bool, int, float, complex, str, bytes, type(None))
_PLAIN = frozenset((*_VALUES, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size))
_FOREVER = (type, types.BuiltinFunctionType, types.ModuleType)
_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name)
_FOR_STATE_DICTS = frozenset(name for name in _HOOKS if "state_dict" in name)
"""No call uses these, and those of `fully_shard` lead to everything that is sharded."""
_TABLES = ("_parameters", "_buffers", "_modules")
_DEPTH = 3
"""How far to look into objects in objects: settings are near, and what is farther may be everything."""


def likeness(module: nn.Module, block_class: type[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The key of `block_class.forward(module, *args, **kwargs)`; hooks of the module itself are no part of that."""
    describe = _Describer()
    return block_class, describe.module(module, is_outermost=True), describe.value(args), describe.value(kwargs)


class _Describer:
    """Numbers tensors, storages and objects in the order in which it meets them, so that ties are seen."""

    def __init__(self) -> None:
        self._depth = 0
        self._numbers: dict[int, int] = {}
        self._met: list[object] = []  # while they are held, their ids are their own

    def module(self, module: nn.Module, is_outermost: bool = False) -> Any:
        number, is_new = self._number(module)
        if not is_new:
            return number
        state = vars(module)
        tables = [tuple([(key, self.value(item)) for key, item in state[name].items()]) for name in _TABLES]
        rest = [
            (name, self.value(item))
            for name, item in state.items()
            if name not in _TABLES and name not in _FOR_STATE_DICTS
            if not (_is_for_calls(name) and (is_outermost or _is_own(item)))
        ]
        return number, None if is_outermost else type(module), tuple(tables), tuple(rest)

    def value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, nn.Module):
            return self.module(value)
        if kind in (tuple, list):
            return kind, tuple([self.value(item) for item in value])
        if kind in (set, frozenset):
            return kind, frozenset(self.value(item) for item in value)
        if kind in (dict, OrderedDict):
            return kind, tuple([(self.value(key), self.value(item)) for key, item in value.items()])
        if isinstance(value, types.MethodType):
            return self.value(value.__func__), self.value(value.__self__)
        if isinstance(value, types.FunctionType):
            cells = tuple([self.value(cell.cell_contents) for cell in value.__closure__ or ()])
            return value.__code__, cells, self.value(value.__defaults__), self.value(value.__kwdefaults__)
        if isinstance(value, _FOREVER):
            return value
        return self._object(value)

    def _object(self, value: object) -> Any:
        number, is_new = self._number(value)
        if not is_new:
            return number
        state = _state_of(value) if self._depth < _DEPTH else None
        if state is None:
            return object()
        self._depth += 1
        described = number, type(value), self.value(state)
        self._depth -= 1
        return described

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if type(tensor) not in PLAIN_TYPES or tensor.layout != torch.strided:
            return object()
        number, is_new = self._number(tensor)
        if not is_new:
            return number
        storage = tensor.untyped_storage()
        ties = number, self._number(storage._cdata)[0], storage.nbytes()
        geometry = tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.storage_offset()
        flags = (
            tensor.requires_grad,
            tensor.is_leaf,
            tensor.is_conj(),
            tensor.is_neg(),
            isinstance(tensor, nn.Parameter),
        )
        return type(tensor), ties, geometry, flags, None if tensor.dtype.is_floating_point else _Same(tensor)

    def _number(self, value: object) -> tuple[int, bool]:
        key = value if isinstance(value, int) else id(value)
        is_new = key not in self._numbers
        if is_new:
            self._met.append(value)
        return self._numbers.setdefault(key, len(self._numbers)), is_new


class _Same:
    """Equal to another only while both stand for the same living tensor, unchanged."""

    __slots__ = ("_hash", "_reference", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._hash, self._reference, self._version = id(tensor), weakref.ref(tensor), tensor._version

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self._version != other._version:
            return False
        tensor = self._reference()
        return self is other or (tensor is not None and tensor is other._reference())


def _is_own(hooks: Any) -> bool:
    """Whether there are none but the executor's own, which a recording does without."""
    return not hooks or (isinstance(hooks, dict) and all(isinstance(hook, OwnHook) for hook in hooks.values()))


def _is_for_calls(name: str) -> bool:
    """Whether calling a module uses the attribute, and its forward does not."""
    return name in _HOOKS or name.startswith(torch_compat.COMPOSED_STATE)


def _state_of(value: object) -> Any:
    """All there is to an object, as pickle would write it; None where it has more, or says something else to pickle."""
    kind = type(value)
    if (kind.__reduce_ex__, kind.__reduce__) != (object.__reduce_ex__, object.__reduce__):
        return None
    if kind.__getstate__ is not object.__getstate__:
        return None
    try:
        reduced: Any = object.__reduce_ex__(value, 2)
    except TypeError:  # it has parts that Python does not see
        return None
    return None if reduced[3] is not None or reduced[4] is not None else reduced[2:3]
