"""`sweep`: the best plan for each configuration of a grid, on this machine's cores or on a Ray cluster.

In: a function that makes a step, and a grid. Out: results as they are found, appended to a file if one is named. A
sweep that was killed goes on where it was; a configuration that fails is a result that says why.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

import trainfit
from trainfit.errors import UsageError
from trainfit.progress import tell
from trainfit.step import Step
from trainfit.sweeps.cluster import run_on_ray
from trainfit.sweeps.grid import Configuration, Grid, configurations, groups_of
from trainfit.sweeps.journal import append_results, read_results
from trainfit.sweeps.pool import run_locally
from trainfit.sweeps.results import SweepResult, ranked
from trainfit.sweeps.tasks import Job

__all__ = ["Configuration", "Grid", "SweepResult", "configurations", "ranked", "sweep"]


def sweep(
    step_factory: Callable[..., Step],
    grid: Grid,
    *,
    output: str | Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    memory: Literal["reserved", "allocated"] = "reserved",
    allocator: Literal["classic", "expandable"] = "classic",
) -> Iterator[SweepResult]:
    """The best plan for each configuration of `grid`, as they are found; `ranked` puts them in order.

    `grid` has a list of values per axis: "gpu" (default: h200), "budget" ("auto", "min" or a size; default: auto),
    "world_size" (ranks of FSDP2, or of DDP if the step has it; default: as the step is), and any other names, which
    `step_factory` is called with. The factory is a function in a file, since other processes call it.

    `output` is a file of results, one JSON object per line: what it has is not done again, and comes first. `workers`
    is the number of processes, all cores when None. `ray` is the address of a Ray cluster to use instead, or "auto".
    """
    if workers is not None and workers < 1:
        raise UsageError(f"{workers} workers do nothing", hint="pass 1 or more, or None for all cores")
    points = configurations(grid)
    job = Job(step_factory, memory, allocator)
    identity = {
        "target": _name_of(step_factory),
        "memory": memory,
        "allocator": allocator,
        "trainfit": trainfit.__version__,
        "torch": metadata.version("torch"),
    }
    path = None if output is None else Path(output)
    wanted = {_key(point) for point in points}
    earlier = [] if path is None else read_results(path, identity)
    found = [result for result in earlier if _key(result.configuration) in wanted]
    known = {_key(result.configuration) for result in found}
    groups = groups_of([point for point in points if _key(point) not in known])

    def results() -> Iterator[SweepResult]:
        yield from found
        if not groups:
            return
        new = run_locally(job, groups, workers or _num_cores()) if ray is None else run_on_ray(job, groups, ray)
        for num_done, result in enumerate(new if path is None else append_results(path, identity, new), len(found) + 1):
            tell("planning", num_done, len(points))
            yield result

    tell("planning", len(found), len(points))
    return results()


def _key(configuration: Configuration) -> frozenset[tuple[str, object]]:
    """The configuration whatever the order of its axes."""
    return frozenset(configuration.to_json_dict().items())


def _name_of(step_factory: Callable[..., Step]) -> str:
    """What a file of results calls the function: its name, with the arguments that are bound to it."""
    if isinstance(step_factory, functools.partial):
        bound = [*map(repr, step_factory.args), *(f"{name}={value!r}" for name, value in step_factory.keywords.items())]
        return f"{_name_of(step_factory.func)}({', '.join(bound)})"
    return f"{step_factory.__module__}:{getattr(step_factory, '__qualname__', type(step_factory).__qualname__)}"


def _num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
