"""Nets of the survey's fourth draw that denoise images, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.survey.third.diffusion import heads_of, waves


class ScaledResidual(nn.Module):
    """Normed convolutions, the second scaled and shifted by the noise level; sizes change on both ways (BigGAN)."""

    def __init__(self, inputs: int, outputs: int, level_size: int, resize: float) -> None:
        super().__init__()
        self.resize = resize
        self.norms = nn.ModuleList([nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)])
        self.first, self.second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.film, self.dropout = nn.Linear(level_size, 2 * outputs), nn.Dropout(0.2)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def resized(self, x: Tensor) -> Tensor:
        if self.resize < 1:
            return F.avg_pool2d(x, 2)
        return F.interpolate(x, scale_factor=2.0, mode="nearest") if self.resize > 1 else x

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        hidden = self.first(self.resized(F.silu(self.norms[0](x))))
        scale, shift = self.film(level)[:, :, None, None].chunk(2, dim=1)
        hidden = self.second(self.dropout(F.silu(self.norms[1](hidden) * (1 + scale) + shift)))
        return hidden + self.shortcut(self.resized(x))


class PixelHeads(nn.Module):
    """Attention of every pixel to every pixel."""

    def __init__(self, width: int, head_size: int) -> None:
        super().__init__()
        self.heads, self.norm = max(1, width // head_size), nn.GroupNorm(32, width)
        self.qkv, self.leave = nn.Conv1d(width, 3 * width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x).flatten(2)).unflatten(1, (3, self.heads, -1)).permute(1, 0, 2, 4, 3)
        seen = F.scaled_dot_product_attention(*parts).transpose(2, 3).flatten(1, 2)
        return x + self.leave(seen).view(x.shape)


class Both(nn.Module):
    """A residual block, and attention where asked."""

    def __init__(self, inputs: int, outputs: int, level_size: int, attends: bool, resize: float = 1.0) -> None:
        super().__init__()
        self.block = ScaledResidual(inputs, outputs, level_size, resize)
        self.attention = PixelHeads(outputs, 64) if attends else nn.Identity()

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        return self.attention(self.block(x, level))


class PaletteNet(nn.Module):
    """Palette: one picture is made of another by a U-Net over pixels that sees both and the noise level."""

    def __init__(self, width: int, scales: tuple[int, ...], depth: int, attending: int) -> None:
        super().__init__()
        self.width, size = width, 4 * width
        self.level = nn.Sequential(nn.Linear(width, size), nn.SiLU(), nn.Linear(size, size))
        self.enter = nn.Conv2d(6, width, 3, padding=1)
        down, kept, inputs = [], [width], width
        for number, scale in enumerate(scales):
            attends, is_last = number >= attending, number == len(scales) - 1
            for _ in range(depth):
                down.append(Both(inputs, scale * width, size, attends))
                inputs = scale * width
                kept.append(inputs)
            if not is_last:
                down.append(Both(inputs, inputs, size, False, 0.5))
                kept.append(inputs)
        self.down = nn.ModuleList(down)
        self.middle = nn.ModuleList([Both(inputs, inputs, size, True), Both(inputs, inputs, size, False)])
        up = []
        for number, scale in reversed(list(enumerate(scales))):
            for _ in range(depth + 1):
                up.append(Both(inputs + kept.pop(), scale * width, size, number >= attending))
                inputs = scale * width
            if number:
                up.append(Both(inputs, inputs, size, False, 2.0))
        self.up = nn.ModuleList(up)
        self.leave = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, given: Tensor, wanted: Tensor, levels: Tensor) -> Tensor:
        gamma = levels.float().sigmoid()
        noise, share = torch.randn_like(wanted), gamma[:, None, None, None]
        mixed = (share.sqrt() * wanted + (1 - share).sqrt() * noise).to(wanted.dtype)
        level = self.level(waves(1000 * gamma, self.width).to(wanted.dtype))
        kept = [self.enter(torch.cat([given, mixed], dim=1))]
        for block in self.down:
            kept.append(block(kept[-1], level))
        x = kept[-1]
        for block in self.middle:
            x = block(x, level)
        for block in self.up:
            x = block(x if block.block.resize > 1 else torch.cat([x, kept.pop()], dim=1), level)
        return F.mse_loss(self.leave(x).float(), noise.float())


class TokenLayer(nn.Module):
    """A transformer's layer; in the second half it first takes in what the first half kept."""

    def __init__(self, width: int, heads: int, takes: bool) -> None:
        super().__init__()
        self.heads, self.join = heads, nn.Linear(2 * width, width) if takes else None
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.leave = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        if self.join is not None and kept is not None:
            x = self.join(torch.cat([x, kept], dim=-1))
        parts = (heads_of(part, self.heads) for part in self.qkv(self.before(x)).chunk(3, dim=-1))
        x = x + self.leave(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x))


class UVit(nn.Module):
    """U-ViT: patches, the moment and the class are tokens; long shortcuts join the layers' halves."""

    def __init__(self, side: int, patch: int, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.width, self.patch, count = width, patch, (side // patch) ** 2
        self.patches, self.labels = nn.Conv2d(4, width, patch, patch), nn.Embedding(classes, width)
        self.moment = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.places = nn.Parameter(torch.zeros(1, count + 2, width))
        self.first = nn.ModuleList(TokenLayer(width, heads, False) for _ in range(depth // 2))
        self.middle = TokenLayer(width, heads, False)
        self.second = nn.ModuleList(TokenLayer(width, heads, True) for _ in range(depth // 2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4 * patch * patch)
        self.smooth = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, latents: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        noise, angle = torch.randn_like(latents), (steps * (torch.pi / 2000))[:, None, None, None]
        mixed = (latents * angle.cos() + noise * angle.sin()).to(latents.dtype)
        x = self.patches(mixed).flatten(2).transpose(1, 2)
        moment = self.moment(waves(steps, self.width).to(latents.dtype))
        x = torch.cat([moment[:, None].to(x.dtype), self.labels(labels)[:, None].to(x.dtype), x], dim=1) + self.places
        kept = []
        for layer in self.first:
            x = layer(x)
            kept.append(x)
        x = self.middle(x)
        for layer in self.second:
            x = layer(x, kept.pop())
        made = self.head(self.norm(x))[:, 2:].transpose(1, 2)
        image = self.smooth(F.fold(made, latents.shape[2:], self.patch, stride=self.patch))
        return F.mse_loss(image.float(), noise.float())
