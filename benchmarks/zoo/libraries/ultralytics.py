"""Nets of ultralytics: things in images are found, outlined or sorted into classes.

The library's own loss matches as many boxes as an image has; here every anchor has a target, so that sizes are fixed.
In: a configuration's name. Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written, stand_ins
from zoo.survey import ANY, Net, below, floats

os.environ |= {"YOLO_OFFLINE": "true", "YOLO_VERBOSE": "false"}  # it would look for a network, and say much
with stand_ins("cv2", "matplotlib", "matplotlib.pyplot"):
    from ultralytics.nn import tasks

NUM_CLASSES, NUM_OUTLINED = 80, 32
STRIDES = (8, 16, 32)


def anchors(side: int) -> int:
    return sum((side // stride) ** 2 for stride in STRIDES)


def found_loss(found: Any, classes: Tensor, boxes: Tensor) -> Tensor:
    """Scores, and for each side of a box how likely each distance is; or the distance itself."""
    loss = F.binary_cross_entropy_with_logits(found["scores"], classes.to(found["scores"].dtype))
    if found["boxes"].shape[1] == boxes.shape[1]:
        return loss + F.smooth_l1_loss(found["boxes"], boxes.to(found["boxes"].dtype))
    return loss + F.cross_entropy(found["boxes"].unflatten(1, (4, -1)).transpose(1, 2), boxes)


def find(net: nn.Module, images: Tensor, classes: Tensor, boxes: Tensor) -> Tensor:
    found = net(images)
    heads = [found] if "boxes" in found else [found["one2many"], found["one2one"]]
    losses = [found_loss(head, classes, boxes) for head in heads]
    return sum(losses[1:], losses[0])


def outline(net: nn.Module, images: Tensor, classes: Tensor, boxes: Tensor, masks: Tensor) -> Tensor:
    found: Any = net(images)
    coefficients = found["mask_coefficient"][:, :, :NUM_OUTLINED].transpose(1, 2)
    outlines = (coefficients @ found["proto"].flatten(2)).unflatten(2, masks.shape[2:])
    loss = F.binary_cross_entropy_with_logits(outlines, masks.to(outlines.dtype))
    return loss + found_loss(found, classes, boxes)


def classify(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    found: Any = net(images)
    return F.cross_entropy(found, labels)


def targets(side: int) -> dict[str, Any]:
    return {"classes": below(2, NUM_CLASSES, anchors(side)), "boxes": below(16, 4, anchors(side))}


def made(model: str, loss: Callable[..., Tensor], name: str, num_classes: int) -> nn.Module:
    return Trained(getattr(tasks, model)(name, nc=num_classes, verbose=False), loss)


def finding(name: str, side: int) -> Net:
    build = partial(made, "DetectionModel", find, name, NUM_CLASSES)
    return Net("DetectionModel", build, 16, {"images": floats(3, side, side)} | targets(side), ANY, True)


def outlining(name: str, side: int) -> Net:
    build = partial(made, "SegmentationModel", outline, name, NUM_CLASSES)
    fields = {"images": floats(3, side, side), "masks": below(2, NUM_OUTLINED, side // 4, side // 4)} | targets(side)
    return Net("SegmentationModel", build, 16, fields, ANY, True)


def sorting(name: str, side: int) -> Net:
    build = partial(made, "ClassificationModel", classify, name, 1000)
    return Net("ClassificationModel", build, 64, {"images": floats(3, side, side), "labels": below(1000)}, ANY, True)


def written(make: Callable[..., Net], name: str, tiny: str, letters: str, side: int) -> Written:
    """`name` has a place for a letter, which says how large the model is."""
    sizes = {letter: {"name": name.format(letter), "side": side} for letter in letters}
    return Written(make, {"name": name.format(tiny), "side": 64}, sizes)


WRITTEN: dict[str, Written] = {
    "yolo_8_segment": written(outlining, "yolov8{}-seg.yaml", "n", "sml", 640),
    "yolo_9_detect": written(finding, "yolov9{}.yaml", "t", "sc", 640),
    "yolo_11_classify": written(sorting, "yolo11{}-cls.yaml", "n", "sml", 224),
    "yolo_12_detect": written(finding, "yolo12{}.yaml", "n", "sm", 640),
    "yolo_26_detect": written(finding, "yolo26{}.yaml", "n", "sml", 640),
}
