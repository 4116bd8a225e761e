"""Memory that kernels take from the allocator without the dispatcher seeing it: library workspaces and temporaries.

In: a GPU and a torch version. Out: per op, the bytes of each hidden buffer. Every rule says where it comes from: the
source file that allocates it, and the probe on a GPU that confirmed it (benchmarks/probe_hidden.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainfit.gpus.catalogue import Gpu
from trainfit.records import Op

MIB = 2**20

# Ops that take a cuBLAS handle; the handle's workspace comes with the first of them on a thread (FACTS 5).
BLAS_OPS = frozenset(
    f"aten.{name}" for name in "mm.default addmm.default bmm.default baddbmm.default addmv.default mv.default".split()
)


@dataclass(frozen=True, slots=True)
class CudaHiddenMemory:
    """Hidden memory of CUDA kernels on one GPU under one torch version."""

    gpu: Gpu
    torch_version: tuple[int, int]

    def workspace_bytes(self, op: Op) -> int:
        return self._blas_workspace_bytes() if op.name in BLAS_OPS else 0

    def temporaries(self, op: Op) -> tuple[int, ...]:
        return ()

    def _blas_workspace_bytes(self) -> int:
        """torch's default workspace (CublasHandlePool.cpp): 32 MiB on Hopper and later, else 8.125 MiB."""
        major = self.gpu.compute_capability[0]
        if self.gpu.vendor == "amd":
            return 32 * MIB
        if major == 9 or (major > 9 and self.torch_version >= (2, 12)):
            return 32 * MIB
        return 4096 * 1024 * 2 + 16 * 1024 * 8


def hidden_memory(gpu: Gpu, torch_version: str) -> CudaHiddenMemory:
    major, minor = torch_version.split(".")[:2]
    return CudaHiddenMemory(gpu, (int(major), int(minor)))
