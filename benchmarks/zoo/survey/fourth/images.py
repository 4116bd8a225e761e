"""Nets of the survey's fourth draw over images and films, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.survey.third.images import normed


class OneBlock(nn.Module):
    """MobileOne's layer while it is trained: several convolutions, a one-pixel one and a bare norm, all added."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, groups: int, branches: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(normed(inputs, outputs, kernel, stride, groups) for _ in range(branches))
        self.scale = normed(inputs, outputs, 1, stride, groups) if kernel > 1 else None
        self.skip = nn.BatchNorm2d(inputs) if inputs == outputs and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        found = self.branches[0](x)
        for branch in (*self.branches[1:], self.scale, self.skip):
            found = found if branch is None else found + branch(x)
        return F.relu(found)


class MobileOne(nn.Module):
    """Depthwise and one-pixel layers of added branches."""

    def __init__(self, stem: int, widths: tuple[int, ...], depths: tuple[int, ...], branches: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [OneBlock(3, stem, 3, 2, 1, 1)]
        inputs = stem
        for width, depth in zip(widths, depths, strict=True):
            for number in range(depth):
                layers.append(OneBlock(inputs, inputs, 3, 1 if number else 2, inputs, branches))
                layers.append(OneBlock(inputs, width, 1, 1, 1, branches))
                inputs = width
        self.body, self.head = nn.Sequential(*layers), nn.Linear(inputs, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(images).mean(dim=(2, 3))), labels, label_smoothing=0.1)


class Inverted(nn.Module):
    """A norm and a perceptron over channels, scaled, beside a shortcut; what stands before them is the caller's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, places, channels)"""
        return self.scale * self.mlp(self.norm(x))


class EdgeConvolution(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.mix, self.mlp = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width), Inverted(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.mix(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class EdgeAttention(nn.Module):
    """Channels in groups, each convolved after the group before it was added; then channels attend to channels."""

    def __init__(self, width: int, groups: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, -(-width // groups)
        sizes = [self.size] * (groups - 1)
        self.mixes = nn.ModuleList(nn.Conv2d(size, size, 3, padding=1, groups=size) for size in sizes)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heat, self.scale = nn.Parameter(torch.ones(heads, 1, 1)), nn.Parameter(torch.full((width,), 1e-6))
        self.mlp = Inverted(width)

    def forward(self, x: Tensor) -> Tensor:
        parts, found = x.split(self.size, dim=1), []
        before = torch.zeros_like(parts[0])
        for mix, part in zip(self.mixes, parts, strict=False):
            before = mix(part + before)
            found.append(before)
        places = torch.cat([*found, parts[-1]], dim=1).flatten(2).transpose(1, 2)
        query, key, value = self.qkv(self.norm(places)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 4, 1)
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        seen = (query @ key.transpose(-2, -1) * self.heat).softmax(dim=-1) @ value
        places = places + self.scale * self.leave(seen.permute(0, 3, 1, 2).flatten(2))
        return x + self.mlp(places).transpose(1, 2).reshape(x.shape)


class ImageNorm(nn.LayerNorm):
    """Over the channels of (rows, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class EdgeNext(nn.Module):
    """EdgeNeXt: depthwise windows that grow stage by stage, and one block of channel attention at the end of each."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ImageNorm(widths[0])]
        for number, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if number:
                layers += [ImageNorm(widths[number - 1]), nn.Conv2d(widths[number - 1], width, 2, 2)]
            layers += [EdgeConvolution(width, 2 * number + 3) for _ in range(depth - bool(number))]
            layers += [EdgeAttention(width, number + 1, 8)] if number else []
        self.body, self.norm, self.head = nn.Sequential(*layers), nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.norm(self.body(images).mean(dim=(2, 3)))), labels)


class KernelPrediction(nn.Module):
    """A burst of noisy frames: a U-Net predicts a window of weights for every pixel of every frame."""

    def __init__(self, frames: int, widths: tuple[int, ...], window: int) -> None:
        super().__init__()
        self.frames, self.window = frames, window
        pairs = list(itertools.pairwise((frames + 1, *widths)))
        self.down = nn.ModuleList(self.three(a, b) for a, b in pairs)
        self.up = nn.ModuleList(self.three(a + b, a) for a, b in reversed(list(itertools.pairwise(widths))))
        self.leave = nn.Conv2d(widths[0], frames * window * window, 1)

    @staticmethod
    def three(inputs: int, outputs: int) -> nn.Sequential:
        sizes = itertools.pairwise((inputs, outputs, outputs, outputs))
        return nn.Sequential(*(layer for a, b in sizes for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())))

    def forward(self, burst: Tensor, noise: Tensor, clean: Tensor) -> Tensor:
        rows, _, height, width = burst.shape
        x, kept = torch.cat([burst, noise], dim=1), []
        for number, layer in enumerate(self.down):
            x = layer(F.avg_pool2d(x, 2) if number else x)
            kept.append(x)
        for layer, skip in zip(self.up, reversed(kept[:-1]), strict=True):
            x = layer(torch.cat([F.interpolate(x, scale_factor=2.0, mode="bilinear"), skip], dim=1))
        weights = self.leave(x).view(rows, self.frames, -1, height * width)
        around = F.unfold(burst, self.window, padding=self.window // 2).view(weights.shape)
        single = (weights * around).sum(dim=2).view(rows, self.frames, height, width)
        made = single.mean(dim=1)
        return self.judged(made, clean) + 10 * self.judged(single, clean[:, None])

    @staticmethod
    def judged(made: Tensor, clean: Tensor) -> Tensor:
        apart = made - clean
        slopes = apart.diff(dim=-1).abs().mean() + apart.diff(dim=-2).abs().mean()
        return apart.square().mean() + slopes


def factored(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A 3 x 3 x 3 convolution as one over space and one over time, with as many weights."""
    middle = inputs * outputs * 27 // (inputs * 9 + 3 * outputs)
    return nn.Sequential(
        nn.Conv3d(inputs, middle, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False),
        nn.BatchNorm3d(middle),
        nn.ReLU(inplace=True),
        nn.Conv3d(middle, outputs, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False),
    )


class FactoredBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(factored(inputs, outputs, stride), nn.BatchNorm3d(outputs), nn.ReLU(inplace=True))
        self.second = nn.Sequential(factored(outputs, outputs), nn.BatchNorm3d(outputs))
        is_same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if is_same else nn.Sequential(
            nn.Conv3d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm3d(outputs)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.shortcut(x), inplace=True)


class FactoredVideo(nn.Module):
    """R(2+1)D: a residual net over films whose convolutions go over space, then over time."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv3d(3, 45, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False), nn.BatchNorm3d(45), nn.ReLU(inplace=True),
            nn.Conv3d(45, width, (3, 1, 1), 1, (1, 0, 0), bias=False), nn.BatchNorm3d(width), nn.ReLU(inplace=True),
        ]  # fmt: skip
        sizes = [width, *(width * 2**level for level in range(4))]
        for level, (a, b) in enumerate(itertools.pairwise(sizes)):
            layers.append(FactoredBlock(a, b, 2 if level else 1))
            layers += [FactoredBlock(b, b, 1) for _ in range(depth - 1)]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(sizes[-1], classes)

    def forward(self, film: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(film).mean(dim=(2, 3, 4))), labels)
