"""torchtitan's own Llama 3, through torchtitan's own parallelize function, with a plan as its activation checkpointing.

Needs torchtitan 0.3 (`pip install torchtitan`); it is skipped without. One rank, on the CPU, FSDP2 by torchtitan. Its
language models take flex or varlen attention, which need a GPU or a compiler: torchtitan's module around torch's
attention takes their place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainfit
from trainfit.apply import record_block, structure_of

llama3 = pytest.importorskip("torchtitan.models.llama3")

from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import ParallelDims, parallel_dims  # noqa: E402
from torchtitan.distributed.activation_checkpoint import FullAC  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402

from trainfit.torchtitan import PlanAC  # noqa: E402

LAYERS = 2
TOKENS = torch.arange(2 * 128).view(2, 128)


def build() -> nn.Module:
    """The debug model with two layers."""
    config = llama3.model_registry("debugmodel", attn_backend="varlen").model
    config.layers = config.layers[:LAYERS]
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    torch.manual_seed(0)
    model: Any = config.build()
    model.init_states()
    return model


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(parallel_dims, "device_type", "cpu")  # torchtitan takes a machine without a GPU for one with CUDA
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    patch.undo()


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for an L4, with its decisions said again for the kernels that the CPU has: recompute everything."""
    step = trainfit.Step(model=build, batch=(TOKENS,), loss=loss_of)
    made = trainfit.plan(step, "l4", budget="min", memory="allocated")
    model: Any = build()
    x = model.tok_embeddings(TOKENS)
    structure = structure_of(record_block(model.layers["0"], (x, None, None), {}))
    blocks = tuple(f"layers.{index}" for index in range(LAYERS))
    decision = {"blocks": blocks, "summary": "", "kept_bytes": 0, "recompute_ns": 0, "structure": structure, "kept": ()}
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(json.dumps({**json.loads(made.to_json()), "decisions": [decision]}))
    return path


def parallelized(ac_config: Any) -> nn.Module:
    """As torchtitan's trainer makes it."""
    dims = ParallelDims(
        dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, world_size=1, spmd_backend="partial_dtensor"
    )
    return llama3.parallelize_llama(  # type: ignore[no-any-return]
        build(),
        parallel_dims=dims,
        training=TrainingConfig(mixed_precision_param="float32"),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        compile_config=CompileConfig(enable=False),
        ac_config=ac_config,
        dump_folder="",
    )


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    loss_of(model(TOKENS)).backward()
    return {name: p.grad.full_tensor() for name, p in model.named_parameters()}  # type: ignore[union-attr, operator]


def test_the_debug_model_follows_a_plan_and_has_the_same_gradients(
    one_rank: None, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[Any] = []
    apply = PlanAC.apply
    monkeypatch.setattr(PlanAC, "apply", lambda policy, model: (apply(policy, model), applied.append(policy.handle)))
    expected = gradients(parallelized(None))
    found = gradients(parallelized(PlanAC.Config(plan=str(plan_file), strict=True)))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    (handle,) = applied
    for stats in handle.stats():
        assert (stats.forwards, stats.replays, stats.reruns) == (1, 1, 0)
        assert stats.dropped_bytes > 0
    assert [stats.name for stats in handle.stats()] == ["layers.0", "layers.1"]


def test_torchtitans_own_checkpointing_has_other_parameter_names_and_ours_has_not(
    one_rank: None, plan_file: Path
) -> None:
    names = [name for name, _ in parallelized(None).named_parameters()]
    assert [name for name, _ in parallelized(PlanAC.Config(plan=str(plan_file))).named_parameters()] == names
    assert [name for name, _ in parallelized(FullAC.Config()).named_parameters()] != names
