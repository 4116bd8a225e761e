"""Under any decision, losses, gradients, buffers and random numbers are those of the unplanned model, bit for bit."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import apply_zoo
from apply_zoo import ZOO, assert_same, holdable, plan, ready, run
from trainfit.records import BlockDecision

BRIEF = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("name", ZOO)
@BRIEF
@given(data=st.data())
def test_gradients_are_bit_identical_whatever_is_kept(name: str, data: st.DataObject) -> None:
    case = ready(name)
    decisions = {}
    for block, program in case.programs.items():
        keep = data.draw(st.lists(st.sampled_from(holdable(program)), unique=True), label=block)
        decisions[block] = BlockDecision(tuple(sorted(keep)))
    model = copy.deepcopy(case.model)
    handle = plan(model, decisions)
    assert_same(case.gradients, run(case.case, model))
    assert [stats.reruns for stats in handle.stats()] == [0, 0]


@pytest.mark.parametrize("name", ZOO)
def test_a_block_that_keeps_nothing_is_replayed_once_per_backward(name: str) -> None:
    case = ready(name)
    model = copy.deepcopy(case.model)
    handle = plan(model, apply_zoo.keep_nothing(case.programs))
    assert_same(case.gradients, run(case.case, model))
    for stats in handle.stats():
        assert stats.dropped_bytes > 0
        assert stats.replays == 1


@pytest.mark.parametrize("name", ZOO)
def test_a_block_that_keeps_everything_replays_nothing(name: str) -> None:
    case = ready(name)
    decisions = {block: BlockDecision(tuple(holdable(program))) for block, program in case.programs.items()}
    model = copy.deepcopy(case.model)
    handle = plan(model, decisions)
    assert_same(case.gradients, run(case.case, model))
    assert [(stats.replays, stats.dropped_bytes) for stats in handle.stats()] == [(0, 0), (0, 0)]
