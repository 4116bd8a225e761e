"""`BlockGraph`: a block's program as values and ops, the form in which what to keep can be decided.

In: a `BlockProgram` and the time of each of its ops. Out: a frozen graph; no torch, no numbers but bytes and ns.

A value is one version of a storage: an in-place op makes the next version of what it writes. After forward a storage
holds its last version only, so only that can be kept. Inputs, parameters and buffers are free: they are at hand in
backward whatever the block does. What may be kept is what somebody can hold: storages that autograd saves, and the
outputs of submodules. The block's own outputs cost nothing to keep, because the next block holds them as its inputs.

Ops fall in three groups. Plain ones may be replayed freely. Random ones are replayed all, in order, or not at all, so
that the generator is advanced as in forward. Fixed ones (collectives, ops that update running statistics) never are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainfit.records import BlockProgram, Op

ALLOCATION_UNIT_BYTES = 512
"""The allocator hands out multiples of this; what a storage takes is rounded up to it."""

_COLLECTIVES = ("_c10d_functional", "c10d", "_c10d_functional_autograd")
_RANDOM = frozenset(
    "native_dropout bernoulli bernoulli_ rand rand_like randn randn_like randint randint_like randperm normal normal_ "
    "uniform_ multinomial exponential_ log_normal_ geometric_ cauchy_ poisson rrelu_with_noise rrelu_with_noise_ "
    "_fused_dropout".split()
)
_DROPOUT_ARGUMENT = {  # random only when this argument, the probability of dropout, is not zero
    "_scaled_dot_product_flash_attention": 3,
    "_scaled_dot_product_efficient_attention": 5,
    "_scaled_dot_product_cudnn_attention": 5,
    "_cudnn_rnn": 9,
}
_UPDATES_STATISTICS = frozenset(
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_with_update".split()
)


@dataclass(frozen=True, slots=True)
class BlockGraph:
    """Values are numbered in the order in which they appear; `storage`, `nbytes` and `maker` are by value."""

    storage: tuple[int, ...]
    nbytes: tuple[int, ...]  # what keeping the value costs; 0 for outputs of the block
    maker: tuple[int | None, ...]  # the op that makes the value; None for what comes from outside
    is_free: tuple[bool, ...]  # at hand in backward without being kept
    is_keepable: tuple[bool, ...]
    needed: tuple[int, ...]  # values that backward reads, ascending, free ones left out
    reads: tuple[tuple[int, ...], ...]  # by op
    makes: tuple[tuple[int, ...], ...]  # by op
    time_ns: tuple[int, ...]  # by op
    is_fixed: tuple[bool, ...]  # by op: never replayed
    tied: tuple[tuple[int, ...], ...]  # groups of ops that are replayed together: random ones, in-place chains

    @property
    def saved_bytes(self) -> int:
        """What the block keeps when nothing is recomputed."""
        return sum(self.nbytes[value] for value in self.needed)


def is_random(op: Op) -> bool:
    """Whether the op draws from the generator."""
    name = op.name.split(".")[1] if op.name.count(".") else op.name
    if name in _DROPOUT_ARGUMENT:
        position = _DROPOUT_ARGUMENT[name]
        keyword = dict(op.kwargs).get("dropout_p", 0.0)
        probability = op.args[position] if len(op.args) > position else keyword
        return isinstance(probability, (int, float)) and probability > 0
    return name in _RANDOM


def is_fixed(op: Op) -> bool:
    """Whether the op must run once and no more: it communicates, or changes state outside its outputs."""
    namespace, _, rest = op.name.partition(".")
    return namespace in _COLLECTIVES or namespace != "aten" or rest.split(".")[0] in _UPDATES_STATISTICS


def build_graph(program: BlockProgram, time_ns: Sequence[int]) -> BlockGraph:
    """The graph of `program`, whose ops take `time_ns`."""
    if len(time_ns) != len(program.ops):
        raise ValueError(f"{len(program.ops)} ops, but {len(time_ns)} times")
    free = {ref.storage for ref in program.inputs} | {ref.storage for _, ref in program.parameters}
    storages, makers, current, reads, makes = _number_values(program, free)
    last = set(current.values())
    saved = {ref.storage for ref in program.saved}
    keepable = (saved | {storage for _, storage in program.submodule_outputs}) - free
    outputs = {ref.storage for ref in program.outputs}
    return BlockGraph(
        storage=tuple(storages),
        nbytes=tuple(0 if s in outputs else rounded_bytes(program.storage_bytes[s]) for s in storages),
        maker=tuple(makers),
        is_free=tuple(s in free and value in last for value, s in enumerate(storages)),
        is_keepable=tuple(s in keepable and value in last for value, s in enumerate(storages)),
        needed=tuple(sorted(current[s] for s in saved - free)),
        reads=tuple(reads),
        makes=tuple(makes),
        time_ns=tuple(time_ns),
        is_fixed=tuple(is_fixed(op) for op in program.ops),
        tied=_tied(program, storages, makes),
    )


def _number_values(
    program: BlockProgram, free: set[int]
) -> tuple[list[int], list[int | None], dict[int, int], list[tuple[int, ...]], list[tuple[int, ...]]]:
    storages: list[int] = []
    makers: list[int | None] = []
    current: dict[int, int] = {}  # storage -> its latest value

    def new_value(storage: int, maker: int | None) -> int:
        current[storage] = len(storages)
        storages.append(storage)
        makers.append(maker)
        return current[storage]

    for storage in sorted(free):
        new_value(storage, None)
    reads, makes = [], []
    for index, op in enumerate(program.ops):
        in_place = op.name.split(".")[-2].endswith("_") or op.name.endswith("out")
        read = {ref.storage for ref in op.input_refs()}
        for storage in sorted(read - current.keys()):
            new_value(storage, None)  # comes from outside and is no argument: nobody can find it again
        reads.append(tuple(sorted(current[storage] for storage in read)))
        written = dict.fromkeys(ref.storage for ref in op.outputs)
        makes.append(tuple(new_value(s, index) for s in written if in_place or s not in current))
    for storage in sorted({ref.storage for ref in program.saved} - current.keys()):
        new_value(storage, None)
    return storages, makers, current, reads, makes


def _tied(
    program: BlockProgram, storages: Sequence[int], makes: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    random = tuple(index for index, op in enumerate(program.ops) if is_random(op))
    writers: dict[int, list[int]] = {}
    for index, made in enumerate(makes):
        for value in made:
            writers.setdefault(storages[value], []).append(index)
    groups = [random, *(tuple(ops) for ops in writers.values())]
    return tuple(group for group in groups if len(group) > 1)


def rounded_bytes(nbytes: int) -> int:
    """What the allocator hands out for `nbytes`."""
    return -(-nbytes // ALLOCATION_UNIT_BYTES) * ALLOCATION_UNIT_BYTES
