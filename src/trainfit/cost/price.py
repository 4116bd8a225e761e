"""`price_ops`: how long the target GPU takes over each op. In: ops, a GPU, maybe a profile. Out: an `OpCost` per op.

An op's time is its ideal time on the GPU times a ratio: measured over ideal, looked up at the op's sizes in the table
of the first rule that the profile has. On a GPU without a profile, ideal times are its own and ratios those of the GPU
that was measured, smoothed: how far from ideal a kind of op is carries over, the steps of one GPU's kernels do not.
Ideal times know how the GPU's own processors are filled by a product's tiles. What comes out differs from the measured
GPU's time by no more than some rate of the two does, so that no op gets faster on a GPU that is slower in every respect
(rates, processors, each processor's rate, cache), nor slower on one that is faster.

Ops that look alike are priced once, so a deep model costs no more than its distinct ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainfit.cost import collectives
from trainfit.cost.classify import ROOFLINE, hidden_ops, is_free, works
from trainfit.cost.interpolate import Table
from trainfit.cost.lattice import rising_ns
from trainfit.cost.network import Network, network_of
from trainfit.cost.profile import SHIPPED, Measured, Profile, shipped_profile
from trainfit.cost.reduce import launch_table, overlap_table
from trainfit.cost.work import Work, base_name, peak_tflops
from trainfit.errors import BadProfile
from trainfit.gpus.catalogue import Gpu
from trainfit.records import Op, TensorRef

FREE = "free"
_ROOFLINE_TABLE = "pointwise contiguous"
UNMEASURED_DOUBT = 0.5
"""How far off the roofline is on average, about: a plain one was off by 2 to 75% on whole models."""
_NINE_IN_TEN = 3.1
"""No more than so many times as far off as on average are nine in ten nets, of 379. Were ops of different rules quite
independent it would be 2.3: most are near and a few far."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """GPU time of one op, and where it comes from."""

    time_ns: int
    rule: str
    """The table that priced it; "roofline" when no rule knows the op, "collective" or "measured collective" when it is
    one, "free" when the GPU does nothing."""
    arithmetic_ns: float
    """What its operations would take at the datasheet's rate."""
    kernels: int
    """How many kernels it launches, about."""
    doubt_ns: int = 0
    """How far off ops that lie as far from what was measured are on average."""
    overlap: float = 1.0
    """How many of them run at once on average, on streams of a library's own: their times add up to `kernel_ns`."""

    @property
    def is_collective(self) -> bool:
        """Whether the network does it, and no kernel waits for it to compute."""
        return self.rule in (collectives.COLLECTIVE, collectives.MEASURED_COLLECTIVE)

    @property
    def kernel_ns(self) -> int:
        """The sum of its kernels' times, as a profiler gives it."""
        return round(self.time_ns * self.overlap)


@dataclass(frozen=True, slots=True)
class Pricing:
    """By what ops are priced: a GPU's own profile, or another's efficiencies scaled."""

    gpu: Gpu
    profile: Profile
    is_measured: bool
    network: Network | None = None
    """What joins the GPUs; their usual machine when None."""
    known: dict[object, OpCost] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was priced before, by what its price depends on: plans price the same ops again and again."""


def pricing_for(gpu: Gpu, profile: Profile | None = None) -> Pricing:
    """The given profile, which must be of that GPU; else the shipped one; else the datasheet."""
    if profile is not None:
        if profile.gpu.name != gpu.name:
            raise BadProfile(
                f"the profile was measured on a {profile.gpu.name}, and the step is for a {gpu.name}",
                hint=f"pass --gpu {profile.gpu.name}, or leave the profile out to price from the datasheet",
            )
        return Pricing(profile.gpu, profile, True)
    own = shipped_profile(gpu.name)
    return Pricing(own.gpu, own, True) if own is not None else datasheet_pricing(gpu)


def datasheet_pricing(gpu: Gpu) -> Pricing:
    """As for a GPU that nobody measured, also where somebody did."""
    reference = shipped_profile(SHIPPED[0])
    assert reference is not None
    return Pricing(gpu, reference, False)


def price_ops(ops: Sequence[Op], gpu: Gpu, profile: Profile | None = None) -> tuple[OpCost, ...]:
    """The cost of every op, in order."""
    return price_with(ops, pricing_for(gpu, profile))


def price_with(ops: Sequence[Op], pricing: Pricing) -> tuple[OpCost, ...]:
    """The same, with the pricing chosen."""
    known = pricing.known
    costs = []
    for op in ops:
        key = _signature(op)
        cost = known.get(key)
        if cost is None:
            cost = known[key] = _price(op, pricing)
        costs.append(cost)
    return tuple(costs)


def _price(op: Op, pricing: Pricing) -> OpCost:
    if collectives.is_collective(op):
        measured = pricing.profile.collectives if pricing.is_measured else ()
        collective_ns, rule = collectives.time_ns(op, pricing.network or network_of(pricing.gpu), measured)
        return OpCost(round(collective_ns), rule, 0.0, 1)
    op = collectives.as_copy(op)
    if is_free(op, base_name(op)):
        return OpCost(0, FREE, 0.0, 0)
    tables = pricing.profile.tables
    work, table = _way(op, pricing.profile.gpu, tables)
    own_ns = round(_time_ns(op, work, table, pricing))
    overlaps = tables.get(overlap_table(work.rule))
    overlap = overlaps.ratio(work.coordinates) if isinstance(overlaps, Table) else 1.0
    hidden = [_price(other, pricing) for other in hidden_ops(op)]
    time_ns = own_ns + sum(other.time_ns for other in hidden)
    doubt = UNMEASURED_DOUBT if work.rule == ROOFLINE else table.doubt(work.coordinates)
    kernel_ns = own_ns * overlap + sum(other.kernel_ns for other in hidden)
    return OpCost(
        time_ns,
        work.rule,
        work.arithmetic_ns(pricing.gpu) + sum(other.arithmetic_ns for other in hidden),
        _launches(work, tables) + sum(other.kernels for other in hidden),
        round(own_ns * doubt) + sum(other.doubt_ns for other in hidden),
        kernel_ns / time_ns if time_ns else 1.0,
    )


def _way(op: Op, measured_on: Gpu, tables: Mapping[str, Measured]) -> tuple[Work, Measured]:
    """The first of the op's rules for which there is a table, and that."""
    for work in works(op, measured_on.num_sms):
        table = tables.get(_ROOFLINE_TABLE if work.rule == ROOFLINE else work.rule)
        if table is not None:
            return work, table
    raise BadProfile(f"the profile of the {measured_on.name} has no table {_ROOFLINE_TABLE!r}", hint="calibrate again")


def _time_ns(op: Op, work: Work, table: Measured, pricing: Pricing) -> float:
    gpu, measured_on = pricing.gpu, pricing.profile.gpu
    if pricing.is_measured:
        return _measured_ns(work, table, pricing.profile)
    fill = works(op, gpu.num_sms)[0].fill
    scaled_ns = work.ideal_ns(gpu, fill) * table.smooth_ratio(work.coordinates)
    if gpu.name == measured_on.name:  # what smoothing alone does: nothing measured bounds it
        return scaled_ns
    measured_ns = _measured_ns(work, table, pricing.profile)
    slower = [
        peak_tflops(measured_on, work.flops_dtype) / peak_tflops(gpu, work.flops_dtype),
        measured_on.dram_gb_per_s / gpu.dram_gb_per_s,
        measured_on.num_sms / gpu.num_sms,
        measured_on.l2_bytes / gpu.l2_bytes,
    ]
    return min(max(scaled_ns, measured_ns * min(1.0, *slower)), measured_ns * max(1.0, *slower))


def _measured_ns(work: Work, table: Measured, profile: Profile) -> float:
    """On the GPU that was measured."""
    known_ns = profile.known_ns.get(work)
    if known_ns is None:
        known_ns = profile.known_ns[work] = _looked_up_ns(work, table, profile.gpu)
    return known_ns


def _looked_up_ns(work: Work, table: Measured, gpu: Gpu) -> float:
    if isinstance(table, Table) and work.family is not None:
        return rising_ns(work, work.family, table, gpu)
    time_ns = work.ideal_ns(gpu) * table.ratio(work.coordinates)
    if isinstance(table, Table) and work.num_sizes:
        return table.bounded(work.coordinates, time_ns, work.num_sizes, work.num_alike)
    return time_ns


def kernels_launched(ops: Sequence[Op], gpu: Gpu, tables: Mapping[str, Measured]) -> list[int]:
    """How many kernels each of the ops launches, about."""
    known: dict[object, int] = {}
    found = []
    for op in ops:
        key = _signature(op)
        if key not in known:
            known[key] = num_kernels(op, gpu, tables)
        found.append(known[key])
    return found


def num_kernels(op: Op, gpu: Gpu, tables: Mapping[str, Measured]) -> int:
    """How many kernels the op launches, about."""
    if is_free(op, base_name(op)):
        return 0
    hidden = sum(num_kernels(other, gpu, tables) for other in hidden_ops(op))
    return _launches(_way(op, gpu, tables)[0], tables) + hidden


def _launches(work: Work, tables: Mapping[str, Measured]) -> int:
    counted = tables.get(launch_table(work.rule))
    return round(counted.ratio(work.coordinates)) if isinstance(counted, Table) else work.kernels


def _signature(op: Op) -> object:
    """What an op's price depends on: everything but which storages (only how many there are) and which module."""
    inputs: set[int] = set()
    outputs: set[int] = set()
    arguments = _plain(op.args, inputs), _plain(op.kwargs, inputs)
    results = _plain(op.outputs, outputs)
    makes_nothing = bool(outputs) and outputs <= inputs
    return op.name, op.tf32, makes_nothing, len(inputs), arguments, results


def _plain(values: tuple[object, ...], storages: set[int]) -> tuple[object, ...]:
    """The values without their storages, which are added to those."""
    found: list[object] = []
    for value in values:
        if isinstance(value, TensorRef):
            storages.add(value.storage)
            found.append((value.dtype, value.shape, value.stride))
        elif isinstance(value, tuple):
            found.append(_plain(value, storages))
        else:
            found.append((type(value), value))
    return tuple(found)


def kernels_off(costs: Sequence[OpCost]) -> float:
    """How far off the sum of the kernels' times may be, as a share; nine in ten are nearer. Ops of one rule are likely
    to be off together, those of different rules are not."""
    by_rule: dict[str, float] = {}
    for cost in costs:
        if not cost.is_collective:
            by_rule[cost.rule] = by_rule.get(cost.rule, 0.0) + cost.doubt_ns
    total_ns = sum(cost.time_ns for cost in costs if not cost.is_collective)
    return _NINE_IN_TEN * math.hypot(*by_rule.values()) / total_ns if total_ns else 0.0


def unpriced(costs: Sequence[OpCost]) -> float:
    """The share of the time that came from the roofline and not from a rule."""
    total_ns = sum(cost.time_ns for cost in costs)
    return sum(cost.time_ns for cost in costs if cost.rule == ROOFLINE) / total_ns if total_ns else 0.0


__all__ = [
    "FREE",
    "OpCost",
    "Pricing",
    "datasheet_pricing",
    "kernels_off",
    "price_ops",
    "price_with",
    "pricing_for",
    "unpriced",
]
