"""What the communication of a trace costs: collectives by the network, and FSDP2's copies around them as copies.

In: an `Op` that carries the ranks of its group. Out: nanoseconds. No torch.
"""

from __future__ import annotations

from trainfit.cost.network import Network, collective_ns
from trainfit.cost.work import total_bytes
from trainfit.records import Op, TensorRef

COLLECTIVE = "collective"
_COPY_IN = "fsdp.all_gather_copy_in.default"


def is_collective(op: Op) -> bool:
    return any(name == "ranks" and value for name, value in op.kwargs)


def time_ns(op: Op, network: Network) -> float:
    """The whole buffer is the larger side: what a gather makes, what a reduction starts from."""
    sides = [total_bytes(_tensors(argument)) for argument in op.args] + [total_bytes(op.outputs)]
    ranks = dict(op.kwargs)["ranks"]
    assert isinstance(ranks, tuple)
    reduces_to_all = op.name.split(".")[1].startswith(("allreduce", "all_reduce"))
    return collective_ns(reduces_to_all, max(sides), ranks, network)


def as_copy(op: Op) -> Op:
    """The copy of shards into the buffer that is gathered, as the multi-tensor copy that it is; other ops as they
    are."""
    if op.name != _COPY_IN:
        return op
    shards = op.args[0]
    return Op("aten._foreach_copy_.default", op.phase, op.module, (shards, shards), (), ())


def _tensors(argument: object) -> list[TensorRef]:
    if isinstance(argument, TensorRef):
        return [argument]
    if isinstance(argument, tuple):
        return [tensor for item in argument for tensor in _tensors(item)]
    return []
