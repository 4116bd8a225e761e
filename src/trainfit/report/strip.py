"""The decisions as strips: layers along one side, the values of a layer along the other. In: a plan, and what is known
of its blocks. Out: a `Strip` per class of blocks, blocks that do the same in one `Group`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainfit.report.plan_text import blocks_in_words

if TYPE_CHECKING:
    from trainfit._plan_record import Decision, Plan

KEPT, RECOMPUTED = "kept", "recomputed"


@dataclass(frozen=True, slots=True)
class BlockValue:
    """Something that backward needs of a block, or that a plan holds for its replay."""

    storage: int  # number in the block's program
    module: str  # where in the block it is made; "" for the block itself
    op: str
    nbytes: int
    time_ns: int  # of the op that makes it
    is_needed: bool  # by backward; otherwise it is held for a replay only


@dataclass(frozen=True, slots=True)
class BlockClass:
    """Blocks that run the same program, in the order in which they run."""

    blocks: tuple[str, ...]
    values: tuple[BlockValue, ...]

    @property
    def saved_bytes(self) -> int:
        """What a block keeps when nothing is recomputed."""
        return sum(value.nbytes for value in self.values if value.is_needed)


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks that do the same; `states` is per value of the strip, empty if the values are not known."""

    label: str
    blocks: tuple[str, ...]
    summary: str
    kept_bytes: int | None  # per block
    recompute_ns: int  # per block
    states: tuple[str, ...]  # KEPT, RECOMPUTED, or "" for what is neither there nor needed


@dataclass(frozen=True, slots=True)
class Strip:
    """The blocks of one class, in order, and what each group of them does."""

    cells: tuple[tuple[str, int], ...]  # (block, number of its group)
    groups: tuple[Group, ...]
    values: tuple[BlockValue, ...]
    saved_bytes: int | None  # per block, when nothing is recomputed


def strips(plan: Plan, classes: Sequence[BlockClass]) -> tuple[Strip, ...]:
    """Without `classes`, one strip of the blocks that the plan's file names, without values."""
    if not classes:
        return (_strip_of_file(plan.decisions),) if plan.decisions else ()
    by_block = {block: decision for decision in plan.decisions for block in decision.blocks}
    return tuple(_strip(block_class, by_block) for block_class in classes)


def _strip_of_file(decisions: Sequence[Decision]) -> Strip:
    groups = tuple(_group(decision.blocks, decision, None) for decision in decisions)
    cells = ((block, number) for number, decision in enumerate(decisions) for block in decision.blocks)
    return Strip(tuple(cells), groups, (), None)


def _strip(block_class: BlockClass, by_block: dict[str, Decision]) -> Strip:
    numbers: dict[str, int] = {}  # by the decision's identity: its blocks
    members: list[tuple[Decision | None, list[str]]] = []
    cells = []
    for block in block_class.blocks:
        decision = by_block.get(block)
        key = "" if decision is None else decision.blocks[0]
        if key not in numbers:
            numbers[key] = len(members)
            members.append((decision, []))
        members[numbers[key]][1].append(block)
        cells.append((block, numbers[key]))
    groups = tuple(_group(tuple(blocks), decision, block_class) for decision, blocks in members)
    return Strip(tuple(cells), groups, block_class.values, block_class.saved_bytes)


def _group(blocks: tuple[str, ...], decision: Decision | None, block_class: BlockClass | None) -> Group:
    values = () if block_class is None else block_class.values
    if decision is None:
        states = tuple(KEPT if value.is_needed else "" for value in values)
        saved_bytes = None if block_class is None else block_class.saved_bytes
        return Group(blocks_in_words(blocks), blocks, "keep everything", saved_bytes, 0, states)
    kept = set(decision.kept)
    states = tuple(KEPT if value.storage in kept else RECOMPUTED if value.is_needed else "" for value in values)
    label, recompute_ns = blocks_in_words(blocks), decision.recompute_ns
    return Group(label, blocks, decision.summary, decision.kept_bytes, recompute_ns, states)
