"""`BaseMemory`: the memory of the step with nothing recomputed, arranged by what a plan can change about it.

In: the `Trace` of the unplanned step, its blocks and their programs. Out: bytes by position. A block that is called
several times is there once for each call, if its program is found in the trace as often. A position p from 0 to the
number of blocks says that the first p blocks, in forward order, are done with forward and not yet in backward: what
they drop is not there. So a plan's memory is that of the unplanned step, less the drops of the first p blocks, plus
what the replay of block p adds while it is under way:

    forward[p]   the most bytes at position p in forward, the loss included (p is the number of blocks)
    other[p]     the most bytes at position p outside of forward and of block p's backward: the loss's backward, the
                 optimizer (p = 0)
    backward[p]  the most bytes from the start of block p's backward to the start of the next one's
    start[p]     the bytes right before block p's backward starts, when its replay begins

Where blocks overlap (one is inside another, or is called twice and does something else each time) only the first p that
are all between forward and backward count, which can only make the model too large, never too small. Sizes are rounded
as the allocator does, and kernels' temporaries are added; what the allocator wastes is not here, and nor are
workspaces, which stay: the exact simulation, which judges every plan, has the last word.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile

from trainfit.records import LAST_OUTPUT, OUTPUT, BlockProgram, Op, Phase, Section, Trace
from trainfit.solve.graph import rounded_bytes

_AUTOGRAD_PHASES = (Phase.BACKWARD, Phase.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class BaseMemory:
    """Bytes by position; `blocks` are those that the trace runs, in forward order, each as often as it is called."""

    blocks: tuple[str, ...]
    forward_bytes: tuple[int, ...]  # one more than there are blocks
    other_bytes: tuple[int, ...]  # one more than there are blocks
    backward_bytes: tuple[int, ...]
    start_bytes: tuple[int, ...]
    forward_op: tuple[int, ...]  # the trace's op at which forward_bytes is reached; -1 where no op is at that position
    other_op: tuple[int, ...]
    backward_op: tuple[int, ...]


@dataclass(slots=True)
class _Span:
    """Where in one section a block's forward ends and its backward starts and ends."""

    first_forward: int
    last_forward: int
    first_backward: int
    last_backward: int


def base_memory(
    trace: Trace, programs: Mapping[str, BlockProgram], temporaries: Callable[[Op], Sequence[int]]
) -> BaseMemory:
    """The unplanned step's memory by position; `temporaries` are an op's hidden buffers as steps (`records.OUTPUT`)."""
    spans = {index: _call_spans(trace, trace.sections[index], programs) for index in set(trace.steady_step)}
    in_order = {call: span for section in spans.values() for call, span in section.items()}
    calls = sorted(in_order, key=lambda call: in_order[call].first_forward)
    table = _Table(len(calls))
    live: dict[int, int] = {}
    for index in trace.first_step:
        _play(trace, trace.sections[index], live)
    for index in trace.steady_step:
        section = trace.sections[index]
        positions = _positions(section, [spans[index].get(call) for call in calls])
        for op, (before, most) in zip(
            range(section.first_op, section.last_op), _play(trace, section, live), strict=True
        ):
            is_forward = trace.ops[op].phase is Phase.FORWARD
            hidden_bytes = _most_hidden_bytes(temporaries(trace.ops[op]))
            table.add(op, positions[op - section.first_op], is_forward, before, most + hidden_bytes)
    return BaseMemory(
        blocks=tuple(name for name, _ in calls),
        forward_bytes=tuple(table.forward),
        other_bytes=tuple(table.other),
        backward_bytes=tuple(table.backward),
        start_bytes=tuple(table.start),
        forward_op=tuple(table.forward_op),
        other_op=tuple(table.other_op),
        backward_op=tuple(table.backward_op),
    )


def _most_hidden_bytes(steps: Sequence[int]) -> int:
    """The most that the temporaries take at one time."""
    sizes = (step // abs(step) * rounded_bytes(abs(step)) for step in steps if step not in (OUTPUT, LAST_OUTPUT))
    return max(accumulate(sizes), default=0)


class _Table:
    def __init__(self, num_blocks: int) -> None:
        self.forward, self.forward_op = [0] * (num_blocks + 1), [-1] * (num_blocks + 1)
        self.other, self.other_op = [0] * (num_blocks + 1), [-1] * (num_blocks + 1)
        self.backward, self.backward_op = [0] * num_blocks, [-1] * num_blocks
        self.start = [0] * num_blocks

    def add(self, op: int, place: tuple[int, bool, bool], is_forward: bool, before: int, most: int) -> None:
        position, in_backward, is_start = place
        if is_start:
            self.start[position] = max(self.start[position], before)
        sizes, ops = (self.forward, self.forward_op) if is_forward else (self.other, self.other_op)
        if in_backward:
            sizes, ops = self.backward, self.backward_op
        if most > sizes[position]:
            sizes[position], ops[position] = most, op


def resident_storages(trace: Trace, block: str, program: BlockProgram) -> frozenset[int]:
    """The program's inputs and outputs that are there at the end of forward in the unplanned step.

    They are found by following the program through the block's ops in the trace. Where it cannot be followed to its end
    all are taken to be there: the model is then too small by what is not, and the judge says so.
    """
    ends = {ref.storage for ref in (*program.inputs, *program.outputs)}
    for index in dict.fromkeys(trace.steady_step):
        section = trace.sections[index]
        ops = [trace.ops[op] for op in range(section.first_op, section.last_op)]
        backward = next((i for i, op in enumerate(ops, section.first_op) if op.phase in _AUTOGRAD_PHASES), None)
        span = block_spans(trace, section, [block]).get(block)
        if backward is None or span is None:
            continue
        # From the block's first op to its last: what it calls may be a module that lives elsewhere.
        found = follow(program, trace.ops, range(span.first_forward, span.last_forward + 1))
        if found is None:
            continue
        numbers, _ = found
        gone = {event.storage for event in section.events if not event.is_alloc and event.op < backward}
        return frozenset(storage for storage in ends if numbers.get(storage) not in gone)
    return frozenset(ends)


Followed = tuple[dict[int, int], list[int]]
"""From a program's storages to the trace's, and from its ops to theirs."""


def follow(
    program: BlockProgram, ops: Sequence[Op], span: Sequence[int], before: Followed | None = None
) -> Followed | None:
    """Where in `span` the program is; None if it is not there. Views, which the program leaves out, are skipped.

    `before` is an earlier call of the same block: its casts of parameters are in autocast's cache and not made again.
    """
    numbers: dict[int, int] = {}
    positions: list[int] = []
    parameters = {ref.storage for _, ref in program.parameters} if before is not None else set()
    pending = iter(program.ops)
    expected = next(pending, None)
    for index in span:
        op = ops[index]
        while expected is not None and before is not None and _is_cast_of(expected, parameters):
            positions.append(before[1][len(positions)])
            expected = next(pending, None)
        if expected is None or not _is_same(expected, op):
            continue
        for ours, theirs in (
            *zip(expected.input_refs(), op.input_refs(), strict=False),
            *zip(expected.outputs, op.outputs, strict=False),
        ):
            numbers.setdefault(ours.storage, theirs.storage)
        positions.append(index)
        expected = next(pending, None)
    return None if expected is not None else (numbers, positions)


def follow_calls(program: BlockProgram, trace: Trace, span: _Span, others: set[str]) -> list[Followed]:
    """`follow` for as many calls of a block as there are in its span; none if not even the first is found.

    What the `others`, the other blocks, do between the calls is passed over.
    """
    owner: dict[str, str | None] = {}
    pending: list[int] = []
    for index in range(span.first_forward, span.last_forward + 1):
        module = trace.ops[index].module
        if module not in owner:
            owner[module] = _owner(module, others)
        if owner[module] is None:
            pending.append(index)
    calls: list[Followed] = []
    while (found := follow(program, trace.ops, pending, calls[0] if calls else None)) is not None and found[1]:
        calls.append(found)
        pending = pending[bisect(pending, max(found[1])) :]
    return calls


def _is_cast_of(op: Op, parameters: set[int]) -> bool:
    return op.name == "aten._to_copy.default" and all(ref.storage in parameters for ref in op.input_refs())


def own_storages(program: BlockProgram, numbers: Mapping[int, int]) -> set[int]:
    """The trace's storages that a call alone reads in backward: not its result, which the next call reads too, nor
    parameters and their casts, which all calls read."""
    parameters = {ref.storage for _, ref in program.parameters}
    casts = {ref.storage for op in program.ops if _is_cast_of(op, parameters) for ref in op.outputs}
    shared = parameters | casts | {ref.storage for ref in (*program.inputs, *program.outputs)}
    return {number for storage, number in numbers.items() if storage not in shared}


def _call_spans(trace: Trace, section: Section, programs: Mapping[str, BlockProgram]) -> dict[tuple[str, int], _Span]:
    """The spans of each call, by block and number of the call; a call's backward begins where its own is first read."""
    spans: dict[tuple[str, int], _Span] = {}
    for name, whole in block_spans(trace, section, list(programs)).items():
        program = programs[name]
        calls = follow_calls(program, trace, whole, programs.keys() - {name})
        own = [own_storages(program, numbers) for numbers, _ in calls[:-1]]
        starts = [*(_first_read(storages, trace.ops, whole) for storages in own), whole.first_backward]
        if len(calls) < 2 or not all(later < earlier for earlier, later in pairwise(starts)):
            spans[name, 0] = whole
            continue
        last_forward, last_backward = whole.first_forward - 1, whole.last_backward
        for call, start in enumerate(starts):
            positions = [position for position in calls[call][1] if position > last_forward]
            last_forward = max(positions) if call + 1 < len(calls) else whole.last_forward
            spans[name, call] = _Span(min(positions), last_forward, start, last_backward)
            last_backward = start - 1
    return spans


def _first_read(storages: set[int], ops: Sequence[Op], span: _Span) -> int:
    """The first op of the span's backward that reads one of the storages; the one after it where none does."""
    backward = range(span.first_backward, span.last_backward + 1)
    reads = (op for op in backward if not storages.isdisjoint(ref.storage for ref in ops[op].input_refs()))
    return next(reads, backward.stop)


def _is_same(expected: Op, op: Op) -> bool:
    names = {expected.name.replace("empty_strided", "empty_like"), expected.name}  # how a program says it
    shapes = [ref.shape for ref in expected.outputs], [ref.shape for ref in op.outputs]
    return op.name in names and shapes[0] == shapes[1]


def block_spans(trace: Trace, section: Section, block_names: Sequence[str]) -> dict[str, _Span]:
    """The blocks that run forward and backward in the section."""
    owner: dict[str, str | None] = {}
    names = set(block_names)
    spans: dict[str, _Span] = {}
    for index in range(section.first_op, section.last_op):
        op = trace.ops[index]
        if op.module not in owner:
            owner[op.module] = _owner(op.module, names)
        name = owner[op.module]
        if name is None or op.phase is Phase.OPTIMIZER:
            continue
        span = spans.setdefault(name, _Span(index, -1, -1, -1))
        if op.phase is Phase.FORWARD:
            span.last_forward = index
        elif op.phase in _AUTOGRAD_PHASES:
            if span.first_backward < 0:
                span.first_backward = index
            span.last_backward = index
    return {name: span for name, span in spans.items() if span.last_forward >= 0 and span.first_backward >= 0}


def _owner(module: str, names: set[str]) -> str | None:
    """The outermost of the blocks that the module is, or is in."""
    parts = module.split(".")
    paths = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next((path for path in paths if path in names), None)


def _positions(section: Section, spans: Sequence[_Span | None]) -> list[tuple[int, bool, bool]]:
    """For each op of the section: its position, whether it is in that block's backward, whether it starts it."""
    places = []
    here = [span for span in takewhile(lambda span: span is not None, spans) if span is not None]
    # Of all blocks up to each: the last op of their forwards, and how far before 0 the first of their backwards is.
    forward = list(accumulate((span.last_forward for span in here), max))
    backward = list(accumulate((-span.first_backward for span in here), max))
    for op in range(section.first_op, section.last_op):
        position = min(bisect_left(forward, op), bisect_left(backward, -op))  # blocks that are between the two
        span = spans[position] if position < len(spans) else None
        last_backward = span.last_backward if span is not None else -1
        if position > 0 and span is not None:
            last_backward = section.last_op  # what comes between two blocks' backwards belongs to the earlier one
        in_backward = span is not None and span.first_backward <= op <= last_backward
        places.append((position, in_backward, in_backward and span is not None and op == span.first_backward))
    return places


def _play(trace: Trace, section: Section, live: dict[int, int]) -> list[tuple[int, int]]:
    """For each op of the section: the bytes before it, and the most during it. Updates what is live."""
    moments = []
    total = sum(live.values())
    events = iter((*section.events, None))
    event = next(events)
    for op in range(section.first_op, section.last_op + 1):
        before = most = total
        while event is not None and (event.op <= op or op == section.last_op):
            if event.is_alloc and event.storage not in live:
                live[event.storage] = rounded_bytes(trace.storages[event.storage].nbytes)
                total += live[event.storage]
            elif not event.is_alloc:
                total -= live.pop(event.storage, 0)
            most = max(most, total)
            event = next(events)
        moments.append((before, most))
    return moments[: section.last_op - section.first_op]
