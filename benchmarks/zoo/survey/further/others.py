"""Nets of the survey's second draw over sets, graphs, tables and games, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SetAttention(nn.Module):
    """Attention of one set to another with heads stacked along the batch, as its authors wrote it (MAB)."""

    def __init__(self, query: int, key: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Linear(query, width), nn.Linear(key, width), nn.Linear(key, width)
        self.first, self.second, self.out = nn.LayerNorm(width), nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, asking: Tensor, asked: Tensor) -> Tensor:
        query, key, value = self.query(asking), self.key(asked), self.value(asked)
        size = query.shape[2] // self.heads
        queries, keys, values = (torch.cat(x.split(size, 2), 0) for x in (query, key, value))
        weights = torch.softmax(queries.bmm(keys.transpose(1, 2)) / math.sqrt(query.shape[2]), 2)
        found = torch.cat((queries + weights.to(values.dtype).bmm(values)).split(len(query), 0), 2)
        found = self.first(found)
        return self.second(found + F.relu(self.out(found)))


class Induced(nn.Module):
    """A set attends to itself by way of a few learned points (ISAB)."""

    def __init__(self, inputs: int, width: int, heads: int, points: int) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, width) * 0.1)
        self.gather, self.spread = SetAttention(width, inputs, width, heads), SetAttention(inputs, width, width, heads)

    def forward(self, x: Tensor) -> Tensor:
        return self.spread(x, self.gather(self.points.expand(len(x), -1, -1), x))


class SetTransformer(nn.Module):
    """Classifies point clouds."""

    def __init__(self, width: int, heads: int, points: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*(Induced(3 if not k else width, width, heads, points) for k in range(depth)))
        self.seeds = nn.Parameter(torch.randn(1, 4, width) * 0.1)
        self.pool = SetAttention(width, width, width, heads)
        self.mix, self.head = SetAttention(width, width, width, heads), nn.Linear(4 * width, 40)

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        found = self.pool(self.seeds.expand(len(points), -1, -1), self.encoder(points))
        return F.cross_entropy(self.head(F.dropout(self.mix(found, found).flatten(1), 0.5, self.training)), labels)


class Dice(nn.Module):
    """An activation whose threshold follows the data."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.slope = nn.BatchNorm1d(width, affine=False), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        share = torch.sigmoid(self.norm(x.flatten(0, -2)).view_as(x))
        return share * x + (1 - share) * self.slope * x


class DeepInterest(nn.Module):
    """Clicks from a user's history: each past item is weighted by a small net that sees the offered one (DIN)."""

    def __init__(self, items: int, kinds: int, width: int) -> None:
        super().__init__()
        self.items, self.kinds = nn.Embedding(items, width), nn.Embedding(kinds, width)
        size = 2 * width
        self.weigh = nn.Sequential(
            nn.Linear(4 * size, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1)
        )
        self.head = nn.Sequential(
            nn.BatchNorm1d(3 * size),
            nn.Linear(3 * size, 200),
            Dice(200),
            nn.Linear(200, 80),
            Dice(80),
            nn.Linear(80, 1),
        )

    def look(self, items: Tensor, kinds: Tensor) -> Tensor:
        return torch.cat([self.items(items), self.kinds(kinds)], dim=-1)

    def forward(
        self, item: Tensor, kind: Tensor, items: Tensor, kinds: Tensor, absent: Tensor, clicks: Tensor
    ) -> Tensor:
        offered, past = self.look(item, kind), self.look(items, kinds)
        asked = offered[:, None].expand_as(past)
        scores = self.weigh(torch.cat([asked, past, asked - past, asked * past], dim=-1)).squeeze(-1)
        scores = scores.masked_fill(absent, 0.0)
        interest = torch.bmm(scores[:, None], past.to(scores.dtype)).squeeze(1)
        logits = self.head(torch.cat([interest, offered.to(interest.dtype), interest * offered], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits.float(), torch.sigmoid(clicks.float()))


class EquivariantLayer(nn.Module):
    """Messages along edges see distances only; places move along the edges (EGNN)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.weigh = nn.Sequential(nn.Linear(width, 1), nn.Sigmoid())
        self.move = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False))
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, features: Tensor, places: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        source, target = edges
        apart = places[source] - places[target]
        square = apart.square().sum(dim=1, keepdim=True)
        message = self.message(torch.cat([features[source], features[target], square.to(features.dtype)], dim=1))
        message = message * self.weigh(message)
        shift = apart / (square.sqrt() + 1) * self.move(message).to(apart.dtype)
        count = torch.zeros_like(places[:, :1]).index_add_(0, source, torch.ones_like(square))
        moved = torch.zeros_like(places).index_add_(0, source, shift)
        places = places + moved / count.clamp(min=1)
        total = torch.zeros_like(features).index_add_(0, source, message.to(features.dtype))
        return features + self.update(torch.cat([features, total], dim=1)).to(features.dtype), places


class EquivariantNet(nn.Module):
    """Where particles will be."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(1, width)
        self.layers = nn.ModuleList(EquivariantLayer(width) for _ in range(depth))

    def forward(self, charges: Tensor, places: Tensor, edges: Tensor, later: Tensor) -> Tensor:
        features = self.enter(charges)
        for layer in self.layers:
            features, places = layer(features, places, edges)
        return F.mse_loss(places, later)


class SchNet(nn.Module):
    """Energies and forces of molecules: filters made of distances, summed over neighbours; forces by autograd."""

    def __init__(self, width: int, waves: int, depth: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(100, width)
        self.register_buffer("centers", torch.linspace(0, 5, waves))
        self.filters = nn.ModuleList(
            nn.ModuleList([nn.Linear(waves, width), nn.Linear(width, width)]) for _ in range(depth)
        )
        self.enter, self.middle, self.leave = (
            nn.ModuleList(nn.Linear(width, width) for _ in range(depth)) for _ in range(3)
        )
        self.first, self.last = nn.Linear(width, width // 2), nn.Linear(width // 2, 1)

    @staticmethod
    def bent(x: Tensor) -> Tensor:
        return F.softplus(x) - math.log(2)

    def energy(self, atoms: Tensor, places: Tensor, pairs: Tensor) -> Tensor:
        x, (source, target) = self.atoms(atoms), pairs
        distance = ((places[source] - places[target]).square().sum(dim=1) + 1e-6).sqrt()
        waves = torch.exp(-10 * (distance[:, None] - self.centers).square())
        fade = 0.5 * (torch.cos(distance.clamp(max=5) * (math.pi / 5)) + 1)
        for (first, second), enter, middle, leave in zip(
            self.filters, self.enter, self.middle, self.leave, strict=True
        ):
            filters = second(self.bent(first(waves))) * fade[:, None]
            messages = enter(x)[source] * filters
            total = torch.zeros_like(x).index_add(0, target, messages)
            x = x + leave(self.bent(middle(total)))
        return self.last(self.bent(self.first(x))).sum()

    def forward(self, atoms: Tensor, places: Tensor, pairs: Tensor, forces: Tensor) -> Tensor:
        places = places.detach().requires_grad_()
        energy = self.energy(atoms, places, pairs)
        (slope,) = torch.autograd.grad(energy, places, create_graph=True)
        return F.mse_loss(-slope, forces) + 1e-6 * energy.square()


class DeepFm(nn.Module):
    """Clicks from categories: pairs of embeddings by the square of a sum, beside a perceptron of all of them."""

    def __init__(self, rows: int, columns: int, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(rows, 1), nn.Embedding(rows, width)
        sizes = [columns * width, hidden, hidden, hidden]
        self.deep = nn.Sequential(*(
            layer
            for a, b in itertools.pairwise(sizes)
            for layer in (nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.2))
        ), nn.Linear(hidden, 1))  # fmt: skip
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, categories: Tensor, weights: Tensor, clicks: Tensor) -> Tensor:
        alone = (self.first(categories).squeeze(-1) * weights).sum(dim=1)
        vectors = self.second(categories) * weights[..., None]
        paired = 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1)
        logits = self.bias + alone + paired + self.deep(vectors.flatten(1)).squeeze(1).to(paired.dtype)
        return F.binary_cross_entropy_with_logits(logits.float(), torch.sigmoid(clicks.float()))


class MultiGate(nn.Module):
    """Several tasks, each with a gate over the same experts and a tower (MMoE)."""

    def __init__(self, rows: int, columns: int, width: int, experts: int, hidden: int, tasks: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        size = columns * width
        self.first = nn.Parameter(torch.randn(experts, size, hidden) * size**-0.5)
        self.second = nn.Parameter(torch.randn(experts, hidden, hidden // 2) * hidden**-0.5)
        self.gates = nn.ModuleList(nn.Linear(size, experts, bias=False) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden // 2, 128), nn.ReLU(), nn.Linear(128, 1)) for _ in range(tasks)
        )
        self.spreads = nn.Parameter(torch.zeros(tasks))

    def forward(self, categories: Tensor, answers: Tensor) -> Tensor:
        x = self.table(categories).flatten(1)
        known = F.relu(torch.einsum("bs,esh->beh", x, self.first))
        known = F.relu(torch.einsum("beh,ehk->bek", known, self.second))
        loss = self.spreads.sum()
        for number, (gate, tower) in enumerate(zip(self.gates, self.towers, strict=True)):
            mixed = torch.einsum("be,bek->bk", F.softmax(gate(x), dim=1).to(known.dtype), known)
            wanted = (answers[:, number] > 0).float()
            task = F.binary_cross_entropy_with_logits(tower(mixed).squeeze(1).float(), wanted)
            loss = loss + task * torch.exp(-self.spreads[number])
        return loss


class PointAttention(nn.Module):
    """Each point attends to its neighbours with a weight per channel, which depends on where they are."""

    def __init__(self, width: int, neighbours: int) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.place = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.weigh = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, places: Tensor, x: Tensor) -> Tensor:
        square = places.float().square().sum(dim=-1)
        apart = square[:, :, None] + square[:, None] - 2 * places.float() @ places.float().transpose(1, 2)
        near = apart.topk(self.neighbours, dim=-1, largest=False).indices
        rows = torch.arange(len(x), device=x.device)[:, None, None]
        hidden = self.enter(x)
        place = self.place(places[:, :, None] - places[rows, near])
        weights = self.weigh(self.query(hidden)[:, :, None] - self.key(hidden)[rows, near] + place)
        weights = F.softmax(weights / math.sqrt(x.shape[-1]), dim=2)
        found = (weights.to(place.dtype) * (self.value(hidden)[rows, near] + place)).sum(dim=2)
        return x + self.leave(found)


class PointTransformer(nn.Module):
    """Classifies clouds that are thinned four times at every level: the maximum over each kept point's neighbours."""

    def __init__(self, width: int, levels: int, neighbours: int) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(levels)]
        self.neighbours = neighbours
        self.enter = nn.Linear(3, width)
        self.attentions = nn.ModuleList(PointAttention(size, neighbours) for size in sizes)
        self.down = nn.ModuleList(nn.Linear(a + 3, b) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes[1:])
        self.head = nn.Linear(sizes[-1], 40)

    def thin(self, level: int, places: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = places[:, ::4]
        near = torch.cdist(kept.float(), places.float()).topk(self.neighbours, dim=-1, largest=False).indices
        rows = torch.arange(len(x), device=x.device)[:, None, None]
        grouped = torch.cat([places[rows, near] - kept[:, :, None], x[rows, near].to(places.dtype)], dim=-1)
        found = self.down[level](grouped)
        found = F.relu(self.norms[level](found.flatten(0, 2)).view_as(found))
        return kept, found.amax(dim=2)

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        x = self.enter(points)
        for level, attention in enumerate(self.attentions):
            x = attention(points, x)
            if level < len(self.down):
                points, x = self.thin(level, points, x)
        return F.cross_entropy(self.head(x.mean(dim=1)), labels)
