"""Nets that public libraries have, as a seed drew them: timm, torchvision, diffusers, monai and others.

libraries_draw.py drew them and wrote results/libraries_drawn.jsonl; here its lines become cases. `open` ones are there
to develop with, `closed` ones are predicted before anybody measures them; so are `sealed`, `unread`, `last`, `usual`,
`usual_more`, `usual_last` and `usual_again` ones, drawn later. They are not part of `zoo()`; `select` knows by name
those whose library can be imported, and imports it then. Nothing else is imported here, and nothing needs a GPU. In:
whether they are to be small (a CPU then trains them in seconds). Out: cases.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

from zoo.case import Case, Precision
from zoo.survey import Net, to_layout

DRAWN = Path(__file__).parents[2] / "results" / "libraries_drawn.jsonl"
Part = Literal["open", "closed", "sealed", "unread", "last", "usual", "usual_more", "usual_last", "usual_again"]
PACKAGES = {
    "timm": "timm",
    "torchvision": "torchvision",
    "diffusers": "diffusers",
    "monai": "monai",
    "smp": "segmentation_models_pytorch",
    "torchaudio": "torchaudio",
    "pyg": "torch_geometric",
    "x_transformers": "x_transformers",
    "vit_pytorch": "vit_pytorch",
    "ultralytics": "ultralytics",
    "open_clip": "open_clip",
    "speechbrain": "speechbrain",
    "denoising_diffusion": "denoising_diffusion_pytorch",
    "neuralop": "neuralop",
    "kornia": "kornia",
    "pytorchvideo": "pytorchvideo",
    "segment_anything": "segment_anything",
    "encodec": "encodec",
    "itransformer": "iTransformer",
    "rtdl": "rtdl_revisiting_models",
    "routing_transformer": "routing_transformer",
    "linformer": "linformer",
    "lightly": "lightly",
    "transformers_more": "transformers",
    "usual": "transformers",
}
"""The package of each library; NAME.py beside this file has its nets.
Some usual ones need timm, torchvision or diffusers."""
STARTS_CUDA = ("pyg", "itransformer", "speechbrain")
"""What starts CUDA when it is imported or built, and must not be by a process that forks others which use CUDA;
speechbrain also changes for the whole process how scripted functions run."""
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "fused": partial(torch.optim.AdamW, fused=True),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-4, momentum=0.9),
    "adafactor": torch.optim.Adafactor,
}
TINY_ROWS = 2


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A line of the file: what the seed chose, and the batch that the draw came to."""

    family: str
    name: str
    part: Part
    library: str
    model: str
    """The library's name of it, or its name in LIBRARY.py."""
    size: str = ""
    """Which size of a written model."""
    precision: Precision
    optimizer: str
    channels_last: bool
    checkpointed: bool
    clip_grad_norm: float | None
    rows: int
    micro_batches: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else was drawn of a written model, beside its size: lengths, sides, padding."""


@dataclass(frozen=True)
class Written:
    """A model whose sizes stand here, since its library has no names for them."""

    make: Callable[..., Net]
    tiny: Mapping[str, Any]
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """What any size may have, and of what one is drawn; small ones have those that are true or false."""


class Trained(nn.Module):
    """A library's net and how it is trained: `loss(net, **batch)`."""

    def __init__(self, net: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.net = net
        self.loss = loss

    def forward(self, **batch: Any) -> Tensor:
        return self.loss(self.net, **batch)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
        """As the library does it, which is without reentrance in all of them, if it is told so."""
        net: Any = self.net
        if hasattr(net, "gradient_checkpointing_enable"):
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs=gradient_checkpointing_kwargs)
        elif hasattr(net, "set_grad_checkpointing"):
            net.set_grad_checkpointing(True)
        else:
            net.enable_gradient_checkpointing()


def read_drawn() -> list[Drawn]:
    lines = (json.loads(line) for line in DRAWN.read_text().splitlines()) if DRAWN.exists() else iter(())
    return [Drawn(**line) for line in lines if "skipped" not in line]


def library_cases(tiny: bool = False) -> list[Case]:
    """Those whose library is there."""
    return [case_of(drawn, tiny) for drawn in read_drawn() if is_there(drawn.library)]


@cache
def is_there(library: str) -> bool:
    return importlib.util.find_spec(PACKAGES[library]) is not None


def import_libraries(names: Sequence[str]) -> None:
    """What the cases of these names need, if they are of libraries, but not what starts CUDA."""
    for library in sorted({drawn.library for drawn in read_drawn() if drawn.name in names}):
        if library not in STARTS_CUDA:
            import_nets(library)


def import_nets(library: str) -> Any:
    """The nets' module; what it computes while it is imported is computed on the CPU, in the usual type."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            return importlib.import_module(f"zoo.libraries.{library}")
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def stand_ins(*names: str) -> Iterator[None]:
    """For modules that a library imports, though its nets do not use them; they are large, and may be missing."""
    missing = [name for name in names if importlib.util.find_spec(name.split(".")[0]) is None]
    sys.modules.update({name: MagicMock(__version__="0") for name in missing})
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def net_of(library: str, model: str, size: str, tiny: bool, options: Mapping[str, Any] | None = None) -> Net:
    module = import_nets(library)
    if not hasattr(module, "WRITTEN"):
        return module.net(model, tiny)  # type: ignore[no-any-return]
    written: Written = module.WRITTEN[model]
    options = options or {}
    if tiny:
        kept = {key: value for key, value in options.items() if isinstance(value, bool)}
        return written.make(**{**written.tiny, **kept})
    return written.make(**{**written.sizes[size], **options})


def case_of(drawn: Drawn, tiny: bool = False) -> Case:
    dtype = torch.bfloat16 if drawn.precision == "bf16" else torch.float32
    net = partial(net_of, drawn.library, drawn.model, drawn.size, tiny, drawn.options)

    def build() -> nn.Module:
        convert: Any = net().build().to  # the memory format is missing from its type
        return convert(memory_format=torch.channels_last) if drawn.channels_last else convert()

    def batch(device: str) -> dict[str, Tensor]:
        rows = min(TINY_ROWS, drawn.rows) if tiny else drawn.rows
        return {name: to_layout(made(rows, device, dtype), drawn.channels_last) for name, made in net().fields.items()}

    return Case(
        name=drawn.name,
        build=build,
        batch=batch,
        precision=drawn.precision,
        optimizer=OPTIMIZERS[drawn.optimizer],
        checkpoint=drawn.checkpointed,
        clip_grad_norm=drawn.clip_grad_norm,
        micro_batches=drawn.micro_batches,
    )


def job_names(part: str) -> list[str]:
    return [drawn.name + ":every" * drawn.checkpointed for drawn in read_drawn() if drawn.part == part]
