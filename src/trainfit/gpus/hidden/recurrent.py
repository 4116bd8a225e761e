"""cuDNN's recurrent networks: the workspace of each call, and the state of its random numbers, which stays.

cuDNN does not say these sizes without a GPU. Fitted to the recording of a two-layer LSTM (tests/data/lstm.json.gz:
exact) and to the peaks of a bidirectional GRU of two layers (benchmarks/measure_memory.py: within 0.3%); other depths,
widths and modes follow the same terms and are less certain. Source of the calls: RNN.cpp.
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.tensors import HALVES, Rule, integers, item_bytes, nbytes, tensor_argument
from trainfit.records import OUTPUT, Op, TensorRef

CUDNN_DROPOUT = "cudnn dropout"
_GATES = {0: 1, 1: 1, 2: 4, 3: 4}  # by cuDNN's mode; a GRU keeps its candidate in two parts
_STATE_BYTES_PER_THREAD = 24
_THREADS_PER_SM = 2048


def _workspace_bytes(x: TensorRef, hx: TensorRef, mode: int, hidden_size: int) -> int:
    """Gradients of the gates of all time steps, some copies of one layer's states, ten times the last states."""
    states_bytes = x.numel // x.shape[-1] * hidden_size * item_bytes(x.dtype)
    num_copies = 4 if x.dtype in HALVES else 3
    layers_times_directions = hx.shape[0]
    return (_GATES[mode] * layers_times_directions + num_copies) * states_bytes + 10 * nbytes(hx) + 512


def _input_copies(x: TensorRef, is_batch_first: bool) -> tuple[int, ...]:
    """cuDNN reads time first."""
    return (nbytes(x),) if is_batch_first else ()


def _forward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The workspace comes before the last output, which is kept for backward."""
    x, hx = tensor_argument(op, 0), tensor_argument(op, 4)
    mode, hidden_size = integers(op.args[6:8])
    copies = _input_copies(x, bool(op.args[10]))
    num_states = 1 + isinstance(op.args[5], TensorRef)
    outputs = (OUTPUT,) * (1 + num_states)
    return (*copies, *outputs, _workspace_bytes(x, hx, mode, hidden_size), OUTPUT)


def _backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Gradients of the inputs, then of the weights, each with a workspace; absent state gradients are zeros."""
    x, hx, gradient = tensor_argument(op, 0), tensor_argument(op, 4), tensor_argument(op, 7)
    mode, hidden_size = integers(op.args[10:12])
    is_batch_first = bool(op.args[14])
    num_states = 1 + isinstance(op.args[5], TensorRef)
    missing = sum(op.args[index] is None for index in (8, 9)[:num_states])
    copies = (*_input_copies(x, is_batch_first), *_input_copies(gradient, is_batch_first))
    workspace = _workspace_bytes(x, hx, mode, hidden_size)
    before = (nbytes(hx),) * missing + copies
    return (*before, *(OUTPUT,) * (1 + num_states), workspace, -workspace, OUTPUT, workspace)


def workspaces(op: Op, gpu: Gpu) -> tuple[tuple[str, int], ...]:
    """The state of the random numbers: 24 bytes per resident thread."""
    if op.name != "aten._cudnn_rnn.default" or not op.args[11] or not op.args[12]:
        return ()
    return ((CUDNN_DROPOUT, _STATE_BYTES_PER_THREAD * _THREADS_PER_SM * gpu.num_sms),)


RULES: dict[str, Rule] = {
    "aten._cudnn_rnn.default": _forward,
    "aten._cudnn_rnn_backward.default": _backward,
}
