"""Small models whose kernels take no time, so that a training step of theirs lasts as long as the CPU needs for it.

`small_models()` gives them by name: styles of writing a model (norms out of plain ops or fused, one module or many, as
libraries do, convolutions, recurrent layers, loops written out), precisions, checkpointing, optimizers. Nothing is
built until asked, on the default device of whoever asks. Every model takes what `inputs` makes and returns a scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainfit.calibrate.library_models import library_decoder, library_encoder

WIDTH, HEADS, TOKENS, VOCABULARY, LAYERS = 64, 2, 16, 128, 10
LOOP_REPEATS = 2
ROWS = 16
"""How often recurrent layers have the batch, so that they are of usual sizes."""


class PlainNorm(nn.Module):
    """RMS norm as decoders write it, out of plain ops in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Attention(nn.Module):
    """Four projections, rotary positions and fused attention."""

    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        angle = torch.ones(TOKENS, WIDTH // HEADS)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotate(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self.cos.to(x.dtype) + turned * self.sin.to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], HEADS, WIDTH // HEADS)
        q, k, v = (project(x).view(shape).transpose(1, 2) for project in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(*x.shape))


class GatedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down, self.act = nn.Linear(2 * WIDTH, WIDTH, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class DecoderBlock(nn.Module):
    """As today's decoders are written: many small modules."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = norm(WIDTH), norm(WIDTH)
        self.attention, self.mlp = Attention(), GatedMlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class FlatBlock(nn.Module):
    """As the first GPTs were written: few modules, biases, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        parts = self.qkv(self.first(x)).split(WIDTH, dim=2)
        q, k, v = (part.view(batch, tokens, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH)), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), 0.1)


class WindowBlock(nn.Module):
    """Attention within windows of a picture out of plain ops, with a bias looked up by distance: much is moved about
    and little is computed."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(8, HEADS))
        self.register_buffer("places", torch.zeros(4, 4, dtype=torch.int64), persistent=False)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (WIDTH // HEADS) ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.bias[self.places.view(-1)].view(4, 4, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        y = F.dropout(scores.softmax(-1), 0.1) @ v
        return self.out(y.transpose(1, 2).reshape(x.shape))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        side = int(tokens**0.5)
        moved = torch.roll(self.first(x).view(batch, side, side, width), (-1, -1), (1, 2))
        parts = moved.view(batch, side // 2, 2, side // 2, 2, width).permute(0, 1, 3, 2, 4, 5).contiguous()
        y = self.attend(parts.view(-1, 4, width)).view(batch, side // 2, side // 2, 2, 2, width)
        y = y.permute(0, 1, 3, 2, 4, 5).contiguous().view(batch, side, side, width)
        x = x + torch.roll(y, (1, 1), (1, 2)).view(batch, tokens, width)
        return x + self.down(F.gelu(self.up(self.second(x))))


class ConvBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.norm2, self.relu = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.second(self.relu(self.norm(self.first(x)))))
        return self.relu(x + y)


class Text(nn.Module):
    """Embedding, blocks, head, cross-entropy."""

    def __init__(self, block: Callable[[], nn.Module], checkpointed: bool = False, reentrant: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.checkpointed, self.reentrant = checkpointed, reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant) if self.checkpointed else block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens.flatten())


class Images(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(ConvBlock() for _ in range(LAYERS))
        self.head = nn.Linear(8, VOCABULARY)
        self.checkpointed = checkpointed

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class Recurrent(nn.Module):
    """Recurrent layers, whose op launches a few kernels per token: `repeats` times `TOKENS` of them."""

    def __init__(self, kind: Callable[..., nn.RNNBase], width: int, layers: int, both: bool, repeats: int) -> None:
        super().__init__()
        self.embed, self.repeats = nn.Embedding(VOCABULARY, width), repeats
        self.layer = kind(
            width, width, layers, batch_first=True, bidirectional=both, dropout=0.1 if layers > 1 else 0.0
        )

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.layer(self.embed(tokens).repeat(ROWS, self.repeats, 1))
        return hidden.float().mean()


class RecurrentStack(nn.Module):
    """Short recurrent layers, each called for itself: what a call costs before its steps."""

    def __init__(self, kind: Callable[..., nn.RNNBase], width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(kind(width, width, batch_first=True) for _ in range(LAYERS // 2))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens).repeat(ROWS, 1, 1)
        for layer in self.layers:
            hidden = hidden + layer(hidden)[0]
        return hidden.float().mean()


class HandCell(nn.Module):
    """A gated cell written out: few ops on local variables, over and over."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, 2 * WIDTH))
        self.bias = nn.Parameter(torch.zeros(2 * WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, state, states = self.weight, self.bias, torch.zeros_like(x[:, 0]), []
        for moment in range(x.shape[1]):
            gate, change = (x[:, moment].repeat(1, 2) + state @ weight + bias).chunk(2, dim=-1)
            gate = torch.sigmoid(gate)
            state = gate * state + (1 - gate) * torch.tanh(change)
            states.append(state)
        return torch.stack(states, dim=1)


class CalledCell(nn.Module):
    """One that calls modules in each of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.memory, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = self.norm(state + F.silu(self.input(token) + self.memory(state)))
            states.append(state)
        return torch.stack(states, dim=1)


class HandScan(nn.Module):
    """A weighted mean of what was so far, written out: nothing but plain ops."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rate, total, states = torch.exp(-torch.exp(self.rate)), torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            total = rate * total + token
            states.append(total * torch.rsqrt(1 + total.square()))
        return torch.stack(states, dim=1)


class Loop(nn.Module):
    """A cell over `LOOP_REPEATS` times `TOKENS` steps."""

    def __init__(self, cell: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(VOCABULARY, WIDTH), cell(), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens.repeat(1, LOOP_REPEATS)
        return F.cross_entropy(self.head(self.cell(self.embed(tokens))).flatten(0, 1).float(), tokens.flatten())


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel:
    """One model and how it is trained."""

    build: Callable[[], nn.Module]
    is_text: bool = True
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    micro_batches: int = 1
    clip_grad_norm: float | None = None

    def inputs(self, device: str) -> dict[str, Tensor]:
        if self.is_text:
            return {"tokens": torch.zeros(2, TOKENS, dtype=torch.int64, device=device)}
        return {
            "images": torch.zeros(2, 3, 8, 8, dtype=self.dtype, device=device),
            "labels": torch.zeros(2, dtype=torch.int64, device=device),
        }


def small_models() -> dict[str, SmallModel]:
    """All, by name; checkpointed ones have the plain model beside them."""
    bf16 = torch.bfloat16
    layer = partial(nn.TransformerEncoderLayer, WIDTH, HEADS, 2 * WIDTH, batch_first=True)
    plain = partial(DecoderBlock, PlainNorm)
    fused = partial(DecoderBlock, nn.RMSNorm)
    flat_text = partial(Text, FlatBlock)
    adamw: Any = torch.optim.AdamW
    return {
        "decoder": SmallModel(build=partial(Text, plain), dtype=bf16),
        "decoder autocast": SmallModel(build=partial(Text, plain), autocast=bf16),
        "decoder checkpointed": SmallModel(build=partial(Text, plain, True), dtype=bf16),
        "fused norms": SmallModel(build=partial(Text, fused), dtype=bf16),
        "fused norms checkpointed": SmallModel(build=partial(Text, fused, True), dtype=bf16),
        "flat": SmallModel(build=flat_text, dtype=bf16),
        "flat autocast": SmallModel(build=flat_text, autocast=bf16),
        "flat checkpointed": SmallModel(build=partial(Text, FlatBlock, True), dtype=bf16),
        "flat autocast checkpointed": SmallModel(build=partial(Text, FlatBlock, True), autocast=bf16),
        "flat reentrant": SmallModel(build=partial(Text, FlatBlock, True, True), dtype=bf16),
        "flat autocast reentrant": SmallModel(build=partial(Text, FlatBlock, True, True), autocast=bf16),
        "fused norms reentrant": SmallModel(build=partial(Text, fused, True, True), dtype=bf16),
        "encoder": SmallModel(build=partial(Text, layer)),
        "encoder checkpointed": SmallModel(build=partial(Text, layer, True)),
        "library decoder": SmallModel(build=library_decoder, dtype=bf16),
        "library decoder autocast": SmallModel(build=library_decoder, autocast=bf16),
        "library decoder checkpointed": SmallModel(build=partial(library_decoder, True), dtype=bf16),
        "library encoder": SmallModel(build=library_encoder),
        "library encoder autocast": SmallModel(build=library_encoder, autocast=bf16),
        "library encoder checkpointed": SmallModel(build=partial(library_encoder, True)),
        "library encoder autocast checkpointed": SmallModel(build=partial(library_encoder, True), autocast=bf16),
        "images": SmallModel(build=Images, is_text=False),
        "images autocast": SmallModel(build=Images, is_text=False, autocast=bf16),
        "windows": SmallModel(build=partial(Text, WindowBlock)),
        "windows autocast": SmallModel(build=partial(Text, WindowBlock), autocast=bf16),
        "images checkpointed": SmallModel(build=partial(Images, True), is_text=False),
        "lstm": SmallModel(build=partial(Recurrent, nn.LSTM, 512, 2, True, 4)),
        "lstm one way": SmallModel(build=partial(Recurrent, nn.LSTM, 1024, 1, False, 12), dtype=bf16),
        "lstm short": SmallModel(build=partial(Recurrent, nn.LSTM, 512, 2, False, 1), dtype=bf16),
        "gru": SmallModel(build=partial(Recurrent, nn.GRU, 512, 2, True, 4), dtype=bf16),
        "gru one way": SmallModel(build=partial(Recurrent, nn.GRU, 256, 1, False, 12)),
        "gru long": SmallModel(build=partial(Recurrent, nn.GRU, 512, 1, True, 10), dtype=bf16),
        "lstm stack": SmallModel(build=partial(RecurrentStack, nn.LSTM, 256)),
        "gru stack": SmallModel(build=partial(RecurrentStack, nn.GRU, 512), dtype=bf16),
        "cell": SmallModel(build=partial(Loop, HandCell)),
        "cell autocast": SmallModel(build=partial(Loop, HandCell), autocast=bf16),
        "called cell": SmallModel(build=partial(Loop, CalledCell)),
        "scan": SmallModel(build=partial(Loop, HandScan), dtype=bf16),
        "flat accumulated": SmallModel(build=flat_text, dtype=bf16, micro_batches=2),
        "fused norms accumulated": SmallModel(build=partial(Text, fused), dtype=bf16, micro_batches=2),
        "flat clipped": SmallModel(build=flat_text, dtype=bf16, clip_grad_norm=1.0),
        "flat fused adamw": SmallModel(build=flat_text, dtype=bf16, optimizer=partial(adamw, fused=True)),
        "flat lone adamw": SmallModel(build=flat_text, dtype=bf16, optimizer=partial(adamw, foreach=False)),
        "flat sgd": SmallModel(build=flat_text, dtype=bf16, optimizer=partial(torch.optim.SGD, lr=0.1)),
        "flat adafactor": SmallModel(build=flat_text, dtype=bf16, optimizer=torch.optim.Adafactor),
    }
