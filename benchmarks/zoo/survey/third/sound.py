"""Nets of the survey's third draw over sound, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from zoo.survey.third.others import ctc


class BranchLayer(nn.Module):
    """E-Branchformer: attention and a convolutional gate side by side, merged by a depthwise convolution."""

    def __init__(self, width: int, heads: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.first, self.last = self.perceptron(width), self.perceptron(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.enter, self.leave = nn.Sequential(nn.Linear(width, hidden), nn.GELU()), nn.Linear(hidden // 2, width)
        self.gate_norm = nn.LayerNorm(hidden // 2)
        self.gate = nn.Conv1d(hidden // 2, hidden // 2, kernel, padding=kernel // 2, groups=hidden // 2)
        self.merge = nn.Conv1d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.join, self.dropout = nn.Linear(2 * width, width), nn.Dropout(0.1)

    @staticmethod
    def perceptron(width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * width, width),
            nn.Dropout(0.1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(x)
        normed = self.norms[0](x)
        seen = self.dropout(self.attention(normed, normed, normed, need_weights=False)[0])
        kept, gate = self.enter(self.norms[1](x)).chunk(2, dim=-1)
        gate = self.gate(self.gate_norm(gate).transpose(1, 2)).transpose(1, 2)
        heard = self.dropout(self.leave(self.dropout(kept * gate)))
        both = torch.cat([seen, heard], dim=-1)
        mixed = both + self.merge(both.transpose(1, 2)).transpose(1, 2)
        x = x + self.dropout(self.join(mixed))
        return self.norms[2](x + 0.5 * self.last(x))


class Branchformer(nn.Module):
    """A recogniser of speech of such layers, judged by CTC."""

    def __init__(self, bands: int, width: int, heads: int, depth: int, symbols: int) -> None:
        super().__init__()
        self.thin = nn.Sequential(nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU())
        self.enter = nn.Linear(width * (((bands - 1) // 2 - 1) // 2), width)
        self.layers = nn.ModuleList(BranchLayer(width, heads, 6 * width, 31) for _ in range(depth))
        self.head = nn.Linear(width, symbols)

    def forward(self, frames: Tensor, symbols: Tensor) -> Tensor:
        x = self.enter(self.thin(frames[:, None]).transpose(1, 2).flatten(2))
        for layer in self.layers:
            x = layer(x)
        return ctc(self.head(x), symbols)


def padded(layer: nn.Conv1d) -> nn.Sequential:
    """A convolution whose input is reflected before its start (causal)."""
    extra = (layer.kernel_size[0] - 1) * layer.dilation[0] + 1 - layer.stride[0]
    return nn.Sequential(nn.ReflectionPad1d((extra, 0)), weight_norm(layer))


class SoundBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ELU(), padded(nn.Conv1d(width, width // 2, 3)), nn.ELU(), padded(nn.Conv1d(width // 2, width, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Remembered(nn.Module):
    """Two LSTM layers beside a shortcut, (rows, channels, steps)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, 2)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.permute(2, 0, 1)
        return (self.lstm(steps)[0] + steps).permute(1, 2, 0)


class SoundCodec(nn.Module):
    """EnCodec: strided convolutions and an LSTM, residual vector quantisation, the way back; judged by spectra."""

    def __init__(self, width: int, strides: tuple[int, ...], size: int, books: int, entries: int) -> None:
        super().__init__()
        down: list[nn.Module] = [padded(nn.Conv1d(1, width, 7))]
        for number, stride in enumerate(strides):
            inputs = width * 2**number
            down += [SoundBlock(inputs), nn.ELU(), padded(nn.Conv1d(inputs, 2 * inputs, 2 * stride, stride))]
        top = width * 2 ** len(strides)
        self.encoder = nn.Sequential(*down, Remembered(top), nn.ELU(), padded(nn.Conv1d(top, size, 7)))
        up: list[nn.Module] = [padded(nn.Conv1d(size, top, 7)), Remembered(top)]
        for number, stride in enumerate(reversed(strides)):
            inputs = top // 2**number
            layer = nn.ConvTranspose1d(inputs, inputs // 2, 2 * stride, stride, stride // 2 + stride % 2, stride % 2)
            up += [nn.ELU(), weight_norm(layer), SoundBlock(inputs // 2)]
        self.decoder = nn.Sequential(*up, nn.ELU(), padded(nn.Conv1d(width, 1, 7)))
        self.books = nn.ModuleList(nn.Embedding(entries, size) for _ in range(books))

    def quantised(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        rest, whole = codes.transpose(1, 2), torch.zeros_like(codes.transpose(1, 2))
        loss = torch.zeros((), device=codes.device)
        for book in self.books:
            flat = rest.detach().flatten(0, 1).float()
            entries = book.weight.float()
            distances = flat.square().sum(1, keepdim=True) - 2 * flat @ entries.t() + entries.square().sum(1)
            chosen = book(distances.argmin(dim=1)).view(rest.shape)
            loss = (
                loss
                + F.mse_loss(rest, chosen.detach().to(rest.dtype))
                + F.mse_loss(chosen, rest.detach().to(chosen.dtype))
            )
            chosen = rest + (chosen - rest).detach().to(rest.dtype)
            whole, rest = whole + chosen, rest - chosen.detach()
        return whole.transpose(1, 2), loss

    @staticmethod
    def spectrum(wave: Tensor, size: int) -> Tensor:
        window = torch.hann_window(size, device=wave.device)
        return torch.stft(wave.float().squeeze(1), size, size // 4, window=window, return_complex=True).abs()

    def forward(self, wave: Tensor) -> Tensor:
        codes, loss = self.quantised(self.encoder(wave))
        made = self.decoder(codes)
        loss = loss + 0.1 * F.l1_loss(made, wave)
        for size in (256, 512, 1024, 2048):
            wanted, found = self.spectrum(wave, size), self.spectrum(made, size)
            loss = loss + F.l1_loss(found, wanted) + F.mse_loss((found + 0.1).log(), (wanted + 0.1).log())
        return loss
