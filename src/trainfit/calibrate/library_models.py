"""Small models written as model libraries write theirs, which costs the CPU more than the ops that are run.

Settings are looked up in a config by name at every turn, options travel through every layer as keyword arguments,
attention is chosen from a table of functions, masks and positions are made anew in every step, dropout and activations
are modules, the output is a record. `LibraryDecoder` is of the llama kind, `LibraryEncoder` of the BERT kind; both take
`tokens` and return a scalar.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial, wraps
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

LAYERS = 8


class Config:
    """Settings; an old name leads to the new one."""

    renamed: ClassVar = {"n_embd": "hidden_size", "n_head": "num_heads"}

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)

    def __getattribute__(self, name: str) -> Any:
        if name != "renamed" and name in super().__getattribute__("renamed"):
            name = super().__getattribute__("renamed")[name]
        return super().__getattribute__(name)


def _config() -> Config:
    return Config(
        hidden_size=64, num_heads=2, head_dim=32, intermediate_size=128, num_layers=LAYERS, vocab_size=128,
        max_length=64, dropout=0.1, hidden_act="gelu", norm_eps=1e-6, attention="fused", return_record=True,
        base=10000.0,
    )  # fmt: skip


@dataclass
class Output(OrderedDict[str, Any]):
    """Results by name; those that are None are not in it."""

    loss: Tensor | None = None
    logits: Tensor | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value


def as_record(forward: Callable[..., Output]) -> Callable[..., Any]:
    """Lets the caller, or the config, ask for a tuple instead."""

    @wraps(forward)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        wants_record = kwargs.pop("return_record", None)
        if wants_record is None:
            wants_record = getattr(self.config, "return_record", True)
        output = forward(self, *args, **kwargs)
        return output if wants_record else tuple(output.values())

    return wrapped


def fused_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    groups = getattr(module, "num_groups", 1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if is_causal is None:
        is_causal = query.shape[2] > 1 and attention_mask is None and getattr(module, "is_causal", True)
    found = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, is_causal=is_causal
    )
    return found.transpose(1, 2).contiguous(), None


ATTENTIONS: dict[str, Callable[..., tuple[Tensor, None]]] = {"fused": fused_attention}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "silu": nn.SiLU}


class Layer(nn.Module):
    """Calls itself through checkpointing when it is told to."""

    checkpointed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.checkpointed and self.training:
            return checkpoint(partial(super().__call__, **kwargs), *args, use_reentrant=False)
        return super().__call__(*args, **kwargs)


class RootNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, hidden: Tensor) -> Tensor:
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.eps)
        return self.weight * hidden.to(dtype)


class Rotary(nn.Module):
    """Angles of positions, in fp32."""

    inverse: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
        self.register_buffer("inverse", 1.0 / config.base**exponents, persistent=False)

    @torch.no_grad()
    def forward(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        inverse = self.inverse[None, :, None].float().expand(positions.shape[0], -1, 1)
        with torch.autocast(device_type=hidden.device.type, enabled=False):
            angles = (inverse @ positions[:, None, :].float()).transpose(1, 2)
            both = torch.cat((angles, angles), dim=-1)
            cos, sin = both.cos(), both.sin()
        return cos.to(dtype=hidden.dtype), sin.to(dtype=hidden.dtype)


def turned(x: Tensor) -> Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, dim: int = 1) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(dim), sin.unsqueeze(dim)
    return (query * cos) + (turned(query) * sin), (key * cos) + (turned(key) * sin)


class SelfAttention(nn.Module):
    def __init__(self, config: Config, bias: bool, is_causal: bool) -> None:
        super().__init__()
        self.config, self.is_causal, self.num_groups = config, is_causal, 1
        self.scaling, self.dropout = config.head_dim**-0.5, nn.Dropout(config.dropout)
        size = config.num_heads * config.head_dim
        self.query, self.key, self.value, self.out = (nn.Linear(config.n_embd, size, bias=bias) for _ in range(4))

    def forward(
        self, hidden: Tensor, attention_mask: Tensor | None = None, rotation: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        shape = (*hidden.shape[:-1], -1, self.config.head_dim)
        query = self.query(hidden).view(shape).transpose(1, 2)
        key = self.key(hidden).view(shape).transpose(1, 2)
        value = self.value(hidden).view(shape).transpose(1, 2)
        if rotation is not None:
            query, key = rotated(query, key, *rotation)
        attend = ATTENTIONS.get(self.config.attention, fused_attention)
        found, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=0.0,
            scaling=self.scaling,
            is_causal=self.is_causal,
            **kwargs,
        )
        found = found.reshape(*hidden.shape[:-1], -1).contiguous()
        return self.out(found), weights


class GatedFeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, size = config, config.intermediate_size
        self.gate, self.up = nn.Linear(config.n_embd, size, bias=False), nn.Linear(config.n_embd, size, bias=False)
        self.down, self.act = nn.Linear(size, config.n_embd, bias=False), ACTIVATIONS["silu"]()

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.down(self.act(self.gate(hidden)) * self.up(hidden))
        return found


class DecoderLayer(Layer):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention, self.feed_forward = SelfAttention(config, bias=False, is_causal=True), GatedFeedForward(config)
        self.first, self.second = (RootNorm(config.hidden_size, config.norm_eps) for _ in range(2))

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        residual = hidden
        hidden = self.first(hidden)
        hidden, _ = self.attention(hidden=hidden, attention_mask=attention_mask, **kwargs)
        hidden = residual + hidden
        residual = hidden
        hidden = self.second(hidden)
        hidden = self.feed_forward(hidden)
        return residual + hidden


class AddedNorm(nn.Module):
    """A projection, dropout, and the norm of what it is added to."""

    def __init__(self, size: int, config: Config) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(size, config.hidden_size), nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        hidden = self.dropout(self.dense(hidden))
        found: Tensor = self.norm(hidden + residual)
        return found


class EncoderLayer(Layer):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = SelfAttention(config, bias=True, is_causal=False)
        self.attention_output = AddedNorm(config.hidden_size, config)
        self.up, self.act = nn.Linear(config.hidden_size, config.intermediate_size), ACTIVATIONS[config.hidden_act]()
        self.output = AddedNorm(config.intermediate_size, config)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        found, _ = self.attention(hidden, attention_mask=attention_mask, **kwargs)
        attended = self.attention_output(found, hidden)
        return self.output(self.act(self.up(attended)), attended)


def next_token_loss(logits: Tensor, labels: Tensor, vocab_size: int, ignored: int = -100, **kwargs: Any) -> Tensor:
    logits = logits.float()
    labels = F.pad(labels, (0, 1), value=ignored)[..., 1:].contiguous()
    logits, labels = logits.view(-1, vocab_size), labels.view(-1).to(logits.device)
    return F.cross_entropy(logits, labels, ignore_index=ignored, reduction="mean")


class Body(nn.Module):
    """Embeddings and layers."""

    def __init__(self, config: Config, layer: Callable[[Config], Layer], is_decoder: bool, checkpointed: bool) -> None:
        super().__init__()
        self.config, self.embed = config, nn.Embedding(config.vocab_size, config.hidden_size)
        layers = [layer(config) for _ in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        self.rotary = Rotary(config) if is_decoder else None
        self.places = None if is_decoder else nn.Embedding(config.max_length, config.hidden_size)
        self.norm, self.dropout = nn.LayerNorm(config.hidden_size, eps=config.norm_eps), nn.Dropout(config.dropout)
        for one in layers:
            one.checkpointed = checkpointed

    @as_record
    def forward(
        self, tokens: Tensor, attention_mask: Tensor | None = None, positions: Tensor | None = None, **kwargs: Any
    ) -> Output:
        hidden = self.embed(tokens)
        if positions is None:
            positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        if attention_mask is not None:
            attention_mask = attention_mask[:, None, None, :].to(torch.bool)
        rotation = None
        if self.rotary is not None:
            rotation = self.rotary(hidden, positions=positions)
        elif self.places is not None:
            hidden = self.dropout(self.norm(hidden + self.places(positions)))
        for layer in self.layers[: self.config.num_layers]:
            hidden = layer(hidden, attention_mask=attention_mask, rotation=rotation, **kwargs)
        return Output(logits=self.norm(hidden))


class LibraryModel(nn.Module):
    """The body, a head and a loss."""

    def __init__(self, layer: Callable[[Config], Layer], is_decoder: bool, checkpointed: bool = False) -> None:
        super().__init__()
        self.config = _config()
        self.body = Body(self.config, layer, is_decoder, checkpointed)
        self.head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)

    @as_record
    def predict(self, tokens: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Output:
        output = self.body(tokens=tokens, **kwargs)
        logits = self.head(output.logits)
        loss = next_token_loss(logits, labels, self.config.vocab_size, **kwargs) if labels is not None else None
        return Output(loss=loss, logits=logits)

    def forward(self, tokens: Tensor) -> Tensor:
        loss: Tensor = self.predict(tokens, labels=tokens).loss
        return loss


library_decoder = partial(LibraryModel, DecoderLayer, True)
library_encoder = partial(LibraryModel, EncoderLayer, False)
