"""A GPU that is not there: inside `ghost_gpu("h200")` programs written for cuda run, and nothing is computed.

In: a GPU's name from the catalogue. Out: a context. Afterwards torch is as it was, also after an error.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch

from trainfit.ghost.answers import assume_size as assume_size
from trainfit.ghost.autocast import WeightCastCache, autocast_kernels
from trainfit.ghost.cuda_api import cuda_answers
from trainfit.ghost.dispatch import GhostMode, resizes_told_to
from trainfit.ghost.routes import CUDA_KERNELS_OVER_COMPOSITES, composite_routes, conversion_routes, never_reached
from trainfit.ghost.tensor import is_ghost
from trainfit.ghost.triton_kernels import launches_told_to
from trainfit.ghost.values import forget_all
from trainfit.gpus.catalogue import Gpu, find_gpu


@contextlib.contextmanager
def ghost_gpu(gpu: str | Gpu) -> Iterator[GhostMode]:
    """A context in which `cuda` is the named GPU. Tensors made there have shapes and no data."""
    target = find_gpu(gpu) if isinstance(gpu, str) else gpu
    casts = WeightCastCache()
    mode = GhostMode()
    with (
        _kernels_over_torch(target, casts),
        cuda_answers(target, mode.streams, casts.clear),
        resizes_told_to(mode),
        launches_told_to(mode.launch, is_ghost),
        mode,
    ):
        try:
            yield mode
        finally:
            forget_all()


@contextlib.contextmanager
def _kernels_over_torch(gpu: Gpu, casts: WeightCastCache) -> Iterator[None]:
    """Our kernels over torch's for the AutogradCUDA and AutocastCUDA keys; torch's come back when this closes."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that kernels are overridden, which is the point
        for name, route in composite_routes(gpu, version).items():  # type: ignore[arg-type]
            library.impl(name, route, "AutogradCUDA", allow_override=True)
        for name, route in conversion_routes().items():
            for key in ("AutogradCUDA", "AutogradCPU", "AutogradMeta"):
                library.impl(name, route, key, allow_override=True)
        for name in CUDA_KERNELS_OVER_COMPOSITES:
            library.impl(name, never_reached, "CUDA", allow_override=True)
        for name, kernel in autocast_kernels(casts).items():
            library.impl(name, kernel, "AutocastCUDA", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
