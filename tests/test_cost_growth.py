"""Whatever size of an op grows, all else equal, its price never falls: every kind of op, any growth."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from priced_ops import SIMPLE_GPU, ns_of, op
from trainfit.cost.interpolate import Table
from trainfit.cost.lattice import rising_ns
from trainfit.cost.work import Work, resizable
from trainfit.records import Op

Make = Callable[..., Op]


def product(name: str, dtype: str, layout: str) -> Make:
    def make(batch: int, rows: int, columns: int, depth: int) -> Op:
        rows, columns, depth = 8 * rows, 8 * columns, 8 * depth  # so that all rows start at aligned addresses
        lead = f"{batch}," if "bmm" in name else ""
        turned = f"{{{f'{depth * columns},' if lead else ''}1,{depth}}}" if layout == "t" else ""
        factors = [f"{dtype}[{lead}{rows},{depth}]", f"{dtype}[{lead}{depth},{columns}]{turned}"]
        added = [f"{dtype}[{columns}]"] if name == "addmm" else []
        return op(f"aten.{name}.default", [*added, *factors], [f"{dtype}[{lead}{rows},{columns}]"])

    return make


def attention(backend: str, dtype: str, is_backward: bool, is_causal: bool) -> Make:
    # FlashAttention has other kernels for what does not fill tiles, and, without dropout, for few queries.
    tile, dropout = {"flash": (128, 0.1), "cudnn": (16, 0.0), "efficient": (1, 0.0)}[backend]

    def make(batch: int, heads: int, length: int, dim: int) -> Op:
        length *= tile
        query, per_query = f"{dtype}[{batch},{heads},{length},{8 * dim}]", f"float32[{batch},{heads},{length}]"
        options: dict[tuple[str, bool], list[object]] = {
            ("flash", False): [dropout, is_causal],
            ("cudnn", False): [None, True, 0.0, is_causal],
            ("efficient", False): [None, True, 0.0, is_causal],
            ("flash", True): [query, per_query, None, None, 9, 9, dropout, is_causal],
            ("cudnn", True): [query, per_query, None, None, None, None, None, 9, 9, 0.0, is_causal],
            ("efficient", True): [None, query, per_query, None, None, 0.0, [True] * 4, is_causal],
        }
        operands = [query] * (4 if is_backward else 3)
        name = f"aten._scaled_dot_product_{backend}_attention{'_backward' if is_backward else ''}.default"
        return op(name, [*operands, *options[backend, is_backward]], [query] * (3 if is_backward else 1))

    return make


def window_per_channel(dtype: str, is_backward: bool) -> Make:
    """By torch's own kernels: for other convolutions cuDNN may have faster ones where there is more."""

    def make(batch: int, channels: int, size: int) -> Op:
        channels *= 8
        image, weight = f"{dtype}[{batch},{channels},{size},{size}]", f"{dtype}[{channels},1,3,3]"
        rest: list[object] = [[1, 1], [1, 1], [1, 1], False, [0, 0], channels]
        if is_backward:
            args = [image, image, weight, [0], *rest, [True, True, False]]
            return op("aten.convolution_backward.default", args, [image, weight])
        return op("aten.convolution.default", [image, weight, None, *rest], [image])

    return make


def rows(name: str, dtype: str) -> Make:
    def make(count: int, columns: int) -> Op:
        columns *= 8  # rows that are not aligned take torch's slower kernels
        x, weight, per_row = f"{dtype}[{count},{columns}]", f"{dtype}[{columns}]", f"float32[{count},1]"
        arguments: dict[str, list[object]] = {
            "_softmax": [x, -1, False],
            "_log_softmax": [x, -1, False],
            "_softmax_backward_data": [x, x, -1],
            "_log_softmax_backward_data": [x, x, -1],
            "native_layer_norm": [x, [columns], weight, weight, 1e-5],
            "_fused_rms_norm": [x, [columns], weight, 1e-5],
            "native_layer_norm_backward": [x, x, [columns], per_row, per_row, weight, weight, [True] * 3],
            "_fused_rms_norm_backward": [x, x, [columns], per_row, weight, [True] * 2],
            "nll_loss_backward": ["float32[]", x, f"int64[{count}]", None, 1, -100, "float32[]"],
        }
        return op(f"aten.{name}.default", arguments[name], [x])

    return make


def image_norm(name: str, dtype: str) -> Make:
    def make(batch: int, channels: int, size: int) -> Op:
        x, channels = f"{dtype}[{batch},{32 * channels},{size},{size}]", 32 * channels
        rest: list[object] = [f"4*float32[{channels}]", True, 0.1, 1e-5]
        if name == "native_group_norm":
            rest = [f"2*{dtype}[{channels}]", batch, channels, size * size, 32, 1e-5]
        return op(f"aten.{name}.default", [x, *([x] if name.endswith("backward") else []), *rest], [x])

    return make


def recurrent(batch: int, width: int, steps: int) -> Op:
    data, weights = f"bfloat16[{steps},{batch},{8 * width}]", [f"2*bfloat16[{32 * width},{8 * width}]"]
    args: list[object] = [data, weights, 4, None, data, None, 2, 8 * width, 0, 1, False, 0.0, True, False, [], None]
    return op("aten._cudnn_rnn.default", args, [data])


HALF, TYPES = ("bfloat16",), ("bfloat16", "float32")
EACH = (False, True)
WIDE, DEEP = (1, 10), (0, 9)
SEVERAL = (1, 9)  # one matrix alone runs as a plain product does
TILED = {"flash": (0, 6), "cudnn": (3, 9), "efficient": (4, 13)}  # in tiles of 128, 16 and 1
"""log2 of the least and the most of a size."""
KINDS: list[tuple[Make, tuple[tuple[int, int], ...]]] = [
    *((product(*case), ((0, 0), WIDE, WIDE, WIDE)) for case in itertools.product(("mm", "addmm"), TYPES, "nt")),
    *((product("bmm", t, order), (SEVERAL, DEEP, DEEP, DEEP)) for t, order in itertools.product(TYPES, "nt")),
    *((attention(*case), ((0, 6), (0, 6), TILED[case[0]], (3, 3)))  # heads of other widths take other kernels
      for case in (*itertools.product(("flash", "cudnn", "efficient"), HALF, EACH, EACH),
                   *itertools.product(("efficient",), TYPES[1:], EACH, EACH))),
    *((window_per_channel(*case), ((0, 8), (0, 7), (1, 7))) for case in itertools.product(TYPES, EACH)),
    *((rows(n, t), ((4, 15), (0, 12))) for n, t in itertools.product((
        "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm",
        "_fused_rms_norm", "native_layer_norm_backward", "_fused_rms_norm_backward", "nll_loss_backward"), TYPES)),
    *((image_norm(n, t), ((0, 8), (0, 6), (3, 7))) for n, t in (
        ("native_batch_norm", "bfloat16"), ("native_batch_norm_backward", "bfloat16"), ("cudnn_batch_norm", "float32"),
        *itertools.product(("native_group_norm",), TYPES))),
    (recurrent, ((0, 8), (3, 7), (0, 8))),
]  # fmt: skip


@given(st.sampled_from(KINDS), st.integers(0, 3), st.floats(0, 3), st.data())
@settings(deadline=None, max_examples=120)
def test_an_op_of_which_one_size_grows_never_takes_less_time(
    kind: tuple[Make, Sequence[tuple[int, int]]], axis: int, doublings: float, data: st.DataObject
) -> None:
    make, limits = kind
    axis %= len(limits)
    sizes = [round(2 ** data.draw(st.floats(*limit))) for limit in limits]
    larger = list(sizes)
    larger[axis] = max(sizes[axis], round(sizes[axis] * 2**doublings))
    # torch has other kernels, some of them faster, for more rows, other heads, and for softmax of longer rows
    if make.__qualname__.startswith("rows") and sizes[0] <= 2**16 < larger[0]:
        larger[0] = 2**16
    if make.__qualname__.startswith("attention"):
        larger[3] = sizes[3]
    smaller = make(*sizes)
    if "softmax.default" in smaller.name:
        larger[1] = next((most for most in (256, 1152) if sizes[1] <= most < larger[1]), larger[1])
    grown = make(*larger)
    # kernels whose threads change with the width, the image, or the number of images (of windows per channel)
    changing = {"softmax": 1.05, "native_batch_norm": 1.15, "convolution_backward": 1.15, "convolution": 1.05}
    allowed = next((most for part, most in changing.items() if part in smaller.name), 1)
    assert ns_of(smaller) <= allowed * ns_of(grown)


def test_torch_s_other_kernels_for_the_weights_of_tall_norms_are_faster_and_priced_so() -> None:
    few, many = (ns_of(rows("native_layer_norm_backward", "bfloat16")(count, 64)) for count in (2**16, 98_304))
    assert (few, many) == (pytest.approx(360_000, rel=0.1), pytest.approx(207_000, rel=0.05))


# ---- Between powers of two ------------------------------------------------------------------------------------------


def sized(size: int) -> Work:
    """1 us for each unit of its size, were it ideal."""
    return Work("toy", (log2(size),), 0, "", 1000 * (size - 1), num_sizes=1)


def time_ns(size: int, times: tuple[float, ...] = ()) -> float:
    # Measured: 1 at 1 us, 2 at 8 us, 4 at 4 us, and 8 at 32 us.
    table = Table((((0.0,), 1.0), ((1.0,), 4.0), ((2.0,), 1.0), ((3.0,), 4.0)), times)
    work = resizable(sized, (size,), (3,))
    assert work.family is not None
    return rising_ns(work, work.family, table, dataclasses.replace(SIMPLE_GPU, l2_bytes=2**40))


def test_what_takes_longer_than_something_larger_takes_as_long_as_that() -> None:
    assert [time_ns(size) for size in (1, 2, 4, 8)] == pytest.approx([1000, 4000, 4000, 32_000])


def test_between_powers_of_two_the_time_goes_with_a_power_of_the_size() -> None:
    assert time_ns(3) == pytest.approx(4000)
    assert time_ns(6) == pytest.approx(4000 * 8 ** log2(6 / 4))


def test_what_was_measured_bounds_what_lies_between() -> None:
    # 5 lies between 4, which took 4 us, and 8, which took 5: the table alone says more.
    assert time_ns(5, (1000.0, 2000.0, 4000.0, 5000.0)) == 5000
