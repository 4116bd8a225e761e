"""What a plan costs on the CPU: microseconds per saved tensor in forward, per replayed op in backward.

    python benchmarks/pack_cost.py

Tensors are too small to matter, and a replay is compared with plain calls of the same ops, so what is left is the
executor's own. Medians over repetitions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from trainfit.apply import apply_decisions
from trainfit.records import BlockDecision

OPS = 200
REPEATS = 60


def median_us(act: Callable[[], float]) -> float:
    return statistics.median(act() for _ in range(REPEATS)) * 1e6


def rows() -> Iterator[str]:
    block = nn.Sequential(*(nn.Tanh() for _ in range(OPS)))
    model = nn.Sequential(nn.Linear(2, 2), block)
    x = torch.ones(2, 2)

    def forward() -> float:
        start_s = time.process_time()
        model(x)
        return time.process_time() - start_s

    def backward() -> float:
        out = model(x).sum()
        start_s = time.process_time()
        out.backward()
        return time.process_time() - start_s

    def plain() -> float:
        value = x
        with torch.no_grad():
            start_s = time.process_time()
            for _ in range(OPS):
                value = torch.ops.aten.tanh.default(value)
            return time.process_time() - start_s

    base_us = median_us(forward), median_us(backward), median_us(plain)
    for name, kept in (("kept", tuple(range(1, OPS + 1))), ("dropped", ())):
        handle = apply_decisions(model, {"1": BlockDecision(kept)}, strict=True)
        backward()
        forward_us, backward_us = median_us(forward), median_us(backward)
        ops = handle.stats()[0].replayed_ops
        handle.remove()
        per_pack = (forward_us - base_us[0]) / OPS
        per_unpack = (backward_us - base_us[1] - (base_us[2] if ops else 0)) / OPS
        yield f"a saved tensor that is {name} costs {per_pack:.2f} us in forward, {per_unpack:.2f} us in backward"
    yield f"the replayed op itself, called plainly: {base_us[2] / OPS:.2f} us"


if __name__ == "__main__":
    print(*rows(), sep="\n")
