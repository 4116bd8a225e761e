"""Nets of lightly: what is alike in two views of an image is learned without labels.

Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torchvision
from lightly.loss import SwaVLoss, TiCoLoss, VICRegLoss
from lightly.models.modules import SwaVProjectionHead, SwaVPrototypes
from lightly.models.modules.heads import TiCoProjectionHead, VICRegProjectionHead
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import WITH_FP32_WEIGHTS, Net, floats


def backbone(name: str) -> tuple[nn.Module, int]:
    net: Any = getattr(torchvision.models, name)(weights=None)
    width: int = net.fc.in_features
    net.fc = nn.Identity()
    return net, width


def two_views(name: str, side: int, head: Any, criterion: Any) -> Net:
    def compare(net: nn.Module, first: Tensor, second: Tensor) -> Tensor:
        loss: Tensor = criterion()(net(first), net(second))
        return loss

    def build() -> nn.Module:
        net, width = backbone(name)
        return Trained(nn.Sequential(net, head(width)), compare)

    fields = {view: floats(3, side, side) for view in ("first", "second")}
    return Net("TwoViews", build, 32, fields, WITH_FP32_WEIGHTS, True)


class Prototypes(nn.Module):
    def __init__(self, name: str, hidden: int, inner: int, count: int) -> None:
        super().__init__()
        self.backbone, width = backbone(name)
        self.head = SwaVProjectionHead(width, hidden, inner)
        self.prototypes = SwaVPrototypes(inner, n_prototypes=count)

    def forward(self, views: Tensor) -> Tensor:
        found: Tensor = self.prototypes(nn.functional.normalize(self.head(self.backbone(views)), dim=1))
        return found


def swav(name: str, side: int, small_side: int, small_views: int, hidden: int, inner: int, count: int) -> Net:
    """Two large views of every image and some small ones."""

    def assign(net: nn.Module, first: Tensor, second: Tensor, small: Tensor) -> Tensor:
        views = net(torch.cat((first, second))).chunk(2)
        few = net(small.flatten(0, 1)).unflatten(0, small.shape[:2]).unbind(1)
        loss: Tensor = SwaVLoss()(list(views), list(few))
        return loss

    fields = {
        "first": floats(3, side, side), "second": floats(3, side, side),
        "small": floats(small_views, 3, small_side, small_side),
    }  # fmt: skip
    build = partial(Prototypes, name, hidden, inner, count)
    return Net("SwaV", lambda: Trained(build(), assign), 32, fields, WITH_FP32_WEIGHTS, True)


VICREG = partial(two_views, criterion=VICRegLoss)
WRITTEN: dict[str, Written] = {
    "vicreg": Written(
        VICREG, {"name": "resnet18", "side": 32, "head": partial(VICRegProjectionHead, hidden_dim=64, output_dim=64)},
        {"50": {"name": "resnet50", "side": 224, "head": VICRegProjectionHead},
         "18": {"name": "resnet18", "side": 224,
                "head": partial(VICRegProjectionHead, hidden_dim=2048, output_dim=2048)}},
    ),
    "tico": Written(
        partial(two_views, criterion=TiCoLoss),
        {"name": "resnet18", "side": 32, "head": partial(TiCoProjectionHead, hidden_dim=64, output_dim=64)},
        {"50": {"name": "resnet50", "side": 224, "head": TiCoProjectionHead}},
    ),
    "swav": Written(
        swav, {"name": "resnet18", "side": 32, "small_side": 32, "small_views": 2, "hidden": 32, "inner": 16,
               "count": 20},
        {"50": {"name": "resnet50", "side": 224, "small_side": 96, "small_views": 6, "hidden": 2048, "inner": 128,
                "count": 3000},
         "34": {"name": "resnet34", "side": 160, "small_side": 96, "small_views": 4, "hidden": 512, "inner": 128,
                "count": 512}},
    ),
}  # fmt: skip
