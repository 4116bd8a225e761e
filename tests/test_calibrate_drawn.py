"""Workloads that a seed draws as models have them: the same every time, neither over at once nor long."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice

from torch.nn.attention import SDPBackend

import trainfit
from trainfit.calibrate import chunks, crowded
from trainfit.calibrate.drawn_attentions import _cases, drawn
from trainfit.calibrate.drawn_norms import norms
from trainfit.calibrate.extreme_filters import extreme, extreme_layers
from trainfit.calibrate.fourier import fourier
from trainfit.calibrate.library_filters import by_channel, layers_by_channel, layers_of_libraries, of_libraries
from trainfit.calibrate.usual_filters import usual, usual_layers


def test_usual_convolutions_are_the_same_every_time_and_of_moderate_sizes() -> None:
    first, again = (list(islice(usual_layers(3), 400)) for _ in range(2))
    assert first == again
    assert max(layer.multiplications for layer in first) <= 2**36
    images = [max(math.prod(layer.x), math.prod(layer.out)) for layer in first]
    assert min(images) >= 2**14
    assert max(images) <= 2**27


def test_usual_convolutions_are_patches_and_products_of_many_images_and_few_of_any_dimensions() -> None:
    layers = list(islice(usual_layers(3), 400))
    assert {len(layer.stride) for layer in layers} == {1, 2, 3}
    assert sum(math.prod(layer.weight[2:]) == 1 for layer in layers) > 60
    assert sum(layer.stride == layer.weight[2:] and max(layer.stride) > 3 for layer in layers) > 15
    assert sum(layer.x[0] > 500 for layer in layers) > 40
    assert sum(max(layer.x[1], layer.out[1]) <= 32 for layer in layers) > 20
    assert sum(math.prod(layer.x[2:]) == 1 or math.prod(layer.out[2:]) == 1 for layer in layers) > 10
    assert sum(layer.is_transposed for layer in layers) > 30
    assert sum(layer.nhwc for layer in layers) > 50


def test_extreme_convolutions_are_products_over_few_places_first_layers_volumes_and_thousands_of_images() -> None:
    layers = list(islice(extreme_layers(4), 400))
    assert layers == list(islice(extreme_layers(4), 400))
    assert max(layer.multiplications for layer in layers) <= 2**36
    assert max(max(map(math.prod, (layer.x, layer.weight, layer.out))) for layer in layers) <= 2**28
    assert sum(math.prod(layer.weight[2:]) == 1 and layer.x[0] > 500 for layer in layers) > 20
    assert sum(layer.x[1] <= 4 for layer in layers) > 50
    assert sum(len(layer.stride) == 3 for layer in layers) > 40
    assert sum(layer.x[0] > 1000 and layer.x[1] <= 16 for layer in layers) > 20


def test_windows_per_channel_are_of_all_types_and_layouts() -> None:
    layers = layers_by_channel(480, seed=23)
    assert layers == layers_by_channel(480, seed=23)
    assert all(layer.groups == layer.x[1] > layer.weight[1] == 1 for layer in layers)
    for side in (3, 5, 7):
        kinds = Counter((layer.dtype, layer.nhwc) for layer in layers if layer.weight[2:] == (side, side))
        assert len(kinds) == 6
        assert min(kinds.values()) >= 5
    assert sum(layer.stride == (2, 2) for layer in layers) > 40
    assert sum(max(layer.dilation) > 1 for layer in layers) > 20
    assert sum(layer.weight[2] != layer.weight[3] for layer in layers) > 20
    assert sum(layer.out[1] > layer.x[1] for layer in layers) > 10


def test_convolutions_of_libraries_are_grouped_first_solid_or_have_their_channels_last() -> None:
    layers = layers_of_libraries(1900, seed=22)
    assert layers == layers_of_libraries(1900, seed=22)
    assert (
        max(max(map(math.prod, (layer.x, layer.weight, layer.out))) * layer.dtype.itemsize for layer in layers) <= 2**28
    )
    grouped = [layer for layer in layers if layer.groups > 1 and layer.weight[1] > 1]
    assert sum(layer.nhwc for layer in grouped) > 100
    assert sum(not layer.has_input_gradient and layer.x[1] <= 4 for layer in layers) > 80
    assert sum(len(layer.stride) == 3 for layer in layers) > 100
    assert sum(layer.nhwc and layer.groups == 1 for layer in layers) > 150


def test_norms_are_of_images_and_volumes_in_both_layouts() -> None:
    found = [(one.func.__name__, *one.args) for one in norms(560, seed=21)]  # type: ignore[attr-defined]
    assert found == [(one.func.__name__, *one.args) for one in norms(560, seed=21)]  # type: ignore[attr-defined]
    assert all(2**15 <= math.prod(shape) * dtype.itemsize <= 2**30 for _, shape, dtype, *_ in found)
    batched = [(len(shape), dtype, weights, is_last) for name, shape, dtype, weights, is_last in
               (one for one in found if one[0] == "batched")]  # type: ignore[misc] # fmt: skip
    assert len(set(batched)) == 3 * 5 + 5
    assert sum(name == "grouped" for name, *_ in found) > 60
    assert sum(name == "of_pixels" for name, *_ in found) > 60


def test_what_cudnn_compiles_for_long_is_cut_into_small_chunks() -> None:
    sizes = {chunk.name: len(chunk.workloads) for chunk in chunks.all_chunks()}
    assert sizes["filters by channel 24"] == sizes["filters of libraries 0"] == 24
    assert sizes["usual filters 120"] == 120


def test_cudnn_compiles_few_kinds_of_attention() -> None:
    cases = list(islice(_cases(7), 460))
    assert cases == list(islice(_cases(7), 460))
    kinds = Counter((dim, causal, dropout > 0, mask) for backend, *_, dim, causal, dropout, mask, _ in cases
                    if backend is SDPBackend.CUDNN_ATTENTION)  # fmt: skip
    assert len(kinds) == 13
    assert min(kinds.values()) >= 2


def test_drawn_workloads_run() -> None:
    with trainfit.ghost_gpu("h200"):
        for workload in (
            *usual(12, 3), *extreme(12, 4), *drawn(6, 7), *fourier(), *by_channel(12, 23), *of_libraries(24, 22),
            *norms(24, 21),
        ):  # fmt: skip
            workload()


def test_tables_are_resized_so_that_no_gradient_takes_long() -> None:
    kinds = Counter(workload.func.__name__ for workload in crowded.crowded())
    assert kinds == {"resized": 290, "summed": 90}
    with trainfit.ghost_gpu("h200"):
        for workload in crowded.crowded()[::40]:
            workload()
    for shape, sides, mode, *_ in (one.args for one in crowded.crowded() if one.func is crowded.resized):
        if mode == "bicubic" and math.prod(sides) > 100 * math.prod(shape[2:]):  # a hundred pixels meet at a place
            assert shape[0] * shape[1] <= 64
