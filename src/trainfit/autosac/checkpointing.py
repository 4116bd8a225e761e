"""`apply_sac`: make a model follow the decisions, with `torch.utils.checkpoint` and a policy per op.

In: a model, {module: share of its memory to drop} and the `SACEstimator` that saw it. Out: the same model, in place:
the forward of every named module runs under selective checkpointing. Modules, names and state_dict stay as they are.
The ops of a forward are matched by position and name with those that the estimator saw; a forward that does something
else raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trainfit.autosac.sac_estimator import SACEstimator, SACStats
from trainfit.autosac.sac_ilp import (
    SACDecision,
    get_greedy_checkpointing_policy_per_module,
    get_optimal_checkpointing_policy_per_module,
)
from trainfit.errors import BadDecision, PlanMismatch

_POLICIES: dict[str, Callable[[SACStats, float], list[int]]] = {
    "optimal": get_optimal_checkpointing_policy_per_module,
    "greedy": get_greedy_checkpointing_policy_per_module,
}


def apply_sac(
    model: nn.Module,
    decisions: Mapping[str, float],
    sac_estimator: SACEstimator,
    policy: Literal["optimal", "greedy"] = "optimal",
) -> Callable[[], None]:
    """Checkpoint the modules that `sac_milp` decided on; the function that comes back undoes it."""
    known = sac_estimator.recording.tracker.get_known_fqn
    modules = {fqn: module for module in model.modules() if (fqn := known(module)) is not None}
    for fqn in decisions:
        if fqn not in modules or fqn not in sac_estimator.sac_mod_stats:
            raise BadDecision(f"the estimator saw no module {fqn!r} of this model", hint="decide for this very model")
        if "forward" in vars(modules[fqn]):
            raise BadDecision(f"something has replaced the forward of {fqn!r} already", hint="undo that first")
    for fqn, ratio in decisions.items():
        stats = sac_estimator.sac_mod_stats[fqn]
        kept = _POLICIES[policy](stats, 1 - ratio)
        module = modules[fqn]
        module.forward = functools.partial(_checkpointed, module.forward, fqn, stats.func_names, kept)

    def undo() -> None:
        for fqn in decisions:
            vars(modules[fqn]).pop("forward", None)

    return undo


def _checkpointed(forward: Any, fqn: str, names: list[str], kept: list[int], *args: Any, **kwargs: Any) -> Any:
    seen = {False: 0, True: 0}  # ops of the forward, and of its recomputation where torch asks again

    def decide(context: SelectiveCheckpointContext, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        position = seen[context.is_recompute]
        if position == len(names) or op._overloadpacket.__name__ != names[position]:
            return CheckpointPolicy.PREFER_RECOMPUTE  # an op of the host, which nobody counted; else see below
        seen[context.is_recompute] += 1
        is_kept = kept[position] == SACDecision.SAVE
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    # What writes in place is kept or recomputed together with what it writes to, so a kept result may be written to.
    contexts = functools.partial(create_selective_checkpoint_contexts, decide, allow_cache_entry_mutation=True)
    output = checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)
    if seen[False] not in (0, len(names)):  # without gradients torch does not ask
        raise PlanMismatch(
            f"the forward of {fqn!r} differs from what the estimator saw: op {seen[False]} is no {names[seen[False]]}",
            hint="collect the statistics again with the inputs and settings that are used now",
        )
    return output
