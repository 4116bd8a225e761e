"""Nets of the survey's fourth draw over sound and series, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BandNorm(nn.Module):
    """A batch norm of every band of frequencies by itself."""

    def __init__(self, width: int, bands: int) -> None:
        super().__init__()
        self.bands, self.norm = bands, nn.BatchNorm2d(width * bands)

    def forward(self, x: Tensor) -> Tensor:
        rows, width, height, length = x.shape
        return self.norm(x.reshape(rows, width * self.bands, height // self.bands, length)).view(x.shape)


class BroadcastBlock(nn.Module):
    """BC-ResNet: a depthwise window over frequencies, then one over time of their mean, which all of them get back."""

    def __init__(self, inputs: int, outputs: int, stride: int, dilation: int, bands: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
        self.is_same = inputs == outputs and stride == 1
        self.across = nn.Conv2d(outputs, outputs, (3, 1), (stride, 1), (1, 0), groups=outputs, bias=False)
        self.norm = BandNorm(outputs, bands)
        self.along = nn.Sequential(
            nn.Conv2d(outputs, outputs, (1, 3), 1, (0, dilation), (1, dilation), groups=outputs, bias=False),
            nn.BatchNorm2d(outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 1, bias=False),
            nn.Dropout2d(0.1),
        )

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(self.across(x if self.is_same else self.enter(x)))
        found = seen + self.along(seen.mean(dim=2, keepdim=True))
        return F.relu(found + x if self.is_same else found)


class KeywordSpotter(nn.Module):
    """Which word a second of sound is, by broadcast residual blocks over its spectrogram."""

    def __init__(self, width: int, depths: tuple[int, ...], bands: int, words: int) -> None:
        super().__init__()
        sizes = [2 * width, *(round(width * scale) for scale in (1, 1.5, 2, 2.5))]
        layers: list[nn.Module] = [
            nn.Conv2d(1, sizes[0], 5, (2, 1), 2, bias=False),
            nn.BatchNorm2d(sizes[0]),
            nn.ReLU(),
        ]
        for level, ((a, b), depth) in enumerate(zip(itertools.pairwise(sizes), depths, strict=True)):
            for number in range(depth):
                stride = 2 if level in (1, 2) and not number else 1
                layers.append(BroadcastBlock(b if number else a, b, stride, 2**level, bands))
        top = sizes[-1]
        self.body = nn.Sequential(*layers, nn.Conv2d(top, top, 5, padding=(0, 2), groups=top, bias=False))
        self.head = nn.Sequential(nn.Conv2d(top, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU())
        self.words = nn.Linear(4 * width, words)

    def forward(self, spectra: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.words(self.head(self.body(spectra)).mean(dim=(2, 3))), labels)


class ChunkPath(nn.Module):
    """Layers within chunks, then layers across them, each beside a shortcut; (rows, width, size, chunks)."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.within, self.across = (
            nn.ModuleList(
                nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True, norm_first=True)
                for _ in range(depth)
            )
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in range(2))
        angles = torch.arange(2048)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], dim=1).to(torch.get_default_dtype()))

    def path(self, layers: nn.ModuleList, x: Tensor) -> Tensor:
        x = x + self.places[: x.shape[1]]
        for layer in layers:
            x = layer(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        rows, width, size, chunks = x.shape
        found = self.path(self.within, x.permute(0, 3, 2, 1).reshape(rows * chunks, size, width))
        x = x + self.norms[0](found.view(rows, chunks, size, width).permute(0, 3, 2, 1))
        found = self.path(self.across, x.permute(0, 2, 3, 1).reshape(rows * size, chunks, width))
        return x + self.norms[1](found.view(rows, size, chunks, width).permute(0, 3, 1, 2))


class Sepformer(nn.Module):
    """Two voices in one wave, told apart by transformers within and across overlapping chunks."""

    def __init__(self, width: int, heads: int, paths: int, depth: int, size: int) -> None:
        super().__init__()
        self.width, self.size = width, size
        self.encoder = nn.Conv1d(1, width, 16, 8, bias=False)
        self.norm, self.enter = nn.GroupNorm(1, width), nn.Conv1d(width, width, 1, bias=False)
        self.paths = nn.ModuleList(ChunkPath(width, heads, depth) for _ in range(paths))
        self.bend, self.voices = nn.PReLU(), nn.Conv2d(width, 2 * width, 1)
        self.tanh, self.gate = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)
        self.leave = nn.Conv1d(width, width, 1, bias=False)
        self.decoder = nn.ConvTranspose1d(width, 1, 16, 8, bias=False)

    def forward(self, mixed: Tensor, voices: Tensor) -> Tensor:
        heard = F.relu(self.encoder(mixed[:, None]))
        length, half = heard.shape[2], self.size // 2
        padded = F.pad(self.enter(self.norm(heard)), (half, half + -length % half))
        x = padded.unfold(2, self.size, half).transpose(2, 3)
        for path in self.paths:
            x = path(x)
        x = self.voices(self.bend(x)).unflatten(1, (2, self.width)).flatten(0, 1)
        whole = F.fold(x.flatten(1, 2), (1, padded.shape[2]), (1, self.size), stride=(1, half))
        whole = whole[:, :, 0, half : half + length]
        masks = F.relu(self.leave(self.tanh(whole).tanh() * self.gate(whole).sigmoid()))
        made = self.decoder((masks.unflatten(0, (-1, 2)) * heard[:, None]).flatten(0, 1)).view(len(mixed), 2, -1)
        return self.judged(made.float(), voices[:, :, : made.shape[2]].float())

    @staticmethod
    def judged(made: Tensor, voices: Tensor) -> Tensor:
        """The scale-invariant ratio to the noise, of the better order of the voices."""
        made, voices = (x - x.mean(dim=-1, keepdim=True) for x in (made, voices))
        dots = made[:, :, None] * voices[:, None]
        share = dots.sum(dim=-1, keepdim=True) / (voices.square().sum(dim=-1)[:, None, :, None] + 1e-8)
        wanted = share * voices[:, None]
        noise = made[:, :, None] - wanted
        ratio = 10 * torch.log10(wanted.square().sum(dim=-1) / (noise.square().sum(dim=-1) + 1e-8) + 1e-8)
        same, swapped = ratio[:, 0, 0] + ratio[:, 1, 1], ratio[:, 0, 1] + ratio[:, 1, 0]
        return -torch.maximum(same, swapped).mean() / 2


class InceptionModule(nn.Module):
    """Windows of three lengths over a narrowed series, and a pool, side by side."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.narrow = nn.Conv1d(inputs, width, 1, bias=False)
        self.windows = nn.ModuleList(
            nn.Conv1d(width, width, size, padding=size // 2, bias=False) for size in (39, 19, 9)
        )
        self.pooled = nn.Sequential(nn.MaxPool1d(3, 1, 1), nn.Conv1d(inputs, width, 1, bias=False))
        self.norm = nn.BatchNorm1d(4 * width)

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.narrow(x)
        return F.relu(self.norm(torch.cat([*(window(narrow) for window in self.windows), self.pooled(x)], dim=1)))


class InceptionTime(nn.Module):
    """Classes of series by six such modules, with a shortcut over each three."""

    def __init__(self, channels: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        full = 4 * width
        self.modules_ = nn.ModuleList(InceptionModule(full if number else channels, width) for number in range(depth))
        self.shortcuts = nn.ModuleList(
            nn.Sequential(nn.Conv1d(full if number else channels, full, 1, bias=False), nn.BatchNorm1d(full))
            for number in range(depth // 3)
        )
        self.head = nn.Linear(full, classes)

    def forward(self, series: Tensor, labels: Tensor) -> Tensor:
        x = kept = series
        for number, module in enumerate(self.modules_):
            x = module(x)
            if number % 3 == 2:
                kept = x = F.relu(x + self.shortcuts[number // 3](kept))
        return F.cross_entropy(self.head(x.mean(dim=2)), labels)
