"""Nets of torchaudio: speech is recognised, separated, cleaned and made.

Out: `WRITTEN`, by the names that libraries_draw.py has.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchaudio import models
from torchaudio.functional import rnnt_loss

from zoo.libraries import Trained, Written
from zoo.libraries.speech import spelt
from zoo.libraries.torchaudio_sealed import SEALED
from zoo.survey import ANY, WITH_FP32_WEIGHTS, Net, below, floats


def unlike(found: Tensor, wanted: Tensor) -> Tensor:
    """The negative signal-to-noise ratio, whatever the volume."""
    found, wanted = (wave.float() - wave.float().mean(-1, keepdim=True) for wave in (found, wanted))
    share = (found * wanted).sum(-1, keepdim=True) / (wanted.square().sum(-1, keepdim=True) + 1e-8)
    signal, noise = (share * wanted).square().sum(-1), (found - share * wanted).square().sum(-1)
    return -10 * torch.log10(signal / (noise + 1e-8) + 1e-8).mean()


def conv_tasnet(wave: int, features: int, hidden: int, layers: int, stacks: int) -> Net:
    def separate(net: nn.Module, mixed: Tensor, voices: Tensor) -> Tensor:
        return unlike(net(mixed), voices)

    def build() -> nn.Module:
        net = models.ConvTasNet(
            enc_num_feats=features, msk_num_hidden_feats=hidden, msk_num_layers=layers, msk_num_stacks=stacks
        )
        return Trained(net, separate)

    return Net("ConvTasNet", build, 4, {"mixed": floats(1, wave), "voices": floats(2, wave)}, ANY)


def wav2letter(kind: str, channels: int, frames: int, symbols: int) -> Net:
    def recognise(net: nn.Module, sound: Tensor, text: Tensor) -> Tensor:
        return spelt(net(sound).permute(2, 0, 1), text)

    def build() -> nn.Module:
        return Trained(models.Wav2Letter(40, input_type=kind, num_features=channels), recognise)

    return Net("Wav2Letter", build, 8, {"sound": floats(channels, frames), "text": below(39, symbols)}, ANY)


def deep_speech(features: int, frames: int, width: int, symbols: int) -> Net:
    def recognise(net: nn.Module, sound: Tensor, text: Tensor) -> Tensor:
        return spelt(net(sound).permute(1, 0, 2), text)

    def build() -> nn.Module:
        return Trained(models.DeepSpeech(features, n_hidden=width, n_class=40, dropout=0.1), recognise)

    return Net("DeepSpeech", build, 8, {"sound": floats(1, frames, features), "text": below(39, symbols)}, ANY)


def hdemucs(wave: int, channels: int, depth: int, points: int) -> Net:
    def unmix(net: nn.Module, song: Tensor, sources: Tensor) -> Tensor:
        return F.l1_loss(net(song), sources)

    def build() -> nn.Module:
        names = ["drums", "bass", "other", "vocals"]
        return Trained(models.HDemucs(names, channels=channels, depth=depth, nfft=points), unmix)

    return Net("HDemucs", build, 2, {"song": floats(2, wave), "sources": floats(4, 2, wave)}, WITH_FP32_WEIGHTS)


def wave_rnn(frames: int, bands: int, hop: tuple[int, ...], blocks: int, width: int, levels: int) -> Net:
    step, kernel = math.prod(hop), 5
    length = (frames - kernel + 1) * step

    def speak(net: nn.Module, wave: Tensor, spectra: Tensor, later: Tensor) -> Tensor:
        return F.cross_entropy(net(wave, spectra).flatten(0, 2), later.flatten())

    def build() -> nn.Module:
        net = models.WaveRNN(
            list(hop), levels, step, n_res_block=blocks, n_rnn=width, n_fc=width, kernel_size=kernel, n_freq=bands
        )
        return Trained(net, speak)

    fields = {"wave": floats(1, length), "spectra": floats(1, bands, frames), "later": below(levels, length)}
    return Net("WaveRNN", build, 8, fields, ANY)


def emformer_rnnt(frames: int, symbols: int, names: int) -> Net:
    """Transducer of its base size; the first symbol is what a text begins with."""

    def transduce(net: nn.Module, sound: Tensor, text: Tensor) -> Tensor:
        rows = len(sound)
        lengths = torch.full((rows,), sound.shape[1] - 4, dtype=torch.int32, device=sound.device)
        words = torch.full((rows,), text.shape[1], dtype=torch.int32, device=sound.device)
        begun = F.pad(text, (1, 0), value=names - 1)
        scores, frames_left, _, _ = net(sound, lengths, begun, words + 1)
        return rnnt_loss(scores.float(), text.int(), frames_left.int(), words, blank=names - 1)  # type: ignore

    def build() -> nn.Module:
        return Trained(models.emformer_rnnt_base(names), transduce)

    return Net("RNNT", build, 4, {"sound": floats(frames + 4, 80), "text": below(names - 1, symbols)}, ANY)


def tacotron2(texts: int, frames: int) -> Net:
    def pronounce(net: nn.Module, text: Tensor, spectra: Tensor, ended: Tensor) -> Tensor:
        rows = len(text)
        words, lengths = (torch.full((rows,), count, device=text.device) for count in (texts, frames))
        first, last, ends, _ = net(text, words, spectra, lengths)
        heard = F.mse_loss(first, spectra) + F.mse_loss(last, spectra)
        return heard + F.binary_cross_entropy_with_logits(ends, ended)

    fields = {"text": below(148, texts), "spectra": floats(80, frames), "ended": floats(frames)}
    return Net("Tacotron2", lambda: Trained(models.Tacotron2(), pronounce), 16, fields, ANY)


WRITTEN = SEALED | {
    "conv_tasnet": Written(
        conv_tasnet,
        {"wave": 800, "features": 32, "hidden": 32, "layers": 2, "stacks": 1},
        {"base": {"wave": 24000, "features": 512, "hidden": 512, "layers": 8, "stacks": 3},
         "long": {"wave": 48000, "features": 256, "hidden": 512, "layers": 8, "stacks": 4}},
    ),
    "wav2letter": Written(
        wav2letter,
        {"kind": "mfcc", "channels": 13, "frames": 200, "symbols": 10},
        {"waveform": {"kind": "waveform", "channels": 1, "frames": 80000, "symbols": 60},
         "mfcc": {"kind": "mfcc", "channels": 13, "frames": 800, "symbols": 100}},
    ),
    "deep_speech": Written(
        deep_speech,
        {"features": 16, "frames": 40, "width": 32, "symbols": 10},
        {"2048": {"features": 80, "frames": 500, "width": 2048, "symbols": 60},
         "1024": {"features": 161, "frames": 1000, "width": 1024, "symbols": 120}},
    ),
    "hdemucs": Written(
        hdemucs,
        {"wave": 44100, "channels": 8, "depth": 6, "points": 4096},
        {"high": {"wave": 132300, "channels": 48, "depth": 6, "points": 4096},
         "medium": {"wave": 88200, "channels": 48, "depth": 6, "points": 2048}},
    ),
    "wave_rnn": Written(
        wave_rnn,
        {"frames": 8, "bands": 16, "hop": (2, 4), "blocks": 1, "width": 16, "levels": 16},
        {"wide": {"frames": 10, "bands": 80, "hop": (5, 5, 11), "blocks": 10, "width": 512, "levels": 256},
         "usual": {"frames": 8, "bands": 80, "hop": (5, 5, 8), "blocks": 10, "width": 512, "levels": 512}},
    ),
    "emformer_rnnt": Written(
        emformer_rnnt,
        {"frames": 32, "symbols": 4, "names": 32},
        {"base": {"frames": 512, "symbols": 32, "names": 512}},
    ),
    "tacotron2": Written(
        tacotron2,
        {"texts": 8, "frames": 4},
        {"short": {"texts": 80, "frames": 100}, "long": {"texts": 120, "frames": 160}},
    ),
}  # fmt: skip
