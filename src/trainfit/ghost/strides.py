"""How the result of an elementwise op lies, by the rules of torch's TensorIterator (ATen/TensorIterator.cpp).

In: the op's tensors, in the order in which its kernel has them, and the result's shape. Out: strides. Meta kernels of
many such ops are compositions in Python, whose steps in between lie otherwise than the one kernel's result, where a
tensor is expanded (the gradient of a mean) or has dimensions of one element.
`tests/test_ghost_recorded.py` compares them with what an H200 returned.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Strides = tuple[int, ...]


def elementwise_strides(tensors: Sequence[torch.Tensor], shape: Sequence[int], with_number: bool = False) -> Strides:
    """Of a new result that is computed from these tensors, and maybe a number, which is a tensor without dimensions."""
    if not with_number and all(tensor.shape == tuple(shape) for tensor in tensors):
        found = _common(tensors, shape)
        if found is not None:
            return found
    order = _fastest_first([_expanded(tensor, shape) for tensor in tensors], shape)
    return _dense(shape, order)


def _common(tensors: Sequence[torch.Tensor], shape: Sequence[int]) -> Strides | None:
    """Where all lie alike, the result does, too. What is both contiguous and has its channels last is contiguous."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return _dense(shape, range(len(shape) - 1, -1, -1))
    if len(shape) == 4 and all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors):
        return _dense(shape, (1, 3, 2, 0))
    strides = {tensor.stride() for tensor in tensors}
    if len(strides) == 1 and _is_dense(tensors[0]):
        return strides.pop()
    return None


def _is_dense(tensor: torch.Tensor) -> bool:
    """In whatever order of its dimensions."""
    runs = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1)
    step = 1
    for stride, size in runs:
        if stride != step:
            return False
        step *= size
    return True


def _expanded(tensor: torch.Tensor, shape: Sequence[int]) -> Strides:
    """Strides in bytes with a zero for each dimension along which the tensor is repeated."""
    missing = len(shape) - tensor.dim()
    own = (
        0 if size == 1 != wanted else stride * tensor.element_size()
        for size, stride, wanted in zip(tensor.shape, tensor.stride(), shape[missing:], strict=True)
    )
    return (*(0,) * missing, *own)


def _fastest_first(operands: Sequence[Strides], shape: Sequence[int]) -> list[int]:
    """Dimensions sorted by strides; what the first tensor leaves open the next one decides, and last their order."""
    order = list(range(len(shape) - 1, -1, -1))
    for place in range(1, len(order)):
        at = place
        for before in range(place - 1, -1, -1):
            decided = _comes_after(operands, shape, order[before], order[at])
            if decided is None:
                continue
            if not decided:
                break
            order[before], order[at] = order[at], order[before]
            at = before
    return order


def _comes_after(operands: Sequence[Strides], shape: Sequence[int], dim: int, other: int) -> bool | None:
    for strides in operands:
        one, two = strides[dim], strides[other]
        if not one or not two:
            continue
        if one != two:
            return one > two
        if shape[dim] > shape[other]:
            return True
    return None


def _dense(shape: Sequence[int], order: Sequence[int]) -> Strides:
    """Without gaps, the first dimension in order fastest."""
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)
