"""What nets of torch_geometric have in common: how nodes are sorted into classes, and the sizes of known graphs.

Convolutions that the library has no whole model of are stacked as it stacks its own (`BasicGNN`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn.models.basic_gnn import BasicGNN

from zoo.libraries import Trained
from zoo.survey import ANY, Field, Net, edges, nodes

NODES = 1000
"""Of a row."""
TINY = {"channels": 16, "width": 16, "layers": 2, "degree": 4, "classes": 5}
ARXIV = {"channels": 128, "width": 256, "layers": 3, "degree": 7, "classes": 40}
PRODUCTS = {"channels": 100, "width": 256, "layers": 3, "degree": 25, "classes": 47}
REDDIT = {"channels": 602, "width": 128, "layers": 2, "degree": 50, "classes": 41}
USUAL = {"arxiv": ARXIV, "products": PRODUCTS, "reddit": REDDIT}


def classify(net: nn.Module, features: Tensor, links: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(features, links), labels)


def on_nodes(make: Callable[[], nn.Module], channels: int, degree: int, classes: int) -> Net:
    """Every node is sorted into a class."""
    fields = {
        "features": nodes(NODES, channels),
        "links": edges(NODES, NODES * degree),
        "labels": nodes(NODES, limit=classes),
    }
    return Net("nodes", lambda: Trained(make(), classify), 64, fields, ANY)


def basic(name: str, **fixed: Any) -> Callable[..., Net]:
    """One of the library's own models of many layers."""

    def make(channels: int, width: int, layers: int, degree: int, classes: int, **others: Any) -> Net:
        def build() -> nn.Module:
            return getattr(pyg, name)(channels, width, layers, classes, **fixed, **others)  # type: ignore

        return on_nodes(build, channels, degree, classes)

    return make


def stacked(convolution: Callable[[int, int], nn.Module]) -> Callable[..., Net]:
    """Layers of a convolution, put together as the library does it."""

    class Stacked(BasicGNN):
        supports_edge_weight, supports_edge_attr, supports_norm_batch = False, False, False

        def init_conv(self, in_channels: Any, out_channels: int, **_: Any) -> Any:
            return convolution(in_channels, out_channels)

    def make(channels: int, width: int, layers: int, degree: int, classes: int, **others: Any) -> Net:
        return on_nodes(lambda: Stacked(channels, width, layers, classes, **others), channels, degree, classes)

    return make


def own(model: Callable[..., nn.Module]) -> Callable[..., Net]:
    def make(channels: int, width: int, layers: int, degree: int, classes: int) -> Net:
        return on_nodes(lambda: model(channels, width, layers, classes), channels, degree, classes)

    return make


def whose(per_row: int) -> Field:
    """Which row a node is of."""
    return lambda rows, device, dtype: torch.arange(rows, device=device).repeat_interleave(per_row)
