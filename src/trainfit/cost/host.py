"""What the CPU takes to issue a step's ops. In: single ops and small models that were timed. Out: `HostCosts`, and a
time per op.

Kinds of ops differ in what they cost: a view is no kernel, a product asks a library for one, attention sets up a lot.
How much more or less each kind costs than a plain kernel, its weight, follows from single ops that were issued over and
over, without what it took to launch their further kernels. In a model, between all that its Python does, everything
costs more. So each op of a step is charged for a few things (`charges`): its weight or a cast, entering a module (the
Python of the model's own forward), further kernels, recurrent layers and the kernels of their steps, beginning a
backward pass, checkpointing a region, an optimizer's step and the tensors listed for its multi-tensor kernels, and what
the CPU did for itself before the op. What each of them costs follows from the times of small models' phases and how
often they are charged, by least squares: the same charges, so that what is fitted is what is used. A host's speed
varies within seconds and from process to process, so its spread is part of the costs.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypedDict

from trainfit.cost.work import short_name
from trainfit.records import HostWork, Op, Phase, TensorRef

_HOOKED = "aten.detach.default"
"""What a hook does to each saved tensor. In a planned block's forward it is not charged: torch's own checkpointing
spends as much there in hooks that no op shows, and charging it would make the one look slower than the other."""
_ROUNDS = 2000
_KNOWN = frozenset({"further_kernel", "wait", "host_op", "host_elements"})
"""What single ops tell, and least squares do not ask for."""

PLAIN, VIEW, INNER_VIEW, CAST = "plain", "view", "inner view", "_to_copy"
BACKWARD_PLAIN, BACKWARD_VIEW, BACKWARD_CAST = "backward plain", "backward view", "backward cast"
BACKWARD_LEAF = "backward leaf"
"""A gradient that reaches a parameter and becomes its own: torch detaches it."""
BACKWARD_SUM = "backward sum"
"""Gradients that the engine adds up, or adds to what a parameter has: a kernel, and no node."""
OP_KINDS: Mapping[str, tuple[str, ...]] = {
    "product": ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm"),
    "norm": ("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward",
             "native_group_norm", "native_group_norm_backward"),
    "random": ("native_dropout", "bernoulli", "rand", "rand_like", "randn", "randn_like", "uniform", "normal"),
    "join": ("cat", "stack", "split_with_sizes_copy"),
    "index": ("index", "index_put", "_index_put_impl", "index_select", "index_add", "gather", "scatter", "scatter_add",
              "embedding", "embedding_dense_backward", "sort", "topk", "cumsum", "histc", "bincount", "nonzero"),
    "convolution": ("convolution", "convolution_backward"),
    "batch norm": ("cudnn_batch_norm", "cudnn_batch_norm_backward"),
    "native batch norm": ("native_batch_norm", "native_batch_norm_backward", "_batch_norm_with_update",
                          "batch_norm_backward"),
    "attention": tuple(f"_scaled_dot_product_{backend}_attention{way}" for backend in ("cudnn", "flash", "efficient")
                       for way in ("", "_backward")),
}  # fmt: skip
"""Ops that launch kernels and do not cost what a plain one does, by kind."""
BACKWARD_KINDS: Mapping[str, str] = {
    kind: f"backward {kind}"
    for kind in ("product", "norm", "convolution", "batch norm", "native batch norm", "attention")
}
"""Those of them that have a weight of their own in a backward pass."""
_KIND_OF = {name: kind for kind, names in OP_KINDS.items() for name in names}
_RECURRENT = frozenset({"_cudnn_rnn", "_cudnn_rnn_backward"})
_GROUPS_AT = {"convolution": 8, "convolution_backward": 9}
"""The argument that says how many groups there are."""
_INNER_VIEWS = frozenset({"t", "detach"})
"""Views that other ops make on their way: no Python calls them."""
_WITHIN = "within"
"""Transposes for the products of a backward pass, which are part of what those cost."""
WEIGHED = (
    VIEW, INNER_VIEW, *OP_KINDS, BACKWARD_VIEW, BACKWARD_CAST, BACKWARD_LEAF, BACKWARD_SUM, *BACKWARD_KINDS.values(),
)  # fmt: skip

Charge = tuple[str, float]
"""What is charged (a field of `HostCosts` less "_ns"), and how often."""
Weights = Mapping[str, int]
"""By kind of op, what it costs as a percentage of what a plain kernel does in the same direction."""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Nanoseconds of CPU time per charge."""

    forward_ns: int
    """An op of a forward pass that launches a plain kernel."""
    backward_ns: int
    backward_pass_ns: int
    """Per backward pass, before its first op: autograd's thread wakes up."""
    cast_ns: int
    """A cast in a forward pass: most are autocast's, which no Python calls."""
    module_ns: int
    further_kernel_ns: int
    """A kernel that an op launches after its first: no dispatch, only the launch."""
    recurrent_ns: int
    """An op that runs recurrent layers, in either direction, before its steps."""
    recurrent_kernel_ns: int
    """A kernel of such a step, which a library launches."""
    hook_ns: int
    """Per tensor that a checkpointed region saves: hooks see it when it is run again, and in backward."""
    checkpoint_ns: int
    """Per checkpointed region, in its forward: states of random number generators, contexts, hooks."""
    reentrant_ns: int
    """Per region of reentrant checkpointing, which has no hooks, when it is run again."""
    optimizer_step_ns: int
    """Per step, before its first op and after its last: hooks, groups of tensors, gradients set to None."""
    optimizer_call_ns: int
    optimizer_tensor_ns: int
    wait_ns: int
    """A value that the CPU reads, or a copy from the host, when the GPU has nothing to do."""
    host_op_ns: int
    """An op on tensors of the host."""
    host_elements_ns: int
    """1,024 elements that such an op writes."""
    fast_percent: int
    slow_percent: int
    """Between these percentages of what the costs say lay nine tenths of the models' steps in all processes."""
    weights_percent: Weights

    @staticmethod
    def parse(content: Mapping[str, Any]) -> HostCosts:
        """From JSON's values, as `reduce_host` gives them."""
        weights = {kind: int(content["weights_percent"][kind]) for kind in WEIGHED}
        numbers = {str(name): int(value) for name, value in content.items() if name != "weights_percent"}
        return HostCosts(**numbers, weights_percent=weights)


KINDS = tuple(field.name.removesuffix("_ns") for field in fields(HostCosts) if field.name.endswith("_ns"))


@cache
def _kind_of(name: str, launches: bool, is_backward: bool) -> str:
    short = short_name(name)
    if not is_backward:
        if launches:
            return CAST if short == CAST else _KIND_OF.get(short, PLAIN)
        return INNER_VIEW if short in _INNER_VIEWS else VIEW
    if not launches:
        return {"t": _WITHIN, "detach": BACKWARD_LEAF}.get(short, BACKWARD_VIEW)
    if short == CAST:
        return BACKWARD_CAST
    kind = BACKWARD_SUM if short == "add" else _KIND_OF.get(short, PLAIN)
    return BACKWARD_KINDS.get(kind, kind)


def charges(ops: Sequence[Op], kernels: Sequence[int], weights: Weights) -> Iterator[tuple[Charge, ...]]:
    """What each op is charged for; `kernels` says how many it launches, 0 for a view."""
    module = ""
    hooks, regions = _checkpointed(ops)
    weight_of = {PLAIN: 1.0, _WITHIN: 0.0} | {kind: percent / 100 for kind, percent in weights.items()}
    for index, (op, count) in enumerate(zip(ops, kernels, strict=True)):
        further = ("further_kernel", max(count - 1, 0))
        kind = _kind_of(op.name, count > 0, op.phase is Phase.BACKWARD)
        before = _host_work(op.before)
        if op.name == _HOOKED and op.phase is Phase.FORWARD:
            yield before
            continue
        if op.phase is Phase.OPTIMIZER:
            listed = sum(len(value) for value in op.args if isinstance(value, tuple) and _is_tensor_list(value))
            is_first = index == 0 or ops[index - 1].phase is not Phase.OPTIMIZER
            step = ("optimizer_step", int(is_first))
            yield *before, step, ("optimizer_call", 1), ("optimizer_tensor", listed), further
        elif _is_recurrent(op):
            yield *before, ("recurrent", 1), ("recurrent_kernel", count)
        elif op.phase is Phase.BACKWARD:
            begun = ("backward_pass", int(index == 0 or ops[index - 1].phase is Phase.FORWARD))
            own = (("hook", 1),) if index in hooks else (("backward", weight_of[kind]), further)
            yield *before, begun, *own
        else:
            entered = ("module", int(op.module != module))
            called = ("cast", 1) if kind == CAST else ("forward", weight_of[kind])
            yield *before, entered, called, further, *((region, 1) for region in (regions.get(index),) if region)
        module = op.module


def _host_work(work: HostWork | None) -> tuple[Charge, ...]:
    if work is None:
        return ()
    return ("wait", int(work.waited)), ("host_op", work.num_ops), ("host_elements", work.num_elements / 1024)


def _is_in_groups(op: Op) -> bool:
    place = _GROUPS_AT.get(short_name(op.name))
    return place is not None and len(op.args) > place and op.args[place] != 1


def _is_recurrent(op: Op) -> bool:
    return short_name(op.name) in _RECURRENT


def _checkpointed(ops: Sequence[Op]) -> tuple[frozenset[int], dict[int, str]]:
    """The hooks of what torch's checkpointing runs again, and by op the kind of region that it begins: in forward, or
    for reentrant checkpointing where it is run again.

    It calls modules; the replay of a plan calls none, so all of its ops have the module that asked for them. Hooks come
    twice for a tensor, when it is saved and when it is used. A trace that was taken has the latter elsewhere; one that
    was written has both behind the region, so there every second one counts. Reentrant checkpointing has none.
    """
    counted: list[int] = []
    begins: dict[int, str] = {}
    firsts: list[int] = []
    region: list[int] = []
    for index, op in enumerate((*ops, None)):
        if op is not None and (op.phase is Phase.RECOMPUTE or (region and op.name == _HOOKED)):
            region.append(index)
        elif region:
            again = [member for member in region if ops[member].phase is Phase.RECOMPUTE]
            if len({ops[member].module for member in again}) > 1:
                hooks = [member for member in region if ops[member].phase is not Phase.RECOMPUTE]
                between = [member for member in hooks if member < again[-1]]
                behind = hooks[len(between) :]
                counted += (*between, *behind[::2])
                if hooks:
                    firsts.append(again[0])
                else:
                    begins[region[0]] = "reentrant"
            region = []
    return frozenset(counted), begins | dict.fromkeys(_in_forward(ops, firsts), "checkpoint")


def _in_forward(ops: Sequence[Op], firsts: Sequence[int]) -> Iterator[int]:
    """Where in forward what is run again ran first. Regions are run again last first, so of several with the same first
    op, a module that is called again and again, each has an equal share of the ops that look like it."""
    alike: dict[tuple[str, str], list[int]] = {}
    for index, op in enumerate(ops):
        if op.phase is Phase.FORWARD:
            alike.setdefault((op.module, op.name), []).append(index)
    left = Counter((ops[first].module, ops[first].name) for first in firsts)
    num_regions = dict(left)
    for first in firsts:
        key = ops[first].module, ops[first].name
        left[key] -= 1
        places = alike.get(key, [first])
        yield places[left[key] * len(places) // num_regions[key]]


def issue_times_ns(ops: Sequence[Op], kernels: Sequence[int], host: HostCosts) -> tuple[int, ...]:
    """CPU time before each op's kernels are in the queue."""
    cost_ns = {kind: getattr(host, f"{kind}_ns") for kind in KINDS}
    charged_ops = charges(ops, kernels, host.weights_percent)
    return tuple(round(sum(cost_ns[kind] * count for kind, count in charged)) for charged in charged_ops)


def further_times_ns(ops: Sequence[Op], kernels: Sequence[int], host: HostCosts) -> tuple[int, ...]:
    """The part of each op's CPU time that comes after its first kernel is in the queue."""
    return tuple(
        max(count - 1, 0) * (host.recurrent_kernel_ns if _is_recurrent(op) else host.further_kernel_ns)
        for op, count in zip(ops, kernels, strict=True)
    )


def kernels_in_turn(ops: Sequence[Op], kernels: Sequence[int]) -> tuple[int, ...]:
    """How many kernels of each op run one after the other. Those of recurrent layers and of a convolution's groups run
    side by side on streams of their library's own, and count as one."""
    return tuple(
        min(count, 1) if _is_recurrent(op) or _is_in_groups(op) else count
        for op, count in zip(ops, kernels, strict=True)
    )


def count_charges(ops: Sequence[Op], kernels: Sequence[int], weights: Weights) -> dict[str, dict[str, float]]:
    """How often each thing is charged, by what is timed: forward, backward with what runs again in it, optimizer."""
    totals: dict[str, dict[str, float]] = {part: defaultdict(float) for part in ("forward", "backward", "optimizer")}
    for op, charged in zip(ops, charges(ops, kernels, weights), strict=True):
        for kind, count in charged:
            totals[timed_with(op)][kind] += count
    return {part: {kind: round(count, 2) for kind, count in total.items() if count} for part, total in totals.items()}


def timed_with(op: Op) -> str:
    """The part of a step in which the op is timed."""
    return "backward" if op.phase is Phase.RECOMPUTE else op.phase.value


SingleTimes = Mapping[str, Sequence[int]]
"""Nanoseconds of an op of a kind in a process, again and again."""
PLAIN_KINDS = (PLAIN, "binary", "activation")
BACKWARD_PLAIN_KINDS = (BACKWARD_PLAIN, "backward activation")
"""What is called plain are several: with a number, with another tensor, of one tensor."""
WITH_INNER_VIEWS = "product with views"
"""Products of a batch with a weight that is transposed: three views of their own making."""
BACKWARD_PRODUCTS = "backward products"
"""The gradients of both operands, and transposes for them."""
ONE_LAUNCH, FOUR_LAUNCHES = "list of one", "list of one large"
"""Multi-tensor ops on a list of one: a small tensor, and one so large that it takes four kernels."""
READ = "read"
"""A value that the CPU asks for when the GPU has nothing else to do."""
HOST_OP, HOST_OPS_LARGE = "host op", "host ops large"
"""An op on a tensor of the host, of few elements; four of them on `HOST_ELEMENTS` each."""
HOST_ELEMENTS = 2**16
LEAF, LEAF_AGAIN = "leaf", "leaf again"
"""A plain node and a parameter behind it; and one that has a gradient already."""
SINGLE_KINDS = (
    *PLAIN_KINDS, VIEW, WITH_INNER_VIEWS, *OP_KINDS, ONE_LAUNCH, FOUR_LAUNCHES,
    READ, HOST_OP, HOST_OPS_LARGE,
    *BACKWARD_PLAIN_KINDS, BACKWARD_VIEW, BACKWARD_CAST, BACKWARD_PRODUCTS, LEAF, LEAF_AGAIN,
    *(BACKWARD_KINDS[kind] for kind in BACKWARD_KINDS if kind != "product"),
)  # fmt: skip
"""All that is timed."""


def reduce_weights(processes: Sequence[SingleTimes], kernels: Mapping[str, int]) -> dict[str, int]:
    """Weights from the times of single ops and how many kernels each launches: of each process by its medians, and of
    several that timed a kind the median."""
    found = [_weights(_first_kernels_ns(times_ns, kernels)) for times_ns in processes]
    return {kind: max(1, round(100 * statistics.median(one[kind] for one in found if kind in one))) for kind in WEIGHED}


def _first_kernels_ns(times_ns: SingleTimes, kernels: Mapping[str, int]) -> dict[str, float]:
    """What an op of each kind takes with one kernel; products of a backward pass are two ops."""
    median_ns = {kind: statistics.median(ns) for kind, ns in times_ns.items()}
    further_ns = (median_ns[FOUR_LAUNCHES] - median_ns[ONE_LAUNCH]) / 3
    usual = {BACKWARD_PRODUCTS: 2, LEAF_AGAIN: 2}
    return {
        kind: time_ns - further_ns * max(kernels[kind] - usual.get(kind, 1), 0) for kind, time_ns in median_ns.items()
    }


def _weights(median_ns: Mapping[str, float]) -> dict[str, float]:
    plain_ns = statistics.mean(median_ns[kind] for kind in PLAIN_KINDS)
    backward_ns = statistics.mean(median_ns[kind] for kind in BACKWARD_PLAIN_KINDS)
    costs_ns = dict(median_ns) | {
        INNER_VIEW: (median_ns[WITH_INNER_VIEWS] - median_ns["product"]) / 3,
        BACKWARD_LEAF: median_ns[LEAF] - median_ns[BACKWARD_PLAIN],
        BACKWARD_SUM: median_ns[LEAF_AGAIN] - median_ns[LEAF],
        BACKWARD_KINDS["product"]: median_ns[BACKWARD_PRODUCTS] / 2,
    }
    return {
        kind: costs_ns[kind] / (backward_ns if kind.startswith("backward") else plain_ns)
        for kind in WEIGHED
        if kind in costs_ns
    }


def reduce_known(processes: Sequence[SingleTimes]) -> dict[str, float]:
    """What single ops alone tell, means over the processes that timed them: a further kernel of an op, around which no
    Python is that would make it dearer in a model, a value that is read, and ops on tensors of the host."""

    def mean(kind: str) -> float:
        return statistics.mean(statistics.median(times_ns[kind]) for times_ns in processes if kind in times_ns)

    large_ns = mean(HOST_OPS_LARGE) / 4 - mean(HOST_OP)
    return {
        "further_kernel": (mean(FOUR_LAUNCHES) - mean(ONE_LAUNCH)) / 3,
        "wait": mean(READ),
        "host_op": mean(HOST_OP),
        "host_elements": large_ns * 1024 / HOST_ELEMENTS,
    }


class Timing(TypedDict):
    """A small model, by phase: how often it is charged for what, and the nanoseconds of its steps in each process."""

    charges: Mapping[str, Mapping[str, float]]
    processes_ns: Sequence[Mapping[str, Sequence[int]]]


_Row = tuple[Mapping[str, float], float]
"""How often a phase is charged for what, and the nanoseconds it took."""


def reduce_host(timings: Mapping[str, Timing], weights: Weights, known_ns: Mapping[str, float]) -> dict[str, Any]:
    """The fields of `HostCosts` from what `trainfit.calibrate.host` timed, the weights by which it was charged, and
    what single ops tell of costs that small models have few of.

    A phase's usual time is the mean over the processes of each one's median: some are fast and some slow, with little
    between, and the median of a few would be either. The spread is that of single steps around what costs say that were
    found from all other models, so it holds both: how far the host strays, and how far costs of some models are from
    explaining another.
    """
    rows: dict[str, list[_Row]] = {}
    steps: dict[str, tuple[Mapping[str, float], list[int]]] = {}
    for name, timing in timings.items():
        counts = timing["charges"]
        medians = [{part: statistics.median(ns) for part, ns in one.items()} for one in timing["processes_ns"]]
        rows[name] = [(counts[part], statistics.mean(one[part] for one in medians)) for part in counts]
        single = [step for one in timing["processes_ns"] for step in zip(*(one[part] for part in counts), strict=True)]
        steps[name] = _whole(counts), [sum(step) for step in single]
    start = dict.fromkeys(KINDS, 0.0) | dict(known_ns)
    costs = _least_squares([row for found in rows.values() for row in found], start, _ROUNDS)
    spread = []
    for name, (whole, found_ns) in steps.items():
        others = [row for other, found in rows.items() if other != name for row in found]
        without = _least_squares(others, costs, _ROUNDS // 20)
        usual_ns = sum(without[kind] * count for kind, count in whole.items())
        spread += [step_ns / usual_ns for step_ns in found_ns]
    spread.sort()
    low, high = spread[len(spread) // 20], spread[-1 - len(spread) // 20]
    return {f"{kind}_ns": round(cost) for kind, cost in costs.items()} | {
        "fast_percent": round(100 * low),
        "slow_percent": round(100 * high),
        "weights_percent": dict(weights),
    }


def _whole(counts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {kind: sum(charged.get(kind, 0) for charged in counts.values()) for kind in KINDS}


def _least_squares(rows: Sequence[_Row], start: Mapping[str, float], rounds: int) -> dict[str, float]:
    """Costs that are not negative, with the smallest sum of squared relative errors, one after the other. What is
    known, or no row is charged for, stays as it was."""
    costs = dict(start)
    shares = [{kind: count / time_ns for kind, count in counts.items()} for counts, time_ns in rows]
    rest = [1.0 - sum(costs[kind] * part for kind, part in share.items()) for share in shares]
    for _ in range(rounds):
        for kind in KINDS:
            own = [share.get(kind, 0.0) for share in shares]
            weight = sum(share * share for share in own)
            if weight and kind not in _KNOWN:
                change = sum(share * left for share, left in zip(own, rest, strict=True)) / weight
                change = max(change, -costs[kind])
                costs[kind] += change
                rest = [left - change * share for share, left in zip(own, rest, strict=True)]
    return costs


def _is_tensor_list(value: tuple[object, ...]) -> bool:
    return bool(value) and isinstance(value[0], TensorRef)
