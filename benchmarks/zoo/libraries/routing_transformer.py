"""The net of routing_transformer: long texts, of which each word attends to those that are near it or alike.

Out: `WRITTEN`, the model with its sizes.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from routing_transformer import RoutingTransformerLM
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import WITH_FP32_WEIGHTS, Net, below


def predict_next(net: nn.Module, tokens: Tensor) -> Tensor:
    scores, alike = net(tokens)
    return F.cross_entropy(scores[:, :-1].transpose(1, 2), tokens[:, 1:]) + alike.sum()


def routed(length: int, vocab: int, **sizes: Any) -> Net:
    def build() -> nn.Module:
        return Trained(RoutingTransformerLM(num_tokens=vocab, max_seq_len=length, causal=True, **sizes), predict_next)

    return Net("RoutingTransformerLM", build, 4, {"tokens": below(vocab, length)}, WITH_FP32_WEIGHTS)


WRITTEN: dict[str, Written] = {
    "routed_lm": Written(
        routed, {"length": 64, "vocab": 50, "dim": 32, "depth": 2, "heads": 2, "window_size": 16, "dim_head": 16},
        {"long": {"length": 4096, "vocab": 20000, "dim": 512, "depth": 8, "heads": 8, "window_size": 128,
                  "n_local_attn_heads": 4},
         "base": {"length": 2048, "vocab": 32000, "dim": 768, "depth": 10, "heads": 12, "window_size": 128,
                  "n_local_attn_heads": 6}},
    ),
}  # fmt: skip
