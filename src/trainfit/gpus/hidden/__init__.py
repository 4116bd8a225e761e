"""Memory that kernels take from the allocator without the dispatcher seeing it: library workspaces and temporaries.

In: a GPU and a torch version. Out: per op, the bytes of each hidden buffer in the order of the kernel's allocations.
One file per family; every rule says where it comes from: the source file that allocates the buffer, and, where there is
one, the probe on a GPU that confirmed it (benchmarks/probe_hidden.py, probe_calls.py; H200, torch 2.11). An op without
a rule takes nothing; tests/test_hidden_calls.py names those whose buffers are not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden import (
    attention,
    blas,
    convolution,
    embedding,
    fourier,
    images,
    indexing,
    linear_algebra,
    losses,
    neighbours,
    norms,
    pointwise,
    recurrent,
    reductions,
    searching,
    sharding,
    sorting,
)
from trainfit.gpus.hidden.tensors import Rule
from trainfit.records import Op

RULES: dict[str, Rule] = {
    **attention.RULES,
    **convolution.RULES,
    **embedding.RULES,
    **fourier.RULES,
    **images.RULES,
    **indexing.RULES,
    **linear_algebra.RULES,
    **losses.RULES,
    **neighbours.RULES,
    **norms.RULES,
    **pointwise.RULES,
    **recurrent.RULES,
    **reductions.RULES,
    **searching.RULES,
    **sharding.RULES,
    **sorting.RULES,
}


@dataclass(frozen=True, slots=True)
class CudaHiddenMemory:
    """Hidden memory of CUDA kernels on one GPU under one torch version."""

    gpu: Gpu
    torch_version: tuple[int, int]

    def workspaces(self, op: Op) -> tuple[tuple[str, int], ...]:
        return blas.workspaces(op, self.gpu, self.torch_version)

    def temporaries(self, op: Op) -> tuple[int, ...]:
        rule = RULES.get(op.name)
        return rule(op, self.gpu) if rule else blas.temporaries(op, self.gpu, self.torch_version)


def hidden_memory(gpu: Gpu, torch_version: str) -> CudaHiddenMemory:
    major, minor = torch_version.split(".")[:2]
    return CudaHiddenMemory(gpu, (int(major), int(minor)))
