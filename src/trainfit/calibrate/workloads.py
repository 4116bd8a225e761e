"""What every file of workloads begins with: what a workload is, the types of its tensors, and their values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

Workload = Callable[[], Any]
"""Runs torch code on the GPU; the ops inside are timed."""
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def randn(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


_is_aside: ContextVar[bool] = ContextVar("is_aside", default=False)


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Ops inside are not timed: they make what others are timed with."""
    token = _is_aside.set(True)
    try:
        yield
    finally:
        _is_aside.reset(token)


def is_aside() -> bool:
    return _is_aside.get()


def gradients(out: torch.Tensor, *leaves: torch.Tensor) -> None:
    """The backward pass, whose results nobody keeps."""
    torch.autograd.grad(out, leaves, randn(*out.shape, dtype=out.dtype))
