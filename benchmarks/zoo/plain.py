"""The cases in plain torch: convolutional, recurrent and transformer models that compute their own loss.

No library beyond torch is needed. `torch_cases(tiny)` lists them; `add_lora` turns any model into one with adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.case import Case


class LoraLinear(nn.Module):
    """A frozen linear layer and a trained low-rank correction."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(base.weight.new_empty(rank, base.in_features).normal_(std=0.01))
        self.up = nn.Parameter(base.weight.new_zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * 2.0


def add_lora(model: nn.Module, names: tuple[str, ...], rank: int) -> nn.Module:
    """Freeze the model and put an adapter on every linear layer with one of these names."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, LoraLinear(child, rank))
    return model


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.skip = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.skip(x)
        return self.relu(y)


class ResNet(nn.Module):
    """ResNet-50 when depths are (3, 4, 6, 3)."""

    def __init__(self, depths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(depths):
            for index in range(depth):
                blocks.append(Bottleneck(channels, 64 << stage, 2 if stage and not index else 1))
                channels = 256 << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = F.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1).flatten(1)
        return F.cross_entropy(self.head(features), labels)


class UNetBlock(nn.Module):
    def __init__(self, channels: int, out: int, attend: bool) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, out), nn.Conv2d(out, out, 3, padding=1)
        self.dropout = nn.Dropout(0.1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()
        self.attend = attend
        if attend:
            self.norm3 = nn.GroupNorm(32, out)
            self.qkv, self.proj = nn.Conv2d(out, 3 * out, 1), nn.Conv2d(out, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(self.dropout(F.silu(self.norm2(y)))) + self.skip(x)
        if not self.attend:
            return y
        n, c, h, w = y.shape
        q, k, v = self.qkv(self.norm3(y)).view(n, 3, c // 64, 64, h * w).transpose(3, 4).unbind(1)
        z = F.scaled_dot_product_attention(q, k, v)
        return y + self.proj(z.transpose(2, 3).reshape(n, c, h, w))


class UNet(nn.Module):
    """A diffusion-style U-Net that predicts noise; attention at the two coarsest levels."""

    def __init__(self, base: int, levels: int) -> None:
        super().__init__()
        widths = [base * min(2**level, 4) for level in range(levels)]
        self.stem = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels = base
        for level, width in enumerate(widths):
            self.down.append(UNetBlock(channels, width, attend=level >= levels - 2))
            channels = width
        self.middle = UNetBlock(channels, channels, attend=True)
        for level, width in reversed(list(enumerate(widths))):
            self.up.append(UNetBlock(channels + width, width, attend=level >= levels - 2))
            channels = width
        self.norm, self.head = nn.GroupNorm(32, channels), nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        x, skips = self.stem(images + noise), []
        for index, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if index else x)
            skips.append(x)
        x = self.middle(x)
        for index, block in enumerate(self.up):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest") if index else x
            x = block(torch.cat([x, skips.pop()], dim=1))
        return F.mse_loss(self.head(F.silu(self.norm(x))), noise)


class LstmLM(nn.Module):
    def __init__(self, vocab: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)
        self.lstm = nn.LSTM(width, width, layers, dropout=0.2)
        self.dropout = nn.Dropout(0.2)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.dropout(self.embed(tokens)))
        logits = self.head(self.dropout(hidden))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class GruClassifier(nn.Module):
    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.gru = nn.GRU(width, width, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        hidden, _ = self.gru(self.embed(tokens))
        return F.cross_entropy(self.head(hidden.mean(1)), labels)


class Conv1dNet(nn.Module):
    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(1, channels, 15, 4, 7)]
        for _ in range(depth):
            layers += [nn.Conv1d(channels, channels, 9, 1, 4), nn.BatchNorm1d(channels), nn.GELU(), nn.MaxPool1d(2)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 10)

    def forward(self, waves: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(waves).mean(-1)), labels)


class EncoderClassifier(nn.Module):
    """torch's own encoder: post-norm with a padding mask, or pre-norm without one."""

    def __init__(self, vocab: int, width: int, heads: int, layers: int, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=norm_first)
        self.embed = nn.Embedding(vocab, width)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor, targets: Tensor, padding: Tensor | None = None) -> Tensor:
        hidden = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


class NanoBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.p = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (
            y.view(n, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
        x = x + F.dropout(self.proj(y.transpose(1, 2).contiguous().view(n, t, c)), self.p, self.training)
        return x + self.mlp(self.norm2(x))


class NanoGPT(nn.Module):
    """A plain GPT with tied embeddings."""

    def __init__(self, vocab: int, length: int, width: int, layers: int, dropout: float, reentrant: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(NanoBlock(width, width // 64, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        self.reentrant = reentrant

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.reentrant else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class ComplexRopeBlock(nn.Module):
    """A Llama block as first published: RMS norm, rotation by complex numbers, repeated key heads, SwiGLU."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def rotate(self, x: Tensor, turns: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        n, t, c = x.shape
        y = self.norm1(x)
        q = self.rotate(self.q(y).view(n, t, self.heads, self.size), turns)
        k = self.rotate(self.k(y).view(n, t, self.kv_heads, self.size), turns)
        k, v = (
            z.view(n, t, self.kv_heads, self.size).repeat_interleave(self.heads // self.kv_heads, dim=2)
            for z in (k, self.v(y))
        )
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(z.transpose(1, 2).reshape(n, t, c))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class ComplexRopeLM(nn.Module):
    turns: Tensor

    def __init__(self, vocab: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.blocks = nn.ModuleList(ComplexRopeBlock(width, width // 128, width // 512) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        angles = torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(0, 128, 2).float() / 128))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.turns[: tokens.shape[1]])
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


class Mlp(nn.Sequential):
    """A perceptron whose loss is outside the model."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))


def mean_square(output: Tensor) -> Tensor:
    return output.square().mean()


def text(size: int, length: int, vocab: int) -> Callable[[str], Mapping[str, Any]]:
    return lambda device: {
        name: torch.randint(0, vocab, (size, length), device=device) for name in ("tokens", "targets")
    }


def channels_last_images(size: int, pixels: int, device: str) -> Tensor:
    """Made in place, so that no second copy of the batch is ever allocated."""
    images = torch.empty(size, 3, pixels, pixels, device=device, memory_format=torch.channels_last)
    return images.normal_()


def convolutional_cases(tiny: bool) -> list[Case]:
    depths = (1, 1, 1, 1) if tiny else (3, 4, 6, 3)
    size = partial(min, 2) if tiny else int
    pixels = 32 if tiny else 128

    def images(rows: int, channels_last: bool) -> Callable[[str], Mapping[str, Any]]:
        def batch(device: str) -> dict[str, Tensor]:
            images = (
                channels_last_images(size(rows), 224, device)
                if channels_last
                else torch.randn(size(rows), 3, 224, 224, device=device)
            )
            return {"images": images, "labels": torch.randint(0, 1000, (size(rows),), device=device)}

        return batch

    def pictures(device: str) -> dict[str, Tensor]:
        return {name: torch.randn(size(8), 3, pixels, pixels, device=device) for name in ("images", "noise")}

    def waves(device: str) -> dict[str, Tensor]:
        return {
            "waves": torch.randn(size(16), 1, 65536, device=device),
            "labels": torch.randint(0, 10, (size(16),), device=device),
        }

    def resnet() -> nn.Module:
        return ResNet(depths)

    def resnet_channels_last() -> nn.Module:
        convert: Any = ResNet(depths).to  # the memory format is missing from its type
        return convert(memory_format=torch.channels_last)

    def unet() -> nn.Module:
        return UNet(128, 2 if tiny else 4)

    def conv1d() -> nn.Module:
        return Conv1dNet(256, 6)

    return [
        Case(
            name="resnet50_fp32",
            build=resnet,
            batch=images(64, False),
            precision="fp32",
            optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        ),
        Case(name="resnet50_amp", build=resnet, batch=images(128, False), precision="amp"),
        Case(name="resnet50_nhwc_amp", build=resnet_channels_last, batch=images(128, True), precision="amp"),
        Case(name="unet_fp32", build=unet, batch=pictures, precision="fp32"),
        Case(name="unet_amp", build=unet, batch=pictures, precision="amp"),
        Case(name="conv1d_fp32", build=conv1d, batch=waves, precision="fp32"),
        Case(name="conv1d_amp", build=conv1d, batch=waves, precision="amp"),
    ]


def recurrent_cases(tiny: bool) -> list[Case]:
    length, vocab = (16, 512) if tiny else (256, 33278)

    def lstm() -> nn.Module:
        return LstmLM(vocab, 1024, 2)

    def gru() -> nn.Module:
        return GruClassifier(vocab, 512)

    def documents(device: str) -> dict[str, Tensor]:
        return {
            "tokens": torch.randint(0, vocab, (64, length), device=device),
            "labels": torch.randint(0, 10, (64,), device=device),
        }

    sentences = text(length, 32, vocab)  # time first
    return [
        Case(name="lstm_fp32", build=lstm, batch=sentences, precision="fp32"),
        Case(name="lstm_amp", build=lstm, batch=sentences, precision="amp"),
        Case(name="gru_fp32", build=gru, batch=documents, precision="fp32"),
        Case(name="gru_bf16", build=gru, batch=documents, precision="bf16"),
    ]


def transformer_cases(tiny: bool) -> list[Case]:
    layers, size, length, vocab = (2, 2, 32, 512) if tiny else (12, 8, 1024, 32000)

    def nano(dropout: float, reentrant: bool = False) -> Callable[[], nn.Module]:
        return lambda: NanoGPT(vocab, length, 768, layers, dropout, reentrant)

    def padded(device: str) -> dict[str, Tensor]:
        padding = torch.zeros(2 * size, length // 2, dtype=torch.bool, device=device)
        padding[::2, length * 3 // 8 :] = True
        return {**text(2 * size, length // 2, vocab)(device), "padding": padding}

    def post_norm() -> nn.Module:
        return EncoderClassifier(vocab, 768, 12, layers // 2, norm_first=False)

    def pre_norm() -> nn.Module:
        return EncoderClassifier(vocab, 1024, 16, layers // 2, norm_first=True)

    def complex_rope() -> nn.Module:
        return ComplexRopeLM(vocab, length, 1024, layers // 2)

    tokens = text(size, length, vocab)
    return [
        Case(name="encoder_post_norm_fp32", build=post_norm, batch=padded, precision="fp32"),
        Case(name="encoder_post_norm_amp", build=post_norm, batch=padded, precision="amp"),
        Case(name="encoder_pre_norm_bf16", build=pre_norm, batch=tokens, precision="bf16"),
        Case(name="nanogpt_amp", build=nano(0.0), batch=tokens, precision="amp"),
        Case(name="nanogpt_dropout_bf16", build=nano(0.1), batch=tokens, precision="bf16"),
        Case(name="nanogpt_fp32", build=nano(0.1), batch=tokens, precision="fp32"),
        Case(name="nanogpt_reentrant_amp", build=nano(0.1, reentrant=True), batch=tokens, precision="amp"),
        Case(name="complex_rope_bf16", build=complex_rope, batch=tokens, precision="bf16"),
        Case(
            name="mlp_sgd",
            build=lambda: Mlp(4096, 8),
            batch=lambda device: {"input": torch.randn(64 if tiny else 8192, 4096, device=device)},
            precision="fp32",
            loss=mean_square,
            optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        ),
    ]


def torch_cases(tiny: bool) -> list[Case]:
    return [*convolutional_cases(tiny), *recurrent_cases(tiny), *transformer_cases(tiny)]
