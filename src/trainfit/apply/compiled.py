"""`Compiled`: a recording and its replay plan, made ready to run; it holds no tensor.

All that can be known before a step is worked out here, once per block and input signature: the replay as one function,
which saves to drop, hold or watch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainfit.apply.geometry import Window, geometry_of_ref, window_on
from trainfit.apply.packing import Packer, Save, write_packing
from trainfit.apply.record import Recording
from trainfit.apply.replay import AT_START, ReplayPlan, Values, number_values
from trainfit.apply.straight import Replay, straighten
from trainfit.records import TensorRef


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Compiled:
    """A block's recording and plan, ready to run; blocks that are alike share one."""

    plan: ReplayPlan
    saves: tuple[Save, ...]
    returns: tuple[Window | None, ...]  # per dropped tensor: how it looks on the rebuilt value; None: it is that
    pack: Packer
    replay: Replay
    from_kept: tuple[int, ...]  # values that the replay reads of what the plan keeps
    hooked: dict[str, dict[int, int]]  # submodule -> {position among its output tensors: value}
    kept_bytes: int
    dropped_bytes: int


def _replay_nothing(*_: object) -> dict[int, torch.Tensor]:
    return {}


NOTHING = Compiled(
    plan=ReplayPlan((), (), (), (), (), (), (), (), (), (), ()),
    saves=(), returns=(), pack=write_packing((), ()), replay=_replay_nothing, from_kept=(),
    hooked={}, kept_bytes=0, dropped_bytes=0,
)  # fmt: skip
"""For calls that are checkpointed as a whole from the start."""


def compile_plan(recording: Recording, plan: ReplayPlan) -> Compiled:
    """Make a plan ready to run."""
    program = recording.program
    values = number_values(program)
    bases = _base_refs(recording, plan, values)
    outputs = {ref.storage for ref in program.outputs}
    dropped_storages = {values.storage[value] for value, _ in plan.rebuilt}
    hooked: dict[str, dict[int, int]] = {}
    for name, position, value in plan.from_submodules:
        hooked.setdefault(name, {})[position] = value
    held = {save for save, _ in plan.from_saved}
    starts = {start for _, start in plan.random_starts} - {AT_START}
    windows = [
        window_on(ref, bases.get(value, ref)) for ref, value in zip(program.saved, plan.saved_values, strict=True)
    ]
    saves = tuple(
        Save(
            geometry=geometry_of_ref(ref),
            value=value,
            is_dropped=is_dropped,
            is_held=number in held,
            is_watched=is_dropped and ref.storage in outputs,
            takes_position=number in starts,
            is_whole=windows[number].is_whole,
        )
        for number, (ref, value, is_dropped) in enumerate(
            zip(program.saved, plan.saved_values, plan.dropped, strict=True)
        )
    )
    return Compiled(
        plan=plan,
        saves=saves,
        returns=tuple(None if window.is_whole else window for window in windows),
        pack=write_packing(saves, [value for value, _ in plan.rebuilt]),
        replay=straighten(recording, plan, values, bases, _cut_storages(recording, plan, values, bases)),
        from_kept=plan.from_kept,
        hooked=hooked,
        kept_bytes=sum(program.storage_bytes[storage] for storage in plan.kept),
        dropped_bytes=sum(program.storage_bytes[storage] for storage in dropped_storages),
    )


def _base_refs(recording: Recording, plan: ReplayPlan, values: Values) -> dict[int, TensorRef]:
    """For each value of the replay, the geometry of the tensor that will stand for it."""
    program = recording.program
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


def _cut_storages(recording: Recording, plan: ReplayPlan, values: Values, bases: dict[int, TensorRef]) -> set[int]:
    """Storages of which the replay uses other views than the tensor that stands for them: there the layout matters."""
    program = recording.program
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
    return {
        ref.storage
        for ref, value in used
        if value not in bases or geometry_of_ref(bases[value]) != geometry_of_ref(ref)
    }
