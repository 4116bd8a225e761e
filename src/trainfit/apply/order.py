"""A plan comes before `fully_shard`: what is sharded already is refused.

In: a model's modules by name. Out: nothing, or an error that names the first sharded one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from torch import nn

from trainfit.errors import BadDecision


def refuse_sharded(modules: Mapping[str, nn.Module]) -> None:
    """FSDP2 lets go of a block's parameters when its forward ends, in hooks that would run inside the plan's."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # where nobody has imported it, nothing is sharded
    if fsdp is None:
        return
    for name, module in modules.items():
        if isinstance(module, fsdp.FSDPModule):
            raise BadDecision(
                f"{name or 'the model'} is sharded already, and a plan comes before fully_shard",
                hint="call plan.apply(model) first; to plan, leave fully_shard out and pass Step(fsdp=FSDP(...))",
            )
