"""`write_packing`: autograd's way in as one generator, a few lines per saved tensor, written once and then only run.

In: what happens to each saved tensor of a block. Out: a generator function whose `send`, given to autograd as the hook,
takes a saved tensor and gives what autograd holds in its place (see runtime.py). It runs for every saved tensor of
every step, so nothing is looked up: the order of the saves is the order of the lines. What is dropped, or read by a
replay, must look as it did when the block was recorded; what is just kept need not. Strides of dimensions of one
element, which kernels set as they like, matter only where a view is cut anew by what was recorded. From the first
difference on, and for tensors beyond the last, the generator asks `differ`. `seen` is the number of tensors that have
come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainfit.apply.generators import position
from trainfit.apply.geometry import Geometry

Packing = Generator[Any, torch.Tensor, None]
Packer = Callable[[Any, list[Any], Callable[[int, torch.Tensor], Any]], Packing]
"""(the call, the marks of its values, what to do with a tensor that was not expected) -> the generator."""


@dataclass(frozen=True, slots=True)
class Save:
    """What happens to a saved tensor."""

    geometry: Geometry
    value: int
    is_dropped: bool
    is_held: bool = False  # the replay reads it
    is_watched: bool = False  # dropped, and somebody outside may overwrite it
    takes_position: bool = False  # of the generator of random numbers
    is_whole: bool = False  # it comes back as the replay's op makes it, strides and all


def write_packing(saves: Sequence[Save], marked: Sequence[int]) -> Packer:
    """The generator function for these saves; `marked` are the values that have marks."""
    marks = [f"{', '.join(f'm{value}' for value in marked)}, = marks", "marks.clear()"] if marked else []
    lines = ["def pack(call, marks, differ):"]
    lines += [f" {line}" for line in (*marks, "seen = 0", "tensor = yield", "while True:")]
    lines += [f"  {line}" for number, save in enumerate(saves) for line in _lines(number, save)]
    lines += ["  break", " while True:", "  packed = differ(seen, tensor)", "  del tensor", "  seen += 1"]
    lines += ["  tensor = yield packed"]
    names: dict[str, Any] = {"__name__": __name__, "torch": torch, "position": position}
    exec(compile("\n".join(lines), "<packing>", "exec"), names)
    packer: Packer = names.pop("pack")  # its own globals must not lead to it: no cycles
    packer.__doc__ = "\n".join(lines)
    return packer


def finish(packing: Packing) -> None:
    """Make the generator let go of the marks, which autograd alone holds from now on; autograd also holds the
    generator. Closing it is not enough: some Pythons then leave its variables as they are."""
    with contextlib.suppress(GeneratorExit):
        packing.throw(GeneratorExit)


def num_seen(packing: Packing) -> int:
    """How many tensors have come so far."""
    seen: int = packing.gi_frame.f_locals["seen"]  # type: ignore[attr-defined]
    return seen


def _strides_differ(save: Save) -> str:
    _, shape, stride, _ = save.geometry
    if 1 not in shape or not (save.is_whole or save.is_held):
        return f"tensor.stride() != {stride} or "
    return "".join(f"tensor.stride({dim}) != {stride[dim]} or " for dim, size in enumerate(shape) if size != 1)


def _lines(number: int, save: Save) -> list[str]:
    lines = []
    if save.is_dropped or save.is_held:
        dtype, shape, _, offset = save.geometry
        lines.append(
            f"if tensor.dtype is not {dtype} or tensor.shape != {shape} or {_strides_differ(save)}"
            f"tensor.storage_offset() != {offset}: break"
        )
    lines.append(f"seen = {number + 1}")
    if save.takes_position:
        lines.append(f"call.positions[{number}] = position(call.device)")
    if save.is_watched:
        lines.append(f"call.watch({number}, tensor)")
    if save.is_dropped:
        lines.append("del tensor")  # or it would live until the next one comes
        packed = f"m{save.value}, {number}"
    elif save.is_held:
        packed = f"call.hold({save.value}, tensor)"
    else:  # an output of the node leads back to the node: that would be a cycle
        packed = "tensor.detach() if tensor.requires_grad else tensor, tensor._version"
    return [*lines, f"tensor = yield {packed}"]
