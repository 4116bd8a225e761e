"""The GPT on which torch tests its AutoSAC tools, written anew: same modules, names, sizes. For tests and benchmarks.

Sizes by default: 4 layers, 12 heads, width 768, vocabulary 8192, sequence 1024, dropout 0.1, tied embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Sizes:
    """What the model is made of."""

    layers: int = 4
    heads: int = 12
    dim: int = 768
    vocabulary: int = 8192
    sequence: int = 1024
    dropout: float = 0.1


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.dropout = sizes.heads, sizes.dropout
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(sizes.dim, sizes.dim, bias=False) for _ in range(4))
        self.resid_dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.resid_dropout(self.wo(mixed.transpose(1, 2).flatten(-2)))


class FeedForward(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w1 = nn.Linear(sizes.dim, 4 * sizes.dim)
        self.gelu = nn.GELU()
        self.w2 = nn.Linear(4 * sizes.dim, sizes.dim)
        self.resid_dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.resid_dropout(self.w2(self.gelu(self.w1(x))))


class TransformerBlock(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.dim)
        self.attention = Attention(sizes)
        self.ffn_norm = nn.LayerNorm(sizes.dim)
        self.feed_forward = FeedForward(sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes.vocabulary, sizes.dim)
        self.pos_embeddings = nn.Embedding(sizes.sequence, sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)
        self.layers = nn.ModuleList(TransformerBlock(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.dim)
        self.output = nn.Linear(sizes.dim, sizes.vocabulary, bias=False)
        self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        h = self.dropout(self.tok_embeddings(tokens) + self.pos_embeddings(positions))
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h)).float()


def make_training(
    sizes: Sizes = Sizes(),  # noqa: B008
    batch: int = 8,
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """The model, Adam on its parameters, and a batch of tokens."""
    usual_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # and not model.to(dtype), which fake tensors do not take
    try:
        with torch.device(device):
            model = Transformer(sizes)
            tokens = torch.randint(0, sizes.vocabulary, (batch, sizes.sequence))
    finally:
        torch.set_default_dtype(usual_dtype)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True), tokens


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> None:
    """One step as torch's tests do it: the output is held while backward runs."""
    output = model(tokens)
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
