"""What joins the GPUs of a training job, and how long a collective takes over it. No torch.

In: a `Gpu`, how many of them are in a node, and rates that the user knows better. Out: a `Network`; and by
`collective_ns` the time of a collective of so many bytes among so many ranks.

A collective takes latency + bytes / bandwidth under the best of the algorithms and protocols that NCCL chooses among.
The formulas are those of NCCL's tuning.cc as torch's comm_analysis.py has them, its constants included; what differs:
NVLS (reduction in the NVSwitch) is added for all-reduce in one node, and a ring across nodes runs at the sum of the
node's network cards, since each of its channels crosses by another card. docs/several-gpus.md has them beside what
others measured; a profile that has collectives of the machine itself corrects them (`measured_collectives`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2

from trainfit.errors import UsageError
from trainfit.gpus.catalogue import Gpu

# By protocol, LL, LL128 and Simple, in us: what a collective costs before its first step, and what each step adds.
_RING_BASE_US = (6.6, 14.0, 8.4)
_TREE_BASE_US = (6.8, 14.0, 8.4)
_RING_STEP_US = {"nvlink": (0.6, 1.9, 3.4), "pcie": (1.0, 2.5, 5.7), "network": (2.7, 4.0, 14.0)}
_TREE_STEP_US = {"nvlink": (0.6, 1.25, 4.0), "pcie": (1.0, 1.9, 4.0), "network": (5.0, 8.5, 14.0)}
_NVLS_US = 25.0
_LL, _LL128, _SIMPLE = 0, 1, 2
_LL_SHARE, _LL128_SHARE, _TREE_SHARE = 0.5, 120 / 128, 0.92
_LL_MOST_GB_PER_S = {7: 39.0, 8: 87.7, 9: 141.0, 10: 282.0}
# Of what NVLink moves in both directions together, the share that a ring gets: 120 of 300 GB/s on V100, 240 of 600 on
# A100, 370 of 900 on H100, 720 of 1800 on B200.
_NVLINK_SHARE, _HOPPER_NVLINK_SHARE = 0.4, 0.411
_PCIE_SHARE = 0.75  # 24 of 32 GB/s
_NVLS_SHARE = {9: 0.85 * 5 / 6, 10: 0.74 * 5 / 6}  # of the ring's rate
_NETWORK_GB_PER_S = {7: 12.5, 8: 25.0, 9: 50.0, 10: 50.0}  # one card per GPU: EDR, HDR, NDR
_OTHER_NETWORK_GB_PER_S = 12.5  # GPUs without NVLink: 100 Gb/s
_BRIDGED = frozenset({"h100-pcie", "rtx3090"})
"""GPUs whose NVLink joins two cards and no more."""


@dataclass(frozen=True, slots=True)
class Network:
    """The links between GPUs, each as the rate at which one GPU sends, in GB/s."""

    gpus_per_node: int
    intra_gb_per_s: float
    inter_gb_per_s: float
    link: str
    """What joins the GPUs of a node: nvlink or pcie."""
    ll_most_gb_per_s: float
    nvls_share: float | None
    """What all-reduce in the switch gets of the links' rate; None where there is no such switch."""
    intra_is_given: bool = False
    inter_is_given: bool = False
    """Whether the user said the rate, which then stands for whatever was measured."""

    def nodes_of(self, ranks: Sequence[int]) -> int:
        """How many nodes the ranks are in."""
        return len({rank // self.gpus_per_node for rank in ranks})


def network_of(
    gpu: Gpu, gpus_per_node: int = 8, intra_gb_per_s: float | None = None, inter_gb_per_s: float | None = None
) -> Network:
    """The usual machine of such GPUs; rates that are given stand for the links' own."""
    for rate in (intra_gb_per_s, inter_gb_per_s):
        if rate is not None and rate <= 0:
            raise UsageError(f"a link of {rate} GB/s carries nothing", hint="pass GB/s, more than 0")
    major = gpu.compute_capability[0]
    has_nvlink = gpu.nvlink_gb_per_s is not None and (gpu.name not in _BRIDGED or gpus_per_node <= 2)
    if has_nvlink:
        share = _HOPPER_NVLINK_SHARE if major == 9 and gpu.vendor == "nvidia" else _NVLINK_SHARE
        own_gb_per_s = share * (gpu.nvlink_gb_per_s or 0)
        network_gb_per_s = _NETWORK_GB_PER_S.get(major, _OTHER_NETWORK_GB_PER_S)
    else:
        own_gb_per_s, network_gb_per_s = _PCIE_SHARE * gpu.pcie_gb_per_s, _OTHER_NETWORK_GB_PER_S
    return Network(
        gpus_per_node=gpus_per_node,
        intra_gb_per_s=intra_gb_per_s or own_gb_per_s,
        inter_gb_per_s=inter_gb_per_s or network_gb_per_s,
        link="nvlink" if has_nvlink else "pcie",
        ll_most_gb_per_s=_LL_MOST_GB_PER_S.get(major, _LL_MOST_GB_PER_S[8]),
        nvls_share=_NVLS_SHARE.get(major) if has_nvlink and gpu.vendor == "nvidia" else None,
        intra_is_given=intra_gb_per_s is not None,
        inter_is_given=inter_gb_per_s is not None,
    )


def collective_ns(reduces_to_all: bool, nbytes: int, num_ranks: int, num_nodes: int, network: Network) -> float:
    """The time of a collective whose whole buffer has `nbytes`: an all-reduce, or one that moves it once."""
    if num_ranks < 2 or nbytes == 0:
        return 0.0
    rate = network.intra_gb_per_s
    if num_nodes > 1:
        rate = min(rate if num_ranks > num_nodes else inf, num_ranks / num_nodes * network.inter_gb_per_s)
    times = [_ring_ns(protocol, reduces_to_all, nbytes, num_ranks, num_nodes, rate, network) for protocol in range(3)]
    if reduces_to_all:
        times += [_tree_ns(protocol, nbytes, num_ranks, num_nodes, rate, network) for protocol in range(3)]
        if network.nvls_share is not None and num_nodes == 1 and num_ranks > 2:
            times.append(_NVLS_US * 1e3 + nbytes / (rate * network.nvls_share))
    return min(times)


def _ring_ns(
    protocol: int, reduces_to_all: bool, nbytes: int, num_ranks: int, num_nodes: int, rate: float, network: Network
) -> float:
    rounds = 2 if reduces_to_all else 1
    steps, crossings = rounds * (num_ranks - 1), rounds * (num_nodes - 1)
    within_us, across_us = _RING_STEP_US[network.link][protocol], _RING_STEP_US["network"][protocol]
    latency_us = _RING_BASE_US[protocol] + (steps - crossings) * within_us + crossings * across_us
    protocol_rate = _protocol_rate(protocol, rate, num_nodes, network) * num_ranks / steps
    return latency_us * 1e3 + nbytes / protocol_rate if protocol_rate else inf


def _tree_ns(protocol: int, nbytes: int, num_ranks: int, num_nodes: int, rate: float, network: Network) -> float:
    within_us, across_us = _TREE_STEP_US[network.link][protocol], _TREE_STEP_US["network"][protocol]
    hops_us = (num_ranks / num_nodes - 1) * within_us + log2(num_nodes) * across_us
    share = _TREE_SHARE if protocol == _SIMPLE else 1.0
    protocol_rate = 0.5 * share * _protocol_rate(protocol, rate, num_nodes, network)
    return (_TREE_BASE_US[protocol] + 2 * hops_us) * 1e3 + nbytes / protocol_rate if protocol_rate else inf


def _protocol_rate(protocol: int, rate: float, num_nodes: int, network: Network) -> float:
    """What the protocol leaves of the links' rate; LL128 needs NVLink all the way."""
    if protocol == _LL:
        return min(_LL_SHARE * rate, network.ll_most_gb_per_s)
    if protocol == _LL128:
        return _LL128_SHARE * rate if network.link == "nvlink" and num_nodes == 1 else 0.0
    return rate
