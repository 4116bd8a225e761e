"""Nets of the survey's third draw that find things in images and volumes, in plain torch, after what was published
under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.survey.third.images import normed


class FrozenNorm(nn.Module):
    """A batch norm whose statistics and weights stay as they were learned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("mean", 0.0), ("variance", 1.0)):
            self.register_buffer(name, torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.weight * (self.variance + 1e-5).rsqrt())[:, None, None]
        return x * scale + (self.bias - self.mean * scale[:, 0, 0])[:, None, None]


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.first, self.second = (
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
        )
        self.third = nn.Conv2d(width, outputs, 1, bias=False)
        self.norms = nn.ModuleList(FrozenNorm(size) for size in (width, width, outputs))
        self.shortcut = nn.Identity() if inputs == outputs else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), FrozenNorm(outputs)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norms[0](self.first(x)))
        hidden = F.relu(self.norms[1](self.second(hidden)))
        return F.relu(self.norms[2](self.third(hidden)) + self.shortcut(x))


class DetectionTransformer(nn.Module):
    """DETR: a residual net, an encoder and a decoder of queries; the matches are given, every layer is judged."""

    def __init__(self, stem: int, depths: tuple[int, ...], width: int, layers: int, queries: int, classes: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = [
            nn.Conv2d(3, stem, 7, 2, 3, bias=False),
            FrozenNorm(stem),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        inputs = stem
        for number, depth in enumerate(depths):
            size = stem * 2**number
            for level in range(depth):
                blocks.append(Bottleneck(inputs, size, 2 if number and not level else 1))
                inputs = 4 * size
        self.backbone, self.enter = nn.Sequential(*blocks), nn.Conv2d(inputs, width, 1)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 8 * width, 0.1, batch_first=True) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(width, 8, 8 * width, 0.1, batch_first=True) for _ in range(layers)
        )
        self.norm, self.queries = nn.LayerNorm(width), nn.Embedding(queries, width)
        self.rows, self.columns = nn.Embedding(50, width // 2), nn.Embedding(50, width // 2)
        self.classes = nn.Linear(width, classes + 1)
        self.boxes = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4), nn.Sigmoid()
        )

    def forward(self, images: Tensor, matches: Tensor, labels: Tensor, boxes: Tensor) -> Tensor:
        x = self.enter(self.backbone(images))
        height, width = x.shape[2:]
        places = torch.cat(
            [self.columns.weight[:width].expand(height, -1, -1), self.rows.weight[:height, None].expand(-1, width, -1)],
            dim=2,
        ).flatten(0, 1)
        memory = x.flatten(2).transpose(1, 2) + places
        for layer in self.encoder:
            memory = layer(memory)
        found = self.queries.weight.expand(len(images), -1, -1)
        loss = torch.zeros((), device=images.device)
        for layer in self.decoder:
            found = layer(found, memory)
            loss = loss + self.judge(self.norm(found), matches, labels, boxes)
        return loss

    def judge(self, found: Tensor, matches: Tensor, labels: Tensor, boxes: Tensor) -> Tensor:
        chances = self.classes(found)
        wanted = torch.full(chances.shape[:2], chances.shape[2] - 1, device=found.device).scatter(1, matches, labels)
        weights = torch.ones(chances.shape[2], device=found.device, dtype=chances.dtype)
        weights[-1] = 0.1
        guess = self.boxes(found).gather(1, matches[:, :, None].expand(-1, -1, 4))
        truth = boxes.sigmoid()
        ends = torch.min(guess[..., :2] + guess[..., 2:] / 2, truth[..., :2] + truth[..., 2:] / 2)
        starts = torch.max(guess[..., :2] - guess[..., 2:] / 2, truth[..., :2] - truth[..., 2:] / 2)
        overlap = (ends - starts).clamp(min=0).prod(dim=-1)
        union = guess[..., 2:].prod(dim=-1) + truth[..., 2:].prod(dim=-1) - overlap
        return (
            F.cross_entropy(chances.flatten(0, 1), wanted.flatten(), weights)
            + 5 * F.l1_loss(guess, truth)
            + 2 * (1 - overlap / (union + 1e-6)).mean()
        )


class Plain(nn.Module):
    """ResNet's block of two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(normed(inputs, outputs, 3, stride), nn.ReLU(inplace=True))
        self.second = normed(outputs, outputs, 3)
        is_same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if is_same else normed(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.shortcut(x), inplace=True)


class BiseNet(nn.Module):
    """BiSeNet: a shallow path for detail, a deep one for context, gates where they meet, two further judges."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        wide = 2 * width
        self.detail = nn.Sequential(
            *self.unit(3, width, 7, 2),
            *self.unit(width, width, 3, 2),
            *self.unit(width, width, 3, 2),
            *self.unit(width, wide, 1),
        )
        self.stem = nn.Sequential(*self.unit(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        sizes = [width * scale for scale in (1, 1, 2, 4, 8)]
        self.stages = nn.ModuleList(
            nn.Sequential(Plain(a, b, 2 if number else 1), Plain(b, b, 1))
            for number, (a, b) in enumerate(itertools.pairwise(sizes))
        )
        self.narrow = nn.ModuleList(nn.Sequential(*self.unit(size, wide)) for size in (8 * width, 4 * width))
        self.gates = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(1), normed(wide, wide, 1), nn.Sigmoid()) for _ in range(2)
        )
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), *self.unit(8 * width, wide, 1))
        self.refine = nn.ModuleList(nn.Sequential(*self.unit(wide, wide)) for _ in range(2))
        self.fuse = nn.Sequential(*self.unit(2 * wide, 2 * wide, 1))
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(2 * wide, wide // 2, 1),
            nn.ReLU(),
            nn.Conv2d(wide // 2, 2 * wide, 1),
            nn.Sigmoid(),
        )
        self.heads = nn.ModuleList(
            nn.Sequential(*self.unit(size, width), nn.Conv2d(width, classes, 1)) for size in (2 * wide, wide, wide)
        )

    @staticmethod
    def unit(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
        return [normed(inputs, outputs, kernel, stride), nn.ReLU(inplace=True)]

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        detail, x, maps = self.detail(images), self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        found, context = [], self.whole(x)
        for number, seen in enumerate((maps[3], maps[2])):
            seen = self.narrow[number](seen)
            seen = seen * self.gates[number](seen) + context
            context = self.refine[number](F.interpolate(seen, scale_factor=2.0, mode="nearest"))
            found.append(context)
        joined = self.fuse(torch.cat([detail, found[1]], dim=1))
        joined = joined + joined * self.weigh(joined)
        size = classes.shape[1:]
        answers = [head(x) for head, x in zip(self.heads, (joined, found[1], found[0]), strict=True)]
        wide = [F.interpolate(answer, size, mode="bilinear", align_corners=True) for answer in answers]
        return torch.stack([F.cross_entropy(answer, classes) for answer in wide]).sum()


class VolumeWindows(nn.Module):
    """Attention within windows of a volume, shifted by half a window if asked (Swin in three dimensions)."""

    def __init__(self, width: int, heads: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, window // 2 if shifted else 0
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        count = 2 * window - 1
        self.table = nn.Parameter(torch.zeros(count**3, heads))
        at = torch.cartesian_prod(*[torch.arange(window)] * 3)
        apart = at[:, None] - at[None, :] + window - 1
        self.register_buffer("offsets", (apart[..., 0] * count + apart[..., 1]) * count + apart[..., 2])

    def forward(self, x: Tensor) -> Tensor:
        rows, *sides, width = x.shape
        hidden, side = self.before(x), self.window
        if self.shift:
            hidden = torch.roll(hidden, [-self.shift] * 3, dims=(1, 2, 3))
        count = [size // side for size in sides]
        cut = hidden.view(rows, count[0], side, count[1], side, count[2], side, width)
        tokens = cut.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(-1, side**3, width)
        query, key, value = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        bias = self.table[self.offsets.flatten()].view(*self.offsets.shape, -1).permute(2, 0, 1).contiguous()
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1) + bias[None]
        found = self.leave((scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))
        grid = found.view(rows, *count, side, side, side, width).permute(0, 1, 4, 2, 5, 3, 6, 7)
        hidden = grid.reshape(x.shape)
        if self.shift:
            hidden = torch.roll(hidden, [self.shift] * 3, dims=(1, 2, 3))
        x = x + hidden
        return x + self.mlp(self.after(x))


class Solid(nn.Module):
    """Two convolutions of a volume with instance norms, and a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv3d(inputs, outputs, 3, 1, 1, bias=False),
            nn.Conv3d(outputs, outputs, 3, 1, 1, bias=False),
        )
        self.norms = nn.ModuleList(nn.InstanceNorm3d(outputs) for _ in range(3))
        self.shortcut = nn.Conv3d(inputs, outputs, 1, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norms[1](self.second(F.leaky_relu(self.norms[0](self.first(x)), 0.01, inplace=True)))
        shortcut = x if self.shortcut is None else self.norms[2](self.shortcut(x))
        return F.leaky_relu(hidden + shortcut, 0.01, inplace=True)


class SwinUnetr(nn.Module):
    """Swin UNETR: a window transformer narrows a volume, convolutions widen it; cross entropy and Dice."""

    def __init__(self, width: int, window: int, levels: int, classes: int) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(levels)]
        self.patches, self.enter = nn.Conv3d(1, width, 2, 2), Solid(1, width)
        self.stages = nn.ModuleList(
            nn.ModuleList(VolumeWindows(size, max(1, size // 16), window, shifted) for shifted in (False, True))
            for size in sizes
        )
        self.merge = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8 * size), nn.Linear(8 * size, 2 * size)) for size in sizes
        )
        self.skips = nn.ModuleList(Solid(size, size) for size in (*sizes, 2 * sizes[-1]))
        outs = [width, *sizes]
        ins = [*sizes, 2 * sizes[-1]]
        self.ups = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, 2, bias=False) for a, b in zip(ins, outs, strict=True))
        self.joins = nn.ModuleList(Solid(2 * b, b) for b in outs)
        self.head = nn.Conv3d(width, classes, 1)

    @staticmethod
    def image(tokens: Tensor) -> Tensor:
        return F.layer_norm(tokens, tokens.shape[-1:]).permute(0, 4, 1, 2, 3)

    def forward(self, volumes: Tensor, classes: Tensor) -> Tensor:
        x = self.patches(volumes).permute(0, 2, 3, 4, 1)
        kept = [self.enter(volumes)]
        for number, (stage, merge) in enumerate(zip(self.stages, self.merge, strict=True)):
            kept.append(self.skips[number](self.image(x)))
            for block in stage:
                x = block(x)
            corners = [x[:, i::2, j::2, k::2] for i, j, k in itertools.product((0, 1), repeat=3)]
            x = merge(torch.cat(corners, dim=-1))
        found = self.skips[-1](self.image(x))
        for up, join, skip in zip(reversed(self.ups), reversed(self.joins), reversed(kept), strict=True):
            found = join(torch.cat([up(found), skip], dim=1))
        logits = self.head(found)
        chances = logits.float().softmax(dim=1)
        truth = F.one_hot(classes, logits.shape[1]).movedim(-1, 1).to(chances.dtype)
        both, sums = (chances * truth).sum(dim=(2, 3, 4)), (chances + truth).sum(dim=(2, 3, 4))
        return F.cross_entropy(logits, classes) + 1 - (2 * both / (sums + math.ldexp(1, -16))).mean()
