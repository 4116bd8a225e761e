"""Whether a model's first pass leaves it such that later ones may do something else.

In: a model, before and after its first pass. Out: yes or no. Layers that scale themselves by their first batch,
codebooks that are found in it and tables that are made when they are first asked for note that they have done so: in a
flag, in an attribute that was None or not there, or in a small buffer that the program reads. What was read of a model
that is not there is known for such buffers (`trainfit.ghost.values`).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from trainfit.ghost.values import would_be_told_otherwise

Flags = Mapping[str, bool | None]
"""By a module's name and its attribute's: a flag, None for what is not there yet, True for anything else."""


def flags_of(model: nn.Module) -> Flags:
    found: dict[str, bool | None] = {}
    for name, module in model.named_modules():
        for attribute, value in (*vars(module).items(), *module._buffers.items()):
            found[f"{name}.{attribute}"] = value if isinstance(value, bool | None) else True
    return found


def has_settled(model: nn.Module, before: Flags) -> bool:
    """Whether the pass changed what decides about the next one."""
    return flags_of(model) != before or would_be_told_otherwise()
