"""A catalogue of what models do beyond the zoo: `families()` are names and workloads, each torch code on a GPU.

A workload runs something forward and, where it can be differentiated, backward, on tensors it makes; `sweep_prices`
times the ops inside. Sizes are ordinary ones: one that fits a cache and one that does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Workload = Callable[[], Any]
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
BOTH = (F32, BF16)
SMALL, LARGE = (16, 256, 512), (64, 1024, 1024)
"""Batch, tokens, width: 2 M and 67 M elements."""
IMAGES = ((16, 64, 56, 56), (64, 128, 112, 112))


def floats(*shape: int, dtype: torch.dtype = F32, grad: bool = True) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_(grad)


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, device="cuda")


def both_ways(function: Callable[..., Any], *inputs: Any) -> None:
    """Forward, and backward from the first result that can be."""
    found = function(*inputs)
    for out in found if isinstance(found, (tuple, list)) else (found,):
        if isinstance(out, Tensor) and out.requires_grad:
            gradient = torch.randn(out.shape, device="cuda", dtype=out.dtype)
            torch.autograd.backward([out], [gradient])
            return


def unary(function: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    both_ways(function, floats(*shape, dtype=dtype))


def binary(function: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    both_ways(function, floats(*shape, dtype=dtype), floats(*shape, dtype=dtype))


def image(function: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> None:
    x = floats(*shape, dtype=dtype, grad=False)
    both_ways(function, (x.to(memory_format=torch.channels_last) if last else x).requires_grad_())


def crossed(run: Callable[..., None], *choices: Iterable[Any]) -> Iterator[Workload]:
    return (partial(run, *chosen) for chosen in itertools.product(*choices))


def activations() -> Iterator[Workload]:
    plain = (
        F.mish, F.hardswish, F.hardsigmoid, F.softplus, F.logsigmoid, F.elu, F.celu, F.selu, F.relu6, F.softsign,
        F.tanhshrink, F.softshrink, F.glu, partial(F.gelu, approximate="tanh"),
        partial(F.leaky_relu, negative_slope=0.2),
        partial(F.rrelu, training=True), torch.erf, torch.expm1, torch.reciprocal, torch.abs, torch.square, torch.sin,
        torch.sigmoid, torch.exp2, partial(torch.pow, exponent=3), partial(torch.clamp, min=-1.0, max=1.0),
        partial(F.dropout, p=0.3), partial(F.alpha_dropout, p=0.1, training=True), partial(F.dropout1d, p=0.1),
        lambda x: x.abs().add(1).log(), lambda x: x.abs().add(1).log1p(), lambda x: x.abs().add(1).sqrt(),
        lambda x: F.prelu(x, torch.full((x.shape[1],), 0.2, device="cuda", dtype=x.dtype, requires_grad=True)),
        lambda x: x.nan_to_num(), lambda x: x.maximum(x.roll(1, -1)), lambda x: x.atan(), lambda x: x.float().half(),
    )  # fmt: skip
    yield from crossed(unary, plain, (SMALL, LARGE), BOTH)
    pairs = (
        torch.atan2, torch.logaddexp, torch.hypot, torch.fmod, lambda x, y: torch.lerp(x, y, 0.1),
        lambda x, y: torch.addcmul(x, x, y, value=0.5), lambda x, y: torch.addcdiv(x, x, y.abs() + 1),
        lambda x, y: torch.where(x > y, x, y), lambda x, y: x.masked_fill(y > 0, -1e4),
        lambda x, y: x.xlogy(y.abs() + 1),
        lambda x, y: x.copysign(y), lambda x, y: torch.complex(x.float(), y.float()).abs(),
    )  # fmt: skip
    yield from crossed(binary, pairs, (SMALL, LARGE), BOTH)


def reductions() -> Iterator[Workload]:
    functions = (torch.sum, torch.mean, torch.var, torch.std, torch.logsumexp, torch.amax, torch.argmax,
                 torch.softmax, torch.log_softmax, torch.cumsum, torch.logcumsumexp, torch.sort,
                 torch.argsort, torch.median, torch.cummax, torch.linalg.vector_norm, F.normalize, torch.max,
                 partial(torch.topk, k=8), partial(torch.norm, p=1), torch.nansum, torch.all)  # fmt: skip

    def along(function: Callable[..., Any], dim: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        both_ways(lambda x: function(x, dim=dim), floats(*shape, dtype=dtype))

    yield from crossed(along, functions, (1, 2), (SMALL, (32, 512, 1024)), BOTH)


def indexing() -> Iterator[Workload]:
    def rows(x: Tensor, dim: int) -> Tensor:
        return integers(x.shape[dim], x.shape[dim])

    def spread(x: Tensor, dim: int) -> Tensor:
        return rows(x, dim).view(*(-1 if place == dim else 1 for place in range(3))).expand(x.shape)

    functions = (
        lambda x: x[rows(x, 0)], lambda x: x[:, rows(x, 1)], lambda x: x[..., rows(x, 2)],
        lambda x: x[torch.arange(x.shape[0], device="cuda"), rows(x, 0) % x.shape[1]],
        lambda x: x[:, rows(x, 1), rows(x, 1) % x.shape[2]], lambda x: x[:, integers(x.shape[1], 64)],
        lambda x: x[:, ::2], lambda x: x[:, 1:, :-1], lambda x: x[:, 0], lambda x: x[..., :3],
        lambda x: x.unfold(1, 16, 8),
        lambda x: x.index_select(1, rows(x, 1)), lambda x: x.index_select(0, rows(x, 0)),
        lambda x: x.index_add(1, rows(x, 1), x), lambda x: x.index_copy(1, rows(x, 1), x * 2),
        lambda x: x.index_fill(1, integers(x.shape[1], 32), 0.0), lambda x: x.index_put((rows(x, 0),), x * 2),
        lambda x: x.index_put((rows(x, 0),), x * 2, accumulate=True), lambda x: x.gather(1, spread(x, 1)),
        lambda x: x.gather(2, integers(x.shape[2], *x.shape)), lambda x: x.gather(1, spread(x, 1)[:, :32]),
        lambda x: torch.zeros_like(x).scatter(1, spread(x, 1), x),
        lambda x: torch.zeros_like(x).scatter_add(1, spread(x, 1), x),
        lambda x: torch.zeros_like(x).scatter_add(2, integers(x.shape[2], *x.shape), x),
        lambda x: torch.zeros_like(x).scatter_reduce(1, spread(x, 1), x, "amax"),
        lambda x: torch.zeros_like(x).scatter_reduce(1, spread(x, 1), x, "mean"), lambda x: x.roll(3, 1),
        lambda x: x.roll((1, 2), (1, 2)), lambda x: x.flip(1), lambda x: x.flip(2), lambda x: x.flip((1, 2)),
        torch.tril,
        torch.triu, lambda x: torch.cat((x, x * 2), 0), lambda x: torch.cat((x, x * 2), 1),
        lambda x: torch.cat((x, x * 2), 2),
        lambda x: torch.cat((x[:, :1], x), 1), lambda x: torch.cat(x.unbind(1)[:16], -1),
        lambda x: torch.stack((x, x * 2), 1),
        lambda x: torch.stack((x, x * 2), -1), lambda x: torch.stack(x.unbind(1), 1), lambda x: x.repeat(1, 2, 1),
        lambda x: x.repeat_interleave(2, 1), lambda x: x.repeat_interleave(2, 2),
        lambda x: x.transpose(1, 2).contiguous(),
        lambda x: x.permute(2, 0, 1).contiguous(), lambda x: x.diagonal(0, 1, 2).contiguous(),
        lambda x: torch.diag_embed(x[:, :, 0]), lambda x: x.movedim(0, 2).contiguous(),
        lambda x: x.transpose(0, 1).contiguous(),
        lambda x: F.pad(x, (0, 0, 1, 0)), lambda x: F.pad(x, (3, 3), mode="reflect"),
        lambda x: F.pad(x, (3, 3), mode="replicate"),
        lambda x: F.pad(x, (3, 3), mode="circular"),
        lambda x: x.view(x.shape[0], -1, 8, 8).transpose(2, 3).reshape(x.shape),
        lambda x: x.masked_select(x > 0), lambda x: x[x > 0], lambda x: x.take_along_dim(spread(x, 1), 1),
        lambda x: torch.searchsorted(torch.linspace(-3, 3, 64, device="cuda"), x.detach().float()),
        lambda x: torch.bucketize(x.detach().float(), torch.linspace(-3, 3, 64, device="cuda")),
        lambda x: torch.bincount(integers(64, x.numel())), lambda x: F.one_hot(integers(32, *x.shape[:2]), 32).float(),
        lambda x: torch.nonzero(x.detach() > 1), lambda x: torch.unique(integers(64, x.numel())),
        lambda x: torch.histc(x.detach().float(), 64), lambda x: torch.isin(integers(64, *x.shape), integers(64, 8)),
        lambda x: torch.bernoulli(x.detach().float().sigmoid()),
        lambda x: torch.multinomial(x[0].detach().float().softmax(-1), 4),
        lambda x: torch.rand_like(x), lambda x: torch.randint_like(x, 5), lambda x: torch.kthvalue(x, 3, -1),
    )  # fmt: skip
    yield from crossed(unary, functions, (SMALL, LARGE), (F32,))
    yield from crossed(unary, functions[:48], (LARGE,), (BF16,))


def lookups() -> Iterator[Workload]:
    def bag(mode: str, bags: int, items: int, rows: int, width: int) -> None:
        both_ways(lambda table: F.embedding_bag(integers(rows, bags, items), table, mode=mode), floats(rows, width))

    def table(rows: int, width: int, tokens: int, dtype: torch.dtype) -> None:
        both_ways(lambda table: F.embedding(integers(rows, tokens), table), floats(rows, width, dtype=dtype))

    def pairs(batch: int, fields: int, dtype: torch.dtype) -> None:
        first, second = torch.triu_indices(fields, fields, 1, device="cuda")
        both_ways(lambda x: x[:, first, second], floats(batch, fields, fields, dtype=dtype))

    yield from crossed(bag, ("sum", "mean", "max"), (8192, 65536), (2, 20), (10_000, 2_000_000), (32, 128))
    yield from crossed(table, (100, 8000, 262144), (16, 64, 512), (10_000, 200_000), BOTH)
    yield from crossed(pairs, (2048, 65536, 262144), (8, 27), BOTH)


def resampling() -> Iterator[Workload]:
    functions = (
        partial(F.max_pool2d, kernel_size=2), partial(F.max_pool2d, kernel_size=3, stride=1, padding=1),
        partial(F.max_pool2d, kernel_size=5, stride=1, padding=2),
        partial(F.avg_pool2d, kernel_size=3, stride=1, padding=1),
        partial(F.avg_pool2d, kernel_size=2), partial(F.adaptive_avg_pool2d, output_size=7),
        partial(F.adaptive_avg_pool2d, output_size=1), partial(F.adaptive_max_pool2d, output_size=7),
        partial(F.lp_pool2d, norm_type=2, kernel_size=2), partial(F.interpolate, scale_factor=2, mode="bicubic"),
        partial(F.interpolate, scale_factor=0.5, mode="bilinear"),
        partial(F.interpolate, scale_factor=0.5, mode="area"),
        partial(F.interpolate, scale_factor=2, mode="bilinear", align_corners=True),
        partial(F.interpolate, scale_factor=0.5, mode="bilinear", antialias=True),
        partial(F.interpolate, scale_factor=2, mode="nearest-exact"), partial(F.pixel_shuffle, upscale_factor=2),
        partial(F.pixel_unshuffle, downscale_factor=2), partial(F.channel_shuffle, groups=4),
        partial(F.pad, pad=(1, 1, 1, 1)), partial(F.pad, pad=(1, 1, 1, 1), mode="reflect"),
        partial(F.pad, pad=(2, 2, 2, 2), mode="replicate"), partial(F.pad, pad=(1, 1, 1, 1), mode="circular"),
        partial(F.dropout2d, p=0.1), lambda x: x.mean((2, 3)), lambda x: x.amax((2, 3)),
        lambda x: x.flatten(2).transpose(1, 2).clone(),
        lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)), lambda x: x.std((2, 3)), lambda x: x.softmax(1),
        lambda x: x.mean(1, True),
        lambda x: x.sum((0, 2, 3)), lambda x: F.normalize(x, dim=1), lambda x: torch.cat((x, x), 1),
        lambda x: x.chunk(2, 1)[0].clone(),
    )  # fmt: skip
    yield from crossed(image, functions, IMAGES, BOTH, (False, True))
    unfolded = (
        lambda x: F.unfold(x, 3, padding=1), lambda x: F.unfold(x, 4, stride=4),
        lambda x: F.fold(F.unfold(x, 4, stride=2, padding=1), x.shape[2:], 4, stride=2, padding=1),
        lambda x: F.grid_sample(x, floats(x.shape[0], *x.shape[2:], 2, dtype=x.dtype), align_corners=False),
        lambda x: F.affine_grid(floats(x.shape[0], 2, 3), list(x.shape), align_corners=False),
        lambda x: F.local_response_norm(x, 5), lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).contiguous(),
    )  # fmt: skip
    yield from crossed(image, unfolded, ((8, 64, 56, 56), (16, 128, 112, 112)), (F32,), (False,))
    volumes = (
        partial(F.max_pool3d, kernel_size=2), partial(F.avg_pool3d, kernel_size=2),
        partial(F.interpolate, scale_factor=2, mode="trilinear"),
        partial(F.interpolate, scale_factor=2), partial(F.adaptive_avg_pool3d, output_size=1),
        partial(F.dropout3d, p=0.1),
    )  # fmt: skip
    yield from crossed(unary, volumes, ((2, 16, 16, 32, 32), (4, 64, 32, 56, 56)), BOTH)
    lines = (
        partial(F.max_pool1d, kernel_size=4), partial(F.avg_pool1d, kernel_size=4),
        partial(F.interpolate, scale_factor=4),
        partial(F.interpolate, scale_factor=2, mode="linear"), partial(F.adaptive_avg_pool1d, output_size=16),
        partial(F.adaptive_max_pool1d, output_size=1),
    )  # fmt: skip
    yield from crossed(unary, lines, (SMALL, (16, 256, 8192)), BOTH)


def norms() -> Iterator[Workload]:
    def group(groups: int, shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> None:
        weight, bias = floats(shape[1], dtype=dtype), floats(shape[1], dtype=dtype)
        image(lambda x: F.group_norm(x, groups, weight, bias), shape, dtype, last)

    yield from crossed(
        group,
        (1, 8, 32),
        ((16, 64, 56, 56), (64, 128, 56, 56), (8, 512, 16, 16), (4, 256, 128, 128)),
        BOTH,
        (False, True),
    )

    def batch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
        mean, spread, weight, bias = (torch.ones(shape[1], device="cuda") for _ in range(4))
        weight.requires_grad_(), bias.requires_grad_()
        both_ways(lambda x: F.batch_norm(x, mean, spread, weight, bias, training=True), floats(*shape, dtype=dtype))
        both_ways(lambda x: F.batch_norm(x, mean, spread, weight, bias), floats(*shape, dtype=dtype))
        both_ways(lambda x: F.instance_norm(x, weight=weight, bias=bias), floats(*shape)) if len(shape) > 2 else None

    shapes = (
        (256, 512),
        (16384, 256),
        (16, 256, 1024),
        (16, 64, 56, 56),
        (64, 128, 56, 56),
        (2, 32, 16, 64, 64),
        (4, 64, 16, 56, 56),
    )
    yield from crossed(batch, shapes, BOTH)

    def rows(shape: tuple[int, ...], over: int, dtype: torch.dtype, affine: bool) -> None:
        inner = shape[-over:]
        weight = floats(*inner, dtype=dtype) if affine else None
        both_ways(lambda x: F.layer_norm(x, inner, weight, weight), floats(*shape, dtype=dtype))
        both_ways(lambda x: F.rms_norm(x, inner, weight), floats(*shape, dtype=dtype))
        both_ways(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), floats(*shape, dtype=dtype))

    shapes = ((16, 256, 512), (64, 1024, 1024), (32, 64, 32, 32), (8, 12, 512, 64), (4, 2048, 5120))
    yield from crossed(rows, shapes, (1, 2), BOTH, (True, False))


def losses() -> Iterator[Workload]:
    pairs = (
        F.l1_loss, F.mse_loss, F.huber_loss, F.smooth_l1_loss, lambda x, y: F.mse_loss(x, y, reduction="none"),
        lambda x, y: F.binary_cross_entropy(x.float().sigmoid(), y.detach().float().sigmoid()),
        lambda x, y: F.binary_cross_entropy_with_logits(x, (y > 0).to(x.dtype)),
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        lambda x, y: F.kl_div(x.log_softmax(-1), y.log_softmax(-1), log_target=True, reduction="sum"),
        lambda x, y: F.cosine_embedding_loss(x[0], y[0], torch.ones(x.shape[1], device="cuda")),
        lambda x, y: F.cosine_similarity(x, y, dim=-1), lambda x, y: F.triplet_margin_loss(x, y, y.roll(1, 0)),
        lambda x, y: F.margin_ranking_loss(x, y, torch.ones_like(x)),
        lambda x, y: F.soft_margin_loss(x, (y > 0).to(x.dtype) * 2 - 1),
        lambda x, y: F.hinge_embedding_loss(x, (y > 0).to(x.dtype) * 2 - 1), F.poisson_nll_loss,
        lambda x, y: F.gaussian_nll_loss(x, y, y.abs() + 0.1), lambda x, y: F.pairwise_distance(x, y),
        lambda x, y: F.cross_entropy(x.float().flatten(0, 1), y.softmax(-1).float().flatten(0, 1)),
    )  # fmt: skip
    yield from crossed(binary, pairs, (SMALL, LARGE), BOTH)
    options: tuple[dict[str, Any], ...] = ({}, {"label_smoothing": 0.1}, {"ignore_index": 0}, {"reduction": "none"})

    def classes(option: dict[str, Any], weighted: bool, rows: int, count: int, dtype: torch.dtype) -> None:
        weight = torch.ones(count, device="cuda", dtype=dtype) if weighted else None
        both_ways(
            lambda x: F.cross_entropy(x, integers(count, rows), weight, **option), floats(rows, count, dtype=dtype)
        )

    yield from crossed(classes, options, (False, True), (256, 32768), (10, 1000, 32000), BOTH)

    def pixels(count: int, size: int) -> None:
        both_ways(lambda x: F.cross_entropy(x, integers(count, 8, size, size)), floats(8, count, size, size))

    yield from crossed(pixels, (2, 19, 150), (64, 256))

    def connectionist(batch: int, length: int, count: int, targets: int) -> None:
        labels = integers(count - 1, batch, targets) + 1
        lengths = [length] * batch, [targets] * batch
        both_ways(lambda x: torch.ctc_loss(x.log_softmax(-1), labels, *lengths), floats(length, batch, count))

    yield from crossed(connectionist, (8, 32), (200, 800), (32, 1000), (30,))


def families() -> dict[str, list[Workload]]:
    return {
        function.__name__: list(function())
        for function in (activations, reductions, indexing, lookups, resampling, norms, losses)
    }
