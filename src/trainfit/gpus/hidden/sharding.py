"""FSDP2's copies around its collectives: the tables of addresses and sizes that their kernels read.

Source: TensorShape.cu. Both kernels get their tables in one int64 buffer, which is freed right after the launch. They
are those for dense tensors of one dtype (or bfloat16 gradients that become float32); FSDP2 calls them with no others,
and from torch 2.15 on once for each dtype where a unit has several.
"""

from __future__ import annotations

from math import ceil, prod, sqrt

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.tensors import Rule, ceil_div, integers, item_bytes, tensor_argument
from trainfit.records import Op, TensorRef

_THREADS = 128
_TILE_BYTES = 16 * _THREADS
_INT64_BYTES = 8


def _split_copy(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Per split two addresses, a size and a running sum of blocks (which starts with a 0), per block its split."""
    gathered = tensor_argument(op, 0)
    chunk_bytes = [size * item_bytes(gathered.dtype) for size in integers(op.args[1])]
    num_chunks = gathered.shape[0]
    max_blocks = gpu.num_sms * _threads_per_sm(gpu) // _THREADS * 2
    rounds = ceil_div(sum(ceil_div(size, _TILE_BYTES) for size in chunk_bytes) * num_chunks, max_blocks)
    chunks_per_block = min(ceil(sqrt(rounds)), num_chunks)
    tile_bytes = _TILE_BYTES * ceil_div(rounds, chunks_per_block)
    num_blocks = sum(ceil_div(size, tile_bytes) for size in chunk_bytes)
    return (_INT64_BYTES * (4 * len(chunk_bytes) + 1 + num_blocks),)


def _chunk_cat(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Per tensor an address, four sizes and two running sums (which start with a 0), per block its tensor; a table for
    each dtype, one after the other."""
    tensors, _, num_chunks = op.args[:3]
    out = dict(op.kwargs)["out"]
    if not isinstance(tensors, tuple) or not isinstance(num_chunks, int) or not isinstance(out, TensorRef):
        raise ValueError(f"{op.name} should have a list of tensors, a dimension, a number of chunks and an output")
    steps: list[int] = []
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        shapes = [t.shape for t in tensors if t.dtype == dtype]
        part_bytes = (ceil_div(rows, num_chunks) * prod(rest) * item_bytes(out.dtype) for rows, *rest in shapes)
        num_blocks = sum(ceil_div(size, _TILE_BYTES) for size in part_bytes)
        nbytes = _INT64_BYTES * (6 * len(shapes) + 2 + num_blocks)
        steps += [nbytes, -nbytes]
    return tuple(steps[:-1])


def _threads_per_sm(gpu: Gpu) -> int:
    """How many threads a processor can hold, by architecture (CUDA programming guide)."""
    if gpu.compute_capability == (7, 5):
        return 1024
    return 1536 if gpu.compute_capability in ((8, 6), (8, 9), (12, 0)) else 2048


RULES: dict[str, Rule] = {
    "fsdp.split_with_sizes_copy.default": _split_copy,
    "fsdp.chunk_cat.default": _chunk_cat,
    "fsdp.chunk_cat_mixed_dtype.default": _chunk_cat,
}
