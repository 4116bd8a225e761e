"""What each kind of layer keeps for backward, in bytes computed by hand.

A linear layer without bias makes `h`, 4 rows of 16 numbers, from the batch; the layer under test works on it. Of the
loss's 4 bytes, which are alive when backward starts too, nothing is said below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainfit import Step
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Category, Op, Phase, Trace
from trainfit.trace import trace_step

ROWS, WIDTH = 4, 16
H = ROWS * WIDTH * 4


class On(nn.Module):
    """`h` is made, then `body` is called on it."""

    def __init__(self, body: Callable[..., Any], width: int = WIDTH) -> None:
        super().__init__()
        self.first = nn.Linear(8, width, bias=False)
        self.body = body

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.body(self.first(inputs[0]), *inputs[1:])


def traced(model: Any, *inputs: torch.Tensor, **options: Any) -> Trace:
    options = {"loss": lambda out: out.float().mean(), "optimizer": torch.optim.SGD} | options
    return trace_step(Step(model=model, batch=inputs or (x(ROWS, 8),), **options), find_gpu("h200"))


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def total(trace: Trace, category: Category) -> int:
    return sum(storage.nbytes for storage in trace.storages if storage.category is category)


def kept(trace: Trace) -> int:
    return total(trace, Category.ACTIVATIONS) - 4  # the loss


def forward_ops(trace: Trace) -> list[Op]:
    section = next(section for section in trace.sections if section.name == "micro_batch")
    return [op for op in trace.ops[section.first_op : section.last_op] if op.phase is Phase.FORWARD]


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value.half())
        return value * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0]


def rope(h: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(h.view(ROWS, 8, 2))
    angles = torch.polar(torch.ones(ROWS, 8, device=h.device), torch.zeros(ROWS, 8, device=h.device))
    return torch.view_as_real(pairs * angles).flatten(1)


def views_of_views(h: torch.Tensor) -> torch.Tensor:
    return h.view(2, 2, WIDTH).transpose(0, 1)[1:].squeeze(0).unbind(0)[1].sin()


def in_place(h: torch.Tensor) -> torch.Tensor:
    return h.mul_(2).add_(1).sigmoid_()


LAYERS: dict[str, tuple[Callable[..., Any], int]] = {
    "dropout: a byte per number": (nn.Dropout(0.1), ROWS * WIDTH),
    "layer norm: its input, a mean and a deviation per row": (nn.LayerNorm(WIDTH), H + 2 * ROWS * 4),
    "rms norm: its input, a deviation per row": (nn.RMSNorm(WIDTH), H + ROWS * 4),
    "batch norm: its input, a mean and a deviation per channel": (nn.BatchNorm1d(WIDTH), H + 2 * WIDTH * 4),
    "group norm: its input, a mean and a deviation per row and group": (nn.GroupNorm(2, WIDTH), H + 2 * ROWS * 2 * 4),
    "gelu: its input": (nn.GELU(), H),
    "relu in place: its result, which is its input's memory": (nn.ReLU(inplace=True), H),
    "softmax: its result": (nn.Softmax(-1), H),
    "several ops in place: the last result": (in_place, H),
    "a linear layer: its input": (nn.Linear(WIDTH, 5), H),
    "einsum: its argument once, though it reads it twice": (lambda h: torch.einsum("ij,kj->ik", h, h), H),
    "views of views: what they all show": (views_of_views, H),
    "complex rotation: the angles, since h has no other gradient": (rope, ROWS * 8 * 8),
    "a custom function: what it saved": (Scale.apply, ROWS * WIDTH * 2),
    "an addition: nothing": (lambda h: h + 1, 0),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_keeps(layer: str) -> None:
    body, expected_bytes = LAYERS[layer]
    assert kept(traced(On(body))) == expected_bytes


def test_convolutions_keep_their_inputs_and_max_pooling_its_own_and_the_places_of_the_maxima() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 2, 3))
    convolved, pooled = 2 * 4 * 8 * 8 * 4, 2 * 4 * 4 * 4 * 4
    assert kept(traced(model, x(2, 3, 8, 8))) == convolved + pooled + 2 * pooled  # places are 8 bytes each


def test_an_embedding_keeps_nothing_but_its_tokens_which_are_the_batch() -> None:
    assert kept(traced(nn.Embedding(32, WIDTH), x(ROWS, 3, dtype=torch.int64))) == 0


def test_cross_entropy_keeps_the_logarithms_and_the_weight_of_all_targets() -> None:
    body = lambda h, target: F.cross_entropy(h, target)  # noqa: E731
    model, target = On(body), x(ROWS, dtype=torch.int64)
    assert kept(traced(model, x(ROWS, 8), target, loss=lambda loss: loss)) == H + 4


@pytest.mark.parametrize(("cls", "numbers"), [(nn.LSTM, 5), (nn.GRU, 6)])
def test_recurrent_networks_keep_gates_and_states_of_every_time_step(cls: Any, numbers: int) -> None:
    steps, batch, hidden = 5, 3, 16
    t = traced(cls(8, hidden), x(steps, batch, 8), loss=lambda out: out[0].mean())
    result, state = steps * batch * hidden * 4, batch * hidden * 4
    reserve = numbers * steps * batch * hidden * 4 + 256  # what cuDNN keeps: gates (and one more), and its own
    states = {nn.LSTM: 2, nn.GRU: 1}[cls]  # the first ones, of an LSTM the cells' too
    assert kept(t) == result + reserve + states * state


# ---- modules -------------------------------------------------------------------------------------------------------


class CalledThrice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.shared(self.shared(self.shared(value)))


def test_a_module_called_three_times_has_one_gradient_and_keeps_two_of_its_inputs() -> None:
    t = traced(CalledThrice(), x(ROWS, WIDTH))
    assert kept(t) == 2 * H  # the third is the batch
    assert total(t, Category.GRADIENTS) == WIDTH * WIDTH * 4
    # The first gradient is a view of another tensor and cannot be added to; the sum of two can.
    assert [op.name for op in t.ops if op.name.startswith("aten.add")] == ["aten.add.Tensor", "aten.add_.Tensor"]


def test_one_module_in_two_places_is_one_module() -> None:
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    t = traced(nn.Sequential(layer, nn.GELU(), layer), x(ROWS, WIDTH))
    assert (t.num_parameters, total(t, Category.PARAMETERS)) == (WIDTH * WIDTH, WIDTH * WIDTH * 4)
    assert kept(t) == 2 * H


class Outputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, WIDTH, bias=False), nn.Linear(8, WIDTH, bias=False)

    def forward(self, a: torch.Tensor, b: torch.Tensor | None = None) -> dict[str, Any]:
        return {"left": self.left(a).exp(), "right": [self.right(a if b is None else b).exp()], "none": None}


@pytest.mark.parametrize("b", [None, x(ROWS, 8)], ids=["none", "two inputs"])
def test_several_inputs_and_outputs_of_which_the_loss_takes_some(b: torch.Tensor | None) -> None:
    step = Step(model=Outputs(), batch={"a": x(ROWS, 8), "b": b}, loss=lambda out: out["right"][0].mean())
    t = trace_step(step, find_gpu("h200"))
    assert total(t, Category.OTHER) == ROWS * 8 * 4 * (1 if b is None else 2)
    assert total(t, Category.GRADIENTS) == 8 * WIDTH * 4  # the left one is not reached
    assert kept(t) == H  # exp keeps its result; the left one is let go with the output


def test_the_device_of_the_batch_changes_nothing() -> None:
    on_meta, on_host = (traced(nn.Linear(8, WIDTH), torch.empty(ROWS, 8, device=device)) for device in ("meta", "cpu"))
    assert (on_host.sections, on_host.storages) == (on_meta.sections, on_meta.storages)
    assert [op.name for op in on_host.ops if op.phase is not Phase.BUILD] == [
        op.name for op in on_meta.ops if op.phase is not Phase.BUILD
    ]


def test_a_module_is_placed_as_it_would_move_to_the_gpu() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.register_buffer("mask", torch.ones(5))
            self.child = nn.Linear(8, 2)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return self.child(value).sum() * self.scale.sum()

    t = traced(Parts())
    sizes = [t.storages[event.storage].nbytes for event in t.sections[0].events if event.is_alloc]
    assert sizes == [
        2 * 8 * 4,
        2 * 4,
        3 * 4,
        5 * 4,
        ROWS * 8 * 4,
    ]  # children first, then parameters, buffers, the batch


@pytest.mark.parametrize("make", [lambda: nn.LSTM(8, WIDTH), lambda: nn.LSTM(8, WIDTH, device="meta")])
def test_a_recurrent_network_is_flattened_once_as_one_that_is_built_on_the_gpu(make: Callable[[], nn.Module]) -> None:
    loss = lambda out: out[0].mean()  # noqa: E731
    moved, built = (traced(model, x(5, 3, 8), loss=loss) for model in (make(), lambda: nn.LSTM(8, WIDTH)))
    flat = 4 * WIDTH * (8 + WIDTH + 2) * 4
    assert [storage.nbytes for storage in moved.storages if storage.category is Category.PARAMETERS] == [flat]
    assert moved.storages == built.storages
    assert [[(event.storage, event.is_alloc) for event in section.events] for section in moved.sections] == [
        [(event.storage, event.is_alloc) for event in section.events] for section in built.sections
    ]


def test_integers_of_a_buffer_are_known() -> None:
    class Cuts(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, WIDTH, bias=False)
            self.register_buffer("length", torch.tensor([3]))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return super().forward(value)[:, : int(self.length[0])].exp()

    assert kept(traced(Cuts())) == ROWS * 3 * 4


# ---- checkpointing -------------------------------------------------------------------------------------------------


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH, bias=False))


def keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_product = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def selective() -> Any:
    return create_selective_checkpoint_contexts(keep_products)


@pytest.mark.parametrize(
    ("options", "expected_bytes", "products"),
    [
        (None, 5 * H, 0),  # h, gelu's input and result of twice the width
        ({"use_reentrant": True}, H, 2),
        ({"use_reentrant": False}, H, 1),  # the last product is not needed, and not made again
        ({"use_reentrant": False, "context_fn": selective}, H + 2 * H + H, 0),  # both products are kept
    ],
    ids=["none", "reentrant", "not reentrant", "selective"],
)
def test_checkpointing_keeps_the_input_and_what_a_policy_says(
    options: dict[str, Any] | None, expected_bytes: int, products: int
) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer = nn.Linear(8, WIDTH, bias=False), feed_forward()

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            h = self.first(value)
            return self.layer(h) if options is None else checkpoint(self.layer, h, **options)

    t = traced(Checkpointed())
    assert kept(t) == expected_bytes
    section = next(section for section in t.sections if section.name == "micro_batch")
    again = [op for op in t.ops[section.first_op : section.last_op] if op.phase is Phase.RECOMPUTE]
    assert sum(op.name == "aten.mm.default" for op in again) == products


# ---- precisions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_casts_of_the_weight_and_of_the_input(dtype: torch.dtype) -> None:
    t = traced(On(nn.Linear(WIDTH, 5, bias=False)), autocast=dtype)
    assert total(t, Category.PARAMETERS) == total(t, Category.GRADIENTS) == (8 + 5) * WIDTH * 4
    # Of the first weight, whose input needs no gradient, the cast goes when autocast ends.
    assert kept(t) == ROWS * 8 * 2 + ROWS * WIDTH * 2 + WIDTH * 5 * 2


def test_bfloat16_weights_have_gradients_and_states_of_two_bytes() -> None:
    t = traced(nn.Linear(8, WIDTH, bias=False).bfloat16(), x(ROWS, 8, dtype=torch.bfloat16), optimizer=None)
    weight = 8 * WIDTH * 2
    assert total(t, Category.PARAMETERS) == total(t, Category.GRADIENTS) == weight
    assert total(t, Category.OPTIMIZER) == 2 * weight


def test_a_grad_scaler_keeps_its_scale_and_its_growth_tracker_and_looks_once_for_overflows() -> None:
    options = {"autocast": torch.float16, "grad_scaler": True}
    plain, scaled = traced(nn.Linear(8, WIDTH), autocast=torch.float16), traced(nn.Linear(8, WIDTH), **options)
    names = [op.name for op in scaled.ops]
    checks = "aten._amp_foreach_non_finite_check_and_unscale_.default"
    assert names.count(checks) == 2  # in the first step and in later ones
    assert total(scaled, Category.OTHER) - total(plain, Category.OTHER) == 8  # a float and an integer


def test_tf32_takes_the_memory_of_fp32_and_is_written_at_its_products() -> None:
    plain, precision = traced(feed_forward(), x(ROWS, WIDTH)), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        rounded = traced(feed_forward(), x(ROWS, WIDTH))
        narrow = traced(feed_forward(), x(ROWS, WIDTH), autocast=torch.bfloat16)
    finally:
        torch.set_float32_matmul_precision(precision)
    assert replace(rounded, ops=tuple(replace(op, tf32=False) for op in rounded.ops)) == plain
    assert {op.name for op in rounded.ops if op.tf32} == {"aten.mm.default"}
    assert not any(op.tf32 for op in (*plain.ops, *narrow.ops))
