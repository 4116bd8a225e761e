"""`Profile`: what was measured of one GPU and its host, reduced to the tables that the rules look up.

In: what a calibration was reduced to (`profile_json`, `write_profile`), or the file (`load_profile`). Out: a `Profile`.

A table holds (coordinates, ratio of measured to ideal time), lines and what rises (coordinates, time); the ideal is the
catalogue's rates of that GPU, which the file repeats, so that a later correction of the catalogue does not change what
was measured. Where an op's kernels overlap, the table "<rule> overlap" has how many ran at once; where there are
several, "<rule> launches" has how many.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from trainfit.cost.host import HostCosts
from trainfit.cost.interpolate import Table
from trainfit.cost.lines import Lines
from trainfit.cost.measured_collectives import CollectiveTable, parse_collectives
from trainfit.cost.reduce import Reduced
from trainfit.cost.work import Work
from trainfit.errors import BadProfile, UnknownGpu
from trainfit.gpus.catalogue import Gpu, find_gpu

SCHEMA = 16
SHIPPED = ("h200",)
"""GPUs whose measured profile comes with the package; the first one's efficiencies serve for all others."""
_RATES = ("bf16_tflops", "fp16_tflops", "tf32_tflops", "fp32_tflops", "fp8_tflops", "dram_gb_per_s")
_HINT = "write one with 'trainfit calibrate -o my_gpu.json' on that GPU"


Measured = Table | Lines


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured efficiencies of one GPU, and what its host takes to issue work."""

    gpu: Gpu
    """The catalogue's row with the rates to which the ratios are relative."""
    torch_version: str
    tables: Mapping[str, Measured]
    host: HostCosts
    collectives: tuple[CollectiveTable, ...] = ()
    """What was measured among several ranks; empty where there was one."""
    known_ns: dict[Work, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What works were found to take on this GPU: other GPUs' prices start from these."""


def profile_json(header: Mapping[str, Any], reduced: Reduced, host: Mapping[str, Any]) -> dict[str, Any]:
    """The profile, as JSON's values, of what a calibration's samples and host were reduced to."""
    gpu = find_gpu(str(header["gpu"]))
    rates = {name: getattr(gpu, name) for name in _RATES}
    return {**header, "schema": SCHEMA, "rates": rates, "host": dict(host), **reduced._asdict()}


def write_profile(path: Path, profile: Mapping[str, Any]) -> None:
    """One line per rule, so that two profiles can be compared."""
    rules = {name: _rows(profile[name]) for name in Reduced._fields}
    head = {key: value for key, value in profile.items() if key not in (*rules, "collectives")}
    parts = [json.dumps(head, indent=1)[:-2]]
    if profile.get("collectives"):
        rows = ",\n  ".join(json.dumps(table, separators=(",", ":")) for table in profile["collectives"])
        parts.append(f' "collectives": [\n  {rows}\n ]')
    parts += [f' "{name}": {{\n  {rows}\n }}' for name, rows in rules.items()]
    path.write_text(",\n".join(parts) + "\n}\n")


def _rows(by_rule: Mapping[str, Any]) -> str:
    lines = (f"{json.dumps(rule)}: {json.dumps(points, separators=(',', ':'))}" for rule, points in by_rule.items())
    return ",\n  ".join(lines)


def load_profile(path: Path | str) -> Profile:
    """The profile in the file that `trainfit calibrate` wrote."""
    file = Path(path)
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadProfile(f"the profile {file} cannot be read: {error}", hint=_HINT) from error
    return parse_profile(text, str(file))


def parse_profile(text: str, name: str) -> Profile:
    """The profile in the text; `name` is what errors call it."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadProfile(f"{name} is not JSON: {error}", hint=_HINT) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else None
        raise BadProfile(f"{name} has schema {found!r}, and this trainfit reads {SCHEMA}", hint=_HINT)
    try:
        gpu = find_gpu(content["gpu"])
        gpu = replace(gpu, **{rate: content["rates"][rate] for rate in _RATES})
        tables = parse_tables(Reduced(**{name: content[name] for name in Reduced._fields}), gpu)
        host = HostCosts.parse(content["host"])
        collectives = parse_collectives(content.get("collectives", ()))
        return Profile(gpu, str(content["torch"]), tables, host, collectives)
    except UnknownGpu as error:
        raise BadProfile(
            f"{name} is of a GPU that trainfit does not know: {content['gpu']!r}", hint=error.hint
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadProfile(f"{name} is damaged: {type(error).__name__}: {error}", hint=_HINT) from error


def parse_tables(reduced: Reduced, gpu: Gpu) -> dict[str, Measured]:
    """Tables, lines and what rises, as they stand in a file, by rule."""
    lines: dict[str, Measured] = {rule: Lines.of(points, gpu) for rule, points in reduced.lines.items()}
    tables = {rule: _table(points, reduced.times_ns.get(rule, ())) for rule, points in reduced.tables.items()}
    return tables | lines


def _table(points: Any, times_ns: Any) -> Table:
    parsed = tuple((tuple(map(float, point[:-1])), float(point[-1])) for point in points)
    if not parsed or any(ratio <= 0 or len(place) != len(parsed[0][0]) for place, ratio in parsed):
        raise ValueError("a table is empty, or has a ratio that is not positive, or points of different kinds")
    if times_ns and len(times_ns) != len(parsed):
        raise ValueError("a table has more points than times, or fewer")
    return Table(parsed, tuple(map(float, times_ns)))


@cache
def shipped_profile(gpu_name: str) -> Profile | None:
    """The measured profile that comes with the package; None for a GPU that was not measured."""
    if gpu_name not in SHIPPED:
        return None
    file = resources.files("trainfit.cost") / "profiles" / f"{gpu_name}.json"
    return parse_profile(file.read_text(), f"the shipped profile of the {gpu_name}")
