"""More nets of the survey's second draw over images, in plain torch, after what was published under their names.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Slope(nn.Module):
    """The right side of the equation: group norms and convolutions that see the time as one more channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(min(32, width), width) for _ in range(3))
        self.layers = nn.ModuleList(nn.Conv2d(width + 1, width, 3, padding=1) for _ in range(2))

    def forward(self, time: float, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms[:2], self.layers, strict=True):
            x = F.relu(norm(x))
            x = layer(torch.cat([torch.ones_like(x[:, :1]) * time, x], dim=1))
        return self.norms[2](x)


class NeuralOde(nn.Module):
    """A residual net whose depth is a time, integrated by Runge and Kutta's method in fixed steps."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3), nn.GroupNorm(min(32, width), width), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1)
        )
        self.slope = Slope(width)
        self.head = nn.Sequential(nn.GroupNorm(min(32, width), width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.out = nn.Linear(width, 10)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x, size = self.stem(images), 1 / self.steps
        for step in range(self.steps):
            time = step * size
            first = self.slope(time, x)
            second = self.slope(time + size / 2, x + size / 2 * first)
            third = self.slope(time + size / 2, x + size / 2 * second)
            fourth = self.slope(time + size, x + size * third)
            x = x + size / 6 * (first + 2 * second + 2 * third + fourth)
        return F.cross_entropy(self.out(self.head(x)), labels)


class TripletNet(nn.Module):
    """Faces as points of a sphere: the farthest of the same person and the nearest of another form a triplet."""

    def __init__(self, width: int, depth: int, size: int, side: int) -> None:
        super().__init__()
        sizes = [3, *(min(width * 2**level, 8 * width) for level in range(depth))]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.PReLU(b), nn.Conv2d(b, b, 3, padding=1), nn.PReLU(b)]
            layers += [nn.MaxPool2d(2), nn.LocalResponseNorm(5)]
        left = side // 2**depth
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(left * left * sizes[-1], 1024), nn.ReLU())
        self.out = nn.Linear(1024, size)

    def forward(self, images: Tensor, people: Tensor) -> Tensor:
        found = F.normalize(self.out(self.body(images)).float(), dim=1)
        squares = found.square().sum(dim=1)
        distances = (squares[:, None] + squares[None] - 2 * found @ found.t().to(found.dtype)).clamp(min=1e-12).sqrt()
        same = people[:, None] == people[None]
        farthest = distances.masked_fill(~same, -1.0).amax(dim=1)
        nearest = distances.masked_fill(same, 3.0).amin(dim=1)
        return F.softplus(farthest - nearest + 0.2).mean()


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.norms[1](self.second(out)) + self.shortcut(x), inplace=True)


class SimClr(nn.Module):
    """Two views of an image agree more than two images: ResNet-18 without early strides, a projection, NT-Xent."""

    def __init__(self, width: int, depth: int, size: int) -> None:
        super().__init__()
        sizes = [width, *(width * 2**level for level in range(4))]
        blocks = [
            BasicBlock(a if not number else b, b, 2 if level and not number else 1)
            for level, (a, b) in enumerate(itertools.pairwise(sizes))
            for number in range(depth)
        ]
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True))
        self.body = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.project = nn.Sequential(
            nn.Linear(8 * width, 8 * width, bias=False),
            nn.BatchNorm1d(8 * width),
            nn.ReLU(),
            nn.Linear(8 * width, size),
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        both = torch.cat([first, second])
        points = F.normalize(self.project(self.body(self.stem(both))), dim=1)
        alike = (points @ points.t() / 0.5).float()
        alike = alike.masked_fill(torch.eye(len(alike), dtype=torch.bool, device=alike.device), -1e4)
        other = torch.arange(len(alike), device=alike.device).roll(len(first))
        return F.cross_entropy(alike, other)


class Pix2Pix(nn.Module):
    """Maps to photographs: a deep U-Net with dropout for noise, and a critic that sees both; L1 and both judgements."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        sizes = [min(width * 2**level, 8 * width) for level in range(levels)]
        self.downs = nn.ModuleList(
            nn.Sequential(
                *([nn.LeakyReLU(0.2)] if number else []), nn.Conv2d(a, b, 4, 2, 1, bias=False),
                *([nn.BatchNorm2d(b)] if 0 < number < levels - 1 else []),
            )
            for number, (a, b) in enumerate(itertools.pairwise([3, *sizes]))
        )  # fmt: skip
        outputs = [*reversed(sizes[:-1]), 3]
        inputs = [sizes[-1], *(2 * size for size in outputs[:-1])]
        self.ups = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(), nn.ConvTranspose2d(a, b, 4, 2, 1, bias=b == 3),
                *([nn.Tanh()] if b == 3 else [nn.BatchNorm2d(b)]),
                *([nn.Dropout(0.5)] if number < 3 and b != 3 else []),
            )
            for number, (a, b) in enumerate(zip(inputs, outputs, strict=True))
        )  # fmt: skip
        critic: list[nn.Module] = [nn.Conv2d(6, width, 4, 2, 1), nn.LeakyReLU(0.2, True)]
        for size, stride in ((width, 2), (2 * width, 2), (4 * width, 1)):
            critic += [nn.Conv2d(size, 2 * size, 4, stride, 1, bias=False), nn.BatchNorm2d(2 * size)]
            critic += [nn.LeakyReLU(0.2, True)]
        self.critic = nn.Sequential(*critic, nn.Conv2d(8 * width, 1, 4, 1, 1))

    def make(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
        x = skips.pop()
        for up in self.ups:
            x = up(x)
            if skips:
                x = torch.cat([x, skips.pop()], dim=1)
        return x

    def forward(self, maps: Tensor, photos: Tensor) -> Tensor:
        made = self.make(maps)
        real = self.critic(torch.cat([maps, photos], dim=1))
        judged = self.critic(torch.cat([maps, made.detach()], dim=1))
        fooled = self.critic(torch.cat([maps, made], dim=1))
        loss = F.binary_cross_entropy_with_logits
        return (
            100 * F.l1_loss(made, photos)
            + loss(fooled, torch.ones_like(fooled))
            + 0.5 * (loss(real, torch.ones_like(real)) + loss(judged, torch.zeros_like(judged)))
        )


class UNetPlus(nn.Module):
    """UNet++: every skip is a dense chain of convolutions, and each of the finest ones gives an answer."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        sizes, self.levels = [width * 2**level for level in range(levels)], levels
        self.nodes = nn.ModuleDict()
        for step in range(levels):
            for level in range(levels - step):
                below = sizes[level + 1] if step else (sizes[level - 1] if level else 3)
                self.nodes[f"{level}_{step}"] = self.double(below + step * sizes[level], sizes[level])
        self.heads = nn.ModuleList(nn.Conv2d(width, 1, 1) for _ in range(levels - 1))

    @staticmethod
    def double(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(*(
            layer
            for a, b in ((inputs, outputs), (outputs, outputs))
            for layer in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
        ))  # fmt: skip

    def forward(self, images: Tensor, masks: Tensor) -> Tensor:
        rows: list[list[Tensor]] = []
        x = images
        for level in range(self.levels):
            x = self.nodes[f"{level}_0"](F.max_pool2d(x, 2) if level else x)
            rows.append([x])
        for step in range(1, self.levels):
            for level in range(self.levels - step):
                grown = F.interpolate(rows[level + 1][step - 1], scale_factor=2, mode="bilinear", align_corners=True)
                rows[level].append(self.nodes[f"{level}_{step}"](torch.cat([*rows[level], grown], dim=1)))
        wanted = (masks > 0).float()
        answers = [head(x).squeeze(1).float() for head, x in zip(self.heads, rows[0][1:], strict=True)]
        return sum(self.judge(answer, wanted) for answer in answers) / len(answers)

    @staticmethod
    def judge(answer: Tensor, wanted: Tensor) -> Tensor:
        share = answer.sigmoid().flatten(1)
        both = (share * wanted.flatten(1)).sum(dim=1)
        dice = (2 * both + 1e-5) / (share.sum(dim=1) + wanted.flatten(1).sum(dim=1) + 1e-5)
        return 0.5 * F.binary_cross_entropy_with_logits(answer, wanted) + 1 - dice.mean()


class WorldModel(nn.Module):
    """Frames of a game explained by a recurrent state and categories drawn at every step (DreamerV2)."""

    def __init__(self, width: int, state: int, groups: int, actions: int) -> None:
        super().__init__()
        self.groups = groups
        sizes = [3, *(width * 2**level for level in range(4))]
        self.encoder = nn.Sequential(
            *(layer for a, b in itertools.pairwise(sizes) for layer in (nn.Conv2d(a, b, 4, 2), nn.ELU())), nn.Flatten()
        )
        self.enter = nn.Sequential(nn.Linear(groups * groups + actions, state), nn.ELU())
        self.cell = nn.GRUCell(state, state)
        self.prior = nn.Sequential(nn.Linear(state, state), nn.ELU(), nn.Linear(state, groups * groups))
        self.posterior = nn.Sequential(
            nn.Linear(state + 4 * sizes[-1], state), nn.ELU(), nn.Linear(state, groups * groups)
        )
        self.start = nn.Linear(state + groups * groups, 4 * sizes[-1])
        kernels, back = (5, 5, 6, 6), (4 * sizes[-1], *sizes[3:0:-1], 3)
        self.decoder = nn.Sequential(*(
            layer
            for (a, b), kernel in zip(itertools.pairwise(back), kernels, strict=True)
            for layer in (nn.ConvTranspose2d(a, b, kernel, 2), nn.ELU())
        ))  # fmt: skip
        self.reward = nn.Sequential(nn.Linear(state + groups * groups, state), nn.ELU(), nn.Linear(state, 1))

    def sample(self, logits: Tensor) -> Tensor:
        shares = torch.softmax(logits, dim=-1)
        chosen = torch.distributions.Categorical(probs=shares, validate_args=False).sample()
        return F.one_hot(chosen, self.groups).to(shares.dtype) + shares - shares.detach()

    def forward(self, frames: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
        rows, length = frames.shape[:2]
        seen = self.encoder(frames.flatten(0, 1)).unflatten(0, (rows, length))
        state = torch.zeros(rows, self.cell.hidden_size, device=frames.device, dtype=seen.dtype)
        drawn = torch.zeros(rows, self.groups**2, device=frames.device, dtype=seen.dtype)
        moves = F.one_hot(actions, self.enter[0].in_features - self.groups**2).to(seen.dtype)
        states, guesses, truths = [], [], []
        for step in range(length):
            state = self.cell(self.enter(torch.cat([drawn, moves[:, step]], dim=1)), state)
            guesses.append(self.prior(state).unflatten(1, (self.groups, self.groups)).float())
            known = self.posterior(torch.cat([state, seen[:, step].to(state.dtype)], dim=1))
            truths.append(known.unflatten(1, (self.groups, self.groups)).float())
            drawn = self.sample(truths[-1]).flatten(1).to(seen.dtype)
            states.append(torch.cat([state, drawn], dim=1))
        features, guess, truth = torch.stack(states, 1), torch.stack(guesses, 1), torch.stack(truths, 1)
        made = self.decoder(self.start(features).flatten(0, 1)[:, :, None, None])
        loss = F.mse_loss(made.float(), frames.flatten(0, 1).float())
        loss = loss + F.mse_loss(self.reward(features).squeeze(-1).float(), rewards.float())
        return loss + 0.8 * self.divergence(truth.detach(), guess) + 0.2 * self.divergence(truth, guess.detach())

    @staticmethod
    def divergence(truth: Tensor, guess: Tensor) -> Tensor:
        known, expected = F.log_softmax(truth, dim=-1), F.log_softmax(guess, dim=-1)
        return (known.exp() * (known - expected)).sum(dim=(-1, -2)).mean()
