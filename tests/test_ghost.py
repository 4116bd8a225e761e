"""The ghost GPU: what programs see inside it, and that torch is as it was afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainfit import assume_size, ghost_gpu, torch_compat
from trainfit.errors import DataDependentShape, UnknownGpu


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


def test_an_unknown_gpu_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownGpu, match="h200"), ghost_gpu("h201"):
        pass


def test_a_host_tensor_among_gpu_tensors_is_refused_as_cuda_does() -> None:
    with ghost_gpu("h200"), pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="cuda") + torch.ones(3)


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


def test_batch_norm_in_bfloat16_takes_the_native_kernel() -> None:
    def program() -> None:
        x = torch.randn(2, 8, 4, 4, device="cuda", dtype=torch.bfloat16)
        normalize_batch(x)

    assert "native_batch_norm" in ops_of(program)


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


# ---- gradients -----------------------------------------------------------------------------------------------------


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


# ---- data ----------------------------------------------------------------------------------------------------------


def test_values_from_the_host_are_known_through_views_ops_and_writes() -> None:
    mask = torch.ones(4, 8, dtype=torch.long)
    mask[0, 3:] = 0
    with ghost_gpu("h200"):
        ghost = mask.to("cuda")
        assert not bool((ghost == 1).all())
        assert ghost.sum().item() == 27
        assert ghost[:, 2:].sum().item() == 19
        assert ghost.bool().nonzero().shape == (27, 2)
        assert bool((ghost == 0).any()) is True
        assert bool((ghost == 7).any()) is False
        assert torch.randn(4, 8, 16, device="cuda")[ghost.bool()].shape == (27, 16)
        ghost[0, 0] = 0
        assert ghost.sum().item() == 26
        ghost.random_(0, 5)
        assert ghost.sum().item() == 1  # unknown by now: the stated answer


def test_unknown_scalars_get_the_stated_answers() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(3, device="cuda")
        assert x.sum().item() == 1.0
        assert bool((x > 0).all()) is True
        assert bool(torch.isnan(x).any()) is False
        assert x.cpu().tolist() == [1.0, 1.0, 1.0]
        nn.init.trunc_normal_(torch.empty(4, 4, device="cuda"))  # loops until nothing is out of bounds


def test_a_shape_that_depends_on_data_names_the_line_and_the_cure() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(6, device="cuda")
        with pytest.raises(DataDependentShape, match=r"test_ghost\.py:\d+ .*x\[x > 0\]") as error:
            x[x > 0]
        assert "assume_size" in error.value.hint
        with assume_size(4):
            assert x[x > 0].shape == (4,)
            assert torch.nonzero(x).shape == (4, 1)
            assert torch.masked_select(x, x > 0).shape == (4,)


def test_writing_through_a_mask_names_its_own_line_and_not_that_of_backward() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(6, 5, device="cuda")
        row = nn.Parameter(torch.randn(5, device="cuda"))
        mask, filled = x[:, 0] > 0, x.clone()
        filled[mask] = 0.0  # has no gradient to be read back
        filled[mask] = row
        with pytest.raises(DataDependentShape, match=r"test_ghost\.py:\d+ .*filled\[mask\] = row"):
            filled.sum().backward()
        filled = x.clone()
        with assume_size(4):
            filled[mask] = row
        filled.sum().backward()
        assert row.grad is not None
        assert filled[mask].shape == (4, 5)
        mask |= x[:, 1] > 0
        with pytest.raises(DataDependentShape):  # another mask by now
            filled[mask]


def test_as_many_rows_are_written_through_a_mask_as_there_are() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(6, 5, device="cuda")
        rows = nn.Parameter(torch.randn(3, 5, device="cuda"))
        filled, mask = x.clone(), x[:, 0] > 0
        filled[mask] = rows
        filled.sum().backward()
        assert rows.grad is not None
        assert rows.grad.shape == (3, 5)


def test_a_mask_on_the_host_is_known() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(4, 5, device="cuda")
        row = nn.Parameter(torch.randn(5, device="cuda"))
        mask, filled = torch.tensor([True, False, True, True]), x.clone()
        assert x[mask].shape == (3, 5)
        filled[mask] = row
        filled.sum().backward()
        assert row.grad is not None


def test_a_tensor_without_elements_is_known() -> None:
    with ghost_gpu("h200"):
        nothing = torch.tensor([], dtype=torch.int64, device="cuda")
        assert torch.cat([torch.tensor([2, 64], device="cuda"), nothing]).tolist() == [2, 64]
        assert torch.nonzero(nothing).shape == (0, 1)


def test_ctc_loss_keeps_a_table_of_its_paths() -> None:
    with ghost_gpu("h200"):
        log_probs = torch.randn(50, 4, 20, device="cuda").log_softmax(2).requires_grad_()
        lengths = torch.tensor([3, 7, 5, 6])
        loss = F.ctc_loss(log_probs, torch.ones(21, dtype=torch.long, device="cuda"), torch.full((4,), 50), lengths)
        loss.backward()
        assert log_probs.grad is not None
        assert torch.ops.aten._ctc_loss(
            log_probs.detach(), torch.ones(21, dtype=torch.long, device="cuda"), [50] * 4, [3, 7, 5, 6]
        )[1].shape == (4, 50, 2 * 7 + 1)


def test_a_host_scalar_fills_and_new_tensors_come_to_the_gpu() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(3, device="cuda")
        assert x.masked_fill(x > 0, torch.tensor(0.0)).is_cuda
        assert x.new_tensor([1, 2]).is_cuda
        assert x.new_tensor([1, 2]).dtype == torch.float32


def test_cells_take_their_fused_kernels_and_known_values_come_back_to_the_host() -> None:
    def program() -> None:
        x, h = torch.randn(4, 8, device="cuda"), torch.zeros(4, 16, device="cuda")
        state, _ = nn.LSTMCell(8, 16, device="cuda")(x, (h, h))
        nn.GRUCell(16, 16, device="cuda")(state, h).sum().backward()
        assert torch.arange(3, device="cuda").cpu().tolist() == [0, 1, 2]

    names = ops_of(program)
    assert names.count("_thnn_fused_lstm_cell") == 1
    assert names.count("_thnn_fused_gru_cell_backward") == 1
