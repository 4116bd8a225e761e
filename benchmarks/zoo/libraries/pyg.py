"""Nets of torch_geometric, on random graphs; a row is a part of the graph with its own nodes and edges.

Out: `WRITTEN`, by the names that libraries_draw.py has. Edges are taken as they are: no self loops are taken out or
added, since how many there are is known only from the numbers themselves.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg

from zoo.libraries import Trained, Written
from zoo.libraries.nodes import ARXIV, NODES, PRODUCTS, TINY, USUAL, basic, on_nodes, own, stacked, whose
from zoo.libraries.pyg_sealed import SEALED
from zoo.survey import ANY, Field, Net, edges, nodes


def degrees(degree: int) -> Tensor:
    """How many nodes have how many neighbours."""
    counts = torch.distributions.Poisson(torch.tensor(float(degree), device="cpu")).log_prob(
        torch.arange(4 * degree, device="cpu", dtype=torch.float32)
    )
    return (counts.exp() * NODES).long()


def pna(channels: int, width: int, layers: int, degree: int, classes: int) -> Net:
    def build() -> nn.Module:
        return pyg.PNA(
            channels, width, layers, classes, norm="batch_norm", deg=degrees(degree),
            aggregators=["mean", "min", "max", "std"], scalers=["identity", "amplification", "attenuation"],
        )  # fmt: skip

    return on_nodes(build, channels, degree, classes)


class Gps(nn.Module):
    """As the library's example has it, molecules of different sizes."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(28, width), nn.Embedding(4, width)
        self.layers = nn.ModuleList(
            pyg.GPSConv(width, pyg.GINEConv(pyg.MLP([width, width, width], norm=None)), heads=heads)
            for _ in range(layers)
        )
        self.head = pyg.MLP([width, width // 2, width // 4, 1], norm=None)

    def forward(self, atoms: Tensor, links: Tensor, bonds: Tensor, batch: Tensor, count: int) -> Tensor:
        x, edge_attr = self.atoms(atoms), self.bonds(bonds)
        for layer in self.layers:
            x = layer(x, links, batch, edge_attr=edge_attr)
        return self.head(pyg.global_add_pool(x, batch, count)).squeeze(-1)  # type: ignore[no-any-return]


def gps(width: int, layers: int, heads: int) -> Net:
    def regress(net: nn.Module, atoms: Tensor, links: Tensor, bonds: Tensor, batch: Tensor, wanted: Tensor) -> Tensor:
        return (net(atoms, links, bonds, batch, len(wanted)) - wanted).abs().mean()

    fields = {
        "atoms": nodes(24, limit=28),
        "links": edges(24, 50),
        "bonds": nodes(50, limit=4),
        "batch": whose(24),
        "wanted": lambda rows, device, dtype: torch.randn(rows, device=device, dtype=dtype),
    }
    return Net("gps", lambda: Trained(Gps(width, layers, heads), regress), 256, fields, ANY)


class DeepGcn(nn.Module):
    """As the library's example has it: residual layers, normed before they are convolved."""

    def __init__(self, channels: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(channels, width), nn.Linear(width, classes)
        self.layers = nn.ModuleList(
            pyg.DeepGCNLayer(
                pyg.GENConv(width, width, aggr="softmax", t=1.0, learn_t=True, num_layers=2, norm="layer"),
                nn.LayerNorm(width), nn.ReLU(inplace=True), block="res+", dropout=0.1,
            )
            for _ in range(layers)
        )  # fmt: skip

    def forward(self, features: Tensor, links: Tensor) -> Tensor:
        x = self.layers[0].conv(self.first(features), links)
        for layer in self.layers[1:]:
            x = layer(x, links)
        return self.last(F.dropout(self.layers[0].act(self.layers[0].norm(x)), 0.1, self.training))  # type: ignore


class ReversibleBlock(nn.Module):
    """Half of the channels, normed and convolved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(width), pyg.SAGEConv(width, width)

    def forward(self, x: Tensor, links: Tensor) -> Tensor:
        return self.conv(F.relu(self.norm(x)), links)  # type: ignore[no-any-return]


class Reversible(nn.Module):
    """As the library's example has it: what a layer was given is computed again from what it gave."""

    def __init__(self, channels: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(channels, width), nn.Linear(width, classes), nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            pyg.GroupAddRev(ReversibleBlock(width // 2), num_groups=2) for _ in range(layers)
        )  # fmt: skip

    def forward(self, features: Tensor, links: Tensor) -> Tensor:
        x = self.first(features)
        for layer in self.layers:
            x = layer(x, links)
        return self.last(F.relu(self.norm(x)))  # type: ignore[no-any-return]


def vis_net(width: int, layers: int) -> Net:
    def regress(net: nn.Module, atoms: Tensor, places: Tensor, batch: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(net(atoms, places, batch)[0].squeeze(-1), wanted)

    fields: dict[str, Field] = {
        "atoms": nodes(20, limit=100),
        "places": nodes(20, 3),
        "batch": whose(20),
        "wanted": lambda rows, device, dtype: torch.randn(rows, device=device, dtype=dtype),
    }
    made = {"hidden_channels": width, "num_layers": layers}
    return Net("ViSNet", lambda: Trained(pyg.ViSNet(**made), regress), 64, fields, ("fp32", "tf32"))


WRITTEN = SEALED | {
    "gps": Written(gps, {"width": 16, "layers": 2, "heads": 2},
                   {"64": {"width": 64, "layers": 10, "heads": 4}, "256": {"width": 256, "layers": 6, "heads": 8}}),
    "pna": Written(pna, TINY, {"arxiv": ARXIV | {"width": 128}, "products": PRODUCTS | {"width": 64}}),
    "gcn": Written(basic("GCN", add_self_loops=False), TINY, USUAL),
    "deep_gcn": Written(own(DeepGcn), TINY, {
        "proteins": {"channels": 8, "width": 64, "layers": 14, "degree": 20, "classes": 112},
        "arxiv": {"channels": 128, "width": 128, "layers": 8, "degree": 7, "classes": 40}}),
    "gat": Written(basic("GAT", add_self_loops=False, heads=8), TINY | {"classes": 8}, {
        "arxiv": ARXIV, "products": PRODUCTS | {"width": 128, "classes": 48}}),
    "group_reversible": Written(own(Reversible), TINY, {
        "arxiv": ARXIV | {"width": 256, "layers": 14}, "products": PRODUCTS | {"width": 160, "layers": 7}}),
    "film": Written(stacked(pyg.FiLMConv), TINY, USUAL),
    "vis_net": Written(vis_net, {"width": 16, "layers": 1}, {"usual": {"width": 128, "layers": 6}}),
    "chebyshev": Written(stacked(partial(pyg.ChebConv, K=3)), TINY, USUAL),
    "graph_transformer": Written(stacked(partial(pyg.TransformerConv, heads=4, concat=False)), TINY, {
        "arxiv": ARXIV | {"width": 128}, "products": PRODUCTS | {"width": 64}}),
}  # fmt: skip
