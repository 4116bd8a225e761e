"""`renumberings`: a recording under other storage numbers, as if arguments that the block ignores were not there.

In: a recording. Out: recordings that do the same, in which some of the inputs that no op reads and nobody saves or
returns are numbered after everything else. A plan names storages by number, and whoever calls the block may pass one
argument more than when the plan was made: transformers' Trainer hands the number of labels down to every layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from trainfit.apply.record import LiveCall, Recording
from trainfit.records import BlockProgram, Op, TensorRef

MAX_IGNORED = 6
"""Arguments beyond these are left where they are: every subset is looked at."""


def renumberings(recording: Recording) -> Iterator[Recording]:
    """The recording with each choice of ignored inputs numbered last, the largest choice first."""
    ignored = sorted(_ignored_inputs(recording.program))[:MAX_IGNORED]
    for count in range(len(ignored), 0, -1):
        for chosen in combinations(ignored, count):
            rest = (s for s in range(len(recording.program.storage_bytes)) if s not in chosen)
            number = {old: new for new, old in enumerate((*rest, *chosen))}
            calls = (LiveCall(call.func, *_renumbered((call.args, call.kwargs), number)) for call in recording.calls)
            yield Recording(_renumbered_program(recording.program, number), tuple(calls))


def _ignored_inputs(program: BlockProgram) -> set[int]:
    used = {ref.storage for op in program.ops for ref in (*op.input_refs(), *op.outputs)}
    used |= {ref.storage for ref in (*program.saved, *program.outputs, *dict(program.parameters).values())}
    used |= {storage for _, storage in program.submodule_outputs}
    return {ref.storage for ref in program.inputs} - used


def _renumbered_program(program: BlockProgram, number: Mapping[int, int]) -> BlockProgram:
    order = sorted(number, key=number.__getitem__)
    return replace(
        program,
        ops=_renumbered(program.ops, number),
        inputs=_renumbered(program.inputs, number),
        parameters=_renumbered(program.parameters, number),
        saved=_renumbered(program.saved, number),
        outputs=_renumbered(program.outputs, number),
        storage_bytes=tuple(program.storage_bytes[old] for old in order),
        submodule_outputs=tuple((name, number[storage]) for name, storage in program.submodule_outputs),
        writes=tuple((op, tuple(number[storage] for storage in storages)) for op, storages in program.writes),
        freed_after=tuple(program.freed_after[old] for old in order),
    )


def _renumbered(value: Any, number: Mapping[int, int]) -> Any:
    """Whatever holds `TensorRef`s, with new numbers in them."""
    if isinstance(value, TensorRef):
        return replace(value, storage=number[value.storage])
    if isinstance(value, Op):
        args, kwargs, outputs = (_renumbered(part, number) for part in (value.args, value.kwargs, value.outputs))
        return replace(value, args=args, kwargs=kwargs, outputs=outputs)
    if isinstance(value, (tuple, list)):
        return type(value)(_renumbered(item, number) for item in value)
    if isinstance(value, dict):
        return {key: _renumbered(item, number) for key, item in value.items()}
    return value
