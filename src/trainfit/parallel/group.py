"""A process group of many ranks in one process, of which this is rank 0; collectives are answered by the ghost GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from trainfit import torch_compat
from trainfit.errors import UsageError
from trainfit.parallel.check import check
from trainfit.step import Step


@contextlib.contextmanager
def ranks(world_size: int) -> Iterator[None]:
    """A context in which this process is rank 0 of `world_size` ranks that are not there.

    For models that are spread over ranks by code of their own, tensor parallel ones say: build, estimate and plan them
    inside. Afterwards there is no process group.
    """
    if world_size < 1:
        raise UsageError(f"a world of {world_size} ranks", hint="pass a number of at least 1")
    if torch_compat.has_process_group():
        raise UsageError(
            "ranks that are not there cannot join a process that has a process group of its own",
            hint="estimate and plan before torch.distributed.init_process_group, or in another process",
        )
    with torch_compat.fake_process_group(world_size):
        yield


def ranks_of_step(step: Step) -> AbstractContextManager[None]:
    """The ranks that the step is spread over; nothing where it is not. A step that cannot be is an error."""
    check(step)
    parallelism = step.fsdp or step.ddp
    return contextlib.nullcontext() if parallelism is None else ranks(parallelism.world_size)
