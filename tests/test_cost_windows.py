"""Images taken apart into windows and put together again: threads, and what each of them looks at."""

from __future__ import annotations

import pytest

from priced_ops import op
from trainfit.cost.classify import hidden_ops, works
from trainfit.cost.work import Work


def together(
    out: str, window: tuple[int, int], stride: tuple[int, int] = (1, 1), spread: int = 1, pieces: str = "8,36,100"
) -> Work:
    args = [f"float32[{pieces}]", [10, 10], [*window], [spread] * 2, [1, 1], [*stride]]
    return works(op("aten.col2im.default", args, [f"float32[{out}]"]), 132)[0]


def apart(images: int, margin: int) -> Work:
    # 16 channels of 64 x 64 pixels; windows of 4 x 4 side by side: 16 x 16 of them, 17 x 17 with margins of 2.
    side = 16 if margin == 0 else 17
    image, out = f"float32[{images},16,64,64]", f"float32[{images},256,{side * side}]"
    return works(op("aten.im2col.default", [image, [4, 4], [1, 1], [margin] * 2, [4, 4]], [out]), 132)[0]


def test_a_place_takes_as_long_as_the_windows_that_cover_it() -> None:
    # 2^20 places: 100 bytes of time for each, and 40 for each window but the first of the 9 that cover it.
    covered = together("8,128,32,32", (3, 3))
    assert (covered.rule, covered.coordinates[0]) == ("col2im", 20.0)
    assert covered.nbytes == 2**20 * (100 + 40 * 8)
    # Side by side, there is one. A step of 2: 1.5 on average along columns, and 2 along rows, where one waits for all.
    assert together("8,128,32,32", (2, 2), (2, 2)).nbytes == 2**20 * 100
    assert together("8,128,32,32", (3, 3), (2, 2)).nbytes == 2**20 * (100 + 40 * 2)
    # Spread windows are looked at though nothing of them lies there: 3 x 3 with gaps of one reach over 5 x 5.
    assert together("8,128,32,32", (3, 3), spread=2).nbytes == 2**20 * (100 + 40 * 24)


def test_few_places_take_as_long_as_those_that_keep_the_gpu_busy() -> None:
    few, busy = together("1,1,10,10", (3, 3)), together("1,1,264,256", (3, 3))
    assert few.nbytes == busy.nbytes == 132 * 512 * (100 + 40 * 8)


def test_where_windows_are_many_their_bytes_count() -> None:
    assert together("1,1,10,10", (1, 1), pieces="64,4096,1024").nbytes == 4 * (2**28 + 100)


def test_every_image_is_taken_apart_by_a_kernel_and_copied_first_where_it_has_margins() -> None:
    one = apart(images=3, margin=0)
    assert (one.rule, one.kernels, one.coordinates[1:]) == ("im2col", 3, (12.0, 4.0))
    assert one.nbytes == 3 * 132 * 512 * (34 + 9 * 16)  # 16 x 256 threads are fewer than keep the GPU busy
    wide = apart(images=3, margin=2)
    assert (wide.kernels, wide.nbytes - one.nbytes) == (4, 2 * 3 * 4 * 16 * 64 * 64)


@pytest.mark.parametrize(("layout", "copies"), [("", 0), ("{65536,1,1024,16}", 1)])
def test_images_whose_channels_come_last_are_copied_before_they_are_taken_apart(layout: str, copies: int) -> None:
    args = [f"float32[2,16,64,64]{layout}", [4, 4], [1, 1], [0, 0], [4, 4]]
    layer = op("aten.im2col.default", args, ["float32[2,256,256]"])
    assert [one.name for one in hidden_ops(layer)] == ["aten.clone.default"] * copies
