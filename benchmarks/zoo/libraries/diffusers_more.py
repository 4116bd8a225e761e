"""More nets of diffusers: denoisers of pictures and films, autoencoders, a net beside a frozen one.

Out: `MORE`, which zoo/libraries/diffusers.py adds to its own.
"""

from __future__ import annotations

from typing import Any

import diffusers
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.denoise import STEPS, denoiser, present
from zoo.survey import ANY, Net, below, floats, nodes


def pixart(side: int, heads: int, head_width: int, layers: int, texts: int, text_width: int) -> Net:
    config = {
        "sample_size": side, "num_attention_heads": heads, "attention_head_dim": head_width, "num_layers": layers,
        "cross_attention_dim": heads * head_width, "caption_channels": text_width, "use_additional_conditions": False,
    }  # fmt: skip
    fields = {
        "hidden_states": floats(4, side, side),
        "encoder_hidden_states": floats(texts, text_width),
        "encoder_attention_mask": present(texts),
        "timestep": below(STEPS),
    }
    conditions = {"resolution": None, "aspect_ratio": None}
    return denoiser("PixArtTransformer2DModel", config, fields, floats(8, side, side), added_cond_kwargs=conditions)


def cog_video_x(side: int, frames: int, heads: int, layers: int, texts: int, text_width: int) -> Net:
    config = {
        "sample_width": side, "sample_height": side, "sample_frames": 4 * frames - 3, "num_attention_heads": heads,
        "num_layers": layers, "max_text_seq_length": texts, "text_embed_dim": text_width,
    }  # fmt: skip
    fields = {
        "hidden_states": floats(frames, 16, side, side),
        "encoder_hidden_states": floats(texts, text_width),
        "timestep": below(STEPS),
    }
    return denoiser("CogVideoXTransformer3DModel", config, fields, floats(frames, 16, side, side))


def aura_flow(side: int, heads: int, layers: int, single_layers: int, texts: int, text_width: int) -> Net:
    config = {
        "sample_size": side, "num_attention_heads": heads, "num_mmdit_layers": layers,
        "num_single_dit_layers": single_layers, "joint_attention_dim": text_width,
        "caption_projection_dim": heads * 256,
    }  # fmt: skip
    fields = {
        "hidden_states": floats(4, side, side),
        "encoder_hidden_states": floats(texts, text_width),
        "timestep": floats(),
    }
    return denoiser("AuraFlowTransformer2DModel", config, fields, floats(4, side, side))


def stable_cascade(side: int, width: int, layers: tuple[int, int], texts: int) -> Net:
    config = {
        "block_out_channels": (width, width), "num_attention_heads": (width // 64, width // 64),
        "conditioning_dim": width, "down_num_layers_per_block": layers, "up_num_layers_per_block": layers[::-1],
        "clip_text_in_channels": 1280, "clip_image_in_channels": 768, "switch_level": (False,),
    }  # fmt: skip
    fields = {
        "sample": floats(16, side, side),
        "timestep_ratio": floats(),
        "clip_text_pooled": floats(1, 1280),
        "clip_text": floats(texts, 1280),
        "clip_img": floats(1, 768),
    }
    return denoiser("StableCascadeUNet", config, fields, floats(16, side, side), is_image=True)


def motion_unet(side: int, frames: int, widths: tuple[int, ...], layers: int) -> Net:
    outer = len(widths) - 1
    config = {
        "sample_size": side, "block_out_channels": widths, "layers_per_block": layers, "cross_attention_dim": 768,
        "down_block_types": (*("CrossAttnDownBlockMotion",) * outer, "DownBlockMotion"),
        "up_block_types": ("UpBlockMotion", *("CrossAttnUpBlockMotion",) * outer), "motion_max_seq_length": 32,
    }  # fmt: skip
    fields = {
        "sample": floats(4, frames, side, side),
        "timestep": below(STEPS),
        "encoder_hidden_states": nodes(frames, 77, 768),
    }
    return denoiser("UNetMotionModel", config, fields, floats(4, frames, side, side))


def ltx_video(frames: int, side: int, heads: int, layers: int, texts: int, text_width: int) -> Net:
    config = {
        "num_attention_heads": heads, "cross_attention_dim": heads * 64, "num_layers": layers,
        "caption_channels": text_width,
    }  # fmt: skip
    tokens = frames * side * side
    fields = {
        "hidden_states": floats(tokens, 128),
        "encoder_hidden_states": floats(texts, text_width),
        "encoder_attention_mask": present(texts),
        "timestep": below(STEPS),
    }
    shape = {"num_frames": frames, "height": side, "width": side}
    return denoiser("LTXVideoTransformer3DModel", config, fields, floats(tokens, 128), **shape)


def rebuild(net: nn.Module, images: Tensor) -> Tensor:
    return F.mse_loss(net(images).sample, images)


def autoencoder(name: str, side: int, **config: Any) -> Net:
    def build() -> nn.Module:
        return Trained(getattr(diffusers, name)(**config), rebuild)

    return Net(name, build, 4, {"images": floats(3, side, side)}, ANY, True)


def autoencoder_kl(side: int, widths: tuple[int, ...], layers: int, latents: int) -> Net:
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * len(widths),
              "up_block_types": ("UpDecoderBlock2D",) * len(widths)}  # fmt: skip
    sizes = {"block_out_channels": widths, "layers_per_block": layers, "latent_channels": latents}
    return autoencoder("AutoencoderKL", side, **blocks, **sizes)


def autoencoder_dc(side: int, widths: tuple[int, ...], layers: tuple[int, ...], plain: int) -> Net:
    """`plain` of its stages have no attention."""
    attended = len(widths) - plain
    blocks = ("ResBlock",) * plain + ("EfficientViTBlock",) * attended
    scales: tuple[tuple[int, ...], ...] = ((),) * plain + ((5,),) * attended
    halves = {}
    for half in ("encoder", "decoder"):
        halves |= {f"{half}_block_types": blocks, f"{half}_block_out_channels": widths,
                   f"{half}_layers_per_block": layers, f"{half}_qkv_multiscales": scales}  # fmt: skip
    return autoencoder("AutoencoderDC", side, **halves)


def vq_model(side: int, widths: tuple[int, ...], layers: int, codes: int) -> Net:
    config: dict[str, Any] = {
        "block_out_channels": widths, "layers_per_block": layers, "latent_channels": 4, "num_vq_embeddings": codes,
        "down_block_types": ("DownEncoderBlock2D",) * len(widths), "vq_embed_dim": 4,
        "up_block_types": ("UpDecoderBlock2D",) * len(widths),
    }  # fmt: skip

    def quantise(net: nn.Module, images: Tensor) -> Tensor:
        rebuilt, distance = net(images, return_dict=False)
        return F.mse_loss(rebuilt, images) + distance.mean()

    def build() -> nn.Module:
        return Trained(diffusers.VQModel(**config), quantise)

    return Net("VQModel", build, 4, {"images": floats(3, side, side)}, ANY, True)


class Controlled(nn.Module):
    """A net that steers a frozen one."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        outer = len(config["block_out_channels"]) - 1
        down = (*("CrossAttnDownBlock2D",) * outer, "DownBlock2D")
        up = ("UpBlock2D", *("CrossAttnUpBlock2D",) * outer)
        self.frozen = diffusers.UNet2DConditionModel(down_block_types=down, up_block_types=up, **config)
        self.frozen.requires_grad_(False)
        self.steering = diffusers.ControlNetModel(down_block_types=down, **config)

    def forward(self, sample: Tensor, timestep: Tensor, texts: Tensor, hints: Tensor, return_dict: bool) -> Any:
        downs, middle = self.steering(sample, timestep, texts, hints, return_dict=False)
        return self.frozen(
            sample, timestep, texts, down_block_additional_residuals=downs, mid_block_additional_residual=middle,
            return_dict=return_dict,
        )  # fmt: skip


def control_net(side: int, widths: tuple[int, ...], layers: int, texts: int, text_width: int) -> Net:
    config = {"block_out_channels": widths, "layers_per_block": layers, "cross_attention_dim": text_width}

    def steer(net: nn.Module, wanted: Tensor, **inputs: Tensor) -> Tensor:
        return F.mse_loss(net(**inputs, return_dict=False)[0], wanted)

    fields = {
        "sample": floats(4, side, side),
        "timestep": below(STEPS),
        "texts": floats(texts, text_width),
        "hints": floats(3, 8 * side, 8 * side),
        "wanted": floats(4, side, side),
    }
    return Net("ControlNetModel", lambda: Trained(Controlled(config), steer), 4, fields, ANY, True)


MORE = {
    "pixart": Written(
        pixart,
        {"side": 8, "heads": 2, "head_width": 16, "layers": 2, "texts": 8, "text_width": 32},
        {"half": {"side": 64, "heads": 16, "head_width": 72, "layers": 14, "texts": 120, "text_width": 4096},
         "base": {"side": 32, "heads": 12, "head_width": 64, "layers": 12, "texts": 120, "text_width": 4096}},
    ),
    "cog_video_x": Written(
        cog_video_x,
        {"side": 8, "frames": 2, "heads": 2, "layers": 2, "texts": 8, "text_width": 32},
        {"deep": {"side": 32, "frames": 5, "heads": 16, "layers": 12, "texts": 226, "text_width": 4096},
         "long": {"side": 24, "frames": 13, "heads": 20, "layers": 6, "texts": 226, "text_width": 4096}},
    ),
    "aura_flow": Written(
        aura_flow,
        {"side": 8, "heads": 1, "layers": 1, "single_layers": 1, "texts": 8, "text_width": 32},
        {"narrow": {"side": 64, "heads": 4, "layers": 2, "single_layers": 12, "texts": 256, "text_width": 2048},
         "wide": {"side": 32, "heads": 6, "layers": 2, "single_layers": 6, "texts": 256, "text_width": 2048}},
    ),
    "stable_cascade": Written(
        stable_cascade,
        {"side": 8, "width": 64, "layers": (1, 1), "texts": 8},
        {"narrow": {"side": 24, "width": 768, "layers": (2, 6), "texts": 77},
         "wide": {"side": 24, "width": 1024, "layers": (2, 4), "texts": 77}},
    ),
    "motion_unet": Written(
        motion_unet,
        {"side": 8, "frames": 2, "widths": (32, 64), "layers": 1},
        {"narrow": {"side": 32, "frames": 16, "widths": (160, 320, 640), "layers": 1},
         "wide": {"side": 32, "frames": 8, "widths": (320, 640), "layers": 1}},
    ),
    "ltx_video": Written(
        ltx_video,
        {"frames": 2, "side": 4, "heads": 2, "layers": 2, "texts": 8, "text_width": 32},
        {"half": {"frames": 5, "side": 16, "heads": 16, "layers": 14, "texts": 128, "text_width": 4096},
         "wide": {"frames": 9, "side": 16, "heads": 24, "layers": 8, "texts": 128, "text_width": 4096}},
    ),
    "autoencoder_kl": Written(
        autoencoder_kl,
        {"side": 32, "widths": (32, 64), "layers": 1, "latents": 4},
        {"usual": {"side": 256, "widths": (128, 256, 512, 512), "layers": 2, "latents": 4},
         "small": {"side": 192, "widths": (128, 256, 512), "layers": 2, "latents": 16}},
    ),
    "autoencoder_dc": Written(
        autoencoder_dc,
        {"side": 32, "widths": (32, 64), "layers": (1, 1), "plain": 1},
        {"f32": {"side": 256, "widths": (128, 256, 512, 512, 1024, 1024), "layers": (2, 2, 2, 3, 3, 3), "plain": 3},
         "narrow": {"side": 256, "widths": (64, 128, 256, 512, 512), "layers": (2, 2, 2, 3, 3), "plain": 3}},
    ),
    "vq_model": Written(
        vq_model,
        {"side": 32, "widths": (32, 64), "layers": 1, "codes": 32},
        {"f8": {"side": 256, "widths": (128, 256, 256, 512), "layers": 2, "codes": 16384},
         "f4": {"side": 128, "widths": (128, 256, 512), "layers": 2, "codes": 8192}},
    ),
    "control_net": Written(
        control_net,
        {"side": 8, "widths": (32, 64), "layers": 1, "texts": 8, "text_width": 32},
        {"half": {"side": 64, "widths": (160, 320, 640, 640), "layers": 2, "texts": 77, "text_width": 768},
         "short": {"side": 32, "widths": (320, 640, 1280), "layers": 1, "texts": 77, "text_width": 768}},
    ),
}  # fmt: skip
