"""What long work tells about itself, to whom, and where it is shown."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainfit
from trainfit.progress import bar, listening, part_of, tell

Told = list[tuple[str, int, int]]


class Stack(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x.sum()


def told_by(work: object) -> Told:
    told: Told = []
    with listening(lambda *what: told.append(what)):
        work()  # type: ignore[operator]
    return told


def step_of(model: nn.Module) -> trainfit.Step:
    return trainfit.Step(model=model, batch=(torch.ones(4096, 8, requires_grad=True),))


def test_nothing_happens_when_nobody_listens() -> None:
    tell("tracing layer", 1, 2)
    with part_of("plan 1"):
        tell("tracing layer", 2, 2)


def test_a_listener_hears_what_is_told_until_it_stops_listening() -> None:
    told = told_by(lambda: (tell("solving"), tell("calibrating", 31, 400)))
    tell("after")
    assert told == [("solving", 0, 0), ("calibrating", 31, 400)]


def test_the_inner_listener_hears_and_the_outer_one_hears_again_after_an_error() -> None:
    def work() -> None:
        with contextlib.suppress(KeyError), listening(lambda *what: None):
            tell("inside")
            raise KeyError
        tell("outside")

    assert told_by(work) == [("outside", 0, 0)]


def test_a_part_says_what_it_is_part_of() -> None:
    def work() -> None:
        with part_of("plan 2"):
            tell("tracing layer", 12, 80)

    assert told_by(work) == [("plan 2: tracing layer", 12, 80)]


def test_an_estimate_tells_of_each_layer_once() -> None:
    told = told_by(lambda: trainfit.estimate(step_of(Stack())))
    layers = [("tracing layer", number, 3) for number in (1, 2, 3)]
    assert told == [
        ("building the model", 0, 0),
        *layers,
        ("tracing backward", 0, 0),
        ("tracing the optimizer", 0, 0),
    ]


def test_layers_that_are_recomputed_are_told_of_again_by_their_own_numbers() -> None:
    told = told_by(lambda: trainfit.estimate(step_of(Stack(checkpointed=True))))
    assert [done for doing, done, _ in told if doing == "tracing layer"] == [1, 2, 3, 3, 2, 1]


def test_a_plan_tells_when_it_solves_and_which_plan_it_tries() -> None:
    told = told_by(lambda: trainfit.plan(step_of(Stack()), budget="min", memory="allocated"))
    doing = [what for what, _, _ in told]
    assert doing.index("tracing the optimizer") < doing.index("solving") < doing.index("plan 1: building the model")
    assert ("plan 1: tracing layer", 3, 3) in told


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_what_is_done_and_how_much_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with bar("[b] on a ghost h200"):
        tell("tracing layer", 12, 80)
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "[b] on a ghost h200: tracing layer 12/80" in shown
    assert shown.endswith("\x1b[2K")  # the line is gone when the work is done


def test_where_there_is_no_terminal_nothing_is_shown_and_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    heard: Told = []
    with listening(lambda *what: heard.append(what)), bar("gpt2"):
        tell("tracing layer", 12, 80)
    assert stderr.getvalue() == ""
    assert heard == [("tracing layer", 12, 80)]
