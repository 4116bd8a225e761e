"""Workloads whose sizes, types and layouts a seed draws: what moves bytes, of every rank and along every dimension.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. Grids leave out what lies between
their points and whatever their author did not think of; a draw does not, and another seed's draw, which no table was
made of, says how well prices carry over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log2, prod
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, randn

SEED = 11
TYPES = (FP32, BF16, BF16, FP32, FP16)
Shape = tuple[int, ...]


class Draw(Random):
    """Sizes as models have them: every other one is a power of two or half as much again, a quarter is a multiple of
    eight, the rest is anything. All are spread evenly over their logarithms."""

    def size(self, low: float, high: float) -> int:
        value = 2 ** self.uniform(log2(low), log2(high))
        kind = self.random()
        if kind < 0.5:
            step = 2 ** (int(log2(value)) - 1)
            value = round(value / step) * step
        elif kind < 0.75:
            value = max(round(value / 8), 1) * 8
        return max(round(value), 1)

    def shape(self, rank: int, low: float, high: float) -> Shape:
        """So many dimensions, and between `low` and `high` elements, about."""
        cuts = sorted(self.random() for _ in range(rank - 1))
        doublings = self.uniform(log2(low), log2(high))
        shares = [end - start for start, end in zip((0.0, *cuts), (*cuts, 1.0), strict=True)]
        return tuple(self.size(2 ** (0.9 * share * doublings), 2 ** (1.1 * share * doublings)) for share in shares)

    def order(self, rank: int) -> Shape:
        """In which order dimensions lie in memory: as they stand, the last two or any two turned, the second last."""
        dims = list(range(rank))
        kind = self.random()
        if rank < 2 or kind < 0.4:
            return tuple(dims)
        if kind < 0.6:
            return (*dims[:-2], dims[-1], dims[-2])
        if kind < 0.8:
            first, second = self.sample(dims, 2)
            dims[first], dims[second] = dims[second], dims[first]
            return tuple(dims)
        return (dims[0], *dims[2:], dims[1])

    def some(self, rank: int) -> Shape:
        """Some dimensions: one, or several."""
        count = 1 if self.random() < 0.6 else self.randint(1, rank)
        return tuple(sorted(self.sample(range(rank), count)))


def laid_out(shape: Shape, order: Shape, dtype: torch.dtype) -> Tensor:
    """Values of that shape, whose dimensions lie in memory in that order."""
    places = [order.index(dim) for dim in range(len(shape))]
    lying = tuple(shape[dim] for dim in order)
    if dtype.is_floating_point:
        return randn(*lying, dtype=dtype).permute(places)
    return torch.randint(2, lying, device="cuda").to(dtype).permute(places)


def differentiate(out: Tensor) -> None:
    out.backward(randn(*out.shape, dtype=out.dtype))


REDUCTIONS: tuple[Callable[..., Any], ...] = (
    torch.mean, torch.amax, torch.var, torch.logsumexp, torch.std, torch.amin,
    lambda x, dim: torch.linalg.vector_norm(x, dim=dim), lambda x, dim: torch.argmax(x, dim[0]),
    lambda x, dim: torch.max(x, dim[0]), lambda x, dim: torch.prod(x, dim[0]),
    lambda x, dim: torch.any(x > 0, dim), lambda x, dim: torch.sum(x > 0, dim),
)  # fmt: skip


def reduced(shape: Shape, order: Shape, dims: Shape, function: int, dtype: torch.dtype) -> None:
    x = laid_out(shape, order, dtype)
    x.sum(dims, keepdim=True)
    REDUCTIONS[function](x, dims)


def reductions(draw: Draw) -> Workload:
    rank = draw.randint(2, 5)
    shape = draw.shape(rank, 2**17, 2**26)
    return partial(reduced, shape, draw.order(rank), draw.some(rank), draw.randrange(12), draw.choice(TYPES))


def tall(draw: Draw) -> Workload:
    """The sum of many rows, as of a bias's gradient."""
    rows, columns = draw.size(2**10, 2**20), draw.size(2, 4096)
    rows = min(rows, 2**28 // columns)
    return partial(reduced, (rows, columns), (0, 1), (0,), draw.randrange(12), draw.choice(TYPES))


def combined(
    shape: Shape, order: Shape, other: Shape, repeated: Shape, dtype: torch.dtype, second: torch.dtype
) -> None:
    """Of two tensors that lie otherwise, the second of which may be repeated along dimensions, and of three."""
    x = laid_out(shape, order, dtype)
    y = laid_out(tuple(1 if dim in repeated else size for dim, size in enumerate(shape)), other, second)
    x * y, torch.where(y > 0, x, 0.0), x.masked_fill(y > 0, 0)
    x.add_(y) if dtype == second else torch.where(y > 0, y, x)


def combinations(draw: Draw) -> Workload:
    rank = draw.randint(2, 5)
    shape = draw.shape(rank, 2**16, 2**25)
    kind = draw.random()
    order, other = draw.order(rank), draw.order(rank)
    repeated = () if kind < 0.4 else draw.some(rank)
    dtype = draw.choice((*TYPES, torch.int64, torch.float64, torch.uint8) if draw.random() < 0.3 else TYPES)
    second = draw.choice((FP32, BF16, torch.bool)) if draw.random() < 0.25 and dtype in TYPES else dtype
    return partial(combined, shape, order, other, repeated, dtype, second)


def copied(shape: Shape, order: Shape, to_order: Shape, cut: int, dtype: torch.dtype, to: torch.dtype) -> None:
    """To another order or type, of a part, into a part."""
    x, y = laid_out(shape, order, dtype), laid_out(shape, to_order, to)
    y.copy_(x), x.contiguous(), x.to(to)
    part = x.narrow(cut, 0, max(shape[cut] // 2, 1))
    part.clone(memory_format=torch.contiguous_format), y.narrow(cut, 0, part.shape[cut]).copy_(part), part * 2


def copies(draw: Draw) -> Workload:
    rank = draw.randint(2, 6)
    shape = draw.shape(rank, 2**16, 2**26)
    to_order = draw.order(rank) if draw.random() < 0.5 else tuple(range(rank))
    dtype = draw.choice(TYPES)
    to = dtype if draw.random() < 0.6 else draw.choice((FP32, BF16, FP16, torch.int64))
    return partial(copied, shape, draw.order(rank), to_order, draw.randrange(rank), dtype, to)


def joined(shape: Shape, order: Shape, dim: int, count: int, kind: str, dtype: torch.dtype) -> None:
    """Pieces that are whole, parts of a larger tensor, turned, or of two types."""
    if kind == "parts":
        wide = tuple(size * count if at == dim else size for at, size in enumerate(shape))
        pieces = list(laid_out(wide, order, dtype).chunk(count, dim))[::-1]
    else:
        plain = tuple(range(len(shape)))
        pieces = [laid_out(shape, order if kind == "turned" and i % 2 else plain, dtype) for i in range(count)]
    if kind == "types":
        pieces[0] = pieces[0].to(FP32 if dtype == BF16 else BF16)
    torch.cat(pieces, dim), torch.stack(pieces, dim)
    torch.stack(pieces, -1) if dim < len(shape) - 1 else torch.cat(pieces, 0)


def joins(draw: Draw) -> Workload:
    rank = draw.randint(2, 5)
    shape = draw.shape(rank, 2**14, 2**23)
    kind = draw.choice(("whole", "whole", "parts", "turned", "types"))
    order = draw.order(rank)
    return partial(joined, shape, order, draw.randrange(rank), draw.randint(2, 6), kind, draw.choice(TYPES))


def softened(shape: Shape, dim: int, dtype: torch.dtype) -> None:
    for function in (torch.softmax, torch.log_softmax):
        differentiate(function(randn(*shape, dtype=dtype).requires_grad_(), dim))


LONG_WALK = 2**16
"""Elements of a column that a thread walks down; longer ones take too long."""


def softmaxes(draw: Draw) -> Workload:
    rank = draw.randint(2, 4)
    dim = draw.randrange(rank) if draw.random() < 0.5 else rank - 1
    shape = draw.shape(rank, 2**16, 2**26)
    return partial(softened, shape, dim if shape[dim] < LONG_WALK else rank - 1, draw.choice(TYPES))


def normalized(shape: Shape, dims: int, dtype: torch.dtype, is_affine: bool) -> None:
    """Over the last dimensions, all of each row."""
    inner = shape[-dims:]
    weight, bias = (randn(*inner, dtype=dtype).requires_grad_() if is_affine else None for _ in range(2))
    differentiate(F.layer_norm(randn(*shape, dtype=dtype).requires_grad_(), inner, weight, bias))
    differentiate(F.rms_norm(randn(*shape, dtype=dtype).requires_grad_(), inner, weight))


def row_norms(draw: Draw) -> Workload:
    shape: Shape
    if draw.random() < 0.7:  # tokens by a width
        rows, width = draw.size(64, 2**18), draw.size(8, 8192)
        shape, dims = (min(rows, 2**26 // width), width), 1
    else:  # all channels and pixels
        shape, dims = draw.shape(draw.randint(3, 4), 2**17, 2**24), draw.randint(1, 2)
    return partial(normalized, shape, dims, draw.choice(TYPES), draw.random() < 0.8)


def ran(shape: Shape, dim: int, dtype: torch.dtype) -> None:
    """Sums and the like so far, and sorting."""
    x = randn(*shape, dtype=dtype)
    x.cumsum(dim), x.logcumsumexp(dim), x.cumprod(dim), x.cummax(dim), x.flip(dim), x.roll(1, dim)
    (x > 0).cumsum(dim)
    if x.numel() < 2**23:
        x.sort(dim), x.topk(min(8, shape[dim]), dim), x.median(dim)


def runs(draw: Draw) -> Workload:
    rank = draw.randint(2, 4)
    shape, dim = draw.shape(rank, 2**14, 2**23), draw.randrange(rank)
    return partial(ran, shape, dim if shape[dim] < LONG_WALK else rank - 1, draw.choice(TYPES))


def classified(rows: int, classes: int, option: dict[str, Any], dtype: torch.dtype) -> None:
    target = torch.randint(classes, (rows,), device="cuda")
    differentiate(F.cross_entropy(randn(rows, classes, dtype=dtype).requires_grad_(), target, **option))
    picture = randn(max(rows // 64, 1), classes, 64, dtype=dtype).requires_grad_()
    differentiate(F.cross_entropy(picture, torch.randint(classes, (picture.shape[0], 64), device="cuda"), **option))
    logits, truth = randn(rows, classes, dtype=dtype).requires_grad_(), randn(rows, classes, dtype=dtype)
    for loss in (F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits, F.l1_loss):
        differentiate(loss(logits, truth))
    differentiate(F.kl_div(logits.log_softmax(-1), truth.softmax(-1), reduction="batchmean"))
    F.one_hot(target, classes)


def losses(draw: Draw) -> Workload:
    classes = draw.size(2, 2**17)
    rows = draw.size(32, max(min(2**25 / classes, 2**18), 64))
    option = draw.choice(({}, {}, {"label_smoothing": 0.1}, {"reduction": "none"}))
    return partial(classified, rows, classes, option, draw.choice((FP32, FP32, BF16, FP16)))


def updated(shapes: tuple[Shape, ...], dtype: torch.dtype) -> None:
    """What optimizers do to lists of parameters, large ones and small ones in one."""
    made = [nn.Parameter(randn(*shape, dtype=dtype)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.ones_like(parameter)
    optim = torch.optim
    for optimizer in (optim.AdamW(made), optim.AdamW(made, fused=True), optim.SGD(made, momentum=0.9, nesterov=True)):
        optimizer.step(), optimizer.step()
    nn.utils.clip_grad_norm_(made, 1.0)
    gradients = [parameter.grad for parameter in made if parameter.grad is not None]
    torch._foreach_div_(gradients, 2.0), torch._foreach_lerp_(gradients, [one.detach() for one in made], 0.1)
    halves = [torch.empty_like(one, dtype=BF16 if dtype == FP32 else FP32) for one in gradients]
    torch._foreach_copy_(halves, gradients)


def updates(draw: Draw) -> Workload:
    width = draw.size(32, 2048)
    parts = ((width, width), (4 * width, width), (width,), (width,), (3 * width, width), (width, 1, 3, 3), (1,))
    blocks = max(min(draw.randint(1, 24), 2**26 // (8 * width**2)), 1)
    shapes = (*draw.sample(parts, draw.randint(2, 7)), (width,)) * blocks
    table = ((draw.size(100, max(2**26 / width, 200)), width),)
    return partial(updated, (*table, *shapes) if draw.random() < 0.5 else shapes, FP32 if draw.random() < 0.8 else BF16)


def connected(batch: int, length: int, classes: int, targets: int) -> None:
    """Sequences that are aligned with shorter ones."""
    logits = randn(length, batch, classes).requires_grad_()
    labels = torch.randint(1, classes, (batch, targets), device="cuda")
    torch.ctc_loss(logits.log_softmax(-1), labels, [length] * batch, [targets] * batch).sum().backward()


def alignments(draw: Draw) -> Workload:
    length = draw.size(50, 1500)
    return partial(connected, draw.size(2, 64), length, draw.size(16, 2048), draw.size(5, max(length / 3, 8)))


def bilinear(rows: int, left: int, right: int, width: int, dtype: torch.dtype) -> None:
    """A product of pairs with a weight of three dimensions."""
    x, y = randn(rows, left, dtype=dtype).requires_grad_(), randn(rows, right, dtype=dtype).requires_grad_()
    differentiate(F.bilinear(x, y, randn(width, left, right, dtype=dtype).requires_grad_()))


def bilinears(draw: Draw) -> Workload:
    sizes = draw.size(64, 2**14), draw.size(8, 128), draw.size(8, 128), draw.size(1, 64)
    return partial(bilinear, *(sizes if prod(sizes) < 2**30 else (sizes[0] // 16, *sizes[1:])), draw.choice(TYPES[:2]))


def distanced(batch: int, rows: int, columns: int, width: int, power: float, is_direct: bool) -> None:
    """Of all pairs of points, by products or one by one."""
    x, y = (randn(batch, count, width).requires_grad_() for count in (rows, columns))
    mode = "donot_use_mm_for_euclid_dist" if is_direct else "use_mm_for_euclid_dist_if_necessary"
    differentiate(torch.cdist(x, y, power, mode))
    if batch == 1:
        differentiate(F.pdist(x[0, : min(rows, 2048)], power))


def distances(draw: Draw) -> Workload:
    batch = 1 if draw.random() < 0.5 else draw.size(2, 64)
    rows, columns, width = draw.size(8, 4096), draw.size(8, 4096), draw.size(2, 256)
    columns = max(min(columns, 2**27 // (batch * rows * width)), 2)
    return partial(distanced, batch, rows, columns, width, draw.choice((1.0, 2.0, 2.0)), draw.random() < 0.6)


def multiplied(rows: int, columns: int, dtype: torch.dtype) -> None:
    """A matrix by a vector, vectors by each other, and what is added to."""
    x, left, right = randn(rows, columns, dtype=dtype), randn(rows, dtype=dtype), randn(columns, dtype=dtype)
    torch.mv(x, right), torch.mv(x.t(), left), torch.addmv(left, x, right), torch.outer(left, right)
    (
        torch.addr(x, left, right),
        torch.dot(x.flatten(), x.clone().flatten()),
        torch.linalg.cross(x[:, :3], x[:, :3].clone()),
    )


def vectors(draw: Draw) -> Workload:
    rows = draw.size(4, 2**17)
    return partial(multiplied, rows, draw.size(4, max(min(2**25 / rows, 2**17), 8)), draw.choice(TYPES))


Kinds = tuple[tuple[Callable[[Draw], Workload], int], ...]


def draws(kinds: Kinds, seed: int) -> list[Workload]:
    """So many of each kind, each kind by a seed of its own, so that none depends on how many there are of another."""
    return [make(draw) for make, count in kinds for draw in [Draw(f"{seed} {make.__name__}")] for _ in range(count)]


def drawn(seed: int = SEED) -> list[Workload]:
    """As many of each kind as it needs."""
    kinds: Kinds = (
        (reductions, 200), (tall, 35), (combinations, 130), (copies, 110), (joins, 60), (softmaxes, 60),
        (row_norms, 65), (runs, 40), (losses, 20), (updates, 24), (alignments, 8), (bilinears, 10), (distances, 24),
        (vectors, 20),
    )  # fmt: skip
    return draws(kinds, seed)
