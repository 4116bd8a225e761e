"""Nets of vit_pytorch: images and films are sorted into classes.

Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Precision
from zoo.libraries import Trained, Written
from zoo.survey import ANY, WITH_FP32_WEIGHTS, Net, below, floats

NUM_CLASSES = 1000


def classify(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(images), labels)


def make(module: str, model: str, **sizes: Any) -> nn.Module:
    made: nn.Module = getattr(importlib.import_module(f"vit_pytorch.{module}"), model)(**sizes)
    return made


def classifying(
    module: str, model: str, side: int, rows: int = 32, precisions: tuple[Precision, ...] = ANY, **sizes: Any
) -> Net:
    """Of a model that takes any side; with other precisions its types would not match."""
    fields = {"images": floats(3, side, side), "labels": below(NUM_CLASSES)}
    build = partial(make, module, model, num_classes=NUM_CLASSES, **sizes)
    return Net(model, lambda: Trained(build(), classify), rows, fields, precisions, True)


def of_side(module: str, model: str, side: int, side_name: str = "image_size", **sizes: Any) -> Net:
    """Of a model that is built for one side."""
    return classifying(module, model, side, **{side_name: side}, **sizes)


def compact(side: int, kernel: int, **sizes: Any) -> Net:
    fixed = {"positional_embedding": "learnable", "precisions": WITH_FP32_WEIGHTS}
    return of_side("cct", "CCT", side, "img_size", kernel_size=kernel, **fixed, **sizes)


def films(side: int, frames: int, **sizes: Any) -> Net:
    def build() -> nn.Module:
        net = make("vit_3d", "ViT", image_size=side, frames=frames, num_classes=400, **sizes)
        return Trained(net, classify)

    return Net("ViT3d", build, 8, {"images": floats(3, frames, side, side), "labels": below(400)}, ANY)


SMALL = {"side": 32, "patch_size": 16, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}
S16 = {"side": 224, "patch_size": 16, "dim": 384, "depth": 12, "heads": 6, "mlp_dim": 1536}
B16 = {"side": 224, "patch_size": 16, "dim": 768, "depth": 12, "heads": 12, "mlp_dim": 3072}
WRITTEN: dict[str, Written] = {
    "compact_transformer": Written(
        compact,
        {"side": 32, "kernel": 3, "embedding_dim": 32, "n_conv_layers": 1, "num_layers": 2, "num_heads": 2,
         "mlp_ratio": 1.0},
        {"14": {"side": 224, "kernel": 7, "embedding_dim": 384, "n_conv_layers": 2, "num_layers": 14, "num_heads": 6,
                "mlp_ratio": 3.0},
         "wide": {"side": 224, "kernel": 7, "embedding_dim": 512, "n_conv_layers": 2, "num_layers": 12, "num_heads": 8,
                  "mlp_ratio": 4.0}},
    ),
    "convolutional_projections": Written(
        partial(classifying, "cvt", "CvT"), {"side": 64, "s1_emb_dim": 16, "s2_emb_dim": 24, "s3_emb_dim": 32},
        {"13": {"side": 224},
         "21": {"side": 224, "s2_depth": 4, "s3_depth": 16},
         "large": {"side": 384, "rows": 8}},
    ),
    "cross_scale": Written(
        partial(classifying, "crossformer", "CrossFormer", precisions=WITH_FP32_WEIGHTS),
        {"side": 224, "dim": (64, 64, 64, 64), "depth": (1, 1, 1, 1)},
        {"small": {"side": 224, "dim": (96, 192, 384, 768), "depth": (2, 2, 6, 2)},
         "base": {"side": 224, "dim": (96, 192, 384, 768), "depth": (2, 2, 18, 2)}},
    ),
    "regional": Written(
        partial(classifying, "regionvit", "RegionViT"),
        {"side": 224, "dim": (16, 16, 32, 32), "depth": (1, 1, 1, 1)},
        {"small": {"side": 224, "dim": (96, 192, 384, 768), "depth": (2, 2, 8, 2), "tokenize_local_3_conv": True},
         "tiny": {"side": 224, "use_peg": True}},
    ),
    "scalable": Written(
        partial(classifying, "scalable_vit", "ScalableViT"),
        {"side": 64, "dim": 16, "heads": (1, 2), "depth": (1, 1), "reduction_factor": (4, 2), "window_size": (8, 4)},
        {"small": {"side": 256, "dim": 64, "heads": (2, 4, 8, 16), "depth": (2, 2, 20, 2),
                   "reduction_factor": (8, 4, 2, 1), "window_size": (64, 32, None, None)},
         "base": {"side": 256, "dim": 96, "heads": (3, 6, 12, 24), "depth": (2, 2, 14, 2),
                  "reduction_factor": (8, 4, 2, 1), "window_size": (64, 32, None, None)}},
    ),
    "separable": Written(
        partial(classifying, "sep_vit", "SepViT"),
        {"side": 56, "dim": 16, "heads": (1, 2), "depth": (1, 1)},
        {"tiny": {"side": 224, "dim": 64, "dim_head": 32, "heads": (2, 4, 8, 16), "depth": (1, 2, 6, 2)},
         "small": {"side": 224, "dim": 96, "dim_head": 32, "heads": (3, 6, 12, 24), "depth": (1, 2, 6, 2)}},
    ),
    "token_to_token": Written(
        partial(of_side, "t2t", "T2TViT"), {"side": 64, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64},
        {"14": {"side": 224, "dim": 384, "depth": 14, "heads": 6, "mlp_dim": 1152},
         "19": {"side": 224, "dim": 448, "depth": 19, "heads": 7, "mlp_dim": 1344}},
    ),
    "re_attention": Written(partial(of_side, "deepvit", "DeepViT"), SMALL, {"small": S16 | {"depth": 24}, "base": B16}),
    "rotary_vision": Written(
        partial(of_side, "rvt", "RvT", precisions=WITH_FP32_WEIGHTS), SMALL, {"small": S16, "base": B16}
    ),
    "two_resolutions": Written(
        partial(of_side, "look_vit", "LookViT", precisions=WITH_FP32_WEIGHTS),
        {"side": 48, "dim": 32, "depth": 1, "heads": 2, "patch_size": 16, "highres_patch_size": 12,
         "cross_attn_heads": 2},
        {"small": {"side": 336, "dim": 384, "depth": 8, "patch_size": 28, "highres_patch_size": 16},
         "base": {"side": 256, "dim": 512, "depth": 6, "patch_size": 32, "highres_patch_size": 16}},
    ),
    "films_of_patches": Written(
        films,
        {"side": 32, "frames": 4, "image_patch_size": 16, "frame_patch_size": 2, "dim": 32, "depth": 2, "heads": 2,
         "mlp_dim": 64},
        {"small": {"side": 128, "frames": 16, "image_patch_size": 16, "frame_patch_size": 2, "dim": 512, "depth": 8,
                   "heads": 8, "mlp_dim": 2048},
         "base": {"side": 224, "frames": 8, "image_patch_size": 16, "frame_patch_size": 2, "dim": 768, "depth": 12,
                  "heads": 12, "mlp_dim": 3072, "dropout": 0.1}},
    ),
    "normalised": Written(
        partial(of_side, "normalized_vit", "nViT", precisions=("bf16", "fp32", "tf32")), SMALL,
        {"small": S16, "base": B16},
    ),
}  # fmt: skip
