"""Nets of pytorchvideo: films are sorted into classes.

Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from pytorchvideo.models.csn import create_csn
from pytorchvideo.models.slowfast import create_slowfast
from pytorchvideo.models.x3d import create_x3d
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import ANY, Net, below, floats

NUM_CLASSES = 400


def classify(net: nn.Module, film: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(film), labels)


def classifying(name: str, build: Any, frames: int, side: int) -> Net:
    fields = {"film": floats(3, frames, side, side), "labels": below(NUM_CLASSES)}
    return Net(name, lambda: Trained(build(), classify), 4, fields, ANY)


def slow_fast(frames: int, side: int, **sizes: Any) -> Net:
    """One path sees a quarter of the frames and is wide, the other one sees all."""
    slow = frames // 4
    small = side // 32

    def both(net: nn.Module, slow: Tensor, fast: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(net([slow, fast]), labels)

    def build() -> nn.Module:
        pools = ((slow, small, small), (frames, small, small))
        return Trained(create_slowfast(head_pool_kernel_sizes=pools, **sizes), both)

    fields = {"slow": floats(3, slow, side, side), "fast": floats(3, frames, side, side), "labels": below(NUM_CLASSES)}
    return Net("SlowFast", build, 4, fields, ANY)


def x3d(frames: int, side: int, **sizes: Any) -> Net:
    def build() -> nn.Module:
        return create_x3d(input_clip_length=frames, input_crop_size=side, head_activation=None, **sizes)

    return classifying("X3D", build, frames, side)


def channel_separated(frames: int, side: int, **sizes: Any) -> Net:
    def build() -> nn.Module:
        return create_csn(head_pool_kernel_size=(frames // 8, side // 32, side // 32), **sizes)

    return classifying("CSN", build, frames, side)


WRITTEN: dict[str, Written] = {
    "slow_fast": Written(
        slow_fast, {"frames": 8, "side": 64, "stem_dim_outs": (16, 2)},
        {"50": {"frames": 32, "side": 224}, "101": {"frames": 32, "side": 224, "model_depth": 101},
         "50_short": {"frames": 16, "side": 256}},
    ),
    "x3d": Written(
        x3d, {"frames": 4, "side": 64, "depth_factor": 1.0, "width_factor": 1.0},
        {"large": {"frames": 16, "side": 312, "depth_factor": 5.0},
         "extra_large": {"frames": 16, "side": 312, "depth_factor": 5.0, "width_factor": 2.9}},
    ),
    "channel_separated": Written(
        channel_separated, {"frames": 8, "side": 64, "stem_dim_out": 8},
        {"101": {"frames": 32, "side": 224, "model_depth": 101}, "50": {"frames": 32, "side": 224}},
    ),
}  # fmt: skip
