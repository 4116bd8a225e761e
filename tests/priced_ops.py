"""Ops written by hand and their prices, for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from trainfit.cost import Profile, price_ops
from trainfit.cost.described import read_op
from trainfit.cost.host import HostCosts
from trainfit.cost.interpolate import Table
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.records import Op, Phase

H200 = find_gpu("h200")
# 1 us per kernel, 1 TFLOP/s, 1 GB/s: ideal times can be added up in the head.
SIMPLE_GPU = dataclasses.replace(
    H200, bf16_tflops=1.0, fp16_tflops=1.0, tf32_tflops=1.0, fp32_tflops=1.0, dram_gb_per_s=1.0
)
HOST = HostCosts(
    forward_kernel_ns=10,
    forward_view_ns=3,
    module_ns=100,
    backward_kernel_ns=20,
    backward_view_ns=5,
    further_kernel_ns=4,
    recompute_ns=7,
    checkpoint_ns=1000,
    optimizer_call_ns=40,
    optimizer_tensor_ns=2,
    fast_percent=80,
    slow_percent=150,
)


def op(
    name: str, args: Sequence[object], outputs: Sequence[object], phase: Phase = Phase.FORWARD, module: str = ""
) -> Op:
    return dataclasses.replace(read_op(name, args, {}, outputs, phase), module=module)


def profile_of(tables: Mapping[str, Sequence[tuple[tuple[float, ...], float]]]) -> Profile:
    return Profile(SIMPLE_GPU, "2.13.0", {rule: Table(tuple(points)) for rule, points in tables.items()}, HOST)


def ns_of(an_op: Op, gpu: Gpu = H200, profile: Profile | None = None) -> int:
    return price_ops([an_op], gpu, profile)[0].time_ns


def add(numel: int, dtype: str = "float32") -> Op:
    return op("aten.add.Tensor", [f"2*{dtype}[{numel}]"], [f"{dtype}[{numel}]"])


def mm(rows: int, columns: int, depth: int, dtype: str = "bfloat16") -> Op:
    return op(
        "aten.mm.default", [f"{dtype}[{rows},{depth}]", f"{dtype}[{depth},{columns}]"], [f"{dtype}[{rows},{columns}]"]
    )
