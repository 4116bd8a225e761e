"""Workloads of functions that some models use and the other groups leave out: activations, losses, padding, pooling,
resampling, picking, running and sorted values, transforms, factorizations, optimizers, short recurrent layers.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainfit.calibrate.broadcasts import vectors
from trainfit.calibrate.lookups import cell
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, aside, randn


def _integers(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, device="cuda")


def _differentiate(out: Tensor) -> None:
    if out.requires_grad:
        out.backward(randn(*out.shape, dtype=out.dtype))


def curves(rows: int, columns: int, dtype: torch.dtype) -> None:
    """Functions of one element or two, and their gradients."""
    ones: tuple[Callable[..., Tensor], ...] = (
        F.mish, F.softplus, F.logsigmoid, F.elu, F.celu, F.softshrink, F.hardsigmoid, F.glu, F.relu6,
        partial(F.rrelu, training=True), torch.erf, torch.expm1, torch.exp2, torch.atan, torch.sgn, torch.log,
        torch.log1p, torch.sqrt, partial(torch.pow, exponent=3),
    )  # fmt: skip
    for function in ones:
        x = torch.rand(rows, columns, device="cuda", dtype=dtype).add_(0.5).requires_grad_()
        _differentiate(function(x))
    pairs: tuple[Callable[..., Tensor], ...] = (
        torch.atan2, torch.logaddexp, torch.hypot, torch.xlogy, torch.copysign, torch.fmod, F.huber_loss,
        F.soft_margin_loss,
    )  # fmt: skip
    for function in pairs:
        x, y = (torch.rand(rows, columns, device="cuda", dtype=dtype).add_(0.5) for _ in range(2))
        _differentiate(function(x.requires_grad_(), y))
    slope = torch.full((columns,), 0.2, device="cuda", dtype=dtype, requires_grad=True)
    _differentiate(F.prelu(randn(rows, columns, dtype=dtype).requires_grad_(), slope))
    chances, targets = (
        torch.rand(rows, columns, device="cuda").requires_grad_(),
        torch.rand(rows, columns, device="cuda"),
    )
    _differentiate(F.binary_cross_entropy(chances, targets))
    logits = randn(rows, columns, dtype=dtype).requires_grad_()
    _differentiate(F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits), reduction="none"))


def casts(rows: int, columns: int) -> None:
    """Between types of the same size, to and from integers and truth values; of what lies otherwise too."""
    x = randn(rows, columns)
    half, long, truth = x.half(), x.long(), x > 0
    (
        half.bfloat16(),
        half.bfloat16().half(),
        x.int(),
        long.float(),
        truth.float(),
        truth.bfloat16(),
        truth.long(),
        x.bool(),
    )
    half.t().bfloat16(), truth.t().float(), x.double(), x.half().float(), long.int(), long.bfloat16()


def losses(rows: int, columns: int, dtype: torch.dtype) -> None:
    """Losses per row, with weights, and those that compare distributions."""
    logits, targets = randn(rows, columns, dtype=dtype).requires_grad_(), _integers(columns, rows)
    weight = torch.ones(columns, device="cuda", dtype=dtype)
    for options in ({"reduction": "none"}, {"weight": weight}, {"label_smoothing": 0.1}):
        _differentiate(F.cross_entropy(logits, targets, **options))
    _differentiate(F.cosine_similarity(logits, randn(rows, columns, dtype=dtype)))
    for option in ("none", "mean"):
        _differentiate(F.mse_loss(logits, randn(rows, columns, dtype=dtype), reduction=option))
        _differentiate(F.l1_loss(logits, randn(rows, columns, dtype=dtype), reduction=option))


def connectionist(batch: int, length: int, classes: int, targets: int) -> None:
    logits = randn(length, batch, classes).requires_grad_()
    labels = _integers(classes - 1, batch, targets) + 1
    torch.ctc_loss(logits.log_softmax(-1), labels, [length] * batch, [targets] * batch).mean().backward()


def padded(batch: int, channels: int, size: int, dtype: torch.dtype) -> None:
    """Around images and signals, with values of the edge."""
    for mode in ("reflect", "replicate", "constant"):
        x = randn(batch, channels, size, size, dtype=dtype).requires_grad_()
        _differentiate(F.pad(x, (1, 1, 1, 1), mode=mode))
        line = randn(batch, channels, size * size, dtype=dtype).requires_grad_()
        _differentiate(F.pad(line, (2, 2), mode=mode))


def pooled(batch: int, channels: int, size: int, dtype: torch.dtype, nhwc: bool) -> None:
    """Windows that overlap, sizes that are asked for, and other ways to resize."""
    functions: tuple[Callable[..., Tensor], ...] = (
        partial(F.max_pool2d, kernel_size=3, stride=1, padding=1),
        partial(F.max_pool2d, kernel_size=5, stride=1, padding=2),
        partial(F.avg_pool2d, kernel_size=3, stride=1, padding=1),
        partial(F.avg_pool2d, kernel_size=3, stride=2, padding=1),
        partial(F.adaptive_avg_pool2d, output_size=7),
        partial(F.adaptive_avg_pool2d, output_size=(size // 4, size // 2)),
        partial(F.adaptive_max_pool2d, output_size=7), partial(F.interpolate, scale_factor=2, mode="bicubic"),
        partial(F.interpolate, scale_factor=0.5, mode="bilinear"),
        partial(F.interpolate, scale_factor=2, mode="nearest-exact"),
        partial(F.interpolate, scale_factor=0.5, mode="bilinear", antialias=True),
        partial(F.interpolate, scale_factor=0.5),
        partial(F.pixel_shuffle, upscale_factor=2), partial(F.pixel_unshuffle, downscale_factor=2),
        partial(F.channel_shuffle, groups=4),
    )  # fmt: skip
    memory_format = torch.channels_last if nhwc else torch.contiguous_format
    for function in functions:
        x = randn(batch, channels, size, size, dtype=dtype).contiguous(memory_format=memory_format).requires_grad_()
        _differentiate(function(x))


def unfolded(batch: int, channels: int, size: int, dtype: torch.dtype) -> None:
    x = randn(batch, channels, size, size, dtype=dtype).requires_grad_()
    for window, stride, padding in ((3, 1, 1), (4, 4, 0), (7, 4, 3)):
        patches = F.unfold(x, window, padding=padding, stride=stride)
        _differentiate(patches)
        _differentiate(F.fold(patches.detach().requires_grad_(), (size, size), window, padding=padding, stride=stride))
    grid = (torch.rand(batch, size, size, 2, device="cuda", dtype=dtype) * 2 - 1).requires_grad_()
    _differentiate(F.grid_sample(x, grid, align_corners=False))


def volumes(batch: int, channels: int, size: int, dtype: torch.dtype) -> None:
    """Pooling and resizing in three dimensions, and in one."""
    functions: tuple[Callable[..., Tensor], ...] = (
        partial(F.max_pool3d, kernel_size=2), partial(F.max_pool3d, kernel_size=3, stride=2, padding=1),
        partial(F.avg_pool3d, kernel_size=2), partial(F.interpolate, scale_factor=2),
        partial(F.interpolate, scale_factor=2, mode="trilinear"),
    )  # fmt: skip
    for function in functions:
        _differentiate(function(randn(batch, channels, size, size, size, dtype=dtype).requires_grad_()))
    lines: tuple[Callable[..., Tensor], ...] = (
        partial(F.interpolate, scale_factor=2), partial(F.interpolate, scale_factor=2, mode="linear"),
        partial(F.max_pool1d, kernel_size=3, stride=2, padding=1), partial(F.avg_pool1d, kernel_size=4),
        partial(F.adaptive_avg_pool1d, output_size=size), partial(F.adaptive_max_pool1d, output_size=1),
    )  # fmt: skip
    for function in lines:
        _differentiate(function(randn(batch, channels, size**3, dtype=dtype).requires_grad_()))


def picked(batch: int, rows: int, width: int, dtype: torch.dtype) -> None:
    """Picking behind a batch dimension and adding up what was picked; scattering along rows, as graphs do."""
    some, pairs = _integers(rows, rows // 2), _integers(width, rows // 2)
    along = _integers(rows, 1, rows // 2, 1)
    functions: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x[:, some], lambda x: x[:, some, pairs], lambda x: x[..., pairs],
        lambda x: x[torch.arange(batch, device="cuda"), _integers(rows, batch)],
        lambda x: x.gather(1, along.expand(batch, -1, width)), lambda x: x.index_select(1, some),
        lambda x: x.index_add(1, some, x[:, : rows // 2]), lambda x: x.index_fill(1, some, 0.0),
        lambda x: x.scatter_add(1, along.expand(batch, -1, width), x[:, : rows // 2]),
        lambda x: x.scatter_reduce(1, along.expand(batch, -1, width), x[:, : rows // 2], "amax"),
        lambda x: x.scatter_reduce(1, along.expand(batch, -1, width), x[:, : rows // 2], "mean"),
        lambda x: x.repeat_interleave(2, 1), lambda x: x.flip(2), lambda x: x.roll((1, 1), (1, 2)),
        lambda x: x.diagonal(0, 1, 2), lambda x: torch.diag_embed(x[:, 0]), lambda x: torch.stack((x, x), -1),
        lambda x: torch.cat((x, x[..., :1]), -1),
        lambda x: torch.cat((x, x.transpose(0, 1).contiguous().transpose(0, 1)), 1),
        lambda x: x[:, ::2], lambda x: x.unfold(1, 4, 2),
    )  # fmt: skip
    for function in functions:
        _differentiate(function(randn(batch, rows, width, dtype=dtype).requires_grad_()))


def ordered(outer: int, length: int, inner: int, dtype: torch.dtype) -> None:
    """Running products, extremes and medians along the last dimension and along a middle one; sorting."""
    for dim in (1, 2):
        for function in (torch.logcumsumexp, torch.cumsum, torch.softmax, torch.log_softmax):
            _differentiate(function(torch.rand(outer, length, inner, device="cuda", dtype=dtype).requires_grad_(), dim))
        x = randn(outer, length, inner, dtype=dtype)
        (
            x.cumprod(dim),
            x.prod(dim),
            x.cummax(dim),
            x.median(dim),
            x.kthvalue(3, dim),
            x.sort(dim),
            x.topk(8, dim),
            x.argmax(dim),
            x.std(dim),
        )
        torch.logsumexp(x, dim), x.max(dim), x.norm(1, dim)
    points = torch.linspace(-2, 2, 64, device="cuda")
    torch.searchsorted(points, x.float()), (x > 0).nonzero(), torch.bernoulli(x.float().sigmoid())


def factors(batch: int, size: int) -> None:
    x = randn(batch, size, size)
    positive = x @ x.transpose(1, 2) + size * torch.eye(size, device="cuda")
    torch.linalg.cholesky(positive), torch.linalg.inv(positive), torch.linalg.solve(positive, x)
    torch.linalg.solve_triangular(positive, x, upper=False)
    torch.mv(x[0], x[0, 0]), torch.dot(x.flatten(), positive.flatten()), torch.cdist(x, positive)


def updates(num_tensors: int, numel: int) -> None:
    """Optimizers beside Adam and SGD, averages of weights, clipping by value."""
    parameters = [nn.Parameter(randn(numel)) for _ in range(num_tensors)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optim = torch.optim
    made: tuple[optim.Optimizer, ...] = (
        optim.AdamW(parameters, amsgrad=True), optim.RMSprop(parameters, momentum=0.9, centered=True),
        optim.Adagrad(parameters), optim.NAdam(parameters),
        optim.RAdam(parameters),
        optim.Adadelta(parameters), optim.Adamax(parameters), optim.SGD(parameters, momentum=0.9, fused=True),
        optim.SGD(parameters, momentum=0.9, nesterov=True), optim.Adam(parameters, fused=True),
    )  # fmt: skip
    for optimizer in made:
        with aside():  # it makes its states
            optimizer.step()
        optimizer.step()
    with aside():
        average, current = ([randn(numel) for _ in parameters] for _ in range(2))
    torch._foreach_lerp_(average, current, 0.01)
    torch._foreach_copy_(average, current)
    torch._foreach_sign_(average)
    torch._foreach_clamp_max_(average, 1.0)
    torch._foreach_clamp_min_(average, -1.0)


def cells() -> list[Workload]:
    """Single steps of recurrent layers in float16."""
    kinds: tuple[Callable[..., nn.Module], ...] = (nn.LSTMCell, nn.GRUCell)
    return [
        partial(cell, make, batch, hidden, FP16)
        for make, batch, hidden in itertools.product(kinds, (32, 256), (256, 1024))
    ]


def functions() -> list[Workload]:
    cases: list[Workload] = []
    for dtype in (FP32, BF16):
        for rows, columns in ((64, 256), (512, 512), (2048, 1024), (8192, 2048), (16384, 4096)):
            cases.append(partial(curves, rows, columns, dtype))
        cases += [partial(losses, *size, dtype) for size in ((512, 128), (4096, 1000), (2048, 32000), (65536, 64))]
        for size in ((16, 32, 28), (32, 64, 56), (16, 256, 64), (32, 64, 160)):
            cases += [partial(padded, *size, dtype), *(partial(pooled, *size, dtype, nhwc) for nhwc in (False, True))]
        cases += [partial(volumes, *size, dtype) for size in ((2, 16, 16), (2, 64, 32), (4, 32, 64))]
        cases += [
            partial(picked, *size, dtype) for size in ((8, 64, 64), (16, 512, 256), (4096, 32, 32), (65536, 24, 24))
        ]
        cases += [
            partial(ordered, *size, dtype) for size in ((16, 64, 64), (32, 512, 128), (256, 1024, 64), (64, 256, 2048))
        ]
    cases += [partial(unfolded, *size, FP32) for size in ((8, 32, 28), (16, 64, 56), (4, 128, 128))]
    cases += [partial(casts, *size) for size in ((64, 256), (512, 512), (2048, 1024), (8192, 2048))]
    for size, dtype in itertools.product(
        ((32, 48, 256), (128, 96, 512), (64, 32, 128), (16, 200, 768)), (FP32, BF16, FP16)
    ):
        cases.append(partial(vectors, *size, dtype))
    cases += [partial(connectionist, *size) for size in ((8, 100, 32, 20), (16, 400, 64, 40), (32, 800, 1000, 60))]
    cases += [partial(factors, *size) for size in ((8, 8), (64, 16), (96, 32), (8, 128))]
    cases += [partial(updates, *size) for size in ((50, 2**10), (400, 2**10), (50, 2**16), (100, 2**20), (8, 2**24))]
    return [*cases, *cells()]
