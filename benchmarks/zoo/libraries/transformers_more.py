"""Model types of transformers that the survey did not draw: words with pictures, films, sounds and pages, and series.

In: sizes of a configuration. Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from zoo.case import Precision
from zoo.libraries import Trained, Written
from zoo.survey import ANY, WITH_FP32_WEIGHTS, Field, Net, below, floats


def own_loss(net: nn.Module, **batch: Tensor) -> Tensor:
    loss: Tensor = net(**batch).loss
    return loss


def matched(net: nn.Module, **batch: Tensor) -> Tensor:
    return own_loss(net, return_loss=True, **batch)  # type: ignore[arg-type]


def made(
    model: str,
    config: Mapping[str, Any],
    fields: dict[str, Field],
    loss: Callable[..., Tensor] = own_loss,
    precisions: tuple[Precision, ...] = ANY,
    may_be_channels_last: bool = False,
) -> Net:
    kind: Any = getattr(transformers, model)

    def build() -> nn.Module:
        return Trained(kind(kind.config_class(**config)), loss)

    return Net(model, build, 8, fields, precisions, may_be_channels_last)


def vilt(side: int, words: int, **sizes: Any) -> Net:
    config = {"image_size": side, "num_labels": 3129, "max_position_embeddings": words} | sizes
    fields = {"input_ids": below(1000, words), "pixel_values": floats(3, side, side), "labels": floats(3129)}
    return made("ViltForQuestionAnswering", config, fields, may_be_channels_last=True)


def lxmert(words: int, seen: int, **sizes: Any) -> Net:
    """What is seen in a picture was found before."""
    fields = {
        "input_ids": below(1000, words), "visual_feats": floats(seen, 2048), "visual_pos": floats(seen, 4),
        "labels": below(1000),
    }  # fmt: skip
    return made("LxmertForQuestionAnswering", {"num_qa_labels": 3129} | sizes, fields)


def autoformer(context: int, future: int, **sizes: Any) -> Net:
    past = context + 7  # as far as it looks back
    config = {"context_length": context, "prediction_length": future, "num_time_features": 4} | sizes
    fields = {
        "past_values": floats(past), "past_time_features": floats(past, 4), "past_observed_mask": below(2, past),
        "future_values": floats(future), "future_time_features": floats(future, 4),
    }  # fmt: skip
    return made("AutoformerForPrediction", config, fields, precisions=("fp32", "tf32"))


def patch_tst(series: int, context: int, future: int, **sizes: Any) -> Net:
    config = {"num_input_channels": series, "context_length": context, "prediction_length": future} | sizes
    fields = {"past_values": floats(context, series), "future_values": floats(future, series)}
    return made("PatchTSTForPrediction", config, fields, precisions=WITH_FP32_WEIGHTS)


def pix2struct(patches: int, words: int, vision: Mapping[str, Any], text: Mapping[str, Any]) -> Net:
    """A page is a list of patches, each of which begins with its row and its column."""

    def page(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        made = torch.randn(rows, patches, 770, device=device, dtype=dtype)
        place = torch.arange(patches, device=device)
        made[:, :, 0], made[:, :, 1] = place // 32, place % 32
        return made

    fields = {"flattened_patches": page, "labels": below(1000, words)}
    return made("Pix2StructForConditionalGeneration", {"text_config": text, "vision_config": vision}, fields)


def vit_pose(height: int, width: int, **sizes: Any) -> Net:
    """Where joints are, as maps of heat."""

    def find(net: nn.Module, pixel_values: Tensor, heat: Tensor) -> Tensor:
        found: Any = net(pixel_values)
        return F.mse_loss(found.heatmaps, heat)

    backbone = transformers.VitPoseBackboneConfig(image_size=[height, width], **sizes)
    fields = {"pixel_values": floats(3, height, width), "heat": floats(17, height // 4, width // 4)}
    config = {"backbone_config": backbone, "num_labels": 17}
    return made("VitPoseForPoseEstimation", config, fields, find, may_be_channels_last=True)


def clap(words: int, audio: Mapping[str, Any], text: Mapping[str, Any]) -> Net:
    """Ten seconds of sound and what is said about it."""
    fields = {"input_ids": below(900, words), "input_features": floats(1, 1001, 64)}
    config = {"audio_config": audio, "text_config": text}
    return made("ClapModel", config, fields, matched, WITH_FP32_WEIGHTS)


def x_clip(frames: int, side: int, words: int, vision: Mapping[str, Any], text: Mapping[str, Any]) -> Net:
    fields = {"input_ids": below(900, words), "pixel_values": floats(frames, 3, side, side)}
    seen = {"image_size": side, "num_frames": frames} | vision
    return made("XCLIPModel", {"vision_config": seen, "text_config": text}, fields, matched)


def bros(words: int, **sizes: Any) -> Net:
    """Words of a page with their boxes."""
    fields = {"input_ids": below(1000, words), "bbox": floats(words, 4), "labels": below(7, words)}
    return made("BrosForTokenClassification", {"num_labels": 7} | sizes, fields)


def mgp_str(height: int, width: int, **sizes: Any) -> Net:
    """A word in a picture is read as letters, as pieces and as other pieces."""
    kinds = {"letters": 38, "pieces": 50257, "other_pieces": 30522}

    def read(net: nn.Module, pixel_values: Tensor, **wanted: Tensor) -> Tensor:
        found: Any = net(pixel_values).logits
        losses = [
            F.cross_entropy(scores.transpose(1, 2), wanted[kind]) for kind, scores in zip(kinds, found, strict=True)
        ]
        return torch.stack(losses).sum()

    fields = {"pixel_values": floats(3, height, width)} | {kind: below(count, 27) for kind, count in kinds.items()}
    config = {"image_size": (height, width)} | sizes
    return made("MgpstrForSceneTextRecognition", config, fields, read, may_be_channels_last=True)


FEW = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
FEW_WORDS = FEW | {"vocab_size": 1000}
FEW_STEPS = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}  # fmt: skip
STEPS = {"d_model": 512, "encoder_layers": 4, "decoder_layers": 3, "encoder_attention_heads": 8,
         "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}  # fmt: skip
WRITTEN: dict[str, Written] = {
    "vilt": Written(vilt, FEW_WORDS | {"side": 64, "words": 8}, {"base": {"side": 384, "words": 40}}),
    "lxmert": Written(
        lxmert, FEW_WORDS | {"words": 8, "seen": 4, "l_layers": 1, "x_layers": 1, "r_layers": 1},
        {"base": {"words": 20, "seen": 36}, "long": {"words": 64, "seen": 100}},
    ),
    "autoformer": Written(
        autoformer, FEW_STEPS | {"context": 16, "future": 8},
        {"base": STEPS | {"context": 96, "future": 96}, "long": STEPS | {"context": 336, "future": 192}},
    ),
    "patch_tst": Written(
        patch_tst, {"series": 3, "context": 32, "future": 8, "patch_length": 8, "patch_stride": 8, "d_model": 16},
        {"power": {"series": 321, "context": 336, "future": 96, "patch_length": 16, "patch_stride": 8, "d_model": 256,
                   "ffn_dim": 1024, "num_attention_heads": 16, "num_hidden_layers": 8},
         "weather": {"series": 21, "context": 512, "future": 192, "patch_length": 16, "patch_stride": 8,
                     "d_model": 512, "ffn_dim": 1024, "num_attention_heads": 16, "num_hidden_layers": 4}},
    ),
    "pix2struct": Written(
        pix2struct,
        {"patches": 32, "words": 8,
         "vision": {"hidden_size": 32, "d_ff": 64, "d_kv": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
         "text": {"hidden_size": 32, "d_ff": 64, "d_kv": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 1000}},
        {"base": {"patches": 1024, "words": 128, "vision": {}, "text": {}},
         "long": {"patches": 2048, "words": 256, "vision": {"num_hidden_layers": 8}, "text": {"num_layers": 8}}},
    ),
    "vit_pose": Written(
        vit_pose, {"height": 64, "width": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        {"base": {"height": 256, "width": 192},
         "small": {"height": 256, "width": 192, "hidden_size": 384, "num_attention_heads": 6}},
    ),
    "clap": Written(
        clap,
        {"words": 8, "text": FEW_WORDS,
         "audio": {"patch_embeds_hidden_size": 8, "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2],
                   "hidden_size": 64}},
        {"base": {"words": 64, "audio": {}, "text": {}},
         "large": {"words": 64, "text": {},
                   "audio": {"patch_embeds_hidden_size": 128, "depths": [2, 2, 12, 2], "hidden_size": 1024}}},
    ),
    "x_clip": Written(
        x_clip,
        {"frames": 2, "side": 64, "words": 8, "text": FEW_WORDS,
         "vision": FEW | {"mit_hidden_size": 512, "mit_intermediate_size": 64, "mit_num_attention_heads": 2,
                          "patch_size": 32}},
        {"32": {"frames": 8, "side": 224, "words": 77, "text": {}, "vision": {}},
         "16": {"frames": 8, "side": 224, "words": 77, "text": {}, "vision": {"patch_size": 16}}},
    ),
    "bros": Written(
        bros, FEW_WORDS | {"words": 16, "hidden_size": 128},
        {"base": {"words": 512}, "large": {"words": 512, "hidden_size": 1024, "num_hidden_layers": 18,
                                           "num_attention_heads": 16, "intermediate_size": 4096}},
    ),
    "mgp_str": Written(
        mgp_str, {"height": 32, "width": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        {"base": {"height": 32, "width": 128},
         "small": {"height": 32, "width": 128, "hidden_size": 384, "num_attention_heads": 6}},
    ),
}  # fmt: skip
