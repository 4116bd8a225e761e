"""cuDNN's recurrent networks: the workspace of each call; and the cells that torch runs step by step.

cuDNN does not say these sizes without a GPU; on an H200 it was asked for those of 110,000 networks (cuDNN 9.15 and
9.19, benchmarks/probe_recurrent.py): plain ones, LSTMs and GRUs of 1 to 4 layers, one or two directions, fp32 and
halves, narrow and wide. The terms below give 95% to the byte and all but two within 512 bytes, since parts of a
workspace are rounded. Where states are narrow torch asks for kernels that keep the weights through all steps, which
take more; cuDNN has none of bfloat16. Packed sequences were not asked for. Source of the calls: RNN.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.reductions import summed
from trainfit.gpus.hidden.tensors import (
    Rule,
    freed,
    has_strides,
    integers,
    item_bytes,
    nbytes,
    round_up,
    tensor_argument,
)
from trainfit.records import LAST_OUTPUT, OUTPUT, Op, TensorRef

_LSTM, _GRU = 2, 3  # cuDNN's modes
_GATES = {0: 1, 1: 1, _LSTM: 4, _GRU: 3}
_LIBRARY_BYTES = 8 * 2**20  # for the products of each layer and direction
_STEPS_AT_ONCE = 256
"""The gradients of gates of so many steps are computed together by networks of one direction."""
_NARROW = {"forward": 192, "backward": 128}
"""The widest states whose weights are kept, with gates; without, twice as wide."""
_KEPT_STATES = {_LSTM: 12, _GRU: 14}
"""How many numbers per unit and step kernels that keep weights take besides; of networks without gates nine."""
_WIDE, _MOST_SEQUENCES, _FEWEST_PROCESSORS = 1024, 128, 98


@dataclass(frozen=True, slots=True)
class _Network:
    """What decides how large workspaces are."""

    mode: int
    dtype: str
    steps: int
    batch: int
    width: int
    hidden: int
    layers: int
    directions: int
    has_dropout: bool
    is_packed: bool

    @property
    def gates(self) -> int:
        return _GATES[self.mode]

    def keeps_weights(self, narrow: int, gpu: Gpu) -> bool:
        """Does torch ask for kernels that do, and has cuDNN some?"""
        if self.is_packed or self.dtype not in ("float32", "float16"):
            return False
        if self.hidden <= narrow * (1 if self.gates > 1 else 2):
            return True
        is_one_chain = self.mode != _GRU and self.layers == self.directions == 1
        is_aligned = self.batch % 8 == self.hidden % 128 == self.width % 128 == 0
        is_small = self.hidden <= _WIDE and self.batch <= _MOST_SEQUENCES
        is_able = gpu.compute_capability[0] >= 8 and gpu.num_sms >= _FEWEST_PROCESSORS
        return self.dtype == "float16" and is_one_chain and is_aligned and is_small and is_able


def _workspace_bytes(network: _Network, narrow: int, gpu: Gpu) -> int:
    """The weights once more, the library's own, and the larger of what forward and what backward keep of all steps."""
    keeps = network.keeps_weights(narrow, gpu)
    per_sequence = max(_forward_numbers(network, keeps), _backward_numbers(network, keeps))
    layers, directions, hidden = network.layers, network.directions, network.hidden
    inputs = network.width + (layers - 1) * directions * hidden
    weights = network.gates * hidden * directions * (inputs + layers * hidden)
    own = layers * directions * _LIBRARY_BYTES + round_up(8 * network.batch, 32) + 256
    return round_up((weights + network.batch * per_sequence) * item_bytes(network.dtype), 32) + own


def _forward_numbers(network: _Network, keeps_weights: bool) -> int:
    """Inputs and outputs of a layer, and states; layers of one direction run ahead of each other by some steps."""
    layers, width, hidden, steps = network.layers, network.width, network.hidden, network.steps
    widest, is_lstm = max(width, hidden), network.mode == _LSTM
    kept = steps * _KEPT_STATES.get(network.mode, 9) * hidden if keeps_weights else 0
    if network.directions == 2:
        per_step = (6 if layers == 1 else 8) * hidden + 2 * width + 4 * widest
        return steps * per_step + (26 if is_lstm else 14) * layers * hidden + kept
    states = ((11 if is_lstm else 5) + keeps_weights) * layers
    if layers == 1:
        states += steps
    elif keeps_weights:
        states += 2 * steps
    else:
        chunk = _chunk_steps(steps, network.batch)
        states += min(steps, layers * chunk + max(8, chunk))
    return steps * (2 * hidden + 2 * width + widest) + states * hidden + kept


def _chunk_steps(steps: int, batch: int) -> int:
    """How many steps a layer of one direction does before the next one may begin."""
    if batch <= 8:
        return 32 if batch == 1 else 16
    if steps > 128 or batch <= 16:
        return 8
    return 4 if batch <= 96 else 2


def _backward_numbers(network: _Network, keeps_weights: bool) -> int:
    """The gradients of the gates of one layer, and of its input; plain networks have no gates."""
    gates, width, hidden, steps = network.gates, network.width, network.hidden, network.steps
    if gates == 1:
        return 0
    is_lstm, kept = network.mode == _LSTM, steps * 4 * gates * hidden if keeps_weights else 0
    if network.directions == 2:
        states = (24 if is_lstm else 14) - 6 * keeps_weights
        return steps * ((2 * gates + 6) * hidden + width) + states * network.layers * hidden + kept
    states = (10 if is_lstm else 5) - 2 * keeps_weights
    dropped = hidden if network.has_dropout else 0
    at_once = steps if keeps_weights else min(steps, _STEPS_AT_ONCE)
    return steps * (hidden + width + dropped) + (at_once * gates + states * network.layers) * hidden + kept


def _read(op: Op, first: int) -> _Network:
    """`first` is the place of the mode among the arguments."""
    x, hx = tensor_argument(op, 0), tensor_argument(op, 4)
    mode, hidden = integers(op.args[first : first + 2])
    directions = 1 + bool(op.args[first + 7])
    batch, width = hx.shape[1], x.shape[-1]
    return _Network(
        mode,
        x.dtype,
        steps=x.numel // width // batch,
        batch=batch,
        width=width,
        hidden=hidden,
        layers=hx.shape[0] // directions,
        directions=directions,
        has_dropout=bool(op.args[first + 5]),
        is_packed=bool(op.args[first + 8]),
    )


def _input_copies(x: TensorRef, is_batch_first: bool) -> tuple[int, ...]:
    """cuDNN reads time first, each step's sequences one after the other."""
    in_time = (1, 0, *range(2, len(x.shape))) if is_batch_first else range(len(x.shape))
    return () if has_strides(x, in_time) else (nbytes(x),)


def _forward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """After the results comes the buffer of weights that were not flattened, the workspace, and what backward needs."""
    x = tensor_argument(op, 0)
    copies = _input_copies(x, bool(op.args[10]))
    num_states = 1 + isinstance(op.args[5], TensorRef)
    given = op.args[1] if isinstance(op.args[1], tuple) else ()
    weights = {weight.storage for weight in given if isinstance(weight, TensorRef)}
    outputs = ((OUTPUT,) * (1 + num_states)) + ((LAST_OUTPUT,) if len(weights) > 1 else ())
    return (*copies, *outputs, _workspace_bytes(_read(op, 6), _NARROW["forward"], gpu), OUTPUT)


def _backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Gradients of the inputs, then of the weights, each with a workspace; absent state gradients are zeros."""
    x, hx, gradient = tensor_argument(op, 0), tensor_argument(op, 4), tensor_argument(op, 7)
    is_batch_first = bool(op.args[14])
    num_states = 1 + isinstance(op.args[5], TensorRef)
    missing = sum(op.args[index] is None for index in (8, 9)[:num_states])
    x_copy, gradient_copy = _input_copies(x, is_batch_first), _input_copies(gradient, is_batch_first)
    workspace = _workspace_bytes(_read(op, 10), _NARROW["backward"], gpu)
    before = (*(nbytes(hx),) * missing, *x_copy, *gradient_copy)
    between = (*(-n for n in gradient_copy), *(-n for n in x_copy), *x_copy)
    return (*before, *(OUTPUT,) * (1 + num_states), workspace, -workspace, *between, OUTPUT, workspace)


def _cell(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """What backward needs is made before the states (native/cuda/RNN.cu)."""
    return (LAST_OUTPUT, OUTPUT, OUTPUT)


def _lstm_cell_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """RNN.cu: `grad_gates.sum(0)` is staged."""
    gates = tensor_argument(op, 4)
    return summed(gates, gates.shape, 0, gpu)[1:] if op.args[5] else ()


def _gru_cell_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """RNN.cu: the sums of the gradients of both sides' gates, three of five states, are staged one by one."""
    states = tensor_argument(op, 1)
    sums = summed(states, (states.shape[0], states.shape[1] // 5 * 3), 0, gpu)[1:]
    return (OUTPUT, *sums, *freed(sums), OUTPUT, *sums) if op.args[2] and sums else ()


RULES: dict[str, Rule] = {
    "aten._thnn_fused_lstm_cell.default": _cell,
    "aten._thnn_fused_gru_cell.default": _cell,
    "aten._thnn_fused_lstm_cell_backward_impl.default": _lstm_cell_backward,
    "aten._thnn_fused_gru_cell_backward.default": _gru_cell_backward,
    "aten._cudnn_rnn.default": _forward,
    "aten._cudnn_rnn_backward.default": _backward,
}
