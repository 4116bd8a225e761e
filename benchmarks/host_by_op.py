"""What the CPU takes to issue each op that `trainfit calibrate` knows, op by op.

    python benchmarks/host_by_op.py rows.jsonl      # on a GPU, a minute; a row per op

Of each op the call on the fewest elements is issued again and again on a GPU that waits, through `torch.ops`, without
autograd; rounds go through all ops, so that a host that changes its speed changes it for all. A row has the op, its
arguments, and the nanoseconds of one call in each round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from trainfit.calibrate.arguments import Pool, arguments
from trainfit.calibrate.calls import Call, all_calls
from trainfit.records import TensorRef

CALLS, ROUNDS = 20, 11
POOL_BYTES = 2**26
MOST_ELEMENTS = 2**22


def smallest_calls() -> list[Call]:
    """One of each op, overload and number of listed tensors."""
    found: dict[tuple[object, ...], Call] = {}
    for call in all_calls():
        key = call.name, tuple(len(value) for value in call.args if isinstance(value, tuple))
        if key not in found or _elements(call) < _elements(found[key]):
            found[key] = call
    return [call for call in found.values() if _elements(call) <= MOST_ELEMENTS]


def _elements(call: Call) -> int:
    return sum(_counted(value) for value in call.args)


def _counted(value: object) -> int:
    if isinstance(value, tuple):
        return sum(map(_counted, value))
    return value.numel if isinstance(value, TensorRef) else 0


def prepared(call: Call, pool: Pool) -> Callable[[], Any] | None:
    """The call, made once; None where this torch does not take it."""
    try:
        args, kwargs = arguments(call, pool)
        with call.precision():
            call.function(*args, **kwargs)
        torch.cuda.synchronize()
    except (RuntimeError, TypeError, NotImplementedError, IndexError, AttributeError, KeyError):
        return None
    function = call.function
    return lambda: function(*args, **kwargs)


def timed(ready: dict[str, Callable[[], Any]]) -> Iterator[tuple[str, list[int]]]:
    times: dict[str, list[int]] = {name: [] for name in ready}
    for _ in range(ROUNDS):
        for name, run in ready.items():
            torch.cuda.synchronize()
            run()
            torch.cuda.synchronize()
            begin_ns = time.perf_counter_ns()
            results = [run() for _ in range(CALLS)]
            times[name].append((time.perf_counter_ns() - begin_ns) // CALLS)
            del results
    yield from times.items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    pool = Pool("cuda", POOL_BYTES)
    ready: dict[str, Callable[[], Any]] = {}
    for call in smallest_calls():
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            run = prepared(call, pool)
            if run is not None:
                ready[str(call)] = run
    x = torch.ones(32, 64, device="cuda")
    ready |= {
        '["method mul"]': lambda: x * 0.5,
        '["method view"]': lambda: x.view(64, 32),
        '["aten.view.default"]': lambda: torch.ops.aten.view.default(x, [64, 32]),
    }
    with args.out.open("w") as file:
        for name, times_ns in timed(ready):
            file.write(json.dumps([json.loads(name), times_ns]) + "\n")


if __name__ == "__main__":
    main()
