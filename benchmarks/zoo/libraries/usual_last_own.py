"""How nets that users write by hand are trained, and their sizes: those that stood last in usual_families.py's order.

In: sizes. Out: `OWN`, by the names that usual_families.py has; the nets are those of zoo/libraries/usual_last_nets.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Written
from zoo.libraries import usual_last_nets as nets
from zoo.libraries.usual_own import trained
from zoo.survey import WITH_FP32_WEIGHTS, Field, Net, below, floats

PAD = 0


def padded_words(vocab: int, length: int, *shape: int, padded: bool) -> Field:
    """None of them is the padding, with which every other row ends, if there is any."""

    def field(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        words = torch.randint(PAD + 1, vocab, (rows, length, *shape), device=device)
        words[::2, length * 3 // 4 if padded else length :] = PAD
        return words

    return field


def unet_of_segments(side: int, channels: int, classes: int, **sizes: Any) -> Net:
    def segment(net: nn.Module, images: Tensor, masks: Tensor) -> Tensor:
        logits = net(images)
        chances = F.softmax(logits, dim=1).float()
        wanted = F.one_hot(masks, classes).permute(0, 3, 1, 2).float()
        inter = (chances * wanted).sum(dim=(2, 3))
        dice = (2 * inter + 1e-6) / (chances.sum(dim=(2, 3)) + wanted.sum(dim=(2, 3)) + 1e-6)
        return F.cross_entropy(logits, masks) + 1 - dice.mean()

    fields = {"images": floats(channels, side, side), "masks": below(classes, side, side)}
    return trained(lambda: nets.UNet(channels, classes, **sizes), segment, fields, may_be_channels_last=True)


def noise_unet(side: int, channels: int, huber: bool, **sizes: Any) -> Net:
    def denoise(net: nn.Module, images: Tensor) -> Tensor:
        loss: Tensor = net(images)
        return loss

    def build() -> nn.Module:
        return nets.GaussianDiffusion(nets.NoiseUNet(channels, **sizes), 1000, huber)

    return trained(build, denoise, {"images": floats(channels, side, side)}, may_be_channels_last=True)


def tagger(length: int, padded: bool, vocab: int, tags: int, letters: int = 0, **sizes: Any) -> Net:
    """Padding has a tag of its own, which does not count."""

    def tag(net: nn.Module, tags: Tensor, **inputs: Tensor) -> Tensor:
        logits = net(**inputs)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), tags.view(-1), ignore_index=PAD)

    fields = {name: padded_words(count, length, padded=padded) for name, count in (("words", vocab), ("tags", tags))}
    if letters:
        fields["chars"] = padded_words(letters, length, 16, padded=padded)
    return trained(lambda: nets.BiLSTMTagger(vocab, tags=tags, letters=letters, **sizes), tag, fields)


def point_net(points: int, channels: int, classes: int, dense: bool, **sizes: Any) -> Net:
    """How features are turned is to be near a rotation."""

    def recognise(net: nn.Module, points: Tensor, labels: Tensor) -> Tensor:
        found, trans = net(points)
        loss = F.nll_loss(found, labels)
        if trans is None:
            return loss
        identity = torch.eye(trans.size(1), device=trans.device)[None]
        apart = torch.bmm(trans, trans.transpose(2, 1)) - identity
        return loss + 0.001 * torch.mean(torch.norm(apart, dim=(1, 2)))

    labels = below(classes, points) if dense else below(classes)
    fields = {"points": floats(points, channels), "labels": labels}
    return trained(
        lambda: nets.PointNet(channels, classes, dense, **sizes), recognise, fields, precisions=WITH_FP32_WEIGHTS
    )


def translator_with_attention(length: int, padded: bool, src_vocab: int, trg_vocab: int, **sizes: Any) -> Net:
    def translate(net: nn.Module, src: Tensor, trg: Tensor) -> Tensor:
        logits = net(src, trg)
        return F.cross_entropy(logits.reshape(-1, logits.size(-1)), trg[:, 1:].reshape(-1), ignore_index=PAD)

    fields = {
        "src": padded_words(src_vocab, length, padded=padded),
        "trg": padded_words(trg_vocab, length, padded=padded),
    }
    return trained(lambda: nets.Seq2Seq(src_vocab, trg_vocab, **sizes), translate, fields)


OWN: dict[str, Written] = {
    "unet_of_segments": Written(
        unet_of_segments,
        {"side": 32, "channels": 3, "classes": 3, "width": 8, "levels": 2, "bilinear": False},
        {"cars": {"channels": 3, "classes": 2, "width": 64, "levels": 4},
         "streets": {"channels": 3, "classes": 21, "width": 64, "levels": 4},
         "scans": {"channels": 1, "classes": 4, "width": 32, "levels": 4},
         "narrow": {"channels": 3, "classes": 8, "width": 32, "levels": 5}},
        {"side": (256, 320, 512), "bilinear": (False, True)},
    ),
    "noise_unet": Written(
        noise_unet,
        {"side": 16, "channels": 3, "dim": 16, "dim_mults": (1, 2), "attended": (0, 1), "dropout": 0.0},
        {"digits": {"side": 32, "channels": 1, "dim": 64, "dim_mults": (1, 2, 4), "attended": (1, 2), "dropout": 0.0},
         "cifar": {"side": 32, "channels": 3, "dim": 128, "dim_mults": (1, 2, 2, 2), "attended": (1, 2),
                   "dropout": 0.1},
         "flowers": {"side": 64, "channels": 3, "dim": 64, "dim_mults": (1, 2, 4, 8), "attended": (2, 3),
                     "dropout": 0.0},
         "faces": {"side": 128, "channels": 3, "dim": 64, "dim_mults": (1, 2, 4, 8), "attended": (3,),
                   "dropout": 0.0}},
        {"linear": (False, True), "huber": (False, True)},
    ),
    "tagger": Written(
        tagger,
        {"length": 8, "padded": False, "vocab": 100, "tags": 5, "letters": 20, "emb": 16, "hidden": 16, "layers": 1,
         "dropout": 0.2},
        {"universal": {"vocab": 8866, "tags": 18, "emb": 100, "hidden": 128, "layers": 2, "dropout": 0.25},
         "names": {"vocab": 23624, "tags": 10, "letters": 85, "emb": 100, "hidden": 256, "layers": 1, "dropout": 0.5},
         "wide": {"vocab": 49115, "tags": 50, "letters": 100, "emb": 300, "hidden": 512, "layers": 2,
                  "dropout": 0.5}},
        {"length": (32, 64, 128), "padded": (False, True)},
    ),
    "point_net": Written(
        point_net, {"points": 32, "channels": 3, "classes": 4, "dense": True, "aligned": True},
        {"objects": {"points": 1024, "channels": 3, "classes": 40, "dense": False},
         "finer_objects": {"points": 2500, "channels": 3, "classes": 16, "dense": False},
         "parts": {"points": 2048, "channels": 3, "classes": 50, "dense": True},
         "rooms": {"points": 4096, "channels": 9, "classes": 13, "dense": True}},
        {"aligned": (False, True)},
    ),
    "translator_with_attention": Written(
        translator_with_attention,
        {"length": 6, "padded": False, "src_vocab": 100, "trg_vocab": 90, "emb": 16, "hidden": 16, "dropout": 0.1},
        {"tutorial": {"src_vocab": 4601, "trg_vocab": 2991, "emb": 128, "hidden": 128, "dropout": 0.1},
         "multi30k": {"src_vocab": 7853, "trg_vocab": 5893, "emb": 256, "hidden": 512, "dropout": 0.5},
         "published": {"src_vocab": 30000, "trg_vocab": 30000, "emb": 620, "hidden": 1000, "dropout": 0.0}},
        {"length": (12, 20, 30, 50), "padded": (False, True)},
    ),
}  # fmt: skip
