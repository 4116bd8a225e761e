"""What people do without a plan, and the same choice of ops replayed: each changes a model in place.

`checkpointed` checkpoints every layer, or every second one; `selective` is torch's selective checkpointing that saves
what some ops make: those of `KEPT_OPS`, matrix products and attention, or attention only; `replayed` keeps the same
ops' results by the replay executor. They work on a real GPU, on the CPU and on a ghost GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainfit.apply import Handle, apply_decisions, find_blocks
from trainfit.records import BlockDecision, BlockProgram

MATMULS = ("mm", "addmm", "bmm", "baddbmm")
IsKept = Callable[[str], bool]
"""By an op's name, without its namespace and overload."""
KEPT_OPS: dict[str, IsKept] = {
    "selective": lambda name: name in MATMULS or "attention" in name,
    "selective, attention only": lambda name: "attention" in name,
}
"""What people let torch's selective checkpointing save."""


def checkpointed(model: nn.Module, every: int, context_fn: Callable[[], Any] | None = None) -> None:
    """Checkpoint (non-reentrant) every n-th block."""
    extra = {} if context_fn is None else {"context_fn": context_fn}
    for name in find_blocks(model)[::every]:
        block: Any = model.get_submodule(name)
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, **extra)


def selective(model: nn.Module, is_kept: IsKept) -> None:
    """torch's selective checkpointing of every block."""

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_saved = is_kept(op._schema.name.removeprefix("aten::"))
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    checkpointed(model, 1, functools.partial(create_selective_checkpoint_contexts, policy))


def replayed(model: nn.Module, is_kept: IsKept, programs: dict[str, BlockProgram]) -> Handle:
    """What `selective` saves, by replay; `programs` are those of the model's blocks."""
    return apply_decisions(model, {name: _keep(program, is_kept) for name, program in programs.items()}, strict=True)


def _keep(program: BlockProgram, is_kept: IsKept) -> BlockDecision:
    holdable = {ref.storage for ref in program.saved} | {storage for _, storage in program.submodule_outputs}
    kept = {ref.storage for op in program.ops if is_kept(op.name.split(".")[1]) for ref in op.outputs}
    return BlockDecision(tuple(sorted(kept & holdable)))
