"""Bringing the user's model and batch onto the ghost GPU without touching them.

A module is copied with every tensor replaced by one that is nowhere, then "moved" tensor by tensor in the order of
`module.to("cuda")`; a callable is called with cuda as the default device. Ties between parameters are kept. A model in
evaluation mode is put into training mode; in one that trains, each module keeps its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from trainfit import torch_compat
from trainfit.errors import BadStep, TraceError
from trainfit.ghost.tensor import Ghost
from trainfit.ghost.values import LARGEST_MIRROR_BYTES


def place_model(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """The model on the ghost GPU, in training mode; what the user passed stays as it is."""
    if isinstance(model, nn.Module):
        _refuse_shapeless(model)
        placed = _copy_without_data(model)
    else:
        with torch.device("cuda"):
            placed = model()
        if not isinstance(placed, nn.Module):
            raise BadStep(
                f"Step.model built a {type(placed).__name__}, not an nn.Module",
                hint="return the module from the callable, or pass the module itself",
            )
        _refuse_shapeless(placed)
    moved: dict[int, torch.Tensor] = {}
    _move(placed, moved)
    for module in placed.modules():
        if moved and isinstance(module, nn.RNNBase):  # one that was built on cuda has done so itself
            torch_compat.flatten_weights(module)
    return placed if placed.training else placed.train()


def place_batch(batch: Mapping[str, Any] | tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The batch's tensors on the ghost GPU, as positional and keyword arguments of the model."""

    moved: dict[int, torch.Tensor] = {}  # labels are often the very tensor that the inputs are

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            moved[id(tensor)] = tensor.detach().to("cuda").requires_grad_(tensor.requires_grad)
        return moved[id(tensor)]

    if isinstance(batch, Mapping):
        return (), torch_compat.tree_map_only(torch.Tensor, move, dict(batch))
    if isinstance(batch, tuple):
        return torch_compat.tree_map_only(torch.Tensor, move, batch), {}
    raise BadStep(
        f"Step.batch is a {type(batch).__name__}",
        hint="pass a dict of keyword arguments or a tuple of positional ones",
    )


def _refuse_shapeless(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise BadStep(
                f"{name} of {type(model).__name__} has no shape yet",
                hint="run the model once on the CPU, so that its lazy modules learn their sizes, and pass it then",
            )


def _copy_without_data(model: nn.Module) -> nn.Module:
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) in memo or _may_steer(tensor):
            continue
        with torch_compat.dispatch_modes_off():  # nowhere, and not on the ghost GPU yet
            plain = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(plain, tensor.requires_grad) if is_parameter else plain
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise TraceError(
            f"{type(model).__name__} cannot be copied: {error}",
            hint="pass a callable that builds the model: Step(model=lambda: MyModel(...))",
        ) from error


def _may_steer(tensor: torch.Tensor) -> bool:
    """Whether the ghost GPU would remember the values: integers of a buffer, such as lengths and positions."""
    is_integer = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    return is_integer and tensor.is_cpu and tensor.nbytes <= LARGEST_MIRROR_BYTES


def _move(module: nn.Module, moved: dict[int, torch.Tensor]) -> None:
    """Children first, then parameters, then buffers: the order in which `module.to("cuda")` allocates."""
    for child in module.children():
        _move(child, moved)
    for table in (module._parameters, module._buffers):
        for name, tensor in table.items():
            if tensor is not None and not isinstance(tensor, Ghost):
                table[name] = _moved(tensor, moved)  # type: ignore[assignment]


def _moved(tensor: torch.Tensor, moved: dict[int, torch.Tensor]) -> torch.Tensor:
    if id(tensor) not in moved:
        if tensor.is_meta:
            ghost = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
        else:
            ghost = tensor.detach().to("cuda")
        is_parameter = isinstance(tensor, nn.Parameter)
        moved[id(tensor)] = nn.Parameter(ghost, tensor.requires_grad) if is_parameter else ghost
    return moved[id(tensor)]
