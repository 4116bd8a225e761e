"""cuDNN itself, where it is installed: the plan that it proposes for a convolution on a GPU that is not there.

In: a `Convolution` and a `Gpu`. Out: `first_plan`, the one that torch runs (Conv_v8.cpp: the heuristics' list, then the
fallback list; engines that lower the precision of fp32 inputs are left out), and `first_proposal`, the first one of
that list, which is not built: where there is a driver, building compiles kernels (0.4 s instead of 3 ms), and without
one nothing that is listed fails (3,000 passes). None without a library, or without a plan.

The library is that of torch's CUDA builds (package nvidia.cudnn, 9.8 and later, which plans for GPUs described in
JSON). Only descriptors are made: no driver is asked, nothing runs. On a machine without a GPU cuBLASLt's and the FFT's
engines say that they are not supported; apart from them engine and knobs were those of the GPU's own handle for all
1,881 passes that were compared (H200, cuDNN 9.19, benchmarks/probe_convolutions.py, which asks a GPU's own handle by
the same `proposed_plan`). Other GPUs were not compared.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

from trainfit.gpus.catalogue import Gpu

_Found = TypeVar("_Found")
Pass = Literal["output", "input gradient", "weight gradient"]
_FIRST_VERSION = 90800
_DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 9}
# cudnn_graph.h: types of attributes, and kinds of descriptors
HANDLE, _DATA_TYPE, _INT64, _FLOAT, _CONVOLUTION_MODE, _HEURISTIC_MODE, _KNOB_TYPE = 0, 1, 3, 4, 7, 8, 9
_NOTE, _DESCRIPTOR, _CHAR = 11, 15, 24
_CONVOLUTION, _ENGINE, _ENGINE_CONFIG, _HEURISTICS, _PLAN, _KNOB_CHOICE = 1, 2, 3, 4, 5, 7
_GRAPH, _TENSOR, _DEVICE = 15, 17, 38
# kind of the operation, and its attributes: convolution, x, w, y, alpha, beta
_OPERATIONS: dict[Pass, tuple[int, tuple[int, ...]]] = {
    "output": (10, (702, 704, 703, 705, 700, 701)),
    "input gradient": (12, (708, 710, 709, 711, 706, 707)),
    "weight gradient": (11, (714, 716, 715, 717, 712, 713)),
}
_INSTANT, _FALLBACK = 0, 2
_DOWN_CONVERTS_INPUTS = 1
_ALIGNMENT_BYTES = 16
_FEW_CONFIGS, _MOST_CONFIGS, _MOST_KNOBS, _MOST_NOTES = 4, 100, 50, 10  # a few are read in less than half the time
_C_TYPES: dict[int, Any] = {
    **dict.fromkeys((_DATA_TYPE, _CONVOLUTION_MODE, _HEURISTIC_MODE, _KNOB_TYPE, _NOTE), ctypes.c_int),
    _INT64: ctypes.c_int64,
    _FLOAT: ctypes.c_float,
    _DESCRIPTOR: ctypes.c_void_p,
    HANDLE: ctypes.c_void_p,
    _CHAR: ctypes.c_char,
}
# By compute capability: shared memory per block (opt-in), threads and blocks per multiprocessor (CUDA's programming
# guide, table of technical specifications).
_LIMITS = {
    (7, 0): (98304, 2048, 32),
    (7, 5): (65536, 1024, 16),
    (8, 0): (166912, 2048, 32),
    (8, 6): (101376, 1536, 16),
    (8, 9): (101376, 1536, 24),
    (9, 0): (232448, 2048, 32),
    (10, 0): (232448, 2048, 32),
    (12, 0): (101376, 1536, 24),
}


@dataclass(frozen=True, slots=True)
class Convolution:
    """Shapes have two or three image dimensions; all tensors are in one layout."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: str
    channels_last: bool


@dataclass(frozen=True, slots=True)
class Proposal:
    engine: int
    knobs: tuple[tuple[int, int], ...]  # (type, value)


@dataclass(frozen=True, slots=True)
class Plan:
    engine: int
    knobs: tuple[tuple[int, int], ...]
    workspace_bytes: int


class CudnnError(RuntimeError):
    """cuDNN refused."""


def is_installed() -> bool:
    return library() is not None


def version() -> int:
    """Of the library, as in 91900; 0 where there is none."""
    loaded = library()
    return 0 if loaded is None else int(loaded.cudnnGetVersion())


@lru_cache(maxsize=2**14)
def first_plan(convolution: Convolution, kind: Pass, gpu: Gpu) -> Plan | None:
    return _asked(proposed_plan, convolution, kind, gpu)


@lru_cache(maxsize=2**14)
def first_proposal(convolution: Convolution, kind: Pass, gpu: Gpu) -> Proposal | None:
    return _asked(_proposed, convolution, kind, gpu)


def _asked(ask: Callable[..., _Found | None], convolution: Convolution, kind: Pass, gpu: Gpu) -> _Found | None:
    loaded = library()
    target = described_target(gpu) if loaded is not None else None
    if target is None:
        return None
    try:
        return ask(loaded, convolution, kind, target)
    except CudnnError:  # a convolution that cuDNN does not know, as one of an empty batch
        return None


_Attribute = tuple[int, int, Sequence[Any]]  # name, type, values


@dataclass(frozen=True, slots=True)
class Target:
    """Who would run the plans, as the attributes that say so to a graph, to the heuristics, and to a plan."""

    graph: tuple[_Attribute, ...]
    heuristics: tuple[_Attribute, ...]
    plan: tuple[_Attribute, ...]


def described_target(gpu: Gpu) -> Target | None:
    device = _device(gpu)
    if device is None:
        return None
    return Target((), ((204, _DESCRIPTOR, [device]),), ((407, _DESCRIPTOR, [device]),))


def proposed_plan(loaded: Any, convolution: Convolution, kind: Pass, target: Target) -> Plan | None:
    """The first that can be built of the heuristics' list, or of the fallbacks if that has none."""
    with Descriptors(loaded) as made:
        configs = _configs(made, convolution, kind, target)
        return next(filter(None, (_plan(made, config, target) for config in configs)), None)


def _proposed(loaded: Any, convolution: Convolution, kind: Pass, target: Target) -> Proposal | None:
    with Descriptors(loaded) as made:
        config = next(_configs(made, convolution, kind, target), None)
        return None if config is None else _proposal(made, config)


def _configs(made: Descriptors, convolution: Convolution, kind: Pass, target: Target) -> Iterator[ctypes.c_void_p]:
    """Engines and their knobs, the best first, but for those that torch leaves out."""
    graph = _graph(made, convolution, kind, target)
    for mode in (_INSTANT, _FALLBACK):
        asked: tuple[_Attribute, ...] = (
            (201, _DESCRIPTOR, [graph]),
            (200, _HEURISTIC_MODE, [mode]),
            *target.heuristics,
        )
        heuristics = made.finalized(_HEURISTICS, *asked)
        for most in (_FEW_CONFIGS, _MOST_CONFIGS):
            for config in made.descriptors_of(heuristics, 202, _ENGINE_CONFIG, most):
                notes = made.numbers_of(_engine(made, config), 1303, _NOTE, _MOST_NOTES)
                if convolution.dtype != "float32" or _DOWN_CONVERTS_INPUTS not in notes:
                    yield config


class Descriptors:
    """Descriptors that go when the block ends."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._made: list[ctypes.c_void_p] = []

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in reversed(self._made):
            self._library.cudnnBackendDestroyDescriptor(descriptor)

    def _check(self, status: int) -> None:
        if status:
            raise CudnnError(self._library.cudnnGetErrorString(status).decode())

    def new(self, kind: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._check(self._library.cudnnBackendCreateDescriptor(kind, ctypes.byref(made)))
        self._made.append(made)
        return made

    def finalized(self, kind: int, *attributes: _Attribute) -> ctypes.c_void_p:
        """A descriptor with these (name, type, values)."""
        descriptor = self.new(kind)
        for name, value_type, values in attributes:
            plain = [value.value if isinstance(value, ctypes.c_void_p) else value for value in values]
            array = (_C_TYPES[value_type] * len(plain))(*plain)
            self._set(descriptor, name, value_type, len(plain), array)
        self._check(self._library.cudnnBackendFinalize(descriptor))
        return descriptor

    def device(self, text: str) -> ctypes.c_void_p:
        descriptor = self.new(_DEVICE)
        encoded = text.encode() + b"\0"
        self._set(descriptor, 2702, _CHAR, len(encoded), encoded)
        self._check(self._library.cudnnBackendFinalize(descriptor))
        return descriptor

    def _set(self, descriptor: ctypes.c_void_p, name: int, value_type: int, count: int, array: Any) -> None:
        self._check(self._library.cudnnBackendSetAttribute(descriptor, name, value_type, ctypes.c_int64(count), array))

    def numbers_of(self, descriptor: ctypes.c_void_p, name: int, value_type: int, most: int) -> list[int]:
        return self._get(descriptor, name, value_type, (_C_TYPES[value_type] * most)())

    def descriptors_of(self, descriptor: ctypes.c_void_p, name: int, kind: int, most: int) -> list[ctypes.c_void_p]:
        """The library fills in descriptors that are there already."""
        array = (ctypes.c_void_p * most)(*[self.new(kind).value for _ in range(most)])
        return [ctypes.c_void_p(address) for address in self._get(descriptor, name, _DESCRIPTOR, array)]

    def _get(self, descriptor: ctypes.c_void_p, name: int, value_type: int, array: Any) -> list[int]:
        count = ctypes.c_int64()
        self._check(
            self._library.cudnnBackendGetAttribute(
                descriptor, name, value_type, ctypes.c_int64(len(array)), ctypes.byref(count), array
            )
        )
        return list(array[: min(count.value, len(array))])


def _graph(made: Descriptors, convolution: Convolution, kind: Pass, target: Target) -> ctypes.c_void_p:
    x, weight, y = (
        made.finalized(
            _TENSOR,
            (901, _DATA_TYPE, [_DATA_TYPES[convolution.dtype]]),
            (902, _INT64, shape),
            (903, _INT64, _strides(shape, convolution.channels_last)),
            (906, _INT64, [number]),
            (900, _INT64, [_ALIGNMENT_BYTES]),
        )
        for number, shape in enumerate((convolution.x, convolution.weight, convolution.y), start=1)
    )
    described = made.finalized(
        _CONVOLUTION,
        (100, _DATA_TYPE, [_DATA_TYPES["float32"]]),
        (101, _CONVOLUTION_MODE, [1]),  # cross-correlation
        (106, _INT64, [len(convolution.stride)]),
        (103, _INT64, convolution.stride),
        (105, _INT64, convolution.padding),
        (104, _INT64, convolution.padding),
        (102, _INT64, convolution.dilation),
    )
    descriptor, names = _OPERATIONS[kind]
    operands = ((name, _DESCRIPTOR, [one]) for name, one in zip(names, (described, x, weight, y), strict=False))
    operation = made.finalized(descriptor, *operands, (names[4], _FLOAT, [1.0]), (names[5], _FLOAT, [0.0]))
    return made.finalized(_GRAPH, (801, _DESCRIPTOR, [operation]), *target.graph)


def _strides(shape: Sequence[int], channels_last: bool) -> list[int]:
    order = [1, *range(len(shape) - 1, 1, -1), 0] if channels_last else [*range(len(shape) - 1, -1, -1)]
    found, step = [0] * len(shape), 1
    for index in order:
        found[index] = step
        step *= shape[index]
    return found


def _engine(made: Descriptors, config: ctypes.c_void_p) -> ctypes.c_void_p:
    return made.descriptors_of(config, 300, _ENGINE, 1)[0]


def _proposal(made: Descriptors, config: ctypes.c_void_p) -> Proposal:
    choices = made.descriptors_of(config, 302, _KNOB_CHOICE, _MOST_KNOBS)
    knobs = [(made.numbers_of(c, 600, _KNOB_TYPE, 1)[0], made.numbers_of(c, 601, _INT64, 1)[0]) for c in choices]
    return Proposal(made.numbers_of(_engine(made, config), 1301, _INT64, 1)[0], tuple(sorted(knobs)))


def _plan(made: Descriptors, config: ctypes.c_void_p, target: Target) -> Plan | None:
    """None for what cuDNN cannot build."""
    try:
        plan = made.finalized(_PLAN, *target.plan, (401, _DESCRIPTOR, [config]))
    except CudnnError:
        return None
    proposal = _proposal(made, config)
    return Plan(proposal.engine, proposal.knobs, made.numbers_of(plan, 402, _INT64, 1)[0])


@cache
def library() -> Any:
    """cuDNN, or None where it is not installed or too old. Linux only, as are the packages."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        # Without cuBLASLt cuDNN does not fail but abort, so that one is loaded first.
        _load(("nvidia.cu13", "nvidia.cublas"), "libcublasLt.so.*")
        loaded = _load(("nvidia.cudnn",), "libcudnn.so.9")
    except OSError:
        return None
    loaded.cudnnGetErrorString.restype = ctypes.c_char_p
    loaded.cudnnGetVersion.restype = ctypes.c_size_t
    return loaded if loaded.cudnnGetVersion() >= _FIRST_VERSION else None


def _load(packages: Sequence[str], name: str) -> ctypes.CDLL:
    for package in packages:
        try:
            spec = find_spec(package)
        except ModuleNotFoundError:  # not even its parent
            continue
        folders = list(spec.submodule_search_locations or ()) if spec else []
        for path in sorted(path for folder in folders for path in Path(folder, "lib").glob(name)):
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    raise OSError(f"none of {', '.join(packages)} is installed")


@cache
def _device(gpu: Gpu) -> ctypes.c_void_p | None:
    """The GPU as cuDNN describes one; it stays for the rest of the process."""
    limits = _LIMITS.get(gpu.compute_capability)
    if gpu.vendor != "nvidia" or limits is None:
        return None
    shared_bytes, num_threads, num_blocks = limits
    major, minor = gpu.compute_capability
    described = {
        "deviceName": gpu.torch_names[0],
        "deviceVer": 100 * major + 10 * minor,
        "multiProcessorCount": gpu.num_sms,
        "totalGlobalMem": gpu.memory_bytes,
        "l2CacheSize": gpu.l2_bytes,
        "maxSharedMemoryPerBlockOptin": shared_bytes,
        "maxThreadsPerSM": num_threads,
        "maxCtasPerSM": num_blocks,
        "reservedSharedMemoryPerBlock": 1024 if major >= 8 else 0,
        # The same for all, or (clocks, driver) without influence: 944 plans were the same with others.
        "cudaDeviceId": 0,
        "driverVer": 13000,
        "isTccDriver": 0,
        "maxRegistersPerSM": 65536,
        "regsPerBlock": 65536,
        "maxSharedMemoryPerBlock": 49152,
        "maxThreadsPerBlock": 1024,
        "memClockRateKHz": 3201000,
        "smClockRateKHz": 1980000,
        "pciDeviceId": 0,
        "supportCoopLaunch": 1,
        "warpSize": 32,
        "maxBlockSize": [1024, 1024, 64],
        "maxGridSize": [2**31 - 1, 65535, 65535],
    }
    return Descriptors(library()).device(json.dumps(described))
