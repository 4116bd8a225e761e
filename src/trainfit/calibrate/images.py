"""Workloads of image models: norms, resizing, losses per pixel.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from trainfit.calibrate.workloads import BF16, FP32, Workload


def image(batch: int, channels: int, size: int, dtype: torch.dtype, nhwc: bool) -> torch.Tensor:
    if nhwc:
        return torch.randn(batch, size, size, channels, device="cuda", dtype=dtype).permute(0, 3, 1, 2)
    return torch.randn(batch, channels, size, size, device="cuda", dtype=dtype)


def batch_norm(batch: int, channels: int, size: int, dtype: torch.dtype, nhwc: bool) -> None:
    """With weights of fp32, as under autocast."""
    layer = nn.BatchNorm2d(channels, device="cuda")
    x = image(batch, channels, size, dtype, nhwc).requires_grad_()
    layer(x).backward(image(batch, channels, size, dtype, nhwc))


def norms() -> list[Workload]:
    shapes = (
        (256, 32, 112), (96, 64, 112), (32, 96, 112), (96, 64, 56), (16, 256, 56), (96, 256, 56), (96, 144, 56),
        (256, 128, 28), (96, 512, 28), (96, 240, 28), (256, 256, 14), (16, 1024, 14), (96, 1024, 14), (96, 672, 14),
        (256, 512, 7), (16, 2048, 7), (96, 2048, 7), (96, 1152, 7), (8, 256, 128), (4, 128, 256),
    )  # fmt: skip
    return [partial(batch_norm, *case, dtype, nhwc)
            for case, dtype, nhwc in itertools.product(shapes, (BF16, FP32), (False, True))]  # fmt: skip


def resized(batch: int, channels: int, size: int, scale: int, dtype: torch.dtype, nhwc: bool) -> None:
    """Features brought to a larger size."""
    for mode in ("bilinear", "nearest"):
        x = image(batch, channels, size, dtype, nhwc).requires_grad_()
        out = F.interpolate(x, scale_factor=scale, mode=mode)
        out.backward(image(batch, channels, size * scale, dtype, nhwc))


def per_pixel(batch: int, classes: int, size: int) -> None:
    """The loss of a segmentation."""
    logits = image(batch, classes, size, FP32, False).requires_grad_()
    F.cross_entropy(logits, torch.randint(classes, (batch, size, size), device="cuda")).backward()


def maps() -> list[Workload]:
    sizes = ((8, 256, 64, 2), (8, 256, 32, 4), (4, 256, 16, 8), (8, 96, 128, 4), (16, 64, 32, 2), (2, 20, 128, 4))
    losses = ((4, 19, 512), (8, 150, 256), (2, 21, 256), (16, 2, 256), (4, 150, 512))
    return [
        *(partial(resized, *case, dtype, nhwc)
          for case, dtype, nhwc in itertools.product(sizes, (BF16, FP32), (False, True))),
        *(partial(per_pixel, *loss) for loss in losses),
    ]  # fmt: skip
