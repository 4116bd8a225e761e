"""Traces of toy steps against counts and bytes computed by hand, and every kind of model that must train."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainfit import Step
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Category, HostWork, Op, Phase, Trace
from trainfit.trace import trace_step

H200 = find_gpu("h200")


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def mean(output: torch.Tensor) -> torch.Tensor:
    return output.float().mean()


def trace(model: Any, *inputs: torch.Tensor, **options: Any) -> Trace:
    options = {"loss": mean, "optimizer": sgd} | options
    return trace_step(Step(model=model, batch=inputs, **options), H200)


def steady_ops(trace: Trace) -> list[Op]:
    return [op for i in trace.steady_step for op in trace.ops[trace.sections[i].first_op : trace.sections[i].last_op]]


def bytes_by_category(trace: Trace) -> dict[str, int]:
    total = dict.fromkeys(Category, 0)
    for storage in trace.storages:
        total[storage.category] += storage.nbytes
    return {str(category): nbytes for category, nbytes in total.items()}


def peak_live_bytes(trace: Trace) -> int:
    """The peak of the steady step, by storages' own bytes."""
    live: dict[int, int] = {}
    peak = 0
    for step in (trace.first_step, trace.steady_step):
        peak = sum(live.values())
        for index in step:
            for event in trace.sections[index].events:
                if event.is_alloc:
                    live[event.storage] = trace.storages[event.storage].nbytes
                    peak = max(peak, sum(live.values()))
                else:
                    del live[event.storage]
    return peak


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# ---- exact numbers -------------------------------------------------------------------------------------------------


def test_a_linear_layer_by_hand() -> None:
    t = trace(nn.Linear(256, 512, bias=False), x(64, 256))
    weight, batch, out = 512 * 256 * 4, 64 * 256 * 4, 64 * 512 * 4
    found = bytes_by_category(t)
    assert found["parameters"] == weight
    assert found["gradients"] == weight
    assert found["other"] == batch
    assert found["optimizer"] == 0
    # at the peak there are the output's gradient and the weight's, the loss and its gradient; the output is gone
    assert peak_live_bytes(t) == weight + batch + out + weight + 2 * 4


def test_adamw_keeps_two_states_and_one_temporary_of_all_parameters() -> None:
    t = trace(nn.Linear(256, 512), x(1, 256), optimizer=None)
    parameters = (512 * 256 + 512) * 4
    assert bytes_by_category(t)["optimizer"] == 2 * parameters
    # weights, gradients, two states, the square root of one; the batch
    assert peak_live_bytes(t) == 5 * parameters + 256 * 4


@pytest.mark.parametrize(
    ("make", "states", "temporaries"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0, 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1, 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False), 1, 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), 1, 0),
        (lambda p: torch.optim.Adam(p), 2, 1),
        (lambda p: torch.optim.Adam(p, foreach=False), 2, 2),
        (lambda p: torch.optim.Adam(p, fused=True), 2, 0),
        (lambda p: torch.optim.AdamW(p), 2, 1),
        (lambda p: torch.optim.AdamW(p, foreach=False), 2, 2),
        (lambda p: torch.optim.AdamW(p, fused=True), 2, 0),
    ],
    ids=[
        *("sgd", "momentum", "momentum in a loop", "fused momentum"),
        *("adam", "adam in a loop", "fused adam", "adamw", "adamw in a loop", "fused adamw"),
    ],
)
def test_optimizer_memory_by_hand(make: Any, states: int, temporaries: int) -> None:
    t = trace(nn.Linear(256, 512, bias=False), x(1, 256), optimizer=make)
    parameters, batch, output_gradient, loss_and_its_gradient = 512 * 256 * 4, 256 * 4, 512 * 4, 2 * 4
    step_counter = 4 if any("_fused_adam" in op.name for op in t.ops) else 0  # on the GPU only where it is fused
    assert bytes_by_category(t)["optimizer"] == states * parameters + step_counter
    in_backward = output_gradient + loss_and_its_gradient
    in_optimizer = temporaries * parameters
    always = (2 + states) * parameters + batch + step_counter
    assert peak_live_bytes(t) == always + max(in_backward, in_optimizer)


def test_adafactor_keeps_a_row_and_a_column() -> None:
    t = trace(nn.Linear(256, 512, bias=False), x(1, 256), optimizer=torch.optim.Adafactor)
    assert bytes_by_category(t)["optimizer"] == (256 + 512) * 4


def test_activations_are_what_lives_when_backward_starts() -> None:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.GELU(), nn.Linear(16, 8, bias=False))
    t = trace(model, x(4, 8))
    # GELU's input and output are saved; the loss is alive; the second output is not needed
    assert bytes_by_category(t)["activations"] == 2 * 4 * 16 * 4 + 4


def test_phases_and_modules_of_forward_and_backward() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.GELU())
    t = trace(model, x(4, 8))
    found = [
        (op.phase, op.module) for op in steady_ops(t) if op.name in ("aten.mm.default", "aten.gelu_backward.default")
    ]
    assert found == [(Phase.FORWARD, "0"), (Phase.BACKWARD, "1"), (Phase.BACKWARD, "0")]


def test_recomputation_is_a_phase_of_its_own() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU())

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, value, use_reentrant=False)

    t = trace(Checkpointed(), x(4, 8))
    assert [(op.phase, op.module) for op in steady_ops(t) if op.name == "aten.addmm.default"] == [
        (Phase.FORWARD, "inner.0"),
        (Phase.RECOMPUTE, "inner.0"),
    ]


def test_gradient_accumulation_traces_the_further_micro_batch_once() -> None:
    t = trace(nn.Linear(8, 8, bias=False), x(4, 8), micro_batches=5)
    names = [t.sections[i].name for i in t.steady_step]
    assert names == ["micro_batch", *["next_micro_batch"] * 4, "optimizer_step", "zero_grad"]
    # the second gradient is added into the first
    assert any(op.name == "aten.add_.Tensor" for op in steady_ops(t) if op.phase is Phase.BACKWARD)


def test_kept_gradients_are_zeroed_and_accumulated_into() -> None:
    t = trace(nn.Linear(8, 8, bias=False), x(4, 8), set_to_none=False)
    assert [t.sections[i].name for i in t.steady_step] == ["next_micro_batch", "optimizer_step", "zero_grad"]
    frees = [e for i in t.steady_step for e in t.sections[i].events if not e.is_alloc]
    gradients = {n for n, s in enumerate(t.storages) if s.category is Category.GRADIENTS}
    assert gradients
    assert gradients.isdisjoint(e.storage for e in frees)


def test_a_grad_scaler_unscales_and_steps() -> None:
    t = trace(nn.Linear(8, 8), x(4, 8), autocast=torch.float16, grad_scaler=True, optimizer=None, clip_grad_norm=1.0)
    names = [op.name for op in steady_ops(t)]
    assert names.count("aten._amp_foreach_non_finite_check_and_unscale_.default") == 1
    assert names.count("aten._foreach_norm.Scalar") == 1
    assert names.count("aten._foreach_sqrt.default") == 1
    assert bytes_by_category(t)["optimizer"] == 2 * (64 + 8) * 4
    # Whether there was an overflow is read before the step that depends on it: the CPU waits, once.
    (after_reading,) = [number for number, op in enumerate(steady_ops(t)) if op.before and op.before.waited]
    assert names.index("aten._foreach_norm.Scalar") < after_reading < names.index("aten._foreach_sqrt.default")


class CountsClasses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (nn.functional.one_hot(x.argmax(-1), 3) * self.scale).sum()


def test_classes_are_written_without_a_look_at_their_numbers() -> None:
    t = trace(CountsClasses(), x(4, 3), loss=lambda output: output)
    assert [op.name.split(".")[1] for op in steady_ops(t) if op.phase is Phase.FORWARD] == [
        "argmax", "zeros", "unsqueeze", "scatter_", "mul", "sum",
    ]  # fmt: skip
    assert not any(op.before for op in steady_ops(t))


class ReadsAndComputes(nn.Module):
    """Buckets of distances on the host, and rows chosen by a mask and by a number that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = (torch.arange(6) < 3).to(torch.int64)
        found = x + self.table(near.to(x.device))[:4]
        scaled = found[torch.tensor([0, 1, 2, 3])] * found.sum().item()
        return scaled[torch.ones(4, dtype=torch.bool, device=x.device)].sum()


def test_an_op_knows_what_the_cpu_did_for_itself_since_the_one_before() -> None:
    t = trace(ReadsAndComputes(), x(4, 8), loss=lambda output: output)
    forward = [(op.name, op.before) for op in steady_ops(t) if op.phase is Phase.FORWARD and op.before]
    assert forward == [
        ("aten._to_copy.default", HostWork(False, 3, 18)),  # arange, a comparison, a cast: six numbers each
        ("aten.embedding.default", HostWork(True, 0, 0)),  # the copy had to end
        ("aten._to_copy.default", HostWork(False, 1, 0)),  # a tensor of numbers is made without an op that writes it
        ("aten.index.Tensor", HostWork(True, 0, 0)),  # the indices were copied
        ("aten.mul.Tensor", HostWork(True, 0, 0)),  # the sum was read
        ("aten.sum.default", HostWork(True, 0, 0)),  # how many rows the mask has is asked before they are taken
    ]
    # Mask and indices are asked for once more where gradients are written through them. The optimizer's own counts are
    # no work.
    assert [op.before for op in steady_ops(t) if op.phase is Phase.BACKWARD and op.before] == [HostWork(True, 0, 0)] * 2
    assert [op.before for op in steady_ops(t) if op.phase is Phase.OPTIMIZER and op.before] == []


class PlacesItsTable(nn.Module):
    """Tables of the host are added in every step, one of them in the input's type."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        placed = torch.ones(4, 8).type_as(x) + torch.ones(4, 8, dtype=torch.bfloat16).to(x.device)
        return (x * self.scale + placed).sum()


def test_what_is_converted_on_its_way_to_the_gpu_is_work_of_the_cpu() -> None:
    t = trace(PlacesItsTable(), x(4, 8, dtype=torch.bfloat16), loss=lambda output: output)
    copies = [op.before for op in steady_ops(t) if op.name == "aten._to_copy.default"]
    # The tables are made, and one of them is converted; its copy must end before the other is made.
    assert copies == [HostWork(False, 2, 64), HostWork(True, 1, 32)]


class Rolled(nn.Module):
    """A call that issues several ops, a loop of one, and a loss of two."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x * self.scale, (1, 1), mode="circular")
        for _ in range(2):
            x = x * 0.5
        return F.cross_entropy(x.flatten(1), torch.zeros(2, dtype=torch.int64, device=x.device))


def test_ops_that_one_call_or_one_node_issues_continue_it() -> None:
    calls: list[tuple[Phase, list[str]]] = []
    for op in steady_ops(trace(Rolled(), x(2, 3, 4), loss=lambda output: output)):
        if not op.continues:
            calls.append((op.phase, []))
        calls[-1][1].append(op.name.split(".")[1])
    forward = [names for phase, names in calls if phase is Phase.FORWARD]
    assert forward[:2] == [["mul"], ["new_empty", *["slice", "slice", "copy_"] * 3]]
    assert forward[2:5] == [["mul"], ["mul"], ["view"]]  # the loop's are calls of their own
    assert forward[-1] == ["_log_softmax", "detach", "nll_loss_forward"]
    backward = [names for phase, names in calls if phase is Phase.BACKWARD]
    assert ["new_empty_strided", "copy_", "as_strided", "clone", "zeros_like", "copy_"] in backward  # a copied slice
    assert backward[-1] == ["detach"]  # the gradient reaches its parameter


# ---- what the user passed is left alone ----------------------------------------------------------------------------


def test_the_users_model_and_batch_are_not_touched() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = torch.ones(2, 4)
    trace(model, batch)
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())
    assert torch.equal(batch, torch.ones(2, 4))


def test_modules_keep_their_modes_in_a_model_that_trains_and_one_in_evaluation_is_trained() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4))
    model[0].eval()  # frozen statistics

    def kernels() -> list[str]:
        names = [op.name.split(".")[1] for op in steady_ops(trace(model, x(2, 4, 8)))]
        return [name for name in names if "batch_norm" in name]

    forward = ["cudnn_batch_norm"] * 2
    # only where it trains does backward need cuDNN's own sums
    assert kernels() == [*forward, "cudnn_batch_norm_backward", "native_batch_norm_backward"]
    model.eval()
    assert kernels() == [*forward, "cudnn_batch_norm_backward", "cudnn_batch_norm_backward"]


class Dropping(nn.Module):
    """Leaves out layers at random, by the host's three generators."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(30))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            draw = (torch.rand(()).item, random.random, np.random.rand)[number % 3]
            x = layer(x) if draw() < 0.5 else x
        return x


def test_what_is_drawn_at_random_is_the_same_in_every_trace_and_moves_no_generator() -> None:
    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]

    before = states()
    first = trace(Dropping, torch.zeros(4, 8))
    assert states() == before
    torch.rand(1), random.random(), np.random.rand()
    assert trace(Dropping, torch.zeros(4, 8)) == first


def test_nothing_of_the_trace_outlives_it() -> None:
    seen: list[weakref.ref[nn.Module]] = []

    def build() -> nn.Module:
        model = nn.Linear(4, 4)
        seen.append(weakref.ref(model))
        return model

    trace(build, x(2, 4))
    gc.collect()
    assert seen[0]() is None


def test_real_meta_and_built_models_give_the_same_trace() -> None:
    with torch.device("meta"):
        on_meta = nn.Linear(8, 8)
    traces = [trace(model, x(2, 8)) for model in (nn.Linear(8, 8), on_meta, lambda: nn.Linear(8, 8))]
    peaks = {peak_live_bytes(t) for t in traces}
    assert len(peaks) == 1
    assert [op.name for op in steady_ops(traces[0])] == [op.name for op in steady_ops(traces[2])]


def test_the_same_tensor_twice_in_a_batch_is_one_storage() -> None:
    ids = x(4, 8)
    t = trace_step(Step(model=Two(), batch={"a": ids, "b": ids}, loss=mean, optimizer=sgd), H200)
    assert bytes_by_category(t)["other"] == 4 * 8 * 4


# ---- kinds of models -----------------------------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, a: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        return self.linear(a) if b is None else self.linear(a) + self.linear(b)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.head = nn.Linear(8, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.base(value) + self.up(self.down(value))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.used(value)


class InPlaceAndViews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        hidden = F.relu_(self.linear(value))
        hidden = hidden.view(2, 2, 8).transpose(0, 1)[1:].reshape(-1, 8).clone()
        hidden[0] += 1
        return torch.einsum("ij,kj->ik", hidden, hidden)


class ComplexRope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(self.linear(value).reshape(-1, 4, 2))
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(pairs.real), pairs.imag)).flatten(1)


def test_tied_weights_are_one_parameter_with_one_gradient() -> None:
    t = trace(Tied(), x(2, 4, dtype=torch.long))
    found = bytes_by_category(t)
    assert (found["parameters"], found["gradients"]) == (32 * 8 * 4, 32 * 8 * 4)
    assert t.num_parameters == 32 * 8


def test_frozen_weights_get_no_gradient_and_no_state() -> None:
    found = bytes_by_category(trace(Lora(), x(4, 8), optimizer=None))
    assert found["parameters"] == (72 + 32) * 4
    assert found["gradients"] == 32 * 4
    assert found["optimizer"] == 2 * 32 * 4


def test_parameters_that_backward_does_not_reach_get_no_gradient() -> None:
    found = bytes_by_category(trace(Unused(), x(4, 8), optimizer=None))
    assert (found["parameters"], found["gradients"]) == (2 * 64 * 4, 64 * 4)


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Two(), {"a": x(4, 8), "b": None}),
        (Two(), {"a": x(4, 8), "b": x(4, 8)}),
        (InPlaceAndViews(), (x(4, 8),)),
        (ComplexRope(), (x(4, 8),)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(2)), (x(2, 3, 8, 8),)),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 2, 3)), (x(2, 4, 8, 8),)),
        (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (x(2, 4, 16),)),
        (nn.Transformer(16, 2, 1, 1, 32, batch_first=True), (x(2, 4, 16), x(2, 3, 16))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_ordinary_models_train(model: nn.Module, batch: Any) -> None:
    loss = lambda out: mean(out)  # noqa: E731
    t = trace_step(Step(model=model, batch=batch, loss=loss, optimizer=sgd), H200)
    found = bytes_by_category(t)
    assert found["gradients"] == found["parameters"]


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_recurrent_models_train(cls: Any, autocast: torch.dtype | None) -> None:
    t = trace(cls(8, 16, num_layers=2, dropout=0.1), x(5, 3, 8), loss=lambda out: mean(out[0]), autocast=autocast)
    found = bytes_by_category(t)
    assert found["gradients"] == found["parameters"]


def test_hooks_on_modules_and_tensors_run_and_what_they_hold_stays() -> None:
    held: list[torch.Tensor] = []

    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.GELU(), nn.Linear(16, 8, bias=False))
        model[2].register_forward_hook(lambda module, args, output: held.append(output))
        model[1].register_full_backward_hook(lambda module, grads_in, grads_out: held.append(grads_out[0]))
        return model

    t = trace(build, x(4, 8))
    assert [tuple(value.shape) for value in held] == [(4, 8), (4, 16)]
    # the output that the hook holds is never freed, and so belongs to nothing of the step
    assert bytes_by_category(t)["other"] >= 4 * 8 * 4 + 4 * 8 * 4 + 4 * 16 * 4


def test_a_step_that_recomputes_nothing_has_no_recomputation() -> None:
    t = trace(nn.Linear(8, 8), x(4, 8), autocast=torch.float16, grad_scaler=True, optimizer=None)
    assert Phase.RECOMPUTE not in {op.phase for op in t.ops}
