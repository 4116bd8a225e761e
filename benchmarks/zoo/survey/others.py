"""Nets of the survey over points, graphs, tables and functions, in plain torch, and optimizers people write themselves.

Each net computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PointNet(nn.Module):
    """Shared perceptrons over points, two found transformations, the maximum over all points."""

    def __init__(self, classes: int) -> None:
        super().__init__()

        def shared(*widths: int) -> nn.Sequential:
            pairs = itertools.pairwise(widths)
            return nn.Sequential(
                *(layer for a, b in pairs for layer in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU(inplace=True)))
            )

        def turn(size: int) -> nn.ModuleList:
            ends = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, size * size))
            return nn.ModuleList([shared(size, 64, 128, 1024), ends])

        self.turns = nn.ModuleList([turn(3), turn(64)])
        self.first, self.second = shared(3, 64, 64), shared(64, 64, 128, 1024)
        self.parts = nn.Sequential(shared(1088, 512, 256, 128), nn.Conv1d(128, classes, 1))

    def turned(self, x: Tensor, turn: nn.ModuleList) -> tuple[Tensor, Tensor]:
        size = x.shape[1]
        matrix = turn[1](turn[0](x).amax(dim=2)).view(-1, size, size)
        matrix = matrix + torch.eye(size, device=x.device, dtype=matrix.dtype)
        return torch.bmm(matrix.transpose(1, 2), x.to(matrix.dtype)), matrix

    def forward(self, points: Tensor, parts: Tensor) -> Tensor:
        x, _ = self.turned(points.transpose(1, 2), self.turns[0])
        local, matrix = self.turned(self.first(x), self.turns[1])
        whole = torch.max(self.second(local), dim=2, keepdim=True)[0].expand(-1, -1, local.shape[2])
        product = torch.bmm(matrix, matrix.transpose(1, 2)) - torch.eye(64, device=x.device, dtype=matrix.dtype)
        found = self.parts(torch.cat([local, whole.to(local.dtype)], dim=1))
        return F.cross_entropy(found, parts) + 0.001 * product.float().norm(dim=(1, 2)).mean()


class NeighbourGraph(nn.Module):
    """Points and their nearest neighbours, found anew in every layer's features."""

    def __init__(self, widths: tuple[int, ...], neighbours: int) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
            for a, b in zip((3, *widths), widths, strict=False)
        )
        self.head = nn.Sequential(nn.Linear(2 * sum(widths), 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 40))

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        x, found = points.transpose(1, 2), []
        for layer in self.layers:
            size, channels, number = x.shape
            distances = torch.cdist(x.transpose(1, 2).float(), x.transpose(1, 2).float())
            nearest = distances.topk(self.neighbours, dim=-1, largest=False)[1]
            rows = (nearest + torch.arange(size, device=x.device)[:, None, None] * number).flatten()
            near = x.transpose(1, 2).reshape(-1, channels)[rows].view(size, number, self.neighbours, channels)
            here = x.transpose(1, 2)[:, :, None].expand_as(near)
            x = layer(torch.cat([near - here, here], dim=3).permute(0, 3, 1, 2)).max(dim=-1)[0]
            found.append(x)
        both = torch.cat(found, dim=1)
        return F.cross_entropy(self.head(torch.cat([both.amax(dim=2), both.mean(dim=2)], dim=1)), labels)


class GraphAttention(nn.Module):
    """Weights of edges by a softmax over each node's incoming ones, with scatters."""

    def __init__(self, features: int, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.heads = heads
        sizes = [features] + [width] * depth
        self.project = nn.ModuleList(nn.Linear(a, width, bias=False) for a in sizes[:-1])
        self.scores = nn.ParameterList(torch.randn(2, heads, width // heads) * 0.1 for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, features: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        source, target = edges
        x = features
        for project, score in zip(self.project, self.scores, strict=True):
            hidden = project(F.dropout(x, 0.2, self.training)).unflatten(1, (self.heads, -1))
            here, there = (hidden * score[0]).sum(-1), (hidden * score[1]).sum(-1)
            weight = F.leaky_relu(here[source] + there[target], 0.2).float()
            index = target[:, None].expand_as(weight)
            top = torch.full_like(here, -1e9, dtype=torch.float32).scatter_reduce(0, index, weight.detach(), "amax")
            weight = (weight - top[target]).exp()
            total = torch.zeros_like(top).index_add(0, target, weight)
            messages = hidden[source] * (weight / (total[target] + 1e-9)).to(hidden.dtype)[..., None]
            x = F.elu(torch.zeros_like(hidden).index_add(0, target, messages).flatten(1))
        return F.cross_entropy(self.head(x), labels)


class PairBlock(nn.Module):
    """A table of pairs, updated along triangles and by attention of its rows."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.edges, self.gate = nn.Linear(width, 4 * width), nn.Linear(width, width)
        self.out, self.qkv, self.bias = nn.Linear(width, width), nn.Linear(width, 3 * width), nn.Linear(width, heads)
        self.merge = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, pairs: Tensor) -> Tensor:
        normed = self.norms[0](pairs)
        left, right, left_gate, right_gate = self.edges(normed).chunk(4, dim=-1)
        left, right = left * torch.sigmoid(left_gate), right * torch.sigmoid(right_gate)
        triangles = self.norms[1](torch.einsum("bikd,bjkd->bijd", left, right))
        pairs = pairs + torch.sigmoid(self.gate(normed)) * self.out(triangles)
        normed = self.norms[2](pairs)
        query, key, value = self.qkv(normed).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5).unbind(0)
        bias = self.bias(normed).permute(0, 3, 1, 2)[:, None]
        weights = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + bias).softmax(dim=-1)
        pairs = pairs + self.merge((weights.to(value.dtype) @ value).transpose(2, 3).flatten(3))
        return pairs + self.mlp(self.norms[3](pairs))


class Folding(nn.Module):
    """Distances of residues from their sequence."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.left, self.right = nn.Embedding(21, width), nn.Embedding(21, width)
        self.blocks = nn.ModuleList(PairBlock(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, 64)

    def forward(self, residues: Tensor, distances: Tensor) -> Tensor:
        pairs = self.left(residues)[:, :, None] + self.right(residues)[:, None]
        for block in self.blocks:
            pairs = block(pairs)
        logits = self.head(pairs + pairs.transpose(1, 2))
        return F.cross_entropy(logits.flatten(0, 2).float(), distances.flatten())


class Flow(nn.Module):
    """Affine couplings with alternating masks: an exact likelihood."""

    def __init__(self, features: int, hidden: int, depth: int) -> None:
        super().__init__()

        def net(*ends: nn.Module) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                nn.Linear(hidden, features), *ends,
            )  # fmt: skip

        self.scales = nn.ModuleList(net(nn.Tanh()) for _ in range(depth))
        self.shifts = nn.ModuleList(net() for _ in range(depth))
        masks = (torch.arange(features)[None] + torch.arange(depth)[:, None]) % 2
        self.register_buffer("masks", masks.to(torch.get_default_dtype()))

    def forward(self, samples: Tensor) -> Tensor:
        x, volume = samples, samples.new_zeros(len(samples))
        for scale, shift, mask in zip(self.scales, self.shifts, self.masks, strict=True):
            fixed = x * mask
            log_scale = scale(fixed) * (1 - mask)
            x = fixed + (1 - mask) * (x * log_scale.exp() + shift(fixed))
            volume = volume + log_scale.sum(dim=1)
        prior = torch.distributions.Normal(torch.zeros_like(x), torch.ones_like(x), validate_args=False)
        return -(prior.log_prob(x).sum(dim=1) + volume).mean()


class Forecast(nn.Module):
    """Stacked perceptrons, each of which explains a part of a series and leaves the rest (N-BEATS)."""

    def __init__(self, length: int, ahead: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(length, hidden),
                nn.ReLU(),
                nn.Linear(hidden, hidden),
                nn.ReLU(),
                nn.Linear(hidden, hidden),
                nn.ReLU(),
                nn.Linear(hidden, 2 * 32),
            )
            for _ in range(depth)
        )
        waves = torch.arange(1, 17)[:, None] * torch.linspace(0, 1, length + ahead)[None] * 6.2832
        self.register_buffer("basis", torch.cat([waves.cos(), waves.sin()]).to(torch.get_default_dtype()))
        self.length = length

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        found = torch.zeros_like(future)
        for block in self.blocks:
            backward, forward = block(past).chunk(2, dim=1)
            past = past - backward @ self.basis[:, : self.length]
            found = found + forward @ self.basis[:, self.length :]
        return (200 * (found - future).abs() / (found.abs().detach() + future.abs() + 1e-3)).mean()


class TabularTransformer(nn.Module):
    """Columns of a table as tokens (FT-Transformer): numbers scale vectors, categories look them up."""

    def __init__(self, numbers: int, sizes: tuple[int, ...], width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, width) * 0.1)
        self.bias = nn.Parameter(torch.zeros(numbers + len(sizes), width))
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.summary = nn.Parameter(torch.zeros(width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, categories: Tensor, targets: Tensor) -> Tensor:
        looked_up = [table(column) for table, column in zip(self.tables, categories.unbind(1), strict=True)]
        cells = torch.cat([numbers[..., None] * self.weight, torch.stack(looked_up, dim=1)], dim=1) + self.bias
        cells = torch.cat([self.summary.expand(len(cells), 1, -1).to(cells.dtype), cells], dim=1)
        return F.mse_loss(self.head(self.body(cells)[:, 0]).squeeze(1), targets)


class HeatEquation(nn.Module):
    """A function of place and time whose second derivatives are to fulfil an equation."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [2] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, [*sizes[1:], 1], strict=True))

    def value(self, at: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            at = torch.tanh(layer(at))
        return self.layers[-1](at)

    def forward(self, inside: Tensor, edge: Tensor, values: Tensor) -> Tensor:
        at = inside.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.value(at).sum(), at, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 0].sum(), at, create_graph=True)
        residual = slope[:, 1] - 0.1 * bend[:, 0]
        return residual.square().mean() + F.mse_loss(self.value(edge).squeeze(1), values)


class TwoTowers(nn.Module):
    """Questions and documents as bags of words; every other document of the batch is wrong."""

    def __init__(self, vocab: int, width: int, out: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, width, mode="mean")
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.LayerNorm(4 * width), nn.Mish(), nn.Linear(4 * width, out))
            for _ in range(2)
        )
        self.temperature = nn.Parameter(torch.tensor(2.6))

    def forward(self, questions: Tensor, documents: Tensor) -> Tensor:
        left, right = (
            F.normalize(tower(self.words(words)), dim=1)
            for tower, words in zip(self.towers, (questions, documents), strict=True)
        )
        logits = left @ right.t() * self.temperature.exp()
        wanted = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.t(), wanted)) / 2


class CrossNet(nn.Module):
    """Clicks from many categories in one table: cross layers of low rank beside a perceptron (DCN)."""

    def __init__(self, rows: int, columns: int, width: int, layers: int) -> None:
        super().__init__()
        size = columns * width
        self.table = nn.Embedding(rows * columns, width)
        self.register_buffer("starts", torch.arange(columns) * rows)
        self.down = nn.ModuleList(nn.Linear(size, size // 4, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(size // 4, size) for _ in range(layers))
        self.deep = nn.Sequential(
            nn.Linear(size, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Dropout(0.2), nn.Linear(1024, 512), nn.ReLU()
        )
        self.head = nn.Linear(size + 512, 1)

    def forward(self, categories: Tensor, clicks: Tensor) -> Tensor:
        first = x = self.table(categories + self.starts).flatten(1)
        for down, up in zip(self.down, self.up, strict=True):
            x = torch.addcmul(x, first, up(down(x)).to(x.dtype))
        logits = self.head(torch.cat([x, self.deep(first).to(x.dtype)], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, clicks.to(logits.dtype))


class RadianceField(nn.Module):
    """Colours along rays: sines of places, a perceptron with a skip, densities composed front to back."""

    def __init__(self, width: int, waves: int, samples: int) -> None:
        super().__init__()
        self.waves, self.samples = waves, samples
        size = 3 + 6 * waves
        self.first = nn.Sequential(*self.perceptron(size, width, 4))
        self.second = nn.Sequential(*self.perceptron(size + width, width, 3))
        self.density = nn.Linear(width, 1)
        self.color = nn.Sequential(nn.Linear(width + 3, width // 2), nn.ReLU(), nn.Linear(width // 2, 3), nn.Sigmoid())

    @staticmethod
    def perceptron(size: int, width: int, depth: int) -> list[nn.Module]:
        sizes = [size] + [width] * depth
        return [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]

    def forward(self, origins: Tensor, directions: Tensor, colors: Tensor) -> Tensor:
        steps = torch.linspace(2, 6, self.samples, device=origins.device, dtype=origins.dtype)
        depths = steps + torch.rand(len(origins), self.samples, device=origins.device, dtype=origins.dtype) * 0.02
        points = origins[:, None] + directions[:, None] * depths[..., None]
        scaled = (
            points[..., None, :] * (2.0 ** torch.arange(self.waves, device=points.device, dtype=points.dtype))[:, None]
        )
        encoded = torch.cat([points, scaled.sin().flatten(-2), scaled.cos().flatten(-2)], dim=-1)
        hidden = self.second(torch.cat([self.first(encoded), encoded], dim=-1))
        density = F.softplus(self.density(hidden).squeeze(-1).float())
        seen = self.color(torch.cat([hidden, directions[:, None].expand_as(points)], dim=-1))
        gaps = torch.diff(depths.float(), dim=1, append=depths[:, -1:].float() + 1)
        opacity = 1 - torch.exp(-density * gaps)
        passed = torch.cumprod(torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-6], dim=1), dim=1)[:, :-1]
        found = ((opacity * passed)[..., None] * seen).sum(dim=1)
        return F.mse_loss(found, colors.float())


class Player(nn.Module):
    """An actor and a critic over frames of a game: the clipped objective, values and entropy."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 64, 8, 4), nn.ReLU(), nn.Conv2d(64, 128, 4, 2), nn.ReLU(), nn.Conv2d(128, 128, 3),
            nn.ReLU(), nn.Flatten(), nn.Linear(6272, 512), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, frames: Tensor, actions: Tensor, before: Tensor, gains: Tensor) -> Tensor:
        hidden = self.body(frames)
        choice = torch.distributions.Categorical(logits=self.actor(hidden).float(), validate_args=False)
        ratio = torch.exp(choice.log_prob(actions) - before.float())
        advantage = (gains - gains.mean()) / (gains.std() + 1e-8)
        clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        value = F.smooth_l1_loss(self.critic(hidden).squeeze(1).float(), gains.float())
        return value - clipped.mean() - 0.01 * choice.entropy().mean()


class Lion(torch.optim.Optimizer):
    """The sign of an interpolation of gradient and momentum, by multi-tensor ops."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            for param in params:
                if not self.state[param]:
                    self.state[param]["momentum"] = torch.zeros_like(param)
            momenta, grads = [self.state[param]["momentum"] for param in params], [param.grad for param in params]
            updates = torch._foreach_mul(momenta, 0.9)
            torch._foreach_add_(updates, grads, alpha=0.1)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(params, 1 - group["lr"] * 0.1)
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, grads, 0.01)


class Averaged(torch.optim.AdamW):
    """AdamW that keeps a moving average of the weights."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        params = [param for group in self.param_groups for param in group["params"] if param.grad is not None]
        for param in params:
            if "average" not in self.state[param]:
                self.state[param]["average"] = param.detach().clone()
        torch._foreach_lerp_([self.state[param]["average"] for param in params], params, 0.001)
