"""Records what the caching allocator was asked and what it did, from process start, as test data for its simulation.

    python benchmarks/record_allocations.py --out OUT              # OUT/{gpt2,unet,lstm,llama_checkpointed}.json.gz
    python benchmarks/record_allocations.py --out OUT swin_base    # cases of the zoo, to find where a prediction errs

Shrunk models, so that a file stays small: build and three steps, classic and expandable segments in one file each.
A file has "torch", "gpu", "classic" and "expandable"; the last two are recordings: "events" is a list of [action,
bytes, address, stream], where the action is an index into "actions", addresses count from the lowest one and streams
from 0; beside it "peak_allocated_bytes", "peak_requested_bytes", "peak_reserved_bytes" and "device_bytes".
"""

from __future__ import annotations

import os

# torch.cuda.is_available() must not start CUDA in the parent: forked children could not use it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import argparse
import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf

import forks
from loop import training_step
from recorder import history, start_history
from zoo import Case, select
from zoo.hf import build, token_batch
from zoo.plain import LstmLM, UNet, text

ACTIONS = ["alloc", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"]
Job = tuple[str, str]


def cases() -> dict[str, tuple[Case, bool]]:
    """The shrunk models by file name, and whether they are checkpointed."""
    gpt2 = hf.GPT2Config(n_embd=512, n_layer=3, n_head=8, vocab_size=8192)
    llama = hf.LlamaConfig(
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=16384,
    )

    def pictures(device: str) -> dict[str, torch.Tensor]:
        return {name: torch.randn(4, 3, 64, 64, device=device) for name in ("images", "noise")}

    found = [
        (
            Case(name="gpt2", build=build(hf.GPT2LMHeadModel, gpt2), batch=token_batch(4, 512, 8192), precision="amp"),
            False,
        ),
        (Case(name="unet", build=partial(UNet, 64, 3), batch=pictures, precision="amp"), False),
        (Case(name="lstm", build=partial(LstmLM, 8192, 512, 2), batch=text(128, 32, 8192), precision="fp32"), False),
        (
            Case(
                name="llama_checkpointed",
                build=build(hf.LlamaForCausalLM, llama),
                batch=token_batch(4, 1024, 16384),
                precision="bf16",
            ),
            True,
        ),
    ]
    return {case.name: (case, checkpointed) for case, checkpointed in found}


def record(job: Job, device: str) -> dict[str, Any]:
    """One recording; runs in a process of its own."""
    name, allocator = job
    if allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if device == "cuda":
        start_history()
    wanted, _, variant = name.partition(":")
    case, checkpointed = cases()[name] if name in cases() else (select([wanted])[0], variant == "every")
    step = training_step(case, device, checkpointed)
    for _ in range(3):
        step()
    if device != "cuda":
        return {"events": [], "actions": ACTIONS}
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "actions": ACTIONS,
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_requested_bytes": stats["requested_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "device_bytes": torch.cuda.get_device_properties(0).total_memory,
        "gpu": torch.cuda.get_device_name(),
        "events": compact(history()),
    }


def compact(entries: list[dict[str, Any]]) -> list[list[int]]:
    """The history as numbers; requests to free are left out, since with one stream they complete at once."""
    kept = [entry for entry in entries if entry["action"] in ACTIONS]
    base = min((entry["addr"] for entry in kept), default=0)
    streams: dict[int, int] = {}
    return [
        [
            ACTIONS.index(entry["action"]),
            entry["size"],
            entry["addr"] - base,
            streams.setdefault(entry["stream"], len(streams)),
        ]
        for entry in kept
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases, NAME:every with checkpoints; the shrunk models when none")
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    jobs: list[Job] = [(name, allocator) for name in args.names or cases() for allocator in ("classic", "expandable")]
    files: dict[str, dict[str, Any]] = {}
    for (name, allocator), recording in forks.run(jobs, partial(record, device=args.device), width=8, timeout_s=60):
        file = files.setdefault(name, {"torch": torch.__version__, "gpu": recording.pop("gpu", "none")})
        file[allocator] = recording
        peaks = {key: value for key, value in recording.items() if key.startswith("peak")}
        print(
            name, allocator, recording.get("error", ""), len(recording.get("events", [])), "events", peaks, flush=True
        )
    for name, file in files.items():
        path = args.out / f"{name.replace(':', '_')}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(file, separators=(",", ":")).encode(), mtime=0))
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
