"""Training with a plan and without: the same losses bit for bit, under deterministic settings.

    python benchmarks/same_losses.py --plans DIR --out losses.jsonl             # CASE_deterministic.json in DIR
    python benchmarks/same_losses.py --plans DIR --out losses.jsonl --only small
    python benchmarks/same_losses.py --plans DIR --out losses.jsonl --device cpu --only small

Ten steps of each case that has a plan (make_plans.py), and 200 steps of a small model ("small": a byte-level
transformer with dropout and bf16 autocast that learns this repository's own sources) that keeps nothing in any block.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trainfit
from children import emit, run_all, wait_for_turn
from loop import default_loss
from trainfit._verify import deterministic_kernels
from trainfit.apply import Handle, apply_decisions, find_blocks
from trainfit.records import BlockDecision
from zoo import select

SOURCES = Path(trainfit.__file__).parent
LENGTH, WIDTH, BATCH = 129, 256, 32
Apply = Callable[[nn.Module], Handle]
Losses = Callable[[Apply | None], list[float]]


def bits(losses: list[float]) -> list[str]:
    return [loss.hex() for loss in losses]


def case_losses(name: str, steps: int, device: str, tiny: bool) -> Losses:
    """A case of the zoo, on its one batch."""
    case = select([name], tiny=tiny)[0]

    def run(apply: Apply | None) -> list[float]:
        torch.manual_seed(0)
        with torch.device(device):
            model = case.module()
        handle = apply(model) if apply else None
        optimizer = case.optimizer(model.parameters())
        batch = dict(case.batch(device))
        losses = []
        for _ in range(steps):
            with torch.autocast(device, case.autocast or torch.bfloat16, enabled=case.autocast is not None):
                loss = (case.loss or default_loss)(model(**batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        check(handle, steps)
        return losses

    return run


class Bytes(nn.Module):
    """A small transformer on bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.tokens(text[:, :-1]) + self.places.weight[: text.shape[1] - 1]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=torch.bool)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), text[:, 1:].flatten())


def small_losses(steps: int, device: str) -> Losses:
    """The small model on pieces of text drawn from this package's sources."""
    text = "".join(path.read_text() for path in sorted(SOURCES.glob("apply/*.py")))
    corpus = torch.tensor(list(text.encode()), dtype=torch.int64, device=device)

    def run(apply: Apply | None) -> list[float]:
        torch.manual_seed(0)
        with torch.device(device):
            model = Bytes()
        handle = apply(model) if apply else None
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        draw = torch.Generator().manual_seed(2)
        losses = []
        for _ in range(steps):
            starts = torch.randint(len(corpus) - LENGTH, (BATCH,), generator=draw).tolist()
            batch = torch.stack([corpus[start : start + LENGTH] for start in starts])
            with torch.autocast(device, torch.bfloat16):
                loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        check(handle, steps)
        return losses

    return run


def check(handle: Handle | None, steps: int) -> None:
    """The planned run must have been a planned one."""
    if handle is not None:
        for stats in handle.stats():
            assert stats.forwards == steps, stats
            assert stats.replays == steps or not stats.replayed_ops, stats


def keep_nothing(model: nn.Module) -> Handle:
    return apply_decisions(model, dict.fromkeys(find_blocks(model), BlockDecision(())), strict=True)


def child(args: argparse.Namespace) -> None:
    name = args.child
    apply: Apply
    if name == "small":
        losses, apply = small_losses(args.steps or 200, args.device), keep_nothing
    else:
        plan = trainfit.Plan.load(args.plans / f"{name}_deterministic.json")
        losses = case_losses(name, args.steps or 10, args.device, args.tiny)

        def apply(model: nn.Module) -> Handle:
            return plan.apply(model, strict=True)

    wait_for_turn()
    with deterministic_kernels():
        without, planned = losses(None), losses(apply)
    equal = sum(a == b for a, b in zip(bits(without), bits(planned), strict=True))
    emit(model=name, steps=len(without), equal=equal, losses=planned, losses_without=without)


def table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield "| model | steps | losses equal bit for bit | first loss | last loss, planned | last loss, without |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        if "error" in row:
            yield f"| {row['case'][-1]} | failed: {' '.join(row['error'].split())[-300:]} |"
        elif "equal" in row:
            last = [row[key][-1] for key in ("losses", "losses_without")]
            yield f"| {row['model']} | {row['steps']} | {row['equal']} | {row['losses'][0]} | {last[0]} | {last[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=Path, help="folder with the plans")
    parser.add_argument("--out", type=Path, help="jsonl to append to")
    parser.add_argument("--only", action="append", help="small or cases; default: small llama1b gpt2m bertl")
    parser.add_argument("--steps", type=int, help="instead of 10, or 200 for small")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--timeout-s", type=float, default=60, help="for one model")
    parser.add_argument("--table", type=Path, help="print the table of a file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    if args.table:
        print(*table(json.loads(text) for text in args.table.read_text().splitlines()), sep="\n")
        return
    common = ["--plans", str(args.plans), "--device", args.device]
    common += ["--tiny"] if args.tiny else []
    common += ["--steps", str(args.steps)] if args.steps else []
    cases = [[*common, "--child", name] for name in args.only or ["small", "llama1b", "gpt2m", "bertl"]]
    for text in table(run_all(__file__, cases, args.out, args.timeout_s)):
        print(text, flush=True)


if __name__ == "__main__":
    main()
