"""Llama 3 and Mixtral: decoders with rotary positions, grouped-query attention and a gated MLP or experts of it.

Weights are bf16 throughout, the loss is taken in fp32. Experts are balanced: sorted by expert, the tokens are cut into
equal shares, which is what a router trained to balance its load aims at, and keeps every shape independent of the data.
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
    """The shape of a decoder; names as in the models' own papers."""

    vocab_size: int
    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    mlp_dim: int
    rope_theta: float
    tied_head: bool = False
    num_experts: int = 1
    experts_per_token: int = 1


CONFIGS = {
    "llama3-1b": Config(
        vocab_size=128256,
        dim=2048,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        mlp_dim=8192,
        rope_theta=500_000.0,
        tied_head=True,
    ),
    "llama3-8b": Config(
        vocab_size=128256,
        dim=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        mlp_dim=14336,
        rope_theta=500_000.0,
    ),
    "llama3-70b": Config(
        vocab_size=128256,
        dim=8192,
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        mlp_dim=28672,
        rope_theta=500_000.0,
    ),
    "mixtral-8x7b": Config(
        vocab_size=32000,
        dim=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        mlp_dim=14336,
        rope_theta=1_000_000.0,
        num_experts=8,
        experts_per_token=2,
    ),
}


class Rope(nn.Module):
    """Rotary positions: the two halves of each head turn as the real and imaginary parts of complex numbers."""

    cos: Tensor  # (seq, head_dim)
    sin: Tensor

    def __init__(self, head_dim: int, theta: float, max_seq: int, dtype: torch.dtype) -> None:
        super().__init__()
        frequency = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angle = torch.outer(torch.arange(max_seq, dtype=torch.float32), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos().to(dtype), persistent=False)
        self.register_buffer("sin", angle.sin().to(dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:  # (batch, heads, seq, head_dim)
        first, second = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-second, first), dim=-1) * self.sin


class Attention(nn.Module):
    """Causal attention in which several query heads share one key and value head."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_dim = config.dim // config.num_heads
        kv_dim = config.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(config.dim, config.dim, bias=False, dtype=dtype)
        self.k_proj = nn.Linear(config.dim, kv_dim, bias=False, dtype=dtype)
        self.v_proj = nn.Linear(config.dim, kv_dim, bias=False, dtype=dtype)
        self.o_proj = nn.Linear(config.dim, config.dim, bias=False, dtype=dtype)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        def heads(projected: Tensor) -> Tensor:
            return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        q, k, v = rope(heads(self.q_proj(x))), rope(heads(self.k_proj(x))), heads(self.v_proj(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """The gated MLP, SwiGLU."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.mlp_dim, bias=False, dtype=dtype)
        self.up_proj = nn.Linear(config.dim, config.mlp_dim, bias=False, dtype=dtype)
        self.down_proj = nn.Linear(config.mlp_dim, config.dim, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """A router sends each token to a few of many MLPs; balanced, so that every MLP gets the same number."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.experts_per_token = config.experts_per_token
        self.router = nn.Linear(config.dim, config.num_experts, bias=False, dtype=dtype)
        self.experts = nn.ModuleList([Mlp(config, dtype) for _ in range(config.num_experts)])

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weight, expert = torch.topk(F.softmax(self.router(tokens), dim=-1, dtype=torch.float32), self.experts_per_token)
        weight = (weight / weight.sum(dim=-1, keepdim=True)).to(x.dtype)
        # One slot per (token, choice), brought into the order of the experts.
        slot = torch.argsort(expert.flatten(), stable=True)
        token = slot // self.experts_per_token
        shares = tokens.index_select(0, token).tensor_split(len(self.experts))
        out = torch.cat([mlp(share) for mlp, share in zip(self.experts, shares, strict=True)])
        out = out * weight.flatten().index_select(0, slot).unsqueeze(-1)
        return torch.zeros_like(tokens).index_add(0, token, out).view_as(x)


class Block(nn.Module):
    """Attention, then the MLP, each on normalised input and added to the stream."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=1e-5, dtype=dtype)
        self.attention = Attention(config, dtype)
        self.mlp_norm = nn.RMSNorm(config.dim, eps=1e-5, dtype=dtype)
        self.mlp: nn.Module = Mlp(config, dtype) if config.num_experts == 1 else Experts(config, dtype)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Tokens and the tokens that follow them in, the mean cross-entropy out."""

    def __init__(self, config: Config, seq: int, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.dim, dtype=dtype)
        self.rope = Rope(config.dim // config.num_heads, config.rope_theta, seq, dtype)
        self.blocks = nn.ModuleList([Block(config, dtype) for _ in range(config.num_layers)])
        self.norm = nn.RMSNorm(config.dim, eps=1e-5, dtype=dtype)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False, dtype=dtype)
        if config.tied_head:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.rope)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(name: str, batch: int, seq: int) -> Step:
    """The Step that trains the decoder called `name` with AdamW."""
    tokens = torch.empty(batch, seq, dtype=torch.int64, device="meta")
    return Step(
        model=partial(Decoder, CONFIGS[name], seq),
        batch={"tokens": tokens, "targets": torch.empty_like(tokens)},
        optimizer=torch.optim.AdamW,
    )
