"""What the CPU takes to issue a step's ops. In: a calibration's timings of calls. Out: `HostCosts`, and a time per op.

Few numbers, since a host's speed varies by a third from run to run: an op that launches a kernel, a view, entering
another module (the Python of the model's own forward), and for optimizers the tensors that are listed for a
multi-tensor kernel.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainfit.records import Op, Phase, TensorRef

_KERNELS = ("add", "mul", "cast", "gelu", "dropout", "softmax", "clone", "layer_norm", "rms_norm", "attention")
"""Calls that run one kernel, in both directions or nearly."""
_VIEWS = ("view", "transpose", "slice")
_MODULE_VIEWS = 6.0
"""A module costs as much CPU time as this many views, beyond its ops: fitted by least squares to the forward passes of
24 small models whose kernels take no time."""
_BACKWARD_VIEW = 1.4
"""A view's backward in a step costs this many forward views (fitted likewise; a chain of views alone takes longer)."""
_OPTIMIZER_IN_STEP = 2.3
"""An optimizer that runs once per step is slower than one in a loop by this factor (fitted likewise)."""
_FURTHER_KERNEL = 0.5
"""Kernels that one op launches after its first cost this share of an op: no dispatch, only the launch."""
_RECOMPUTE = 1.6
"""A forward pass that is run again costs more: Python hooks see every tensor that is saved. Fitted to the zoo."""
_HOOKED = "aten.detach.default"
"""What a hook does to each saved tensor in a planned block's forward. torch's own checkpointing spends as much there in
hooks that no op shows: counting these would make the one look slower than the other."""
_ADAMW_LISTED = 13
"""Tensors per parameter in the lists of AdamW's multi-tensor calls, and the number of those calls."""
_ADAMW_CALLS = 9


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Nanoseconds of CPU time per call."""

    forward_kernel_ns: int
    forward_view_ns: int
    module_ns: int
    backward_kernel_ns: int
    backward_view_ns: int
    optimizer_call_ns: int
    optimizer_tensor_ns: int


def reduce_host(timings: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """The fields of `HostCosts` from what `trainfit.calibrate.host` timed."""
    forward, backward, optimizer = timings["forward"], timings["backward"], timings["optimizer"]
    view_ns = statistics.median(forward[kind] for kind in _VIEWS)
    per_parameter_ns = (optimizer["adamw_400"] - optimizer["adamw_10"]) / 390
    calls_ns = optimizer["adamw_10"] - 10 * per_parameter_ns
    costs = {
        "forward_kernel_ns": statistics.median(forward[kind] for kind in _KERNELS),
        "forward_view_ns": view_ns,
        "module_ns": _MODULE_VIEWS * view_ns,
        "backward_kernel_ns": statistics.median(backward[kind] for kind in _KERNELS),
        "backward_view_ns": _BACKWARD_VIEW * view_ns,
        "optimizer_call_ns": _OPTIMIZER_IN_STEP * max(calls_ns, 0) / _ADAMW_CALLS,
        "optimizer_tensor_ns": _OPTIMIZER_IN_STEP * per_parameter_ns / _ADAMW_LISTED,
    }
    return {name: round(value) for name, value in costs.items()}


def issue_times_ns(ops: Sequence[Op], kernels: Sequence[int], host: HostCosts) -> tuple[int, ...]:
    """CPU time before each op's kernels are in the queue; `kernels` says how many it has, 0 for a view."""
    times = []
    module = ""
    for op, count in zip(ops, kernels, strict=True):
        further_ns = round(max(count - 1, 0) * _FURTHER_KERNEL * host.forward_kernel_ns)
        if op.name == _HOOKED and op.phase is Phase.FORWARD:
            times.append(0)
            continue
        if op.phase is Phase.OPTIMIZER:
            listed = sum(len(value) for value in op.args if isinstance(value, tuple) and _is_tensor_list(value))
            times.append(host.optimizer_call_ns + listed * host.optimizer_tensor_ns)
        elif op.phase is Phase.BACKWARD:
            times.append(further_ns + (host.backward_kernel_ns if count else host.backward_view_ns))
        else:
            entered = host.module_ns if op.module != module else 0
            forward_ns = entered + further_ns + (host.forward_kernel_ns if count else host.forward_view_ns)
            times.append(round(_RECOMPUTE * forward_ns) if op.phase is Phase.RECOMPUTE else forward_ns)
        module = op.module
    return tuple(times)


def _is_tensor_list(value: tuple[object, ...]) -> bool:
    return bool(value) and isinstance(value[0], TensorRef)
