"""Nets of the survey's fourth draw that learn from pairs of images or texts, in plain torch, after what was published
under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.survey.third.images import normed
from zoo.survey.third.vision import Plain


class Residual(nn.Module):
    """ResNet-18 or wider, up to its pooled features."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(normed(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        sizes = [width, *(width * 2**level for level in range(4))]
        blocks = [
            Plain(b if number else a, b, 2 if level and not number else 1)
            for level, (a, b) in enumerate(itertools.pairwise(sizes))
            for number in range(depth)
        ]
        self.body = nn.Sequential(*blocks)

    def forward(self, images: Tensor) -> Tensor:
        return self.body(self.stem(images)).mean(dim=(2, 3))


class RedundancyReduction(nn.Module):
    """Barlow Twins: two views' features correlate as the identity says."""

    def __init__(self, width: int, depth: int, size: int) -> None:
        super().__init__()
        self.encoder = Residual(width, depth)
        sizes = [8 * width, size, size]
        hidden = [
            layer
            for a, b in itertools.pairwise(sizes)
            for layer in (nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU(inplace=True))
        ]
        self.project = nn.Sequential(*hidden, nn.Linear(size, size, bias=False))
        self.norm = nn.BatchNorm1d(size, affine=False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        left, right = (self.norm(self.project(self.encoder(view))) for view in (first, second))
        alike = (left.t() @ right / len(first)).float()
        diagonal = alike.diagonal()
        others = alike.square().sum() - diagonal.square().sum()
        return (diagonal - 1).square().sum() + 0.0051 * others


class MomentumContrast(nn.Module):
    """MoCo: a slow copy of the encoder makes keys, which wait in a queue and are told from the query's own."""

    def __init__(self, width: int, depth: int, size: int, waiting: int) -> None:
        super().__init__()
        self.fast, self.slow = (self.encoder(width, depth, size) for _ in range(2))
        self.slow.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(waiting, size), dim=1))

    @staticmethod
    def encoder(width: int, depth: int, size: int) -> nn.Sequential:
        top = 8 * width
        return nn.Sequential(Residual(width, depth), nn.Linear(top, top), nn.ReLU(), nn.Linear(top, size))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        query = F.normalize(self.fast(first), dim=1)
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.fast.parameters(), strict=True):
                slow.mul_(0.999).add_(fast, alpha=0.001)
            key = F.normalize(self.slow(second), dim=1)
        own = (query * key).sum(dim=1, keepdim=True)
        others = query @ self.queue.clone().t().to(query.dtype)
        logits = torch.cat([own, others], dim=1).float() / 0.2
        self.queue.copy_(torch.cat([key.to(self.queue.dtype), self.queue[: -len(key)]]))
        return F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long, device=query.device))


class LateInteraction(nn.Module):
    """ColBERT: every word of a question takes the word of a document that is most like it; batches give the others."""

    def __init__(self, vocab: int, width: int, heads: int, depth: int, size: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.narrow = nn.Linear(width, size, bias=False)

    def encoded(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        x = self.narrow(self.layers(x, src_key_padding_mask=padding))
        return F.normalize(x, dim=-1)

    def forward(self, questions: Tensor, documents: Tensor, absent: Tensor) -> Tensor:
        asked, told = self.encoded(questions), self.encoded(documents, absent)
        alike = torch.einsum("qid,pjd->qpij", asked, told).masked_fill(absent[None, :, None], -1e4)
        scores = alike.max(dim=3).values.float().sum(dim=2)
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
