"""A Step from a transformers config file. In: the path of a config.json. Out: a `Step`; no weights are read.

The model is the class that the config names in `architectures` if that has a loss we know how to feed, otherwise the
first objective below that transformers has a class for. Weights have the config's dtype, fp32 if it names none. The
batch is what the class cannot do without: text of ordinary tokens, and pictures or sound only where it needs them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from trainfit.errors import BadTarget, UsageError
from trainfit.step import Step

# In this order: BERT has a causal class too, but is trained with masks.
_MAPPINGS = (
    transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    transformers.MODEL_FOR_MASKED_LM_MAPPING,
    transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
)
_DEFAULT_SEQ = 2048
_DEFAULT_IMAGE_SIZE = 224


def build(path: Path, batch: int | None, seq: int | None) -> Step:
    """The Step that trains the model of the config at `path` with AdamW."""
    config = _load_config(path)
    model_class = _model_class(config, path)
    config.use_cache = False  # training keeps no keys and values for a next token
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0  # the decoder's inputs are its labels after this token; any token will do
    inputs = _inputs(model_class, config, path, batch, seq)
    loss = None if "labels" in inputs else _classification_loss
    return Step(model=partial(_build_model, model_class, config), batch=inputs, optimizer=torch.optim.AdamW, loss=loss)


def _build_model(model_class: Any, config: Any) -> nn.Module:
    model: nn.Module = model_class._from_config(config)
    return model.train()


def _load_config(path: Path) -> Any:
    if not path.is_file():
        raise BadTarget(f"there is no file {path}", hint="give the path of a transformers config.json, as hf:PATH")
    try:
        return transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise BadTarget(
            f"transformers cannot read {path}: {reason}",
            hint="the file must be a model's config.json with a model_type",
        ) from error


def _classes(mapping: Any, config: Any) -> tuple[Any, ...]:
    if type(config) not in mapping:
        return ()
    found = mapping[type(config)]
    return tuple(found) if isinstance(found, (list, tuple)) else (found,)


def _model_class(config: Any, path: Path) -> Any:
    choices = [model_class for mapping in _MAPPINGS for model_class in _classes(mapping, config)]
    if not choices:
        raise BadTarget(
            f"{path} is a {config.model_type} config, no causal, masked, seq2seq or image classification model",
            hint="write a function that returns a trainfit.Step and pass file.py:function",
        )
    named = [model_class for model_class in choices if model_class.__name__ in (config.architectures or ())]
    return (named or choices)[0]


def _sequence_length(config: Any, path: Path, seq: int | None) -> int:
    max_seq: int | None = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if max_seq is not None and max_seq < 0:  # as XLNet says that it has no limit
        max_seq = None
    if seq is None:
        return _DEFAULT_SEQ if max_seq is None else min(_DEFAULT_SEQ, max_seq)
    if max_seq is not None and seq > max_seq:
        raise UsageError(
            f"{path} has positions for {max_seq} tokens, not for {seq}", hint=f"pass --seq {max_seq} or less"
        )
    return seq


def _inputs(model_class: Any, config: Any, path: Path, batch: int | None, seq: int | None) -> dict[str, Any]:
    """The keyword arguments of the class's forward."""
    batch_size = 1 if batch is None else batch
    taken = inspect.signature(model_class.forward).parameters
    is_classifier = model_class in _classes(transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, config)
    if is_classifier and "pixel_values" in taken:
        if seq is not None:
            raise UsageError(f"{path} has images as input, so --seq means nothing to it", hint="leave --seq out")
        images = _patches if "spatial_shapes" in taken else _images
        labels = {"labels": torch.empty(batch_size, dtype=torch.int64, device="meta")} if "labels" in taken else {}
        return images(config, batch_size) | labels
    length = _sequence_length(config, path, seq)
    inputs = {"input_ids": _tokens(config, batch_size, length)}
    if is_classifier:  # of pictures whose pixels are the tokens
        return inputs | {"labels": torch.empty(batch_size, dtype=torch.int64, device="meta")}
    inputs["labels"] = inputs["input_ids"].clone()
    if "pixel_values" in taken and not _has_token_for_images(config):
        inputs |= _images(config, batch_size)  # they come before the text, always
    if hasattr(config, "audio_length_per_tok"):  # sound is added to the text, token by token
        shape = (batch_size, config.audio_config.num_mel_bins, length * config.audio_length_per_tok)
        inputs["input_features"] = torch.empty(shape, dtype=config.dtype or torch.float32, device="meta")
    return inputs


def _tokens(config: Any, batch: int, length: int) -> torch.Tensor:
    """Text of one ordinary token, with values: models look for special tokens, such as those that stand for images."""
    special = set(_special_tokens(config.to_dict()))
    ordinary = next(token for token in range(len(special) + 1) if token not in special)
    return torch.full((batch, length), ordinary, device="cpu")


def _special_tokens(settings: dict[Any, Any]) -> Iterator[int]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _special_tokens(value)
        elif str(name).endswith(("_token_id", "_token_index")):  # some tables have numbers for names
            yield from value if isinstance(value, list) else [value]


def _has_token_for_images(config: Any) -> bool:
    return any(hasattr(config, name) for name in ("image_token_id", "image_token_index"))


def _images(config: Any, batch: int) -> dict[str, torch.Tensor]:
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None) or _DEFAULT_IMAGE_SIZE
    height, width = (size, size) if isinstance(size, int) else size
    shape = (batch, getattr(vision, "num_channels", 3), height, width)
    return {"pixel_values": torch.empty(shape, dtype=config.dtype or torch.float32, device="meta")}


def _patches(config: Any, batch: int) -> dict[str, torch.Tensor]:
    """Images that were cut into a square of patches, none of which is padding."""
    vision = getattr(config, "vision_config", None) or config
    side = math.isqrt(vision.num_patches)
    shape = (batch, vision.num_patches, vision.num_channels * vision.patch_size**2)
    return {
        "pixel_values": torch.empty(shape, dtype=config.dtype or torch.float32, device="meta"),
        "pixel_attention_mask": torch.ones(shape[:2], dtype=torch.int64, device="cpu"),
        "spatial_shapes": torch.full((batch, 2), side, device="cpu"),
    }


def _classification_loss(output: Any) -> torch.Tensor:
    """For a class that has logits and no loss of its own."""
    logits: torch.Tensor = output[0]
    return nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device=logits.device))
