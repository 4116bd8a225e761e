"""The only file that touches private torch symbols; tested on torch 2.11 (CUDA) and 2.13 (CPU).

Each name below wraps one private symbol, so that a change in torch is mended here and nowhere else.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo  # reads torch.cuda when first imported, which optimizers do: it must see the real one
from torch._prims_common import suggest_memory_format as suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import _engine_run_backward
from torch.optim.optimizer import _foreach_supported_types as _optimizer_foreach_types
from torch.utils._device import _device_constructors
from torch.utils._foreach_utils import _foreach_supported_types as _utility_foreach_types
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_unflatten as tree_unflatten

FOREACH_TYPE_LISTS: tuple[list[type], ...] = (_optimizer_foreach_types, _utility_foreach_types)  # type: ignore[assignment]
"""Lists that name the tensor types for which optimizers and clipping choose multi-tensor kernels."""

device_constructors = _device_constructors
disabled_torch_function = torch._C._disabled_torch_function_impl
ENGINE_CODE = _engine_run_backward.__code__
current_autograd_node: Callable[[], Any] = torch._C._current_autograd_node
next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose handler torch does not wrap against dynamo, which costs at every op."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def make_cuda_keyed_subclass(cls: type, meta: torch.Tensor, requires_grad: bool, device: torch.device) -> torch.Tensor:
    """A subclass instance on meta storage whose dispatch keys are those of `device`."""
    return torch.Tensor._make_subclass(cls, meta, requires_grad, dispatch_device=False, device_for_backend_keys=device)


@contextlib.contextmanager
def meta_kernels() -> Iterator[None]:
    """Run ops by their meta kernels whatever the tensors' keys, with no dispatch mode in between."""
    with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
        torch._C._set_meta_in_tls_dispatch_include(True)
        yield


@contextlib.contextmanager
def host_kernels() -> Iterator[None]:
    """Run ops on CPU tensors for real, unseen by any dispatch mode, also from inside a meta kernel."""
    with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
        torch._C._set_meta_in_tls_dispatch_include(False)
        yield


@contextlib.contextmanager
def without_autocast_cuda() -> Iterator[None]:
    """Below the CUDA autocast layer, as its kernels are when they call on."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
    with torch._C._ExcludeDispatchKeyGuard(keys):
        yield


def ops_with_kernel(dispatch_key: str) -> list[str]:
    """Names of all aten ops ("mm", "sum.dim_IntList") that have a kernel of their own for the key."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_all_op_names()
    return [n.removeprefix("aten::") for n in names if n.startswith("aten::") and has(n, dispatch_key)]


def call_composite(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run a composite op's own C++ body, past any kernel registered over it for an autograd key."""
    return op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *args, **kwargs)


def is_held_by_engine_alone(tensor: torch.Tensor) -> bool:
    """In a dispatch handler that the engine called: whether its gradient buffer is the tensor's only holder.

    Four references to the tensor are the buffer's, the boxed argument's, Python's and the unpacked argument's; two to
    the storage are the tensor's and that of the Python object by which its lifetime is watched. Python's reference is
    one however many Python holds, so those are counted too: five are the handler's arguments and variables (CPython
    3.11 to 3.13), a sixth is a hook's or the user's.
    """
    storage = tensor.untyped_storage()
    if sys.getrefcount(tensor) > 5:
        return False
    return tensor._use_count() <= 4 and torch._C._storage_Use_Count(storage._cdata) <= 2  # type: ignore[attr-defined]


def gpu_marker() -> None:
    """Launch a kernel that no op uses: it separates stretches of GPU work in a profile."""
    torch.cuda._sleep(1)


def is_view(op: torch._ops.OpOverload) -> bool:
    """Whether the op's result is its argument's storage, seen otherwise."""
    return any(result.alias_info is not None and not result.alias_info.is_write for result in op._schema.returns)


dispatch_modes_off = _disable_current_modes
"""A context in which no dispatch mode is on."""

CUSTOM_FUNCTION_CODE = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
"""The code of `Function.apply`, by which a stack shows that a custom autograd function is running."""


def fake_cpu() -> Any:
    """A context in which CPU tensors are made without data, and composites take the path they take on the CPU."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def active_modes() -> list[Any]:
    """The dispatch modes that are on, outermost first."""
    return _get_current_dispatch_mode_stack()


@contextlib.contextmanager
def below_autocast() -> Iterator[None]:
    """Run ops as they are written, whatever autocast says, and record no graph."""
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        yield


def after_backward(callback: Callable[[], None]) -> None:
    """Call back when the backward pass now running is done."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)
