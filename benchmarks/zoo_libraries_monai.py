"""Nets of monai: three-dimensional pictures are segmented, sorted and rebuilt.

Out: `WRITTEN`, by the names that libraries_draw.py has. Segments are learnt by cross entropy and Dice, as monai has it.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from monai.losses.dice import DiceCELoss
from monai.networks import nets
from torch import Tensor, nn

from zoo_libraries import Trained, Written
from zoo_survey_nets import ANY, Net, below, floats


def segment(net: nn.Module, scans: Tensor, segments: Tensor) -> Tensor:
    found = net(scans)
    loss: Any = DiceCELoss(to_onehot_y=True, softmax=True)
    if isinstance(found, list):  # several scales
        return sum(loss(scores, segments) for scores in found)  # type: ignore[no-any-return,return-value]
    return loss(found, segments)  # type: ignore[no-any-return]


def segmenting(name: str, side: int, channels: int, segments: int, **config: Any) -> Net:
    def build() -> nn.Module:
        return Trained(getattr(nets, name)(in_channels=channels, out_channels=segments, **config), segment)

    fields = {"scans": floats(channels, side, side, side), "segments": below(segments, 1, side, side, side)}
    return Net(name, build, 2, fields, ANY)


def res_net_3d(name: str, side: int) -> Net:
    def classify(net: nn.Module, scans: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(net(scans), labels)

    def build() -> nn.Module:
        return Trained(getattr(nets, name)(spatial_dims=3, n_input_channels=1, num_classes=4), classify)

    return Net(name, build, 4, {"scans": floats(1, side, side, side), "labels": below(4)}, ANY)


def ah_net(**sizes: Any) -> Net:
    return segmenting("AHNet", spatial_dims=3, **sizes)


def seg_resnet_vae(side: int, width: int) -> Net:
    def both(net: nn.Module, scans: Tensor, segments: Tensor) -> Tensor:
        scores, rebuilt = net(scans)
        loss: Any = DiceCELoss(to_onehot_y=True, softmax=True)
        return loss(scores, segments) + 0.1 * rebuilt  # type: ignore[no-any-return]

    def build() -> nn.Module:
        sides = (side, side, side)
        net = nets.SegResNetVAE(sides, init_filters=width, in_channels=4, out_channels=4, vae_estimate_std=False)
        return Trained(net, both)

    fields = {"scans": floats(4, side, side, side), "segments": below(4, 1, side, side, side)}
    return Net("SegResNetVAE", build, 2, fields, ANY)


WRITTEN = {
    "res_net_3d": Written(
        res_net_3d,
        {"name": "resnet10", "side": 32},
        {"18": {"name": "resnet18", "side": 96}, "50": {"name": "resnet50", "side": 96},
         "101": {"name": "resnet101", "side": 64}},
    ),
    "ah_net": Written(
        ah_net,
        {"side": 64, "channels": 1, "segments": 2, "layers": (1, 1, 1, 1), "psp_block_num": 1},
        {"deep": {"side": 96, "channels": 1, "segments": 2, "upsample_mode": "trilinear"},
         "transposed": {"side": 64, "channels": 2, "segments": 4, "upsample_mode": "transpose", "psp_block_num": 3}},
    ),
    "seg_resnet_vae": Written(
        seg_resnet_vae, {"side": 32, "width": 8}, {"16": {"side": 128, "width": 16}, "32": {"side": 96, "width": 32}}
    ),
}  # fmt: skip
