"""Does every op's ghost kernel give tensors of the shape, strides and dtype that the GPU's kernel gives?

    PYTHONPATH=src python benchmarks/audit_layouts.py --out OUT              # every case of the zoo: OUT/layouts.jsonl
    PYTHONPATH=src python benchmarks/audit_layouts.py --out OUT swin_base    # these only

One step of each case runs under a dispatch mode that calls each op for real and then, on tensors without data, by its
ghost kernel. A row is an op signature whose results differ. Layouts matter: a transposed gradient is copied later.
"""

from __future__ import annotations

import os

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # CUDA must not start in the parent of forked processes

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import forks
from loop import training_step
from recorder import describe
from trainfit.ghost.kernels import GHOST_KERNELS
from trainfit.ghost.tensor import Ghost, inside_kernel
from zoo import Case, select


class LayoutAudit(TorchDispatchMode):
    """Collects the differences, one per op signature."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.rows: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        on_gpu = any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in tree_leaves((args, kwargs)))
        signature = f"{func} {', '.join(map(describe, args))}" if on_gpu else ""
        if not on_gpu or signature in self.seen or func._schema.is_mutable:
            return func(*args, **kwargs)
        self.seen.add(signature)
        ghostly = tree_map_only(torch.Tensor, as_ghost, (args, kwargs))
        real = func(*args, **kwargs)
        try:
            with inside_kernel():
                ghost = GHOST_KERNELS.get(func, func)(*ghostly[0], **ghostly[1])
            difference = compare(real, ghost)
        except Exception as error:
            difference = f"{type(error).__name__}: {error}"[:200]
        if difference:
            self.rows.append({"op": str(func), "signature": signature[:600], "difference": difference})
        return real


def as_ghost(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    base = torch.empty(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=tensor.dtype, device="meta")
    return Ghost(base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))


def compare(real: Any, ghost: Any) -> str:
    def layouts(result: Any) -> list[tuple[Any, ...]]:
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.numel() > 1]
        return [(tuple(t.shape), t.stride(), str(t.dtype)) for t in tensors if not t.is_cpu]

    ours, theirs = layouts(ghost), layouts(real)
    return "" if ours == theirs else f"ghost {ours} gpu {theirs}"


def audit(case: Case) -> dict[str, Any]:
    step = training_step(case, "cuda")
    with LayoutAudit() as mode:
        step()
    return {"num_signatures": len(mode.seen), "rows": mode.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=8)
    args = parser.parse_args()

    def rows() -> Any:
        for case, result in forks.run(select(args.cases), audit, width=args.width, timeout_s=90):
            yield {"case": case.name} | {key: value for key, value in result.items() if key != "rows"}
            yield from ({"case": case.name} | row for row in result.get("rows", []))

    different: dict[str, int] = {}
    for row in forks.write_lines(args.out / "layouts.jsonl", rows()):
        if "difference" in row:
            different[row["op"]] = different.get(row["op"], 0) + 1
        else:
            print(row, flush=True)
    print("signatures that differ, by op:", different)


if __name__ == "__main__":
    main()
