"""The table of modules: what each holds for backward and what its ops take. In: profiles. Out: rows, equal ones folded.

A module's ops are those that run in it and in none of its submodules; backward's are those of the forward ops that
they differentiate. Held is what its forward asked for and the first backward finds. Modules that differ only in one
number of their names and are equal in everything else are one row, with sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainfit.fingerprint import format_ranges
from trainfit.records import Category, Phase, StepProfile

LONGEST = 10
_OUTSIDE = "(outside modules)"
_BACKWARD = (Phase.BACKWARD, Phase.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """Sums over `count` equal modules; without a plan `held_after_bytes` is None."""

    name: str
    count: int
    held_bytes: int
    held_after_bytes: int | None
    forward_ns: int
    backward_ns: int
    recompute_ns: int


@dataclass(frozen=True, slots=True)
class Share:
    """What `count` ops take of the GPU's time."""

    name: str
    count: int
    time_ms: float


def module_rows(before: StepProfile, after: StepProfile | None = None) -> tuple[ModuleRow, ...]:
    """A row per kind of module, in the order in which the step first uses them."""
    held, times = _held_bytes(before), _times_ns(before if after is None else after)
    held_after = None if after is None else _held_bytes(after)
    groups: dict[tuple[str, str, tuple[int, ...]], list[int | None]] = {}
    for name in dict.fromkeys([*held, *times, *(held_after or {})]):
        values: tuple[int, ...] = (held.get(name, 0), (held_after or {}).get(name, 0), *times.get(name, (0, 0, 0)))
        if any(values):
            start, number, end = _around_number(name)
            groups.setdefault((start, end, values), []).append(number)
    rows = []
    for (start, end, values), numbers in groups.items():
        in_words = format_ranges(sorted(number for number in numbers if number is not None))
        held_bytes, after_bytes, *times_ns = (len(numbers) * value for value in values)
        known_after = None if after is None else after_bytes
        rows.append(ModuleRow(f"{start}{in_words}{end}" or _OUTSIDE, len(numbers), held_bytes, known_after, *times_ns))
    return tuple(rows)


def _around_number(name: str) -> tuple[str, int | None, str]:
    """The name up to its first number, the number, and what follows: ("blocks.", 3, ".mlp")."""
    parts = name.split(".")
    index = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    if index is None:
        return name, None, ""
    return (
        "".join(f"{part}." for part in parts[:index]),
        int(parts[index]),
        "".join(f".{p}" for p in parts[index + 1 :]),
    )


def longest_modules(profile: StepProfile) -> tuple[Share, ...]:
    """The kinds of modules whose ops take longest on the GPU, the layers of a stack as one: "layers.*.mlp"."""
    totals: dict[str, tuple[int, int]] = {}
    for run in profile.runs:
        if run.gpu_ns:
            op = profile.trace.ops[run.op]
            start, number, end = _around_number(op.module)
            name = "(optimizer)" if op.phase is Phase.OPTIMIZER else f"{start}{'' if number is None else '*'}{end}"
            count, time_ns = totals.get(name or _OUTSIDE, (0, 0))
            totals[name or _OUTSIDE] = count + 1, time_ns + run.gpu_ns
    ranked = sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))[:LONGEST]
    return tuple(Share(name, count, time_ns / 1e6) for name, (count, time_ns) in ranked)


def _held_bytes(profile: StepProfile) -> dict[str, int]:
    """By module, the activations that are there when the first backward begins."""
    ops = profile.trace.ops
    held: dict[str, int] = {}
    for event in profile.events:
        if event.op is not None and ops[event.op].phase in _BACKWARD:
            break
        if event.category is Category.ACTIVATIONS and event.maker is not None:
            module = ops[event.maker].module
            held[module] = held.get(module, 0) + (event.requested_bytes if event.is_alloc else -event.requested_bytes)
    return held


def _times_ns(profile: StepProfile) -> dict[str, tuple[int, int, int]]:
    """By module, GPU time in forward, backward and recomputation."""
    times: dict[str, list[int]] = {}
    columns = {Phase.FORWARD: 0, Phase.BACKWARD: 1, Phase.RECOMPUTE: 2}
    for run in profile.runs:
        op = profile.trace.ops[run.op]
        if op.phase in columns and run.gpu_ns:
            times.setdefault(op.module, [0, 0, 0])[columns[op.phase]] += run.gpu_ns
    return {module: (forward, backward, recompute) for module, (forward, backward, recompute) in times.items()}
