"""Nets of torchaudio that were drawn last: speech is recognised, understood and judged.

Out: `SEALED`, which zoo/libraries/torchaudio.py adds to its own. Layers that may be left out at random never are.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchaudio import models

from zoo.libraries import Trained, Written
from zoo.libraries.speech import spelt
from zoo.survey import ANY, Net, below, floats

BANDS, SYMBOLS = 80, 128


def hubert_pretrain(name: str, wave: int, frames: int, classes: int) -> Net:
    def guess(net: nn.Module, waves: Tensor, labels: Tensor) -> Tensor:
        hidden, _, penalty = net(waves, labels)
        return F.cross_entropy(hidden, torch.zeros_like(hidden[:, 0], dtype=torch.long)) + 10 * penalty

    def build() -> nn.Module:
        return Trained(getattr(models, name)(encoder_layer_drop=0.0, num_classes=classes), guess)

    return Net(name, build, 4, {"waves": floats(wave), "labels": below(classes, frames)}, ANY)


class Recogniser(nn.Module):
    """An encoder between two linear layers; `ahead` frames at the end are only looked at."""

    def __init__(self, encoder: nn.Module, width: int, ahead: int = 0) -> None:
        super().__init__()
        self.first, self.encoder, self.last = nn.Linear(BANDS, width), encoder, nn.Linear(width, SYMBOLS)
        self.ahead = ahead

    def forward(self, sound: Tensor) -> Tensor:
        lengths = torch.full((len(sound),), sound.shape[1] - self.ahead, device=sound.device)
        found, _ = self.encoder(self.first(sound), lengths)
        return self.last(found).log_softmax(-1)  # type: ignore[no-any-return]


def recognise(net: nn.Module, sound: Tensor, text: Tensor) -> Tensor:
    return spelt(net(sound).transpose(0, 1), text)


def emformer(
    frames: int, width: int, heads: int, layers: int, segment: int, left: int, right: int, symbols: int
) -> Net:
    def build() -> nn.Module:
        encoder = models.Emformer(
            width, heads, 4 * width, layers, segment, dropout=0.1, activation="gelu", left_context_length=left,
            right_context_length=right, tanh_on_mem=True,
        )  # fmt: skip
        return Trained(Recogniser(encoder, width, right), recognise)

    fields = {"sound": floats(frames + right, BANDS), "text": below(SYMBOLS - 1, symbols)}
    return Net("Emformer", build, 8, fields, ANY)


def conformer(frames: int, width: int, heads: int, layers: int, kernel: int, symbols: int, **options: Any) -> Net:
    def build() -> nn.Module:
        encoder = models.Conformer(width, heads, 4 * width, layers, kernel, dropout=0.1, **options)
        return Trained(Recogniser(encoder, width), recognise)

    return Net("Conformer", build, 8, {"sound": floats(frames, BANDS), "text": below(SYMBOLS - 1, symbols)}, ANY)


def squim_subjective(kind: str, width: int, wave: int) -> Net:
    def judge(net: nn.Module, waves: Tensor, clean: Tensor, scores: Tensor) -> Tensor:
        return F.mse_loss(net(waves, clean).float(), scores.float())

    def build() -> nn.Module:
        net: Any = models.squim_subjective_model(kind, width, 32, 5)
        net.ssl_model.encoder.transformer.layer_drop = 0.0
        return Trained(net, judge)

    return Net("SquimSubjective", build, 4, {"waves": floats(wave), "clean": floats(wave), "scores": floats()}, ANY)


SEALED = {
    "hubert_pretrain": Written(
        hubert_pretrain,
        {"name": "hubert_pretrain_base", "wave": 4000, "frames": 12, "classes": 10},
        {"base": {"name": "hubert_pretrain_base", "wave": 80000, "frames": 249, "classes": 100},
         "long": {"name": "hubert_pretrain_base", "wave": 160000, "frames": 499, "classes": 500}},
    ),
    "emformer": Written(
        emformer,
        {"frames": 16, "width": 16, "heads": 2, "layers": 2, "segment": 4, "left": 4, "right": 1, "symbols": 3},
        {"20": {"frames": 256, "width": 512, "heads": 8, "layers": 20, "segment": 4, "left": 30, "right": 1,
                "symbols": 40},
         "12": {"frames": 384, "width": 256, "heads": 4, "layers": 12, "segment": 16, "left": 32, "right": 4,
                "symbols": 60}},
    ),
    "squim_subjective": Written(
        squim_subjective,
        {"kind": "wav2vec2_base", "width": 768, "wave": 4000},
        {"base": {"kind": "wav2vec2_base", "width": 768, "wave": 48000},
         "large": {"kind": "wav2vec2_large", "width": 1024, "wave": 32000}},
    ),
    "conformer": Written(
        conformer,
        {"frames": 20, "width": 16, "heads": 2, "layers": 2, "kernel": 7, "symbols": 3},
        {"medium": {"frames": 400, "width": 256, "heads": 4, "layers": 16, "kernel": 31, "symbols": 60},
         "large": {"frames": 320, "width": 512, "heads": 8, "layers": 12, "kernel": 31, "symbols": 48,
                   "use_group_norm": True}},
    ),
}  # fmt: skip
