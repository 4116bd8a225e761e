"""What nets of diffusers have in common: how a denoiser becomes a net of the zoo, and fields that its kind takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import diffusers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained
from zoo.survey import ANY, Field, Net, padding

STEPS = 1000


def denoise(net: nn.Module, wanted: Tensor, **inputs: Any) -> Tensor:
    return F.mse_loss(net(**inputs, return_dict=False)[0], wanted)


def present(length: int) -> Field:
    """Which words are there; every other row ends with a quarter of padding."""
    absent = padding(length)
    return lambda rows, device, dtype: ~absent(rows, device, dtype)


def places(*shape: int) -> Field:
    """What is the same for every row."""
    return lambda rows, device, dtype: torch.zeros(shape, device=device, dtype=dtype)


def denoiser(
    name: str,
    config: Mapping[str, Any],
    fields: Mapping[str, Field],
    wanted: Field,
    is_image: bool = False,
    **fixed: Any,
) -> Net:
    """`config` is what the class is made with, `fields` what its forward takes, and `fixed`, the same every time."""

    def build() -> nn.Module:
        return Trained(getattr(diffusers, name)(**config), partial(denoise, **fixed))

    return Net(name, build, 8, {**fields, "wanted": wanted}, ANY, is_image)
