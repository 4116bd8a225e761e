"""Pieces of nets whose calls draw_calls.py draws: attention, norms and sums of rows, recurrent layers, groups.

In: a source of chance. Out: a piece, on the meta device, and beginnings of the names of the ops that are wanted of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HALVES = (torch.bfloat16, torch.bfloat16, torch.float16)
TYPES = (*HALVES, torch.float32)
LARGEST_BYTES, MOST_FLOPS = 2**31, 1.5e12
Chance = random.Random
Drawn = tuple[nn.Module, tuple[str, ...]]


class Piece(nn.Module):
    """What is computed of tensors that all have gradients, and added up with weights of its own shape."""

    def __init__(self, work: Callable[..., Tensor], *tensors: Tensor) -> None:
        super().__init__()
        self.work = work
        self.tensors = nn.ParameterList(nn.Parameter(tensor) for tensor in tensors)

    def forward(self, like: Tensor) -> Tensor:
        result = self.work(*self.tensors)
        return (result * torch.empty_like(result)).sum()


def between(chance: Chance, low: int, high: int, step: int = 1) -> int:
    """As likely in each doubling."""
    return max(low, round(math.exp(chance.uniform(math.log(low), math.log(high))) / step) * step)


def attention(chance: Chance) -> Drawn:
    dtype = chance.choice(HALVES)
    dim = chance.choice((16, 24, 32, 32, 48, 64, 64, 72, 80, 96, 128, 128, 192, 256))
    usual = (64, 77, 128, 168, 196, 197, 256, 257, 384, 512, 577, 768, 1024, 1500, 2048, 4096)
    length = chance.choice(usual) if chance.random() < 0.6 else between(chance, 24, 4096)
    keys = length if chance.random() < 0.8 else chance.choice(usual)
    heads = chance.choice((4, 6, 8, 8, 12, 12, 16, 16, 20, 32))
    shared = chance.choice((1, 1, 1, 2, 4)) if heads % 4 == 0 else 1
    most = min(MOST_FLOPS / (14 * heads * length * keys * dim), LARGEST_BYTES / (heads * max(length, keys) * dim * 2))
    batch = between(chance, 1, max(1, min(int(most), 1024)))
    masked = chance.choice(("", "", "causal", "causal", "full", "rows", "heads"))
    dropout = chance.choice((0.0, 0.0, 0.1))
    is_packed = chance.random() < 0.3 and keys == length and shared == 1

    def attend(*tensors: Tensor) -> Tensor:
        if is_packed:
            q, k, v = tensors[0].unbind(2)
        else:
            q, k, v = tensors
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        if shared > 1:
            k, v = (one.repeat_interleave(shared, 1) for one in (k, v))
        mask = None
        if masked in ("full", "rows", "heads"):
            shapes = {"full": (batch, 1, length, keys), "rows": (1, 1, length, keys), "heads": (1, heads, length, keys)}
            mask = torch.zeros(shapes[masked], dtype=dtype, device=q.device)
        is_causal = masked == "causal" and keys == length
        found = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
        return found.transpose(1, 2).reshape(batch, length, heads * dim)

    if is_packed:
        made = [torch.empty(batch, length, 3, heads, dim, dtype=dtype)]
    else:
        kept = heads // shared
        made = [torch.empty(batch, n, h, dim, dtype=dtype) for n, h in ((length, heads), (keys, kept), (keys, kept))]
    return Piece(attend, *made), ("_scaled_dot_product",)


def row_norm(chance: Chance) -> Drawn:
    dtype = chance.choice((*TYPES, torch.float32))
    width = chance.choice((64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 3072, 4096))
    rows = between(chance, 256, 2**29 // (width * dtype.itemsize))
    is_layer = chance.random() < 0.7
    has_bias = chance.random() < 0.8
    x, weight = torch.empty(rows, width, dtype=dtype), torch.empty(width, dtype=dtype)

    def norm(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.layer_norm(x, (width,), weight, bias) if is_layer else F.rms_norm(x, (width,), weight)

    biases = [torch.empty(width, dtype=dtype)] if is_layer and has_bias else []
    return Piece(norm, x, weight, *biases), ("native_layer_norm", "_fused_rms_norm")


def softmax(chance: Chance) -> Drawn:
    dtype = chance.choice(TYPES)
    width = between(chance, 24, 8192) | chance.choice((0, 1, 1))
    rows = between(chance, 512, max(1024, 2**29 // (width * dtype.itemsize)))
    return Piece(lambda x: x.softmax(-1), torch.empty(rows, width, dtype=dtype)), ("_softmax",)


def turned_norm(chance: Chance) -> Drawn:
    """Batch norm of what was [batch, length, channels]."""
    dtype = chance.choice((torch.bfloat16, torch.float16, torch.float32))
    channels = chance.choice((16, 32, 64, 96, 128, 200, 256, 384, 512, 768, 1024))
    length = between(chance, 4, 2048)
    batch = between(chance, 2, max(4, min(4096, 2**28 // (channels * length * dtype.itemsize))))
    weights = [torch.empty(channels, dtype=dtype) for _ in range(2)]
    is_back = chance.random() < 0.7

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        found = F.batch_norm(x.transpose(1, 2), None, None, weight, bias, training=True)
        return found.transpose(1, 2) if is_back else found.contiguous()

    return Piece(norm, torch.empty(batch, length, channels, dtype=dtype), *weights), ("native_batch_norm",)


def positions(chance: Chance) -> Drawn:
    """Tables of positions, in another type than what is turned by them."""
    wide, narrow = chance.choice(((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)))
    heads, dim = chance.choice((2, 4, 8, 12, 16, 32)), chance.choice((32, 64, 96, 128))
    length = between(chance, 64, 4096)
    batch = between(chance, 1, max(1, min(256, 2**28 // (heads * dim * length * 4))))
    for_each = batch if chance.random() < 0.5 else 1
    is_turned = chance.random() < 0.7
    x = torch.empty(batch, length, heads, dim, dtype=wide) if is_turned else torch.empty(
        batch, heads, length, dim, dtype=wide)  # fmt: skip

    def turn(x: Tensor) -> Tensor:
        table = torch.empty(for_each, 1, length, dim, dtype=narrow, device=x.device)
        x = x.transpose(1, 2) if is_turned else x
        return (x * table) + (x.neg() * table)

    return Piece(turn, x), ("mul.Tensor", "add.Tensor")


def groups(chance: Chance) -> Drawn:
    dtype = chance.choice((torch.bfloat16, torch.float32))
    count = chance.choice((4, 8, 16, 32, 64))
    depth, width = (between(chance, 256, 4096, 64) for _ in range(2))
    tokens = between(chance, 1024, 65536, 64)

    def product(x: Tensor, weight: Tensor) -> Tensor:
        ends = torch.arange(1, count + 1, dtype=torch.int32, device=x.device) * (tokens // count)
        return torch._grouped_mm(x, weight.transpose(1, 2), offs=ends)

    made = torch.empty(tokens, depth, dtype=dtype), torch.empty(count, width, depth, dtype=dtype)
    return Piece(product, *made), ("_grouped_mm",)


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase, batch: int, length: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer.to(dtype)
        self.x = nn.Parameter(torch.empty(batch, length, layer.input_size, dtype=dtype))

    def forward(self, like: Tensor) -> Tensor:
        found = self.layer(self.x)[0]
        return (found * torch.empty_like(found)).sum()


def recurrent(chance: Chance) -> Drawn:
    kind: Any = chance.choice((nn.LSTM, nn.LSTM, nn.GRU))
    width = chance.choice((256, 512, 650, 768, 1024, 1150, 1500))
    layers, both = chance.choice((1, 2, 2, 3, 4)), chance.random() < 0.25
    layer = kind(width, width, layers, batch_first=True, bidirectional=both, dropout=0.2 if layers > 1 else 0.0)
    dtype = chance.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16))
    return Recurrent(layer, between(chance, 16, 512, 8), between(chance, 24, 256), dtype), ("_cudnn_rnn",)


def named_rows(chance: Chance) -> Drawn:
    dtype, rows = chance.choice(TYPES), between(chance, 4, 4096)
    width, lookups = between(chance, 64, 4096, 8), between(chance, 1024, 32768)

    def looked_up(table: Tensor) -> Tensor:
        return table[torch.zeros(lookups, dtype=torch.int64, device=table.device)]

    return Piece(looked_up, torch.empty(rows, width, dtype=dtype)), ("index_put", "_index_put")
