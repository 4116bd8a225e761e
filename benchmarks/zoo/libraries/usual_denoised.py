"""diffusers' nets that people train: denoisers and an autoencoder.

In: sizes as published, or narrower. Out: `DENOISED`, by the names that usual_families.py has. diffusers is imported
when one is made: not everybody has it.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import ANY, Net, below, floats

STEPS = 1000


def denoiser(*args: Any, **options: Any) -> Net:
    found: Net = importlib.import_module("zoo.libraries.denoise").denoiser(*args, **options)
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


def sd_3(side: int, layers: int, heads: int, texts: int, **others: Any) -> Net:
    """Words and patches are tokens of the same layers."""
    config = {
        "sample_size": side, "num_layers": layers, "num_attention_heads": heads, "caption_projection_dim": 64 * heads,
        "pos_embed_max_size": 192, **others,
    }  # fmt: skip
    fields = {
        "hidden_states": floats(16, side, side), "encoder_hidden_states": floats(texts, 4096),
        "pooled_projections": floats(2048), "timestep": below(STEPS),
    }  # fmt: skip
    return denoiser("SD3Transformer2DModel", config, fields, floats(16, side, side))


def stable(widths: tuple[int, ...], heads: int | tuple[int, ...], text_width: int) -> dict[str, Any]:
    """What nets of Stable Diffusion have in common, one and two."""
    return {"block_out_channels": widths, "attention_head_dim": heads, "cross_attention_dim": text_width,
            "use_linear_projection": isinstance(heads, tuple)}  # fmt: skip


def sd_unet(side: int, widths: tuple[int, ...], heads: int | tuple[int, ...], text_width: int) -> Net:
    config = {"sample_size": side} | stable(widths, heads, text_width)
    fields = {
        "sample": floats(4, side, side), "timestep": below(STEPS), "encoder_hidden_states": floats(77, text_width),
    }  # fmt: skip
    return denoiser("UNet2DConditionModel", config, fields, floats(4, side, side), is_image=True)


STABLE_1: dict[str, Any] = {"widths": (320, 640, 1280, 1280), "heads": 8, "text_width": 768}
STABLE_2: dict[str, Any] = {"widths": (320, 640, 1280, 1280), "heads": (5, 10, 20, 20), "text_width": 1024}
DENOISED: dict[str, Written] = {
    "unet_2d": Written(
        unet_2d, {"side": 16, "widths": (16, 32), "layers": 1, "attended": (1,)},
        {"cifar": {"side": 32, "widths": (128, 256, 256, 256), "layers": 2, "attended": (1,)},
         "butterflies": {"side": 128, "widths": (128, 128, 256, 256, 512, 512), "layers": 2, "attended": (4,)},
         "faces": {"side": 64, "widths": (128, 256, 384, 512), "layers": 2, "attended": (2, 3)}},
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
    "sd_3": Written(
        sd_3, {"side": 16, "layers": 2, "heads": 2, "texts": 8},
        {"third": {"layers": 8, "heads": 24}, "narrow": {"layers": 12, "heads": 12},
         "later": {"layers": 12, "heads": 16, "qk_norm": "rms_norm", "dual_attention_layers": (0, 1, 2, 3, 4, 5)}},
        {"side": (64, 64, 128), "texts": (154, 333)},
    ),
    "sd_unet": Written(
        sd_unet, {"side": 16, "widths": (32, 32, 64, 64), "heads": 8, "text_width": 32},
        {"one": STABLE_1, "two": STABLE_2, "narrow": STABLE_1 | {"widths": (160, 320, 640, 640)}},
        {"side": (32, 64, 64, 96)},
    ),
}  # fmt: skip
