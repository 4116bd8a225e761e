"""One rank of many, predicted without a GPU and measured on one: FSDP2 with a process group that sends nothing.

    python benchmarks/fsdp_memory.py predict --out OUT            # no GPU: OUT/fsdp_predicted.jsonl, plans in OUT/plans
    python benchmarks/fsdp_memory.py measure --out OUT            # on a GPU: OUT/fsdp_measured.jsonl
    python benchmarks/fsdp_memory.py table FOLDER...              # predicted beside measured, of all files found there

Cases: llama1b and gpt2m; world sizes 2, 8, 64; nothing recomputed, every layer checkpointed, planned; parameters
resharded after forward, or not (world size 8); fp32 parameters computed with in bf16 and reduced in fp32 ("mixed"), or
all bf16 ("bf16"); classic segments, and for world size 8 expandable ones too. Besides, DistributedDataParallel with its
buckets beside the gradients ("ddp") or under them ("ddp view"), measured with NCCL alone in its world: what it
allocates does not depend on the number of ranks. Every layer and the root are sharded; the
model is built without memory, then materialized sharded, as large models are. Each measurement is a process of its
own: three steps, then the peaks of three more. Collectives do nothing, so buffers are real and times are not.
"""

from __future__ import annotations

import os

# torch.cuda.is_available() must not start CUDA in the parent: forked children could not use it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import argparse
import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import forks
import trainfit
from measure_memory import peaks
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import Trace
from trainfit.simulate import simulate_memory
from trainfit.trace import trace_step
from zoo import Case, make_step, select

MIB = 2**20
MODELS = ("llama1b", "gpt2m")
DDP = ("ddp", "ddp view")
PLAN_BUDGETS = {"llama1b": "22GiB", "gpt2m": "12GiB"}
"""Between what checkpointing every layer and recomputing nothing take, allocated."""


@dataclass(frozen=True)
class Job:
    model: str
    precision: str
    world_size: int
    recompute: str
    reshard: bool
    allocator: str = "classic"


def jobs() -> list[Job]:
    found = []
    for model in MODELS:
        sharded = itertools.product(("mixed", "bf16"), (2, 8, 64), ("nothing", "every layer", "planned"))
        for precision, world_size, recompute in sharded:
            found.append(Job(model, precision, world_size, recompute, True))
            if world_size == 8 and recompute != "planned":
                found.append(replace(found[-1], allocator="expandable"))
                found.append(replace(found[-2], reshard=False))
        found += [Job(model, kind, 1, recompute, False) for kind in DDP for recompute in ("nothing", "every layer")]
    return found


def case_of(job: Job) -> Case:
    case = select([job.model])[0]
    return case if job.precision in DDP else replace(case, precision="bf16" if job.precision == "bf16" else "fp32")


def fsdp_of(job: Job) -> trainfit.FSDP:
    mixed = job.precision == "mixed"
    return trainfit.FSDP(
        world_size=job.world_size,
        reshard_after_forward=job.reshard,
        param_dtype=torch.bfloat16 if mixed else None,
        reduce_dtype=torch.float32 if mixed else None,
    )


def plan_path(job: Job, out: Path) -> Path:
    return out / "plans" / f"{job.model}_{job.precision}.json"


def build(job: Job, out: Path) -> nn.Module:
    """The model with its checkpoints or its plan; where it is, the caller says."""
    model = case_of(job).module(job.recompute == "every layer")
    if job.recompute == "planned":
        trainfit.Plan.load(plan_path(job, out)).apply(model)
    return model


def predict(job: Job, out: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One row, for the torch version that is to be measured: its kernels' workspaces differ from those installed."""
    gpu = find_gpu(args.gpu)
    trace = trace_of(replace(job, allocator="classic"), out, gpu)
    memory = simulate_memory(trace, hidden_memory(gpu, args.torch), job.allocator)  # type: ignore[arg-type]
    return {
        "gpu": gpu.name,
        "torch": trace.torch_version,
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
    }


@functools.lru_cache(maxsize=1)
def trace_of(job: Job, out: Path, gpu: Gpu) -> Trace:
    step = replace(make_step(case_of(job)), model=lambda: build(job, out))
    if job.precision in DDP:
        return trace_step(replace(step, ddp=trainfit.DDP(world_size=8, gradient_as_bucket_view=is_view(job))), gpu)
    return trace_step(replace(step, fsdp=fsdp_of(job)), gpu)


def is_view(job: Job) -> bool:
    return job.precision == "ddp view"


def make_plan(job: Job, out: Path, gpu: str) -> None:
    path = plan_path(job, out)
    if not path.exists():
        step = replace(make_step(case_of(job)), fsdp=fsdp_of(replace(job, world_size=8)))
        path.parent.mkdir(parents=True, exist_ok=True)
        trainfit.plan(step, gpu, budget=PLAN_BUDGETS[job.model], memory="allocated").save(path)


def measure(job: Job, out: Path) -> dict[str, Any]:
    """One row; runs in a process of its own."""
    if job.allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    step = replicated_step(job, out) if job.precision in DDP else sharded_step(job, out)
    for _ in range(3):
        step()
    row = peaks(step)
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return {"torch": torch.__version__, "step_ms": (time.perf_counter() - start_s) * 1e3} | row


def replicated_step(job: Job, out: Path) -> Callable[[], None]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda:0"))
    with torch.device("cuda"):
        model = build(job, out)
    replica = nn.parallel.DistributedDataParallel(model, device_ids=[0], gradient_as_bucket_view=is_view(job))
    return loop(job, replica)


def sharded_step(job: Job, out: Path) -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=job.world_size)
    fsdp = fsdp_of(job)
    options: dict[str, Any] = {
        "mesh": init_device_mesh("cuda", (job.world_size,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=fsdp.param_dtype, reduce_dtype=fsdp.reduce_dtype),
    }
    with torch.device("meta"):
        model = build(job, out)
    for layer in model.model.layers if job.model == "llama1b" else model.transformer.h:  # type: ignore[union-attr]
        fully_shard(layer, reshard_after_forward=job.reshard, **options)
    fully_shard(model, **options)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    return loop(job, model)


def loop(job: Job, model: nn.Module) -> Callable[[], None]:
    case = case_of(job)
    optimizer = case.optimizer(model.parameters())
    batch = case.batch("cuda")

    def step() -> None:
        with torch.autocast("cuda", case.autocast or torch.bfloat16, enabled=case.autocast is not None):
            loss = model(**batch).loss
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def table(predicted: dict[Any, dict[str, Any]], measured: dict[Any, dict[str, Any]]) -> Iterator[str]:
    columns = [*Job.__dataclass_fields__]
    columns += [
        f"{kind} MiB, {side}" for kind in ("allocated", "reserved") for side in ("predicted", "measured", "off")
    ]
    yield f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    worst = [0.0, 0.0]
    for key, row in measured.items():
        head = f"| {' | '.join(str(cell) for cell in key)}"
        guess = predicted.get(key)
        if guess is None or "error" in row or "error" in guess:
            yield f"{head} | {row.get('error') or (guess or {}).get('error') or 'not predicted'} |"
            continue
        cells = []
        for index, kind in enumerate(("peak_allocated_bytes", "peak_reserved_bytes")):
            share = (guess[kind] - row[kind]) / row[kind]
            worst[index] = max(worst[index], abs(share))
            cells += [f"{guess[kind] / MIB:.1f}", f"{row[kind] / MIB:.1f}", f"{share:+.3%}"]
        yield f"{head} | {' | '.join(cells)} |"
    yield f"\nworst: allocated {worst[0]:.3%}, reserved {worst[1]:.3%}"


def read(folders: list[Path], name: str) -> dict[Any, dict[str, Any]]:
    fields = Job.__dataclass_fields__
    rows = [
        json.loads(line)
        for folder in folders
        for path in folder.glob(name)
        for line in path.read_text().split("\n")
        if line
    ]
    return {tuple(row[field] for field in fields): row for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["predict", "measure", "table"])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, help="folder for the rows")
    parser.add_argument("--plans", type=Path, help="folder with the plans of 'predict' (default: OUT)")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--torch", default="2.11.0", help="the version that is measured")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--precisions", nargs="*", default=("mixed", "bf16", *DDP))
    parser.add_argument("--width", type=int, default=3, help="processes side by side")
    args = parser.parse_args()
    if args.verb == "table":
        print(*table(read(args.folders, "fsdp_predicted.jsonl"), read(args.folders, "fsdp_measured.jsonl")), sep="\n")
        return
    plans = args.plans or args.out
    chosen = [job for job in jobs() if job.model in args.models and job.precision in args.precisions]
    if args.verb == "predict":
        for job in chosen:
            if job.recompute == "planned":
                make_plan(job, plans, args.gpu)
        results = ((job, predict(job, plans, args)) for job in chosen)
        name = "fsdp_predicted.jsonl"
    else:
        results = forks.run(chosen, lambda job: measure(job, plans), width=args.width, timeout_s=120)
        name = "fsdp_measured.jsonl"
    start_s = time.monotonic()
    for row in forks.write_lines(args.out / name, (asdict(job) | row for job, row in results)):
        peak = row.get("error") or f"{row['peak_allocated_bytes'] / MIB:.1f} {row['peak_reserved_bytes'] / MIB:.0f} MiB"
        print(*(row[field] for field in Job.__dataclass_fields__), peak, flush=True)
    print(f"{len(chosen)} rows, {time.monotonic() - start_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
