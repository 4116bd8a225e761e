"""Nets of rtdl_revisiting_models and rtdl_num_embeddings: rows of tables are sorted into classes.

Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from rtdl_num_embeddings import PeriodicEmbeddings
from rtdl_revisiting_models import MLP, ResNet
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import ANY, Net, below, floats


def classify(net: nn.Module, numbers: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(numbers), labels)


def classifying(build: Any, columns: int, classes: int) -> Net:
    fields = {"numbers": floats(columns), "labels": below(classes)}
    return Net("Table", lambda: Trained(build(), classify), 1024, fields, ANY)


def tabular_resnet(columns: int, classes: int, **sizes: Any) -> Net:
    def build() -> nn.Module:
        return ResNet(
            d_in=columns, d_out=classes, d_hidden_multiplier=2.0, dropout1=0.25, dropout2=0.1, **sizes
        )  # fmt: skip

    return classifying(build, columns, classes)


def periodic_mlp(columns: int, classes: int, width: int, **sizes: Any) -> Net:
    """Numbers are first laid out as waves."""

    def build() -> nn.Module:
        waves = PeriodicEmbeddings(columns, width, lite=False)
        net = MLP(d_in=columns * width, d_out=classes, dropout=0.1, **sizes)
        return nn.Sequential(waves, nn.Flatten(), net)

    return classifying(build, columns, classes)


WRITTEN: dict[str, Written] = {
    "tabular_resnet": Written(
        tabular_resnet, {"columns": 8, "classes": 3, "n_blocks": 1, "d_block": 16},
        {"wide": {"columns": 128, "classes": 100, "n_blocks": 8, "d_block": 1024},
         "deep": {"columns": 700, "classes": 355, "n_blocks": 16, "d_block": 512}},
    ),
    "periodic_mlp": Written(
        periodic_mlp, {"columns": 8, "classes": 3, "width": 8, "n_blocks": 1, "d_block": 16},
        {"wide": {"columns": 128, "classes": 100, "width": 24, "n_blocks": 4, "d_block": 1024},
         "long": {"columns": 512, "classes": 10, "width": 24, "n_blocks": 3, "d_block": 768}},
    ),
}  # fmt: skip
