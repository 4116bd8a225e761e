"""Nets of timm, by timm's names: images are sorted into classes.

In: a name of `timm.list_models()`. Out: `net`, with images of the side that the model's own configuration has.
"""

from __future__ import annotations

from functools import cache

import timm
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained
from zoo.survey import ANY, Net, below, floats

NUM_CLASSES = 1000


def families() -> dict[str, list[str]]:
    """The names of each of timm's modules."""
    return {module: timm.list_models(module=module) for module in timm.list_modules()}


def net(model: str, tiny: bool) -> Net:
    """The same for a small case, which has few images."""
    channels, *sides = image_size(model)
    fields = {"images": floats(channels, *sides), "labels": below(NUM_CLASSES)}
    return Net(model, lambda: Trained(make(model), classify), 32, fields, ANY, True)


def make(model: str) -> nn.Module:
    return timm.create_model(model, num_classes=NUM_CLASSES)


@cache
def image_size(model: str) -> tuple[int, ...]:
    return tuple(timm.get_pretrained_cfg(model).input_size)


def classify(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    found = net(images)
    scores = found if isinstance(found, Tensor) else sum(found[1:], found[0]) / len(found)  # distilled ones have two
    return F.cross_entropy(scores, labels)
