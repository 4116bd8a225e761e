"""docs/autosac.md: its example runs, and prints what the page says, times apart."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def without_times(text: str) -> str:
    """Times, and the shares that follow from them, depend on the GPU's profile."""
    return re.sub(r"[\d.]+ ms|drops .*", "...", text)


def test_the_example_prints_what_the_page_says() -> None:
    page = (ROOT / "docs" / "autosac.md").read_text()
    (code,) = re.findall(r"^```python fragment\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/autosac.md", "exec"), {})
    assert without_times(printed.getvalue()) == without_times(shown)
    assert code.count("torch.distributed") == 0
