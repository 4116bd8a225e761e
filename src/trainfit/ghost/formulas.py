"""Backward formulas of torch (FunctionsManual.cpp) that are others for tensor subclasses, which ghosts are taken for.

In: nodes of the autograd engine and their ops. Out: what the same nodes run on a GPU's own tensors: in place where they
write tensors of their own (`IN_PLACE`, `WRITES_IN_PLACE`), and products whose gradient looks whether a factor is zero;
none is, as `answers.py` has it. Not here: formulas of linear algebra (eigh, householder products, matrix_exp), and the
gradient of a value that `masked_fill` writes, whose memory depends on the mask.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from trainfit import torch_compat
from trainfit.ghost.answers import assume_size

aten = torch.ops.aten

# C++ autograd nodes whose formula adds tensors; in every other node an add is the engine summing gradients.
ADDING_NODES = frozenset(
    {"VarMeanBackward0", "StdMeanBackward0", "LogcumsumexpBackward0", "RenormBackward0", "Atan2Backward0"}
)

PICKING_NODES = (
    "MaxBackward0", "MinBackward0", "SortBackward0", "SortBackward1", "TopkBackward0", "KthvalueBackward0",
    "MedianBackward1", "NanmedianBackward1", "ModeBackward0",
)  # fmt: skip
IN_PLACE = {
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.put.default: aten.put_.default,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
    aten.logical_and.default: aten.logical_and_.default,
    aten.logical_or.default: aten.logical_or_.default,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
}
WRITES_IN_PLACE: dict[str, tuple[Any, ...]] = {
    "IndexBackward0": (aten.index_put.default,),
    "IndexSelectBackward0": (aten.index_add.default,),
    "MaskedSelectBackward0": (aten.masked_scatter.default,),
    "TakeBackward0": (aten.put.default,),
    "TraceBackward0": (aten.index_fill.int_Tensor,),
    "Atan2Backward0": (aten.masked_fill.Scalar,),
    "ClampBackward0": (aten.logical_and.default, aten.logical_or.default),
    "BinaryCrossEntropyWithLogitsBackward0": (aten.sub.Tensor, aten.mul.Tensor),
    **dict.fromkeys(("GatherBackward0", "CummaxBackward0", "CumminBackward0"), (aten.scatter_add.default,)),
    **dict.fromkeys(PICKING_NODES, (aten.scatter.src,)),
    **dict.fromkeys(
        ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"), (aten.logical_and.default,)
    ),
}
"""By node, those of its ops that are in place where what they write is the formula's own."""


def cumprod_backward(grad: torch.Tensor, x: torch.Tensor, dim: int, product: torch.Tensor) -> torch.Tensor:
    """A running sum from behind, once it is read that no factor is zero."""
    if x.numel() <= 1 or x.size(dim) == 1:
        return torch_compat.call_composite(aten.cumprod_backward.default, grad, x, dim, product)
    weighted = product * grad
    (x == 0).any().item()
    return weighted.flip(dim).cumsum(dim).flip(dim).div(x)


def prod(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _Product.apply(x, None, False, dtype)


def prod_of_dim(x: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _Product.apply(x, dim, keepdim, dtype)


def _multiply(ctx: Any, x: torch.Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None) -> torch.Tensor:
    with torch_compat.below_autograd():
        product = aten.prod(x, dtype=dtype) if dim is None else aten.prod(x, dim, keepdim, dtype=dtype)
    ctx.save_for_backward(x, product)
    ctx.dim, ctx.keepdim = dim, keepdim
    return product


class _Product(torch.autograd.Function):
    """The gradient of a factor is the product divided by it, once it is read that none is zero."""

    # Plans cannot look into a function that the user wrote and know one by its forward's code. This one is an op.
    forward = functools.partial(_multiply)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        x, product = ctx.saved_tensors
        x = x.to(grad.dtype)
        if x.dim() == 0:
            return grad, None, None, None
        if ctx.dim is None:
            with assume_size(0):
                (x == 0).nonzero()
        else:
            if not ctx.keepdim:
                grad, product = grad.unsqueeze(ctx.dim), product.unsqueeze(ctx.dim)
            (x == 0).sum(ctx.dim, True).sum().item()
        return grad * (product / x), None, None, None
