"""Nets of monai: three-dimensional pictures are segmented, sorted and rebuilt.

Out: `WRITTEN`, by the names that libraries_draw.py has. Segments are learnt by cross entropy and Dice, as monai has it.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from monai.losses.dice import DiceCELoss
from monai.networks import nets
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.monai_sealed import SEALED
from zoo.libraries.segment import FEW, ORGANS, TUMOURS, segmenting
from zoo.survey import ANY, Net, below, floats


def classify(net: nn.Module, scans: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(scans), labels)


def res_net_3d(name: str, side: int) -> Net:
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


def dense_net_3d(side: int, width: int, growth: int, layers: tuple[int, ...]) -> Net:
    def build() -> nn.Module:
        sizes: Any = {"init_features": width, "growth_rate": growth, "block_config": layers}
        return Trained(nets.DenseNet(spatial_dims=3, in_channels=1, out_channels=4, **sizes), classify)

    return Net("DenseNet", build, 4, {"scans": floats(1, side, side, side), "labels": below(4)}, ANY)


def hover_net(mode: str, side: int, kept: int, kinds: int) -> Net:
    """Nuclei, which way their middle lies, and their kind, in the middle of an image."""

    def find(net: nn.Module, images: Tensor, nuclei: Tensor, ways: Tensor, types: Tensor) -> Tensor:
        found = {str(getattr(key, "value", key)): value for key, value in net(images).items()}
        scores, away, kind = (found[key] for key in ("nucleus_prediction", "horizontal_vertical", "type_prediction"))
        return F.cross_entropy(scores, nuclei) + F.mse_loss(away, ways) + F.cross_entropy(kind, types)

    def build() -> nn.Module:
        return Trained(nets.HoVerNet(mode=mode, out_classes=kinds), find)

    fields = {
        "images": floats(3, side, side),
        "nuclei": below(2, kept, kept),
        "ways": floats(2, kept, kept),
        "types": below(kinds, kept, kept),
    }
    return Net("HoVerNet", build, 4, fields, ANY, True)


def residual_unet(**sizes: Any) -> Net:
    return segmenting("UNet", spatial_dims=3, num_res_units=2, **sizes)


def attention_unet(**sizes: Any) -> Net:
    return segmenting("AttentionUnet", spatial_dims=3, **sizes)


def unetr(side: int, **sizes: Any) -> Net:
    return segmenting("UNETR", side=side, img_size=(side, side, side), **sizes)


def basic_unet(**sizes: Any) -> Net:
    return segmenting("BasicUNet", spatial_dims=3, **sizes)


WRITTEN = SEALED | {
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
    "dense_net_3d": Written(
        dense_net_3d,
        {"side": 32, "width": 16, "growth": 8, "layers": (2, 2, 2)},
        {"121": {"side": 96, "width": 64, "growth": 32, "layers": (6, 12, 24, 16)},
         "169": {"side": 64, "width": 64, "growth": 32, "layers": (6, 12, 32, 32)}},
    ),
    "hover_net": Written(
        hover_net,
        {"mode": "fast", "side": 256, "kept": 164, "kinds": 5},
        {"fast": {"mode": "fast", "side": 256, "kept": 164, "kinds": 5},
         "original": {"mode": "original", "side": 270, "kept": 80, "kinds": 7}},
    ),
    "residual_unet": Written(
        residual_unet, FEW | {"widths": (8, 16), "strides": (2,)},
        {"organs": ORGANS | {"widths": (32, 64, 128, 256, 512), "strides": (2, 2, 2, 2)},
         "tumours": TUMOURS | {"widths": (16, 32, 64, 128, 256), "strides": (2, 2, 2, 2)}},
    ),
    "attention_unet": Written(
        attention_unet, FEW | {"widths": (8, 16), "strides": (2,)},
        {"organs": ORGANS | {"widths": (32, 64, 128, 256), "strides": (2, 2, 2)},
         "tumours": TUMOURS | {"widths": (16, 32, 64, 128, 256), "strides": (2, 2, 2, 2)}},
    ),
    "unetr": Written(
        unetr, FEW | {"hidden_size": 48, "mlp_dim": 96, "num_heads": 4},
        {"organs": ORGANS, "tumours": TUMOURS | {"feature_size": 32}},
    ),
    "basic_unet": Written(
        basic_unet, FEW | {"features": (8, 8, 8, 16, 16, 8)},
        {"organs": ORGANS, "tumours": TUMOURS | {"features": (48, 48, 96, 192, 384, 48), "upsample": "nontrainable"}},
    ),
}  # fmt: skip
