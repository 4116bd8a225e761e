"""Nets that see, hear or denoise, as people train them: of transformers, timm, torchvision and diffusers.

In: sizes as published, or narrower where they would be too many. Out: `SEEN`, by the names that usual_families.py has.
Detectors are given a class and a box for each of their queries: no matching, which would be computed on the CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.transformers_more import FEW, FEW_WORDS, made, matched, own_loss
from zoo.libraries.usual_texts import there
from zoo.survey import ANY, Net, below, floats

NUM_CLASSES, NUM_STEPS = 1000, 1000


def of_timm(name: str, side: int, **options: Any) -> Net:
    """Imported when it is built: not everybody has timm."""

    def build() -> nn.Module:
        timm = importlib.import_module("timm")
        return Trained(timm.create_model(name, num_classes=NUM_CLASSES, **options), classify)

    return Net(name, build, 32, {"images": floats(3, side, side), "labels": below(NUM_CLASSES)}, ANY, True)


def of_torchvision(name: str, side: int, **options: Any) -> Net:
    def build() -> nn.Module:
        models = importlib.import_module("torchvision.models")
        return Trained(models.get_model(name, weights=None, num_classes=NUM_CLASSES, **options), classify)

    return Net(name, build, 32, {"images": floats(3, side, side), "labels": below(NUM_CLASSES)}, ANY, True)


def classify(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(images), labels, label_smoothing=0.1)


def deeplab(name: str, side: int) -> Net:
    """As torchvision's reference scripts train it."""

    def segment(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        found: Any = net(images)
        losses = {key: F.cross_entropy(found[key], labels, ignore_index=255) for key in found}
        return losses["out"] + 0.5 * losses["aux"] if "aux" in losses else losses["out"]

    def build() -> nn.Module:
        models = importlib.import_module("torchvision.models")
        made: Any = models.get_model(name, weights=None, weights_backbone=None, aux_loss=True, num_classes=21)
        return Trained(made, segment)

    return Net(name, build, 8, {"images": floats(3, side, side), "labels": below(21, side, side)}, ANY, True)


def dinov2(side: int, **sizes: Any) -> Net:
    config = {"image_size": 518, "patch_size": 14, "num_labels": 100} | sizes
    fields = {"pixel_values": floats(3, side, side), "labels": below(100)}
    return made("Dinov2ForImageClassification", config, fields, may_be_channels_last=True)


def vit(side: int, **sizes: Any) -> Net:
    config = {"image_size": side, "num_labels": 100} | sizes
    fields = {"pixel_values": floats(3, side, side), "labels": below(100)}
    return made("ViTForImageClassification", config, fields, may_be_channels_last=True)


def video_mae(frames: int, side: int, **sizes: Any) -> Net:
    """Films are sorted into classes."""
    config = {"image_size": side, "num_frames": frames, "num_labels": 400} | sizes
    fields = {"pixel_values": floats(frames, 3, side, side), "labels": below(400)}
    return made("VideoMAEForVideoClassification", config, fields)


def segformer(side: int, classes: int, **sizes: Any) -> Net:
    fields = {"pixel_values": floats(3, side, side), "labels": below(classes, side, side)}
    return made("SegformerForSemanticSegmentation", {"num_labels": classes} | sizes, fields, may_be_channels_last=True)


def mask2former(side: int, queries: int, backbone: Mapping[str, Any], **sizes: Any) -> Net:
    """Every query has a class and a mask, told after each layer."""
    seen = {"model_type": "swin", "out_features": ["stage1", "stage2", "stage3", "stage4"], "image_size": side}
    config = {"num_queries": queries, "num_labels": 150, "output_auxiliary_logits": True} | sizes

    def one(scores: Tensor, drawn: Tensor, classes: Tensor, masks: Tensor) -> Tensor:
        wanted = masks.flatten(2).to(drawn.dtype)
        chances = drawn.flatten(2).sigmoid()
        dice = 1 - (2 * (chances * wanted).sum(-1) + 1) / (chances.sum(-1) + wanted.sum(-1) + 1)
        known = F.binary_cross_entropy_with_logits(drawn.flatten(2), wanted)
        return 2 * F.cross_entropy(scores.transpose(1, 2), classes) + 5 * known + 5 * dice.mean()

    def outline(net: nn.Module, pixel_values: Tensor, classes: Tensor, masks: Tensor) -> Tensor:
        found: Any = net(pixel_values)
        loss = one(found.class_queries_logits, found.masks_queries_logits, classes, masks)
        for layer in found.auxiliary_logits:
            loss = loss + one(layer["class_queries_logits"], layer["masks_queries_logits"], classes, masks)
        return loss

    def build() -> nn.Module:
        kind: Any = transformers.Mask2FormerConfig
        whole = kind(backbone_config=transformers.SwinConfig(**{**seen, **backbone}), **config)
        module: Any = importlib.import_module("transformers.models.mask2former.modeling_mask2former")
        with mock.patch.object(module, "requires_backends"):  # only its own loss, which matches, needs scipy
            return Trained(module.Mask2FormerForUniversalSegmentation(whole), outline)

    fields = {
        "pixel_values": floats(3, side, side), "classes": below(151, queries),
        "masks": below(2, queries, side // 4, side // 4),
    }  # fmt: skip
    return Net("mask2former", build, 4, fields, ANY, True)


def trocr(side: int, words: int, vocab: int, vision: Mapping[str, Any], text: Mapping[str, Any]) -> Net:
    """A line of writing is read."""

    def build() -> nn.Module:
        config: Any = transformers.VisionEncoderDecoderConfig(
            encoder={"image_size": side, **vision},
            decoder={"model_type": "trocr", "vocab_size": vocab, "use_cache": False, "is_decoder": True,
                     "add_cross_attention": True, "cross_attention_hidden_size": vision["hidden_size"], **text},
            decoder_start_token_id=2, pad_token_id=1,
        )  # fmt: skip
        return Trained(transformers.VisionEncoderDecoderModel(config), own_loss)

    fields = {"pixel_values": floats(3, side, side), "labels": below(vocab, words)}
    return Net("trocr", build, 8, fields, ANY)


def llava(side: int, patch: int, words: int, frozen: bool, vocab: int, vision: Any, text: Any, **others: Any) -> Net:
    """Talk about an image; the part that sees is mostly frozen."""
    seen, image = (side // patch) ** 2, vocab - 1

    def ids(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        found = torch.randint(5, vocab - 8, (rows, seen + words), device=device)
        found[:, 4 : seen + 4] = image
        return found

    def labels(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        found = torch.randint(5, vocab - 8, (rows, seen + words), device=device)
        found[:, : seen + words // 2] = -100
        return found

    def build() -> nn.Module:
        config: Any = transformers.LlavaConfig(
            vision_config={"image_size": side, "patch_size": patch, **vision},
            text_config={"vocab_size": vocab, "use_cache": False, **text}, image_token_index=image, **others,
        )  # fmt: skip
        model: Any = transformers.LlavaForConditionalGeneration(config)
        if frozen:
            model.model.vision_tower.requires_grad_(False)
        return Trained(model, own_loss)

    fields = {
        "input_ids": ids, "attention_mask": there(seen + words, padded=False), "labels": labels,
        "pixel_values": floats(3, side, side),
    }  # fmt: skip
    return Net("llava", build, 4, fields, ANY)


def boxed(net: nn.Module, pixel_values: Tensor, classes: Tensor, boxes: Tensor) -> Tensor:
    found: Any = net(pixel_values)
    loss = F.cross_entropy(found.logits.transpose(1, 2), classes)
    return loss + 5 * F.l1_loss(found.pred_boxes, boxes.sigmoid())


def detector(model: str, side: int, queries: int, config: Mapping[str, Any], backbone: Any) -> Net:
    fields = {"pixel_values": floats(3, side, side), "classes": below(80, queries), "boxes": floats(queries, 4)}
    whole = {"num_queries": queries, "num_labels": 80, "backbone_config": backbone()} | config
    return made(model, whole, fields, boxed, may_be_channels_last=True)


def detr(side: int, queries: int = 100, backbone: Mapping[str, Any] | None = None, **sizes: Any) -> Net:
    kind = partial(transformers.ResNetConfig, out_features=["stage4"], **backbone or {})
    return detector("DetrForObjectDetection", side, queries, {"use_timm_backbone": False} | sizes, kind)


def rt_detr(side: int, queries: int = 300, backbone: Mapping[str, Any] | None = None, **sizes: Any) -> Net:
    kind = partial(transformers.RTDetrResNetConfig, out_features=["stage2", "stage3", "stage4"], **backbone or {})
    return detector("RTDetrForObjectDetection", side, queries, sizes, kind)


def sam(side: int, frozen: bool, vision: Mapping[str, Any]) -> Net:
    """Masks of what stands in a box; the encoder of images is often frozen."""
    config = {"vision_config": {"image_size": side} | vision, "prompt_encoder_config": {"image_size": side,
              "image_embedding_size": side // 16}}  # fmt: skip

    def outline(net: nn.Module, pixel_values: Tensor, boxes: Tensor, masks: Tensor) -> Tensor:
        corners = boxes.sigmoid() * side
        found: Any = net(pixel_values=pixel_values, input_boxes=corners, multimask_output=False)
        scores = found.pred_masks.flatten(1).float()
        wanted = masks.flatten(1).to(scores.dtype)
        chances = scores.sigmoid()
        overlap = 2 * (chances * wanted).sum(1) / (chances.sum(1) + wanted.sum(1) + 1)
        return F.binary_cross_entropy_with_logits(scores, wanted) + (1 - overlap).mean()

    def build() -> nn.Module:
        model = transformers.SamModel(transformers.SamConfig(**config))
        if frozen:
            model.vision_encoder.requires_grad_(False)
        return Trained(model, outline)

    fields = {"pixel_values": floats(3, side, side), "boxes": floats(1, 4), "masks": below(2, side // 4, side // 4)}
    return Net("sam", build, 2, fields, ANY)


def clip(side: int, words: int, vision: Mapping[str, Any], text: Mapping[str, Any], **others: Any) -> Net:
    fields = {"input_ids": below(900, words), "pixel_values": floats(3, side, side)}
    config = {"vision_config": {"image_size": side} | vision, "text_config": text} | others
    return made("CLIPModel", config, fields, matched, may_be_channels_last=True)


def siglip(side: int, words: int, vision: Mapping[str, Any], text: Mapping[str, Any]) -> Net:
    fields = {"input_ids": below(900, words), "pixel_values": floats(3, side, side)}
    config = {"vision_config": {"image_size": side} | vision, "text_config": text}
    return made("SiglipModel", config, fields, matched, may_be_channels_last=True)


def pali_gemma(side: int, patch: int, words: int, frozen: bool, vocab: int, vision: Any, text: Any) -> Net:
    """What is asked about an image, and the answer; the part that sees is often frozen."""
    seen, image = (side // patch) ** 2, vocab - 1
    config = {
        "vision_config": {"model_type": "siglip_vision_model", "image_size": side, "patch_size": patch, **vision},
        "text_config": {"model_type": "gemma", "vocab_size": vocab, **text},
        "image_token_id": image, "projection_dim": text["hidden_size"],
    }  # fmt: skip

    def ids(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        found = torch.randint(5, 900, (rows, seen + words), device=device)
        found[:, :seen] = image
        return found

    def answered(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        """Which tokens are the answer, and are trained."""
        found = torch.zeros(rows, seen + words, dtype=torch.int64, device=device)
        found[:, seen + words // 2 :] = 1
        return found

    def labels(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        found = torch.randint(5, 900, (rows, seen + words), device=device)
        found[:, : seen + words // 2] = -100
        return found

    def build() -> nn.Module:
        model: Any = transformers.PaliGemmaForConditionalGeneration(transformers.PaliGemmaConfig(**config))
        if frozen:
            model.model.vision_tower.requires_grad_(False)
        return Trained(model, own_loss)

    fields = {
        "input_ids": ids, "attention_mask": there(seen + words, padded=False), "token_type_ids": answered,
        "labels": labels, "pixel_values": floats(3, side, side),
    }  # fmt: skip
    return Net("pali_gemma", build, 4, fields, ANY)


def qwen2_5_vl(side: int, words: int, vocab: int, vision: Any, text: Any) -> Net:
    """Every image has so many patches, which its processor has cut out; four of them are a token."""
    patches, image = (side // 14) ** 2, vocab - 1
    seen = patches // 4
    config = {
        "vision_config": vision,
        "text_config": {"vocab_size": vocab, "use_cache": False, **text},
        "image_token_id": image, "video_token_id": vocab - 2, "vision_start_token_id": vocab - 3,
        "vision_end_token_id": vocab - 4,
    }  # fmt: skip

    def ids(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        found = torch.randint(5, vocab - 8, (rows, seen + words + 2), device=device)
        found[:, 0], found[:, 1 : seen + 1], found[:, seen + 1] = vocab - 3, image, vocab - 4
        return found

    def grid(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[1, side // 14, side // 14]] * rows, device=device)

    def pixels(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        return torch.randn(rows * patches, 3 * 2 * 14 * 14, device=device, dtype=dtype)

    fields = {
        "input_ids": ids, "attention_mask": there(seen + words + 2), "labels": below(vocab, seen + words + 2),
        "pixel_values": pixels, "image_grid_thw": grid,
    }  # fmt: skip
    return made("Qwen2_5_VLForConditionalGeneration", config, fields)


def whisper(words: int, frames: int = 3000, **sizes: Any) -> Net:
    config = {"use_cache": False, "max_source_positions": frames // 2} | sizes
    fields = {"input_features": floats(80, frames), "labels": below(900, words)}
    return made("WhisperForConditionalGeneration", config, fields)


def wav2vec2(samples: int, symbols: int, **sizes: Any) -> Net:
    """Transcripts; as most people tune it, nothing is masked and no layer is dropped."""
    config = {"layerdrop": 0.0, "apply_spec_augment": False, "ctc_loss_reduction": "mean"} | sizes

    def letters(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        return torch.randint(1, 31, (rows, symbols), device=device)

    return made("Wav2Vec2ForCTC", config, {"input_values": floats(samples), "labels": letters})


def hubert(samples: int, classes: int, **sizes: Any) -> Net:
    """Emotions or words of sound; as most people tune it, nothing is masked and no layer is dropped."""
    config = {"layerdrop": 0.0, "apply_spec_augment": False, "num_labels": classes} | sizes
    fields = {"input_values": floats(samples), "labels": below(classes)}
    return made("HubertForSequenceClassification", config, fields)


def spectrograms(frames: int, **sizes: Any) -> Net:
    config = {"max_length": frames, "num_labels": 50} | sizes
    return made("ASTForAudioClassification", config, {"input_values": floats(frames, 128), "labels": below(50)})


def sdxl_unet(side: int, widths: tuple[int, int, int], depths: tuple[int, int, int], text_width: int) -> Net:
    """Beside the texts, sizes and crops are told in six numbers."""
    pooled = 1280
    config = {
        "sample_size": side, "block_out_channels": widths, "transformer_layers_per_block": depths,
        "cross_attention_dim": text_width, "attention_head_dim": tuple(width // 64 for width in widths),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), "use_linear_projection": True,
        "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": pooled + 6 * 256,
    }  # fmt: skip

    def denoise(net: nn.Module, wanted: Tensor, text_embeds: Tensor, time_ids: Tensor, **inputs: Any) -> Tensor:
        added = {"text_embeds": text_embeds, "time_ids": time_ids}
        return F.mse_loss(net(**inputs, added_cond_kwargs=added, return_dict=False)[0].float(), wanted.float())

    def build() -> nn.Module:
        return Trained(importlib.import_module("diffusers").UNet2DConditionModel(**config), denoise)

    fields = {
        "sample": floats(4, side, side), "timestep": below(NUM_STEPS), "encoder_hidden_states": floats(77, text_width),
        "text_embeds": floats(pooled), "time_ids": floats(6), "wanted": floats(4, side, side),
    }  # fmt: skip
    return Net("sdxl_unet", build, 4, fields, ANY, True)


def widths(width: int, layers: int, heads: int, **others: Any) -> dict[str, Any]:
    return {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers,
            "num_attention_heads": heads, **others}  # fmt: skip


def steps(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {"d_model": width, "encoder_layers": layers, "decoder_layers": layers, "encoder_attention_heads": heads,
            "decoder_attention_heads": heads, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width}  # fmt: skip


def grouped(width: int, inner: int, layers: int, heads: int, groups: int) -> dict[str, Any]:
    return widths(width, layers, heads, num_key_value_heads=groups) | {"intermediate_size": inner}


BASE, LARGE = widths(768, 12, 12), widths(1024, 24, 16)
FEW_STAGES: dict[str, Any] = {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "embedding_size": 16}
WIDE_STAGES: dict[str, Any] = {"hidden_sizes": [64, 128, 320, 512], "decoder_hidden_size": 768}
BASIC: dict[str, Any] = {"hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"}
SEEN: dict[str, Written] = {
    "efficientnet": Written(
        of_timm, {"name": "efficientnet_b0", "side": 64},
        {"b0": {"name": "efficientnet_b0", "side": 224}, "b3": {"name": "efficientnet_b3", "side": 288},
         "v2_s": {"name": "tf_efficientnetv2_s", "side": 300}, "b4": {"name": "efficientnet_b4", "side": 320}},
        {"drop_path_rate": (0.0, 0.2)},
    ),
    "convnext": Written(
        of_timm, {"name": "convnext_atto", "side": 64},
        {"tiny": {"name": "convnext_tiny"}, "small": {"name": "convnext_small"}, "base": {"name": "convnext_base"},
         "v2_tiny": {"name": "convnextv2_tiny"}},
        {"side": (224, 224, 288, 384), "drop_path_rate": (0.0, 0.1)},
    ),
    "deit": Written(
        of_timm, {"name": "deit_tiny_patch16_224", "side": 224},
        {"small": {"name": "deit_small_patch16_224", "side": 224},
         "base": {"name": "deit_base_patch16_224", "side": 224},
         "three": {"name": "deit3_medium_patch16_224", "side": 224}},
        {"drop_path_rate": (0.0, 0.1)},
    ),
    "deeplabv3": Written(
        deeplab, {"name": "deeplabv3_mobilenet_v3_large", "side": 64},
        {"50": {"name": "deeplabv3_resnet50"}, "101": {"name": "deeplabv3_resnet101"},
         "mobile": {"name": "deeplabv3_mobilenet_v3_large"}},
        {"side": (320, 480, 512, 520)},
    ),
    "dinov2": Written(
        dinov2, {"side": 56, **FEW},
        {"small": widths(384, 12, 6), "base": BASE, "large": LARGE}, {"side": (224, 224, 392, 518)},
    ),
    "detr": Written(
        detr, {"side": 64, "queries": 5, "backbone": FEW_STAGES, **steps(32, 1, 2)},
        {"50": {}, "101": {"backbone": {"depths": [3, 4, 23, 3]}}}, {"side": (512, 640, 800)},
    ),
    "rt_detr": Written(
        rt_detr, {"side": 64, "queries": 5, "backbone": FEW_STAGES, "decoder_layers": 1, "num_denoising": 0,
                  "encoder_in_channels": [16, 32, 32]},
        {"18": {"backbone": BASIC | {"depths": [2, 2, 2, 2]}, "encoder_in_channels": [128, 256, 512],
                "hidden_expansion": 0.5, "decoder_layers": 3},
         "34": {"backbone": BASIC | {"depths": [3, 4, 6, 3]}, "encoder_in_channels": [128, 256, 512],
                "hidden_expansion": 0.5, "decoder_layers": 4},
         "50": {}},
        {"side": (512, 640, 640)},
    ),
    "sam": Written(
        sam, {"side": 64, "vision": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                                     "window_size": 2, "global_attn_indexes": [1]}},
        {"base": {"side": 1024, "vision": {}}, "half": {"side": 512, "vision": {}}}, {"frozen": (False, True)},
    ),
    "clip": Written(
        clip, {"side": 32, "words": 8, "vision": FEW | {"patch_size": 16}, "text": FEW_WORDS},
        {"b_32": {"side": 224, "vision": {}, "text": {}},
         "b_16": {"side": 224, "vision": {"patch_size": 16}, "text": {}},
         "l_14": {"side": 224, "vision": LARGE | {"patch_size": 14}, "projection_dim": 768,
                  "text": widths(768, 12, 12, projection_dim=768)}},
        {"words": (32, 77)},
    ),
    "siglip": Written(
        siglip, {"side": 32, "words": 8, "vision": FEW, "text": FEW_WORDS},
        {"base": {"vision": {}, "text": {}}, "large": {"vision": LARGE, "text": LARGE}},
        {"side": (224, 256, 384), "words": (16, 64)},
    ),
    "pali_gemma": Written(
        pali_gemma,
        {"side": 32, "patch": 16, "words": 8, "vocab": 1000, "vision": FEW,
         "text": FEW | {"num_key_value_heads": 1, "head_dim": 16}},
        {"base": {"patch": 16, "vocab": 257216, "vision": BASE,
                  "text": widths(1024, 8, 4, num_key_value_heads=1, head_dim=256)},
         "seeing": {"patch": 14, "vocab": 50304, "vision": widths(1152, 18, 16) | {"intermediate_size": 4304},
                    "text": widths(1024, 12, 4, num_key_value_heads=1, head_dim=256)}},
        {"side": (224, 224, 448), "words": (64, 128), "frozen": (False, True)},
    ),
    "qwen2_5_vl": Written(
        qwen2_5_vl,
        {"side": 56, "words": 8, "vocab": 1000,
         "vision": {"hidden_size": 32, "intermediate_size": 64, "depth": 2, "num_heads": 2, "out_hidden_size": 32,
                    "fullatt_block_indexes": [1]},
         "text": FEW | {"num_key_value_heads": 1,
                        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}},
        {"base": {"vocab": 151936,
                  "vision": {"hidden_size": 640, "intermediate_size": 1710, "depth": 16, "num_heads": 8,
                             "out_hidden_size": 896, "fullatt_block_indexes": [3, 7, 11, 15]},
                  "text": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 16,
                           "num_attention_heads": 14, "num_key_value_heads": 2,
                           "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12]}}}},
        {"side": (224, 336, 448), "words": (64, 256)},
    ),
    "whisper": Written(
        whisper,
        {"frames": 100, "words": 8, "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
         "decoder_start_token_id": 1, **steps(32, 1, 2)},
        {"tiny": steps(384, 4, 6), "base": steps(512, 6, 8), "small": steps(768, 12, 12)}, {"words": (48, 100, 200)},
    ),
    "wav2vec2": Written(
        wav2vec2, {"samples": 8000, "symbols": 5, "conv_dim": [32] * 7, "num_conv_pos_embeddings": 16,
                   "num_conv_pos_embedding_groups": 4, **FEW},
        {"base": BASE,
         "large": LARGE | {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}},
        {"samples": (80_000, 160_000, 240_000), "symbols": (48, 120)},
    ),
    "spectrograms": Written(
        spectrograms, {"frames": 64, **FEW}, {"base": BASE, "small": widths(384, 12, 6)}, {"frames": (512, 1024)},
    ),
    "sdxl_unet": Written(
        sdxl_unet, {"side": 16, "widths": (64, 64, 64), "depths": (1, 1, 1), "text_width": 32},
        {"narrow": {"widths": (192, 384, 768), "depths": (1, 2, 4)},
         "shallow": {"widths": (320, 640, 1280), "depths": (1, 1, 1)}},
        {"side": (64, 96, 128), "text_width": (1280, 2048)},
    ),
    "vit": Written(
        vit, {"side": 32, **FEW},
        {"small": widths(384, 12, 6), "base": BASE, "large": LARGE, "base_32": BASE | {"patch_size": 32}},
        {"side": (224, 224, 384)},
    ),
    "video_mae": Written(
        video_mae, {"frames": 4, "side": 32, **FEW},
        {"small": widths(384, 12, 6), "base": BASE, "large": LARGE}, {"frames": (8, 16, 16), "side": (224,)},
    ),
    "trocr": Written(
        trocr,
        {"side": 32, "words": 8, "vocab": 1000, "vision": {"model_type": "vit", **FEW},
         "text": {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 64}},
        {"small": {"vocab": 64044, "vision": {"model_type": "deit", **widths(384, 12, 6)},
                   "text": {"d_model": 256, "decoder_layers": 6, "decoder_attention_heads": 8,
                            "decoder_ffn_dim": 1024}},
         "base": {"vocab": 50265, "vision": {"model_type": "vit", **BASE}, "text": {}},
         "large": {"vocab": 50265, "vision": {"model_type": "vit", **LARGE}, "text": {}}},
        {"side": (384,), "words": (32, 64, 128)},
    ),
    "vgg": Written(
        of_torchvision, {"name": "vgg11", "side": 32},
        {"11_normed": {"name": "vgg11_bn"}, "16": {"name": "vgg16"}, "16_normed": {"name": "vgg16_bn"},
         "19": {"name": "vgg19"}},
        {"side": (224, 224, 128)},
    ),
    "resnet": Written(
        of_torchvision, {"name": "resnet18", "side": 64},
        {"18": {"name": "resnet18"}, "34": {"name": "resnet34"}, "50": {"name": "resnet50"},
         "101": {"name": "resnet101"}, "152": {"name": "resnet152"}},
        {"side": (160, 224, 224, 288)},
    ),
    "hubert": Written(
        hubert, {"samples": 8000, "classes": 4, "conv_dim": [32] * 7, "num_conv_pos_embeddings": 16,
                 "num_conv_pos_embedding_groups": 4, **FEW},
        {"base": BASE | {"classes": 8},
         "large": LARGE | {"classes": 8, "feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True},
         "keywords": BASE | {"classes": 12}},
        {"samples": (16_000, 48_000, 80_000, 160_000)},
    ),
    "segformer": Written(
        segformer, {"side": 64, "classes": 5, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32],
                    "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 32},
        {"b0": {}, "b1": WIDE_STAGES | {"depths": [2, 2, 2, 2], "decoder_hidden_size": 256},
         "b2": WIDE_STAGES | {"depths": [3, 4, 6, 3]}, "b3": WIDE_STAGES | {"depths": [3, 4, 18, 3]},
         "b5": WIDE_STAGES | {"depths": [3, 6, 40, 3]}},
        {"side": (512, 512, 640), "classes": (19, 150)},
    ),
    "llava": Written(
        llava,
        {"side": 32, "patch": 16, "words": 16, "frozen": False, "vocab": 1000,
         "vision": {"model_type": "clip_vision_model", **FEW},
         "text": {"model_type": "llama", **FEW}},
        {"tiny_llama_half": {"patch": 14, "vocab": 32064, "vision": {"model_type": "clip_vision_model", **LARGE},
                             "text": {"model_type": "llama", **grouped(2048, 5632, 11, 32, 4)}},
         "half_billion": {"patch": 16, "vocab": 151936, "vision_feature_select_strategy": "full",
                          "vision_feature_layer": -1, "vision": {"model_type": "siglip_vision_model", **BASE},
                          "text": {"model_type": "qwen2", "tie_word_embeddings": True,
                                   **grouped(896, 4864, 24, 14, 2)}},
         "vicuna_sixteenth": {"patch": 14, "vocab": 32064, "vision": {"model_type": "clip_vision_model", **LARGE},
                              "text": {"model_type": "llama", **grouped(4096, 11008, 2, 32, 32)}}},
        {"side": (224, 336), "words": (64, 128, 256), "frozen": (True, True, False)},
    ),
    "mask2former": Written(
        mask2former,
        {"side": 64, "queries": 5, "decoder_layers": 3, "encoder_layers": 1, "hidden_dim": 32, "feature_size": 32,
         "mask_feature_size": 32, "num_attention_heads": 2, "encoder_feedforward_dim": 64, "dim_feedforward": 64,
         "backbone": {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}},
        {"tiny": {"backbone": {}}, "small": {"backbone": {"depths": [2, 2, 18, 2]}},
         "base": {"backbone": {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32],
                               "window_size": 12}}},
        {"side": (384, 512), "queries": (100,)},
    ),
}  # fmt: skip
