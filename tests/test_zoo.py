"""Every architecture of the benchmarks' zoo, shrunk, trains on the ghost GPU, checkpointed too where it can be."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Phase
from trainfit.trace import trace_step

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what transformers says about itself when it is imported
    from zoo import make_step, zoo
    from zoo.images import image_net_cases
    from zoo.second import second_cases
    from zoo.survey import survey_nets
    from zoo.survey.fourth import fourth_nets
    from zoo.survey.further import further_nets
    from zoo.survey.third import third_nets

    draws = (survey_nets, further_nets, third_nets, fourth_nets)
    nets = itertools.chain(*(part for draw in draws for part in draw(tiny=True)))
    others = [*second_cases(tiny=True), *image_net_cases(tiny=True), *nets]
    CASES = zoo(tiny=True) | {case.name: case for case in others}


@pytest.fixture(autouse=True)
def precision_as_before() -> Iterator[None]:
    """A case sets the precision of products for its whole process."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_the_case_trains_on_the_ghost_gpu(name: str) -> None:
    case: Any = CASES[name]
    trace = trace_step(make_step(case), find_gpu("h200"))
    assert trace.num_parameters > 0
    assert {op.phase for op in trace.ops} >= {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    if case.checkpoint:
        phases = [op.phase for op in trace_step(make_step(case, checkpointed=True), find_gpu("h200")).ops]
        assert phases.count(Phase.RECOMPUTE) > 20
