"""Nets of denoising_diffusion_pytorch: images, films and series are denoised.

Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written, stand_ins
from zoo.survey import WITH_FP32_WEIGHTS, Net, below, floats

with stand_ins("scipy", "scipy.optimize", "accelerate"):
    from denoising_diffusion_pytorch import GaussianDiffusion1D, Unet1D
    from denoising_diffusion_pytorch.karras_unet import KarrasUnet
    from denoising_diffusion_pytorch.karras_unet_1d import KarrasUnet1D
    from denoising_diffusion_pytorch.karras_unet_3d import KarrasUnet3D


def denoise(net: nn.Module, noisy: Tensor, times: Tensor, clean: Tensor) -> Tensor:
    return F.mse_loss(net(noisy, time=times), clean)


def karras(make: Any, shape: tuple[int, ...], dim: int, **sizes: Any) -> Net:
    """`shape` is channels, then frames if there are any, then sides or a length."""
    channels, *lengths = shape
    size = {"seq_len": lengths[0]} if len(lengths) == 1 else {"image_size": lengths[-1]}
    if len(lengths) == 3:
        size["frames"] = lengths[0]
    build = partial(make, dim=dim, channels=channels, **size, **sizes)
    fields = {"noisy": floats(*shape), "times": floats(), "clean": floats(*shape)}
    may_be_channels_last = len(lengths) == 2
    return Net(make.__name__, lambda: Trained(build(), denoise), 8, fields, WITH_FP32_WEIGHTS, may_be_channels_last)


def unet_1d(length: int, channels: int, dim: int, **sizes: Any) -> Net:
    """With the library's own noise and loss."""

    def noised_loss(net: nn.Module, series: Tensor, times: Tensor) -> Tensor:
        loss: Tensor = net(series, times=times)
        return loss

    def build() -> nn.Module:
        net = Unet1D(dim=dim, channels=channels, **sizes)
        return Trained(GaussianDiffusion1D(net, seq_length=length, auto_normalize=False), noised_loss)

    fields = {"series": floats(channels, length), "times": below(1000)}
    return Net("Unet1D", build, 32, fields, WITH_FP32_WEIGHTS)


WRITTEN: dict[str, Written] = {
    "karras_unet": Written(
        partial(karras, KarrasUnet),
        {"shape": (4, 16, 16), "dim": 16, "dim_max": 32, "num_downsamples": 1, "num_blocks_per_stage": 1,
         "attn_res": (8,), "attn_dim_head": 16},
        {"latent": {"shape": (4, 64, 64), "dim": 192, "dim_max": 768, "num_downsamples": 3, "num_blocks_per_stage": 2},
         "pixels": {"shape": (3, 64, 64), "dim": 128, "dim_max": 512, "num_downsamples": 3, "num_blocks_per_stage": 3,
                    "attn_flash": True}},
    ),
    "karras_unet_1d": Written(
        partial(karras, KarrasUnet1D),
        {"shape": (4, 32), "dim": 16, "dim_max": 32, "num_downsamples": 1, "num_blocks_per_stage": 1,
         "attn_res": (16,), "attn_dim_head": 16},
        {"long": {"shape": (8, 2048), "dim": 128, "dim_max": 512, "num_downsamples": 4, "attn_res": (256, 128)},
         "wide": {"shape": (64, 512), "dim": 192, "dim_max": 768, "num_downsamples": 3, "attn_res": (128, 64)}},
    ),
    "karras_unet_3d": Written(
        partial(karras, KarrasUnet3D),
        {"shape": (4, 4, 16, 16), "dim": 16, "dim_max": 32, "num_downsamples": 1, "num_blocks_per_stage": 1,
         "attn_res": (8,), "attn_dim_head": 16},
        {"latent": {"shape": (4, 8, 32, 32), "dim": 128, "dim_max": 384, "num_downsamples": 3,
                    "num_blocks_per_stage": (2, 2, 2, 2), "attn_res": (16, 8), "factorize_space_time_attn": True}},
    ),
    "unet_1d": Written(
        unet_1d, {"length": 32, "channels": 4, "dim": 16, "dim_mults": (1, 2)},
        {"base": {"length": 1024, "channels": 32, "dim": 128, "dim_mults": (1, 2, 4, 8)},
         "conditioned": {"length": 2048, "channels": 8, "dim": 96, "dim_mults": (1, 2, 4, 8),
                         "learned_sinusoidal_cond": True}},
    ),
}  # fmt: skip
