"""Probes of single ops beyond attention, each forward and backward, in families that run in a process of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sweep
from sweep import BF16, F16, F32, SHORT, Probe, differentiate, integers, tensor


def embedding() -> list[Probe]:
    def run(tokens: int, width: int, vocab: int, dtype: torch.dtype, padding: int) -> None:
        grad = tensor(tokens, width, dtype=dtype, grad=False)
        torch.ops.aten.embedding_dense_backward(grad, integers(vocab, tokens), vocab, padding, False)

    grid = product((512, 2048, 3072, 3073, 4096, 8192, 32768), (512, 1024, 4096), (1000, 32000, 128256), (BF16, F32))
    found: list[Probe] = [(f"N={n} D={d} V={v} {SHORT[t]}", partial(run, n, d, v, t, -1)) for n, d, v, t in grid]
    odd = product((4096, 5000, 16384), (768, 1), (2, 512, 50257), (BF16, F32))
    found += [(f"N={n} D={d} V={v} {SHORT[t]} padding", partial(run, n, d, v, t, 0)) for n, d, v, t in odd]
    return found


def norms() -> list[Probe]:
    def layer(rows: int, width: int, dtype: torch.dtype, rms: bool) -> None:
        x, weight, bias = tensor(rows, width, dtype=dtype), tensor(width, dtype=dtype), tensor(width, dtype=dtype)
        if rms:
            differentiate(lambda *t: F.rms_norm(t[0], (width,), t[1], 1e-6), x, weight)
        else:
            differentiate(lambda *t: F.layer_norm(t[0], (width,), t[1], t[2]), x, weight, bias)

    def group(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> None:
        x = tensor(*shape, dtype=dtype, grad=False)
        x = x.to(memory_format=torch.channels_last) if last else x
        weight, bias = tensor(shape[1], dtype=dtype), tensor(shape[1], dtype=dtype)
        differentiate(lambda *t: F.group_norm(t[0], 32, t[1], t[2]), x.requires_grad_(), weight, bias)

    def batch(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> None:
        x = tensor(*shape, dtype=dtype, grad=False)
        x = x.to(memory_format=torch.channels_last) if last else x
        state = [tensor(shape[1], grad=index > 1) for index in range(4)]  # always fp32 beside half inputs
        differentiate(
            lambda x, m, v, w, b: F.batch_norm(x, m, v.abs(), w, b, training=True), x.requires_grad_(), *state
        )

    rows, widths = (64, 1024, 4096, 16384, 65536, 262144), (64, 128, 256, 768, 1024, 4096)
    found: list[Probe] = [
        (f"{'rms' if rms else 'layer'}_norm {m}x{n} {SHORT[t]}", partial(layer, m, n, t, rms))
        for m, n, t, rms in product(rows, widths, (BF16, F32), (False, True))
        if m * n <= 2**27
    ]
    images = [
        (64, 64, 112, 112),
        (64, 256, 56, 56),
        (64, 2048, 7, 7),
        (8, 128, 128, 128),
        (8, 512, 16, 16),
        (1, 64, 8, 8),
    ]
    for shape, dtype, last in product(images, (BF16, F16, F32), (False, True)):
        label = f"{shape} {SHORT[dtype]}{' channels_last' if last else ''}"
        found += [(f"group_norm {label}", partial(group, shape, dtype, last))]
        found += [(f"batch_norm {label}", partial(batch, shape, dtype, last))]
    flat = [(64, 1024), (4096, 256), (16, 256, 16384), (16, 256, 512)]
    return found + [(f"batch_norm {s} {SHORT[t]}", partial(batch, s, t, False)) for s, t in product(flat, (BF16, F32))]


# input shape, output channels, kernel, stride, padding, groups
CONVOLUTIONS: list[tuple[tuple[int, ...], int, int, int, int, int]] = [
    # ResNet-50
    ((64, 3, 224, 224), 64, 7, 2, 3, 1),
    ((64, 64, 56, 56), 64, 1, 1, 0, 1),
    ((64, 64, 56, 56), 64, 3, 1, 1, 1),
    ((64, 64, 56, 56), 256, 1, 1, 0, 1),
    ((64, 128, 56, 56), 128, 3, 2, 1, 1),
    ((64, 256, 56, 56), 512, 1, 2, 0, 1),
    ((64, 256, 14, 14), 256, 3, 1, 1, 1),
    ((64, 1024, 14, 14), 256, 1, 1, 0, 1),
    ((64, 512, 7, 7), 512, 3, 1, 1, 1),
    ((8, 64, 56, 56), 64, 3, 1, 1, 1),
    ((1, 64, 56, 56), 64, 3, 1, 1, 1),
    # U-Net
    ((8, 3, 128, 128), 128, 3, 1, 1, 1),
    ((8, 128, 128, 128), 128, 3, 1, 1, 1),
    ((8, 256, 64, 64), 256, 3, 1, 1, 1),
    ((8, 1024, 32, 32), 512, 3, 1, 1, 1),
    ((8, 512, 16, 16), 1536, 1, 1, 0, 1),
    ((8, 128, 128, 128), 3, 3, 1, 1, 1),
    # ConvNeXt, ViT, ResNeXt, MobileNet
    ((32, 3, 224, 224), 128, 4, 4, 0, 1),
    ((32, 128, 56, 56), 128, 7, 1, 3, 128),
    ((32, 512, 14, 14), 512, 7, 1, 3, 512),
    ((32, 128, 56, 56), 256, 2, 2, 0, 1),
    ((32, 3, 224, 224), 1024, 16, 16, 0, 1),
    ((32, 128, 56, 56), 128, 3, 1, 1, 32),
    ((32, 96, 112, 112), 96, 3, 2, 1, 96),
    # sound
    ((4, 1, 160000), 512, 10, 5, 0, 1),
    ((4, 512, 31999), 512, 3, 2, 0, 1),
    ((8, 80, 3000), 768, 3, 1, 1, 1),
    ((4, 768, 499), 768, 128, 1, 64, 16),
    ((16, 256, 16384), 256, 9, 1, 4, 1),
    # video
    ((2, 3, 16, 112, 112), 64, 3, 1, 1, 1),
    ((2, 64, 16, 56, 56), 128, 3, 1, 1, 1),
]
TRANSPOSED: list[tuple[tuple[int, ...], int, int, int, int, int]] = [
    ((8, 512, 16, 16), 256, 2, 2, 0, 1),
    ((64, 512, 8, 8), 256, 4, 2, 1, 1),
    ((8, 512, 200), 256, 16, 8, 4, 1),
    ((2, 64, 8, 28, 28), 32, 2, 2, 0, 1),
]
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def convolutions(dtype: torch.dtype, last: bool) -> list[Probe]:
    def run(case: tuple[tuple[int, ...], int, int, int, int, int], transposed: bool) -> None:
        shape, out, kernel, stride, padding, groups = case
        name = f"conv{'_transpose' if transposed else ''}{len(shape) - 2}d"
        ends = (shape[1], out) if transposed else (out, shape[1] // groups)
        x = tensor(*shape, dtype=dtype, grad=False)
        weight = tensor(*ends, *[kernel] * (len(shape) - 2), dtype=dtype, grad=False)
        if last:
            x, weight = (t.to(memory_format=FORMATS[len(shape)]) for t in (x, weight))
        bias = tensor(out, dtype=dtype)
        convolve = partial(getattr(F, name), stride=stride, padding=padding, groups=groups)
        differentiate(convolve, x.requires_grad_(), weight.requires_grad_(), bias)

    return [
        (
            f"{'transposed ' if transposed else ''}{case} {SHORT[dtype]}{' last' if last else ''}",
            partial(run, case, transposed),
        )
        for transposed, cases in ((False, CONVOLUTIONS), (True, TRANSPOSED))
        for case in cases
        if not last or len(case[0]) in FORMATS
    ]


def reductions() -> list[Probe]:
    shapes: list[tuple[tuple[int, ...], Any]] = [
        ((100_000_000,), None),
        ((10_000, 10_000), None),
        ((10_000, 10_000), 0),
        ((10_000, 10_000), 1),
        ((8192, 4096), 0),
        ((8192, 768), 0),
        ((16384, 128), 0),
        ((262144, 64), 0),
        ((64, 256, 56, 56), (0, 2, 3)),
        ((64, 256, 56, 56), (2, 3)),
        ((16, 512, 1024), (0, 1)),
        ((16, 512, 1024), 1),
        ((1024,), None),
        ((4, 1_000_000), 1),
        ((1_000_000, 4), 0),
    ]
    ops: dict[str, Callable[..., Any]] = {
        "sum": torch.sum,
        "mean": torch.mean,
        "norm": torch.linalg.vector_norm,
        "logsumexp": torch.logsumexp,
        "var_mean": torch.var_mean,
        "std": torch.std,
        "amax": torch.amax,
    }

    def run(function: Callable[..., Any], shape: tuple[int, ...], dim: Any, dtype: torch.dtype) -> None:
        dims = tuple(range(len(shape))) if dim is None else dim
        differentiate(lambda x: function(x, dim=dims), tensor(*shape, dtype=dtype))

    whole: dict[str, Callable[..., Any]] = {"sum": torch.sum, "mean": torch.mean, "prod": torch.prod, "max": torch.max}

    def run_whole(function: Callable[..., Any], size: int) -> None:
        differentiate(function, tensor(size))

    found: list[Probe] = [
        (f"{name} {shape} dim={dim} {SHORT[dtype]}", partial(run, ops[name], shape, dim, dtype))
        for name, (shape, dim), dtype in product(ops, shapes, (F32, BF16))
    ]
    found += [
        (f"{name} of all of {size}", partial(run_whole, whole[name], size))
        for name, size in product(whole, (1000, 1_000_000, 30_000_000))
    ]
    return found


def optimizers() -> list[Probe]:
    shapes = [(32000, 1024), *[(1024, 1024)] * 16, *[(4096, 1024)] * 8, *[(1024,)] * 40, (3, 5, 7)]
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "AdamW": torch.optim.AdamW,
        "AdamW fused": partial(torch.optim.AdamW, fused=True),
        "AdamW loop": partial(torch.optim.AdamW, foreach=False),
        "AdamW amsgrad": partial(torch.optim.AdamW, amsgrad=True),
        "Adam decay": partial(torch.optim.Adam, weight_decay=0.1),
        "SGD": partial(torch.optim.SGD, lr=0.1),
        "SGD momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "SGD nesterov decay": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        "SGD fused": partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
        "Adafactor": torch.optim.Adafactor,
        "Adafactor foreach": partial(torch.optim.Adafactor, foreach=True),
        "RMSprop": torch.optim.RMSprop,
        "Adagrad": torch.optim.Adagrad,
    }

    def parameters(dtype: torch.dtype) -> list[Tensor]:
        made = [tensor(*shape, dtype=dtype) for shape in shapes]
        for parameter in made:
            parameter.grad = torch.ones_like(parameter)
        return made

    def run(kind: Callable[..., torch.optim.Optimizer], dtype: torch.dtype) -> None:
        optimizer = kind(parameters(dtype))
        for _ in range(2):
            optimizer.step()

    def clip(dtype: torch.dtype, foreach: bool | None) -> None:
        nn.utils.clip_grad_norm_(parameters(dtype), 1.0, foreach=foreach)

    def scaler(fused: bool) -> None:
        optimizer = torch.optim.AdamW(made := parameters(F32), fused=fused)
        scaler = torch.amp.GradScaler(sweep.device)
        for _ in range(2):
            scaler.scale(made[-1].sum()).backward()
            if not fused:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

    return [
        *((f"{name} {SHORT[t]}", partial(run, kind, t)) for (name, kind), t in product(kinds.items(), (F32, BF16))),
        *((f"clip {SHORT[t]} foreach={f}", partial(clip, t, f)) for t, f in product((F32, BF16), (None, False))),
        *((f"GradScaler fused={fused}", partial(scaler, fused)) for fused in (False, True)),
    ]


FAMILIES: dict[str, Callable[[], list[Probe]]] = {
    "embedding": embedding,
    "norms": norms,
    **{
        f"convolution {SHORT[dtype]}{' last' if last else ''}": partial(convolutions, dtype, last)
        for dtype, last in product((F32, BF16, F16), (False, True))
    },
    "reductions": reductions,
    "optimizers": optimizers,
}
