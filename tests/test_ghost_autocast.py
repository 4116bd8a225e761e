"""Autocast on the ghost GPU against torch's own AutocastCUDA kernels.

The oracle is a wrapper tensor whose C++ device is cuda: torch's kernels accept it, and its `__torch_dispatch__` sees
what they cast. It cannot require a gradient on a machine without CUDA, which is why the ghost does not use this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from trainfit import ghost_gpu, torch_compat
from trainfit.ghost import autocast
from trainfit.ghost.tensor import Ghost


class OnCuda(torch.Tensor):
    """A tensor without data on a cuda device in C++; records the dtypes of the op it finally meets."""

    seen: list[tuple[str, tuple[torch.dtype, ...]]] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, meta: torch.Tensor) -> OnCuda:
        return torch.Tensor._make_wrapper_subclass(
            cls, meta.shape, strides=meta.stride(), dtype=meta.dtype, device=torch.device("cuda:0")
        )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        flat = torch_compat.tree_flatten((args, kwargs))[0]
        cls.seen.append((str(func), tuple(t.dtype for t in flat if isinstance(t, torch.Tensor))))
        if "device" in kwargs:
            kwargs["device"] = "meta"
        as_meta = lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")  # noqa: E731
        metas = torch_compat.tree_map_only(torch.Tensor, as_meta, (args, kwargs))
        return torch_compat.tree_map_only(torch.Tensor, OnCuda, func(*metas[0], **metas[1]))


def f32(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def low(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=torch.get_autocast_dtype("cuda"))


def f64(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=torch.float64)


CALLS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]] = {
    "mm": lambda t: torch.mm(t(f32(2, 3)), t(f32(3, 4))),
    "mm of two types": lambda t: torch.mm(t(low(2, 3)), t(f32(3, 4))),
    "mm in float64": lambda t: torch.mm(t(f64(2, 3)), t(f64(3, 4))),
    "linear": lambda t: F.linear(t(f32(2, 3)), t(f32(4, 3)), t(f32(4))),
    "matmul": lambda t: torch.matmul(t(f32(5, 2, 3)), t(f32(5, 3, 4))),
    "einsum": lambda t: torch.einsum("ij,jk->ik", t(f32(2, 3)), t(f32(3, 4))),
    "conv2d": lambda t: F.conv2d(t(f32(1, 2, 8, 8)), t(f32(3, 2, 3, 3)), t(f32(3))),
    "conv_transpose2d": lambda t: F.conv_transpose2d(t(f32(1, 2, 8, 8)), t(f32(2, 3, 3, 3))),
    "prelu": lambda t: F.prelu(t(f32(2, 3)), t(f32(1))),
    "baddbmm": lambda t: torch.baddbmm(t(f32(5, 2, 4)), t(low(5, 2, 3)), t(low(5, 3, 4))),
    "layer_norm": lambda t: F.layer_norm(t(low(2, 3)), (3,), t(f32(3)), t(f32(3))),
    "group_norm": lambda t: F.group_norm(t(low(2, 4, 3)), 2, t(f32(4)), t(f32(4))),
    "exp": lambda t: t(low(2, 3)).exp(),
    "pow": lambda t: t(low(2, 3)).pow(2),
    "rsqrt": lambda t: t(low(2, 3)).rsqrt(),
    "log": lambda t: t(low(2, 3)).log(),
    "softplus": lambda t: F.softplus(t(low(2, 3))),
    "mse_loss": lambda t: F.mse_loss(t(low(2, 3)), t(f32(2, 3))),
    "nll_loss": lambda t: F.nll_loss(t(low(2, 3)), t(torch.empty(2, dtype=torch.long, device="meta"))),
    "sum": lambda t: t(low(2, 3)).sum(),
    "sum over a dimension": lambda t: t(low(2, 3)).sum(1),
    "sum with a dtype": lambda t: t(low(2, 3)).sum(1, dtype=torch.get_autocast_dtype("cuda")),
    "sum of integers": lambda t: t(torch.empty(3, dtype=torch.long, device="meta")).sum(),
    "softmax": lambda t: t(low(2, 3)).softmax(-1),
    "log_softmax": lambda t: t(low(2, 3)).log_softmax(-1),
    "cumsum": lambda t: t(low(2, 3)).cumsum(1),
    "prod": lambda t: t(low(2, 3)).prod(),
    "vector_norm": lambda t: torch.linalg.vector_norm(t(low(2, 3))),
    "norm": lambda t: t(low(2, 3)).norm(2),
    "norm over a dimension": lambda t: t(low(2, 3)).norm(2, dim=1),
    "addcmul": lambda t: torch.addcmul(t(low(2)), t(f32(2)), t(low(2))),
    "dot": lambda t: torch.dot(t(low(2)), t(f32(2))),
    "scatter_add": lambda t: torch.scatter_add(
        t(f32(3)), 0, t(torch.empty(3, dtype=torch.long, device="meta")), t(low(3))
    ),
    "gelu is left alone": lambda t: F.gelu(t(low(2, 3))),
    "add is left alone": lambda t: t(low(2, 3)) + t(f32(2, 3)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_autocast_casts_as_torchs_own_cuda_kernels_do(name: str, dtype: torch.dtype) -> None:
    ghosts: list[tuple[str, tuple[torch.dtype, ...]]] = []

    def listen(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        flat = torch_compat.tree_flatten((args, kwargs))[0]
        ghosts.append((str(func), tuple(t.dtype for t in flat if isinstance(t, torch.Tensor))))

    with ghost_gpu("h200") as mode:
        mode.listener = listen
        with torch.autocast("cuda", dtype):
            CALLS[name](Ghost)
    OnCuda.seen.clear()
    torch.set_autocast_enabled("cuda", True)  # torch.autocast("cuda") would ask for a GPU
    torch.set_autocast_dtype("cuda", dtype)
    try:
        CALLS[name](OnCuda)
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.clear_autocast_cache()
    assert compute_ops(ghosts) == compute_ops(OnCuda.seen)


def compute_ops(seen: list[tuple[str, tuple[torch.dtype, ...]]]) -> list[tuple[str, tuple[torch.dtype, ...]]]:
    """Without the inputs' making, which the ghost's listener sees too."""
    return [entry for entry in seen if not entry[0].startswith(("aten.detach", "aten.alias", "aten.empty"))]


def test_every_op_that_torch_autocasts_on_cuda_has_a_rule() -> None:
    rules = (
        autocast.LOWER_PRECISION
        | autocast.FLOAT32
        | autocast.FLOAT32_BY_DTYPE_ARGUMENT
        | autocast.FLOAT32_BY_NORM_DTYPE
        | autocast.WIDEST
        | autocast.BANNED
    )
    named = {
        name for name in torch_compat.ops_with_kernel("AutocastCUDA") if "dimname" in name.lower() or ".names" in name
    }
    assert set(torch_compat.ops_with_kernel("AutocastCUDA")) - rules - named <= {"_cudnn_rnn"}


def test_an_op_without_a_rule_is_refused_when_it_is_called() -> None:
    prepare = autocast._argument_caster("new_op", None, autocast.WeightCastCache())
    with pytest.raises(NotImplementedError, match="new_op"):
        prepare((), {})


def test_weights_are_cast_once_until_the_outermost_autocast_exits() -> None:
    casts = 0

    def listen(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal casts
        casts += func is torch.ops.aten._to_copy.default

    with ghost_gpu("h200") as mode:
        layer = torch.nn.Linear(4, 4, bias=False, device="cuda")
        x = torch.randn(2, 4, device="cuda", dtype=torch.bfloat16)
        mode.listener = listen
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad():
                layer(x)
            layer(x)
            with torch.autocast("cuda", torch.bfloat16):
                layer(x)
            layer(x)
        assert casts == 1
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            layer(x)
            layer(x)
        assert casts == 3


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_weights_first_cast_without_gradients_get_them_later(device: str, without_gradients: Callable[[], Any]) -> None:
    """As torch's own cache has it, which is the same for the CPU."""
    with ghost_gpu("h200"):
        layer = torch.nn.Linear(4, 4, device=device)
        x = torch.zeros(2, 4, device=device)
        with torch.autocast(device, torch.bfloat16):
            with without_gradients():
                assert not layer(x).requires_grad
            y = layer(x)
        y.sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.dtype == torch.float32
