"""Nets of the survey's second draw over sequences, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PointerNetwork(nn.Module):
    """A tour through cities: an LSTM reads them, another points at the next one, step by step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.cell = nn.LSTMCell(width, width)
        self.start = nn.Parameter(torch.zeros(width))
        self.keys, self.query = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, cities: Tensor, tour: Tensor) -> Tensor:
        embedded = self.enter(cities)
        states, (hidden, cell) = self.encoder(embedded)
        hidden, cell = hidden[0], cell[0]
        keys, rows = self.keys(states), torch.arange(len(cities), device=cities.device)
        visited = torch.zeros(cities.shape[:2], dtype=torch.bool, device=cities.device)
        given, losses = self.start.expand(len(cities), -1).to(embedded.dtype), []
        for step in range(tour.shape[1]):
            hidden, cell = self.cell(given, (hidden, cell))
            scores = self.score(torch.tanh(keys + self.query(hidden)[:, None])).squeeze(-1)
            scores = 10 * torch.tanh(scores.float()).masked_fill(visited, -1e4)
            losses.append(F.cross_entropy(scores, tour[:, step]))
            visited = visited.scatter(1, tour[:, step, None], True)
            given = embedded[rows, tour[:, step]]
        return torch.stack(losses).mean()


class SelectiveBlock(nn.Module):
    """Mamba's block: a short causal convolution, a state space whose parameters depend on the input, a gate."""

    def __init__(self, width: int, states: int, rank: int) -> None:
        super().__init__()
        inner = 2 * width
        self.states, self.rank = states, rank
        self.norm, self.enter = nn.RMSNorm(width), nn.Linear(width, 2 * inner, bias=False)
        self.short = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.project, self.step = nn.Linear(inner, rank + 2 * states, bias=False), nn.Linear(rank, inner)
        self.decay = nn.Parameter(torch.log(torch.arange(1.0, states + 1).repeat(inner, 1)))
        self.skip, self.leave = nn.Parameter(torch.ones(inner)), nn.Linear(inner, width, bias=False)

    @staticmethod
    def scan(factor: Tensor, term: Tensor) -> Tensor:
        """h[t] = factor[t] h[t - 1] + term[t] for all t at once, by doubling."""
        reach = 1
        while reach < term.shape[1]:
            before = F.pad(term[:, :-reach], (0, 0, 0, 0, reach, 0))
            term = term + factor * before
            factor = factor * F.pad(factor[:, :-reach], (0, 0, 0, 0, reach, 0), value=1.0)
            reach *= 2
        return term

    def forward(self, x: Tensor) -> Tensor:
        signal, gate = self.enter(self.norm(x)).chunk(2, dim=-1)
        signal = F.silu(self.short(signal.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, write, read = self.project(signal).split([self.rank, self.states, self.states], dim=-1)
        step = F.softplus(self.step(step)).float()
        factor = torch.exp(step[..., None] * -torch.exp(self.decay.float()))
        term = (step * signal.float())[..., None] * write.float()[:, :, None]
        found = torch.einsum("bldn,bln->bld", self.scan(factor, term), read.float())
        found = (found + signal.float() * self.skip.float()).to(gate.dtype)
        return x + self.leave(found * F.silu(gate))


class SelectiveScan(nn.Module):
    def __init__(self, vocab: int, width: int, states: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(SelectiveBlock(width, states, max(1, width // 16)) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class TuringMachine(nn.Module):
    """A neural Turing machine that copies: a controller reads and writes a memory by content and by shifts."""

    def __init__(self, bits: int, width: int, slots: int, size: int) -> None:
        super().__init__()
        self.bits, self.slots, self.size = bits, slots, size
        self.controller = nn.LSTMCell(bits + size, width)
        heads = size + 6
        self.read_head, self.write_head = nn.Linear(width, heads), nn.Linear(width, heads + 2 * size)
        self.out = nn.Linear(width + size, bits)
        self.initial = nn.Parameter(torch.rand(slots, size) * 0.02)

    def address(self, told: Tensor, memory: Tensor, before: Tensor) -> Tensor:
        key, strength, gate, shift, sharpness = told.split([self.size, 1, 1, 3, 1], dim=1)
        alike = F.cosine_similarity(memory + 1e-16, key[:, None] + 1e-16, dim=-1)
        content = F.softmax(F.softplus(strength) * alike, dim=1)
        mixed = torch.sigmoid(gate) * content + (1 - torch.sigmoid(gate)) * before
        shift = F.softmax(shift, dim=1)
        moved = sum(torch.roll(mixed, by, 1) * shift[:, by + 1, None] for by in (-1, 0, 1))
        sharp = moved.clamp(min=1e-6) ** (1 + F.softplus(sharpness))
        return sharp / (sharp.sum(dim=1, keepdim=True) + 1e-16)

    def forward(self, sequence: Tensor) -> Tensor:
        rows, length, _ = sequence.shape
        memory = self.initial.float().expand(rows, -1, -1)
        reading, writing = (torch.full((rows, self.slots), 1 / self.slots, device=sequence.device) for _ in range(2))
        seen = torch.zeros(rows, self.size, device=sequence.device)
        state, answers = None, []
        for step in range(2 * length):
            given = sequence[:, step] if step < length else torch.zeros_like(sequence[:, 0])
            state = self.controller(torch.cat([given, seen.to(given.dtype)], dim=1), state)
            told = self.write_head(state[0]).float()
            writing = self.address(told[:, : self.size + 6], memory, writing)
            erase, add = told[:, self.size + 6 :].chunk(2, dim=1)
            memory = (
                memory * (1 - writing[..., None] * torch.sigmoid(erase)[:, None]) + writing[..., None] * add[:, None]
            )
            reading = self.address(self.read_head(state[0]).float(), memory, reading)
            seen = torch.bmm(reading[:, None], memory).squeeze(1).float()
            if step >= length:
                answers.append(self.out(torch.cat([state[0], seen.to(state[0].dtype)], dim=1)))
        wanted = (sequence > 0).to(answers[0].dtype)
        return F.binary_cross_entropy_with_logits(torch.stack(answers, dim=1), wanted)


class CharElmo(nn.Module):
    """Words from their characters by convolutions and highways, a language model in each direction above them."""

    KERNELS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))

    def __init__(self, scale: int, width: int, hidden: int, vocab: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(262, 16)
        self.filters = nn.ModuleList(nn.Conv1d(16, max(1, size // scale), kernel) for kernel, size in self.KERNELS)
        total = sum(layer.out_channels for layer in self.filters)
        self.highways = nn.ModuleList(nn.Linear(total, 2 * total) for _ in range(2))
        self.project = nn.Linear(total, width)
        self.forwards, self.backwards = (
            nn.ModuleList(nn.LSTM(width, hidden, batch_first=True) for _ in range(2)) for _ in range(2)
        )
        self.narrow = nn.ModuleList(nn.Linear(hidden, width) for _ in range(4))
        self.head = nn.Linear(width, vocab)

    def forward(self, letters: Tensor, words: Tensor) -> Tensor:
        rows, length, _ = letters.shape
        x = self.characters(letters.flatten(0, 1)).transpose(1, 2)
        found = torch.cat([F.relu(layer(x).amax(dim=-1)) for layer in self.filters], dim=1)
        for highway in self.highways:
            changed, gate = highway(found).chunk(2, dim=1)
            gate = torch.sigmoid(gate)
            found = gate * found + (1 - gate) * F.relu(changed)
        tokens = self.project(found).view(rows, length, -1)
        there = self.run(self.forwards, self.narrow[:2], tokens)
        back = self.run(self.backwards, self.narrow[2:], tokens.flip(1)).flip(1)
        return 0.5 * (
            F.cross_entropy(self.head(there[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            + F.cross_entropy(self.head(back[:, 1:]).flatten(0, 1), words[:, :-1].flatten())
        )

    @staticmethod
    def run(layers: nn.ModuleList, narrow: nn.ModuleList, x: Tensor) -> Tensor:
        for layer, down in zip(layers, narrow, strict=True):
            out = F.dropout(down(layer(x)[0]), 0.1)
            x = x + out.to(x.dtype)
        return x


class Retention(nn.Module):
    """RetNet in its parallel form: scores decay with the distance, heads are normalised one by one, a gate."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.value, self.gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.norm, self.out = nn.GroupNorm(heads, 2 * width), nn.Linear(2 * width, width, bias=False)

    @staticmethod
    def rotate(x: Tensor, sines: Tensor, cosines: Tensor) -> Tensor:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        return x * cosines + turned * sines

    def forward(self, x: Tensor, sines: Tensor, cosines: Tensor, decay: Tensor) -> Tensor:
        rows, length, _ = x.shape
        query, key, value = (
            layer(x).view(rows, length, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        key = key * key.shape[-1] ** -0.5
        scores = self.rotate(query, sines, cosines) @ self.rotate(key, sines, cosines).transpose(2, 3) * decay
        scores = scores / scores.detach().abs().sum(dim=-1, keepdim=True).clamp(min=1)
        found = (scores @ value).transpose(1, 2).reshape(rows * length, -1)
        found = self.norm(found).view(rows, length, -1)
        return self.out(F.silu(self.gate(x)) * found)


class RetentionLM(nn.Module):
    def __init__(self, vocab: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.embed = nn.Embedding(vocab, width)
        self.retentions = nn.ModuleList(Retention(width, heads) for _ in range(depth))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        at = torch.arange(tokens.shape[1], device=x.device, dtype=torch.float32)
        rates = 1e4 ** -torch.linspace(0, 1, self.size // 2, device=x.device)
        angles = (at[:, None] * rates).repeat_interleave(2, dim=1)
        sines, cosines = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
        rate = torch.log(1 - 2 ** (-5 - torch.arange(self.heads, device=x.device, dtype=torch.float32)))
        distance = at[:, None] - at[None]
        decay = torch.exp(distance * rate[:, None, None]).masked_fill(distance < 0, 0)
        decay = (decay / decay.sum(dim=-1, keepdim=True).sqrt()).to(x.dtype)
        for number, (retention, feed) in enumerate(zip(self.retentions, self.feeds, strict=True)):
            x = x + retention(self.norms[2 * number](x), sines, cosines, decay)
            x = x + feed(self.norms[2 * number + 1](x))
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class ReceptanceBlock(nn.Module):
    """RWKV's block: each channel remembers with a decay of its own, step by step; the step before is mixed in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixes = nn.ParameterList(nn.Parameter(torch.rand(width)) for _ in range(5))
        self.key, self.value, self.receive, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.decay, self.bonus = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.gate = nn.Linear(width, width, bias=False)

    def remember(self, key: Tensor, value: Tensor) -> Tensor:
        decay, found = -torch.exp(self.decay.float()), []
        above = below = torch.zeros_like(key[:, 0])
        largest = torch.full_like(above, -1e38)
        for now, worth in zip(key.unbind(1), value.unbind(1), strict=True):
            peak = torch.maximum(largest, now + self.bonus.float())
            old, new = torch.exp(largest - peak), torch.exp(now + self.bonus.float() - peak)
            found.append((old * above + new * worth) / (old * below + new))
            peak = torch.maximum(largest + decay, now)
            old, new = torch.exp(largest + decay - peak), torch.exp(now - peak)
            above, below, largest = old * above + new * worth, old * below + new, peak
        return torch.stack(found, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        given = self.norms[0](x)
        before = F.pad(given, (0, 0, 1, -1))
        key, value, receive = (
            layer(given * mix + before * (1 - mix))
            for layer, mix in zip((self.key, self.value, self.receive), self.mixes[:3], strict=True)
        )
        found = self.remember(key.float(), value.float()).to(receive.dtype)
        x = x + self.out(torch.sigmoid(receive) * found)
        given = self.norms[1](x)
        before = F.pad(given, (0, 0, 1, -1))
        first, second = (given * mix + before * (1 - mix) for mix in self.mixes[3:])
        return x + torch.sigmoid(self.gate(second)) * self.narrow(F.relu(self.wide(first)).square())


class Receptance(nn.Module):
    def __init__(self, vocab: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(vocab, width), nn.LayerNorm(width))
        self.blocks = nn.Sequential(*(ReceptanceBlock(width) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocab, bias=False))

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.blocks(self.embed(tokens)))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class LstmCrf(nn.Module):
    """Tags of words: an LSTM in both directions, and a conditional random field summed over all paths."""

    def __init__(self, vocab: int, width: int, hidden: int, tags: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, hidden, 2, batch_first=True, dropout=0.3, bidirectional=True)
        self.score = nn.Linear(2 * hidden, tags)
        self.moves = nn.Parameter(torch.randn(tags, tags) * 0.1)
        self.starts, self.ends = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))

    def forward(self, words: Tensor, tags: Tensor, absent: Tensor) -> Tensor:
        scores = self.score(F.dropout(self.rnn(F.dropout(self.embed(words), 0.5))[0], 0.5)).float()
        moves, starts, ends = self.moves.float(), self.starts.float(), self.ends.float()
        rows, present = torch.arange(len(words), device=words.device), ~absent
        gold = starts[tags[:, 0]] + scores[:, 0].gather(1, tags[:, :1]).squeeze(1)
        total = starts + scores[:, 0]
        for step in range(1, words.shape[1]):
            here = present[:, step]
            gold = gold + (moves[tags[:, step - 1], tags[:, step]] + scores[rows, step, tags[:, step]]) * here
            reached = torch.logsumexp(total[:, :, None] + moves + scores[:, step, None], dim=1)
            total = torch.where(here[:, None], reached, total)
        last = present.sum(dim=1) - 1
        gold = gold + ends[tags[rows, last]]
        return (torch.logsumexp(total + ends, dim=1) - gold).mean()
