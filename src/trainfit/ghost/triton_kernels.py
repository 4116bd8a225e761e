"""Triton kernels launched on tensors without data: nothing runs, and a listener hears of it.

`kernel[grid](...)` hands addresses to the driver, past the dispatcher; a ghost has none to give. What a kernel writes
is not known before it is compiled, so a launch stands for an op, named after the kernel, whose arguments are its
tensors, and that may have written each of them. Inside a custom op's own kernel a launch is part of that op. Launches
on real tensors go their way. Triton must have been imported when the context opens.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from trainfit.ghost.tensor import is_inside_kernel

NAMESPACE = "triton"


@dataclass(frozen=True)
class TritonKernel:
    """Stands for a kernel where a listener expects an op."""

    name: str
    namespace = NAMESPACE

    def __str__(self) -> str:
        return f"{NAMESPACE}.{self.name}.default"


@contextlib.contextmanager
def launches_told_to(
    tell: Callable[[TritonKernel, tuple[torch.Tensor, ...]], None], is_without_data: Callable[[torch.Tensor], bool]
) -> Iterator[None]:
    """Within it, a launch on tensors without data is told (kernel, its tensors) instead of being done."""
    triton = sys.modules.get("triton.runtime.jit")
    if triton is None:
        yield
        return
    launcher_of = triton.KernelInterface.__getitem__

    def getitem(kernel: Any, grid: Any) -> Callable[..., Any]:
        launch = launcher_of(kernel, grid)

        def launch_or_tell(*args: Any, **kwargs: Any) -> Any:
            tensors = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
            if not any(is_without_data(tensor) for tensor in tensors):
                return launch(*args, **kwargs)
            if not is_inside_kernel():
                tell(TritonKernel(_name(kernel)), tensors)
            return None

        return launch_or_tell

    with mock.patch.object(triton.KernelInterface, "__getitem__", getitem):
        yield


def _name(kernel: Any) -> str:
    """The name of the function; autotuners and heuristics have it inside them."""
    while not hasattr(kernel, "__name__"):
        kernel = kernel.fn
    return str(kernel.__name__)
