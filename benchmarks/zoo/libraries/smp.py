"""Nets of segmentation_models_pytorch, each with an encoder that the seed takes from a list.

Out: `WRITTEN`, by the names that libraries_draw.py has; a size is an encoder and the side of the images.
"""

from __future__ import annotations

from functools import partial

import segmentation_models_pytorch as smp
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import ANY, Net, below, floats

NAMES = (
    "unet", "unetplusplus", "manet", "linknet", "fpn", "pspnet", "deeplabv3", "deeplabv3plus", "pan", "upernet",
    "segformer", "dpt",
)  # fmt: skip
ENCODERS = (
    "resnet50", "resnext50_32x4d", "efficientnet-b3", "se_resnet50", "dpn68", "vgg16_bn", "densenet121", "mit_b2",
    "mobileone_s2", "timm-regnety_032", "xception", "inceptionresnetv2",
)  # fmt: skip
TRANSFORMERS = ("tu-vit_base_patch16_224.augreg_in21k", "tu-vit_small_patch16_224.augreg_in1k")
"""What the last of them takes."""
NUM_CLASSES = 21


def segment(net: nn.Module, images: Tensor, segments: Tensor) -> Tensor:
    scores = net(images)
    dice: Tensor = smp.losses.DiceLoss("multiclass")(scores, segments)
    return F.cross_entropy(scores, segments) + dice


def net(architecture: str, encoder: str, side: int) -> Net:
    def build() -> nn.Module:
        made = smp.create_model(architecture, encoder_name=encoder, encoder_weights=None, classes=NUM_CLASSES)
        return Trained(made, segment)

    fields = {"images": floats(3, side, side), "segments": below(NUM_CLASSES, side, side)}
    return Net(architecture, build, 8, fields, ANY, True)


def written(name: str) -> Written:
    is_dpt = name == "dpt"
    encoders, side = (TRANSFORMERS, 224) if is_dpt else (ENCODERS, 256)
    sizes = {encoder.partition(".")[0].replace("-", "_"): {"encoder": encoder, "side": side} for encoder in encoders}
    tiny = {"encoder": TRANSFORMERS[1], "side": 224} if is_dpt else {"encoder": "resnet18", "side": 128}
    return Written(partial(net, name), tiny, sizes)


WRITTEN = {name: written(name) for name in NAMES}
