"""How results of elementwise ops lie, by hand; tests/test_ghost_recorded.py has what an H200 returned."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trainfit
from trainfit.ghost.strides import elementwise_strides

Laid = tuple[tuple[int, ...], tuple[int, ...]]


def meta(shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(shape, stride, device="meta")


@pytest.mark.parametrize(
    ("tensors", "stride"),
    [
        ([((4, 6), (6, 1)), ((4, 6), (6, 1))], (6, 1)),
        ([((4, 6), (1, 4)), ((4, 6), (1, 4))], (1, 4)),
        ([((4, 6), (1, 4)), ((4, 6), (6, 1))], (1, 4)),  # the first decides
        ([((4, 6), (1, 0)), ((4, 6), (1, 4))], (1, 4)),  # but not about what it repeats
        ([((4, 6), (0, 0)), ((4, 6), (1, 4))], (1, 4)),
        ([((6,), (1,)), ((4, 6), (1, 4))], (1, 4)),
        ([((4, 6), (12, 2))], (6, 1)),  # gaps are closed
        ([((2, 8, 3, 3), (72, 1, 24, 8))] * 2, (72, 1, 24, 8)),
        ([((2, 8, 1, 1), (8, 1, 8, 8))], (8, 1, 1, 1)),  # contiguous as well as channels-last
        ([((2, 3, 4), (12, 1, 3))], (12, 1, 3)),
    ],
)
def test_a_result_lies_as_torch_iterates_over_its_tensors(tensors: list[Laid], stride: tuple[int, ...]) -> None:
    laid = [meta(*one) for one in tensors]
    assert elementwise_strides(laid, torch.broadcast_shapes(*(tensor.shape for tensor in laid))) == stride


def test_a_number_leaves_strides_of_single_elements_as_they_are() -> None:
    assert elementwise_strides([meta((8, 1, 4), (4, 4, 1))], (8, 1, 4)) == (4, 4, 1)
    assert elementwise_strides([meta((8, 1, 4), (4, 1, 1))], (8, 1, 4)) == (4, 4, 1)
    assert elementwise_strides([meta((8, 1, 4), (4, 1, 1))], (8, 1, 4), with_number=True) == (4, 1, 1)


@given(st.data())
def test_results_lie_as_those_of_the_cpu(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)))

    def tensor() -> torch.Tensor:
        order = data.draw(st.permutations(range(rank)))
        stride, step = [0] * rank, 1
        for dim in order:
            stride[dim] = step
            step *= shape[dim]
        expanded = data.draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
        kept = [0 if repeats else one for one, repeats in zip(stride, expanded, strict=True)]
        return torch.zeros(step).as_strided(shape, kept)

    one, other, third = tensor(), tensor(), tensor()
    assert elementwise_strides([one, other], shape) == torch.add(one, other).stride()
    assert elementwise_strides([one, other, third], shape) == torch.addcmul(one, other, third).stride()
    assert elementwise_strides([one], shape) == one.neg().stride()
    assert elementwise_strides([one], shape, with_number=True) == one.gt(0).stride()


def test_gradients_of_expanded_tensors_lie_on_a_ghost_as_on_a_gpu() -> None:
    """Of a global average of channels that come last: halves, which meta kernels convert step by step."""
    with trainfit.ghost_gpu("h200"):
        grad = torch.empty(96, 8, 1, 1, dtype=torch.float16, device="cuda").expand(96, 8, 48, 4)
        x = torch.empty_strided((96, 8, 48, 4), (1536, 1, 32, 8), dtype=torch.float16, device="cuda")
        assert torch.ops.aten.gelu_backward(grad, x).stride() == (1536, 1, 32, 8)
        assert torch.ops.aten.threshold_backward(grad, x, 0).stride() == (1536, 1, 32, 8)
        assert torch.ops.aten.masked_fill(x, x > 0, 0).stride() == (1536, 192, 4, 1)


def test_an_op_of_another_library_lies_as_its_own_meta_kernel_says() -> None:
    library = torch.library.Library("trainfit_strides", "DEF")
    library.define("turned(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
    library.impl("turned", lambda x: x.new_empty_strided(x.shape, (1, x.shape[0])), "Meta")
    with trainfit.ghost_gpu("h200"):
        assert torch.ops.trainfit_strides.turned(torch.empty(4, 6, device="cuda")).stride() == (1, 4)
