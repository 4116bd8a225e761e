"""`check`: whether a step can be spread as it says. In: the Step. Out: nothing, or the error that says what to pass."""

from __future__ import annotations

from trainfit.errors import BadStep
from trainfit.step import FSDP, Step


def check(step: Step) -> None:
    """Raise where torch would refuse, or fail with less to say."""
    if step.fsdp is not None and step.ddp is not None:
        raise BadStep("the step has both fsdp and ddp", hint="pass one; FSDP(hsdp=...) shards and replicates")
    parallelism = step.fsdp or step.ddp
    if parallelism is None:
        return
    if parallelism.world_size < 1 or parallelism.gpus_per_node < 1:
        raise BadStep(
            f"a world of {parallelism.world_size} ranks, {parallelism.gpus_per_node} to a node",
            hint="pass numbers of at least 1",
        )
    if step.fsdp is not None:
        _check_shards(step.fsdp)
        accumulates = not step.set_to_none or (step.micro_batches > 1 and step.fsdp.sync_every_micro_batch)
        if step.fsdp.offload and accumulates:
            raise BadStep(
                "gradients that accumulate on the host are not modelled",
                hint="pass FSDP(sync_every_micro_batch=False) and set_to_none=True, or leave FSDP(offload=...) out",
            )


def _check_shards(fsdp: FSDP) -> None:
    num_shards = fsdp.world_size if fsdp.hsdp is None else fsdp.hsdp
    if num_shards < 1 or fsdp.world_size % num_shards:
        raise BadStep(
            f"FSDP(hsdp={fsdp.hsdp}) does not divide the world size {fsdp.world_size}",
            hint="pass the number of ranks over which parameters are sharded, usually those of a node",
        )
    reshard = fsdp.reshard_after_forward
    if not isinstance(reshard, bool) and (reshard < 1 or num_shards % reshard):
        raise BadStep(
            f"FSDP(reshard_after_forward={reshard}) does not divide the {num_shards} ranks that parameters are "
            "sharded over",
            hint="pass True, False, or a number of ranks that divides them, usually those of a node",
        )
