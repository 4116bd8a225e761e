"""What is swept: a grid in, the configurations of it out, in groups that share work.

A grid names, for each axis, the values to try; a configuration has one value of each. Three axes are the sweep's own
(`gpu`, `world_size`, `budget`), all others are arguments of the function that makes the step. Configurations that
differ in the GPU only, where the GPUs have the same kernels, or in the budget, are a family: one trace serves all.
Those of a family on one GPU are a group: one planner serves all.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainfit.errors import UsageError
from trainfit.gpus.catalogue import find_gpu
from trainfit.units import parse_bytes

Scalar = str | int | float | bool | None
Grid = Mapping[str, Sequence[Scalar]]
Arguments = tuple[tuple[str, Scalar], ...]

AUTO = "auto"
_DEFAULTS: dict[str, Sequence[Scalar]] = {"world_size": (None,), "gpu": ("h200",), "budget": (AUTO,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a trace depends on."""

    arguments: Arguments
    world_size: int | None
    kernels: tuple[str, tuple[int, int], int]
    """The GPU's vendor, compute capability and number of multiprocessors: kernels are chosen by these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One point of a grid."""

    arguments: Arguments
    """What the step is made with, in the grid's order: (("batch", 4), ("seq", 2048))."""
    world_size: int | None
    """GPUs that the step is sharded over, 1 for one that is not; None to leave the step as it is made."""
    gpu: str
    budget: str
    """A size, "auto" for what a plan takes by default, "min" for the smallest that works."""

    @property
    def family(self) -> Family:
        gpu = find_gpu(self.gpu)
        kernels = gpu.vendor, gpu.compute_capability, gpu.num_sms
        return Family(arguments=self.arguments, world_size=self.world_size, kernels=kernels)

    def to_json_dict(self) -> dict[str, Scalar]:
        """The configuration by axis."""
        return {**dict(self.arguments), "world_size": self.world_size, "gpu": self.gpu, "budget": self.budget}

    @classmethod
    def from_json_dict(cls, axes: Mapping[str, Any]) -> Configuration:
        """The configuration with these values of all axes."""
        arguments = tuple((name, value) for name, value in axes.items() if name not in _DEFAULTS)
        return cls(
            arguments=arguments, world_size=axes["world_size"], gpu=find_gpu(axes["gpu"]).name, budget=axes["budget"]
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Configurations that differ in the budget only."""

    configurations: tuple[Configuration, ...]

    @property
    def gpu(self) -> str:
        return self.configurations[0].gpu

    @property
    def family(self) -> Family:
        return self.configurations[0].family


def configurations(grid: Grid) -> tuple[Configuration, ...]:
    """Every combination, the last axis fastest: arguments in the grid's order, world_size, gpu, budget."""
    axes = {name: values for name, values in grid.items() if name not in _DEFAULTS}
    axes |= {name: grid.get(name, default) for name, default in _DEFAULTS.items()}
    for name, values in axes.items():
        _check(name, values)
    points = itertools.product(*axes.values())
    found = (Configuration.from_json_dict(dict(zip(axes, point, strict=True))) for point in points)
    return tuple(dict.fromkeys(_checked_budget(each) for each in found))


def groups_of(configurations: Sequence[Configuration]) -> tuple[Group, ...]:
    """The configurations by family and GPU, in the order in which they come."""
    groups: dict[tuple[Family, str], list[Configuration]] = {}
    for each in configurations:
        groups.setdefault((each.family, each.gpu), []).append(each)
    return tuple(Group(tuple(group)) for group in groups.values())


def _check(name: str, values: Sequence[Scalar]) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise UsageError(f"the grid's {name} is {values!r}", hint=f"pass a list of values, as in {name}=[...]")
    for value in values:
        is_size = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if name == "world_size" and not (value is None or is_size):
            raise UsageError(f"the world size {value!r} is no number of GPUs", hint="pass whole numbers from 1")
        if name in ("gpu", "budget") and not isinstance(value, str):
            raise UsageError(f"the grid's {name} has {value!r}", hint="pass text, as on the command line")
        if not isinstance(value, Scalar):
            raise UsageError(
                f"the grid's {name} has a {type(value).__name__}, which cannot be written to a file of results",
                hint="pass numbers and text, and let the function that makes the step turn them into what it needs",
            )


def _checked_budget(configuration: Configuration) -> Configuration:
    if configuration.budget not in (AUTO, "min"):
        parse_bytes(configuration.budget, of_bytes=find_gpu(configuration.gpu).memory_bytes)
    return configuration
