"""What the CPU takes to issue a step's ops. In: ops, and `HostCosts`, which `trainfit.cost.host_fit` makes of what was
timed. Out: a time per op.

Kinds of ops differ in what they cost: a view is no kernel, a product asks a library for one, attention sets up a lot.
How much more or less each kind costs than a plain kernel is its weight. In a forward pass the model's own Python is
around every call; but of the ops that one call issues, or one node of a backward pass, only one has that, or the node,
around it (`_inner`). So each op of a step is charged for a few things (`charges`): its weight, what is around it, a
cast, entering a module, further kernels, recurrent layers and the kernels of their steps, beginning a backward pass,
checkpointing a region, an optimizer's step and the tensors listed for its multi-tensor kernels, and what the CPU did
for itself before the op. What a loop issues again and again, such as a cell over time steps that is written out, costs
less: the CPU has all of it at hand (`_looped`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from trainfit.cost.work import short_name
from trainfit.records import HostWork, Op, Phase, TensorRef

_HOOKED = "aten.detach.default"
"""What a hook does to each saved tensor. In a planned block's forward it is not charged: torch's own checkpointing
spends as much there in hooks that no op shows, and charging it would make the one look slower than the other."""

PLAIN, VIEW, CAST = "plain", "view", "_to_copy"
BACKWARD_PLAIN, BACKWARD_VIEW, BACKWARD_CAST = "backward plain", "backward view", "backward cast"
BACKWARD_LEAF = "backward leaf"
"""A gradient that reaches a parameter and becomes its own: torch detaches it."""
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
_LAYERS_AT = {"_cudnn_rnn": 9, "_cudnn_rnn_backward": 13}
"""The argument that says how many recurrent layers there are."""
_GROUPS_AT = {"convolution": 8, "convolution_backward": 9}
"""The argument that says how many groups there are."""
_SUM = "add"
"""In a backward pass, gradients that the engine adds up, or adds to what a parameter has: a kernel, and no node."""
_LOOP_OPS = 32
"""An op that the same module issued no more than so many ops before, after the same two, is one of a loop. A loop that
takes longer to come round costs what other code does."""
_WITHIN = "within"
"""Transposes for the products of a backward pass, which are part of what those cost."""
WEIGHED = (
    VIEW, *OP_KINDS, BACKWARD_VIEW, BACKWARD_CAST, BACKWARD_LEAF, *BACKWARD_KINDS.values(),
)  # fmt: skip

Charge = tuple[str, float]
"""What is charged (a field of `HostCosts` less "_ns"), and how often."""
Weights = Mapping[str, int]
"""By kind of op, what it costs as a percentage of what a plain kernel does in the same direction."""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Nanoseconds of CPU time per charge."""

    forward_ns: int
    """A call in a forward pass: the Python around the ops that it issues."""
    loop_ns: int
    """The same for a call that a loop repeats."""
    backward_ns: int
    """A node of a backward pass whose first kernel is a plain one."""
    backward_loop_ns: int
    """The same for a node that a loop repeats."""
    backward_pass_ns: int
    """Per backward pass, before its first op: autograd's thread wakes up."""
    cast_ns: int
    """A cast in a forward pass: most are autocast's, which no Python calls."""
    module_ns: int
    inner_ns: int
    """A plain kernel that a call in a forward pass issues, without the Python around it."""
    backward_inner_ns: int
    """One that a node of a backward pass issues beside another, or the engine, which adds gradients up."""
    inner_view_ns: int
    further_kernel_ns: int
    """A kernel that an op launches after its first: no dispatch, only the launch."""
    recurrent_ns: int
    """A layer of an op that runs recurrent ones, forward or backward, before its steps."""
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
    """Between these percentages of what the costs say lay nearly all of the small models' steps, and most of other
    models'."""
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
        return VIEW
    if not launches:
        return {"t": _WITHIN, "detach": BACKWARD_LEAF}.get(short, BACKWARD_VIEW)
    if short == CAST:
        return BACKWARD_CAST
    kind = _KIND_OF.get(short, PLAIN)
    return BACKWARD_KINDS.get(kind, kind)


def _inner(ops: Sequence[Op], kernels: Sequence[int]) -> frozenset[int]:
    """Those beside the one op of a call or a node that has Python or the node around it: its first kernel, or where
    there is none its first view. Autocast's casts and the engine's sums are none of a call's own."""
    inner, call = set[int](), list[int]()
    for index, op in enumerate((*ops, None)):
        if op is not None and op.continues:
            call.append(index)
            continue
        own = [member for member in call if not _is_aside(ops[member], kernels[member])]
        main = next((member for member in own if kernels[member]), own[0] if own else None)
        inner.update(member for member in call if member != main)
        call = [index]
    return frozenset(inner)


def _looped(ops: Sequence[Op]) -> frozenset[int]:
    """Those that a loop issued shortly before."""
    before: dict[tuple[object, ...], int] = {}
    found = set[int]()
    for index in range(2, len(ops)):
        op = ops[index]
        issued = op.phase, op.module, op.name, ops[index - 1].name, ops[index - 2].name
        if issued in before and index - before[issued] <= _LOOP_OPS:
            found.add(index)
        before[issued] = index
    return frozenset(found)


def _is_aside(op: Op, num_kernels: int) -> bool:
    return num_kernels > 0 and short_name(op.name) == (_SUM if op.phase is Phase.BACKWARD else CAST)


def charges(ops: Sequence[Op], kernels: Sequence[int], weights: Weights) -> Iterator[tuple[Charge, ...]]:
    """What each op is charged for; `kernels` says how many it launches, 0 for a view."""
    module = ""
    hooks, regions = _checkpointed(ops)
    inner, looped = _inner(ops, kernels), _looped(ops)
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
            yield *before, ("recurrent", _num_layers(op)), ("recurrent_kernel", count)
        elif op.phase is Phase.BACKWARD:
            begun = ("backward_pass", int(index == 0 or ops[index - 1].phase is Phase.FORWARD))
            node = "backward_loop" if index in looped else "backward"
            charge = _inner_charge(op, count, weight_of) if index in inner else (node, weight_of[kind])
            own = (("hook", 1),) if index in hooks else (charge, further)
            yield *before, begun, *own
        else:
            entered = ("module", int(op.module != module))
            called = ("loop" if index in looped else "forward", int(index not in inner))
            charge = _inner_charge(op, count, weight_of) if index in inner else ("inner", weight_of[kind])
            begun = (regions.get(index, "checkpoint"), int(index in regions))
            yield *before, entered, called, charge, further, begun
        module = op.module


def _inner_charge(op: Op, num_kernels: int, weight_of: Mapping[str, float]) -> Charge:
    short = short_name(op.name)
    if short == CAST and num_kernels and op.phase is not Phase.BACKWARD:
        return "cast", 1
    if not num_kernels:
        return "inner_view", 1
    kind = "backward_inner" if op.phase is Phase.BACKWARD else "inner"
    return kind, weight_of[_KIND_OF.get(short, PLAIN)]


def _host_work(work: HostWork | None) -> tuple[Charge, ...]:
    if work is None:
        return ()
    return ("wait", int(work.waited)), ("host_op", work.num_ops), ("host_elements", work.num_elements / 1024)


def _is_in_groups(op: Op) -> bool:
    place = _GROUPS_AT.get(short_name(op.name))
    return place is not None and len(op.args) > place and op.args[place] != 1


def _is_recurrent(op: Op) -> bool:
    return short_name(op.name) in _LAYERS_AT


def _num_layers(op: Op) -> int:
    value = op.args[_LAYERS_AT[short_name(op.name)]]
    assert isinstance(value, int)
    return value


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


def _is_tensor_list(value: tuple[object, ...]) -> bool:
    return bool(value) and isinstance(value[0], TensorRef)
