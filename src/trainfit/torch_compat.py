"""The only file that touches private torch symbols; tested on torch 2.11 and 2.12 (CUDA), 2.13 (CPU), 2.15 (CUDA).

Each name below wraps one private symbol, so that a change in torch is mended here and nowhere else.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # reads torch.cuda when first imported, which optimizers do: it must see the real one
from torch import _guards
from torch._prims_common import suggest_memory_format as suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import _engine_run_backward
from torch.optim.optimizer import _foreach_supported_types as _optimizer_foreach_types
from torch.utils import checkpoint
from torch.utils._device import _device_constructors
from torch.utils._foreach_utils import _foreach_supported_types as _utility_foreach_types
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_unflatten as tree_unflatten

FOREACH_TYPE_LISTS: tuple[list[type], ...] = (_optimizer_foreach_types, _utility_foreach_types)  # type: ignore[assignment]
"""Lists that name the tensor types for which optimizers and clipping choose multi-tensor kernels."""

device_constructors = _device_constructors
disabled_torch_function = torch._C._disabled_torch_function_impl
ENGINE_CODE = _engine_run_backward.__code__
current_autograd_node: Callable[[], Any] = torch._C._current_autograd_node
LEAF_SEQUENCE_NUMBER = 2**64 - 1
"""What nodes have that add to a parameter's gradient; others have numbers of their own."""
next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose handler torch does not wrap against dynamo, which costs at every op."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


_PRODUCTS = frozenset(
    getattr(torch.ops.aten, name) for name in ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "_grouped_mm")
)


def is_rounded_product(func: Any, args: Sequence[Any]) -> bool:
    """Whether the op multiplies float32 matrices and torch is told that a GPU may do so in TF32."""
    return (
        getattr(func, "overloadpacket", None) in _PRODUCTS
        and args[0].dtype is torch.float32
        and torch.backends.cuda.matmul.fp32_precision == "tf32"
    )


def make_cuda_keyed_subclass(cls: type, meta: torch.Tensor, requires_grad: bool, device: torch.device) -> torch.Tensor:
    """A subclass instance on meta storage whose dispatch keys are those of `device`."""
    return torch.Tensor._make_subclass(cls, meta, requires_grad, dispatch_device=False, device_for_backend_keys=device)


class MetaKernels:
    """A context in which ops run by their meta kernels whatever the tensors' keys, with no dispatch mode in between."""

    __slots__ = ("_guards",)

    def __enter__(self) -> None:
        self._guards = torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard()
        for guard in self._guards:
            guard.__enter__()
        torch._C._set_meta_in_tls_dispatch_include(True)

    def __exit__(self, *error: object) -> None:
        for guard in reversed(self._guards):
            guard.__exit__(*error)


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


def below_autograd() -> Any:
    """A context in which ops make no graph and are not kept by any: the layer below autograd's is called."""
    return torch._C._AutoDispatchBelowAutograd()


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


def is_temporary(tensor: torch.Tensor) -> bool:
    """In a dispatch handler that a formula of the engine's called: whether the tensor is the formula's own, and not one
    that the node saved or a user has. The references are those of `is_held_by_engine_alone`, but one of Python's."""
    return sys.getrefcount(tensor) <= 4 and tensor._use_count() <= 4  # type: ignore[attr-defined]


def flatten_weights(rnn: torch.nn.RNNBase) -> None:
    """As the network does itself when it is moved to a GPU: its weights are windows on one buffer from then on."""
    rnn._init_flat_weights()


@contextlib.contextmanager
def higher_order_ops_refused() -> Iterator[None]:
    """Ops on functions (flex_attention) make fake tensors of what they are given, at which a CPU-only torch aborts."""

    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{op.name()} computes with functions, which a ghost GPU cannot run")

    with mock.patch.object(torch._ops.HigherOrderOperator, "__call__", refuse):
        yield


def gpu_marker(cycles: int = 1) -> None:
    """Launch a kernel that no op uses, which lasts so long: it separates stretches of GPU work in a profile."""
    torch.cuda._sleep(cycles)


def is_view(op: torch._ops.OpOverload) -> bool:
    """Whether the op's result is its argument's storage, seen otherwise."""
    return any(result.alias_info is not None and not result.alias_info.is_write for result in op._schema.returns)


dispatch_modes_off = _disable_current_modes
"""A context in which no dispatch mode is on."""


def fake_cpu() -> Any:
    """A context in which CPU tensors are made without data, and composites take the path they take on the CPU."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def is_fake_mode_on() -> bool:
    """Whether a FakeTensorMode is on; it comes after all other modes, whenever it was entered."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def active_modes() -> list[Any]:
    """The dispatch modes that are on, outermost first."""
    return _get_current_dispatch_mode_stack()


class Replaying:
    """Run ops as they are written, whatever autocast says, and record no graph; grad mode is on, which marks
    recomputation in a trace."""

    __slots__ = ("_guards",)

    def __enter__(self) -> None:
        self._guards = torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast(), torch.enable_grad()
        for guard in self._guards:
            guard.__enter__()

    def __exit__(self, *error: object) -> None:
        for guard in reversed(self._guards):
            guard.__exit__(*error)


def is_transforming() -> bool:
    """Whether a transform of torch.func (grad, vmap) is running: its tensors have no storages to speak of."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def after_backward(callback: Callable[[], None]) -> None:
    """Call back when the backward pass now running is done."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def is_in_backward() -> bool:
    """Whether the autograd engine is running in this thread."""
    return torch._C._current_graph_task_id() != -1


def is_accumulating_gradient(node: Any) -> bool:
    """Whether the node puts a finished gradient into a parameter's `.grad`."""
    return node.name() == "torch::autograd::AccumulateGrad"


active_fake_mode: Callable[[], Any] = _guards.active_fake_mode
"""The FakeTensorMode that is on, or None."""

IGNORED_BY_CHECKPOINT: frozenset[Any] = frozenset(checkpoint.SAC_IGNORED_OPS)
"""Ops that torch's selective checkpointing passes over without counting them."""
QUESTIONS = IGNORED_BY_CHECKPOINT - {torch.ops.aten.detach.default}
"""Those of them that ask a tensor subclass for its device or sizes, and run nothing."""

wraps_others: Callable[[type], bool] = is_traceable_wrapper_subclass_type
"""Whether tensors of this class wrap others, as DTensors do."""


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors under one that wraps others, all the way down; any other tensor itself."""
    if not wraps_others(type(tensor)):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        inner = getattr(tensor, name)
        if isinstance(inner, torch.Tensor):
            yield from plain_tensors(inner)


def wrap_again(tensor: torch.Tensor, convert: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A tensor like `tensor`, which wraps others, around what `convert` makes of them."""
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    held = {name: getattr(tensor, name) for name in names}  # a DTensor's mesh is among them
    inner = {name: convert(value) if isinstance(value, torch.Tensor) else value for name, value in held.items()}
    return type(tensor).__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())  # type: ignore[attr-defined]


def written_storages(op: torch._ops.OpOverload, args: tuple[Any, ...], outputs: tuple[Any, ...]) -> list[int]:
    """The storages of recorded outputs that the op wrote in place: `relu_` its argument's, `relu` none."""
    writes = any(result.alias_info is not None and result.alias_info.is_write for result in op._schema.returns)
    return [ref.storage for ref in outputs] if writes and torch.Tag.inplace_view not in op.tags else []


def without_python(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The op's way into the dispatcher, without the Python frame of calling an OpOverload."""
    return op._op


def shorter_way(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """torch's own Python function for the op, which parses its arguments faster than the op's general way in; None if
    there is none, or if with such arguments (tensors as stand-ins without data) it would not come down to just that op
    and those arguments."""
    name = op._schema.name.removeprefix("aten::")
    homes = (torch.Tensor,) if name.endswith("_") else (torch._C._VariableFunctions, torch._C._nn)
    found: Callable[..., Any] | None = next((getattr(home, name) for home in homes if hasattr(home, name)), None)
    if found is None or not returns_only_tensors(op, len(op._schema.returns)):
        return None  # it would wrap numbers among its results in tensors on the host
    asked = _Asked()
    with dispatch_modes_off(), Replaying(), asked, contextlib.suppress(_Asked.Enough, TypeError):
        found(*args, **kwargs)
    return found if asked.op is op and _are_same(asked.args, args) and _are_same(asked.kwargs, kwargs) else None


class _Asked(DispatchMode):
    """Stops at the first op, and knows which it was."""

    class Enough(Exception):
        """What was asked is known."""

    op: Any = None
    args: Any = ()
    kwargs: Any = None

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.op, self.args, self.kwargs = func, args, kwargs or {}
        raise self.Enough


def _are_same(one: Any, other: Any) -> bool:
    """Equal arguments, tensors by identity."""
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_are_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_same(one[key], other[key]) for key in one)
    return one is other if isinstance(one, torch.Tensor) else type(one) is type(other) and bool(one == other)


def returns_only_tensors(op: torch._ops.OpOverload, count: int) -> bool:
    """Whether the op returns a tuple of that many tensors and nothing else."""
    return [str(result.type) for result in op._schema.returns] == ["Tensor"] * count


def returns_one_tensor(op: torch._ops.OpOverload) -> bool:
    """Whether the op returns a tensor, rather than several or a list of them."""
    return [str(result.type) for result in op._schema.returns] == ["Tensor"]


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a DTensor; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


COMPOSED_STATE = "__composable_api_state_key"
"""How the names of the attributes begin in which `fully_shard` and its like keep what they know of a module."""


def are_sharded_alike(lists: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Whether all are DTensors, none a partial sum, and each is as large, spread and typed as those at its place."""
    from torch.distributed.tensor import DTensor

    for tensors in zip(*lists, strict=True):
        if not all(isinstance(tensor, DTensor) for tensor in tensors):
            return False
        spec = tensors[0]._spec
        if any(placement.is_partial() for placement in spec.placements):
            return False
        if any(tensor._spec is not spec and tensor._spec != spec for tensor in tensors[1:]):
            return False
    return True


def sharded_like(whole: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """The DTensor that `local` is a part of, spread and typed as `whole` is."""
    from torch.distributed.tensor import DTensor

    return DTensor(local, whole._spec, requires_grad=False)  # type: ignore[attr-defined]


def group_ranks(group: Any) -> tuple[int, ...]:
    """The global ranks of a process group, given as the dispatcher passes it: boxed, by name, or itself."""
    from torch._C._distributed_c10d import ProcessGroup, _resolve_process_group

    if isinstance(group, str):
        group = _resolve_process_group(group)  # type: ignore[arg-type]
    elif not isinstance(group, ProcessGroup):
        group = ProcessGroup.unbox(group)
    return tuple(torch.distributed.get_process_group_ranks(group))


def finished_work() -> Any:
    """Work of a collective that is done, as the dispatcher returns it."""
    from torch._C._distributed_c10d import FakeWork

    return FakeWork().boxed()


def has_process_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def default_store() -> Any:
    """The key-value store by which the ranks of the default process group found each other."""
    return torch.distributed.distributed_c10d._get_default_store()


@contextlib.contextmanager
def fake_process_group(world_size: int) -> Iterator[None]:
    """Rank 0 of `world_size` ranks that are not there; DTensors of ghosts say that they are on cuda."""
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    answers = {name: property(operator.attrgetter(f"_local_tensor.{name}")) for name in _WHERE}
    try:
        for name, answer in answers.items():
            setattr(DTensor, name, answer)
        yield
    finally:
        for name in answers:
            delattr(DTensor, name)
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def unverified_replicas() -> Iterator[None]:
    """DistributedDataParallel does not compare the replicas' shapes, which needs the other ranks' answers."""
    with mock.patch("torch.nn.parallel.distributed._verify_param_shape_across_processes", return_value=True):
        yield


def silence_replica(replica: torch.nn.parallel.DistributedDataParallel) -> None:
    """No statistics of the backward pass, which need a device's clock."""
    replica.logger = SimpleNamespace(set_runtime_stats_and_log=lambda: None)  # type: ignore[assignment]


_WHERE = ("device", "is_cuda", "is_meta")
"""A DTensor is made with the C++ device of what it wraps, which for a ghost is meta."""
