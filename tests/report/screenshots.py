"""Pictures of a page, wide and narrow, light and dark: look at them after a change to the templates.

python tests/report/screenshots.py plan.html FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from browser import Browser, Tab

SIZES = (("wide", 1280, "light"), ("wide-dark", 1280, "dark"), ("phone", 390, "light"), ("phone-dark", 390, "dark"))


def main(page: str, folder: str) -> None:
    """Write the pictures into the folder."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile))
        for name, width, scheme in SIZES:
            tab = Tab(browser, Path(page).resolve(), width=width, scheme=scheme)
            tab.screenshot(Path(folder) / f"{Path(page).stem}-{name}.png")
            tab.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
