"""Where the GPU time of a training step goes: kernels of the zoo's cases by the aten op that launched them, on a GPU.

    python benchmarks/attribute_time.py --out OUT                  # OUT/ops.jsonl and OUT/host.jsonl, the default cases
    python benchmarks/attribute_time.py --out OUT llama1b gpt2m    # these only, in this order

ops.jsonl: one row per case, variant and op signature (shapes, strides, scalars): number of calls, summed time, and the
longest kernel's name. A marker kernel stands before every op, so what ran between two markers is the op's. One more row
per case (op null) has the sums of a step that was profiled without markers.
host.jsonl: the tiny zoo, whose GPU work is nothing: how long the CPU takes to issue forward, backward and optimizer.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from loop import default_loss, training_step
from trainfit.calibrate.calls import call_of
from trainfit.calibrate.measure import described_outputs, gpu_kernels, marker_name, split_at_markers
from trainfit.torch_compat import TorchDispatchMode, gpu_marker
from zoo import Case, zoo

DEFAULT = (
    "llama1b gpt2m bertl mistral_fp32_padded t5_amp deberta mixtral swin_base convnext_amp resnet50_amp unet_fp32 "
    "whisper_small vit_large lstm_amp qwen3 nanogpt_dropout_bf16 opt_fp16amp resnet50_nhwc_amp wav2vec2 "
    "llama_adafactor modernbert segformer clip complex_rope_bf16 conv1d_amp encoder_post_norm_fp32 gemma bart "
    "resnet50_fp32 gru_bf16"
).split()


class Attribution(TorchDispatchMode):
    """Launches a marker before every op and writes down the op."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu_marker()
        described = call_of(func, args, kwargs or {}).described()
        result = func(*args, **(kwargs or {}))
        self.calls.append((str(func), *described, described_outputs(result)))
        return result


def attribute(case: Case, checkpointed: bool, marker: str) -> Iterator[dict[str, Any]]:
    step = training_step(case, "cuda", checkpointed)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    yield from attribute_step(step, marker, {"case": case.name, "variant": "every layer" if checkpointed else "plain"})


def attribute_step(step: Callable[[], None], marker: str, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a step that has run before; each begins with `head`."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    kernels = gpu_kernels(profiler)
    total = {"op": None, "num_kernels": len(kernels), "total_ns": sum(kernel.duration_ns for kernel in kernels)}
    yield head | total
    yield from attributed_ops(step, marker, head)


def attributed_ops(step: Callable[[], None], marker: str, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    attribution = Attribution()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        with attribution:
            step()
        torch.cuda.synchronize()
    segments = split_at_markers(gpu_kernels(profiler), marker)
    if len(segments) != len(attribution.calls):
        yield head | {"op": None, "error": f"{len(segments)} segments, {len(attribution.calls)} ops"}
        return
    rows: dict[str, dict[str, Any]] = {}
    for (op, args, kwargs, outputs), segment in zip(attribution.calls, segments, strict=True):
        if not segment:
            continue
        row = rows.setdefault(
            f"{op}{args}{kwargs}",
            {"op": op, "args": args, "kwargs": kwargs, "outputs": outputs, "count": 0, "total_ns": 0, "num_kernels": 0},
        )
        row["count"] += 1
        row["total_ns"] += sum(kernel.duration_ns for kernel in segment)
        row["num_kernels"] += len(segment)
        row["kernel"] = max(segment, key=lambda kernel: kernel.duration_ns).name[:120]
    yield from (head | row for row in rows.values())


def host_times(case: Case) -> dict[str, Any]:
    """Milliseconds of CPU per phase, medians; the queue of kernels never fills."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = case.module()
    optimizer = case.optimizer(model.parameters())
    batch = case.batch("cuda")
    loss_of = case.loss or default_loss
    phases: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": [], "zero_grad": []}

    def timed(phase: str, work: Callable[[], Any]) -> Any:
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        result = work()
        phases[phase].append((time.perf_counter_ns() - start) / 1e6)
        return result

    def forward() -> torch.Tensor:
        with torch.autocast("cuda", case.autocast or torch.bfloat16, enabled=case.autocast is not None):
            return loss_of(model(**batch))

    for _ in range(9):
        loss = timed("forward", forward)
        timed("backward", loss.backward)
        del loss
        timed("optimizer", optimizer.step)
        timed("zero_grad", optimizer.zero_grad)
    num_modules = sum(1 for _ in model.modules())
    medians = {f"{phase}_ms": statistics.median(times[2:]) for phase, times in phases.items()}
    return {"case": case.name, "num_modules": num_modules} | medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=DEFAULT)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200, help="start no further case after this")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    with (args.out / "host.jsonl").open("w") as file:
        for case in zoo(tiny=True).values():
            if time.monotonic() - start_s < args.seconds / 3:
                run_case(case.name, lambda case=case: [host_times(case)], file)
    marker = marker_name()
    with (args.out / "ops.jsonl").open("w") as file:
        for name in args.cases:
            case = zoo()[name]
            for checkpointed in (
                (False, True) if case.checkpoint and name in ("llama1b", "gpt2m", "bertl") else (False,)
            ):
                if time.monotonic() - start_s < args.seconds:
                    run_case(name, lambda case=case, flag=checkpointed: attribute(case, flag, marker), file)
                    print(f"{name} {time.monotonic() - start_s:.0f} s", flush=True)


def run_case(name: str, work: Callable[[], Any], file: Any) -> None:
    try:
        for row in work():
            file.write(json.dumps(row) + "\n")
    except Exception as error:  # the other cases are still worth having
        file.write(json.dumps({"case": name, "op": None, "error": f"{type(error).__name__}: {error}"[:300]}) + "\n")
    file.flush()
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
