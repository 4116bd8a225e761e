"""Nets of x_transformers: one small library, many published changes of the transformer.

Out: `WRITTEN`, by the names that libraries_draw.py has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import x_transformers as xt
from torch import Tensor, nn

from zoo_libraries import Trained, Written
from zoo_survey_nets import ANY, Net, below


def own_loss(net: nn.Module, tokens: Tensor) -> Tensor:
    """Its wrappers compute it."""
    found = net(tokens)
    return found if isinstance(found, Tensor) else found[0]  # type: ignore[no-any-return]


def language(
    wrap: Callable[..., nn.Module], vocab: int, length: int, width: int, depth: int, heads: int, **options: Any
) -> Net:
    """A decoder of tokens; `options` are those of its layers, but "model" those of what is around them."""
    around: Mapping[str, Any] = options.pop("model", {})

    def build() -> nn.Module:
        layers = xt.Decoder(dim=width, depth=depth, heads=heads, **options)
        model = xt.TransformerWrapper(num_tokens=vocab, max_seq_len=length + 1, attn_layers=layers, **around)
        return Trained(wrap(model), own_loss)

    return Net("language", build, 8, {"tokens": below(vocab, length + 1)}, ANY)


def next_latent(width: int, **sizes: Any) -> Net:
    return language(lambda net: xt.NextLatentWrapper(net, dim=width), width=width, **sizes)


def macaron(**sizes: Any) -> Net:
    return language(xt.AutoregressiveWrapper, macaron=True, rotary_pos_emb=True, **sizes)


TINY = {"vocab": 100, "length": 32, "width": 32, "depth": 2, "heads": 2}
BASE = {"vocab": 20000, "length": 1024, "width": 512, "depth": 12, "heads": 8}
LARGE = {"vocab": 32000, "length": 512, "width": 1024, "depth": 12, "heads": 16}
FLASH = {"base": BASE | {"attn_flash": True}, "large": LARGE | {"attn_flash": True}}
PLAIN = {"base": BASE, "large": LARGE}
WRITTEN = {
    "next_latent": Written(next_latent, TINY, FLASH),
    "macaron": Written(macaron, TINY, PLAIN | {"flash": LARGE | {"attn_flash": True}}),
}
