"""Composite ops whose C++ body asks whether a tensor is on CUDA: the CUDA branch, for ghosts; and ops whose gradient
is another formula for them (formulas.py).

Each route is registered over the composite for the AutogradCUDA key while a ghost context is open, so it is taken
wherever the op is called from: Python, other composites, custom functions, recomputation inside backward. Arguments
that are not ghosts (real CUDA tensors in the same process) go to the composite's own body.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainfit import torch_compat
from trainfit.ghost import formulas
from trainfit.ghost.answers import asking_for_faults
from trainfit.ghost.attention import attend
from trainfit.ghost.recurrent import RNN_MODES, CudnnRnn
from trainfit.ghost.tensor import META, Ghost
from trainfit.gpus.catalogue import Gpu

aten = torch.ops.aten


CUDA_KERNELS_OVER_COMPOSITES = ("silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm")
"""Ops with a CUDA kernel beside their composite body: a build without CUDA would take the body apart."""


def never_reached(*args: Any, **kwargs: Any) -> Any:
    """Registered for the CUDA key so that the dispatcher knows of a kernel; the dispatch mode answers before it."""
    raise AssertionError("a ghost op reached the CUDA key below the dispatch mode")


def composite_routes(gpu: Gpu, torch_version: tuple[int, int]) -> dict[str, Callable[..., Any]]:
    """Replacement bodies by op name with overload, for ghosts on the given GPU."""
    rnn = CudnnRnn(gpu)
    routes: dict[str, Callable[..., Any]] = {
        "scaled_dot_product_attention": functools.partial(attend, gpu, torch_version),
        "dropout": _dropout,
        "linear": _linear,
        "softmax.int": functools.partial(_softmax, aten._softmax, aten.softmax.int),
        "log_softmax.int": functools.partial(_softmax, aten._log_softmax, aten.log_softmax.int),
        "lstm_cell": _lstm_cell,
        "gru_cell": _gru_cell,
        "_batch_norm_impl_index": _batch_norm,
        "lstm.input": rnn.lstm,
        "lstm.data": rnn.lstm_packed,
        "cudnn_is_acceptable": _cudnn_is_acceptable,
        "ctc_loss.Tensor": _ctc_loss,
        "istft": _istft,
        "grid_sampler": _grid_sampler,
        "one_hot": _one_hot,
        "cumprod_backward": formulas.cumprod_backward,
        "prod": formulas.prod,
        "prod.dim_int": formulas.prod_of_dim,
    }
    for name in ("gru", "rnn_tanh", "rnn_relu"):
        routes[f"{name}.input"] = functools.partial(rnn.simple, RNN_MODES[name])
        routes[f"{name}.data"] = functools.partial(rnn.simple_packed, RNN_MODES[name])
    return {name: _for_ghosts(name, body) for name, body in routes.items()}


def conversion_routes() -> dict[str, Callable[..., Any]]:
    """`.to("cuda")`, for ghosts and for host tensors alike: the C++ body would ask a driver which GPU is meant."""
    return {"to.device": _to_device, "to.dtype_layout": _to_dtype_layout}


def _for_ghosts(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(aten, packet), overload or "default")

    def route(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(arg, Ghost) for arg in args):
            return body(*args, **kwargs)
        return torch_compat.call_composite(op, *args, **kwargs)

    return route


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if train and 0 < p < 1 and x.numel() > 0:
        return torch.native_dropout(x, p, True)[0]
    return torch_compat.call_composite(aten.dropout.default, x, p, train)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Where the input has gaps a bias is added after the product: in place, but out of place to what is taken for a
    tensor subclass, as ghosts are."""
    if bias is None or x.dim() == 2 or x.is_contiguous():
        return torch_compat.call_composite(aten.linear.default, x, weight, bias)
    return torch.matmul(x, weight.t()).add_(bias)


def _softmax(kernel: Any, composite: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """From half to float32 CUDA converts inside the kernel; bfloat16 is converted before it."""
    if x.dtype == torch.float16 and dtype == torch.float32:
        return kernel(x, dim, True)
    return torch_compat.call_composite(composite, x, dim, dtype)


def _lstm_cell(
    x: torch.Tensor, hx: Sequence[torch.Tensor], w_ih: torch.Tensor, w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None, b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    gates = torch.matmul(x, w_ih.t()), torch.matmul(hx[0], w_hh.t())
    hy, cy, _workspace = aten._thnn_fused_lstm_cell(*gates, hx[1], b_ih, b_hh)
    return hy, cy


def _gru_cell(
    x: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None, b_hh: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    gates = torch.matmul(x, w_ih.t()), torch.matmul(hx, w_hh.t())
    return aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> tuple[Any, ...]:
    """cuDNN takes float and half images or signals with float affine parameters; the native kernel takes the rest."""
    max_batch = 880801 if training else 65535
    has_stats = running_mean is not None and running_var is not None
    use_cudnn = (
        cudnn_enabled
        and x.dtype in (torch.float32, torch.float16, torch.float64)
        and weight is not None
        and bias is not None
        and (x.dtype != torch.float16 or weight.dtype == torch.float32)
        and (has_stats or (running_mean is None and running_var is None and training))
        and x.dim() >= 3
        and x.size(0) <= max_batch
        and eps >= 1e-5
    )
    if use_cudnn:
        x, weight, bias = x.contiguous(memory_format=_memory_format(x)), weight.contiguous(), bias.contiguous()  # type: ignore[union-attr]
        results = aten.cudnn_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
        return (*results, 1)
    results = aten.native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return (*results, x.new_empty(0, dtype=torch.uint8), 0)


def _memory_format(x: torch.Tensor) -> torch.memory_format:
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return torch.channels_last
    return torch.contiguous_format


def _to_device(x: torch.Tensor, device: Any, dtype: Any, *rest: Any, **kwargs: Any) -> torch.Tensor:
    return torch_compat.call_composite(aten.to.device, x, _nowhere(device), dtype, *rest, **kwargs)


def _to_dtype_layout(x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    if kwargs.get("device") is not None:
        kwargs["device"] = _nowhere(kwargs["device"])
    return torch_compat.call_composite(aten.to.dtype_layout, x, **kwargs)


def _nowhere(device: Any) -> torch.device:
    """For the C++ body a ghost is on meta, so "to cuda" must say meta to be the no-op that it is on the GPU."""
    device = torch.device(device)
    return META if device.type == "cuda" else device


def _cudnn_is_acceptable(x: torch.Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64) and x.numel() > 0


def _one_hot(index: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """On the GPU no value is looked at, unless the largest says how many classes there are."""
    if num_classes <= 0 or index.numel() == 0:
        return torch_compat.call_composite(aten.one_hot.default, index, num_classes)
    zeros = torch.zeros((*index.shape, num_classes), dtype=index.dtype, device=index.device)
    return zeros.scatter_(-1, index.unsqueeze(-1), 1)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *rest: Any,
) -> torch.Tensor:
    """The kernel wants the lengths on the host, as numbers."""
    return aten.ctc_loss.IntList(log_probs, targets, input_lengths.tolist(), target_lengths.tolist(), *rest)


def _istft(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The body asks whether the windows leave gaps."""
    with asking_for_faults():
        return torch_compat.call_composite(aten.istft.default, *args, **kwargs)


def _grid_sampler(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool) -> torch.Tensor:
    """cuDNN's kernel for what it can do: bilinear, zeros outside, corners aligned (GridSampler.cpp)."""
    is_usual = (mode, padding, align_corners) == (0, 0, True) and x.dim() == 4 and x.size(1) <= 1024
    is_small = max(x.numel(), grid.numel()) < 2**31
    if is_usual and is_small and all(map(_cudnn_is_acceptable, (x, grid))):
        return aten.cudnn_grid_sampler(x, grid)
    return torch_compat.call_composite(aten.grid_sampler.default, x, grid, mode, padding, align_corners)
