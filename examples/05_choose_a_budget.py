"""The frontier of memory against time, and three ways to choose a budget from it."""

import torch

import trainfit
from trainfit.presets.gpt2 import Config, Gpt2

tokens = torch.empty(16, 1024, dtype=torch.int64, device="meta")
step = trainfit.Step(
    model=lambda: Gpt2(Config(dim=768, num_layers=3, num_heads=12, vocab_size=4096)),
    batch={"tokens": tokens, "targets": tokens},
    autocast=torch.bfloat16,
)
frontier = trainfit.plan_frontier(step, gpu="h200", memory="allocated")
fastest = frontier[-1]  # nothing recomputed


def describe(plan: trainfit.Plan) -> str:
    peak_gib, step_ms = plan.predicted.peak_allocated_bytes / 2**30, plan.predicted_step_ns / 1e6
    overhead = plan.predicted_step_ns / fastest.predicted_step_ns - 1
    return f"{peak_gib:5.2f} GiB  {step_ms:6.1f} ms  {overhead:+.1%}"


print("the frontier: a plan per budget, each the fastest that was found for it")
for plan in frontier:
    print(" ", describe(plan))

# 1. There is a GPU, and others use it too: the fastest plan within what is left of it.
left_bytes = 2 * 2**30
within = [plan for plan in frontier if plan.predicted.peak_allocated_bytes <= left_bytes]
print("fastest within 2 GiB:           ", describe(within[-1]))

# 2. A batch that is twice as large must fit where this one did: ask for it. It may well be worth its recomputation.
doubled = {"tokens": torch.empty(32, 1024, dtype=torch.int64, device="meta")}
twice = trainfit.Step(model=step.model, batch=doubled | {"targets": doubled["tokens"]}, autocast=step.autocast)
budget = f"{fastest.predicted.peak_allocated_bytes}B"
plan = trainfit.plan(twice, gpu="h200", budget=budget, memory="allocated")
gain = 2 * fastest.predicted_step_ns / plan.predicted_step_ns - 1
print(f"twice the batch in that memory:  {describe(plan)}; {gain:+.1%} samples per second")

# 3. Nothing is given: go down from the top for as long as 1% of the memory costs less than 0.5% of the time.
chosen = fastest
for smaller in reversed(frontier[:-1]):
    saved = 1 - smaller.predicted.peak_allocated_bytes / chosen.predicted.peak_allocated_bytes
    cost = smaller.predicted_step_ns / chosen.predicted_step_ns - 1
    if cost > 0.5 * saved:
        break
    chosen = smaller
print("as long as 1% costs under 0.5%: ", describe(chosen))
