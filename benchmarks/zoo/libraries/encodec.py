"""The net of encodec: sound is written as codes of a few numbers each.

Out: `WRITTEN`, the model with its sizes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from encodec.modules import SEANetDecoder, SEANetEncoder
from encodec.quantization import ResidualVectorQuantizer
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import WITH_FP32_WEIGHTS, Net, floats

WINDOWS = (512, 1024, 2048)


class Codec(nn.Module):
    """As the library puts it together; codebooks begin at random, and codes that nobody uses are kept."""

    def __init__(self, channels: int, filters: int, codebooks: int, bins: int, width: int, **options: Any) -> None:
        super().__init__()
        sizes = {"channels": channels, "n_filters": filters, "dimension": width} | options
        self.encoder = SEANetEncoder(**sizes)
        self.decoder = SEANetDecoder(**sizes)
        self.quantizer = ResidualVectorQuantizer(
            dimension=width, n_q=codebooks, bins=bins, kmeans_init=False, threshold_ema_dead_code=0
        )

    def forward(self, waves: Tensor) -> tuple[Tensor, Tensor]:
        found = self.quantizer(self.encoder(waves), sample_rate=75)
        return self.decoder(found.quantized), found.penalty


def encode(net: nn.Module, waves: Tensor) -> Tensor:
    heard, penalty = net(waves)
    loss = F.l1_loss(heard, waves) + penalty
    for length in WINDOWS:
        window = torch.hann_window(length, device=waves.device)
        one, other = (
            torch.stft(sound.float().flatten(0, 1), length, length // 4, window=window, return_complex=True).abs()
            for sound in (heard, waves)
        )
        loss = loss + F.l1_loss(one, other) + F.mse_loss((one + 1e-5).log(), (other + 1e-5).log())
    return loss


def codec(samples: int, channels: int, **sizes: Any) -> Net:
    fields = {"waves": floats(channels, samples)}
    return Net("Encodec", lambda: Trained(Codec(channels, **sizes), encode), 8, fields, WITH_FP32_WEIGHTS)


WRITTEN: dict[str, Written] = {
    "residual_codec": Written(
        codec, {"samples": 3200, "channels": 1, "filters": 4, "codebooks": 2, "bins": 16, "width": 16, "lstm": 1},
        {"24khz": {"samples": 24000, "channels": 1, "filters": 32, "codebooks": 32, "bins": 1024, "width": 128,
                   "causal": True},
         "48khz": {"samples": 48000, "channels": 2, "filters": 32, "codebooks": 16, "bins": 1024, "width": 128,
                   "norm": "time_group_norm"}},
    ),
}  # fmt: skip
