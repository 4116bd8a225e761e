"""What a ghost says of its data: values that came from the host are known, others guessed, and sizes stated."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainfit import assume_size, ghost_gpu
from trainfit.errors import DataDependentShape


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
        with pytest.raises(DataDependentShape, match=r"test_ghost_data\.py:\d+ .*x\[x > 0\]") as error:
            x[x > 0]
        assert "assume_size" in error.value.hint
        with assume_size(4):
            assert x[x > 0].shape == (4,)
            assert torch.nonzero(x).shape == (4, 1)
            assert torch.masked_select(x, x > 0).shape == (4,)


def test_unknown_integers_are_what_was_stated_and_the_bins_of_a_count_what_it_says() -> None:
    with ghost_gpu("h200"):
        experts = torch.randint(4, (12,), device="cuda")
        with pytest.raises(DataDependentShape, match=r"bincount at .*test_ghost_data\.py:\d+"):
            experts.bincount()
        counts = experts.bincount(minlength=4)
        assert (counts.shape, counts.dtype) == ((4,), torch.int64)
        assert counts.tolist() == [1, 1, 1, 1]
        with assume_size(3):
            assert counts.tolist() == [3, 3, 3, 3]
            assert counts[0].item() == 3
            assert (counts.float()[0].item(), bool(counts[0] > 5)) == (1.0, True)  # neither is a size
        assert torch.tensor([0, 2, 2], device="cuda").bincount().tolist() == [1, 0, 2]


def test_elements_are_repeated_as_often_as_is_known_or_stated() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(3, 2, device="cuda")
        known = torch.tensor([2, 0, 3], device="cuda")
        assert torch.repeat_interleave(x, known, dim=0).shape == (5, 2)
        assert torch.repeat_interleave(known).tolist() == [0, 0, 2, 2, 2]
        unknown = torch.randint(4, (3,), device="cuda")
        assert torch.repeat_interleave(x, unknown, dim=0, output_size=7).shape == (7, 2)
        with pytest.raises(DataDependentShape, match=r"repeat_interleave at .*test_ghost_data\.py:\d+"):
            torch.repeat_interleave(x, unknown, dim=0)
        with assume_size(4):
            assert torch.repeat_interleave(x, unknown, dim=0).shape == (4, 2)


def test_questions_about_data_are_answered_as_if_nothing_special_happened() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(3, device="cuda", requires_grad=True)
        assert torch.equal(x, x)
        assert torch.allclose(x, x + 1)
        assert not torch.equal(x, x[:2])
        known = torch.tensor([1, 2], device="cuda")
        assert (torch.equal(known, known + 0), torch.equal(known, known + 1)) == (True, False)
        with torch.autograd.set_detect_anomaly(True, check_nan=True):
            x.sin().sum().backward()


def test_writing_through_a_mask_names_its_own_line_and_not_that_of_backward() -> None:
    with ghost_gpu("h200"):
        x = torch.randn(6, 5, device="cuda")
        row = nn.Parameter(torch.randn(5, device="cuda"))
        mask, filled = x[:, 0] > 0, x.clone()
        filled[mask] = 0.0  # has no gradient to be read back
        filled[mask] = row
        with pytest.raises(DataDependentShape, match=r"test_ghost_data\.py:\d+ .*filled\[mask\] = row"):
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


def test_waves_are_made_of_their_spectrum_and_the_windows_leave_no_gaps() -> None:
    with ghost_gpu("h200"):
        window, waves = torch.ones(64, device="cuda"), torch.randn(3, 400, device="cuda").requires_grad_()
        spectrum = torch.stft(waves, 64, window=window, return_complex=True)
        again = torch.istft(spectrum, 64, window=window, length=400)
        again.sum().backward()
        assert (spectrum.shape, again.shape) == ((3, 33, 26), (3, 400))
        assert waves.grad is not None
        assert torch.equal(waves, torch.randn(3, 400, device="cuda"))


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


def test_widths_and_rates_that_are_worked_out_from_sequences_are_known() -> None:
    with ghost_gpu("h200"):
        rates = torch.linspace(0, 0.5, 3, device="cuda")
        assert [rate.item() for rate in rates] == [0.0, 0.25, 0.5]
        widths = torch.arange(4, device="cuda") * 36.5 + 24.0  # 24, 60.5, 97, 133.5
        assert (torch.round(widths / 8) * 8).int().tolist() == [24, 64, 96, 136]
        assert torch.arange(6, device="cuda").float().mean().item() == 2.5
        steps = torch.tensor([0.5, 1.5], device="cuda")
        assert (steps * 2).tolist() == [1.0, 3.0]
        assert rates.new_tensor([2.0]).item() == 2.0
        assert torch.cat([rates, rates + 1]).tolist() == [0.0, 0.25, 0.5, 1.0, 1.25, 1.5]


def test_sequences_are_what_was_written_to_them_and_unknown_if_that_is() -> None:
    with ghost_gpu("h200"):
        sequence = torch.arange(3, 6, device="cuda").float()
        sequence += 1
        assert sequence.tolist() == [4.0, 5.0, 6.0]
        torch.add(sequence, torch.randn(3, device="cuda"), out=sequence)
        assert sequence.tolist() == [1.0, 1.0, 1.0]
        sequence = torch.arange(3, device="cuda").float()
        sequence.copy_(torch.tensor([7.0, 8.0, 9.0]))  # from the host
        assert sequence.tolist() == [7.0, 8.0, 9.0]
        sequence.copy_(torch.arange(3, 6, device="cuda"))
        assert sequence.tolist() == [3.0, 4.0, 5.0]
        assert torch.empty(3, device="cuda").copy_(sequence).tolist() == [3.0, 4.0, 5.0]
        sequence.copy_(torch.randn(3, device="cuda"))
        assert sequence.tolist() == [1.0, 1.0, 1.0]
        drawn = torch.arange(3, 6, device="cuda").float().uniform_()
        assert drawn.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_weights_that_begin_as_a_sequence_are_known_until_they_are_trained(options: dict[str, bool]) -> None:
    with ghost_gpu("h200"):
        weight = torch.nn.Parameter(torch.arange(3, 6, device="cuda").float())
        optimizer = torch.optim.AdamW([weight], **options)
        assert weight.tolist() == [3.0, 4.0, 5.0]
        (weight * torch.randn(3, device="cuda")).sum().backward()
        optimizer.step()
        assert weight.tolist() == [1.0, 1.0, 1.0]


def test_distinct_values_of_what_is_known_are_known() -> None:
    with ghost_gpu("h200"):
        ends = torch.tensor([0, 4, 4, 8, 12, 12, 4], device="cuda")
        runs, lengths = torch.unique_consecutive(ends, return_counts=True)
        assert (runs.tolist(), lengths.tolist()) == ([0, 4, 8, 12, 4], [1, 2, 1, 2, 1])
        assert torch.unique(ends).tolist() == [0, 4, 8, 12]
        rows = torch.tensor([[1, 2], [1, 2], [3, 4]], device="cuda")
        assert torch.unique_consecutive(rows, dim=0).tolist() == [[1, 2], [3, 4]]
        largest = ends.max(dim=0)
        assert (largest.values.item(), largest.indices.item()) == (12, 4)


def test_what_is_not_asked_of_distinct_values_takes_no_memory() -> None:
    with ghost_gpu("h200"):
        ends = torch.tensor([0, 4, 4], device="cuda")
        found = torch.ops.aten._unique2(ends)
        assert [one.numel() for one in found] == [2, 0, 0]
        with assume_size(7):
            unknown = torch.randint(9, (50,), device="cuda")
            assert [one.numel() for one in torch.ops.aten._unique2(unknown, True, True, True)] == [7, 50, 7]
            assert [one.numel() for one in torch.ops.aten.unique_consecutive(unknown, False, True)] == [7, 0, 7]
