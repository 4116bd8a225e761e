"""BERT-large with its masked-language-model head: every token sees every other, normalisation after each sum.

Weights are fp32 under bf16 autocast. Sequences are full, so there is no padding mask.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainfit.step import Step

VOCAB_SIZE = 30522
NUM_POSITIONS = 512
NUM_SEGMENTS = 2
DIM = 1024
NUM_LAYERS = 24
NUM_HEADS = 16
DROPOUT = 0.1


def _norm() -> nn.LayerNorm:
    return nn.LayerNorm(DIM, eps=1e-12)


class Embeddings(nn.Module):
    """The sum of what a token is, where it stands and which segment it belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCAB_SIZE, DIM, padding_idx=0)
        self.position = nn.Embedding(NUM_POSITIONS, DIM)
        self.segment = nn.Embedding(NUM_SEGMENTS, DIM)
        self.norm = _norm()

    def forward(self, tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.segment(torch.zeros_like(tokens)) + self.position(position)
        return F.dropout(self.norm(x), DROPOUT, self.training)


class Block(nn.Module):
    """Attention and a GELU MLP, each added to its input and normalised afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(DIM, DIM)
        self.k_proj = nn.Linear(DIM, DIM)
        self.v_proj = nn.Linear(DIM, DIM)
        self.out_proj = nn.Linear(DIM, DIM)
        self.attention_norm = _norm()
        self.up_proj = nn.Linear(DIM, 4 * DIM)
        self.down_proj = nn.Linear(4 * DIM, DIM)
        self.mlp_norm = _norm()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=DROPOUT if self.training else 0.0)
        y = F.dropout(self.out_proj(y.transpose(1, 2).flatten(2)), DROPOUT, self.training)
        x = self.attention_norm(x + y)
        y = F.dropout(self.down_proj(F.gelu(self.up_proj(x))), DROPOUT, self.training)
        return self.mlp_norm(x + y)


class Bert(nn.Module):
    """Tokens and the tokens that were masked (-100 elsewhere) in, the mean cross-entropy out."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.blocks = nn.ModuleList([Block() for _ in range(NUM_LAYERS)])
        self.head_proj = nn.Linear(DIM, DIM)
        self.head_norm = _norm()
        self.head = nn.Linear(DIM, VOCAB_SIZE)
        self.head.weight = self.embeddings.token.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embeddings(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.head_norm(F.gelu(self.head_proj(x))))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(name: str, batch: int, seq: int) -> Step:
    """The Step that trains BERT-large with AdamW."""
    tokens = torch.empty(batch, seq, dtype=torch.int64, device="meta")
    return Step(
        model=Bert,
        batch={"tokens": tokens, "targets": torch.empty_like(tokens)},
        optimizer=torch.optim.AdamW,
        autocast=torch.bfloat16,
    )
