"""Nets of the survey's fourth draw that recommend, play or translate, in plain torch, after what was published under
their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import copy
import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.survey.third.images import normed
from zoo.survey.third.vision import Plain


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers with a ReLU after each but the last."""
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class DotInteraction(nn.Module):
    """DLRM: a table per column, numbers by a perceptron, all pairs' products into another one."""

    def __init__(self, sizes: tuple[int, ...], numbers: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.bottom = nn.Sequential(perceptron(numbers, hidden, hidden // 2, width), nn.ReLU())
        count = len(sizes) + 1
        self.register_buffer("pairs", torch.tril_indices(count, count, -1))
        self.top = perceptron(width + count * (count - 1) // 2, 2 * hidden, 2 * hidden, hidden, hidden // 2, 1)

    def forward(self, numbers: Tensor, categories: Tensor, clicks: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        fields = [
            table(column).to(dense.dtype) for table, column in zip(self.tables, categories.unbind(1), strict=True)
        ]
        x = torch.stack([dense, *fields], dim=1)
        products = torch.bmm(x, x.transpose(1, 2))
        flat = products[:, self.pairs[0], self.pairs[1]]
        answer = self.top(torch.cat([dense, flat], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(answer, clicks)


class InterestEvolution(nn.Module):
    """DIEN: a GRU over what was clicked, attention to the thing on offer, and a second GRU whose gates it scales."""

    def __init__(self, things: int, width: int, hidden: int) -> None:
        super().__init__()
        self.things = nn.Embedding(things, width)
        self.first = nn.GRU(width, hidden, batch_first=True)
        self.guess = perceptron(hidden + width, 100, 1)
        self.ask = nn.Linear(width, hidden, bias=False)
        self.enter, self.again = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, 3 * hidden)
        self.head = nn.Sequential(
            nn.Linear(hidden + 2 * width, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(), nn.Linear(80, 1)
        )

    def forward(self, clicked: Tensor, passed: Tensor, offered: Tensor, clicks: Tensor) -> Tensor:
        seen, ignored, offer = self.things(clicked), self.things(passed), self.things(offered)
        states, _ = self.first(seen)
        likely, unlikely = (
            self.guess(torch.cat([states[:, :-1], after[:, 1:].to(states.dtype)], dim=2)).float().squeeze(2)
            for after in (seen, ignored)
        )
        helped = (F.softplus(-likely) + F.softplus(unlikely)).mean()
        shares = (states * self.ask(offer)[:, None]).sum(dim=2).softmax(dim=1)
        given, state = self.enter(states).unbind(1), torch.zeros_like(states[:, 0])
        for number, part in enumerate(given):
            gates = self.again(state)
            update, reset, fresh = part.chunk(3, dim=1)
            own_update, own_reset, own_fresh = gates.chunk(3, dim=1)
            share = shares[:, number, None] * (update + own_update).sigmoid()
            made = (fresh + (reset + own_reset).sigmoid() * own_fresh).tanh()
            state = (1 - share) * state + share * made
        told = torch.cat([state, offer.to(state.dtype), seen.mean(dim=1).to(state.dtype)], dim=1)
        return F.binary_cross_entropy_with_logits(self.head(told).squeeze(1), clicks) + helped


class ExtractionLayer(nn.Module):
    """Experts of each task and common ones, mixed by gates; the common mixture sees all of them."""

    def __init__(self, inputs: int, width: int, tasks: int, experts: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(
            nn.ModuleList(self.expert(inputs, width) for _ in range(experts)) for _ in range(tasks)
        )
        self.common = nn.ModuleList(self.expert(inputs, width) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(inputs, 2 * experts) for _ in range(tasks))
        self.gate = nn.Linear(inputs, (tasks + 1) * experts)

    @staticmethod
    def expert(inputs: int, width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, xs: list[Tensor], common: Tensor) -> tuple[list[Tensor], Tensor]:
        shared = [expert(common) for expert in self.common]
        own = [[expert(x) for expert in experts] for x, experts in zip(xs, self.own, strict=True)]
        mixed = [self.mixture(gate(x), [*found, *shared]) for x, gate, found in zip(xs, self.gates, own, strict=True)]
        return mixed, self.mixture(self.gate(common), [*itertools.chain(*own), *shared])

    @staticmethod
    def mixture(gate: Tensor, experts: list[Tensor]) -> Tensor:
        return torch.einsum("bed,be->bd", torch.stack(experts, dim=1), gate.softmax(dim=1))


class LayeredExtraction(nn.Module):
    """PLE: two layers of such experts over embedded columns, a tower per task."""

    def __init__(self, rows: int, columns: int, size: int, width: int, tasks: int, experts: int) -> None:
        super().__init__()
        self.features = nn.Embedding(rows, size)
        sizes = [columns * size, width, width // 2]
        self.layers = nn.ModuleList(ExtractionLayer(a, b, tasks, experts) for a, b in itertools.pairwise(sizes))
        self.towers = nn.ModuleList(perceptron(width // 2, width // 4, 1) for _ in range(tasks))

    def forward(self, categories: Tensor, answers: Tensor) -> Tensor:
        common = self.features(categories).flatten(1)
        xs = [common] * len(self.towers)
        for layer in self.layers:
            xs, common = layer(xs, common)
        made = torch.cat([tower(x) for tower, x in zip(self.towers, xs, strict=True)], dim=1)
        return F.binary_cross_entropy_with_logits(made, answers)


class AlphaZero(nn.Module):
    """A residual net over a board, with a policy and a value."""

    def __init__(self, planes: int, width: int, depth: int, side: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(normed(planes, width, 3), nn.ReLU())
        self.body = nn.Sequential(*(Plain(width, width, 1) for _ in range(depth)))
        self.policy = nn.Sequential(normed(width, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * side**2, side**2 + 1))
        self.value = nn.Sequential(
            normed(width, 1, 1), nn.ReLU(), nn.Flatten(), perceptron(side**2, width, 1), nn.Tanh()
        )

    def forward(self, boards: Tensor, visits: Tensor, winners: Tensor) -> Tensor:
        x = self.body(self.stem(boards))
        wanted = visits.float().softmax(dim=1)
        moves = -(wanted * F.log_softmax(self.policy(x).float(), dim=1)).sum(dim=1).mean()
        return moves + F.mse_loss(self.value(x).squeeze(1), winners)


class SoftActorCritic(nn.Module):
    """SAC: two critics with slow copies, an actor of Gaussians squeezed by tanh, a learned temperature; one loss."""

    def __init__(self, state: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.actor = perceptron(state, hidden, hidden, 2 * actions)
        self.critics = nn.ModuleList(perceptron(state + actions, hidden, hidden, 1) for _ in range(2))
        self.slow = copy.deepcopy(self.critics).requires_grad_(False)
        self.heat, self.wanted = nn.Parameter(torch.zeros(())), -float(actions)

    def acted(self, states: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.actor(states).float().chunk(2, dim=1)
        spread = spread.clamp(-20, 2)
        noise = torch.randn_like(mean)
        raw = mean + noise * spread.exp()
        logs = -0.5 * noise.square() - spread - 0.5 * math.log(2 * math.pi)
        logs = logs - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh().to(states.dtype), logs.sum(dim=1)

    @staticmethod
    def judged(critics: nn.ModuleList, states: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        both = torch.cat([states, actions], dim=1)
        return tuple(critic(both).float().squeeze(1) for critic in critics)

    def forward(self, states: Tensor, actions: Tensor, gains: Tensor, later: Tensor) -> Tensor:
        heat = self.heat.float().exp()
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, 0.005)
            coming, logs = self.acted(later)
            worth = torch.minimum(*self.judged(self.slow, later, coming)) - heat * logs
            target = gains.float() + 0.99 * worth
        first, second = self.judged(self.critics, states, actions.tanh())
        critics = F.mse_loss(first, target) + F.mse_loss(second, target)
        chosen, logs = self.acted(states)
        gain = torch.minimum(*self.judged(self.critics, states, chosen))
        actor = (heat.detach() * logs - gain).mean()
        return critics + actor - (heat * (logs + self.wanted).detach()).mean()


class MaskPredict(nn.Module):
    """A translator that fills in masked words in any order, and guesses how many there are (CMLM)."""

    def __init__(self, vocab: int, width: int, heads: int, depth: int, longest: int) -> None:
        super().__init__()
        self.vocab, self.scale = vocab, math.sqrt(width)
        self.words, self.places = nn.Embedding(vocab + 1, width), nn.Embedding(longest, width)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True) for _ in range(depth)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(width, heads, 4 * width, 0.1, batch_first=True) for _ in range(depth)
        )
        self.lengths = nn.Linear(width, longest)

    def embedded(self, tokens: Tensor) -> Tensor:
        return self.words(tokens) * self.scale + self.places.weight[: tokens.shape[1]]

    def forward(self, source: Tensor, target: Tensor, absent: Tensor) -> Tensor:
        memory = self.embedded(source)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=absent)
        share = torch.rand(len(target), 1, device=target.device)
        is_hidden = torch.rand(target.shape, device=target.device) < share
        x = self.embedded(target.masked_fill(is_hidden, self.vocab))
        for layer in self.decoder:
            x = layer(x, memory, memory_key_padding_mask=absent)
        logits = F.linear(x, self.words.weight[: self.vocab]).flatten(0, 1).float()
        wanted = target.masked_fill(~is_hidden, -100).flatten()
        length = torch.full((len(target),), target.shape[1] - 1, device=target.device)
        known = F.cross_entropy(self.lengths(memory.mean(dim=1)).float(), length)
        return F.cross_entropy(logits, wanted, ignore_index=-100, label_smoothing=0.1) + 0.1 * known
