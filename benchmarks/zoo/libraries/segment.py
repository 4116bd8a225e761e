"""What nets of monai have in common: how segments of a scan are learnt, and the sizes of known tasks."""

from __future__ import annotations

from typing import Any

from monai.losses.dice import DiceCELoss
from monai.networks import nets
from torch import Tensor, nn

from zoo.libraries import Trained
from zoo.survey import ANY, Net, below, floats

FEW: dict[str, Any] = {"side": 32, "channels": 1, "segments": 2}
ORGANS: dict[str, Any] = {"side": 96, "channels": 1, "segments": 14}
TUMOURS: dict[str, Any] = {"side": 128, "channels": 4, "segments": 4}


def segment(net: nn.Module, scans: Tensor, segments: Tensor) -> Tensor:
    found = net(scans)
    loss: Any = DiceCELoss(to_onehot_y=True, softmax=True)
    if isinstance(found, list):  # several scales
        return sum(loss(scores, segments) for scores in found)  # type: ignore[no-any-return,return-value]
    return loss(found, segments)  # type: ignore[no-any-return]


def segmenting(name: str, side: int, channels: int, segments: int, widths: tuple[int, ...] = (), **config: Any) -> Net:
    if widths:
        config["channels"] = widths

    def build() -> nn.Module:
        return Trained(getattr(nets, name)(in_channels=channels, out_channels=segments, **config), segment)

    fields = {"scans": floats(channels, side, side, side), "segments": below(segments, 1, side, side, side)}
    return Net(name, build, 2, fields, ANY)
