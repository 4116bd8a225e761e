"""A Step from a transformers config file. In: the path of a config.json. Out: a `Step`; no weights are read.

The model is the class that the config names in `architectures` if that has a loss we know how to feed, otherwise the
first objective below that transformers has a class for. Weights have the config's dtype, fp32 if it names none.
"""

from __future__ import annotations

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
    batch_size = 1 if batch is None else batch
    if model_class in _classes(transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, config):
        if seq is not None:
            raise UsageError(f"{path} has images as input, so --seq means nothing to it", hint="leave --seq out")
        inputs = _image_batch(config, batch_size)
    else:
        tokens = torch.empty(batch_size, _sequence_length(config, path, seq), dtype=torch.int64, device="meta")
        inputs = {"input_ids": tokens, "labels": torch.empty_like(tokens)}
    return Step(model=partial(_build_model, model_class, config), batch=inputs, optimizer=torch.optim.AdamW)


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


def _image_batch(config: Any, batch: int) -> dict[str, Any]:
    size = getattr(config, "image_size", None) or _DEFAULT_IMAGE_SIZE
    height, width = (size, size) if isinstance(size, int) else size
    shape = (batch, getattr(config, "num_channels", 3), height, width)
    return {
        "pixel_values": torch.empty(shape, dtype=config.dtype or torch.float32, device="meta"),
        "labels": torch.empty(batch, dtype=torch.int64, device="meta"),
    }
