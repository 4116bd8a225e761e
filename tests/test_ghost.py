"""The ghost GPU: what programs see inside it, and that torch is as it was afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainfit import ghost_gpu, torch_compat
from trainfit.errors import UnknownGpu


def ops_of(program: Callable[[], Any], gpu: str = "h200") -> list[str]:
    """Names of the aten ops that the program runs on the ghost GPU, without `aten.` and the default overload."""
    names: list[str] = []
    with ghost_gpu(gpu) as mode:
        mode.listener = lambda func, args, kwargs, result: names.append(str(func))
        program()
    return [name.removeprefix("aten.").removesuffix(".default") for name in names]


# ---- what a program sees -------------------------------------------------------------------------------------------


def test_tensors_say_they_are_on_cuda_and_have_no_data() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(4, 8, device="cuda")
        assert (x.device, x.is_cuda, x.is_meta, x.is_cpu, x.get_device()) == (
            torch.device("cuda:0"),
            True,
            False,
            False,
            0,
        )
        assert x.to("cuda") is x
        assert x.cuda() is x
        assert (x + 1).device == torch.device("cuda:0")
        assert torch.empty_like(x).device == torch.device("cuda:0")


@pytest.mark.parametrize("name", ["tensor", "as_tensor", "asarray"])
def test_constructors_from_data_make_ghosts_with_known_integers(name: str) -> None:
    with ghost_gpu("h200"):
        make = getattr(torch, name)
        x = make([3, 5], device="cuda")
        assert x.is_cuda
        assert x[1].item() == 5
        with torch.device("cuda"):
            assert make([1.0]).is_cuda
        assert make([1.0]).device.type == "cpu"


def test_torch_cuda_answers_for_the_named_gpu() -> None:
    with ghost_gpu("a100-80gb"):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 108
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        torch.cuda.synchronize()
        torch.cuda.manual_seed_all(0)
        with torch.cuda.stream(torch.cuda.Stream()):
            pass


def test_what_training_scripts_ask_of_cuda_besides_is_answered() -> None:
    with ghost_gpu("h200"):
        torch.cuda.nvtx.range_push("forward")
        torch.cuda.nvtx.range_pop()
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved() == 0
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
        generator = torch.Generator(device="cuda").manual_seed(1)
        assert generator.device == torch.device("cuda:0")
        assert torch.randn(3, device="cuda", generator=generator).is_cuda
        assert torch.ones(2).pin_memory().to("cuda", non_blocking=True).is_cuda
        assert torch.empty(2, pin_memory=True).is_cpu
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            y = torch.randn(3, device="cuda", requires_grad=True).sin()
        y.sum().backward()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_compiled_module_runs_as_it_was_written_and_ops_on_functions_are_refused() -> None:
    before = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()), backend="eager")

    @torch.compile(backend="eager")
    def compiled_before(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def program() -> None:
        x = torch.randn(2, 4, device="cuda")
        inside = torch.compile(nn.Linear(4, 4).to("cuda"))  # by its usual backend, which would want a GPU
        torch.compile(dynamic=True)(torch.Tensor.tanh)(inside(before.to("cuda")(compiled_before(x))))

    computing = [name for name in ops_of(program) if name in ("sin", "addmm", "gelu", "tanh")]
    assert computing == ["sin", "addmm", "gelu", "addmm", "tanh"]
    with ghost_gpu("h200"):
        q = torch.randn(1, 2, 128, 16, device="cuda", requires_grad=True)
        with pytest.raises(NotImplementedError, match="flex_attention computes with functions"):
            flex_attention(q, q, q)


def test_an_unknown_gpu_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownGpu, match="h200"), ghost_gpu("h201"):
        pass


def test_a_host_tensor_among_gpu_tensors_is_refused_as_cuda_does() -> None:
    with ghost_gpu("h200"), pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="cuda") + torch.ones(3)


def test_matrices_of_two_types_are_refused_as_cuda_does() -> None:
    with ghost_gpu("h200"):
        layer, x = nn.Linear(4, 4, device="cuda"), torch.randn(2, 4, device="cuda", dtype=torch.float16)
        with pytest.raises(RuntimeError, match="mat1 and mat2 to have the same dtype"):
            layer(x)
        with pytest.raises(RuntimeError, match="mat1 and mat2 to have the same dtype"):
            x.expand(3, 2, 4) @ torch.randn(3, 4, 5, device="cuda")


def test_a_host_tensor_may_say_what_is_made_on_the_gpu() -> None:
    host = torch.arange(6).reshape(2, 3)
    with ghost_gpu("h200"):
        for made in (
            torch.empty_like(host, device="cuda"),
            torch.randn_like(host, dtype=torch.float32, device="cuda"),
            torch.full_like(host, 7, device="cuda"),
            host.new_zeros(2, 3, device="cuda"),
        ):
            assert (made.device, made.shape) == (torch.device("cuda:0"), (2, 3))
        assert torch.full_like(host, 7, device="cuda").sum().item() == 42


def test_a_host_scalar_is_welcome() -> None:
    with ghost_gpu("h200"):
        assert (torch.ones(3, device="cuda") + torch.tensor(2.0)).is_cuda


# ---- torch is as it was --------------------------------------------------------------------------------------------


def torch_state() -> tuple[Any, ...]:
    return (
        torch.cuda.is_available,
        torch.cuda.device_count,
        torch.cuda.Stream,
        torch.tensor,
        torch.clear_autocast_cache,
        torch.backends.cudnn.is_acceptable,
        *(tuple(types) for types in torch_compat.FOREACH_TYPE_LISTS),
        torch._C._dispatch_has_kernel_for_dispatch_key("aten::dropout", "AutogradCUDA"),
        torch._C._dispatch_has_kernel_for_dispatch_key("aten::silu_backward", "CUDA"),
        torch._C._len_torch_dispatch_stack(),
    )


def test_torch_is_restored_after_the_context_after_errors_and_after_nesting() -> None:
    before = torch_state()
    with ghost_gpu("h200"):
        assert torch_state() != before
    assert torch_state() == before
    with pytest.raises(ZeroDivisionError), ghost_gpu("h200"):
        raise ZeroDivisionError
    assert torch_state() == before
    with ghost_gpu("h200"):
        with ghost_gpu("a100-80gb"):
            assert torch.cuda.get_device_capability() == (8, 0)
            torch.randn(2, device="cuda", requires_grad=True).sum().backward()
        assert torch.cuda.get_device_capability() == (9, 0)
        torch.randn(2, device="cuda", requires_grad=True).sum().backward()
    assert torch_state() == before


def test_real_tensors_compute_as_ever_inside_and_after() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with ghost_gpu("h200"):
        inside = F.dropout(x, 0.0) @ x.t()
    assert torch.equal(inside, x @ x.t())
    assert torch.equal(F.dropout(x, 0.0) @ x.t(), x @ x.t())


def normalize_batch(x: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(x.size(1), device="cuda")
    return F.batch_norm(x, ones, ones, ones, ones, training=True)


# ---- kernels as CUDA chooses them ----------------------------------------------------------------------------------


def test_composites_take_their_cuda_branch() -> None:
    def program() -> None:
        x = torch.randn(2, 8, 4, 4, device="cuda", requires_grad=True)
        F.dropout(x, 0.1)
        normalize_batch(x)
        F.rms_norm(x, (4,), torch.ones(4, device="cuda"))
        F.silu(x).sum().backward()

    names = ops_of(program)
    for expected in ("native_dropout", "cudnn_batch_norm", "_fused_rms_norm", "silu_backward"):
        assert names.count(expected) == 1
    assert "bernoulli_.float" not in names
    assert "sigmoid" not in names


@pytest.mark.parametrize(("shape", "dtype"), [((2, 8, 4, 4), torch.bfloat16), ((2, 8), torch.float32)])
def test_batch_norm_in_bfloat16_or_of_rows_takes_the_native_kernel(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert "native_batch_norm" in ops_of(lambda: normalize_batch(torch.randn(shape, device="cuda", dtype=dtype)))


def test_the_gradient_of_log_softmax_is_in_order_however_the_incoming_one_lies() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(3, 5, 7, device="cuda", requires_grad=True)
        (gradient,) = torch.autograd.grad(x.log_softmax(-1).transpose(0, 1), x, torch.randn(5, 3, 7, device="cuda"))
    assert gradient.stride() == (35, 7, 1)


@pytest.mark.parametrize("activation", [F.elu, F.hardswish, F.hardsigmoid, F.hardtanh, F.softplus, F.gelu])
def test_an_activation_s_gradient_lies_as_the_incoming_one(activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with ghost_gpu("h200"):
        x, incoming = torch.randn(3, 5, 7, device="cuda", requires_grad=True), torch.randn(5, 3, 7, device="cuda")
        (gradient,) = torch.autograd.grad(activation(x), x, incoming.transpose(0, 1))
    assert gradient.stride() == (7, 21, 1)


def test_a_loss_s_gradient_is_in_order_or_lies_as_the_input() -> None:
    with ghost_gpu("h200"):
        x, target = (
            torch.rand(5, 3, 7, device="cuda").transpose(0, 1).requires_grad_(again) for again in (True, False)
        )
        losses = F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy
        gradients = [torch.autograd.grad(loss(x, target), x)[0].stride() for loss in losses]
    assert gradients == [(35, 7, 1)] * 3 + [(7, 21, 1)]


@pytest.mark.parametrize(
    ("shape", "input_stride", "training", "expected"),
    [
        ((2, 8, 3, 3), (72, 1, 24, 8), True, (72, 1, 24, 8)),
        ((2, 8, 3, 3), (72, 9, 3, 1), True, (72, 9, 3, 1)),
        ((2, 8, 3, 3), (72, 1, 24, 8), False, (72, 9, 3, 1)),
        ((2, 8, 9), (72, 1, 8), True, (72, 9, 1)),
    ],
)
@pytest.mark.parametrize("gradient_lies_otherwise", [False, True])
def test_native_batch_norm_s_gradient_lies_as_its_input_in_training_however_the_incoming_one_does(
    shape: tuple[int, ...],
    input_stride: tuple[int, ...],
    training: bool,
    expected: tuple[int, ...],
    gradient_lies_otherwise: bool,
) -> None:
    with ghost_gpu("h200"):
        x = torch.empty_strided(shape, input_stride, device="cuda")
        grad = torch.empty(shape, device="cuda") if gradient_lies_otherwise else torch.empty_like(x)
        channel = torch.empty(8, device="cuda")
        found = torch.ops.aten.native_batch_norm_backward(
            grad, x, channel, channel, channel, channel, channel, training, 1e-5, [True, True, False]
        )
    assert found[0].stride() == expected
    assert (found[1].shape, found[2]) == ((8,), None)


def test_folded_patches_keep_the_memory_of_all_of_them_as_on_the_cpu() -> None:
    def stored_bytes(device: str) -> list[int]:
        images, patches = torch.randn(2, 3, 8, 8, device=device), torch.randn(2, 27, 64, device=device)
        results = F.fold(patches, (8, 8), 3, padding=1), F.unfold(images, 2, stride=4), F.unfold(images, 3, padding=1)
        return [result.untyped_storage().nbytes() for result in results]

    with ghost_gpu("h200"):
        found = stored_bytes("cuda")
    assert found == stored_bytes("cpu") == [4 * 2 * 27 * 64, 4 * 2 * 3 * 64, 4 * 2 * 27 * 64]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax_from_half_to_float_converts_inside_the_kernel_and_from_bfloat16_before(dtype: torch.dtype) -> None:
    names = ops_of(lambda: torch.randn(2, 4, device="cuda", dtype=dtype).softmax(-1, dtype=torch.float32))
    assert ("_to_copy" in names) == (dtype == torch.bfloat16)


def test_convolution_of_a_channels_last_input_gives_a_channels_last_output_and_gradient() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(2, 8, 16, 16, device="cuda").to(memory_format=torch.channels_last).requires_grad_()
        conv = nn.Conv2d(8, 4, 3, device="cuda")
        out = conv(x)
        out.sum().backward()
        assert out.shape == (2, 4, 14, 14)
        assert out.is_contiguous(memory_format=torch.channels_last)
        assert x.grad is not None
        assert x.grad.is_contiguous(memory_format=torch.channels_last)
        assert conv(torch.randn(2, 8, 16, 16, device="cuda")).is_contiguous()


def test_optimizers_and_clipping_use_multi_tensor_kernels() -> None:
    def program() -> None:
        model = nn.Linear(8, 8, device="cuda")
        model(torch.randn(2, 8, device="cuda")).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.optim.AdamW(model.parameters()).step()

    names = ops_of(program)
    assert names.count("_foreach_norm.Scalar") == 1
    assert names.count("_foreach_sqrt") == 1


def test_recurrent_networks_run_on_cudnn_with_one_flat_weight() -> None:
    with ghost_gpu("h200"):
        for cls, gates in ((nn.LSTM, 4), (nn.GRU, 3)):
            rnn = cls(8, 16, num_layers=2, bidirectional=True, device="cuda")
            numel = sum(p.numel() for p in rnn.parameters())
            assert numel == gates * 16 * 2 * ((8 + 16 + 2) + (32 + 16 + 2))
            assert {p.untyped_storage().nbytes() for p in rnn.parameters()} == {4 * numel}
            out, _ = rnn(torch.randn(5, 3, 8, device="cuda"))
            assert out.shape == (5, 3, 32)
            out.sum().backward()
            assert all(p.grad is not None and p.grad.shape == p.shape for p in rnn.parameters())


@pytest.mark.parametrize(
    ("read", "written"),
    [
        (lambda x, index: x[index], "index_put_"),
        (lambda x, index: x.index_select(0, index), "index_add_"),
        (lambda x, index: x.gather(0, index[:, None]), "scatter_add_"),
        (lambda x, index: x.max(1).values, "scatter_.src"),
        (lambda x, index: x.topk(2, 1).values, "scatter_.src"),
        (lambda x, index: x.take(index), "put_"),
        (lambda x, index: x[:4].trace(), "index_fill_.int_Tensor"),
    ],
)
def test_the_gradient_of_what_was_picked_is_written_in_place_into_zeros(
    read: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], written: str
) -> None:
    def program() -> None:
        x = torch.randn(8, 4, device="cuda", requires_grad=True)
        read(x, torch.zeros(5, dtype=torch.int64, device="cuda")).sum().backward()

    assert written in ops_of(program)


def test_a_product_s_gradient_looks_for_zeros_and_divides() -> None:
    """Four rows of three: torch takes another way for tensor subclasses, a loop of products for `cumprod`."""

    def gradient_of(product: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
        def program() -> None:
            x = torch.randn(4, 3, device="cuda", requires_grad=True)
            product(x).backward(torch.ones(product(x).shape, device="cuda"))

        names = ops_of(program)
        return [name for name in names[names.index("ones") + 1 :] if name not in ("detach", "unsqueeze")]

    divided = ["div.Tensor", "mul.Tensor"]
    assert gradient_of(lambda x: x.prod()) == ["eq.Scalar", "nonzero", *divided]
    assert gradient_of(lambda x: x.prod(1)) == ["eq.Scalar", "sum.dim_IntList", "sum", *divided]
    assert gradient_of(lambda x: x.cumprod(1)) == (
        ["mul.Tensor", "eq.Scalar", "any", "flip", "cumsum", "flip", "div.Tensor"]
    )


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_a_product_s_gradient_is_of_its_input_s_shape_and_type(dtype: torch.dtype | None) -> None:
    with ghost_gpu("h200"):
        x = torch.randn(4, 3, device="cuda", requires_grad=True)
        (x.prod(0, dtype=dtype).sum() + x.prod(1, True, dtype=dtype).sum() + x.prod(dtype=dtype)).backward()
        assert x.grad is not None
        assert (x.grad.shape, x.grad.dtype) == ((4, 3), torch.float32)


def test_logits_gradients_are_written_in_place_but_not_the_saved_weight() -> None:
    """`pos_weight * target` is new; the sums and products after it are in the formula's own tensors."""

    def gradient_of(**weights: bool) -> list[str]:
        def program() -> None:
            x, target = torch.randn(4, 3, device="cuda", requires_grad=True), torch.ones(4, 3, device="cuda")
            weight = {name: torch.rand(3, device="cuda") for name in weights}
            loss = torch.nn.functional.binary_cross_entropy_with_logits(x, target, reduction="sum", **weight)
            loss.backward(torch.zeros((), device="cuda"))

        names = ops_of(program)
        return [name for name in names[names.index("zeros") + 1 :] if name != "detach"]

    assert gradient_of() == ["sigmoid", "sub_.Tensor", "mul_.Tensor"]
    own = ["add.Scalar", "sub_.Tensor", "sigmoid", "mul_.Tensor", "sub_.Tensor", "mul_.Tensor", "mul_.Tensor"]
    assert gradient_of(weight=True, pos_weight=True) == ["mul.Tensor", *own]


def test_autocast_lays_out_an_rnn_s_weights_before_it_converts_state_and_input() -> None:
    def program() -> None:
        rnn = torch.nn.GRU(8, 16, device="cuda")
        x, state = torch.randn(5, 3, 8, device="cuda"), torch.ones(1, 3, 16, device="cuda")
        with torch.autocast("cuda", torch.float16):
            rnn(x, state)

    names = ops_of(program)
    conversions = [name for name in names[names.index("ones") + 1 :] if name in ("zeros", "_to_copy", "_cudnn_rnn")]
    assert conversions == ["zeros", "_to_copy", "_to_copy", "_cudnn_rnn"]


def test_a_user_s_own_index_put_in_backward_makes_a_tensor() -> None:
    """A hook that runs while a gradient is written in place writes out of place if it says so."""

    def unpack(x: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, torch.zeros_like(x), x)

    def program() -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            x = torch.randn(8, 4, device="cuda", requires_grad=True)
            picked = x.index_select(0, torch.zeros(5, dtype=torch.int64, device="cuda"))
        picked.sum().backward()

    names = ops_of(program)
    assert ("index_add" in names, "index_add_" in names) == (True, True)


@pytest.mark.parametrize("asked", [torch.float16, torch.bfloat16])
def test_autocast_runs_recurrent_layers_in_float16_whatever_it_was_asked_for(asked: torch.dtype) -> None:
    with ghost_gpu("h200"):
        rnn = nn.GRU(8, 16, device="cuda")
        with torch.autocast("cuda", asked):
            out, last = rnn(torch.randn(5, 3, 8, device="cuda"))
        assert out.dtype is last.dtype is torch.float16


def test_dropout_between_the_layers_of_an_rnn_keeps_24_bytes_per_thread_of_the_gpu_once() -> None:
    sizes: list[int] = []
    with ghost_gpu("h200") as mode:
        rnn = nn.LSTM(8, 16, num_layers=2, dropout=0.1, device="cuda")
        x = torch.randn(5, 3, 8, device="cuda")
        mode.listener = lambda func, args, kwargs, result: sizes.append(
            result.untyped_storage().nbytes() if func is torch.ops.aten.empty.memory_format else 0
        )
        rnn(x)
        rnn(x)
    assert sizes.count(24 * 2048 * 132) == 1


def test_packed_sequences_run_on_cudnn() -> None:
    def program() -> None:
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.randn(3, 5, 8, device="cuda"), torch.tensor([5, 3, 2]), batch_first=True
        )
        out, _ = nn.GRU(8, 16, batch_first=True, device="cuda")(packed)
        padded, lengths = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        assert padded.shape == (3, 5, 16)
        assert lengths.tolist() == [5, 3, 2]

    assert "_cudnn_rnn" in ops_of(program)


def test_cells_take_their_fused_kernels_and_known_values_come_back_to_the_host() -> None:
    def program() -> None:
        x, h = torch.randn(4, 8, device="cuda"), torch.zeros(4, 16, device="cuda")
        state, _ = nn.LSTMCell(8, 16, device="cuda")(x, (h, h))
        nn.GRUCell(16, 16, device="cuda")(state, h).sum().backward()
        assert torch.arange(3, device="cuda").cpu().tolist() == [0, 1, 2]

    names = ops_of(program)
    assert names.count("_thnn_fused_lstm_cell") == 1
    assert names.count("_thnn_fused_gru_cell_backward") == 1


# ---- gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("align_corners", "kernel"), [(True, "cudnn_grid_sampler"), (False, "grid_sampler_2d")])
def test_cudnn_samples_a_grid_whose_corners_are_aligned(align_corners: bool, kernel: str) -> None:
    def program() -> None:
        x, grid = torch.randn(2, 3, 8, 8, device="cuda"), torch.zeros(2, 4, 5, 2, device="cuda", requires_grad=True)
        sampled = F.grid_sample(x.requires_grad_(), grid, align_corners=align_corners)
        assert sampled.shape == (2, 3, 4, 5)
        sampled.sum().backward()
        assert x.grad is not None
        assert grid.grad is not None
        assert (x.grad.shape, grid.grad.shape) == (x.shape, grid.shape)

    names = ops_of(program)
    assert kernel in names
    assert f"{kernel}_backward" in names


def test_a_bias_is_added_in_place_to_the_product_of_an_input_with_gaps() -> None:
    with ghost_gpu("h200") as mode:
        names: list[str] = []
        layer, x = nn.Linear(8, 16, device="cuda"), torch.randn(3, 5, 8, device="cuda")
        mode.listener = lambda func, args, kwargs, out: names.append(str(func))
        layer(x)
        assert [name for name in names if "add" in name] == ["aten.addmm.default"]
        names.clear()
        layer(x.transpose(0, 1)).sum().backward()
        assert [name for name in names if "add" in name or "mm" in name][:2] == ["aten.mm.default", "aten.add_.Tensor"]
        assert layer.bias.grad is not None
        assert layer.bias.grad.shape == (16,)


def test_gradients_are_summed_in_place_when_nobody_else_holds_them() -> None:
    def program() -> None:
        y = torch.randn(4, device="cuda", requires_grad=True) * 2
        (F.gelu(y) + F.silu(y) + y.sin()).sin().sum().backward()

    names = ops_of(program)
    assert names.count("add_.Tensor") == 2
    assert names.count("add.Tensor") == 2  # those of forward


def test_gradients_that_a_hook_keeps_are_summed_out_of_place() -> None:
    held = []

    def program() -> None:
        y = torch.randn(4, device="cuda", requires_grad=True) * 2
        z = y + y.sin()  # z's gradient is the first of y's two
        z.register_hook(held.append)
        (z * 3).sin().sum().backward()

    names = ops_of(program)
    assert len(held) == 1
    assert "add_.Tensor" not in names
    assert names.count("add.Tensor") == 2  # forward's, and the sum of y's gradients


def test_an_add_in_a_custom_backward_stays_out_of_place() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2 + grad * 3

    names = ops_of(lambda: Twice.apply(torch.randn(4, device="cuda", requires_grad=True)).sum().backward())
    assert names.count("add.Tensor") == 1
    assert "add_.Tensor" not in names


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_runs_the_forward_again_with_its_cuda_kernels(use_reentrant: bool) -> None:
    def program() -> None:
        layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.SiLU()).to("cuda")
        x = torch.randn(2, 8, device="cuda", requires_grad=True)
        checkpoint(layer, x, use_reentrant=use_reentrant).sum().backward()

    names = ops_of(program)
    assert names.count("native_dropout") == 2
    assert names.count("addmm") == 2


def test_selective_checkpointing_keeps_what_its_policy_says() -> None:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keep = op == torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    def program() -> None:
        layer = nn.Sequential(nn.Linear(8, 8, bias=False), nn.GELU(), nn.Linear(8, 8, bias=False)).to("cuda")
        x = torch.randn(2, 8, device="cuda", requires_grad=True)
        context = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
        checkpoint(layer, x, use_reentrant=False, context_fn=context).sum().backward()

    names = ops_of(program)
    assert names.count("gelu") == 2
    assert names.count("mm") == 2 + 4  # forward once, and two gradients for each


def test_a_deep_copy_has_parameters_of_its_own_that_need_gradients_as_the_originals_do() -> None:
    with ghost_gpu("h200"):
        layer = nn.Linear(3, 4, device="cuda")
        layer.weight.requires_grad_(False)
        twin = copy.deepcopy(layer)
        assert twin.weight is not layer.weight
        assert isinstance(twin.weight, nn.Parameter)
        assert (twin.weight.requires_grad, twin.bias.requires_grad) == (False, True)
        assert [n for n, _ in twin.named_parameters()] == ["weight", "bias"]


# ---- modules that were made elsewhere ------------------------------------------------------------------------------


class TiedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)))


@pytest.mark.parametrize("move", [lambda m: m.to("cuda"), lambda m: m.cuda(), lambda m: m.to_empty(device="cuda")])
def test_a_module_that_moves_to_the_gpu_keeps_its_parameters_which_are_ghosts_then(move: Callable[..., Any]) -> None:
    with ghost_gpu("h200"):
        model = TiedNorm()
        weight, optimizer = model.first.weight, torch.optim.AdamW(model.parameters())
        assert move(model) is model
        assert weight is model.first.weight
        assert {t.device for t in (*model.parameters(), *model.buffers())} == {torch.device("cuda:0")}
        assert (isinstance(weight, nn.Parameter), weight.requires_grad, weight.is_leaf) == (True, True, True)
        with torch.autocast("cuda", torch.bfloat16):
            out = model(torch.randn(2, 4, device="cuda"))
        assert out.dtype == torch.bfloat16
        out.float().sum().backward()
        assert weight.grad is not None
        assert weight.grad.is_cuda
        optimizer.step()
        assert optimizer.state[weight]["exp_avg"].is_cuda
        assert weight.half().is_cuda
        model.cpu()
        assert weight is model.second.weight
        assert {type(weight), weight.device} == {nn.Parameter, torch.device("cpu")}
        assert weight.grad.device == torch.device("cpu")


def test_a_tensor_of_the_host_that_torch_hands_over_by_its_class_stays_there() -> None:
    # As autograd does with what non-reentrant checkpointing saves beside its arguments.
    with ghost_gpu("h200") as mode:
        found = mode.__torch_dispatch__(torch.ops.aten.detach.default, (torch.Tensor,), (torch.zeros(2),))
    assert type(found) is torch.Tensor
    assert (found.device.type, found.tolist()) == ("cpu", [0.0, 0.0])


def test_libraries_that_go_by_the_module_of_a_class_take_a_ghost_for_torch_s() -> None:
    with ghost_gpu("h200"):
        assert type(torch.ones(2, device="cuda")).__module__ == "torch"
