"""Small models whose gradients under a plan are compared bit for bit with those without one; all on the CPU."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from trainfit.apply import apply_decisions, record_block
from trainfit.apply.executor import Handle
from trainfit.records import BlockDecision, BlockProgram


@dataclass(frozen=True)
class ZooCase:
    """A model, its blocks, and what it is called with."""

    build: Callable[[], nn.Module]
    blocks: tuple[str, ...]
    inputs: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], torch.Tensor] = lambda out: out.float().square().sum()
    autocast: bool = False


def mlp_block() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


class TransformerBlock(nn.Module):
    """Attention and an MLP with dropout everywhere, and a norm that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down, self.dropout = nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.proj(attended))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class ResidualConv(nn.Module):
    """Convolutions, batch norms and ReLUs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(h)) + x)


class InPlace(nn.Module):
    """In-place chains, writes into slices, and an in-place op on the block's own input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).mul_(2).relu_()
        buffer = torch.zeros_like(h)
        buffer[..., :4] = h[..., 4:]
        buffer[..., 4:].add_(h[..., :4].sin())
        x = x.clone()
        x += self.b(buffer).sigmoid_()
        return x.tanh_()


class WritesItsInput(nn.Module):
    """Overwrites what it is given, after the first linear has used it through a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x * 1.5).exp()
        x.add_(1)
        return (x * h).sin()


class Views(nn.Module):
    """Chunks, transposes, expands, strided slices and outputs that are views."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.a(x).chunk(2, dim=-1)
        mixed = (left.transpose(0, 1).contiguous() * right.transpose(0, 1).cos()).transpose(0, 1)
        row = mixed.mean(dim=1, keepdim=True).expand_as(mixed)
        return torch.cat([mixed[..., ::2], row[..., 1::2].exp()], dim=-1) * x


class Lora(nn.Module):
    """A frozen linear with a trained low-rank addition."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(8, 8), nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.base(x) + self.up(F.dropout(self.down(x), 0.2)))


class Rope(nn.Module):
    """Rotary positions by complex numbers: views with another element type."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.register_buffer("freqs", torch.polar(torch.ones(5, 4), torch.arange(20.0).view(5, 4)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(self.a(x).unflatten(-1, (4, 2)))
        turned = torch.view_as_real(pairs * self.freqs).flatten(-2)
        return (turned.exp() * x).tanh()


class Cube(torch.autograd.Function):
    """A custom function that saves an intermediate result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        square = x * x
        ctx.save_for_backward(x, square)
        return square * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        _x, square = ctx.saved_tensors
        return grads[0] * 3 * square


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(Cube.apply(self.a(x).sin()).cos())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, last = self.gru(x)
        return out * last.transpose(0, 1).sigmoid()


class Branches(nn.Module):
    """Several inputs and outputs, a shared parameter, and a checkpoint inside."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(8, 8), nn.RMSNorm(8)

    def forward(self, pair: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        left = self.a(pair["left"]).relu()
        right = torch.utils.checkpoint.checkpoint(lambda t: self.a(t).sin().exp(), pair["right"], use_reentrant=False)
        return {"left": self.norm(left * right), "right": (right - left).softmax(-1)}


class Stack(nn.Module):
    """Blocks in a row, behind a linear, so that their inputs have a history."""

    def __init__(self, make: Callable[[], nn.Module], first: nn.Module | None = None) -> None:
        super().__init__()
        self.first = first or nn.Linear(8, 8)
        self.layers = nn.ModuleList(make() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


class TwoStreams(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pair: Any = {"left": self.first(x), "right": x}
        for layer in self.layers:
            pair = layer(pair)
        return pair["left"] * pair["right"]


def stack(make: Callable[[], nn.Module], autocast: bool = False) -> ZooCase:
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(7))
    return ZooCase(lambda: Stack(make), ("layers.0", "layers.1"), (x,), autocast=autocast)


def images() -> ZooCase:
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(7))
    return ZooCase(lambda: Stack(ResidualConv, nn.Conv2d(3, 4, 1)), ("layers.0", "layers.1"), (x,))


def hugging_face(name: str) -> ZooCase:
    import transformers as hf

    tokens = torch.randint(0, 32, (2, 6), generator=torch.Generator().manual_seed(7))
    batch = {"input_ids": tokens, "labels": tokens}
    config: Any
    if name == "llama":
        config = hf.LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, use_cache=False, attention_dropout=0.1,
        )  # fmt: skip
        model, blocks = hf.LlamaForCausalLM, ("model.layers.0", "model.layers.1")
    elif name == "gpt2":
        config = hf.GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=4, n_positions=8, use_cache=False)
        config.loss_type = "ForCausalLM"
        model, blocks = hf.GPT2LMHeadModel, ("transformer.h.0", "transformer.h.1")
    else:
        config = hf.BertConfig(
            vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32
        )
        model, blocks = hf.BertForMaskedLM, ("bert.encoder.layer.0", "bert.encoder.layer.1")
    return ZooCase(lambda: model(config), blocks, (), batch, loss=lambda out: out.loss)


ZOO: dict[str, Callable[[], ZooCase]] = {
    "mlp": lambda: stack(mlp_block),
    "transformer": lambda: stack(TransformerBlock),
    "transformer, autocast": lambda: stack(TransformerBlock, autocast=True),
    "conv, batch norm": images,
    "in place": lambda: stack(InPlace),
    "writes its input": lambda: stack(WritesItsInput),
    "views": lambda: stack(Views),
    "lora": lambda: stack(Lora),
    "lora, autocast": lambda: stack(Lora, autocast=True),
    "complex rope": lambda: stack(Rope),
    "custom function": lambda: stack(Custom),
    "gru": lambda: stack(Recurrent),
    "branches": lambda: ZooCase(
        lambda: TwoStreams(Branches), ("layers.0", "layers.1"), (torch.linspace(-1, 1, 120).view(3, 5, 8),)
    ),
    "hf llama": functools.partial(hugging_face, "llama"),
    "hf gpt2": functools.partial(hugging_face, "gpt2"),
    "hf bert": functools.partial(hugging_face, "bert"),
}


@dataclass(frozen=True)
class Ready:
    """A case that has been run without a plan."""

    case: ZooCase
    model: nn.Module
    gradients: tuple[torch.Tensor, ...]
    programs: dict[str, BlockProgram]


@functools.cache
def ready(name: str) -> Ready:
    case = ZOO[name]()
    torch.manual_seed(0)
    model = case.build().train()
    return Ready(case, model, run(case, copy.deepcopy(model)), record_all(case, copy.deepcopy(model)))


def run(case: ZooCase, model: nn.Module) -> tuple[torch.Tensor, ...]:
    """One step: the loss, then gradients and buffers, with the same random numbers every time."""
    torch.manual_seed(1)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
        loss = case.loss(model(*case.inputs, **case.kwargs))
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return (loss.detach(), *gradients, *(b.clone() for b in model.buffers()), torch.rand(1))


def record_all(case: ZooCase, model: nn.Module) -> dict[str, BlockProgram]:
    programs: dict[str, BlockProgram] = {}

    def note(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        programs[name] = record_block(module, args, kwargs)

    for name in case.blocks:
        model.get_submodule(name).register_forward_pre_hook(functools.partial(note, name), with_kwargs=True)
    run(case, model)
    return programs


def holdable(program: BlockProgram) -> list[int]:
    """The storages that a decision may keep."""
    return sorted({ref.storage for ref in program.saved} | {storage for _, storage in program.submodule_outputs})


def keep_nothing(programs: Mapping[str, BlockProgram]) -> dict[str, BlockDecision]:
    return {name: BlockDecision(()) for name in programs}


def plan(model: nn.Module, decisions: Mapping[str, BlockDecision], strict: bool = True) -> Handle:
    return apply_decisions(model, decisions, strict=strict)


def assert_same(expected: tuple[torch.Tensor, ...], got: tuple[torch.Tensor, ...]) -> None:
    assert len(expected) == len(got)
    for position, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert torch.equal(a, b), f"tensor {position} differs"
