"""`apply_decisions`: make a model's blocks follow a plan, in place; `Handle` undoes it and tells what it did.

A planned block's class is replaced by a subclass of the same name whose `forward` runs the original one under
saved-tensor hooks. Nothing is added to the module itself: state_dict, named_modules, pickles and copies are those of
the unplanned model (a copy is unplanned). Without gradients, in eval mode, and under the transforms of torch.func, the
original forward runs alone.

Recordings are cached per block and input signature, a bounded number of them; blocks that are alike share theirs. A
block that cannot be recorded, or that does something else than was recorded, is checkpointed as a whole, one that runs
backward inside its forward keeps all, with one warning; `strict` raises instead.
"""

from __future__ import annotations

import contextlib
import copyreg
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainfit import torch_compat
from trainfit.apply.alike import likeness
from trainfit.apply.compiled import NOTHING, Compiled, compile_plan
from trainfit.apply.numbers import renumberings
from trainfit.apply.order import refuse_sharded
from trainfit.apply.packing import finish, num_seen
from trainfit.apply.reading import PLAIN, Changed, write_reading
from trainfit.apply.record import record
from trainfit.apply.replay import AT_START, keep_all, plan_replay, structural_difference
from trainfit.apply.rerun import Rerun, Start
from trainfit.apply.runtime import Call, holding_submodule_outputs, unpack
from trainfit.apply.twins import PLANNED, is_planned, named_tensors
from trainfit.errors import BadDecision, PlanMismatch
from trainfit.records import BlockDecision

MAX_SIGNATURES = 16
"""Recordings that a block remembers; the least recently used goes first."""


@dataclass(frozen=True, slots=True)
class BlockStats:
    """What a planned block has done since the plan was applied."""

    name: str
    forwards: int
    replays: int
    reruns: int  # forwards that were checkpointed as a whole
    signatures: int  # recordings that are remembered
    kept_bytes: int  # per forward, at the latest signature; inputs and parameters apart
    dropped_bytes: int
    replayed_ops: int  # per replay


class Handle:
    """The planned blocks of a model."""

    def __init__(self, blocks: Mapping[str, PlannedBlock]) -> None:
        self._blocks = dict(blocks)

    def remove(self) -> None:
        """Make the model as it was. Graphs that are still to be differentiated stay right."""
        for block in self._blocks.values():
            block.remove()

    def stats(self) -> tuple[BlockStats, ...]:
        """What each block has done so far, in the model's order."""
        return tuple(block.stats() for block in self._blocks.values())


def apply_decisions(model: nn.Module, decisions: Mapping[str, BlockDecision], *, strict: bool = False) -> Handle:
    """Make the blocks named in `decisions` follow them. Call it when the model has its final modules, before
    `torch.compile` and `fully_shard`. A block may be inside another: what autograd saves in it is its own affair, and
    the outer block's decision is about the rest."""
    modules = dict(model.named_modules())
    refuse_sharded(modules)
    for name in decisions:
        if name not in modules:
            raise BadDecision(
                f"the model has no module {name!r}",
                hint="apply the plan to the model it was made for",
            )
        if "forward" in vars(modules[name]) or is_planned(modules[name]):
            raise BadDecision(
                f"something has replaced the forward of block {name!r} already",
                hint="remove the earlier plan (handle.remove()), or apply the plan before whatever patches forward",
            )
    alike: Alike = weakref.WeakValueDictionary()
    blocks = (name for name in modules if name in decisions)
    return Handle({name: PlannedBlock(name, modules[name], decisions[name], strict, alike) for name in blocks})


ATTENTION_BACKENDS = (
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.cudnn_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
)
_RECORDING = threading.Lock()
"""A ghost GPU answers for torch.cuda, which is one for all threads: one block is recorded at a time."""


Alike = weakref.WeakValueDictionary[Any, Compiled]
"""What some block of a model remembers, by the decision, the surroundings and the likeness of block and inputs."""


class PlannedBlock:
    """One block under a plan; holds the module weakly, and no tensor."""

    def __init__(self, name: str, module: nn.Module, decision: BlockDecision, strict: bool, alike: Alike) -> None:
        self._name = name
        self._alike = alike
        self._decision = decision
        self._strict = strict
        self._module: Callable[[], nn.Module | None] = weakref.ref(module)
        self._entries: OrderedDict[Any, Compiled | None] = OrderedDict()  # None: checkpointed as a whole
        self._latest: tuple[Any, Compiled | None] | None = None
        self._recording = threading.RLock()
        self._look_at(module)
        self._has_warned = False
        self._forwards = self._replays = self._reruns = 0
        self._class: type[nn.Module] = type(module)
        self._planned_class = _planned_class(self._class, self)
        module.__class__ = self._planned_class

    def _look_at(self, module: nn.Module) -> None:
        """Note where the module's tensors and settings are; what was recorded before was of another module. The
        planned class, which garbage collection alone can free, leads here: nothing strong may lead on to tensors."""
        self._entries.clear()
        self._tensors = {name: (weakref.ref(owner), table, key) for name, owner, table, key in named_tensors(module)}
        self._read = write_reading(module)

    def remove(self) -> None:
        module = self._module()
        if module is not None and type(module) is self._planned_class:
            module.__class__ = self._class
        self._module = _gone  # a class made on top of the planned one (fully_shard) stays, and finds no block

    def stats(self) -> BlockStats:
        latest = next(reversed(self._entries.values()), None)
        return BlockStats(
            name=self._name,
            forwards=self._forwards,
            replays=self._replays,
            reruns=self._reruns,
            signatures=len(self._entries),
            kept_bytes=latest.kept_bytes if latest else 0,
            dropped_bytes=latest.dropped_bytes if latest else 0,
            replayed_ops=len(latest.plan.ops) if latest else 0,
        )

    def forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The planned forward of the block."""
        is_off = not torch.is_grad_enabled() or not module.training or torch_compat.is_transforming()
        if is_off or module is not self._module():
            return self._class.forward(module, *args, **kwargs)
        inputs: list[torch.Tensor] = []
        arguments = _describe((args, kwargs), inputs)
        try:
            settings = self._read()
        except Changed:
            self._look_at(module)
            settings = self._read()
        device = self._device(inputs)
        key = _surroundings(device), arguments, settings  # what the ops and saved tensors of a forward depend on
        latest = self._latest
        if latest is None or key != latest[0]:
            latest = self._latest = key, self._entry(key, device, module, args, kwargs)
        self._forwards += 1
        compiled = latest[1]
        start = Start.now(device, with_host=compiled is None)
        versions = [0 if tensor.is_inference() else tensor._version for tensor in inputs]
        call = Call(compiled or NOTHING, module, device, self._lookup, self._count_replay)
        call.positions[AT_START] = start.positions[-1]
        others = [self._unless_parameter(name) for name, _ in call.compiled.plan.from_parameters]

        def run_again() -> None:
            call.rerun = self._rerun(module, args, kwargs, versions, start, device)

        def on_mismatch(difference: str) -> None:
            run_again()
            self._entries[key] = self._latest = None
            self._complain(difference)

        if compiled is None:
            run_again()

        packing = call.packing(on_mismatch)
        try:
            with torch.autograd.graph.saved_tensors_hooks(packing.send, unpack), _holding(module, call):
                output = self._class.forward(module, *args, **kwargs)
            seen, expected = num_seen(packing), len(call.compiled.saves)
            if call.rerun is None and seen != expected:
                on_mismatch(f"{seen} tensors were saved, recorded were {expected}")
            if call.rerun is not None:
                call.rerun.num_saved = seen
            self._hold_sources(call, inputs, others)
        finally:
            finish(packing)
        return output

    def _entry(
        self, key: Any, device: torch.device, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Compiled | None:
        """What is remembered under the key, now the most recently used."""
        with self._recording:
            if key not in self._entries:
                self._entries[key] = self._prepare(device, module, args, kwargs)
                if len(self._entries) > MAX_SIGNATURES:
                    self._entries.popitem(last=False)
            self._entries.move_to_end(key)
            return self._entries[key]

    def _device(self, inputs: list[torch.Tensor]) -> torch.device:
        """Where the block is: on the GPU of its inputs, else where its first parameter is."""
        for tensor in inputs:
            if not tensor.is_cpu:
                return tensor.device
        return next((self._lookup(name).device for name in self._tensors), torch.device("cpu"))

    def _prepare(
        self, device: torch.device, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Compiled | None:
        if self._decision.rerun:
            return None
        key = self._decision, _surroundings(device), likeness(module, self._class, args, kwargs)
        compiled = self._alike.get(key) or self._compile(module, args, kwargs)
        if compiled is not None:
            self._alike[key] = compiled
        return compiled

    def _compile(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Compiled | None:
        try:
            with _RECORDING:
                recording = record(module, self._class, args, kwargs)
        except Exception as error:  # whatever the block's code may raise on tensors without data
            self._complain(f"it cannot be recorded: {type(error).__name__}: {error}")
            return None
        if recording.draws_on_host:
            self._complain("its code draws random numbers on the host or seeds a generator, which no replay can know")
            return None
        if recording.differentiates:
            self._complain("it runs backward itself, through what it has just done", "all that it saves is kept")
            return compile_plan(recording, plan_replay(recording.program, keep_all(recording.program)))
        planned = self._decision.structure
        if planned is not None and (difference := structural_difference(planned, recording.program)):
            alike = (each for each in renumberings(recording) if not structural_difference(planned, each.program))
            found = next(alike, None)
            if found is None:
                self._complain(difference)
                return None
            recording = found
        return compile_plan(recording, plan_replay(recording.program, self._decision))

    def _hold_sources(self, call: Call, inputs: list[torch.Tensor], others: list[torch.Tensor | None]) -> None:
        """Called after forward, since the replay starts from what the block's own in-place ops left behind. `others`
        are the tensors in place of which forward may have put new ones; parameters may have been gathered in it."""
        for position, value in call.compiled.plan.from_inputs:
            tensor = inputs[position]
            call.held[value] = (tensor.detach(), tensor._version)
        for (name, _), other in zip(call.compiled.plan.from_parameters, others, strict=True):
            tensor = self._lookup(name) if other is None else other
            call.parameters.append((tensor, tensor._version))

    def _unless_parameter(self, name: str) -> torch.Tensor | None:
        tensor = self._lookup(name)
        return None if isinstance(tensor, nn.Parameter) else tensor

    def _rerun(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        versions: list[int],
        start: Start,
        device: torch.device,
    ) -> Rerun:
        self._reruns += 1
        forward = self._class.forward

        def again(*args: Any, **kwargs: Any) -> Any:
            return forward(module, *args, **kwargs)

        return Rerun(self._name, again, args, kwargs, versions, start, device)

    def _lookup(self, name: str) -> torch.Tensor:
        owner, table, key = self._tensors[name]
        state = owner().__dict__
        found: torch.Tensor = (state[table] if table else state)[key]
        return found

    def _count_replay(self) -> None:
        self._replays += 1

    def _complain(self, difference: str, consequence: str = "it is checkpointed as a whole") -> None:
        message = f"block {self._name!r} does not do what the plan says: {difference}"
        if self._strict:
            raise PlanMismatch(message, hint="make the plan again, or apply it without strict=True")
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{message}; {consequence}", stacklevel=4)


def _surroundings(device: torch.device) -> Any:
    """What a forward depends on besides the block and its arguments."""
    return (
        device,
        torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type),
        torch.get_deterministic_debug_mode(),
        tuple([is_on() for is_on in ATTENTION_BACKENDS]),
    )


def _gone() -> None:
    """Stands for the reference to a module whose plan was removed."""


def _holding(module: nn.Module, call: Call) -> contextlib.AbstractContextManager[None]:
    return holding_submodule_outputs(module, call) if call.compiled.hooked else contextlib.nullcontext()


def _describe(value: Any, inputs: list[torch.Tensor]) -> Any:
    """An argument as a part of a signature; the tensors in it are added to `inputs`, those that `tensors_in` finds."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        inputs.append(value)
        return value.dtype, value.shape, value.stride(), value.storage_offset(), value.requires_grad
    if isinstance(value, (tuple, list)):
        return tuple([_describe(item, inputs) for item in value])
    if isinstance(value, dict):
        found = inputs if type(value) in (dict, OrderedDict) else []
        return tuple([(key, _describe(item, found)) for key, item in value.items()])
    return type(value)


def _planned_class(original: type[nn.Module], block: PlannedBlock) -> type[nn.Module]:
    """A subclass of the block's class, one per block, that looks like it and is pickled and copied as it."""

    @torch.compiler.disable
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return block.forward(self, args, kwargs)

    def __reduce_ex__(self: nn.Module, protocol: Any) -> Any:
        if type(self) is not planned:
            return original.__reduce_ex__(self, protocol)
        self.__class__ = original
        try:
            reduced = self.__reduce_ex__(protocol)
        finally:
            self.__class__ = planned
        if isinstance(reduced, tuple) and reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
            # Pickle checks that class against the object's, which is the planned one again: say it another way.
            return copyreg._reconstructor, (original, object, None), *reduced[2:]  # type: ignore[attr-defined]
        return reduced

    body = {"forward": forward, "__reduce_ex__": __reduce_ex__, "__doc__": original.__doc__, PLANNED: True}
    body |= {"__module__": original.__module__, "__qualname__": original.__qualname__}
    planned: type[nn.Module] = type(original.__name__, (original,), body)
    return planned
