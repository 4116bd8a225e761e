"""Nets of diffusers that were drawn last: denoisers of pictures and films, and a small autoencoder.

Out: `SEALED`, which zoo/libraries/diffusers.py adds to its own.
"""

from __future__ import annotations

from typing import Any

import diffusers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.denoise import STEPS, denoiser, places, present
from zoo.survey import ANY, Field, Net, below, floats


def cosmos(side: int, frames: int, heads: int, layers: int, texts: int, text_width: int) -> Net:
    config = {"num_attention_heads": heads, "num_layers": layers, "text_embed_dim": text_width}
    fields = {
        "hidden_states": floats(16, frames, side, side),
        "timestep": below(STEPS),
        "encoder_hidden_states": floats(texts, text_width),
        "padding_mask": places(1, 1, 8 * side, 8 * side),
    }
    return denoiser("CosmosTransformer3DModel", config, fields, floats(16, frames, side, side), fps=24)


def autoencoder_tiny(side: int, width: int, latents: int) -> Net:
    """It is trained without rounding in the middle."""

    def rebuild(net: Any, images: Tensor) -> Tensor:
        return F.l1_loss(net.decode(net.encode(images).latents).sample, images)

    def build() -> nn.Module:
        widths = (width,) * 4
        net = diffusers.AutoencoderTiny(
            encoder_block_out_channels=widths, decoder_block_out_channels=widths, latent_channels=latents
        )
        return Trained(net, rebuild)

    return Net("AutoencoderTiny", build, 16, {"images": floats(3, side, side)}, ANY, True)


def kandinsky_3(side: int, width: int, groups: int, layers: int, texts: int, text_width: int, inner: int) -> Net:
    """`inner` is how wide texts are inside."""
    config = {
        "block_out_channels": (width, 2 * width, 4 * width, 8 * width), "time_embedding_dim": 4 * width,
        "groups": groups, "layers_per_block": layers, "cross_attention_dim": inner, "encoder_hid_dim": text_width,
    }  # fmt: skip
    fields = {
        "sample": floats(4, side, side),
        "timestep": below(STEPS),
        "encoder_hidden_states": floats(texts, text_width),
        "encoder_attention_mask": present(texts),
    }
    return denoiser("Kandinsky3UNet", config, fields, floats(4, side, side), is_image=True)


def present_before(texts: int, tokens: int) -> Field:
    """Which words are there, then all of the picture."""
    words = present(texts)
    return lambda rows, device, dtype: F.pad(words(rows, device, dtype), (0, tokens), value=True)


def chroma(tokens: int, heads: int, layers: int, single_layers: int, texts: int, guide: int) -> Net:
    """`guide` is how wide the net is that modulates all layers."""
    config = {
        "num_layers": layers, "num_single_layers": single_layers, "num_attention_heads": heads,
        "approximator_hidden_dim": guide,
    }  # fmt: skip
    fields = {
        "hidden_states": floats(tokens, 64),
        "encoder_hidden_states": floats(texts, 4096),
        "timestep": floats(),
        "img_ids": places(tokens, 3),
        "txt_ids": places(texts, 3),
        "attention_mask": present_before(texts, tokens),
    }
    return denoiser("ChromaTransformer2DModel", config, fields, floats(tokens, 64))


def z_image(side: int, heads: int, layers: int, texts: int, text_width: int) -> Net:
    config: dict[str, Any] = {
        "dim": 128 * heads, "n_heads": heads, "n_kv_heads": heads, "n_layers": layers, "cap_feat_dim": text_width,
    }  # fmt: skip

    def flow(net: nn.Module, latents: Tensor, times: Tensor, texts: Tensor, wanted: Tensor) -> Tensor:
        found = net(list(latents.unbind()), times, list(texts.unbind()), return_dict=False)[0]
        return F.mse_loss(torch.stack(found), wanted)

    fields = {
        "latents": floats(16, 1, side, side),
        "times": floats(),
        "texts": floats(texts, text_width),
        "wanted": floats(16, 1, side, side),
    }
    return Net("ZImage", lambda: Trained(diffusers.ZImageTransformer2DModel(**config), flow), 8, fields, ANY)


def unet_of_texts(side: int, widths: tuple[int, ...], layers: int, text_width: int, **others: Any) -> Net:
    outer = len(widths) - 1
    config = {
        "sample_size": side, "block_out_channels": widths, "layers_per_block": layers,
        "cross_attention_dim": text_width, "down_block_types": (*("CrossAttnDownBlock2D",) * outer, "DownBlock2D"),
        "up_block_types": ("UpBlock2D", *("CrossAttnUpBlock2D",) * outer), **others,
    }  # fmt: skip
    fields = {
        "sample": floats(4, side, side),
        "timestep": below(STEPS),
        "encoder_hidden_states": floats(77, text_width),
    }
    return denoiser("UNet2DConditionModel", config, fields, floats(4, side, side), is_image=True)


def sana(side: int, heads: int, layers: int, texts: int, text_width: int) -> Net:
    width = 32 * heads
    config = {
        "sample_size": side, "num_attention_heads": heads, "num_layers": layers, "caption_channels": text_width,
        "num_cross_attention_heads": heads // 2, "cross_attention_head_dim": 64, "cross_attention_dim": width,
    }  # fmt: skip
    fields = {
        "hidden_states": floats(32, side, side),
        "encoder_hidden_states": floats(texts, text_width),
        "encoder_attention_mask": present(texts),
        "timestep": below(STEPS),
    }
    return denoiser("SanaTransformer2DModel", config, fields, floats(32, side, side))


def dit(side: int, heads: int, head_width: int, layers: int) -> Net:
    config = {
        "sample_size": side, "num_attention_heads": heads, "attention_head_dim": head_width, "num_layers": layers,
        "out_channels": 8,
    }  # fmt: skip
    fields = {"hidden_states": floats(4, side, side), "timestep": below(STEPS), "class_labels": below(1000)}
    return denoiser("DiTTransformer2DModel", config, fields, floats(8, side, side))


def unet_of_films(side: int, frames: int, widths: tuple[int, ...], layers: int, text_width: int) -> Net:
    outer = len(widths) - 1
    config = {
        "sample_size": side, "block_out_channels": widths, "layers_per_block": layers, "attention_head_dim": 32,
        "cross_attention_dim": text_width, "down_block_types": (*("CrossAttnDownBlock3D",) * outer, "DownBlock3D"),
        "up_block_types": ("UpBlock3D", *("CrossAttnUpBlock3D",) * outer),
    }  # fmt: skip
    fields = {
        "sample": floats(4, frames, side, side),
        "timestep": below(STEPS),
        "encoder_hidden_states": floats(77, text_width),
    }
    return denoiser("UNet3DConditionModel", config, fields, floats(4, frames, side, side))


SEALED = {
    "cosmos": Written(
        cosmos,
        {"side": 8, "frames": 2, "heads": 1, "layers": 1, "texts": 8, "text_width": 32},
        {"deep": {"side": 32, "frames": 4, "heads": 8, "layers": 12, "texts": 512, "text_width": 1024},
         "wide": {"side": 40, "frames": 6, "heads": 12, "layers": 6, "texts": 512, "text_width": 1024}},
    ),
    "autoencoder_tiny": Written(
        autoencoder_tiny,
        {"side": 32, "width": 16, "latents": 4},
        {"4": {"side": 256, "width": 64, "latents": 4}, "16": {"side": 384, "width": 96, "latents": 16}},
    ),
    "kandinsky_3": Written(
        kandinsky_3,
        {"side": 16, "width": 64, "groups": 8, "layers": 2, "texts": 8, "text_width": 32, "inner": 64},
        {"narrow": {"side": 64, "width": 96, "groups": 16, "layers": 3, "texts": 128, "text_width": 4096,
                    "inner": 1024},
         "wide": {"side": 32, "width": 128, "groups": 32, "layers": 2, "texts": 77, "text_width": 2048,
                  "inner": 1024}},
    ),
    "chroma": Written(
        chroma,
        {"tokens": 16, "heads": 1, "layers": 1, "single_layers": 2, "texts": 8, "guide": 64},
        {"narrow": {"tokens": 1024, "heads": 8, "layers": 4, "single_layers": 10, "texts": 256, "guide": 2048},
         "wide": {"tokens": 576, "heads": 12, "layers": 2, "single_layers": 6, "texts": 512, "guide": 2048}},
    ),
    "z_image": Written(
        z_image,
        {"side": 8, "heads": 1, "layers": 1, "texts": 8, "text_width": 32},
        {"narrow": {"side": 64, "heads": 8, "layers": 10, "texts": 160, "text_width": 2560},
         "wide": {"side": 48, "heads": 12, "layers": 6, "texts": 100, "text_width": 2560}},
    ),
    "unet_of_texts": Written(
        unet_of_texts,
        {"side": 8, "widths": (32, 64), "layers": 1, "text_width": 32},
        {"half": {"side": 64, "widths": (160, 320, 640, 640), "layers": 2, "text_width": 768},
         "linear": {"side": 64, "widths": (192, 384, 768), "layers": 2, "text_width": 1024,
                    "attention_head_dim": (3, 6, 12), "transformer_layers_per_block": (1, 2, 4),
                    "use_linear_projection": True}},
    ),
    "sana": Written(
        sana,
        {"side": 8, "heads": 2, "layers": 2, "texts": 8, "text_width": 32},
        {"half": {"side": 32, "heads": 36, "layers": 14, "texts": 300, "text_width": 2304},
         "narrow": {"side": 64, "heads": 24, "layers": 16, "texts": 300, "text_width": 2304}},
    ),
    "dit": Written(
        dit,
        {"side": 8, "heads": 2, "head_width": 16, "layers": 2},
        {"base": {"side": 32, "heads": 12, "head_width": 64, "layers": 12},
         "half": {"side": 64, "heads": 16, "head_width": 72, "layers": 14}},
    ),
    "unet_of_films": Written(
        unet_of_films,
        {"side": 8, "frames": 2, "widths": (32, 64), "layers": 1, "text_width": 32},
        {"narrow": {"side": 32, "frames": 16, "widths": (128, 256, 512), "layers": 1, "text_width": 1024},
         "short": {"side": 32, "frames": 8, "widths": (160, 320, 640), "layers": 1, "text_width": 1024}},
    ),
}  # fmt: skip
