"""`write_reading`: a function that reads what a module's ops depend on besides its arguments, in a few microseconds.

In: a module. Out: a function, written once and then only run, that gives a tuple. Two forwards with equal tuples run
the same program: of each module in it the class, the plain values among its attributes (dropout probabilities, flags,
`training`), how many hooks it has, and which tensors need gradients. It raises `Changed` when attributes, modules or
tensors have come or gone or changed places since, or when a plain value of an object that is an attribute (a config) is
another.
What it reads it looks up anew each time, so it keeps nothing alive.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

PLAIN = (bool, int, float, str, type(None), torch.dtype)
OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that no forward looks at: tables and hooks are read otherwise."""
NOT_OPENED = (nn.Module, torch.Tensor, type, types.FunctionType, types.MethodType, types.BuiltinFunctionType)


class Changed(Exception):
    """The module no longer consists of what it did when the reading was written."""


def write_reading(module: nn.Module) -> Callable[[], tuple[Any, ...]]:
    """The function for this module."""
    writer = _Writer(list(module.modules()))
    read = writer.function()

    def read_or_say() -> tuple[Any, ...]:
        try:
            return read()
        except (KeyError, AttributeError, TypeError, RuntimeError) as error:  # the last: a tensor where none was
            raise Changed from error

    return read_or_say


class _Writer:
    """Lines of the function, and what its names stand for."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = modules
        self._numbers = {id(inner): number for number, inner in enumerate(modules)}
        self._names: dict[str, Any] = {f"r{number}": weakref.ref(inner) for number, inner in enumerate(modules)}
        self._names |= {"Changed": Changed}
        self._lines: list[str] = []
        self._objects: dict[int, str] = {}

    def function(self) -> Callable[[], tuple[Any, ...]]:
        plain = [
            (f"d{number}[{key!r}]", type(value))
            for number, inner in enumerate(self._modules)
            for key, value in _attributes(inner)
            if isinstance(value, PLAIN)
        ]
        self._names["kinds"] = tuple(kind for _, kind in plain)
        self._lines = [
            f"m{number} = r{number}(); d{number} = m{number}.__dict__" for number in range(len(self._modules))
        ]
        for number, inner in enumerate(self._modules):
            self._watch_tables(number, inner)
            self._watch_objects(number, inner)
        words = [word for number, inner in enumerate(self._modules) for word in _words(number, inner)]
        self._lines += [
            f"plain = ({''.join(f'{place}, ' for place, _ in plain)})",
            "if tuple(map(type, plain)) != kinds: raise Changed",  # nothing that is read may hold a tensor
            f"return (plain, {', '.join(words)})",
        ]
        source = "\n    ".join(["def read():", *self._lines])
        exec(compile(source, "<reading>", "exec"), self._names)
        read: Callable[[], tuple[Any, ...]] = self._names.pop("read")  # its own globals must not lead to it: no cycles
        return read

    def _watch_tables(self, number: int, module: nn.Module) -> None:
        """Raise when attributes, parameters, buffers or modules have come, gone or been replaced by None or another
        module."""
        tables: dict[str, dict[str, Any]] = {
            name: vars(module)[name] for name in ("_parameters", "_buffers", "_modules")
        }
        differences = [f"len(d{number}) != {len(vars(module))}"]  # an attribute that was the class's until it was set
        for name, entries in tables.items():
            table = f"d{number}[{name!r}]"
            differences.append(f"len({table}) != {len(entries)}" if entries else table)
            differences += [f"{table}[{key!r}] is not None" for key, entry in entries.items() if entry is None]
        differences += [
            f"d{number}['_modules'][{key!r}] is not m{self._numbers[id(child)]}"
            for key, child in module._modules.items()
            if child is not None
        ]
        self._lines.append(f"if {' or '.join(differences)}: raise Changed")

    def _watch_objects(self, number: int, module: nn.Module) -> None:
        """Raise when a plain value of an attribute that is an object is no longer the one that it was."""
        for key, value in _attributes(module):
            if isinstance(value, (*PLAIN, *NOT_OPENED)) or not isinstance(getattr(value, "__dict__", None), dict):
                continue
            place = f"d{number}[{key!r}]"
            if id(value) in self._objects:
                self._lines.append(f"if {place} is not {self._objects[id(value)]}: raise Changed")
                continue
            plain = {name: item for name, item in vars(value).items() if isinstance(item, PLAIN)}
            if plain:
                name = self._objects[id(value)] = f"o{len(self._objects)}"
                get = self._names[f"get_{name}"] = operator.itemgetter(
                    *plain, next(iter(plain))
                )  # of two or more: a tuple
                self._names[f"was_{name}"] = get(plain)
                self._lines.append(f"{name} = {place}")
                self._lines.append(f"if get_{name}({name}.__dict__) != was_{name}: raise Changed")


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key, value in vars(module).items() if key not in OF_EVERY_MODULE)


def _words(number: int, module: nn.Module) -> Iterator[str]:
    """What is read of a module, apart from its plain values."""
    state = f"d{number}"
    yield f"m{number}.__class__"
    if number:  # hooks of the block itself run outside of its forward
        yield f"len({state}['_forward_hooks']) + len({state}['_forward_pre_hooks'])"
    for table in ("_parameters", "_buffers"):
        for key, tensor in vars(module)[table].items():
            if tensor is not None:
                yield f"{state}[{table!r}][{key!r}].requires_grad"
    yield from (
        f"{state}[{key!r}].requires_grad" for key, value in _attributes(module) if isinstance(value, torch.Tensor)
    )
