"""Losses that are averaged or summed: the loss of each element is a tensor of its own first.

Each rule says which tensor expressions of the host code make the buffers. These losses are composed in C++ for all
devices (ATen/native/Loss.cpp), so torch's profiler shows the same order on the CPU; peaks of yolo, mask2former and
temporal_net on an H200 are theirs (results/libraries_h200.jsonl, survey_h200.jsonl).
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.reductions import staging
from trainfit.gpus.hidden.tensors import Rule, argument, item_bytes, nbytes, product, tensor_argument
from trainfit.records import OUTPUT, Op, TensorRef


def _reduced(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The losses of the elements; the result was made before, as large (structured kernels resize it)."""
    losses = _losses(tensor_argument(op, 0), tensor_argument(op, 1))
    return (nbytes(losses), *staging(losses, (), gpu)) if _is_reduced(op, 2) else ()


def _huber(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The losses of the elements come before the result."""
    losses = _losses(tensor_argument(op, 0), tensor_argument(op, 1))
    return (nbytes(losses), OUTPUT, *staging(losses, (), gpu)) if _is_reduced(op, 2) else ()


def _reduced_within(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """What is averaged is copied into the losses of the elements, which are the result and stay as large."""
    place = 3 if op.name.startswith("aten.binary") else 2
    losses = _flat(tensor_argument(op, 0))
    return (item_bytes(losses.dtype), *staging(losses, (), gpu)) if _is_reduced(op, place) else ()


def _cross_entropy_with_logits(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """log_sigmoid(input); (pos_weight - 1).mul(target), which is gone when the losses come; 1 - target, which becomes
    the losses of the elements."""
    x, target = tensor_argument(op, 0), tensor_argument(op, 1)
    positive = argument(op, 3, "pos_weight", None)
    weights: tuple[int, ...] = ()
    if isinstance(positive, TensorRef):
        weighted = nbytes(_losses(positive, target))
        weights = (nbytes(positive), weighted, -nbytes(positive), -weighted)
    if not _is_reduced(op, 4):
        return (nbytes(x), *weights, OUTPUT)
    losses = _flat(target)
    return (nbytes(x), *weights, nbytes(losses), OUTPUT, *staging(losses, (), gpu))


def _soft_margin_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """exp(-target * input), whose parts go when it is there, before the result."""
    size = nbytes(tensor_argument(op, 1))
    return (size, size, size, -size, -size, OUTPUT)


def _is_reduced(op: Op, place: int) -> bool:
    return argument(op, place, "reduction", 1) != 0


def _losses(x: TensorRef, target: TensorRef) -> TensorRef:
    """One for each element of both, of the wider type."""
    wider = max(x, target, key=lambda tensor: item_bytes(tensor.dtype))
    larger = max(x, target, key=lambda tensor: tensor.numel)
    return _flat(TensorRef(x.storage, wider.dtype, larger.shape, larger.stride, 0))


def _flat(tensor: TensorRef) -> TensorRef:
    return TensorRef(tensor.storage, tensor.dtype, (product(tensor.shape),), (1,), 0)


RULES: dict[str, Rule] = {
    "aten.mse_loss.default": _reduced,
    "aten.smooth_l1_loss.default": _reduced,
    "aten.huber_loss.default": _huber,
    "aten.binary_cross_entropy.default": _reduced_within,
    "aten.soft_margin_loss.default": _reduced_within,
    "aten.soft_margin_loss_backward.default": _soft_margin_backward,
    "aten.binary_cross_entropy_with_logits.default": _cross_entropy_with_logits,
}
