"""`Compiled`: a recording and its replay plan, made ready to run; it holds no tensor.

All that can be known before a step is worked out here, once per block and input signature: how each argument of a
replayed op is cut from the value it reads, which saves to drop, hold or watch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trainfit.apply.record import BlockDevice, LiveCall, Recording
from trainfit.apply.replay import AT_START, ReplayPlan, number_values
from trainfit.records import TensorRef

Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]  # dtype, shape, stride, offset


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor argument of a replayed op: a view of a value, relative to the tensor that stands for the value."""

    value: int
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


@dataclass(frozen=True, slots=True)
class Instruction:
    """One op of the replay."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    windows: tuple[tuple[int | str, Any], ...]  # (position or keyword, a Window or a list with Windows in it)
    devices: tuple[str, ...]  # keywords that name the block's device
    results: tuple[
        tuple[int, int, Geometry | None], ...
    ]  # (position among the output tensors, value, geometry to check)
    renames: tuple[tuple[int, int], ...]  # (old version, new version) of what the op writes in place
    frees: tuple[int, ...]
    random_start: int | None  # the save at which the generator's state was taken


@dataclass(frozen=True, slots=True)
class Compiled:
    """A block's recording and plan, ready to run."""

    plan: ReplayPlan
    expected: tuple[Geometry, ...]  # per saved tensor
    returns: tuple[Window, ...]  # per saved tensor: how it looks on the rebuilt value; meaningless where it is kept
    instructions: tuple[Instruction, ...]
    holds: dict[int, int]  # save -> value that the replay reads
    unchecked: frozenset[int]  # saves that need not look as recorded
    watched: frozenset[int]  # saves of dropped values that leave the block: somebody may overwrite them
    state_saves: frozenset[int]  # saves at which to take the generator's state
    parameters: tuple[tuple[str, int], ...]
    hooked: dict[str, dict[int, int]]  # submodule -> {position among its output tensors: value}
    kept_bytes: int
    dropped_bytes: int


NOTHING = Compiled(
    plan=ReplayPlan((), (), (), (), (), (), (), (), (), (), ()),
    expected=(), returns=(), instructions=(), holds={}, unchecked=frozenset(), watched=frozenset(),
    state_saves=frozenset(), parameters=(), hooked={}, kept_bytes=0, dropped_bytes=0,
)  # fmt: skip
"""For calls that are checkpointed as a whole from the start."""


def compile_plan(recording: Recording, plan: ReplayPlan) -> Compiled:
    """Make a plan ready to run."""
    program = recording.program
    values = number_values(program)
    bases = _base_refs(recording, plan)
    starts = dict(plan.random_starts)
    outputs = {ref.storage for ref in program.outputs}
    writes = dict(program.writes)
    cut = _cut_storages(recording, plan, bases)
    instructions = []
    for op, frees in zip(plan.ops, plan.frees, strict=True):
        current = {values.storage[value]: value for value in values.reads[op]}
        made = {values.storage[value]: value for value in values.makes[op]}
        renames = tuple((current[s], made[s]) for s in writes.get(op, ()))
        first = {ref.storage: position for position, ref in reversed(list(enumerate(program.ops[op].outputs)))}
        results = tuple(
            (first[storage], value, _geometry(bases[value]) if storage in cut else None)
            for storage, value in made.items()
            if storage not in writes.get(op, ())
        )
        instructions.append(_instruction(recording.calls[op], current, bases, renames, results, frees, starts.get(op)))
    dropped_storages = {values.storage[value] for value, _ in plan.rebuilt}
    hooked: dict[str, dict[int, int]] = {}
    for name, position, value in plan.from_submodules:
        hooked.setdefault(name, {})[position] = value
    return Compiled(
        plan=plan,
        expected=tuple(_geometry(ref) for ref in program.saved),
        returns=tuple(
            _window(ref, value, bases.get(value, ref))
            for ref, value in zip(program.saved, plan.saved_values, strict=True)
        ),
        instructions=tuple(instructions),
        holds=dict(plan.from_saved),
        # Seeds and the like: whole numbers that kernels keep for themselves, of which data-free kernels know less.
        unchecked=frozenset(
            save
            for save, ref in enumerate(program.saved)
            if not plan.dropped[save]
            and save not in dict(plan.from_saved)
            and not (getattr(torch, ref.dtype).is_floating_point or getattr(torch, ref.dtype).is_complex)
        ),
        watched=frozenset(
            save
            for save, is_dropped in enumerate(plan.dropped)
            if is_dropped and program.saved[save].storage in outputs
        ),
        state_saves=frozenset(start for _, start in plan.random_starts) - {AT_START},
        parameters=plan.from_parameters,
        hooked=hooked,
        kept_bytes=sum(program.storage_bytes[storage] for storage in plan.kept),
        dropped_bytes=sum(program.storage_bytes[storage] for storage in dropped_storages),
    )


def _base_refs(recording: Recording, plan: ReplayPlan) -> dict[int, TensorRef]:
    """For each value of the replay, the geometry of the tensor that will stand for it."""
    program = recording.program
    values = number_values(program)
    parameters = dict(program.parameters)
    bases = {value: program.inputs[position] for position, value in plan.from_inputs}
    bases |= {value: parameters[name] for name, value in plan.from_parameters}
    bases |= {value: program.saved[save] for save, value in plan.from_saved}
    writes = dict(program.writes)
    for op in plan.ops:
        current = {values.storage[value]: value for value in values.reads[op]}
        for value in values.makes[op]:
            storage = values.storage[value]
            if storage in writes.get(op, ()):
                bases[value] = bases[current[storage]]
            else:
                bases[value] = next(ref for ref in program.ops[op].outputs if ref.storage == storage)
    return bases


def _cut_storages(recording: Recording, plan: ReplayPlan, bases: dict[int, TensorRef]) -> set[int]:
    """Storages of which the replay uses other views than the tensor that stands for them: there the layout matters."""
    program = recording.program
    values = number_values(program)
    used = [
        (ref, {values.storage[value]: value for value in values.reads[op]}[ref.storage])
        for op in plan.ops
        for ref in program.ops[op].input_refs()
    ]
    used += [
        (ref, value)
        for ref, value, is_dropped in zip(program.saved, plan.saved_values, plan.dropped, strict=True)
        if is_dropped
    ]
    return {ref.storage for ref, value in used if value not in bases or _geometry(bases[value]) != _geometry(ref)}


def has_geometry(tensor: torch.Tensor, expected: Geometry) -> bool:
    dtype, shape, stride, offset = expected
    return (
        tensor.dtype is dtype
        and tensor.shape == shape
        and tensor.stride() == stride
        and tensor.storage_offset() == offset
    )


def geometry_of(tensor: torch.Tensor) -> Geometry:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _geometry(ref: TensorRef) -> Geometry:
    return getattr(torch, ref.dtype), ref.shape, ref.stride, ref.offset


def _window(ref: TensorRef, value: int, base: TensorRef | None) -> Window:
    """How `ref` looks from `base`; None when the base is a submodule's output, whose geometry no record has."""
    is_whole = base is not None and _geometry(ref) == _geometry(base)
    is_absolute = base is None or ref.dtype != base.dtype
    offset = ref.offset if base is None or is_absolute else ref.offset - base.offset
    return Window(value, is_whole, getattr(torch, ref.dtype), ref.shape, ref.stride, offset, is_absolute)


def _instruction(
    call: LiveCall,
    current: dict[int, int],
    bases: dict[int, TensorRef],
    renames: tuple[tuple[int, int], ...],
    results: tuple[tuple[int, int, Geometry | None], ...],
    frees: tuple[int, ...],
    random_start: int | None,
) -> Instruction:
    def window(ref: TensorRef) -> Window:
        value = current[ref.storage]
        return _window(ref, value, bases.get(value))

    windows: list[tuple[int | str, Any]] = []
    devices = []
    slots: list[tuple[int | str, Any]] = [*enumerate(call.args), *call.kwargs.items()]
    for slot, value in slots:
        if isinstance(value, TensorRef):
            windows.append((slot, window(value)))
        elif isinstance(value, (list, tuple)) and any(isinstance(item, TensorRef) for item in value):
            windows.append((slot, [window(item) if isinstance(item, TensorRef) else item for item in value]))
        elif value is BlockDevice:
            devices.append(str(slot))
    return Instruction(
        call.func, call.args, call.kwargs, tuple(windows), tuple(devices), results, renames, frees, random_start
    )
