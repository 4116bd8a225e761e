"""torchtitan's activation checkpointing by a plan: built from a config, applied where torchtitan applies its own.

Without torchtitan a stand-in of the same shape takes its place: a `Config` nested in a policy, whose `build` makes the
policy from the config and what it is given besides.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import trainfit
from trainfit.errors import BadPlan


class StandIn:
    """As torchtitan 0.3's ActivationCheckpointing."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        _owner: ClassVar[Any] = None
        preserve_rng_state: bool = True

        def build(self, **given: Any) -> Any:
            return self._owner(config=self, **given)

    def __init_subclass__(cls) -> None:
        cls.Config._owner = cls

    def __init__(self, config: Any, dump_folder: str = "") -> None:
        self.config, self.dump_folder = config, dump_folder


@pytest.fixture
def plan_ac(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if importlib.util.find_spec("torchtitan") is None:
        module = ModuleType("torchtitan.distributed.activation_checkpoint")
        module.ActivationCheckpointing = StandIn  # type: ignore[attr-defined]
        for name in ("torchtitan", "torchtitan.distributed"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    from trainfit.torchtitan import PlanAC

    yield PlanAC
    sys.modules.pop("trainfit.torchtitan", None)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)).exp())


class Decoder(nn.Module):
    """Its layers are in a dict with numbers as keys, as torchtitan's are."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(index): Block() for index in range(layers)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x.square().mean()


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    step = trainfit.Step(model=Decoder, batch=(torch.ones(4096, 64),))
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    trainfit.plan(step, "h200", budget="min", memory="allocated").save(path)
    return path


def test_the_config_builds_a_policy_that_applies_the_plan(plan_ac: Any, plan_file: Path) -> None:
    policy = plan_ac.Config(plan=str(plan_file)).build(dump_folder="outputs")
    model = Decoder()
    policy.apply(model)
    decided = list(trainfit.Plan.load(plan_file).block_decisions())
    assert [stats.name for stats in policy.handle.stats()] == decided
    assert decided[0] == "layers.0"
    assert list(model.layers) == ["0", "1", "2"]
    assert all(isinstance(layer, Block) for layer in model.layers.values())


def test_a_plan_for_another_model_is_refused(plan_ac: Any, plan_file: Path) -> None:
    policy = plan_ac.Config(plan=str(plan_file)).build(dump_folder="outputs")
    with pytest.raises(BadPlan, match="another model"):
        policy.apply(Decoder(layers=4))
