"""cuDNN's graph API by ctypes: which plans does it propose for a convolution, and how large are their workspaces?

In: a library that is loaded already or a path, a convolution, and who shall run it: a handle (a GPU of this machine) or
a description of a GPU as JSON (cuDNN 9.8 and later plan for GPUs that are not there). Out: `Plan`s in the order of
cuDNN's heuristics, the first of which torch runs (Conv_v8.cpp: mode INSTANT, then FALLBACK; TF32 allowed, engines that
lower the precision of fp32 inputs left out). Nothing is executed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["forward", "input gradient", "weight gradient"]
DATA_TYPES = {"f32": 0, "f16": 2, "bf16": 9}
# Attribute types and descriptors of cudnn_graph.h
HANDLE, DATA_TYPE, INT64, FLOAT, CONVOLUTION_MODE, HEURISTIC_MODE, KNOB_TYPE = 0, 1, 3, 4, 7, 8, 9
NUMERICAL_NOTE, DESCRIPTOR, CHAR = 11, 15, 24
CONVOLUTION, ENGINE, ENGINE_CONFIG, HEURISTICS, PLAN, KNOB_CHOICE, GRAPH, TENSOR, DEVICE = 1, 2, 3, 4, 5, 7, 15, 17, 38
# descriptor of the operation, and its attributes: convolution, x, w, y, alpha, beta
OPERATIONS: dict[Kind, tuple[int, tuple[int, int, int, int, int, int]]] = {
    "forward": (10, (702, 704, 703, 705, 700, 701)),
    "input gradient": (12, (708, 710, 709, 711, 706, 707)),
    "weight gradient": (11, (714, 716, 715, 717, 712, 713)),
}
DOWN_CONVERTS_INPUTS = 1
INSTANT, FALLBACK = 0, 2  # modes of the heuristics
ALIGNMENT_BYTES = 16
C_TYPES: dict[int, Any] = {
    HANDLE: ctypes.c_void_p,
    DATA_TYPE: ctypes.c_int,
    INT64: ctypes.c_int64,
    FLOAT: ctypes.c_float,
    CONVOLUTION_MODE: ctypes.c_int,
    HEURISTIC_MODE: ctypes.c_int,
    KNOB_TYPE: ctypes.c_int,
    NUMERICAL_NOTE: ctypes.c_int,
    DESCRIPTOR: ctypes.c_void_p,
    CHAR: ctypes.c_char,
}


@dataclass(frozen=True)
class Convolution:
    """Shapes as cuDNN sees them: at least two image dimensions, and all three tensors in one layout."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: str
    channels_last: bool

    @property
    def y(self) -> tuple[int, ...]:
        pixels = zip(self.x[2:], self.w[2:], self.stride, self.padding, self.dilation, strict=True)
        return (self.x[0], self.w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in pixels))


@dataclass(frozen=True)
class Plan:
    engine: int
    notes: tuple[int, ...]
    knobs: dict[int, int]  # by number of the knob's type
    workspace_bytes: int | None  # None: not to be built


class CudnnError(RuntimeError):
    """cuDNN refused."""


def strides(shape: Sequence[int], channels_last: bool) -> list[int]:
    order = [1, *range(len(shape) - 1, 1, -1), 0] if channels_last else [*range(len(shape) - 1, -1, -1)]
    found, step = [0] * len(shape), 1
    for index in order:
        found[index] = step
        step *= shape[index]
    return found


class Cudnn:
    """The library, and the GPU that is asked about."""

    def __init__(self, path: str, device_json: str | None = None) -> None:
        self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self.library.cudnnGetVersion.restype = ctypes.c_size_t
        self.library.cudnnGetErrorString.restype = ctypes.c_char_p
        self.version = int(self.library.cudnnGetVersion())
        self.handle = ctypes.c_void_p()
        if device_json is None:
            self.check(self.library.cudnnCreate(ctypes.byref(self.handle)))
            self.device = None
        else:
            self.device = self.create(DEVICE)
            text = device_json.encode() + b"\0"
            self.check(self.library.cudnnBackendSetAttribute(self.device, 2702, CHAR, ctypes.c_int64(len(text)), text))
            self.check(self.library.cudnnBackendFinalize(self.device))

    def check(self, status: int) -> None:
        if status:
            raise CudnnError(self.library.cudnnGetErrorString(status).decode())

    def create(self, kind: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.check(self.library.cudnnBackendCreateDescriptor(kind, ctypes.byref(made)))
        return made

    @contextmanager
    def descriptors(self) -> Iterator[list[ctypes.c_void_p]]:
        made: list[ctypes.c_void_p] = []
        try:
            yield made
        finally:
            for descriptor in reversed(made):
                self.library.cudnnBackendDestroyDescriptor(descriptor)

    def finalized(
        self, made: list[ctypes.c_void_p], kind: int, *attributes: tuple[int, int, Sequence[Any]]
    ) -> ctypes.c_void_p:
        descriptor = self.create(kind)
        made.append(descriptor)
        for name, value_type, values in attributes:
            plain = [value.value if isinstance(value, ctypes.c_void_p) else value for value in values]
            array = (C_TYPES[value_type] * len(plain))(*plain)
            count = ctypes.c_int64(len(plain))
            self.check(self.library.cudnnBackendSetAttribute(descriptor, name, value_type, count, array))
        self.check(self.library.cudnnBackendFinalize(descriptor))
        return descriptor

    def get(self, descriptor: ctypes.c_void_p, name: int, value_type: int, limit: int, array: Any = None) -> list[Any]:
        values = (C_TYPES[value_type] * limit)() if array is None else array
        count = ctypes.c_int64()
        self.check(
            self.library.cudnnBackendGetAttribute(
                descriptor, name, value_type, ctypes.c_int64(limit), ctypes.byref(count), values
            )
        )
        return list(values[: min(count.value, limit)])

    def device_json(self) -> str:
        """The GPU of the handle, as `device_json` of another machine takes it."""
        with self.descriptors() as made:
            device = self.finalized(made, DEVICE, (2701, HANDLE, [self.handle]))
            return bytes(self.get(device, 2702, CHAR, 65536)).rstrip(b"\0").decode()

    def plans(self, convolution: Convolution, kind: Kind, limit: int = 1) -> list[Plan]:
        """The first `limit` plans that can be built, and those before them that cannot; fallbacks if there are none."""
        for mode in (INSTANT, FALLBACK):
            found = self._proposed(convolution, kind, limit, mode)
            if any(plan.workspace_bytes is not None for plan in found):
                break
        return found

    def _proposed(self, convolution: Convolution, kind: Kind, limit: int, mode: int) -> list[Plan]:
        with self.descriptors() as made:
            graph = self._graph(made, convolution, kind)
            owner = [] if self.device is None else [(204, DESCRIPTOR, [self.device])]
            try:
                heuristics = self.finalized(
                    made, HEURISTICS, (201, DESCRIPTOR, [graph]), (200, HEURISTIC_MODE, [mode]), *owner
                )
            except CudnnError:  # nothing to propose
                return []
            configs = [self.create(ENGINE_CONFIG) for _ in range(100)]
            made += configs
            array = (ctypes.c_void_p * len(configs))(*[config.value for config in configs])
            found: list[Plan] = []
            for address in self.get(heuristics, 202, DESCRIPTOR, len(configs), array):
                plan = self._plan(made, ctypes.c_void_p(address), convolution)
                if plan is not None:
                    found.append(plan)
                if sum(plan.workspace_bytes is not None for plan in found) >= limit:
                    break
            return found

    def _graph(self, made: list[ctypes.c_void_p], convolution: Convolution, kind: Kind) -> ctypes.c_void_p:
        data_type = DATA_TYPES[convolution.dtype]
        x, w, y = (
            self.finalized(
                made,
                TENSOR,
                (901, DATA_TYPE, [data_type]),
                (902, INT64, shape),
                (903, INT64, strides(shape, convolution.channels_last)),
                (906, INT64, [number]),
                (900, INT64, [ALIGNMENT_BYTES]),
            )
            for number, shape in enumerate((convolution.x, convolution.w, convolution.y), start=1)
        )
        described = self.finalized(
            made,
            CONVOLUTION,
            (100, DATA_TYPE, [0]),
            (101, CONVOLUTION_MODE, [1]),
            (106, INT64, [len(convolution.stride)]),
            (103, INT64, convolution.stride),
            (105, INT64, convolution.padding),
            (104, INT64, convolution.padding),
            (102, INT64, convolution.dilation),
        )
        descriptor, names = OPERATIONS[kind]
        operands = zip(names[:4], (described, x, w, y), strict=True)
        scales = ((names[4], FLOAT, [1.0]), (names[5], FLOAT, [0.0]))
        operation = self.finalized(
            made, descriptor, *((name, DESCRIPTOR, [operand]) for name, operand in operands), *scales
        )
        owner = [(800, HANDLE, [self.handle])] if self.device is None else []
        return self.finalized(made, GRAPH, (801, DESCRIPTOR, [operation]), *owner)

    def _plan(self, made: list[ctypes.c_void_p], config: ctypes.c_void_p, convolution: Convolution) -> Plan | None:
        """None for engines that torch leaves out."""
        engine = self.create(ENGINE)
        made.append(engine)
        address = self.get(config, 300, DESCRIPTOR, 1, (ctypes.c_void_p * 1)(engine.value))[0]
        number = self.get(ctypes.c_void_p(address), 1301, INT64, 1)[0]
        notes = tuple(self.get(ctypes.c_void_p(address), 1303, NUMERICAL_NOTE, 10))
        if convolution.dtype == "f32" and DOWN_CONVERTS_INPUTS in notes:
            return None
        owner = (400, HANDLE, [self.handle]) if self.device is None else (407, DESCRIPTOR, [self.device])
        try:
            plan = self.finalized(made, PLAN, owner, (401, DESCRIPTOR, [config]))
        except CudnnError:
            return Plan(number, notes, {}, None)
        return Plan(number, notes, self._knobs(made, config), self.get(plan, 402, INT64, 1)[0])

    def _knobs(self, made: list[ctypes.c_void_p], config: ctypes.c_void_p) -> dict[int, int]:
        choices = [self.create(KNOB_CHOICE) for _ in range(50)]
        made += choices
        array = (ctypes.c_void_p * len(choices))(*[choice.value for choice in choices])
        addresses = [ctypes.c_void_p(address) for address in self.get(config, 302, DESCRIPTOR, len(choices), array)]
        return {self.get(a, 600, KNOB_TYPE, 1)[0]: self.get(a, 601, INT64, 1)[0] for a in addresses}
