"""Prices of ops: by hand on a profile of a few points, and by the shipped profile on what the presets run."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from trainfit.cost import Profile, datasheet_pricing, load_profile, price_ops, price_with, pricing_for, unpriced
from trainfit.cost.classify import works
from trainfit.cost.described import read_op
from trainfit.cost.host import HostCosts, issue_times_ns, reduce_host
from trainfit.cost.interpolate import Table
from trainfit.cost.profile import reduce_samples, rising, write_profile
from trainfit.errors import BadProfile
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.records import Op, Phase, TensorRef, Trace
from trainfit.step import Step
from trainfit.targets import resolve
from trainfit.trace import trace_step

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
    optimizer_call_ns=40,
    optimizer_tensor_ns=2,
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


# ---- By hand -------------------------------------------------------------------------------------------------------


def test_a_pointwise_op_takes_its_floor_and_its_bytes_times_the_measured_ratio() -> None:
    profile = profile_of({"pointwise contiguous": [((0.0, 0.0, 1.0), 1.5)]})
    # 1000 elements of 4 bytes, two read and one written: 12,000 bytes at 1 byte per ns, and 1000 ns of launch.
    assert ns_of(add(1000), profile=profile) == 1.5 * (1000 + 12_000)


def test_what_is_broadcast_is_read_once() -> None:
    profile = profile_of({"pointwise broadcast": [((0.0, 0.0, 2.0), 1.0)]})
    bias = op("aten.add.Tensor", ["float32[100,10]", "float32[10]"], ["float32[100,10]"])
    assert ns_of(bias, profile=profile) == 1000 + 4 * (1000 + 10 + 1000)


def test_a_matmul_takes_the_longer_of_arithmetic_and_traffic() -> None:
    profile = profile_of({"mm bfloat16 nn": [((0.0,) * 5, 2.0)]})
    # 2 * 64^3 operations at 1000 per ns are 524 ns; 3 * 64^2 * 2 bytes are 24,576 ns.
    assert ns_of(mm(64, 64, 64), profile=profile) == 2 * (1000 + 24_576)
    # 2 * 4096^3 / 1000 = 137,438,953 ns of arithmetic; 100,663,296 ns of traffic.
    assert ns_of(mm(4096, 4096, 4096), profile=profile) == round(2 * (1000 + 2 * 4096**3 / 1000))


def test_causal_attention_counts_half_the_products() -> None:
    rules = {f"attention flash half forward {kind}": [((0.0,) * 5, 1.0)] for kind in ("causal", "full")}
    tensors = ["3*bfloat16[1,1,32768,128]", 0.0]
    outputs = ["bfloat16[1,1,32768,128]"]
    name = "aten._scaled_dot_product_flash_attention.default"
    full, causal = (
        ns_of(op(name, [*tensors, is_causal], outputs), profile=profile_of(rules)) for is_causal in (False, True)
    )
    assert full == round(1000 + 4 * 32768**2 * 128 / 1000)
    assert causal == round(1000 + 2 * 32768**2 * 128 / 1000)


def test_an_embedding_reads_rows_and_not_the_table() -> None:
    profile = profile_of({"embedding": [((0.0, 0.0), 1.0)]})
    lookup = op("aten.embedding.default", ["float32[50000,10]", "int64[7]"], ["float32[7,10]"])
    assert ns_of(lookup, profile=profile) == 1000 + 7 * 8 + 2 * 7 * 10 * 4


def test_a_multi_tensor_op_is_priced_by_all_its_bytes() -> None:
    profile = profile_of({"_foreach_mul 4": [((0.0, 0.0), 1.0)]})
    scale = op("aten._foreach_mul_.Scalar", [["3*float32[100]"], 0.5], [])
    assert ns_of(scale, profile=profile) == 1000 + 2 * 3 * 400  # each is read and written


def test_a_norm_of_rows_that_do_not_lie_in_memory_pays_for_the_copy() -> None:
    profile = profile_of({"native_layer_norm 4": [((0.0, 0.0), 1.0)], "copy transposed": [((0.0, 0.0, 0.0), 3.0)]})
    name, rest = "aten.native_layer_norm.default", [[8], "2*float32[8]", 1e-5]
    outputs: list[object] = ["float32[4,8]", "float32[4,1]", "float32[4,1]"]
    norm_ns = 1000 + 4 * (32 + 8 + 8) + 4 * (32 + 4 + 4)
    assert ns_of(op(name, ["float32[4,8]", *rest], outputs), profile=profile) == norm_ns
    copy_ns = 3 * (1000 + 2 * 4 * 32)
    assert ns_of(op(name, ["float32[4,8]{1,4}", *rest], outputs), profile=profile) == norm_ns + copy_ns


def test_a_convolution_s_layout_changes_and_its_product_come_one_after_the_other() -> None:
    profile = profile_of({"convolution forward plain bfloat16 nchw": [((0.0,) * 7, 1.0)]})
    args: list[object] = ["bfloat16[2,4,8,8]", "bfloat16[16,4,3,3]", None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    layer = op("aten.convolution.default", args, ["bfloat16[2,16,8,8]"])
    traffic_ns = 2 * (2 * 4 * 64 + 16 * 4 * 9 + 2 * 16 * 64)
    arithmetic_ns = 2 * (2 * 64) * 16 * 4 * 9 / 1000
    assert ns_of(layer, profile=profile) == round(1000 + traffic_ns + arithmetic_ns)


def test_a_recurrent_layer_launches_two_kernels_per_step_layer_and_direction() -> None:
    data, weights = "bfloat16[10,4,8]", ["2*bfloat16[32,8]"]  # 10 steps of a batch of 4
    args: list[object] = [data, weights, 4, None, "bfloat16[2,4,8]", None, 2, 8, 0, 1, False, 0.0, True, True, [], None]
    layer = op("aten._cudnn_rnn.default", args, ["bfloat16[10,4,16]"])
    assert works(layer, 132)[0].kernels == 2 * 10 * 1 * 2


def test_narrowing_and_widening_casts_have_rules_of_their_own() -> None:
    narrow = op("aten._to_copy.default", ["float32[64]"], ["bfloat16[64]"])
    widen = op("aten._to_copy.default", ["bfloat16[64]"], ["float32[64]"])
    rules = [works(cast, 132)[0].rule for cast in (narrow, widen)]
    assert rules == ["cast 4 to 2 contiguous mixed", "cast 2 to 4 contiguous mixed"]


@pytest.mark.parametrize(
    "name", ["aten.view.default", "aten.empty.memory_format", "aten.detach.default", "aten.empty_like.default"]
)
def test_views_and_allocations_cost_nothing(name: str) -> None:
    cost = price_ops([op(name, ["float32[1024]"], ["float32[1024]"])], H200)[0]
    assert (cost.time_ns, cost.rule, cost.kernels) == (0, "free", 0)


def test_an_op_whose_results_are_windows_on_its_arguments_costs_nothing_whatever_its_name() -> None:
    tensor = TensorRef(7, "float32", (4, 4), (4, 1), 0)
    window = dataclasses.replace(tensor, shape=(4,), stride=(4,))
    assert ns_of(Op("mylib.column.default", Phase.FORWARD, "", (tensor,), (), (window,))) == 0


def test_an_op_nobody_knows_is_priced_by_its_bytes_and_said_to_be() -> None:
    profile = profile_of({"pointwise contiguous": [((0.0, 0.0, 1.0), 2.0)]})
    costs = price_ops([op("mylib.magic.default", ["float32[100]"], ["float32[100]"]), add(100)], H200, profile)
    assert [(cost.time_ns, cost.rule) for cost in costs] == [(3600, "roofline"), (4400, "pointwise contiguous")]
    assert unpriced(costs) == 3600 / 8000


# ---- Interpolation and reduction -------------------------------------------------------------------------------------


def test_the_ratio_is_the_measured_one_where_it_was_measured_and_between_its_neighbours_elsewhere() -> None:
    table = Table((((10.0,), 1.0), ((12.0,), 4.0)))
    assert table.ratio((10.0,)) == 1.0
    assert table.ratio((12.0,)) == 4.0
    assert table.ratio((11.0,)) == pytest.approx(2.0)  # the geometric mean, half way


def test_a_point_slower_than_its_neighbours_suggest_takes_their_ratio() -> None:
    table = Table((((0.0,), 1.0), ((1.0,), 3.0), ((2.0,), 1.0))).without_sags()
    assert dict(table.points)[(1.0,)] == 1.0
    assert dict(table.points)[(0.0,)] == 1.0


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2, 3], [1, 2, 3]), ([1, 4, 2], [1, 3, 3]), ([3, 2, 1], [2, 2, 2]), ([2, 2, 5, 3], [2, 2, 4, 4])],
)
def test_rising_replaces_what_falls_by_means(values: list[float], expected: list[float]) -> None:
    assert rising(values) == expected


def test_samples_become_points_that_price_the_same_op_at_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, reduce_samples(HEADER, SAMPLES, TIMINGS))
    profile = load_profile(path)
    assert profile.gpu.name == "h200"
    # Bytes move as slowly as the worse of warm and cold, four digits are kept; arithmetic is taken cold.
    assert ns_of(add(2**20), profile=profile) == pytest.approx(7000, rel=1e-3)
    assert ns_of(mm(512, 512, 512), profile=profile) == pytest.approx(5000, rel=1e-3)


HEADER = {"gpu": "NVIDIA H200", "torch": "2.11.0"}
SAMPLES = [
    {"op": "aten.add.Tensor", "args": ["2*float32[1048576]"], "kwargs": {}, "outputs": ["float32[1048576]"],
     "warm_ns": 7000, "cold_ns": 6500, "overlap": 1.0},
    {"op": "aten.mm.default", "args": ["2*bfloat16[512,512]"], "kwargs": {}, "outputs": ["bfloat16[512,512]"],
     "warm_ns": 4000, "cold_ns": 5000, "overlap": 1.0},
]  # fmt: skip
CALLS = ("add", "mul", "cast", "gelu", "dropout", "softmax", "clone", "layer_norm", "rms_norm", "attention")
TIMINGS = {
    "forward": dict.fromkeys(CALLS, 12_000) | dict.fromkeys(("view", "transpose", "slice"), 5_000),
    "backward": dict.fromkeys(CALLS, 16_000) | dict.fromkeys(("view", "transpose", "slice"), 9_000),
    "optimizer": {"adamw_10": 220_000, "adamw_400": 4_120_000},
}


def test_the_host_s_costs_come_from_its_timings() -> None:
    # 10,000 ns per parameter over 13 listed tensors, 120,000 ns for 9 calls; a step's optimizer takes 2.3 times that.
    assert reduce_host(TIMINGS) == {
        "forward_kernel_ns": 12_000,
        "forward_view_ns": 5_000,
        "module_ns": 30_000,
        "backward_kernel_ns": 16_000,
        "backward_view_ns": 7_000,
        "optimizer_call_ns": 30_667,
        "optimizer_tensor_ns": 1_769,
    }


def test_the_cpu_pays_for_kernels_views_modules_and_listed_tensors() -> None:
    ops = [
        op("a", [], [], module="block"),  # the module is entered
        op("b", [], [], module="block"),
        op("c", [], [], Phase.BACKWARD, "block"),
        op("d", [], [], Phase.BACKWARD, "block"),
        op("e", [["3*float32[2]"]], [], Phase.OPTIMIZER),
    ]
    assert issue_times_ns(ops, [1, 0, 1, 0, 1], HOST) == (110, 3, 20, 5, 40 + 3 * 2)
    again = op("f", [], [], Phase.RECOMPUTE)
    assert issue_times_ns([again], [1], HOST) == (16,)  # run again under hooks: 1.6 times a forward op
    assert issue_times_ns(ops[:1], [5], HOST) == (100 + 10 + 4 * 5,)  # further kernels cost half


# ---- Profiles that are wrong -----------------------------------------------------------------------------------------


def written(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "profile.json"
    write_profile(path, reduce_samples(HEADER, SAMPLES, TIMINGS))
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 1}, "has schema 1, and this trainfit reads 2"),
        ({"gpu": "NVIDIA H2000"}, "of a GPU that trainfit does not know: 'NVIDIA H2000'"),
        (
            {"tables": {"mm": [[1, 2, -1]]}},
            "damaged: ValueError: a table is empty, or has a ratio that is not positive",
        ),
        ({"tables": {"mm": []}}, "damaged"),
        ({"tables": {"mm": [[1, 2], [1, 2, 3]]}}, "damaged"),
        ({"rates": {}}, "damaged: KeyError: 'bf16_tflops'"),
        ({"host": {"nonsense": 3}}, "damaged: TypeError"),
    ],
)
def test_a_damaged_profile_is_refused_and_what_is_wrong_is_said(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BadProfile, match=message) as caught:
        load_profile(written(tmp_path, **changes))
    assert caught.value.exit_code == 2


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(BadProfile, match="cannot be read"):
        load_profile(path)
    path.write_text("{")
    with pytest.raises(BadProfile, match="is not JSON") as caught:
        load_profile(path)
    assert "trainfit calibrate -o" in caught.value.hint
    path.write_text("[]")
    with pytest.raises(BadProfile, match="has schema None"):
        load_profile(path)


def test_a_profile_of_another_gpu_is_refused(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path))
    with pytest.raises(BadProfile, match="measured on a h200, and the step is for a a100-80gb") as caught:
        price_ops([add(10)], find_gpu("a100-80gb"), profile)
    assert "--gpu h200" in caught.value.hint


def test_a_profile_without_any_pointwise_op_prices_nothing_unknown() -> None:
    with pytest.raises(BadProfile, match="has no table 'pointwise contiguous'"):
        price_ops([op("mylib.magic.default", ["float32[4]"], ["float32[4]"])], H200, profile_of({}))


# ---- The shipped profile ---------------------------------------------------------------------------------------------


def test_the_h200_is_measured_and_other_gpus_are_scaled_from_it() -> None:
    assert pricing_for(H200).is_measured
    pricing = pricing_for(find_gpu("a100-80gb"))
    assert (pricing.is_measured, pricing.gpu.name, pricing.profile.gpu.name) == (False, "a100-80gb", "h200")
    assert not datasheet_pricing(H200).is_measured


LARGE = (mm(4096, 4096, 4096), mm(8192, 1024, 4096, "float32"), add(2**26), add(2**26, "bfloat16"))


@pytest.mark.parametrize("large", LARGE, ids=lambda an_op: f"{an_op.name} {an_op.outputs[0].dtype}")
def test_a_slower_gpu_is_never_faster(large: Op) -> None:
    fast = find_gpu("b200")
    slow = dataclasses.replace(fast, bf16_tflops=1125.0, fp32_tflops=37.5, dram_gb_per_s=3850.0)
    fast_ns, slow_ns = (price_with([large], datasheet_pricing(gpu))[0].time_ns for gpu in (fast, slow))
    assert fast_ns < slow_ns <= 2 * fast_ns


@pytest.mark.parametrize("gpu_name", ["h200", "a100-80gb"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_more_operations_never_take_less_time(gpu_name: str, dtype: str) -> None:
    gpu, sizes = find_gpu(gpu_name), (1024, 2048, 4096, 8192)
    for rows in sizes:
        for columns in sizes:
            times = [ns_of(mm(rows, columns, depth, dtype), gpu) for depth in sizes]
            assert times == sorted(times)
            assert [ns_of(mm(depth, rows, columns, dtype), gpu) for depth in sizes] == sorted(
                ns_of(mm(depth, rows, columns, dtype), gpu) for depth in sizes
            )


@pytest.mark.parametrize("gpu_name", ["h200", "a100-80gb"])
@pytest.mark.parametrize("name", ["aten.add.Tensor", "aten.gelu.default", "aten._to_copy.default"])
def test_more_bytes_never_take_less_time(gpu_name: str, name: str) -> None:
    tensors = "2*" if name == "aten.add.Tensor" else ""
    times = [
        ns_of(op(name, [f"{tensors}bfloat16[{2**power}]"], [f"bfloat16[{2**power}]"]), find_gpu(gpu_name))
        for power in range(18, 31)
    ]
    assert times == sorted(times)


PRESETS = ("llama3-1b", "gpt2", "bert-large", "vit-large", "resnet50", "mixtral-8x7b")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_op_of_a_preset_is_priced_by_a_rule(preset: str) -> None:
    trace = trace_step(small(preset), H200)
    costs = price_ops(trace.ops, H200)
    assert {an_op.name for an_op, cost in zip(trace.ops, costs, strict=True) if cost.rule == "roofline"} == set()
    assert sum(cost.time_ns for cost in costs) > 1_000_000


def small(preset: str) -> Step:
    is_text = preset not in ("vit-large", "resnet50")
    return resolve(preset, batch=1, seq=128 if is_text else None)


def test_pricing_a_traced_70b_step_takes_under_a_second() -> None:
    trace: Trace = trace_step(resolve("llama3-70b", batch=1, seq=2048), H200)
    price_ops(trace.ops[:1], H200)  # the profile is read once per process
    start = time.process_time()
    costs = price_ops(trace.ops, H200)
    assert time.process_time() - start < 1.0
    assert len(costs) == len(trace.ops)


def test_equal_ops_of_different_storages_cost_the_same() -> None:
    first, second = add(1000), add(1000)
    moved = dataclasses.replace(
        second, args=tuple(dataclasses.replace(ref, storage=ref.storage + 50) for ref in second.input_refs())
    )
    assert len({cost.time_ns for cost in price_ops([first, moved], H200)}) == 1


def test_a_shape_that_wastes_a_wave_is_compared_with_others_that_do() -> None:
    # 132 tiles of 128 x 256 fill an H200 once; 133 need a second wave for one of them.
    full, wasteful = (works(mm(128 * tiles, 256, 1024), 132)[0].coordinates[-1] for tiles in (132, 133))
    assert full == 0.0
    assert wasteful == pytest.approx(3 * -0.989, abs=0.01)  # half of two waves is idle: log2(133 / 264) = -0.989
