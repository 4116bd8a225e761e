"""Calls of ops and layouts that nets seldom have, for probe_calls.py: what a kernel copies or counts on the way.

Out: `Call`s. Each op comes in a few types, sizes around those at which its kernels change, and tensors that do not lie
as the kernel wants them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from trainfit.calibrate.calls import Call, read_call

ROWS = (
    (64,),
    (70_000,),
    (3_000_000,),
    (1000, 64),
    (64, 1000),
    (100, 5000),
    (200, 5000),
    (3, 70_000),
    (2, 3, 1_200_000),
)
FLOATS = ("float32", "bfloat16", "float16")
IMAGES = ((8, 3, 33, 40), (8, 64, 32, 32), (64, 32, 32), (2, 20, 1, 1))
LAST = {3: (1, 2, 0), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
"""Orders of dimensions in which channels come last."""


def tensor(dtype: str, shape: tuple[int, ...], order: tuple[int, ...] | None = None) -> str:
    """As a description; `order` is that in which its dimensions lie, the outermost first."""
    text = f"{dtype}[{','.join(map(str, shape))}]"
    if order is None:
        return text
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim], step = step, step * shape[dim]
    return f"{text}{{{','.join(map(str, strides))}}}"


def layouts(dtype: str, shape: tuple[int, ...]) -> list[str]:
    """As it comes, turned around, and with channels last."""
    found = [tensor(dtype, shape)]
    if len(shape) > 1:
        found.append(tensor(dtype, shape, tuple(reversed(range(len(shape))))))
    if len(shape) in LAST:
        found.append(tensor(dtype, shape, LAST[len(shape)]))
    return found


def call(name: str, *args: Any, **kwargs: Any) -> Call:
    return read_call(name if name.count(".") == 2 else f"aten.{name}", list(args), kwargs)


def of_rows() -> Iterator[Call]:
    """Sorted orders, extremes, sums on the way, of all and of the last or first dimension."""
    for shape, dtype in product(ROWS, (*FLOATS, "int64")):
        is_float = dtype != "int64"
        for x, dim in product(layouts(dtype, shape), {0, len(shape) - 1}):
            yield call("sort.default", x, dim, False)
            yield call("sort.stable", x, dim=dim, descending=True, stable=True)
            yield call("median.dim", x, dim, False)
            yield call("mode.default", x, dim, False)
            yield call("kthvalue.default", x, 2, dim, False)
            yield call("topk.default", x, 5, dim, True, True)
            for name in ("max.dim", "min.dim"):
                yield call(name, x, dim, False)
            for name in ("argmax.default", "argmin.default", "cummax.default", "cummin.default", "cumsum.default"):
                yield call(name, x, dim)
            yield call("cumprod.default", x, dim)
            for name in ("amax.default", "amin.default", "any.dims", "all.dims"):
                yield call(name, x, [dim], False)
            yield call("aminmax.default", x, dim=dim)
            yield call("any.dim", x, dim, False)
            yield call("all.dim", x, dim, False)
            yield call("prod.dim_int", x, dim, False)
            if is_float:
                yield call("nanmedian.dim", x, dim, False)
                yield call("logcumsumexp.default", x, dim)
                yield call("logsumexp.default", x, [dim], False)
                yield call("norm.ScalarOpt_dim", x, 2, [dim], False)
                for name in ("var.correction", "std.correction", "var_mean.correction", "std_mean.correction"):
                    yield call(name, x, [dim], correction=1)
        for x in layouts(dtype, shape):
            for name in ("median", "max", "min", "any", "all", "prod", "argmax", "argmin", "aminmax", "nonzero"):
                yield call(f"{name}.default", x)
            yield call("equal.default", x, tensor(dtype, shape))
            if is_float:
                yield call("nanmedian.default", x)
                yield call("norm.Scalar", x, 2)


def of_places() -> Iterator[Call]:
    """Masks, repeats, buckets, indices that add up."""
    for shape, dtype in product(((70_000,), (1000, 64), (16, 128, 256)), ("float32", "bfloat16", "int64")):
        masks = layouts("bool", shape) + ([f"bool[{shape[-1]}]"] if len(shape) > 1 else [])
        for x, mask in product(layouts(dtype, shape), masks):
            yield call("masked_select.default", x, mask)
            yield call("masked_fill.Scalar", x, mask, 0)
            yield call("where.self", mask, x, tensor("float32", shape))
        yield call("index.Tensor", tensor(dtype, shape), [f"bool[{','.join(map(str, shape))}]"])
        yield call("index.Tensor", tensor(dtype, shape), [f"bool[{shape[0]}]"])
        yield call("masked_scatter_.default", tensor(dtype, shape), tensor("bool", shape), tensor(dtype, shape))
    for count, dtype in product((64, 5000, 3_000_000), ("int64", "int32")):
        yield call("repeat_interleave.Tensor", f"{dtype}[{count}]")
    for count, bounds in product((64, 70_000, 3_000_000), ("float32[100]", "int64[100]", "float32[100]{2}")):
        yield call("bucketize.Tensor", f"float32[{count}]", bounds)
        yield call("bucketize.Tensor", f"float32[{count // 2},2]{{1,{count // 2}}}", bounds)
        yield call("searchsorted.Tensor", bounds, f"float32[{count}]")
    for rows, width, count, dtype in product((1000, 50_257), (1, 64, 768), (64, 4096, 200_000), FLOATS[:2]):
        values = tensor(dtype, (count, width))
        turned = tensor(dtype, (count, width), (1, 0))
        for one in {values, turned}:
            args = (tensor(dtype, (rows, width)), [f"int64[{count}]"], one, True)
            yield call("index_put.default", *args)
            yield call("_index_put_impl_.default", *args, True)
        index = tensor("int64", (count, width))
        for reduce in ("sum", "mean", "amax"):
            table, source = tensor(dtype, (rows, width)), tensor(dtype, (count, width))
            yield call("scatter_reduce.two", table, 0, index, source, reduce)
            yield call("scatter_reduce_.two", table, 0, index, source, reduce, include_self=False)


def of_images() -> Iterator[Call]:
    """Resampled, pooled, padded; results and gradients in every layout."""
    for shape, dtype in product(IMAGES, FLOATS[:2]):
        if len(shape) != 4:
            continue
        larger = (*shape[:2], 2 * shape[2], 2 * shape[3])
        for x, gradient in zip(layouts(dtype, shape), layouts(dtype, larger), strict=True):
            sizes, result = list(shape), list(larger[2:])
            for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
                yield call(f"{name}.default", x, result)
                yield call(f"{name}_backward.default", gradient, result, sizes)
            for name in (
                "upsample_bilinear2d",
                "upsample_bicubic2d",
                "_upsample_bilinear2d_aa",
                "_upsample_bicubic2d_aa",
            ):
                yield call(f"{name}.default", x, result, False)
                yield call(f"{name}_backward.default", gradient, result, sizes, False)
            yield call("pixel_shuffle.default", tensor(dtype, (shape[0], 4 * shape[1], *shape[2:])), 2)
            for pad in ("reflection", "replication"):
                yield call(f"{pad}_pad2d.default", x, [0, 0, 0, 0] if 1 in shape[2:] else [1, 2, 2, 1])
            yield call("adaptive_max_pool2d.default", x, [1, 1])
            yield call("_adaptive_avg_pool2d.default", x, [1, 1])
            yield call("im2col.default", x, [1, 1], [1, 1], [0, 0], [1, 1])
            yield call("im2col.default", x, [3, 3], [1, 1], [1, 1], [1, 1])
    for shape, dtype in product(((4, 8, 100), (4, 64, 1024)), FLOATS[:2]):
        longer = (*shape[:2], 2 * shape[2])
        for x, gradient in zip(layouts(dtype, shape)[:2], layouts(dtype, longer)[:2], strict=True):
            for name in ("upsample_nearest1d", "_upsample_nearest_exact1d"):
                yield call(f"{name}.default", x, [longer[2]])
                yield call(f"{name}_backward.default", gradient, [longer[2]], list(shape))
            yield call("upsample_linear1d.default", x, [longer[2]], False)
            yield call("upsample_linear1d_backward.default", gradient, [longer[2]], list(shape), False)
            yield call("reflection_pad1d.default", x, [3, 3])
    shape, larger = (2, 8, 8, 16, 16), (2, 8, 16, 32, 32)
    for dtype in FLOATS[:2]:
        for x, gradient in zip(layouts(dtype, shape), layouts(dtype, larger), strict=True):
            for name in ("upsample_nearest3d", "_upsample_nearest_exact3d"):
                yield call(f"{name}.default", x, list(larger[2:]))
                yield call(f"{name}_backward.default", gradient, list(larger[2:]), list(shape))
            yield call("upsample_trilinear3d.default", x, list(larger[2:]), False)
            yield call("upsample_trilinear3d_backward.default", gradient, list(larger[2:]), list(shape), False)
            yield call("avg_pool3d.default", x, [2, 2, 2], [2, 2, 2])
            yield call("max_pool3d_with_indices.default", x, [2, 2, 2], [2, 2, 2])
            yield call("adaptive_max_pool3d.default", x, [1, 1, 1])


def of_losses() -> Iterator[Call]:
    for shape, dtype, reduction in product(((70_000,), (1000, 64), (16, 128, 256)), FLOATS, (0, 1, 2)):
        for x in layouts(dtype, shape):
            target = tensor(dtype, shape)
            for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"):
                options = (1.0,) if name in ("smooth_l1_loss", "huber_loss") else ()
                yield call(f"{name}.default", x, target, reduction, *options)
                gradient = target if reduction == 0 else f"{dtype}[]"
                yield call(f"{name}_backward.default", gradient, x, target, reduction, *options)
            yield call("binary_cross_entropy.default", x, target, None, reduction)
            yield call("binary_cross_entropy_with_logits.default", x, target, None, None, reduction)
            weight = f"{dtype}[{shape[-1]}]"
            yield call("binary_cross_entropy_with_logits.default", x, target, None, weight, reduction)
    for steps, batch, labels, length in ((50, 4, 30, 10), (500, 16, 32, 100), (1000, 32, 1000, 200)):
        inputs = (f"float32[{steps},{batch},{labels}]", f"int64[{batch},{length}]")
        yield call("_ctc_loss.default", *inputs, [steps] * batch, [length] * batch, 0, False)
        for is_zeroed in (False, True):
            alpha = f"float32[{batch},{steps},{2 * length + 1}]"
            lengths = [steps] * batch, [length] * batch
            row = f"float32[{batch}]"
            yield call("_ctc_loss_backward.default", row, *inputs, *lengths, row, alpha, 0, is_zeroed)


def of_pairs() -> Iterator[Call]:
    """Distances, and other decompositions."""
    for shape, dtype in product(((64, 32), (4, 300, 16)), ("float32",)):
        for p, mode in product((1.0, 2.0, 3.0), (1, 2)):
            for x in layouts(dtype, shape)[:2]:
                yield call("_cdist_forward.default", x, tensor(dtype, shape), p, mode)
    for count in (64, 2000):
        yield call("_pdist_forward.default", f"float32[{count},16]", 2.0)
        yield call("_euclidean_dist.default", f"float32[{count},16]", f"float32[{count},16]")
    for batch, size in product((1, 8), (4, 64, 300)):
        square = f"float32[{batch},{size},{size}]"
        yield call("linalg_inv_ex.default", square)
        yield call("linalg_cholesky_ex.default", square)
        yield call("linalg_solve_triangular.default", square, square, upper=True)
        yield call("_linalg_solve_ex.default", square, square)
        yield call("linalg_lu_factor_ex.default", square)
        yield call("_linalg_det.default", square)
        yield call("_linalg_svd.default", square)
        yield call("_linalg_eigh.default", square)
        yield call("linalg_qr.default", square)


def hidden_calls() -> Iterator[Call]:
    for family in (of_rows, of_places, of_images, of_losses, of_pairs):
        yield from family()
