"""`record_block`: what one call of a block's forward does, found by running it on tensors without data.

In: the block and the arguments it is being called with; autocast, grad mode and training flags are the ambient ones.
Out: a `Recording`, the torch-free `BlockProgram` and the same ops with their live arguments. Nothing is computed and
no memory is taken: a block on a GPU runs on ghosts (inside an outer ghost context on its ghosts, unseen by the outer
listener), a block on the CPU on fake tensors, so that kernels are chosen as in the real run. The random generators,
the block and its attributes are afterwards as they were.

An op is opaque when the words written here are not enough to run it again: it reads a tensor that is no argument,
parameter or buffer, it is not an aten op, it runs inside a custom autograd function (which may write by other means
than ops), it draws from a generator of its own. A tensor that wraps others (a DTensor) is kept where autograd saves it,
and so is what is made directly from what it wraps.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import torch
from torch import nn

from trainfit import torch_compat
from trainfit.apply.generators import host_positions
from trainfit.apply.twins import (
    Copies,
    NotRecordable,
    Twins,
    is_planned,
    map_tensors,
    named_tensors,
    tensors_in,
    twin_module,
)
from trainfit.ghost import ghost_gpu
from trainfit.ghost.dispatch import GhostMode
from trainfit.ghost.recurrent import apart
from trainfit.ghost.tensor import Ghost
from trainfit.ghost.triton_kernels import TritonKernel, launches_told_to
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.records import BlockProgram, Op, Phase, TensorRef

aten = torch.ops.aten
BATCH_NORMS = (aten.native_batch_norm.default, aten.cudnn_batch_norm.default)
CPU_NORMS = {aten.native_layer_norm.default: 2, aten.native_group_norm.default: 1}
"""Norms, and where their weight is: for a float32 weight and a bfloat16 input the CPU gives float32 statistics, and
fake tensors say bfloat16."""
PLAIN_VALUES = (bool, int, float, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format)


class BlockDevice:
    """Stands in a live call for the device on which the block is when it is replayed."""


@dataclass(frozen=True, slots=True)
class LiveCall:
    """One op as it can be called: tensors are `TensorRef`s, the device is `BlockDevice`."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """A block's program and, op by op, how to call it."""

    program: BlockProgram
    calls: tuple[LiveCall, ...]
    draws_on_host: bool = False
    """Its own code drew numbers, which may be in the words written here, or seeded a generator: another forward has
    others, and the states that generators have between its ops are not known."""
    differentiates: bool = False
    """Its own code runs backward through what it did, before it is done: what is dropped could not be rebuilt."""


def record_block(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, gpu: Gpu | None = None
) -> BlockProgram:
    """The program of `module(*args, **kwargs)`; `gpu` is asked of torch when None and the block is on a GPU."""
    return record(module, type(module), args, kwargs, gpu=gpu).program


def record(
    module: nn.Module,
    block_class: type[nn.Module],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    gpu: Gpu | None = None,
) -> Recording:
    """As `record_block`, with the live calls; `block_class` is the class whose forward runs."""
    try:
        return _record(module, block_class, args, kwargs, gpu, _Recorder(_planned_inside(module)))
    except _Differentiated:
        recorder = _Recorder(_planned_inside(module), holds=True)
        return replace(_record(module, block_class, args, kwargs, gpu, recorder), differentiates=True)


def _record(
    module: nn.Module,
    block_class: type[nn.Module],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    gpu: Gpu | None,
    recorder: _Recorder,
) -> Recording:
    inputs = list(tensors_in((args, kwargs)))
    device = _device_of([*inputs, *(tensor for _, tensor in _named(module))])
    with _as_it_was() as drew, _eagerly(), _without_data(device, gpu, recorder) as place, torch.enable_grad():
        twins = Twins(place)
        twin = twin_module(module, block_class, twins.of, recorder.enter, recorder.leave)
        recorder.arrive([twins.of(t) for t in inputs], _named(twin))
        recorder.is_on = True
        with torch.autograd.graph.saved_tensors_hooks(recorder.pack, recorder.unpack):
            twin_args, twin_kwargs = Copies(twins.of).of((args, kwargs))
            output = block_class.forward(twin, *twin_args, **twin_kwargs)
        recorder.is_on = False
        recording = recorder.finish(tensors_in(output))
        return replace(recording, draws_on_host=drew())


def _planned_inside(module: nn.Module) -> frozenset[str]:
    """The submodules that are planned blocks themselves: they pack what autograd saves in them."""
    named = ((name, inner) for name, inner in module.named_modules() if name)
    return frozenset(name for name, inner in named if is_planned(inner) and inner.training)


def _named(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    found = []
    for name, owner, table, key in named_tensors(module):
        state = vars(owner)
        found.append((name, (state[table] if table else state)[key]))
    return found


def _device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    devices = {tensor.device for tensor in tensors if tensor.dim() > 0 or tensor.device.type != "cpu"}
    if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
        names = ", ".join(sorted(str(device) for device in devices)) or "none"
        raise NotRecordable(f"its tensors are not on one CPU or GPU (devices: {names})")
    return devices.pop()


@contextlib.contextmanager
def _as_it_was() -> Iterator[Callable[[], bool]]:
    """Running the block once more draws from the host's generators; give them back their states. Yields whether it has
    drawn or set a state so far: on tensors without data, ops draw nothing."""
    before, cpu_state = host_positions(), torch.get_rng_state()
    set_states: list[str] = []

    def noting(setter: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            set_states.append(setter.__name__)
            return setter(*args, **kwargs)

        return noted

    def drew() -> bool:
        with torch_compat.dispatch_modes_off():
            has_moved = not torch.equal(torch.get_rng_state(), cpu_state)
        return has_moved or bool(set_states) or host_positions() != before

    try:
        with (
            mock.patch("torch.manual_seed", noting(torch.manual_seed)),
            mock.patch("torch.set_rng_state", noting(torch.set_rng_state)),  # `fork_rng` puts the state back by it
        ):
            yield drew
    finally:
        for each in before:
            each.go_back()
        torch.set_rng_state(cpu_state)


def _eagerly() -> contextlib.AbstractContextManager[Any]:
    """What is compiled inside the block runs as it was written: a compiler would trace our listening too."""
    is_in_use = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_in_use else contextlib.nullcontext()


@contextlib.contextmanager
def _without_data(device: torch.device, gpu: Gpu | None, recorder: _Recorder) -> Iterator[torch.device]:
    """The context to run in; yields the device on which twins are made."""
    outer = next((mode for mode in torch_compat.active_modes() if isinstance(mode, GhostMode)), None)
    if device.type == "cpu":
        launches = launches_told_to(lambda kernel, tensors: recorder(kernel, tensors, {}, None), torch_compat.is_fake)
        with torch_compat.dispatch_modes_off(), torch_compat.fake_cpu(), _Listening(recorder), launches:
            yield device
    elif outer is not None:
        before, outer.listener = outer.listener, recorder
        try:
            with apart():
                yield device
        finally:
            outer.listener = before
    else:
        gpu = gpu or find_gpu(torch.cuda.get_device_name(device))
        with torch_compat.dispatch_modes_off(), ghost_gpu(gpu) as mode:
            mode.listener = recorder
            yield torch.device("cuda:0")


class _Listening(torch_compat.DispatchMode):
    """Tells the recorder of each op, as the ghost's dispatch mode does."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(torch_compat.wraps_others(kind) for kind in types):
            return NotImplemented  # it takes its ops apart, and those on what it wraps come here
        result = func(*args, **(kwargs or {}))
        if func in CPU_NORMS and args[CPU_NORMS[func]] is not None and args[CPU_NORMS[func]].dtype != args[0].dtype:
            result = (result[0], *(torch.empty_like(t, dtype=torch.float32) for t in result[1:]))
        if getattr(func, "namespace", "") != "prim":  # how a fake tensor asks for its device
            self._recorder(func, args, kwargs or {}, result)
        return result


class _Differentiated(Exception):
    """The block asked for a tensor that autograd had saved, before it was done."""


class _Recorder:
    """Hears every op and every saved tensor; a storage's end is heard too, so that an address means one storage."""

    def __init__(self, planned_inside: frozenset[str], holds: bool = False) -> None:
        self.is_on = False
        self._planned_inside = planned_inside
        self._holds = holds  # for a block that differentiates what it does
        self._numbers: dict[int, int] = {}  # address of a live storage -> its number
        self._storage_bytes: list[int] = []
        self._freed_after: list[int | None] = []
        self._watches: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._modules = [""]
        self._ops: list[Op] = []
        self._calls: list[LiveCall] = []
        self._inputs: tuple[TensorRef, ...] = ()
        self._parameters: tuple[tuple[str, TensorRef], ...] = ()
        self._saved: list[TensorRef] = []
        self._saved_after: list[int] = []
        self._submodule_outputs: list[tuple[str, int]] = []
        self._writes: list[tuple[int, tuple[int, ...]]] = []
        self._random: list[int] = []
        self._opaque: list[int] = []

    def enter(self, name: str) -> None:
        self._modules.append(name)

    def leave(self, name: str, output: Any) -> None:
        self._modules.pop()
        self._submodule_outputs += [(name, self._ref(tensor).storage) for tensor in tensors_in(output)]

    def arrive(self, inputs: Sequence[torch.Tensor], parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._inputs = tuple(self._ref(tensor) for tensor in inputs)
        self._parameters = tuple((name, self._ref(tensor)) for name, tensor in parameters)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What autograd saves is noted and let go, so that it is seen when the block itself lets go of it."""
        if self._planned_inside.isdisjoint(self._modules):
            self._saved.append(self._ref(tensor))
            self._saved_after.append(len(self._ops))
        return tensor if self._holds else None

    def unpack(self, packed: torch.Tensor | None) -> torch.Tensor:
        if packed is None:
            raise _Differentiated
        return packed

    def finish(self, outputs: Iterator[torch.Tensor]) -> Recording:
        program = BlockProgram(
            ops=tuple(self._ops),
            inputs=self._inputs,
            parameters=self._parameters,
            saved=tuple(self._saved),
            outputs=tuple(self._ref(tensor) for tensor in outputs),
            storage_bytes=tuple(self._storage_bytes),
            submodule_outputs=tuple(self._submodule_outputs),
            saved_after=tuple(self._saved_after),
            writes=tuple(self._writes),
            random=tuple(self._random),
            opaque=tuple(self._opaque),
            freed_after=tuple(self._freed_after),
        )
        return Recording(program, tuple(self._calls))

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not self.is_on:
            return
        written = tuple(dict.fromkeys(self._number(t) for t in _written(func, args, kwargs) if _is_twin(t)))
        opaque = self._is_opaque(func, args, kwargs)
        if func in BATCH_NORMS and args[5]:
            # In training it uses the batch's statistics and only updates the running ones, which is to be done once.
            args = (*args[:3], None, None, *args[5:])
        if func is aten.empty_like.default and _is_twin(result):
            func, args, kwargs = aten.empty_strided.default, (tuple(result.shape), result.stride()), _options(result)
        live_args, live_kwargs = map_tensors(self._ref_or_none, (args, kwargs))
        known = len(self._storage_bytes)
        outputs = tuple(self._ref(tensor) for tensor in tensors_in(result) if _is_twin(tensor))
        if not written and not any(ref.storage >= known for ref in outputs):
            return  # a view: any view of a storage at hand is an as_strided of it
        index = len(self._ops)
        if written:
            self._writes.append((index, written))
        if _is_random(func, args, kwargs):
            self._random.append(index)
        if opaque:
            self._opaque.append(index)
        self._calls.append(LiveCall(func, *_with_block_device((live_args, live_kwargs))))
        plain_args, plain_kwargs = _plain((live_args, tuple(live_kwargs.items())))
        tf32 = torch_compat.is_rounded_product(func, args)
        self._ops.append(Op(str(func), Phase.FORWARD, self._modules[-1], plain_args, plain_kwargs, outputs, tf32=tf32))

    def _is_opaque(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if getattr(func, "namespace", "") != "aten" or "generator" in kwargs:
            return True
        if func is aten._to_copy.default and not args:
            return True  # the ghost's word for a copy from the host
        tensors = list(tensors_in((args, kwargs)))
        if any(not _is_twin(t) or t.is_conj() or t.is_neg() for t in tensors):
            return True
        return not _all_plain((args, kwargs)) or _inside_custom_function()

    def _number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        address = storage._cdata
        number = self._numbers.get(address)
        if number is None:
            number = self._numbers[address] = len(self._storage_bytes)
            # What wraps others has no memory of its own: it is a storage that comes from nowhere, and is kept.
            self._storage_bytes.append(storage.nbytes() if _is_twin(tensor) else 0)
            self._freed_after.append(None)
            self._watches[number] = weakref.ref(storage, functools.partial(self._end, number, address))
        return number

    def _end(self, number: int, address: int, _reference: object) -> None:
        del self._watches[number], self._numbers[address]
        if self.is_on:
            self._freed_after[number] = len(self._ops)

    def _ref_or_none(self, tensor: torch.Tensor) -> TensorRef | None:
        return self._ref(tensor) if _is_twin(tensor) else None

    def _ref(self, tensor: torch.Tensor) -> TensorRef:
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape, stride = tuple(tensor.shape), tensor.stride()
        return TensorRef(self._number(tensor), dtype, shape, stride, int(tensor.storage_offset()))


def _is_twin(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, Ghost) or torch_compat.is_fake(tensor)


def _options(tensor: torch.Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "device": tensor.device}


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments that the op's schema says it writes; all, for a kernel that has no schema."""
    if isinstance(func, TritonKernel):
        yield from args
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from tensors_in(value)


def _is_random(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the op draws random numbers; attention and RNNs do so only with dropout."""
    if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
        return False
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "dropout"):
            value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(value)
    return True


def _inside_custom_function() -> bool:
    """Whether a custom autograd function's forward is on the stack (its `apply` is C and leaves no frame)."""
    forwards = _forward_codes(len(torch.autograd.Function.__subclasses__()))
    frame: FrameType | None = sys._getframe(1)
    own = record.__code__
    while frame is not None and frame.f_code is not own:
        if frame.f_code in forwards:
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=1)
def _forward_codes(num_functions: int) -> set[CodeType]:
    """The code of every custom autograd function's forward, found anew when there are more or fewer functions."""
    codes = set()
    pending = torch.autograd.Function.__subclasses__()
    while pending:
        function = pending.pop()
        pending += function.__subclasses__()
        if code := getattr(function.forward, "__code__", None):
            codes.add(code)
    return codes


def _all_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_all_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_all_plain(item) for item in value.values())
    return isinstance(value, (torch.Tensor, torch.device, *PLAIN_VALUES))


def _with_block_device(value: Any) -> Any:
    if isinstance(value, torch.device):
        return BlockDevice  # an op told to make something elsewhere reads or makes no twin, and is opaque or unseen
    if isinstance(value, (tuple, list)):
        return type(value)(_with_block_device(item) for item in value)
    if isinstance(value, dict):
        return {key: _with_block_device(item) for key, item in value.items()}
    return value


def _plain(value: Any) -> Any:
    """As the records have it: no torch objects, lists as tuples."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value if isinstance(value, (bool, int, float, str, type(None), TensorRef)) else str(value)
