"""The statistics of a model's modules in one structure, and the graph of modules that the solver works on.

In: a `MemTracker`, a `RuntimeEstimator` and a `SACEstimator` that saw a training step (or `collect_stats`, which needs
one run for all three). Out: `ModuleInfo`, then a `Graph`: modules in the order of their first forward.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypedDict

import numpy as np
import torch
from torch import nn

from trainfit.autosac.mem_tracker import MemTracker, _ModMemStats, _ModState
from trainfit.autosac.recording import _MemRefType
from trainfit.autosac.runtime_estimator import RuntimeEstimator
from trainfit.autosac.sac_estimator import SACEstimator
from trainfit.autosac.step_memory import CallMemory, StepMemory, call_memories, step_memory
from trainfit.autosac.tables import UNITS
from trainfit.errors import UsageError


class ModOrder(TypedDict):
    """Modules by when they run; one that is called several times comes several times."""

    fw_post_order: list[str]
    bw_post_order: list[str]
    fw_pre_order: list[str]
    bw_pre_order: list[str]


class ModStats(TypedDict):
    """One module; sizes are bytes, times ms. What its calls do to memory is in `calls`, the rest describes it."""

    fqn: str
    is_leaf: bool  # without children, so that nothing is known of its ops
    param_per_module: int
    input_per_module: int
    output_per_module: int
    fw_runtime_per_module: float
    bw_runtime_per_module: float
    act_total: int  # activations when its forward is done
    act_fw_per_module: int  # activations that it leaves for backward, outputs apart
    act_bw_per_module: int  # activations at the peak of its backward
    act_grad_per_module: int  # what its backward adds for a moment
    grad_per_module: int  # of the parameters that are trained
    grad_total: int  # gradients that are there when its backward begins
    tradeoff_curve: OrderedDict[float, float]  # share of `sac_memory` dropped -> share of `sac_runtime`
    sac_memory: int
    sac_runtime: float
    breakpoints: list[float]  # of the lines above the curve
    slopes: list[float]
    intercepts: list[float]
    n_segments: int
    calls: list[CallMemory]


class ModRuntime(TypedDict):
    """In ms."""

    fw: float
    bw: float


class ModuleInfo(TypedDict):
    """All modules, and the memory of the whole step."""

    mod_order: ModOrder
    mod_stats: list[ModStats]
    step_memory: StepMemory


def aggregate_stats(
    model: nn.Module,
    mem_tracker: MemTracker,
    runtime_estimator: RuntimeEstimator,
    sac_estimator: SACEstimator,
    dev: torch.device,
) -> ModuleInfo:
    """Put together what the three saw of `model` on the device `dev`."""
    sac_estimator.pwlf_sac_tradeoff_curve()
    stats_of, runtimes = mem_tracker.memory_tracking, runtime_estimator.mod_runtimes
    device = _indexed(dev, mem_tracker)
    ledger = mem_tracker.ledgers()[device]
    spans = mem_tracker.spans()
    memories = call_memories(mem_tracker.recording, ledger, spans)
    calls: dict[str, list[CallMemory]] = {}
    for call, memory in memories.items():
        calls.setdefault(call.fqn, []).append(memory)
    return {
        "mod_order": {
            "fw_pre_order": runtime_estimator.mod_fw_pre_order,
            "bw_pre_order": runtime_estimator.mod_bw_pre_order,
            "fw_post_order": runtime_estimator.mod_fw_post_order,
            "bw_post_order": runtime_estimator.mod_bw_post_order,
        },
        "mod_stats": [
            _mod_stats(module, stats_of[module], device, runtimes, sac_estimator, calls)
            for module in model.modules()
            if module in stats_of and stats_of[module].mod_fqn in runtimes
        ],
        "step_memory": step_memory(ledger, len(mem_tracker.recording.ops), spans[0].start.ops if spans else 0),
    }


def _mod_stats(
    module: nn.Module,
    memory: _ModMemStats,
    device: torch.device,
    runtimes: dict[str, dict[str, float]],
    sac_estimator: SACEstimator,
    calls: dict[str, list[CallMemory]],
) -> ModStats:
    fqn = memory.mod_fqn
    curve = sac_estimator.sac_mod_tradeoff_stats.get(fqn)

    def latest(state: _ModState, kind: str) -> int:
        """Bytes at the latest such moment; none for a module that has no backward."""
        snapshots = memory.snapshots.get(state)
        return snapshots[-1].get(device, {}).get(kind, 0) if snapshots else 0

    act, temp = _MemRefType.ACT, _MemRefType.TEMP
    mine = calls.get(fqn, [])
    return {
        "fqn": fqn,
        "param_per_module": memory.parameter_mem,
        "grad_per_module": sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad),
        "grad_total": latest(_ModState.PRE_BW, _MemRefType.GRAD),
        "act_fw_per_module": sum(call.left_bytes for call in mine),
        "act_bw_per_module": latest(_ModState.PEAK_BW, act),
        "act_grad_per_module": max(0, latest(_ModState.PEAK_BW, temp) - latest(_ModState.PRE_BW, temp)),
        "act_total": latest(_ModState.POST_FW, act),
        "input_per_module": memory.input_mem,
        "output_per_module": memory.output_mem,
        "fw_runtime_per_module": runtimes[fqn]["fw"],
        "bw_runtime_per_module": runtimes[fqn]["bw"],
        "is_leaf": curve is None,
        "sac_runtime": curve.sac_runtime if curve else 0.0,
        "sac_memory": curve.sac_memory if curve else 0,
        "n_segments": curve.n_segments if curve else 0,
        "slopes": curve.slopes if curve else [],
        "intercepts": curve.intercepts if curve else [],
        "breakpoints": curve.fit_breaks if curve else [],
        "tradeoff_curve": curve.tradeoff_curve if curve else OrderedDict(),
        "calls": mine,
    }


def _indexed(dev: torch.device, mem_tracker: MemTracker) -> torch.device:
    """The tracked device that `dev` means: "cuda" is the one GPU, whatever its number."""
    wanted = torch.device(dev)
    tracked = list(mem_tracker.ledgers())
    for device in tracked:
        if device.type == wanted.type and wanted.index in (None, device.index):
            return device
    raise UsageError(
        f"nothing was tracked on {wanted}", hint=f"name the device of the model: {', '.join(map(str, tracked)) or '?'}"
    )


class Node(ModStats):
    """A module in the graph."""

    index: int  # by its first forward's beginning
    pos_fw_post_order: int  # by its first forward's end


class Graph:
    """Modules in the order of their first forward, and which is inside which."""

    def __init__(self, n: int) -> None:
        self.nodes: list[Node] = []
        self.name2node: dict[str, Node] = {}
        self.ad_matrix = np.zeros((n, n))  # [outer, inner]
        self.fw_post_order: list[str] = []
        self.step_memory: StepMemory | None = None

    def add_node(self, node: Node) -> None:
        self.nodes.append(node)
        self.name2node[node["fqn"]] = node


def parse_module_info(module_info: ModuleInfo) -> Graph:
    """The graph of the modules. A module that is called several times is one node, at its first call."""
    orders = module_info["mod_order"]
    began = _first_places(orders["fw_pre_order"])
    ended = _first_places(orders["fw_post_order"])
    graph = Graph(len(module_info["mod_stats"]))
    graph.fw_post_order = list(ended)
    graph.step_memory = module_info.get("step_memory")
    for index, stats in enumerate(sorted(module_info["mod_stats"], key=lambda stats: began[stats["fqn"]])):
        graph.add_node({**stats, "index": index, "pos_fw_post_order": ended[stats["fqn"]]})
    for outer in graph.nodes:
        for inner in graph.nodes:
            if is_self_or_submodule(inner["fqn"], outer["fqn"]):
                graph.ad_matrix[outer["index"]][inner["index"]] = 1
    return graph


def _first_places(order: list[str]) -> dict[str, int]:
    return {fqn: place for place, fqn in enumerate(dict.fromkeys(order))}


def is_self_or_submodule(name_descendant: str, name_ancestor: str) -> bool:
    """Whether the first path is the second or leads on from it."""
    return name_descendant == name_ancestor or is_submodule(name_descendant, name_ancestor)


def is_submodule(name_descendant: str, name_ancestor: str) -> bool:
    """Whether the first path leads on from the second."""
    return name_descendant.startswith(name_ancestor + ".")


def display_bytes(b: int, unit: str = "MiB") -> str:
    """A size in KiB, MiB or GiB, else in bytes."""
    return f"{b / UNITS[unit]:.2f} {unit}" if unit in ("KiB", "MiB", "GiB") else f"{b:.2f} bytes"


def get_peak_memory_runtime_baseline(graph: Graph, *, optimizer_state: bool = False) -> tuple[int, float]:
    """The step without checkpointing or sharding: peak bytes, at one moment of the step, and ms of compute.

    Optimizer state is left out unless asked for.
    """
    root = graph.nodes[0]
    values = memory_of(graph).by_op(1, optimizer_state)
    return round(values.max(initial=0)), root["fw_runtime_per_module"] + root["bw_runtime_per_module"]


def memory_of(graph: Graph) -> StepMemory:
    if graph.step_memory is None:
        raise UsageError(
            "the graph has no memory of a step: its module_info has no 'step_memory'",
            hint="make it with trainfit.autosac's aggregate_stats or collect_stats, and parse_module_info",
        )
    return graph.step_memory
