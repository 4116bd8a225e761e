"""Nets of the survey's second draw over images, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def unit(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, a batch norm and a SiLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.SiLU(inplace=True),
    )


class StereoMatcher(nn.Module):
    """Disparities of two views (PSMNet): features pooled at four scales, a volume of shifted pairs, an hourglass."""

    def __init__(self, width: int, disparities: int) -> None:
        super().__init__()
        self.disparities = disparities
        self.features = nn.Sequential(
            self.plane(3, width, 2), self.plane(width, width), self.plane(width, 2 * width, 2),
            *(self.plane(2 * width, 2 * width) for _ in range(4)),
        )  # fmt: skip
        self.pooled = nn.ModuleList(nn.Conv2d(2 * width, width, 1) for _ in range(4))
        self.fuse = nn.Sequential(self.plane(6 * width, 2 * width), nn.Conv2d(2 * width, width, 1, bias=False))
        self.enter = nn.Sequential(self.solid(2 * width, width), self.solid(width, width))
        self.down = nn.Sequential(self.solid(width, 2 * width, 2), self.solid(2 * width, 2 * width))
        self.deep = nn.Sequential(self.solid(2 * width, 2 * width, 2), self.solid(2 * width, 2 * width))
        self.up = nn.ConvTranspose3d(2 * width, 2 * width, 3, 2, 1, 1, bias=False)
        self.top = nn.ConvTranspose3d(2 * width, width, 3, 2, 1, 1, bias=False)
        self.head = nn.Sequential(self.solid(width, width), nn.Conv3d(width, 1, 3, 1, 1, bias=False))

    @staticmethod
    def plane(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        )

    @staticmethod
    def solid(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm3d(outputs), nn.ReLU(inplace=True)
        )

    def look(self, image: Tensor) -> Tensor:
        found = self.features(image)
        size = found.shape[-2:]
        pyramid = [
            F.interpolate(F.relu(layer(F.avg_pool2d(found, 2**level))), size, mode="bilinear", align_corners=False)
            for level, layer in enumerate(self.pooled, start=1)
        ]
        return self.fuse(torch.cat([found, *pyramid], dim=1))

    def forward(self, left: Tensor, right: Tensor, truth: Tensor) -> Tensor:
        first, second = self.look(left), self.look(right)
        size, channels, height, width = first.shape
        depth = self.disparities // 4
        volume = first.new_zeros(size, 2 * channels, depth, height, width)
        for shift in range(depth):
            volume[:, :channels, shift, :, shift:] = first[..., shift:]
            volume[:, channels:, shift, :, shift:] = second[..., : width - shift]
        cost = self.enter(volume)
        down = self.down(cost)
        cost = cost + self.top(F.relu(self.up(self.deep(down)) + down))
        full = (self.disparities, *truth.shape[-2:])
        scores = F.interpolate(self.head(cost), full, mode="trilinear", align_corners=False).squeeze(1)
        at = torch.arange(self.disparities, device=scores.device, dtype=torch.float32)[:, None, None]
        found = (F.softmax(scores.float(), dim=1) * at).sum(dim=1)
        return F.smooth_l1_loss(found, truth.float().abs() * 20)


class CrossStage(nn.Module):
    """Half of the channels pass residual blocks, then both halves are joined (C3)."""

    def __init__(self, inputs: int, outputs: int, depth: int, is_residual: bool = True) -> None:
        super().__init__()
        half, self.is_residual = outputs // 2, is_residual
        self.left, self.right, self.join = unit(inputs, half, 1), unit(inputs, half, 1), unit(outputs, outputs, 1)
        self.blocks = nn.ModuleList(nn.Sequential(unit(half, half, 1), unit(half, half)) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x)
        for block in self.blocks:
            left = left + block(left) if self.is_residual else block(left)
        return self.join(torch.cat([left, self.right(x)], dim=1))


class Yolo(nn.Module):
    """One-stage detection (YOLOv5): stages, pooling in a row, a path up and one down, three heads of anchors."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        a, b, c, d, e = (width * 2**level for level in range(5))
        self.low = nn.Sequential(
            unit(3, a, 6 - 1, 2), unit(a, b, 3, 2), CrossStage(b, b, depth), unit(b, c, 3, 2),
            CrossStage(c, c, 2 * depth),
        )  # fmt: skip
        self.middle = nn.Sequential(unit(c, d, 3, 2), CrossStage(d, d, 3 * depth))
        self.high = nn.Sequential(unit(d, e, 3, 2), CrossStage(e, e, depth))
        self.squeeze, self.spread = unit(e, d, 1), unit(4 * d, e, 1)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.lateral = nn.ModuleList([unit(e, d, 1), unit(d, c, 1)])
        self.ups = nn.ModuleList([CrossStage(2 * d, d, depth, False), CrossStage(2 * c, c, depth, False)])
        self.strided = nn.ModuleList([unit(c, c, 3, 2), unit(d, d, 3, 2)])
        self.downs = nn.ModuleList([CrossStage(2 * c, d, depth, False), CrossStage(2 * d, e, depth, False)])
        self.heads = nn.ModuleList(nn.Conv2d(size, 3 * (5 + classes), 1) for size in (c, d, e))

    def forward(self, images: Tensor, cells: Tensor, boxes: Tensor, classes: Tensor) -> Tensor:
        low = self.low(images)
        middle = self.middle(low)
        x = self.squeeze(self.high(middle))
        pooled = [x]
        for _ in range(3):
            pooled.append(self.pool(pooled[-1]))
        high = self.lateral[0](self.spread(torch.cat(pooled, dim=1)))
        middle = self.lateral[1](self.ups[0](torch.cat([F.interpolate(high, scale_factor=2), middle], dim=1)))
        low = self.ups[1](torch.cat([F.interpolate(middle, scale_factor=2), low], dim=1))
        middle = self.downs[0](torch.cat([self.strided[0](low), middle], dim=1))
        high = self.downs[1](torch.cat([self.strided[1](middle), high], dim=1))
        maps = [head(x) for head, x in zip(self.heads, (low, middle, high), strict=True)]
        return sum(self.judge(found, cells, boxes, classes) for found in maps)

    @staticmethod
    def judge(found: Tensor, cells: Tensor, boxes: Tensor, classes: Tensor) -> Tensor:
        rows, _, height, width = found.shape
        answers = found.view(rows, 3, -1, height, width).permute(0, 1, 3, 4, 2).contiguous().flatten(1, 3)
        chosen = answers[torch.arange(rows, device=found.device)[:, None], cells]
        center, size = chosen[..., :2].sigmoid() * 2 - 0.5, (chosen[..., 2:4].sigmoid() * 2) ** 2
        truth = boxes.sigmoid()
        ends = torch.min(center + size / 2, truth[..., :2] + truth[..., 2:] / 2)
        starts = torch.max(center - size / 2, truth[..., :2] - truth[..., 2:] / 2)
        overlap = (ends - starts).clamp(0).prod(dim=-1)
        iou = overlap / (size.prod(dim=-1) + truth[..., 2:].prod(dim=-1) - overlap + 1e-7)
        wanted = torch.zeros_like(answers[..., 4])
        wanted.scatter_(1, cells, iou.detach().clamp(0).to(wanted.dtype))
        labels = F.one_hot(classes, chosen.shape[-1] - 5).to(chosen.dtype)
        return (
            (1 - iou).mean()
            + F.binary_cross_entropy_with_logits(answers[..., 4], wanted)
            + F.binary_cross_entropy_with_logits(chosen[..., 5:], labels)
        )


class MirroredBlock(nn.Module):
    """Two reflected convolutions with instance norms, added to what came in."""

    def __init__(self, width: int, affine: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width, affine=affine), nn.ReLU(True),
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width, affine=affine),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class StyleTransfer(nn.Module):
    """An image's style changed in one pass; a frozen VGG's features and their Gram matrices judge (Johnson)."""

    STAGES = ((1, 2), (2, 2), (4, 3), (8, 3))

    def __init__(self, width: int, blocks: int, seen: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [self.mirrored(3, width, 9, 1), self.mirrored(width, 2 * width, 3, 2)]
        layers += [self.mirrored(2 * width, 4 * width, 3, 2), *(MirroredBlock(4 * width, True) for _ in range(blocks))]
        layers += [nn.Upsample(scale_factor=2), self.mirrored(4 * width, 2 * width, 3, 1), nn.Upsample(scale_factor=2)]
        layers += [self.mirrored(2 * width, width, 3, 1), nn.ReflectionPad2d(4), nn.Conv2d(width, 3, 9)]
        self.net = nn.Sequential(*layers)
        sizes = [3, *(seen * scale for scale, _ in self.STAGES)]
        self.judge = nn.ModuleList(
            nn.Sequential(*([nn.MaxPool2d(2)] if a > 3 else []), *self.rectified(a, b, count))
            for (a, b), (_, count) in zip(itertools.pairwise(sizes), self.STAGES, strict=True)
        ).requires_grad_(False)
        for scale, _ in self.STAGES:
            self.register_buffer(f"style_{scale}", torch.rand(seen * scale, seen * scale))

    @staticmethod
    def mirrored(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.ReflectionPad2d(kernel // 2), nn.Conv2d(inputs, outputs, kernel, stride),
            nn.InstanceNorm2d(outputs, affine=True), nn.ReLU(),
        )  # fmt: skip

    @staticmethod
    def rectified(inputs: int, outputs: int, count: int) -> list[nn.Module]:
        pairs = itertools.pairwise([inputs] + [outputs] * count)
        return [layer for a, b in pairs for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU(inplace=True))]

    def features(self, image: Tensor) -> list[Tensor]:
        found = []
        for stage in self.judge:
            image = stage(image)
            found.append(image)
        return found

    def forward(self, images: Tensor) -> Tensor:
        made = self.net(images)
        found = self.features(made)
        with torch.no_grad():
            wanted = self.features(images)[2]
        loss = F.mse_loss(found[2], wanted)
        for (scale, _), features in zip(self.STAGES, found, strict=True):
            flat = features.flatten(2)
            gram = flat.bmm(flat.transpose(1, 2)) / flat[0].numel()
            style = getattr(self, f"style_{scale}").to(gram.dtype)
            loss = loss + 1e5 * F.mse_loss(gram, style.expand_as(gram))
        roughness = made.diff(dim=2).abs().sum() + made.diff(dim=3).abs().sum()
        return loss + 1e-6 * roughness


class CycleGan(nn.Module):
    """Horses to zebras and back: two generators, two critics of patches, everything judged in one step."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.there, self.back = self.generator(width, blocks), self.generator(width, blocks)
        self.first, self.second = self.critic(width), self.critic(width)

    @staticmethod
    def generator(width: int, blocks: int) -> nn.Sequential:
        layers: list[nn.Module] = [nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), nn.InstanceNorm2d(width), nn.ReLU()]
        for size in (width, 2 * width):
            layers += [nn.Conv2d(size, 2 * size, 3, 2, 1), nn.InstanceNorm2d(2 * size), nn.ReLU(True)]
        layers += [MirroredBlock(4 * width, False) for _ in range(blocks)]
        for size in (4 * width, 2 * width):
            layers += [nn.ConvTranspose2d(size, size // 2, 3, 2, 1, 1), nn.InstanceNorm2d(size // 2), nn.ReLU(True)]
        return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())

    @staticmethod
    def critic(width: int) -> nn.Sequential:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, True)]
        for size, stride in ((width, 2), (2 * width, 2), (4 * width, 1)):
            layers += [nn.Conv2d(size, 2 * size, 4, stride, 1), nn.InstanceNorm2d(2 * size), nn.LeakyReLU(0.2, True)]
        return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 1))

    def forward(self, horses: Tensor, zebras: Tensor) -> Tensor:
        made, unmade = self.there(horses), self.back(zebras)
        loss = 10 * (F.l1_loss(self.back(made), horses) + F.l1_loss(self.there(unmade), zebras))
        loss = loss + 5 * (F.l1_loss(self.there(zebras), zebras) + F.l1_loss(self.back(horses), horses))
        for critic, fake, real in ((self.second, made, zebras), (self.first, unmade, horses)):
            critic.requires_grad_(False)
            loss = loss + (critic(fake) - 1).square().mean()
            critic.requires_grad_(True)
            loss = loss + 0.5 * ((critic(real) - 1).square().mean() + critic(fake.detach()).square().mean())
        return loss


class GhostModule(nn.Module):
    """Some channels by a convolution of one pixel, the rest from them by cheap depthwise ones."""

    def __init__(self, inputs: int, outputs: int, relu: bool = True) -> None:
        super().__init__()
        half = math.ceil(outputs / 2)
        last = nn.ReLU(inplace=True) if relu else nn.Identity()
        self.outputs = outputs
        self.first = nn.Sequential(nn.Conv2d(inputs, half, 1, bias=False), nn.BatchNorm2d(half), last)
        self.cheap = nn.Sequential(
            nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False), nn.BatchNorm2d(half), last
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return torch.cat([first, self.cheap(first)], dim=1)[:, : self.outputs]


class GhostBottleneck(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int, kernel: int, stride: int, gated: bool) -> None:
        super().__init__()
        self.enter, self.leave = GhostModule(inputs, hidden), GhostModule(hidden, outputs, relu=False)
        self.middle = self.depthwise(hidden, kernel, stride) if stride > 1 else nn.Identity()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(hidden, hidden // 4, 1), nn.ReLU(), nn.Conv2d(hidden // 4, hidden, 1),
            nn.Hardsigmoid(),
        ) if gated else None  # fmt: skip
        is_same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if is_same else nn.Sequential(
            self.depthwise(inputs, kernel, stride), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )  # fmt: skip

    @staticmethod
    def depthwise(size: int, kernel: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(size, size, kernel, stride, kernel // 2, groups=size, bias=False), nn.BatchNorm2d(size)
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.middle(self.enter(x))
        if self.gate is not None:
            hidden = hidden * self.gate(hidden)
        return self.leave(hidden) + self.shortcut(x)


class GhostNet(nn.Module):
    """GhostNet: bottlenecks of ghost modules, some with squeeze and excitation."""

    PLAN = (
        (3, 16, 16, False, 1), (3, 48, 24, False, 2), (3, 72, 24, False, 1), (5, 72, 40, True, 2),
        (5, 120, 40, True, 1), (3, 240, 80, False, 2), (3, 200, 80, False, 1), (3, 184, 80, False, 1),
        (3, 480, 112, True, 1), (3, 672, 112, True, 1), (5, 672, 160, True, 2), (5, 960, 160, False, 1),
        (5, 960, 160, True, 1),
    )  # fmt: skip

    def __init__(self, scale: float, blocks: int) -> None:
        super().__init__()
        sizes = [round(16 * scale), *(round(outputs * scale) for _, _, outputs, _, _ in self.PLAN[:blocks])]
        self.stem = unit(3, sizes[0], 3, 2)
        self.blocks = nn.Sequential(
            *(
                GhostBottleneck(inputs, round(hidden * scale), outputs, kernel, stride, gated)
                for (inputs, outputs), (kernel, hidden, _, gated, stride) in zip(
                    itertools.pairwise(sizes), self.PLAN, strict=False
                )
            )
        )
        self.head = nn.Sequential(
            unit(sizes[-1], 960, 1), nn.AdaptiveAvgPool2d(1), nn.Conv2d(960, 1280, 1), nn.ReLU(), nn.Flatten(),
            nn.Dropout(0.2), nn.Linear(1280, 1000),
        )  # fmt: skip

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.stem(images))), labels, label_smoothing=0.1)


class GlowStep(nn.Module):
    """Scales of channels, an invertible one-pixel convolution kept as triangles, an affine coupling."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.shift, self.scale = (nn.Parameter(torch.zeros(1, channels, 1, 1)) for _ in range(2))
        self.register_buffer("order", torch.randperm(channels))
        self.register_buffer("below", torch.ones(channels, channels).tril(-1))
        self.lower, self.upper = (nn.Parameter(torch.randn(channels, channels) * 0.01) for _ in range(2))
        self.diagonal = nn.Parameter(torch.zeros(channels))
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, hidden, 3, padding=1), nn.ReLU(True), nn.Conv2d(hidden, hidden, 1), nn.ReLU(True),
            nn.Conv2d(hidden, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pixels = x.shape[2] * x.shape[3]
        x = (x + self.shift) * torch.exp(self.scale)
        eye = torch.eye(len(self.order), device=x.device, dtype=self.lower.dtype)
        weight = (self.lower * self.below + eye) @ (self.upper * self.below.t() + torch.diag(self.diagonal.exp()))
        x = F.conv2d(x, weight[self.order][:, :, None, None])
        kept, changed = x.chunk(2, dim=1)
        shift, scale = self.net(kept).chunk(2, dim=1)
        scale = torch.sigmoid(scale + 2)
        x = torch.cat([kept, (changed + shift) * scale], dim=1)
        return x, scale.log().flatten(1).sum(dim=1).float() + pixels * (self.scale.sum() + self.diagonal.sum())


class Glow(nn.Module):
    """A flow of images at several scales: pixels are squeezed into channels, half of them leave after every level."""

    def __init__(self, levels: int, depth: int, hidden: int) -> None:
        super().__init__()
        sizes = [12 * 2**level for level in range(levels)]
        self.levels = nn.ModuleList(nn.ModuleList(GlowStep(size, hidden) for _ in range(depth)) for size in sizes)
        self.priors = nn.ModuleList(nn.Conv2d(size // 2, size, 3, padding=1) for size in sizes[:-1])

    def forward(self, images: Tensor) -> Tensor:
        x, likelihood = images, torch.zeros(len(images), device=images.device)
        for number, steps in enumerate(self.levels):
            x = F.pixel_unshuffle(x, 2)
            for step in steps:
                x, volume = step(x)
                likelihood = likelihood + volume
            if number < len(self.priors):
                x, gone = x.chunk(2, dim=1)
                mean, spread = self.priors[number](x).chunk(2, dim=1)
                likelihood = likelihood + self.normal(gone, mean, spread)
        likelihood = likelihood + self.normal(x, torch.zeros_like(x), torch.zeros_like(x))
        return -likelihood.mean() / (math.log(2) * images[0].numel())

    @staticmethod
    def normal(x: Tensor, mean: Tensor, log_spread: Tensor) -> Tensor:
        density = -0.5 * math.log(2 * math.pi) - log_spread - 0.5 * ((x - mean) / log_spread.exp()).square()
        return density.flatten(1).sum(dim=1).float()
