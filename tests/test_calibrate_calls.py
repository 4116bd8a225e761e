"""Calls that `calibrate` makes: arguments as they are described, with values that the op can work with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainfit.calibrate.arguments import Pool, arguments
from trainfit.calibrate.calls import Call, all_calls, call_of, read_call
from trainfit.calibrate.plans import is_planned, plan_of
from trainfit.cost.described import described, read_op
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import cudnn_library
from trainfit.gpus.hidden.cudnn_library import Proposal
from trainfit.records import Op, Phase, TensorRef

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import select_calls

POOL = Pool("cpu", 2**16)
H200 = find_gpu("h200")


def made(name: str, *args: object, **kwargs: object) -> tuple[list[Any], dict[str, Any]]:
    return arguments(read_call(name, list(args), kwargs), POOL)


def test_tensors_have_the_shape_the_strides_and_the_type_that_they_had() -> None:
    (left, right), _ = made("aten.mm.default", "bfloat16[8,4]{1,8}", "bfloat16[4,2]")
    assert (left.shape, left.stride(), left.dtype) == ((8, 4), (1, 8), torch.bfloat16)
    assert (right.shape, right.stride()) == ((4, 2), (2, 1))


def test_numbers_are_of_one_pool_and_lie_in_places_of_their_own() -> None:
    (left, right), _ = made("aten.mul.Tensor", "float32[100]", "float32[100]")
    assert left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
    assert right.storage_offset() - left.storage_offset() == 128  # 400 bytes in pieces of 512
    (again, _), _ = made("aten.mul.Tensor", "float32[100]", "float32[100]")
    assert again.data_ptr() == left.data_ptr()


def test_what_a_call_writes_to_is_not_of_the_pool_nor_what_the_pool_is_too_small_for() -> None:
    (written, read), _ = made("aten.add_.Tensor", "float32[100]", "float32[100]")
    assert written.untyped_storage().nbytes() == 400
    assert read.untyped_storage().nbytes() == 2**16
    (large,), _ = made("aten.neg.default", "float32[20000]")
    assert large.untyped_storage().nbytes() == 80000


def test_ops_that_copy_the_whole_memory_of_a_tensor_get_one_that_lies_alone() -> None:
    (alone, _, *_), _ = made("aten.slice_scatter.default", "float32[8,4]", "float32[2,4]", 0, 0, 2)
    assert alone.untyped_storage().nbytes() == 8 * 4 * 4


def test_what_repeats_is_there_once() -> None:
    (_, repeated), _ = made("aten.mul.Tensor", "float64[64,32]", "float64[64,32]{0,1}")
    assert repeated.stride() == (0, 1)
    assert repeated.untyped_storage().nbytes() == 32 * 8


@pytest.mark.parametrize(
    ("name", "args", "place", "limit"),
    [
        ("aten.embedding.default", ["float32[7,3]", "int64[500]"], 1, 7),
        ("aten.gather.default", ["float32[4,9]", 1, "int64[4,300]"], 2, 9),
        ("aten.nll_loss_forward.default", ["float32[300,5]", "int64[300]", None, 1, -100], 1, 5),
        ("aten.scatter_add_.default", ["float32[6,8]", 0, "int64[90,8]{1,0}", "float32[90,8]"], 2, 6),
        ("aten.take.default", ["float32[2,3]", "int64[300]"], 1, 6),
    ],
)
def test_places_are_inside_and_all_are_used(name: str, args: list[object], place: int, limit: int) -> None:
    found, _ = made(name, *args)
    assert sorted(set(found[place].flatten().tolist())) == list(range(limit))
    read_call(name, args, {}).function(*found)


def test_elements_of_a_row_go_to_one_place() -> None:
    found, _ = made("aten.scatter_add_.default", "float32[6,8]", 0, "int64[90,8]", "float32[90,8]")
    assert (found[2] == found[2][:, :1]).all()
    along, _ = made("aten.gather.default", "float32[90,9]", 1, "int64[90,8]")
    assert not (along[2] == along[2][:, :1]).all()


def test_roots_are_taken_of_numbers_that_have_one() -> None:
    (one,), _ = made("aten.sqrt.default", "float32[100]")
    (listed,), _ = made("aten._foreach_sqrt.default", ["2*float32[100]"])
    assert all(float(value.min()) >= 0 for value in (one, *listed))
    (plain,), _ = made("aten.neg.default", "float32[100]")
    assert float(plain.min()) < 0


def test_gradients_of_the_largest_go_where_these_were_found() -> None:
    name = "aten.max_pool2d_with_indices_backward.default"
    found, _ = made(
        name, "float32[1,1,2,2]", "float32[1,1,4,4]", [2, 2], [2, 2], [0, 0], [1, 1], False, "int64[1,1,2,2]"
    )
    quarters = [{0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15}]
    assert all(place in quarter for place, quarter in zip(found[7].flatten().tolist(), quarters, strict=True))
    parts, _ = made(
        "aten.adaptive_max_pool2d_backward.default", "float32[1,1,2,2]", "float32[1,1,4,4]", "int64[1,1,2,2]"
    )
    assert all(place in quarter for place, quarter in zip(parts[2].flatten().tolist(), quarters, strict=True))


def test_each_index_is_inside_its_own_dimension() -> None:
    found, _ = made("aten.index.Tensor", "float32[3,50]", ["int64[400]", "int64[400]"])
    first, second = found[1]
    assert int(first.max()) == 2
    assert 2 < int(second.max()) < 50


@pytest.mark.parametrize(
    ("name", "args", "place"),
    [
        ("aten.masked_scatter.default", ["float32[10]", "bool[10]", "float32[7]"], 1),
        ("aten.masked_scatter_backward.default", ["float32[10]", "bool[10]", [7]], 1),
    ],
)
def test_masks_have_as_many_places_as_there_are_values(name: str, args: list[object], place: int) -> None:
    found, _ = made(name, *args)
    assert int(found[place].sum()) == 7
    read_call(name, args, {}).function(*found)
    indexed, _ = made("aten.index_put.default", "float32[10]", ["bool[10]"], "float32[7]")
    assert int(indexed[1][0].sum()) == 7


def test_groups_are_equally_large() -> None:
    products, _ = made("aten._grouped_mm.default", "bfloat16[64,8]", "bfloat16[4,8,16]", "int32[4]")
    assert products[2].tolist() == [16, 32, 48, 64]
    bags, _ = made("aten._embedding_bag.default", "float32[9,4]", "int64[12]", "int64[3]")
    assert bags[2].tolist() == [0, 4, 8]


def points(image: str, grid: str) -> torch.Tensor:
    return made("aten.grid_sampler_2d.default", image, grid, 0, 0, False)[0][1]


def test_points_lie_around_queries_that_are_all_pixels_in_their_order() -> None:
    found = points("float32[16,4,8,8]", "float32[16,1024,4,2]")  # 32 x 32 queries, 8 directions, a pixel a point
    centres = (torch.arange(32) * 2 + 1) / 32 - 1
    steps = torch.arange(1, 5) * 2 / 8
    assert torch.allclose(found[0, 5 * 32 + 3, :, 0], (centres[3] + steps).clamp(-1, 1))
    assert torch.allclose(found[0, 5 * 32 + 3, :, 1], centres[5].expand(4))
    assert torch.allclose(found[2, 5 * 32 + 3, :, 1], (centres[5] + steps).clamp(-1, 1))
    assert torch.equal(found[0], found[8])


def test_points_of_few_queries_lie_beside_each_other_anywhere() -> None:
    found = points("float32[8,4,64,64]", "float32[8,300,4,2]")
    assert torch.allclose(
        found[0, :, 1:, 0], (found[0, :, :1, 0] + torch.arange(1, 4) * 2 / 64).clamp(-1, 1), atol=1e-6
    )
    assert found[0, :, 0].min() < -0.9
    assert found[0, :, 0].max() > 0.9


def test_points_in_rows_and_columns_are_a_bent_image_small_ones_a_window_and_lines_lie_anywhere() -> None:
    bent = points("float32[2,4,32,32]", "float32[2,64,64,2]")
    middles = (torch.arange(64) * 2 + 1) / 64 - 1
    assert (bent[0, 0, :, 0] - middles).abs().max() <= 2 / 32
    assert (bent[0, :, 0, 1] - middles).abs().max() <= 2 / 32
    window = points("float32[2,4,64,64]", "float32[2,9,9,2]")
    steps = window[0, 0, 1:, 0] - window[0, 0, :-1, 0]
    assert torch.allclose(steps[steps > 0], torch.tensor(2 / 64), atol=1e-6)  # at the edge it ends
    line = points("float32[1,4,64,64]", "float32[1,1,4096,2]")[0, 0]
    assert (line[1:] - line[:-1]).abs().mean() > 0.5


def test_some_ops_get_numbers_between_0_and_1_or_inside_their_bins() -> None:
    (chances, _), _ = made("aten.multinomial.default", "float32[64,8]", 1)
    assert 0 <= float(chances.min()) <= float(chances.max()) <= 1
    (values, *_), _ = made("aten.histc.default", "float32[4096]", 8, 0, 8)
    assert (int(values.min()), int(values.max())) == (0, 7)


def test_what_lay_in_the_host_s_memory_lies_there_again() -> None:
    (_, source), _ = made("aten.copy_.default", "float32[3,2]", None)
    assert (source.shape, source.device.type) == ((3, 2), "cpu")
    (*_, value), _ = made("aten.index_put_.default", "float32[4]", ["bool[4]"], None)
    assert value.shape == ()


def test_names_of_types_and_devices_become_these_and_words_stay_words() -> None:
    _, kwargs = made("aten._to_copy.default", "float32[4]", dtype="bfloat16", device="meta")
    assert kwargs == {"dtype": torch.bfloat16, "device": "cpu"}
    _, kwargs = made("aten.gelu.default", "float32[4]", approximate="tanh")
    assert kwargs == {"approximate": "tanh"}


def test_a_call_is_of_the_tensors_that_it_was_made_with() -> None:
    x = torch.ones(4, 3, dtype=torch.bfloat16)
    call = call_of(torch.ops.aten.sum.dim_IntList, (x.t(), [0], True), {"dtype": torch.float32})
    assert str(call) == json.dumps(["aten.sum.dim_IntList", ["bfloat16[3,4]{1,3}", [0], True], {"dtype": "float32"}])
    assert read_call(*json.loads(str(call))) == call


def test_products_are_rounded_inside_of_a_call_that_was() -> None:
    call = read_call("aten.mm.default", ["2*float32[4,4]"], {"tf32": True})
    before = torch.backends.cuda.matmul.fp32_precision
    with call.precision():
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == before != "tf32"


def test_every_call_is_written_as_it_is_read_and_there_once() -> None:
    calls = all_calls()
    assert len(calls) == len(set(map(str, calls))) > 50_000
    for call in calls[::200]:
        assert read_call(*json.loads(str(call))) == call


def test_calls_of_every_op_that_a_cpu_knows_can_be_made_here() -> None:
    """The smallest of each; what a CPU lacks is another matter, but no place may be outside."""
    smallest: dict[str, Call] = {}
    for call in all_calls():
        if call.name not in smallest or num_elements(call) < num_elements(smallest[call.name]):
            smallest[call.name] = call
    chosen = [call for call in smallest.values() if num_elements(call) < 100_000 and "cudnn" not in call.name]
    refusals = [why for why in map(why_not, chosen) if why is not None]
    assert len(chosen) - len(refusals) > 200
    assert not [why for why in refusals if "out of" in why or "mismatch" in why]


def why_not(call: Call) -> str | None:
    """Why this CPU does not run it; None where it does."""
    try:
        args, kwargs = arguments(call, POOL)
        call.function(*args, **kwargs)
    except (IndexError, RuntimeError) as error:
        return str(error)
    return None


def num_elements(call: Call) -> int:
    def count(value: Any) -> int:
        if isinstance(value, tuple):
            return sum(map(count, value))
        return value.numel if isinstance(value, TensorRef) else 0

    return count(call.args)


def test_equal_neighbours_are_written_with_a_count_and_strides_where_they_matter() -> None:
    plain = TensorRef(0, "float32", (2, 3), (3, 1), 0)
    turned = TensorRef(1, "float32", (2, 3), (1, 2), 0)
    op = Op("aten.cat.default", Phase.FORWARD, "", ((plain, plain, turned), 1), (), (), tf32=True)
    args, kwargs = described(op.args, op.kwargs, op.tf32)
    assert (args, kwargs) == ([["2*float32[2,3]", "float32[2,3]{1,2}"], 1], {"tf32": True})
    again = read_op(op.name, args, kwargs, [], Phase.FORWARD)
    assert again.tf32
    pieces = again.args[0]
    assert isinstance(pieces, tuple)
    assert [piece.stride for piece in pieces] == [(3, 1), (3, 1), (1, 2)]


def test_a_convolution_s_plan_is_an_engine_and_a_tiling(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    call = read_call("aten.convolution.default", ["bfloat16[8,64,8,8]", "bfloat16[64,64,3,3]", *settings], {})
    assert is_planned(call)
    assert not is_planned(read_call("aten.neg.default", ["float32[8]"], {}))
    monkeypatch.setattr(cudnn_library, "version", lambda: 91900)
    monkeypatch.setattr(cudnn_library, "first_proposal", lambda *_: Proposal(62, ((2, 8), (13, 1))))
    assert plan_of(call, H200) == {"engine": 62, "tiling": [64, 32, 64, 1]}
    monkeypatch.setattr(cudnn_library, "first_proposal", lambda *_: Proposal(0, ()))
    assert plan_of(call, H200) == {"engine": 0}
    monkeypatch.setattr(cudnn_library, "first_proposal", lambda *_: None)
    assert plan_of(call, H200) == {}


def sample(rows: int, cold_ns: int = 5000) -> dict[str, Any]:
    tensor = f"bfloat16[{rows},768]"
    return {
        "op": "aten.gelu.default", "args": [tensor], "kwargs": {}, "outputs": [tensor],
        "warm_ns": 4000, "cold_ns": cold_ns, "num_kernels": 1, "kernel": "gelu", "overlap": 1.0,
    }  # fmt: skip


def test_of_samples_that_are_alike_one_is_selected_and_none_that_took_long() -> None:
    samples = [("ops 0", sample(rows)) for rows in (10_000, 10_100, 30_000)] + [("ops 0", sample(10**6, 300_000_000))]
    assert [call.args[0].shape[0] for call in select_calls.selected(samples)] == [10_000, 30_000]
