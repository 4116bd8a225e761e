"""cuDNN's recurrent networks: the workspace of each call.

cuDNN does not say these sizes without a GPU. Fitted to the recording of a two-layer LSTM (tests/data/lstm.json.gz:
exact), to one of a two-layer bidirectional GRU in bfloat16 and to peaks (benchmarks/measure_memory.py); other depths,
widths and modes follow the same terms and are less certain. Source of the calls: RNN.cpp.
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.tensors import HALVES, Rule, integers, item_bytes, nbytes, tensor_argument
from trainfit.records import LAST_OUTPUT, OUTPUT, Op, TensorRef

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # by cuDNN's mode
_LAST_STATES = {0: 10, 1: 10, 2: 10, 3: 3}


def _workspace_bytes(x: TensorRef, hx: TensorRef, mode: int, hidden_size: int, is_bidirectional: bool) -> int:
    """Gradients of the gates of all time steps, some copies of one layer's states, and some of the last states."""
    states_bytes = x.numel // x.shape[-1] * hidden_size * item_bytes(x.dtype)
    num_copies = 3 + is_bidirectional + (x.dtype in HALVES)
    layers_times_directions = hx.shape[0]
    return (_GATES[mode] * layers_times_directions + num_copies) * states_bytes + _LAST_STATES[mode] * nbytes(hx) + 512


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
    return (*copies, *outputs, _workspace_bytes(x, hx, mode, hidden_size, bool(op.args[13])), OUTPUT)


def _backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Gradients of the inputs, then of the weights, each with a workspace; absent state gradients are zeros."""
    x, hx, gradient = tensor_argument(op, 0), tensor_argument(op, 4), tensor_argument(op, 7)
    mode, hidden_size = integers(op.args[10:12])
    is_batch_first = bool(op.args[14])
    num_states = 1 + isinstance(op.args[5], TensorRef)
    missing = sum(op.args[index] is None for index in (8, 9)[:num_states])
    x_copy, gradient_copy = _input_copies(x, is_batch_first), _input_copies(gradient, is_batch_first)
    workspace = _workspace_bytes(x, hx, mode, hidden_size, bool(op.args[17]))
    before = (*(nbytes(hx),) * missing, *x_copy, *gradient_copy)
    between = (*(-n for n in gradient_copy), *(-n for n in x_copy), *x_copy)
    return (*before, *(OUTPUT,) * (1 + num_states), workspace, -workspace, *between, OUTPUT, workspace)


RULES: dict[str, Rule] = {
    "aten._cudnn_rnn.default": _forward,
    "aten._cudnn_rnn_backward.default": _backward,
}
