"""What the op-level probes share: a probe is a label and a function that runs one op forward and backward.

`tensor` makes an input on the device of the sweep; `differentiate` runs a function and its backward pass. The device is
"cuda" to measure, "meta" to find misspelt probes with no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

Probe = tuple[str, Callable[[], None]]
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SHORT = {F32: "fp32", BF16: "bf16", F16: "fp16"}
device = "cuda"


def tensor(*shape: int, dtype: torch.dtype = F32, grad: bool = True) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad)


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, device=device)


def on_device(module: nn.Module, dtype: torch.dtype = F32) -> nn.Module:
    return module.to(device=device, dtype=dtype)


def differentiate(function: Callable[..., Any], *inputs: Any) -> None:
    """Forward, then backward with ones as the gradient of every output."""
    outputs = [leaf for leaf in tree_leaves(function(*inputs)) if isinstance(leaf, Tensor) and leaf.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def warm_up() -> None:
    """Create the cuBLAS workspaces of this thread and of autograd's, so that no probe is charged for them."""
    for dtype in (F32, BF16):
        differentiate(torch.mm, tensor(64, 64, dtype=dtype), tensor(64, 64, dtype=dtype))
