"""Nets of kornia: places of two photographs are matched, and edges are drawn.

Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written, stand_ins
from zoo.survey import ANY, WITH_FP32_WEIGHTS, Net, below, floats

with stand_ins("kornia_rs"):
    from kornia.feature import DeDoDe, LoFTR
    from kornia.feature.loftr.loftr import default_cfg
    from kornia.models.dexined import DexiNed


def match(net: Any, first: Tensor, second: Tensor, places: Tensor) -> Tensor:
    """The coarse half: each place of the first photograph is to be found in the second, and the other way round."""
    coarse = net.extract_features(torch.cat((first, second)))["coarse"]
    tokens = coarse.flatten(2).transpose(1, 2).contiguous()
    one, other = net.loftr_coarse(*tokens.chunk(2), None, None)
    alike = torch.einsum("nlc,nsc->nls", one / one.shape[-1] ** 0.5, other / other.shape[-1] ** 0.5) / 0.1
    both = alike.log_softmax(1) + alike.log_softmax(2)
    return -both.gather(2, places[:, :, None]).mean()


def loftr(side: int, layers: int, widths: tuple[int, int, int]) -> Net:
    config: Any = copy.deepcopy(default_cfg)
    config["resnetfpn"] = {"initial_dim": widths[0], "block_dims": list(widths)}
    config["coarse"] |= {"d_model": widths[2], "d_ffn": widths[2], "layer_names": ["self", "cross"] * (layers // 2)}
    config["fine"] |= {"d_model": widths[0], "d_ffn": widths[0]}

    def build() -> nn.Module:
        net = LoFTR(pretrained=None, config=config)
        for unused in (net.loftr_fine, net.fine_preprocess):  # the coarse half is trained first
            unused.requires_grad_(False)
        return Trained(net, match)

    places = (side // 8) ** 2
    fields = {"first": floats(1, side, side), "second": floats(1, side, side), "places": below(places, places)}
    return Net("LoFTR", build, 4, fields, WITH_FP32_WEIGHTS)


def dexined(side: int) -> Net:
    def draw_edges(net: Any, images: Tensor, edges: Tensor) -> Tensor:
        """All scales are to have the edges, which are few."""
        wanted = edges.to(images.dtype)
        weight = torch.where(edges > 0, 0.9, 0.1).to(images.dtype)
        losses = [
            (F.binary_cross_entropy_with_logits(found, wanted, reduction="none") * weight).mean()
            for found in net.get_features(images)
        ]
        return torch.stack(losses).sum()

    fields = {"images": floats(3, side, side), "edges": below(2, 1, side, side)}
    return Net("DexiNed", lambda: Trained(DexiNed(pretrained=False), draw_edges), 4, fields, ANY, True)


def dedode(side: int, descriptor: Any) -> Net:
    """Where keypoints are, and that two photographs of a place have like descriptions there."""

    def describe(net: Any, images: Tensor, others: Tensor, heat: Tensor) -> Tensor:
        scores = net.detector(images)
        one, other = (F.normalize(net.descriptor(views).float(), dim=1) for views in (images, others))
        found = F.binary_cross_entropy_with_logits(scores, torch.sigmoid(heat))
        return found + (1 - (one * other).sum(1)).mean()

    def build() -> nn.Module:
        return Trained(DeDoDe("L", descriptor, amp_dtype=torch.float32), describe)

    fields = {"images": floats(3, side, side), "others": floats(3, side, side), "heat": floats(1, side, side)}
    return Net("DeDoDe", build, 2, fields, WITH_FP32_WEIGHTS, True)


WRITTEN: dict[str, Written] = {
    "loftr": Written(
        loftr, {"side": 64, "layers": 2, "widths": (8, 16, 32)},
        {"base": {"side": 480, "layers": 8, "widths": (128, 196, 256)},
         "shallow": {"side": 640, "layers": 4, "widths": (96, 160, 256)}},
    ),
    "dexined": Written(dexined, {"side": 64}, {"352": {"side": 352}, "480": {"side": 480}}),
    "dedode": Written(partial(dedode, descriptor="B"), {"side": 56}, {"392": {"side": 392}, "512": {"side": 512}}),
}  # fmt: skip
