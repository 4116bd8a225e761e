"""Nets of the survey's third draw that read, or are finetuned, in plain torch, after what was published under their
names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.survey.third.diffusion import heads_of
from zoo.survey.third.tokens import GatedMlp, RootNorm, turned


class Adapted(nn.Module):
    """A frozen linear layer and a trained product of two narrow ones (LoRA)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        self.dropout, self.scale = nn.Dropout(0.05), 16 / rank
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(self.dropout(x))) * self.scale


class DecoderLayer(nn.Module):
    """A layer as of Llama: grouped queries, rotary positions, a gated perceptron."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        self.heads, self.shared = heads, shared
        size = width // heads
        self.before, self.after, self.mlp = RootNorm(width), RootNorm(width), GatedMlp(width, width * 11 // 4)
        self.query, self.leave = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, shared * size, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.before(x)
        query = turned(heads_of(self.query(normed), self.heads))
        key, value = turned(heads_of(self.key(normed), self.shared)), heads_of(self.value(normed), self.shared)
        key, value = (part.repeat_interleave(self.heads // self.shared, dim=1) for part in (key, value))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.leave(found.transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x))


class LoraLM(nn.Module):
    """A frozen language model with trained adapters beside queries and values."""

    def __init__(self, vocab: int, width: int, heads: int, depth: int, rank: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, max(1, heads // 4)) for _ in range(depth))
        self.norm, self.head = RootNorm(width), nn.Linear(width, vocab, bias=False)
        self.requires_grad_(False)
        for layer in self.layers:
            layer.query, layer.value = Adapted(layer.query, rank), Adapted(layer.value, rank)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x))[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class MultiTokenLM(nn.Module):
    """A language model that also predicts the words after the next, each by a further layer (DeepSeek V3)."""

    def __init__(self, vocab: int, width: int, heads: int, depth: int, further: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, heads // 2) for _ in range(depth))
        self.further = nn.ModuleList(DecoderLayer(width, heads, heads // 2) for _ in range(further))
        self.joins = nn.ModuleList(nn.Linear(2 * width, width, bias=False) for _ in range(further))
        self.norms = nn.ModuleList(RootNorm(width) for _ in range(2 * further + 1))
        self.head = nn.Linear(width, vocab, bias=False)

    def judge(self, x: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), wanted.flatten())

    def forward(self, tokens: Tensor) -> Tensor:
        x, length = self.words(tokens), tokens.shape[1]
        for layer in self.layers:
            x = layer(x)
        loss = self.judge(self.norms[0](x)[:, :-1], tokens[:, 1:])
        for number, (join, layer) in enumerate(zip(self.joins, self.further, strict=True)):
            known = self.norms[2 * number + 1](x[:, : length - 1 - number])
            heard = self.norms[2 * number + 2](self.words(tokens[:, 1 + number :]))
            x = layer(join(torch.cat([known[:, : heard.shape[1]], heard], dim=-1)))
            loss = loss + 0.3 * self.judge(x[:, :-1], tokens[:, 2 + number :])
        return loss


class DeltaLayer(nn.Module):
    """Gated delta rule in chunks: a triangular system within a chunk, a state between chunks."""

    def __init__(self, width: int, heads: int, chunk: int) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.norm, self.out_norm = RootNorm(width), RootNorm(width // heads)
        self.qkv, self.gate, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, width)
        self.short = nn.Conv1d(3 * width, 3 * width, 4, padding=3, groups=3 * width, bias=False)
        self.rates = nn.Linear(width, 2 * heads)

    def parts(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values, (rows, heads, chunks, chunk, size); then strength and decay of every step."""
        mixed = F.silu(self.short(self.qkv(x).transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        query, key, value = (heads_of(part, self.heads) for part in mixed.chunk(3, dim=-1))
        strength, decay = self.rates(x).float().chunk(2, dim=-1)
        steps = strength.sigmoid().transpose(1, 2), -F.softplus(decay).transpose(1, 2)
        found = F.normalize(query, dim=-1) * query.shape[-1] ** -0.5, F.normalize(key, dim=-1), value, *steps
        return [part.float().unflatten(2, (-1, self.chunk)) for part in found]

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        query, key, value, strength, decay = self.parts(normed)
        decay = decay.cumsum(dim=-1)
        ones = torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=x.device)
        fading = (decay[..., :, None] - decay[..., None, :]).masked_fill(ones.triu(1), float("-inf")).exp()
        strong = key * strength[..., None]
        within = -(strong @ key.transpose(-1, -2) * fading).masked_fill(ones.triu(0), 0)
        for row in range(1, self.chunk):
            known = within[..., :row, :row].clone()
            line = within[..., row, :row].clone()
            within[..., row, :row] = line + (line[..., None] * known).sum(dim=-2)
        within = within + torch.eye(self.chunk, device=x.device, dtype=within.dtype)
        value, faded = within @ (value * strength[..., None]), within @ (strong * decay.exp()[..., None])
        state = torch.zeros(*key.shape[:2], key.shape[-1], value.shape[-1], device=x.device, dtype=key.dtype)
        outs = []
        for number in range(key.shape[2]):
            asked, known, at = query[:, :, number], key[:, :, number], decay[:, :, number]
            fresh = value[:, :, number] - faded[:, :, number] @ state
            local = (asked @ known.transpose(-1, -2) * fading[:, :, number]) @ fresh
            outs.append((asked * at.exp()[..., None]) @ state + local)
            rest = (at[..., -1:] - at).exp()[..., None]
            state = state * at[..., -1, None, None].exp() + (known * rest).transpose(-1, -2) @ fresh
        found = self.out_norm(torch.stack(outs, dim=2).flatten(2, 3).transpose(1, 2).to(x.dtype)).flatten(2)
        return x + self.leave(found * F.silu(self.gate(normed)))


class ChunkedDelta(nn.Module):
    """A language model of gated delta layers."""

    def __init__(self, vocab: int, width: int, heads: int, depth: int, chunk: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(DeltaLayer(width, heads, chunk) for _ in range(depth))
        self.norms = nn.ModuleList(RootNorm(width) for _ in range(depth + 1))
        self.mlps = nn.ModuleList(GatedMlp(width, width * 8 // 3) for _ in range(depth))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer, norm, mlp in zip(self.layers, self.norms, self.mlps, strict=False):
            x = layer(x)
            x = x + mlp(norm(x))
        return F.cross_entropy(self.head(self.norms[-1](x))[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class ViewLayer(nn.Module):
    """A vision transformer's layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.query, self.key, self.value, self.leave = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.before(x)
        parts = (heads_of(layer(normed), self.heads) for layer in (self.query, self.key, self.value))
        x = x + self.leave(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x))


class LoraVit(nn.Module):
    """A frozen vision transformer with trained adapters and a trained head."""

    def __init__(self, side: int, width: int, heads: int, depth: int, rank: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, (side // 16) ** 2 + 1, width))
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        self.layers, self.norm = nn.ModuleList(ViewLayer(width, heads) for _ in range(depth)), nn.LayerNorm(width)
        self.requires_grad_(False)
        for layer in self.layers:
            layer.query, layer.value = Adapted(layer.query, rank), Adapted(layer.value, rank)
        self.head = nn.Linear(width, 100)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.summary.expand(len(x), -1, -1), x], dim=1) + self.places
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x[:, 0])), labels)


class Captioner(nn.Module):
    """A frozen vision transformer's patches, projected among the words of a language model (LLaVA)."""

    def __init__(self, seen: int, seen_depth: int, vocab: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, seen, 14, 14).requires_grad_(False)
        self.views = nn.ModuleList(ViewLayer(seen, max(2, seen // 64)) for _ in range(seen_depth)).requires_grad_(False)
        self.project = nn.Sequential(nn.Linear(seen, width), nn.GELU(), nn.Linear(width, width))
        self.words = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, heads) for _ in range(depth))
        self.norm, self.head = RootNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            seen = self.patches(images).flatten(2).transpose(1, 2)
            for view in self.views:
                seen = view(seen)
        x = torch.cat([self.project(seen), self.words(tokens)], dim=1)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x[:, seen.shape[1] :]))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class MaskedAutoencoder(nn.Module):
    """A vision transformer sees a quarter of the patches, a narrow one guesses the others' pixels."""

    def __init__(self, side: int, width: int, heads: int, depth: int, narrow: int, narrow_depth: int) -> None:
        super().__init__()
        count = (side // 16) ** 2
        self.kept = count // 4
        self.patches, self.places = nn.Conv2d(3, width, 16, 16), nn.Parameter(torch.zeros(1, count, width))
        self.encoder, self.norm = nn.ModuleList(ViewLayer(width, heads) for _ in range(depth)), nn.LayerNorm(width)
        self.enter, self.hidden = nn.Linear(width, narrow), nn.Parameter(torch.zeros(1, 1, narrow))
        self.narrow_places = nn.Parameter(torch.zeros(1, count, narrow))
        self.decoder = nn.ModuleList(ViewLayer(narrow, max(2, narrow // 32)) for _ in range(narrow_depth))
        self.head = nn.Sequential(nn.LayerNorm(narrow), nn.Linear(narrow, 3 * 256))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        rows, count, width = x.shape
        order = torch.rand(rows, count, device=x.device).argsort(dim=1)
        back = order.argsort(dim=1)
        x = x.gather(1, order[:, : self.kept, None].expand(-1, -1, width))
        for layer in self.encoder:
            x = layer(x)
        seen = self.enter(self.norm(x))
        full = torch.cat([seen, self.hidden.to(seen.dtype).expand(rows, count - self.kept, -1)], dim=1)
        x = full.gather(1, back[:, :, None].expand(-1, -1, full.shape[2])) + self.narrow_places
        for layer in self.decoder:
            x = layer(x)
        side = images.shape[2] // 16
        pixels = images.view(rows, 3, side, 16, side, 16).permute(0, 2, 4, 3, 5, 1).reshape(rows, count, -1)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / (pixels.var(-1, keepdim=True) + 1e-6).sqrt()
        is_hidden = (back >= self.kept).to(pixels.dtype)
        errors = (self.head(x) - pixels).square().mean(dim=-1)
        return (errors * is_hidden).sum() / is_hidden.sum()
