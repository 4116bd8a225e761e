"""Nets of speechbrain: who speaks, what is heard, what is said, and a vocoder that denoises.

Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written, stand_ins
from zoo.survey import ANY, WITH_FP32_WEIGHTS, Net, below, floats

os.environ["SB_DISABLE_QUIRKS"] = "allow_tf32"  # a case says itself whether products may be rounded
with stand_ins("scipy", "scipy.stats"):
    from speechbrain.lobes.models import CRDNN, ECAPA_TDNN, Cnn14, ContextNet, DiffWave, ResNet
    from speechbrain.nnet.losses import AdditiveAngularMargin, LogSoftmaxWrapper
    from speechbrain.nnet.RNN import GRU, LSTM

NUM_SPEAKERS, NUM_SOUNDS, BANDS = 7205, 527, 80
RECURRENT = {"lstm": LSTM, "gru": GRU}


class Speakers(nn.Module):
    """Angles between a voice and every speaker."""

    def __init__(self, voices: nn.Module, width: int, num_speakers: int) -> None:
        super().__init__()
        self.voices = voices
        self.speakers = ECAPA_TDNN.Classifier(width, out_neurons=num_speakers)

    def forward(self, frames: Tensor) -> Tensor:
        angles: Tensor = self.speakers(self.voices(frames))
        return angles


def who_speaks(net: nn.Module, frames: Tensor, speakers: Tensor) -> Tensor:
    loss: Tensor = LogSoftmaxWrapper(AdditiveAngularMargin(margin=0.2, scale=30))(net(frames), speakers[:, None])
    return loss


def speakers(voices: Any, frames: int, width: int, num_speakers: int = NUM_SPEAKERS, **sizes: Any) -> Net:
    def build() -> nn.Module:
        return Trained(Speakers(voices(BANDS, lin_neurons=width, **sizes), width, num_speakers), who_speaks)

    fields = {"frames": floats(frames, BANDS), "speakers": below(num_speakers)}
    return Net(voices.__name__, build, 32, fields, WITH_FP32_WEIGHTS)  # the classifier's weights are always fp32


class Recogniser(nn.Module):
    def __init__(self, encoder: nn.Module, width: int, vocab: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.symbols = nn.Linear(width, vocab)

    def forward(self, frames: Tensor) -> Tensor:
        scores: Tensor = self.symbols(self.encoder(frames))
        return scores


def recognise(net: nn.Module, frames: Tensor, symbols: Tensor) -> Tensor:
    scores = net(frames).float().log_softmax(-1).transpose(0, 1)
    lengths = [
        torch.full((symbols.shape[0],), length, device=frames.device) for length in (scores.shape[0], symbols.shape[1])
    ]
    return F.ctc_loss(scores, symbols + 1, *lengths, zero_infinity=True)


def recogniser(encoder: Any, frames: int, spoken: int, vocab: int, width: int) -> Net:
    def build() -> nn.Module:
        return Trained(Recogniser(encoder(), width, vocab), recognise)

    fields = {"frames": floats(frames, BANDS), "symbols": below(vocab - 1, spoken)}
    return Net("Recogniser", build, 16, fields, ANY)


def crdnn(cell: str, width: int, frames: int, spoken: int, vocab: int, **sizes: Any) -> Net:
    encoder = partial(
        CRDNN.CRDNN, input_shape=[None, None, BANDS], rnn_class=RECURRENT[cell], dnn_neurons=width, time_pooling=True,
        time_pooling_size=4, using_2d_pooling=False, **sizes,
    )  # fmt: skip
    return recogniser(encoder, frames, spoken, vocab, width)


def context_net(width: int, frames: int, spoken: int, vocab: int, **sizes: Any) -> Net:
    encoder = partial(ContextNet.ContextNet, input_shape=(None, None, BANDS), out_channels=width, **sizes)
    return recogniser(encoder, frames, spoken, vocab, width)


class Sounds(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heard = Cnn14.Cnn14(mel_bins=BANDS, emb_dim=width)
        self.sounds = nn.Linear(width, NUM_SOUNDS)

    def forward(self, frames: Tensor) -> Tensor:
        scores: Tensor = self.sounds(self.heard(frames)[:, 0])
        return scores


def cnn_14(frames: int, width: int) -> Net:
    def hear(net: nn.Module, frames: Tensor, sounds: Tensor) -> Tensor:
        scores = net(frames)
        return F.binary_cross_entropy_with_logits(scores, sounds.to(scores.dtype))

    fields = {"frames": floats(frames, BANDS), "sounds": below(2, NUM_SOUNDS)}
    return Net("Cnn14", lambda: Trained(Sounds(width), hear), 32, fields, ANY)


def diff_wave(frames: int, layers: int, channels: int, cycle: int) -> Net:
    """The bands are laid out to 256 samples a frame by the net."""

    def denoise(net: nn.Module, noisy: Tensor, steps: Tensor, bands: Tensor, noise: Tensor) -> Tensor:
        return F.l1_loss(net(noisy, steps, bands), noise)

    def build() -> nn.Module:
        return Trained(DiffWave.DiffWave(BANDS, layers, channels, cycle, total_steps=50), denoise)

    samples = floats(1, frames * 256)
    fields = {"noisy": samples, "steps": below(50), "bands": floats(BANDS, frames), "noise": samples}
    return Net("DiffWave", build, 8, fields, ANY)


SPEECH = {"frames": 800, "spoken": 60, "vocab": 1000}
LONG_SPEECH = {"frames": 1600, "spoken": 120, "vocab": 1000}
FEW_WORDS = {"frames": 64, "spoken": 4, "vocab": 20}
WRITTEN: dict[str, Written] = {
    "ecapa_tdnn": Written(
        partial(speakers, ECAPA_TDNN.ECAPA_TDNN),
        {"frames": 40, "width": 16, "num_speakers": 20, "channels": [16, 16, 16, 16, 48], "attention_channels": 8,
         "res2net_scale": 4, "se_channels": 8},
        {"1024": {"frames": 300, "width": 192, "channels": [1024, 1024, 1024, 1024, 3072]},
         "512": {"frames": 300, "width": 192}},
    ),
    "voice_resnet": Written(
        partial(speakers, ResNet.ResNet),
        {"frames": 40, "width": 16, "num_speakers": 20, "channels": [8, 8, 16, 16], "block_sizes": [1, 1, 1, 1]},
        {"34": {"frames": 300, "width": 256}, "deep": {"frames": 300, "width": 256, "block_sizes": [3, 8, 12, 3]}},
    ),
    "crdnn": Written(
        crdnn, FEW_WORDS | {"cell": "lstm", "width": 32, "cnn_channels": [8, 8], "rnn_layers": 1, "rnn_neurons": 16},
        {"lstm": LONG_SPEECH | {"cell": "lstm", "width": 1024, "cnn_channels": [128, 256], "rnn_layers": 4,
                                "rnn_neurons": 1024},
         "gru": SPEECH | {"cell": "gru", "width": 512, "cnn_channels": [128, 256], "rnn_layers": 4,
                          "rnn_neurons": 512}},
    ),
    "context_net": Written(
        context_net, FEW_WORDS | {"width": 32, "alpha": 0.25, "num_blocks": 21, "num_layers": 1},
        {"large": LONG_SPEECH | {"width": 640, "alpha": 1.5}, "medium": SPEECH | {"width": 640, "alpha": 1}},
    ),
    "cnn_14": Written(cnn_14, {"frames": 64, "width": 2048}, {"ten": {"frames": 1000, "width": 2048}}),
    "diff_wave": Written(
        diff_wave, {"frames": 4, "layers": 2, "channels": 8, "cycle": 2},
        {"large": {"frames": 62, "layers": 30, "channels": 128, "cycle": 10},
         "wide": {"frames": 124, "layers": 24, "channels": 192, "cycle": 8}},
    ),
}  # fmt: skip
