"""Probes of indexing, sorting, losses, products, resampling and the many small ops, each forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sweep import BF16, F32, SHORT, Probe, differentiate, integers, on_device, tensor

HALF_AND_FULL = (BF16, F32)


def indexing() -> list[Probe]:
    def take(rows: int, width: int, count: int, how: str, dtype: torch.dtype) -> None:
        table, index = tensor(rows, width, dtype=dtype), integers(rows, count)
        wide = index[:, None].expand(count, width)
        ways: dict[str, Callable[[Tensor], Tensor]] = {
            "table[index]": lambda t: t[index],
            "table[index, index2]": lambda t: t[index, integers(width, count)],
            "index_select": lambda t: t.index_select(0, index),
            "gather": lambda t: t.gather(0, wide),
            "take_along_dim": lambda t: t.take_along_dim(wide, 0),
            "embedding": lambda t: F.embedding(index, t),
        }
        differentiate(ways[how], table)

    def put(rows: int, width: int, count: int, how: str, dtype: torch.dtype) -> None:
        base, index = tensor(rows, width, dtype=dtype, grad=False), integers(rows, count)
        source = tensor(count, width, dtype=dtype)
        wide = index[:, None].expand(count, width)
        ways: dict[str, Callable[[Tensor], Tensor]] = {
            "index_put": lambda s: base.index_put((index,), s),
            "index_put accumulate": lambda s: base.index_put((index,), s, accumulate=True),
            "index_add": lambda s: base.index_add(0, index, s),
            "index_copy": lambda s: base.index_copy(0, index, s),
            "scatter_add": lambda s: base.scatter_add(0, wide, s),
            "scatter": lambda s: base.scatter(0, wide, s),
        }
        differentiate(ways[how], source)

    sizes = [(1000, 64, 512), (32000, 512, 4096), (512, 768, 32768), (8192, 1024, 1), (64, 1, 100_000)]
    reads = ("table[index]", "table[index, index2]", "index_select", "gather", "take_along_dim", "embedding")
    writes = ("index_put", "index_put accumulate", "index_add", "index_copy", "scatter_add", "scatter")
    return [
        (f"{how} rows,width,count={size} {SHORT[dtype]}", partial(run, *size, how, dtype))
        for run, hows in ((take, reads), (put, writes))
        for how, size, dtype in product(hows, sizes, HALF_AND_FULL)
    ]


def sorting() -> list[Probe]:
    shapes = [(1000,), (1_000_000,), (30_000_000,), (64, 1000), (64, 32000), (8192, 128), (8192, 8), (4, 1_000_000)]
    ops: dict[str, Callable[[Tensor], Any]] = {
        "sort": lambda x: x.sort(-1)[0],
        "sort stable": lambda x: x.sort(dim=-1, stable=True)[0],
        "argsort": lambda x: x.argsort(-1),
        "topk": lambda x: x.topk(2, -1)[0],
        "topk 64": lambda x: x.topk(min(64, x.shape[-1]), -1)[0],
        "cumsum": lambda x: x.cumsum(-1),
        "cumsum first": lambda x: x.cumsum(0),
        "cumprod": lambda x: x.cumprod(-1),
        "logcumsumexp": lambda x: x.logcumsumexp(-1),
        "argmax": lambda x: x.argmax(-1),
        "max": lambda x: x.max(-1)[0],
        "median": lambda x: x.median(-1)[0],
    }

    def run(op: Callable[[Tensor], Any], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        op_output = op(x := tensor(*shape, dtype=dtype))
        if op_output.requires_grad and x.numel() <= 10_000_000:
            op_output.backward(torch.ones_like(op_output))

    def whole(size: int, how: str) -> None:
        x = integers(64, size)
        if how == "sort":
            x.sort()
        else:
            x.cumsum(0)

    return [
        *(
            (f"{name} {shape} {SHORT[dtype]}", partial(run, op, shape, dtype))
            for (name, op), shape, dtype in product(ops.items(), shapes, HALF_AND_FULL)
            if not (name == "cumprod" and len(shape) == 1)
        ),
        *(
            (f"{how} of {n} integers", partial(whole, n, how))
            for how, n in product(("sort", "cumsum"), (512, 4096, 10**6))
        ),
    ]


def losses() -> list[Probe]:
    def cross(rows: int, vocab: int, dtype: torch.dtype, **more: Any) -> None:
        differentiate(lambda x: F.cross_entropy(x, integers(vocab, rows), **more), tensor(rows, vocab, dtype=dtype))

    def dense(dtype: torch.dtype, smoothing: float) -> None:
        target = integers(150, 4, 256, 256)
        differentiate(
            lambda x: F.cross_entropy(x, target, label_smoothing=smoothing), tensor(4, 150, 256, 256, dtype=dtype)
        )

    def soft(op: Callable[..., Tensor], shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
        differentiate(lambda x: op(x, dim=dim), tensor(*shape, dtype=dtype))

    pairs: dict[str, Callable[..., Tensor]] = {
        "mse": F.mse_loss,
        "l1": F.l1_loss,
        "smooth_l1": F.smooth_l1_loss,
        "huber": F.huber_loss,
        "bce logits": lambda x, y: F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
        "kl": lambda x, y: F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean"),
        "cosine": lambda x, y: F.cosine_similarity(x, y, dim=1),
    }
    options: list[dict[str, Any]] = [{}, {"label_smoothing": 0.1}, {"reduction": "none"}, {"reduction": "sum"}]
    rows = [(512, 1000), (8192, 32000), (4096, 128256), (8, 10)]
    return [
        *(
            (f"cross_entropy {n}x{v} {SHORT[t]} {more}", partial(cross, n, v, t, **more))
            for (n, v), t, more in product(rows, HALF_AND_FULL, options)
        ),
        *(
            (f"nll_loss2d {SHORT[t]} smoothing={s}", partial(dense, t, s))
            for t, s in product(HALF_AND_FULL, (0.0, 0.1))
        ),
        *(
            (f"{op.__name__} {shape} dim={dim} {SHORT[t]}", partial(soft, op, shape, dim, t))
            for op, (shape, dim), t in product(
                (F.softmax, F.log_softmax),
                [((8192, 32000), 1), ((8, 12, 512, 512), -1), ((64, 1000, 49), 1), ((16, 200_000), 1)],
                HALF_AND_FULL,
            )
        ),
        *(
            (
                f"{name} {SHORT[t]}",
                lambda f=f, t=t: differentiate(f, tensor(2048, 1024, dtype=t), tensor(2048, 1024, dtype=t)),
            )
            for (name, f), t in product(pairs.items(), HALF_AND_FULL)
        ),
    ]


def products() -> list[Probe]:
    def mm(shape: tuple[int, int, int], first: str, second: str, dtype: torch.dtype) -> None:
        rows, inner, columns = shape
        layouts: dict[str, Callable[[int, int], Tensor]] = {
            "plain": lambda a, b: tensor(a, b, dtype=dtype),
            "transposed": lambda a, b: tensor(b, a, dtype=dtype).t(),
            "strided": lambda a, b: tensor(2 * a, 2 * b, dtype=dtype)[::2, ::2],
            "sliced": lambda a, b: tensor(a, b + 3, dtype=dtype)[:, 3:],
            "expanded": lambda a, b: tensor(1, b, dtype=dtype).expand(a, b),
        }
        differentiate(torch.mm, layouts[first](rows, inner), layouts[second](inner, columns))

    def linear(shape: tuple[int, ...], out: int, bias: bool, dtype: torch.dtype) -> None:
        module = on_device(nn.Linear(shape[-1], out, bias=bias), dtype)
        differentiate(module, tensor(*shape, dtype=dtype))

    def bmm(shape: tuple[int, int, int, int], swapped: bool, dtype: torch.dtype) -> None:
        count, rows, inner, columns = shape
        left = (
            tensor(rows, count, inner, dtype=dtype).transpose(0, 1)
            if swapped
            else tensor(count, rows, inner, dtype=dtype)
        )
        differentiate(torch.bmm, left, tensor(count, inner, columns, dtype=dtype))
        differentiate(
            torch.baddbmm, tensor(columns, dtype=dtype), left.detach(), tensor(count, inner, columns, dtype=dtype)
        )

    def einsum(equation: str, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> None:
        differentiate(lambda *t: torch.einsum(equation, *t), *(tensor(*shape, dtype=dtype) for shape in shapes))

    def attention(dtype: torch.dtype, weights: bool, dropout: float) -> None:
        module = on_device(nn.MultiheadAttention(768, 12, dropout=dropout, batch_first=True), dtype)
        differentiate(lambda x: module(x, x, x, need_weights=weights)[0], tensor(8, 512, 768, dtype=dtype))

    layouts = ("plain", "transposed", "strided", "sliced", "expanded")
    shapes = [(1024, 1024, 1024), (8192, 4096, 1024), (1000, 77, 333), (1, 4096, 4096), (4096, 4096, 1), (7, 5, 3)]
    equations: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
        ("bqhd,bkhd->bhqk", ((4, 256, 8, 64), (4, 256, 8, 64))),
        ("bhqk,bkhd->bqhd", ((4, 8, 256, 256), (4, 256, 8, 64))),
        ("ij,jk,kl->il", ((256, 256), (256, 256), (256, 256))),
        ("bnd,bmd->bnm", ((8, 512, 128), (8, 512, 128))),
    ]
    return [
        *(
            (f"mm {s} {a} {b} {SHORT[t]}", partial(mm, s, a, b, t))
            for s, a, b, t in product(shapes, layouts, layouts, HALF_AND_FULL)
        ),
        *(
            (f"linear {s} -> {o} bias={bias} {SHORT[t]}", partial(linear, s, o, bias, t))
            for s, o, bias, t in product(
                [(8, 512, 1024), (8192, 4096), (1, 1024), (3, 7)],
                (1024, 4096, 50257, 10, 1),
                (True, False),
                HALF_AND_FULL,
            )
        ),
        *(
            (f"bmm {s} swapped={w} {SHORT[t]}", partial(bmm, s, w, t))
            for s, w, t in product(
                [(96, 512, 64, 512), (8, 1000, 77, 333), (1024, 1, 64, 64)], (False, True), HALF_AND_FULL
            )
        ),
        *((f"einsum {e} {SHORT[t]}", partial(einsum, e, s, t)) for (e, s), t in product(equations, HALF_AND_FULL)),
        *(
            (f"MultiheadAttention {SHORT[t]} weights={w} dropout={p}", partial(attention, t, w, p))
            for t, w, p in product(HALF_AND_FULL, (False, True), (0.0, 0.1))
        ),
        *(
            (f"cdist {p}", lambda p=p: differentiate(partial(torch.cdist, p=p), tensor(8, 512, 64), tensor(8, 256, 64)))
            for p in (1.0, 2.0)
        ),
    ]


def resampling() -> list[Probe]:
    ops: dict[str, Callable[[Tensor], Tensor]] = {
        "nearest": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
        "bilinear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
        "bilinear down": lambda x: F.interpolate(x, size=(20, 20), mode="bilinear", antialias=True),
        "bicubic": lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"),
        "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
        "avg_pool": lambda x: F.avg_pool2d(x, 2),
        "adaptive_avg_pool 1": lambda x: F.adaptive_avg_pool2d(x, 1),
        "adaptive_avg_pool 7": lambda x: F.adaptive_avg_pool2d(x, 7),
        "adaptive_max_pool 7": lambda x: F.adaptive_max_pool2d(x, 7),
        "pad": lambda x: F.pad(x, (1, 2, 3, 4)),
        "pad reflect": lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"),
        "pad replicate": lambda x: F.pad(x, (1, 2, 3, 4), mode="replicate"),
        "pad circular": lambda x: F.pad(x, (1, 2, 3, 4), mode="circular"),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
        "unfold": lambda x: F.unfold(x, 3, padding=1),
        "dropout2d": lambda x: F.dropout2d(x, 0.1),
        "grid_sample": lambda x: F.grid_sample(
            x, tensor(x.shape[0], 32, 32, 2, dtype=x.dtype, grad=False).tanh(), align_corners=False
        ),
    }

    def run(op: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> None:
        x = tensor(*shape, dtype=dtype, grad=False)
        x = x.to(memory_format=torch.channels_last) if last else x
        differentiate(op, x.requires_grad_())

    return [
        (f"{name} {shape} {SHORT[t]}{' last' if last else ''}", partial(run, op, shape, t, last))
        for (name, op), shape, t, last in product(
            ops.items(), [(8, 64, 56, 56), (64, 256, 14, 14)], HALF_AND_FULL, (False, True)
        )
    ]


def elementwise() -> list[Probe]:
    ops: dict[str, Callable[[Tensor], Any]] = {
        "dropout": lambda x: F.dropout(x, 0.1),
        "native_dropout": lambda x: torch.native_dropout(x, 0.1, True)[0],
        "gelu": F.gelu,
        "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "glu": lambda x: F.glu(x, -1),
        "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
        "where": lambda x: torch.where(x > 0, x, 0.0),
        "repeat_interleave": lambda x: x.repeat_interleave(4, dim=1),
        "repeat": lambda x: x.repeat(1, 4, 1),
        "roll": lambda x: x.roll((3, 5), (1, 2)),
        "flip": lambda x: x.flip(1),
        "triu": lambda x: x.triu(1),
        "tril": lambda x: x.tril(-1),
        "nan_to_num": torch.nan_to_num,
        "clamp": lambda x: x.clamp(-1, 1),
        "normalize": lambda x: F.normalize(x, dim=-1),
        "prelu": lambda x: F.prelu(x, tensor(1, dtype=x.dtype)),
        "cat": lambda x: torch.cat([x, x * 2], 1),
        "stack": lambda x: torch.stack([x, x * 2]),
        "split": lambda x: [part * 2 for part in x.split(100, 1)],
        "contiguous": lambda x: x.transpose(1, 2).contiguous(),
        "pow": lambda x: x.abs().pow(1.5),
        "exp sub": lambda x: (x - x.amax(-1, keepdim=True)).exp(),
        "outer add": lambda x: x[:, :, :1] + x[:, :1],
        "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * 2j),
        "fft": lambda x: torch.fft.rfft(x.float(), dim=-1).abs(),
        "rfft2": lambda x: torch.fft.rfft2(x.float()).abs(),
        "one_hot": lambda x: F.one_hot(integers(100, *x.shape[:2]), 100),
        "multinomial": lambda x: torch.multinomial(x[:, 0].abs().float(), 1),
        "diff": lambda x: x.diff(dim=1),
        "cosine": lambda x: F.cosine_similarity(x[:, :, None], x[:, None, :8], dim=-1),
    }

    def run(op: Callable[[Tensor], Any], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        differentiate(op, tensor(*shape, dtype=dtype))

    return [
        (f"{name} {shape} {SHORT[dtype]}", partial(run, ops[name], shape, dtype))
        for name, shape, dtype in product(ops, [(8, 1000, 768), (64, 77, 512)], HALF_AND_FULL)
    ]


FAMILIES: dict[str, Callable[[], list[Probe]]] = {
    "indexing": indexing,
    "sorting": sorting,
    "losses": losses,
    "products": products,
    "resampling": resampling,
    "elementwise": elementwise,
}
