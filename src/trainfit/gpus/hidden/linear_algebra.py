"""Sums of products of three tensors, triangular systems and Cholesky factors of many matrices at once.

Sources: Linear.cpp (`_trilinear`), linalg/BatchLinearAlgebra.cpp and linalg/BatchLinearAlgebraLib.cpp; confirmed by an
H200 (benchmarks/results/hidden_calls_h200.jsonl.gz). The workspaces of other factorizations, and of one matrix, are
cuSOLVER's choice: they have no rules.
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.tensors import Rule, argument, integers, item_bytes, product, tensor_argument
from trainfit.records import Op

_POINTER_BYTES = 8
_LOOPED_BATCH, _LOOPED_ROWS, _LARGEST_BATCHED_ROWS = 8, 64, 512
"""`triangular_solve_kernel`: few and large matrices are solved one by one, larger ones are left to MAGMA."""


def _trilinear(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """One place along the unrolled dimension after the other: the first two factors, summed over what the third has
    not, then their product with the third, which is added to the result."""
    factors = [tensor_argument(op, index) for index in range(3)]
    expanded = [integers(op.args[index]) for index in range(3, 6)]
    summed, unrolled = integers(op.args[6]), integers(argument(op, 7, "unroll_dim", 1))[0]
    num_dims = len(factors[0].shape) + len(expanded[0])
    shapes = []
    for factor, missing in zip(factors, expanded, strict=True):
        sizes = iter(factor.shape)
        shapes.append([1 if dim in missing else next(sizes) for dim in range(num_dims)])
    sizes_of_all = [1 if dim == unrolled else max(shape[dim] for shape in shapes) for dim in range(num_dims)]
    item = item_bytes(factors[0].dtype)
    first = item * product([s for dim, s in enumerate(sizes_of_all) if dim not in summed or dim not in expanded[2]])
    return (first, item * product([s for dim, s in enumerate(sizes_of_all) if dim not in summed]))


def _solve_triangular(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Pointers to the matrices of both sides, as cuBLAS has them solved all at once."""
    matrices = tensor_argument(op, 0)
    batch, rows = product(matrices.shape[:-2]), matrices.shape[-1]
    is_looped = batch <= _LOOPED_BATCH and rows >= _LOOPED_ROWS
    return () if is_looped or rows > _LARGEST_BATCHED_ROWS else (_POINTER_BYTES * batch,) * 2


def _cholesky(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Pointers to the matrices, which cuSOLVER factorizes all at once."""
    batch = product(tensor_argument(op, 0).shape[:-2])
    return (_POINTER_BYTES * batch,) if batch > 1 else ()


RULES: dict[str, Rule] = {
    "aten._trilinear.default": _trilinear,
    "aten.linalg_solve_triangular.default": _solve_triangular,
    "aten.linalg_cholesky_ex.default": _cholesky,
}
