"""Nets of x_transformers: one small library, many published changes of the transformer.

Out: `WRITTEN`, by the names that libraries_draw.py has.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
import x_transformers as xt
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.language import BASE, FLASH, LARGE, PLAIN, TINY, language
from zoo.libraries.x_transformers_sealed import SEALED
from zoo.survey import ANY, Net, below, floats


def next_latent(width: int, **sizes: Any) -> Net:
    return language(lambda net: xt.NextLatentWrapper(net, dim=width), width=width, **sizes)


def macaron(**sizes: Any) -> Net:
    return language(xt.AutoregressiveWrapper, macaron=True, rotary_pos_emb=True, **sizes)


def x_vit(side: int, patch: int, width: int, depth: int, heads: int, **options: Any) -> Net:
    def classify(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(net(images), labels)

    def build() -> nn.Module:
        layers = xt.Encoder(dim=width, depth=depth, heads=heads, **options)
        return Trained(xt.ViTransformerWrapper(image_size=side, patch_size=patch, num_classes=1000, attn_layers=layers),
                       classify)  # fmt: skip

    return Net("x_vit", build, 16, {"images": floats(3, side, side), "labels": below(1000)}, ANY)


def neo_mlp(given: int, hidden: int, asked: int, width: int, depth: int, heads: int) -> Net:
    """A perceptron whose neurons are tokens."""

    def regress(net: nn.Module, inputs: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(net(inputs), wanted)

    def build() -> nn.Module:
        attention = {"attn_dim_head": 16, "heads": heads}
        return Trained(xt.NeoMLP(dim_in=given, dim_hidden=hidden, dim_out=asked, dim_model=width, depth=depth,
                                 encoder_kwargs=attention), regress)  # fmt: skip

    return Net("neo_mlp", build, 64, {"inputs": floats(given), "wanted": floats(asked)}, ANY)


def continuous(channels: int, length: int, width: int, depth: int, heads: int, **options: Any) -> Net:
    """Series of vectors, each foretold from those before it."""

    def foretell(net: nn.Module, series: Tensor) -> Tensor:
        return net(series)  # type: ignore[no-any-return]

    def build() -> nn.Module:
        layers = xt.Decoder(dim=width, depth=depth, heads=heads, **options)
        net = xt.ContinuousTransformerWrapper(
            dim_in=channels, dim_out=channels, max_seq_len=length + 1, attn_layers=layers
        )
        return Trained(xt.ContinuousAutoregressiveWrapper(net), foretell)

    return Net("continuous", build, 8, {"series": floats(length + 1, channels)}, ANY)


def masked_lm(vocab: int, length: int, width: int, depth: int, heads: int, **options: Any) -> Net:
    def fill(net: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(net(tokens).flatten(0, 1), labels.flatten())

    def build() -> nn.Module:
        layers = xt.Encoder(dim=width, depth=depth, heads=heads, **options)
        return Trained(xt.TransformerWrapper(num_tokens=vocab, max_seq_len=length, attn_layers=layers), fill)

    fields = {"tokens": below(vocab, length), "labels": below(vocab, length)}
    return Net("masked_lm", build, 8, fields, ANY)


WRITTEN = SEALED | {
    "next_latent": Written(next_latent, TINY, FLASH),
    "x_vit": Written(
        x_vit,
        {"side": 32, "patch": 8, "width": 32, "depth": 2, "heads": 2},
        {
            "256": {"side": 256, "patch": 32, "width": 512, "depth": 6, "heads": 8},
            "224": {"side": 224, "patch": 16, "width": 768, "depth": 12, "heads": 12, "use_rmsnorm": True},
            "flash": {"side": 256, "patch": 16, "width": 640, "depth": 10, "heads": 10, "attn_flash": True},
        },
    ),
    "neo_mlp": Written(
        neo_mlp,
        {"given": 5, "hidden": 7, "asked": 3, "width": 32, "depth": 2, "heads": 2},
        {
            "wide": {"given": 64, "hidden": 128, "asked": 16, "width": 512, "depth": 6, "heads": 16},
            "many": {"given": 256, "hidden": 512, "asked": 64, "width": 256, "depth": 6, "heads": 8},
        },
    ),
    "continuous": Written(
        continuous,
        {"channels": 4, "length": 16, "width": 32, "depth": 2, "heads": 2},
        {
            "long": {"channels": 32, "length": 1024, "width": 512, "depth": 12, "heads": 8, "attn_flash": True},
            "plain": {"channels": 80, "length": 512, "width": 768, "depth": 8, "heads": 12, "ff_glu": True},
        },
    ),
    "masked_lm": Written(masked_lm, TINY, FLASH | {"plain": BASE | {"length": 512, "rotary_pos_emb": True}}),
    "macaron": Written(macaron, TINY, PLAIN | {"flash": LARGE | {"attn_flash": True}}),
}
