"""Nets of the survey's third draw that make images, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def waves(moments: Tensor, width: int) -> Tensor:
    """Sines and cosines of moments, (rows) to (rows, width)."""
    rates = torch.exp(-math.log(10000) * torch.arange(width // 2, device=moments.device) / (width // 2))
    angles = moments.float()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Residual(nn.Module):
    """Two normed convolutions, with a shift by the moment if there is one."""

    def __init__(self, inputs: int, outputs: int, moment: int = 0) -> None:
        super().__init__()
        self.first_norm, self.first = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second_norm, self.second = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shift = nn.Linear(moment, outputs) if moment else None
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, moment: Tensor | None = None) -> Tensor:
        hidden = self.first(F.silu(self.first_norm(x)))
        if self.shift is not None and moment is not None:
            hidden = hidden + self.shift(F.silu(moment))[:, :, None, None]
        return self.shortcut(x) + self.second(F.silu(self.second_norm(hidden)))


class OneHead(nn.Module):
    """Attention of all pixels by one head as wide as the map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.leave = (
            nn.GroupNorm(32, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).flatten(2).chunk(3, dim=1)
        scores = torch.bmm(query.transpose(1, 2), key) * query.shape[1] ** -0.5
        found = torch.bmm(value, scores.softmax(dim=2).transpose(1, 2))
        return x + self.leave(found.unflatten(2, x.shape[2:]))


class KlAutoencoder(nn.Module):
    """The autoencoder of latent diffusion, and the critic of patches that it is trained against."""

    def __init__(self, width: int, scales: tuple[int, ...], depth: int, critic: int) -> None:
        super().__init__()
        sizes = [width * scale for scale in scales]
        down: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
        for number, (a, b) in enumerate(itertools.pairwise([width, *sizes])):
            down += [Residual(a if level == 0 else b, b) for level in range(depth)]
            if number < len(sizes) - 1:
                down += [nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(b, b, 3, 2)]
        top = sizes[-1]
        self.encoder = nn.Sequential(
            *down, Residual(top, top), OneHead(top), Residual(top, top), nn.GroupNorm(32, top), nn.SiLU(),
            nn.Conv2d(top, 8, 3, padding=1), nn.Conv2d(8, 8, 1),
        )  # fmt: skip
        up: list[nn.Module] = [nn.Conv2d(4, top, 3, padding=1), Residual(top, top), OneHead(top), Residual(top, top)]
        for number, (a, b) in enumerate(itertools.pairwise([top, *reversed(sizes)])):
            up += [Residual(a if level == 0 else b, b) for level in range(depth + 1)]
            if number < len(sizes) - 1:
                up += [nn.Upsample(scale_factor=2), nn.Conv2d(b, b, 3, padding=1)]
        self.decoder = nn.Sequential(*up, nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))
        judge: list[nn.Module] = [nn.Conv2d(3, critic, 4, 2, 1), nn.LeakyReLU(0.2)]
        for a, b, stride in ((1, 2, 2), (2, 4, 2), (4, 8, 1)):
            judge += [nn.Conv2d(a * critic, b * critic, 4, stride, 1, bias=False), nn.BatchNorm2d(b * critic)]
            judge.append(nn.LeakyReLU(0.2))
        self.critic = nn.Sequential(*judge, nn.Conv2d(8 * critic, 1, 4, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        log_variance = log_variance.clamp(-30, 20)
        made = self.decoder(mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean))
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=(1, 2, 3)).mean()
        self.critic.requires_grad_(False)
        loss = F.l1_loss(made, images) + 1e-6 * divergence - 0.5 * self.critic(made).mean()
        self.critic.requires_grad_(True)
        real, fake = self.critic(images), self.critic(made.detach())
        return loss + 0.5 * (F.relu(1 - real).mean() + F.relu(1 + fake).mean())


class SpatialTransformer(nn.Module):
    """Pixels attend to each other and to words, then a gated perceptron."""

    def __init__(self, width: int, words: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.enter, self.leave = (
            nn.GroupNorm(32, width),
            nn.Conv2d(width, width, 1),
            nn.Conv2d(width, width, 1),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.queries = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.keys = nn.ModuleList(nn.Linear(size, width, bias=False) for size in (width, words))
        self.values = nn.ModuleList(nn.Linear(size, width, bias=False) for size in (width, words))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def attend(self, number: int, x: Tensor, seen: Tensor) -> Tensor:
        query = heads_of(self.queries[number](x), self.heads)
        key, value = (heads_of(layers[number](seen), self.heads) for layers in (self.keys, self.values))
        found = F.scaled_dot_product_attention(query, key, value)
        return self.outs[number](found.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        tokens = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        normed = self.norms[0](tokens)
        tokens = tokens + self.attend(0, normed, normed)
        tokens = tokens + self.attend(1, self.norms[1](tokens), words)
        hidden, gate = self.up(self.norms[2](tokens)).chunk(2, dim=-1)
        tokens = tokens + self.down(hidden * F.gelu(gate))
        return x + self.leave(tokens.transpose(1, 2).unflatten(2, x.shape[2:]))


class Level(nn.Module):
    """Blocks of one resolution; maps that were kept on the way down are joined to what comes in."""

    def __init__(self, sizes: list[tuple[int, int]], words: int, heads: int, moment: int, attends: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(a, b, moment) for a, b in sizes)
        self.looks = nn.ModuleList(SpatialTransformer(b, words, heads) for _, b in sizes if attends)


class DownPath(nn.Module):
    """The half of the diffusion net that narrows, and its middle; gives every map it made."""

    def __init__(self, width: int, scales: tuple[int, ...], depth: int, words: int, heads: int) -> None:
        super().__init__()
        moment = 4 * width
        self.width, sizes = width, [width * scale for scale in scales]
        self.clock = nn.Sequential(nn.Linear(width, moment), nn.SiLU(), nn.Linear(moment, moment))
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.levels, self.strides = nn.ModuleList(), nn.ModuleList()
        for number, (a, b) in enumerate(itertools.pairwise([width, *sizes])):
            is_last = number == len(sizes) - 1
            self.levels.append(Level([(a, b)] + [(b, b)] * (depth - 1), words, heads, moment, not is_last))
            if not is_last:
                self.strides.append(nn.Conv2d(b, b, 3, 2, 1))
        top = sizes[-1]
        self.middle = nn.ModuleList([Residual(top, top, moment), Residual(top, top, moment)])
        self.look = SpatialTransformer(top, words, heads)
        self.kept_sizes = [width]
        for number, size in enumerate(sizes):
            self.kept_sizes += [size] * (depth + (number < len(sizes) - 1))

    def forward(
        self, noisy: Tensor, steps: Tensor, words: Tensor, hint: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        moment = self.clock(waves(steps, self.width).to(noisy.dtype))
        x = self.enter(noisy)
        x = x if hint is None else x + hint
        kept = [x]
        for number, level in enumerate(self.levels):
            for place, block in enumerate(level.blocks):
                x = block(x, moment)
                x = level.looks[place](x, words) if len(level.looks) else x
                kept.append(x)
            if number < len(self.strides):
                x = self.strides[number](x)
                kept.append(x)
        return [*kept, self.middle[1](self.look(self.middle[0](x, moment), words), moment)], moment


class LatentDiffusion(nn.Module):
    """The net of latent diffusion: predicts the noise of a latent image, told the words."""

    def __init__(self, width: int, scales: tuple[int, ...], depth: int, words: int, heads: int) -> None:
        super().__init__()
        self.down = DownPath(width, scales, depth, words, heads)
        sizes, moment = [width * scale for scale in scales], 4 * width
        kept = list(self.down.kept_sizes)
        self.levels, self.strides, x = nn.ModuleList(), nn.ModuleList(), sizes[-1]
        for number, size in reversed(list(enumerate(sizes))):
            pairs = []
            for _ in range(depth + 1):
                pairs.append((x + kept.pop(), size))
                x = size
            self.levels.append(Level(pairs, words, heads, moment, number < len(sizes) - 1))
            if number > 0:
                self.strides.append(nn.Conv2d(size, size, 3, padding=1))
        self.leave = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))
        self.register_buffer("kept_share", torch.linspace(0.9999, 0.01, 1000))

    def noised(self, latents: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn_like(latents)
        share = self.kept_share[steps][:, None, None, None].to(latents.dtype)
        return share.sqrt() * latents + (1 - share).sqrt() * noise, noise

    def up(self, maps: list[Tensor], moment: Tensor, words: Tensor) -> Tensor:
        *kept, x = maps
        for number, level in enumerate(self.levels):
            for place, block in enumerate(level.blocks):
                x = block(torch.cat([x, kept.pop()], dim=1), moment)
                x = level.looks[place](x, words) if len(level.looks) else x
            if number < len(self.strides):
                x = self.strides[number](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.leave(x)

    def forward(self, latents: Tensor, steps: Tensor, words: Tensor) -> Tensor:
        noisy, noise = self.noised(latents, steps)
        maps, moment = self.down(noisy, steps, words)
        return F.mse_loss(self.up(maps, moment, words).float(), noise.float())


class ControlNet(nn.Module):
    """A frozen diffusion net, steered by a trained copy of its way down that sees a drawing."""

    def __init__(self, width: int, scales: tuple[int, ...], depth: int, words: int, heads: int) -> None:
        super().__init__()
        self.base = LatentDiffusion(width, scales, depth, words, heads).requires_grad_(False)
        self.copy = DownPath(width, scales, depth, words, heads)
        sizes, hint = (16, 16, 32, 32, 96, 96, 256), []
        for number, (a, b) in enumerate(itertools.pairwise((3, *sizes))):
            hint += [nn.Conv2d(a, b, 3, 2 if number in (2, 4, 6) else 1, 1), nn.SiLU()]
        self.hint = nn.Sequential(*hint, self.zeros(nn.Conv2d(sizes[-1], width, 3, padding=1)))
        kept = (*self.copy.kept_sizes, width * scales[-1])
        self.gates = nn.ModuleList(self.zeros(nn.Conv2d(size, size, 1)) for size in kept)

    @staticmethod
    def zeros(layer: nn.Conv2d) -> nn.Conv2d:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
        return layer

    def forward(self, latents: Tensor, steps: Tensor, words: Tensor, drawing: Tensor) -> Tensor:
        noisy, noise = self.base.noised(latents, steps)
        steers, _ = self.copy(noisy, steps, words, self.hint(drawing))
        with torch.no_grad():
            maps, moment = self.base.down(noisy, steps, words)
        steered = [x + gate(steer) for x, gate, steer in zip(maps, self.gates, steers, strict=True)]
        return F.mse_loss(self.base.up(steered, moment, words).float(), noise.float())
