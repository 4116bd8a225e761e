"""Matrix products: the workspaces of cuBLAS and cuBLASLt, which stay with the thread's handle.

They come after the output of the first product that needs them (recordings in tests/data). cuBLASLt serves `addmm` with
a bias vector; under torch 2.11 it has a workspace of its own besides that of cuBLAS, which every handle gets first.
Sources: CublasHandlePool.cpp, Blas.cpp; FACTS 5.
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.records import Op, TensorRef

MIB = 2**20
CUBLAS, CUBLASLT = "cublas", "cublaslt"

_PRODUCTS = frozenset(
    f"aten.{name}"
    for name in "mm.default addmm.default bmm.default baddbmm.default addmv.default mv.default dot.default".split()
)


def workspaces(op: Op, gpu: Gpu, torch_version: tuple[int, int]) -> tuple[tuple[str, int], ...]:
    if op.name not in _PRODUCTS:
        return ()
    cublas = (CUBLAS, _cublas_bytes(gpu, torch_version))
    return (cublas, (CUBLASLT, MIB)) if _uses_cublaslt(op) else (cublas,)


def _uses_cublaslt(op: Op) -> bool:
    """`addmm` with a dense bias vector and an output of more than one row and column (Blas.cpp, addmm_out_cuda_impl)."""
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
