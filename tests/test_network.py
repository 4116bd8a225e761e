"""Collectives by hand: latency and bandwidth of the best algorithm and protocol, in the order NCCL would find them."""

from __future__ import annotations

import pytest

from trainfit.cost import COLLECTIVE, network_of, price_ops
from trainfit.cost.network import collective_ns
from trainfit.errors import UsageError
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Op, Phase, TensorRef

MIB = 2**20
NODE, TWO_NODES, ONE_PER_NODE = (8, 1), (16, 2), (8, 8)  # ranks, nodes
H100, A100, L4 = (network_of(find_gpu(name)) for name in ("h100-80gb", "a100-80gb", "l4"))


def tensor(elements: int, storage: int = 0) -> TensorRef:
    return TensorRef(storage, "bfloat16", (elements,), (1,), 0)


def test_links_by_the_catalogue() -> None:
    assert (H100.intra_gb_per_s, H100.inter_gb_per_s, H100.link) == (pytest.approx(369.9), 50, "nvlink")
    assert (A100.intra_gb_per_s, A100.inter_gb_per_s, A100.nvls_share) == (240, 25, None)
    assert (L4.intra_gb_per_s, L4.inter_gb_per_s, L4.link) == (24, 12.5, "pcie")
    # NVLink bridges of PCIe cards join two of them.
    bridged = find_gpu("h100-pcie")
    assert (network_of(bridged).link, network_of(bridged, gpus_per_node=2).link) == ("pcie", "nvlink")


def test_rates_that_are_given_stand_for_the_links() -> None:
    network = network_of(find_gpu("h200"), 4, 100, 10)
    assert (network.gpus_per_node, network.intra_gb_per_s, network.inter_gb_per_s) == (4, 100, 10)
    with pytest.raises(UsageError, match="carries nothing"):
        network_of(find_gpu("h200"), 8, 0.0)


def test_a_large_gather_in_a_node_is_bound_by_the_links() -> None:
    # Simple: 8.4 + 7 steps of 3.4 us; seven eighths of the buffer over 369.9 GB/s. LL128: 14 + 7 x 1.9, 15/16 of it.
    simple = 8_400 + 7 * 3_400 + 7 / 8 * 1024 * MIB / 369.9
    assert collective_ns(False, 1024 * MIB, *NODE, H100) == pytest.approx(simple)
    ll128 = 14_000 + 7 * 1_900 + 7 / 8 * 16 * MIB / (369.9 * 15 / 16)
    assert collective_ns(False, 16 * MIB, *NODE, H100) == pytest.approx(ll128)


def test_a_small_gather_is_bound_by_latency() -> None:
    # LL: 6.6 + 7 x 0.6 us, at half the rate but no more than 141 GB/s.
    assert collective_ns(False, 1024, *NODE, H100) == pytest.approx(6_600 + 7 * 600 + 7 / 8 * 1024 / 141)


def test_across_nodes_every_gpu_s_network_card_carries_a_share() -> None:
    # Simple: 16 ranks make 15 steps, one of them across; 8 cards of 50 GB/s are more than NVLink's 369.9.
    expected = 8_400 + 14 * 3_400 + 14_000 + 15 / 16 * 1024 * MIB / 369.9
    assert collective_ns(False, 1024 * MIB, *TWO_NODES, H100) == pytest.approx(expected)
    slower = 8_400 + 14 * 3_400 + 14_000 + 15 / 16 * 1024 * MIB / (8 * 25)
    assert collective_ns(False, 1024 * MIB, *TWO_NODES, A100) == pytest.approx(slower)


def test_ranks_of_different_nodes_have_only_the_network() -> None:
    # A ring of 8 steps of an all-reduce twice over, all across: 14 steps, and 14/8 of the bytes over one card.
    ring = 8_400 + 14 * 14_000 + 14 / 8 * 1024 * MIB / 50
    assert collective_ns(True, 1024 * MIB, *ONE_PER_NODE, H100) == pytest.approx(ring)


def test_all_reduce_in_a_node_goes_through_the_switch_where_there_is_one() -> None:
    assert collective_ns(True, 1024 * MIB, *NODE, H100) == pytest.approx(25_000 + 1024 * MIB / (369.9 * 0.85 * 5 / 6))
    ring = 8_400 + 14 * 3_400 + 14 / 8 * 1024 * MIB / 240
    assert collective_ns(True, 1024 * MIB, *NODE, A100) == pytest.approx(ring)


def test_pcie_has_no_ll128() -> None:
    simple = 8_400 + 7 * 5_700 + 7 / 8 * 64 * MIB / 24
    assert collective_ns(False, 64 * MIB, *NODE, L4) == pytest.approx(simple)


def test_alone_there_is_nothing_to_send() -> None:
    assert collective_ns(True, MIB, 1, 1, H100) == 0


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("c10d._allgather_base_.default", (tensor(8 * MIB), tensor(MIB))),
        ("c10d._reduce_scatter_base_.default", (tensor(MIB), tensor(8 * MIB))),
    ],
)
def test_the_whole_buffer_counts_on_either_side(name: str, args: tuple[TensorRef, ...]) -> None:
    op = Op(name, Phase.FORWARD, "", args, (("ranks", tuple(range(8))),), ())
    (cost,) = price_ops([op], find_gpu("h100-80gb"))
    assert (cost.time_ns, cost.rule) == (round(collective_ns(False, 16 * MIB, *NODE, H100)), COLLECTIVE)


def test_copying_shards_into_the_gathered_buffer_costs_the_shards_and_not_the_buffer() -> None:
    shards = (tensor(MIB, 1), tensor(MIB, 2))
    copy_in = Op("fsdp.all_gather_copy_in.default", Phase.FORWARD, "", (shards, tensor(1024 * MIB)), (), ())
    copy = Op("aten._foreach_copy_.default", Phase.FORWARD, "", (shards, shards), (), ())
    first, second = price_ops([copy_in, copy], find_gpu("h200"))
    assert first.time_ns == second.time_ns > 0
