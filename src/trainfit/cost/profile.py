"""`Profile`: what was measured of one GPU and its host, reduced to the tables that the rules look up.

In: a calibration's samples (`reduce_samples`), or a profile's file (`load_profile`). Out: a `Profile`.

A table holds (coordinates, ratio of measured to ideal time); the ideal is the catalogue's rates of that GPU, which the
file repeats, so that a later correction of the catalogue does not change what was measured. Where an op's kernels
overlap, the table "<rule> overlap" has how many ran at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from trainfit.cost.classify import ROOFLINE, works
from trainfit.cost.described import read_op
from trainfit.cost.host import HostCosts, reduce_host
from trainfit.cost.interpolate import Table
from trainfit.cost.measured_collectives import CollectiveTable, parse_collectives
from trainfit.errors import BadProfile, UnknownGpu
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.records import Phase

SCHEMA = 3
SHIPPED = ("h200",)
"""GPUs whose measured profile comes with the package; the first one's efficiencies serve for all others."""
_RATES = ("bf16_tflops", "fp16_tflops", "tf32_tflops", "fp32_tflops", "fp8_tflops", "dram_gb_per_s")
_POWER_LIMITED = ("mm bfloat16", "mm float16", "addmm bfloat16", "addmm float16")
"""Products that draw so much power that the clock sags after a stretch of them; it never rises above its own speed."""
_COMPUTING = ("mm ", "addmm ", "bmm ", "baddbmm ", "_grouped_mm ", "attention ", "convolution ", "_cudnn_rnn")
"""Ops whose kernels a library chooses: a larger one may be faster (some of cuDNN's grouped convolutions by a factor of
nine), so their times stay as measured."""
_NO_OVERLAP = 1.03
"""Kernels on one stream overlap by as much where one begins while the last blocks of another run."""
_HINT = "write one with 'trainfit calibrate -o my_gpu.json' on that GPU"


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured efficiencies of one GPU, and what its host takes to issue work."""

    gpu: Gpu
    """The catalogue's row with the rates to which the ratios are relative."""
    torch_version: str
    tables: Mapping[str, Table]
    host: HostCosts
    collectives: tuple[CollectiveTable, ...] = ()
    """What was measured among several ranks; empty where there was one."""


def reduce_samples(
    header: Mapping[str, Any], samples: Iterable[Mapping[str, Any]], host: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """The profile, as JSON's values, of a calibration's raw samples."""
    gpu = find_gpu(str(header["gpu"]))
    found: dict[str, dict[tuple[float, ...], list[_Measured]]] = {}
    overlaps: dict[str, dict[tuple[float, ...], float]] = {}
    for sample in samples:
        outputs = [output for output in sample["outputs"] if output]
        op = read_op(sample["op"], sample["args"], sample["kwargs"], outputs, Phase.FORWARD)
        work = next(iter(works(op, gpu.num_sms)), None)
        if work is None or work.rule == ROOFLINE:
            continue
        # In a step operands come from memory and the cache is full of what earlier ops wrote, which must go first. Cold
        # runs pay the one and warm runs the other; where both matter, in ops that only move bytes, take the worse.
        time_ns = sample["cold_ns"] if work.flops else max(sample["warm_ns"], sample["cold_ns"])
        place = tuple(round(value, 2) for value in work.coordinates)
        overlap = sample["overlap"]
        found.setdefault(work.rule, {}).setdefault(place, []).append(_Measured(time_ns / overlap, work.ideal_ns(gpu)))
        overlaps.setdefault(work.rule, {})[place] = overlap
    tables = {rule: _points(rule, points) for rule, points in sorted(found.items())}
    for rule, points in sorted(overlaps.items()):
        if max(points.values()) > _NO_OVERLAP:
            tables[overlap_table(rule)] = [[*map(_short, place), points[place]] for place in sorted(points)]
    rates = {name: getattr(gpu, name) for name in _RATES}
    return {**header, "schema": SCHEMA, "rates": rates, "host": reduce_host(host), "tables": tables}


def overlap_table(rule: str) -> str:
    """The table that says how many kernels of such an op run at once."""
    return f"{rule} overlap"


class _Measured(NamedTuple):
    time_ns: float
    ideal_ns: float


def _points(rule: str, found: Mapping[tuple[float, ...], list[_Measured]]) -> list[list[float]]:
    middle = {place: sorted(runs)[len(runs) // 2] for place, runs in sorted(found.items())}
    if not rule.startswith(_COMPUTING):
        middle = _never_faster_when_larger(middle)
    table = Table(tuple((place, run.time_ns / run.ideal_ns) for place, run in middle.items() if run.time_ns > 0))
    if rule.startswith(_POWER_LIMITED) and len(table.points) > 1:
        table = table.without_sags()
    return [[*map(_short, place), _short(float(f"{ratio:.4g}"))] for place, ratio in table.points]


def _never_faster_when_larger(points: dict[tuple[float, ...], _Measured]) -> dict[tuple[float, ...], _Measured]:
    """Times along each size made to rise: where a larger op was measured to be faster, both take the mean."""
    points = dict(points)
    for axis in range(len(next(iter(points)))):
        lines: dict[tuple[float, ...], list[tuple[float, ...]]] = {}
        for place in points:
            lines.setdefault(place[:axis] + place[axis + 1 :], []).append(place)
        for line in lines.values():
            line.sort(key=lambda place: points[place].ideal_ns)
            for place, time_ns in zip(line, rising([points[place].time_ns for place in line]), strict=True):
                points[place] = points[place]._replace(time_ns=time_ns)
    return points


def rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls: neighbours that do are replaced by their mean, again and again."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, count = pools.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]


def _short(value: float) -> float:
    return int(value) if value == int(value) else value


def write_profile(path: Path, profile: Mapping[str, Any]) -> None:
    """One line per table, so that two profiles can be compared."""
    head = {key: value for key, value in profile.items() if key not in ("tables", "collectives")}
    lines = ",\n  ".join(
        f"{json.dumps(rule)}: {json.dumps(points, separators=(',', ':'))}" for rule, points in profile["tables"].items()
    )
    collectives = ""
    if profile.get("collectives"):
        rows = ",\n  ".join(json.dumps(table, separators=(",", ":")) for table in profile["collectives"])
        collectives = f',\n "collectives": [\n  {rows}\n ]'
    path.write_text(f'{json.dumps(head, indent=1)[:-2]}{collectives},\n "tables": {{\n  {lines}\n }}\n}}\n')


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
        rates = {rate: content["rates"][rate] for rate in _RATES}
        tables = {rule: _table(points) for rule, points in content["tables"].items()}
        host = HostCosts(**{str(kind): int(value) for kind, value in content["host"].items()})
        collectives = parse_collectives(content.get("collectives", ()))
        return Profile(replace(gpu, **rates), str(content["torch"]), tables, host, collectives)
    except UnknownGpu as error:
        raise BadProfile(
            f"{name} is of a GPU that trainfit does not know: {content['gpu']!r}", hint=error.hint
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadProfile(f"{name} is damaged: {type(error).__name__}: {error}", hint=_HINT) from error


def _table(points: Any) -> Table:
    parsed = tuple((tuple(map(float, point[:-1])), float(point[-1])) for point in points)
    if not parsed or any(ratio <= 0 or len(place) != len(parsed[0][0]) for place, ratio in parsed):
        raise ValueError("a table is empty, or has a ratio that is not positive, or points of different kinds")
    return Table(parsed)


@cache
def shipped_profile(gpu_name: str) -> Profile | None:
    """The measured profile that comes with the package; None for a GPU that was not measured."""
    if gpu_name not in SHIPPED:
        return None
    file = resources.files("trainfit.cost") / "profiles" / f"{gpu_name}.json"
    return parse_profile(file.read_text(), f"the shipped profile of the {gpu_name}")
