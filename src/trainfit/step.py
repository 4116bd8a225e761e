"""`Step`: one training step as the user describes it. Nothing is run here; `trace` runs it on a ghost GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Step:
    """Everything that one optimizer step needs; the step that is predicted is:

    for each of `micro_batches`: loss(model(batch)).backward() under autocast
    unscale and clip the gradients if asked, optimizer.step(), optimizer.zero_grad(set_to_none)
    """

    model: nn.Module | Callable[[], nn.Module]
    """A module on any device (meta included), or a callable that builds one."""
    batch: Mapping[str, Any] | tuple[Any, ...]
    """Keyword arguments (a mapping) or positional arguments (a tuple) of the model, for one micro-batch."""
    optimizer: Callable[..., torch.optim.Optimizer] | None = None
    """An optimizer class, or a callable on the parameters; AdamW with its defaults when None."""
    loss: Callable[[Any], torch.Tensor] | None = None
    """Turns the model's output into a scalar; when None, the output's `.loss`, or the output if it is a scalar."""
    autocast: torch.dtype | None = None
    """torch.bfloat16 or torch.float16 to run the forward under torch.autocast; None for no autocast."""
    grad_scaler: bool = False
    """Scale the loss with torch.amp.GradScaler (fp16 autocast)."""
    clip_grad_norm: float | None = None
    """Maximal gradient norm for torch.nn.utils.clip_grad_norm_ before the optimizer's step."""
    micro_batches: int = 1
    """Forward and backward passes per optimizer step (gradient accumulation)."""
    set_to_none: bool = True
    """Whether zero_grad frees the gradients (torch's default) or keeps and zeroes them."""
