"""Nets that see and stood last in the order of usual_families.py: of timm, torchvision and transformers.

In: sizes as published. Out: `SEEN`, by the names that usual_families.py has.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zoo.libraries import Written
from zoo.libraries.transformers_more import FEW, FEW_WORDS, made, own_loss
from zoo.libraries.usual_seen import BASE, LARGE, of_timm, of_torchvision
from zoo.libraries.usual_texts import ids_of
from zoo.survey import Net, floats


def blip(side: int, words: int, padded: bool, vision: dict[str, Any], text: dict[str, Any]) -> Net:
    """What an image shows is written beneath it; all words are learnt, as its tutorial has it."""

    def caption(net: nn.Module, input_ids: Tensor, **inputs: Tensor) -> Tensor:
        return own_loss(net, input_ids=input_ids, labels=input_ids, **inputs)

    config = {"vision_config": {"image_size": side} | vision, "text_config": {"num_attention_heads": 12} | text}
    fields = ids_of(900, words, padded) | {"pixel_values": floats(3, side, side)}
    return made("BlipForConditionalGeneration", config, fields, caption, may_be_channels_last=True)


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
}  # fmt: skip
