"""What cuDNN's recurrent networks need: it is asked for the sizes of workspace and reserve, over thousands of networks.

    python benchmarks/probe_recurrent.py --out OUT               # OUT/recurrent.jsonl; needs a GPU, takes a minute
    python benchmarks/probe_recurrent.py --out OUT --narrow      # narrow states, whose weights some kernels keep

Nothing is run but some small networks, whose allocations under torch (recorder.py) show that the question is put as
torch puts it. A line: [kind, type, length, batch, input size, hidden size, layers, directions, dropout, algorithm,
bytes of the workspace, bytes of the reserve], by each algorithm that torch asks for in either pass; the lines of the
networks that ran end with the events of their ops instead.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recorder import OpRecorder, history, op_rows, start_history

KINDS = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}  # cuDNN's modes
DTYPES = {"fp32": (0, torch.float32), "fp16": (2, torch.float16), "bf16": (9, torch.bfloat16)}  # cuDNN's data types
FLOAT, TENSOR_OP_MATH, PADDED, DOUBLE_BIAS, TRAINING = 0, 1, 1, 2, 1
STANDARD, KEEPS_WEIGHTS, KEEPS_NARROW_WEIGHTS = 0, 1, 3  # cuDNN's algorithms
Network = tuple[str, str, int, int, int, int, int, int, float]

RUN: list[Network] = [
    ("lstm", "fp32", 64, 32, 256, 512, 2, 2, 0.0),
    ("lstm", "bf16", 64, 32, 256, 512, 2, 1, 0.0),
    ("gru", "fp16", 60, 96, 512, 512, 2, 1, 0.0),
    ("gru", "fp32", 100, 48, 256, 384, 3, 2, 0.0),
    ("tanh", "fp32", 64, 32, 256, 512, 2, 2, 0.0),
]


def narrow_runs() -> Iterator[Network]:
    """Whose allocations are recorded: widths that are narrow in both passes, and in the forward pass alone."""
    sizes = [(20, 200, 128, 128, 2, 2), (20, 16, 128, 160, 1, 1)]
    for size, dtype, kind in itertools.product(sizes, DTYPES, ("lstm", "gru")):
        yield (kind, dtype, *size, 0.0)


def narrow_networks() -> Iterator[Network]:
    """Around a few, one size changed at a time; then any."""
    sizes: tuple[tuple[int, ...], ...] = (
        (7, 33, 100, 129, 200, 300, 520, 1000),
        (1, 2, 5, 8, 16, 17, 24, 32, 64, 96, 97, 128, 200, 512, 1000, 2458, 4096),
        (16, 40, 64, 128, 168, 300, 512),
        (16, 32, 48, 50, 64, 96, 100, 128, 160, 192, 256),
        (1, 2, 3, 4),
        (1, 2),
    )
    bases = [(64, 32, 128, 128, 1, 1), (64, 512, 64, 64, 1, 2), (30, 2000, 100, 96, 2, 1), (100, 9, 128, 128, 3, 2)]
    kinds = list(itertools.product(("lstm", "gru", "tanh"), ("fp32", "fp16", "bf16")))
    for base, (kind, dtype) in itertools.product(bases, kinds):
        for place, values in enumerate(sizes):
            for value in values:
                yield kind, dtype, *base[:place], value, *base[place + 1 :], 0.0  # type: ignore[misc]
        yield kind, dtype, *base, 0.3
    draw = random.Random(0)
    while True:
        kind, dtype = draw.choice(kinds)
        yield kind, dtype, *(draw.choice(values) for values in sizes), draw.choice((0.0, 0.3))  # type: ignore[misc]


def algorithms(network: Network) -> list[int]:
    """Those that torch asks for: of the forward pass and, if another, of the backward pass (RNN.cpp)."""
    kind, dtype, _, batch, width, hidden, layers, directions, _ = network
    found = []
    for widest in (192, 128):
        if hidden <= widest * (1 if kind in ("lstm", "gru") else 2):
            found.append(KEEPS_NARROW_WEIGHTS)
        elif dtype == "fp16" and kind != "gru" and layers == directions == 1 and hidden <= 1024:
            keeps = hidden % 128 == width % 128 == batch % 8 == 0 and batch <= 128
            found.append(KEEPS_WEIGHTS if keeps else STANDARD)
        else:
            found.append(STANDARD)
    return list(dict.fromkeys(found))


def networks() -> Iterator[Network]:
    """The kinds that are used most come first, so that a run which is cut short has seen them."""
    shapes = [
        *((length, 32, 512, 512) for length in (7, 33, 100, 129, 200, 256, 300, 400, 512, 700, 1000)),
        *((64, batch, 256, 512) for batch in (1, 2, 5, 8, 9, 16, 17, 24, 64, 96, 97, 128, 512)),
        *((200, batch, 256, 512) for batch in (4, 48, 128)),
        *((64, 32, width, 512) for width in (64, 300, 1024)),
        *((64, 32, 256, hidden) for hidden in (64, 100, 200, 256, 650, 1024, 2048)),
    ]
    for kind, dtype in itertools.product(("gru", "lstm", "tanh", "relu"), ("fp32", "bf16", "fp16")):
        for (length, batch, width, hidden), directions in itertools.product(shapes, (1, 2)):
            for layers, dropout in ((1, 0.0), (2, 0.0), (3, 0.0), (2, 0.3)):
                yield kind, dtype, length, batch, width, hidden, layers, directions, dropout


class Cudnn:
    """The library that torch loaded, and a handle."""

    def __init__(self) -> None:
        torch.backends.cudnn.version()
        torch.zeros(1, device="cuda")
        self._library = ctypes.CDLL("libcudnn.so.9")
        self._handle = ctypes.c_void_p()
        self.call("cudnnCreate", ctypes.byref(self._handle))
        self._dropouts = {rate: self._dropout(rate) for rate in (0.0, 0.3)}

    def call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise RuntimeError(f"{name} returned {status}")

    def _made(self, kind: str) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self.call(f"cudnnCreate{kind}Descriptor", ctypes.byref(descriptor))
        return descriptor

    def _dropout(self, rate: float) -> ctypes.c_void_p:
        size = ctypes.c_size_t()
        self.call("cudnnDropoutGetStatesSize", self._handle, ctypes.byref(size))
        self._states = torch.empty(size.value, dtype=torch.uint8, device="cuda")
        descriptor = self._made("Dropout")
        states = (ctypes.c_void_p(self._states.data_ptr()), size) if rate else (None, ctypes.c_size_t(0))
        self.call(
            "cudnnSetDropoutDescriptor", descriptor, self._handle, ctypes.c_float(rate), *states, ctypes.c_ulonglong(0)
        )
        return descriptor

    def sizes(self, network: Network, algorithm: int) -> tuple[int, int]:
        """Bytes of workspace and of reserve for training."""
        kind, dtype, length, batch, width, hidden, layers, directions, dropout = network
        data_type = DTYPES[dtype][0]
        rnn, data = self._made("RNN"), self._made("RNNData")
        math_type = TENSOR_OP_MATH if dtype == "fp16" else 0
        self.call(
            "cudnnSetRNNDescriptor_v8", rnn, algorithm, KINDS[kind], DOUBLE_BIAS, directions - 1, 0, data_type, FLOAT,
            math_type, width, hidden, hidden, layers, self._dropouts[dropout], PADDED,
        )  # fmt: skip
        lengths = (ctypes.c_int * batch)(*[length] * batch)
        self.call("cudnnSetRNNDataDescriptor", data, data_type, 0, length, batch, width, lengths, None)
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        self.call(
            "cudnnGetRNNTempSpaceSizes",
            self._handle,
            rnn,
            TRAINING,
            data,
            ctypes.byref(workspace),
            ctypes.byref(reserve),
        )
        self.call("cudnnDestroyRNNDescriptor", rnn)
        self.call("cudnnDestroyRNNDataDescriptor", data)
        return workspace.value, reserve.value


def events(network: Network) -> Any:
    """What a network's forward pass allocates under torch."""
    kind, dtype, length, batch, width, hidden, layers, directions, dropout = network
    options: dict[str, Any] = {"bidirectional": directions == 2, "dropout": dropout, "device": "cuda"}
    make = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}[kind]
    rnn = make(width, hidden, layers, dtype=DTYPES[dtype][1], **options)
    x = torch.randn(length, batch, width, device="cuda", dtype=DTYPES[dtype][1], requires_grad=True)
    seen = len(history())
    with OpRecorder() as recorder:
        rnn(x)[0].sum().backward()
    return [(row.name, row.events) for row in op_rows(recorder.calls, history()[seen:]) if "cudnn_rnn" in row.name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--narrow", action="store_true")
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + args.seconds
    start_history()
    cudnn = Cudnn()
    with (args.out / "recurrent.jsonl").open("w") as lines:
        for network in narrow_networks() if args.narrow else networks():
            for algorithm in algorithms(network):
                try:
                    row = [*network, algorithm, *cudnn.sizes(network, algorithm)]
                except RuntimeError as error:
                    row = [*network, algorithm, str(error)]
                lines.write(json.dumps(row) + "\n")
            lines.flush()
            if time.monotonic() > until_s:
                break
        for network in narrow_runs() if args.narrow else RUN:
            lines.write(json.dumps([*network, events(network)]) + "\n")
            lines.flush()


if __name__ == "__main__":
    main()
