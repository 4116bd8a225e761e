"""Presets: well-known models as Steps, by name. In: a name, a batch size, a sequence length. Out: a `Step`.

This file imports no torch, so that the names can be listed quickly; the models are in the files that it names. Every
model is built by a callable, on the default device of whoever calls it: nothing is allocated here.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from trainfit.errors import UnknownPreset, UsageError, did_you_mean
from trainfit.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Where a model is built, and the batch it is trained with unless told otherwise."""

    file: str
    """The module under trainfit.presets whose `build(name, batch, seq)` makes the Step."""
    batch: int
    seq: int | None
    """Tokens per sequence; None for images, which have one size."""
    max_seq: int | None = None
    """The longest sequence that the model has position embeddings for."""


PRESETS: dict[str, Preset] = {
    "llama3-1b": Preset(file="decoder", batch=4, seq=2048),
    "llama3-8b": Preset(file="decoder", batch=1, seq=8192),
    "llama3-70b": Preset(file="decoder", batch=1, seq=8192),
    "mixtral-8x7b": Preset(file="decoder", batch=1, seq=4096),
    "gpt2": Preset(file="gpt2", batch=8, seq=1024, max_seq=1024),
    "gpt2-medium": Preset(file="gpt2", batch=8, seq=1024, max_seq=1024),
    "bert-large": Preset(file="bert", batch=16, seq=512, max_seq=512),
    "vit-large": Preset(file="vision", batch=64, seq=None),
    "resnet50": Preset(file="vision", batch=128, seq=None),
}


def build(name: str, *, batch: int | None = None, seq: int | None = None) -> Step:
    """The Step of the preset called `name`; its own batch and sequence length where none are given."""
    preset = PRESETS.get(name)
    if preset is None:
        raise UnknownPreset(
            f"no preset is called {name!r}",
            hint=f"{did_you_mean(name, list(PRESETS))}the presets are {', '.join(PRESETS)}",
        )
    if seq is not None and preset.seq is None:
        raise UsageError(f"{name} has images as input, so --seq means nothing to it", hint="leave --seq out")
    if seq is not None and preset.max_seq is not None and seq > preset.max_seq:
        raise UsageError(
            f"{name} has position embeddings for {preset.max_seq} tokens, not for {seq}",
            hint=f"pass --seq {preset.max_seq} or less",
        )
    module = importlib.import_module(f"{__name__}.{preset.file}")
    step = module.build(name, preset.batch if batch is None else batch, preset.seq if seq is None else seq)
    assert isinstance(step, Step)
    return step
