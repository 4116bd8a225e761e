"""Hidden memory of losses: by hand, and at its peak what torch's profiler sees of the same code on the CPU."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch.profiler import profile

import trainfit
from priced_ops import op
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import OUTPUT, Phase
from trainfit.trace import trace_step

H200 = find_gpu("h200")
HIDDEN = hidden_memory(H200, "2.11.0+cu130")
ELEMENTS = 400  # bytes of float32[10,10], which one block of threads adds up
REDUCED, EACH = 1, 0


def temporaries(name: str, *args: Any, outputs: tuple[str, ...] = ("float32[]",)) -> tuple[int, ...]:
    return HIDDEN.temporaries(op(f"aten.{name}.default", args, outputs))


def test_losses_of_elements_come_before_what_they_are_reduced_to() -> None:
    both = ("float32[10,10]", "float32[10,10]")
    assert temporaries("mse_loss", *both) == (ELEMENTS,)
    assert temporaries("smooth_l1_loss", *both, REDUCED, 1.0) == (ELEMENTS,)
    assert temporaries("huber_loss", *both) == (ELEMENTS, OUTPUT)
    assert temporaries("huber_loss", "bfloat16[10,10]", "float32[10]") == (ELEMENTS, OUTPUT)
    assert temporaries("binary_cross_entropy", *both) == (4,)  # the result is as large as all of them
    assert temporaries("soft_margin_loss", *both) == (4,)
    assert temporaries("binary_cross_entropy_with_logits", *both) == (ELEMENTS, ELEMENTS, OUTPUT)


def test_what_is_not_reduced_has_no_losses_beside_the_result() -> None:
    both = ("float32[10,10]", "float32[10,10]")
    for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"):
        assert temporaries(name, *both, EACH) == ()
    assert temporaries("binary_cross_entropy", *both, None, EACH) == ()
    assert temporaries("binary_cross_entropy_with_logits", *both, None, None, EACH) == (ELEMENTS, OUTPUT)


def test_weights_of_positives_are_gone_when_the_losses_come() -> None:
    found = temporaries("binary_cross_entropy_with_logits", "float32[10,10]", "float32[10,10]", None, "float32[10]")
    assert found == (ELEMENTS, 40, ELEMENTS, -40, -ELEMENTS, ELEMENTS, OUTPUT)


def test_a_large_loss_is_added_up_by_several_blocks() -> None:
    """As a mean of as many numbers in a row is."""
    whole = HIDDEN.temporaries(op("aten.mean.default", ["float32[4194304]"], ["float32[]"]))
    losses = temporaries("huber_loss", "float32[2048,2048]", "float32[2048,2048]")
    assert losses == (4 * 2048**2, OUTPUT, *[step for step in whole if step != OUTPUT])


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("mse_loss", (REDUCED,)),
        ("smooth_l1_loss", (REDUCED, 1.0)),
        ("huber_loss", (REDUCED, 1.0)),
        ("soft_margin_loss", (REDUCED,)),
        ("binary_cross_entropy_with_logits", (None, None, REDUCED)),
        ("binary_cross_entropy_with_logits", (None, "float32[10]", REDUCED)),
        ("binary_cross_entropy_with_logits", (None, None, EACH)),
    ],
)
def test_the_peak_is_that_of_the_same_code_on_the_cpu(name: str, rest: tuple[Any, ...]) -> None:
    def real(value: Any) -> Any:
        return torch.rand(10) if isinstance(value, str) else value

    function = getattr(torch.ops.aten, name).default
    args = [torch.rand(10, 10), torch.rand(10, 10), *map(real, rest)]
    steps = temporaries(name, "float32[10,10]", "float32[10,10]", *rest)
    with trainfit.ghost_gpu("h200"):
        ghosts = [arg.cuda() if isinstance(arg, torch.Tensor) else arg for arg in args]
        result_bytes = function(*ghosts).untyped_storage().nbytes()
    assert _peak(steps, result_bytes) == pytest.approx(_cpu_peak(function, args), abs=32)  # numbers that it adds


def _peak(steps: tuple[int, ...], result_bytes: int) -> int:
    sizes = [result_bytes if step == OUTPUT else step for step in steps]
    return max(accumulate(sizes if OUTPUT in steps else [result_bytes, *sizes], initial=0))


def _cpu_peak(function: Any, args: list[Any]) -> int:
    with profile(profile_memory=True, acc_events=True) as profiler:
        function(*args)
    events: Any = profiler.profiler
    sizes: list[int] = []

    def walk(event: Any) -> None:
        if event.name == "[memory]":
            sizes.append(event.extra_fields.alloc_size)
        for child in event.children:
            walk(child)

    for root in events.kineto_results.experimental_event_tree():
        walk(root)
    return max(accumulate(sizes, initial=0))


def test_log_sigmoid_keeps_nothing_beside_its_input_on_a_gpu() -> None:
    """On the CPU, and on meta tensors, a buffer of its size stays for backward."""
    step = trainfit.Step(
        model=lambda: torch.nn.Linear(8, 8),
        batch=(torch.empty(4, 8, device="meta"),),
        optimizer=torch.optim.SGD,
        loss=lambda out: torch.nn.functional.logsigmoid(out).sum(),
    )
    trace = trace_step(step, H200)
    (forward,) = [one for one in trace.ops if one.name == "aten.log_sigmoid_forward.default"]
    assert forward.phase == Phase.FORWARD
    assert [trace.storages[out.storage].nbytes for out in forward.outputs] == [128, 0]


@pytest.mark.parametrize("name", ["binary_cross_entropy", "soft_margin_loss", "mse_loss"])
def test_a_loss_that_is_resized_stays_as_large_as_it_was(name: str) -> None:
    with trainfit.ghost_gpu("h200"):
        x, target = torch.rand(10, 10, device="cuda"), torch.rand(10, 10, device="cuda")
        loss = getattr(torch.nn.functional, name)(x, target)
    assert (loss.shape, loss.untyped_storage().nbytes()) == ((), ELEMENTS)
