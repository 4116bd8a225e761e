"""Values that are known although they are on the ghost GPU: small integer and boolean tensors from the host, sequences.

Masks, lengths and token ids steer a program (`if mask.all()`), and the batch that the user passed has them; models work
out their widths and rates from sequences (`torch.linspace(0, 0.1, depth).tolist()`). Such a tensor has a mirror on the
CPU, kept per storage, so that every view of it is known too; ops whose tensor arguments are all known are run on the
mirrors as well. Writing something unknown into a storage makes it unknown. Numbers that a model is filled with are not
followed: training changes them.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from trainfit import torch_compat
from trainfit.ghost.tensor import Ghost

LARGEST_MIRROR_BYTES, LARGEST_REAL_BYTES = 2**20, 2**15
"""Of integers, and of real numbers, which seldom steer a program."""
_mirrors: dict[int, torch.Tensor] = {}  # address of a ghost's storage -> its bytes
_ends: dict[int, weakref.ref[Any]] = {}
_told: dict[int, bytes] = {}
"""What a storage had in it when the program first asked for a value of it."""


def known_value(ghost: torch.Tensor) -> torch.Tensor | None:
    """The values of a ghost as a CPU tensor that shares memory with the mirror, or None when they are unknown."""
    if ghost.is_cpu:
        return ghost  # a mask on the host, which indexes what is on the GPU
    mirror = _mirrors.get(ghost.untyped_storage()._cdata)
    if mirror is None and ghost.numel() > 0:
        return None
    with torch_compat.host_kernels():
        if mirror is None:
            return torch.empty(ghost.shape, dtype=ghost.dtype)  # nothing is all there is to know
        return mirror.view(ghost.dtype).as_strided(ghost.shape, ghost.stride(), ghost.storage_offset())


def note_told(ghost: torch.Tensor) -> None:
    """The program is told a value of this ghost."""
    address = ghost.untyped_storage()._cdata
    if address in _mirrors:
        _told.setdefault(address, _content(address))


def would_be_told_otherwise() -> bool:
    """Whether something that the program asked for and that is still there has another value now."""
    return any(address not in _mirrors or _content(address) != content for address, content in _told.items())


def _content(address: int) -> bytes:
    with torch_compat.host_kernels():
        return bytes(_mirrors[address].tolist())


def is_known(ghost: torch.Tensor) -> bool:
    return ghost.untyped_storage()._cdata in _mirrors


def learn(ghost: torch.Tensor, values: torch.Tensor) -> None:
    """From now on the ghost has these values, if they are whole numbers and few."""
    if not _is_real(ghost):
        remember(ghost, values)


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def remember(ghost: torch.Tensor, values: torch.Tensor) -> None:
    """The same of real numbers too, if they are few: those that the program itself wrote down, or worked out."""
    storage = ghost.untyped_storage()
    if not 0 < storage.nbytes() <= (LARGEST_REAL_BYTES if _is_real(ghost) else LARGEST_MIRROR_BYTES):
        return
    address = storage._cdata
    with torch_compat.host_kernels():
        _mirrors[address] = torch.zeros(storage.nbytes(), dtype=torch.uint8, device="cpu")
        _ends[address] = weakref.ref(storage, functools.partial(_forget_all_of, address))
        known_value(ghost).copy_(values)  # type: ignore[union-attr]


def forget_all() -> None:
    _mirrors.clear()
    _ends.clear()
    _told.clear()


def follow(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """After an op ran on ghosts: run it on the mirrors too if all it read is known; else what it wrote is unknown."""
    if written := _written_arguments(func):
        found = [args[place] if place < len(args) else kwargs.get(name) for place, name in written]
        ghosts = [leaf for leaf in torch_compat.tree_flatten(found)[0] if isinstance(leaf, Ghost)]
        known = [ghost for ghost in ghosts if is_known(ghost)]
        is_followed = len(known) == 1 and known[0] is args[0] and _run_on_mirrors(func, args, kwargs) is not None
        for ghost in () if is_followed else known:
            _mirrors.pop(ghost.untyped_storage()._cdata, None)
        if func is torch.ops.aten.copy_.default and not is_followed:
            _note_copied(*args[:2])
        return
    made = [result] if isinstance(result, Ghost) else result if isinstance(result, (tuple, list)) else []
    if not any(isinstance(one, Ghost) and _may_be_known(func, args, one) for one in made):
        return
    values = _run_on_mirrors(func, args, kwargs)
    for ghost, value in zip(made, values or (), strict=False):
        if isinstance(ghost, Ghost) and not is_known(ghost):
            remember(ghost, value)


def _note_copied(target: torch.Tensor, source: torch.Tensor) -> None:
    """What is filled with known values is known. Real numbers from the host are what a model is filled with."""
    values = known_value(source)
    if values is not None and not values.is_meta and _fills_its_storage(target):
        (remember if isinstance(source, Ghost) else learn)(target, values)


def _may_be_known(func: Any, args: tuple[Any, ...], result: Ghost) -> bool:
    """Small, no view of what is known, and if it has real numbers, made of nothing or of what is known."""
    if result.untyped_storage().nbytes() > LARGEST_MIRROR_BYTES or is_known(result):
        return False
    return not _is_real(result) or func in _SEQUENCES or _reads_known(args)


@functools.cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Their places in the schema, and their names."""
    aliased = ((place, one) for place, one in enumerate(func._schema.arguments) if one.alias_info is not None)
    return tuple((place, one.name) for place, one in aliased if one.alias_info.is_write)


def _reads_known(args: tuple[Any, ...]) -> bool:
    """Whether the first tensor is: nearly always it is not, and then nothing else needs to be looked at."""
    for arg in args:
        first = arg[0] if isinstance(arg, (list, tuple)) and arg else arg
        if isinstance(first, Ghost):
            return is_known(first)
    return False


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, Ghost) and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _run_on_mirrors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    """The op's results on the CPU, or None when an argument is unknown or the op cannot run there."""
    if torch.Tag.nondeterministic_seeded in func.tags or func in _NEVER_KNOWN:
        return None
    unknown = False

    def mirrored(value: torch.Tensor) -> torch.Tensor | None:
        nonlocal unknown
        found = known_value(value) if isinstance(value, Ghost) else value
        unknown = unknown or found is None or found.is_meta
        return found

    cpu_args, cpu_kwargs = torch_compat.tree_map_only(torch.Tensor, mirrored, (args, kwargs))
    if unknown:
        return None
    if cpu_kwargs.get("device") is not None:
        cpu_kwargs = {**cpu_kwargs, "device": torch.device("cpu")}
    with torch_compat.host_kernels():
        try:
            values = func(*cpu_args, **cpu_kwargs)
        except (RuntimeError, NotImplementedError):
            return None  # CUDA has a kernel for it and the CPU has not: the result stays unknown
    found = list(values) if isinstance(values, (tuple, list)) else [values]
    return found if all(isinstance(value, torch.Tensor) for value in found) else None


_SEQUENCES = frozenset(
    {torch.ops.aten.arange.default, torch.ops.aten.arange.start, torch.ops.aten.arange.start_step}
    | {torch.ops.aten.linspace.default, torch.ops.aten.logspace.default}
)
_NEVER_KNOWN = frozenset(
    {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default, torch.ops.aten.empty_like.default}
    | {torch.ops.aten.new_empty.default, torch.ops.aten.new_empty_strided.default}
)


def _forget_all_of(address: int, _end: object) -> None:
    for known in (_mirrors, _ends, _told):
        known.pop(address, None)
