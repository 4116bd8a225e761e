"""The frozen records that pass between stages; every stage imports this file and no other stage.

Flow: `Step` -> trace -> `Trace` -> simulate -> `MemoryTimeline` -> `Estimate`.
Sizes are bytes, times nanoseconds, always integers. Nothing here imports torch: dtypes are names ("bfloat16"),
ops are strings ("aten.mm.default").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What the training loop was doing when an op ran."""

    BUILD = "build"  # parameters, buffers and the batch come into being
    FORWARD = "forward"
    RECOMPUTE = "recompute"  # a forward run again inside backward (activation checkpointing)
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"  # unscaling, clipping, the optimizer's step, zero_grad


class Category(StrEnum):
    """What a storage is for; the breakdown of a peak is a sum over these."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"  # made in forward, still there when backward starts
    TEMPORARIES = "temporaries"  # everything else that comes and goes, hidden kernel buffers included
    WORKSPACES = "workspaces"  # library workspaces that stay (cuBLAS)
    OTHER = "other"  # buffers and the batch


OUTPUT, LAST_OUTPUT = 0, -(2**63)
"""Steps of a kernel's hidden memory. Steps are integers: n > 0 allocates a temporary of n bytes, -n frees the latest
one of n bytes, OUTPUT is the op's next output, LAST_OUTPUT its last one that has not come yet. Outputs beyond those
named come before all steps; temporaries that are left go after them."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """One tensor argument or result: a strided window on a storage."""

    storage: int  # index into Trace.storages
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product


@dataclass(frozen=True, slots=True)
class HostWork:
    """What the CPU did between two ops, beside issuing them."""

    waited: bool  # for all that was issued: it read a value, or copied from the host
    num_ops: int  # on tensors of its own, after it had waited
    num_elements: int  # that those ops wrote


@dataclass(frozen=True, slots=True)
class Op:
    """One aten op as the GPU's dispatcher saw it, below autograd and autocast."""

    name: str  # "aten.mm.default"
    phase: Phase
    module: str  # dotted path of the innermost module; "" outside any
    args: tuple[object, ...]  # a TensorRef for a tensor, a tuple for a list, otherwise the plain value
    kwargs: tuple[tuple[str, object], ...]
    outputs: tuple[TensorRef, ...]
    stream: int = 0  # the stream it runs on; 0 is the default one
    waits: tuple[int, ...] = ()  # how many ops back are those, of other streams, that must be done before it starts
    tf32: bool = False  # a product of float32 that the GPU may round to TF32, as torch was told when it ran
    before: HostWork | None = None  # what the CPU did since the op before it; what an optimizer's does is no work
    continues: bool = False  # issued by the same call from Python, or the same node of a backward pass, as the last op

    def input_refs(self) -> Iterator[TensorRef]:
        """The tensors among the arguments, in order, lists opened."""
        yield from _refs_in(self.args)
        yield from _refs_in(self.kwargs)


def _refs_in(values: tuple[object, ...]) -> Iterator[TensorRef]:
    for value in values:
        if isinstance(value, TensorRef):
            yield value
        elif isinstance(value, tuple):
            yield from _refs_in(value)


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation of the step; a storage that comes again in the next step keeps its number."""

    nbytes: int
    category: Category


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """A storage appearing (during op `op`) or going (right after it), in program order."""

    op: int  # index into Trace.ops
    storage: int
    is_alloc: bool
    stream: int = 0  # the stream whose memory an appearing storage takes


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of the program that runs as one: the ops [first_op, last_op) and the events among them."""

    name: str  # "build", "micro_batch", "next_micro_batch", "first_optimizer_step", "optimizer_step", "zero_grad"
    first_op: int
    last_op: int
    events: tuple[MemoryEvent, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """One training step on a target GPU, from process start to steady state.

    The program is `sections[i] for i in first_step`, then `steady_step` again and again. An alloc event for a storage
    that is already there (a cache built in the first forward) stands for the reuse of that cache: play it once.
    """

    gpu: str
    torch_version: str
    num_parameters: int
    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    sections: tuple[Section, ...]
    first_step: tuple[int, ...]
    steady_step: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """Memory right after one op of the steady step."""

    op: int
    time_ns: int  # since the step began; 0 until the step is priced
    bytes_by_category: tuple[int, ...]  # in the order of Category


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """What the allocator did in the steady step."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_op: int  # index into Trace.ops of the op during which allocated was highest
    breakdown_bytes: tuple[tuple[Category, int], ...]  # at the peak; sums to peak_allocated_bytes
    points: tuple[TimelinePoint, ...]


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block of the allocator's that is taken or given back in the steady step."""

    op: int | None  # index into Trace.ops of the op at which it happens; None for what is there when the step begins
    maker: int | None  # the op that took it, also when that was before the step; None if no op did
    address: int
    size_bytes: int
    requested_bytes: int
    category: Category
    is_alloc: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of memory that the allocator has from the driver, tiled by blocks: (address, bytes, is in use)."""

    address: int
    size_bytes: int
    blocks: tuple[tuple[int, int, bool], ...]


@dataclass(frozen=True, slots=True)
class OpRun:
    """One op of the steady step as it runs: issued by the CPU, then run by a stream of the GPU."""

    op: int  # index into Trace.ops
    issue_start_ns: int
    issue_end_ns: int
    gpu_start_ns: int  # without meaning where gpu_ns is 0
    gpu_ns: int  # 0 for an op that launches nothing
    stream: int = 0  # of the GPU; 0 computes, others communicate


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The steady step op by op, for pictures of it: when each op ran, and what memory it took and gave back."""

    trace: Trace
    runs: tuple[OpRun, ...]  # in the order in which the step runs; a section that runs twice is here twice
    events: tuple[BlockEvent, ...]  # in order; those of a run come before those of the next
    segments: tuple[Segment, ...]  # at the end of the step


@dataclass(frozen=True, slots=True)
class StepTime:
    """When a step's work ran: the CPU issues ops in order, each stream of the GPU runs its own in order."""

    step_ns: int  # from the first op's issue until both CPU and GPU are done
    gpu_busy_ns: int  # the sum of all kernels' times
    host_ns: int  # how long the CPU issued and computed, waits for the GPU left out
    phase_ns: tuple[tuple[Phase, int], ...]  # by what was running when time went by; sums to step_ns
    issued_ns: tuple[int, ...]  # per op, when the CPU had issued it
    ends_ns: tuple[int, ...]  # per op, when it was done; for an op without kernel, when the CPU was


@dataclass(frozen=True, slots=True)
class PeakMoment:
    """When the peak happens, in the user's words."""

    phase: Phase
    op: str
    module: str


@dataclass(frozen=True, slots=True)
class BlockProgram:
    """What one call of a block's forward does, recorded on ghosts: the same for every block of a class.

    Storage numbers are local to the program: inputs first, then parameters and buffers, then what the ops make, in the
    order in which they appear. Views vanish here, since any view of a storage at hand is an `as_strided` of it.
    """

    ops: tuple[Op, ...]  # in program order, views left out; modules are relative to the block
    storage_bytes: tuple[int, ...]
    inputs: tuple[TensorRef, ...]  # the tensors among the block's arguments, in order
    parameters: tuple[tuple[str, TensorRef], ...]  # parameters and buffers by their name in the block
    saved: tuple[TensorRef, ...]  # what autograd packed, in order; a storage may come several times
    outputs: tuple[TensorRef, ...]  # the tensors among the block's results, in order
    submodule_outputs: tuple[tuple[str, int], ...]  # (submodule, storage): values that a forward hook can hold
    saved_after: tuple[int, ...] = ()  # per saved tensor, how many of the ops had run when autograd packed it
    writes: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (op, storages it overwrites), for ops that do
    random: tuple[int, ...] = ()  # ops that draw from the default generator
    opaque: tuple[int, ...] = ()  # ops that cannot be run again from what is written here: what they make is kept
    freed_after: tuple[int | None, ...] = ()
    """Per storage, how many of the ops had run when it was let go, autograd holding nothing; None: not in forward."""


@dataclass(frozen=True, slots=True)
class BlockDecision:
    """What a block keeps between forward and backward; whatever else autograd saved is dropped and replayed."""

    kept: tuple[int, ...]  # storage numbers of the block's program, ascending
    structure: str | None = None  # fingerprint of the program it was made for (any input sizes); None: not checked
    rerun: bool = False  # nothing is kept but the inputs, and the whole forward is run again, as in checkpointing
