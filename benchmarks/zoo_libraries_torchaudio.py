"""Nets of torchaudio: speech is recognised, separated, cleaned and made.

Out: `WRITTEN`, by the names that libraries_draw.py has.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchaudio import models

from zoo_libraries import Trained, Written
from zoo_survey_nets import ANY, Net, below, floats


def spelt(scores: Tensor, symbols: Tensor) -> Tensor:
    """Connectionist loss of log probabilities (frames, rows, symbols); 0 is the blank."""
    frames = torch.full((scores.shape[1],), scores.shape[0], device=scores.device)
    lengths = torch.full((symbols.shape[0],), symbols.shape[1], device=scores.device)
    return F.ctc_loss(scores.float(), symbols + 1, frames, lengths, zero_infinity=True)


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


WRITTEN = {
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
}  # fmt: skip
