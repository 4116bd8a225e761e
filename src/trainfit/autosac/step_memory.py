"""What a step's memory would be if modules were checkpointed: the facts that the solver needs, from one recording.

In: a recorded step and its ledger. Out: `StepMemory`, the bytes at every op, and for each call of a module
`CallMemory`: what it leaves behind for backward, and what running it again takes.

The model is that of `torch.utils.checkpoint` with a policy per op (selective checkpointing): a checkpointed call holds
its inputs and the results of the ops it keeps; the first backward op that needs anything else makes the whole forward
run again, which brings back all that the plain call had left, and on top of it what its forward needs for a moment.
All sizes are upper bounds of what then happens (`CallMemory` says which), so a peak computed from them is one too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainfit.autosac.ledger import Ledger
from trainfit.autosac.mem_tracker import backward_spans
from trainfit.autosac.mod_tracker import Call
from trainfit.autosac.recording import Mark, Recording, Span, _MemRefType
from trainfit.records import Phase

_KINDS = tuple(_MemRefType)
NEVER = 2**62
"""The op after which a storage goes that does not go."""


@dataclass(frozen=True, eq=False)
class StepMemory:
    """Bytes after every allocation and free of a step, and the op at which each happens, in order."""

    ops: np.ndarray
    total_bytes: np.ndarray
    parameter_bytes: np.ndarray
    gradient_bytes: np.ndarray
    optimizer_bytes: np.ndarray
    num_ops: int
    first_op: int
    """What comes before it, a first step that makes the optimizer's state, does not count."""

    def by_op(self, world_size: int, optimizer_state: bool) -> np.ndarray:
        """The most that one rank holds at each op, when parameters, gradients and optimizer state are sharded.

        Optimizer state counts from the start, as it does from the second step on, or not at all.
        """
        values = self.total_bytes - self.optimizer_bytes
        values = values - (self.parameter_bytes + self.gradient_bytes) * (1 - 1 / world_size)
        if optimizer_state:
            values = values + self.optimizer_bytes.max(initial=0) / world_size
        highest = np.zeros(self.num_ops + 1)
        last = np.zeros(self.num_ops + 1)  # after the op's own actions
        seen = np.zeros(self.num_ops + 1, dtype=bool)
        slots = self.ops + 1  # slot 0 is before the first op
        np.maximum.at(highest, slots, values)
        last[slots] = values  # the latest of equal slots stays
        seen[slots] = True
        latest = np.maximum.accumulate(np.where(seen, np.arange(len(seen)), 0))
        carried = last[latest]  # what is there after each slot
        by_op = np.maximum(highest[1:], carried[:-1])
        by_op[: self.first_op] = 0
        return by_op


@dataclass(frozen=True, slots=True)
class CallMemory:
    """One forward call of a module, in ops and bytes."""

    start: int  # its first op
    end: int  # the op after its last
    backward_start: int  # the first op of its backward
    replay_by: int  # the latest op before which it has been run again
    backward_end: int  # the op after its backward's last
    left_bytes: int  # what it made that is there until its backward, outputs apart
    held_bytes: int  # inputs that nothing but a checkpoint would hold until then
    transient_bytes: int  # the most that its forward has at once beyond `left_bytes`


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """By storage: the op that made it (-1 if none did), the op after which it goes, its bytes on the device."""

    made: np.ndarray
    gone: np.ndarray
    nbytes: np.ndarray


def step_memory(ledger: Ledger, num_ops: int, first_op: int) -> StepMemory:
    columns = {kind: ledger.by_kind[:, index] for index, kind in enumerate(_KINDS)}
    return StepMemory(
        ops=ledger.ops,
        total_bytes=ledger.totals,
        parameter_bytes=columns[_MemRefType.PARAM],
        gradient_bytes=columns[_MemRefType.GRAD],
        optimizer_bytes=columns[_MemRefType.OPT],
        num_ops=num_ops,
        first_op=first_op,
    )


def lifetimes(recording: Recording, ledger: Ledger) -> Lifetimes:
    """Of the storages on the ledger's device; others are empty."""
    makers = recording.makers()
    gone = np.full(len(makers), NEVER, dtype=np.int64)
    for event in recording.events:
        gone[event.storage] = NEVER if event.is_alloc else event.op
    on_device = [device == ledger.device for device in recording.devices]
    nbytes = [recording.device_bytes(storage) if here else 0 for storage, here in enumerate(on_device)]
    return Lifetimes(np.array([-1 if maker is None else maker for maker in makers]), gone, np.array(nbytes))


def call_memories(recording: Recording, ledger: Ledger, spans: list[Span]) -> dict[Call, CallMemory]:
    """For each call that has a backward."""
    life = lifetimes(recording, ledger)
    backwards = backward_spans(recording)
    hidden = np.zeros(len(recording.ops), dtype=np.int64)
    inside = ledger.ops >= 0
    np.maximum.at(hidden, ledger.ops[inside], ledger.hidden_bytes[inside])
    return {
        span.call: _call_memory(recording, span, backwards[span.call], life, hidden)
        for span in spans
        if span.end is not None and span.call in backwards
    }


def _call_memory(
    recording: Recording, span: Span, backward: tuple[Mark, Mark], life: Lifetimes, hidden: np.ndarray
) -> CallMemory:
    assert span.end is not None
    start, end = span.start.ops, span.end.ops
    first, last = backward[0].ops, backward[1].ops
    mine = np.flatnonzero((life.made >= start) & (life.made < end))
    is_output = np.isin(mine, span.outputs)
    stays = (life.gone[mine] >= first) & ~is_output
    # Outputs are made again too, beside those that are still there.
    brief = mine[~stays]
    change = np.zeros(end - start + 1, dtype=np.int64)
    np.add.at(change, life.made[brief] - start, life.nbytes[brief])
    np.add.at(change, np.minimum(life.gone[brief], end - 1) + 1 - start, -life.nbytes[brief])
    transient = np.cumsum(change[:-1]) + hidden[start:end]
    inputs = np.array(span.inputs, dtype=np.int64)
    released = inputs[(life.gone[inputs] < first)] if len(inputs) else inputs
    return CallMemory(
        start=start,
        end=end,
        backward_start=first,
        replay_by=_first_use(recording, set(mine[stays].tolist()), first, last),
        backward_end=last,
        left_bytes=int(life.nbytes[mine[stays]].sum()),
        held_bytes=int(life.nbytes[released].sum()),
        transient_bytes=int(transient.max(initial=0)),
    )


def _first_use(recording: Recording, storages: set[int], first: int, last: int) -> int:
    """The first backward op that reads one of the storages; the last where none does."""
    for number in range(first, last):
        op = recording.ops[number]
        if op.phase is Phase.BACKWARD and any(ref.storage in storages for ref in op.input_refs()):
            return number
    return last - 1
