"""Single ops of each kind, issued over and over on tensors so small that the GPU waits: what they cost the CPU.

In: a device. Out: by kind (see `cost.host_fit`) the nanoseconds that one of them took, once per round; rounds go
through all kinds, so that a host that changes its speed changes it for all. Results are kept until the round is over,
since autograd keeps them in a step. Backward kinds are chains of nodes that are run backward. How many kernels one of
each kind launches is counted apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainfit.cost.host import BACKWARD_CAST, BACKWARD_PLAIN, BACKWARD_VIEW, PLAIN, VIEW
from trainfit.cost.host_fit import (
    BACKWARD_PRODUCTS,
    FOUR_LAUNCHES,
    HOST_ELEMENTS,
    HOST_OP,
    HOST_OPS_LARGE,
    LEAF,
    LEAF_AGAIN,
    ONE_LAUNCH,
    READ,
    WITH_INNER_VIEWS,
)

CALLS = 100
WARM_UP_ROUNDS, ROUNDS = 3, 10
_BF16, _FP32 = torch.bfloat16, torch.float32

Prepare = Callable[[], Callable[[], Any]]
"""Makes the function that is timed."""


def single_ops(device: str, large: int = 2**26) -> dict[str, Prepare]:
    """Each makes `CALLS` of its kind; `large` elements are a list for which torch launches four kernels."""
    return _forward(device, large) | _backward(device)


def time_single_ops(kinds: Mapping[str, Prepare], begin: Callable[[], None]) -> dict[str, list[int]]:
    """Takes a few seconds; before what is timed comes `begin`."""
    times: dict[str, list[int]] = {kind: [] for kind in kinds}
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        for kind, prepare in kinds.items():
            run = prepare()
            begin()
            begin_ns = time.perf_counter_ns()
            results = run()
            elapsed_ns = time.perf_counter_ns() - begin_ns
            del results
            if number >= WARM_UP_ROUNDS:
                times[kind].append(elapsed_ns // CALLS)
    return times


def _forward(device: str, large: int) -> dict[str, Prepare]:
    def tensor(*shape: int, dtype: torch.dtype = _BF16) -> Tensor:
        return torch.ones(shape, device=device, dtype=dtype, requires_grad=True)

    matrix, weight, scale, queries = tensor(32, 64), tensor(64, 64), tensor(64), tensor(2, 2, 16, 32)
    batch = tensor(2, 16, 64)
    image, kernel = tensor(2, 8, 8, 8, dtype=_FP32), tensor(8, 8, 3, 3, dtype=_FP32)
    mean, channels = torch.ones(8, device=device), tensor(8, dtype=_FP32)
    narrow = tensor(2, 8, 8, 8)
    rows = torch.zeros(32, dtype=torch.int64, device=device)
    few, many = torch.arange(16), torch.arange(HOST_ELEMENTS)
    one, one_large = ([torch.ones(size, device=device, dtype=_BF16)] for size in (64, large))
    ops: dict[str, Callable[[], Any]] = {
        PLAIN: lambda: matrix * 0.5,
        "binary": lambda: matrix + matrix,
        "activation": lambda: F.gelu(matrix),
        VIEW: lambda: matrix.view(64, 32),
        "product": lambda: torch.mm(matrix, weight),
        WITH_INNER_VIEWS: lambda: F.linear(batch, weight),
        "norm": lambda: F.layer_norm(matrix, (64,), scale, scale),
        "random": lambda: F.dropout(matrix, 0.1),
        "join": lambda: torch.cat((matrix, matrix), -1),
        "index": lambda: matrix[rows],
        "convolution": lambda: F.conv2d(image, kernel, padding=1),
        "batch norm": lambda: F.batch_norm(image, mean, mean, channels, channels, True),
        "native batch norm": lambda: F.batch_norm(narrow, mean, mean, channels, channels, True),
        "attention": lambda: F.scaled_dot_product_attention(queries, queries, queries, is_causal=True),
        ONE_LAUNCH: lambda: torch._foreach_mul_(one, 0.5),
        FOUR_LAUNCHES: lambda: torch._foreach_mul_(one_large, 0.5),
        READ: lambda: mean[0].item(),
        HOST_OP: lambda: few + 1,
        HOST_OPS_LARGE: lambda: _positions(many),
    }
    return {kind: partial(_again_and_again, op) for kind, op in ops.items()}


def _positions(numbers: Tensor) -> None:
    """As models put distances between tokens into buckets; nothing is kept, so memory is used again."""
    near = numbers < 16
    wide = numbers.float()
    torch.where(near, wide, wide.log())


def _again_and_again(op: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: [op() for _ in range(CALLS)]


def _backward(device: str) -> dict[str, Prepare]:
    matrix = partial(torch.ones, 32, 64, device=device, dtype=_BF16, requires_grad=True)
    queries = partial(torch.ones, 2, 2, 16, 32, device=device, dtype=_BF16, requires_grad=True)
    image = partial(torch.ones, 2, 8, 8, 8, device=device, requires_grad=True)
    scale = torch.ones(64, device=device, dtype=_BF16, requires_grad=True)
    mean, channels = torch.ones(8, device=device), torch.ones(8, device=device, requires_grad=True)

    def attention(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    chains: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
        BACKWARD_PLAIN: (matrix, lambda x: x * 0.5),
        "backward activation": (matrix, F.gelu),
        BACKWARD_VIEW: (matrix, lambda x: x.view(x.shape[1], x.shape[0])),
        BACKWARD_CAST: (matrix, lambda x: x.to(_FP32 if x.dtype == _BF16 else _BF16)),
        "backward norm": (matrix, lambda x: F.layer_norm(x, (64,), scale, scale)),
        "backward batch norm": (image, lambda x: F.batch_norm(x, mean, mean, channels, channels, True)),
        "backward native batch norm": (
            partial(image, dtype=_BF16),
            lambda x: F.batch_norm(x, mean, mean, channels, channels, True),
        ),
        "backward attention": (queries, attention),
    }
    return {kind: partial(_chain, *chain) for kind, chain in chains.items()} | {
        BACKWARD_PRODUCTS: partial(_products, device),
        "backward convolution": partial(_convolutions, device),
        LEAF: partial(_leaves, matrix, False),
        LEAF_AGAIN: partial(_leaves, matrix, True),
    }


def _chain(begin: Callable[..., Tensor], op: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
    first = last = begin()
    for _ in range(CALLS):
        last = op(last)
    gradient = torch.ones_like(last)
    return lambda: torch.autograd.grad(last, first, gradient)


def _products(device: str) -> Callable[[], Any]:
    """Products with weights of their own, which have gradients, too."""
    weights = [torch.ones(64, 64, device=device, dtype=_BF16, requires_grad=True) for _ in range(CALLS)]
    first = last = torch.ones(32, 64, device=device, dtype=_BF16, requires_grad=True)
    for weight in weights:
        last = F.linear(last, weight)
    gradient = torch.ones_like(last)
    return lambda: torch.autograd.grad(last, [first, *weights], gradient)


def _convolutions(device: str) -> Callable[[], Any]:
    """The gradients of image and kernel come of one op."""
    kernels = [torch.ones(8, 8, 3, 3, device=device, requires_grad=True) for _ in range(CALLS)]
    first = last = torch.ones(2, 8, 8, 8, device=device, requires_grad=True)
    for kernel in kernels:
        last = F.conv2d(last, kernel, padding=1)
    gradient = torch.ones_like(last)
    return lambda: torch.autograd.grad(last, [first, *kernels], gradient)


def _leaves(leaf: Callable[..., Tensor], again: bool) -> Callable[[], Any]:
    """Parameters behind one node each, which have gradients already, or none."""
    leaves = [leaf() for _ in range(CALLS)]
    outputs = [one * 0.5 for one in leaves]
    gradients = [torch.ones_like(one) for one in leaves]
    for one in leaves:
        one.grad = torch.zeros_like(one) if again else None
    return lambda: torch.autograd.backward(outputs, gradients)
