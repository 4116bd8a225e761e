"""Rules for ops that are larger by their bytes alone: pointwise, copies, pooling, lookups, optimizers.

In: an `Op`. Out: `Work`s, the most special rule first. Bytes are those actually moved (what is broadcast is read once,
an embedding reads rows); how fast they move depends on the layout, the size and the bytes per element, which are
coordinates: a kernel that must compute an offset for every element is bound by elements and not by bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod

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
    conj_physical leaky_relu leaky_relu_backward _amp_update_scale complex polar""".split()
)
HEAVY = frozenset(
    """gelu gelu_backward silu silu_backward tanh tanh_backward sigmoid sigmoid_backward exp log log2 log1p expm1 sin
    cos pow erf erfinv softplus softplus_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward mish
    mish_backward elu elu_backward atan2 native_dropout native_dropout_backward bernoulli rand rand_like randn
    randn_like uniform normal smooth_l1_loss_backward mse_loss_backward binary_cross_entropy_with_logits
    log_sigmoid_forward log_sigmoid_backward _fused_dropout native_dropout_out exponential tril triu
    _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell
    _thnn_fused_lstm_cell_backward_impl""".split()
)
NEAREST_HEAVY = {
    "log": "exp", "log2": "exp", "log1p": "exp", "expm1": "exp", "erf": "tanh", "softplus": "tanh", "mish": "tanh",
    "softplus_backward": "tanh_backward", "mish_backward": "silu_backward", "elu": "exp",
    "elu_backward": "silu_backward",
    "hardsigmoid": "hardswish", "hardsigmoid_backward": "hardswish_backward", "atan2": "tanh", "rand": "uniform",
    "randn": "normal", "bernoulli": "uniform", "_fused_dropout": "native_dropout", "log_sigmoid_forward": "sigmoid",
    "log_sigmoid_backward": "sigmoid_backward", "erfinv": "tanh", "exponential": "uniform", "triu": "tril",
}  # fmt: skip
"""Functions that were not measured, by one of about the same arithmetic that was."""
POOLS = frozenset(
    """max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward upsample_nearest2d
    upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward _adaptive_avg_pool2d
    _adaptive_avg_pool2d_backward""".split()
)
MOVES = frozenset(
    """cat stack slice_backward select_backward constant_pad_nd roll flip repeat index index_select index_put index_add
    index_copy gather scatter scatter_add sort topk cumsum bincount histc
    nonzero one_hot index_put_impl _index_put_impl unfold_backward argsort unbind_copy
    split_with_sizes_copy _unsafe_index _unsafe_index_put scatter_reduce embedding _local_scalar_dense im2col
    col2im""".split()
)
SAME_MOVE = {
    "select_backward": "slice_backward", "unfold_backward": "slice_backward", "scatter_reduce": "scatter_add",
    "_unsafe_index": "index", "_unsafe_index_put": "index_put", "_index_put_impl": "index_put", "argsort": "sort",
    "histc": "bincount", "im2col": "constant_pad_nd", "col2im": "constant_pad_nd", "nonzero": "cumsum",
    "split_with_sizes_copy": "stack",
}  # fmt: skip
"""Ops that launch the same kernel as another, or one of the same kind."""


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
        kind = NEAREST_HEAVY.get(name, name)
    nbytes = total_bytes(inputs) + total_bytes(outputs)
    layout = _layout(inputs, out)
    whole = [tensor for tensor in (*inputs, *outputs) if tensor.numel == out.numel and 0 not in tensor.stride]
    element_bytes = sum(item_bytes(tensor.dtype) for tensor in whole)  # what is broadcast comes from the cache
    coordinates = (*log(nbytes, element_bytes), _offset_dims([*inputs, out]))
    plain_layout = layout.removesuffix(" mixed")
    layouts = (layout, plain_layout, plain_layout.split()[0], "contiguous")
    rules = [f"{name} {order}" for order in layouts for name in (kind, "pointwise", "copy")]
    return by_bytes(rules, coordinates, nbytes)


def _layout(inputs: list[TensorRef], out: TensorRef) -> str:
    """How the inputs lie relative to the output, in the words of the kernels there are for it."""
    inner = inner_dim(out)
    order = "contiguous" if inner is None or _is_dense(out) else "strided"
    is_broadcast = is_mixed = False
    for tensor in inputs:
        if tensor.numel <= 1 or inner is None:
            continue
        is_mixed |= tensor.dtype != out.dtype and "bool" not in (tensor.dtype, out.dtype)
        position = inner - (len(out.shape) - len(tensor.shape))
        if tensor.numel < out.numel or 0 in tensor.stride:
            is_broadcast = True
            if 0 <= position < len(tensor.stride) and tensor.shape[position] > 1 and tensor.stride[position] > 1:
                order = "transposed"  # neighbours in the result are not neighbours in what is repeated
        elif tensor.shape != out.shape or _order(tensor) != _order(out) or not _is_dense(tensor):
            is_inner_run = 0 <= position < len(tensor.stride) and tensor.stride[position] == out.stride[inner]
            if order != "transposed":
                order = "strided" if is_inner_run else "transposed"
    if is_broadcast:
        order = "broadcast" if order == "contiguous" else f"{order} broadcast"
    return f"{order} mixed" if is_mixed else order


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


def _is_dense(tensor: TensorRef) -> bool:
    step = 1
    for dim in reversed(_order(tensor)):
        if tensor.stride[dim] != step:
            return False
        step *= tensor.shape[dim]
    return True


def is_contiguous(tensor: TensorRef) -> bool:
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    return _is_dense(tensor) and list(_order(tensor)) == dims


def pool(op: Op) -> tuple[Work, ...]:
    """Pooling and resizing; an image that keeps its size is copied."""
    inputs = list(op.input_refs())
    if base_name(op).startswith("upsample") and inputs[0].shape == op.outputs[0].shape:
        return pointwise(Op("aten.clone.default", op.phase, op.module, (inputs[0],), (), op.outputs))
    big = max((*inputs, *op.outputs), key=lambda tensor: tensor.numel)
    layout = "nhwc" if is_channels_last(big) else "nchw"
    nbytes = total_bytes(inputs) + total_bytes(op.outputs)
    name = base_name(op)
    if name.startswith("upsample"):  # a gradient is added up from as many pixels
        area = max(1, big.numel // max(1, min(inputs[0].numel, op.outputs[0].numel)))
    else:
        window = argument(op, 2 if name.endswith("backward") else 1, "kernel_size", (1,))
        area = prod(item for item in window if isinstance(item, int)) if isinstance(window, tuple) else 1
    return by_bytes((f"{name} {layout}", f"{name} nchw"), log(nbytes, item_bytes(big.dtype), area), nbytes)


def move(op: Op) -> tuple[Work, ...]:
    """Joining, padding, indexing, sorting: priced by bytes, each by its own measurements."""
    name = base_name(op)
    inputs = list(op.input_refs())
    outputs = op.outputs or tuple(inputs[:1])
    if not outputs:
        return ()
    out = outputs[0]
    kind = SAME_MOVE.get(name, name)
    if name == "constant_pad_nd" and not any(isinstance(pad, int) and pad > 0 for pad in _integers(op, 1)):
        inner = replace(inputs[0], shape=out.shape)  # nothing is added: what stays is copied
        return pointwise(Op("aten.clone.default", op.phase, op.module, (inner,), (), (out,)))
    passes = 1
    if name in ("index", "index_select", "_unsafe_index", "embedding"):  # reads what it returns, and the index
        nbytes = total_bytes(inputs[1:]) + 2 * total_bytes(outputs)
    elif kind in ("gather", "scatter", "scatter_add"):
        # A thread per element: what is broadcast is read again, from the cache, which is about twice as fast.
        all_bytes = sum(tensor.numel * item_bytes(tensor.dtype) for tensor in (*inputs, *outputs))
        nbytes = (all_bytes + total_bytes(inputs) + total_bytes(outputs)) // 2
    elif kind == "slice_backward":  # a fill and a copy
        nbytes = 2 * total_bytes(inputs) + total_bytes(outputs)
        passes = 2
    elif kind == "roll":  # one dimension after the other
        passes = max(len(_integers(op, 1)), 1)
        nbytes = passes * (total_bytes(inputs) + total_bytes(outputs))
    else:
        nbytes = total_bytes(inputs) + total_bytes(outputs)
    coordinates = log(nbytes, nbytes / max(out.numel, 1))
    rules = [kind]
    if kind == "cat":
        rules = [_cat_rule(op, inputs, out), "cat inner", "cat strided"]
    elif kind == "index_put":
        rules = ["index_put accumulate" if argument(op, 3, "accumulate", False) else "index_put plain"]
    return by_bytes(rules, coordinates, nbytes, kernels=passes)


def _integers(op: Op, position: int) -> tuple[object, ...]:
    values = op.args[position] if len(op.args) > position else ()
    return values if isinstance(values, tuple) else ()


def _cat_rule(op: Op, inputs: list[TensorRef], out: TensorRef) -> str:
    """Joined along the slowest dimension pieces stay whole; otherwise rows are interleaved."""
    if not all(_is_dense(tensor) and inner_dim(tensor) == inner_dim(inputs[0]) for tensor in inputs):
        return "cat strided"
    position = argument(op, 1, "dim", 0)
    return "cat outer" if isinstance(position, int) and position % len(out.shape) == 0 else "cat inner"


def embedding_bag(op: Op) -> tuple[Work, ...]:
    """Reads a row per index and writes one per bag, as a lookup moves its rows."""
    inputs = list(op.input_refs())
    out, rows = op.outputs[0], inputs[1].numel
    nbytes = total_bytes(inputs[1:]) + total_bytes(op.outputs) + rows * out.shape[-1] * item_bytes(out.dtype)
    return by_bytes(["_embedding_bag", "embedding"], log(nbytes, nbytes / max(out.numel, 1)), nbytes)


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
    mean_bytes = total_bytes(first) / len(first)
    coordinates = log(nbytes, mean_bytes)
    size = item_bytes(first[0].dtype)
    family = "_foreach_norm" if name == "_foreach_norm" else "_foreach_mul"
    rules = [f"{name} {size}", f"{family} {size}", f"{name} 4", f"{family} 4"]
    sizes = [tensor.numel for tensor in first]
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
