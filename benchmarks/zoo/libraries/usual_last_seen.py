"""Nets that see and stood last in the order of usual_families.py: of timm, torchvision and transformers.

In: sizes as published. Out: `SEEN`, by the names that usual_families.py has.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.transformers_more import FEW, FEW_WORDS, made, own_loss
from zoo.libraries.usual_seen import BASE, LARGE, of_timm, of_torchvision
from zoo.libraries.usual_texts import ids_of
from zoo.survey import WITH_FP32_WEIGHTS, Field, Net, floats

NUM_COCO = 91


def blip(side: int, words: int, padded: bool, vision: dict[str, Any], text: dict[str, Any]) -> Net:
    """What an image shows is written beneath it; all words are learnt, as its tutorial has it."""

    def caption(net: nn.Module, input_ids: Tensor, **inputs: Tensor) -> Tensor:
        return own_loss(net, input_ids=input_ids, labels=input_ids, **inputs)

    config = {"vision_config": {"image_size": side} | vision, "text_config": {"num_attention_heads": 12} | text}
    fields = ids_of(900, words, padded) | {"pixel_values": floats(3, side, side)}
    return made("BlipForConditionalGeneration", config, fields, caption, may_be_channels_last=True)


def boxes_within(count: int, height: int, width: int) -> Field:
    """Two corners each, in pixels."""

    def field(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        begin, size = torch.rand(2, rows, count, 2, device=device, dtype=dtype).unbind()
        corners = torch.cat([begin / 2, begin / 2 + 0.1 + 0.4 * size], dim=-1)
        return corners * torch.tensor([width, height, width, height], device=device, dtype=dtype)

    return field


def classes_of(count: int) -> Field:
    """None is the background."""
    return lambda rows, device, dtype: torch.randint(1, NUM_COCO, (rows, count), device=device)


def faster_rcnn(backbone: str, height: int, width: int, objects: int, **options: Any) -> Net:
    """As its tutorial tunes it: the norms and the first layers of what was trained before stay as they are."""

    def detect(net: nn.Module, images: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        wanted = [{"boxes": corners, "labels": found} for corners, found in zip(boxes, labels, strict=True)]
        losses: dict[str, Tensor] = net(list(images), wanted)
        return torch.stack(list(losses.values())).sum()

    def build() -> nn.Module:
        detection: Any = importlib.import_module("torchvision.models.detection")
        utils = detection.backbone_utils
        if backbone.startswith("mobilenet"):
            seen = utils.mobilenet_backbone(backbone, weights=None, fpn=True, trainable_layers=3)
            sizes = ((32, 64, 128, 256, 512),) * 3
            anchors = detection.anchor_utils.AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes))
            return Trained(detection.FasterRCNN(seen, NUM_COCO, rpn_anchor_generator=anchors, **options), detect)
        seen = utils.resnet_fpn_backbone(backbone_name=backbone, weights=None, trainable_layers=3)
        return Trained(detection.FasterRCNN(seen, NUM_COCO, **options), detect)

    fields = {
        "images": floats(3, height, width), "boxes": boxes_within(objects, height, width),
        "labels": classes_of(objects),
    }  # fmt: skip
    return Net("faster_rcnn", build, 2, fields, WITH_FP32_WEIGHTS)


SEEN: dict[str, Written] = {
    "densenet": Written(
        of_torchvision, {"name": "densenet121", "side": 64},
        {"121": {"name": "densenet121"}, "161": {"name": "densenet161"}, "169": {"name": "densenet169"},
         "201": {"name": "densenet201"}},
        {"side": (224, 224, 320)},
    ),
    "mobilenet_v3": Written(
        of_timm, {"name": "mobilenetv3_small_050", "side": 64},
        {"large": {"name": "mobilenetv3_large_100"}, "small": {"name": "mobilenetv3_small_100"},
         "tf": {"name": "tf_mobilenetv3_large_100"}},
        {"side": (160, 224, 224), "drop_rate": (0.0, 0.2)},
    ),
    "swin": Written(
        of_timm, {"name": "swin_tiny_patch4_window7_224", "side": 224},
        {"tiny": {"name": "swin_tiny_patch4_window7_224", "side": 224},
         "small": {"name": "swin_small_patch4_window7_224", "side": 224},
         "base": {"name": "swin_base_patch4_window7_224", "side": 224},
         "v2_tiny": {"name": "swinv2_tiny_window8_256", "side": 256}},
        {"drop_path_rate": (0.0, 0.1, 0.2)},
    ),
    "regnet": Written(
        of_torchvision, {"name": "regnet_y_400mf", "side": 64},
        {"y_400mf": {"name": "regnet_y_400mf"}, "y_1_6gf": {"name": "regnet_y_1_6gf"},
         "y_3_2gf": {"name": "regnet_y_3_2gf"}, "x_3_2gf": {"name": "regnet_x_3_2gf"}},
        {"side": (176, 224, 224)},
    ),
    "blip": Written(
        blip, {"side": 32, "words": 8, "padded": False, "vision": FEW,
               "text": FEW_WORDS | {"num_attention_heads": 2, "bos_token_id": 1}},
        {"base": {"vision": BASE, "text": {}}, "large": {"vision": LARGE, "text": {}}},
        {"side": (224, 384, 384), "words": (32, 64, 128), "padded": (False, True)},
    ),
    "faster_rcnn": Written(
        faster_rcnn, {"backbone": "mobilenet_v3_large", "height": 64, "width": 64, "objects": 2, "min_size": 64,
                      "max_size": 64},
        {"50": {"backbone": "resnet50", "height": 480, "width": 640},
         "101": {"backbone": "resnet101", "height": 480, "width": 640},
         "mobile": {"backbone": "mobilenet_v3_large", "height": 480, "width": 640},
         "mobile_320": {"backbone": "mobilenet_v3_large", "height": 480, "width": 640, "min_size": 320,
                        "max_size": 640}},
        {"objects": (4, 8, 16)},
    ),
}  # fmt: skip
