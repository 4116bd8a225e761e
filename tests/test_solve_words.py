"""Options in words: what a person calls the ops of a block, whoever wrote the block."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainfit.apply.record import record_block
from trainfit.ghost import ghost_gpu
from trainfit.records import BlockProgram
from trainfit.solve import build_graph, frontier, summarize
from trainfit.solve.kinds import kinds_of

Rotate = Callable[[Tensor, Tensor, Tensor], Tensor]


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As GPT-J has it: neighbours are turned."""
    swapped = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cos + swapped * sin


def rotate_parts(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Both halves turned by formula, then joined."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, :4], sin[:, :4]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotate_some(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As GPT-NeoX has it: a part of each head is turned."""
    first, second = x[..., :4].chunk(2, dim=-1)
    turned = x[..., :4] * cos[:, :4] + torch.cat((-second, first), dim=-1) * sin[:, :4]
    return torch.cat((turned, x[..., 4:]), dim=-1)


def rotate_complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.view_as_complex(cos.unflatten(-1, (-1, 2)))).flatten(-2)


class Block(nn.Module):
    """A llama-like block whose positions are turned by `rotate`."""

    def __init__(self, rotate: Rotate) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("cos", torch.ones(4, 8))
        self.register_buffer("sin", torch.ones(4, 8))
        self.rotate = rotate

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unsqueeze(1).chunk(3, dim=-1)  # one head
        q, k = self.rotate(q, self.cos, self.sin), self.rotate(k, self.cos, self.sin)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).squeeze(1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def recorded(module: nn.Module, *shape: int) -> BlockProgram:
    return record_block(module, (torch.zeros(*shape, requires_grad=True),), {})


def on_gpu(rotate: Rotate) -> BlockProgram:
    """The heads' attention is one op there."""
    with ghost_gpu("h200"), torch.device("cuda"):
        block = Block(rotate).bfloat16() if rotate is not rotate_complex else Block(rotate)
        x = torch.zeros(2, 4, 8, dtype=block.cos.dtype, requires_grad=True)
    with ghost_gpu("h200"):
        return record_block(block, (x,), {})


@pytest.mark.parametrize("rotate", [rotate_half, rotate_pairs, rotate_parts, rotate_some, rotate_complex])
def test_rope_is_called_rope_however_it_is_written(rotate: Rotate) -> None:
    kinds = kinds_of(on_gpu(rotate))
    gate = "silu\u00b7mul"
    expected = ["norms", "matmuls", "rope", "attention", "matmuls", "residual adds", "norms", "matmuls", gate]
    in_turn = [kind for before, kind in zip(["", *kinds], kinds, strict=False) if kind != before]
    assert in_turn == [*expected, "matmuls", gate, "matmuls", "residual adds"]
    assert kinds.count(gate) == 2


def test_a_join_with_a_negative_that_nothing_turns_is_no_rope() -> None:
    class Crelu(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(torch.cat((-x, x), dim=-1))

    assert kinds_of(recorded(Crelu(), 4, 8)) == ["elementwise", "concatenations", "relu"]


def test_a_spelled_out_activation_is_one_thing_and_a_spelled_out_norm_too() -> None:
    class Gelu(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x**3)))

    class RmsNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input_layernorm, self.linear, self.act = RmsNorm(), nn.Linear(8, 8), Gelu()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.linear(self.input_layernorm(x)))

    assert kinds_of(recorded(Mlp(), 4, 8)) == ["norms"] * 5 + ["matmuls"] + ["activation"] * 8


def test_options_say_what_is_recomputed_and_kept_of_what_backward_needs() -> None:
    """The last matmul is nobody's: with all others recomputed the text says all matmuls."""
    program = on_gpu(rotate_half)
    graph = build_graph(program, [1] * len(program.ops), frozenset(ref.storage for ref in program.inputs))
    options = frontier(graph)
    texts = [summarize(program, graph, option) for option in options]
    assert texts[0] == "keep everything"
    smallest = min(range(len(options)), key=lambda index: options[index].kept_bytes)
    recomputed, kept = texts[smallest].removeprefix("recompute ").split("; keep ")
    assert recomputed.split(", ")[:3] == ["norms", "matmuls", "rope"]
    assert kept == "the inputs only"
