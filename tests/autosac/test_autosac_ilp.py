"""`ilp_utils`, `sac_ilp`, `collect_stats` and `apply_sac`: torch's cases, D12 to D17, and soundness."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import trainfit
from trainfit.autosac import (
    MemTracker,
    RuntimeEstimator,
    SACEstimator,
    aggregate_stats,
    apply_sac,
    collect_stats,
    get_greedy_checkpointing_policy_per_module,
    get_optimal_checkpointing_policy_per_module,
    get_peak_memory_runtime_baseline,
    parse_module_info,
    runs,
    sac_milp,
)
from trainfit.autosac.ilp_utils import Graph, display_bytes, is_self_or_submodule, is_submodule
from trainfit.autosac.sac_estimator import SACStats
from trainfit.autosac.sac_ilp import SACDecision
from trainfit.errors import PlanMismatch, UsageError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from autosac_model import Sizes, make_training, train_step

COST_MODEL = "operator-level-cost-model"
GPU, GIB = torch.device("cuda:0"), 2**30
THEIR_BASELINE_BYTES = 2583888896
"""What torch's test expects of its own tools, on an A100."""


@functools.cache
def torchs_case() -> tuple[Graph, dict[str, int]]:
    """The GPT of torch's tests, statistics collected as there, in three runs; and the peak of the second step."""
    with trainfit.ghost_gpu("a100-80gb"):
        model, optimizer, tokens = make_training()
        memory = MemTracker()
        memory.track_external(model, optimizer)
        with memory:
            for iteration in range(2):
                output = model(tokens)  # the one before is still there while the next is made
                output.sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if iteration == 0:
                    memory.reset_mod_stats()
        runtime, sac = RuntimeEstimator(), SACEstimator()
        for estimator in (runtime, sac):
            with estimator(COST_MODEL):
                train_step(model, optimizer, tokens)
        graph = parse_module_info(aggregate_stats(model, memory, runtime, sac, torch.device("cuda")))
        return graph, memory.get_tracker_snapshot("peak")[GPU]


LAYERS = {f"Transformer.layers.{n}" for n in range(4)}


def test_a_budget_of_2_4_gib_on_4_ranks_needs_nothing() -> None:
    decisions, recompute_ms, peak_bytes = solution = sac_milp(torchs_case()[0], 2.4, world_size=4)
    assert (decisions, recompute_ms, solution.status, solution.gap) == ({}, 0, "optimal", 0.0)
    assert 1 < peak_bytes <= 2.4 * GIB


def test_a_budget_of_0_8_gib_on_4_ranks_is_infeasible() -> None:
    solution = sac_milp(torchs_case()[0], 0.8, world_size=4)
    assert tuple(solution) == ({}, 0, -1)
    assert solution.status == "infeasible"


def test_a_budget_of_1_6_gib_on_4_ranks_checkpoints_layers_0_to_3() -> None:
    graph, _ = torchs_case()
    decisions, recompute_ms, peak_bytes = solution = sac_milp(graph, 1.6, world_size=4)
    assert solution.status == "optimal"
    assert set(decisions) == LAYERS
    assert peak_bytes <= 1.6 * GIB
    # Torch's test: 6.97 of 97.97 ms, within 25%. Ours keeps a budget with optimizer state and transients in it; without
    # the state it is closer.
    _, compute_ms = get_peak_memory_runtime_baseline(graph)
    less, less_ms, _ = sac_milp(graph, 1.6, world_size=4, optimizer_state=False)
    assert set(less) <= LAYERS
    assert 0 < less_ms <= recompute_ms
    assert 0.04 < less_ms / compute_ms < 0.12


def test_parts_of_layers_are_checkpointed_where_they_are_named() -> None:
    """Where whole layers do not fit they are too: `test_d13` has a model that needs it."""
    graph, _ = torchs_case()
    parts = [f"{layer}{part}" for layer in sorted(LAYERS) for part in ("", ".attention", ".feed_forward")]
    whole_ms, parts_ms = sac_milp(graph, 1.6, world_size=4)[1], sac_milp(graph, 1.6, world_size=4, ac_units=parts)[1]
    assert 0 < parts_ms < whole_ms


def test_d12_the_baseline_is_the_memory_of_one_moment() -> None:
    """Within 5% of the number in torch's test. Theirs adds activations at the end of forward to temporaries at the peak
    of backward: that formula, on our statistics, is 10% more than the step holds at any one moment."""
    graph, peak = torchs_case()
    baseline, _ = get_peak_memory_runtime_baseline(graph)
    assert baseline == peak["Total"] - peak["Optstate"]
    assert baseline / THEIR_BASELINE_BYTES == pytest.approx(1.0, abs=0.05)
    with_state, _ = get_peak_memory_runtime_baseline(graph, optimizer_state=True)
    assert with_state == peak["Total"]
    nodes = graph.nodes
    formula = nodes[0]["param_per_module"] + max(
        node["grad_total"] + node["act_grad_per_module"] + node["act_total"] for node in nodes
    )
    assert formula / baseline == pytest.approx(1.10, abs=0.01)


def sizes_only(stats: list[Any]) -> list[Any]:
    """Statistics without the numbers of ops: hooks on what autograd saves add views to backward."""

    def sizes(call: Any) -> tuple[int, ...]:
        return call.left_bytes, call.held_bytes, call.transient_bytes

    return [{**one, "calls": [sizes(call) for call in one["calls"]]} for one in stats]


def test_one_run_gives_what_three_give() -> None:
    with trainfit.ghost_gpu("a100-80gb"):
        sizes = Sizes(layers=2, dim=96, heads=2, vocabulary=64, sequence=32)
        training = model, optimizer, tokens = make_training(sizes)
        train_step(*training)
        info, _ = collect_stats(model, functools.partial(train_step, *training), optimizer, tokens)
        memory, runtime, sac = MemTracker(), RuntimeEstimator(), SACEstimator()
        memory.track_external(model, optimizer, tokens)
        for tracker in (memory, runtime(COST_MODEL), sac(COST_MODEL)):
            with tracker:
                train_step(*training)
        three = aggregate_stats(model, memory, runtime, sac, GPU)
    assert info["mod_order"] == three["mod_order"]
    assert sizes_only(info["mod_stats"]) == sizes_only(three["mod_stats"])
    assert len(info["mod_stats"]) == len(info["mod_order"]["fw_pre_order"]) == 6 + 2 * 14


# Torch's fixture: ops with (name, ms, bytes).
OPS = [("copy_", 5, 0), ("add", 5, 100), ("div", 8, 100), ("mm", 15, 120), ("native_dropout", 15, 0),
       ("linear", 9, 100), ("t", 1, 0), ("relu_", 5, 0)]  # fmt: skip
FIXTURE = SACStats(
    func_names=[name for name, _, _ in OPS],
    runtimes=[float(ms) for _, ms, _ in OPS],
    memory=[nbytes for _, _, nbytes in OPS],
    view_like_ops=[6],
    rand_ops=[4],
    saved_autograd_ops=[],
    inplace_ops=[(0, 0), (7, 5)],
    force_store_random=False,
)


@pytest.mark.parametrize(
    ("budget", "optimal", "greedy"),
    [
        (0, "10001000", "10001000"),
        (100 / 420, "10001101", "10001101"),
        (120 / 420, "10011000", "10001101"),
        (200 / 420, "10101101", "10001101"),
        (220 / 420, "10011101", "10011101"),
        (320 / 420, "10111101", "10111101"),
        (1, "11111101", "11111101"),
    ],
)
def test_the_seven_policies_of_torchs_test_and_the_greedy_ones(budget: float, optimal: str, greedy: str) -> None:
    assert get_optimal_checkpointing_policy_per_module(FIXTURE, budget) == [int(c) for c in optimal]
    assert get_greedy_checkpointing_policy_per_module(FIXTURE, budget) == [int(c) for c in greedy]
    assert (SACDecision.RECOMPUTE, SACDecision.SAVE) == (0, 1)


def test_a_policys_budget_is_a_share() -> None:
    for policy in (get_optimal_checkpointing_policy_per_module, get_greedy_checkpointing_policy_per_module):
        with pytest.raises(ValueError, match=r"between 0 and 1, not 1\.5"):
            policy(FIXTURE, 1.5)


class Mixed(nn.Module):
    """Blocks that differ: in-place activations, a module called twice, a frozen part, a buffer, a dead branch."""

    def __init__(self, dim: int = 256) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(dim))
        self.frozen = nn.Sequential(nn.Linear(dim, dim), nn.ReLU()).requires_grad_(False)
        self.shared = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(inplace=True), nn.Linear(4 * dim, dim))
        self.tail = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim))
        self.unused = nn.Sequential(nn.Linear(dim, dim), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(x) * self.scale
        self.unused(x)
        return self.tail(self.shared(torch.relu(self.shared(x))))


def mixed_training() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    with torch.device("cuda"):
        model, inputs = Mixed(), torch.ones(2048, 256)
    return model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], momentum=0.9), inputs


def accumulate(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    for _ in range(2):
        model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


SMALL_GPT = Sizes(layers=7, heads=4, dim=128, vocabulary=256, sequence=128)
CASES: dict[str, tuple[Any, Any, list[float]]] = {
    "gpt": (functools.partial(make_training, SMALL_GPT), train_step, [0.9, 0.7, 0.55, 0.42]),
    "gpt in bf16, accumulated": (
        functools.partial(make_training, SMALL_GPT, dtype=torch.bfloat16),
        accumulate,
        [0.8, 0.6],
    ),
    "mixed": (mixed_training, accumulate, [0.97, 0.9, 0.8, 0.7]),
}


@pytest.mark.parametrize(("case", "policy"), [*((case, "optimal") for case in CASES), ("mixed", "greedy")])
def test_d13_the_real_peak_is_at_most_the_predicted_one_and_that_at_most_the_budget(case: str, policy: Any) -> None:
    """Theirs, applied, exceeds tight budgets by up to 2% and wastes 8 to 12% of loose ones."""
    make, step, shares = CASES[case]
    with trainfit.ghost_gpu("a100-80gb"):
        training = model, optimizer, inputs = make()
        step(*training)
        info, sac = collect_stats(model, functools.partial(step, *training), optimizer, inputs)
        graph = parse_module_info(info)
        base, _ = get_peak_memory_runtime_baseline(graph, optimizer_state=True)
        times, solved = [], 0
        for share in shares:
            decisions, recompute_ms, predicted = solution = sac_milp(graph, share * base / GIB)
            if solution.status == "infeasible":
                continue
            undo = apply_sac(model, decisions, sac, policy)
            tracker = MemTracker()
            tracker.track_external(model, optimizer, inputs)
            with tracker:
                step(*training)
            undo()
            real = tracker.get_tracker_snapshot("peak")[GPU]["Total"]
            assert real <= predicted <= share * base
            assert real > 0.9 * predicted
            times.append(recompute_ms)
            solved += 1
        assert solved >= 2
        assert times == sorted(times)


@pytest.mark.parametrize("context", [contextlib.nullcontext, FakeTensorMode])
def test_decisions_are_sound_on_cpu_tensors_and_on_fake_ones_too(context: Any) -> None:
    with context():
        model, inputs = Mixed(64), torch.ones(512, 64)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], momentum=0.9)
        training = model, optimizer, inputs
        accumulate(*training)
        info, sac = collect_stats(model, functools.partial(accumulate, *training), optimizer, inputs, gpu="h200")
        graph = parse_module_info(info)
        base, _ = get_peak_memory_runtime_baseline(graph, optimizer_state=True)
        decisions, _, predicted = sac_milp(graph, 0.9 * base / GIB)
        apply_sac(model, decisions, sac)
        tracker = MemTracker()
        tracker.track_external(*training)
        with tracker:
            accumulate(*training)
    assert decisions
    assert tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"] <= predicted <= 0.9 * base


def test_d14_optimizer_state_inputs_buffers_and_unsharded_parameters_count() -> None:
    """Theirs counts none of them; gradients of frozen parameters it does count."""
    with trainfit.ghost_gpu("a100-80gb"):
        training = model, optimizer, inputs = mixed_training()
        info, _ = collect_stats(model, functools.partial(accumulate, *training), optimizer, inputs)
    graph = parse_module_info(info)
    trained = sum(p.numel() * 4 for part in (model.shared, model.tail) for p in part.parameters())
    without = sac_milp(graph, 100, optimizer_state=False)[2]
    assert sac_milp(graph, 100)[2] - without == trained  # a momentum each; all sizes are multiples of 512 bytes
    assert graph.name2node["Mixed.frozen"]["grad_per_module"] == 0
    nodes = [graph.name2node[f"Mixed.{name}"] for name in ("shared", "tail")]
    first, second = sorted(node["param_per_module"] for node in nodes)
    gathered = sac_milp(graph, 100, world_size=4, fsdp_units=["Mixed.shared", "Mixed.tail"])[2]
    plain = sac_milp(graph, 100, world_size=4)[2]
    assert gathered - plain == first + second + 2 * max(node["grad_per_module"] for node in nodes)
    assert plain < sac_milp(graph, 100)[2]


def test_units_can_be_named_and_nothing_around_an_fsdp_unit_is_checkpointed() -> None:
    graph, _ = torchs_case()
    chosen = {f"Transformer.layers.{n}.feed_forward" for n in range(4)}
    decisions, _, _ = sac_milp(graph, 1.9, world_size=4, ac_units=sorted(chosen))
    assert decisions
    assert decisions.keys() <= chosen
    decisions, _, _ = sac_milp(graph, 1.9, world_size=4, fsdp_units=sorted(chosen))
    assert decisions
    assert not any(is_submodule(unit, fqn) for unit in chosen for fqn in decisions)


@functools.cache
def deep_graph(layers: int) -> Graph:
    with trainfit.ghost_gpu("a100-80gb"):
        training = make_training(Sizes(layers=layers, heads=4, dim=256, sequence=256))
        info, _ = collect_stats(training[0], functools.partial(train_step, *training), *training[1:])
    return parse_module_info(info)


def test_d15_32_layers_at_80_percent_take_less_than_two_seconds() -> None:
    """Theirs stops at its limit of 180 s, and says it succeeded."""
    graph = deep_graph(32)
    baseline, _ = get_peak_memory_runtime_baseline(graph)
    start = time.process_time()
    decisions, recompute_ms, peak_bytes = solution = sac_milp(graph, 0.8 * baseline / GIB, optimizer_state=False)
    assert time.process_time() - start < 2
    assert solution.status == "optimal"
    assert solution.gap <= 2e-4
    assert 0 < peak_bytes <= 0.8 * baseline
    assert sac_milp(graph, 0.8 * baseline / GIB, optimizer_state=False) == (decisions, recompute_ms, peak_bytes)


def test_counting_equal_layers_costs_little_and_the_gap_is_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = deep_graph(8)
    baseline, _ = get_peak_memory_runtime_baseline(graph, optimizer_state=True)
    for share in (0.9, 0.75, 0.6):
        counted = sac_milp(graph, share * baseline / GIB)
        with monkeypatch.context() as patch:
            patch.setattr(runs, "MIN_BLOCKS", 1000)
            apart = sac_milp(graph, share * baseline / GIB)
        assert apart.status == "optimal"
        assert apart[1] <= counted[1] * 1.0002
        assert counted[1] * (1 - counted.gap) <= apart[1] * 1.0002
        assert counted[1] <= apart[1] * 1.1


def test_d16_a_policy_for_other_ops_is_refused() -> None:
    """Theirs matches ops by position in another run, and recomputes whatever it does not find."""
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)))
    sac = SACEstimator(gpu="h200")
    with sac(COST_MODEL):
        model(torch.ones(4, 8)).sum().backward()
    undo = apply_sac(model, {"Sequential.0": 1.0}, sac)
    model(torch.ones(4, 8)).sum().backward()
    model[0][1] = nn.Tanh()
    with pytest.raises(PlanMismatch, match=r"'Sequential\.0' differs from what the estimator saw: op \d is no gelu"):
        model(torch.ones(4, 8))
    undo()
    model(torch.ones(4, 8)).sum().backward()


@pytest.mark.parametrize("ratio", [0.3, 0.6, 1.0])
def test_a_checkpointed_model_has_the_gradients_of_the_plain_one(ratio: float) -> None:
    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        model(inputs).sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    torch.manual_seed(0)
    model, inputs = Mixed(16), torch.randn(8, 16)
    sac = SACEstimator(gpu="h200")
    with sac(COST_MODEL):
        model(inputs).sum().backward()
    plain, keys = gradients(), list(model.state_dict())
    undo = apply_sac(model, {"Mixed.shared": ratio, "Mixed.tail": ratio}, sac)
    assert all(torch.equal(one, other) for one, other in zip(plain, gradients(), strict=True))
    assert list(model.state_dict()) == keys
    undo()
    assert "forward" not in vars(model.tail)


def test_d17_names_are_paths_and_nodes_are_in_the_order_in_which_they_run() -> None:
    """Theirs finds "L.a" inside "L.modelL.a.x", and leaves the nodes in the order of registration."""
    assert not is_submodule("L.modelL.a.x", "L.a")
    assert is_submodule("L.a.x", "L.a")
    assert not is_submodule("L.a", "L.a")
    assert is_self_or_submodule("L.a", "L.a")
    assert not is_self_or_submodule("L.ab", "L.a")
    with trainfit.ghost_gpu("h200"):
        training = mixed_training()
        graph = parse_module_info(collect_stats(training[0], functools.partial(accumulate, *training))[0])
    order = [node["fqn"] for node in graph.nodes if node["fqn"].count(".") == 1]
    assert order == ["Mixed.frozen", "Mixed.unused", "Mixed.shared", "Mixed.tail"]
    assert [node["index"] for node in graph.nodes] == list(range(len(graph.nodes)))
    root, shared, inner = (graph.name2node[n]["index"] for n in ("Mixed", "Mixed.shared", "Mixed.shared.0"))
    assert graph.ad_matrix[root][inner] == graph.ad_matrix[shared][inner] == graph.ad_matrix[shared][shared] == 1
    assert graph.ad_matrix[inner][shared] == 0
    assert graph.name2node["Mixed.frozen"]["grad_total"] == 0  # it has no backward at all
    assert len(graph.name2node["Mixed.shared"]["calls"]) == 4  # twice in each of two micro-batches


def test_sizes_are_shown_in_the_unit_that_is_asked_for() -> None:
    assert [display_bytes(3 * 2**20, unit) for unit in ("KiB", "MiB", "GiB", "B")] == [
        *("3072.00 KiB", "3.00 MiB", "0.00 GiB", "3145728.00 bytes"),
    ]


def test_a_graph_without_the_memory_of_a_step_is_refused() -> None:
    info = {"mod_order": {"fw_pre_order": [], "fw_post_order": [], "bw_pre_order": [], "bw_post_order": []}}
    graph = parse_module_info({**info, "mod_stats": []})  # type: ignore[typeddict-item]
    with pytest.raises(UsageError, match=r"no memory of a step.*collect_stats"):
        sac_milp(graph, 1.0)
