"""`agree`: every rank has the same plan, or every rank says which have not, within a bounded time.

In: the digest of this rank's plan, and torch.distributed's process group. Each rank writes its digest into the group's
store, rank 0 compares and writes down what it found. No collective is called, so a rank that never comes hangs nobody:
the others raise `PlanDisagreement` and name it. Where there is no group of several ranks, nothing happens.
"""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trainfit import torch_compat
from trainfit.errors import PlanDisagreement

TIMEOUT_S = 300.0
"""How long rank 0 waits for the others; they wait twice as long for its verdict."""
_ALL_AGREE = "agreed"
_rounds = itertools.count()


def agree_when_ranks_meet(model: nn.Module, digest: str) -> None:
    """Now, if there is a process group; under torchrun, before the model's first forward if there will be one."""
    if torch_compat.has_process_group():
        agree(digest)
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
        model.register_forward_pre_hook(_AgreeOnce(digest))


def agree(digest: str) -> None:
    """Compare the digest with those of all other ranks; all ranks must call this equally often."""
    if not torch_compat.has_process_group() or torch.distributed.get_backend() == "fake":
        return
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if world_size == 1:
        return
    store, prefix = torch_compat.default_store(), f"trainfit/plan/{next(_rounds)}"
    store.set(f"{prefix}/{rank}", digest)
    if rank == 0:
        verdict = _compare(store, prefix, digest, world_size)
        store.set(f"{prefix}/verdict", verdict)
    else:
        verdict = _wait_for_verdict(store, f"{prefix}/verdict")
    if verdict != _ALL_AGREE:
        raise PlanDisagreement(verdict, hint="load the same plan's file on every rank, and apply it on every rank")


def _compare(store: Any, prefix: str, digest: str, world_size: int) -> str:
    keys = [f"{prefix}/{rank}" for rank in range(world_size)]
    try:
        store.wait(keys, datetime.timedelta(seconds=TIMEOUT_S))
    except RuntimeError:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        if missing:
            return f"{_ranks(missing)} did not say within {TIMEOUT_S:g} s which plan they have"
    different = [rank for rank, key in enumerate(keys) if store.get(key).decode() != digest]
    return f"{_ranks(different)} and rank 0 have different plans" if different else _ALL_AGREE


def _wait_for_verdict(store: Any, key: str) -> str:
    try:
        store.wait([key], datetime.timedelta(seconds=2 * TIMEOUT_S))
        verdict: str = store.get(key).decode()
    except RuntimeError as error:
        raise PlanDisagreement(
            f"rank 0 did not say within {2 * TIMEOUT_S:g} s whether all ranks have the same plan",
            hint="see whether rank 0 still runs, and apply the plan on every rank",
        ) from error
    return verdict


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


class _AgreeOnce:
    """A hook that does its work at the first call; a class, so that a model that has it can be pickled."""

    def __init__(self, digest: str) -> None:
        self._digest: str | None = digest

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self._digest is not None:
            digest, self._digest = self._digest, None
            agree(digest)
