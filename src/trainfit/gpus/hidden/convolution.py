"""Convolutions: torch's own copies, cuDNN's workspaces, and the bias gradient's sums, in the order of the kernels.

torch first makes the operands agree on one layout (ConvShared.cpp) and then runs the plan that cuDNN proposes first
(Conv_v8.cpp). Where cuDNN is installed it is asked which one that is (cudnn_library.py), else it is imitated
(cudnn.py). It is imitated in any case where it tells nothing without a GPU: for kernels of one pixel, which it leaves
to cuBLASLt. Depthwise convolutions in the usual layout are torch's own kernels, which take nothing, or for some of
float16 cuDNN's, which mostly take nothing; those of halves in channels-last with small kernels without gaps are engines
of cuDNN's that it does not tell of either. A transposed convolution is the input gradient of a plain one.
Probes: the convolution sweeps and the models' rows, where tests/test_hidden.py counts what is exact;
benchmarks/results/hidden_calls_h200.jsonl.gz, of which 93% are equal if cuDNN is asked, and 70% if it is imitated.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden import cudnn, cudnn_library, cudnn_transforms
from trainfit.gpus.hidden.reductions import staging
from trainfit.gpus.hidden.tensors import (
    Rule,
    freed,
    integers,
    is_channels_last,
    is_contiguous,
    nbytes,
    suggests_channels_last,
    tensor_argument,
)
from trainfit.records import OUTPUT, Op, TensorRef

_CUDNN_DTYPES = ("float32", "float16", "bfloat16")
_MIN_IMAGE_DIMS = 2
_BACKWARD = "aten.convolution_backward.default"
_TRANSPOSED_KINDS: dict[cudnn.Kind, cudnn.Kind] = {
    "output": "input gradient",
    "input gradient": "output",
    "weight gradient": "weight gradient",
}


@dataclass(frozen=True, slots=True)
class _Convolution:
    """One convolution of torch: x and its result y in their logical order, and the filter."""

    x: TensorRef
    weight: TensorRef
    y_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    is_transposed: bool

    @property
    def is_channels_last(self) -> bool:
        return any(map(suggests_channels_last, (self.x, self.weight)))

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.x.shape[1]

    def problem(self, kind: cudnn.Kind) -> cudnn.Problem:
        """The pass as cuDNN sees it."""
        x, y = self.x.shape, self.y_shape
        if self.is_transposed:
            kind, x, y = _TRANSPOSED_KINDS[kind], y, x
        return cudnn.Problem(
            kind,
            self.x.dtype,
            self.is_channels_last,
            _as_image(x),
            _as_image(self.weight.shape),
            _as_image(y),
            _as_image_setting(self.stride, 1),
            _as_image_setting(self.padding, 0),
            _as_image_setting(self.dilation, 1),
        )

    def workspace_bytes(self, kind: cudnn.Kind, gpu: Gpu) -> int:
        if self.x.dtype not in _CUDNN_DTYPES or (self.is_depthwise and not self.is_channels_last):
            return 0
        problem = self.problem(kind)
        if cudnn_transforms.is_transformed(problem):
            return cudnn_transforms.workspace_bytes(problem)
        plan = None
        if not self._is_untold(problem):
            plan = cudnn_library.first_plan(problem.described(), problem.kind, gpu)
        if plan is not None:
            return cudnn.planned_bytes(problem, plan, gpu)
        return cudnn.workspace_bytes(problem, gpu.num_sms)

    def _is_untold(self, problem: cudnn.Problem) -> bool:
        """Is the engine one that cuDNN offers only where there is a GPU?"""
        return cudnn.is_left_to_cublas(problem) or cudnn.has_depthwise_engine(problem)


def _as_image(shape: tuple[int, ...]) -> tuple[int, ...]:
    """torch gives a one-dimensional convolution a first image dimension of 1."""
    return shape if len(shape) >= _MIN_IMAGE_DIMS + 2 else (*shape[:2], 1, *shape[2:])


def _as_image_setting(setting: tuple[int, ...], first: int) -> tuple[int, ...]:
    return setting if len(setting) >= _MIN_IMAGE_DIMS else (first, *setting)


def _setting(op: Op, index: int) -> tuple[int, ...]:
    """One number stands for all image dimensions, as in what torch makes of padding="valid"."""
    found = integers(op.args[index])
    return found if len(found) > 1 else found * (len(tensor_argument(op, 1).shape) - 2)


def _agreeing(tensor: TensorRef, channels_last: bool) -> tuple[int, ...]:
    """torch's own copy of an operand in another layout than the convolution's."""
    fits = is_channels_last(tensor) if channels_last else is_contiguous(tensor)
    return () if fits else (nbytes(tensor),)


def _read(op: Op) -> _Convolution:
    is_backward = op.name == _BACKWARD
    x, weight = (tensor_argument(op, index) for index in ((1, 2) if is_backward else (0, 1)))
    first = 4 if is_backward else 3
    stride, padding, dilation = (_setting(op, index) for index in range(first, first + 3))
    is_transposed, groups = bool(op.args[first + 3]), integers(op.args[first + 5])[0]
    if is_backward:
        y_shape = tensor_argument(op, 0).shape
    else:
        y_shape = _transposed_shape(op) if is_transposed else _output_shape(x, weight, stride, padding, dilation)
    return _Convolution(x, weight, y_shape, stride, padding, dilation, groups, is_transposed)


def first_pass(op: Op) -> cudnn.Problem:
    """The result, or the first gradient that is computed, as cuDNN sees it."""
    if op.name != _BACKWARD:
        return _read(op).problem("output")
    return _read(op).problem("input gradient" if _wanted(op)[0] else "weight gradient")


def _wanted(op: Op) -> tuple[bool, ...]:
    """Which gradients are: of the input, of the weight, of the bias."""
    mask = op.args[10]
    return tuple(mask) if isinstance(mask, tuple | list) else (True, True, False)


def _forward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    conv = _read(op)
    before = _agreeing(conv.x, conv.is_channels_last)
    return (*before, OUTPUT, *_agreeing(conv.weight, conv.is_channels_last), *_workspace(conv, "output", gpu))


def _workspace(conv: _Convolution, kind: cudnn.Kind, gpu: Gpu) -> tuple[int, ...]:
    workspace_bytes = conv.workspace_bytes(kind, gpu)
    return (workspace_bytes,) if workspace_bytes else ()


def _output_shape(
    x: TensorRef, weight: TensorRef, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    pixels = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    return (x.shape[0], weight.shape[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in pixels))


def _transposed_shape(op: Op) -> tuple[int, ...]:
    x, weight = tensor_argument(op, 0), tensor_argument(op, 1)
    stride, padding, dilation, extra = (_setting(op, index) for index in (3, 4, 5, 7))
    groups = integers(op.args[8])[0]
    pixels = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, extra, strict=True)
    sizes = ((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in pixels)
    return (x.shape[0], weight.shape[1] * groups, *sizes)


def _backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Input gradient, weight gradient, bias gradient, each with its workspace, one after the other."""
    gradient, conv = tensor_argument(op, 0), _read(op)
    x, weight = conv.x, conv.weight
    wants_input, wants_weight, wants_bias = _wanted(op)
    layout = conv.is_channels_last
    before = (*_agreeing(gradient, layout), *_agreeing(x, layout))
    steps = before
    if wants_input:
        workspace = (*_agreeing(weight, layout), *_workspace(conv, "input gradient", gpu))
        steps += (OUTPUT, *workspace, *freed(workspace))
    if wants_weight:
        workspace = _workspace(conv, "weight gradient", gpu)
        steps += (OUTPUT, *workspace, *freed(workspace))
    if wants_bias:
        sums = staging(gradient, (0, *range(2, len(gradient.shape))), gpu)
        steps += (*freed(before), OUTPUT, *sums)
    return steps


RULES: dict[str, Rule] = {
    "aten.convolution.default": _forward,
    _BACKWARD: _backward,
}
