"""`Shapes`: ops' results on meta, worked out by torch once per op and shapes.

In: an op and its arguments, inside a kernel (`inside_kernel`). Out: what its meta kernel gives. Layers of a model are
alike, and torch's shape rules for elementwise ops are Python that takes longer than all the rest of an op, so results
that depend on nothing but the arguments' shapes, strides and types are remembered: those of elementwise ops, matmuls
and concatenation, each a new tensor. Results of elementwise ops lie as TensorIterator has them (strides.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainfit.ghost.strides import elementwise_strides
from trainfit.ghost.tensor import META, Ghost

aten = torch.ops.aten
_ALSO_REMEMBERED = frozenset({aten.mm.default, aten.bmm.default, aten.addmm.default, aten.cat.default})
_MADE_BY_HAND = frozenset({aten.clone.default, aten.native_dropout_backward.default})
"""Elementwise by their tags; their results are made with a memory format."""
_GRADIENT_LAST = frozenset({aten.threshold_backward.default, aten.leaky_relu_backward.default})
"""Their kernels have the input before the gradient."""
_ALSO_ELEMENTWISE = _GRADIENT_LAST | {
    aten.elu_backward.default,
    aten.hardshrink_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardswish.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.log_sigmoid_backward.default,
    aten.mish_backward.default,
    aten.softplus_backward.default,
    aten.softshrink_backward.default,
}
"""Elementwise, though their tags do not say so."""
_PLAIN = frozenset((int, float, bool, type(None), torch.dtype))


class Shapes:
    """One per ghost context; `run` is called inside a kernel."""

    def __init__(self) -> None:
        self._results: dict[Any, tuple[torch.Size, tuple[int, ...], torch.dtype]] = {}

    def run(self, func: Any, kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `kernel`, which stands for the op `func`, gives for the arguments."""
        if kernel is not func:
            return kernel(*args, **kwargs)
        if _writes_lists(func) and _are_alike(args):
            return None
        key = _key((func, torch.get_default_dtype(), *args, *kwargs.items())) if _is_remembered(func) else None
        if key in self._results:
            shape, stride, dtype = self._results[key]
            return torch.empty_strided(shape, stride, dtype=dtype, device=META)
        result = func(*args, **kwargs)
        if _is_elementwise(func):
            result = _as_iterated(func, args, result)
        if key is not None:
            self._results[key] = result.shape, result.stride(), result.dtype
        return result


@functools.cache
def _makes_one_tensor(op: Any) -> bool:
    returns = op._schema.returns
    return not op._schema.is_mutable and [str(one.type) for one in returns] == ["Tensor"] and not returns[0].alias_info


@functools.cache
def _is_remembered(op: Any) -> bool:
    """Whether the op makes one new tensor, of a shape that its arguments' shapes tell."""
    return _makes_one_tensor(op) and (op in _ALSO_REMEMBERED or torch.Tag.pointwise in op.tags or _is_elementwise(op))


@functools.cache
def _is_elementwise(op: Any) -> bool:
    """Whether the op's kernel lets TensorIterator make its result; what a library's own ops do, their metas say."""
    if op.namespace != "aten" or not _makes_one_tensor(op) or op in _MADE_BY_HAND:
        return False
    return op in _ALSO_ELEMENTWISE or torch.Tag.pointwise in op.tags


def _as_iterated(op: Any, args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """The result as its kernel would lay it out; a second operand that is a number counts as a tensor there."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if op in _GRADIENT_LAST:
        tensors.reverse()
    with_number = len(args) > 1 and not isinstance(args[1], torch.Tensor) and op._schema.arguments[1].name == "other"
    strides = elementwise_strides(tensors, result.shape, with_number)
    if strides == result.stride():
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=META)


@functools.cache
def _writes_lists(op: Any) -> bool:
    """Whether the op works in place on the tensors of a list, and so returns nothing."""
    name = op._schema.name
    return name.startswith("aten::_foreach_") and name.endswith("_") and not op._schema.returns


def _are_alike(args: Sequence[Any]) -> bool:
    """Whether the lists have tensors of the same shapes and of one type, for which the op has nothing to check."""
    lists = [arg for arg in args if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], torch.Tensor)]
    dtypes = {tensor.dtype for tensors in lists for tensor in tensors}
    shapes = [[tensor.shape for tensor in tensors] for tensors in lists]
    return len(dtypes) == 1 and all(other == shapes[0] for other in shapes) and dtypes.pop().is_floating_point


def _key(value: Any) -> Any:
    """What a result depends on; None where that is not known."""
    kind = type(value)
    if kind is Ghost:
        return None if value.dtype.is_complex else (value.shape, value.stride(), value.dtype)
    if kind in (tuple, list):
        keys = tuple([_key(item) for item in value])
        return None if None in keys else keys
    return (kind, value) if kind in _PLAIN or kind in (str, torch._ops.OpOverload) else None
