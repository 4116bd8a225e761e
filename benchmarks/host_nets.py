"""Nine nets whose steps wait for the CPU, or nearly do: what benchmarks/host_in_turns.py times and predicts.

`NETS` gives them by name. Each takes what a batch makes, full or tiny, and returns a scalar. Nothing is built until
asked, on the default device of whoever asks. torchvision and transformers are imported then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Batch = Callable[[str], dict[str, Tensor]]
"""Inputs by name, on the device that is named."""


@dataclass(frozen=True)
class Net:
    """A net and how it is trained: with AdamW, its parameters of `dtype`, under autocast where that is given."""

    build: Callable[[], nn.Module]
    dtype: torch.dtype
    autocast: torch.dtype | None
    full: Batch
    tiny: Batch
    """The same ops on so little that the GPU is always ahead of the CPU."""

    def batches(self, device: str) -> dict[str, dict[str, Tensor]]:
        return {"full": self.full(device), "tiny": self.tiny(device)}


class Mean(nn.Module):
    """The mean of a model's output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        output = self.model(**inputs)
        return (output if isinstance(output, Tensor) else output.last_hidden_state).float().mean()


def from_torchvision(name: str, **options: Any) -> nn.Module:
    from torchvision import models

    return Mean(getattr(models, name)(weights=None, **options))


def from_transformers(config: str, model: str, **options: Any) -> nn.Module:
    import transformers

    return Mean(getattr(transformers, model)(getattr(transformers, config)(**options)))


def images(name: str, count: int, size: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """`name` is what the model calls them."""
    return {name: torch.zeros(count, 3, size, size, dtype=dtype, device=device)}


def tokens(count: int, length: int, device: str) -> dict[str, Tensor]:
    return {"input_ids": torch.zeros(count, length, dtype=torch.int64, device=device)}


def _of_images(
    build: Callable[[], nn.Module], name: str, full: tuple[int, int], tiny: tuple[int, int], mixed: bool
) -> Net:
    """Batches are numbers and sizes of images; `mixed` is float32 under autocast, and otherwise all is bfloat16."""
    dtype = torch.float32 if mixed else torch.bfloat16
    autocast = torch.bfloat16 if mixed else None
    return Net(build, dtype, autocast, partial(images, name, *full, dtype), partial(images, name, *tiny, dtype))


def _of_tokens(build: Callable[[], nn.Module], full: tuple[int, int], tiny: tuple[int, int], mixed: bool) -> Net:
    """Batches are numbers and lengths of sequences; `mixed` as for images."""
    dtype = torch.float32 if mixed else torch.bfloat16
    return Net(build, dtype, torch.bfloat16 if mixed else None, partial(tokens, *full), partial(tokens, *tiny))


BEIT = partial(
    from_transformers, "BeitConfig", "BeitModel",
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, image_size=224,
)  # fmt: skip
BERT = partial(from_transformers, "BertConfig", "BertModel", hidden_size=768, num_hidden_layers=12)
QWEN3 = partial(
    from_transformers, "Qwen3Config", "Qwen3Model",
    hidden_size=1024, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=8, head_dim=64,
    intermediate_size=3072, vocab_size=32000, use_cache=False,
)  # fmt: skip
T5 = partial(
    from_transformers, "T5Config", "T5EncoderModel",
    d_model=768, num_layers=12, num_heads=12, d_ff=2048, d_kv=64, use_cache=False,
)  # fmt: skip
INCEPTION = partial(from_torchvision, "inception_v3", aux_logits=False, init_weights=False)
NETS = {
    "resnet152": _of_images(partial(from_torchvision, "resnet152"), "x", (32, 224), (2, 64), mixed=False),
    "densenet121": _of_images(partial(from_torchvision, "densenet121"), "x", (32, 224), (2, 64), mixed=True),
    "inception": _of_images(INCEPTION, "x", (32, 299), (2, 80), mixed=False),
    "swin": _of_images(partial(from_torchvision, "swin_t"), "x", (32, 224), (2, 224), mixed=True),
    "effnet": _of_images(partial(from_torchvision, "efficientnet_v2_s"), "x", (16, 224), (2, 64), mixed=True),
    "beit": _of_images(BEIT, "pixel_values", (16, 224), (1, 224), mixed=True),
    "bert": _of_tokens(BERT, (16, 256), (2, 16), mixed=True),
    "qwen3": _of_tokens(QWEN3, (4, 512), (1, 16), mixed=False),
    "t5": _of_tokens(T5, (8, 512), (1, 16), mixed=True),
}
