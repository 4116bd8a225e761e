"""Rules for ops that compute: matrix products, attention, convolutions, recurrent layers.

In: an `Op`. Out: `Work`s, the most special rule first. Efficiency depends on the shape of the product, on how operands
lie (which side is transposed, whether rows start at aligned addresses) and on the type.
"""

from __future__ import annotations

from math import log2, prod

from trainfit.cost.work import Work, argument, base_name, is_channels_last, item_bytes, log, tensors_of, total_bytes
from trainfit.records import Op, TensorRef

MATMULS = frozenset("mm addmm bmm baddbmm _addmm_activation".split())
_ALIGNMENT_WEIGHT = 3.0
"""How far apart, in doublings, two products are whose rows are aligned to different powers of two."""
_VECTOR_BYTES = 16
_TILES = ((256, 128), (128, 256))
"""Rows and columns of the result that a processor computes at a time in the kernels for large products."""
_FILL_WEIGHT = 3.0
"""How far apart, in doublings, two products are of which one keeps half as many processors busy."""


def matmul(op: Op, num_sms: int) -> tuple[Work, ...]:
    """(batch) x (rows, depth) x (depth, columns), by layout: "n" for rows that lie in memory, "t" for columns.

    Products with a bias run other kernels than those without. How well tiles fill the last wave of processors is a
    coordinate, so that a shape is compared with shapes that waste as much.
    """
    name = base_name(op)
    tensors = tensors_of(op.args)
    a, b = tensors[-2:]
    batch = a.shape[0] if len(a.shape) == 3 else 1
    rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    nbytes = total_bytes(tensors) + total_bytes(op.outputs)
    alignment = min(_alignment(a), _alignment(b), _row_alignment(columns, op.outputs[0].dtype))
    sizes = log(rows, columns, depth)
    skew = tuple(_ALIGNMENT_WEIGHT * value for value in log(alignment))
    flops = 2 * batch * rows * columns * depth
    layout = _layout(a) + _layout(b)
    fill = 1.0
    if len(a.shape) == 3:
        coordinates = (*log(batch), *sizes, *skew)
        names = [name, "bmm"]
    else:
        fill = _wave_fill(rows, columns, num_sms)
        coordinates = (*sizes, *skew, _FILL_WEIGHT * log2(fill))
        names = ["addmm" if "addmm" in name else "mm", "mm"]
    dtypes = dict.fromkeys((a.dtype, "bfloat16" if item_bytes(a.dtype) == 2 else "float32"))
    orders = dict.fromkeys((layout, "nt", "nn"))
    rules = [f"{kind} {dtype} {order}" for dtype in dtypes for order in orders for kind in names]
    return tuple(Work(rule, coordinates, flops, a.dtype, nbytes, fill=fill) for rule in dict.fromkeys(rules))


def _wave_fill(rows: int, columns: int, num_sms: int) -> float:
    """The share of the processors' time that computes results: waves are whole, tiles at the edge are not."""
    shares = []
    for tile_rows, tile_columns in _TILES:
        tiles = -(-rows // tile_rows) * -(-columns // tile_columns)
        waves = -(-tiles // num_sms)
        shares.append(rows * columns / (tile_rows * tile_columns * waves * num_sms))
    return max(shares)


def _layout(matrix: TensorRef) -> str:
    return "n" if matrix.stride[-1] == 1 or matrix.shape[-1] == 1 else "t"


def _alignment(matrix: TensorRef) -> int:
    """The power of two, up to 16 bytes, at which every row (or column, if those lie in memory) starts."""
    lead = matrix.stride[-2] if matrix.stride[-1] == 1 else matrix.stride[-1]
    return _row_alignment(lead, matrix.dtype)


def _row_alignment(elements: int, dtype: str) -> int:
    nbytes = elements * item_bytes(dtype)
    return min(nbytes & -nbytes, _VECTOR_BYTES) if nbytes else _VECTOR_BYTES


def grouped_matmul(op: Op) -> tuple[Work, ...]:
    """One product per expert; tokens are taken to be spread evenly."""
    tensors = tensors_of(op.args)
    a, b, out = tensors[0], tensors[1], op.outputs[0]
    groups = max(tensor.shape[0] for tensor in (a, b, out) if len(tensor.shape) == 3)
    if len(a.shape) == 2 and len(b.shape) == 2:  # the weights' gradient: depth is what is grouped
        rows, depth, columns = a.shape[0], a.shape[1] // groups, b.shape[1]
    elif len(a.shape) == 2:
        rows, depth, columns = a.shape[0] // groups, a.shape[1], b.shape[-1]
    else:
        rows, depth, columns = a.shape[1], a.shape[2], b.shape[-1] // (groups if len(b.shape) == 2 else 1)
    nbytes = total_bytes(tensors) + total_bytes(op.outputs)
    flops = 2 * groups * rows * columns * depth
    coordinates = log(groups, rows, columns, depth)
    kind = "weights" if len(out.shape) == 3 and len(a.shape) == 2 else "tokens"
    return tuple(
        Work(rule, coordinates, flops, a.dtype, nbytes) for rule in (f"_grouped_mm {kind}", "_grouped_mm tokens")
    )


def attention(op: Op) -> tuple[Work, ...]:
    """Fused attention by backend; causal counts half the products. Backward does five products for forward's two."""
    name = base_name(op).removeprefix("_scaled_dot_product_")
    is_backward = name.endswith("_backward")
    tensors = tensors_of(op.args)
    query, key, value = tensors[1:4] if is_backward else tensors[:3]
    batch, heads, length, dim = query.shape
    key_length, value_dim = key.shape[2], value.shape[3]
    backend = name.split("_")[0]
    is_causal, dropout, has_mask = _attention_options(op, backend, is_backward)
    products = 5 if is_backward else 2
    tile = _ATTENTION_TILES[backend]
    scores = batch * heads * _round_up(length, tile) * _round_up(key_length, tile)
    flops = products * scores * (dim + value_dim) // (2 if is_causal else 1)
    nbytes = total_bytes(tensors) + total_bytes(op.outputs)
    coordinates = log(length, key_length, batch * heads, heads / key.shape[1]) + tuple(2 * x for x in log(dim))
    direction = "backward" if is_backward else "forward"
    causal = "causal" if is_causal else "full"
    half = "half" if item_bytes(query.dtype) == 2 else "fp32"
    extra = (" mask" if has_mask else "") + (" dropout" if dropout else "")
    base = f"attention {backend} {half} {direction}"
    other = "full" if is_causal else "causal"
    rules = [f"{base} {causal}{extra}", f"{base} {causal}", f"{base} {other}{extra}", f"{base} {other}"]
    rules += [f"attention efficient {half} {direction} {causal}{option}" for option in (extra, "")]
    return tuple(Work(rule, coordinates, flops, query.dtype, nbytes) for rule in dict.fromkeys(rules))


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


_ATTENTION_TILES = {"cudnn": 128, "flash": 128, "efficient": 1}
"""Scores are computed in squares of this side, also where a sequence ends in the middle of one."""
_OPTION_PLACES = {  # backend, backward: where dropout, is_causal and the mask stand; None: there is no mask
    ("cudnn", False): (5, 6, 3), ("cudnn", True): (13, 14, 8),
    ("flash", False): (3, 4, None), ("flash", True): (10, 11, None),
    ("efficient", False): (5, 6, 3), ("efficient", True): (9, 11, 4),
}  # fmt: skip


def _attention_options(op: Op, backend: str, is_backward: bool) -> tuple[bool, bool, bool]:
    dropout_at, causal_at, mask_at = _OPTION_PLACES[backend, is_backward]
    dropout = argument(op, dropout_at, "dropout_p", 0.0)
    is_causal = argument(op, causal_at, "is_causal", False)
    mask = argument(op, mask_at, "attn_bias", None) if mask_at is not None else None
    return is_causal is True, isinstance(dropout, float) and dropout > 0, isinstance(mask, TensorRef)


_BATCH_WEIGHT = 0.5
"""How far apart two convolutions over as many pixels are of which one has twice the images: cuDNN chooses by it."""


def convolution(op: Op) -> tuple[Work, ...]:
    """As the product it is: (images x pixels) x (output channels) x (input channels x window), by layout and groups.

    Kernels that change the layout run before and after the product, so traffic adds to arithmetic.
    """
    is_backward = base_name(op).endswith("_backward")
    tensors = tensors_of(op.args)
    if is_backward:
        out, image, weight = tensors[:3]
    else:
        (image, weight), out = tensors[:2], op.outputs[0]
    first_option = 3 if is_backward else 2
    is_transposed = bool(argument(op, first_option + 4, "transposed", False))
    groups = argument(op, first_option + 6, "groups", 1)
    groups = groups if isinstance(groups, int) else 1
    pixels = (image if is_transposed else out).shape
    positions = pixels[0] * prod(pixels[2:])
    window = prod(weight.shape[2:])
    flops = 2 * positions * weight.shape[0] * weight.shape[1] * window
    passes = 1
    if is_backward:
        mask = argument(op, 10, "output_mask", ())
        passes = max(1, sum(value is True for value in mask[:2])) if isinstance(mask, tuple) else 2
    nbytes = total_bytes(tensors) * passes + total_bytes(op.outputs)
    nhwc = is_channels_last(image) or is_channels_last(weight)  # 1-d convolutions are made contiguous first
    stride = prod(image.shape[2:]) / max(prod(out.shape[2:]), 1)
    coordinates = (
        *log(positions, weight.shape[0], weight.shape[1]), *(2 * value for value in log(window)), *log(groups),
        *log(stride), 2.0 * (passes - 1), *(_BATCH_WEIGHT * value for value in log(pixels[0])),
    )  # fmt: skip
    kind = "transposed" if is_transposed else ("depthwise" if groups > 1 and weight.shape[1] == 1 else "plain")
    half = item_bytes(image.dtype) == 2
    direction = "backward" if is_backward else "forward"
    layouts = ("nhwc", "nchw") if nhwc else ("nchw", "nhwc")
    dtypes = dict.fromkeys((image.dtype, "bfloat16" if half else "float32"))
    rules = [f"convolution {direction} {kind} {dtype} {layout}" for dtype in dtypes for layout in layouts]
    rules += [f"convolution {direction} plain {dtype} nchw" for dtype in dtypes]
    flops_dtype = "tf32" if image.dtype == "float32" else image.dtype  # torch lets cuDNN round to TF32
    return tuple(
        Work(rule, coordinates, flops * passes, flops_dtype, nbytes, is_serial=True) for rule in dict.fromkeys(rules)
    )


def recurrent(op: Op) -> tuple[Work, ...]:
    """cuDNN's LSTM and GRU: a product and a pointwise kernel per step, layer and direction, one after the other."""
    name = base_name(op)
    is_backward = name.endswith("_backward")
    data = tensors_of(op.args)[0]
    weights = next(tensors_of(value) for value in op.args if isinstance(value, tuple))
    first_option = 10 if is_backward else 6
    layers, batch_first, both = (argument(op, first_option + place, "", 1) for place in (3, 4, 7))
    batch, steps = data.shape[:2] if batch_first else data.shape[1::-1]
    chains = int(bool(both)) + 1
    weight_elements = sum(tensor.numel for tensor in weights)
    flops = 2 * batch * steps * weight_elements * (2 if is_backward else 1)
    nbytes = total_bytes((data, *weights)) + total_bytes(op.outputs)
    kernels = 2 * steps * (layers if isinstance(layers, int) else 1) * chains
    coordinates = log(batch, weights[0].shape[-1], chains)
    sizes = dict.fromkeys((item_bytes(data.dtype), 4, 2))
    flops_dtype = "tf32" if data.dtype == "float32" else data.dtype  # as for convolutions
    return tuple(
        Work(f"{name} {size}", coordinates, flops, flops_dtype, nbytes, kernels, is_serial=True) for size in sizes
    )
