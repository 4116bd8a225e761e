"""Which modules of a model are its blocks: what is repeated, planned as one and sharded as one."""

from __future__ import annotations

from torch import nn


def find_blocks(model: nn.Module) -> list[str]:
    """The names of the model's blocks, in the model's order; none is inside another.

    A block is a child of a stack: an nn.ModuleList, nn.Sequential or nn.ModuleDict with numbers as keys, with two or
    more children of one class, outermost stacks first.
    """
    found: list[str] = []

    def search(module: nn.Module, name: str) -> None:
        children = [(f"{name}.{key}" if name else key, child) for key, child in module.named_children()]
        # By name: a planned block's class is its own, and looks like the block's.
        classes = {(type(child).__module__, type(child).__qualname__) for _, child in children}
        is_row = isinstance(module, (nn.ModuleList, nn.Sequential)) or (
            isinstance(module, nn.ModuleDict) and all(key.isdecimal() for key in module)
        )
        is_stack = is_row and len(children) > 1 and len(classes) == 1
        if is_stack and any(True for _ in module.parameters()):
            found.extend(child_name for child_name, _ in children)
            return
        for child_name, child in children:
            search(child, child_name)

    search(model, "")
    return found


def find_parts(model: nn.Module) -> list[str]:
    """What can be planned: the blocks, or where nothing is repeated the outermost modules that have parameters."""
    blocks = find_blocks(model)
    if blocks:
        return blocks
    found: list[str] = []

    def search(module: nn.Module, name: str) -> None:
        for key, child in module.named_children():
            path = f"{name}.{key}" if name else key
            if isinstance(child, (nn.ModuleList, nn.ModuleDict)):  # nobody calls these
                search(child, path)
            elif any(True for _ in child.parameters()):
                found.append(path)

    search(model, "")
    return found
