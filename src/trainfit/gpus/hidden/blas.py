"""Matrix products: the workspaces of cuBLAS and cuBLASLt.

They come after the output of the product (recordings in tests/data) and stay with the thread's handle. cuBLASLt serves
`addmm` with a bias vector; up to torch 2.11 it has a workspace of its own besides that of cuBLAS, which every handle
gets first; later they share one (pytorch #175879). From 2.14 on a workspace lives for one call only (pytorch #194311).
Source: CublasHandlePool.cpp, Blas.cpp. Measured: 2.11 on an H200; the rest is from the sources.
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.tensors import is_contiguous, nbytes
from trainfit.records import Op, TensorRef

MIB = 2**20
CUBLAS, CUBLASLT = "cublas", "cublaslt"

_PRODUCTS = frozenset(
    f"aten.{name}"
    for name in "mm.default addmm.default bmm.default baddbmm.default addmv.default mv.default dot.default"
    " _euclidean_dist.default".split()
)


_SHARED_SINCE = (2, 12)
_PER_CALL_SINCE = (2, 14)


def workspaces(op: Op, gpu: Gpu, torch_version: tuple[int, int]) -> tuple[tuple[str, int], ...]:
    if op.name not in _PRODUCTS or torch_version >= _PER_CALL_SINCE:
        return ()
    cublas = (CUBLAS, _cublas_bytes(gpu, torch_version))
    has_two = torch_version < _SHARED_SINCE and _uses_cublaslt(op)
    return (cublas, (CUBLASLT, MIB)) if has_two else (cublas,)


def temporaries(op: Op, gpu: Gpu, torch_version: tuple[int, int]) -> tuple[int, ...]:
    if op.name not in _PRODUCTS:
        return ()
    copies = tuple(nbytes(operand) for operand in _operands(op) if not _is_readable(operand))
    if torch_version < _PER_CALL_SINCE:
        return copies
    return (*copies, MIB if _uses_cublaslt(op) else _cublas_bytes(gpu, torch_version))


def _operands(op: Op) -> list[TensorRef]:
    """The matrices of a product, without what it is added to."""
    adds = op.name.startswith(("aten.addmm", "aten.baddbmm"))
    operands = [arg for arg in op.args if isinstance(arg, TensorRef)][adds:]
    return [operand for operand in operands if len(operand.shape) >= 2]


def _is_readable(matrix: TensorRef) -> bool:
    """cuBLAS reads rows or columns that lie one after the other; of anything else, such as an expanded gradient, torch
    makes a contiguous copy first (prepare_matrix_for_cublas in Blas.cpp)."""
    (rows, columns), (down, right) = matrix.shape[-2:], matrix.stride[-2:]
    is_row_major = right == 1 and down >= max(1, columns)
    is_column_major = down == 1 and right >= max(1, rows)
    return is_row_major or is_column_major or is_contiguous(matrix)


def _uses_cublaslt(op: Op) -> bool:
    """`addmm` with a dense bias vector and an output of more than one row and column (Blas.cpp)."""
    if op.name != "aten.addmm.default":
        return False
    bias, left, right = op.args[:3]
    if not (isinstance(bias, TensorRef) and isinstance(left, TensorRef) and isinstance(right, TensorRef)):
        return False
    scales = dict(op.kwargs)
    is_bias = len(bias.shape) == 1 and bias.stride == (1,) and bias.shape[0] == right.shape[1]
    return is_bias and scales.get("beta", 1) == 1 and min(left.shape[0], *right.shape) > 1


def _cublas_bytes(gpu: Gpu, torch_version: tuple[int, int]) -> int:
    """torch's default: 32 MiB on Hopper and AMD, since 2.12 also on Blackwell; else 2 x 4 MiB + 8 x 16 KiB."""
    major = gpu.compute_capability[0]
    if gpu.vendor == "amd" or major == 9 or (major > 9 and torch_version >= (2, 12)):
        return 32 * MIB
    return 2 * 4096 * 1024 + 8 * 16 * 1024
