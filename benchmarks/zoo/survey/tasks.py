"""What the models of the survey's last draw are given, and the losses of those that compute none.

In: a task that no earlier draw had, how many rows, and the model's configuration. Out: its batch on a device. Images
are square, sound is a wave or its features, and `length` is the image's side, the tokens or the wave's samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NUM_LABELS = {"tokens": 9, "answers": 2, "segments": 150, "series": 4}
TITLE_LENGTH = 64
"""Of the texts that stand beside images."""
NUM_SYMBOLS = 24
"""Of a transcript."""
SOUND_INPUTS = ("input_values", "input_features")


def later_batch(
    task: str, main_input: str, rows: int, length: int, seen: int, config: Any, device: str
) -> dict[str, Tensor]:
    """`seen` is how many tokens of a text stand for its image."""
    if task == "titles":
        return about_images(rows, length, seen, config, device)
    if task == "series":
        targets = torch.randn(rows, config.num_targets, device=device)
        return {"past_values": series(rows, config, device), "target_values": targets}
    if task in ("bare", "ctc") and main_input in SOUND_INPUTS:
        made = {main_input: torch.randn(sound_shape(main_input, rows, length, config), device=device)}
        if task == "ctc":
            made["attention_mask"] = torch.ones(made[main_input].shape[:2], dtype=torch.int64, device=device)
            made["labels"] = torch.randint(1, config.vocab_size - 1, (rows, NUM_SYMBOLS), device=device)
        return made
    if main_input == "pixel_values":
        made = {"pixel_values": torch.randn(rows, 3, length, length, device=device)}
        if task == "segments":
            made["labels"] = torch.randint(0, NUM_LABELS[task], (rows, length, length), device=device)
        return made
    if main_input == "past_values":
        return {"past_values": series(rows, config, device)}
    made = {"input_ids": torch.randint(2, config.vocab_size, (rows, length), device=device)}
    if task == "tokens":
        made["labels"] = torch.randint(0, NUM_LABELS[task], (rows, length), device=device)
    elif task == "answers":
        ends = {name: torch.randint(0, length, (rows,), device=device) for name in ("start_positions", "end_positions")}
        made |= ends
    return made


def series(rows: int, config: Any, device: str) -> Tensor:
    return torch.randn(rows, config.context_length, config.num_input_channels, device=device)


def sound_shape(main_input: str, rows: int, length: int, config: Any) -> tuple[int, ...]:
    """A wave, perhaps of several channels; or the bands of every hundredth of a second, last or, for Whisper, first."""
    if main_input == "input_values":
        channels = getattr(config, "audio_channels", None)
        return (rows, length) if channels is None else (rows, channels, length)
    inner = getattr(config, "encoder_config", config)
    if hasattr(inner, "max_source_positions"):
        return (rows, inner.num_mel_bins, 2 * inner.max_source_positions)
    bands = getattr(inner, "num_mel_bins", None) or inner.input_feat_per_channel
    return (rows, length // 160, bands)


def about_images(rows: int, side: int, seen: int, config: Any, device: str) -> dict[str, Tensor]:
    """An image's tokens, then words about it."""
    words = torch.randint(5, 1000, (rows, TITLE_LENGTH), device=device)
    ids = torch.cat([torch.full((rows, seen), image_token(config), device=device), words], dim=1)
    pixels = torch.randn(rows, 3, side, side, device=device)
    return {"input_ids": ids, "pixel_values": pixels, "labels": ids}


def image_token(config: Any) -> int:
    names = ("image_token_id", "image_token_index")
    return int(next(value for value in (getattr(config, name, None) for name in names) if value is not None))


def small_features(output: Any) -> Tensor:
    """A loss for models that come without a head."""
    return output[0].float().square().mean()


def small_maps(output: Any) -> Tensor:
    return torch.stack([each.float().square().mean() for each in output.feature_maps]).sum()


def small_boxes(output: Any) -> Tensor:
    """Boxes and classes without a matching, which would be computed on the CPU."""
    return output.logits.float().square().mean() + output.pred_boxes.float().square().mean()


LATER_LOSSES = {"bare": small_features, "depths": small_features, "backbone": small_maps, "boxes": small_boxes}
