"""Progress: stages tell what they are doing, and whoever wants to know listens.

In: `tell("tracing layer", 12, 80)` from a stage. Out: a call of the listener, if there is one; with none nothing
happens, so stages stay pure functions of their arguments. A listener is any callable of (doing, done, total), where
`total` is 0 for work that cannot be counted. `bar` is one: a line on the terminal, and nothing where there is none.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]

_listener: ContextVar[Listener | None] = ContextVar("trainfit_progress", default=None)


def tell(doing: str, done: int = 0, total: int = 0) -> None:
    """Say what is being done, and that it is the `done`th of `total`."""
    listener = _listener.get()
    if listener is not None:
        listener(doing, done, total)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Everything that is told inside goes to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextlib.contextmanager
def part_of(whole: str) -> Iterator[None]:
    """What is told inside is told as a part of `whole`: "plan 2: tracing layer"."""
    outer = _listener.get()
    if outer is None:
        yield
        return
    with listening(lambda doing, done, total: outer(f"{whole}: {doing}", done, total)):
        yield


@contextlib.contextmanager
def bar(title: str) -> Iterator[None]:
    """Show what is told inside as a bar on stderr, gone when it is done; only if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{title}: loading torch", total=None)

        def show(doing: str, done: int, total: int) -> None:
            count = f" {done}/{total}" if total else ""
            progress.update(task, description=f"{title}: {doing}{count}", completed=done, total=total or None)

        with listening(show):
            yield
