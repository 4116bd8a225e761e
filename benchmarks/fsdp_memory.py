"""One rank of many, predicted without a GPU and measured on one: FSDP2 with a process group that sends nothing.

    python benchmarks/fsdp_memory.py predict --out OUT            # no GPU: OUT/fsdp_predicted.jsonl, plans in OUT/plans
    python benchmarks/fsdp_memory.py measure --out OUT            # on a GPU: OUT/fsdp_measured.jsonl
    python benchmarks/fsdp_memory.py table FOLDER...              # predicted beside measured, of all files found there
    ... --set features                                            # the second set of rows, of predict or measure
    ... --record                                                  # besides, OUT/history: what the allocator did

Cases of the first set: llama1b and gpt2m; world sizes 2, 8, 64; nothing recomputed, every layer checkpointed, planned;
parameters resharded after forward, or not (world size 8); fp32 parameters computed with in bf16 and reduced in fp32
("mixed"), or all bf16 ("bf16"); classic segments, and for world size 8 expandable ones too. Besides,
DistributedDataParallel with its buckets beside the gradients ("ddp") or under them ("ddp view"), measured with NCCL
alone in its world: what it allocates does not depend on the number of ranks. Every layer and the root are sharded; the
model is built without memory, then materialized sharded, as large models are. Each measurement is a process of its own:
three steps, then the peaks of three more. Collectives do nothing, so buffers are real and times are not.

Cases of the second set, which was predicted before it was measured: what FSDP2 and DDP can do besides (`FEATURES`), on
the same two models; and models that the first set has not, among 8 ranks.
"""

from __future__ import annotations

import os

# torch.cuda.is_available() must not start CUDA in the parent: forked children could not use it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import argparse
import functools
import gzip
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import forks
import trainfit
from measure_memory import peaks
from record_allocations import ACTIONS, compact
from recorder import history, start_history
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import Trace
from trainfit.simulate import simulate_memory
from trainfit.trace import trace_step
from zoo import Case, make_step, select

MIB = 2**20
MODELS = ("llama1b", "gpt2m")
OTHER_MODELS = ("bertl", "vit_large", "mixtral", "t5_amp")
DDP = ("ddp", "ddp view")
PLAN_BUDGETS = {"llama1b": "22GiB", "gpt2m": "12GiB", "bertl": "5GiB", "vit_large": "3GiB", "mixtral": "1.8GiB"}
"""Between what checkpointing every layer and recomputing nothing take, allocated."""
MICRO_BATCHES = 3


@dataclass(frozen=True)
class Feature:
    """What is done besides: arguments of `trainfit.FSDP`, of `trainfit.DDP` and of `trainfit.Step`."""

    fsdp: Mapping[str, Any] = field(default_factory=dict)
    ddp: Mapping[str, Any] = field(default_factory=dict)
    step: Mapping[str, Any] = field(default_factory=dict)


LAST = {"sync_every_micro_batch": False}
FEATURES = {
    "plain": Feature(),
    "offload": Feature(fsdp={"offload": True}),
    "hsdp 4": Feature(fsdp={"hsdp": 4}),
    "reshard 4": Feature(fsdp={"reshard_after_forward": 4}),
    "accumulate": Feature(step={"micro_batches": MICRO_BATCHES}),
    "accumulate, reduce last": Feature(fsdp=LAST, ddp=LAST, step={"micro_batches": MICRO_BATCHES}),
    "clip": Feature(step={"clip_grad_norm": 1.0}),
    "zeroed gradients": Feature(step={"set_to_none": False}),
    "buckets of 100 MiB": Feature(ddp={"bucket_cap_mb": 100}),
}


@dataclass(frozen=True)
class Job:
    model: str
    precision: str
    world_size: int
    recompute: str
    reshard: bool
    allocator: str = "classic"
    feature: str = "plain"


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The row's job; rows of the first set do not name a feature."""
    return tuple({"feature": "plain", **row}[name] for name in Job.__dataclass_fields__)


def jobs(chosen: str) -> list[Job]:
    return feature_jobs() if chosen == "features" else first_jobs()


def feature_jobs() -> list[Job]:
    found = []
    for model in MODELS:
        for name in FEATURES:
            if name not in ("plain", "buckets of 100 MiB"):
                ways = (
                    ("nothing", "every layer", "planned")
                    if name in ("hsdp 4", "offload")
                    else ("nothing", "every layer")
                )
                found += [Job(model, "mixed", 8, recompute, True, feature=name) for recompute in ways]
        for kind in DDP:
            features = ("buckets of 100 MiB", "accumulate", "accumulate, reduce last")
            found += [Job(model, kind, 1, "nothing", False, feature=name) for name in features]
    for model, precision in itertools.product(OTHER_MODELS, ("mixed", "bf16")):
        ways = ("nothing", "every layer", "planned") if model in PLAN_BUDGETS else ("nothing", "every layer")
        found += [Job(model, precision, 8, recompute, True) for recompute in ways]
    return found


def first_jobs() -> list[Job]:
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
    if job.precision in DDP:
        return case
    if job.precision == "bf16":
        return replace(case, precision="bf16", batch=lambda device: in_bf16(case.batch("cpu"), device))
    return replace(case, precision="fp32")


def in_bf16(batch: Mapping[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    """The batch on the device, where nothing of another type was before."""
    moved: dict[int, torch.Tensor] = {}  # labels are often the very tensor that the inputs are
    for tensor in batch.values():
        moved[id(tensor)] = (tensor.bfloat16() if tensor.is_floating_point() else tensor).to(device)
    return {name: moved[id(tensor)] for name, tensor in batch.items()}


def fsdp_of(job: Job) -> trainfit.FSDP:
    mixed = job.precision == "mixed"
    options: dict[str, Any] = {"reshard_after_forward": job.reshard} | dict(FEATURES[job.feature].fsdp)
    return trainfit.FSDP(
        world_size=job.world_size,
        param_dtype=torch.bfloat16 if mixed else None,
        reduce_dtype=torch.float32 if mixed else None,
        **options,
    )


def ddp_of(job: Job) -> trainfit.DDP:
    return trainfit.DDP(world_size=8, gradient_as_bucket_view=job.precision == "ddp view", **FEATURES[job.feature].ddp)


def plan_path(job: Job, out: Path) -> Path:
    return out / "plans" / f"{job.model}_{job.precision}.json"


def recording_path(job: Job, out: Path) -> Path:
    return out / "history" / ("_".join(str(value) for value in asdict(job).values()).replace(" ", "_") + ".json.gz")


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
    step = replace(make_step(case_of(job)), model=lambda: build(job, out), **FEATURES[job.feature].step)
    if job.precision in DDP:
        return trace_step(replace(step, ddp=ddp_of(job)), gpu)
    return trace_step(replace(step, fsdp=fsdp_of(job)), gpu)


def make_plan(job: Job, out: Path, gpu: str) -> None:
    path = plan_path(job, out)
    if not path.exists():
        step = replace(make_step(case_of(job)), fsdp=fsdp_of(replace(job, world_size=8, feature="plain")))
        path.parent.mkdir(parents=True, exist_ok=True)
        trainfit.plan(step, gpu, budget=PLAN_BUDGETS[job.model], memory="allocated").save(path)


def measure(job: Job, out: Path, recording: Path | None) -> dict[str, Any]:
    """One row; runs in a process of its own. With a recording, the allocator's history is written there."""
    if job.allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if recording:
        start_history()
    if FEATURES[job.feature].fsdp.get("offload"):
        torch.set_num_threads(1)  # the optimizer runs on the host, and threads of a forked process may hang
    step = replicated_step(job, out) if job.precision in DDP else sharded_step(job, out)
    starts = []  # of the first steps, in events
    for _ in range(3):
        if recording:
            starts.append(len(compact(history())))
        step()
    row = peaks(step)
    if recording:
        recorded = {"actions": ACTIONS, "starts": starts, "events": compact(history())} | row
        recording.parent.mkdir(parents=True, exist_ok=True)
        recording.write_bytes(gzip.compress(json.dumps(recorded, separators=(",", ":")).encode(), mtime=0))
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
    ddp = ddp_of(job)
    replica = nn.parallel.DistributedDataParallel(
        model,
        device_ids=[0],
        bucket_cap_mb=ddp.bucket_cap_mb,
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
    )

    def micro_batch(is_last: bool) -> AbstractContextManager[None]:
        return nullcontext() if is_last or ddp.sync_every_micro_batch else replica.no_sync()

    return loop(job, replica, micro_batch)


def sharded_step(job: Job, out: Path) -> Callable[[], None]:
    """As users do it; only the process group sends nothing."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=job.world_size)
    fsdp = fsdp_of(job)
    sizes = (job.world_size,) if fsdp.hsdp is None else (job.world_size // fsdp.hsdp, fsdp.hsdp)
    options: dict[str, Any] = {
        "mesh": init_device_mesh("cuda", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :]),
        "mp_policy": MixedPrecisionPolicy(param_dtype=fsdp.param_dtype, reduce_dtype=fsdp.reduce_dtype),
        "offload_policy": CPUOffloadPolicy() if fsdp.offload else OffloadPolicy(),
    }
    with torch.device("meta"):
        model = build(job, out)
    for layer in layers_of(model, job.model):
        fully_shard(layer, reshard_after_forward=fsdp.reshard_after_forward, **options)
    fully_shard(model, **options)
    model.to_empty(device="cpu" if fsdp.offload else "cuda")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    if fsdp.offload:
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.cuda()

    def micro_batch(is_last: bool) -> AbstractContextManager[None]:
        model.set_requires_gradient_sync(is_last or fsdp.sync_every_micro_batch)  # type: ignore[operator]
        return nullcontext()

    return loop(job, model, micro_batch)


def layers_of(model: Any, name: str) -> list[nn.Module]:
    if name == "t5_amp":
        return [*model.encoder.block, *model.decoder.block]
    places = {"gpt2m": "transformer.h", "bertl": "bert.encoder.layer", "vit_large": "vit.layers"}
    return list(model.get_submodule(places.get(name, "model.layers")))


def loop(job: Job, model: nn.Module, micro_batch: Callable[[bool], AbstractContextManager[None]]) -> Callable[[], None]:
    case, options = case_of(job), FEATURES[job.feature].step
    optimizer = case.optimizer(model.parameters())
    batch = case.batch("cuda")
    num_micro_batches = options.get("micro_batches", 1)

    def step() -> None:
        for number in range(num_micro_batches):
            with micro_batch(number == num_micro_batches - 1):
                with torch.autocast("cuda", case.autocast or torch.bfloat16, enabled=case.autocast is not None):
                    loss = model(**batch).loss
                loss.backward()
                del loss
        if "clip_grad_norm" in options:
            nn.utils.clip_grad_norm_(model.parameters(), options["clip_grad_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=options.get("set_to_none", True))

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
    rows = [
        json.loads(line)
        for folder in folders
        for path in folder.glob(name)
        for line in path.read_text().split("\n")
        if line
    ]
    return {key_of(row): row for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["predict", "measure", "table"])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, help="folder for the rows")
    parser.add_argument("--plans", type=Path, help="folder with the plans of 'predict' (default: OUT)")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--torch", default="2.11.0", help="the version that is measured")
    parser.add_argument("--set", choices=["first", "features"], default="first", help="which rows")
    parser.add_argument("--models", nargs="*", default=(*MODELS, *OTHER_MODELS))
    parser.add_argument("--features", nargs="*", default=tuple(FEATURES))
    parser.add_argument("--precisions", nargs="*", default=("mixed", "bf16", *DDP))
    parser.add_argument("--recompute", nargs="*", default=("nothing", "every layer", "planned"))
    parser.add_argument(
        "--done", nargs="*", type=Path, default=(), help="folders whose rows need not be measured again"
    )
    parser.add_argument("--width", type=int, default=3, help="processes side by side")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="of a row")
    parser.add_argument("--record", action="store_true", help="write what the allocator did, too")
    args = parser.parse_args()
    if args.verb == "table":
        print(*table(read(args.folders, "fsdp_predicted.jsonl"), read(args.folders, "fsdp_measured.jsonl")), sep="\n")
        return
    plans = args.plans or args.out
    chosen = [
        job
        for job in jobs(args.set)
        if job.model in args.models and job.precision in args.precisions
        if job.feature in args.features and job.recompute in args.recompute
    ]
    measured = read(args.done, "fsdp_measured.jsonl")
    chosen = [job for job in chosen if "error" in measured.get(key_of(asdict(job)), {"error": "none yet"})]
    if args.verb == "predict":
        for job in chosen:
            if job.recompute == "planned":
                make_plan(job, plans, args.gpu)
        results = ((job, predict(job, plans, args)) for job in chosen)
        name = "fsdp_predicted.jsonl"
    else:
        results = forks.run(
            chosen,
            lambda job: measure(job, plans, recording_path(job, args.out) if args.record else None),
            width=args.width,
            timeout_s=args.timeout,
        )
        name = "fsdp_measured.jsonl"
    start_s = time.monotonic()
    for row in forks.write_lines(args.out / name, (asdict(job) | row for job, row in results)):
        peak = row.get("error") or f"{row['peak_allocated_bytes'] / MIB:.1f} {row['peak_reserved_bytes'] / MIB:.0f} MiB"
        print(*(row[field] for field in Job.__dataclass_fields__), peak, flush=True)
    print(f"{len(chosen)} rows, {time.monotonic() - start_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
