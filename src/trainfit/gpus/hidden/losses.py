"""Losses: the loss of each element is a tensor of its own before it is averaged or summed; losses by class, CTC.

Each rule says which tensor expressions of the host code make the buffers. Those of ATen/native/Loss.cpp are composed
for all devices, so torch's profiler shows the same order on the CPU; three yolos and temporal_net have their peaks in
them, equal to an H200's (benchmarks/results/libraries_h200.md, survey_h200.md). Losses by class and CTC are confirmed
by single calls there (hidden_calls_h200.jsonl.gz).
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden import reductions
from trainfit.gpus.hidden.reductions import staging
from trainfit.gpus.hidden.tensors import (
    Rule,
    argument,
    copy_unless_contiguous,
    flat,
    freed,
    item_bytes,
    nbytes,
    tensor_argument,
)
from trainfit.records import LAST_OUTPUT, OUTPUT, Op, TensorRef


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
    losses = flat(tensor_argument(op, 0))
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
    losses = flat(target)
    return (nbytes(x), *weights, nbytes(losses), OUTPUT, *staging(losses, (), gpu))


def _soft_margin_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """exp(-target * input), whose parts go when it is there, before the result."""
    size = nbytes(tensor_argument(op, 1))
    return (size, size, size, -size, -size, OUTPUT)


_CONTIGUOUS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "aten.nll_loss_forward.default": ((0, 1, 2), (0, 1, 2), 3),
    "aten.nll_loss_backward.default": ((2, 1, 0, 3), (2, 1, 0, 3), 4),
    "aten.nll_loss2d_forward.default": ((0, 2, 1), (2,), 3),
    "aten.nll_loss2d_backward.default": ((2, 3), (3,), 4),
}
"""Arguments of which contiguous copies are made, in order; those if nothing is reduced; where `reduction` stands."""


def _loss_by_class(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`expect_contiguous()` of what the kernels read by pointers (Loss.cu, NLLLoss2d.cu)."""
    reduced, unreduced, place = _CONTIGUOUS[op.name]
    arguments = [op.args[index] for index in (reduced if argument(op, place, "reduction", 1) else unreduced)]
    tensors = [value for value in arguments if isinstance(value, TensorRef)]
    return tuple(step for tensor in tensors for step in copy_unless_contiguous(tensor))


def _ctc(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Lengths of targets and inputs and where the targets start, int64 each, then log_alpha, then the losses
    (`ctc_loss_gpu_template` in LossCTC.cu)."""
    batch = tensor_argument(op, 0).shape[1]
    return (*(8 * batch,) * 3, LAST_OUTPUT, OUTPUT)


_SMALL_CTC = 450
"""Up to this a problem's gradient is computed by one kernel (LossCTC.cu's own measure of size)."""


def _ctc_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The same, log_beta, the gradient; of large problems, blanks by a logsumexp of log_alpha + log_beta, and with
    zero_infinity a second gradient (`ctc_loss_backward_gpu_template` in LossCTC.cu)."""
    log_probs, log_alpha = tensor_argument(op, 1), tensor_argument(op, 6)
    steps, batch, labels = log_probs.shape
    item = item_bytes(log_probs.dtype)
    first = (*(8 * batch,) * 3, nbytes(log_alpha))
    if 2 * steps + 24 * batch // 10 + 2 * labels // 10 <= _SMALL_CTC:
        return (*first, OUTPUT)
    rows, size = batch * log_alpha.shape[1], log_alpha.shape[2] // 2 + 1
    both = TensorRef(0, log_probs.dtype, (rows, size), (size, 1), 0)
    logsumexp = Op("aten.logsumexp.default", op.phase, "", (both, (1,), True), (), ())
    inner = reductions.RULES["aten.logsumexp.default"](logsumexp, gpu)
    blanks = (nbytes(both), *(step if step != OUTPUT else item * rows for step in inner))
    live: list[int] = []
    for step in blanks:
        live.append(step) if step > 0 else live.remove(-step)
    blanks += freed(live)
    if not argument(op, 8, "zero_infinity", False):
        return (*first, OUTPUT, *blanks)
    return (*first, nbytes(log_probs), *blanks, batch, item, OUTPUT)


def _is_reduced(op: Op, place: int) -> bool:
    return argument(op, place, "reduction", 1) != 0


def _losses(x: TensorRef, target: TensorRef) -> TensorRef:
    """One for each element of both, of the wider type."""
    wider = max(x, target, key=lambda tensor: item_bytes(tensor.dtype))
    larger = max(x, target, key=lambda tensor: tensor.numel)
    return flat(TensorRef(x.storage, wider.dtype, larger.shape, larger.stride, 0))


RULES: dict[str, Rule] = {
    **dict.fromkeys(_CONTIGUOUS, _loss_by_class),
    **{f"aten._ctc_loss.{overload}": _ctc for overload in ("default", "Tensor")},
    **{f"aten._ctc_loss_backward.{overload}": _ctc_backward for overload in ("default", "Tensor")},
    "aten.mse_loss.default": _reduced,
    "aten.smooth_l1_loss.default": _reduced,
    "aten.huber_loss.default": _huber,
    "aten.binary_cross_entropy.default": _reduced_within,
    "aten.soft_margin_loss.default": _reduced_within,
    "aten.soft_margin_loss_backward.default": _soft_margin_backward,
    "aten.binary_cross_entropy_with_logits.default": _cross_entropy_with_logits,
}
