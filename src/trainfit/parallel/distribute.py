"""`distribute`: a model on the ghost GPU becomes what it is on one rank of many."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainfit import torch_compat
from trainfit.errors import BadStep
from trainfit.stacks import find_blocks
from trainfit.step import DDP, FSDP, Step


@dataclass(frozen=True)
class Distributed:
    """A model as the training loop on one rank has it."""

    model: nn.Module
    """What the loop calls."""
    micro_batch: Callable[[bool], AbstractContextManager[None]]
    """The context of a micro-batch, told whether gradients are synchronized in it."""


def distribute(model: nn.Module, step: Step) -> Distributed:
    """The model spread as the step says, inside `ranks_of_step`; a step for one GPU leaves it as it is."""
    if step.fsdp is not None:
        return _shard(model, step.fsdp)
    if step.ddp is not None:
        return _replicate(model, step.ddp)
    return Distributed(model, lambda synchronizes: contextlib.nullcontext())


def local_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers, as this rank has them, in the order in which `model.to_empty` allocates them."""
    for child in model.children():
        yield from local_tensors(child)
    for tensor in (*model.parameters(recurse=False), *model.buffers(recurse=False)):
        yield torch_compat.local_tensor(tensor)


def _shard(model: nn.Module, fsdp: FSDP) -> Distributed:
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    options: dict[str, Any] = {
        "mesh": _mesh(fsdp),
        "mp_policy": MixedPrecisionPolicy(param_dtype=fsdp.param_dtype, reduce_dtype=fsdp.reduce_dtype),
        # Whether the host's memory is pinned makes no difference on the GPU.
        "offload_policy": CPUOffloadPolicy(pin_memory=False) if fsdp.offload else OffloadPolicy(),
    }
    modules = dict(model.named_modules())
    units = find_blocks(model) if fsdp.units is None else fsdp.units
    for name in units:
        if name not in modules:
            raise BadStep(
                f"FSDP(units=...) names {name!r}, which the model has not",
                hint="name modules as model.named_modules() does",
            )
        fully_shard(modules[name], reshard_after_forward=fsdp.reshard_after_forward, **options)
    fully_shard(model, **options)
    assert isinstance(model, FSDPModule)

    @contextlib.contextmanager
    def micro_batch(synchronizes: bool) -> Iterator[None]:
        model.set_requires_gradient_sync(synchronizes or fsdp.sync_every_micro_batch)
        yield

    return Distributed(model, micro_batch)


def _mesh(fsdp: FSDP) -> torch.distributed.DeviceMesh:
    if fsdp.hsdp is None:
        return torch.distributed.init_device_mesh("cuda", (fsdp.world_size,))
    sizes = (fsdp.world_size // fsdp.hsdp, fsdp.hsdp)
    return torch.distributed.init_device_mesh("cuda", sizes, mesh_dim_names=("replicate", "shard"))


def _replicate(model: nn.Module, ddp: DDP) -> Distributed:
    with torch_compat.unverified_replicas():
        replica = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=ddp.bucket_cap_mb, gradient_as_bucket_view=ddp.gradient_as_bucket_view
        )
    stream = torch.cuda.Stream()

    def reduce(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
        """What torch does where no hook is given, on a stream that can be seen: NCCL's own cannot."""
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            torch.distributed.all_reduce(bucket.buffer(), async_op=True)
        event = stream.record_event()
        torch_compat.after_backward(lambda: current.wait_event(event))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    replica.register_comm_hook(None, reduce)
    torch_compat.silence_replica(replica)

    def micro_batch(synchronizes: bool) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if synchronizes or ddp.sync_every_micro_batch else replica.no_sync()

    return Distributed(replica, micro_batch)
