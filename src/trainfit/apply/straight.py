"""`straighten`: the ops of a replay as one Python function, one line per op, written once and then only run.

In: a recording and its replay plan. Out: a function from the values at hand to the rebuilt ones. A value is a local
variable, set where it is made or taken, deleted after its last use; so nothing is looked up, copied or decided while it
runs, and what the replay holds at each moment is what the plan says. When it runs first, layouts are compared with the
recorded ones: the same ops on the same layouts give the same ones again. The text of the function is on its `__doc__`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainfit import torch_compat
from trainfit.apply.geometry import Geometry, geometry_of, geometry_of_ref, has_geometry, window_on
from trainfit.apply.record import BlockDevice, LiveCall, Recording
from trainfit.apply.replay import ReplayPlan, Values
from trainfit.apply.twins import tensors_in
from trainfit.errors import PlanMismatch
from trainfit.records import TensorRef

Replay = Callable[[list[torch.Tensor], torch.device, Callable[[int], None]], dict[int, torch.Tensor]]
"""(inputs, parameters and kept values of the plan, a list that it empties; the block's device; makes the generator go
back to where it stood at a save) -> the rebuilt values."""


@dataclass(frozen=True, slots=True)
class _Text:
    """Lines of the function, and what its names stand for."""

    lines: list[str]
    names: dict[str, Any]

    def add(self, *lines: str) -> None:
        self.lines.extend(lines)

    def name(self, prefix: str, thing: Any) -> str:
        name = f"{prefix}{len(self.names)}"
        self.names[name] = thing
        return name


def straighten(
    recording: Recording, plan: ReplayPlan, values: Values, bases: Mapping[int, TensorRef], checked: set[int]
) -> Replay:
    """The function that runs `plan`; `bases` has the geometry of the tensor that stands for each value, `checked` the
    storages of which the replay uses other views, so that their layout matters."""
    text = _Text([], {"as_strided": torch.as_strided, "tensors": _tensors, "check": _check, "is_checked": False})
    text.add("global is_checked")
    sources = [*(value for _, value in (*plan.from_inputs, *plan.from_parameters)), *plan.from_kept]
    if sources:
        text.add(f"{', '.join(f'v{value}' for value in sources)}, = at_hand", "at_hand.clear()")
    elsewhere = {value for _, value in (*plan.from_inputs, *plan.from_parameters)}
    as_recorded = {value for value in bases if value not in elsewhere}
    starts, writes = dict(plan.random_starts), dict(recording.program.writes)
    for op, frees in zip(plan.ops, plan.frees, strict=True):
        call, program_op = recording.calls[op], recording.program.ops[op]
        read = {values.storage[value]: value for value in values.reads[op]}
        made = {values.storage[value]: value for value in values.makes[op]}
        written = writes.get(op, ())
        if op in starts:
            text.add(f"go_back({starts[op]})")
        first = {ref.storage: place for place, ref in reversed(list(enumerate(program_op.outputs)))}
        results = {first[storage]: value for storage, value in made.items() if storage not in written}

        def word(value: Any, read: dict[int, int] = read) -> str:
            if isinstance(value, TensorRef):
                name = read[value.storage]
                return _view(text, value, name, bases.get(name), name in as_recorded)
            if isinstance(value, (list, tuple)) and any(isinstance(item, TensorRef) for item in value):
                return f"[{', '.join(word(item) for item in value)}]"
            return "device" if value is BlockDevice else text.name("c", value)

        _write_call(text, call, word, results, len(program_op.outputs))
        for value in results.values():
            if values.storage[value] in checked:
                expected = text.name("g", (call.func, geometry_of_ref(bases[value])))
                text.add(f"if not is_checked: check(v{value}, {expected})")
        for storage in written:
            text.add(f"v{made[storage]} = v{read[storage]}", f"del v{read[storage]}")
        renamed = {read[storage] for storage in written}
        text.add(*(f"del v{value}" for value in frees if value not in renamed))
    rebuilt = ", ".join(f"{value}: v{value}" for value, _ in plan.rebuilt)
    text.add("is_checked = True", f"return {{{rebuilt}}}")
    source = "\n    ".join(["def replay(at_hand, device, go_back):", *text.lines])
    exec(compile(source, "<replay>", "exec"), text.names)
    replay: Replay = text.names.pop("replay")  # its own globals must not lead to it: no cycles
    replay.__doc__ = source
    return replay


def _write_call(text: _Text, call: LiveCall, word: Callable[[Any], str], results: dict[int, int], count: int) -> None:
    """One line that calls the op, and one per result that is used; `results` is place among the outputs -> value,
    `count` how many outputs there are, `word` writes an argument."""
    words = [word(value) for value in call.args] + [f"{key}={word(value)}" for key, value in call.kwargs.items()]
    line = f"{text.name('f', _way_of(call))}({', '.join(words)})"
    if not results:
        text.add(line)
    elif torch_compat.returns_one_tensor(call.func):
        text.add(f"v{results[0]} = {line}")
    else:
        text.add(f"out = {line}" if torch_compat.returns_only_tensors(call.func, count) else f"out = tensors({line})")
        text.add(*(f"v{value} = out[{place}]" for place, value in results.items()))
        text.add("del out")


def _view(text: _Text, ref: TensorRef, value: int, base: TensorRef | None, as_recorded: bool) -> str:
    """The view `ref` of a value; `as_recorded`: the tensor that stands for it is where it was in its storage."""
    window = window_on(ref, base)
    if window.is_whole:
        return f"v{value}"
    if base is None or window.is_absolute:
        return f"{text.name('w', window.of)}(v{value})"
    if as_recorded:
        return f"as_strided(v{value}, {window.shape}, {window.stride}, {ref.offset})"
    offset = f"v{value}.storage_offset()" + (f" + {window.offset}" if window.offset else "")
    return f"as_strided(v{value}, {window.shape}, {window.stride}, {offset})"


_ways: dict[Any, Callable[..., Any]] = {}
"""What was found by `_way_of`, by op and kinds of arguments; every block asks the same."""


def _way_of(call: LiveCall) -> Callable[..., Any]:
    """The fastest function that is the op."""
    kinds = call.func, _kind(call.args), _kind(call.kwargs)
    if kinds not in _ways:
        args, kwargs = _stand_ins(call)
        _ways[kinds] = torch_compat.shorter_way(call.func, args, kwargs) or torch_compat.without_python(call.func)
    return _ways[kinds]


def _kind(value: Any) -> Any:
    """What of an argument can matter to how a call is parsed."""
    if isinstance(value, TensorRef):
        return value.dtype, len(value.shape)
    if isinstance(value, (tuple, list)):
        return type(value), tuple(_kind(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _kind(item)) for key, item in value.items())
    return value if value is BlockDevice or isinstance(value, torch.dtype) else type(value)


def _stand_ins(call: LiveCall) -> tuple[list[Any], dict[str, Any]]:
    """The call's arguments with tensors without data."""

    def stand_in(value: Any) -> Any:
        if isinstance(value, TensorRef):
            return torch.empty_strided(value.shape, value.stride, dtype=getattr(torch, value.dtype), device="meta")
        if isinstance(value, (tuple, list)):
            return type(value)(stand_in(item) for item in value)
        return torch.device("meta") if value is BlockDevice else value

    with torch_compat.dispatch_modes_off():
        return [stand_in(value) for value in call.args], {key: stand_in(value) for key, value in call.kwargs.items()}


def _tensors(out: Any) -> list[torch.Tensor]:
    return list(tensors_in(out))


def _check(tensor: torch.Tensor, expected: tuple[Any, Geometry]) -> None:
    func, geometry = expected
    if not has_geometry(tensor, geometry):
        raise PlanMismatch(
            f"replaying {func} gave {geometry_of(tensor)}, recorded was {geometry}",
            hint="report the model: its recording does not match this torch build",
        )
