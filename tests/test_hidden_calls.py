"""Hidden memory against 17,600 calls of single ops on an H200, each of them by the allocator's events.

benchmarks/probe_calls.py asked (torch 2.11, CUDA 13.0); compared is how far memory rose above the results.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import cudnn_library, hidden_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from hidden_peaks import compared

CALLS = Path(__file__).parents[1] / "benchmarks" / "results" / "hidden_calls_h200.jsonl.gz"
_BLOCKS = "a factorization whose workspace cuSOLVER or MAGMA chooses"
UNALIKE = {
    "aten._fft_r2c.default": (2, "cuFFT has no single kernel for rows of 1200, nor for those of 33 x 65"),
    "aten._linalg_det.default": (6, _BLOCKS),
    "aten._linalg_eigh.default": (6, _BLOCKS),
    "aten._linalg_solve_ex.default": (10, _BLOCKS),
    "aten._linalg_svd.default": (6, _BLOCKS),
    "aten.linalg_cholesky_ex.default": (3, "of one matrix: " + _BLOCKS),
    "aten.linalg_inv_ex.default": (10, _BLOCKS),
    "aten.linalg_lu_factor_ex.default": (5, _BLOCKS),
    "aten.linalg_qr.default": (6, _BLOCKS),
    "aten.mode.default": (15, "how many values of a row differ is known from data only"),
}
"""Known to differ: how many calls at most, and why."""
CONVOLUTIONS = {"aten.convolution.default": (178, 42), "aten.convolution_backward.default": (272, 68)}
"""So many differ at most: if cuDNN's choice is imitated, and if it is asked. Of those about half are products of 272 or
400 bytes, counters of cuBLASLt's; the others are engines that cuDNN offers on a GPU only."""


def differing() -> dict[str, int]:
    hidden = hidden_memory(find_gpu("h200"), "2.11.0+cu130")
    found = {name: sum(not call.is_equal for call in calls) for name, calls in compared(CALLS, hidden).items()}
    assert len(found) == 377
    return {name: number for name, number in found.items() if number}


def test_every_op_takes_what_an_h200_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_library, "first_plan", lambda *_: None)
    most = {name: number for name, (number, _) in UNALIKE.items()}
    most |= {name: imitated for name, (imitated, _) in CONVOLUTIONS.items()}
    found = differing()
    assert found.keys() == most.keys()
    assert {name: (number, most[name]) for name, number in found.items() if number > most[name]} == {}


@pytest.mark.skipif(not cudnn_library.is_installed(), reason="no cuDNN here; torch's CUDA builds have one")
def test_convolutions_take_what_cudnn_says() -> None:
    found = differing()
    assert {name: found[name] for name, (_, asked) in CONVOLUTIONS.items() if found[name] > asked} == {}
