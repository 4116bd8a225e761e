"""After a ghost GPU torch is as it was: the names of all its modules, its kernels and modes, its random state."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainfit
from trainfit import ghost_gpu
from trainfit.errors import TraceError

KEYS = ("CUDA", "AutogradCUDA", "AutocastCUDA", "AutogradCPU", "AutogradMeta")
OVERRIDDEN = (
    "aten::dropout",
    "aten::scaled_dot_product_attention",
    "aten::silu_backward",
    "aten::linear",
    "aten::to.dtype",
)


class Model(nn.Module):
    """A little of everything that the ghost reroutes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2)
        x = checkpoint(self.layer, self.rnn(x)[0], use_reentrant=False)
        return F.rms_norm(F.silu(x), (8,)).float().sum()


def train(fail_in: str = "") -> None:
    """A step with autocast, scaler and optimizer on the GPU that is there; with an error in one of its parts."""

    def fail(*ignored: Any) -> None:
        raise ZeroDivisionError

    torch.cuda.manual_seed_all(3)
    with torch.random.fork_rng(devices=()):  # weights are drawn on the host
        model = Model().to("cuda")
    if fail_in == "recomputation":
        calls = iter((None, fail))  # the second call of the layer is that in backward
        model.layer.register_forward_pre_hook(lambda *args: (next(calls) or (lambda: None))())
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
    if fail_in == "optimizer":
        optimizer.register_step_pre_hook(fail)
    with torch.cuda.stream(torch.cuda.Stream()), torch.autocast("cuda", torch.bfloat16):
        loss = model(torch.randn(2, 4, 8, device="cuda"))
        if fail_in == "forward":
            fail()
    if fail_in == "backward":
        model.conv.weight.register_hook(fail)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)


def names_of_torch() -> dict[str, int]:
    """What every name of every loaded module of torch, and of its most used classes, is bound to."""
    owners: dict[str, Any] = {
        name: module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "torch" and module is not None
    }
    owners |= {f"class {cls.__name__}": cls for cls in (torch.Tensor, torch.UntypedStorage, nn.Module, nn.Parameter)}
    return {
        f"{owner}.{name}": id(value)
        for owner, holder in owners.items()
        for name, value in list(vars(holder).items())
        if not name.startswith("__") and type(value) not in (bool, int, float)
    }


def state_of_torch() -> dict[str, Any]:
    return {
        "kernels": {key: torch._C._dispatch_get_registrations_for_dispatch_key(key) for key in KEYS},
        "tables": [torch._C._dispatch_dump(name) for name in OVERRIDDEN],
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "autocast": (
            torch.is_autocast_enabled("cuda"),
            torch.get_autocast_dtype("cuda"),
            torch.is_autocast_enabled("cpu"),
        ),
        "defaults": (torch.get_default_device(), torch.get_default_dtype(), torch.is_grad_enabled()),
        "random": torch.get_rng_state().tolist(),
        "cuda": (torch.cuda.is_available(), torch.cuda.is_initialized(), torch.cuda.device_count()),
    }


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported() -> None:
    """What torch imports or fills in when it is used for the first time is no trace of the ghost."""
    with ghost_gpu("h200"):
        train()


@pytest.fixture
def torch_is_as_it_was() -> Iterator[None]:
    names, state = names_of_torch(), state_of_torch()
    x = torch.arange(32.0).reshape(2, 2, 8)
    layer = nn.LSTM(8, 8)
    expected = layer(x)[0]
    torch.set_rng_state(torch.tensor(state["random"], dtype=torch.uint8))
    yield
    assert state_of_torch() == state
    after = names_of_torch()
    assert {name for name in names if after.get(name) != names[name]} == set()
    assert torch.equal(layer(x)[0], expected)


@pytest.mark.usefixtures("torch_is_as_it_was")
def test_after_a_step() -> None:
    with ghost_gpu("h200"):
        train()


@pytest.mark.usefixtures("torch_is_as_it_was")
@pytest.mark.parametrize("part", ["forward", "recomputation", "backward", "optimizer"])
def test_after_an_error(part: str) -> None:
    with pytest.raises(ZeroDivisionError), ghost_gpu("h200"):
        train(fail_in=part)


@pytest.mark.usefixtures("torch_is_as_it_was")
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_after_an_interruption(interruption: type[BaseException]) -> None:
    with pytest.raises(interruption), ghost_gpu("h200"):
        raise interruption


@pytest.mark.usefixtures("torch_is_as_it_was")
def test_after_nesting_and_after_an_error_of_the_inner_one() -> None:
    with ghost_gpu("h200"):
        with pytest.raises(ZeroDivisionError), ghost_gpu("a100-80gb"):
            train(fail_in="backward")
        with ghost_gpu("a100-80gb"):
            assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.get_device_capability() == (9, 0)
        train()


@pytest.mark.usefixtures("torch_is_as_it_was")
def test_after_going_in_again_and_again() -> None:
    for gpu in ("h200", "t4", "h200"):
        with ghost_gpu(gpu):
            train()


@pytest.mark.usefixtures("torch_is_as_it_was")
def test_after_an_error_in_a_thread() -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            with ghost_gpu("h200"):
                train(fail_in="backward")
        except ZeroDivisionError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(caught) == 1


def failing_loss(output: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError


@pytest.mark.usefixtures("torch_is_as_it_was")
@pytest.mark.parametrize("loss", [None, failing_loss], ids=["estimated", "failed"])
def test_after_an_estimate(loss: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
    with torch.device("meta"):
        step = trainfit.Step(model=Model(), batch=(torch.empty(2, 4, 8),), loss=loss, autocast=torch.bfloat16)
    if loss is None:
        assert trainfit.estimate(step).num_parameters == sum(p.numel() for p in step.model.parameters())  # type: ignore[union-attr]
    else:
        with pytest.raises(TraceError, match="ZeroDivisionError"):
            trainfit.estimate(step)


def test_the_check_sees_a_name_that_was_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = names_of_torch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    after = names_of_torch()
    assert {name for name in before if after[name] != before[name]} == {"torch.cuda.is_available"}
