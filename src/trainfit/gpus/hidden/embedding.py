"""Embedding: the sorted indices and partial sums of the backward pass (EmbeddingBackwardKernel.cu), bags too.

N tokens, a table of V rows of D columns. Few tokens are added one by one; beyond 3072 the indices are sorted, runs of
equal indices are cut into parts of 10 rows, and the parts are summed in fp32 before they are added up.
Probe: the embedding sweep and every embedding of the models.
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.cub import index_sort_bytes, scan_bytes, unique_by_key_bytes
from trainfit.gpus.hidden.tensors import (
    HALVES,
    Rule,
    argument,
    copy_unless_contiguous,
    freed,
    integers,
    tensor_argument,
)
from trainfit.records import LAST_OUTPUT, OUTPUT, Op

_UNSORTED_TOKENS = 3072
_ROWS_PER_PART = 10
_BLOCKS_PER_SM = 4
_MANY_PARTS = 4
_MAX_MODE = 2


def _forward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Indices are made contiguous before the rows are gathered."""
    copies = copy_unless_contiguous(tensor_argument(op, 1))
    return (*copies, OUTPUT) if copies else ()


def _backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    gradient, indices = tensor_argument(op, 0), tensor_argument(op, 1)
    num_rows, width = integers(op.args[2])[0], gradient.shape[-1]
    num_tokens = indices.numel
    copies = copy_unless_contiguous(gradient) + copy_unless_contiguous(indices)
    if num_tokens <= _UNSORTED_TOKENS and not argument(op, 4, "scale_grad_by_freq", False):
        return (*copies, OUTPUT) if copies else ()
    return copies + _sorted_sums(num_tokens, num_rows, width, gradient.dtype, gpu)


def _bag(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The sizes of the bags and the bag of each index come before the sums (EmbeddingBag.cu)."""
    return (LAST_OUTPUT, LAST_OUTPUT, OUTPUT)


def _bag_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """However few, the indices of sums and means are sorted."""
    gradient, indices = tensor_argument(op, 0), tensor_argument(op, 1)
    num_rows, width = integers(op.args[6])[0], gradient.shape[-1]
    copies = copy_unless_contiguous(gradient)
    if argument(op, 8, "mode", 0) == _MAX_MODE:
        return (*copies, OUTPUT) if copies else ()
    return (*copies, *_sorted_sums(indices.numel, num_rows, width, gradient.dtype, gpu, of_bags=True))


def _sorted_sums(
    num_tokens: int, num_rows: int, width: int, dtype: str, gpu: Gpu, of_bags: bool = False
) -> tuple[int, ...]:
    tokens_bytes = 8 * num_tokens
    sorting = (tokens_bytes, index_sort_bytes(num_tokens, 64))
    segments = min(num_tokens, num_rows)
    parts = num_tokens // _ROWS_PER_PART + segments
    unique = (tokens_bytes, unique_by_key_bytes(num_tokens))
    scan = scan_bytes(segments, "int64")
    offsets = (8 * segments, 8 * segments, scan, -scan)
    starts = (tokens_bytes, 8, *unique, *freed(unique), *offsets, 8, 8 * parts)
    if not of_bags and _is_summed_in_place(parts, segments, gpu):
        sums: tuple[int, ...] = (8 * parts,)
        if dtype in HALVES:
            sums += (4 * num_rows * width,)
    else:
        sums = (4 * parts * width,)
    return (tokens_bytes, tokens_bytes, *sorting, *freed(sorting), OUTPUT, *starts, *sums)


def _is_summed_in_place(parts: int, segments: int, gpu: Gpu) -> bool:
    """Few segments of many parts are added with atomics straight into the table's gradient (fp32)."""
    return segments < gpu.num_sms * _BLOCKS_PER_SM and parts > _MANY_PARTS * segments


RULES: dict[str, Rule] = {
    "aten.embedding.default": _forward,
    "aten.embedding_dense_backward.default": _backward,
    "aten._embedding_bag.default": _bag,
    "aten._embedding_bag_backward.default": _bag_backward,
}
