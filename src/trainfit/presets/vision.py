"""ViT-L/16 and ResNet-50 on images of 224 x 224, as ImageNet classifiers.

Weights are fp32; ViT trains under bf16 autocast with AdamW, ResNet as it usually does: fp16 autocast, a gradient
scaler, SGD with momentum.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainfit.step import Step

IMAGE_SIZE = 224
NUM_CLASSES = 1000


class VitBlock(nn.Module):
    """Attention, then a GELU MLP, each on normalised input and added to the stream."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(dim, eps=1e-6)
        self.qkv_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim, eps=1e-6)
        self.up_proj = nn.Linear(dim, 4 * dim)
        self.down_proj = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.qkv_proj(self.attention_norm(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out_proj(y.transpose(1, 2).flatten(2))
        return x + self.down_proj(F.gelu(self.up_proj(self.mlp_norm(x))))


class Vit(nn.Module):
    """Images and their classes in, the mean cross-entropy out; the class is read off an extra token."""

    def __init__(self, *, dim: int, num_layers: int, num_heads: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.zeros(1, (IMAGE_SIZE // patch) ** 2 + 1, dim))
        self.blocks = nn.ModuleList([VitBlock(dim, num_heads) for _ in range(num_layers)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, NUM_CLASSES)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]), targets)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the 3x3 one strides."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = 4 * width
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        y = self.norm3(self.conv3(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """Images and their classes in, the mean cross-entropy out; four stages, each half the size of the one before."""

    def __init__(self, num_blocks: tuple[int, ...]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.blocks = nn.ModuleList()
        channels = 64
        for stage, count in enumerate(num_blocks):
            width = 64 * 2**stage
            for index in range(count):
                self.blocks.append(Bottleneck(channels, width, stride=2 if stage > 0 and index == 0 else 1))
                channels = 4 * width
        self.head = nn.Linear(channels, NUM_CLASSES)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(images)), inplace=True)
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for block in self.blocks:
            x = block(x)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return F.cross_entropy(self.head(x), targets)


def build(name: str, batch: int, seq: None) -> Step:
    """The Step that trains the image classifier called `name`."""
    inputs = {
        "images": torch.empty(batch, 3, IMAGE_SIZE, IMAGE_SIZE, device="meta"),
        "targets": torch.empty(batch, dtype=torch.int64, device="meta"),
    }
    if name == "vit-large":
        return Step(
            model=partial(Vit, dim=1024, num_layers=24, num_heads=16, patch=16),
            batch=inputs,
            optimizer=torch.optim.AdamW,
            autocast=torch.bfloat16,
        )
    return Step(
        model=partial(ResNet, (3, 4, 6, 3)),
        batch=inputs,
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        autocast=torch.float16,
        grad_scaler=True,
    )
