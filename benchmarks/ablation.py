"""What the planner gains over simpler ways to choose, at equal simulated peak; needs no GPU.

    python benchmarks/ablation.py [--gpu h200] [--memory allocated|reserved] [preset ...]

Each row is a simpler way: torch's checkpointing of every first, second or third layer (traced as it is), the same
option in all blocks, greedy, and the choice of AutoSAC (`trainfit.autosac`: sac_milp over the layers, a knapsack in
each, applied with torch's selective checkpointing). Its peak and time are simulated; then the planner gets its peak as
the budget. `ratio` is the plan's overhead over recomputing nothing as a share of the row's.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainfit import presets
from trainfit._plan import Planner
from trainfit.autosac import apply_sac, collect_stats, parse_module_info, sac_milp
from trainfit.errors import TrainfitError
from trainfit.gpus.catalogue import find_gpu
from trainfit.solve import Found, Verdict, greedy, uniform
from trainfit.trace import trace_step
from trainfit.trace.placement import place_batch, place_model

PRESETS = ("llama3-1b", "gpt2-medium", "bert-large", "vit-large")
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("presets", nargs="*", default=PRESETS, metavar="preset")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--memory", choices=("allocated", "reserved"), default="allocated")
    args = parser.parse_args()
    print(f"{'':12} {'':26} {'peak GiB':>9} {'step ms':>9} {'overhead':>9} {'plan GiB':>9} {'plan':>9} {'ratio':>6}")
    for name in args.presets:
        planner = Planner(presets.build(name), find_gpu(args.gpu), args.memory, "expandable")
        base_ns = planner.search.base.step_ns
        print(f"{name:12} {'nothing recomputed':26} {planner.search.base.peak_bytes / GIB:9.2f} {base_ns / 1e6:9.2f}")
        for way, verdict in ways(planner):
            found = planner.search.within(verdict.peak_bytes)
            theirs = verdict.step_ns / base_ns - 1
            start = f"{name:12} {way:26} {verdict.peak_bytes / GIB:9.2f} {verdict.step_ns / 1e6:9.2f} {theirs:9.1%}"
            if isinstance(found, Found):
                ours = found.verdict.step_ns / base_ns - 1
                print(f"{start} {found.verdict.peak_bytes / GIB:9.2f} {ours:9.1%} {ours / theirs:6.2f}", flush=True)
            else:
                print(f"{start} {'-':>9} smallest is {found.minimum_bytes / GIB:.2f}", flush=True)


def ways(planner: Planner) -> Iterator[tuple[str, Verdict]]:
    """The simpler ways, each with what the exact simulation says of it."""
    for n in (1, 2, 3):
        yield f"checkpoint every {('', '2nd ', '3rd ')[n - 1]}layer", checkpointed(planner, n)
    problem = planner.problem
    low, high = problem.peak(least(planner))[0], problem.peak((0,) * len(problem.class_of))[0]
    for share in (25, 50, 75):
        target = low + (high - low) * share // 100
        for name, choose in (("uniform", uniform), ("greedy", greedy)):
            choice = choose(problem, target)
            if choice is not None and any(choice.options):
                yield f"{name} at {share}%", planner.judge(choice)
        decided = autosac(planner, (target + planner.search.base.peak_bytes - high) / GIB)
        if decided is not None:
            yield f"AutoSAC at {share}%", decided


def autosac(planner: Planner, budget_gib: float) -> Verdict | None:
    """The step as AutoSAC would run it within the budget, on the ghost GPU; None where it finds nothing."""
    step = planner.step

    def build() -> nn.Module:
        model = place_model(step.model)
        args, kwargs = place_batch(step.batch)
        optimizer = (step.optimizer or torch.optim.AdamW)(list(model.parameters()))

        def train_step() -> None:
            with torch.autocast("cuda", step.autocast) if step.autocast else contextlib.nullcontext():
                output = model(*args, **kwargs)
                loss = step.loss(output) if step.loss else getattr(output, "loss", output)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        train_step()  # makes the optimizer's state
        info, sac = collect_stats(model, train_step, optimizer, *args, *kwargs.values(), gpu=planner.gpu.name)
        root = info["mod_order"]["fw_pre_order"][0]
        units = [f"{root}.{block}" for block in planner.problem.memory.blocks]
        decisions, _, _ = sac_milp(parse_module_info(info), budget_gib, ac_units=units)
        if not decisions:
            raise LookupError
        apply_sac(model, decisions, sac)
        return model

    try:
        trace = trace_step(replace(step, model=build), planner.gpu)
    except TrainfitError as error:
        if isinstance(error.__cause__, LookupError):
            return None
        raise
    return planner.verdict(planner.estimate(trace))


def least(planner: Planner) -> tuple[int, ...]:
    """The option that keeps least, in every block."""
    return tuple(len(planner.problem.menus[class_index]) - 1 for class_index in planner.problem.class_of)


def checkpointed(planner: Planner, n: int) -> Verdict:
    """Every n-th block under torch.utils.checkpoint, on the ghost GPU."""
    names = planner.problem.memory.blocks[::n]

    def build() -> nn.Module:
        model = place_model(planner.step.model)
        modules = dict(model.named_modules())
        for name in names:
            modules[name].forward = functools.partial(  # type: ignore[method-assign]
                _checkpoint, modules[name].forward
            )
        return model

    trace = trace_step(replace(planner.step, model=build), planner.gpu)
    return planner.verdict(planner.estimate(trace))


def _checkpoint(forward: Any, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


if __name__ == "__main__":
    main()
