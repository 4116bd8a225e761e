"""What the CPU pays to issue work: nanoseconds per call, by kind of call and by phase.

In: a GPU and its host. Out: {"forward": {kind: ns}, "backward": {kind: ns}, "optimizer": {kind: ns}}.

The tensors are tiny, so the GPU is always ahead and the clock on the wall is the CPU's. A kind is timed as a chain of
calls with gradients on: first the forward calls, then the backward pass through them. Medians of several rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

CHAIN = 40
ROUNDS = 15


def host_costs() -> dict[str, dict[str, int]]:
    """All kinds; takes some ten seconds."""
    forward: dict[str, int] = {}
    backward: dict[str, int] = {}
    for kind, (call, shape, dtype) in _chains().items():
        forward[kind], backward[kind] = _chain_ns(call, shape, dtype)
    return {"forward": forward, "backward": backward, "optimizer": _optimizer_ns()}


def _chains() -> dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...], torch.dtype]]:
    """A function from a tensor to one of the same shape, by kind."""
    bf16, fp32 = torch.bfloat16, torch.float32
    width = 64
    row = torch.ones(width, device="cuda")
    layers = [nn.Linear(width, width, device="cuda") for _ in range(CHAIN)]
    plain = [nn.Linear(width, width, bias=False, device="cuda") for _ in range(CHAIN)]
    norm, rms = nn.LayerNorm(width, device="cuda"), nn.RMSNorm(width, device="cuda")
    conv = nn.Conv2d(8, 8, 3, padding=1, device="cuda")
    batch_norm = nn.BatchNorm2d(8, device="cuda")
    table = nn.Embedding(width, width, device="cuda")
    ids = torch.zeros(8, 16, dtype=torch.int64, device="cuda")
    turn = [0]

    def cycle(modules: list[nn.Linear], x: torch.Tensor) -> torch.Tensor:
        turn[0] = (turn[0] + 1) % CHAIN
        return modules[turn[0]](x)

    def autocast(modules: list[nn.Linear], x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", bf16):
            return cycle(modules, x)

    flat = (8, 16, width)
    heads = (2, 4, 16, width)
    image = (2, 8, 8, 8)
    return {
        "module": (nn.Identity(), flat, fp32),
        "sequential": (nn.Sequential(nn.Identity(), nn.Identity(), nn.Identity()), flat, fp32),
        "view": (lambda x: x.view(flat), flat, fp32),
        "transpose": (lambda x: x.transpose(0, 1), flat, fp32),
        "slice": (lambda x: x[:8], flat, fp32),
        "add": (lambda x: x + row, flat, fp32),
        "mul": (lambda x: x * 1.5, flat, fp32),
        "mul_tensors": (lambda x: x * x, flat, fp32),
        "cast": (lambda x: x.to(bf16 if x.dtype is fp32 else fp32), flat, fp32),
        "gelu": (F.gelu, flat, fp32),
        "dropout": (partial(F.dropout, p=0.1), flat, fp32),
        "softmax": (partial(torch.softmax, dim=-1), flat, fp32),
        "mean": (lambda x: x * x.mean(-1, keepdim=True), flat, fp32),
        "cat": (lambda x: torch.cat((x[..., :32], x[..., 32:]), -1), flat, fp32),
        "clone": (lambda x: x.clone(), flat, fp32),
        "matmul": (lambda x: x @ x.transpose(-1, -2) @ x, heads, fp32),
        "linear": (partial(cycle, plain), flat, fp32),
        "linear_bias": (partial(cycle, layers), flat, fp32),
        "linear_autocast": (partial(autocast, layers), flat, bf16),
        "layer_norm": (norm, flat, fp32),
        "rms_norm": (rms, flat, fp32),
        "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), heads, bf16),
        "attention_fp32": (lambda x: F.scaled_dot_product_attention(x, x, x), heads, fp32),
        "convolution": (conv, image, fp32),
        "batch_norm": (batch_norm, image, fp32),
        "embedding": (lambda x: x + table(ids), flat, fp32),
    }


def _chain_ns(call: Callable[[Any], Any], shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, int]:
    forward, backward = [], []
    for _ in range(ROUNDS):
        start = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
        grad = torch.ones(shape, device="cuda", dtype=dtype)
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        x: Any = start
        for _ in range(CHAIN):
            x = call(x)
        middle = time.perf_counter_ns()
        torch.cuda.synchronize()
        grad = grad.to(x.dtype).view(x.shape)
        resumed = time.perf_counter_ns()
        if x.grad_fn is not None:
            x.backward(grad)
        end = time.perf_counter_ns()
        torch.cuda.synchronize()
        forward.append((middle - begin) / CHAIN)
        backward.append((end - resumed) / CHAIN)
    return round(statistics.median(forward)), round(statistics.median(backward))


def _optimizer_ns() -> dict[str, int]:
    """Nanoseconds per call on 10 and on 400 tiny tensors: the cost per tensor is the slope."""
    makers: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
        "adamw": torch.optim.AdamW,
        "adamw_fused": partial(torch.optim.AdamW, fused=True),
        "adamw_for_loop": partial(torch.optim.AdamW, foreach=False),
        "sgd": partial(torch.optim.SGD, momentum=0.9),
    }
    costs: dict[str, int] = {}
    for count in (10, 400):
        parameters = [nn.Parameter(torch.randn(64, device="cuda")) for _ in range(count)]

        def set_gradients(parameters: list[nn.Parameter] = parameters) -> None:
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)

        for kind, make in makers.items():
            optimizer = make(parameters)
            costs[f"{kind}_{count}"] = _call_ns(optimizer.step, set_gradients)
        costs[f"zero_grad_{count}"] = _call_ns(optimizer.zero_grad, set_gradients)
        costs[f"clip_grad_norm_{count}"] = _call_ns(partial(nn.utils.clip_grad_norm_, parameters, 1.0), set_gradients)
    return costs


def _call_ns(call: Callable[[], Any], before: Callable[[], None]) -> int:
    times = []
    for _ in range(ROUNDS):
        before()
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    torch.cuda.synchronize()
    return round(statistics.median(times))
