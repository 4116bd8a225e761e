"""Rules for ops that are larger by their bytes alone: pointwise, copies, pooling, lookups, optimizers.

In: an `Op`. Out: `Work`s, the most special rule first. Bytes are those actually moved (what is broadcast is read once,
an embedding reads rows); how fast they move depends on the layout, the size and the bytes per element, which are
coordinates: a kernel that must compute an offset for every element is bound by elements and not by bytes.
"""

from __future__ import annotations

import itertools
from math import log2, prod

from trainfit.cost.work import (
    Work,
    argument,
    base_name,
    by_bytes,
    inner_dim,
    is_channels_last,
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
    softshrink_backward hardshrink hardshrink_backward _prelu_kernel _prelu_kernel_backward""".split()
)
HEAVY = frozenset(
    """gelu gelu_backward silu silu_backward tanh tanh_backward sigmoid sigmoid_backward exp log log2 log1p expm1 sin
    cos pow erf erfinv softplus softplus_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward mish
    mish_backward elu elu_backward atan2 native_dropout native_dropout_backward bernoulli rand rand_like randn
    randn_like uniform normal smooth_l1_loss_backward mse_loss_backward binary_cross_entropy_with_logits
    log_sigmoid_forward log_sigmoid_backward _fused_dropout native_dropout_out exponential tril triu
    _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell celu exp2 atan acos asin tan logaddexp
    hypot xlogy rrelu_with_noise rrelu_with_noise_backward huber_loss_backward binary_cross_entropy_backward
    soft_margin_loss_backward random randint randint_like _thnn_fused_lstm_cell_backward_impl""".split()
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
}  # fmt: skip
"""For functions that were not measured one of about the same arithmetic."""
LOSSES = frozenset("mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss".split())
"""Of every element, or their sum."""
_SECTOR_BYTES = 32
"""What is read from memory at once."""
POOLS = frozenset(
    """max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward upsample_nearest2d
    upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward _adaptive_avg_pool2d
    _adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward upsample_bicubic2d
    upsample_bicubic2d_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_nearest_exact2d
    _upsample_nearest_exact2d_backward max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d
    avg_pool3d_backward upsample_nearest1d upsample_nearest1d_backward upsample_linear1d upsample_linear1d_backward
    upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward""".split()
)
SAME_POOL = {"_upsample_nearest_exact2d": "upsample_nearest2d"}
"""Resizing that runs the kernels of another."""


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
    layout, spread = _layout(inputs, out, name in _ARITHMETIC)
    nbytes = round(sum(map(_fetched_bytes, (*inputs, *outputs))) * 2 ** (_SPREAD_COST * spread))
    whole = [tensor for tensor in (*inputs, *outputs) if tensor.numel == out.numel and 0 not in tensor.stride]
    element_bytes = sum(item_bytes(tensor.dtype) for tensor in whole)  # what is broadcast comes from the cache
    coordinates = (*log(nbytes, element_bytes), _offset_dims([*inputs, out]))
    plain_layout = layout.removesuffix(" mixed")
    layouts = (layout, plain_layout, plain_layout.split()[0], "contiguous")
    kinds = (kind, *_nearest(kind), "pointwise", "copy")
    rules = [f"{one} {order}" for order in layouts for one in kinds]
    return by_bytes(rules, coordinates, nbytes)


def _fetched_bytes(tensor: TensorRef) -> int:
    """Bytes of the elements, and of what lies between them where none are neighbours: memory comes in sectors."""
    steps = [step for size, step in zip(tensor.shape, tensor.stride, strict=True) if size > 1 and step > 0]
    between = min(min(steps, default=1), _SECTOR_BYTES // item_bytes(tensor.dtype))
    return touched_bytes(tensor) * max(between, 1)


def _nearest(kind: str) -> tuple[str, ...]:
    """What is asked instead, one after the other."""
    nearest = NEAREST_HEAVY.get(kind)
    return (nearest, *_nearest(nearest)) if nearest else ()


_LINE, _ROWS = 32, (32, 256)
"""Elements so far apart share no line of the cache; rows shorter than the first are read whole by a block of threads,
so that a line is fetched once for it, rows longer than the second are not."""
_SPREAD_COST = 0.2
"""By which power of how often lines are fetched an op takes longer."""


_ARITHMETIC = frozenset("add sub mul div rsub".split())
"""Ops that convert truth values to numbers first."""


def _layout(inputs: list[TensorRef], out: TensorRef, is_arithmetic: bool = True) -> tuple[str, float]:
    """How the inputs lie relative to the output, in the words of the kernels there are for it; and, for those of which
    neighbours do not lie side by side, log2 of how often a line of the cache is fetched beyond the least, about."""
    inner = inner_dim(out)
    order = "contiguous" if inner is None or is_dense(out) else "strided"
    is_broadcast = is_mixed = False
    spread = 0.0
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
            row = min(max(out.shape[inner], _ROWS[0]), _ROWS[1]) / _ROWS[0]
            apart = max(log2(min(max(step, 1), _LINE)) + log2(row) - log2(_LINE), 0.0)
        if tensor.numel < out.numel or 0 in tensor.stride:
            is_broadcast = True
            is_transposed = is_apart  # neighbours in the result are not neighbours in what is repeated
        elif tensor.shape != out.shape or _order(tensor) != _order(out) or not is_dense(tensor):
            is_transposed = not is_inner_run
            order = "strided" if order != "transposed" else order
        else:
            continue
        if is_transposed:
            order, spread = "transposed", max(spread, apart if is_apart else 0.0)
    if is_broadcast:
        order = "broadcast" if order == "contiguous" else f"{order} broadcast"
    return (f"{order} mixed" if is_mixed else order), spread


def _offset_dims(tensors: list[TensorRef]) -> float:
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


def pool(op: Op) -> tuple[Work, ...]:
    """Pooling and resizing; an image that keeps its size is copied."""
    inputs = list(op.input_refs())
    if "upsample" in base_name(op) and inputs[0].shape == op.outputs[0].shape:
        return pointwise(Op("aten.clone.default", op.phase, op.module, (inputs[0],), (), op.outputs))
    big = max((*inputs, *op.outputs), key=lambda tensor: tensor.numel)
    layout = "nhwc" if is_channels_last(big) else "nchw"
    nbytes = total_bytes(inputs) + total_bytes(op.outputs)
    name = base_name(op)
    if "pool" not in name or "adaptive" in name:  # a gradient is added up from as many pixels
        area = shrink = max(1, big.numel // max(1, min(inputs[0].numel, op.outputs[0].numel)))
    else:
        window = argument(op, 2 if name.endswith("backward") else 1, "kernel_size", (1,))
        area = prod(item for item in window if isinstance(item, int)) if isinstance(window, tuple) else 1
        shrink = max(1, big.numel // max(1, min(inputs[0].numel, op.outputs[0].numel)))
    kind = SAME_POOL.get(name, name)
    return by_bytes((f"{kind} {layout}", f"{kind} nchw"), log(nbytes, item_bytes(big.dtype), area, shrink), nbytes)


def foreach(op: Op) -> tuple[Work, ...]:
    """Multi-tensor kernels: by bytes and by how large the tensors are; lists too long for one launch take several."""
    name = base_name(op)
    lists = [tensors_of(value) for value in op.args if isinstance(value, tuple)]
    first = next((items for items in lists if items), [])
    if not first:
        return ()
    written = list(op.outputs) or _written(name, lists)
    read = dict.fromkeys(tensor for items in lists for tensor in items)  # Adam multiplies gradients by themselves
    nbytes = total_bytes(read) + total_bytes(written)
    sizes = [tensor.numel for tensor in first]
    mean_size = sum(size * size for size in sizes) / max(sum(sizes), 1)  # of the tensor in which an element is
    coordinates = log(nbytes, mean_size * item_bytes(first[0].dtype))
    size = item_bytes(first[0].dtype)
    family = "_foreach_norm" if name == "_foreach_norm" else "_foreach_mul"
    rules = [f"{name} {size}", f"{family} {size}", f"{name} 4", f"{family} 4"]
    alike = [items for items in (*lists, op.outputs) if items and items[0].numel == sizes[0]]
    kernels = _multi_tensor_launches(sizes, len(alike)) + (2 if name == "_foreach_norm" else 0)  # joined by two more
    return tuple(Work(rule, coordinates, 0, "", nbytes, kernels, num_sizes=2) for rule in dict.fromkeys(rules))


_TENSORS_PER_LAUNCH = (110, 64, 48, 36, 30)
"""By how many lists a multi-tensor kernel goes through at once, one to five: its arguments have room for so many."""
_CHUNK, _CHUNKS_PER_LAUNCH = 64 * 1024, 320


def _multi_tensor_launches(sizes: list[int], num_lists: int) -> int:
    """Tensors are cut into chunks, and a launch takes so many tensors and so many chunks, whichever comes first."""
    max_tensors = _TENSORS_PER_LAUNCH[min(num_lists, len(_TENSORS_PER_LAUNCH)) - 1]
    launches = tensors = chunks = 0
    for size in sizes:
        left = -(-size // _CHUNK)
        tensors += 1
        while chunks + left >= _CHUNKS_PER_LAUNCH:
            left -= _CHUNKS_PER_LAUNCH - chunks
            launches, chunks, tensors = launches + 1, 0, int(left > 0)
        chunks += left
        if tensors == max_tensors:
            launches, chunks, tensors = launches + 1, 0, 0
    return max(1, launches + (chunks > 0))


def _written(name: str, lists: list[list[TensorRef]]) -> list[TensorRef]:
    """What an in-place multi-tensor op writes: its first list, or parameters and both moments for a fused Adam."""
    if name.startswith("_fused_adam"):
        return [*lists[0], *lists[2], *lists[3]]
    return lists[0]
