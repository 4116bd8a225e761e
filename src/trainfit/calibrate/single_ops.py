"""Single ops of each kind, issued over and over on tensors so small that the GPU waits: what they cost the CPU.

In: a device. Out: by kind (see `trainfit.cost.host`) the nanoseconds that `CALLS` of them took, once per round; rounds
go through all kinds, so that a host that changes its speed changes it for all. Results are kept until the round is
over, since autograd keeps them in a step. Backward kinds are chains of nodes that are run backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainfit.cost.host import BACKWARD_CAST, BACKWARD_PLAIN, BACKWARD_VIEW, PLAIN, VIEW, WITH_INNER_VIEWS

CALLS = 100
WARM_UP_ROUNDS, ROUNDS = 3, 15


def time_single_ops(device: str = "cuda") -> dict[str, list[int]]:
    """Takes about a second."""
    kinds = _prepared(device)
    times: dict[str, list[int]] = {kind: [] for kind in kinds}
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        for kind, prepare in kinds.items():
            run = prepare()
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            results = run()
            elapsed_ns = time.perf_counter_ns() - begin
            del results
            if number >= WARM_UP_ROUNDS:
                times[kind].append(elapsed_ns)
    return times


def _prepared(device: str) -> dict[str, Callable[[], Callable[[], Any]]]:
    """By kind, what makes the function that is timed."""

    def again_and_again(op: Callable[[], Any]) -> Callable[[], Callable[[], Any]]:
        return lambda: lambda: [op() for _ in range(CALLS)]

    def backward(op: Callable[[Tensor], Tensor]) -> Callable[[], Callable[[], Any]]:
        def prepare() -> Callable[[], Any]:
            first = last = torch.ones(32, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(CALLS):
                last = op(last)
            gradient = torch.ones_like(last)
            return lambda: torch.autograd.grad(last, first, gradient)

        return prepare

    forward = {kind: again_and_again(op) for kind, op in _ops(device).items()}
    return forward | {
        BACKWARD_PLAIN: backward(lambda x: x * 0.5),
        BACKWARD_VIEW: backward(lambda x: x.view(x.shape[1], x.shape[0])),
        BACKWARD_CAST: backward(lambda x: x.to(torch.float32 if x.dtype == torch.bfloat16 else torch.bfloat16)),
    }


def _ops(device: str) -> dict[str, Callable[[], Any]]:
    def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.ones(shape, device=device, dtype=dtype, requires_grad=True)

    matrix, weight, scale, queries = tensor(32, 64), tensor(64, 64), tensor(64), tensor(2, 2, 16, 32)
    batch = tensor(2, 16, 64)
    image, kernel = tensor(2, 8, 8, 8, dtype=torch.float32), tensor(8, 8, 3, 3, dtype=torch.float32)
    rows = torch.zeros(32, dtype=torch.int64, device=device)

    return {
        PLAIN: lambda: matrix * 0.5,
        VIEW: lambda: matrix.view(64, 32),
        "product": lambda: torch.mm(matrix, weight),
        WITH_INNER_VIEWS: lambda: F.linear(batch, weight),
        "norm": lambda: F.layer_norm(matrix, (64,), scale, scale),
        "random": lambda: F.dropout(matrix, 0.1),
        "join": lambda: torch.cat((matrix, matrix), -1),
        "index": lambda: matrix[rows],
        "convolution": lambda: F.conv2d(image, kernel, padding=1),
        "attention": lambda: F.scaled_dot_product_attention(queries, queries, queries, is_causal=True),
    }
