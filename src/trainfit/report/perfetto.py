"""A step as a Chrome trace, for ui.perfetto.dev or chrome://tracing. In: a `StepProfile`. Out: JSON values.

Tracks: what the CPU issues, and one per stream of the GPU; stream 0 computes, the others communicate. The memory is a
counter with a series per category, by the GPU's time.
"""

from __future__ import annotations

from typing import Any

from trainfit.records import Category, Op, StepProfile
from trainfit.report.moments import moments

_PROCESS = 1
_LAUNCH_TRACK = 1
_FIRST_GPU_TRACK = 2  # that of stream 0


def chrome_trace(profile: StepProfile) -> dict[str, Any]:
    """The trace event format's object form; times are microseconds."""
    streams = sorted({run.stream for run in profile.runs if run.gpu_ns} | {0})
    tracks = [
        (_LAUNCH_TRACK, "CPU: launch"),
        *((_FIRST_GPU_TRACK + stream, _stream_name(stream)) for stream in streams),
    ]
    events = [_metadata("process_name", 0, f"trainfit: one step on {profile.trace.gpu}, predicted")]
    for track, name in tracks:
        events.append(_metadata("thread_name", track, name))
        events.append(_event("M", "thread_sort_index", track, args={"sort_index": track}))
    for run in profile.runs:
        op = profile.trace.ops[run.op]
        events.append(_slice(op, _LAUNCH_TRACK, run.issue_start_ns, run.issue_end_ns - run.issue_start_ns))
        if run.gpu_ns:
            events.append(_slice(op, _FIRST_GPU_TRACK + run.stream, run.gpu_start_ns, run.gpu_ns))
    return {"displayTimeUnit": "ms", "traceEvents": events + _counters(profile)}


def _stream_name(stream: int) -> str:
    return "GPU: compute" if stream == 0 else f"GPU: communication {stream}"


def _slice(op: Op, track: int, start_ns: int, duration_ns: int) -> dict[str, Any]:
    name = op.name.removeprefix("aten.").removesuffix(".default")
    args = {"op": op.name, "module": op.module, "phase": op.phase.value}
    return _event("X", name, track, cat=op.phase.value, ts=start_ns / 1e3, dur=duration_ns / 1e3, args=args)


def _counters(profile: StepProfile) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    shown: tuple[int, ...] = ()
    for moment in moments(profile):
        if moment.bytes_by_category != shown:
            shown = moment.bytes_by_category
            by_name = {category.value: nbytes for category, nbytes in zip(Category, shown, strict=True)}
            events.append(_event("C", "allocated bytes", 0, ts=moment.start_ns / 1e3, args=by_name))
    return events


def _metadata(kind: str, track: int, name: str) -> dict[str, Any]:
    return _event("M", kind, track, args={"name": name})


def _event(kind: str, name: str, track: int, **fields: Any) -> dict[str, Any]:
    return {"ph": kind, "name": name, "pid": _PROCESS, "tid": track, **fields}
