"""Recurrent networks as CUDA runs them: one call of cuDNN for all layers, with the state of its dropout beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from trainfit.gpus.catalogue import Gpu

aten = torch.ops.aten
RNN_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
DROPOUT_STATE_BYTES_PER_THREAD = 24
THREADS_PER_SM = 2048


class _Where:
    """Whether what runs now is recorded apart from the program."""

    is_apart = False


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """The first network that runs inside leaves it to the program's own first one to make a state for its dropout."""
    before, _Where.is_apart = _Where.is_apart, True
    try:
        yield
    finally:
        _Where.is_apart = before


class CudnnRnn:
    """The bodies of `lstm`, `gru` and the plain networks; one per ghost context, which keeps the dropout's state."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._dropout_states: dict[bool, torch.Tensor] = {}  # the program's, and that of what is recorded apart

    def lstm(
        self, x: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor], has_biases: bool,
        num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        return self._run(
            2, x, hx[0], hx[1], params, has_biases, num_layers, dropout, train, bidirectional, batch_first, []
        )

    def lstm_packed(
        self, x: torch.Tensor, batch_sizes: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor],
        has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        sizes = batch_sizes.tolist()
        return self._run(
            2, x, hx[0], hx[1], params, has_biases, num_layers, dropout, train, bidirectional, False, sizes
        )

    def simple(
        self, mode: int, x: torch.Tensor, hx: torch.Tensor, params: Sequence[torch.Tensor], has_biases: bool,
        num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        return self._run(
            mode, x, hx, None, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, []
        )[:2]

    def simple_packed(
        self, mode: int, x: torch.Tensor, batch_sizes: torch.Tensor, hx: torch.Tensor, params: Sequence[torch.Tensor],
        has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        sizes = batch_sizes.tolist()
        return self._run(
            mode, x, hx, None, params, has_biases, num_layers, dropout, train, bidirectional, False, sizes
        )[:2]

    def _run(
        self, mode: int, x: torch.Tensor, hx: torch.Tensor, cx: torch.Tensor | None, params: Sequence[torch.Tensor],
        has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
        batch_sizes: list[int],
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        if dropout and train and _Where.is_apart not in self._dropout_states:
            self._dropout_states[_Where.is_apart] = self._make_dropout_state(x)
        hidden_size = params[1].size(-1) if cx is None else cx.size(-1)
        proj_size = hx.size(-1) if hx.size(-1) != hidden_size else 0
        out, hy, cy, _reserve, _weight_buf = aten._cudnn_rnn(
            x, list(params), 4 if has_biases else 2, None, hx, cx, mode, hidden_size, proj_size, num_layers,
            batch_first, dropout, train, bidirectional, batch_sizes, self._dropout_states.get(_Where.is_apart),
        )  # fmt: skip
        return out, hy, cy

    def _make_dropout_state(self, x: torch.Tensor) -> torch.Tensor:
        """24 bytes for every thread that the GPU can hold; made once and kept (native/cudnn/RNN.cpp)."""
        nbytes = DROPOUT_STATE_BYTES_PER_THREAD * THREADS_PER_SM * self._gpu.num_sms
        return torch.empty(nbytes, dtype=torch.uint8, device=x.device)
