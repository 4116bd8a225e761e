"""Prices of ops: by hand on a profile of a few points, and by the shipped profile on what the presets run."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from priced_ops import H200, KNOWN_NS, SIMPLE_GPU, TIMINGS, WEIGHTS, add, mm, ns_of, op, profile_of
from trainfit.cost import (
    COLLECTIVE,
    OpCost,
    datasheet_pricing,
    kernels_off,
    load_profile,
    price_ops,
    pricing_for,
    unpriced,
)
from trainfit.cost.classify import works
from trainfit.cost.described import read_op
from trainfit.cost.host import WEIGHED
from trainfit.cost.host_fit import reduce_host
from trainfit.cost.interpolate import Table, _nearest
from trainfit.cost.lines import Lines
from trainfit.cost.profile import profile_json, write_profile
from trainfit.cost.reduce import never_falling, reduce_samples
from trainfit.errors import BadProfile
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Op, Phase, TensorRef, Trace
from trainfit.step import Step
from trainfit.targets import resolve
from trainfit.trace import trace_step

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
    # 2 * 64^3 operations at 1000 per ns are 524 ns, three times as many where a tile begins and ends as if it were 128
    # deeper; 3 * 64^2 * 2 bytes are 24,576 ns. There is one round of tiles.
    assert ns_of(mm(64, 64, 64), profile=profile) == 2 * (1000 + 700 + 24_576)
    # 141,733,920 ns of arithmetic; 100,663,296 ns of traffic. 2048 tiles of 128 x 64, 264 at a time, are 8 rounds.
    assert ns_of(mm(4096, 4096, 4096), profile=profile) == round(2 * (1000 + 8 * 700 + 2 * 4096**2 * 4224 / 1000))


def test_a_product_in_tf32_takes_its_own_table_or_the_efficiency_of_16_bits_at_its_own_rate() -> None:
    gpu = dataclasses.replace(SIMPLE_GPU, tf32_tflops=0.5, fp32_tflops=0.1)
    rounded = dataclasses.replace(mm(16384, 16384, 16384, "float32"), tf32=True)
    own, narrow, wide = (f"mm {dtype} nn" for dtype in ("tf32", "bfloat16", "float32"))
    tables = {own: [((0.0,) * 5, 3.0)], narrow: [((0.0,) * 5, 2.0)], wide: [((0.0,) * 5, 1.0)]}
    profile = dataclasses.replace(profile_of(tables), gpu=gpu)
    begun_ns = 1000 + 125 * 700  # 32768 tiles, 264 at a time
    arithmetic_ns, full_ns = (2 * 16384**2 * (16384 + deeper) / rate for deeper, rate in ((64, 500), (32, 100)))
    assert ns_of(rounded, gpu, profile) == round(1.015 * 3 * (begun_ns + arithmetic_ns))  # edges of tiles: 1.5%
    assert ns_of(dataclasses.replace(rounded, tf32=False), gpu, profile) == round(1.025 * (begun_ns + full_ns))
    profile = dataclasses.replace(profile_of({narrow: tables[narrow], wide: tables[wide]}), gpu=gpu)
    assert ns_of(rounded, gpu, profile) == round(1.015 * 2 * (begun_ns + arithmetic_ns))


def test_a_sample_in_tf32_is_read_as_such() -> None:
    sample = "aten.mm.default", ["2*float32[4,4]"], {"tf32": True}, ["float32[4,4]"], Phase.FORWARD
    assert (read_op(*sample).tf32, read_op(*sample).kwargs) == (True, ())


def test_bags_of_embeddings_read_a_row_per_index_and_their_gradient_has_a_table_or_takes_a_lookup_s() -> None:
    profile = profile_of({"embedding": [((0.0, 0.0, 0.0), 1.0)]})
    inputs, outputs = ["float32[50000,10]", "int64[21]", "int64[7]"], ["float32[7,10]", "int64[21]", "int64[7]"]
    bags = op("aten._embedding_bag.default", inputs, [*outputs, "int64[0]"])
    assert ns_of(bags, profile=profile) == 1000 + 2 * (21 + 7) * 8 + (21 + 7) * 10 * 4
    of_bags = op("aten._embedding_bag_backward.default", ["float32[7,10]", "int64[21]"], ["float32[50000,10]"])
    profile = profile_of({"embedding_dense_backward": [((0.0, 0.0, 0.0), 1.0)]})
    assert [price_ops([of_bags], H200, known)[0].rule for known in (None, profile)] == [
        "_embedding_bag_backward",
        "embedding_dense_backward",
    ]


def test_causal_attention_walks_over_half_the_scores_and_waits_for_its_longest_block() -> None:
    rules = {f"attention flash half forward {kind}": [((0.0,) * 6, 1.0)] for kind in ("causal", "full")}
    tensors = ["3*bfloat16[1,256,4096,128]", 0.0]
    outputs = ["bfloat16[1,256,4096,128]"]
    name = "aten._scaled_dot_product_flash_attention.default"
    full, causal = (
        ns_of(op(name, [*tensors, is_causal], outputs), profile=profile_of(rules)) for is_causal in (False, True)
    )
    # 32 blocks of 128 queries walk over 64 steps of 64 keys; two on each of 132 processors, so that waves are 32. A
    # step of 264 blocks is a product of heads that are wider by 200; to begin a block takes three rounds of 700 ns.
    step_ns = 264 * 4 * 128 * 64 * (128 + 200) / 1000
    assert full == pytest.approx(1000 + 32 * (64 * step_ns + 2100), rel=1e-6)
    # Causal ones take 2, 4, ... 64 steps, 33 on average, and half of the longest is waited for.
    waves = 256 * 32 / 264
    assert causal == pytest.approx(1000 + (waves * 33 + 0.5 * 64) * step_ns + (waves + 0.5) * 2100, rel=1e-6)


def test_attention_of_few_blocks_takes_as_long_as_one_on_each_processor() -> None:
    rules = {"attention efficient fp32 forward full": [((0.0,) * 6, 1.0)]}
    name = "aten._scaled_dot_product_efficient_attention.default"

    def forward_ns(heads: int) -> int:
        shape = f"float32[1,{heads},4096,128]"  # 64 blocks of 64 queries, of which one fills a processor
        return ns_of(op(name, [f"3*{shape}", None, True], [shape]), profile=profile_of(rules))

    assert forward_ns(1) == forward_ns(2) < forward_ns(3)


def test_an_embedding_reads_rows_and_not_the_table() -> None:
    profile = profile_of({"embedding": [((0.0, 0.0, 0.0), 1.0)]})
    lookup = op("aten.embedding.default", ["float32[50000,10]", "int64[7]"], ["float32[7,10]"])
    assert ns_of(lookup, profile=profile) == 1000 + 7 * 10 * 22  # which it takes to find 70 numbers, not 2000000


def test_a_multi_tensor_op_is_priced_by_all_its_bytes() -> None:
    profile = profile_of({"_foreach_mul 4": [((0.0, 0.0), 1.0)]})
    scale = op("aten._foreach_mul_.Scalar", [["3*float32[100]"], 0.5], [])
    assert ns_of(scale, profile=profile) == 1000 + 2 * 3 * 400  # each is read and written


def test_a_norm_of_rows_that_do_not_lie_in_memory_pays_for_the_copy() -> None:
    profile = profile_of({"native_layer_norm 4": [((0.0, 0.0), 1.0)], "copy transposed": [((0.0, 0.0, 0.0), 3.0)]})
    name, rest = "aten.native_layer_norm.default", [[8], "2*float32[8]", 1e-5]
    outputs: list[object] = ["float32[4,8]", "float32[4,1]", "float32[4,1]"]
    norm_ns = 1000 + 2 * 32 * 8 * 132  # as many rows as keep memory busy; weights and numbers per row are not counted
    assert ns_of(op(name, ["float32[4,8]", *rest], outputs), profile=profile) == norm_ns
    copy_ns = 3 * (1000 + 12 * 32)  # an element's place takes as long as twelve bytes
    assert ns_of(op(name, ["float32[4,8]{1,4}", *rest], outputs), profile=profile) == norm_ns + copy_ns


def test_a_batched_product_that_adds_to_something_copies_it_first_unless_it_counts_for_nothing() -> None:
    profile = profile_of({"bmm bfloat16 nn": [((0.0,) * 5, 1.0)], "copy contiguous": [((0.0, 0.0, 0.0), 2.0)]})
    rows = "bfloat16[4,1,8]"
    product = op("aten.baddbmm.default", [rows, "bfloat16[4,8,8]", "bfloat16[4,8,8]"], ["bfloat16[4,8,8]"])
    # A round of tiles; as long as 7 x 1024 results of each processor, at 1 TFLOP/s, 128 deeper than the product is.
    product_ns = 1000 + 700 + round(2 * 7 * 1024 * 132 * (8 + 128) / 1000)
    copy_ns = 2 * (1000 + 2 * (32 + 256))  # the rows are read once and written eight times
    assert ns_of(product, profile=profile) == product_ns + copy_ns
    plain = dataclasses.replace(product, kwargs=(("beta", 0.0),))
    assert ns_of(plain, profile=profile) == product_ns


def test_a_recurrent_layer_launches_two_kernels_per_step_layer_and_direction() -> None:
    data, weights = "bfloat16[10,4,8]", ["2*bfloat16[32,8]"]  # 10 steps of a batch of 4
    args: list[object] = [data, weights, 4, None, "bfloat16[2,4,8]", None, 2, 8, 0, 1, False, 0.0, True, True, [], None]
    layer = op("aten._cudnn_rnn.default", args, ["bfloat16[10,4,16]"])
    assert works(layer, 132)[0].kernels == 2 * 10 * 1 * 2


def test_an_op_launches_as_many_kernels_as_such_ops_were_measured_to() -> None:
    counts = [((0.0, 6.0, 2.0, 0.0), 5.0), ((0.0, 12.0, 2.0, 0.0), 20.0)]
    profile = profile_of({"sort": [((0.0,) * 4, 1.0)], "sort launches": counts})
    small, large = (op("aten.sort.default", [f"float32[{n}]"], [f"float32[{n}]", f"int64[{n}]"]) for n in (64, 2**12))
    half_way = op("aten.sort.default", ["float32[512]"], ["float32[512]", "int64[512]"])  # ten kernels, by logarithms
    assert [cost.kernels for cost in price_ops([small, large, half_way], H200, profile)] == [5, 20, 10]


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


def test_a_power_law_is_continued_between_points_that_lie_unevenly() -> None:
    points = tuple(((float(place),), 2.0 ** (-0.5 * place)) for place in (0, 1, 2, 6, 7, 8))
    assert Table(points).ratio((3.5,)) == pytest.approx(2**-1.75, rel=0.05)


def test_a_ratio_stays_between_its_neighbours_beyond_what_was_measured() -> None:
    points = tuple(((float(place),), 2.0**place) for place in range(4))
    assert Table(points).ratio((9.0,)) == pytest.approx(8.0)
    assert Table(points).ratio((-9.0,)) == pytest.approx(1.0)


def test_a_ratio_is_in_doubt_where_neighbours_disagree_and_where_they_are_far() -> None:
    alike = Table((((10.0,), 2.0), ((12.0,), 2.0)))
    assert alike.doubt((10.0,)) == pytest.approx(0.01)
    assert alike.doubt((11.0,)) == pytest.approx(0.01 + 0.03)
    assert alike.doubt((40.0,)) == pytest.approx(0.01 + 4 * 0.03)  # 28 doublings count as 4
    unlike = Table((((10.0,), 1.0), ((12.0,), 4.0)))  # half way their logarithms lie log(2) from the mean
    assert unlike.doubt((11.0,)) == pytest.approx(0.01 + 0.37 * math.log(2) + 0.03)


def test_a_line_is_in_doubt_where_another_one_disagrees() -> None:
    lines = Lines.of([(12.0, 0.0, 4000), (12.0, 1.0, 8000)], SIMPLE_GPU)
    assert lines.doubt((12.0, 0.5)) == pytest.approx(0.03 + math.log(2) / 2)
    assert lines.doubt((12.0, 0.0)) == pytest.approx(0.03, abs=0.005)


def test_kernels_of_one_rule_are_off_together_and_those_of_others_are_not() -> None:
    def cost(rule: str, doubt_ns: int) -> OpCost:
        return OpCost(500, rule, 0.0, 1, doubt_ns)

    assert kernels_off([cost("mm", 30), cost("mm", 40)]) == pytest.approx(3.1 * 70 / 1000)
    assert kernels_off([cost("mm", 30), cost("add", 40)]) == pytest.approx(3.1 * 50 / 1000)
    assert kernels_off([cost("mm", 50), OpCost(9000, COLLECTIVE, 0.0, 1)]) == pytest.approx(3.1 * 50 / 500)
    assert kernels_off([]) == 0.0


def test_what_nobody_measured_is_off_by_half_and_what_an_op_copies_has_its_own_doubt() -> None:
    profile = profile_of({"pointwise contiguous": [((0.0, 0.0, 1.0), 2.0)]})
    (unknown,) = price_ops([op("mylib.magic.default", ["float32[100]"], ["float32[100]"])], H200, profile)
    assert (unknown.time_ns, unknown.doubt_ns) == (3600, 1800)


def test_of_neighbours_equally_far_the_first_count_however_they_are_rounded() -> None:
    near, _ = _nearest(np.array([[1 + 1e-12, 1.0, 1 - 1e-12, 1.0, 0.5]]), 3)
    assert near.tolist() == [[4, 0, 1]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2, 3], [1, 2, 3]), ([1, 4, 2], [1, 3, 3]), ([3, 2, 1], [2, 2, 2]), ([2, 2, 5, 3], [2, 2, 4, 4])],
)
def test_rising_replaces_what_falls_by_means(values: list[float], expected: list[float]) -> None:
    assert never_falling(values) == expected


def test_samples_become_points_that_price_the_same_op_at_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, profile_json(HEADER, reduce_samples(H200, SAMPLES), reduce_host(TIMINGS, WEIGHTS, KNOWN_NS)))
    profile = load_profile(path)
    assert profile.gpu.name == "h200"
    # Bytes move as slowly as the worse of warm and cold; arithmetic is taken cold. Sizes are kept to a hundredth of a
    # doubling, ratios to four digits.
    assert ns_of(add(2**20), profile=profile) == pytest.approx(7000, rel=4e-3)
    assert ns_of(mm(512, 512, 512), profile=profile) == pytest.approx(5000, rel=1e-3)


def test_kernels_are_counted_where_some_op_launches_more_than_two() -> None:
    once, twice, often = (
        {"op": name, "args": ["float32[1024]"], "kwargs": {}, "outputs": ["float32[1024]", "int64[1024]"], "warm_ns": 1,
         "cold_ns": 2, "overlap": 1.0, "num_kernels": count}
        for name, count in (("aten.neg.default", 1), ("aten.cumsum.default", 2), ("aten.sort.default", 7))
    )  # fmt: skip
    tables = reduce_samples(H200, [once, twice, often]).tables
    assert [name for name in tables if name.endswith(" launches")] == ["sort launches"]
    assert tables["sort launches"] == [[0, 10, 2, 0, 7]]  # of one row of 1024 four-byte numbers


HEADER = {"gpu": "NVIDIA H200", "torch": "2.11.0"}
SAMPLES = [
    {"op": "aten.add.Tensor", "args": ["2*float32[1048576]"], "kwargs": {}, "outputs": ["float32[1048576]"],
     "warm_ns": 7000, "cold_ns": 6500, "overlap": 1.0, "num_kernels": 1},
    {"op": "aten.mm.default", "args": ["2*bfloat16[512,512]"], "kwargs": {}, "outputs": ["bfloat16[512,512]"],
     "warm_ns": 4000, "cold_ns": 5000, "overlap": 1.0, "num_kernels": 1},
]  # fmt: skip


# ---- Profiles that are wrong -----------------------------------------------------------------------------------------


def written(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "profile.json"
    write_profile(path, profile_json(HEADER, reduce_samples(H200, SAMPLES), reduce_host(TIMINGS, WEIGHTS, KNOWN_NS)))
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 1}, "has schema 1, and this trainfit reads 16"),
        ({"gpu": "NVIDIA H2000"}, "of a GPU that trainfit does not know: 'NVIDIA H2000'"),
        (
            {"tables": {"mm": [[1, 2, -1]]}},
            "damaged: ValueError: a table is empty, or has a ratio that is not positive",
        ),
        ({"tables": {"mm": []}}, "damaged"),
        ({"tables": {"mm": [[1, 2], [1, 2, 3]]}}, "damaged"),
        ({"lines": {"copy contiguous": [[1, 2, 9], [2, 2, 8]]}}, "damaged: ValueError: more bytes take less time"),
        ({"lines": {"copy contiguous": [[1, 2, -9]]}}, "damaged: ValueError"),
        ({"times_ns": {"mm bfloat16 nn": [1, 2, 3]}}, "damaged: ValueError: a table has more points than times"),
        ({"rates": {}}, "damaged: KeyError: 'bf16_tflops'"),
        ({"host": {"nonsense": 3}}, "damaged: KeyError: 'weights_percent'"),
        ({"host": {"nonsense": 3, "weights_percent": dict.fromkeys(WEIGHED, 1)}}, "damaged: TypeError"),
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


def test_what_is_larger_than_the_cache_takes_longer_on_a_gpu_with_a_smaller_one() -> None:
    profile = profile_of({"pointwise contiguous": [((0.0, 0.0, 1.0), 1.0)]})
    small = dataclasses.replace(SIMPLE_GPU, l2_bytes=6000)
    cost_ns = [works(add(1000), 132)[0].ideal_ns(gpu) for gpu in (SIMPLE_GPU, small)]
    assert cost_ns == [1000 + 12_000, 1000 + 1.08 * 12_000]  # twice the cache or more: 8% more
    half_over = dataclasses.replace(SIMPLE_GPU, l2_bytes=8000)
    assert works(add(1000), 132)[0].ideal_ns(half_over) == 1000 + 1.04 * 12_000
    assert ns_of(add(1000), profile=profile) == 13_000


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
    assert wasteful == pytest.approx(2 * -0.989, abs=0.01)  # half of two waves is idle: log2(133 / 264) = -0.989
