"""`works`: the ways to price an op, the best first; none for an op that launches no kernel.

In: an `Op`, of a trace or of a calibration. Out: `Work`s; the last one, `roofline`, is for what no rule covers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from trainfit.cost import (
    arrivals,
    attention,
    convolution,
    fourier,
    image_norms,
    lists,
    lookups,
    losses,
    moves,
    pools,
    products,
    recurrent,
    reductions,
    rowwise,
    samplers,
    stream,
    walks,
    windows,
)
from trainfit.cost.work import Work, argument, base_name, contiguous_stride, log, tensors_of, total_bytes
from trainfit.records import Op, TensorRef

ROOFLINE = "roofline"
"""The rule of last resort: bytes at the efficiency of a contiguous pointwise op."""

Rule = Callable[[Op], tuple[Work, ...]]

_FREE = frozenset(
    """empty empty_like empty_strided new_empty new_empty_strided detach view _unsafe_view reshape alias t transpose
    permute expand squeeze unsqueeze slice select split split_with_sizes chunk unbind narrow as_strided view_as_real
    view_as_complex _reshape_alias lift_fresh unfold diagonal swapaxes movedim set resize _conj real imag is_same_size
    record_stream _cudnn_rnn_flatten_weight _has_compatible_shallow_copy_type _nested_view_from_buffer lift sym_size
    _assert_async _assert_tensor_metadata _use_cudnn_ctc_loss _use_miopen_ctc_loss fsdp.record_grad_output_stream
    profiler._record_function_enter_new profiler._record_function_exit""".split()
)


_CONVOLUTIONS = ("convolution", "convolution_backward")
_PIECES = {"embedding_dense_backward", "im2col", "col2im"}
_OF_ROWS = rowwise.ROW_NORMS | rowwise.SOFTMAXES | walks.RUNNING | _PIECES
"""Norms, softmax, scans, windows and gradients of lookups copy an operand that does not lie in rows."""
_FIRST_OF_ROWS = {"roll", *(f"reflection_pad{dims}d{way}" for dims in (1, 2, 3) for way in ("", "_backward"))}
"""Shifts and margins copy the first of theirs."""


def _rules() -> Iterator[tuple[str, Rule]]:
    for names, rule in (
        (stream.COPIES | stream.FILLS | stream.SIMPLE | stream.HEAVY, stream.pointwise),
        (moves.MOVES, moves.move),
        (moves.JOINS, moves.join),
        (moves.SCATTERS, moves.scattered),
    ):
        yield from ((name, rule) for name in names)
    yield from ((name, arrivals.copied) for name in arrivals.ARRIVALS)
    yield from ((name, stream.loss) for name in stream.LOSSES)
    yield from ((name, fourier.transform) for name in fourier.TRANSFORMS)
    for name in moves.PLACED:
        yield name, lambda op: stream.pointwise(moves.filled(op))
    for name in ("index_put", "_index_put_impl", "_unsafe_index_put"):
        yield name, lambda op: (*lookups.accumulated(op), *moves.move(op))
    yield "_embedding_bag", moves.embedding_bag
    yield from ((name, rowwise.distance) for name in rowwise.DISTANCES)
    yield from ((name, lookups.embedding_backward) for name in ("embedding_dense_backward", "_embedding_bag_backward"))
    yield from ((f"_weight_norm_interface{way}", rowwise.weight_norm) for way in ("", "_backward"))
    yield "_grouped_mm", products.grouped_matmul
    yield from ((name, convolution.convolution) for name in _CONVOLUTIONS)


_RULES = dict(_rules())


_BY_PROCESSORS: tuple[tuple[Collection[str], Callable[[Op, int], tuple[Work, ...]]], ...] = (
    (products.MATMULS, products.matmul),
    (attention.ATTENTIONS, attention.attention),
    (rowwise.ROW_NORMS, rowwise.row_norm),
    (image_norms.IMAGE_NORMS, image_norms.image_norm),
    (walks.RUNNING, walks.running),
    (walks.ORDERED, walks.ordered),
    (rowwise.SOFTMAXES, walks.softmax),
    (pools.POOLS, pools.pool),
    (samplers.SAMPLERS, samplers.sampled),
    (reductions.REDUCTIONS, reductions.reduction),
    (recurrent.RECURRENT, recurrent.recurrent),
    (losses.LOSSES, losses.nll_loss),
    (("im2col",), windows.taken_apart),
    (("col2im",), windows.put_together),
)
"""Rules that must know how many processors share the work."""


def works(op: Op, num_sms: int) -> tuple[Work, ...]:
    """The op's prices, on a GPU of so many processors, in order of preference; empty when it does nothing."""
    name = base_name(op)
    if is_free(op, name):
        return ()
    if name in arrivals.INDEXED:
        op = arrivals.with_indices(op)
    for names, by_processors in _BY_PROCESSORS:
        if name in names:
            return _with_roofline(op, by_processors(op, num_sms))
    if name.removeprefix("_").startswith("linalg_"):
        return _with_roofline(op, rowwise.factored(op))
    rule = (
        lists.foreach
        if name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_amp_foreach_"))
        else _RULES.get(name, moves.own)
    )
    return _with_roofline(op, rule(op))


def is_free(op: Op, name: str) -> bool:
    """Views and allocations; ops on empty tensors; ops of the host."""
    if name in _FREE:
        return True
    inputs = {tensor.storage for tensor in op.input_refs()}
    if not inputs and not op.outputs:
        return True
    is_in_place = op.name.split(".")[1].endswith("_")
    if not is_in_place and op.outputs and all(tensor.storage in inputs for tensor in op.outputs):
        return True
    return bool(op.outputs) and all(tensor.numel == 0 for tensor in op.outputs)


def _with_roofline(op: Op, works_by_rule: tuple[Work, ...]) -> tuple[Work, ...]:
    """The works, and last what remains of them when a profile has no table for any: operations and bytes."""
    nbytes = total_bytes(op.input_refs()) + total_bytes(op.outputs)
    largest = max((tensor.numel for tensor in (*op.input_refs(), *op.outputs)), default=1)
    coordinates = (*log(nbytes, nbytes / max(largest, 1)), 1.0)
    if works_by_rule:
        return (
            *works_by_rule,
            replace(works_by_rule[0], rule=ROOFLINE, coordinates=coordinates, num_sizes=0, family=None),
        )
    return (Work(ROOFLINE, coordinates, 0, "", nbytes, is_by_bytes=True),)


def hidden_ops(op: Op) -> tuple[Op, ...]:
    """What the op runs beside its own kernel: copies of operands which that cannot read as they lie, of what a
    batched product adds to, into the result, of indices from the host; a convolution's other passes and its bias; what
    torch does around a Fourier transform."""
    name = base_name(op)
    if name in arrivals.INDEXED:
        return arrivals.brought(op)
    if name in moves.PLACED:
        return moves.placed(op)
    if name in moves.JOINS:
        return moves.copied_pieces(op)[1:]
    if name == "baddbmm" and argument(op, 3, "beta", 1) != 0:
        added, out = tensors_of(op.args)[0], op.outputs[0]
        return (Op("aten.clone.default", op.phase, op.module, (_expanded(added, out.shape),), (), (out,)),)
    if name in _CONVOLUTIONS:
        return convolution.others(op)
    if name in fourier.TRANSFORMS:
        return fourier.beside(op)
    if name == "max_pool2d_with_indices_backward":
        return pools.turned(op)
    if name not in _OF_ROWS | _FIRST_OF_ROWS:
        return ()
    copies = []
    for tensor in itertools.islice(op.input_refs(), 1 if name in _FIRST_OF_ROWS else None):
        if tensor.numel > 1 and len(tensor.shape) > 1 and not stream.is_contiguous(tensor):
            rows = replace(tensor, storage=-1, stride=contiguous_stride(tensor.shape))
            copies.append(Op("aten.clone.default", op.phase, op.module, (tensor,), (), (rows,)))
    return tuple(copies)


def _expanded(tensor: TensorRef, shape: tuple[int, ...]) -> TensorRef:
    """The tensor seen as one of that shape: what it repeats has stride 0."""
    missing = len(shape) - len(tensor.shape)
    sizes, strides = (1,) * missing + tensor.shape, (0,) * missing + tensor.stride
    stride = tuple(0 if size == 1 else step for size, step in zip(sizes, strides, strict=True))
    return replace(tensor, shape=shape, stride=stride)
