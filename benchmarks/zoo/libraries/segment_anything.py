"""The net of segment_anything: what is at a point is outlined.

Out: `WRITTEN`, the model with its sizes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from segment_anything.modeling import ImageEncoderViT, MaskDecoder, PromptEncoder, TwoWayTransformer
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import WITH_FP32_WEIGHTS, Net, below, floats

PATCH = 16


class Prompted(nn.Module):
    """As the library puts it together, but for images of any side and without what it does for the eye."""

    def __init__(self, side: int, width: int, depth: int, heads: int, attended: tuple[int, ...], inner: int) -> None:
        super().__init__()
        small = (side // PATCH, side // PATCH)
        self.image_encoder = ImageEncoderViT(
            img_size=side, patch_size=PATCH, embed_dim=width, depth=depth, num_heads=heads, out_chans=inner,
            norm_layer=partial(nn.LayerNorm, eps=1e-6), use_rel_pos=True, window_size=14, global_attn_indexes=attended,
        )  # fmt: skip
        self.prompt_encoder = PromptEncoder(inner, small, (side, side), mask_in_chans=16)
        self.mask_decoder = MaskDecoder(
            transformer_dim=inner, transformer=TwoWayTransformer(2, inner, 8, 2048), iou_head_hidden_dim=256
        )

    def forward(self, images: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        masks, qualities = [], []
        for seen, asked in zip(self.image_encoder(images), points, strict=True):
            sides = torch.ones(asked.shape[:2], dtype=torch.long, device=asked.device)  # inside of what is meant
            sparse, dense = self.prompt_encoder(points=(asked, sides), boxes=None, masks=None)
            place = self.prompt_encoder.get_dense_pe()
            found, quality = self.mask_decoder(seen[None], place, sparse, dense, multimask_output=False)
            masks.append(found)
            qualities.append(quality)
        return torch.stack(masks), torch.stack(qualities)


def outline(net: nn.Module, images: Tensor, points: Tensor, masks: Tensor, qualities: Tensor) -> Tensor:
    """Focal, dice, and how good the net says it is."""
    found, quality = net(images, points)
    wanted = masks.to(found.dtype)
    entropy = F.binary_cross_entropy_with_logits(found, wanted, reduction="none")
    inside = found.sigmoid()
    right = inside * wanted + (1 - inside) * (1 - wanted)
    dice = 1 - (2 * (inside * wanted).flatten(2).sum(-1) + 1) / ((inside + wanted).flatten(2).sum(-1) + 1)
    return 20 * (entropy * (1 - right) ** 2).mean() + dice.mean() + F.mse_loss(quality, qualities)


def prompted(side: int, points: int, **sizes: Any) -> Net:
    small = side // 4

    def places(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        return torch.randint(0, side, (rows, points, 1, 2), device=device).to(dtype)

    fields = {
        "images": floats(3, side, side), "points": places, "masks": below(2, points, 1, small, small),
        "qualities": floats(points, 1),
    }  # fmt: skip
    return Net("SegmentAnything", lambda: Trained(Prompted(side, **sizes), outline), 2, fields, WITH_FP32_WEIGHTS)


BASE = {"width": 768, "depth": 12, "heads": 12, "attended": (2, 5, 8, 11), "inner": 256}
WRITTEN: dict[str, Written] = {
    "prompted_masks": Written(
        prompted,
        {"side": 64, "points": 2, "width": 32, "depth": 2, "heads": 2, "attended": (1,), "inner": 32},
        {"base": BASE | {"side": 1024, "points": 8}, "base_512": BASE | {"side": 512, "points": 16}},
    ),
}  # fmt: skip
