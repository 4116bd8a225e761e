"""`Problem`: a whole model as its blocks' menus and the unplanned step's memory, and what a choice costs in it.

In: menus by block class, the class of each block, a `BaseMemory`. Out: for a choice (one option per block) its
recompute time, its peak and the moment of the peak, by the linear model that the MILP optimises:

    D(p)      = sum of drop(option of block j) over the blocks j < p
    forward   : forward[p] - D(p) + casts(p)         for p = 0 .. number of blocks
    other     : other[p] - D(p)                      for p = 0 .. number of blocks
    backward  : backward[p] - D(p) + extra(run of p) for every block p
    extra(run): the largest extra of an option used in the run; extra(o) is what o holds beyond what autograd would,
                or by how much its replay exceeds the backward that follows it, whichever is more

A block that is called several times is there once for each call. It has one decision, so its calls are of a class of
their own, all of whose blocks take the same option (`tied`).

Casts of parameters that the blocks j < p drop are still there in forward, because autocast's cache holds them until
forward ends: casts(p) is their sum. A run is a maximal stretch of consecutive blocks of one class. Taking the run's
largest extra for all of its blocks can only make the model too large; it is what makes the order within a run
immaterial (`milp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from trainfit.solve.graph import BlockGraph
from trainfit.solve.memory import BaseMemory
from trainfit.solve.replay import Option


@dataclass(frozen=True, slots=True)
class Run:
    """The blocks [first, first + length), all of class `class_index`."""

    class_index: int
    first: int
    length: int

    @property
    def last(self) -> int:
        return self.first + self.length - 1


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a plan's memory is highest: an op of the unplanned trace, in a block's replay or backward, or elsewhere."""

    op: int
    block: str | None


@dataclass(frozen=True)
class Problem:
    """Menus are by class; a choice is one index into the menu of its class for each block."""

    memory: BaseMemory
    class_of: tuple[int, ...]  # by block
    graphs: tuple[BlockGraph, ...]  # by class
    menus: tuple[tuple[Option, ...], ...]  # by class; the first option recomputes nothing
    base_ns: int  # the unplanned step

    @cached_property
    def tied(self) -> frozenset[int]:
        """The classes that are the calls of one block."""
        blocks = self.memory.blocks
        return frozenset(c for name, c in zip(blocks, self.class_of, strict=True) if blocks.count(name) > 1)

    def tied_to(self, block: int) -> list[int]:
        """The blocks that take the option that this one takes."""
        class_index = self.class_of[block]
        return [b for b, c in enumerate(self.class_of) if c == class_index] if class_index in self.tied else [block]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        runs: list[Run] = []
        for block, class_index in enumerate(self.class_of):
            if runs and runs[-1].class_index == class_index:
                runs[-1] = replace(runs[-1], length=runs[-1].length + 1)
            else:
                runs.append(Run(class_index, block, 1))
        return tuple(runs)

    @cached_property
    def _before_backward(self) -> dict[Run, int]:
        """By run: what is there right before a block's backward, less the most during it."""
        starts, mosts = self.memory.start_bytes, self.memory.backward_bytes
        return {
            run: max(starts[block] - mosts[block] for block in range(run.first, run.first + run.length))
            for run in self.runs
        }

    def drop_bytes(self, class_index: int, option: Option) -> int:
        """By how much the option makes a block's forward leave less behind."""
        return self.graphs[class_index].saved_bytes - option.kept_bytes

    def forward_drop_bytes(self, class_index: int, option: Option) -> int:
        """The part of `drop_bytes` that is gone while forward still runs."""
        dropped_cast_bytes = self.graphs[class_index].saved_cast_bytes - option.cast_bytes
        return self.drop_bytes(class_index, option) - dropped_cast_bytes

    def extra_bytes(self, run: Run, option: Option) -> int:
        """By how much a block's replay and backward under the option exceed its backward with nothing recomputed."""
        before_backward = self._before_backward[run]
        replay_bytes = option.replay_peak_bytes - self.drop_bytes(run.class_index, option)
        return max(0, option.held_bytes, before_backward + replay_bytes if option.replayed else 0)

    @property
    def hidden_ns(self) -> int:
        """What all blocks' replays together can hide behind communication."""
        return sum(self.graphs[class_index].hidden_ns for class_index in self.class_of)

    def recompute_ns(self, choice: Sequence[int]) -> int:
        return sum(self.option(block, index).recompute_ns for block, index in enumerate(choice))

    def option(self, block: int, index: int) -> Option:
        return self.menus[self.class_of[block]][index]

    def peak(self, choice: Sequence[int]) -> tuple[int, Moment]:
        """The peak of a choice by the linear model, and when it is."""
        memory = self.memory
        moments = []
        dropped = forward_dropped = 0
        for run in self.runs:
            blocks = range(run.first, run.first + run.length)
            extra = max(self.extra_bytes(run, self.option(block, choice[block])) for block in blocks)
            for block in blocks:
                name = memory.blocks[block]
                moments.append((memory.forward_bytes[block] - forward_dropped, Moment(memory.forward_op[block], None)))
                moments.append((memory.other_bytes[block] - dropped, Moment(memory.other_op[block], None)))
                moments.append(
                    (memory.backward_bytes[block] - dropped + extra, Moment(memory.backward_op[block], name))
                )
                option = self.option(block, choice[block])
                dropped += self.drop_bytes(run.class_index, option)
                forward_dropped += self.forward_drop_bytes(run.class_index, option)
        moments.append((memory.forward_bytes[-1] - forward_dropped, Moment(memory.forward_op[-1], None)))
        moments.append((memory.other_bytes[-1] - dropped, Moment(memory.other_op[-1], None)))
        return max(moments, key=lambda moment: moment[0])

    def with_options(self, more: dict[int, list[Option]]) -> Problem:
        """The same problem with options added to the menus, after those that are there; none twice."""
        menus = tuple(tuple(dict.fromkeys((*menu, *more.get(i, ())))) for i, menu in enumerate(self.menus))
        return replace(self, menus=menus)
