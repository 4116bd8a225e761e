"""Answers of `torch.cuda` and `torch.accelerator` for a GPU that is not there; restored when the context closes."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.backends.cudnn.rnn
import torch.cuda.amp.common

from trainfit import torch_compat
from trainfit.ghost.recurrent import RNN_MODES
from trainfit.ghost.streams import Streams
from trainfit.ghost.tensor import CUDA, Ghost
from trainfit.ghost.values import remember
from trainfit.gpus.catalogue import Gpu

CUDNN_DTYPES = (torch.float16, torch.float32, torch.float64)
"""Types for which Python thinks that cuDNN can be used; RNN weights of other types are never flattened."""


class _Nothing:
    """Stands for a device guard: usable as a context, deaf to every call."""

    device = CUDA

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


class _Generator(torch.Generator):
    """A generator of random numbers for a GPU that draws none: the host's own, whatever device it was made for."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]

    def __init__(self, device: Any = "cpu") -> None:
        self._said = CUDA if torch.device(device).type == "cuda" else torch.device(device)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._said


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _answers(gpu: Gpu, streams: Streams) -> dict[str, Any]:
    """Attribute path under torch -> what stands there while the ghost GPU is present."""
    capability = gpu.compute_capability
    properties = SimpleNamespace(
        name=gpu.name,
        major=capability[0],
        minor=capability[1],
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.num_sms,
        L2_cache_size=gpu.l2_bytes,
    )
    answers: dict[str, Any] = {
        "cuda.is_available": lambda: True,
        "cuda.is_initialized": lambda: True,
        "cuda._initialized": True,
        "cuda.device_count": lambda: 1,
        "cuda.current_device": lambda: 0,
        "cuda.get_device_name": lambda device=None: gpu.name,
        "cuda.get_device_capability": lambda device=None: capability,
        "cuda.get_device_properties": lambda device=None: properties,
        "cuda.mem_get_info": lambda device=None: (gpu.memory_bytes - gpu.context_bytes, gpu.memory_bytes),
        "cuda.memory_stats": lambda device=None: defaultdict(int),
        "cuda.memory_summary": lambda device=None, abbreviated=False: "",
        "cuda.is_bf16_supported": lambda including_emulation=True: including_emulation or capability >= (8, 0),
        "cuda.is_current_stream_capturing": lambda: False,
        "cuda.get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
        "cuda.get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)],
        "cuda.device": _Nothing,
        "cuda.device_of": _Nothing,
        "cuda.Stream": streams.stream_class,
        "cuda.Event": streams.event_class,
        "cuda.stream": streams.on,
        "cuda.set_stream": streams.set_current,
        "cuda.current_stream": lambda device=None: streams.current,
        "cuda.default_stream": lambda device=None: streams.default,
        "cuda.amp.common.amp_definitely_not_available": lambda: False,
        "accelerator.is_available": lambda: True,
        "accelerator.device_count": lambda: 1,
        "accelerator.current_accelerator": lambda check_available=False: torch.device("cuda"),
        "accelerator.current_device_index": lambda: 0,
        "accelerator.current_stream": lambda device=None: streams.current,
        "backends.cudnn.is_available": lambda: True,
        "backends.cudnn.is_acceptable": lambda tensor: isinstance(tensor, Ghost) and tensor.dtype in CUDNN_DTYPES,
        "backends.cudnn.rnn.get_cudnn_mode": lambda mode: RNN_MODES[mode.lower()],
        "Generator": _Generator,
        "Tensor.pin_memory": lambda tensor, device=None: tensor,
        "Tensor.is_pinned": lambda tensor, device=None: False,
        "_use_cudnn_rnn_flatten_weight": lambda: True,
        "utils._foreach_utils._get_foreach_kernels_supported_devices": lambda: ["cuda", "meta"],  # ghosts group as meta
    }
    counters = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved"
    answers |= dict.fromkeys((f"cuda.{name}" for name in counters.split()), lambda device=None: 0)
    silent = (
        "cuda._lazy_init cuda.init cuda.synchronize cuda.empty_cache cuda.set_device cuda.set_rng_state "
        "cuda.set_rng_state_all cuda.manual_seed cuda.manual_seed_all cuda.seed cuda.reset_peak_memory_stats "
        "cuda.ipc_collect cuda.nvtx.range_push cuda.nvtx.range_pop cuda.nvtx.mark accelerator.synchronize "
        "accelerator.set_device_index"
    )
    return answers | dict.fromkeys(silent.split(), _nothing)


def _through_the_host(construct: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A constructor from Python data works below the dispatcher: for cuda it works on the CPU, and the result moves."""

    @functools.wraps(construct)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is None and args and isinstance(args[0], Ghost):
            return construct(*args, **kwargs)
        target = torch.empty(0).device if device is None else torch.device(device)
        if target.type != "cuda":
            return construct(*args, **kwargs)
        needs_grad = kwargs.pop("requires_grad", False)
        written = construct(*args, **{**kwargs, "device": "cpu"})
        ghost = written.to(CUDA)
        if not needs_grad:
            remember(ghost, written)
        return ghost.requires_grad_(needs_grad)

    return made


@contextlib.contextmanager
def cuda_answers(gpu: Gpu, streams: Streams, forget_casts: Callable[[], None]) -> Iterator[None]:
    """`torch.cuda` answers for `gpu`; `forget_casts` runs when autocast drops its weight casts."""
    clear_autocast_cache = torch.clear_autocast_cache

    def clear_both() -> None:
        clear_autocast_cache()
        forget_casts()

    torch_compat.device_constructors()  # torch collects these once: let it collect the real ones
    constructors = {name: _through_the_host(getattr(torch, name)) for name in ("tensor", "as_tensor", "asarray")}
    with contextlib.ExitStack() as stack:
        for path, answer in (_answers(gpu, streams) | constructors | {"clear_autocast_cache": clear_both}).items():
            owner, _, name = ("torch." + path).rpartition(".")
            if hasattr(_resolve(owner), name):  # torch.accelerator grew from version to version
                stack.enter_context(mock.patch(f"{owner}.{name}", answer))
        for types in torch_compat.FOREACH_TYPE_LISTS:
            types.append(Ghost)
            stack.callback(types.remove, Ghost)
        yield


def _resolve(path: str) -> Any:
    value: Any = torch
    for name in path.split(".")[1:]:
        value = getattr(value, name)
    return value
