"""Ops written by hand and their prices, a host and small models timed on it, for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from trainfit.cost import Profile, price_ops
from trainfit.cost.classify import works
from trainfit.cost.described import read_op
from trainfit.cost.host import WEIGHED, HostCosts
from trainfit.cost.host_fit import Timing
from trainfit.cost.interpolate import Table
from trainfit.cost.work import Work
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.records import Op, Phase

H200 = find_gpu("h200")
# 1 us per kernel, 1 TFLOP/s, 1 GB/s: ideal times can be added up in the head.
SIMPLE_GPU = dataclasses.replace(
    H200, bf16_tflops=1.0, fp16_tflops=1.0, tf32_tflops=1.0, fp32_tflops=1.0, dram_gb_per_s=1.0
)
HOST = HostCosts(
    forward_ns=10,
    loop_ns=3,
    backward_ns=20,
    backward_loop_ns=6,
    backward_pass_ns=0,
    cast_ns=60,
    module_ns=100,
    inner_ns=5,
    backward_inner_ns=8,
    inner_view_ns=1,
    further_kernel_ns=4,
    recurrent_ns=3000,
    recurrent_kernel_ns=9,
    hook_ns=7,
    checkpoint_ns=1000,
    reentrant_ns=700,
    optimizer_step_ns=500,
    optimizer_call_ns=40,
    optimizer_tensor_ns=2,
    wait_ns=15,
    host_op_ns=5,
    host_elements_ns=6,
    fast_percent=80,
    slow_percent=150,
    weights_percent=dict.fromkeys(WEIGHED, 100)
    | {"view": 40, "product": 300, "backward view": 50, "backward product": 200, "backward leaf": 60},
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


def timed(forward: dict[str, float], backward: dict[str, float], optimizer: dict[str, float], *ns: int) -> Timing:
    """A small model: what its phases are charged for, and what they took in the only process and step."""
    charges = {"forward": forward, "backward": backward, "optimizer": optimizer}
    process_ns = {part: [time_ns] for part, time_ns in zip(charges, ns, strict=True)}
    return Timing(charges=charges, processes_ns=[process_ns])


# By hand: a forward op 10,000, a cast 7,000, a module 30,000, a backward op 20,000, a backward pass 70,000, a further
# kernel 4,000, a recurrent layer 300,000 and each of its kernels 9,000, a call of a loop 6,000 and its node 15,000, a
# hooked tensor 1,000, a region 500,000, a reentrant one 90,000, an optimizer's step 50,000, its call 8,000 and each
# listed tensor 200.
KNOWN_NS = {
    "inner": 3_000.0, "backward_inner": 2_500.0, "inner_view": 100.0, "further_kernel": 4_000.0, "wait": 11_000.0,
    "host_op": 2_000.0, "host_elements": 700.0,
}  # fmt: skip
UPDATE: dict[str, float] = {"optimizer_step": 1, "optimizer_call": 1}
TIMINGS = {
    "kernels": timed({"forward": 10}, {"backward": 10}, UPDATE | {"optimizer_call": 5}, 100_000, 200_000, 90_000),
    "lists": timed(
        {"forward": 4.5}, {"backward": 3.5}, UPDATE | {"optimizer_tensor": 100}, 45_000, 70_000, 78_000
    ),
    "passes": timed({"forward": 1}, {"backward": 1, "backward_pass": 2}, UPDATE, 10_000, 160_000, 58_000),
    "casts": timed({"forward": 1, "cast": 10}, {"backward": 1}, UPDATE, 80_000, 20_000, 58_000),
    "modules": timed({"module": 5, "forward": 5}, {"backward": 2}, UPDATE, 200_000, 40_000, 58_000),
    "many kernels": timed(
        {"forward": 1, "further_kernel": 100}, {"backward": 1, "further_kernel": 50}, UPDATE, 410_000, 220_000, 58_000
    ),
    "recurrent": timed(
        {"recurrent": 1, "recurrent_kernel": 100}, {"recurrent": 2, "recurrent_kernel": 100}, UPDATE,
        1_200_000, 1_500_000, 58_000,
    ),
    "loops": timed({"loop": 10, "forward": 1}, {"backward_loop": 2}, UPDATE, 70_000, 30_000, 58_000),
    "reentrant": timed(
        {"forward": 10}, {"forward": 10, "reentrant": 1, "backward": 10}, UPDATE, 100_000, 390_000, 58_000
    ),
    "one region": timed(
        {"forward": 10, "checkpoint": 1}, {"forward": 10, "hook": 10, "backward": 10}, UPDATE, 600_000, 310_000, 58_000
    ),
    "many regions": timed(
        {"forward": 10, "checkpoint": 10}, {"forward": 10, "hook": 10, "backward": 10}, UPDATE,
        5_100_000, 310_000, 58_000,
    ),
}  # fmt: skip
WEIGHTS = dict.fromkeys(WEIGHED, 100)


def rule_of(an_op: Op) -> str:
    """The table that prices it first."""
    return works(an_op, H200.num_sms)[0].rule


def computing_ns(work: Work) -> float:
    """Its arithmetic on an H200."""
    return work.stretch * work.arithmetic_ns(H200)
