"""Nets of x_transformers that were drawn last.

Out: `SEALED`, which zoo/libraries/x_transformers.py adds to its own.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
import x_transformers as xt
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.language import BASE, FLASH, LARGE, PLAIN, TINY, language, own_loss
from zoo.survey import ANY, Net, below, floats, padding


def belief_state(vocab: int, length: int, width: int, depth: int, heads: int, share: float) -> Net:
    """One decoder reads on, the other back; `share` of the pairs of places is learnt from."""

    def build() -> nn.Module:
        def decoder() -> nn.Module:
            layers = xt.Decoder(dim=width, depth=depth, heads=heads, rotary_pos_emb=True, attn_flash=True)
            return xt.TransformerWrapper(num_tokens=vocab, max_seq_len=length + 1, attn_layers=layers)

        net = xt.BeliefStateWrapper(decoder(), decoder(), train_frac_forward_backward_pairs=share)
        return Trained(net, own_loss)

    return Net("belief_state", build, 8, {"tokens": below(vocab, length)}, ANY)


def memory_tokens(**sizes: Any) -> Net:
    return language(xt.AutoregressiveWrapper, model={"num_memory_tokens": 20}, **sizes)


def rotary_lm(**sizes: Any) -> Net:
    return language(xt.AutoregressiveWrapper, rotary_pos_emb=True, **sizes)


def cross_attender(asked: int, given: int, width: int, depth: int, heads: int, **options: Any) -> Net:
    """Some vectors look at others, and never at one another."""

    def regress(net: nn.Module, queries: Tensor, context: Tensor, absent: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(net(queries, context=context, context_mask=~absent), wanted)

    def build() -> nn.Module:
        return Trained(xt.CrossAttender(dim=width, depth=depth, heads=heads, **options), regress)

    fields = {
        "queries": floats(asked, width),
        "context": floats(given, width),
        "absent": padding(given),
        "wanted": floats(asked, width),
    }
    return Net("cross_attender", build, 16, fields, ANY)


SEALED = {
    "belief_state": Written(belief_state, TINY | {"share": 0.5}, {
        "base": BASE | {"length": 256, "depth": 6, "share": 0.02},
        "large": LARGE | {"length": 256, "depth": 4, "share": 0.01}}),
    "memory_tokens": Written(memory_tokens, TINY, PLAIN | {"flash": LARGE | {"attn_flash": True}}),
    "rotary_lm": Written(rotary_lm, TINY, FLASH | {
        "plain": BASE | {"length": 512, "ff_swish": True, "ff_glu": True, "use_rmsnorm": True}}),
    "cross_attender": Written(
        cross_attender,
        {"asked": 4, "given": 8, "width": 32, "depth": 2, "heads": 2},
        {"few": {"asked": 64, "given": 1024, "width": 512, "depth": 8, "heads": 8, "attn_flash": True},
         "many": {"asked": 512, "given": 512, "width": 768, "depth": 6, "heads": 12, "ff_glu": True}},
    ),
}  # fmt: skip
