"""`Attention`: what a fused attention op computes, and of what kind it is.

In: an `Op`. Out: its sizes, its options, the names of its rules, and coordinates that tell kinds apart: how many heads
share a key's, how a mask's rows begin, for whom they are and whether the mask has a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from trainfit.cost.work import argument, base_name, item_bytes, log, rows_alignment, tensors_of
from trainfit.records import Op, TensorRef

Backend = Literal["cudnn", "flash", "efficient"]
ATTENTIONS = frozenset(
    f"_scaled_dot_product_{backend}_attention{way}"
    for backend in ("cudnn", "flash", "efficient")
    for way in ("", "_backward")
)
_OPTION_PLACES: dict[tuple[Backend, bool], tuple[int, int, int | None]] = {
    # backend, backward: where dropout, is_causal and the mask stand; None: there is no mask
    ("cudnn", False): (5, 6, 3), ("cudnn", True): (13, 14, 8),
    ("flash", False): (3, 4, None), ("flash", True): (10, 11, None),
    ("efficient", False): (5, 6, 3), ("efficient", True): (9, 11, 4),
}  # fmt: skip
_FOR_ALL_QUERIES_WEIGHT, _FOR_ALL_HEADS_WEIGHT, _MASK_ALIGNMENT_WEIGHT, _LEARNED_WEIGHT = 1.0, 0.5, 1.0, 2.0


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention, of `pairs` batches and heads."""

    backend: Backend
    is_backward: bool
    dtype: str
    pairs: int
    length: int
    """How many queries there are."""
    key_length: int
    dim: int
    """How wide heads are; values may be wider or narrower."""
    value_dim: int
    heads_per_key: float
    is_causal: bool
    has_dropout: bool
    mask: TensorRef | None
    has_learned_mask: bool
    tensors: tuple[TensorRef, ...]
    """All operands and results."""

    @property
    def is_half(self) -> bool:
        return item_bytes(self.dtype) == 2

    @property
    def products(self) -> float:
        """Of the scores and a head."""
        return (5 if self.is_backward else 2) * (1 + self.value_dim / self.dim) / 2

    @property
    def axes(self) -> tuple[tuple[TensorRef, tuple[int, ...]], ...]:
        """To which of pairs, queries, keys and a head's width (by number) each tensor's bytes are in proportion."""
        return tuple((tensor, self._axes_of(tensor)) for tensor in self.tensors)

    def _axes_of(self, tensor: TensorRef) -> tuple[int, ...]:
        query, key = self.tensors[self.is_backward], self.tensors[self.is_backward + 1]
        if len(tensor.shape) < 3:
            return ()
        if tensor.shape[2:] == query.shape[2:]:
            return (0, 1, 3)
        if tensor.shape[2] == key.shape[2] and tensor.shape[1] == key.shape[1]:
            return (0, 2, 3)
        return (0, 1, 2) if tensor.shape[-1] == key.shape[2] else (0, 1)  # a mask, or a number per query

    def rules(self) -> list[str]:
        """The most special first: kernels without a mask or dropout stand for those with, causal ones for others."""
        half = "half" if self.is_half else "fp32"
        kinds = ("causal", "full") if self.is_causal else ("full", "causal")
        extra = (" mask" if self.mask is not None else "") + (" dropout" if self.has_dropout else "")
        base = f"attention {self.backend} {half} {'backward' if self.is_backward else 'forward'}"
        return list(dict.fromkeys(f"{base} {kind}{option}" for kind in kinds for option in (extra, "")))

    def alike(self, rule: str) -> tuple[float, ...]:
        """What two must have in common to be compared."""
        aligned = () if self.mask is None else (_MASK_ALIGNMENT_WEIGHT * log(rows_alignment(self.mask))[0],)
        return (*log(self.heads_per_key), *aligned * (" mask" in rule))

    def unlike(self, rule: str) -> tuple[float, ...]:
        """In what they may differ: whether a mask's queries, and heads, have a row together; whether it is learned."""
        if self.mask is None or " mask" not in rule:
            return ()
        sides = zip(self.mask.shape, self.mask.stride, strict=True)
        for_all = [size == 1 or stride == 0 for size, stride in sides]
        return (
            _FOR_ALL_QUERIES_WEIGHT * (len(for_all) < 2 or for_all[-2]),
            _FOR_ALL_HEADS_WEIGHT * (len(for_all) < 3 or for_all[-3]),
            _LEARNED_WEIGHT * self.has_learned_mask,
        )


def attention_of(op: Op) -> Attention:
    name = base_name(op).removeprefix("_scaled_dot_product_")
    backend, is_backward = cast(Backend, name.split("_")[0]), name.endswith("_backward")
    tensors = tensors_of(op.args)
    query, key, value = tensors[is_backward : is_backward + 3]
    dropout_at, causal_at, mask_at = _OPTION_PLACES[backend, is_backward]
    dropout = argument(op, dropout_at, "dropout_p", 0.0)
    mask = None if mask_at is None else argument(op, mask_at, "attn_bias", None)
    mask = mask if isinstance(mask, TensorRef) else None
    return Attention(
        backend=backend,
        is_backward=is_backward,
        dtype=query.dtype,
        pairs=query.shape[0] * query.shape[1],
        length=query.shape[2],
        key_length=key.shape[2],
        dim=query.shape[3],
        value_dim=value.shape[3],
        heads_per_key=query.shape[1] / key.shape[1],
        is_causal=argument(op, causal_at, "is_causal", False) is True,
        has_dropout=isinstance(dropout, float) and dropout > 0,
        mask=mask,
        has_learned_mask=is_backward and mask is not None and op.outputs[-1].shape == mask.shape,
        tensors=(*tensors, *op.outputs),
    )
