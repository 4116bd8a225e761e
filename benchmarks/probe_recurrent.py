"""What cuDNN's recurrent networks allocate: reserve and workspaces, over modes, depths, directions, types and sizes.

    python benchmarks/probe_recurrent.py --out OUT --seconds 40    # OUT/recurrent.jsonl, a line per network

Small networks, since cuDNN builds kernels for each new one; the most telling come first, so a run that is cut short has
seen a bit of everything. A line has the network and, for forward and backward, the events of recorder.py.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recorder import OpRecorder, history, op_rows, start_history

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# kind, type, time, batch, input size, hidden size, layers, bidirectional
NETWORKS = [
    (kind, dtype, *sizes)
    for sizes in (
        (64, 32, 256, 512, 2, True),
        (64, 32, 256, 512, 1, False),
        (64, 32, 512, 512, 3, False),
        (100, 48, 256, 384, 2, False),
        (32, 16, 128, 1024, 1, True),
    )
    for kind in KINDS
    for dtype in DTYPES
]


def probe(network: tuple[Any, ...]) -> dict[str, Any]:
    kind, dtype, length, batch, width, hidden, layers, bidirectional = network
    rnn = KINDS[kind](width, hidden, layers, bidirectional=bidirectional, device="cuda", dtype=DTYPES[dtype])
    x = torch.randn(length, batch, width, device="cuda", dtype=DTYPES[dtype], requires_grad=True)
    seen = len(history())
    with OpRecorder() as recorder:
        rnn(x)[0].sum().backward()
    rows = op_rows(recorder.calls, history()[seen:])
    return {"network": network} | {row.name: row.events for row in rows if "cudnn_rnn" in row.name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    start_history()
    with (args.out / "recurrent.jsonl").open("w") as lines:
        for network in NETWORKS:
            if time.monotonic() - start_s > args.seconds:
                break
            try:
                row = probe(network)
            except RuntimeError as error:  # a type that cuDNN refuses
                row = {"network": network, "error": str(error)[:200]}
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            print(f"{time.monotonic() - start_s:.1f} s", json.dumps(row)[:300], flush=True)


if __name__ == "__main__":
    main()
