"""Steps that cannot be traced, and what their users are told."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainfit import Step, assume_size
from trainfit.errors import BadStep, TraceError
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Trace
from trainfit.trace import trace_step

H200 = find_gpu("h200")


def trace(model: Any, **options: Any) -> Trace:
    options = {"loss": torch.Tensor.sum, "optimizer": torch.optim.SGD} | options
    return trace_step(Step(model=model, batch=(x(12, 8),), **options), H200)


def x(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def failing(error: BaseException) -> Any:
    def loss(output: Any) -> torch.Tensor:
        raise error

    return loss


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": None}, r"tensor of shape \(4, 8\), not a scalar"),
        ({"loss": lambda out: out.sum().detach()}, "needs no gradient"),
        ({"loss": lambda out: 3}, "Step.loss returned a int"),
        ({"optimizer": lambda p: None}, "Step.optimizer returned a NoneType"),
        ({"model": nn.Linear(8, 8).requires_grad_(False)}, "no parameter that requires a gradient"),
        ({"model": lambda: 3}, "built a int"),
        ({"batch": [1, 2]}, "Step.batch is a list"),
        ({"model": "llama"}, "Step.model is a str"),
        ({"model": nn.LazyLinear(8)}, "weight of LazyLinear has no shape yet"),
        ({"model": lambda: nn.Sequential(nn.LazyLinear(8))}, "0.weight of Sequential has no shape yet"),
        ({"optimizer": torch.optim.AdamW(nn.Linear(8, 8).parameters())}, "Step.optimizer is a AdamW"),
        ({"loss": 3.0}, "Step.loss is a float"),
        ({"autocast": "bf16"}, "Step.autocast is 'bf16'"),
        ({"autocast": torch.float32}, r"Step.autocast is torch.float32"),
        ({"micro_batches": 0}, "Step.micro_batches is 0"),
        ({"micro_batches": 1.5}, "Step.micro_batches is 1.5"),
    ],
)
def test_a_step_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"model": nn.Linear(8, 8), "batch": (x(4, 8),), "loss": torch.Tensor.sum} | options
    step = Step(**arguments)
    with pytest.raises(BadStep, match=message):
        trace_step(step, H200)
    assert not torch.is_autocast_enabled("cuda")


def test_of_an_error_with_several_lines_the_first_that_says_something_is_shown() -> None:
    with pytest.raises(TraceError, match="forward failed on the ghost GPU: ImportError: timm is needed") as error:
        trace(nn.Linear(8, 8), loss=failing(ImportError("\n  timm is needed\nand much more")))
    assert "much more" not in str(error.value)


def test_a_model_that_exits_is_an_error_and_not_our_exit_code() -> None:
    with pytest.raises(TraceError, match="forward failed on the ghost GPU: SystemExit: 3"):
        trace(nn.Linear(8, 8), loss=failing(SystemExit(3)))


def test_an_error_of_the_model_says_where_it_happened() -> None:
    with pytest.raises(TraceError, match="forward failed on the ghost GPU: KeyError: 'gone'"):
        trace(nn.Linear(8, 8), loss=failing(KeyError("gone")))


class Routed(nn.Module):
    """Rows go to the experts in groups whose sizes depend on data."""

    def __init__(self, rows_each: int | None = None) -> None:
        super().__init__()
        self.router, self.rows_each = nn.Linear(8, 4), rows_each
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        counts = self.router(value).argmax(-1).bincount(minlength=4)
        with assume_size(self.rows_each) if self.rows_each else contextlib.nullcontext():
            sizes = counts.tolist()
        groups = value.split(sizes)
        return torch.cat([expert(group) for expert, group in zip(self.experts, groups, strict=True)])


def test_sizes_that_were_guessed_wrong_are_traced_to_the_line_that_read_them() -> None:
    with pytest.raises(TraceError, match="split_with_sizes expects split_sizes to sum exactly to 12") as error:
        trace(Routed())
    assert re.search(r"test_trace_errors\.py:\d+ `sizes = counts\.tolist\(\)` read numbers", error.value.hint)
    assert "assume_size" in error.value.hint


def test_sizes_that_were_stated_are_those_of_the_trace() -> None:
    products = [op for op in trace(Routed(rows_each=3)).ops if op.name == "aten.addmm.default"]
    assert [op.outputs[0].shape for op in products] == [(12, 4), *[(3, 8)] * 4]


def test_an_error_that_no_guess_can_have_caused_has_the_usual_hint() -> None:
    with pytest.raises(TraceError) as error:
        trace(nn.Linear(8, 8), loss=failing(KeyError("gone")))
    assert error.value.hint.startswith("run the step on the CPU")


def test_a_target_left_on_the_cpu_is_an_error_as_on_a_gpu() -> None:
    target = torch.ones(12, 8)
    with pytest.raises(TraceError, match="same device"):
        trace(nn.Linear(8, 8), loss=lambda out: F.mse_loss(out, target))


def test_an_optimizer_without_parameters_is_an_error_that_names_the_optimizer() -> None:
    with pytest.raises(TraceError, match=r"making the optimizer failed .*empty parameter list"):
        trace(nn.Linear(8, 8), optimizer=lambda parameters: torch.optim.SGD([], lr=0.1))
