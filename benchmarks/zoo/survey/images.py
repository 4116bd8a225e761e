"""Nets of the survey over images and volumes, in plain torch, as different as people's own code is.

Each computes its own loss from what its batch names, and runs in any float dtype.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class StyleLayer(nn.Module):
    """A convolution whose weights are scaled per image by a style and normalised: the batch is convolved as groups."""

    def __init__(self, inputs: int, outputs: int, style: int) -> None:
        super().__init__()
        self.style = nn.Linear(style, inputs)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3))
        self.noise = nn.Parameter(torch.zeros(1))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        size, channels, height, width = x.shape
        weight = self.weight * (self.style(code) + 1)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        out = F.conv2d(x.reshape(1, size * channels, height, width), weight.flatten(0, 1), padding=1, groups=size)
        out = out.view(size, -1, height, width)
        noise = torch.randn(size, 1, height, width, device=x.device, dtype=x.dtype)
        return F.leaky_relu(out + self.noise * noise + self.bias[:, None, None], 0.2)


class StyleGenerator(nn.Module):
    """A mapping net, a constant, layers of growing resolution, their images summed; a small critic judges."""

    def __init__(self, style: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.mapping = nn.Sequential(
            *(layer for _ in range(6) for layer in (nn.Linear(style, style), nn.LeakyReLU(0.2)))
        )
        self.start = nn.Parameter(torch.randn(1, widths[0], 4, 4))
        pairs = list(itertools.pairwise(widths))
        self.layers = nn.ModuleList(
            nn.ModuleList([StyleLayer(a, b, style), StyleLayer(b, b, style), nn.Conv2d(b, 3, 1)]) for a, b in pairs
        )
        steps = [nn.Sequential(nn.Conv2d(b, a, 3, 2, 1), nn.LeakyReLU(0.2)) for a, b in reversed(pairs)]
        self.critic = nn.Sequential(nn.Conv2d(3, widths[-1], 1), *steps, nn.Flatten(), nn.Linear(16 * widths[0], 1))

    def forward(self, codes: Tensor) -> Tensor:
        style = self.mapping(F.normalize(codes, dim=1))
        x, image = self.start.expand(len(codes), -1, -1, -1), None
        for first, second, color in self.layers:
            x = second(first(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), style), style)
            if image is not None:
                image = F.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)
            image = color(x) if image is None else image + color(x)
        return F.softplus(-self.critic(image)).mean()


class PenalisedCritic(nn.Module):
    """A critic of images whose gradient's norm is held at one: backward goes through a backward pass."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 8 * width]
        self.body = nn.Sequential(
            *(
                layer
                for a, b in itertools.pairwise(widths)
                for layer in (nn.Conv2d(a, b, 5, 2, 2), nn.GroupNorm(1, b), nn.SiLU())
            ),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8 * width, 1),
        )

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        share = torch.rand(len(real), 1, 1, 1, device=real.device, dtype=real.dtype)
        mixed = torch.lerp(real, fake, share.expand_as(real)).requires_grad_()
        (slope,) = torch.autograd.grad(self.body(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.flatten(1).float().norm(dim=1) - 1).square().mean()
        return self.body(fake).mean() - self.body(real).mean() + 10 * penalty


class Fusion(nn.Module):
    """Branches of different resolutions, every one added to every other, resized."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()

        def block(width: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            )  # fmt: skip

        self.branches = nn.ModuleList(nn.Sequential(block(width), block(width)) for width in widths)
        self.paths = nn.ModuleList(
            nn.ModuleList(
                nn.Conv2d(a, b, 1) if j > i else nn.Conv2d(a, b, 3, 2 ** (i - j), 1) for j, a in enumerate(widths)
            )
            for i, b in enumerate(widths)
        )

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        xs = [branch(x) + x for branch, x in zip(self.branches, xs, strict=True)]
        fused = []
        for i, paths in enumerate(self.paths):
            total = xs[i]
            for j, path in enumerate(paths):
                if i != j:
                    part = path(xs[j])
                    total = total + (F.interpolate(part, total.shape[2:], mode="nearest") if j > i else part)
            fused.append(F.relu(total))
        return fused


class HighResolution(nn.Module):
    """Heat maps of joints from branches that keep their resolution."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, width, 3, 2, 1), nn.ReLU()
        )
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(widths))
        self.stages = nn.ModuleList(Fusion(widths) for _ in range(depth))
        self.head = nn.Conv2d(width, 17, 1)

    def forward(self, images: Tensor, maps: Tensor) -> Tensor:
        xs = [self.stem(images)]
        for shrink in self.shrink:
            xs.append(F.relu(shrink(xs[-1])))
        for stage in self.stages:
            xs = stage(xs)
        return F.mse_loss(self.head(xs[0]), maps)


class SuperResolution(nn.Module):
    """Residual blocks with channel attention, then twice a convolution and a pixel shuffle."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = nn.Sequential(
                    nn.Conv2d(width, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, width, 3, padding=1)
                )
                self.gate = nn.Sequential(
                    nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 16, 1), nn.ReLU(inplace=True),
                    nn.Conv2d(width // 16, width, 1), nn.Sigmoid(),
                )  # fmt: skip

            def forward(self, x: Tensor) -> Tensor:
                out = self.body(x)
                return x + out * self.gate(out)

        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
        self.grow = nn.Sequential(
            *(layer for _ in range(2) for layer in (nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2)))
        )
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, small: Tensor, large: Tensor) -> Tensor:
        x = self.enter(small)
        return F.l1_loss(self.leave(self.grow(self.blocks(x) + x)), large)


class OpticalFlow(nn.Module):
    """All pairs of two feature maps, looked up around the flow found so far, which a convolutional GRU corrects."""

    def __init__(self, width: int, rounds: int, radius: int) -> None:
        super().__init__()
        self.rounds, self.radius = rounds, radius
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3), nn.InstanceNorm2d(64), nn.ReLU(), nn.Conv2d(64, 96, 3, 2, 1),
            nn.InstanceNorm2d(96), nn.ReLU(), nn.Conv2d(96, width, 3, 2, 1),
        )  # fmt: skip
        looked_up = (2 * radius + 1) ** 2
        self.gates = nn.Conv2d(width + looked_up + 2, 2 * width, 3, padding=1)
        self.candidate = nn.Conv2d(width + looked_up + 2, width, 3, padding=1)
        self.move = nn.Sequential(nn.Conv2d(width, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 2, 3, padding=1))

    def forward(self, first: Tensor, second: Tensor, flow: Tensor) -> Tensor:
        here, there = self.encoder(first), self.encoder(second)
        size, width, rows, columns = here.shape
        pairs = torch.einsum("bcij,bckl->bijkl", here, there) / width**0.5
        pairs = pairs.reshape(size * rows * columns, 1, rows, columns)
        ys, xs = torch.meshgrid(*(torch.arange(n, device=here.device) for n in (rows, columns)), indexing="ij")
        start = torch.stack([xs, ys], dim=0).to(here.dtype).expand(size, -1, -1, -1)
        reach = torch.arange(-self.radius, self.radius + 1, device=here.device)
        window = torch.stack(torch.meshgrid(reach, reach, indexing="ij"), dim=-1).to(here.dtype)
        extent = torch.tensor([columns - 1, rows - 1], device=here.device, dtype=here.dtype)
        state, at, loss = torch.tanh(here), start, here.new_zeros(())
        for number in range(self.rounds):
            at = at.detach()
            grid = at.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) + window
            seen = F.grid_sample(pairs, (2 * grid / extent - 1).to(pairs.dtype), align_corners=True)
            seen = seen.view(size, rows, columns, -1).permute(0, 3, 1, 2)
            inputs = torch.cat([seen, at - start], dim=1)
            update, reset = torch.sigmoid(self.gates(torch.cat([state, inputs], dim=1))).chunk(2, dim=1)
            candidate = torch.tanh(self.candidate(torch.cat([reset * state, inputs], dim=1)))
            state = (1 - update) * state + update * candidate
            at = at + self.move(state)
            found = F.interpolate(at - start, scale_factor=8, mode="bilinear", align_corners=True)
            loss = loss + 0.8 ** (self.rounds - number) * (found - flow).abs().mean()
        return loss


class GatedUNet(nn.Module):
    """A U-Net whose skips pass a gate; transposed convolutions grow; dice and cross-entropy judge."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ELU(),
                nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ELU(), nn.Dropout2d(0.1),
            )  # fmt: skip

        widths = [width << level for level in range(depth)]
        self.down = nn.ModuleList(block(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * b, b, 3, 2, 1, output_padding=1) for b in widths[-2::-1])
        self.gates = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * b, b // 2, 1), nn.ReLU(), nn.Conv2d(b // 2, 1, 1), nn.Sigmoid())
            for b in widths[-2::-1]
        )
        self.merge = nn.ModuleList(block(2 * b, b) for b in widths[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        kept, x = [], images
        for number, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if number else x)
            kept.append(x)
        for up, gate, merge, skip in zip(self.up, self.gates, self.merge, kept[-2::-1], strict=True):
            x = up(x)
            x = merge(torch.cat([x, skip * gate(torch.cat([x, skip], dim=1))], dim=1))
        logits = self.head(x)
        chances = logits.softmax(dim=1)
        wanted = F.one_hot(classes, logits.shape[1]).permute(0, 3, 1, 2).to(chances.dtype)
        overlap = 2 * (chances * wanted).sum((2, 3)) / (chances.sum((2, 3)) + wanted.sum((2, 3)) + 1)
        return F.cross_entropy(logits, classes) + 1 - overlap.mean()


class VectorQuantised(nn.Module):
    """An autoencoder whose codes are the nearest of a table, passed straight through."""

    def __init__(self, width: int, codes: int, code_width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width // 2, 4, 2, 1), nn.ReLU(), nn.Conv2d(width // 2, width, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, code_width, 1),
        )  # fmt: skip
        self.table = nn.Embedding(codes, code_width)
        self.decoder = nn.Sequential(
            nn.Conv2d(code_width, width, 3, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width // 2, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        codes = self.encoder(images).permute(0, 2, 3, 1)
        flat = codes.reshape(-1, codes.shape[-1])
        distances = (
            flat.square().sum(1, keepdim=True) + self.table.weight.square().sum(1) - 2 * flat @ self.table.weight.t()
        )
        nearest = self.table(distances.argmin(dim=1)).view_as(codes)
        commitment = F.mse_loss(codes, nearest.detach()) * 0.25 + F.mse_loss(nearest, codes.detach())
        passed = codes + (nearest - codes).detach()
        return F.mse_loss(self.decoder(passed.permute(0, 3, 1, 2)), images) + commitment


class Mixer(nn.Module):
    """Perceptrons over patches and over channels in turns."""

    def __init__(self, width: int, depth: int, side: int, patch: int) -> None:
        super().__init__()
        patches = (side // patch) ** 2

        def mlp(size: int, hidden: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))

        self.enter = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(width), mlp(patches, width // 2), nn.LayerNorm(width), mlp(width, 4 * width)])
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.enter(images).flatten(2).transpose(1, 2)
        for first, across, second, within in self.blocks:
            x = x + across(first(x).transpose(1, 2)).transpose(1, 2)
            x = x + within(second(x))
        return F.cross_entropy(self.head(self.norm(x).mean(dim=1)), labels, label_smoothing=0.1)


class ConvMixer(nn.Module):
    """Wide depthwise convolutions and one-pixel ones, batch norms behind GELU."""

    def __init__(self, width: int, depth: int, kernel: int, patch: int) -> None:
        super().__init__()

        def behind(layer: nn.Module) -> nn.Sequential:
            return nn.Sequential(layer, nn.GELU(), nn.BatchNorm2d(width))

        self.enter = behind(nn.Conv2d(3, width, patch, patch))
        self.across = nn.ModuleList(
            behind(nn.Conv2d(width, width, kernel, groups=width, padding="same")) for _ in range(depth)
        )
        self.within = nn.ModuleList(behind(nn.Conv2d(width, width, 1)) for _ in range(depth))
        self.head = nn.Linear(width, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.enter(images)
        for across, within in zip(self.across, self.within, strict=True):
            x = within(across(x) + x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class Distilled(nn.Module):
    """A frozen wide net teaches a narrow one: hard labels and softened logits."""

    def __init__(self, teacher: int, student: int, depth: int) -> None:
        super().__init__()
        self.teacher = plain_net(teacher, depth).requires_grad_(False).eval()
        self.student = plain_net(student, depth)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = F.softmax(self.teacher(images) / 4, dim=1)
        logits = self.student(images)
        soft = F.kl_div(F.log_softmax(logits / 4, dim=1), wanted, reduction="batchmean")
        return F.cross_entropy(logits, labels) + 16 * soft


def plain_net(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1)]
    for level in range(4):
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if level < 3:
            layers.append(nn.Conv2d(width, 2 * width, 2, 2))
            width *= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


class CellularAutomaton(nn.Module):
    """Cells that grow by the same small rule, many times over, each with an even chance."""

    def __init__(self, channels: int, hidden: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
        kernels = torch.stack([sobel, sobel.t()]).repeat(channels, 1, 1)[:, None]
        self.register_buffer("kernels", kernels)
        self.rule = nn.Sequential(nn.Conv2d(3 * channels, hidden, 1), nn.ReLU(), nn.Conv2d(hidden, channels, 1))

    def forward(self, seeds: Tensor, pictures: Tensor) -> Tensor:
        x = seeds
        for _ in range(self.rounds):
            seen = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), self.kernels.to(x.dtype), groups=x.shape[1])
            change = self.rule(torch.cat([x, seen], dim=1))
            x = x + change * (torch.rand_like(x[:, :1]) < 0.5).to(x.dtype)
            alive = F.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1
            x = x * alive.to(x.dtype)
        return F.mse_loss(x[:, :4], pictures)


class Straightened(nn.Module):
    """Images are turned upright by a transformation that a small net finds, then classified by depthwise blocks."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.find = nn.Sequential(
            nn.Conv2d(3, 32, 7, 2), nn.MaxPool2d(2, 2), nn.ReLU(), nn.Conv2d(32, 64, 5), nn.AdaptiveMaxPool2d(4),
            nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 6),
        )  # fmt: skip
        self.enter = nn.Conv2d(3, width, 3, 2, 1)
        self.blocks = nn.Sequential(*(Squeezed(width) for _ in range(depth)))
        self.head = nn.Linear(width, 200)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        turn = self.find(images).view(-1, 2, 3)
        grid = F.affine_grid(turn, list(images.shape), align_corners=False)
        x = self.enter(F.grid_sample(images, grid.to(images.dtype), mode="bilinear", padding_mode="border"))
        return F.nll_loss(F.log_softmax(self.head(self.blocks(x).amax((2, 3))), dim=1), labels)


class Squeezed(nn.Module):
    """An inverted residual block with squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 4 * width
        self.grow = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.across = nn.Sequential(
            nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(nn.Linear(wide, width), nn.ReLU(), nn.Linear(width, wide), nn.Hardsigmoid())
        self.shrink = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.across(self.grow(x))
        return x + self.shrink(hidden * self.squeeze(hidden.mean((2, 3)))[:, :, None, None])


class MaskedConv(nn.Conv2d):
    """A convolution that sees only what is above and to the left."""

    def __init__(self, inputs: int, outputs: int, kernel: int, sees_itself: bool) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        mask = torch.ones_like(self.weight)
        mask[:, :, kernel // 2, kernel // 2 + sees_itself :] = 0
        mask[:, :, kernel // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.mask, self.bias)


class PixelCnn(nn.Module):
    """Gated masked convolutions that predict each pixel's value from those before."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = MaskedConv(3, width, 7, False)
        self.layers = nn.ModuleList(MaskedConv(width, 2 * width, 3, True) for _ in range(depth))
        self.mix = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.head = nn.Conv2d(width, 256, 1)

    def forward(self, images: Tensor, values: Tensor) -> Tensor:
        x = self.enter(images)
        for layer, mix in zip(self.layers, self.mix, strict=True):
            signal, gate = layer(x).chunk(2, dim=1)
            x = x + mix(torch.tanh(signal) * torch.sigmoid(gate))
        return F.cross_entropy(self.head(F.relu(x)), values)
