"""`carry_decision`: a decision about one program as a decision about the same block run with other kernels.

Pure, no torch. Deterministic settings, say, make torch choose another attention kernel: the block's ops are the same
but for that one, whose outputs are numbered otherwise. A kept storage is known by the op that made it and its place
among that op's outputs; of an op that has changed, everything that can be held is kept if anything was.
"""

from __future__ import annotations

from dataclasses import replace

from trainfit.apply.replay import structure_of
from trainfit.errors import PlanMismatch
from trainfit.records import BlockDecision, BlockProgram


def carry_decision(decision: BlockDecision, source: BlockProgram, target: BlockProgram) -> BlockDecision:
    """What `decision`, made for `source`, says about `target`; PlanMismatch where their ops do not pair up."""
    if decision.rerun:
        return replace(decision, structure=structure_of(target))
    if len(source.ops) != len(target.ops) or len(_given(source)) != len(_given(target)):
        raise PlanMismatch(
            f"with other kernels the block has {len(target.ops)} ops, the plan's has {len(source.ops)}",
            hint="make a plan under the settings with which the model is trained",
        )
    pairs = dict(zip(_given(source), _given(target), strict=True))
    changed: dict[int, list[int]] = {}  # storage of `source`, made by an op that has changed -> that op's in `target`
    for op, other in zip(source.ops, target.ops, strict=True):
        made = [ref.storage for ref in other.outputs]
        for position, ref in enumerate(op.outputs):
            if op.name != other.name:
                changed.setdefault(ref.storage, made)
            else:
                pairs.setdefault(ref.storage, made[position])
    kept = {pairs[storage] for storage in decision.kept if storage in pairs}
    kept |= {storage for old in decision.kept if old not in pairs for storage in changed.get(old, ())}
    holdable = {ref.storage for ref in target.saved} | {storage for _, storage in target.submodule_outputs}
    return BlockDecision(kept=tuple(sorted(kept & holdable)), structure=structure_of(target))


def _given(program: BlockProgram) -> list[int]:
    """The storages of inputs and parameters, in order."""
    return list(dict.fromkeys(ref.storage for ref in (*program.inputs, *(ref for _, ref in program.parameters))))
