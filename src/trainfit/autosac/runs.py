"""Equal modules in a row, as the layers of a transformer, and why the solver need not tell them apart.

Let a run be N blocks that are equal in all their units' sizes and whose forwards and backwards follow each other:
at every moment the first of them, a in number, are dropped, at most one runs, and the others are not there (not yet
in forward, not any more in backward). Then only how often each option is chosen matters, the last block apart:

Of the first N - 1 blocks let those that drop more come first. What the first a of them have dropped, D(a), grows by
less and less, so it is at least its share of all: D(a) >= a / (N - 1) D(N - 1). With that, and with the largest extra
of any option in use for the block that runs, the memory at every moment is bounded by a row in the counts alone. Rows
of the last block, and of moments at which all blocks are dropped, are exact.

Counts that respect, along every chain of nested units, that a block has one checkpoint at most can always be dealt out:
outer units first, each inner unit to blocks where nothing around it is checkpointed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainfit.autosac.ilp_utils import is_self_or_submodule, is_submodule
from trainfit.autosac.moments import Moment, Unit, dropped_bytes

MIN_BLOCKS = 6
"""Fewer blocks are told apart: that is exact, and quick enough."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a moment lies in a run: so many blocks are dropped, and maybe the next one runs."""

    dropped: int
    is_inside: bool


@dataclass(frozen=True, slots=True)
class Run:
    """`blocks[m]` are the units of block m, the outermost first; unit i of every block is the same to the solver."""

    blocks: tuple[tuple[int, ...], ...]
    places: tuple[Place, ...] = ()  # of every moment; none for a run of one block

    @property
    def length(self) -> int:
        return len(self.blocks)


def find_runs(units: Sequence[Unit], moments: Sequence[Moment]) -> list[Run]:
    """The runs of at least `MIN_BLOCKS` blocks, outermost modules first; every other unit is a run of its own block."""
    runs: list[Run] = []
    taken: set[int] = set()
    for number, unit in enumerate(units):
        if number in taken:
            continue
        siblings = [n for n in range(number, len(units)) if n not in taken and units[n].parent == unit.parent]
        blocks = [_block(units, number)]
        for sibling in siblings[1:]:
            block = _block(units, sibling)
            if _shape(units, block) != _shape(units, blocks[0]):
                break
            blocks.append(block)
        places = [place(moment, blocks) for moment in moments] if len(blocks) >= MIN_BLOCKS else [None]
        known = tuple(found for found in places if found is not None)
        run = Run(tuple(blocks), known) if len(known) == len(moments) else Run(((number,),))
        runs.append(run)
        taken |= {n for block in run.blocks for n in block}
    return runs


def place(moment: Moment, blocks: Sequence[tuple[int, ...]]) -> Place | None:
    """None if the blocks are not dropped one after the other there."""
    states = [_state(moment, block) for block in blocks]
    dropped = next((m for m, state in enumerate(states) if state != "dropped"), len(states))
    rest = states[dropped:]
    is_inside = bool(rest) and rest[0] == "inside"
    if any(state != "absent" for state in rest[is_inside:]):
        return None
    return Place(dropped, is_inside)


def deal(units: Sequence[Unit], run: Run, counts: dict[tuple[int, int], int]) -> list[list[tuple[int, int]]]:
    """Counts by (position in the block, option) -> for each block but the last its (position, option)s, heavy first."""
    first = run.blocks[0]
    hands: list[list[tuple[int, int]]] = [[] for _ in range(run.length - 1)]

    def drop(position: int, option: int) -> int:
        unit = units[first[position]]
        return sum(dropped_bytes(call, unit.options[option]) for call in unit.calls)

    for position, number in enumerate(first):
        chosen = [(o, n) for (p, o), n in counts.items() if p == position]
        pending = [o for o, n in sorted(chosen, key=lambda pair: -drop(position, pair[0])) for _ in range(n)]
        for hand in hands:
            around = any(is_self_or_submodule(units[number].fqn, units[first[p]].fqn) for p, _ in hand)
            if pending and not around:
                hand.append((position, pending.pop(0)))
    return sorted(hands, key=lambda hand: -sum(drop(*card) for card in hand))


def _block(units: Sequence[Unit], number: int) -> tuple[int, ...]:
    root = units[number].fqn
    return (number, *(n for n, unit in enumerate(units) if is_submodule(unit.fqn, root)))


def _shape(units: Sequence[Unit], block: tuple[int, ...]) -> tuple[object, ...]:
    root = units[block[0]].fqn
    return tuple((units[n].fqn.removeprefix(root), units[n].sizes()) for n in block)


def _state(moment: Moment, block: tuple[int, ...]) -> str:
    if all(len(moment.dropped.get(n, ())) == 1 and n not in moment.active and n not in moment.replayed for n in block):
        return "dropped"
    is_absent = all(n not in moment.dropped and n not in moment.active and n not in moment.replayed for n in block)
    return "absent" if is_absent else "inside"
