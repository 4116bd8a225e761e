"""The net of linformer: long texts with gaps, whose keys are projected to a few.

Out: `WRITTEN`, the model with its sizes.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from linformer import LinformerLM
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import ANY, Net, below


def fill_in(net: nn.Module, tokens: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(net(tokens).transpose(1, 2), words)


def linear_lm(length: int, vocab: int, **sizes: Any) -> Net:
    def build() -> nn.Module:
        return Trained(LinformerLM(num_tokens=vocab, seq_len=length, **sizes), fill_in)

    fields = {name: below(vocab, length) for name in ("tokens", "words")}
    return Net("LinformerLM", build, 4, fields, ANY)


WRITTEN: dict[str, Written] = {
    "linformer_lm": Written(
        linear_lm, {"length": 32, "vocab": 50, "dim": 32, "depth": 2, "heads": 2, "k": 8},
        {"long": {"length": 4096, "vocab": 20000, "dim": 512, "depth": 12, "heads": 8, "k": 256},
         "shared": {"length": 2048, "vocab": 30522, "dim": 768, "depth": 12, "heads": 12, "k": 128,
                    "one_kv_head": True, "share_kv": True}},
    ),
}  # fmt: skip
