"""Collectives that a profile measured: two tables by hand, and the times and sources that follow from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import trainfit
from trainfit.calibrate.collectives import Ranks, _groups, _time, gpu_group, measure_collectives
from trainfit.cost import COLLECTIVE, MEASURED_COLLECTIVE, Pricing, load_profile, network_of, price_with, pricing_for
from trainfit.cost.measured_collectives import KINDS
from trainfit.cost.network import collective_ns
from trainfit.cost.profile import write_profile
from trainfit.errors import BadProfile
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Op, Phase, TensorRef

MIB = 2**20
H200 = find_gpu("h200")
NODE = {"kind": "all_gather", "ranks": 8, "nodes": 1, "points": [[MIB, 100_000], [16 * MIB, 500_000]]}
NODES = {"kind": "all_reduce", "ranks": 16, "nodes": 2, "points": [[MIB, 300_000]]}
SHIPPED = Path(trainfit.__file__).parent / "cost" / "profiles" / "h200.json"


def write(path: Path, *tables: dict[str, Any]) -> Path:
    write_profile(path, json.loads(SHIPPED.read_text()) | {"collectives": list(tables)})
    return path


@pytest.fixture
def pricing(tmp_path: Path) -> Pricing:
    return pricing_for(H200, load_profile(write(tmp_path / "profile.json", NODE, NODES)))


def gather(nbytes: int, num_ranks: int, name: str = "c10d._allgather_base_.default") -> Op:
    whole = TensorRef(0, "uint8", (nbytes,), (1,), 0)
    return Op(name, Phase.FORWARD, "", (whole,), (("ranks", tuple(range(num_ranks))),), ())


def price(pricing: Pricing, op: Op) -> tuple[int, str]:
    (cost,) = price_with([op], pricing)
    return cost.time_ns, cost.rule


def modelled(nbytes: int, num_ranks: int, num_nodes: int = 1, reduces_to_all: bool = False) -> float:
    return collective_ns(reduces_to_all, nbytes, num_ranks, num_nodes, network_of(H200))


def test_what_was_measured_is_what_it_takes(pricing: Pricing) -> None:
    assert price(pricing, gather(MIB, 8)) == (100_000, MEASURED_COLLECTIVE)
    assert price(pricing, gather(16 * MIB, 8)) == (500_000, MEASURED_COLLECTIVE)


def test_between_and_beyond_the_sizes_the_formula_is_corrected(pricing: Pricing) -> None:
    low, high = 100_000 / modelled(MIB, 8), 500_000 / modelled(16 * MIB, 8)
    # 4 MiB is halfway from 1 to 16 along their logarithms.
    assert price(pricing, gather(4 * MIB, 8))[0] == round(modelled(4 * MIB, 8) * (low + high) / 2)
    assert price(pricing, gather(1024, 8))[0] == round(modelled(1024, 8) * low)
    assert price(pricing, gather(1024 * MIB, 8))[0] == round(modelled(1024 * MIB, 8) * high)


def test_another_group_of_a_node_gets_the_same_correction_and_other_links_get_none(pricing: Pricing) -> None:
    assert price(pricing, gather(MIB, 4))[0] == round(modelled(MIB, 4) * 100_000 / modelled(MIB, 8))
    # One node's gathers say nothing about two nodes, nor about sums.
    assert price(pricing, gather(MIB, 16)) == (round(modelled(MIB, 16, 2)), COLLECTIVE)
    total = "c10d.allreduce_.default"
    assert price(pricing, gather(MIB, 8, total)) == (round(modelled(MIB, 8, 1, True)), COLLECTIVE)
    expected = modelled(MIB, 32, 4, True) * 300_000 / modelled(MIB, 16, 2, True)
    assert price(pricing, gather(MIB, 32, total)) == (round(expected), MEASURED_COLLECTIVE)


def test_a_rate_that_the_user_gives_stands_for_what_was_measured(pricing: Pricing) -> None:
    given = replace(pricing, network=network_of(H200, intra_gb_per_s=100))
    assert price(given, gather(MIB, 8)) == (round(collective_ns(False, MIB, 8, 1, given.network)), COLLECTIVE)
    assert price(given, gather(MIB, 16, "c10d.allreduce_.default")) == (300_000, MEASURED_COLLECTIVE)


def test_an_estimate_says_where_its_collectives_come_from(tmp_path: Path) -> None:
    step = trainfit.Step(
        model=lambda: nn.Linear(512, 512, bias=False),
        batch=(torch.zeros(1, 512),),
        loss=torch.sum,
        ddp=trainfit.DDP(world_size=8),
    )
    table = {"kind": "all_reduce", "ranks": 8, "nodes": 1, "points": [[MIB, 7_000_000]]}
    estimate = trainfit.estimate(step, "h200", profile=write(tmp_path / "profile.json", table))
    assert estimate.time is not None
    assert (estimate.time.communication_ms, estimate.time.communication_source) == (7.0, "profile")  # 1 MiB, one bucket
    assert "7.0 ms of collectives, as the profile measured" in str(estimate)
    plain = trainfit.estimate(step, "h200").to_json_dict()
    assert (plain["communication_source"], plain["communication_ms"] < 1) == ("links", True)
    alone = trainfit.estimate(replace(step, ddp=None), "h200").to_json_dict()
    assert (alone["communication_source"], alone["communication_ms"]) == (None, 0)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"kind": "broadcast"}, "no collective is called 'broadcast'"),
        ({"ranks": 1}, "all_gather among 1 ranks"),
        ({"nodes": 9}, "among 8 ranks of 9 nodes"),
        ({"points": []}, "rising sizes"),
        ({"points": [[MIB, 1], [MIB, 2]]}, "rising sizes"),
        ({"points": [[MIB, 0]]}, "positive times"),
        ({"points": [[MIB]]}, "not enough values"),
    ],
)
def test_a_damaged_table_is_an_error_that_says_what_is_wrong(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    with pytest.raises(BadProfile, match=what):
        load_profile(write(tmp_path / "profile.json", NODE | change))


def test_a_group_is_measured_once(tmp_path: Path) -> None:
    with pytest.raises(BadProfile, match="one kind and group"):
        load_profile(write(tmp_path / "profile.json", NODE, NODE))
    missing = {name: value for name, value in NODE.items() if name != "nodes"}
    with pytest.raises(BadProfile, match="damaged: KeyError: 'nodes'"):
        load_profile(write(tmp_path / "profile.json", missing))


def test_the_groups_are_each_node_one_rank_of_each_and_all() -> None:
    assert _groups(4, 2) == [[0, 1], [2, 3], [0, 2], [0, 1, 2, 3]]
    assert _groups(2, 2) == [[0, 1]]
    assert _groups(2, 1) == [[0, 1]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_one_gpu_alone_times_each_collective_over_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL wants a GPU per rank: with one GPU all but the links is exercised."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with gpu_group(Ranks(rank=0, local_rank=0, num_ranks=1, num_per_node=1)):
        assert dist.get_backend() == "nccl"
        for kind in KINDS:
            nbytes, time_ns = _time(kind, 64 * MIB, 1, dist.new_group([0]), "cuda")
            assert nbytes == 64 * MIB
            assert 1_000 < time_ns < 10_000_000  # a copy within the GPU, or nothing
        assert measure_collectives(1, "cuda", print) == []  # no group has two ranks
    assert not dist.is_initialized()
