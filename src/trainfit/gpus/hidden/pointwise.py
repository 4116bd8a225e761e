"""Ops that copy or convert an operand first: softmax, dropout, rolls, products of groups, foreach norms, drawn places.

Each rule says which tensor expression of the kernel's host code makes the buffer. Probes: the rows of the models,
benchmarks/results/hidden_calls_h200.jsonl.gz.
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.cub import scan_bytes
from trainfit.gpus.hidden.tensors import (
    Rule,
    argument,
    ceil_div,
    copy_unless_contiguous,
    integers,
    nbytes,
    tensor_argument,
)
from trainfit.records import LAST_OUTPUT, OUTPUT, Op, TensorRef

_FOREACH_CHUNK = 65536


def _softmax(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """SoftMax.cu works on contiguous input."""
    return copy_unless_contiguous(tensor_argument(op, 0))


def _softmax_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """gradient * output, formed before the kernel, which works on contiguous input: the product lies as the gradient
    does (SoftMax.cu)."""
    gradient = tensor_argument(op, 0)
    return nbytes(gradient), *copy_unless_contiguous(gradient)


def _log_softmax_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """SoftMax.cu."""
    return copy_unless_contiguous(tensor_argument(op, 0))


def _dropout(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The mask is made before the result (Dropout.cu)."""
    return (LAST_OUTPUT, OUTPUT)


def _safe_softmax(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Which entries are -inf, which rows are nothing but that, and a zero to fill those with (attention.cpp)."""
    x = tensor_argument(op, 0)
    dim = integers(op.args[1])[0]
    return (x.numel, x.numel // x.shape[dim], nbytes(x) // x.numel)


def _roll(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """One dimension after the other, each out of place (TensorTransformations.cpp)."""
    x = tensor_argument(op, 0)
    num_dims = len(integers(op.args[1]))
    return (nbytes(x),) * min(num_dims - 1, 2) + (OUTPUT,) if num_dims > 1 else ()


def _grouped_mm(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Problem sizes and pointers per group, and tensor maps per multiprocessor (GroupMM.cu).

    Other precisions and GPUs multiply group by group, straight into the result (GroupedMMUtils.h's fallback).
    """
    if tensor_argument(op, 0).dtype != "bfloat16" or gpu.compute_capability not in ((9, 0), (10, 0)):
        return ()
    offsets = argument(op, 2, "offs", None)
    groups = offsets.numel if isinstance(offsets, TensorRef) else tensor_argument(op, 1).shape[0]
    return (60 * groups, 512 * gpu.num_sms)


def _foreach_norm(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """One number per chunk of the largest tensor, for every tensor (ForeachReduceOp.cu)."""
    tensors = list(op.input_refs())
    chunks = ceil_div(max((tensor.numel for tensor in tensors), default=0), _FOREACH_CHUNK)
    partial = 4 * len(tensors) * chunks
    return (partial, *(OUTPUT,) * len(tensors)) if partial else ()


def _rrelu(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """RreluWithNoise.cu, in training: `input_`, `noise_` and, in place, `output` once more, all contiguous."""
    if not argument(op, 4, "training", False):
        return ()
    x, noise = tensor_argument(op, 0), tensor_argument(op, 1)
    return (
        *copy_unless_contiguous(x),
        *copy_unless_contiguous(noise),
        *(copy_unless_contiguous(x) if op.name.startswith("aten.rrelu_with_noise_.") else ()),
    )


def _real_of_complex(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The same numbers as complex ones, of which the result is the real part (UnaryOps.cpp)."""
    x = tensor_argument(op, 0)
    return (nbytes(x),) if x.dtype.startswith("complex") else ()


def _multinomial(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Exponential numbers, and beside them what was asked before: whether probabilities are finite and none negative,
    whether a row has none but zeros (Distributions.cpp). Several with replacement: probabilities, normed, summed up
    (MultinomialKernel.cu)."""
    x = tensor_argument(op, 0)
    if argument(op, 1, "num_samples", 1) != 1 and argument(op, 2, "replacement", False):
        is_one_row = len(x.shape) == 1
        return (nbytes(x), nbytes(x), nbytes(x), *((scan_bytes(x.numel, x.dtype),) if is_one_row else ()))
    return (1, 1, nbytes(x))


RULES: dict[str, Rule] = {
    "aten.native_dropout.default": _dropout,
    "aten._log_softmax.default": _softmax,
    "aten._softmax.default": _softmax,
    "aten._softmax_backward_data.default": _softmax_backward,
    "aten._log_softmax_backward_data.default": _log_softmax_backward,
    "aten._safe_softmax.default": _safe_softmax,
    "aten.roll.default": _roll,
    "aten.abs.default": _real_of_complex,
    "aten.angle.default": _real_of_complex,
    "aten.multinomial.default": _multinomial,
    "aten.rrelu_with_noise.default": _rrelu,
    "aten.rrelu_with_noise_.default": _rrelu,
    "aten._grouped_mm.default": _grouped_mm,
    "aten._foreach_norm.Scalar": _foreach_norm,
}
