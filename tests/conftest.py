"""Fixtures that several files of tests use."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

gc.disable()  # until all tests are imported
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin, and take the cores from the other tests


def pytest_collection_finish() -> None:
    """What is imported by now stays until the end, and is some 200,000 objects: the collector need not look at them,
    which would take a fifth of a second each time, and tests ask for that hundreds of times."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def no_collection() -> Any:
    """Nothing may hang on the garbage collector: what is not freed without it is a leak or a cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
