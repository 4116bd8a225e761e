"""Nets of the survey's second draw over sound, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


class DilatedBlock(nn.Module):
    """Three pairs of convolutions over time, the first of each pair ever more dilated."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.pairs = nn.ModuleList(
            nn.ModuleList(
                weight_norm(nn.Conv1d(width, width, kernel, dilation=spread, padding=spread * (kernel - 1) // 2))
                for spread in (dilation, 1)
            )
            for dilation in (1, 3, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        for first, second in self.pairs:
            x = x + second(F.leaky_relu(first(F.leaky_relu(x, 0.1)), 0.1))
        return x


class PeriodCritic(nn.Module):
    """Judges a wave folded by a period, with tall convolutions."""

    def __init__(self, period: int, width: int) -> None:
        super().__init__()
        self.period, sizes = period, (1, width, 4 * width, 16 * width)
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in itertools.pairwise(sizes)
        )
        self.last = weight_norm(nn.Conv2d(sizes[-1], 1, (3, 1), 1, (1, 0)))

    def forward(self, wave: Tensor) -> list[Tensor]:
        missing = -wave.shape[-1] % self.period
        x = F.pad(wave, (0, missing), "reflect").unflatten(2, (-1, self.period))
        found = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
            found.append(x)
        return [*found, self.last(x)]


class HifiGan(nn.Module):
    """Spectrograms to waves: transposed convolutions, blocks of several kernels averaged, critics of periods."""

    def __init__(self, bands: int, width: int, rates: tuple[int, ...], critic: int) -> None:
        super().__init__()
        self.enter = weight_norm(nn.Conv1d(bands, width, 7, padding=3))
        sizes = [width // 2**level for level in range(len(rates) + 1)]
        self.ups = nn.ModuleList(
            weight_norm(nn.ConvTranspose1d(a, b, 2 * rate, rate, rate // 2))
            for a, b, rate in zip(sizes, sizes[1:], rates, strict=False)
        )
        self.blocks = nn.ModuleList(
            nn.ModuleList(DilatedBlock(size, kernel) for kernel in (3, 7, 11)) for size in sizes[1:]
        )
        self.leave = weight_norm(nn.Conv1d(sizes[-1], 1, 7, padding=3))
        self.critics = nn.ModuleList(PeriodCritic(period, critic) for period in (2, 3, 5, 7, 11))
        self.register_buffer("mel", torch.rand(bands, 513))
        self.register_buffer("window", torch.hann_window(1024))

    def spectrogram(self, wave: Tensor) -> Tensor:
        padded = F.pad(wave.float(), (384, 384), "reflect").squeeze(1)
        found = torch.stft(padded, 1024, 256, window=self.window.float(), center=False, return_complex=True)
        return torch.log((self.mel.float() @ found.abs()).clamp(min=1e-5))

    def forward(self, bands: Tensor, wave: Tensor) -> Tensor:
        x = self.enter(bands)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        made = torch.tanh(self.leave(F.leaky_relu(x)))
        loss = 45 * F.l1_loss(self.spectrogram(made), self.spectrogram(wave))
        for critic in self.critics:
            real, fake, judged = critic(wave), critic(made), critic(made.detach())
            loss = loss + 2 * sum(F.l1_loss(a, b.detach()) for a, b in zip(fake[:-1], real[:-1], strict=True))
            loss = loss + (fake[-1] - 1).square().mean()
            loss = loss + (real[-1] - 1).square().mean() + judged[-1].square().mean()
        return loss


class RelativeAttention(nn.Module):
    """Self-attention with positions relative to each other (Transformer-XL): a bias per head, rows shifted."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, size = heads, width // heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.place = nn.Linear(width, width, bias=False)
        self.by_content, self.by_place = (nn.Parameter(torch.zeros(heads, size)) for _ in range(2))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        rows, length, width = x.shape
        query = self.query(x).view(rows, length, self.heads, -1)
        key, value = (layer(x).view(rows, length, self.heads, -1).transpose(1, 2) for layer in (self.key, self.value))
        place = self.place(places).view(1, length, self.heads, -1).transpose(1, 2)
        content = (query + self.by_content).transpose(1, 2) @ key.transpose(2, 3)
        moved = (query + self.by_place).transpose(1, 2) @ place.transpose(2, 3)
        moved = F.pad(moved, (1, 0)).view(rows, self.heads, length + 1, length)[:, :, 1:].reshape_as(content)
        weights = F.dropout(F.softmax((content + moved) / width**0.5, dim=-1), 0.1, self.training)
        return self.out((weights.to(value.dtype) @ value).transpose(1, 2).flatten(2))


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, a gated depthwise convolution, the other half."""

    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.feeds = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1),
                nn.Linear(4 * width, width), nn.Dropout(0.1),
            )
            for _ in range(2)
        )  # fmt: skip
        self.norm, self.attention = nn.LayerNorm(width), RelativeAttention(width, heads)
        self.before, self.gated = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.wide = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.batch_norm, self.narrow = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.last = nn.LayerNorm(width)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        x = x + 0.5 * self.feeds[0](x)
        x = x + F.dropout(self.attention(self.norm(x), places), 0.1, self.training)
        mixed = F.glu(self.gated(self.before(x).transpose(1, 2)), dim=1)
        mixed = self.narrow(F.silu(self.batch_norm(self.wide(mixed)))).transpose(1, 2)
        x = x + F.dropout(mixed, 0.1, self.training)
        return self.last(x + 0.5 * self.feeds[1](x))


class Conformer(nn.Module):
    """Speech to text: frames are thinned four times by convolutions, then blocks; connectionist classification."""

    def __init__(self, bands: int, width: int, heads: int, depth: int, kernel: int, symbols: int) -> None:
        super().__init__()
        self.thin = nn.Sequential(nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU())
        self.enter = nn.Linear(width * (((bands - 1) // 2 - 1) // 2), width)
        self.blocks = nn.ModuleList(ConformerBlock(width, heads, kernel) for _ in range(depth))
        self.head = nn.Linear(width, symbols)

    def forward(self, frames: Tensor, symbols: Tensor) -> Tensor:
        x = self.thin(frames[:, None])
        x = self.enter(x.transpose(1, 2).flatten(2))
        at = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        rates = torch.exp(-torch.arange(0, x.shape[2], 2, device=x.device) * (9.2 / x.shape[2]))
        places = torch.stack([torch.sin(at[:, None] * rates), torch.cos(at[:, None] * rates)], dim=2).flatten(1)
        for block in self.blocks:
            x = block(x, places.to(x.dtype))
        chances = F.log_softmax(self.head(x).float(), dim=-1).transpose(0, 1)
        lengths = torch.full((len(frames),), len(chances), dtype=torch.long)
        wanted = torch.full((len(frames),), symbols.shape[1], dtype=torch.long)
        return F.ctc_loss(chances, symbols + 1, lengths, wanted, zero_infinity=True)


class FeedForwardBlock(nn.Module):
    """Attention and two convolutions over time (FastSpeech's FFT block)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.first, self.second = nn.Conv1d(width, 4 * width, 9, padding=4), nn.Conv1d(4 * width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor, absent: Tensor | None) -> Tensor:
        x = self.norms[0](x + self.attention(x, x, x, key_padding_mask=absent, need_weights=False)[0])
        mixed = self.second(F.relu(self.first(x.transpose(1, 2)))).transpose(1, 2)
        x = self.norms[1](x + F.dropout(mixed, 0.1, self.training))
        return x if absent is None else x.masked_fill(absent[..., None], 0)


class FastSpeech(nn.Module):
    """Phonemes to spectrograms at once: every phoneme is repeated for its duration, pitch and energy are added."""

    def __init__(self, symbols: int, width: int, depth: int, bands: int) -> None:
        super().__init__()
        self.embed, self.frames_at = nn.Embedding(symbols, width), nn.Embedding(2000, width)
        self.encoder = nn.ModuleList(FeedForwardBlock(width, 2) for _ in range(depth))
        self.decoder = nn.ModuleList(FeedForwardBlock(width, 2) for _ in range(depth))
        self.predictors = nn.ModuleList(self.predictor(width) for _ in range(2))
        self.pitches = nn.Embedding(256, width)
        self.mel = nn.Linear(width, bands)
        sizes = [bands, *[512] * 4, bands]
        self.polish = nn.Sequential(*(
            layer
            for a, b in itertools.pairwise(sizes)
            for layer in (nn.Conv1d(a, b, 5, padding=2), nn.BatchNorm1d(b), nn.Tanh(), nn.Dropout(0.5))
        ))  # fmt: skip

    @staticmethod
    def predictor(width: int) -> nn.ModuleList:
        return nn.ModuleList([
            nn.Conv1d(width, width, 3, padding=1), nn.LayerNorm(width), nn.Conv1d(width, width, 3, padding=1),
            nn.LayerNorm(width), nn.Linear(width, 1),
        ])  # fmt: skip

    @staticmethod
    def predict(layers: nn.ModuleList, x: Tensor) -> Tensor:
        for conv, norm in ((layers[0], layers[1]), (layers[2], layers[3])):
            x = F.dropout(norm(F.relu(conv(x.transpose(1, 2))).transpose(1, 2)), 0.5)
        return layers[4](x).squeeze(-1)

    def forward(self, symbols: Tensor, absent: Tensor, spoken: Tensor, pitches: Tensor, frames: Tensor) -> Tensor:
        x = self.embed(symbols) + self.frames_at(torch.arange(symbols.shape[1], device=symbols.device))
        for block in self.encoder:
            x = block(x, absent)
        spoken = spoken.sort(dim=1).values
        durations = torch.zeros_like(symbols, dtype=torch.float32).scatter_add_(
            1, spoken, torch.ones_like(spoken, dtype=torch.float32)
        )
        loss = F.mse_loss(self.predict(self.predictors[0], x).float(), torch.log1p(durations))
        pitch_loss = F.mse_loss(self.predict(self.predictors[1], x).float(), pitches.float() / 256)
        x = x + self.pitches(pitches)
        x = torch.gather(x, 1, spoken[..., None].expand(-1, -1, x.shape[2]))
        x = x + self.frames_at(torch.arange(x.shape[1], device=x.device))
        for block in self.decoder:
            x = block(x, None)
        made = self.mel(x)
        polished = made + self.polish(made.transpose(1, 2)).transpose(1, 2)
        return loss + pitch_loss + F.l1_loss(made, frames.to(made.dtype)) + F.l1_loss(polished, frames)


class DualPath(nn.Module):
    """Two voices out of one wave (DPRNN): chunks that overlap, LSTMs inside of chunks and across them in turns."""

    def __init__(self, filters: int, width: int, hidden: int, chunk: int, depth: int) -> None:
        super().__init__()
        self.chunk = chunk
        self.encoder, self.decoder = nn.Conv1d(1, filters, 16, 8, bias=False), nn.ConvTranspose1d(filters, 1, 16, 8)
        self.norm, self.enter = nn.GroupNorm(1, filters), nn.Conv1d(filters, width, 1)
        self.inside, self.across = (
            nn.ModuleList(nn.LSTM(width, hidden, batch_first=True, bidirectional=True) for _ in range(depth))
            for _ in range(2)
        )
        self.projections = nn.ModuleList(nn.Linear(2 * hidden, width) for _ in range(2 * depth))
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in range(2 * depth))
        self.split, self.masks = nn.Sequential(nn.PReLU(), nn.Conv2d(width, 2 * width, 1)), nn.Conv1d(width, filters, 1)

    def pass_over(self, number: int, rnn: nn.Module, x: Tensor, order: tuple[int, ...]) -> Tensor:
        """`order` brings the axis of time to the third place and channels to the last; it is its own inverse or not."""
        turned = x.permute(order)
        out = self.projections[number](rnn(turned.flatten(0, 1))[0]).unflatten(0, turned.shape[:2])
        back = [order.index(axis) for axis in range(4)]
        return x + self.norms[number](out.permute(back))

    def forward(self, mixture: Tensor, voices: Tensor) -> Tensor:
        encoded = F.relu(self.encoder(mixture[:, None]))
        x = self.enter(self.norm(encoded))
        rows, width, length = x.shape
        hop = self.chunk // 2
        missing = hop - length % hop
        x = F.pad(x, (hop, hop + missing))
        x = x.unfold(2, self.chunk, hop).transpose(2, 3)
        for number, (inside, across) in enumerate(zip(self.inside, self.across, strict=True)):
            x = self.pass_over(2 * number, inside, x, (0, 3, 2, 1))
            x = self.pass_over(2 * number + 1, across, x, (0, 2, 3, 1))
        x = self.split(x).view(2 * rows, width, self.chunk, -1)
        total = length + missing + 2 * hop
        x = F.fold(x.flatten(1, 2), (1, total), (1, self.chunk), stride=(1, hop)).view(2 * rows, width, total)
        masks = torch.sigmoid(self.masks(x[..., hop : hop + length])).view(rows, 2, -1, length)
        made = self.decoder((encoded[:, None] * masks).flatten(0, 1)).view(rows, 2, -1)
        wanted = voices[..., : made.shape[-1]].float()
        made = made[..., : wanted.shape[-1]].float()
        straight, crossed = self.clarity(made, wanted), self.clarity(made, wanted.flip(1))
        return -torch.maximum(straight, crossed).mean()

    @staticmethod
    def clarity(made: Tensor, wanted: Tensor) -> Tensor:
        made, wanted = (x - x.mean(dim=-1, keepdim=True) for x in (made, wanted))
        scale = (made * wanted).sum(-1, keepdim=True) / (wanted.square().sum(-1, keepdim=True) + 1e-8)
        rest = made - scale * wanted
        ratio = (scale * wanted).square().sum(-1) / (rest.square().sum(-1) + 1e-8)
        return (10 * torch.log10(ratio + 1e-8)).mean(dim=1)
