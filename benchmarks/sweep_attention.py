"""Probes of scaled_dot_product_attention: which kernel torch chooses, and what each kernel allocates.

Queries are [batch, sequence, heads, size] seen transposed, as models make them; `contiguous` probes are not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sweep import BF16, F16, F32, SHORT, Probe, differentiate, tensor

MASKS = ("none", "causal", "bool", "float", "mask grad")
HEAD_SIZES = (32, 64, 80, 96, 128, 192, 256)
LENGTHS = (512, 2048, 4096, 1000, 77)
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@dataclass(frozen=True)
class Attention:
    dtype: torch.dtype = BF16
    mask: str = "causal"
    dropout: float = 0.0
    head_size: int = 64
    grouped: bool = False
    length: int = 1000
    batch: int = 2
    heads: int = 8
    backend: str = "default"
    contiguous: bool = False

    @property
    def label(self) -> str:
        kind = f"{self.backend} {SHORT[self.dtype]} {self.mask} dropout={self.dropout} d={self.head_size}"
        shape = f"gqa={int(self.grouped)} B={self.batch} H={self.heads} S={self.length}"
        return f"{kind} {shape}{' contiguous' if self.contiguous else ''}"

    def run(self) -> None:
        def heads(count: int) -> Tensor:
            shape = (self.batch, self.length, count, self.head_size)
            if self.contiguous:
                return tensor(shape[0], shape[2], shape[1], shape[3], dtype=self.dtype)
            return tensor(*shape, dtype=self.dtype).transpose(1, 2)

        kv_heads = self.heads // 4 if self.grouped else self.heads
        query, key, value = heads(self.heads), heads(kv_heads), heads(kv_heads)
        mask: Tensor | None = None
        if self.mask == "bool":
            mask = tensor(self.batch, 1, self.length, self.length, grad=False) > 0
        elif self.mask == "float":
            mask = tensor(self.batch, 1, self.length, self.length, dtype=self.dtype, grad=False)
        elif self.mask == "mask grad":
            mask = tensor(1, self.heads, self.length, self.length, dtype=self.dtype)
        context: Any = sdpa_kernel(BACKENDS[self.backend]) if self.backend in BACKENDS else nullcontext()

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=mask,
                dropout_p=self.dropout,
                is_causal=self.mask == "causal",
                enable_gqa=self.grouped,
            )

        with context:
            differentiate(attend, query, key, value)


def probes(cases: list[Attention]) -> list[Probe]:
    """In a shuffled but fixed order, so that a sweep that runs out of time has still seen a bit of everything."""
    random.Random(0).shuffle(cases)
    return [(case.label, case.run) for case in cases]


def cross(**choices: tuple[Any, ...]) -> list[Attention]:
    names = list(choices)
    return [replace(Attention(), **dict(zip(names, values, strict=True))) for values in product(*choices.values())]


def default_choice(dtype: torch.dtype, lengths: tuple[int, ...], sizes: tuple[int, ...]) -> Callable[[], list[Probe]]:
    return lambda: probes(
        cross(
            dtype=(dtype,),
            mask=MASKS,
            dropout=(0.0, 0.1),
            head_size=sizes,
            grouped=(False, True),
            length=lengths,
        )
    )


def forced(backend: str, dtypes: tuple[torch.dtype, ...], masks: tuple[str, ...]) -> Callable[[], list[Probe]]:
    return lambda: probes(
        cross(
            backend=(backend,),
            dtype=dtypes,
            mask=masks,
            dropout=(0.0, 0.1),
            head_size=(64, 96, 128, 256),
            grouped=(False, True),
            length=(512, 1000, 2048),
        )
    )


def batches(dtype: torch.dtype) -> Callable[[], list[Probe]]:
    """Other numbers of blocks: kernels split their work by them."""

    def build() -> list[Probe]:
        some = cross(
            dtype=(dtype,),
            mask=("none", "causal"),
            head_size=(64, 128),
            length=(77, 512, 2048),
            batch=(1, 4, 16),
            heads=(12, 32),
            backend=("default", "flash", "efficient"),
        )
        straight = cross(dtype=(dtype,), mask=MASKS, length=(512, 1000), head_size=(64, 128), contiguous=(True,))
        return probes([*straight, *(case for case in some if dtype != F32 or case.backend != "flash")])

    return build


FAMILIES: dict[str, Callable[[], list[Probe]]] = {
    **{f"attention bf16 {length}": default_choice(BF16, (length,), HEAD_SIZES) for length in LENGTHS},
    "attention fp16": default_choice(F16, (512, 1000), (64, 128)),
    **{f"attention fp32 {length}": default_choice(F32, (length,), HEAD_SIZES) for length in LENGTHS},
    "attention flash": forced("flash", (BF16,), ("none", "causal")),
    "attention efficient": forced("efficient", (BF16, F32), ("none", "causal", "bool", "mask grad")),
    "attention cudnn": forced("cudnn", (BF16,), ("none", "causal", "bool")),
    "attention batches bf16": batches(BF16),
    "attention batches fp32": batches(F32),
}
