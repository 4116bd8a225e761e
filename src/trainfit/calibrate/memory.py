"""Workloads whose time is moving bytes: pointwise ops, copies, reductions, norms, losses, lookups, optimizers.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. Sizes go from what fits a cache line
to what fills caches many times over; layouts are those that models make (contiguous, broadcast, heads transposed).
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, randn

NUMELS = tuple(2**power for power in (8, 12, 14, 16, 18, 20, 21, 22, 23, 24, 25, 26, 28))


def contiguous(numel: int, dtype: torch.dtype) -> None:
    """Pointwise ops of one, two and three inputs on flat tensors."""
    x, y = randn(numel, dtype=dtype), randn(numel, dtype=dtype)
    other = FP32 if dtype is not FP32 else BF16
    torch.add(x, y), torch.mul(x, y), torch.add(x, 1.5), x.mul_(1.0), x.add_(y), x + y.to(other)
    x.to(other), x.clone(), x.neg(), x.pow(2), x.rsqrt(), x.cos(), x.exp(), torch.zeros_like(x), x.fill_(1.0)
    y.copy_(x), x.mul_(x > 0), torch.where(x > 0, x, y), x.masked_fill(y > 0, 0.0), torch.maximum(x, y), x.div(y)


def activations(numel: int, dtype: torch.dtype) -> None:
    """Activation functions and dropout, forward and backward."""
    for function in (
        F.gelu,
        partial(F.gelu, approximate="tanh"),
        F.silu,
        F.relu,
        torch.tanh,
        torch.sigmoid,
        F.leaky_relu,
        F.hardswish,
        partial(F.dropout, p=0.1),
    ):
        x = randn(numel, dtype=dtype).requires_grad_()
        function(x).backward(torch.ones_like(x))


def broadcast(rows: int, columns: int, dtype: torch.dtype) -> None:
    """One operand smaller than the other, as biases, scales and per-row factors are."""
    x = randn(rows, columns, dtype=dtype)
    row, column = randn(columns, dtype=dtype), randn(rows, 1, dtype=dtype)
    x + row, x * row, x * column, row * (x * column.float()), x.add_(row), column.expand(rows, columns).clone()
    column.expand(rows, columns).div(columns), x - column


def heads_transposed(batch: int, seq: int, heads: int, dim: int, dtype: torch.dtype) -> None:
    """Rotary embeddings and head layouts: inputs whose strides are not in the order of the output's."""
    x = randn(batch, seq, heads, dim, dtype=dtype).transpose(1, 2)
    y = randn(batch, heads, seq, dim, dtype=dtype)
    cos = randn(batch, 1, seq, dim, dtype=dtype)
    first, second = x[..., : dim // 2], x[..., dim // 2 :]
    (
        x * cos,
        y * cos,
        x + y,
        torch.cat((-second, first), dim=-1),
        x.contiguous(),
        y.transpose(1, 2).contiguous(),
        x.neg(),
    )
    torch.cat((y, y.clone()), dim=-1), x.float() * cos.float(), x.reshape(batch, heads, seq * dim), x.to(FP32)
    full = torch.zeros_like(y)
    full[..., : dim // 2].copy_(first), torch.ops.aten.slice_backward(first.contiguous(), y.shape, 3, 0, dim // 2, 1)
    y.transpose(2, 3).contiguous(), first.clone(), torch.ops.aten.slice_backward(second, y.shape, 3, dim // 2, dim, 1)
    (
        x.add_(y.transpose(1, 2).transpose(1, 2)),
        y.add_(x),
        torch.ops.aten.slice_backward(first, y.shape, 3, 0, dim // 2, 1),
    )
    keys = randn(batch, seq, heads, dim, dtype=dtype).transpose(1, 2)[:, :, None]
    keys.expand(batch, heads, 4, seq, dim).reshape(batch, 4 * heads, seq, dim), keys.expand(-1, -1, 4, -1, -1).sum(2)


def matrix_transposed(rows: int, columns: int, dtype: torch.dtype) -> None:
    x, y = randn(rows, columns, dtype=dtype), randn(columns, rows, dtype=dtype)
    x.t().contiguous(), x + y.t(), x * y.t(), x.t().to(FP32), x.t().add(1.0)


def pieces(rows: int, columns: int, dtype: torch.dtype) -> None:
    """Splitting, joining, indexing."""
    x, y, z = (randn(rows, columns, dtype=dtype) for _ in range(3))
    index = torch.randint(rows, (rows,), device="cuda")
    torch.cat((x, y)), torch.cat((x, y, z), dim=1), x.chunk(2, dim=-1)[0].contiguous(), torch.stack((x, y))
    x[index], x.index_select(0, index), x.index_put((index,), y, accumulate=True), x.index_add(0, index, y)
    x.index_put((index,), y), torch.zeros_like(x).index_copy_(0, index, y)
    per_element = torch.randint(columns, (rows, columns), device="cuda")
    x.gather(1, per_element), x.scatter_add(1, per_element, y), x.scatter(1, per_element, y), F.pad(x, (1, 1))
    x.roll(3, 0), x.flip(0), x.tril(), x.repeat(2, 1)


def reductions(rows: int, columns: int, dtype: torch.dtype) -> None:
    x = randn(rows, columns, dtype=dtype)
    x.sum(0), x.sum(1), x.sum(), x.mean(-1, keepdim=True), x.amax(-1), x.sum(0, keepdim=True), x.mean()
    (
        x.view(8, -1, columns).sum((0, 1)),
        x.var(-1),
        torch.linalg.vector_norm(x),
        x.argmax(-1),
        (x > 0).any(),
        (x > 0).sum(),
    )
    if dtype is not FP32:
        x.sum(1, dtype=FP32), x.sum(0, dtype=FP32)


def factored(rows: int, columns: int, dtype: torch.dtype) -> None:
    """A matrix by the norms of its rows and columns, as optimizers that save memory keep it."""
    x = randn(rows, columns, dtype=dtype)
    down, across = torch.linalg.vector_norm(x, dim=0, keepdim=True), torch.linalg.vector_norm(x, dim=1, keepdim=True)
    across @ down
    x.var(0), x.amax(0), x.mean(0)


def head_reductions(batch: int, heads: int, seq: int, dim: int, dtype: torch.dtype) -> None:
    x = randn(batch, heads, seq, dim, dtype=dtype)
    x.sum((0, 2, 3)), x.sum((0, 2)), x.sum(0), x.sum((0, 1)), x.sum(2), x.mean((2, 3)), x.sum((0, 1, 2))


def softmaxes(rows: int, columns: int, dtype: torch.dtype) -> None:
    for function in (torch.softmax, torch.log_softmax):
        x = randn(rows, columns, dtype=dtype).requires_grad_()
        out = function(x, -1)
        out.backward(torch.randn_like(out))
    if dtype is not FP32:
        x = randn(rows, columns, dtype=dtype).requires_grad_()
        out = torch.softmax(x, -1, dtype=FP32)
        out.backward(torch.randn_like(out))
    torch.ops.aten._safe_softmax(randn(rows, columns, dtype=dtype), -1)


def cross_entropy(rows: int, classes: int, dtype: torch.dtype) -> None:
    logits = randn(rows, classes, dtype=dtype).requires_grad_()
    F.cross_entropy(logits.float(), torch.randint(classes, (rows,), device="cuda")).backward()


def losses(numel: int, dtype: torch.dtype) -> None:
    x, y = randn(numel, dtype=dtype).requires_grad_(), torch.rand(numel, device="cuda", dtype=dtype)
    F.mse_loss(x, y).backward()
    F.smooth_l1_loss(x, y).backward()
    F.binary_cross_entropy_with_logits(x, y).backward()


def norms(rows: int, columns: int, dtype: torch.dtype) -> None:
    """Layer and RMS norm, with a weight."""
    for layer in (nn.LayerNorm(columns, device="cuda", dtype=dtype), nn.RMSNorm(columns, device="cuda", dtype=dtype)):
        x = randn(rows, columns, dtype=dtype).requires_grad_()
        out = layer(x)
        out.backward(torch.randn_like(out))


def image_norms(batch: int, channels: int, size: int, dtype: torch.dtype, nhwc: bool) -> None:
    """Batch and group norm (batch norm keeps fp32 weights), pooling, resizing."""
    memory_format = torch.channels_last if nhwc else torch.contiguous_format
    for layer in (
        nn.BatchNorm2d(channels, device="cuda"),
        nn.GroupNorm(32, channels, device="cuda", dtype=dtype),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
    ):
        x = randn(batch, channels, size, size, dtype=dtype).contiguous(memory_format=memory_format).requires_grad_()
        out = layer(x)
        out.backward(torch.randn_like(out))
        out + torch.randn_like(out)
    x = randn(batch, channels, size, size, dtype=dtype).contiguous(memory_format=memory_format)
    (
        x + randn(channels, dtype=dtype).view(1, -1, 1, 1),
        x * randn(batch, channels, 1, 1, dtype=dtype),
        F.silu(x),
        x.relu_(),
    )
    (
        x.permute(0, 2, 3, 1).contiguous(),
        x.flatten(2).transpose(1, 2).contiguous(),
        torch.cat((x, x.clone()), 1),
        x.sum((0, 2, 3)),
    )


def signal_norms(batch: int, channels: int, length: int, dtype: torch.dtype) -> None:
    """Batch norm and pooling of one-dimensional signals."""
    for layer in (nn.BatchNorm1d(channels, device="cuda"), nn.MaxPool1d(2), nn.AvgPool1d(2)):
        x = randn(batch, channels, length, dtype=dtype).requires_grad_()
        out = layer(x)
        out.backward(torch.randn_like(out))


def lookups(tokens: int, vocabulary: int, width: int, dtype: torch.dtype) -> None:
    """Embedding and its gradient, for random tokens and for positions that occur once."""
    table = randn(vocabulary, width, dtype=dtype).requires_grad_()
    ids = torch.randint(vocabulary, (8, tokens // 8), device="cuda")
    out = F.embedding(ids, table)
    out.backward(torch.randn_like(out))
    padded = F.embedding(ids, table, padding_idx=0)
    padded.backward(torch.randn_like(padded))


def orders(rows: int, columns: int) -> None:
    x = randn(rows, columns, dtype=FP32)
    x.sort(-1), x.topk(min(2, columns), -1), x.cumsum(-1), x.argsort(), torch.arange(columns, device="cuda")
    integers = torch.randint(64, (rows * columns,), device="cuda")
    integers.sort(), integers.cumsum(0), integers.eq(3), torch.bincount(integers), F.one_hot(integers % 8, 8)
    integers.float().histc(8, 0, 8)


def optimizers(num_tensors: int, numel: int, dtype: torch.dtype) -> None:
    """One step of each optimizer, clipping, and the scaler's check, on equal tensors."""
    parameters = [nn.Parameter(randn(numel, dtype=dtype)) for _ in range(num_tensors)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    for optimizer in (
        torch.optim.AdamW(parameters),
        torch.optim.AdamW(parameters, fused=True),
        torch.optim.Adam(parameters, weight_decay=0.1),
        torch.optim.SGD(parameters, momentum=0.9, weight_decay=0.1),
    ):
        for _ in range(2):
            optimizer.step()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    torch._foreach_zero_(gradients)
    if dtype is FP32:
        found, scale = torch.zeros((), device="cuda"), torch.ones((), device="cuda")
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)


def lone_optimizer(numel: int, dtype: torch.dtype) -> None:
    parameter = nn.Parameter(randn(numel, dtype=dtype))
    parameter.grad = torch.ones_like(parameter)
    for optimizer in (torch.optim.AdamW([parameter], foreach=False), torch.optim.Adafactor([parameter])):
        for _ in range(2):
            optimizer.step()


def oddments(rows: int, columns: int) -> None:
    """Complex rotary products, weight norm, losses per pixel, masks."""
    x = randn(rows, columns, dtype=FP32)
    z = torch.view_as_complex(x.view(rows, -1, 2))
    z * z[:1], z * z.clone(), (x > 0).bitwise_not(), x.masked_fill_(x > 1e9, 0.0), x.sin(), x.clamp(0.0, 1.0), x.ne(0)
    direction, length = (
        x.clone().view(rows, -1, 8).requires_grad_(),
        torch.ones(1, 1, 8, device="cuda", requires_grad=True),
    )
    torch._weight_norm(direction, length, 2).backward(torch.ones_like(direction))
    logits = randn(4, 32, rows, columns // 8, dtype=FP32).requires_grad_()
    F.cross_entropy(logits, torch.randint(32, (4, rows, columns // 8), device="cuda")).backward()


def random_numbers(numel: int) -> None:
    x = randn(numel, dtype=FP32)
    x.uniform_(), x.normal_(), torch.rand_like(x), x.bernoulli_(0.9), torch.empty_like(x, dtype=BF16).bernoulli_(0.9)


def pointwise() -> list[Workload]:
    cases: list[Workload] = []
    for numel, dtype in itertools.product(NUMELS, (BF16, FP32)):
        cases += [partial(contiguous, numel, dtype), partial(activations, numel, dtype)]
    cases += [partial(contiguous, 2**power, FP16) for power in (16, 22, 26)]
    cases += [partial(activations, 2**power, FP16) for power in (16, 22, 26)]
    cases += [partial(losses, numel, FP32) for numel in NUMELS[2::2]]
    cases += [partial(oddments, rows, columns) for rows, columns in ((128, 256), (1024, 1024), (8192, 2048))]
    cases += [partial(random_numbers, numel) for numel in NUMELS[2::2]]
    for (rows, columns), dtype in itertools.product(
        ((64, 64), (512, 768), (2048, 1024), (8192, 1024), (8192, 4096), (16384, 4096), (512, 50257)), (BF16, FP32)
    ):
        cases.append(partial(broadcast, rows, columns, dtype))
    return cases


def layouts() -> list[Workload]:
    cases: list[Workload] = []
    for shape, dtype in itertools.product(
        ((1, 128, 8, 64), (2, 512, 12, 64), (4, 1024, 16, 64), (4, 2048, 32, 64), (4, 2048, 8, 64), (2, 4096, 32, 128),
         (8, 2048, 16, 128), (2, 2048, 32, 80), (8, 512, 12, 32)),
        (BF16, FP32),
    ):  # fmt: skip
        cases.append(partial(heads_transposed, *shape, dtype))
    sizes = ((128, 128), (1024, 768), (4096, 1024), (8192, 4096), (32768, 2048))
    for (rows, columns), dtype in itertools.product(sizes, (BF16, FP32)):
        cases += [partial(matrix_transposed, rows, columns, dtype), partial(pieces, rows, columns, dtype)]
    return cases


def rowwise() -> list[Workload]:
    """Reductions, norms, softmax and losses over rows of many lengths."""
    cases: list[Workload] = []
    rows_by_columns = [
        *itertools.product((512, 4096, 16384, 65536), (64, 256, 768, 1024, 2048, 4096)),
        (128, 128), (1024, 8192), (8192, 8192), (4096, 16384), (262144, 64), (1048576, 32), (98304, 512), (200704, 96),
    ]  # fmt: skip
    for (rows, columns), dtype in itertools.product(rows_by_columns, (BF16, FP32)):
        cases += [partial(reductions, rows, columns, dtype), partial(norms, rows, columns, dtype)]
        cases.append(partial(softmaxes, rows, columns, dtype))
    for rows, classes in itertools.product((512, 2048, 8192), (1000, 10000, 30522, 50257, 128256)):
        cases.append(partial(cross_entropy, rows, classes, BF16))
    for shape, dtype in itertools.product(((8, 12, 512, 512), (16, 32, 1024, 64), (32, 64, 56, 56)), (BF16, FP32)):
        cases.append(partial(head_reductions, *shape, dtype))
    return cases


def matrices() -> list[Workload]:
    sizes = ((64, 64), (256, 768), (768, 768), (1024, 4096), (4096, 1024), (2048, 8192), (30522, 768), (768, 30522))
    return [
        partial(factored, rows, columns, dtype) for (rows, columns), dtype in itertools.product(sizes, (BF16, FP32))
    ]


def images() -> list[Workload]:
    shapes = (
        (32, 64, 112),
        (32, 64, 56),
        (32, 256, 56),
        (32, 512, 28),
        (32, 1024, 14),
        (64, 2048, 7),
        (4, 320, 64),
        (8, 128, 128),
    )
    return [
        partial(image_norms, *shape, dtype, nhwc)
        for shape, dtype, nhwc in itertools.product(shapes, (BF16, FP32), (False, True))
    ]


def signals() -> list[Workload]:
    shapes = ((16, 128, 1024), (16, 256, 4096), (8, 512, 16384), (32, 64, 32768))
    return [partial(signal_norms, *shape, dtype) for shape, dtype in itertools.product(shapes, (BF16, FP32))]


def tables() -> list[Workload]:
    cases: list[Workload] = []
    for tokens, (vocabulary, width), dtype in itertools.product(
        (512, 2048, 4096, 8192, 16384, 32768), ((512, 768), (30522, 768), (50257, 1024), (32000, 4096), (128256, 2048)),
        (BF16, FP32),
    ):  # fmt: skip
        cases.append(partial(lookups, tokens, vocabulary, width, dtype))
    sizes = ((1, 1024), (8, 1024), (8, 4096), (4096, 8), (1, 65536), (256, 4096), (4, 1048576))
    return cases + [partial(orders, rows, columns) for rows, columns in sizes]


def updates() -> list[Workload]:
    sizes = (
        (1, 2**10),
        (50, 2**10),
        (400, 2**10),
        (50, 2**16),
        (400, 2**16),
        (100, 2**20),
        (200, 2**20),
        (8, 2**24),
        (50, 2**23),
    )
    cases: list[Workload] = [
        partial(optimizers, count, numel, dtype) for count, numel in sizes for dtype in (FP32, BF16)
    ]
    return cases + [partial(lone_optimizer, numel, FP32) for numel in (2**12, 2**18, 2**22, 2**25)]
