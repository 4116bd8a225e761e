"""`simulate_blocks`: the blocks behind the numbers of `simulate_memory`, on the same toy steps."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest

from test_simulate_memory import MIB, NOTHING_HIDDEN, TRAINING, Hidden
from trainfit.records import Category
from trainfit.simulate import simulate_blocks, simulate_memory

BOTH_MODES = pytest.mark.parametrize("mode", ["classic", "expandable"])


@BOTH_MODES
def test_blocks_come_and_go_with_the_op_that_made_them(mode: Any) -> None:
    events, _ = simulate_blocks(TRAINING, NOTHING_HIDDEN, mode)
    assert [(e.op, e.maker, e.category.value, e.size_bytes // MIB * (1 if e.is_alloc else -1)) for e in events] == [
        (None, 0, "parameters", 20),
        (None, 3, "optimizer", 40),
        (1, 1, "temporaries", 10),
        (1, 1, "activations", 40),
        (1, 1, "temporaries", -10),
        (2, 2, "gradients", 20),
        (2, 1, "activations", -40),
        (4, 4, "temporaries", 20),
        (4, 4, "temporaries", -20),
        (4, 2, "gradients", -20),  # zero_grad, after the last op
    ]


@BOTH_MODES
def test_their_running_sum_has_the_peak_and_the_segments_are_what_is_reserved(mode: Any) -> None:
    hidden = Hidden(temporaries_by_name={"backward": (30 * MIB,)}, workspaces_by_name={"forward": (("blas", MIB),)})
    events, segments = simulate_blocks(TRAINING, hidden, mode)
    memory = simulate_memory(TRAINING, hidden, mode)
    assert max(accumulate(e.size_bytes * (1 if e.is_alloc else -1) for e in events)) == memory.peak_allocated_bytes
    assert sum(segment.size_bytes for segment in segments) == memory.peak_reserved_bytes
    used = sum(size for segment in segments for _, size, is_used in segment.blocks if is_used)
    assert used == 61 * MIB  # the weight, the moment and the workspace
    assert [e.category for e in events if e.op is None].count(Category.WORKSPACES) == 1


@BOTH_MODES
def test_blocks_tile_their_segment(mode: Any) -> None:
    _, segments = simulate_blocks(TRAINING, NOTHING_HIDDEN, mode)
    for segment in segments:
        assert segment.blocks[0][0] == segment.address
        assert all(address + size == following for (address, size, _), (following, _, _) in pairwise(segment.blocks))
        assert sum(size for _, size, _ in segment.blocks) == segment.size_bytes
