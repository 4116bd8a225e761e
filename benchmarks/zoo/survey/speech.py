"""Nets of the survey whose time goes step by step or over frames: speech, frames of a film, experts.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Tacotron(nn.Module):
    """Characters to spectrograms: two LSTM cells and an attention that knows where it has been, frame by frame."""

    def __init__(self, symbols: int, width: int, bands: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.convolutions = nn.Sequential(
            *(
                layer
                for _ in range(3)
                for layer in (nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5))
            )
        )
        self.encoder = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.prenet = nn.Sequential(nn.Linear(bands, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 256), nn.ReLU())
        self.attend, self.decode = nn.LSTMCell(256 + width, 2 * width), nn.LSTMCell(3 * width, 2 * width)
        self.query, self.memory = nn.Linear(2 * width, 128, bias=False), nn.Linear(width, 128, bias=False)
        self.where, self.place = nn.Conv1d(2, 32, 31, padding=15), nn.Linear(32, 128, bias=False)
        self.score, self.frame = nn.Linear(128, 1), nn.Linear(3 * width, bands)

    def forward(self, symbols: Tensor, frames: Tensor) -> Tensor:
        memory, _ = self.encoder(self.convolutions(self.embed(symbols).transpose(1, 2)).transpose(1, 2))
        keys, size, width = self.memory(memory), len(symbols), memory.shape[2]
        states = [memory.new_zeros(size, 2 * width) for _ in range(4)]
        weights, total = memory.new_zeros(2, size, memory.shape[1])
        context, outputs = memory.new_zeros(size, width), []
        for frame in self.prenet(frames).unbind(1):
            states[:2] = self.attend(torch.cat([frame, context], dim=1), (states[0], states[1]))
            places = self.where(torch.stack([weights, total], dim=1)).transpose(1, 2)
            energy = self.score(torch.tanh(self.query(states[0])[:, None] + keys + self.place(places))).squeeze(2)
            weights = energy.softmax(dim=1)
            total = total + weights
            context = torch.bmm(weights[:, None].to(memory.dtype), memory).squeeze(1)
            states[2:] = self.decode(torch.cat([states[0], context], dim=1), (states[2], states[3]))
            outputs.append(torch.cat([states[2], context], dim=1))
        return F.l1_loss(self.frame(torch.stack(outputs[:-1], dim=1)), frames[:, 1:])


class Recogniser(nn.Module):
    """Convolutions over a spectrogram, LSTMs in both directions, connectionist temporal classification."""

    def __init__(self, bands: int, width: int, depth: int, symbols: int) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 32, (11, 5), (2, 2), (5, 2)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(32, 32, (11, 5), (1, 2), (5, 2)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20, inplace=True),
        )  # fmt: skip
        self.rnn = nn.LSTM(8 * bands, width, depth, bidirectional=True)
        self.head = nn.Linear(2 * width, symbols)

    def forward(self, frames: Tensor, symbols: Tensor) -> Tensor:
        x = self.front(frames[:, None]).permute(2, 0, 1, 3).flatten(2)
        chances = F.log_softmax(self.head(self.rnn(x)[0]).float(), dim=-1)
        steps = torch.full((len(symbols),), len(chances), dtype=torch.int64)
        lengths = torch.full((len(symbols),), symbols.shape[1], dtype=torch.int64)
        return F.ctc_loss(chances, symbols, steps, lengths, zero_infinity=True)


class Transducer(nn.Module):
    """Sound and text joined pair by pair into one large grid of logits."""

    def __init__(self, bands: int, width: int, depth: int, symbols: int) -> None:
        super().__init__()
        self.enter = nn.Conv1d(bands, width, 3, 2, 1)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, 15, padding=7, groups=width) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.mix = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.embed, self.text = nn.Embedding(symbols, width), nn.GRU(width, width, batch_first=True)
        self.sound_side, self.text_side = nn.Linear(width, 512), nn.Linear(width, 512)
        self.head = nn.Linear(512, symbols)

    def forward(self, frames: Tensor, symbols: Tensor) -> Tensor:
        x = self.enter(frames.transpose(1, 2))
        for gate, across, norm, mix in zip(self.gates, self.convolutions, self.norms, self.mix, strict=True):
            x = x + mix(F.silu(norm(across(F.glu(gate(x), dim=1)))))
        text = self.text(self.embed(symbols))[0]
        grid = torch.tanh(self.sound_side(x.transpose(1, 2))[:, :, None] + self.text_side(text)[:, None])
        chances = self.head(grid).log_softmax(dim=-1)
        wanted = symbols[:, None, :, None].expand(-1, chances.shape[1], -1, 1)
        return -(chances.gather(3, wanted).squeeze(3).logsumexp(dim=1) + chances[..., 0].mean(dim=1)).mean()


class ConvolutionalLstm(nn.Module):
    """Predicts the next frames of a film; the cell's products are convolutions."""

    def __init__(self, channels: int, width: int, layers: int) -> None:
        super().__init__()
        self.width = width
        self.enter = nn.Conv2d(channels, width, 4, 4)
        self.cells = nn.ModuleList(nn.Conv2d(2 * width, 4 * width, 5, padding=2) for _ in range(layers))
        self.leave = nn.ConvTranspose2d(width, channels, 4, 4)

    def forward(self, film: Tensor) -> Tensor:
        size, length = film.shape[:2]
        inputs = self.enter(film.flatten(0, 1)).unflatten(0, (size, length))
        for cell in self.cells:
            hidden = memory = torch.zeros_like(inputs[:, 0])
            outputs = []
            for number in range(length):
                gates = cell(torch.cat([inputs[:, number], hidden], dim=1))
                take, keep, show, candidate = gates.split(self.width, dim=1)
                memory = torch.sigmoid(keep) * memory + torch.sigmoid(take) * torch.tanh(candidate)
                hidden = torch.sigmoid(show) * torch.tanh(memory)
                outputs.append(hidden)
            inputs = torch.stack(outputs, dim=1)
        return F.mse_loss(self.leave(inputs[:, :-1].flatten(0, 1)), film[:, 1:].flatten(0, 1))


class Separator(nn.Module):
    """Two voices out of one wave: masks over a short-time Fourier transform, found by a GRU; waves are compared."""

    def __init__(self, window: int, width: int, depth: int) -> None:
        super().__init__()
        bins = window // 2 + 1
        self.window = window
        self.norm = nn.LayerNorm(bins)
        self.rnn = nn.GRU(bins, width, depth, batch_first=True, bidirectional=True, dropout=0.1)
        self.masks = nn.Linear(2 * width, 2 * bins)
        self.register_buffer("hann", torch.hann_window(window, dtype=torch.float32), persistent=False)

    def forward(self, waves: Tensor, voices: Tensor) -> Tensor:
        hop, shape = self.window // 4, (len(waves), 2, -1)
        spectrum = torch.stft(waves.float(), self.window, hop, window=self.hann.float(), return_complex=True)
        hidden = self.rnn(self.norm(spectrum.abs().log1p().transpose(1, 2).to(self.masks.weight.dtype)))[0]
        masks = torch.sigmoid(self.masks(hidden)).float().unflatten(2, (2, -1)).permute(0, 2, 3, 1)
        parts = (spectrum[:, None] * masks).flatten(0, 1)
        found = torch.istft(parts, self.window, hop, window=self.hann.float(), length=waves.shape[1])
        return F.l1_loss(found.view(shape), voices.float())


class CapacityExperts(nn.Module):
    """Every expert takes so many tokens; dispatch and return are products with one-hot tensors."""

    def __init__(self, width: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.route = nn.Linear(width, experts, bias=False)
        self.grow = nn.Parameter(torch.randn(experts, width, 4 * width) * width**-0.5)
        self.shrink = nn.Parameter(torch.randn(experts, 4 * width, width) * (4 * width) ** -0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        chances = self.route(x).float().softmax(dim=-1)
        best = chances.argmax(dim=-1)
        chosen = F.one_hot(best, chances.shape[-1]).to(chances.dtype)
        balance = (chosen.mean(dim=1) * chances.mean(dim=1)).sum(dim=-1).mean() * chances.shape[-1]
        place = (chosen.cumsum(dim=1) - 1) * chosen
        kept = chosen * (place < self.capacity).to(chosen.dtype)
        slots = F.one_hot(place.sum(dim=-1).long().clamp(max=self.capacity - 1), self.capacity).to(chosen.dtype)
        dispatch = kept[..., None] * slots[:, :, None]
        inputs = torch.einsum("bsec,bsd->ebcd", dispatch.to(x.dtype), x)
        hidden = F.gelu(torch.einsum("ebcd,edf->ebcf", inputs, self.grow))
        outputs = torch.einsum("ebcf,efd->ebcd", hidden, self.shrink)
        combine = (dispatch * chances[..., None]).to(outputs.dtype)
        return torch.einsum("bsec,ebcd->bsd", combine, outputs), balance


class SwitchEncoder(nn.Module):
    """A transformer of experts with a relative bias (T5's buckets) added to scores by hand."""

    def __init__(self, vocab: int, width: int, heads: int, depth: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.heads = heads
        self.embed, self.bias = nn.Embedding(vocab, width), nn.Embedding(32, heads)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2 * depth))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.experts = nn.ModuleList(CapacityExperts(width, experts, capacity) for _ in range(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        x, loss = self.embed(tokens), 0.0
        at = torch.arange(tokens.shape[1], device=tokens.device)
        distance = (at[:, None] - at[None, :]).abs()
        far = (8 + torch.log(distance.clamp(min=1).float() / 8) * 3).long().clamp(8, 15)
        buckets = torch.where(distance < 8, distance, far) + (at[None, :] > at[:, None]).long() * 16
        bias = self.bias(buckets).permute(2, 0, 1)
        for number, (qkv, out, experts) in enumerate(zip(self.qkv, self.out, self.experts, strict=True)):
            parts = qkv(self.norms[2 * number](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(*parts.unbind(0), attn_mask=bias.to(parts.dtype))
            x = x + out(mixed.transpose(1, 2).flatten(2))
            found, balance = experts(self.norms[2 * number + 1](x))
            x, loss = x + found, loss + 0.01 * balance
        return loss + F.cross_entropy(F.linear(x, self.embed.weight).flatten(0, 1), tokens.flatten())
