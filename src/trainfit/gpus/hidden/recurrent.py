"""cuDNN's recurrent networks: the workspace of each call; and the cells that torch runs step by step.

cuDNN does not say these sizes without a GPU; on an H200 it was asked for those of 3,300 networks (cuDNN 9.15,
benchmarks/probe_recurrent.py): plain ones and LSTMs of 1 to 4 layers, one or two directions, fp32 and halves. The terms
below give all of them to the byte. Between 256 and 1000 steps nothing was asked; GRUs were asked for twice, and
recorded (tests/data). Source of the calls: RNN.cpp.
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.tensors import Rule, integers, item_bytes, nbytes, round_up, tensor_argument
from trainfit.records import LAST_OUTPUT, OUTPUT, Op, TensorRef

_LSTM = 2
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # by cuDNN's mode
_LIBRARY_BYTES = 8 * 2**20  # for the products of each layer and direction
_LONG_STEPS = 512
"""From so many on an LSTM of several layers keeps no gradients of gates of all its steps at once."""


def _workspace_bytes(
    x: TensorRef, hx: TensorRef, mode: int, hidden_size: int, is_bidirectional: bool, has_dropout: bool
) -> int:
    """The weights once more, the library's own, and the larger of what forward and what backward keep of all steps."""
    directions = 1 + is_bidirectional
    layers, batch, width = hx.shape[0] // directions, hx.shape[1], x.shape[-1]
    steps = x.numel // width // batch
    per_sequence = max(
        _forward_numbers(layers, directions, batch, width, hidden_size, steps, mode),
        _backward_numbers(layers, directions, width, hidden_size, steps, mode, has_dropout),
    )
    inputs = width + (layers - 1) * directions * hidden_size
    weights = _GATES[mode] * hidden_size * directions * (inputs + layers * hidden_size)
    own = layers * directions * _LIBRARY_BYTES + round_up(8 * batch, 32) + 256
    return round_up((weights + batch * per_sequence) * item_bytes(x.dtype), 32) + own


def _forward_numbers(layers: int, directions: int, batch: int, width: int, hidden: int, steps: int, mode: int) -> int:
    """Inputs and outputs of a layer, and states; layers of one direction run ahead of each other by some steps."""
    widest = max(width, hidden)
    if directions == 2:
        per_step = (6 if layers == 1 else 8) * hidden + 2 * width + 4 * widest
        return steps * per_step + (26 if mode == _LSTM else 14) * layers * hidden
    chunk = _chunk_steps(steps, batch)
    ahead = steps if layers == 1 else min(steps, layers * chunk + max(8, chunk))
    states = (11 if mode == _LSTM else 5) * layers + ahead
    return steps * (2 * hidden + 2 * width + widest) + states * hidden


def _chunk_steps(steps: int, batch: int) -> int:
    """How many steps a layer of one direction does before the next one may begin."""
    if batch <= 8:
        return 32 if batch == 1 else 16
    if steps > 128 or batch <= 16:
        return 8
    return 4 if batch <= 96 else 2


def _backward_numbers(
    layers: int, directions: int, width: int, hidden: int, steps: int, mode: int, has_dropout: bool
) -> int:
    """The gradients of the gates of one layer, and of its input; plain networks have no gates."""
    if _GATES[mode] == 1:
        return 0
    if directions == 2:
        return steps * ((2 * _GATES[mode] + 6) * hidden + width) + 24 * layers * hidden
    if layers > 1 and steps >= _LONG_STEPS:
        return 0
    dropped = hidden if has_dropout and layers > 1 else 0
    return steps * ((_GATES[mode] + 1) * hidden + width + dropped) + 10 * layers * hidden


def _input_copies(x: TensorRef, is_batch_first: bool) -> tuple[int, ...]:
    """cuDNN reads time first."""
    return (nbytes(x),) if is_batch_first else ()


def _forward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """After the results comes the buffer of weights that were not flattened, the workspace, and what backward needs."""
    x, hx = tensor_argument(op, 0), tensor_argument(op, 4)
    mode, hidden_size = integers(op.args[6:8])
    copies = _input_copies(x, bool(op.args[10]))
    num_states = 1 + isinstance(op.args[5], TensorRef)
    given = op.args[1] if isinstance(op.args[1], tuple) else ()
    weights = {weight.storage for weight in given if isinstance(weight, TensorRef)}
    outputs = ((OUTPUT,) * (1 + num_states)) + ((LAST_OUTPUT,) if len(weights) > 1 else ())
    return (*copies, *outputs, _workspace_bytes(x, hx, mode, hidden_size, bool(op.args[13]), bool(op.args[11])), OUTPUT)


def _backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Gradients of the inputs, then of the weights, each with a workspace; absent state gradients are zeros."""
    x, hx, gradient = tensor_argument(op, 0), tensor_argument(op, 4), tensor_argument(op, 7)
    mode, hidden_size = integers(op.args[10:12])
    is_batch_first = bool(op.args[14])
    num_states = 1 + isinstance(op.args[5], TensorRef)
    missing = sum(op.args[index] is None for index in (8, 9)[:num_states])
    x_copy, gradient_copy = _input_copies(x, is_batch_first), _input_copies(gradient, is_batch_first)
    workspace = _workspace_bytes(x, hx, mode, hidden_size, bool(op.args[17]), bool(op.args[15]))
    before = (*(nbytes(hx),) * missing, *x_copy, *gradient_copy)
    between = (*(-n for n in gradient_copy), *(-n for n in x_copy), *x_copy)
    return (*before, *(OUTPUT,) * (1 + num_states), workspace, -workspace, *between, OUTPUT, workspace)


def _cell(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """What backward needs is made before the states (native/cuda/RNN.cu)."""
    return (LAST_OUTPUT, OUTPUT, OUTPUT)


RULES: dict[str, Rule] = {
    "aten._thnn_fused_lstm_cell.default": _cell,
    "aten._thnn_fused_gru_cell.default": _cell,
    "aten._cudnn_rnn.default": _forward,
    "aten._cudnn_rnn_backward.default": _backward,
}
