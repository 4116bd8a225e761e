"""What every file of workloads begins with: what a workload is, the types of its tensors, and their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Workload = Callable[[], Any]
"""Runs torch code on the GPU; the ops inside are timed."""
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def randn(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)
