"""Nets of the survey's fourth draw over graphs, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype unless it says so.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RelationalLayer(nn.Module):
    """Messages by relation, whose matrices are mixed of a few; the mean of each node's, and its own."""

    def __init__(self, inputs: int, outputs: int, relations: int, bases: int) -> None:
        super().__init__()
        self.bases = nn.Parameter(torch.randn(bases, inputs, outputs) / math.sqrt(inputs))
        self.shares = nn.Embedding(relations, bases)
        self.own = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, edges: Tensor, relations: Tensor) -> Tensor:
        source, target = edges
        mixed = torch.einsum("ni,bio->nbo", x, self.bases)
        messages = (mixed[source] * self.shares(relations)[:, :, None].to(mixed.dtype)).sum(dim=1)
        total = torch.zeros(len(x), messages.shape[1], device=x.device, dtype=messages.dtype)
        total = total.index_add(0, target, messages)
        counts = torch.zeros(len(x), device=x.device, dtype=messages.dtype)
        counts = counts.index_add(0, target, torch.ones_like(target, dtype=messages.dtype))
        return total / counts.clamp(min=1)[:, None] + self.own(x)


class RelationalGraph(nn.Module):
    """R-GCN: entities of a knowledge graph have learned features; their classes are asked for."""

    def __init__(self, entities: int, width: int, relations: int, bases: int, depth: int, classes: int) -> None:
        super().__init__()
        self.entities = nn.Embedding(entities, width)
        self.layers = nn.ModuleList(RelationalLayer(width, width, relations, bases) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, names: Tensor, edges: Tensor, relations: Tensor, labels: Tensor) -> Tensor:
        x = self.entities(names)
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x, edges, relations)), 0.2)
        return F.cross_entropy(self.head(x), labels)


class LightGcn(nn.Module):
    """LightGCN: features of users and things, only averaged along what was bought; a bought thing beats another."""

    def __init__(self, users: int, things: int, width: int, depth: int) -> None:
        super().__init__()
        self.users, self.depth = users, depth
        self.features = nn.Embedding(users + things, width)
        nn.init.normal_(self.features.weight, std=0.1)

    def forward(self, buyers: Tensor, bought: Tensor, other: Tensor) -> Tensor:
        users, things = buyers.flatten(), bought.flatten() + self.users
        source, target = torch.cat([users, things]), torch.cat([things, users])
        x = self.features.weight
        ones = torch.ones_like(source, dtype=x.dtype)
        degrees = torch.zeros(len(x), device=x.device, dtype=x.dtype).index_add(0, target, ones).clamp(min=1)
        shares = (degrees[source] * degrees[target]).rsqrt()[:, None]
        layers = [x]
        for _ in range(self.depth):
            x = torch.zeros_like(x).index_add(0, target, x[source] * shares)
            layers.append(x)
        mean = torch.stack(layers).mean(dim=0)
        asked, liked, left = (mean[index] for index in (users, things, other.flatten() + self.users))
        gain = (asked * (liked - left)).sum(dim=1)
        sizes = sum(self.features(index).square().sum() for index in (users, things)) / len(users)
        return F.softplus(-gain.float()).mean() + 1e-4 * sizes


class MessagePassing(nn.Module):
    """MPNN: bonds become matrices, atoms are GRU cells, an LSTM that attends to them reads the molecule."""

    def __init__(self, kinds: int, bonds: int, width: int, steps: int, reads: int) -> None:
        super().__init__()
        self.width, self.steps, self.reads = width, steps, reads
        self.atoms = nn.Embedding(kinds, width)
        self.matrices = nn.Sequential(nn.Linear(bonds, 2 * width), nn.ReLU(), nn.Linear(2 * width, width * width))
        self.update, self.reader = nn.GRUCell(width, width), nn.LSTMCell(2 * width, width)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 12))

    def forward(self, atoms: Tensor, pairs: Tensor, bonds: Tensor, answers: Tensor) -> Tensor:
        rows, (source, target) = len(answers), pairs
        x = self.atoms(atoms)
        matrices = self.matrices(bonds).view(-1, self.width, self.width)
        for _ in range(self.steps):
            messages = torch.bmm(matrices, x[source][:, :, None].to(matrices.dtype)).squeeze(2)
            total = torch.zeros(x.shape, device=x.device, dtype=messages.dtype).index_add(0, target, messages)
            x = self.update(F.relu(total), x.to(total.dtype))
        places = x.view(rows, -1, self.width)
        read = torch.zeros(rows, 2 * self.width, device=x.device, dtype=x.dtype)
        hidden = cell = torch.zeros(rows, self.width, device=x.device, dtype=x.dtype)
        for _ in range(self.reads):
            hidden, cell = self.reader(read, (hidden, cell))
            shares = (places * hidden[:, None]).sum(dim=2).softmax(dim=1)
            read = torch.cat([hidden, (shares[:, :, None] * places).sum(dim=1)], dim=1)
        return F.l1_loss(self.head(read), answers)


class PolarisedLayer(nn.Module):
    """PaiNN: numbers and vectors of atoms, messages by filters of the distance, then both mixed in place."""

    def __init__(self, width: int, waves: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width))
        self.filters = nn.Linear(waves, 3 * width)
        self.turned = nn.Linear(width, 2 * width, bias=False)
        self.mix = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(
        self, x: Tensor, vectors: Tensor, pairs: Tensor, waves: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor]:
        source, target = pairs
        parts = self.message(x)[source] * self.filters(waves)
        plain, along, kept = parts.chunk(3, dim=1)
        moved = directions[:, :, None] * along[:, None] + vectors[source] * kept[:, None]
        x = x.index_add(0, target, plain)
        vectors = vectors.index_add(0, target, moved)
        left, right = self.turned(vectors).chunk(2, dim=2)
        sizes = (right.square().sum(dim=1) + 1e-8).sqrt()
        own, cross, scale = self.mix(torch.cat([x, sizes], dim=1)).chunk(3, dim=1)
        return x + own + cross * (left * right).sum(dim=1), vectors + scale[:, None] * left


class PolarisedAtoms(nn.Module):
    """Energies and forces of molecules by such layers; forces by autograd, so no autocast and no 16 bits."""

    def __init__(self, width: int, waves: int, depth: int) -> None:
        super().__init__()
        self.atoms, self.count = nn.Embedding(100, width), waves
        self.layers = nn.ModuleList(PolarisedLayer(width, waves) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1))

    def forward(self, atoms: Tensor, places: Tensor, pairs: Tensor, forces: Tensor) -> Tensor:
        places = places.detach().requires_grad_()
        apart = places[pairs[0]] - places[pairs[1]]
        distances = (apart.square().sum(dim=1, keepdim=True) + 1e-6).sqrt()
        orders = torch.arange(1, self.count + 1, device=places.device) * (math.pi / 5)
        fade = 0.5 * (torch.cos(distances.clamp(max=5) * (math.pi / 5)) + 1)
        waves = torch.sin(distances * orders) / distances * fade
        x = self.atoms(atoms)
        vectors = torch.zeros(len(x), 3, x.shape[1], device=x.device, dtype=x.dtype)
        for layer in self.layers:
            x, vectors = layer(x, vectors, pairs, waves, apart / distances)
        energy = self.head(x).sum()
        (slope,) = torch.autograd.grad(energy, places, create_graph=True)
        return F.mse_loss(-slope, forces) + 1e-6 * energy.square()


class GatedTime(nn.Module):
    """A window over time without padding, half of whose channels gate the others; (rows, channels, steps, nodes)."""

    def __init__(self, inputs: int, outputs: int, window: int) -> None:
        super().__init__()
        self.window, self.conv = window, nn.Conv2d(inputs, 2 * outputs, (window, 1))
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.conv(x).chunk(2, dim=1)
        return (value + self.shortcut(x)[:, :, self.window - 1 :]) * gate.sigmoid()


class TrafficBlock(nn.Module):
    """Time, roads, time, and a norm over roads and channels (STGCN)."""

    def __init__(self, inputs: int, narrow: int, outputs: int, nodes: int, orders: int) -> None:
        super().__init__()
        self.first, self.second = GatedTime(inputs, outputs, 3), GatedTime(narrow, outputs, 3)
        self.weights = nn.Parameter(torch.randn(orders, outputs, narrow) / math.sqrt(orders * outputs))
        self.bias = nn.Parameter(torch.zeros(narrow, 1, 1))
        self.narrow = nn.Conv2d(outputs, narrow, 1)
        self.norm, self.dropout = nn.LayerNorm([nodes, outputs]), nn.Dropout(0.5)

    def forward(self, x: Tensor, powers: Tensor) -> Tensor:
        x = self.first(x)
        along = torch.einsum("knm,bitm->bkitn", powers, x)
        mixed = torch.einsum("bkitn,kio->botn", along, self.weights) + self.bias
        x = self.second(F.relu(mixed + self.narrow(x)))
        return self.dropout(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class TrafficGraph(nn.Module):
    """Speeds on roads, some steps ahead, by convolutions over time and Chebyshev polynomials of the roads' graph."""

    def __init__(self, nodes: int, steps: int, width: int, orders: int) -> None:
        super().__init__()
        self.register_buffer("powers", torch.randn(orders, nodes, nodes) / nodes)
        self.blocks = nn.ModuleList(TrafficBlock(inputs, width // 4, width, nodes, orders) for inputs in (1, width))
        self.last = GatedTime(width, width, steps - 8)
        self.norm = nn.LayerNorm([nodes, width])
        self.head = nn.Sequential(nn.Conv2d(width, width, 1), nn.Sigmoid(), nn.Conv2d(width, 1, 1))

    def forward(self, speeds: Tensor, later: Tensor) -> Tensor:
        x = speeds[:, None]
        for block in self.blocks:
            x = block(x, self.powers)
        x = self.norm(self.last(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.mse_loss(self.head(x)[:, 0, 0], later)
