"""What happens in one planned call of a block: packing in forward, replaying in backward.

`Call` is one forward of one block: it holds what its replay reads (inputs, and what the plan keeps), and dies with the
`Mark`s that autograd holds, so with the graph. Packing belongs to the forward alone: autograd keeps every hook alive
that it was given, hence the generator that is its hook is finished when forward ends.

What autograd holds is a pair: (`Mark`, number of the save) of a dropped tensor, (tensor, version) of a kept one, and
(`Kept`, version) of one that a replay reads. Autograd does not check versions of tensors that went through hooks, so it
is done here, with autograd's words. All of this runs for every saved tensor of every step: it is written to be short.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from trainfit import torch_compat
from trainfit.apply.compiled import Compiled
from trainfit.apply.generators import Position, position
from trainfit.apply.geometry import geometry_of
from trainfit.apply.packing import Packing
from trainfit.apply.rerun import Rerun
from trainfit.apply.twins import OwnHook, tensors_in
from trainfit.errors import PlanMismatch
from trainfit.ghost.tensor import Ghost


class Mark:
    """Stands for a dropped value with autograd; what is rebuilt of it lives here, and so dies with its last node."""

    __slots__ = ("__weakref__", "again", "call", "tensor")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.tensor: torch.Tensor | None = None
        self.again: dict[int, torch.Tensor] | None = None  # by save, where the block was run again


class Kept:
    """What autograd holds of a kept tensor that a replay reads; it dies when its node is done."""

    __slots__ = ("__weakref__", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, version: int) -> None:
        self.tensor = tensor
        self.version = version


def unpack(packed: tuple[Any, int]) -> torch.Tensor:
    """Autograd's way back: a kept tensor after a look at its version, or a rebuilt one."""
    what, number = packed
    if type(what) is Mark:
        return what.call.get(what, number)
    tensor: torch.Tensor = what.tensor if type(what) is Kept else what
    if tensor._version != number:
        check_version(tensor, number)
    return tensor


def check_version(tensor: torch.Tensor, version: int, use: str = "") -> None:
    """Autograd's error for a saved tensor that was changed since; it looks itself only at tensors without hooks."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
            f"expected version {version} instead.{use}"
        )


RECOMPUTED_FROM = " A planned block recomputes what it dropped from this tensor: change a copy of it instead."


class Call:
    """One forward of a planned block, until its graph is gone."""

    __slots__ = (
        "__weakref__", "compiled", "device", "held", "kept", "lookup", "marks", "module", "on_replay",
        "parameters", "positions", "rerun", "reruns", "witnesses",
    )  # fmt: skip

    def __init__(
        self,
        compiled: Compiled,
        module: nn.Module,
        device: torch.device,
        lookup: Callable[[str], torch.Tensor],
        on_replay: Callable[[], None],
    ) -> None:
        self.compiled = compiled
        self.module = module  # held until backward: its parameters are looked up then
        self.device = device
        self.lookup = lookup
        self.on_replay = on_replay
        self.held: dict[int, tuple[torch.Tensor, int]] = {}  # value -> (tensor, version): what the replay reads
        self.kept: dict[int, weakref.ref[Kept]] = {}  # value -> what autograd holds of it as well
        self.parameters: list[tuple[torch.Tensor, int]] = []  # as the plan has them in `from_parameters`
        self.marks: dict[int, weakref.ref[Mark]] = {}  # value -> its mark
        self.positions: dict[int, Position] = {}  # save -> where the generator stood
        self.witnesses: dict[int, tuple[torch.Tensor, int]] = {}
        self.rerun: Rerun | None = None
        self.reruns: dict[int, weakref.ref[Mark]] = {}  # save -> its mark, of saves packed since `rerun` is there

    def packing(self, on_mismatch: Callable[[str], None]) -> Packing:
        """Autograd's way in, for this forward: keeps or drops each saved tensor as the plan says."""
        marks = [Mark(self) for _ in self.compiled.plan.rebuilt]
        self.marks = {
            value: weakref.ref(mark) for (value, _), mark in zip(self.compiled.plan.rebuilt, marks, strict=True)
        }

        def differ(save: int, tensor: torch.Tensor) -> tuple[Mark, int]:
            """What is packed where the block is to be run again, or turns out to have to be."""
            if self.rerun is None:
                saves = self.compiled.saves
                recorded = saves[save].geometry if save < len(saves) else "nothing"
                on_mismatch(f"saved tensor {save} is {geometry_of(tensor)}, recorded was {recorded}")
            mark = Mark(self)
            self.reruns[save] = weakref.ref(mark)
            return mark, save

        packing = self.compiled.pack(self, marks, differ)
        next(packing)
        return packing

    def hold(self, value: int, tensor: torch.Tensor) -> tuple[Kept, int]:
        """Packs a kept tensor that the replay reads."""
        if tensor.requires_grad:
            tensor = tensor.detach()  # an output of the node leads back to the node: that would be a cycle
        version = tensor._version
        kept = Kept(tensor, version)
        self.held[value] = tensor, version
        self.kept[value] = weakref.ref(kept)
        return kept, version

    def watch(self, save: int, tensor: torch.Tensor) -> None:
        """A dropped tensor leaves the block: if somebody overwrites it, backward says so."""
        if not isinstance(tensor, Ghost):
            self.witnesses[save] = (_without_storage(tensor), tensor._version)

    def get(self, mark: Mark, save: int) -> torch.Tensor:
        """The tensor that autograd packed as number `save`."""
        if self.rerun is not None:
            return self._get_again(self.rerun, mark, save)
        if self.witnesses and save in self.witnesses:
            check_version(*self.witnesses[save])
        if mark.tensor is None:
            self._replay()
        tensor = mark.tensor
        assert tensor is not None, "the replay rebuilds every value that has a mark"
        window = self.compiled.returns[save]
        return tensor if window is None else window.of(tensor)

    def _get_again(self, rerun: Rerun, mark: Mark, save: int) -> torch.Tensor:
        if mark.again is None or save not in mark.again:
            torch_compat.after_backward(_letting_go(weakref.ref(self)))
            for tensor, version in rerun.inputs():
                check_version(tensor, version, RECOMPUTED_FROM)
            for number, tensor in enumerate(rerun.run()):
                if (owner := self._owner(number)) is not None:
                    owner.again = {**(owner.again or {}), number: tensor}
        if mark.again is None or save not in mark.again:
            raise PlanMismatch(
                f"block {rerun.name} saved fewer tensors when it was run again: number {save} is missing",
                hint="its forward must do the same when it is called again with the same arguments",
            )
        return mark.again[save]

    def _owner(self, save: int) -> Mark | None:
        """The mark with which autograd holds the save, if it still does."""
        values = self.compiled.plan.saved_values
        found = self.reruns.get(save) or (self.marks.get(values[save]) if save < len(values) else None)
        return found() if found is not None else None

    def let_go(self) -> None:
        """A backward pass is over: with a retained graph, or one that ran in part, something may be left."""
        alive = [mark for each in (self.marks, self.reruns) for ref in each.values() if (mark := ref()) is not None]
        for mark in alive:
            mark.tensor = mark.again = None
        if alive:  # another pass may ask for them when the nodes that hold their sources are done
            for value, reference in self.kept.items():
                if (kept := reference()) is not None:
                    self.held[value] = (kept.tensor, kept.version)

    def _replay(self) -> None:
        self.on_replay()
        outer: Position | None = None

        def go_back(save: int) -> None:
            nonlocal outer
            outer = outer or position(self.device)
            self.positions[save].go_back()

        try:
            with torch_compat.Replaying():
                rebuilt = self.compiled.replay(self._at_hand(), self.device, go_back)
        finally:
            if outer is not None:
                outer.go_back()
        for value, tensor in rebuilt.items():
            if (mark := self.marks[value]()) is not None:
                mark.tensor = tensor
        torch_compat.after_backward(_letting_go(weakref.ref(self)))

    def _at_hand(self) -> list[torch.Tensor]:
        """What the replay starts from, in the plan's order. What autograd holds too is left to it from now on, so that
        it goes when its node is done."""
        plan = self.compiled.plan
        found = []
        for _, value in plan.from_inputs:
            tensor, version = self.held[value]
            if tensor._version != version:
                check_version(tensor, version, RECOMPUTED_FROM)
            found.append(tensor)
        for (name, _), (tensor, version) in zip(plan.from_parameters, self.parameters, strict=True):
            if not tensor.untyped_storage().nbytes() and tensor.numel():
                tensor = self.lookup(name)  # a sharded parameter was let go after forward, and another gathered since
            elif tensor._version != version:
                check_version(tensor, version, RECOMPUTED_FROM)
            found.append(tensor.detach())
        for value in self.compiled.from_kept:
            kept = self.kept[value]() if value in self.kept else None
            if kept is not None:
                self.held.pop(value, None)
                tensor, version = kept.tensor, kept.version
            else:
                tensor, version = self.held[value]
            if tensor._version != version:
                check_version(tensor, version, RECOMPUTED_FROM)
            found.append(tensor)
        return found


def _letting_go(reference: weakref.ref[Call]) -> Callable[[], None]:
    def let_go() -> None:
        call = reference()
        if call is not None:
            call.let_go()

    return let_go


def _without_storage(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that shares the version counter and nothing else: it tells of later writes and holds no memory."""
    witness = tensor.detach()
    witness.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return witness


@contextlib.contextmanager
def holding_submodule_outputs(module: nn.Module, call: Call) -> Iterator[None]:
    """Within one forward, hold the outputs of submodules that the plan keeps; no hook stays on the model."""
    hooks = [
        module.get_submodule(name).register_forward_hook(_Hold(positions, call))
        for name, positions in call.compiled.hooked.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for value in [value for positions in call.compiled.hooked.values() for value in positions.values()]:
        if value in call.held:  # what the plan keeps is the last version, which a later submodule may have written
            tensor = call.held[value][0]
            call.held[value] = (tensor, tensor._version)


class _Hold(OwnHook):
    """Holds a submodule's outputs; `positions` is place among its output tensors -> value."""

    def __init__(self, positions: dict[int, int], call: Call) -> None:
        self._positions, self._call, self._count = positions, call, 0

    def __call__(self, _module: nn.Module, _args: Any, output: Any) -> None:
        for tensor in tensors_in(output):
            value = self._positions.get(self._count)
            if value is not None:
                self._call.held[value] = (tensor.detach(), tensor._version)
            self._count += 1
