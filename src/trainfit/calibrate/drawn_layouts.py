"""Workloads that go element by element over what lies in parts, turned, repeated or in two types, as a seed draws.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. See `drawn`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from trainfit.calibrate.drawn import TYPES, Draw, Kinds, Shape, draws, laid_out
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, aside, gradients, randn

SEED = 23
FUNCTIONS: tuple[Callable[..., Tensor], ...] = (
    F.gelu, F.silu, torch.sigmoid, F.relu, F.hardswish, partial(F.gelu, approximate="tanh"), torch.tanh, F.mish,
    F.leaky_relu, F.softplus, F.elu, F.hardsigmoid, torch.exp, partial(F.dropout, p=0.1), F.relu6, torch.rsqrt,
)  # fmt: skip
"""Those at the front are the usual ones."""


def _part(x: Tensor, dim: int, share: int) -> Tensor:
    """The last of so many equal parts along a dimension."""
    size = max(x.shape[dim] // share, 1)
    return x.narrow(dim, x.shape[dim] - size, size)


def activated(
    shape: Shape, order: Shape, cut: tuple[int, int], gradient: str, function: int, dtype: torch.dtype
) -> None:
    """A function of a part of a tensor, whose gradient comes as it lies, turned, repeated or as a part."""
    x = _part(laid_out(shape, order, dtype), *cut).detach().requires_grad_()
    out, dims = FUNCTIONS[function](x), tuple(range(len(shape)))
    if gradient == "turned":
        back = laid_out(tuple(out.shape), (dims[0], *dims[2:], dims[1]) if len(dims) > 2 else dims[::-1], dtype)
    elif gradient == "repeated":
        back = randn(*out.shape[:2], *[1] * (len(dims) - 2), dtype=dtype).expand(out.shape)
    elif gradient == "part":
        wide = (*out.shape[:-1], 2 * out.shape[-1])
        back = _part(randn(*wide, dtype=dtype), len(dims) - 1, 2)
    else:
        back = laid_out(tuple(out.shape), order, dtype)
    torch.autograd.grad(out, x, back)
    x.detach() + back


def activations(draw: Draw) -> Workload:
    rank = draw.choice((2, 3, 4, 4))
    shape, order = draw.shape(rank, 2**14, 2**25), draw.order(rank)
    cut = (draw.randrange(rank), draw.choice((1, 1, 1, 2, 2, 3)))
    cut = (rank - 1, cut[1]) if draw.random() < 0.4 else cut
    gradient = draw.choice(("same", "same", "turned", "repeated", "part"))
    function = draw.randrange(6) if draw.random() < 0.6 else draw.randrange(len(FUNCTIONS))
    return partial(activated, shape, order, cut, gradient, function, draw.choice(TYPES))


def two_types(shape: Shape, order: Shape, small: Shape, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """Of a tensor and one of another type that is repeated, or a number; their results are of the wider type."""
    x, y = laid_out(shape, order, dtypes[0]), randn(*small, dtype=dtypes[1])
    with aside():
        mask = x > 0
    x * y, x + y, torch.where(mask, x, y)
    if prod(small) < prod(shape):
        x / y, x.mul_(y.flatten()[0])


def _repeated(draw: Draw, shape: Shape) -> Shape:
    """What is broadcast to the shape: a number per channel, per feature, per image, per place, or all of them."""
    rank = len(shape)
    kind = draw.randrange(6)
    if kind == 0:
        kept: tuple[int, ...] = (1,)
    elif kind == 1:
        kept = (rank - 1,)
    elif kind == 2:
        kept = (0,)
    elif kind == 3:
        kept = (0, 1)
    else:
        kept = tuple(range(1, rank)) if kind == 4 else draw.some(rank)
    return tuple(size if dim in kept else 1 for dim, size in enumerate(shape))


def mixtures(draw: Draw) -> Workload:
    """Frozen norms, scales and positions in float32 beside halves."""
    rank = draw.choice((2, 3, 4, 4, 4))
    shape = draw.shape(rank, 2**14, 2**25)
    small = shape if draw.random() < 0.25 else _repeated(draw, shape)
    dtypes = draw.choice(((BF16, FP32), (BF16, FP32), (FP16, FP32), (FP32, BF16), (FP32, FP16)))
    return partial(two_types, shape, draw.order(rank), small, dtypes)


def repeated(shape: Shape, order: Shape, small: Shape, dtype: torch.dtype) -> None:
    """Paths that are dropped, gates, biases of positions: repeated in forward, summed in backward."""
    x, y = laid_out(shape, order, dtype), randn(*small, dtype=dtype)
    out = x * y
    x + y, out.sum([dim for dim, size in enumerate(small) if size < shape[dim]], keepdim=True)
    y.expand(shape).clone(memory_format=torch.contiguous_format), torch.addcmul(x, y, out), x.sub_(y)


def repetitions(draw: Draw) -> Workload:
    kind = draw.random()
    if kind < 0.3:  # masks and biases of windows
        length = draw.choice((49, 64, 144, 196))
        shape: Shape = (draw.size(1, 64), draw.size(1, 64), draw.choice((3, 4, 6, 8, 12)), length, length)
        shape = (max(min(shape[0], 2**25 // prod(shape[1:])), 1), *shape[1:])
        small = draw.choice(((1, 1, *shape[2:]), (1, shape[1], 1, length, length), (*shape[:2], 1, 1, length)))
        return partial(repeated, shape, (0, 1, 2, 3, 4), small, draw.choice(TYPES))
    rank = draw.choice((3, 4, 4, 5))
    shape = draw.shape(rank, 2**15, 2**25)
    return partial(repeated, shape, draw.order(rank), _repeated(draw, shape), draw.choice(TYPES))


def rearranged(shape: Shape, split: Shape, order: Shape, dtype: torch.dtype) -> None:
    """Dimensions split, turned and joined again, and back."""
    x = randn(*shape, dtype=dtype).view(split).permute(order)
    y = x.contiguous()
    y.permute([order.index(dim) for dim in range(len(split))]).contiguous()


def arrangements(draw: Draw) -> Workload:
    """Windows of images, heads of tokens, patches, axes of videos."""
    kind, width = draw.choice(("windows", "grid", "heads", "merged", "patches", "axes")), 8 * draw.size(1, 160)
    if kind in ("windows", "grid"):
        window, count = draw.choice((4, 7, 7, 8, 12)), draw.choice((1, 2, 4, 8, 8, 16))
        side = window * count
        batch = max(min(draw.size(1, 128), 2**25 // (side**2 * width)), 1)
        cut: Shape = (count, window) if kind == "windows" else (window, count)
        split = (batch, cut[0], cut[1], cut[0], cut[1], width)
        order = (0, 1, 3, 2, 4, 5) if kind == "windows" else (0, 2, 4, 1, 3, 5)
        return partial(rearranged, (batch, side, side, width), split, order, draw.choice(TYPES))
    tokens = draw.size(16, 4096)
    batch = max(min(draw.size(1, 512), 2**24 // (tokens * width)), 1)
    if kind in ("heads", "merged"):
        heads = draw.choice([count for count in (1, 2, 4, 8, 16) if width % count == 0])
        dim = width // heads
        if kind == "merged":
            return partial(
                rearranged, (batch, heads, tokens, dim), (batch, heads, tokens, dim), (0, 2, 1, 3), draw.choice(TYPES)
            )
        return partial(
            rearranged, (batch, tokens, 3 * width), (batch, tokens, 3, heads, dim), (2, 0, 3, 1, 4), draw.choice(TYPES)
        )
    if kind == "patches":
        patch, count, channels = draw.choice((2, 4, 8, 14, 16)), draw.size(4, 32), draw.choice((1, 3, 4, 16, 64))
        batch = max(min(draw.size(1, 128), 2**24 // ((patch * count) ** 2 * channels)), 1)
        split = (batch, channels, count, patch, count, patch)
        order = draw.choice(((0, 2, 4, 1, 3, 5), (0, 2, 4, 3, 5, 1)))
        return partial(rearranged, (batch, channels, (count * patch) ** 2), split, order, draw.choice(TYPES))
    frames = draw.size(2, 64)
    shape = (max(batch // frames, 1), frames, tokens, width)
    turned = draw.choice(((0, 2, 1, 3), (0, 3, 1, 2), (0, 2, 3, 1), (0, 3, 2, 1)))
    return partial(rearranged, shape, shape, turned, draw.choice(TYPES))


def spun(batch: int, tokens: int, heads: int, dim: int, is_first: bool, dtype: torch.dtype) -> None:
    """Rotary positions by halves, by neighbours, and by complex numbers; parts that gate each other."""
    shape = (batch, heads, tokens, dim) if is_first else (batch, tokens, heads, dim)
    x, angles = randn(*shape, dtype=dtype), randn(tokens, dim, dtype=dtype)
    angles = angles if is_first else angles[:, None]
    left, right = x.chunk(2, -1)
    torch.cat((-right, left), -1) * angles + x * angles
    even, odd = x[..., ::2], x[..., 1::2]
    -odd, even * angles[..., ::2], torch.stack((-odd, even), -1), torch.stack((even * 2, odd * 2), -1)
    turn = torch.view_as_complex(randn(*angles.shape[:-1], dim // 2, 2))
    wide = torch.view_as_complex(x.float().unflatten(-1, (dim // 2, 2))) * turn
    wide.abs(), torch.view_as_real(wide).flatten(-2).to(dtype), wide * wide.conj(), wide.real * 2


def rotations(draw: Draw) -> Workload:
    tokens, heads, dim = draw.size(16, 4096), draw.size(1, 32), 2 * draw.size(4, 128)
    batch = max(min(draw.size(1, 256), 2**24 // (tokens * heads * dim)), 1)
    return partial(spun, batch, tokens, heads, dim, draw.random() < 0.5, draw.choice(TYPES))


def odd_ones(shape: Shape, dim: int, shifts: tuple[int, int], dtype: torch.dtype) -> None:
    """Shifts of windows, gated halves, what is dropped, repeated, cut and clipped."""
    x, wide = (randn(*shape[:-1], shape[-1] * times, dtype=dtype).requires_grad_() for times in (1, 2))
    gradients(F.glu(wide, -1), wide)
    for out in (F.dropout(x, 0.1), x.clamp(-1, 1), F.normalize(x, dim=dim)):
        gradients(out, x)
    y = x.detach()
    torch.roll(y, shifts, (1, 2)), torch.roll(y, shifts[0], dim), y.flip(dim), y.repeat(2, *[1] * (len(shape) - 1))
    with aside():
        keep = torch.rand(shape[0], *[1] * (len(shape) - 1), device="cuda") < 0.9
        zero, scale = keep.new_zeros((), dtype=dtype), keep.to(dtype)
    y * scale, torch.where(keep, y, zero), y.masked_fill(~keep, -1.0), y - y.mean(dim, keepdim=True), y.pow(2).mean(dim)
    y.unfold(dim, min(shape[dim], 4), min(shape[dim], 2)).contiguous(), y.triu(), y[..., ::2].contiguous(), y.std(dim)


def oddities(draw: Draw) -> Workload:
    shape = draw.shape(4 if draw.random() < 0.6 else 3, 2**15, 2**24)
    dim = draw.randrange(1, len(shape))
    return partial(odd_ones, shape, dim, (draw.choice((1, -3, 4)), draw.choice((1, -3, 4))), draw.choice(TYPES))


def spectra(batch: int, length: int, size: int, step: int) -> None:
    """Of sound: frames by a window, there and back, and on a scale of few bands."""
    x, window = randn(batch, length).requires_grad_(), torch.ones(size, device="cuda")
    found = torch.stft(x, size, step, window=window, return_complex=True)
    bands = torch.matmul(found.abs().pow(2).transpose(1, 2), torch.rand(size // 2 + 1, 80, device="cuda"))
    gradients(bands.clamp(min=1e-5).log(), x)
    torch.istft(found.detach(), size, step, window=window)
    torch.view_as_real(found.detach()).permute(0, 3, 1, 2).contiguous()


def sounds(draw: Draw) -> Workload:
    size = draw.choice((256, 400, 512, 512, 1024, 2048))
    step = size // draw.choice((2, 4, 4))
    length = draw.size(2**13, 2**18)
    return partial(spectra, max(min(draw.size(1, 128), 2**23 // length), 1), length, size, step)


def drawn_layouts(seed: int = SEED) -> list[Workload]:
    kinds: Kinds = (
        (activations, 140), (mixtures, 75), (repetitions, 50), (arrangements, 85), (rotations, 24), (oddities, 26),
        (sounds, 12),
    )  # fmt: skip
    return draws(kinds, seed)
