"""Nets of the survey's third draw for sound, play, tables, series and physics, in plain torch, after what was published
under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def ctc(chances: Tensor, symbols: Tensor) -> Tensor:
    """The loss of (rows, steps, symbols), the first of which is the blank."""
    rows, steps, _ = chances.shape
    lengths, wanted = (torch.full((rows,), size, dtype=torch.long) for size in (steps, symbols.shape[1]))
    logs = F.log_softmax(chances.float(), dim=-1).transpose(0, 1)
    return F.ctc_loss(logs, symbols + 1, lengths, wanted, zero_infinity=True)


class ImpalaStage(nn.Module):
    """A convolution, a pool and two residual blocks."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.enter, self.pool = nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(3, 2, 1)
        self.layers = nn.ModuleList(nn.Conv2d(outputs, outputs, 3, padding=1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.enter(x))
        for first, second in zip(self.layers[::2], self.layers[1::2], strict=True):
            x = x + second(F.relu(first(F.relu(x))))
        return x


class Impala(nn.Module):
    """IMPALA's deep net: residual stages, an LSTM over the steps, the losses of V-trace."""

    def __init__(self, widths: tuple[int, ...], hidden: int, actions: int) -> None:
        super().__init__()
        self.stages = nn.Sequential(*(ImpalaStage(a, b) for a, b in itertools.pairwise((4, *widths))))
        self.enter = nn.Linear(widths[-1] * 11 * 11, hidden)  # frames of 84 pixels, halved three times
        self.memory = nn.LSTM(hidden + 1, hidden)
        self.policy, self.value = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def forward(self, frames: Tensor, actions: Tensor, before: Tensor, gains: Tensor) -> Tensor:
        rows, steps = actions.shape
        seen = F.relu(self.enter(F.relu(self.stages(frames.flatten(0, 1))).flatten(1)))
        told = torch.cat([seen, gains.reshape(-1, 1).clamp(-1, 1).to(seen.dtype)], dim=1)
        found, _ = self.memory(told.view(rows, steps, -1).transpose(0, 1))
        logs = F.log_softmax(self.policy(found).float(), dim=-1)
        values = self.value(found).squeeze(-1).float()
        chosen = logs.gather(2, actions.t()[:, :, None]).squeeze(2)
        with torch.no_grad():
            ratios = (chosen - before.t().float()).exp()
            clipped = ratios.clamp(max=1)
            later = torch.cat([values[1:], values[-1:]])
            errors = clipped * (gains.t().float() + 0.99 * later - values)
            total, traced = torch.zeros_like(values[0]), []
            for step in reversed(range(steps)):
                total = errors[step] + 0.99 * clipped[step] * total
                traced.append(total)
            targets = values + torch.stack(traced[::-1])
            after = torch.cat([targets[1:], values[-1:]])
            advantages = clipped * (gains.t().float() + 0.99 * after - values)
        entropy = -(logs.exp() * logs).sum(dim=-1)
        return (-(chosen * advantages) + 0.5 * (targets - values).square() - 0.01 * entropy).mean()


class LineReader(nn.Module):
    """CRNN: convolutions narrow a line of text to one row, LSTMs in both directions read it, CTC judges."""

    def __init__(self, width: int, hidden: int, symbols: int) -> None:
        super().__init__()
        sizes = [1, *(width * scale for scale in (1, 2, 4, 4, 8, 8))]
        layers: list[nn.Module] = []
        for number, (a, b) in enumerate(itertools.pairwise(sizes)):
            is_normed = number >= 2
            layers += [nn.Conv2d(a, b, 3, padding=1, bias=not is_normed)]
            layers += [nn.BatchNorm2d(b)] if is_normed else []
            layers.append(nn.ReLU(inplace=True))
            if number in (0, 1):
                layers.append(nn.MaxPool2d(2))
            elif number in (3, 5):
                layers.append(nn.MaxPool2d((2, 1)))
        self.features = nn.Sequential(*layers, nn.Conv2d(sizes[-1], sizes[-1], 2), nn.ReLU(inplace=True))
        self.first = nn.LSTM(sizes[-1], hidden, bidirectional=True, batch_first=True)
        self.between = nn.Linear(2 * hidden, hidden)
        self.second = nn.LSTM(hidden, hidden, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * hidden, symbols)

    def forward(self, lines: Tensor, symbols: Tensor) -> Tensor:
        x = self.features(lines).squeeze(2).transpose(1, 2)
        x, _ = self.first(x)
        x, _ = self.second(self.between(x))
        return ctc(self.head(x), symbols)


class FourierOperator(nn.Module):
    """FNO in two dimensions: low frequencies are multiplied by learned matrices, pixels by another."""

    def __init__(self, width: int, modes: int, depth: int) -> None:
        super().__init__()
        self.modes = modes
        self.enter = nn.Linear(3, width)
        shape = (depth, 2, width, width, modes, modes, 2)
        self.weights = nn.Parameter(torch.rand(shape) / width**2)
        self.pixels = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.leave = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 1))

    def spectral(self, x: Tensor, weights: Tensor) -> Tensor:
        rows, width, height, length = x.shape
        found, modes = torch.fft.rfft2(x.float()), self.modes
        made = torch.zeros(rows, width, height, length // 2 + 1, dtype=found.dtype, device=x.device)
        low, high = torch.view_as_complex(weights.float())
        made[:, :, :modes, :modes] = torch.einsum("bixy,ioxy->boxy", found[:, :, :modes, :modes], low)
        made[:, :, -modes:, :modes] = torch.einsum("bixy,ioxy->boxy", found[:, :, -modes:, :modes], high)
        return torch.fft.irfft2(made, s=(height, length)).to(x.dtype)

    def forward(self, field: Tensor, later: Tensor) -> Tensor:
        rows, height, length = field.shape
        axes = [torch.linspace(0, 1, size, device=field.device, dtype=field.dtype) for size in (height, length)]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).expand(rows, -1, -1, -1)
        x = self.enter(torch.cat([field[..., None], grid], dim=-1)).permute(0, 3, 1, 2)
        for number, pixels in enumerate(self.pixels):
            x = self.spectral(x, self.weights[number]) + pixels(x)
            x = F.gelu(x) if number < len(self.pixels) - 1 else x
        made = self.leave(x.permute(0, 2, 3, 1)).squeeze(-1)
        errors = (made - later).float().flatten(1).norm(dim=1) / later.float().flatten(1).norm(dim=1)
        return errors.mean()


class HashRadiance(nn.Module):
    """Instant NGP in torch: features of hashed grid corners at many scales, two small perceptrons, rays rendered."""

    PRIMES = (1, 2654435761, 805459861)

    def __init__(self, levels: int, entries: int, hidden: int, samples: int) -> None:
        super().__init__()
        self.entries, self.samples = entries, samples
        self.scales = [16 * 1.38**level for level in range(levels)]
        self.tables = nn.ModuleList(nn.Embedding(entries, 2) for _ in range(levels))
        self.density = nn.Sequential(nn.Linear(2 * levels, hidden), nn.ReLU(), nn.Linear(hidden, 16))
        self.color = nn.Sequential(
            nn.Linear(15 + 16, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 3),
            nn.Sigmoid(),
        )
        corners = torch.tensor(list(itertools.product((0, 1), repeat=3)))
        self.register_buffer("corners", corners)

    def encoded(self, places: Tensor) -> Tensor:
        found = []
        for scale, table in zip(self.scales, self.tables, strict=True):
            scaled = places * scale
            low = scaled.floor()
            part = scaled - low
            cells = low.long()[:, None] + self.corners
            mixed = cells[..., 0] * self.PRIMES[0] ^ cells[..., 1] * self.PRIMES[1] ^ cells[..., 2] * self.PRIMES[2]
            weights = torch.where(self.corners.bool(), part[:, None], 1 - part[:, None]).prod(dim=-1)
            features = table(mixed % self.entries)
            found.append((features * weights[..., None].to(features.dtype)).sum(dim=1))
        return torch.cat(found, dim=-1)

    def forward(self, origins: Tensor, directions: Tensor, harmonics: Tensor, colors: Tensor) -> Tensor:
        far = torch.linspace(0.1, 2, self.samples, device=origins.device)
        places = origins.float()[:, None] + far[:, None] * F.normalize(directions.float(), dim=-1)[:, None]
        features = self.density(self.encoded(places.flatten(0, 1).sigmoid()))
        light = torch.cat([features[:, 1:], harmonics.repeat_interleave(self.samples, dim=0)], dim=-1)
        density = features[:, 0].float().exp().view(-1, self.samples)
        shown = self.color(light).float().view(-1, self.samples, 3)
        opacity = 1 - torch.exp(-density * (1.9 / self.samples))
        clear = torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-10], dim=1).cumprod(dim=1)[:, :-1]
        made = ((opacity * clear)[..., None] * shown).sum(dim=1)
        return F.huber_loss(made, colors.float(), delta=0.1)


class XDeepFm(nn.Module):
    """xDeepFM: products of fields with what the layer before made of them, beside a linear and a deep part."""

    def __init__(self, rows: int, columns: int, width: int, maps: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.features, self.linear = nn.Embedding(rows, width), nn.Embedding(rows, 1)
        sizes = [columns, *maps]
        self.crosses = nn.ModuleList(nn.Conv1d(columns * a, b, 1) for a, b in itertools.pairwise(sizes))
        self.join = nn.Linear(sum(maps), 1)
        widths = [columns * width, hidden, hidden]
        deep = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.5))]
        self.deep = nn.Sequential(*deep, nn.Linear(hidden, 1))

    def forward(self, categories: Tensor, clicks: Tensor) -> Tensor:
        fields = self.features(categories)
        x, found = fields, []
        for cross in self.crosses:
            products = torch.einsum("bhd,bmd->bhmd", x, fields).flatten(1, 2)
            x = F.relu(cross(products))
            found.append(x.sum(dim=-1))
        answer = self.join(torch.cat(found, dim=1)) + self.deep(fields.flatten(1)) + self.linear(categories).sum(dim=1)
        return F.binary_cross_entropy_with_logits(answer.squeeze(1), clicks)


class TimesBlock(nn.Module):
    """A series folded by its strongest periods into images, which convolutions of six sizes read (TimesNet)."""

    def __init__(self, width: int, hidden: int, periods: tuple[int, ...]) -> None:
        super().__init__()
        self.periods = periods
        self.enter = nn.ModuleList(nn.Conv2d(width, hidden, 2 * size + 1, padding=size) for size in range(6))
        self.leave = nn.ModuleList(nn.Conv2d(hidden, width, 2 * size + 1, padding=size) for size in range(6))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        strengths = torch.fft.rfft(x.float(), dim=1).abs().mean(dim=-1)
        chosen = torch.stack([strengths[:, length // period] for period in self.periods], dim=-1).softmax(dim=-1)
        found = []
        for period in self.periods:
            padded = F.pad(x, (0, 0, 0, -length % period))
            image = padded.view(rows, -1, period, width).permute(0, 3, 1, 2).contiguous()
            image = torch.stack([layer(image) for layer in self.enter], dim=-1).mean(dim=-1)
            image = torch.stack([layer(F.gelu(image)) for layer in self.leave], dim=-1).mean(dim=-1)
            found.append(image.permute(0, 2, 3, 1).reshape(rows, -1, width)[:, :length])
        return x + (torch.stack(found, dim=-1) * chosen[:, None, None].to(x.dtype)).sum(dim=-1)


class TimesNet(nn.Module):
    """Forecasts by blocks of folded periods."""

    def __init__(self, channels: int, past: int, coming: int, width: int, depth: int, periods: tuple[int, ...]) -> None:
        super().__init__()
        self.enter = nn.Conv1d(channels, width, 3, padding=1, padding_mode="circular", bias=False)
        self.longer = nn.Linear(past, past + coming)
        self.blocks = nn.ModuleList(TimesBlock(width, width, periods) for _ in range(depth))
        self.norm, self.leave, self.dropout = nn.LayerNorm(width), nn.Linear(width, channels), nn.Dropout(0.1)

    def forward(self, past: Tensor, coming: Tensor) -> Tensor:
        mean = past.mean(dim=1, keepdim=True).detach()
        spread = (past.var(dim=1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        x = self.dropout(self.enter(((past - mean) / spread).transpose(1, 2)).transpose(1, 2))
        x = self.longer(x.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            x = self.norm(block(x))
        made = self.leave(x) * spread + mean
        return F.mse_loss(made[:, -coming.shape[1] :], coming)
