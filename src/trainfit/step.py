"""`Step`: one training step as the user describes it. Nothing is run here; `trace` runs it on a ghost GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class FSDP:
    """torch's FSDP2: `fully_shard` on each unit, then on the model, built without memory and materialized sharded."""

    world_size: int
    gpus_per_node: int = 8
    units: tuple[str, ...] | None = None
    """Modules, named as `named_modules()` does, that are sharded on their own; the repeated blocks when None. The root
    is sharded besides."""
    reshard_after_forward: bool | int = True
    """As `fully_shard` takes it for the units: free unsharded parameters after forward, keep them, or keep them sharded
    over so many ranks. The root keeps torch's own choice."""
    param_dtype: torch.dtype | None = None
    """Mixed precision: the dtype in which parameters are gathered and computed with."""
    reduce_dtype: torch.dtype | None = None
    """The dtype in which gradients are reduced."""
    offload: bool = False
    """Keep sharded parameters, gradients and optimizer state on the host, where the optimizer runs: the GPU's memory is
    predicted, what the host does meanwhile is not."""
    hsdp: int | None = None
    """Shard over so many ranks, and replicate over the rest; None to shard over all."""
    sync_every_micro_batch: bool = True
    """False for `set_requires_gradient_sync(False)` in all micro-batches but the last."""
    intra_node_gb_per_s: float | None = None
    """What a GPU can send to others of its node; by its links when None."""
    inter_node_gb_per_s: float | None = None
    """What a GPU can send to other nodes; by a usual network when None."""


@dataclass(frozen=True, kw_only=True)
class DDP:
    """torch's DistributedDataParallel."""

    world_size: int
    gpus_per_node: int = 8
    bucket_cap_mb: int | None = None
    """The largest bucket, in MiB; None for torch's own: 25, and 1 for the first."""
    gradient_as_bucket_view: bool = False
    sync_every_micro_batch: bool = True
    """False for `no_sync()` in all micro-batches but the last."""
    intra_node_gb_per_s: float | None = None
    """What a GPU can send to others of its node; by its links when None."""
    inter_node_gb_per_s: float | None = None
    """What a GPU can send to other nodes; by a usual network when None."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Everything that one optimizer step needs; the step that is predicted is:

    for each of `micro_batches`: loss(model(batch)).backward() under autocast
    unscale and clip the gradients if asked, optimizer.step(), optimizer.zero_grad(set_to_none)
    """

    model: nn.Module | Callable[[], nn.Module]
    """A module on any device (meta included), or a callable that builds one. One in evaluation mode is trained all the
    same; in one that is in training mode, modules that are not stay so."""
    batch: Mapping[str, Any] | tuple[Any, ...]
    """Keyword arguments (a mapping) or positional arguments (a tuple) of the model, for one micro-batch."""
    optimizer: Callable[..., torch.optim.Optimizer] | None = None
    """An optimizer class, or a callable on the parameters; AdamW with its defaults when None."""
    loss: Callable[[Any], torch.Tensor] | None = None
    """Turns the model's output into a scalar; when None, the output's `.loss`, or the output if it is a scalar."""
    autocast: torch.dtype | None = None
    """torch.bfloat16 or torch.float16 to run the forward under torch.autocast; None for no autocast."""
    grad_scaler: bool = False
    """Scale the loss with torch.amp.GradScaler (fp16 autocast)."""
    clip_grad_norm: float | None = None
    """Maximal gradient norm for torch.nn.utils.clip_grad_norm_ before the optimizer's step."""
    micro_batches: int = 1
    """Forward and backward passes per optimizer step (gradient accumulation)."""
    set_to_none: bool = True
    """Whether zero_grad frees the gradients (torch's default) or keeps and zeroes them."""
    fsdp: FSDP | None = None
    """How the model is sharded over ranks; the step is then that of one rank."""
    ddp: DDP | None = None
    """How the model is replicated over ranks."""

    @property
    def parallelism(self) -> str | None:
        """How the step is spread over GPUs, in words; None where there is one."""
        if self.fsdp is not None:
            shards = "" if self.fsdp.hsdp is None else f", sharded over {self.fsdp.hsdp}"
            return f"FSDP2 over {self.fsdp.world_size} GPUs{shards}"
        return None if self.ddp is None else f"DDP over {self.ddp.world_size} GPUs"
