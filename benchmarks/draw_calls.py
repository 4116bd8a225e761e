"""Draws calls where tables were thin: small pieces of nets in sizes of a seed, traced forward and backward with no GPU.

    python benchmarks/draw_calls.py --out drawn.jsonl.gz

Which pieces: those whose ops were off in nets that were predicted blindly (libraries_h200.md), each in the whole range
of sizes, types and layouts that nets have, not those of the nets that were off: attention by head sizes, lengths and
masks, norms of rows, norms of channels that come last of three, softmax of odd widths, products of weights' gradients
and of groups, tables of positions in another type, images by the tens of thousands, recurrent layers, rows that are
added up in few places, first layers of images, products of float32 and of rows at odd addresses. Out: a line per call,
as calibrate's list has them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from corpus_select import can_be_called
from trainfit.calibrate.arguments import Pool
from trainfit.cost.described import described
from trainfit.cost.work import short_name
from trainfit.gpus.catalogue import find_gpu
from trainfit.step import Step
from trainfit.trace import trace_step

SEED = "20261119 thin tables"
HALVES = (torch.bfloat16, torch.bfloat16, torch.float16)
TYPES = (*HALVES, torch.float32)
LARGEST_BYTES, MOST_FLOPS = 2**31, 1.5e12
NOT_ON_META = ("_grouped_mm", "_cudnn_rnn", "_cudnn_rnn_backward")
"""Ops that cannot be called there with the arguments of their samples."""
Chance = random.Random


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


def attention(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
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


def row_norm(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
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


def softmax(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
    dtype = chance.choice(TYPES)
    width = between(chance, 24, 8192) | chance.choice((0, 1, 1))
    rows = between(chance, 512, max(1024, 2**29 // (width * dtype.itemsize)))
    return Piece(lambda x: x.softmax(-1), torch.empty(rows, width, dtype=dtype)), ("_softmax",)


def turned_norm(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
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


def positions(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
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


def groups(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
    dtype = chance.choice((torch.bfloat16, torch.float32))
    count = chance.choice((4, 8, 16, 32, 64))
    depth, width = (between(chance, 256, 4096, 64) for _ in range(2))
    tokens = between(chance, 1024, 65536, 64)

    def product(x: Tensor, weight: Tensor) -> Tensor:
        ends = torch.arange(1, count + 1, dtype=torch.int32, device=x.device) * (tokens // count)
        return torch._grouped_mm(x, weight.transpose(1, 2), offs=ends)

    made = torch.empty(tokens, depth, dtype=dtype), torch.empty(count, width, depth, dtype=dtype)
    return Piece(product, *made), ("_grouped_mm",)


def many_images(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
    dtype = chance.choice((torch.float32, torch.float32, *HALVES))
    inputs, outputs = chance.choice((1, 3, 4, 16, 32, 64)), chance.choice((16, 32, 64, 128))
    side, window = chance.choice((7, 9, 14, 20, 28, 32, 42, 64, 84)), chance.choice((3, 3, 4, 5, 8))
    step = chance.choice((1, 1, 2, 4 if window == 8 else 2))
    most = min(2**30 // (max(inputs, outputs // step**2) * side**2 * dtype.itemsize), 32768)
    count = between(chance, 256, max(512, most))
    is_last = chance.random() < 0.5
    window = min(window, side)
    order: Any = torch.channels_last if is_last else torch.contiguous_format
    made = (
        torch.empty(count, inputs, side, side, dtype=dtype),
        torch.empty(outputs, inputs, window, window, dtype=dtype),
    )
    turned = [one.contiguous(memory_format=order) for one in made]
    padding = chance.choice((0, window // 2))

    def filtered(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, step, padding)

    return Piece(filtered, *turned, torch.empty(outputs, dtype=dtype)), ("convolution",)


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase, batch: int, length: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer.to(dtype)
        self.x = nn.Parameter(torch.empty(batch, length, layer.input_size, dtype=dtype))

    def forward(self, like: Tensor) -> Tensor:
        found = self.layer(self.x)[0]
        return (found * torch.empty_like(found)).sum()


def recurrent(chance: Chance) -> tuple[nn.Module, tuple[str, ...]]:
    kind: Any = chance.choice((nn.LSTM, nn.LSTM, nn.GRU))
    width = chance.choice((256, 512, 650, 768, 1024, 1150, 1500))
    layers, both = chance.choice((1, 2, 2, 3, 4)), chance.random() < 0.25
    layer = kind(width, width, layers, batch_first=True, bidirectional=both, dropout=0.2 if layers > 1 else 0.0)
    dtype = chance.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16))
    return Recurrent(layer, between(chance, 16, 512, 8), between(chance, 24, 256), dtype), ("_cudnn_rnn",)


def weights_gradient(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
    """Of a layer: few columns, and as deep as there are tokens."""
    dtype = chance.choice(HALVES)
    inputs, outputs = (between(chance, 128, 4096, 64) for _ in range(2))
    tokens = between(chance, 2048, 65536, 128)
    made = torch.empty(tokens, inputs, dtype=dtype), torch.empty(outputs, inputs, dtype=dtype)
    return Piece(F.linear, *made), ("mm.",)


def named_rows(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
    dtype, rows = chance.choice(TYPES), between(chance, 4, 4096)
    width, lookups = between(chance, 64, 4096, 8), between(chance, 1024, 32768)

    def looked_up(table: Tensor) -> Tensor:
        return table[torch.zeros(lookups, dtype=torch.int64, device=table.device)]

    return Piece(looked_up, torch.empty(rows, width, dtype=dtype)), ("index_put", "_index_put")


def first_images(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
    """What nobody wants a gradient of: the weight's alone, of few channels."""
    dtype = chance.choice((torch.float32, torch.float32, *HALVES))
    inputs = chance.choice((1, 1, 2, 3, 3, 3, 4, 4, 6, 8, 9, 12))
    outputs = chance.choice((16, 24, 32, 32, 48, 64, 64, 96, 128, 192, 384, 768))
    side = chance.choice((28, 32, 64, 84, 96, 128, 160, 192, 224, 224, 256, 299, 384, 512))
    window = chance.choice((3, 3, 3, 4, 5, 7, 8, 11, 14, 16))
    step = window if window >= 14 else chance.choice((1, 2, 2, window if window in (4, 8) else 2))
    most = 2**30 // (max(inputs, outputs // step**2) * side**2 * dtype.itemsize)
    count = between(chance, 4, max(8, min(most, 4096)))
    order: Any = torch.channels_last if chance.random() < 0.4 else torch.contiguous_format
    made = (
        torch.empty(count, inputs, side, side, dtype=dtype),
        torch.empty(outputs, inputs, window, window, dtype=dtype),
    )
    turned = [one.contiguous(memory_format=order) for one in made]
    padding = chance.choice((0, window // 2)) if step < window else 0
    biases = [torch.empty(outputs, dtype=dtype)] if chance.random() < 0.5 else []

    def filtered(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(x.detach(), weight, bias, step, padding)

    return Piece(filtered, *turned, *biases), ("convolution",)


def products(chance: Chance) -> tuple[Piece, tuple[str, ...]]:
    """Of float32, or of halves whose rows begin at odd addresses."""
    dtype = chance.choice((torch.float32, torch.float32, *HALVES))
    step = chance.choice((1, 2, 4, 8, 64)) if dtype == torch.float32 else chance.choice((1, 1, 2, 4))
    inputs, outputs = (between(chance, 16, 4096, step) for _ in range(2))
    tokens = between(chance, 256, max(512, min(65536, 2**28 // max(inputs, outputs))), chance.choice((1, 8, 64)))
    biases = [torch.empty(outputs, dtype=dtype)] if chance.random() < 0.5 else []
    made = torch.empty(tokens, inputs, dtype=dtype), torch.empty(outputs, inputs, dtype=dtype)
    return Piece(F.linear, *made, *biases), ("mm.", "addmm.")


PIECES: dict[Callable[[Chance], tuple[nn.Module, tuple[str, ...]]], int] = {
    attention: 700, row_norm: 220, softmax: 120, turned_norm: 70, positions: 60, groups: 60, many_images: 100,
    recurrent: 60, weights_gradient: 160, named_rows: 50, first_images: 300, products: 500,
}  # fmt: skip
"""How many of each are drawn; every one is a call forward and one or two backward."""


def calls_of(model: nn.Module, wanted: tuple[str, ...]) -> Iterator[list[Any]]:
    step = Step(model=model, batch=(torch.empty(1),), optimizer=torch.optim.SGD, loss=lambda output: output.float())
    for op in trace_step(step, find_gpu("h200"), torch_version="2.11.0+cu130").ops:
        if op.name.removeprefix("aten.").startswith(wanted):
            name, (args, kwargs) = op.name, described(op.args, op.kwargs, op.tf32)
            if short_name(name) == "index_put":  # as autograd calls it, which does not look at the indices before
                name, args = "aten._index_put_impl_.default", [*args, True]
            yield [name, args, kwargs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--piece", nargs="+", choices=[draw.__name__ for draw in PIECES], help="these only")
    args = parser.parse_args()
    pool = Pool("meta", 2**40)
    found: dict[str, None] = {}
    for draw, count in PIECES.items():
        if args.piece and draw.__name__ not in args.piece:
            continue
        failed = 0
        for number in range(count):
            torch.set_float32_matmul_precision("high" if number % 3 == 0 else "highest")
            with torch.device("meta"):
                model, wanted = draw(random.Random(f"{SEED} {draw.__name__} {number}"))
            try:
                calls = list(calls_of(model, wanted))
            except Exception as error:
                failed += 1
                print(f"{draw.__name__} {number}: {type(error).__name__}: {error}"[:200], flush=True)
                continue
            found |= {json.dumps(call): None for call in calls if is_made(call, pool)}
        print(f"{draw.__name__}: {count - failed} of {count}, {len(found)} calls", flush=True)
    args.out.write_bytes(gzip.compress("".join(f"{line}\n" for line in found).encode(), mtime=0))


def is_made(call: list[Any], pool: Pool) -> bool:
    name, args, kwargs = call
    if short_name(name) in NOT_ON_META:
        return True
    return can_be_called(name, args, kwargs, pool)


if __name__ == "__main__":
    main()
