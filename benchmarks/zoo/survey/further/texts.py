"""More nets of the survey's second draw over texts and series, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class UniversalTransformer(nn.Module):
    """One layer applied again and again; every position halts when it has pondered enough."""

    def __init__(self, vocab: int, width: int, heads: int, steps: int) -> None:
        super().__init__()
        self.heads, self.steps = heads, steps
        self.embed, self.halt = nn.Embedding(vocab, width), nn.Linear(width, 1)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.first, self.second = nn.Conv1d(width, 4 * width, 3), nn.Conv1d(4 * width, width, 3)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.head = nn.Linear(width, vocab)

    def apply_layer(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        )
        found = F.scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        mixed = F.relu(self.first(F.pad(self.norms[1](x).transpose(1, 2), (2, 0))))
        return x + self.second(F.pad(mixed, (2, 0))).transpose(1, 2)

    @staticmethod
    def waves(count: int, width: int, device: torch.device) -> Tensor:
        rates = torch.exp(torch.arange(0, width, 2, device=device, dtype=torch.float32) * (-math.log(1e4) / width))
        angles = torch.arange(count, device=device, dtype=torch.float32)[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        places = self.waves(tokens.shape[1], x.shape[2], x.device).to(x.dtype)
        times = self.waves(self.steps, x.shape[2], x.device).to(x.dtype)
        halted = torch.zeros(tokens.shape, device=x.device)
        rest, result, updates = torch.zeros_like(halted), torch.zeros_like(x), torch.zeros_like(halted)
        for step in range(self.steps):
            x = x + places + times[step]
            chance = torch.sigmoid(self.halt(x)).squeeze(-1).float()
            running = (halted < 1.0).float()
            new = (halted + chance * running > 0.9).float() * running
            running = (halted + chance * running <= 0.9).float() * running
            halted = halted + chance * running
            rest = rest + new * (1 - halted)
            halted = halted + new * rest
            updates = updates + running + new
            weight = (chance * running + new * rest)[..., None].to(x.dtype)
            x = self.apply_layer(x)
            result = x * weight + result * (1 - weight)
        logits = self.head(result)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        return loss + 0.01 * (rest + updates).mean()


class QuasiRecurrent(nn.Module):
    """A language model whose gates are convolutions over time; only their pooling goes step by step (QRNN)."""

    def __init__(self, vocab: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.gates = nn.ModuleList(nn.Conv1d(width, 3 * width, 2) for _ in range(depth))
        self.head = nn.Linear(width, vocab)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.dropout(self.embed(tokens), 0.2)
        for gates in self.gates:
            told = gates(F.pad(x.transpose(1, 2), (1, 0))).transpose(1, 2)
            signal, forget, out = told.chunk(3, dim=-1)
            signal, forget, out = torch.tanh(signal), torch.sigmoid(forget), torch.sigmoid(out)
            forget = 1 - F.dropout(1 - forget, 0.1)
            state, states = torch.zeros_like(signal[:, 0]), []
            for step in range(tokens.shape[1]):
                state = forget[:, step] * state + (1 - forget[:, step]) * signal[:, step]
                states.append(state)
            x = F.dropout(out * torch.stack(states, dim=1), 0.2)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class DeepAr(nn.Module):
    """Many series at once: an LSTM of lags and covariates, a Student's t or counts' likelihood of every value."""

    def __init__(self, series: int, covariates: int, width: int, depth: int) -> None:
        super().__init__()
        self.which = nn.Embedding(series, 32)
        self.rnn = nn.LSTM(1 + 32 + covariates, width, depth, batch_first=True, dropout=0.1)
        self.student, self.counts = nn.Linear(width, 3), nn.Linear(width, 2)

    def forward(self, values: Tensor, covariates: Tensor, which: Tensor) -> Tensor:
        scale = 1 + values.abs().mean(dim=1, keepdim=True)
        identity = self.which(which)[:, None].expand(-1, values.shape[1] - 1, -1)
        given = torch.cat([(values / scale)[:, :-1, None], covariates[:, 1:], identity.to(values.dtype)], dim=-1)
        states = self.rnn(given)[0]
        wanted = values[:, 1:].float()
        place, spread, freedom = self.student(states).float().unbind(-1)
        chance = torch.distributions.StudentT(
            2 + F.softplus(freedom), place * scale, F.softplus(spread) * scale + 1e-6, validate_args=False
        ).log_prob(wanted)
        mean, shape = (F.softplus(x.float()) + 1e-6 for x in self.counts(states).unbind(-1))
        count = (wanted * 5).abs().round()
        both = torch.log1p(mean * shape)
        counted = (
            torch.lgamma(count + 1 / shape) - torch.lgamma(count + 1) - torch.lgamma(1 / shape)
            - both / shape + count * (torch.log(mean * shape) - both)
        )  # fmt: skip
        return -(chance + counted).mean()


class SparseAttention(nn.Module):
    """Informer's attention: only the queries that differ most from the mean, by a sample of keys, attend."""

    def __init__(self, width: int, heads: int, factor: int) -> None:
        super().__init__()
        self.heads, self.factor = heads, factor
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        query, key, value = (
            layer(x).view(rows, length, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        count = min(length, self.factor * math.ceil(math.log(length)))
        sample = torch.randint(length, (length, count), device=x.device)
        sampled = key[:, :, sample]
        scores = torch.matmul(query.unsqueeze(-2), sampled.transpose(-2, -1)).squeeze(-2)
        sparsity = scores.amax(dim=-1) - scores.sum(dim=-1) / length
        top = sparsity.topk(count, sorted=False).indices
        row, head = (torch.arange(size, device=x.device) for size in (rows, self.heads))
        at = row[:, None, None], head[None, :, None], top
        weights = torch.softmax(query[at] @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]), dim=-1)
        context = value.mean(dim=-2, keepdim=True).expand(-1, -1, length, -1).clone()
        context[at] = (weights.to(value.dtype) @ value).to(context.dtype)
        return self.out(context.transpose(1, 2).flatten(2))


class Informer(nn.Module):
    """Long series: sparse attention, the sequence halved between layers, the whole future decoded at once."""

    def __init__(self, channels: int, width: int, heads: int, depth: int, future: int) -> None:
        super().__init__()
        self.future = future
        self.enter = nn.ModuleList(
            nn.Conv1d(channels, width, 3, padding=1, padding_mode="circular", bias=False) for _ in range(2)
        )
        self.sparse = nn.ModuleList(SparseAttention(width, heads, 5) for _ in range(depth))
        self.halve = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, width, 3, padding=1, padding_mode="circular"), nn.BatchNorm1d(width), nn.ELU(),
                nn.MaxPool1d(3, 2, 1),
            )
            for _ in range(depth - 1)
        )  # fmt: skip
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, 4 * width, 1), nn.GELU(), nn.Dropout(0.05), nn.Conv1d(4 * width, width, 1))
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.decoder = nn.TransformerDecoderLayer(width, heads, 4 * width, 0.05, "gelu", batch_first=True)
        self.head = nn.Linear(width, channels)

    def forward(self, past: Tensor, coming: Tensor) -> Tensor:
        x = self.enter[0](past.transpose(1, 2)).transpose(1, 2)
        for number, (sparse, feed) in enumerate(zip(self.sparse, self.feeds, strict=True)):
            x = self.norms[2 * number](x + F.dropout(sparse(x), 0.05))
            x = self.norms[2 * number + 1](x + feed(x.transpose(1, 2)).transpose(1, 2))
            if number < len(self.halve):
                x = self.halve[number](x.transpose(1, 2)).transpose(1, 2)
        known = past[:, -self.future :]
        given = torch.cat([known, torch.zeros_like(coming)], dim=1)
        asked = self.enter[1](given.transpose(1, 2)).transpose(1, 2)
        mask = nn.Transformer.generate_square_subsequent_mask(asked.shape[1], asked.device, asked.dtype)
        found = self.head(self.decoder(asked, x.to(asked.dtype), tgt_mask=mask))
        return F.mse_loss(found[:, -self.future :], coming)
