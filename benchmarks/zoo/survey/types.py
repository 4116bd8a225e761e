"""Cases of the survey: architectures of transformers and ways to train them that a seed chose, not a person.

survey_draw.py drew them and wrote results/survey_drawn.jsonl; here its lines become cases. Of the first draw
`development` is there to develop with, `blind` was predicted before anybody measured it; of the second draw `further`
and `fresh`, of the third `third` and `unseen`; of the fourth all are blind, `last`. They are not part of `zoo()`;
`select` knows them by name, and `survey_cases(tiny=True)` are small ones that run on a CPU. Nothing here needs a GPU.
`python -m zoo last`, run in benchmarks/, lists a part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
import transformers as hf

from zoo.case import Case, Precision
from zoo.hf import Batch, build, image_batch, seq2seq_batch, token_batch
from zoo.survey.tasks import LATER_LOSSES, NUM_LABELS, SOUND_INPUTS, TITLE_LENGTH, later_batch, small_features

DRAWN = Path(__file__).parents[2] / "results" / "survey_drawn.jsonl"
Part = Literal["development", "blind", "further", "fresh", "third", "unseen", "last"]
Task = Literal[
    "causal", "masked", "seq2seq", "image", "audio", "speech", "video", "sequence", "features", "contrast",
    "bare", "tokens", "answers", "segments", "depths", "boxes", "ctc", "backbone", "titles", "series",
]  # fmt: skip
OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "fused": partial(torch.optim.AdamW, fused=True),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adafactor": torch.optim.Adafactor,
}
LATER = ("bare", "tokens", "answers", "segments", "depths", "boxes", "ctc", "backbone", "titles", "series")
"""The tasks that only the last draw has."""
LAYER_KEYS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "encoder_num_hidden_layers", "decoder_num_hidden_layers",
)  # fmt: skip
WIDTH_KEYS = (
    "hidden_size", "d_model", "n_embd", "intermediate_size", "moe_intermediate_size", "shared_intermediate_size",
    "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "mlp_hidden_size", "word_embed_proj_dim",
    "num_attention_heads", "num_key_value_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads",
    "num_heads",
)  # fmt: skip
LABELS = {"image": 1000, "audio": 10, "video": 100, "sequence": 3, **NUM_LABELS}
TINY_LENGTH, TINY_ROWS, WIDE = 64, 2, 6000
USUAL_TINY = {"boxes": 128}
TINY_LAYERS = {"audio": 2, "video": 2, "image": 2}
"""Their inputs stay large; four for others, since some repeat a pattern of layers."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A line of the file: what the seed chose, and the sizes that the draw came to."""

    type: str
    name: str
    part: Part
    model: str
    """The class's name in transformers."""
    task: Task
    config: Mapping[str, Any]
    """What differs from the class's default configuration."""
    precision: Precision
    optimizer: str
    padded: bool
    checkpointed: bool
    clip_grad_norm: float | None
    rows: int
    length: int
    """Tokens, samples of sound or frames; the side of an image."""
    seen: int = 0
    """How many tokens of a text stand for its image."""


def survey_cases(tiny: bool = False) -> list[Case]:
    return [case_of(drawn, tiny) for drawn in read_drawn()]


def read_drawn() -> list[Drawn]:
    lines = (json.loads(line) for line in DRAWN.read_text().splitlines()) if DRAWN.exists() else iter(())
    return [Drawn(**line) for line in lines if "skipped" not in line]


def case_of(drawn: Drawn, tiny: bool = False) -> Case:
    model_class = getattr(hf, drawn.model)
    config = model_class.config_class(**drawn.config)
    if tiny:
        config = model_class.config_class(**tiny_config(drawn, config.to_dict()))
    return Case(
        name=drawn.name,
        build=build(model_class, config),
        batch=batch_of(drawn, config, model_class.main_input_name, tiny),
        precision=drawn.precision,
        optimizer=OPTIMIZERS[drawn.optimizer],
        loss=LOSSES.get(drawn.task),
        checkpoint=drawn.checkpointed,
        clip_grad_norm=drawn.clip_grad_norm,
    )


def matching_pairs(output: Any) -> torch.Tensor:
    """Which text belongs to which image, the loss that these models were made with."""
    logits = output.logits_per_image.float()
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


LOSSES: dict[str, Callable[[Any], torch.Tensor]] = {
    "features": small_features,
    "contrast": matching_pairs,
    **LATER_LOSSES,
}
"""Of the tasks whose models compute none themselves."""


def tiny_config(drawn: Drawn, full: Mapping[str, Any]) -> dict[str, Any]:
    """Few layers, and wide ones a quarter as wide, with a quarter of the heads."""
    layers = TINY_LAYERS.get(drawn.task, 4)
    return merged(drawn.config, smaller(full, layers, is_nested=drawn.task in LATER))


def smaller(full: Mapping[str, Any], layers: int, is_nested: bool) -> dict[str, Any]:
    small = {key: min(layers, full[key]) for key in LAYER_KEYS if isinstance(full.get(key), int)}
    widths = {key: full[key] for key in WIDTH_KEYS if isinstance(full.get(key), int)}
    if max(widths.values(), default=0) > WIDE:
        small |= {key: max(1, width // 4) for key, width in widths.items()}
    inner = {key: smaller(full[key], layers, True) for key in inner_keys(full)} if is_nested else {}
    return small | {key: found for key, found in inner.items() if found}


def inner_keys(config: Mapping[str, Any]) -> list[str]:
    """The parts of a model that is put together from others; not backbones, whose layers are read one by one."""
    return [
        key
        for key, value in config.items()
        if key.endswith("_config") and key != "backbone_config" and isinstance(value, Mapping)
    ]


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the second where they differ; so are the parts that are mappings."""
    inner = {key: merged(first[key], second[key]) for key in inner_keys(second) if isinstance(first.get(key), Mapping)}
    return {**first, **second, **inner}


def batch_of(drawn: Drawn, config: Any, main_input: str, tiny: bool) -> Batch:
    """As the task takes it; numbers are of the weights' type."""
    made = float_batch_of(drawn, config, main_input, tiny)
    if drawn.precision != "bf16":
        return made

    def batch(device: str) -> dict[str, Any]:
        # Made on the CPU: on the GPU the wider numbers would take memory that the predicted step does not know of.
        return {
            name: value.to(device, torch.bfloat16 if value.is_floating_point() else None)
            for name, value in made("cpu").items()
        }

    return batch


def float_batch_of(drawn: Drawn, config: Any, main_input: str, tiny: bool) -> Batch:
    rows = min(TINY_ROWS, drawn.rows) if tiny else drawn.rows
    length = min(TINY_LENGTH, drawn.length) if tiny else drawn.length
    if drawn.task in LATER:
        is_text = drawn.task in ("tokens", "answers") or main_input == "input_ids"
        size = length if is_text and drawn.task != "titles" else drawn.length
        if tiny:
            rows = 1 if drawn.task in ("titles", "depths") else rows
            size = size // 8 if main_input in SOUND_INPUTS else USUAL_TINY.get(drawn.task, size)
        return partial(later_batch, drawn.task, main_input, rows, size, drawn.seen, config)
    if drawn.task in ("causal", "masked"):
        return token_batch(rows, length, config.vocab_size, drawn.padded)
    if drawn.task == "seq2seq":
        return seq2seq_batch(rows, length, length // 2, config.vocab_size)
    if drawn.task == "image":
        return image_batch(rows, drawn.length, LABELS["image"])
    if drawn.task == "features":
        return lambda device: {"pixel_values": torch.randn(rows, 3, drawn.length, drawn.length, device=device)}
    if drawn.task == "contrast":
        return partial(titled_images, rows, drawn.length, config.text_config)
    if drawn.task == "sequence":
        return partial(sentences, rows, length, config.vocab_size)
    if drawn.task == "video":
        return partial(videos, 1 if tiny else rows, drawn.length, config)
    return partial(
        sounds, drawn.task, main_input, 1 if tiny else rows, drawn.length // 8 if tiny else drawn.length, config
    )


def sentences(rows: int, length: int, vocab: int, device: str) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.randint(2, vocab, (rows, length), device=device),
        "labels": torch.randint(0, LABELS["sequence"], (rows,), device=device),
    }


def titled_images(rows: int, side: int, config: Any, device: str) -> dict[str, torch.Tensor]:
    length = min(TITLE_LENGTH, config.max_position_embeddings)
    return {
        "input_ids": torch.randint(2, config.vocab_size, (rows, length), device=device),
        "pixel_values": torch.randn(rows, 3, side, side, device=device),
    }


def videos(rows: int, side: int, config: Any, device: str) -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.randn(rows, config.num_frames, 3, side, side, device=device),
        "labels": torch.randint(0, LABELS["video"], (rows,), device=device),
    }


def sounds(task: Task, main_input: str, rows: int, length: int, config: Any, device: str) -> dict[str, torch.Tensor]:
    """Waves, or as many features of every hundredth of a second as the model takes."""
    if hasattr(config, "max_length") and hasattr(config, "num_mel_bins"):
        shape: tuple[int, ...] = (rows, config.max_length, config.num_mel_bins)  # a spectrogram of fixed length
    elif main_input == "input_values":
        shape = (rows, length)
    else:
        features = getattr(config, "feature_projection_input_dim", None) or config.input_feat_per_channel
        shape = (rows, length // 160, features)
    labels = LABELS["audio"] if task == "audio" else config.vocab_size
    label_shape = (rows,) if task == "audio" else (rows, 64)
    return {
        main_input: torch.randn(shape, device=device),
        "labels": torch.randint(0, labels, label_shape, device=device),
    }


def job_names(part: str) -> list[str]:
    return [drawn.name + ":every" * drawn.checkpointed for drawn in read_drawn() if drawn.part == part]
