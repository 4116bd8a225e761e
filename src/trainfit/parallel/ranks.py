"""A process group of many ranks in one process, of which this is rank 0; collectives are answered by the ghost GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trainfit import torch_compat
from trainfit.errors import UsageError
from trainfit.step import Step


@contextlib.contextmanager
def ranks_of_step(step: Step) -> Iterator[None]:
    """The ranks that the step is spread over; nothing where it is not. Afterwards there is no process group."""
    parallelism = step.fsdp or step.ddp
    if parallelism is None:
        yield
        return
    if torch_compat.has_process_group():
        raise UsageError(
            "a step on several ranks cannot be traced in a process that has a process group of its own",
            hint="estimate and plan before torch.distributed.init_process_group, or in another process",
        )
    with torch_compat.fake_process_group(parallelism.world_size):
        yield
