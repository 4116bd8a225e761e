"""Nets of monai that were drawn last: scans are segmented, denoised and filled in.

Out: `SEALED`, which zoo/libraries/monai.py adds to its own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from monai.losses.dice import DiceCELoss
from monai.networks import nets
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.segment import FEW, ORGANS, TUMOURS, segmenting
from zoo.survey import ANY, Net, below, floats


def high_res_net(width: int, last: int, **sizes: Any) -> Net:
    """Nothing is made smaller; filters are spread out more and more instead."""
    residual = [
        {"name": f"res_{number}", "n_features": width * number, "kernels": (3, 3), "repeat": 3} for number in (1, 2, 4)
    ]
    layers = (
        {"name": "conv_0", "n_features": width, "kernel_size": 3},
        *residual,
        {"name": "conv_1", "n_features": last, "kernel_size": 1},
        {"name": "conv_2", "kernel_size": 1},
    )
    return segmenting("HighResNet", spatial_dims=3, layer_params=layers, **sizes)


def diffusion_unet(dims: int, side: int, channels: int, widths: tuple[int, ...], layers: int, **options: Any) -> Net:
    def denoise(net: nn.Module, noisy: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        return F.mse_loss(net(noisy, steps), noise)

    def build() -> nn.Module:
        net = nets.DiffusionModelUNet(
            dims, channels, channels, num_res_blocks=layers, channels=widths,
            attention_levels=(False, *(True,) * (len(widths) - 1)), **options,
        )  # fmt: skip
        return Trained(net, denoise)

    scan = floats(channels, *(side,) * dims)
    return Net("DiffusionModelUNet", build, 4, {"noisy": scan, "steps": below(1000), "noise": scan}, ANY, dims == 2)


def masked_vit(side: int, patch: int, width: int, layers: int, heads: int, inner: int) -> Net:
    """`inner` is how wide the decoder is."""

    def fill_in(net: nn.Module, scans: Tensor) -> Tensor:
        found, hidden = net(scans)
        patches = rearrange(
            scans, "b c (x i) (y j) (z k) -> b (x y z) (i j k c)", i=patch, j=patch, k=patch
        )  # fmt: skip
        return ((found - patches).square().mean(-1) * hidden).sum() / hidden.sum()

    def build() -> nn.Module:
        net = nets.MaskedAutoEncoderViT(
            1, side, patch, hidden_size=width, mlp_dim=4 * width, num_layers=layers, num_heads=heads,
            decoder_hidden_size=inner, decoder_mlp_dim=4 * inner, decoder_num_heads=heads,
        )  # fmt: skip
        return Trained(net, fill_in)

    fields = {"scans": floats(1, side, side, side)}
    return Net("MaskedAutoEncoderViT", build, 8, fields, ("fp32", "tf32"))  # others: its types do not match


def dyn_unet(side: int, channels: int, segments: int, widths: tuple[int, ...], **options: Any) -> Net:
    """Smaller scales are to find the segments too, and count less."""

    def segment(net: nn.Module, scans: Tensor, segments: Tensor) -> Tensor:
        loss: Any = DiceCELoss(to_onehot_y=True, softmax=True)
        losses = [loss(scores, segments) / 2**number for number, scores in enumerate(net(scans).unbind(1))]
        return torch.stack(losses).sum()

    def build() -> nn.Module:
        halved = (2,) * (len(widths) - 1)
        net = nets.DynUNet(
            3, channels, segments, (3,) * len(widths), (1, *halved), halved, filters=widths, deep_supervision=True,
            deep_supr_num=len(widths) - 3, **options,
        )  # fmt: skip
        return Trained(net, segment)

    fields = {"scans": floats(channels, side, side, side), "segments": below(segments, 1, side, side, side)}
    return Net("DynUNet", build, 2, fields, ANY)


def v_net(**sizes: Any) -> Net:
    return segmenting("VNet", spatial_dims=3, **sizes)


SEALED = {
    "high_res_net": Written(
        high_res_net, FEW | {"width": 4, "last": 8},
        {"organs": ORGANS | {"width": 16, "last": 80}, "wide": ORGANS | {"side": 64, "width": 32, "last": 160}},
    ),
    "diffusion_unet": Written(
        diffusion_unet,
        {"dims": 2, "side": 16, "channels": 1, "widths": (32, 32), "layers": 1},
        {"image": {"dims": 2, "side": 64, "channels": 1, "widths": (128, 256, 256), "layers": 1,
                   "num_head_channels": 256},
         "latent": {"dims": 3, "side": 32, "channels": 8, "widths": (128, 256, 384), "layers": 2,
                    "num_head_channels": 64, "use_flash_attention": True}},
    ),
    "masked_vit": Written(
        masked_vit,
        {"side": 16, "patch": 8, "width": 48, "layers": 2, "heads": 2, "inner": 48},
        {"base": {"side": 96, "patch": 16, "width": 768, "layers": 12, "heads": 12, "inner": 384},
         "fine": {"side": 96, "patch": 8, "width": 384, "layers": 8, "heads": 6, "inner": 192}},
    ),
    "dyn_unet": Written(
        dyn_unet, FEW | {"widths": (4, 8, 8, 16)},
        {"organs": ORGANS | {"widths": (32, 64, 128, 256, 320)},
         "tumours": TUMOURS | {"widths": (32, 64, 128, 256, 320, 320), "res_block": True}},
    ),
    "v_net": Written(v_net, FEW, {"organs": ORGANS | {"side": 64}, "tumours": TUMOURS | {"side": 96}}),
}  # fmt: skip
