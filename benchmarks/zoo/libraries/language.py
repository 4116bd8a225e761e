"""What nets of x_transformers have in common: decoders of tokens, and their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import x_transformers as xt
from torch import Tensor, nn

from zoo.libraries import Trained
from zoo.survey import ANY, Net, below

TINY = {"vocab": 100, "length": 32, "width": 32, "depth": 2, "heads": 2}
BASE = {"vocab": 20000, "length": 1024, "width": 512, "depth": 12, "heads": 8}
LARGE = {"vocab": 32000, "length": 512, "width": 1024, "depth": 12, "heads": 16}
FLASH = {"base": BASE | {"attn_flash": True}, "large": LARGE | {"attn_flash": True}}
PLAIN = {"base": BASE, "large": LARGE}


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
