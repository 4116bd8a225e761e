"""The tasks of a sweep on a Ray cluster. Each trace is one object in Ray's store: made once, fetched once by each node.

What dies with a node is run again on another one, traces that are lost included; that is Ray's doing. Ray is an extra
(`trainfit[ray]`); trainfit, and the file that makes the step, must be where Ray's workers can import them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfit.errors import UsageError
from trainfit.sweeps.grid import Configuration, Family, Group
from trainfit.sweeps.results import Failure, SweepResult, failed, failure_of
from trainfit.sweeps.tasks import Job, solve_group, trace_family

if TYPE_CHECKING:
    from trainfit._plan import TracedStep


def run_on_ray(job: Job, groups: Sequence[Group], address: str) -> Iterator[SweepResult]:
    """The results of all groups, in the order in which they are found."""
    with _connected(address) as ray:
        trace, solve = (ray.remote(num_cpus=1)(task) for task in (_trace, _solve))
        here, the_job = Path.cwd(), ray.put(job)
        traces: dict[Family, Any] = {}
        streams: dict[Any, list[Configuration]] = {}  # and what is still to come from them
        for group in groups:
            if group.family not in traces:
                traces[group.family] = trace.remote(here, the_job, group.family, group.gpu)
            streams[solve.remote(here, the_job, group, traces[group.family])] = list(group.configurations)
        del traces  # a trace is kept for as long as a task needs it
        while streams:
            (stream,), _ = ray.wait(list(streams), num_returns=1)
            left = streams[stream]
            try:
                result = ray.get(next(stream))
            except StopIteration:
                del streams[stream]
                continue
            except ray.exceptions.RayError as error:  # after all that Ray does about it
                del streams[stream]
                yield from (failed(configuration, failure_of(error)) for configuration in left)
                continue
            left.remove(result.configuration)
            yield result


def _trace(folder: Path, job: Job, family: Family, gpu: str) -> TracedStep | Failure:
    _go_to(folder)
    return trace_family(job, family, gpu)


def _solve(folder: Path, job: Job, group: Group, traced: TracedStep | Failure) -> Iterator[SweepResult]:
    _go_to(folder)
    yield from solve_group(job, group, traced)


def _go_to(folder: Path) -> None:
    """A target's path is taken from the folder in which the sweep was started; presets need none."""
    if folder.is_dir():
        os.chdir(folder)


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """The module ray, connected; a connection that was there is used, and left."""
    try:
        import ray
    except ImportError as error:
        raise UsageError("--ray needs Ray, which is not installed", hint="pip install 'trainfit[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"there is no Ray cluster at {address}: {error}",
            hint="start one with ray start --head, or name its address",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
