"""What recomputation costs on a GPU: eager, checkpointing, torch's selective checkpointing and our replay in one run.

    python benchmarks/replay_overhead.py                       # llama1b gpt2m bertl on the GPU
    python benchmarks/replay_overhead.py llama1b --steps 9
    python benchmarks/replay_overhead.py --device cpu          # the tiny zoo: shows that the script is spelt right

Every variant builds the case anew from the same seed, runs the training step of loop.py's order (model, optimizer,
batch), and reports the peak of the very first step, the peaks and the median time of the later ones, and how its
gradients compare with eager's: how many are equal bit for bit and the largest difference relative to the largest
gradient, beside the same figures for eager against itself, since some kernels do not repeat themselves.
The last lines give the price of a packed tensor on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from loop import default_loss
from trainfit.apply import apply_decisions, find_blocks, record_block
from trainfit.records import BlockDecision, BlockProgram
from zoo import Case, select

GIB = 2**30
Prepare = Callable[[nn.Module, Case, dict[str, Any], str], Any]
MATMULS = ("mm", "addmm", "bmm", "baddbmm")


class Recorded(Exception):
    """Ends a forward once its first block is recorded."""


def first_program(model: nn.Module, case: Case, batch: Mapping[str, Any], device: str) -> BlockProgram:
    """The program of the model's first block; the blocks of these cases are all alike."""
    programs: list[BlockProgram] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        programs.append(record_block(module, args, kwargs))
        raise Recorded

    hook = model.get_submodule(find_blocks(model)[0]).register_forward_pre_hook(note, with_kwargs=True)
    with contextlib.suppress(Recorded), autocast(case, device):
        model(**batch)
    hook.remove()
    return programs[0]


def decision(program: BlockProgram, keep: Callable[[str], bool], keep_random: bool) -> BlockDecision:
    """Keep what the ops make whose name `keep` accepts, and what random ops make, as far as anybody can hold it."""
    holdable = {ref.storage for ref in program.saved} | {storage for _, storage in program.submodule_outputs}
    kept = {
        ref.storage
        for index, op in enumerate(program.ops)
        if keep(op.name.split(".")[1]) or (keep_random and index in program.random)
        for ref in op.outputs
    }
    return BlockDecision(tuple(sorted(kept & holdable)))


def replay(keep: Callable[[str], bool], keep_random: bool) -> Prepare:
    def prepare(model: nn.Module, case: Case, batch: dict[str, Any], device: str) -> Any:
        chosen = decision(first_program(model, case, batch, device), keep, keep_random)
        return apply_decisions(model, dict.fromkeys(find_blocks(model), chosen), strict=True)

    return prepare


def checkpointed(every: int, context_fn: Callable[[], Any] | None = None) -> Prepare:
    def prepare(model: nn.Module, case: Case, batch: dict[str, Any], device: str) -> None:
        extra = {} if context_fn is None else {"context_fn": context_fn}
        for name in find_blocks(model)[::every]:
            block = model.get_submodule(name)
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, **extra)  # type: ignore[method-assign]

    return prepare


def selective(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = op._schema.name.removeprefix("aten::")
    saved = name in MATMULS or "attention" in name
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def is_matmul_or_attention(name: str) -> bool:
    return name in MATMULS or "attention" in name


def nothing(model: nn.Module, case: Case, batch: dict[str, Any], device: str) -> None:
    return None


VARIANTS: dict[str, Prepare] = {
    "eager": nothing,
    "eager again": nothing,
    "every second layer": checkpointed(2),
    "every layer": checkpointed(1),
    "torch selective, mm + attention": checkpointed(
        1, functools.partial(create_selective_checkpoint_contexts, selective)
    ),
    "replay, mm + attention + random": replay(is_matmul_or_attention, keep_random=True),
    "replay, mm + attention": replay(is_matmul_or_attention, keep_random=False),
    "replay, attention": replay(lambda name: "attention" in name, keep_random=False),
    "replay, nothing": replay(lambda name: False, keep_random=False),
}


def autocast(case: Case, device: str) -> Any:
    return torch.autocast(device, case.autocast or torch.bfloat16, enabled=case.autocast is not None)


def measure(case: Case, prepare: Prepare, device: str, steps: int) -> dict[str, Any]:
    """One variant: build, one step whose peak counts alone, warm-up, timed steps, gradients."""
    torch.manual_seed(0)
    with torch.device(device):
        model = case.module()
    optimizer = case.optimizer(model.parameters())
    batch = dict(case.batch(device))
    start_s = time.perf_counter()
    handle = prepare(model, case, batch, device)
    loss_of = case.loss or default_loss

    def forward_backward() -> None:
        with autocast(case, device):
            loss = loss_of(model(**batch))
        loss.backward()

    torch.manual_seed(1)
    forward_backward()  # records, under a plan
    first_s = time.perf_counter() - start_s
    gradients = [p.grad.detach().cpu() for p in model.parameters() if p.grad is not None]
    row: dict[str, Any] = {"first_s": first_s, "gradients": gradients, "first_peak": peak_bytes(device)[0]}
    times = []
    for index in range(steps + 2):
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if index == 2:
            reset_peaks(device)
        with timing(times, device):
            forward_backward()
    row["ms"] = statistics.median(times[2:])
    row["peak"], row["reserved"] = peak_bytes(device)
    if handle is not None:
        stats = handle.stats()[0]
        row["replay"] = f"{stats.replayed_ops} ops, {stats.reruns} reruns"
    return row


@contextlib.contextmanager
def timing(times: list[float], device: str) -> Iterator[None]:
    """Milliseconds of forward and backward, on the GPU's clock where there is one."""
    if device == "cuda":
        torch.cuda.synchronize()
    start_s = time.perf_counter()
    yield
    if device == "cuda":
        torch.cuda.synchronize()
    times.append((time.perf_counter() - start_s) * 1e3)


def reset_peaks(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: str) -> tuple[int, int]:
    if device != "cuda":
        return 0, 0
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def compare(eager: list[torch.Tensor], other: list[torch.Tensor]) -> str:
    equal = sum(torch.equal(a, b) for a, b in zip(eager, other, strict=True))
    worst = max(
        (a.float() - b.float()).abs().max().item() / max(a.float().abs().max().item(), 1e-30)
        for a, b in zip(eager, other, strict=True)
    )
    return f"{equal}/{len(eager)} equal, worst {worst:.1e}"


def table(case: Case, device: str, steps: int) -> Iterator[str]:
    yield f"{case.name}: forward and backward, median of {steps}"
    yield (
        f"  {'':34} {'peak GiB':>8} {'first':>7} {'reserved':>8} {'ms':>8} {'over eager':>10} {'first s':>7}  "
        "gradients against eager's"
    )
    eager: dict[str, Any] = {}
    for name, prepare in VARIANTS.items():
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        reset_peaks(device)
        try:
            row = measure(case, prepare, device, steps)
        except Exception as error:  # one variant that fails must not hide the others
            yield f"  {name:34} failed: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
            continue
        eager = eager or row
        sizes = [row[key] / GIB for key in ("peak", "first_peak", "reserved")]
        yield (
            f"  {name:34} {sizes[0]:8.3f} {sizes[1]:7.3f} {sizes[2]:8.3f} {row['ms']:8.2f}"
            f" {row['ms'] / eager['ms'] - 1:+10.1%} {row['first_s']:7.2f}  "
            f"{compare(eager['gradients'], row['gradients'])}  {row.get('replay', '')}"
        )


def price_of_packing() -> Iterator[str]:
    """CPU microseconds that a plan adds to a forward per saved tensor, on tensors too small to matter."""
    block = nn.Sequential(*(nn.Tanh() for _ in range(200)))
    model = nn.Sequential(nn.Linear(2, 2), block)
    x = torch.ones(2, 2)

    def seconds(repeats: int = 30) -> float:
        times = []
        for _ in range(repeats):
            start_s = time.perf_counter()
            model(x)
            times.append(time.perf_counter() - start_s)
        return statistics.median(times)

    plain_s = seconds()
    for name, kept in (("kept", tuple(range(1, 201))), ("dropped", ())):
        handle = apply_decisions(model, {"1": BlockDecision(kept)}, strict=True)
        seconds(2)
        yield f"a saved tensor that is {name} costs {(seconds() - plain_s) / 200 * 1e6:.2f} us in forward"
        handle.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["llama1b", "gpt2m", "bertl"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    for case in select(args.cases, tiny=args.device == "cpu"):
        for line in table(case, args.device, args.steps):
            print(line, flush=True)
    print(*price_of_packing(), sep="\n")


if __name__ == "__main__":
    main()
