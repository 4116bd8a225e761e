"""Rules for cuDNN's recurrent layers: a product and a pointwise kernel per step, or one kernel for all steps.

In: an `Op`. Out: `Work`s, the most special rule first. Torch asks cuDNN for kernels that keep the weights where states
are narrow (RNN.cpp): a processor takes one sequence, or eight where tensor cores compute, loads the weights and goes
through all steps; only then does it take the next. Biases' gradients are summed over all sequences and steps by a
kernel that hardly depends on the width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil

from trainfit.cost.work import (
    VECTOR_BYTES,
    Work,
    argument,
    base_name,
    item_bytes,
    log,
    parts_of,
    resizable,
    row_alignment,
    tensors_of,
    traffic_bytes,
)
from trainfit.records import Op, TensorRef

RECURRENT = frozenset(("_cudnn_rnn", "_cudnn_rnn_backward"))
_TOPS = (13, 11, 8)
"""log2 of the largest batch, state and number of steps that are measured, about."""
_MODES: dict[object, str] = {0: "tanh", 1: "tanh", 2: "lstm", 3: "gru"}
"""cuDNN's: each has kernels of its own, but for the first, relu, which takes as long as tanh."""
_GATES = {"lstm": 4, "gru": 3}
_PASSES = 24
"""How often a step's state is read or written for all gates, about."""
_SUMMED = {("lstm", 2): 100, ("lstm", 4): 64, ("gru", 2): 32, ("gru", 4): 16}
"""How many steps of a sequence the biases' gradients are summed over in the time of a round, by bytes of a number."""
_FUSED, _AROUND = " fused", (4, 12)
"""How rules end of kernels by which cuDNN goes through all steps at once, and what is launched before and after, in
either pass, in the time of a kernel that does nothing."""
_ODD = " odd"
"""And of products whose rows begin between two vectors: those of halves take three times as long."""
_FUSED_WIDTHS = (192, 128)
"""The widest states that these kernels keep the weights of, in either pass; twice as wide without gates."""
_STATE_TILE = 32
"""Their states are as wide as a multiple of this."""
_LOADED_BYTES = 7000
"""Weights that are loaded in a round, before the first step."""
_TENSOR_ROWS = 8
"""Sequences that a block takes at a time if tensor cores compute; else it takes one."""
_NARROW, _SHARED_BYTES = (32, 64), 400_000
"""The widest states of which a processor has several blocks at a time, and on tensor cores; two processors share
weights of more than so many bytes."""
_STEP, _TENSOR_STEP = (0.45, 250_000, 200_000, 60_000), (1.4, 120_000, 0, 10**9)
"""What a step takes, in rounds: at all, for so many bytes of weights, and, of those beyond what registers hold, for so
many that are read again."""


@dataclass(frozen=True, slots=True)
class _Network:
    """What an op says of the layers it runs."""

    name: str
    mode: str
    data: TensorRef
    weights: tuple[TensorRef, ...]
    batch: int
    width: int
    steps: int
    num_layers: int
    chains: int
    """Directions."""
    is_plain: bool
    """Whether all sequences are equally long, and states are not projected; else torch asks for no special kernels."""

    @property
    def is_backward(self) -> bool:
        return self.name.endswith("_backward")

    @property
    def fused_size(self) -> int:
        """Bytes of a weight in the kernels that go through all steps at once: two where tensor cores compute."""
        is_wide = self.width % _STATE_TILE == 0 if self.is_backward else self.width >= _STATE_TILE
        is_whole = self.batch % _TENSOR_ROWS == 0 and is_wide
        return 2 if self.data.dtype == "float16" and is_whole else 4

    @property
    def special_rules(self) -> tuple[str, ...]:
        """Of the kernels that keep weights for all steps, if torch asks cuDNN for them (RNN.cpp)."""
        if not self.is_plain:
            return ()
        widest = _FUSED_WIDTHS[self.is_backward] * (1 if self.mode in _GATES else 2)
        if self.data.dtype != "bfloat16" and self.width <= widest:
            return (f"{self.name} {self.mode} {self.fused_size}{_FUSED}",)
        is_one_chain = self.mode != "gru" and self.num_layers == self.chains == 1
        is_aligned = self.batch % 8 == self.width % 128 == self.data.shape[-1] % 128 == 0
        keeps = is_one_chain and is_aligned and self.batch <= 128 and self.width <= 1024
        return (f"{self.name} {self.mode} 2 persistent",) if self.data.dtype == "float16" and keeps else ()


def recurrent(op: Op, num_sms: int) -> tuple[Work, ...]:
    network = _read(op)
    own = (network.batch, network.width, network.steps)
    size, is_backward = item_bytes(network.data.dtype), network.is_backward
    per_square = sum(tensor.numel for tensor in network.weights) / network.width**2
    moved = [(tensor, (0, 1, 2)) for tensor in (network.data, *op.outputs)]
    parts = parts_of([*moved, *((tensor, (1, 1)) for tensor in network.weights)], own)
    flops_dtype = "tf32" if network.data.dtype == "float32" else network.data.dtype  # as for convolutions
    chains = network.num_layers * network.chains

    def work(rule: str, *sizes: int) -> Work:
        batch, width, steps = sizes
        flops = round(2 * batch * steps * per_square * width**2) * (2 if is_backward else 1)
        walks = chains * steps
        nbytes = traffic_bytes(parts, sizes) + _PASSES * walks * batch * width * size
        mode = network.mode if network.mode in _GATES else "lstm"
        kernels, rounds = 2 * walks, walks * batch // _SUMMED[mode, size] if is_backward else 0
        is_fused = rule.endswith(_FUSED)
        if is_fused:
            kernels = network.num_layers * _AROUND[is_backward]
            rounds += _fused_rounds(network, num_sms, *sizes)
        coordinates = log(batch, width, chains)
        if is_fused:
            coordinates = log(batch, -(-width // _STATE_TILE) * _STATE_TILE, chains, steps**0.3)
        return Work(rule, coordinates, flops, flops_dtype, nbytes, kernels, is_serial=True, rounds=rounds)

    kinds, item_sizes = dict.fromkeys((network.mode, "lstm")), dict.fromkeys((size, 4, 2))
    plain = [f"{network.name} {kind} {size}" for kind in kinds for size in item_sizes]
    is_odd = row_alignment(network.width, network.data.dtype) < VECTOR_BYTES
    rules = (*network.special_rules, *([f"{plain[0]}{_ODD}"] if is_odd else []), *plain)
    # Sequences come in whole waves, between which powers of two say nothing, and a wider state may be even.
    alone = (_FUSED, _ODD)
    return tuple(
        work(rule, *own) if rule.endswith(alone) else resizable(partial(work, rule), own, _TOPS) for rule in rules
    )


def _read(op: Op) -> _Network:
    name = base_name(op)
    data = tensors_of(op.args)[0]
    first = 10 if name.endswith("_backward") else 6
    width, projected, layers = (argument(op, first + place, "", 1) for place in (1, 2, 3))
    batch_first, both, packed = (argument(op, first + place, "", ()) for place in (4, 7, 8))
    batch, steps = data.shape[:2] if batch_first else data.shape[1::-1]
    if isinstance(packed, tuple) and packed:  # rows of all steps, and of each step how many sequences have it
        batch, steps = max(1, round(data.shape[0] / len(packed))), len(packed)
    return _Network(
        name=name,
        mode=_MODES.get(argument(op, first, "", 2), "lstm"),
        data=data,
        weights=tuple(next(tensors_of(value) for value in op.args if isinstance(value, tuple))),
        batch=batch,
        width=width if isinstance(width, int) else 1,
        steps=steps,
        num_layers=layers if isinstance(layers, int) else 1,
        chains=2 if both else 1,
        is_plain=not packed and not projected,
    )


def _fused_rounds(network: _Network, num_sms: int, batch: int, width: int, steps: int) -> int:
    """How long kernels take that keep the weights: a step at a time, and of weights that do not fit a processor's
    registers the rest is read again."""
    width = -(-width // _STATE_TILE) * _STATE_TILE
    is_tensor = network.fused_size == 2
    weight_bytes = _GATES.get(network.mode, 1) * width**2 * network.fused_size
    base, step_bytes, held, read_bytes = _TENSOR_STEP if is_tensor else _STEP
    per_step = base + weight_bytes / step_bytes + max(0, weight_bytes - held) / read_bytes
    if is_tensor:
        at_once = _TENSOR_ROWS * (2.0 if width <= _NARROW[1] else 1.0)
    else:
        at_once = 3.0 if width <= _NARROW[0] else 0.5 if weight_bytes > _SHARED_BYTES else 1.0
    waves = ceil(batch / (num_sms * at_once))
    chains = network.num_layers * network.chains
    return round(waves * chains * (steps * per_step + weight_bytes / _LOADED_BYTES))
