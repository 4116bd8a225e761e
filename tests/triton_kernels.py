"""Kernels for the tests of Triton: importing them needs Triton, launching them a GPU; annotations are its own."""

import triton
import triton.language as tl


@triton.jit
def scale(source, target, factor, count, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    where = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(target + where, tl.load(source + where, mask=where < count) * factor, mask=where < count)


tuned = triton.autotune([triton.Config({"SIZE": 256})], key=["count"])(scale)
