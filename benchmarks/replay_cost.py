"""What recomputing every layer costs the CPU: eager, torch's checkpoint, and a plan that recomputes the same.

    python benchmarks/replay_cost.py

transformers' GPT-2 with 24 layers, autocast and dropout, and tensors too small to matter: what is left is what the host
does per step. On a GPU this is hidden behind the kernels as long as it is less than they take. The three take turns;
CPU milliseconds, medians.
"""

from __future__ import annotations

import statistics
import time

import torch
import transformers as hf
from torch import nn

from recompute import checkpointed
from trainfit.apply import apply_decisions, find_blocks
from trainfit.records import BlockDecision

LAYERS = 24
ROUNDS = 25


def model() -> nn.Module:
    config = hf.GPT2Config(n_embd=8, n_layer=LAYERS, n_head=2, vocab_size=64, bos_token_id=0, eos_token_id=0)
    return hf.GPT2LMHeadModel(config).train()


def step(model: nn.Module, tokens: torch.Tensor) -> tuple[float, float]:
    """CPU seconds of forward and of backward."""
    model.zero_grad(set_to_none=True)
    start_s = time.process_time()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    middle_s = time.process_time()
    loss.backward()
    return middle_s - start_s, time.process_time() - middle_s


def main() -> None:
    torch.set_num_threads(1)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    ways = {"eager": model(), "torch's checkpoint, every layer": model(), "plan that keeps nothing": model()}
    _, theirs, planned = ways.values()
    checkpointed(theirs, 1)
    apply_decisions(planned, {name: BlockDecision(()) for name in find_blocks(planned)}, strict=True)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 2):
        for name, each in ways.items():
            times[name].append(step(each, tokens))
    eager_ms = 0.0
    for name, all_of_them in times.items():
        forward_ms, backward_ms = (statistics.median(part) * 1e3 for part in zip(*all_of_them[2:], strict=True))
        eager_ms = eager_ms or forward_ms + backward_ms
        per_layer_us = (forward_ms + backward_ms - eager_ms) / LAYERS * 1e3
        print(
            f"{name:32} forward {forward_ms:6.2f}  backward {backward_ms:6.2f} ms, {per_layer_us:5.0f} us more a layer"
        )


if __name__ == "__main__":
    main()
