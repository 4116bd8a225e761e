"""The second part of the catalogue: products, transforms, convolutions, recurrent and attention layers, optimizers.

`families()` are names and workloads, as in `price_catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from price_catalogue import BF16, BOTH, F16, F32, Workload, both_ways, crossed, floats


def products() -> Iterator[Workload]:
    def einsum(text: str, left: tuple[int, ...], right: tuple[int, ...], dtype: torch.dtype) -> None:
        both_ways(partial(torch.einsum, text), floats(*left, dtype=dtype), floats(*right, dtype=dtype))

    heads = ((8, 512, 12, 64), (8, 512, 12, 64))
    cases = (
        ("bqhd,bkhd->bhqk", *heads), ("bhqk,bkhd->bqhd", (8, 12, 512, 512), heads[1]),
        ("bqhd,bkhd->bqkh", (2, 256, 8, 64), (2, 256, 8, 64)),
        ("bnd,bmd->bnm", (16, 1024, 256), (16, 512, 256)), ("bnd,dhk->bnhk", (16, 512, 768), (768, 12, 64)),
        ("bnhk,hkd->bnd", (16, 512, 12, 64), (12, 64, 768)), ("bchw,cd->bdhw", (16, 256, 28, 28), (256, 256)),
        ("bchw,bcij->bhwij", (4, 64, 32, 32), (4, 64, 32, 32)), ("ben,ed->bdn", (16, 256, 784), (256, 256)),
        ("bld,bld->bl", (16, 1024, 512), (16, 1024, 512)),
        ("bhnd,bhne->bhde", (8, 12, 1024, 64), (8, 12, 1024, 64)),
        ("bhnd,bhde->bhne", (8, 12, 1024, 64), (8, 12, 64, 64)),
        ("ecd,edf->ecf", (8, 512, 768), (8, 768, 3072)), ("blhd,hde->blhe", (8, 512, 8, 64), (8, 64, 64)),
        ("bi,bj->bij", (4096, 128), (4096, 128)),
        ("bi,oij->boj", (1024, 128), (64, 128, 128)), ("nctv,vw->nctw", (32, 64, 128, 25), (25, 25)),
        ("bd,nd->bn", (256, 128), (65536, 128)),
    )  # fmt: skip
    for case in cases:
        yield from crossed(partial(einsum, *case), BOTH)
    matrices: tuple[Callable[..., Any], ...] = (
        torch.matmul, lambda a,
        b: torch.baddbmm(a.new_zeros(1, 1, b.shape[2]).expand(a.shape[0], a.shape[1], -1), a, b),
        lambda a, b: torch.baddbmm(torch.matmul(a, b), a, b), lambda a,
        b: torch.matmul(a.transpose(1, 2).contiguous().transpose(1, 2), b),
        lambda a, b: torch.matmul(a, b.transpose(1, 2).contiguous().transpose(1, 2)), lambda a,
        b: torch.addmm(torch.mm(a[0], b[0]), a[0], b[0], beta=0.5),
        lambda a, b: torch.matmul(a, b[0]), lambda a, b: torch.matmul(a, b[0, :, 0]), lambda a,
        b: torch.bmm(a[:, :1], b), lambda a, b: F.linear(a, b[0].t(), b[0, 0]),
        lambda a, b: torch.cdist(a.float(), b.transpose(1, 2).float()), lambda a,
        b: F.bilinear(a[0, :, :64], b[0].t()[: a.shape[1], :64], floats(16, 64, 64, dtype=a.dtype)),
        lambda a, b: torch.dot(a.flatten(), a.flatten().flip(0)), lambda a, b: torch.outer(a[0, 0], b[0, 0]),
        lambda a, b: torch.mv(a[0], b[0, :, 0]),
    )  # fmt: skip

    def pair(function: Callable[..., Any], batch: int, rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
        both_ways(function, floats(batch, rows, depth, dtype=dtype), floats(batch, depth, columns, dtype=dtype))

    for sizes in (
        (16, 256, 256, 64),
        (64, 512, 512, 96),
        (4, 1024, 4096, 1024),
        (256, 49, 49, 32),
        (8, 2048, 100, 256),
    ):
        yield from crossed(lambda function, dtype, sizes=sizes: pair(function, *sizes, dtype), matrices, BOTH)

    def factor(function: Callable[..., Any], batch: int, size: int) -> None:
        x = floats(batch, size, size)
        both_ways(lambda x: function(x @ x.transpose(1, 2) + size * torch.eye(size, device="cuda")), x)

    linear: tuple[Callable[..., Any], ...] = (
        torch.linalg.cholesky, torch.linalg.inv, torch.linalg.qr, torch.linalg.slogdet, torch.matrix_exp,
        lambda x: torch.linalg.solve(x, x[:, :, :4]), torch.linalg.eigvalsh,
    )  # fmt: skip
    yield from crossed(factor, linear, (64,), (4, 32))


def transforms() -> Iterator[Workload]:
    def rotated(x: Tensor) -> Tensor:
        angles = floats(x.shape[-1] // 2)
        turned = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned)

    functions: tuple[Callable[..., Any], ...] = (
        lambda x: torch.fft.rfft(x).abs(), lambda x: torch.fft.irfft(torch.fft.rfft(x)),
        lambda x: torch.fft.rfft2(x).real, lambda x: torch.fft.fft2(x).real,
        lambda x: torch.fft.irfft(torch.fft.rfft(x, 2 * x.shape[-1]) * torch.fft.rfft(x[:1], 2 * x.shape[-1])),
        rotated,
        lambda x: torch.stft(x.flatten(1), 400, 160, window=torch.ones(400, device="cuda"), return_complex=True).abs(),
        lambda x: torch.fft.fft(x, dim=1).real,
    )  # fmt: skip
    for shape in ((16, 256, 512), (64, 1024, 1024), (8, 128, 4096), (16, 64, 1000)):
        yield from crossed(lambda function, shape=shape: both_ways(function, floats(*shape)), functions)


def convolve(
    dims: int,
    inputs: int,
    outputs: int,
    window: int,
    size: int,
    batch: int,
    dtype: torch.dtype,
    last: bool = False,
    **options: Any,
) -> None:
    """A convolution over a cube of `dims` dimensions, with a bias, and its gradients."""
    is_transposed = options.pop("transposed", False)
    function = getattr(F, f"conv{'_transpose' if is_transposed else ''}{dims}d")
    groups = options.get("groups", 1)
    ends = (inputs, outputs // groups) if is_transposed else (outputs, inputs // groups)
    tensors = [
        floats(batch, inputs, *[size] * dims, dtype=dtype, grad=False),
        floats(*ends, *[window] * dims, dtype=dtype, grad=False),
    ]
    if last:
        tensors = [tensor.to(memory_format=torch.channels_last) for tensor in tensors]
    out = function(*(tensor.requires_grad_() for tensor in tensors), floats(outputs, dtype=dtype), **options)
    gradient = torch.randn(out.shape, device="cuda", dtype=dtype)
    out.backward(gradient.to(memory_format=torch.channels_last) if last else gradient)


def convolutions() -> Iterator[Workload]:
    lines = (
        (128, 128, 3, 2000, 16, {"padding": 1}), (128, 128, 3, 2000, 16, {"padding": 4, "dilation": 4}),
        (128, 256, 5, 4000, 8, {"padding": 2, "stride": 2}),
        (256, 256, 7, 1000, 16, {"padding": 3, "groups": 4}), (384, 384, 19, 600, 16, {"padding": 9, "groups": 6}),
        (80, 512, 5, 400, 16, {"padding": 2}),
        (512, 512, 64, 300, 8, {"padding": 32, "groups": 16}),
        (512, 512, 32, 600, 4, {"padding": 16, "groups": 8, "stride": 2}),
        (1024, 1024, 4, 512, 8, {"padding": 3, "groups": 1024}),
        (512, 512, 15, 800, 8, {"padding": 7, "groups": 512}),
        (256, 128, 8, 500, 8, {"stride": 4, "padding": 2, "transposed": True}),
        (512, 256, 16, 128, 8, {"stride": 8, "padding": 4, "transposed": True}),
        (64, 64, 3, 16000, 8, {"padding": 1}), (1, 64, 31, 16000, 16, {"padding": 15}),
        (32, 64, 8, 8000, 16, {"stride": 4}), (256, 256, 1, 2000, 16, {}), (64, 1, 7, 16000, 8, {"padding": 3}),
    )  # fmt: skip
    planes = (
        (64, 64, 3, 80, 8, {"padding": 1}), (128, 128, 3, 80, 8, {"padding": 2, "dilation": 2}),
        (256, 256, 3, 32, 16, {"padding": 6, "dilation": 6}),
        (128, 256, 3, 40, 16, {"padding": 1, "stride": 2}), (192, 192, 3, 40, 16, {"padding": 1, "groups": 2}),
        (256, 256, 3, 20, 32, {"padding": 1, "groups": 4}),
        (256, 256, 5, 28, 16, {"padding": 2, "groups": 16}),
        (512, 512, 3, 20, 16, {"padding": 1, "groups": 64, "stride": 2}), (64, 64, 5, 64, 16, {"padding": 2}),
        (64, 64, 7, 64, 8, {"padding": 3}), (32, 32, 11, 64, 8, {"padding": 5}),
        (96, 96, 7, 56, 32, {"padding": 3, "groups": 96}), (128, 128, 13, 28, 32, {"padding": 6, "groups": 128}),
        (192, 192, 31, 28, 8, {"padding": 15, "groups": 192}), (3, 32, 3, 256, 16, {"padding": 1}),
        (1, 16, 3, 128, 64, {"padding": 1}), (3, 48, 5, 128, 64, {"padding": 2, "stride": 2}),
        (256, 64, 1, 40, 16, {}), (320, 1280, 1, 20, 16, {}),
        (512, 256, 2, 16, 16, {"stride": 2, "transposed": True}),
        (128, 64, 3, 64, 8, {"stride": 2, "padding": 1, "output_padding": 1, "transposed": True}),
        (100, 512, 4, 1, 64, {"transposed": True}),
        (256, 128, 4, 16, 32, {"stride": 2, "padding": 1, "groups": 4, "transposed": True}), (48, 24, 1, 96, 16, {}),
        (720, 256, 3, 16, 16, {"padding": 1}),
        (64, 64, 1, 64, 32, {"stride": 2}), (24, 48, 3, 96, 16, {"padding": 1}), (10, 20, 5, 32, 64, {}),
    )  # fmt: skip
    cubes = (
        (3, 64, 3, 56, 2, {"padding": 1}), (32, 32, 3, 48, 2, {"padding": 1}),
        (64, 128, 3, 28, 4, {"padding": 1, "stride": 2}), (128, 128, 3, 14, 4, {"padding": 1}),
        (16, 32, 5, 24, 4, {"padding": 2}),
        (256, 64, 1, 14, 4, {}), (64, 32, 2, 16, 4, {"stride": 2, "transposed": True}),
        (1, 32, 3, 64, 2, {"padding": 1}), (64, 64, 3, 28, 4, {"padding": 1, "groups": 64}),
        (64, 64, 3, 20, 4, {"padding": 1, "groups": 4}),
        (3, 96, 4, 64, 2, {"stride": 4}),
    )  # fmt: skip
    for dims, cases in ((1, lines), (2, planes), (3, cubes)):
        for *sizes, options in cases:
            for dtype in (F32, BF16, F16) if options.get("groups", 1) > 1 else BOTH:
                yield partial(convolve, dims, *sizes, dtype, **options)
                if dims == 2 and dtype is not F16:
                    yield partial(convolve, dims, *sizes, dtype, last=True, **options)


def recurrent() -> Iterator[Workload]:
    def layer(
        kind: Callable[..., nn.RNNBase],
        batch: int,
        length: int,
        inputs: int,
        width: int,
        layers: int,
        both: bool,
        dtype: torch.dtype,
    ) -> None:
        network = kind(inputs, width, layers, batch_first=True, bidirectional=both, device="cuda", dtype=dtype)
        both_ways(network, floats(batch, length, inputs, dtype=dtype))

    sizes = (
        (8, 30, 128, 128, 1, False),
        (32, 50, 300, 256, 1, True),
        (64, 30, 512, 512, 2, False),
        (128, 100, 64, 384, 1, False),
        (256, 20, 256, 256, 2, True),
        (48, 40, 768, 768, 1, False),
    )
    for size in sizes:
        yield from crossed(
            lambda kind, dtype, size=size: layer(kind, *size, dtype), (nn.LSTM, nn.GRU, nn.RNN), (F32, BF16, F16)
        )

    def cell(kind: Callable[..., nn.Module], batch: int, inputs: int, width: int, dtype: torch.dtype) -> None:
        both_ways(kind(inputs, width, device="cuda", dtype=dtype), floats(batch, inputs, dtype=dtype))

    yield from crossed(cell, (nn.LSTMCell, nn.GRUCell, nn.RNNCell), (32, 512), (192, 768), (256, 768), (F32, BF16, F16))


def attention() -> Iterator[Workload]:
    def own(batch: int, length: int, width: int, heads: int, weights: bool, masked: bool, dtype: torch.dtype) -> None:
        layer = nn.MultiheadAttention(width, heads, batch_first=True, device="cuda", dtype=dtype)
        mask = torch.zeros(batch, length, dtype=torch.bool, device="cuda") if masked else None
        both_ways(
            lambda x: layer(x, x, x, key_padding_mask=mask, need_weights=weights),
            floats(batch, length, width, dtype=dtype),
        )

    yield from crossed(own, (16,), (128, 577), (384, 768), (6,), (False, True), (False, True), BOTH)

    def fused(batch: int, heads: int, length: int, keys: int, dim: int, causal: bool, dtype: torch.dtype) -> None:
        query, key, value = (
            floats(batch, size, heads, dim, dtype=dtype).transpose(1, 2) for size in (length, keys, keys)
        )
        both_ways(lambda *tensors: F.scaled_dot_product_attention(*tensors, is_causal=causal), query, key, value)

    for sizes in (
        (8, 8, 384, 384, 64),
        (4, 20, 1536, 1536, 64),
        (32, 6, 196, 196, 64),
        (2, 16, 3000, 3000, 128),
        (16, 8, 100, 950, 32),
        (8, 5, 4096, 77, 64),
        (64, 3, 64, 64, 32),
        (2, 40, 700, 700, 128),
        (4, 8, 1024, 1024, 256),
    ):
        for causal in (False, True) if sizes[2] == sizes[3] else (False,):
            yield from crossed(lambda dtype, sizes=sizes, causal=causal: fused(*sizes, causal, dtype), (F32, BF16, F16))


SHAPES = (
    ((512, 512),) * 12 + ((2048, 512),) * 6 + ((512,),) * 60,
    ((16000, 768),) + ((768, 768),) * 24 + ((3072, 768),) * 12 + ((768,),) * 90,
    ((64, 64, 3, 3),) * 20 + ((64,),) * 60 + ((256, 64, 1, 1),) * 20,
)
"""Parameters of a small model of text, of a larger one, of one of images."""


def optimizers() -> Iterator[Workload]:
    def parameters(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> list[Tensor]:
        found = [floats(*shape, dtype=dtype) for shape in shapes]
        for parameter in found:
            parameter.grad = torch.randn(parameter.shape, device="cuda", dtype=dtype)
        return found

    optim = torch.optim
    kinds: tuple[Callable[..., optim.Optimizer], ...] = (
        partial(optim.AdamW, amsgrad=True), partial(optim.Adam, weight_decay=0.1), partial(optim.AdamW, fused=True),
        optim.RMSprop,
        partial(optim.RMSprop, momentum=0.9, centered=True), optim.Adagrad,
        optim.NAdam, optim.RAdam, optim.Adadelta, optim.Adamax, optim.ASGD, optim.Rprop,
        partial(optim.SGD, lr=0.1), partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        partial(optim.SGD, lr=0.1, momentum=0.9, fused=True), optim.Adafactor,
    )  # fmt: skip

    def run(kind: Callable[..., optim.Optimizer], shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> None:
        made = parameters(shapes, dtype)
        optimizer = kind(made)
        optimizer.step(), optimizer.step()

    yield from crossed(run, kinds, SHAPES, (F32,))
    yield from crossed(run, kinds[:3], SHAPES[:2], (BF16,))
    loops = (
        partial(optim.AdamW, foreach=False),
        partial(optim.SGD, lr=0.1, momentum=0.9, foreach=False),
        partial(optim.NAdam, foreach=False),
        partial(optim.RMSprop, foreach=False),
    )
    yield from crossed(run, loops, SHAPES[1:2], (F32,))

    def by_hand(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> None:
        made = parameters(shapes, dtype)
        average = [torch.zeros_like(parameter) for parameter in made]
        gradients = [parameter.grad for parameter in made if parameter.grad is not None]
        with torch.no_grad():
            torch._foreach_lerp_(average, made, 0.01), torch._foreach_mul_(average, 0.99)
            (
                torch._foreach_copy_(average, made),
                torch._foreach_sign_(gradients),
                torch._foreach_norm(made),
                torch._foreach_div(gradients, 2.0),
                torch._foreach_sub_(made, gradients),
            )
            for parameter, gradient, moment in zip(made, gradients, average, strict=True):
                moment.mul_(0.9).add_(gradient, alpha=0.1)
                ratio = parameter.norm() / (moment.norm() + 1e-6)
                parameter.add_(moment.sign() * ratio, alpha=-0.01)
        for foreach in (True, False):
            nn.utils.clip_grad_norm_(made, 1.0, foreach=foreach), nn.utils.clip_grad_value_(made, 1.0, foreach=foreach)
        if dtype is F32:
            torch._amp_foreach_non_finite_check_and_unscale_(
                gradients, torch.zeros((), device="cuda"), torch.ones((), device="cuda")
            )

    yield from crossed(by_hand, SHAPES, BOTH)


def families() -> dict[str, list[Workload]]:
    return {
        function.__name__: list(function())
        for function in (products, transforms, convolutions, recurrent, attention, optimizers)
    }
