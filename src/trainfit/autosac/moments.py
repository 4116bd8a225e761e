"""The step as the solver sees it: which modules can be checkpointed how, and what that changes at each moment.

In: a `Graph` and the memory at each op. Out: `Unit`s with their `Option`s, and `Moment`s. At a moment a unit's call is
dropped (between its forward and its backward), active (while it runs, forward or backward), or being replayed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from trainfit.autosac.ilp_utils import Graph, is_submodule
from trainfit.autosac.step_memory import CallMemory

MAX_OPTIONS = 24
"""A module with more points on its curve offers these many of them, evenly spread."""


@dataclass(frozen=True, slots=True)
class Option:
    """A module checkpointed in one way."""

    ratio: float  # of the module's memory that is dropped
    time_ms: float  # of recomputation, all calls together
    kept_bytes: int  # results of ops that each call keeps


@dataclass(frozen=True, slots=True)
class Unit:
    """A module that can be checkpointed."""

    fqn: str
    sac_memory: int
    calls: tuple[CallMemory, ...]
    options: tuple[Option, ...]

    @property
    def parent(self) -> str:
        return self.fqn.rpartition(".")[0]

    @property
    def is_item(self) -> bool:
        """Whether it is one of a list or a sequence: these are named by numbers."""
        return self.fqn.rpartition(".")[2].isdigit()

    def sizes(self) -> tuple[object, ...]:
        """What two units must share to be interchangeable."""
        calls = tuple((call.left_bytes, call.held_bytes, call.transient_bytes) for call in self.calls)
        return self.sac_memory, calls, self.options


@dataclass(slots=True)
class Moment:
    """A stretch of the step, and the calls that it finds dropped, active or being replayed, by unit."""

    nbytes: float  # the most that the plain step holds in it
    dropped: dict[int, list[CallMemory]] = field(default_factory=dict)
    active: dict[int, CallMemory] = field(default_factory=dict)
    replayed: dict[int, CallMemory] = field(default_factory=dict)

    def change_bytes(self, number: int, unit: Unit, option: Option) -> int:
        """What the option adds to the plain step; negative where it has dropped more than it holds."""
        change = -sum(dropped_bytes(call, option) for call in self.dropped.get(number, ()))
        for running in (self.active.get(number), self.replayed.get(number)):
            if running is not None:
                change += extra_bytes(unit, running, option)
        if number in self.replayed:
            change += self.replayed[number].transient_bytes
        return change

    def most_extra_bytes(self, units: Sequence[Unit]) -> int:
        """No choice adds more than this."""
        running = sum(units[number].sac_memory for number in (*self.active, *self.replayed))
        return running + sum(call.transient_bytes for call in self.replayed.values())


def dropped_bytes(call: CallMemory, option: Option) -> int:
    """What is missing between the call and its backward: all it left, but for what it keeps and the inputs it holds."""
    return call.left_bytes - option.kept_bytes - call.held_bytes


def extra_bytes(unit: Unit, call: CallMemory, option: Option) -> int:
    """The most that a running call holds of what the plain one lets go."""
    return min(option.kept_bytes, max(0, unit.sac_memory - call.left_bytes))


def make_units(graph: Graph, ac_units: list[str] | None, fsdp_units: list[str] | None) -> list[Unit]:
    """The modules with an option that leaves less than the plain module, in the order of their first forward."""
    units = []
    for node in graph.nodes:
        calls, is_allowed = tuple(node["calls"]), not ac_units or node["fqn"] in ac_units
        if not calls or not is_allowed or any(is_submodule(unit, node["fqn"]) for unit in fsdp_units or ()):
            continue
        options = []
        for ratio, share in node["tradeoff_curve"].items():
            kept_bytes = round((1 - ratio) * node["sac_memory"])
            option = Option(ratio, share * node["sac_runtime"] * len(calls), kept_bytes)
            if all(dropped_bytes(call, option) > 0 for call in calls):
                options.append(option)
        if options:
            step = -(-len(options) // MAX_OPTIONS)
            units.append(Unit(node["fqn"], node["sac_memory"], calls, tuple(options[::-step][::-1])))
    return units


def without_parts(units: Sequence[Unit]) -> list[Unit]:
    """The units that are not inside a layer: an item of a list that has equals there, and no such items inside."""
    lists = Counter((unit.parent, unit.sizes()) for unit in units if unit.is_item)
    repeated = [unit.fqn for unit in units if unit.is_item and lists[unit.parent, unit.sizes()] > 1]
    layers = [fqn for fqn in repeated if not any(is_submodule(other, fqn) for other in repeated)]
    return [unit for unit in units if not any(is_submodule(unit.fqn, layer) for layer in layers)]


def make_moments(memory: np.ndarray, units: Sequence[Unit]) -> list[Moment]:
    """The step cut at every beginning and end of a unit's call: a moment per piece, and one per replay.

    A replay happens between the beginning of the call's backward and the first need of something dropped; what else is
    dropped is what was before that and still is after it.
    """
    edges = {0, len(memory)}
    for unit in units:
        for call in unit.calls:
            edges |= {call.start, call.end, call.backward_start, call.backward_end}
    cuts = sorted(edge for edge in edges if 0 <= edge <= len(memory))
    pieces = [Moment(float(memory[first:last].max())) for first, last in pairwise(cuts)]
    replays = []
    for number, unit in enumerate(units):
        for call in unit.calls:
            start, end, back, done = (
                bisect_left(cuts, edge) for edge in (call.start, call.end, call.backward_start, call.backward_end)
            )
            for piece in pieces[end:back]:
                piece.dropped.setdefault(number, []).append(call)
            for piece in (*pieces[start:end], *pieces[back:done]):
                piece.active[number] = call
            at_most = memory[max(0, call.backward_start - 1) : call.replay_by + 1].max()
            replays.append(Moment(float(at_most), _still_dropped(units, number, call), {}, {number: call}))
    return pieces + replays


def _still_dropped(units: Sequence[Unit], replayed: int, call: CallMemory) -> dict[int, list[CallMemory]]:
    dropped: dict[int, list[CallMemory]] = {}
    for number, unit in enumerate(units):
        pending = [c for c in unit.calls if c.end <= call.backward_start and c.backward_start > call.replay_by]
        if pending and number != replayed:
            dropped[number] = pending
    return dropped
