"""Autocast for ghosts: what the C++ kernels of the AutocastCUDA key do, which skip tensors that are not on CUDA in C++.

The op lists are torch's own (its "Autocast Op Reference"); the ops that really have an AutocastCUDA kernel are asked of
the installed torch, so calling one that these lists do not know is an error, not a silent difference. (Up to torch 2.12
those with named dimensions are among them.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainfit import torch_compat
from trainfit.ghost.tensor import Ghost

LOWER_PRECISION = frozenset(
    """_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul
    einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
    _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
    scaled_dot_product_attention""".split()
)
FLOAT32 = frozenset(
    """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm rms_norm frobenius_norm.dim
    nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
    soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa
    upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa linalg_matrix_sqrth""".split()
)
FLOAT32_BY_DTYPE_ARGUMENT = frozenset(
    """prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList""".split()
)
FLOAT32_BY_NORM_DTYPE = frozenset({"norm.Scalar", "norm.ScalarOpt_dim"})
WIDEST = frozenset("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split())
BANNED = frozenset({"binary_cross_entropy"})


class WeightCastCache:
    """Lower-precision copies of leaf parameters, alive until the outermost autocast exits.

    Gradients flow through a copy even if it was first made under no_grad (since torch 2.11: autocast_mode.cpp); what is
    cast under inference_mode could never have them, and is not kept.
    """

    def __init__(self) -> None:
        self._casts: dict[
            int, tuple[torch.Tensor, torch.Tensor]
        ] = {}  # the weight is held so that its id stays its own

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if tensor.dtype == dtype:
            return tensor
        cacheable = (
            tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and dtype == torch.get_autocast_dtype("cuda")
            and torch.is_autocast_cache_enabled()
            and not torch.is_inference_mode_enabled()
        )
        if not cacheable:
            return tensor.to(dtype)
        if id(tensor) not in self._casts:
            with torch.enable_grad():
                self._casts[id(tensor)] = (tensor, tensor.to(dtype))
        return self._casts[id(tensor)][1]

    def clear(self) -> None:
        self._casts.clear()


def autocast_kernels(cache: WeightCastCache) -> dict[str, Callable[..., Any]]:
    """A kernel for every op that has an AutocastCUDA kernel in this torch, keyed by the op's name with overload."""
    kernels = {"_cudnn_rnn": cudnn_rnn_kernel(cache)}  # a build without CUDA has no autocast kernel for it
    for name in torch_compat.ops_with_kernel("AutocastCUDA"):
        if name in BANNED or name in kernels:
            continue
        op = _overload(name)
        kernels[name] = _kernel(op, _argument_caster(name, op, cache))
    return kernels


def cudnn_rnn_kernel(cache: WeightCastCache) -> Callable[..., Any]:
    """cuDNN's RNN wants its weights in one buffer: autocast copies them into a new one (cudnn/AutocastRNN.cpp).

    Whatever type was asked for, it is float16: the op knew autocast before bfloat16 did.
    """
    dtype = torch.float16

    def run(x: torch.Tensor, weights: list[torch.Tensor], stride0: int, weight_buf: Any, *rest: Any) -> Any:
        with torch_compat.without_autocast_cuda():
            if weights[0].dtype != dtype:
                weights = _flat_copies(weights, dtype)
            states = [cache.cast(state, dtype) if _is_castable(state) else state for state in rest[:2]]
            x = cache.cast(x, dtype)
            return torch.ops.aten._cudnn_rnn(x, weights, stride0, None, *states, *rest[2:])

    return run


def _flat_copies(weights: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Copies through which gradients flow back, side by side in one storage but no views of one another."""
    flat = torch.zeros(sum(w.numel() for w in weights), dtype=dtype, device=weights[0].device)
    copies, offset = [], 0
    for weight in weights:
        copy = torch.empty(0, dtype=dtype, device=weight.device)
        copy.set_(flat.untyped_storage(), offset, weight.shape, weight.stride())
        copies.append(copy.copy_(weight))
        offset += weight.numel()
    return copies


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _kernel(op: Any, prepare: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch_compat.without_autocast_cuda():
            args, kwargs = prepare(args, kwargs)
            return op(*args, **kwargs)

    return run


def _argument_caster(
    name: str, op: Any, cache: WeightCastCache
) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]:
    """The rule for one op: from its arguments to the arguments autocast would call it with."""
    if name in LOWER_PRECISION:
        return lambda args, kwargs: _cast_all(args, kwargs, cache, torch.get_autocast_dtype("cuda"))
    if name in FLOAT32:
        return lambda args, kwargs: _cast_all(args, kwargs, cache, torch.float32)
    if name in WIDEST:
        return lambda args, kwargs: _cast_all(args, kwargs, cache, _widest(args, kwargs))
    if name in FLOAT32_BY_DTYPE_ARGUMENT or name in FLOAT32_BY_NORM_DTYPE:
        return _with_float32_dtype

    def refuse(args: Any, kwargs: Any) -> tuple[Any, Any]:
        raise NotImplementedError(f"autocast rule of aten.{name} is unknown: add it to trainfit/ghost/autocast.py")

    return refuse


def _is_castable(value: Any) -> bool:
    return isinstance(value, Ghost) and value.dtype.is_floating_point and value.dtype != torch.float64


def _cast_all(args: Any, kwargs: Any, cache: WeightCastCache, dtype: torch.dtype) -> tuple[Any, Any]:
    """Last argument first: compilers evaluate the arguments of torch's kernels in that order, and so memory comes."""
    leaves, structure = torch_compat.tree_flatten((args, kwargs))
    for index in reversed(range(len(leaves))):
        if _is_castable(leaves[index]):
            leaves[index] = cache.cast(leaves[index], dtype)
    return torch_compat.tree_unflatten(leaves, structure)


def _widest(args: Any, kwargs: Any) -> torch.dtype:
    tensors = [t for t in torch_compat.tree_flatten((args, kwargs))[0] if _is_castable(t)]
    if any(t.dtype == torch.float32 for t in tensors):
        return torch.float32
    return torch.get_autocast_dtype("cuda")


def _with_float32_dtype(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Ops with a dtype argument accumulate in float32 by it, which saves a cast of the input."""
    if _is_castable(args[0]) and kwargs.get("dtype") is None and not any(isinstance(a, torch.dtype) for a in args):
        return args, {**kwargs, "dtype": torch.float32}
    return args, kwargs
