"""How the host's part of a calibration is timed."""

from __future__ import annotations

from collections.abc import Callable

from trainfit.calibrate.host import time_ops
from trainfit.calibrate.single_ops import ROUNDS, WARM_UP_ROUNDS
from trainfit.cost.host_fit import HOST_OPS_LARGE


def test_ops_whose_threads_go_on_spinning_are_timed_when_all_others_are() -> None:
    ran: list[str] = []

    def op(kind: str) -> Callable[[], Callable[[], None]]:
        return lambda: lambda: ran.append(kind)

    found = time_ops({kind: op(kind) for kind in ("plain", HOST_OPS_LARGE, "backward plain")}, lambda: None)
    num_rounds = WARM_UP_ROUNDS + ROUNDS
    assert ran == [*["plain", "backward plain"] * num_rounds, *[HOST_OPS_LARGE] * num_rounds]
    assert {kind: len(times_ns) for kind, times_ns in found.items()} == dict.fromkeys(ran, ROUNDS)
