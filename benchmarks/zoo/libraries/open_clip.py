"""Nets of open_clip: images and texts are matched, and one writes captions too.

In: a name of the library's configurations. Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import open_clip
from open_clip.loss import ClipLoss, CoCaLoss, SigLipLoss
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import ANY, Net, below, floats


def match(net: nn.Module, images: Tensor, texts: Tensor) -> Tensor:
    found: Any = net(images, texts)
    return ClipLoss()(found["image_features"], found["text_features"], found["logit_scale"])  # type: ignore[no-any-return]


def match_pairs(net: nn.Module, images: Tensor, texts: Tensor) -> Tensor:
    found: Any = net(images, texts)
    pairs = (found["image_features"], found["text_features"])
    return SigLipLoss()(*pairs, found["logit_scale"], found["logit_bias"])  # type: ignore[no-any-return]


def caption(net: nn.Module, images: Tensor, texts: Tensor) -> Tensor:
    found: Any = net(images, texts)
    names = ("image_features", "text_features", "logits", "labels", "logit_scale")
    losses = CoCaLoss(caption_loss_weight=2.0, clip_loss_weight=1.0)(*(found[name] for name in names))
    return sum(losses[1:], losses[0])  # type: ignore[no-any-return]


def matching(name: str, kind: str, loss: Any, vision: Any = None, text: Any = None, **others: Any) -> Net:
    """`vision`, `text` and `others` are what differs from the configuration."""
    known: Any = open_clip.get_model_config(name)
    known.pop("custom_text", None)
    vision_cfg, text_cfg = known["vision_cfg"] | (vision or {}), known["text_cfg"] | (text or {})
    config = known | {"vision_cfg": vision_cfg, "text_cfg": text_cfg} | others
    if kind == "CoCa":
        config["multimodal_cfg"] = known["multimodal_cfg"] | (text or {})
    else:
        config["output_dict"] = True
    length, side = text_cfg["context_length"], vision_cfg["image_size"]
    fields = {"images": floats(3, side, side), "texts": below(text_cfg["vocab_size"], length)}
    return Net(name, lambda: Trained(getattr(open_clip, kind)(**config), loss), 64, fields, ANY, True)


FEW_TEXTS = {"width": 64, "heads": 2, "layers": 1, "vocab_size": 500}
WRITTEN: dict[str, Written] = {
    "clip_resnet": Written(
        partial(matching, kind="CLIP", loss=match),
        {"name": "RN50", "text": FEW_TEXTS, "vision": {"layers": [1, 1, 1, 1], "width": 16, "image_size": 64}},
        {"50": {"name": "RN50"}, "101": {"name": "RN101"}, "50x4": {"name": "RN50x4"}},
    ),
    "coca": Written(
        partial(matching, kind="CoCa", loss=caption),
        {"name": "coca_ViT-B-32", "text": FEW_TEXTS, "vision": {"layers": 1, "width": 64, "image_size": 64},
         "embed_dim": 64},
        {"base_32": {"name": "coca_ViT-B-32"},
         "base_16": {"name": "coca_ViT-B-32", "vision": {"patch_size": 16}}},
    ),
    "clip_convnext": Written(
        partial(matching, kind="CLIP", loss=match),
        {"name": "convnext_tiny", "text": FEW_TEXTS, "vision": {"timm_model_name": "convnext_atto", "image_size": 64}},
        {"tiny": {"name": "convnext_tiny"}, "base": {"name": "convnext_base_w"}},
    ),
    "clip_sigmoid": Written(
        partial(matching, kind="CustomTextCLIP", loss=match_pairs),
        {"name": "ViT-B-16-SigLIP", "text": FEW_TEXTS,
         "vision": {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "avg", "timm_proj": "linear"}},
        {"base": {"name": "ViT-B-16-SigLIP"}, "base_256": {"name": "ViT-B-16-SigLIP-256"}},
    ),
    "clip_vitamin": Written(
        partial(matching, kind="CustomTextCLIP", loss=match),
        {"name": "ViTamin-S", "text": FEW_TEXTS},
        {"small": {"name": "ViTamin-S"}, "base": {"name": "ViTamin-B"}},
    ),
}  # fmt: skip
