"""Streams and events of a GPU that is not there: which stream is current, and who waits for whom.

In: what a program calls on `torch.cuda.Stream` and `torch.cuda.Event`. Out: for each op that a recorder announces by
`issue`, the stream it runs on and the earlier ops, by number, that must be done first. Streams are numbered in the
order in which they are made; 0 is the default stream. Collectives of one group of ranks run one after the other, on
whatever streams they are issued, since they share a communicator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

from trainfit.ghost.tensor import CUDA


class GhostStream:
    """Stands for a `torch.cuda.Stream`; each ghost GPU has a subclass of its own."""

    device = CUDA
    device_index, device_type = 0, 1  # the first GPU; CUDA, as torch numbers kinds of devices
    _streams: Streams

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.stream_id = self.cuda_stream = self._streams.next_number()

    def wait_event(self, event: GhostEvent) -> None:
        event.wait(self)

    def wait_stream(self, stream: GhostStream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: GhostEvent | None = None) -> GhostEvent:
        event = event or self._streams.event_class()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The CPU waits; nothing runs here, so everything is done."""

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> GhostStream:
        self._context = self._streams.on(self)
        self._context.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)


class GhostEvent:
    """Stands for a `torch.cuda.Event`: what its stream had been given when it was recorded."""

    device = CUDA
    _streams: Streams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._stream = 0
        self._op: int | None = None  # None: nothing had been given to the stream

    def record(self, stream: GhostStream | None = None) -> None:
        self._stream = (stream or self._streams.current).stream_id
        self._op = self._streams.last_op(self._stream)

    def wait(self, stream: GhostStream | None = None) -> None:
        waiting = (stream or self._streams.current).stream_id
        if self._op is not None and waiting != self._stream:
            self._streams.add_wait(waiting, self._op)

    def synchronize(self) -> None:
        """The CPU waits; nothing runs here, so everything is done."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: GhostEvent) -> float:
        return 1.0


class Streams:
    """The streams of one ghost GPU."""

    def __init__(self) -> None:
        self.stream_class: type[GhostStream] = type("Stream", (GhostStream,), {"_streams": self})
        self.event_class: type[GhostEvent] = type("Event", (GhostEvent,), {"_streams": self})
        self._num_streams = 0
        self.current = self.default = self.stream_class()
        self._last_op: dict[int, int] = {}  # by stream
        self._last_of_group: dict[Hashable, int] = {}
        self._waits: dict[int, set[int]] = {}  # by stream, for its next op

    def next_number(self) -> int:
        self._num_streams += 1
        return self._num_streams - 1

    @contextlib.contextmanager
    def on(self, stream: GhostStream | None) -> Iterator[None]:
        """As `torch.cuda.stream`: the stream is the current one inside; None changes nothing."""
        before = self.current
        self.current = stream or before
        try:
            yield
        finally:
            self.current = before

    def set_current(self, stream: GhostStream | None) -> None:
        self.current = stream or self.current

    def last_op(self, stream: int) -> int | None:
        return self._last_op.get(stream)

    def add_wait(self, stream: int, op: int) -> None:
        self._waits.setdefault(stream, set()).add(op)

    def issue(self, op: int, group: Hashable | None = None) -> tuple[int, tuple[int, ...]]:
        """Op number `op` goes to the current stream; returns that stream and the ops that it waits for."""
        stream = self.current.stream_id
        waits = self._waits.pop(stream, set())
        if group is not None:
            previous = self._last_of_group.get(group)
            if previous is not None:
                waits.add(previous)
            self._last_of_group[group] = op
        self._last_op[stream] = op
        return stream, tuple(sorted(waits))
