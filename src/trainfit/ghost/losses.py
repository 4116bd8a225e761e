"""How losses and their gradients lie on a GPU, and what their results keep.

Shape rules as in kernels.py: they run inside a kernel, where ghosts behave as meta tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _reduced(x: torch.Tensor, target: torch.Tensor, reduction: int = 1, *rest: Any) -> torch.Tensor:
    """A structured kernel resizes the unreduced loss to a scalar in place, whose storage keeps the loss's size."""
    unreduced = torch.empty_like(
        torch.broadcast_tensors(x, target)[0], dtype=torch.promote_types(x.dtype, target.dtype)
    )
    return _resized(unreduced, reduction)


def _reduced_by_hand(x: torch.Tensor, target: torch.Tensor, *rest: Any, reduction: int = 1) -> torch.Tensor:
    """So do these (soft_margin_loss in Loss.cpp, binary_cross_entropy in native/cuda/Loss.cu, after its weight)."""
    stated = next((value for value in rest if isinstance(value, int)), reduction)
    return _resized(aten.empty_like.default(x), stated)


def _resized(unreduced: torch.Tensor, reduction: int) -> torch.Tensor:
    return unreduced if reduction == 0 else unreduced.as_strided((), ())


def _backward(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Zeros in order, which the kernel adds to (Loss.cpp)."""
    return x.new_empty(x.shape)


def _cross_entropy_backward(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """As the input lies (Loss.cu)."""
    return aten.empty_like.default(x)


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.mse_loss.default: _reduced,
    aten.smooth_l1_loss.default: _reduced,
    aten.soft_margin_loss.default: _reduced_by_hand,
    aten.binary_cross_entropy.default: _reduced_by_hand,
    aten.mse_loss_backward.default: _backward,
    aten.smooth_l1_loss_backward.default: _backward,
    aten.huber_loss_backward.default: _backward,
    aten.binary_cross_entropy_backward.default: _cross_entropy_backward,
}
