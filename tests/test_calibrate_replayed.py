"""Ops of nets that `calibrate` calls again: arguments as they were, places inside of what they are places of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from trainfit.calibrate import replayed
from trainfit.calibrate.replayed import arguments, function, read
from trainfit.cost.described import described, read_op
from trainfit.records import Op, Phase, TensorRef

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import corpus_select


def called(name: str, *args: object, **kwargs: object) -> tuple[list[object], dict[str, object]]:
    return arguments(replayed.replayed(read(name, list(args), kwargs)), "cpu")


def test_tensors_have_the_shape_the_strides_and_the_type_that_they_had() -> None:
    (left, right), _ = called("aten.mm.default", "bfloat16[8,4]{1,8}", "bfloat16[4,2]")
    assert isinstance(left, torch.Tensor)
    assert isinstance(right, torch.Tensor)
    assert (left.shape, left.stride(), left.dtype) == ((8, 4), (1, 8), torch.bfloat16)
    assert (right.shape, right.stride()) == ((4, 2), (2, 1))


def test_what_repeats_is_there_once() -> None:
    (_, repeated), _ = called("aten.mul.Tensor", "float32[64,32]", "float32[64,32]{0,1}")
    assert isinstance(repeated, torch.Tensor)
    assert repeated.stride() == (0, 1)
    assert repeated.untyped_storage().nbytes() == 32 * 4


@pytest.mark.parametrize(
    ("name", "args", "place", "limit"),
    [
        ("aten.embedding.default", ["float32[7,3]", "int64[500]"], 1, 7),
        ("aten.gather.default", ["float32[4,9]", 1, "int64[4,300]"], 2, 9),
        ("aten.nll_loss_forward.default", ["float32[300,5]", "int64[300]", None, 1, -100], 1, 5),
        ("aten.scatter_add_.default", ["float32[6,8]", 0, "int64[90,8]{1,0}", "float32[90,8]"], 2, 6),
    ],
)
def test_places_are_inside_and_all_are_used(name: str, args: list[object], place: int, limit: int) -> None:
    found, _ = called(name, *args)
    places = found[place]
    assert isinstance(places, torch.Tensor)
    assert sorted(set(places.flatten().tolist())) == list(range(limit))
    function(name)(*found)


def test_gradients_of_the_largest_go_where_these_were_found() -> None:
    name = "aten.max_pool2d_with_indices_backward.default"
    found, _ = called(
        name, "float32[1,1,2,2]", "float32[1,1,4,4]", [2, 2], [2, 2], [0, 0], [1, 1], False, "int64[1,1,2,2]"
    )
    places = found[7]
    assert isinstance(places, torch.Tensor)
    quarters = [{0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15}]
    assert all(place in quarter for place, quarter in zip(places.flatten().tolist(), quarters, strict=True))


def test_each_index_is_inside_its_own_dimension() -> None:
    found, _ = called("aten.index.Tensor", "float32[3,50]", ["int64[400]", "int64[400]"])
    first, second = found[1]  # type: ignore[misc]
    assert int(first.max()) == 2
    assert 2 < int(second.max()) < 50


def test_names_of_types_and_devices_become_these_and_words_stay_words() -> None:
    _, kwargs = called("aten._to_copy.default", "float32[4]", dtype="bfloat16", device="meta")
    assert kwargs == {"dtype": torch.bfloat16, "device": "cpu"}
    _, kwargs = called("aten.gelu.default", "float32[4]", approximate="tanh")
    assert kwargs == {"approximate": "tanh"}


def test_every_op_of_nets_is_written_as_it_is_read() -> None:
    for op in replayed._ops()[::200]:
        assert read(op.name, *described(op)) == op


def test_every_op_of_nets_is_of_one_group() -> None:
    groups = (replayed.ops_of_nets, replayed.pools_of_nets, replayed.filters_of_nets, replayed.recurrents_of_nets)
    counts = [len(group()) for group in groups]
    assert counts == [12080, 152, 8960, 19]
    assert sum(counts) == len(replayed._ops())


def test_some_ops_of_nets_can_be_called_here() -> None:
    small = [op for op in replayed._ops() if op.name.startswith(("aten.add", "aten.cat", "aten.sum")) and is_small(op)]
    assert len(small) > 20
    for op in small[:40]:
        args, kwargs = arguments(replayed.replayed(op), "cpu")
        function(op.name)(*args, **kwargs)


def is_small(op: Op) -> bool:
    return sum(tensor.numel for tensor in op.input_refs()) < 100_000


def test_equal_neighbours_are_written_with_a_count_and_strides_where_they_matter() -> None:
    plain = TensorRef(0, "float32", (2, 3), (3, 1), 0)
    turned = TensorRef(1, "float32", (2, 3), (1, 2), 0)
    op = Op("aten.cat.default", Phase.FORWARD, "", ((plain, plain, turned), 1), (), (), tf32=True)
    assert described(op) == ([["2*float32[2,3]", "float32[2,3]{1,2}"], 1], {"tf32": True})
    args, kwargs = described(op)
    again = read_op(op.name, args, kwargs, [], Phase.FORWARD)
    assert again.tf32
    pieces = again.args[0]
    assert isinstance(pieces, tuple)
    assert [piece.stride for piece in pieces] == [(3, 1), (3, 1), (1, 2)]


def test_no_two_ops_of_nets_are_alike_but_convolutions() -> None:
    lines = [json.dumps([op.name, *described(op)]) for op in replayed._ops() if op.name == "aten.gelu.default"]
    assert len({corpus_select.kind_of(line) for line in lines}) == len(lines) > 20
    near, far = (json.dumps(["aten.gelu.default", [f"bfloat16[{rows},768]"], {}]) for rows in (10_000, 20_000))
    assert corpus_select.kind_of(near) == corpus_select.kind_of(near.replace("10000", "10100"))
    assert corpus_select.kind_of(near) != corpus_select.kind_of(far)
    filters = [json.dumps([op.name, *described(op)]) for op in replayed._ops() if "convolution" in op.name][:2]
    assert [corpus_select.kind_of(line) for line in filters] == filters
