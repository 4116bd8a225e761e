"""The training loop that is measured: the same statements for every case and every script.

Order on the device: the model's parameters first, then the optimizer, then the batch, then step after step. The loss is
deleted right after its backward pass, and gradients are set to None after the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zoo.case import Case


def default_loss(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.loss


def training_step(case: Case, device: str, checkpointed: bool = False) -> Callable[[], None]:
    """Build the case on the device and return one call of its training step."""
    torch.manual_seed(0)
    with torch.device(device):
        model = case.module(checkpointed)
        # Some make tensors on the host. Others stay where they are: an RNN that moves lays out its weights once more.
        if any(tensor.device.type != device for tensor in (*model.parameters(), *model.buffers())):
            model.to(device)
    optimizer = case.optimizer(model.parameters())
    batch = case.batch(device)
    loss_of = case.loss or default_loss
    # The default scale of 2**16 overflows at first: steps would be skipped, and the optimizer's state would come late.
    scaler = torch.amp.GradScaler(device, init_scale=256.0, enabled=case.grad_scaler)

    def step() -> None:
        for _ in range(case.micro_batches):
            with torch.autocast(device, case.autocast or torch.bfloat16, enabled=case.autocast is not None):
                loss = loss_of(model(**batch))
            if case.grad_scaler:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            del loss
        if case.grad_scaler and case.clip_grad_norm is not None:
            scaler.unscale_(optimizer)
        if case.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip_grad_norm)
        if case.grad_scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
