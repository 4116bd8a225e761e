"""A GPU that is not there: inside `ghost_gpu("h200")` programs written for cuda run, and nothing is computed.

In: a GPU's name from the catalogue. Out: a context. Afterwards torch is as it was, also after an error.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from trainfit import torch_compat
from trainfit.ghost.answers import assume_size as assume_size
from trainfit.ghost.answers import forget_guesses
from trainfit.ghost.answers import hint_of_guesses as hint_of_guesses
from trainfit.ghost.autocast import WeightCastCache, autocast_kernels
from trainfit.ghost.cuda_api import cuda_answers
from trainfit.ghost.dispatch import GhostMode, resizes_told_to
from trainfit.ghost.routes import CUDA_KERNELS_OVER_COMPOSITES, composite_routes, conversion_routes, never_reached
from trainfit.ghost.tensor import data_may_move, is_ghost
from trainfit.ghost.triton_kernels import launches_told_to
from trainfit.ghost.values import forget_all
from trainfit.gpus.catalogue import Gpu, find_gpu


@contextlib.contextmanager
def ghost_gpu(gpu: str | Gpu, torch_version: str = torch.__version__) -> Iterator[GhostMode]:
    """A context in which `cuda` is the named GPU. Tensors made there have shapes and no data.

    Kernels that versions of torch choose differently are those of `torch_version`.
    """
    target = find_gpu(gpu) if isinstance(gpu, str) else gpu
    casts = WeightCastCache()
    mode = GhostMode()
    forget_guesses()
    with (
        _kernels_over_torch(target, torch_version, casts),
        cuda_answers(target, mode.streams, casts.clear),
        data_may_move(),
        resizes_told_to(mode),
        launches_told_to(mode.launch, is_ghost),
        torch_compat.higher_order_ops_refused(),
        _eagerly(),
        mode,
    ):
        try:
            yield mode
        finally:
            forget_all()


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """What was compiled runs as it was written, and nothing is compiled here."""
    is_in_use = "torch._dynamo" in sys.modules  # asking for a stance would import it
    stance = torch.compiler.set_stance("force_eager") if is_in_use else contextlib.nullcontext()
    with stance, mock.patch("torch.compile", _uncompiled):
        yield


def _uncompiled(model: Any = None, **options: Any) -> Any:
    """In place of `torch.compile`, as a function and as a decorator."""
    return (lambda model: model) if model is None else model


@contextlib.contextmanager
def _kernels_over_torch(gpu: Gpu, torch_version: str, casts: WeightCastCache) -> Iterator[None]:
    """Our kernels over torch's for the AutogradCUDA and AutocastCUDA keys; torch's come back when this closes."""
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that kernels are overridden, which is the point
        for name, route in composite_routes(gpu, (major, minor)).items():
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
