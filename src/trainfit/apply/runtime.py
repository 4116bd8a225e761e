"""What happens in one planned call of a block: packing in forward, replaying in backward.

`Call` is one forward of one block: it holds what its replay reads (inputs, and what the plan keeps), and dies with the
`Dropped` marks that autograd holds, so with the graph. The packer belongs to the forward alone: autograd keeps every
hook alive that it was given, hence the packer lets go of the call when forward ends.

Autograd does not check versions of tensors that went through hooks, so it is done here, with autograd's words.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from trainfit import torch_compat
from trainfit.apply.compiled import Compiled, Packing
from trainfit.apply.geometry import geometry_of
from trainfit.apply.rerun import GeneratorStates, Rerun
from trainfit.apply.twins import tensors_in
from trainfit.ghost.tensor import Ghost


class Dropped:
    """What autograd holds in place of a dropped tensor; it dies when its node is done, and what was rebuilt for it."""

    __slots__ = ("call", "save")

    def __init__(self, call: Call, save: int) -> None:
        self.call = call
        self.save = save

    def __del__(self) -> None:
        self.call.release(self.save)


class Kept:
    """What autograd holds of a kept tensor that a replay reads; it dies when its node is done."""

    __slots__ = ("__weakref__", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, version: int) -> None:
        self.tensor = tensor
        self.version = version


def unpack(packed: Any) -> torch.Tensor:
    """Autograd's way back: a kept tensor after a look at its version, or a rebuilt one."""
    if type(packed) is Dropped:
        return packed.call.get(packed.save)
    tensor, version = (packed.tensor, packed.version) if type(packed) is Kept else packed
    check_version(tensor, version)
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
        "parameters", "rebuilt", "rerun", "states", "witnesses",
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
        self.parameters: dict[str, tuple[torch.Tensor, int]] = {}
        self.marks = dict(compiled.plan.rebuilt)  # value -> `Dropped` marks that stand for views of it
        self.rebuilt: dict[int, torch.Tensor] = {}
        self.states: dict[int, GeneratorStates] = {}
        self.witnesses: dict[int, tuple[torch.Tensor, int]] = {}
        self.rerun: Rerun | None = None

    def get(self, save: int) -> torch.Tensor:
        """The tensor that autograd packed as number `save`."""
        if self.rerun is not None:
            if not self.rerun.has(save):
                torch_compat.after_backward(_letting_go(weakref.ref(self)))
            return self.rerun.get(save)
        if save in self.witnesses:
            check_version(*self.witnesses[save])
        value = self.compiled.plan.saved_values[save]
        if value not in self.rebuilt:
            self._replay()
        return self.compiled.returns[save].of(self.rebuilt[value])

    def release(self, save: int) -> None:
        """The mark for `save` is gone: what was rebuilt for it goes with the last one of its storage."""
        if self.rerun is not None:
            self.rerun.release(save)
            return
        value = self.compiled.plan.saved_values[save]
        self.marks[value] -= 1
        if not self.marks[value]:
            self.rebuilt.pop(value, None)

    def let_go(self) -> None:
        """A backward pass is over: with a retained graph, or one that ran in part, something may be left."""
        self.rebuilt.clear()
        if any(self.marks.values()):  # another pass may ask for them when the nodes that hold their sources are done
            for value, reference in self.kept.items():
                if (kept := reference()) is not None:
                    self.held[value] = (kept.tensor, kept.version)
        if self.rerun is not None:
            self.rerun.let_go()

    def _replay(self) -> None:
        self.on_replay()
        outer_states: GeneratorStates | None = None

        def restore(save: int) -> None:
            nonlocal outer_states
            outer_states = outer_states or GeneratorStates.now(self.device)
            self.states[save].restore()

        try:
            with torch_compat.Replaying():
                rebuilt = self.compiled.replay(dict(self._at_hand()), self.device, restore)
        finally:
            if outer_states is not None:
                outer_states.restore()
        marks = self.marks
        self.rebuilt = {value: tensor for value, tensor in rebuilt.items() if marks[value]}
        torch_compat.after_backward(_letting_go(weakref.ref(self)))

    def _at_hand(self) -> Iterator[tuple[int, torch.Tensor]]:
        """What the replay starts from. What autograd holds too is left to it from now on, so that it goes when its
        node is done."""
        for name, value in self.compiled.plan.from_parameters:
            tensor, version = self.parameters[name]
            if not tensor.untyped_storage().nbytes() and tensor.numel():
                tensor = self.lookup(name)  # a sharded parameter was let go after forward, and another gathered since
            else:
                check_version(tensor, version, RECOMPUTED_FROM)
            yield value, tensor.detach()
        for value, reference in self.kept.items():
            if (kept := reference()) is not None:
                self.held.pop(value, None)
                check_version(kept.tensor, kept.version, RECOMPUTED_FROM)
                yield value, kept.tensor
        for value, (tensor, version) in self.held.items():
            check_version(tensor, version, RECOMPUTED_FROM)
            yield value, tensor


def _letting_go(reference: weakref.ref[Call]) -> Callable[[], None]:
    def let_go() -> None:
        call = reference()
        if call is not None:
            call.let_go()

    return let_go


class Packer:
    """Autograd's way in, for one forward: keeps or drops each saved tensor as the plan says."""

    __slots__ = ("_call", "_on_mismatch", "_saves", "position")

    def __init__(self, call: Call, on_mismatch: Callable[[str], None]) -> None:
        self._call: Call | None = call
        self._saves = call.compiled.saves
        self._on_mismatch: Callable[[str], None] | None = on_mismatch
        self.position = 0

    def __call__(self, tensor: torch.Tensor) -> Any:
        save = self.position
        self.position = save + 1
        call = self._call
        if call is None:
            raise RuntimeError("autograd packs a tensor for a forward that has ended")
        if call.rerun is not None:
            return Dropped(call, save)
        if save < len(self._saves):
            (dtype, shape, stride, offset), packing = self._saves[save]
            if (
                tensor.dtype is dtype
                and tensor.shape == shape
                and tensor.stride() == stride
                and tensor.storage_offset() == offset
            ) or save in call.compiled.unchecked:
                if packing is Packing.DROP:
                    return Dropped(call, save)
                return self._keep(tensor) if packing is Packing.KEEP else self._special(call, save, tensor)
        return self._differ(call, save, tensor)

    def _keep(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        if tensor.requires_grad:
            tensor = tensor.detach()  # an output of the node leads back to the node: that would be a cycle
        return tensor, tensor._version

    def _special(self, call: Call, save: int, tensor: torch.Tensor) -> Any:
        compiled = call.compiled
        if save in compiled.state_saves:
            call.states[save] = GeneratorStates.now(call.device)
        if compiled.plan.dropped[save]:
            if save in compiled.watched and not isinstance(tensor, Ghost):
                call.witnesses[save] = (_without_storage(tensor), tensor._version)
            return Dropped(call, save)
        if save not in compiled.holds:
            return self._keep(tensor)
        value = compiled.holds[save]
        call.held[value] = self._keep(tensor)
        kept = Kept(*call.held[value])
        call.kept[value] = weakref.ref(kept)
        return kept

    def _differ(self, call: Call, save: int, tensor: torch.Tensor) -> Dropped:
        assert self._on_mismatch is not None, "it goes when the call goes"
        recorded = self._saves[save][0] if save < len(self._saves) else "nothing"
        self._on_mismatch(f"saved tensor {save} is {geometry_of(tensor)}, recorded was {recorded}")
        return Dropped(call, save)

    def close(self) -> None:
        """Forward went through: check that all was seen."""
        call, expected = self._call, len(self._saves)
        if call is not None and call.rerun is None and self.position != expected and self._on_mismatch:
            self._on_mismatch(f"{self.position} tensors were saved, recorded were {expected}")

    def let_go(self) -> None:
        self._call = self._on_mismatch = None


def _without_storage(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that shares the version counter and nothing else: it tells of later writes and holds no memory."""
    witness = tensor.detach()
    witness.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return witness


@contextlib.contextmanager
def holding_submodule_outputs(module: nn.Module, call: Call) -> Iterator[None]:
    """Within one forward, hold the outputs of submodules that the plan keeps; no hook stays on the model."""
    hooks = [
        module.get_submodule(name).register_forward_hook(_holding(positions, call))
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


def _holding(positions: dict[int, int], call: Call) -> Callable[..., None]:
    count = 0

    def hold(_module: nn.Module, _args: Any, output: Any) -> None:
        nonlocal count
        for tensor in tensors_in(output):
            value = positions.get(count)
            if value is not None:
                call.held[value] = (tensor.detach(), tensor._version)
            count += 1

    return hold
