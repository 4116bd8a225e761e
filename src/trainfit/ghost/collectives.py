"""Collectives among ghosts: nothing is sent, every buffer is where it would be.

In: an op of torch's communication libraries with ghosts among its arguments. Out: what the op would return, with its
work done, and the ranks that take part, which a listener gets as the op's only keyword argument.
"""

from __future__ import annotations

from typing import Any

import torch

from trainfit import torch_compat

NAMESPACES = frozenset({"c10d", "_c10d_functional"})


def ranks_of(func: Any, args: tuple[Any, ...]) -> tuple[int, ...]:
    """The ranks of the op's group; none for an op that has no group, such as waiting for a result."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.name in ("process_group", "group_name"):
            return torch_compat.group_ranks(value)
    return ()


def finished(func: Any, args: tuple[Any, ...]) -> Any:
    """The result of an op that works in place: its first argument where it returns one, and work that is done."""
    returns = [torch_compat.finished_work() if "Work" in str(r.type) else args[0] for r in func._schema.returns]
    return returns[0] if len(returns) == 1 else tuple(returns)


def tensor_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments that are tensors or lists of them."""
    return tuple(arg for arg in args if isinstance(arg, (torch.Tensor, list, tuple)))
