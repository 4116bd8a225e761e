"""Rules for ops that are larger by their bytes alone: pointwise, copies, pooling, lookups, optimizers.

In: an `Op`. Out: `Work`s, the most special rule first. Bytes are those actually moved (what is broadcast is read once,
an embedding reads rows); how fast they move depends on the layout, the size and the bytes per element, which are
coordinates: a kernel that must compute an offset for every element is bound by elements and not by bytes.
"""

from __future__ import annotations

import itertools
from functools import partial
from math import prod

from trainfit.cost.work import (
    Work,
    base_name,
    by_bytes,
    inner_dim,
    item_bytes,
    log,
    tensors_of,
    total_bytes,
    touched_bytes,
)
from trainfit.records import Op, TensorRef

COPIES = frozenset({"_to_copy", "clone", "copy", "contiguous", "lift_fresh_copy"})
FILLS = frozenset(
    """fill zero zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full arange scalar_tensor
    eye""".split()
)
SIMPLE = frozenset(
    """add sub mul div neg abs sign rsub maximum minimum clamp clamp_min clamp_max eq ne lt le gt ge where masked_fill
    logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor floor ceil round trunc
    floor_divide remainder reciprocal sqrt rsqrt isnan isinf isfinite threshold_backward relu lerp addcmul addcdiv fmod
    isin hardtanh hardtanh_backward __and__ __or__ square nan_to_num
    conj_physical leaky_relu leaky_relu_backward _amp_update_scale complex polar sgn copysign softshrink
    softshrink_backward hardshrink hardshrink_backward _prelu_kernel _prelu_kernel_backward addr fmax fmin frac signbit
    heaviside isposinf isneginf deg2rad rad2deg threshold ldexp linspace""".split()
)
HEAVY = frozenset(
    """gelu gelu_backward silu silu_backward tanh tanh_backward sigmoid sigmoid_backward exp log log2 log1p expm1 sin
    cos pow erf erfinv softplus softplus_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward mish
    mish_backward elu elu_backward atan2 native_dropout native_dropout_backward bernoulli rand rand_like randn
    randn_like uniform normal smooth_l1_loss_backward mse_loss_backward binary_cross_entropy_with_logits
    log_sigmoid_forward log_sigmoid_backward _fused_dropout native_dropout_out exponential tril triu
    _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell celu exp2 atan acos asin tan logaddexp
    hypot xlogy rrelu_with_noise rrelu_with_noise_backward huber_loss_backward binary_cross_entropy_backward
    soft_margin_loss_backward random randint randint_like _thnn_fused_lstm_cell_backward_impl
    logit logit_backward log10 sinh cosh asinh acosh atanh erfc sinc angle lgamma digamma logaddexp2 log_normal cauchy
    geometric""".split()
)
NEAREST_HEAVY = {
    "log": "exp", "log2": "exp", "log1p": "exp", "expm1": "exp", "erf": "tanh", "softplus": "tanh", "mish": "tanh",
    "softplus_backward": "tanh_backward", "mish_backward": "silu_backward", "elu": "exp",
    "elu_backward": "silu_backward",
    "hardsigmoid": "hardswish", "hardsigmoid_backward": "hardswish_backward", "atan2": "tanh", "rand": "uniform",
    "randn": "normal", "bernoulli": "uniform", "_fused_dropout": "native_dropout", "log_sigmoid_forward": "sigmoid",
    "log_sigmoid_backward": "sigmoid_backward", "erfinv": "tanh", "exponential": "uniform", "triu": "tril",
    "celu": "elu",
    "exp2": "exp", "acos": "atan", "asin": "atan", "tan": "sin", "hypot": "atan2", "xlogy": "log", "random": "uniform",
    "randint": "uniform", "randint_like": "uniform", "huber_loss_backward": "smooth_l1_loss_backward",
    "soft_margin_loss_backward": "smooth_l1_loss_backward",
    "binary_cross_entropy_backward": "smooth_l1_loss_backward", "rrelu_with_noise": "native_dropout",
    "logit": "log", "logit_backward": "sigmoid_backward", "log10": "log", "sinh": "tanh", "cosh": "tanh",
    "asinh": "atan", "acosh": "atan", "atanh": "atan", "erfc": "erf", "sinc": "sin", "angle": "atan2",
    "lgamma": "erfinv", "digamma": "erfinv", "logaddexp2": "logaddexp", "log_normal": "normal", "cauchy": "uniform",
    "geometric": "uniform",
}  # fmt: skip
"""For functions that were not measured one of about the same arithmetic."""
LOSSES = frozenset("mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss".split())
"""Of every element, or their sum."""
_SECTOR_BYTES = 32
"""What is read from memory at once."""
_NEAR_BYTES, _AGAIN_WEIGHT = 2**17, 0.5
"""So much of what is repeated a processor keeps; how far apart, in doublings, is what comes from further every time."""
_CACHED_SHARE = 0.4
"""Of what fetching costs, that steps of 44 models on the H200 saved of ops of up to 32 MiB, half of all."""


_IN_PLACE = "pointwise in place"
"""Where results take their operands' place, more fits the cache: some take a fifth less time."""


def pointwise(op: Op) -> tuple[Work, ...]:
    """Everything a TensorIterator runs element by element, copies and fills included."""
    name = base_name(op)
    inputs = list(dict.fromkeys(op.input_refs()))  # x * x reads x once
    outputs = op.outputs or tuple(tensors_of(op.args[:1]))
    if not outputs:
        return ()
    if name == "copy":  # the destination is written, not read
        inputs = inputs[1:]
    out = max(outputs, key=lambda tensor: tensor.numel)
    if name in FILLS:
        kind, inputs = "fill", []
    elif name in COPIES:
        kind = _cast(inputs, out)
    elif name == "masked_fill" and not op.name.split(".")[1].endswith("_"):  # a copy, and the mask on that
        kind = name
    elif name in SIMPLE:  # a few instructions per element: all the same
        kind = "pointwise"
    else:
        kind = name
    layout = _layout(inputs, out, name in _ARITHMETIC)
    if kind == "pointwise" and op.name.split(".")[1].endswith("_") and layout in ("contiguous", "broadcast"):
        kind = _IN_PLACE
    nbytes = sum(map(_fetched_bytes, (*inputs, *outputs)))
    if layout.startswith("transposed"):
        nbytes = max(nbytes, apart_bytes(inputs, out))
    whole = [tensor for tensor in (*inputs, *outputs) if tensor.numel == out.numel and 0 not in tensor.stride]
    element_bytes = sum(item_bytes(tensor.dtype) for tensor in whole)  # what is broadcast comes from the cache
    dims = 2.0 if layout.startswith("transposed") else offset_dims([*inputs, out])  # there it is the cache that counts
    is_plain = kind.startswith("pointwise") and layout.startswith("broadcast")
    if is_plain and any(map(partial(_is_read_again, out), inputs)):
        dims += _AGAIN_WEIGHT
    if layout.endswith("mixed"):  # every operand is looked at for its type
        dims += max(len(inputs) - 2, 0)
    coordinates = (*log(nbytes, element_bytes), dims)
    plain_layout = layout.removesuffix(" mixed")
    layouts = (layout, plain_layout, plain_layout.split()[0], "contiguous")
    kinds = (kind, *_nearest(kind), "pointwise", "copy")
    rules = [f"{one} {order}" for order in layouts for one in kinds]
    return by_bytes(rules, coordinates, nbytes, cached=_CACHED_SHARE)


def loss(op: Op) -> tuple[Work, ...]:
    """Of every element, or their sum, for which all of them are written first."""
    if op.outputs[0].numel > 1:
        return pointwise(op)
    nbytes, size = total_bytes(op.input_refs()), item_bytes(op.outputs[0].dtype)
    return by_bytes([f"{base_name(op)} summed", "mse_loss summed"], log(nbytes, size), nbytes)


def _fetched_bytes(tensor: TensorRef) -> int:
    """Bytes of the elements, and of what lies between them where none are neighbours: memory comes in sectors."""
    steps = [step for size, step in zip(tensor.shape, tensor.stride, strict=True) if size > 1 and step > 0]
    between = min(min(steps, default=1), _SECTOR_BYTES // item_bytes(tensor.dtype))
    return touched_bytes(tensor) * max(between, 1)


def _nearest(kind: str) -> tuple[str, ...]:
    """What is asked instead, one after the other."""
    nearest = NEAREST_HEAVY.get(kind)
    return (nearest, *_nearest(nearest)) if nearest else ()


_WARP, _BLOCK, _BLOCK_BYTES = 32, 128, 1024
"""Threads that read at once, and those that share a cache, where each has several results of so many bytes in all."""
_LINE_BYTES, _BURST_BYTES = 128, 64
"""Of a processor's cache, which looks for one of them at a time; what memory gives at least."""
_CACHED, _PER_LINE, _PER_OPERAND = 0.84, 19, 6
"""What memory could move while the cache of all processors moves a byte, while a processor's own looks for a line, and
while the place of an operand's element is computed: the H200's look for 250 lines in a ns."""
_PER_MISSED_LINE, _PER_MISSED_SECTOR = 28, 14
"""And while the cache of all processors gives a line of which one sector is asked for, or each of several: 5.5 and 11
TB/s of sectors."""
_AT_ONCE = 0.8
"""How much what threads read at once counts; the rest is all that they read, of which the cache has lost some."""
_KEPT_BYTES = 12 * 2**20
"""So much stays in the cache until what lies beside it is needed, about; what does not comes from memory again and
again."""


def apart_bytes(inputs: list[TensorRef], out: TensorRef) -> int:
    """What memory could move while operands are read whose neighbours are apart: sectors that a block of threads needs
    come for it alone, and lines that threads side by side need come one after the other."""
    cached, lines, operands = _CACHED * touched_bytes(out), 1.0, 1
    in_all = max(_BLOCK_BYTES // item_bytes(out.dtype), _BLOCK)
    for tensor in inputs:
        if tensor.numel > 1:
            missed = _AT_ONCE * _missed_bytes(tensor, out, _BLOCK) + (1 - _AT_ONCE) * _missed_bytes(tensor, out, in_all)
            cached += max(missed * out.numel, _CACHED * touched_bytes(tensor))
            lines += _touched(tensor, out, _WARP, _LINE_BYTES)[1]
            operands += 1
    return round(max(cached, _PER_LINE * lines * out.numel / _WARP, _PER_OPERAND * operands * out.numel))


def _missed_bytes(tensor: TensorRef, out: TensorRef, results: int) -> float:
    """What memory could move per result while a block's operands come: nothing more where it needs whole sectors. Lines
    of which it needs several come faster than one sector of each."""
    elements, sectors = _touched(tensor, out, results, _SECTOR_BYTES)
    if sectors * _SECTOR_BYTES <= elements * item_bytes(tensor.dtype):
        return 0.0
    if _returned_bytes(tensor, out) > _KEPT_BYTES:
        bursts = _touched(tensor, out, results, _BURST_BYTES)[1]
        return max(_SECTOR_BYTES * sectors, _BURST_BYTES * bursts) / elements
    lines = _touched(tensor, out, results, _LINE_BYTES)[1]
    return max(_PER_MISSED_SECTOR * sectors, _PER_MISSED_LINE * lines) / elements


def _returned_bytes(tensor: TensorRef, out: TensorRef) -> int:
    """In sectors, what is read of an operand until the neighbour of an element is."""
    strides = _broadcast_stride(tensor, len(out.shape))
    nearest = min((stride for stride in strides if stride > 0), default=0)
    count = 1
    for dim in reversed(_order(out)):
        if strides[dim] == nearest:
            break
        count *= out.shape[dim] if strides[dim] > 0 else 1
    return min(count * _SECTOR_BYTES, touched_bytes(tensor))


def _touched(tensor: TensorRef, out: TensorRef, threads: int, unit_bytes: int) -> tuple[int, float]:
    """How many elements that many neighbours in the result need of an operand, and in how many units of memory."""
    size, strides = item_bytes(tensor.dtype), _broadcast_stride(tensor, len(out.shape))
    places: list[tuple[int, int]] = []
    left = threads
    for dim in reversed(_order(out)):
        if strides[dim] > 0:
            places.append((strides[dim] * size, min(out.shape[dim], left)))
        left = -(-left // out.shape[dim])
        if left <= 1:
            break
    run_bytes, units = size, 1
    for step_bytes, count in sorted(places):
        if step_bytes <= run_bytes or step_bytes < unit_bytes:
            run_bytes += (count - 1) * step_bytes
        else:
            units *= count
    return prod(count for _, count in places), units * max(run_bytes / unit_bytes, 1.0)


_ARITHMETIC = frozenset("add sub mul div rsub".split())
"""Ops that convert truth values to numbers first."""


def _layout(inputs: list[TensorRef], out: TensorRef, is_arithmetic: bool = True) -> str:
    """How the inputs lie relative to the output, in the words of the kernels there are for it."""
    inner = inner_dim(out)
    order = "contiguous" if inner is None or is_dense(out) else "strided"
    is_broadcast = is_mixed = False
    for tensor in inputs:
        if inner is None or not tensor.numel:
            continue
        if tensor.numel == 1:
            is_broadcast = True  # read for every element
            continue
        is_mixed |= tensor.dtype != out.dtype and (is_arithmetic or "bool" not in (tensor.dtype, out.dtype))
        position = inner - (len(out.shape) - len(tensor.shape))
        is_inner_run = is_apart = False
        if 0 <= position < len(tensor.stride):
            step = tensor.stride[position] if tensor.shape[position] > 1 else 0
            is_inner_run = step > 0 and inner_dim(tensor) == position
            is_apart = step > 1 and not is_inner_run
        if tensor.numel < out.numel or 0 in tensor.stride:
            is_broadcast = True
            is_transposed = is_apart  # neighbours in the result are not neighbours in what is repeated
        elif tensor.shape != out.shape or _order(tensor) != _order(out) or not is_dense(tensor):
            is_transposed = not is_inner_run
            order = "strided" if order != "transposed" else order
        else:
            continue
        if is_transposed:
            order = "transposed"
    if is_broadcast:
        order = "broadcast" if order == "contiguous" else f"{order} broadcast"
    return f"{order} mixed" if is_mixed else order


def offset_dims(tensors: list[TensorRef]) -> float:
    """How many dimensions are left after those are merged that lie alike in all tensors.

    A kernel divides by the size of each of them to find an element, so they cost time whatever the bytes.
    """
    out = tensors[-1]
    rank = len(out.shape)
    dims = sorted((dim for dim in range(rank) if out.shape[dim] > 1), key=lambda dim: -out.stride[dim])
    strides = [_broadcast_stride(tensor, rank) for tensor in tensors if tensor.numel > 1]
    count = min(len(dims), 1)
    for outer, inner in itertools.pairwise(dims):
        count += any(stride[outer] != stride[inner] * out.shape[inner] for stride in strides)
    return float(count)


def _is_read_again(out: TensorRef, tensor: TensorRef) -> bool:
    """Whether it is repeated along an outer dimension, and so large that every time it comes from the cache of all
    processors."""
    strides = _broadcast_stride(tensor, len(out.shape))
    is_varying = [strides[dim] > 0 for dim in _order(out)]
    is_again = any(inner and not outer for outer, inner in itertools.combinations(is_varying, 2))
    return is_again and touched_bytes(tensor) > _NEAR_BYTES


def _broadcast_stride(tensor: TensorRef, rank: int) -> tuple[int, ...]:
    sizes = zip(tensor.shape, tensor.stride, strict=True)
    own = tuple(stride if size > 1 else 0 for size, stride in sizes)
    return (0,) * (rank - len(own)) + own[len(own) - rank if len(own) > rank else 0 :]


def _cast(inputs: list[TensorRef], out: TensorRef) -> str:
    """Narrowing casts have vectorised kernels and widening ones do not."""
    if len(inputs) != 1 or inputs[0].dtype == out.dtype:
        return "copy"
    return f"cast {item_bytes(inputs[0].dtype)} to {item_bytes(out.dtype)}"


def _order(tensor: TensorRef) -> tuple[int, ...]:
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    return tuple(sorted(dims, key=lambda dim: -tensor.stride[dim]))


def is_dense(tensor: TensorRef) -> bool:
    step = 1
    for dim in reversed(_order(tensor)):
        if tensor.stride[dim] != step:
            return False
        step *= tensor.shape[dim]
    return True


def is_contiguous(tensor: TensorRef) -> bool:
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    return is_dense(tensor) and list(_order(tensor)) == dims
