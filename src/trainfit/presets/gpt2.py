"""GPT-2: learned positions, layer norms, one projection for query, key and value, dropout, the embedding as head.

Weights are fp32 under bf16 autocast.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainfit.step import Step


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a GPT-2."""

    dim: int
    num_layers: int
    num_heads: int
    vocab_size: int = 50257
    max_seq: int = 1024
    dropout: float = 0.1


CONFIGS = {
    "gpt2": Config(dim=768, num_layers=12, num_heads=12),
    "gpt2-medium": Config(dim=1024, num_layers=24, num_heads=16),
}


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.dropout
        self.qkv_proj = nn.Linear(config.dim, 3 * config.dim)
        self.out_proj = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv_proj(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return F.dropout(self.out_proj(y.transpose(1, 2).flatten(2)), self.dropout, self.training)


class Mlp(nn.Module):
    """Two linear layers with GELU's tanh approximation between them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.up_proj = nn.Linear(config.dim, 4 * config.dim)
        self.down_proj = nn.Linear(4 * config.dim, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))
        return F.dropout(x, self.dropout, self.training)


class Block(nn.Module):
    """Attention, then the MLP, each on normalised input and added to the stream."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.dim)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.dim)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt2(nn.Module):
    """Tokens and the tokens that follow them in, the mean cross-entropy out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.token_embedding = nn.Embedding(config.vocab_size, config.dim)
        self.position_embedding = nn.Embedding(config.max_seq, config.dim)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.num_layers)])
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(position)
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(name: str, batch: int, seq: int) -> Step:
    """The Step that trains the GPT-2 called `name` with AdamW."""
    tokens = torch.empty(batch, seq, dtype=torch.int64, device="meta")
    return Step(
        model=partial(Gpt2, CONFIGS[name]),
        batch={"tokens": tokens, "targets": torch.empty_like(tokens)},
        optimizer=torch.optim.AdamW,
        autocast=torch.bfloat16,
    )
