"""What the communication of a trace costs: collectives by the network, and FSDP2's copies around them as copies.

In: an `Op` that carries the ranks of its group, and what was measured of such collectives, if anything was. Out:
nanoseconds. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainfit.cost.measured_collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, CollectiveTable, nearest
from trainfit.cost.network import Network, collective_ns
from trainfit.cost.work import total_bytes
from trainfit.records import Op, TensorRef

COLLECTIVE, MEASURED_COLLECTIVE = "collective", "measured collective"
_COPY_IN = "fsdp.all_gather_copy_in.default"


def is_collective(op: Op) -> bool:
    return any(name == "ranks" and value for name, value in op.kwargs)


def time_ns(op: Op, network: Network, measured: Sequence[CollectiveTable] = ()) -> tuple[float, str]:
    """The op's time and the rule that gave it.

    The whole buffer is the larger side: what a gather makes, what a reduction starts from.
    """
    nbytes = max([total_bytes(_tensors(argument)) for argument in op.args] + [total_bytes(op.outputs)])
    ranks = dict(op.kwargs)["ranks"]
    assert isinstance(ranks, tuple)
    kind, num_ranks, num_nodes = _kind(op), len(ranks), network.nodes_of(ranks)
    modelled_ns = collective_ns(kind == ALL_REDUCE, nbytes, num_ranks, num_nodes, network)
    table = nearest(measured, kind, num_ranks, num_nodes, network)
    if table is None or modelled_ns == 0:
        return modelled_ns, COLLECTIVE
    return modelled_ns * table.correction(nbytes, network), MEASURED_COLLECTIVE


def _kind(op: Op) -> str:
    """What is neither a sum nor the half of one moves its buffer once, as a gather does."""
    name = op.name.split(".")[1].lstrip("_")
    if name.startswith(("allreduce", "all_reduce")):
        return ALL_REDUCE
    return REDUCE_SCATTER if name.startswith("reduce_scatter") else ALL_GATHER


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
