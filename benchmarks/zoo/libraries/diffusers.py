"""Nets of diffusers: denoisers and autoencoders, with configurations as published or narrower.

Out: `WRITTEN`, by the names that libraries_draw.py has. Denoisers are to give what they are told to give (the noise, or
a velocity), autoencoders their input.
"""

from __future__ import annotations

from typing import Any

import diffusers
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.denoise import STEPS, denoiser, places, present
from zoo.libraries.diffusers_more import MORE
from zoo.libraries.diffusers_sealed import SEALED
from zoo.survey import ANY, Net, below, floats, nodes


def sd_3(side: int, layers: int, heads: int, texts: int, text_width: int, **others: Any) -> Net:
    config = {
        "sample_size": side, "num_layers": layers, "num_attention_heads": heads, "joint_attention_dim": text_width,
        "caption_projection_dim": 64 * heads, "pooled_projection_dim": 2048, "pos_embed_max_size": 96, **others,
    }  # fmt: skip
    fields = {
        "hidden_states": floats(16, side, side),
        "encoder_hidden_states": floats(texts, text_width),
        "pooled_projections": floats(2048),
        "timestep": below(STEPS),
    }
    return denoiser("SD3Transformer2DModel", config, fields, floats(16, side, side))


def flux(tokens: int, heads: int, layers: int, single_layers: int, texts: int, text_width: int) -> Net:
    config = {
        "num_layers": layers, "num_single_layers": single_layers, "num_attention_heads": heads,
        "joint_attention_dim": text_width, "pooled_projection_dim": 768, "guidance_embeds": True,
    }  # fmt: skip
    fields = {
        "hidden_states": floats(tokens, 64),
        "encoder_hidden_states": floats(texts, text_width),
        "pooled_projections": floats(768),
        "timestep": floats(),
        "guidance": floats(),
        "img_ids": places(tokens, 3),
        "txt_ids": places(texts, 3),
    }
    return denoiser("FluxTransformer2DModel", config, fields, floats(tokens, 64))


def temporal_decoder(widths: tuple[int, ...], layers: int, frames: int, side: int) -> Net:
    config = {
        "block_out_channels": widths, "down_block_types": ("DownEncoderBlock2D",) * len(widths),
        "layers_per_block": layers, "latent_channels": 4,
    }  # fmt: skip

    def rebuild(net: nn.Module, film: Tensor) -> Tensor:
        return F.mse_loss(net(film, num_frames=frames, sample_posterior=True).sample, film)

    def build() -> nn.Module:
        return Trained(diffusers.AutoencoderKLTemporalDecoder(**config), rebuild)

    return Net("temporal_decoder", build, 1, {"film": nodes(frames, 3, side, side)}, ANY)


def spatio_temporal_unet(widths: tuple[int, ...], heads: tuple[int, ...], frames: int, side: int) -> Net:
    config = {
        "sample_size": side, "block_out_channels": widths, "num_attention_heads": heads, "num_frames": frames,
        "down_block_types": ("CrossAttnDownBlockSpatioTemporal",) * (len(widths) - 1) + ("DownBlockSpatioTemporal",),
        "up_block_types": ("UpBlockSpatioTemporal",) + ("CrossAttnUpBlockSpatioTemporal",) * (len(widths) - 1),
    }  # fmt: skip
    fields = {
        "sample": floats(frames, 8, side, side),
        "timestep": floats(),
        "encoder_hidden_states": floats(1, 1024),
        "added_time_ids": floats(3),
    }
    return denoiser("UNetSpatioTemporalConditionModel", config, fields, floats(frames, 4, side, side))


def unet_2d(widths: tuple[int, ...], layers: int, side: int, head_width: int) -> Net:
    inner = len(widths) - 2
    config = {
        "sample_size": side, "block_out_channels": widths, "layers_per_block": layers, "attention_head_dim": head_width,
        "down_block_types": ("DownBlock2D", *("AttnDownBlock2D",) * inner, "DownBlock2D"),
        "up_block_types": ("UpBlock2D", *("AttnUpBlock2D",) * inner, "UpBlock2D"),
    }  # fmt: skip
    fields = {"sample": floats(3, side, side), "timestep": below(STEPS)}
    return denoiser("UNet2DModel", config, fields, floats(3, side, side), is_image=True)


def qwen_image(side: int, heads: int, layers: int, texts: int, text_width: int) -> Net:
    config = {"num_layers": layers, "num_attention_heads": heads, "joint_attention_dim": text_width}
    fields = {
        "hidden_states": floats(side * side, 64),
        "encoder_hidden_states": floats(texts, text_width),
        "encoder_hidden_states_mask": present(texts),
        "timestep": floats(),
    }
    shapes = [[(1, side, side)]]
    return denoiser("QwenImageTransformer2DModel", config, fields, floats(side * side, 64), img_shapes=shapes)


WRITTEN = MORE | SEALED | {
    "sd_3": Written(
        sd_3,
        {"side": 16, "layers": 2, "heads": 2, "texts": 8, "text_width": 64},
        {
            "small": {"side": 64, "layers": 12, "heads": 12, "texts": 154, "text_width": 4096},
            "medium": {"side": 64, "layers": 12, "heads": 16, "texts": 333, "text_width": 4096,
                       "qk_norm": "rms_norm", "dual_attention_layers": (0, 1, 2, 3, 4, 5)},
            "wide": {"side": 32, "layers": 10, "heads": 18, "texts": 154, "text_width": 4096},
        },
    ),
    "flux": Written(
        flux,
        {"tokens": 16, "heads": 1, "layers": 1, "single_layers": 2, "texts": 8, "text_width": 64},
        {
            "narrow": {"tokens": 1024, "heads": 8, "layers": 4, "single_layers": 8, "texts": 256, "text_width": 4096},
            "wide": {"tokens": 1024, "heads": 12, "layers": 3, "single_layers": 6, "texts": 512, "text_width": 4096},
        },
    ),
    "temporal_decoder": Written(
        temporal_decoder,
        {"widths": (32, 64), "layers": 1, "frames": 2, "side": 32},
        {
            "short": {"widths": (128, 256, 512, 512), "layers": 2, "frames": 4, "side": 192},
            "long": {"widths": (128, 256, 512, 512), "layers": 2, "frames": 14, "side": 128},
        },
    ),
    "spatio_temporal_unet": Written(
        spatio_temporal_unet,
        {"widths": (32, 64), "heads": (2, 4), "frames": 2, "side": 16},
        {
            "narrow": {"widths": (160, 320, 640, 640), "heads": (5, 10, 20, 20), "frames": 14, "side": 32},
            "small": {"widths": (128, 256, 512), "heads": (4, 8, 16), "frames": 8, "side": 40},
        },
    ),
    "qwen_image": Written(
        qwen_image,
        {"side": 4, "heads": 1, "layers": 1, "texts": 8, "text_width": 64},
        {
            "deep": {"side": 32, "heads": 8, "layers": 8, "texts": 128, "text_width": 3584},
            "wide": {"side": 24, "heads": 12, "layers": 4, "texts": 256, "text_width": 3584},
        },
    ),
    "unet_2d": Written(
        unet_2d,
        {"widths": (32, 32, 64), "layers": 1, "side": 16, "head_width": 8},
        {
            "church": {"widths": (128, 128, 256, 256, 512, 512), "layers": 2, "side": 128, "head_width": 64},
            "default": {"widths": (224, 448, 672, 896), "layers": 2, "side": 64, "head_width": 32},
        },
    ),
}  # fmt: skip
