"""diffusers' nets that people train: denoisers and an autoencoder.

In: sizes as published, or narrower. Out: `DENOISED`, by the names that usual_families.py has. diffusers is imported
when one is made: not everybody has it.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from zoo_libraries import Trained, Written
from zoo_survey_nets import ANY, Net, below, floats

STEPS = 1000


def denoiser(*args: Any, **options: Any) -> Net:
    found: Net = importlib.import_module("zoo_libraries_denoise").denoiser(*args, **options)
    return found


def unet_2d(side: int, widths: tuple[int, ...], layers: int, attended: tuple[int, ...]) -> Net:
    """The noise of images, with attention at some of the levels."""
    down = tuple("AttnDownBlock2D" if level in attended else "DownBlock2D" for level in range(len(widths)))
    config = {
        "sample_size": side, "block_out_channels": widths, "layers_per_block": layers, "down_block_types": down,
        "up_block_types": tuple(name.replace("Down", "Up") for name in reversed(down)),
        "norm_num_groups": min(32, widths[0]),
    }  # fmt: skip
    fields = {"sample": floats(3, side, side), "timestep": below(STEPS)}
    return denoiser("UNet2DModel", config, fields, floats(3, side, side), is_image=True)


def sdxl_unet(side: int, widths: tuple[int, int, int], depths: tuple[int, int, int], text_width: int) -> Net:
    """Beside the texts, sizes and crops are told in six numbers."""
    pooled = 1280
    config = {
        "sample_size": side, "block_out_channels": widths, "transformer_layers_per_block": depths,
        "cross_attention_dim": text_width, "attention_head_dim": tuple(width // 64 for width in widths),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), "use_linear_projection": True,
        "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": pooled + 6 * 256,
    }  # fmt: skip

    def denoise(net: nn.Module, wanted: Tensor, text_embeds: Tensor, time_ids: Tensor, **inputs: Any) -> Tensor:
        added = {"text_embeds": text_embeds, "time_ids": time_ids}
        return F.mse_loss(net(**inputs, added_cond_kwargs=added, return_dict=False)[0].float(), wanted.float())

    def build() -> nn.Module:
        return Trained(importlib.import_module("diffusers").UNet2DConditionModel(**config), denoise)

    fields = {
        "sample": floats(4, side, side), "timestep": below(STEPS), "encoder_hidden_states": floats(77, text_width),
        "text_embeds": floats(pooled), "time_ids": floats(6), "wanted": floats(4, side, side),
    }  # fmt: skip
    return Net("sdxl_unet", build, 4, fields, ANY, True)


def dit(side: int, heads: int, head_width: int, layers: int, patch_size: int) -> Net:
    config = {
        "sample_size": side, "num_attention_heads": heads, "attention_head_dim": head_width, "num_layers": layers,
        "patch_size": patch_size, "out_channels": 8,
    }  # fmt: skip
    fields = {"hidden_states": floats(4, side, side), "timestep": below(STEPS), "class_labels": below(1000)}
    return denoiser("DiTTransformer2DModel", config, fields, floats(8, side, side))


def autoencoder_kl(side: int, widths: tuple[int, ...], layers: int, latents: int) -> Net:
    """Images come back, and what stands for them is to be like noise."""
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * len(widths),
              "up_block_types": ("UpDecoderBlock2D",) * len(widths)}  # fmt: skip

    def rebuild(net: Any, images: Tensor) -> Tensor:
        found = net.encode(images).latent_dist
        again = net.decode(found.sample()).sample
        return F.l1_loss(again, images) + 1e-6 * found.kl().mean()

    def build() -> nn.Module:
        kind: Any = importlib.import_module("diffusers").AutoencoderKL
        return Trained(kind(block_out_channels=widths, layers_per_block=layers, latent_channels=latents,
                            norm_num_groups=min(32, widths[0]), **blocks), rebuild)  # fmt: skip

    return Net("autoencoder_kl", build, 4, {"images": floats(3, side, side)}, ANY, True)


DENOISED: dict[str, Written] = {
    "unet_2d": Written(
        unet_2d, {"side": 16, "widths": (16, 32), "layers": 1, "attended": (1,)},
        {"cifar": {"side": 32, "widths": (128, 256, 256, 256), "layers": 2, "attended": (1,)},
         "butterflies": {"side": 128, "widths": (128, 128, 256, 256, 512, 512), "layers": 2, "attended": (4,)},
         "faces": {"side": 64, "widths": (128, 256, 384, 512), "layers": 2, "attended": (2, 3)}},
    ),
    "sdxl_unet": Written(
        sdxl_unet, {"side": 16, "widths": (64, 64, 64), "depths": (1, 1, 1), "text_width": 32},
        {"narrow": {"widths": (192, 384, 768), "depths": (1, 2, 4)},
         "shallow": {"widths": (320, 640, 1280), "depths": (1, 1, 1)}},
        {"side": (64, 96, 128), "text_width": (1280, 2048)},
    ),
    "dit": Written(
        dit, {"side": 8, "heads": 2, "head_width": 16, "layers": 2, "patch_size": 2},
        {"small": {"heads": 6, "head_width": 64, "layers": 12}, "base": {"heads": 12, "head_width": 64, "layers": 12},
         "large": {"heads": 16, "head_width": 64, "layers": 24}},
        {"side": (32, 32, 64), "patch_size": (2, 2, 4)},
    ),
    "autoencoder_kl": Written(
        autoencoder_kl, {"side": 32, "widths": (32, 64), "layers": 1, "latents": 4},
        {"published": {"widths": (128, 256, 512, 512), "layers": 2},
         "narrow": {"widths": (64, 128, 256, 256), "layers": 2}},
        {"side": (128, 256), "latents": (4, 16)},
    ),
}  # fmt: skip
