"""Workloads of tokens as libraries' nets have them, drawn by a seed: products, attention, softmax, norms, sums, heads.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. See `drawn`. Sequences are those of
patches, with a token more or two, of windows and of texts; widths are those of heads, stages and blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainfit.calibrate.compute import linear, rounded
from trainfit.calibrate.drawn import Draw, Kinds, Shape, draws
from trainfit.calibrate.drawn_matrices import attended, crowds, multiplied
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, aside, gradients, randn

SEED = 31
LENGTHS = (
    49, 50, 64, 65, 77, 128, 144, 145, 196, 196, 197, 197, 198, 256, 257, 257, 290, 325, 400, 401, 512, 513, 576, 577,
    577, 729, 784, 785, 1024, 1025, 1370, 2048, 2049, 3136, 4096,
)  # fmt: skip
WIDTHS = (
    32, 40, 48, 64, 80, 96, 96, 112, 128, 128, 160, 192, 192, 224, 256, 256, 288, 320, 384, 384, 448, 512, 512, 576,
    640, 768, 768, 768, 896, 1024, 1024, 1152, 1280, 1408, 1536, 1536, 2048, 3072, 4096,
)  # fmt: skip
TYPES = (BF16, BF16, FP16, FP32)
_MOST_MACS = {FP32: 2**35, BF16: 2**38, FP16: 2**38}


def _typed(draw: Draw, function: Callable[..., None], *args: Any) -> Workload:
    """In a half type, in float32, or rounded to TF32; the type comes last."""
    kind, half = draw.random(), draw.choice((BF16, BF16, FP16))
    if kind < 0.4:
        return partial(function, *args, half)
    plain = partial(function, *args, FP32)
    return partial(rounded, plain) if kind < 0.75 else plain


def _layer(rows: int, width: int, depth: int, bias: bool, dtype: torch.dtype) -> None:
    """A linear layer of as many rows as take no longer than a while."""
    linear(max(min(rows, _MOST_MACS[dtype] // (width * depth)), 1), width, depth, dtype, bias)


def layers(draw: Draw) -> Workload:
    """Of tokens: a length times a batch; from a width to itself, to some times it and back."""
    width = draw.choice(WIDTHS)
    factors = draw.choice(((1, 1), (1, 1), (3, 1), (4, 1), (1, 4), (2, 1), (1, 2), (1, 3), (6, 1), (8, 3)))
    wide, deep = (
        factors[0] * width // (3 if factors == (8, 3) else 1),
        factors[1] * width // (3 if factors[1] == 3 else 1),
    )
    if draw.random() < 0.15:
        wide = draw.choice((2, 3, 4, 8, 10, 12, 16, 21, 48, 100, 1000))
    rows = draw.choice(LENGTHS) * draw.size(1, max(min(2**27 / (max(wide, deep) * 200), 512), 2))
    return _typed(draw, _layer, min(rows, 2**27 // max(wide, deep)), wide, deep, draw.random() < 0.4)


def specks(draw: Draw) -> Workload:
    """Millions of rows of few numbers: heads that talk to each other, coordinates, edges."""
    rows, wide, deep = draw.size(2**14, 2**22), draw.size(1, 24), draw.size(1, 24)
    return _typed(draw, _layer, min(rows, 2**26 // max(wide, deep)), wide, deep, draw.random() < 0.2)


def _attended(batch: int, length: int, keys: int, dim: int, is_apart: bool, dtype: torch.dtype) -> None:
    macs = length * keys * dim
    attended(max(min(batch, _MOST_MACS[dtype] // macs // 4), 1), length, keys, dim, is_apart, dtype)


def scores(draw: Draw) -> Workload:
    """Heads' products without a fused kernel."""
    length, dim = draw.choice(LENGTHS), draw.choice((16, 24, 32, 32, 48, 64, 64, 64, 80, 96, 128))
    keys = length if draw.random() < 0.7 else draw.choice((1, 4, 16, 49, 64, 77, 196, 256, 512))
    batch = draw.size(1, 128) * draw.choice((1, 2, 3, 4, 6, 8, 12, 16))
    batch = max(min(batch, 2**26 // max(length * keys, length * dim, keys * dim)), 1)
    return _typed(draw, _attended, batch, length, keys, dim, draw.random() < 0.2)


def crumbs(draw: Draw) -> Workload:
    """Tens of thousands of heads over a dozen of tokens, neighbours or channels."""
    sizes = draw.size(2, 48), draw.size(2, 48), draw.choice((3, 4, 6, 8, 10, 12, 16, 16, 24, 32))
    batch = min(draw.size(2**10, 2**18), 2**26 // max(sizes[0] * sizes[2], sizes[1] * sizes[2], sizes[0] * sizes[1]))
    ways = draw.choice(("plain", "turned")), draw.choice(("plain", "turned"))
    return _typed(draw, multiplied, batch, sizes, ways)


def softened(shape: Shape, back: str, dtype: torch.dtype) -> None:
    """Scores to weights, and back; the gradient may lie as heads beside each other do."""
    x = randn(*shape, dtype=dtype).requires_grad_()
    out = torch.softmax(x, -1)
    if back == "turned":
        gradient = randn(shape[0], *shape[2:], shape[1], dtype=dtype).permute(0, 3, 1, 2)
    else:
        gradient = randn(*shape, dtype=dtype)
    torch.autograd.grad(out, x, gradient)


def weights(draw: Draw) -> Workload:
    length = draw.choice(LENGTHS)
    keys = length if draw.random() < 0.75 else draw.choice((8, 16, 49, 64, 77, 100, 256, 300))
    heads = draw.choice((1, 2, 3, 4, 6, 8, 12, 16))
    batch = max(min(draw.size(1, 2048), 2**26 // (heads * length * keys)), 1)
    return partial(softened, (batch, heads, length, keys), draw.choice(("same", "same", "turned")), draw.choice(TYPES))


def normalized(rows: int, width: int, dtype: torch.dtype, kind: str) -> None:
    weight, bias = (torch.ones(width, device="cuda", dtype=dtype).requires_grad_() for _ in range(2))
    x = randn(rows, width, dtype=dtype).requires_grad_()
    if kind == "rms":
        gradients(F.rms_norm(x, (width,), weight), x, weight)
    elif kind == "plain":
        gradients(F.layer_norm(x, (width,)), x)
    else:
        gradients(F.layer_norm(x, (width,), weight, bias), x, weight, bias)


def norms(draw: Draw) -> Workload:
    width = draw.choice(WIDTHS)
    rows = draw.choice(LENGTHS) * draw.size(1, max(min(2**26 / (width * 200), 1024), 2))
    return partial(
        normalized, min(rows, 2**27 // width), width, draw.choice(TYPES), draw.choice(("", "", "rms", "plain"))
    )


def summed(batch: int, length: int, width: int, dtype: torch.dtype) -> None:
    """Gradients of biases, of what is the same for all images and for all tokens; means, norms."""
    x = randn(batch, length, width, dtype=dtype)
    x.sum((0, 1), keepdim=True), x.sum(1, keepdim=True), x.sum(0, keepdim=True), x.flatten(0, 1).sum(0, keepdim=True)
    x.mean(1), torch.linalg.vector_norm(x), x.sum(-1), x.mean()


def sums(draw: Draw) -> Workload:
    length, width = draw.choice(LENGTHS), draw.choice(WIDTHS)
    batch = max(min(draw.size(1, 256), 2**26 // (length * width)), 1)
    return partial(summed, batch, length, width, draw.choice(TYPES))


def lengths_of(shape: Shape, dtype: torch.dtype) -> None:
    """Norms and sums of all of a weight."""
    x = randn(*shape, dtype=dtype)
    torch.linalg.vector_norm(x), x.sum(), x.abs().max()


def lengths(draw: Draw) -> Workload:
    return partial(lengths_of, draw.shape(draw.randint(1, 4), 2**5, 2**24), draw.choice(TYPES))


def arranged(batch: int, length: int, heads: int, dim: int, dtype: torch.dtype) -> None:
    """Heads out of projections, turned for products, joined with others', put together again, widened."""
    packed = randn(batch, length, 3, heads, dim, dtype=dtype).permute(2, 0, 3, 1, 4)
    query, key, _ = packed.unbind(0)
    query.contiguous(), key.transpose(2, 3).contiguous(), query * 0.125, packed.contiguous()
    apart = randn(batch, length, heads, dim, dtype=dtype).transpose(1, 2)
    few = randn(batch, max(length // 8, 1), heads, dim, dtype=dtype).transpose(1, 2)
    torch.cat((apart, few), 2), torch.cat((apart.contiguous(), few.contiguous()), 2), torch.cat((few, apart), 2)
    (
        apart.transpose(1, 2).contiguous(),
        query.float(),
        torch.stack((query, key, key.clone())),
        apart.transpose(2, 3).clone(),
    )
    even, odd = query[..., ::2], apart[..., 1::2]
    torch.stack((even, odd), -1)
    if length * length * heads * batch < 2**25:
        scores = randn(batch, heads, length, length, dtype=dtype)
        (
            scores.permute(0, 2, 3, 1).contiguous(),
            scores.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).contiguous(),
        )


def arrangements(draw: Draw) -> Workload:
    length, heads, dim = (
        draw.choice(LENGTHS),
        draw.choice((1, 2, 3, 4, 6, 8, 12, 16)),
        draw.choice((16, 24, 32, 48, 64, 64)),
    )
    batch = max(min(draw.size(1, 1024), 2**24 // (length * heads * dim)), 1)
    return partial(arranged, batch, length, heads, dim, draw.choice(TYPES))


def positioned(batch: int, heads: int, side: int, dtype: torch.dtype) -> None:
    """What rows and columns of an image add to its scores, and what is left out."""
    x = randn(batch * heads, side, side, side, side, dtype=dtype)
    rows, columns = (
        randn(batch * heads, side, side, side, dtype=dtype),
        randn(batch * heads, side, side, side, dtype=dtype),
    )
    first = rows[..., None] + columns[..., None, :]
    x + rows[..., None], x + columns[..., None, :], x + first
    tall = columns.transpose(1, 2)
    rows[..., None] + tall[..., None, :]
    mask = torch.ones(side * side, side * side, device="cuda", dtype=torch.bool)
    flat = x.flatten(1, 2).flatten(2, 3)
    flat.masked_fill(mask, 0.0), torch.where(mask, flat, flat.new_zeros(())), flat + mask.to(dtype)


def positions(draw: Draw) -> Workload:
    side, heads = draw.choice((7, 8, 12, 14, 14, 16, 20, 24, 32)), draw.choice((1, 2, 4, 8, 12))
    return partial(
        positioned, max(min(draw.size(1, 128), 2**25 // (heads * side**4)), 1), heads, side, draw.choice(TYPES)
    )


def compared(rows: int, classes: int, dtype: torch.dtype) -> None:
    """Which class each is, by comparing and by placing; what is where it is so."""
    with aside():
        index = torch.randint(classes, (rows,), device="cuda")
        x, zero = randn(rows, classes, dtype=dtype), torch.zeros((), device="cuda", dtype=dtype)
    found = torch.arange(classes, device="cuda") == index[:, None]
    F.one_hot(index, classes), torch.where(found, x, zero), torch.where(found, zero, x), found.to(dtype), ~found
    x.gather(1, index[:, None]), x > zero, x.masked_fill(found, 0.0), x.logsumexp(-1), x.argmax(-1)


def comparisons(draw: Draw) -> Workload:
    classes = draw.choice((2, 10, 21, 80, 150, 1000, 32000, 50257))
    return partial(compared, min(draw.size(2**6, 2**20), 2**26 // classes), classes, draw.choice(TYPES))


def placed(entries: int, heads: int, tokens: int, is_turned: bool, dtype: torch.dtype) -> None:
    """Gradients of tables of positions, as they come from scores: heads first."""
    with aside():
        index = torch.randint(entries, (tokens * tokens,), device="cuda")
    values = randn(heads, tokens * tokens, dtype=dtype).t() if is_turned else randn(tokens * tokens, heads, dtype=dtype)
    table = torch.zeros(entries, heads, device="cuda", dtype=dtype)
    torch.ops.aten._index_put_impl_.default(table, [index], values, True, True)
    torch.ops.aten.index.Tensor(table, [index]).view(tokens, tokens, heads).permute(2, 0, 1).contiguous()


def tables(draw: Draw) -> Workload:
    side, heads = draw.choice((4, 7, 7, 7, 8, 12, 14, 16, 24)), draw.choice((1, 3, 4, 6, 8, 12, 16, 24, 32))
    tokens = side**2 + draw.choice((0, 0, 1))
    return partial(placed, (2 * side - 1) ** 2, heads, tokens, draw.random() < 0.7, draw.choice(TYPES))


def updated(shapes: tuple[Shape, ...], dtype: torch.dtype) -> None:
    """What optimizers do to the parameters of a net, and what comes before."""
    with aside():
        made = [nn.Parameter(randn(*shape, dtype=dtype)) for shape in shapes]
        for parameter in made:
            parameter.grad = torch.ones_like(parameter)
    optim = torch.optim
    for optimizer in (
        optim.AdamW(made),
        optim.SGD(made, momentum=0.9, weight_decay=0.1),
        optim.AdamW(made, fused=True),
    ):
        optimizer.step(), optimizer.step()
    nn.utils.clip_grad_norm_(made, 1.0)


def updates(draw: Draw) -> Workload:
    """Blocks of a width, and a table or a head."""
    width, depth = draw.choice(WIDTHS[3:-6]), draw.choice((2, 4, 6, 12, 12, 24))
    depth = max(min(depth, 2**27 // (12 * width**2)), 1)
    inner = draw.choice((2, 4, 4)) * width
    attention: tuple[Shape, ...] = ((3 * width, width), (3 * width,), (width, width), (width,))
    block = (*attention, (inner, width), (inner,), (width, inner), (width,), (width,), (width,), (width,), (width,))
    if draw.random() < 0.4:  # of images
        block = ((width, width, 3, 3), (width,), (width,), (width, 1, 7, 7), (width, width // 4, 1, 1), (width,))
    ends = ((draw.choice((10, 1000, 1000, 30000)), width), (width, 3, 16, 16), (1, 197, width))
    return partial(updated, (*block * depth, *ends), draw.choice((FP32, FP32, BF16)))


def attended_by_mask(sizes: tuple[int, int, int, int], shared: str, dtype: torch.dtype) -> None:
    """By cuDNN, with numbers added for keys, for pairs, or for pairs of every head."""
    batch, heads, length, dim = sizes
    query, key, value = (randn(batch, length, heads, dim, dtype=dtype).transpose(1, 2).requires_grad_() for _ in "qkv")
    shape = {
        "keys": (batch, 1, 1, length),
        "pairs": (batch, 1, length, length),
        "heads": (batch, heads, length, length),
    }
    bias = randn(*shape[shared], dtype=dtype).expand(batch, heads, length, length)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        gradients(out.transpose(1, 2).flatten(2), query, key, value)


def masks(draw: Draw) -> Workload:
    length, heads, dim = draw.choice(LENGTHS[4:-4]), draw.choice((4, 8, 12, 16, 24)), draw.choice((64, 128))
    batch = max(min(draw.size(1, 64), 2**26 // (heads * length**2), 2**25 // (heads * length * dim)), 1)
    return partial(attended_by_mask, (batch, heads, length, dim), draw.choice(("keys", "keys", "pairs", "heads")), BF16)


def drawn_tokens(seed: int = SEED) -> list[Workload]:
    kinds: Kinds = (
        (layers, 350), (specks, 45), (scores, 110), (crumbs, 100), (weights, 90), (norms, 90), (sums, 55),
        (lengths, 35), (arrangements, 45), (positions, 20), (comparisons, 20), (tables, 30), (updates, 24), (masks, 25),
        (crowds, 25),
    )  # fmt: skip
    return draws(kinds, seed)
