"""Cases of the third blind test: image nets whose memory was predicted before it was measured.

Plain torch, by the shapes of what they are named after: dense and aggregated blocks, shuffled groups, mixed kernels,
dilation, volumes, transposed convolutions, a feature pyramid; and three of transformers. They are not part of `zoo()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.case import Case, Precision
from zoo.hf import build, sizes


def conv(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1
) -> nn.Sequential:
    """Convolution, norm, activation."""
    padding = dilation * (kernel // 2)
    made = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Added(nn.Module):
    """A branch and its shortcut, added."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


class Concatenated(nn.Module):
    """Branches, one after the other along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Classifier(nn.Module):
    """Features, mean over the image, cross entropy; channels-last if asked."""

    def __init__(self, features: nn.Module, channels: int, channels_last: bool = False) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(channels, 1000)
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        module: Any = self
        module.to(memory_format=self.layout)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        found = self.features(images.contiguous(memory_format=self.layout))
        return F.cross_entropy(self.head(found.mean((2, 3))), labels)


def densenet(blocks: tuple[int, ...] = (6, 12, 24, 16), growth: int = 32) -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for number, block in enumerate(blocks):
        if number:
            layers += [conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(block):
            branch = nn.Sequential(conv(channels, 4 * growth, 1), conv(4 * growth, growth))
            layers.append(Concatenated(nn.Identity(), branch))
            channels += growth
    return Classifier(nn.Sequential(*layers), channels)


def bottleneck(inputs: int, outputs: int, stride: int = 1, groups: int = 1, dilation: int = 1) -> nn.Module:
    width = outputs // 2 if groups > 1 else outputs // 4
    branch = nn.Sequential(
        conv(inputs, width, 1),
        conv(width, width, 3, stride, groups=groups, dilation=dilation),
        nn.Conv2d(width, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
    )
    same = inputs == outputs and stride == 1
    shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    return Added(branch, nn.Identity() if same else shortcut)


def stages(depths: tuple[int, ...], groups: int = 1, last_dilation: int = 1) -> list[nn.Sequential]:
    """Stages of a residual net; a dilated last one keeps its resolution."""
    found, inputs = [], 64
    for number, depth in enumerate(depths):
        outputs, is_dilated = 256 << number, last_dilation > 1 and number == len(depths) - 1
        stride, dilation = (1 if number == 0 or is_dilated else 2), (last_dilation if is_dilated else 1)
        blocks = [bottleneck(inputs, outputs, stride, groups, dilation)]
        blocks += [bottleneck(outputs, outputs, 1, groups, dilation) for _ in range(depth - 1)]
        found.append(nn.Sequential(*blocks))
        inputs = outputs
    return found


def stem() -> nn.Sequential:
    return nn.Sequential(conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))


def resnext(channels_last: bool = False) -> nn.Module:
    return Classifier(nn.Sequential(stem(), *stages((3, 4, 6, 3), groups=32)), 2048, channels_last)


class Shuffled(nn.Module):
    """Half of the channels pass, half are convolved, then they are mixed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            conv(half, half, 1), nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False), nn.BatchNorm2d(half),
            conv(half, half, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, 1)
        return torch.stack((kept, self.branch(changed)), 2).flatten(1, 2)


def shufflenet() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = 24
    for outputs, depth in ((244, 4), (488, 8), (976, 4)):
        layers += [conv(inputs, inputs, 3, 2, groups=inputs), conv(inputs, outputs, 1)]
        layers += [Shuffled(outputs) for _ in range(depth - 1)]
        inputs = outputs
    return Classifier(nn.Sequential(*layers, conv(inputs, 2048, 1)), 2048)


def inception() -> nn.Module:
    def mixed(inputs: int, a: int, b: tuple[int, int], c: tuple[int, int], d: int) -> nn.Module:
        return Concatenated(
            conv(inputs, a, 1),
            nn.Sequential(conv(inputs, b[0], 1), conv(b[0], b[1])),
            nn.Sequential(conv(inputs, c[0], 1), conv(c[0], c[1], 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(inputs, d, 1)),
        )

    layers = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), conv(64, 64, 1), conv(64, 192), nn.MaxPool2d(3, 2, 1)]
    layers += [mixed(192, 64, (96, 128), (16, 32), 32), mixed(256, 128, (128, 192), (32, 96), 64)]
    layers += [nn.MaxPool2d(3, 2, 1), mixed(480, 192, (96, 208), (16, 48), 64)]
    layers += [mixed(512, 160, (112, 224), (24, 64), 64), mixed(512, 112, (144, 288), (32, 64), 64)]
    layers += [mixed(528, 256, (160, 320), (32, 128), 128), nn.MaxPool2d(3, 2, 1)]
    return Classifier(nn.Sequential(*layers, mixed(832, 384, (192, 384), (48, 128), 128)), 1024)


class Segmenter(nn.Module):
    """A dilated residual net and parallel dilated convolutions, one class per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(stem(), *stages((3, 4, 6, 3), last_dilation=2))
        self.parallel = Concatenated(
            conv(2048, 256, 1), *(conv(2048, 256, 3, dilation=dilation) for dilation in (6, 12, 18))
        )
        self.head = nn.Sequential(conv(1024, 256, 1), conv(256, 256), nn.Conv2d(256, 21, 1))

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        found = self.head(self.parallel(self.body(images)))
        found = F.interpolate(found, images.shape[2:], mode="bilinear", align_corners=False)
        return F.cross_entropy(found, classes)


class Volumes(nn.Module):
    """A U-Net over volumes."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Sequential:
            pairs = ((inputs, outputs), (outputs, outputs))
            made = [
                (nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU()) for a, b in pairs
            ]
            return nn.Sequential(*(layer for group in made for layer in group))

        widths = [width << level for level in range(depth)]
        self.down = nn.ModuleList(block(a, b) for a, b in zip([1, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose3d(2 * b, b, 2, 2) for b in widths[-2::-1])
        self.merge = nn.ModuleList(block(2 * b, b) for b in widths[-2::-1])
        self.head = nn.Conv3d(width, 4, 1)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        kept: list[Tensor] = []
        x = images
        for block in self.down:
            x = block(F.max_pool3d(x, 2) if kept else x)
            kept.append(x)
        for up, merge, skipped in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat((up(x), skipped), 1))
        return F.cross_entropy(self.head(x), classes)


class Adversaries(nn.Module):
    """A generator of transposed convolutions and the critic of what it makes, trained as one."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ConvTranspose2d(128, 8 * width, 4, bias=False)]
        critics: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
        for level in (8, 4, 2):
            layers += [nn.BatchNorm2d(level * width), nn.ReLU()]
            layers.append(nn.ConvTranspose2d(level * width, level * width // 2, 4, 2, 1, bias=False))
        for level in (1, 2, 4):
            critics += [nn.Conv2d(level * width, 2 * level * width, 4, 2, 1, bias=False)]
            critics += [nn.BatchNorm2d(2 * level * width), nn.LeakyReLU(0.2)]
        last = (nn.BatchNorm2d(width), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())
        self.generator = nn.Sequential(*layers, *last)
        self.critic = nn.Sequential(*critics, nn.Conv2d(8 * width, 1, 4))

    def forward(self, codes: Tensor, images: Tensor) -> Tensor:
        real, made = self.critic(images), self.critic(self.generator(codes[:, :, None, None]))
        return F.softplus(-real).mean() + F.softplus(made).mean()


class Pyramid(nn.Module):
    """A residual net, a feature pyramid, and heads that every level shares."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stages = stem(), nn.ModuleList(stages((3, 4, 6, 3)))
        self.lateral = nn.ModuleList(nn.Conv2d(256 << level, 256, 1) for level in range(4))
        self.smooth = nn.ModuleList(nn.Conv2d(256, 256, 3, padding=1) for _ in range(4))
        tower = [layer for _ in range(4) for layer in (nn.Conv2d(256, 256, 3, padding=1), nn.ReLU())]
        self.head = nn.Sequential(*tower, nn.Conv2d(256, 9 * 80, 3, padding=1))

    def forward(self, images: Tensor) -> Tensor:
        x, levels = self.stem(images), []
        for stage, lateral in zip(self.stages, self.lateral, strict=True):
            x = stage(x)
            levels.append(lateral(x))
        for level in (2, 1, 0):
            levels[level] = levels[level] + F.interpolate(levels[level + 1], scale_factor=2.0, mode="nearest")
        found = [self.head(smooth(level)) for smooth, level in zip(self.smooth, levels, strict=True)]
        return torch.stack([each.float().square().mean() for each in found]).sum()


def image_net_cases(tiny: bool = False) -> list[Case]:
    layers, size, _, _ = sizes(tiny)

    def drawn(**shapes: tuple[int, ...]) -> Callable[[str], Mapping[str, Tensor]]:
        """Classes where the name says so, else normal numbers; images are small if tiny."""

        def batch(device: str) -> dict[str, Tensor]:
            found = {}
            for name, (number, *rest) in shapes.items():
                is_class = name in ("labels", "classes")
                kept = 0 if is_class else 1
                sides = [min(side, 64) if tiny else side for side in rest[kept:]]
                shape = (size(number), *rest[:kept], *sides)
                found[name] = (
                    torch.randint(0, 4, shape, device=device) if is_class else torch.randn(shape, device=device)
                )
            return found

        return batch

    def labelled(number: int, side: int, images: str = "images") -> Callable[[str], Mapping[str, Tensor]]:
        return drawn(**{images: (number, 3, side, side), "labels": (number,)})

    def pixels(number: int) -> Callable[[str], Mapping[str, Tensor]]:
        return labelled(number, 224, "pixel_values")

    mobile = hf.MobileNetV1Config(num_labels=1000)
    swift = hf.SwiftFormerConfig(num_labels=1000)
    pyramid = hf.PvtV2Config(num_labels=1000, depths=[2, 2, layers(2), 2])
    cases: list[tuple[str, Precision, Callable[[], nn.Module], Any]] = [
        ("densenet_fp32", "fp32", densenet, labelled(48, 224)),
        ("resnext_amp", "amp", resnext, labelled(72, 224)),
        ("resnext_nhwc_fp32", "fp32", lambda: resnext(channels_last=True), labelled(32, 192)),
        ("shufflenet_fp32", "fp32", shufflenet, labelled(160, 224)),
        ("inception_amp", "amp", inception, labelled(128, 224)),
        ("deeplab_amp", "amp", Segmenter, drawn(images=(8, 3, 384, 384), classes=(8, 384, 384))),
        ("unet3d_amp", "amp", Volumes, drawn(images=(2, 1, 96, 96, 96), classes=(2, 96, 96, 96))),
        ("gan_fp32", "fp32", Adversaries, drawn(codes=(192, 128), images=(192, 3, 64, 64))),
        ("pyramid_fp32", "fp32", Pyramid, drawn(images=(8, 3, 448, 448))),
        ("mobilenet_v1_amp", "amp", build(hf.MobileNetV1ForImageClassification, mobile), pixels(80)),
        ("swiftformer_fp32", "fp32", build(hf.SwiftFormerForImageClassification, swift), pixels(64)),
        ("pvt_v2_amp", "amp", build(hf.PvtV2ForImageClassification, pyramid), pixels(56)),
    ]  # fmt: skip
    return [Case(name=name, build=make, batch=batch, precision=precision) for name, precision, make, batch in cases]
