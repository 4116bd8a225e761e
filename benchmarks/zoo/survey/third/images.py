"""Nets of the survey's third draw over images, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def normed(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, dilation: int = 1
) -> nn.Sequential:
    """A convolution that keeps the size, or divides it by the stride, and a batch norm."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias=False), nn.BatchNorm2d(outputs)
    )


class InvertedBottleneck(nn.Module):
    """MBConv with squeeze and excitation; pre-normed, with a pooled shortcut where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        hidden = 4 * outputs
        self.norm = nn.BatchNorm2d(inputs)
        self.enter = nn.Sequential(normed(inputs, hidden, 1), nn.GELU("tanh"))
        self.middle = nn.Sequential(normed(hidden, hidden, 3, stride, hidden), nn.GELU("tanh"))
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(hidden, outputs // 4, 1), nn.SiLU(), nn.Conv2d(outputs // 4, hidden, 1),
            nn.Sigmoid(),
        )  # fmt: skip
        self.leave = nn.Conv2d(hidden, outputs, 1)
        pool = nn.AvgPool2d(3, 2, 1) if stride == 2 else nn.Identity()
        is_same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if is_same else nn.Sequential(pool, nn.Conv2d(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.middle(self.enter(self.norm(x)))
        return self.shortcut(x) + self.leave(hidden * self.gate(hidden))


class BiasedAttention(nn.Module):
    """A transformer's layer over a square of pixels, with a learned bias for every offset; (squares, pixels, width)."""

    def __init__(self, width: int, side: int, head_size: int = 32) -> None:
        super().__init__()
        self.heads, count = width // head_size, 2 * side - 1
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.table = nn.Parameter(torch.zeros(count * count, self.heads))
        at = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        apart = at[:, None] - at[None, :] + side - 1
        self.register_buffer("offsets", apart[..., 0] * count + apart[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, dim=-1)
        )
        bias = self.table[self.offsets.flatten()].view(*self.offsets.shape, -1).permute(2, 0, 1)
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1) + bias
        x = x + self.leave((scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x))


class MaxVitBlock(nn.Module):
    """A bottleneck, attention within windows, attention over a coarse grid."""

    def __init__(self, inputs: int, outputs: int, stride: int, window: int) -> None:
        super().__init__()
        self.window, self.bottleneck = window, InvertedBottleneck(inputs, outputs, stride)
        self.near, self.far = BiasedAttention(outputs, window), BiasedAttention(outputs, window)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bottleneck(x).permute(0, 2, 3, 1)
        rows, height, width, size = x.shape
        side = self.window
        x = x.view(rows, height // side, side, width // side, side, size).transpose(2, 3)
        x = self.near(x.reshape(-1, side * side, size)).view(rows, height // side, width // side, side, side, size)
        x = x.transpose(2, 3).reshape(rows, side, height // side, side, width // side, size)
        x = self.far(x.permute(0, 2, 4, 1, 3, 5).reshape(-1, side * side, size))
        x = x.view(rows, height // side, width // side, side, side, size).permute(0, 5, 3, 1, 4, 2)
        return x.reshape(rows, size, height, width)


class MaxVit(nn.Module):
    """MaxViT: every block sees near and far."""

    def __init__(self, stem: int, sizes: tuple[int, ...], depths: tuple[int, ...], window: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(normed(3, stem, 3, 2), nn.GELU("tanh"), nn.Conv2d(stem, stem, 3, padding=1))
        blocks = []
        for (a, b), depth in zip(itertools.pairwise((stem, *sizes)), depths, strict=True):
            blocks += [MaxVitBlock(b if level else a, b, 1 if level else 2, window) for level in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.LayerNorm(sizes[-1]), nn.Linear(sizes[-1], 1000))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.stem(images)).mean(dim=(2, 3))), labels)


class LargeKernelBlock(nn.Module):
    """A depthwise convolution over most of the map, beside a small one, and a perceptron of pixels."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.before, self.after = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.enter = nn.Sequential(normed(width, width, 1), nn.ReLU())
        self.large, self.small = normed(width, width, kernel, 1, width), normed(width, width, 5, 1, width)
        self.leave = normed(width, width, 1)
        self.mlp = nn.Sequential(normed(width, 4 * width, 1), nn.GELU(), normed(4 * width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(self.before(x))
        x = x + self.leave(F.relu(self.large(hidden) + self.small(hidden)))
        return x + self.mlp(self.after(x))


class RepLkNet(nn.Module):
    """RepLKNet: kernels as large as 31 pixels."""

    def __init__(self, width: int, depths: tuple[int, ...], kernels: tuple[int, ...]) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(len(depths))]
        layers: list[nn.Module] = [
            normed(3, width, 3, 2), nn.ReLU(), normed(width, width, 3, 1, width), nn.ReLU(), normed(width, width, 1),
            nn.ReLU(), normed(width, width, 3, 2, width), nn.ReLU(),
        ]  # fmt: skip
        for number, (size, depth, kernel) in enumerate(zip(sizes, depths, kernels, strict=True)):
            layers += [LargeKernelBlock(size, kernel) for _ in range(depth)]
            if number < len(sizes) - 1:
                layers += [normed(size, 2 * size, 1), nn.ReLU(), normed(2 * size, 2 * size, 3, 2, 2 * size), nn.ReLU()]
        self.features, self.norm, self.head = (
            nn.Sequential(*layers),
            nn.BatchNorm2d(sizes[-1]),
            nn.Linear(sizes[-1], 1000),
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(
            self.head(self.norm(self.features(images)).mean(dim=(2, 3))), labels, label_smoothing=0.1
        )


class LargeKernelAttention(nn.Module):
    """A gate of pixels from a depthwise and a dilated depthwise convolution (VAN)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.near = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.far = nn.Conv2d(width, width, 7, padding=9, groups=width, dilation=3)
        self.mix = nn.Conv2d(width, width, 1)
        hidden = 4 * width
        self.up, self.down = nn.Conv2d(width, hidden, 1), nn.Conv2d(hidden, width, 1)
        self.local = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.first_scale, self.second_scale = (nn.Parameter(torch.full((width, 1, 1), 0.01)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        normal = self.before(x)
        hidden = F.gelu(self.enter(normal))
        hidden = self.leave(hidden * self.mix(self.far(self.near(hidden)))) + normal
        x = x + self.first_scale * hidden
        return x + self.second_scale * self.down(F.gelu(self.local(self.up(self.after(x)))))


class VisualAttentionNet(nn.Module):
    """VAN: attention by large decomposed kernels."""

    def __init__(self, sizes: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for number, ((a, b), depth) in enumerate(zip(itertools.pairwise((3, *sizes)), depths, strict=True)):
            stages.append(normed(a, b, 3, 2) if number else normed(a, b, 7, 4))
            stages += [LargeKernelAttention(b) for _ in range(depth)]
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(sizes[-1], 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.stages(images).mean(dim=(2, 3))), labels)


class GlobalBlock(nn.Module):
    """Biased attention over the whole map, which is halved first if asked."""

    def __init__(self, inputs: int, outputs: int, side: int, halves: bool) -> None:
        super().__init__()
        self.pool = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Conv2d(inputs, outputs, 1)) if halves else nn.Identity()
        self.attention = BiasedAttention(outputs, side)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(x)
        return self.attention(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, x.shape[2:])


class CoatNet(nn.Module):
    """CoAtNet: two stages of bottlenecks, two of attention."""

    def __init__(self, side: int, stem: int, sizes: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = [normed(3, stem, 3, 2), nn.GELU(), nn.Conv2d(stem, stem, 3, padding=1)]
        for number, ((a, b), depth) in enumerate(zip(itertools.pairwise((stem, *sizes)), depths, strict=True)):
            for level in range(depth):
                inputs, halves = (b, False) if level else (a, True)
                layers.append(
                    InvertedBottleneck(inputs, b, 1 + halves)
                    if number < 2
                    else GlobalBlock(inputs, b, side // 2 ** (number + 2), halves)
                )
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(sizes[-1], 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(images).mean(dim=(2, 3))), labels)


class DenseResidual(nn.Module):
    """Five convolutions, each of which sees all before it; three such blocks and a scaled shortcut (ESRGAN)."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        sizes = [(width + level * growth, growth if level < 4 else width) for level in range(5)]
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in sizes) for _ in range(3)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        whole = x
        for block in self.blocks:
            found = [whole]
            for layer in block[:-1]:
                found.append(F.leaky_relu(layer(torch.cat(found, dim=1)), 0.2, inplace=True))
            whole = block[-1](torch.cat(found, dim=1)) * 0.2 + whole
        return whole * 0.2 + x


class Rrdb(nn.Module):
    """The generator of ESRGAN, which makes images four times as large."""

    def __init__(self, width: int, growth: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*(DenseResidual(width, growth) for _ in range(depth)))
        self.join, self.first, self.second, self.third = (nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, small: Tensor, large: Tensor) -> Tensor:
        x = self.enter(small)
        x = x + self.join(self.body(x))
        for layer in (self.first, self.second):
            x = F.leaky_relu(layer(F.interpolate(x, scale_factor=2.0, mode="nearest")), 0.2, inplace=True)
        return F.l1_loss(self.leave(F.leaky_relu(self.third(x), 0.2, inplace=True)), large)
