"""How a tensor lies in its storage, and how one view of a storage is had from another."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainfit.records import TensorRef

Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]  # dtype, shape, stride, offset


def geometry_of(tensor: torch.Tensor) -> Geometry:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def geometry_of_ref(ref: TensorRef) -> Geometry:
    return getattr(torch, ref.dtype), ref.shape, ref.stride, ref.offset


def has_geometry(tensor: torch.Tensor, expected: Geometry) -> bool:
    """Whether the tensor's elements lie as expected; the stride of a dimension of one element says nothing of that, and
    kernels set it as they like."""
    dtype, shape, stride, offset = expected
    return (
        tensor.dtype is dtype
        and tensor.shape == shape
        and all(tensor.stride(dim) == stride[dim] for dim, size in enumerate(shape) if size != 1)
        and tensor.storage_offset() == offset
    )


@dataclass(frozen=True, slots=True)
class Window:
    """A view of a storage, relative to the tensor that stands for the storage."""

    is_whole: bool  # the tensor itself
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # from the base's offset; from the storage's start when `is_absolute`
    is_absolute: bool

    def of(self, base: torch.Tensor) -> torch.Tensor:
        if self.is_whole:
            return base
        if base.dtype == self.dtype:
            offset = self.offset if self.is_absolute else self.offset + int(base.storage_offset())
            return torch.as_strided(base, self.shape, self.stride, offset)
        # A view with another element type, say of complex numbers as pairs.
        empty = torch.empty(0, dtype=self.dtype, device=base.device)
        return empty.set_(base.untyped_storage(), self.offset, self.shape, self.stride)


def window_on(ref: TensorRef, base: TensorRef | None) -> Window:
    """How `ref` looks from `base`; None when the base is a submodule's output, whose geometry no record has."""
    is_whole = base is not None and geometry_of_ref(ref) == geometry_of_ref(base)
    is_absolute = base is None or ref.dtype != base.dtype
    offset = ref.offset if base is None or is_absolute else ref.offset - base.offset
    return Window(is_whole, getattr(torch, ref.dtype), ref.shape, ref.stride, offset, is_absolute)
