"""Nets of the survey's third draw that attend to tokens, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.survey.third.diffusion import heads_of, waves


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale[:, None]) + shift[:, None]


def turned(x: Tensor, base: float = 10000.0) -> Tensor:
    """Rotary positions, halves of the last axis as pairs; (rows, heads, tokens, size)."""
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * rates
    cos, sin = torch.cat([angles.cos()] * 2, dim=-1).to(x.dtype), torch.cat([angles.sin()] * 2, dim=-1).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class RootNorm(nn.Module):
    """RMS norm, written out as most models have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class GatedMlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Stream(nn.Module):
    """What images and words each have for themselves in a block of both."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.before, self.after = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.query_norm, self.key_norm = nn.RMSNorm(width // heads, eps=1e-6), nn.RMSNorm(width // heads, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def ask(self, x: Tensor, moment: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        parts = self.modulation(moment).chunk(6, dim=1)
        query, key, value = (
            heads_of(part, self.heads) for part in self.qkv(modulated(self.before(x), *parts[:2])).chunk(3, dim=-1)
        )
        return [self.query_norm(query), self.key_norm(key), value], parts

    def answer(self, x: Tensor, found: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
        x = x + parts[2][:, None] * self.leave(found)
        return x + parts[5][:, None] * self.mlp(modulated(self.after(x), *parts[3:5]))


class JointBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.pixels, self.words = Stream(width, heads), Stream(width, heads)

    def forward(self, pixels: Tensor, words: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
        seen, seen_parts = self.pixels.ask(pixels, moment)
        read, read_parts = self.words.ask(words, moment)
        query, key, value = (torch.cat([a, b], dim=2) for a, b in zip(read, seen, strict=True))
        found = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        of_words, of_pixels = found[:, : words.shape[1]], found[:, words.shape[1] :]
        return self.pixels.answer(pixels, of_pixels, seen_parts), self.words.answer(words, of_words, read_parts)


class MmDit(nn.Module):
    """A diffusion transformer whose images and words have weights of their own and attend together; learns velocity."""

    def __init__(self, channels: int, side: int, words: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.side, self.width = side, width
        self.patches, self.read = nn.Conv2d(channels, width, 2, 2), nn.Linear(words, width)
        self.places = nn.Parameter(torch.zeros(1, side * side, width))
        self.clock = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.pooled = nn.Sequential(nn.Linear(768, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(JointBlock(width, heads) for _ in range(depth))
        self.last = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.leave = nn.Linear(width, 4 * channels)

    def forward(self, latents: Tensor, words: Tensor, pooled: Tensor) -> Tensor:
        noise = torch.randn_like(latents)
        moments = torch.sigmoid(torch.randn(len(latents), device=latents.device, dtype=latents.dtype))
        mixed = moments[:, None, None, None] * noise + (1 - moments[:, None, None, None]) * latents
        moment = self.clock(waves(moments * 1000, 256).to(latents.dtype)) + self.pooled(pooled)
        pixels, read = self.patches(mixed).flatten(2).transpose(1, 2) + self.places, self.read(words)
        for block in self.blocks:
            pixels, read = block(pixels, read, moment)
        pixels = self.leave(modulated(self.norm(pixels), *self.last(moment).chunk(2, dim=1)))
        grid = pixels.unflatten(1, (self.side, self.side)).unflatten(3, (2, 2, -1))
        velocity = grid.permute(0, 5, 1, 3, 2, 4).reshape(latents.shape)
        return F.mse_loss(velocity.float(), (noise - latents).float())


class LatentAttention(nn.Module):
    """Multi-head latent attention: keys and values from a narrow latent, positions in a part that heads share."""

    def __init__(self, width: int, heads: int, latent: int, plain: int, turned_size: int) -> None:
        super().__init__()
        self.heads, self.plain, self.turned_size = heads, plain, turned_size
        self.query = nn.Linear(width, heads * (plain + turned_size), bias=False)
        self.narrow = nn.Linear(width, latent + turned_size, bias=False)
        self.norm = RootNorm(latent)
        self.widen = nn.Linear(latent, heads * 2 * plain, bias=False)
        self.leave = nn.Linear(heads * plain, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, query_place = heads_of(self.query(x), self.heads).split([self.plain, self.turned_size], dim=-1)
        latent, place = self.narrow(x).split([self.norm.weight.shape[0], self.turned_size], dim=-1)
        key, value = heads_of(self.widen(self.norm(latent)), self.heads).chunk(2, dim=-1)
        place = turned(place[:, None]).expand(-1, self.heads, -1, -1)
        query, key = torch.cat([query, turned(query_place)], dim=-1), torch.cat([key, place], dim=-1)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.leave(found.transpose(1, 2).flatten(2))


class MlaLM(nn.Module):
    """A language model with latent attention."""

    def __init__(self, vocab: int, width: int, heads: int, latent: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        self.attentions = nn.ModuleList(
            LatentAttention(width, heads, latent, width // heads, width // heads // 2) for _ in range(depth)
        )
        self.mlps = nn.ModuleList(GatedMlp(width, width * 8 // 3) for _ in range(depth))
        self.norms = nn.ModuleList(RootNorm(width) for _ in range(2 * depth + 1))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, norms = self.words(tokens), iter(self.norms)
        for attention, mlp in zip(self.attentions, self.mlps, strict=True):
            x = x + attention(next(norms)(x))
            x = x + mlp(next(norms)(x))
        logits = self.head(next(norms)(x))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class VideoBlock(nn.Module):
    """A block of a diffusion transformer over the pixels of a frame, or over the frames of a pixel."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.before, self.after = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, moment: Tensor) -> Tensor:
        parts = self.modulation(moment).chunk(6, dim=1)
        normed = modulated(self.before(x), *parts[:2])
        query, key, value = (heads_of(part, self.heads) for part in self.qkv(normed).chunk(3, dim=-1))
        found = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + parts[2][:, None] * self.leave(found)
        return x + parts[5][:, None] * self.mlp(modulated(self.after(x), *parts[3:5]))


class VideoDit(nn.Module):
    """A diffusion transformer of films (Latte): blocks over space and over time take turns."""

    def __init__(self, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches, self.labels = nn.Conv2d(4, width, 2, 2), nn.Embedding(classes, width)
        self.clock = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(VideoBlock(width, heads) for _ in range(depth))
        self.last = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.norm, self.leave = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6), nn.Linear(width, 16)

    def forward(self, film: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        rows, frames = film.shape[:2]
        noise = torch.randn_like(film)
        angle = (steps / 1000 * math.pi / 2)[:, None, None, None, None].to(film.dtype)
        x = self.patches((film * angle.cos() + noise * angle.sin()).flatten(0, 1)).flatten(2).transpose(1, 2)
        pixels = x.shape[1]
        moment = self.clock(waves(steps, 256).to(film.dtype)) + self.labels(labels)
        of_frames, of_pixels = (moment.repeat_interleave(count, dim=0) for count in (frames, pixels))
        moments = torch.arange(frames, device=x.device), torch.arange(pixels, device=x.device)
        x = x + waves(moments[1], x.shape[2]).to(x.dtype)
        for number, block in enumerate(self.blocks):
            if number % 2 == 0:
                x = block(x, of_frames)
                continue
            x = x.unflatten(0, (rows, frames)).transpose(1, 2).flatten(0, 1)
            x = x + waves(moments[0], x.shape[2]).to(x.dtype) if number == 1 else x
            x = block(x, of_pixels).unflatten(0, (rows, pixels)).transpose(1, 2).flatten(0, 1)
        x = self.leave(modulated(self.norm(x), *self.last(of_frames).chunk(2, dim=1)))
        side = math.isqrt(pixels)
        made = x.view(rows, frames, side, side, 2, 2, 4).permute(0, 1, 6, 2, 4, 3, 5).reshape(film.shape)
        return F.mse_loss(made.float(), noise.float())
