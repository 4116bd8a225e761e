"""Nets of torchvision, by its names: classes of images and films, segments, optical flow. No detection.

In: a name of `torchvision.models.list_models()`. Out: `net`, trained as the library's reference scripts train it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models

from zoo.libraries import Trained
from zoo.survey import ANY, Field, Net, below, floats

FILMS = {"resnet": (16, 112), "mvit": (16, 224), "s3d": (32, 224), "swin_transformer": (16, 224)}
"""Frames and side."""
SIDES = {"inception": 299}
SEGMENTED_SIDE, NUM_SEGMENTS, FLOW_SIDES = 480, 21, (368, 496)
LEFT_OUT = ("detection", "quantization")
SAME = {"inception": "inception_v3", "maxvit": "maxxvit", "segmentation_deeplabv3": "deeplabv3"}
"""What other libraries call the same."""


def families() -> dict[str, list[str]]:
    """The names of each of torchvision's modules."""
    found: dict[str, list[str]] = {}
    for name in models.list_models():
        kind, module = place(name)
        if kind not in LEFT_OUT:
            family = "_".join(part for part in (kind, module) if part)
            found.setdefault(SAME.get(family, family), []).append(name)
    return found


def place(model: str) -> tuple[str, str]:
    """The folder and the file that a model is written in."""
    _, _, *folders, module = models.get_model_builder(model).__module__.split(".")
    return "_".join(folders), module


def net(model: str, tiny: bool) -> Net:
    kind, module = place(model)
    fields: dict[str, Field]
    loss: Callable[..., Tensor] = classify
    if kind == "video":
        frames, side = FILMS[module]
        fields, loss = {"images": floats(3, frames, side, side), "labels": below(400)}, classify
    elif kind == "segmentation":
        side = SEGMENTED_SIDE // 4 if tiny else SEGMENTED_SIDE
        fields, loss = {"images": floats(3, side, side), "labels": below(NUM_SEGMENTS, side, side)}, segment
    elif kind == "optical_flow":
        height, width = (128, 128) if tiny else FLOW_SIDES
        views = {name: floats(3, height, width) for name in ("first", "second")}
        fields, loss = views | {"flow": floats(2, height, width)}, flow
    else:
        side = SIDES.get(module, 224)
        fields = {"images": floats(3, side, side), "labels": below(1000)}
    return Net(model, lambda: Trained(make(model), loss), 16, fields, ANY, kind not in ("video", "optical_flow"))


def make(model: str) -> nn.Module:
    needless = {"weights_backbone": None} if place(model)[0] == "segmentation" else {}
    made: Any = models.get_model(model, weights=None, **needless)
    return made  # type: ignore[no-any-return]


def classify(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    found = net(images)
    if isinstance(found, Tensor):
        return F.cross_entropy(found, labels)
    scores, *auxiliary = found
    others = (F.cross_entropy(other, labels) for other in auxiliary if other is not None)
    return F.cross_entropy(scores, labels) + 0.4 * sum(others)


def segment(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    found = net(images)
    loss = F.cross_entropy(found["out"], labels)
    return loss + 0.5 * F.cross_entropy(found["aux"], labels) if "aux" in found else loss


def flow(net: nn.Module, first: Tensor, second: Tensor, flow: Tensor) -> Tensor:
    """Later guesses count more."""
    guesses: Sequence[Tensor] = net(first, second)
    weights = [0.8 ** (len(guesses) - 1 - number) for number in range(len(guesses))]
    losses = [weight * (guess - flow).abs().mean() for weight, guess in zip(weights, guesses, strict=True)]
    return sum(losses[1:], losses[0])
