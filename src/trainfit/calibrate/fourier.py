"""Workloads of Fourier transforms: along rows, over planes and volumes, and along a dimension in the middle.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

from functools import partial

import torch

from trainfit.calibrate.workloads import Workload, randn

_ROWS = (
    (64, 256), (1024, 512), (4096, 1000), (16384, 2048), (65536, 1024), (524_288, 64), (1_048_576, 16), (8192, 48),
    (512, 8192), (64, 65536), (2048, 320), (32768, 96), (4096, 257), (1024, 1018), (65536, 37), (100, 12_298),
    (196_608, 7), (8192, 256), (4096, 512), (2048, 1024), (1024, 2048), (32768, 400), (65536, 512), (16384, 1024),
    (256, 1200), (32768, 128), (512, 4096),
)  # fmt: skip
_PLANES = (
    (16384, 8, 8), (65536, 16, 16), (2048, 24, 24), (512, 32, 32), (16384, 32, 32), (256, 48, 48), (64, 64, 64),
    (4096, 64, 64), (1024, 96, 96), (64, 128, 128), (1024, 128, 128), (4096, 128, 128), (32, 192, 192), (256, 256, 256),
    (8, 512, 512), (4, 1024, 1024), (1024, 16, 128), (2048, 32, 64), (256, 64, 512), (64, 100, 200), (512, 33, 65),
    (128, 240, 121),
)  # fmt: skip
_VOLUMES = ((8, 32, 32, 32), (16, 64, 64, 64), (64, 16, 24, 24))
_MIDDLE = ((8, 512, 768), (64, 1024, 64), (4096, 32, 64), (128, 192, 64))


def transforms(*shape: int) -> None:
    """There and back over all dimensions but the first, and the gradients of both."""
    x = randn(*shape).requires_grad_()
    dims = tuple(range(1, len(shape)))
    torch.fft.irfftn(torch.fft.rfftn(x, dim=dims), shape[1:], dims).backward(randn(*shape))
    y = torch.view_as_complex(randn(*shape, 2))
    torch.fft.ifftn(y, dim=dims)


def along_middle(*shape: int) -> None:
    """Mixing along a sequence, and a spectrum of each channel."""
    torch.fft.rfft(randn(*shape).requires_grad_(), dim=1).abs().sum().backward()


def fourier() -> list[Workload]:
    shapes = (*_ROWS, *_PLANES, *_VOLUMES)
    return [*(partial(transforms, *shape) for shape in shapes), *(partial(along_middle, *shape) for shape in _MIDDLE)]
