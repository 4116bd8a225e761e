"""More work never takes less time: more bytes, larger steps, slower GPUs; and where it does."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import cache
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from priced_ops import H200, SIMPLE_GPU, mm, ns_of, op, profile_of
from trainfit._time_estimate import TimeEstimate, time_step
from trainfit.cost import Pricing, price_ops, price_with, pricing_for
from trainfit.cost.classify import works
from trainfit.cost.interpolate import Table
from trainfit.cost.lines import Lines
from trainfit.cost.reduce import never_falling
from trainfit.cost.work import streaming_ns
from trainfit.gpus.catalogue import GPUS, Gpu, find_gpu
from trainfit.records import Op
from trainfit.step import Step
from trainfit.targets import resolve
from trainfit.trace import trace_step

BY_BYTES: dict[str, tuple[list[object], list[str]]] = {
    "aten.add.Tensor": (["2*T[{0},{1}]"], ["T[{0},{1}]"]),
    "aten.add_.Tensor": (["T[{0},{1}]", "T[{1}]"], ["T[{0},{1}]"]),
    "aten.mul.Tensor": (["T[{0},{1}]", "T[{0},1]"], ["T[{0},{1}]"]),
    "aten.gelu.default": (["T[{0},{1}]"], ["T[{0},{1}]"]),
    "aten.silu_backward.default": (["2*T[{0},{1}]"], ["T[{0},{1}]"]),
    "aten.native_dropout.default": (["T[{0},{1}]", 0.1, True], ["T[{0},{1}]", "bool[{0},{1}]"]),
    "aten._to_copy.default": (["T[{0},{1}]"], ["float32[{0},{1}]"]),
    "aten.clone.default": (["T[{0},{1}]{{1,{0}}}"], ["T[{0},{1}]"]),
    "aten.copy_.default": (["2*T[{0},{1}]"], ["T[{0},{1}]"]),
    "aten.zeros_like.default": (["T[{0},{1}]"], ["T[{0},{1}]"]),
    "aten.embedding.default": (["T[50000,{1}]", "int64[{0}]"], ["T[{0},{1}]"]),
    "aten.slice_backward.default": (["T[{0},{1}]", ["{0}0", "{1}"], 0, 0, 9, 1], ["T[{0}0,{1}]"]),
    "aten.constant_pad_nd.default": (["T[{0},{1}]", [0, 1]], ["T[{0},{1}]"]),
    "mylib.unknown.default": (["T[{0},{1}]"], ["T[{0},{1}]"]),
}
"""Ops that are larger by their bytes alone, on a matrix of type T."""


def rows_of(name: str, rows: int, columns: int, dtype: str = "bfloat16") -> Op:
    """Such an op on so many rows and columns."""

    def filled(value: object) -> object:
        if isinstance(value, list):
            return [filled(item) for item in value]
        return value.replace("T[", f"{dtype}[").format(rows, columns) if isinstance(value, str) else value

    args, outputs = BY_BYTES[name]
    return op(name, [filled(arg) for arg in args], [filled(out) for out in outputs])


SIZES = st.floats(0, 15).map(lambda doublings: round(2**doublings))
SHARE = st.floats(0.2, 1.0)


RATES = ("bf16_tflops", "fp16_tflops", "tf32_tflops", "fp32_tflops", "fp8_tflops")


def slowed(gpu: Gpu, processors: float, processor: float, bandwidth: float, cache: float) -> Gpu:
    """A GPU of fewer and slower processors, slower memory and a smaller cache."""
    num_sms = max(1, round(gpu.num_sms * processors))
    share = num_sms / gpu.num_sms * processor
    rates = {name: rate * share for name in RATES if (rate := getattr(gpu, name)) is not None}
    return dataclasses.replace(
        gpu,
        name=f"slower {gpu.name}",
        num_sms=num_sms,
        dram_gb_per_s=gpu.dram_gb_per_s * bandwidth,
        l2_bytes=max(1, round(gpu.l2_bytes * cache)),
        **rates,
    )


@cache
def preset_ops() -> list[Op]:
    """What presets run: products, attention, convolutions, norms, softmax, reductions, lookups, updates."""
    sizes: tuple[tuple[str, int | None], ...] = (("llama3-1b", 512), ("bert-large", 100), ("resnet50", None))
    traces = [trace_step(resolve(preset, batch=2, seq=seq), H200) for preset, seq in sizes]
    return list({(an_op.name, str(an_op.args)): an_op for trace in traces for an_op in trace.ops}.values())


def priced(ops: Sequence[Op], gpu: Gpu) -> list[int]:
    return [cost.time_ns for cost in price_with(ops, pricing_for(gpu))]


@given(SHARE, SHARE, SHARE, SHARE, SHARE, SHARE, SHARE, SHARE, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=25)
def test_no_op_is_faster_on_a_gpu_that_is_slower_in_every_respect(
    processors: float, processor: float, bandwidth: float, cache_size: float,
    fewer: float, slower: float, narrower: float, smaller: float, random: Random,
) -> None:  # fmt: skip
    ops = random.sample(preset_ops(), 30)
    first = slowed(H200, processors, processor, bandwidth, cache_size)
    second = slowed(first, fewer, slower, narrower, smaller)
    on_gpus = [priced(ops, gpu) for gpu in (H200, first, second)]
    assert all(fast <= slow for pair in itertools.pairwise(on_gpus) for fast, slow in zip(*pair, strict=True))


def is_no_faster(gpu: Gpu, than: Gpu) -> bool:
    """In every rate, processors, rates of one processor, cache."""

    def sizes(of: Gpu) -> list[float]:
        rates = [getattr(of, name) or 0.0 for name in RATES]
        return [of.num_sms, of.dram_gb_per_s, of.l2_bytes, *rates, *(rate / of.num_sms for rate in rates)]

    return gpu is not than and all(own <= other for own, other in zip(sizes(gpu), sizes(than), strict=True))


def test_no_op_is_faster_on_a_gpu_of_the_catalogue_that_is_slower_in_every_respect() -> None:
    pairs = [(gpu, slow) for gpu in GPUS for slow in GPUS if is_no_faster(slow, than=gpu)]
    names = {(gpu.name, slow.name) for gpu, slow in pairs}
    assert {("h200", "h100-80gb"), ("h100-80gb", "h100-pcie"), ("a100-80gb", "a100-40gb")} <= names
    times_ns = {gpu.name: priced(preset_ops()[::3], gpu) for gpu in GPUS}
    assert all(
        fast <= slow
        for gpu, slower in pairs
        for fast, slow in zip(times_ns[gpu.name], times_ns[slower.name], strict=True)
    )


def test_a_product_takes_the_waves_that_the_gpu_s_own_processors_need() -> None:
    # 150 tiles of 128 x 256: two waves of the reference's 132 processors, one of 150, three of 66.
    profile = dataclasses.replace(profile_of({"mm bfloat16 nn": [((0.0,) * 5, 1.0)]}), gpu=SIMPLE_GPU)
    product = mm(128 * 150, 256, 1024)
    # One tile on each of 132 processors, which do 1000 in a ns together, as if it were 128 deeper, to begin and end it.
    wave_ns = 2 * 128 * 256 * (1024 + 128) * 132 / 1000

    def time_ns(num_sms: int) -> int:
        gpu = dataclasses.replace(SIMPLE_GPU, name="other", num_sms=num_sms, bf16_tflops=num_sms / 132)
        return price_with([product], Pricing(dataclasses.replace(gpu, dram_gb_per_s=1e6), profile, False))[0].time_ns

    begun_ns = 1000 + 3 * 700  # 600 tiles of 128 x 64, 264 at a time
    assert time_ns(150) == round(begun_ns + wave_ns * 150 / 132 / 2)
    assert time_ns(66) == round(begun_ns + wave_ns * 150 / 132 * 3 / 2)


@given(
    st.sampled_from(sorted(BY_BYTES)), SIZES, SIZES, st.integers(1, 3000), st.sampled_from(["bfloat16", "float32"]),
    st.sampled_from(["h200", "h100-80gb", "a100-80gb", "l4"]),
)  # fmt: skip
@settings(deadline=None, max_examples=250)
def test_more_rows_of_what_is_larger_by_its_bytes_never_take_less_time(
    name: str, rows: int, columns: int, more: int, dtype: str, gpu: str
) -> None:
    few, many = (rows_of(name, count, columns, dtype) for count in (rows + 1, rows + 1 + more))
    assert [work.rule for work in works(few, 132)] == [work.rule for work in works(many, 132)]
    assert ns_of(few, find_gpu(gpu)) <= ns_of(many, find_gpu(gpu))


# 2 us at 2^10 bytes, 4 us at 2^12 (of one byte per element); 8 us at 2^12 of two.
LINES = Lines.of([(10.0, 0.0, 2000), (12.0, 0.0, 4000), (12.0, 1.0, 8000)], SIMPLE_GPU)


def test_a_line_gives_what_was_measured_and_follows_the_ideal_elsewhere() -> None:
    def time_ns(size: float) -> float:
        return LINES.ratio((size, 0.0)) * (1000 + 2**size)

    assert time_ns(10.0) == pytest.approx(2000, rel=1e-4)
    assert time_ns(12.0) == pytest.approx(4000, rel=1e-4)
    assert time_ns(14.0) == pytest.approx(4000 * (1000 + 2**14) / (1000 + 2**12), rel=1e-4)
    assert time_ns(8.0) == pytest.approx(2000 * (1000 + 2**8) / (1000 + 2**10), rel=1e-4)
    # The ideal is 2024 and 5096; half way between the ratios 2000 / 2024 and 4000 / 5096 it is 3048.
    assert time_ns(11.0) == pytest.approx(3048 * (2000 / 2024 * 4000 / 5096) ** 0.5, rel=1e-4)


def test_between_lines_the_nearer_one_counts_more_and_the_one_of_more_points() -> None:
    ideal_ns = 1000 + 2**12
    assert LINES.ratio((12.0, 0.5)) * ideal_ns == pytest.approx(4000 * 2 ** (1 / 3), rel=1e-4)  # two points to one
    assert LINES.ratio((12.0, 1.0)) * ideal_ns == pytest.approx(8000, rel=1e-3)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.integers(1, 10**6)), min_size=1, max_size=12),
    st.floats(0, 34), st.floats(0, 4), st.floats(0, 3),
)  # fmt: skip
@settings(deadline=None)
def test_along_lines_through_any_points_that_rise_more_bytes_never_take_less_time(
    points: list[tuple[int, int, int]], size: float, more: float, other: float
) -> None:
    rows = {(size, other): time_ns for size, other, time_ns in points}
    risen = []
    for line in range(3):
        sizes = sorted(size for size, other in rows if other == line)
        times = never_falling([rows[size, line] for size in sizes])
        risen += [(float(size), float(line), time_ns) for size, time_ns in zip(sizes, times, strict=True)]
    lines = Lines.of(risen, SIMPLE_GPU)
    small_ns, large_ns = (lines.ratio((at, other)) * streaming_ns(2**at, SIMPLE_GPU) for at in (size, size + more))
    assert small_ns <= large_ns * (1 + 1e-9)


def test_a_larger_sum_that_more_threads_share_may_take_less_time() -> None:
    # Of 65536 rows the H200 adds up 256 columns in 70.6 us, and 768, of which fewer blocks share one, in 62.
    def rows(count: int, columns: int) -> int:
        return ns_of(op("aten.sum.dim_IntList", [f"bfloat16[{count},{columns}]", [0]], [f"bfloat16[{columns}]"]))

    assert rows(65536, 256) == pytest.approx(70_600, rel=0.05)
    assert rows(65536, 768) == pytest.approx(62_000, rel=0.05)


@given(SIZES, SIZES, st.integers(0, 3000), st.integers(0, 3000), st.sampled_from(["bfloat16", "float32"]))
@settings(deadline=None, max_examples=100)
def test_a_larger_gradient_of_an_embedding_never_takes_less_time(
    tokens: int, width: int, more_tokens: int, more_width: int, dtype: str
) -> None:
    def backward(tokens: int, width: int) -> Op:
        args: list[object] = [f"{dtype}[{tokens},{width}]", f"int64[{tokens}]", 50_000, -1, False]
        return op("aten.embedding_dense_backward.default", args, [f"{dtype}[50000,{width}]"])

    assert ns_of(backward(tokens, width)) <= ns_of(backward(tokens + more_tokens, width + more_width))


def test_a_time_lies_between_those_of_what_is_smaller_and_what_is_larger_in_every_size() -> None:
    points = (((2.0, 2.0, 0.0), 1.0), ((4.0, 4.0, 0.0), 1.0), ((2.0, 6.0, 0.0), 1.0), ((3.0, 3.0, 5.0), 1.0))
    table = Table(points, (100.0, 300.0, 200.0, 999.0))

    def bounded(first: float, second: float, time_ns: float, num_alike: int = 1) -> float:
        return table.bounded((first, second, 0.0), time_ns, 2, num_alike)

    assert bounded(3.0, 3.0, 50.0) == 100.0
    assert bounded(3.0, 3.0, 250.0) == 250.0
    assert bounded(3.0, 3.0, 999.0) == 300.0
    assert bounded(1.0, 1.0, 999.0) == 100.0  # nothing is smaller, and the smallest of all is larger
    assert bounded(9.0, 9.0, 250.0) == 300.0  # all are smaller
    assert bounded(3.0, 3.0, 400.0, num_alike=0) == 400.0  # what is not alike counts too, and contradicts the second
    assert Table(points).bounded((3.0, 3.0, 0.0), 50.0, 2, 1) == 50.0


def test_an_op_that_was_measured_to_be_faster_than_a_smaller_one_is_priced_so() -> None:
    # The backward pass of wav2vec2's position convolution over 3 sequences of 499 takes the H200 41.0 ms, and
    # over 6 of them 4.4 ms, since cuDNN takes others from 4 on: prices that never fall would be wrong by a factor of 3.
    def backward(batch: int) -> Op:
        weight, rest = "bfloat16[768,48,128]", [[768], [1], [64], [1], False, [0], 16, [True, True, True]]
        args: list[object] = [f"bfloat16[{batch},768,500]", f"bfloat16[{batch},768,499]", weight, *rest]
        return op("aten.convolution_backward.default", args, [f"bfloat16[{batch},768,499]", weight, "bfloat16[768]"])

    three, six = (cost.kernel_ns for cost in price_ops([backward(3), backward(6)], H200))
    assert three == pytest.approx(40_997_000, rel=0.15)
    assert six < three / 8


# ---- Whole steps -----------------------------------------------------------------------------------------------------

GPUS_BY_SPEED = ("h200", "a100-80gb", "l4", "t4")
"""Each slower than the one before in every rate of the catalogue."""


class Block(nn.Module):
    """A text model of one layer, as wide as it is told."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layer(self.embed(tokens))
        return hidden.square().mean()


def wide(width: int) -> Step:
    return Step(model=lambda: Block(width), batch={"tokens": torch.zeros(8, 512, dtype=torch.int64)})


def times(steps: Sequence[Step]) -> list[list[TimeEstimate]]:
    """By step, by GPU."""
    traces = [trace_step(step, H200) for step in steps]
    return [[time_step(trace, pricing_for(find_gpu(name))) for name in GPUS_BY_SPEED] for trace in traces]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([resolve("gpt2", batch=batch, seq=128) for batch in (1, 2, 3, 8)], id="batch"),
        pytest.param([resolve("gpt2", batch=2, seq=seq) for seq in (96, 160, 512, 1024)], id="sequence"),
        pytest.param([wide(width) for width in (256, 384, 512, 1024, 2048)], id="width"),
    ],
)
def test_a_larger_step_is_never_faster_and_a_slower_gpu_never_either(steps: list[Step]) -> None:
    found = times(steps)
    for smaller, larger in itertools.pairwise(found):
        # A step that waits for the CPU pays for kernels, which are counted as in the nearest measurements.
        assert all(one.step_ms <= 1.01 * other.step_ms for one, other in zip(smaller, larger, strict=True))
        assert all(one.gpu_busy_ms < other.gpu_busy_ms for one, other in zip(smaller, larger, strict=True))
    for on_gpus in found:
        assert all(one.step_ms <= slower.step_ms for one, slower in itertools.pairwise(on_gpus))
        assert all(one.gpu_busy_ms < slower.gpu_busy_ms for one, slower in itertools.pairwise(on_gpus))
