"""Where the random generators stand: taken as two numbers from a GPU's, put back by them."""

from __future__ import annotations

import pytest
import torch

from trainfit.apply.generators import Nowhere, position
from trainfit.errors import PlanMismatch


class OneGpu:
    """A GPU's generator, as torch.cuda.default_generators has them."""

    def __init__(self) -> None:
        self.seed, self.offset, self.seeded = 7, 12, 0

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset

    def manual_seed(self, seed: int) -> None:
        self.seed, self.offset, self.seeded = seed, 0, self.seeded + 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> OneGpu:
    generator = OneGpu()
    monkeypatch.setattr(torch.cuda, "default_generators", (None, generator))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return generator


def test_a_gpu_goes_back_to_its_offset(gpu: OneGpu) -> None:
    before = position(torch.device("cuda", 1))
    gpu.offset = 40
    before.go_back()
    assert (gpu.seed, gpu.offset, gpu.seeded) == (7, 12, 0)


def test_a_gpu_that_was_seeded_since_goes_back_to_its_seed_too(gpu: OneGpu) -> None:
    before = position(torch.device("cuda", 1))
    gpu.manual_seed(9)
    before.go_back()
    assert (gpu.seed, gpu.offset, gpu.seeded) == (7, 12, 2)


def test_while_a_graph_is_captured_nothing_is_asked_and_going_back_is_refused(
    gpu: OneGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.delattr(OneGpu, "get_offset")
    monkeypatch.delattr(OneGpu, "initial_seed")
    before = position(torch.device("cuda", 1))
    with pytest.raises(PlanMismatch, match="while a CUDA graph is captured"):
        before.go_back()


def test_the_cpu_draws_the_same_again() -> None:
    before = position(torch.device("cpu"))
    drawn = torch.rand(5)
    before.go_back()
    assert torch.equal(torch.rand(5), drawn)


def test_a_gpu_that_is_not_there_stands_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "default_generators", ())
    assert position(torch.device("cuda", 0)) == Nowhere()
