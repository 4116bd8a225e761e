"""diffusers' nets that stood last in the order of usual_families.py: what steers a denoiser, and a flow.

In: sizes as published, or narrower, or those widths with fewer layers. Out: `DENOISED`, by the names that
usual_families.py has. diffusers is imported when one is made: not everybody has it.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.usual_denoised import STABLE_1, STABLE_2, STEPS, stable
from zoo.plain import add_lora
from zoo.survey import ANY, Field, Net, below, floats


class Controlled(nn.Module):
    """A U-Net that stays as it is, and a copy of its first half that learns to steer it by hints."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        diffusers: Any = importlib.import_module("diffusers")
        self.unet = diffusers.UNet2DConditionModel(**config).requires_grad_(False)
        self.control_net = diffusers.ControlNetModel(**config)

    def forward(self, noisy: Tensor, timesteps: Tensor, texts: Tensor, hints: Tensor) -> Tensor:
        downs, middle = self.control_net(noisy, timesteps, texts, controlnet_cond=hints, return_dict=False)
        found: tuple[Tensor] = self.unet(
            noisy, timesteps, texts, down_block_additional_residuals=downs, mid_block_additional_residual=middle,
            return_dict=False,
        )  # fmt: skip
        return found[0]

    def enable_gradient_checkpointing(self) -> None:
        self.control_net.enable_gradient_checkpointing()


def control_net(side: int, widths: tuple[int, ...], heads: int | tuple[int, ...], text_width: int) -> Net:
    """As the script of diffusers trains it; hints are images."""

    def steer(net: nn.Module, wanted: Tensor, **inputs: Tensor) -> Tensor:
        return F.mse_loss(net(**inputs).float(), wanted.float())

    fields = {
        "noisy": floats(4, side, side), "timesteps": below(STEPS), "texts": floats(77, text_width),
        "hints": floats(3, 8 * side, 8 * side), "wanted": floats(4, side, side),
    }  # fmt: skip
    build = stable(widths, heads, text_width)
    return Net("control_net", lambda: Trained(Controlled(build), steer), 4, fields, ANY, True)


def packed(latents: Tensor) -> Tensor:
    """Two by two places are a token."""
    rows, channels, height, width = latents.shape
    cells = latents.view(rows, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return cells.reshape(rows, height * width // 4, 4 * channels)


def unpacked(tokens: Tensor, side: int) -> Tensor:
    rows, _, width = tokens.shape
    cells = tokens.view(rows, side // 2, side // 2, width // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return cells.reshape(rows, width // 4, side, side)


def grid_of(side: int) -> Field:
    """Where each token lies; the same for every row."""

    def field(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        places = torch.zeros(side, side, 3, device=device, dtype=dtype)
        places[..., 1] = torch.arange(side, device=device)[:, None]
        places[..., 2] = torch.arange(side, device=device)
        return places.view(-1, 3)

    return field


def flux(side: int, heads: int, layers: int, single_layers: int, texts: int, rank: int = 0) -> Net:
    """A straight way from images to noise, as the script of diffusers trains it; by adapters, if they have a rank."""
    config = {
        "num_layers": layers, "num_single_layers": single_layers, "num_attention_heads": heads, "guidance_embeds": True,
    }  # fmt: skip

    def follow(net: nn.Module, latents: Tensor, shares: Tensor, places: Tensor, **inputs: Tensor) -> Tensor:
        noise = torch.randn_like(latents)
        sigmas = shares.view(-1, 1, 1, 1)
        noisy = (1.0 - sigmas) * latents + sigmas * noise
        found = net(
            hidden_states=packed(noisy), timestep=shares, guidance=torch.full_like(shares, 3.5), img_ids=places,
            txt_ids=places.new_zeros(texts, 3), return_dict=False, **inputs,
        )[0]  # fmt: skip
        wanted = noise - latents
        return ((unpacked(found, side).float() - wanted.float()) ** 2).flatten(1).mean(1).mean()

    def build() -> nn.Module:
        model: Any = importlib.import_module("diffusers").FluxTransformer2DModel(**config)
        if rank:  # "0" is the only linear layer of to_out
            model = add_lora(model, ("to_q", "to_k", "to_v", "0"), rank)
        return Trained(model, follow)

    fields = {
        "latents": floats(16, side, side), "encoder_hidden_states": floats(texts, 4096),
        "pooled_projections": floats(768), "places": grid_of(side // 2),
        "shares": lambda rows, device, dtype: torch.rand(rows, device=device, dtype=dtype),
    }  # fmt: skip
    return Net("flux", build, 4, fields, ANY)


DENOISED: dict[str, Written] = {
    "control_net": Written(
        control_net, {"side": 16, "widths": (32, 32, 64, 64), "heads": 8, "text_width": 32},
        {"one": STABLE_1, "two": STABLE_2, "narrow": STABLE_1 | {"widths": (160, 320, 640, 640)}},
        {"side": (64, 64, 96)},
    ),
    "flux": Written(
        flux, {"side": 8, "heads": 1, "layers": 1, "single_layers": 2, "texts": 8, "rank": 4},
        {"narrow": {"heads": 12, "layers": 4, "single_layers": 8},
         "tenth": {"heads": 24, "layers": 2, "single_layers": 4},
         "adapted_fifth": {"heads": 24, "layers": 4, "single_layers": 8, "rank": 16}},
        {"side": (64, 64, 128), "texts": (256, 512)},
    ),
}  # fmt: skip
