"""`loading`: a context for the imports that a verb needs, which makes them quick; `let_be` for the end of a process.

Torch is some 600,000 objects, none of which ever goes. A garbage collector that looks through them again and again
while they come, and once more when the process ends, takes a third of the time of the import.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Nothing is collected inside, and what there is at the end never."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        let_be()
        if was_on:
            gc.enable()


def let_be() -> None:
    """What there is now is not looked at any more by the garbage collector."""
    gc.freeze()
