"""Fixtures that several files of tests use."""

from __future__ import annotations

import gc
from typing import Any

import pytest


@pytest.fixture
def no_collection() -> Any:
    """Nothing may hang on the garbage collector: what is not freed without it is a leak or a cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
