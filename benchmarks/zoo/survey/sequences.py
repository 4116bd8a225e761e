"""Nets of the survey over sequences: sound, text and series, in plain torch, as different as people's own code is.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class WaveNet(nn.Module):
    """Causal convolutions whose dilation doubles, gated; every layer's skip is summed."""

    def __init__(self, width: int, skip: int, cycles: int, layers: int) -> None:
        super().__init__()
        self.dilations = [2**layer for _ in range(cycles) for layer in range(layers)]
        self.enter = nn.Embedding(256, width)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=dilation) for dilation in self.dilations)
        self.out = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in self.dilations)
        self.skip = nn.ModuleList(nn.Conv1d(width, skip, 1) for _ in self.dilations)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, 256, 1))

    def forward(self, samples: Tensor) -> Tensor:
        x, total = self.enter(samples).transpose(1, 2), 0.0
        for dilation, gated, out, skip in zip(self.dilations, self.gated, self.out, self.skip, strict=True):
            signal, gate = gated(F.pad(x, (dilation, 0))).chunk(2, dim=1)
            mixed = torch.tanh(signal) * torch.sigmoid(gate)
            total = total + skip(mixed)
            x = x + out(mixed)
        return F.cross_entropy(self.head(total)[:, :, :-1], samples[:, 1:])


class TemporalNet(nn.Module):
    """Dilated residual convolutions with normalised weights, for a series of many channels."""

    def __init__(self, channels: int, widths: tuple[int, ...], kernel: int) -> None:
        super().__init__()
        self.layers, self.shortcuts, self.kernel = nn.ModuleList(), nn.ModuleList(), kernel
        for level, (a, b) in enumerate(zip((channels, *widths), widths, strict=False)):
            first = weight_norm(nn.Conv1d(a, b, kernel, dilation=2**level))
            second = weight_norm(nn.Conv1d(b, b, kernel, dilation=2**level))
            self.layers.append(nn.ModuleList([first, second]))
            self.shortcuts.append(nn.Conv1d(a, b, 1) if a != b else nn.Identity())
        self.head = nn.Linear(widths[-1], channels)

    def forward(self, series: Tensor) -> Tensor:
        x = series
        for level, (pair, shortcut) in enumerate(zip(self.layers, self.shortcuts, strict=True)):
            out = x
            for layer in pair:
                out = F.dropout(F.relu(layer(F.pad(out, ((self.kernel - 1) * 2**level, 0)))), 0.2, self.training)
            x = F.relu(out + shortcut(x))
        return F.huber_loss(self.head(x.transpose(1, 2))[:, :-1], series.transpose(1, 2)[:, 1:])


class FourierMixer(nn.Module):
    """Transformer blocks that mix tokens by a Fourier transform of both axes."""

    def __init__(self, vocab: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for number, mlp in enumerate(self.mlps):
            mixed = torch.fft.fft2(x.float()).real.to(x.dtype)
            x = self.norms[2 * number](x + mixed)
            x = self.norms[2 * number + 1](x + mlp(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


class LongConvolution(nn.Module):
    """A diagonal state space as one convolution of the sequence's length, by Fourier transforms, gated."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.norm, self.enter = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.decay = nn.Parameter(torch.rand(width, states) + 0.5)
        self.phase = nn.Parameter(math.pi * torch.rand(width, states))
        self.read = nn.Parameter(torch.randn(width, states))
        self.skip = nn.Parameter(torch.ones(width))
        self.leave = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        value, first, second = self.enter(self.norm(x)).chunk(3, dim=-1)
        length = x.shape[1]
        at = torch.arange(length, device=x.device, dtype=torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            waves = torch.exp(-self.decay.float()[..., None] * at / length) * torch.cos(
                self.phase.float()[..., None] * at
            )
            kernel = torch.einsum("ds,dsl->dl", self.read.float(), waves)
            signal = (value * first).transpose(1, 2).float()
            spectrum = torch.fft.rfft(signal, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
            mixed = torch.fft.irfft(spectrum, n=2 * length)[..., :length] + signal * self.skip.float()[:, None]
        return x + self.leave(mixed.transpose(1, 2).to(second.dtype) * F.silu(second))


class LongConvolutionLM(nn.Module):
    def __init__(self, vocab: int, width: int, states: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.Sequential(*(LongConvolution(width, states) for _ in range(depth)))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return next_token_loss(self.head(self.blocks(self.embed(tokens))), tokens)


class ScannedGru(nn.Module):
    """A GRU without its hidden inputs, run over the whole sequence at once: a scan in the space of logarithms."""

    def __init__(self, vocab: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.inner = nn.ModuleList(nn.Linear(width, 2 * width, bias=False) for _ in range(depth))
        self.outer = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for norm, inner, outer in zip(self.norms, self.inner, self.outer, strict=True):
            hidden, gate = inner(norm(x)).float().chunk(2, dim=-1)
            log_keep, log_take = -F.softplus(gate), -F.softplus(-gate)
            log_hidden = torch.where(hidden >= 0, (F.relu(hidden) + 0.5).log(), -F.softplus(-hidden))
            kept = torch.cumsum(log_keep, dim=1)
            scanned = torch.logcumsumexp(log_take + log_hidden - kept, dim=1)
            x = x + outer((kept + scanned).exp().to(x.dtype))
        return next_token_loss(self.head(x), tokens)


class RandomFeatures(nn.Module):
    """Attention by positive random features: no score matrix, two products."""

    def __init__(self, width: int, heads: int, features: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.register_buffer("projection", torch.randn(features, width // heads))

    def features(self, x: Tensor) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        projected = torch.einsum("bhld,md->bhlm", x, self.projection.to(x.dtype))
        size = x.square().sum(-1, keepdim=True) / 2
        return torch.exp(projected - size - projected.amax(dim=(-1, -2), keepdim=True).detach()) + 1e-4

    def forward(self, x: Tensor) -> Tensor:
        size, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(size, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = self.features(qkv[0]), self.features(qkv[1]), qkv[2]
        context = torch.einsum("bhlm,bhld->bhmd", key, value)
        weight = 1 / torch.einsum("bhlm,bhm->bhl", query, key.sum(dim=2))
        mixed = torch.einsum("bhlm,bhmd,bhl->bhld", query, context, weight)
        x = x + self.out(mixed.transpose(1, 2).reshape(size, length, width))
        return x + self.mlp(self.norms[1](x))


class Performer(nn.Module):
    """Classifies long documents."""

    def __init__(self, vocab: int, width: int, heads: int, features: int, depth: int, length: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(RandomFeatures(width, heads, features) for _ in range(depth)))
        self.head = nn.Linear(width, 20)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.embed(tokens) + self.place).mean(dim=1)), labels)


class GatedPerceptron(nn.Module):
    """gMLP: half of the channels gate the other half after a product over positions."""

    def __init__(self, vocab: int, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.grow = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(depth))
        self.inner = nn.ModuleList(nn.LayerNorm(3 * width) for _ in range(depth))
        self.across = nn.ModuleList(nn.Conv1d(length, length, 1) for _ in range(depth))
        self.shrink = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(depth))
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for norm, grow, inner, across, shrink in zip(
            self.norms, self.grow, self.inner, self.across, self.shrink, strict=True
        ):
            kept, gate = F.gelu(grow(norm(x))).chunk(2, dim=-1)
            x = x + shrink(kept * across(inner(gate)))
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


class Perceiver(nn.Module):
    """A few latents attend to many inputs, then to themselves, over and over with the same weights."""

    def __init__(self, inputs: int, width: int, latents: int, heads: int, rounds: int, depth: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, width) * 0.02)
        self.cross = nn.MultiheadAttention(width, 1, kdim=inputs, vdim=inputs, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(inputs), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        layer = nn.TransformerEncoderLayer(width, heads, width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.own = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.rounds, self.head = rounds, nn.Linear(width, 1000)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        x = self.latents.expand(len(pixels), -1, -1)
        inputs = self.norms[1](pixels)
        for _ in range(self.rounds):
            x = x + self.cross(self.norms[0](x), inputs, inputs, need_weights=False)[0]
            x = x + self.mlp(self.norms[2](x))
            x = self.own(x)
        return F.cross_entropy(self.head(x.mean(dim=1)), labels)


class SlopedAttention(nn.Module):
    """Causal attention by hand, biased by the distance (ALiBi), the softmax in float32."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.query, self.both = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        size, length, width = x.shape
        normed = self.norms[0](x)
        key, value = self.both(normed).chunk(2, dim=-1)
        query, key, value = (
            each.view(size, length, self.heads, -1).transpose(1, 2) for each in (self.query(normed), key, value)
        )
        scores = (query @ key.transpose(-1, -2)) / math.sqrt(width // self.heads) + bias
        weights = F.dropout(scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype), 0.1, self.training)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(size, length, width))
        return x + self.shrink(F.relu(self.grow(self.norms[1](x))).square())


class SlopedLM(nn.Module):
    def __init__(self, vocab: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(SlopedAttention(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        at = torch.arange(tokens.shape[1], device=tokens.device)
        distance = (at[None, :] - at[:, None]).to(x.dtype)
        bias = self.slopes.to(x.dtype)[:, None, None] * distance
        bias = bias.masked_fill(at[None, :] > at[:, None], float("-inf"))
        for block in self.blocks:
            x = block(x, bias)
        return next_token_loss(F.linear(self.norm(x), self.embed.weight), tokens)


class EncoderDecoder(nn.Module):
    """torch's own transformer with padding and causal masks."""

    def __init__(self, vocab: int, width: int, heads: int, depth: int, length: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width, padding_idx=0), nn.Embedding(length, width)
        self.body = nn.Transformer(width, heads, depth, depth, 4 * width, 0.1, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor, targets: Tensor, padding: Tensor) -> Tensor:
        def embedded(ids: Tensor) -> Tensor:
            return self.embed(ids) * math.sqrt(self.embed.embedding_dim) + self.place(
                torch.arange(ids.shape[1], device=ids.device)
            )

        mask = nn.Transformer.generate_square_subsequent_mask(targets.shape[1], device=targets.device) < 0
        found = self.body(
            embedded(tokens), embedded(targets), tgt_mask=mask, src_key_padding_mask=padding,
            memory_key_padding_mask=padding, tgt_is_causal=True,
        )  # fmt: skip
        return next_token_loss(self.head(found), targets)
