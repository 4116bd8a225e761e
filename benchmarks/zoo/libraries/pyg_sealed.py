"""Nets of torch_geometric that were drawn last.

Out: `SEALED`, which zoo/libraries/pyg.py adds to its own.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg

from zoo.libraries import Trained, Written
from zoo.libraries.nodes import ARXIV, NODES, PRODUCTS, REDDIT, TINY, USUAL, basic, own, stacked, whose
from zoo.survey import ANY, WITH_FP32_WEIGHTS, Field, Net, edges, nodes


class GatedGraph(nn.Module):
    """Messages that one recurrent cell takes in, several times."""

    def __init__(self, channels: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(channels, width), nn.Linear(width, classes)
        self.conv = pyg.GatedGraphConv(width, num_layers=layers)

    def forward(self, features: Tensor, links: Tensor) -> Tensor:
        return self.last(F.relu(self.conv(self.first(features), links)))  # type: ignore[no-any-return]


class CrystalGraph(nn.Module):
    """Atoms and how far their neighbours are; one property of each crystal."""

    def __init__(self, width: int, layers: int, gaussians: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(100, width)
        self.layers = nn.ModuleList(pyg.CGConv(width, dim=gaussians, batch_norm=True) for _ in range(layers))
        self.head = pyg.MLP([width, 2 * width, 1], norm=None)

    def forward(self, atoms: Tensor, links: Tensor, distances: Tensor, batch: Tensor, count: int) -> Tensor:
        x = self.atoms(atoms)
        for layer in self.layers:
            x = layer(x, links, distances)
        return self.head(pyg.global_mean_pool(x, batch, count)).squeeze(-1)  # type: ignore[no-any-return]


def crystal_graph(width: int, layers: int, gaussians: int, atoms: int, neighbours: int) -> Net:
    def regress(
        net: nn.Module, atoms: Tensor, links: Tensor, distances: Tensor, batch: Tensor, wanted: Tensor
    ) -> Tensor:
        return F.mse_loss(net(atoms, links, distances, batch, len(wanted)), wanted)

    fields = {
        "atoms": nodes(atoms, limit=100),
        "links": edges(atoms, atoms * neighbours),
        "distances": nodes(atoms * neighbours, gaussians),
        "batch": whose(atoms),
        "wanted": lambda rows, device, dtype: torch.randn(rows, device=device, dtype=dtype),
    }
    return Net("CGConv", lambda: Trained(CrystalGraph(width, layers, gaussians), regress), 128, fields, ANY)


def sg_former(channels: int, width: int, layers: int, degree: int, classes: int) -> Net:
    def classify(net: nn.Module, features: Tensor, links: Tensor, batch: Tensor, labels: Tensor) -> Tensor:
        return F.nll_loss(net(features, links, batch), labels)

    def build() -> nn.Module:
        return Trained(pyg.SGFormer(channels, width, classes, gnn_num_layers=layers), classify)

    fields = {
        "features": nodes(NODES, channels),
        "links": edges(NODES, NODES * degree),
        "batch": whose(NODES),
        "labels": nodes(NODES, limit=classes),
    }
    return Net("SGFormer", build, 64, fields, WITH_FP32_WEIGHTS)


def linkx(nodes: int, channels: int, width: int, layers: int, classes: int) -> Net:
    """A whole graph at once, since each of its nodes has weights; a row is a thousand of its edges."""

    def classify(net: nn.Module, features: Tensor, links: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(net(features, links), labels)

    def build() -> nn.Module:
        return Trained(pyg.LINKX(nodes, channels, width, classes, layers, num_edge_layers=2), classify)

    fields: dict[str, Field] = {
        "features": lambda rows, device, dtype: torch.randn(nodes, channels, device=device, dtype=dtype),
        "links": lambda rows, device, dtype: torch.randint(0, nodes, (2, 1000 * rows), device=device),
        "labels": lambda rows, device, dtype: torch.randint(0, classes, (nodes,), device=device),
    }
    return Net("LINKX", build, 1024, fields, ANY)


class EdgeConditioned(nn.Module):
    """As the library's example has it: a bond says what matrix its message goes through, and a cell takes them in."""

    def __init__(self, width: int, hidden: int, steps: int) -> None:
        super().__init__()
        self.atoms, self.steps = nn.Linear(11, width), steps
        matrices = nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, width * width))
        self.conv = pyg.NNConv(width, width, matrices, aggr="mean", root_weight=False)
        self.cell = nn.GRU(width, width)
        self.pool = pyg.Set2Set(width, processing_steps=3)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, atoms: Tensor, links: Tensor, bonds: Tensor, batch: Tensor, count: int) -> Tensor:
        x = F.relu(self.atoms(atoms))
        state = x[None]
        for _ in range(self.steps):
            x, state = self.cell(F.relu(self.conv(x, links, bonds))[None], state)
            x = x[0]
        return self.head(self.pool(x, batch, dim_size=count)).squeeze(-1)  # type: ignore[no-any-return]


def edge_conditioned(width: int, hidden: int, steps: int) -> Net:
    def regress(net: nn.Module, atoms: Tensor, links: Tensor, bonds: Tensor, batch: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(net(atoms, links, bonds, batch, len(wanted)), wanted)

    fields = {
        "atoms": nodes(18, 11),
        "links": edges(18, 37),
        "bonds": nodes(37, 5),
        "batch": whose(18),
        "wanted": lambda rows, device, dtype: torch.randn(rows, device=device, dtype=dtype),
    }
    return Net("NNConv", lambda: Trained(EdgeConditioned(width, hidden, steps), regress), 128, fields, ANY)


SEALED = {
    "gated_graph": Written(own(GatedGraph), TINY, {
        "arxiv": ARXIV | {"layers": 6}, "products": PRODUCTS | {"width": 128, "layers": 4},
        "reddit": REDDIT | {"layers": 3}}),
    "crystal_graph": Written(
        crystal_graph, {"width": 16, "layers": 2, "gaussians": 5, "atoms": 6, "neighbours": 4},
        {"64": {"width": 64, "layers": 3, "gaussians": 41, "atoms": 30, "neighbours": 12},
         "128": {"width": 128, "layers": 6, "gaussians": 80, "atoms": 60, "neighbours": 16}},
    ),
    "sg_former": Written(sg_former, TINY, USUAL),
    "edge_cnn": Written(basic("EdgeCNN"), TINY, {
        "arxiv": ARXIV | {"norm": "batch_norm"}, "products": PRODUCTS | {"width": 64}}),
    "arma": Written(stacked(partial(pyg.ARMAConv, num_stacks=3, num_layers=2, shared_weights=True)), TINY, {
        "arxiv": ARXIV | {"width": 128}, "products": PRODUCTS | {"width": 64}}),
    "graph_sage": Written(basic("GraphSAGE"), TINY, USUAL),
    "linkx": Written(
        linkx, {"nodes": 100, "channels": 16, "width": 16, "layers": 2, "classes": 5},
        {"penn": {"nodes": 41554, "channels": 4814, "width": 256, "layers": 2, "classes": 2},
         "arxiv": {"nodes": 169343, "channels": 128, "width": 256, "layers": 3, "classes": 5}},
    ),
    "edge_conditioned": Written(
        edge_conditioned, {"width": 8, "hidden": 16, "steps": 2},
        {"64": {"width": 64, "hidden": 128, "steps": 3}, "96": {"width": 96, "hidden": 192, "steps": 5}},
    ),
}  # fmt: skip
