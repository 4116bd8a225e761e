"""`Ghost`: a tensor with shape, stride and dtype but no data that believes it is on `cuda:0`.

Its dispatch keys say CUDA, so CUDA composites, autograd and autocast run for it; its C++ device says meta, so the
autograd engine and the device guards need no GPU. Python's view of the device says cuda, except inside a meta kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

from trainfit import torch_compat

CUDA = torch.device("cuda:0")
META = torch.device("meta")


class _Where:
    """Whether the code now running is a meta kernel, which must see the meta device."""

    in_kernel = False


class Ghost(torch.Tensor):
    """A tensor that is nowhere. Made only by the ghost GPU's dispatch mode."""

    __module__ = "torch"  # libraries that work with arrays of several kinds go by it (opt_einsum)

    stated_value: float | None = None
    """What `.item()` answers, where that is neither known nor the usual answer (answers.py)."""
    stated_count: tuple[int, int] | None = None
    """How many elements are nonzero, if that was stated, and at which version of the tensor."""
    written_through_at: str | None = None
    """The line that used it as a mask to write, whose backward asks how many elements that were."""

    @staticmethod
    def __new__(cls, meta: torch.Tensor, requires_grad: bool = False) -> Ghost:
        return torch_compat.make_cuda_keyed_subclass(cls, meta, requires_grad, CUDA)  # type: ignore[return-value]

    __torch_function__ = torch_compat.disabled_torch_function  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return META if _Where.in_kernel else CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return not _Where.in_kernel

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return _Where.in_kernel

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        """A number that two tensors share only if they start at the same place: programs compare these."""
        return self.untyped_storage()._cdata + int(self.storage_offset()) * self.element_size()

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Through `torch.tensor`, which the ghost GPU has in hand; torch's own works below the dispatcher."""
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or CUDA, **options)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Ghost(shape={tuple(self.shape)}, dtype={self.dtype})"

    def __deepcopy__(self, memo: dict[int, object]) -> Ghost:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[return-value]
        with torch.no_grad():
            copy = self.clone()
        copy.__dict__.update(self.__dict__)  # nn.Parameter marks a subclass by an attribute
        copy.requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        return copy  # type: ignore[return-value]


def is_ghost(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, Ghost)


@contextlib.contextmanager
def data_may_move() -> Iterator[None]:
    """`parameter.data = ghost`, as `module.to("cuda")` writes it, makes the parameter a ghost, and back for the CPU.

    Torch changes what a tensor is made of and not its class, which is all that ghosts know themselves by.
    """
    plain = torch.Tensor.data

    def write(tensor: torch.Tensor, value: torch.Tensor) -> None:
        plain.__set__(tensor, value)  # type: ignore[attr-defined]
        if isinstance(value, Ghost) and type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer):
            is_parameter = isinstance(tensor, nn.Parameter)
            tensor.__class__ = Ghost
            if is_parameter:
                tensor._is_param = True  # by which nn.Parameter knows those of other classes
        elif isinstance(tensor, Ghost) and type(value) is torch.Tensor and value.is_cpu:
            tensor.__class__ = nn.Parameter if isinstance(tensor, nn.Parameter) else torch.Tensor  # type: ignore[assignment]

    read = plain.__get__  # type: ignore[attr-defined]
    with mock.patch.object(torch.Tensor, "data", property(read, write)):
        yield


def is_inside_kernel() -> bool:
    return _Where.in_kernel


class inside_kernel(torch_compat.MetaKernels):
    """Meta kernels run here: no dispatch modes, and ghosts say they are on meta."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        super().__enter__()
        self._before, _Where.in_kernel = _Where.in_kernel, True

    def __exit__(self, *error: object) -> None:
        _Where.in_kernel = self._before
        super().__exit__(*error)
