"""`on_shards`: an optimizer's ops on lists of DTensors, done on what this rank holds of them.

In: a multi-tensor op (`_foreach_add_`) with DTensors among its arguments. Out: what DTensor would give, or None where
that takes more than the same op on the shards. Elementwise ops on tensors that are sharded alike need no communication,
and torch asks its sharding rules of every tensor of every list, which takes ten times as long as the rest of a trace.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from trainfit import torch_compat

_REDUCTIONS = ("_foreach_norm", "_foreach_max", "_foreach_powsum")


def on_shards(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
    """The result in a tuple of one; call it where ops on ghosts are heard."""
    if not _is_elementwise_on_lists(op) or any(_holds_tensors(value) for value in kwargs.values()):
        return None
    lists = [arg for arg in args if _holds_tensors(arg)]
    if any(isinstance(arg, torch.Tensor) for arg in args) or not torch_compat.are_sharded_alike(lists):
        return None
    local_args = [list(map(torch_compat.local_tensor, arg)) if _holds_tensors(arg) else arg for arg in args]
    result = op(*local_args, **kwargs)
    if result is None:
        return (None,)
    return ([torch_compat.sharded_like(whole, local) for whole, local in zip(args[0], result, strict=True)],)


@functools.cache
def _is_elementwise_on_lists(op: Any) -> bool:
    name = op._schema.name.removeprefix("aten::")
    return name.startswith("_foreach_") and not name.startswith(_REDUCTIONS)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Sequence) and any(isinstance(item, torch.Tensor) for item in value)
