"""What people train in 2025 and 2026, with how often, and how they train it: the list that the usual part draws from.

Written down, and committed, before anything of the part was drawn, written or traced. A weight says how often a family
is trained beside the others, as far as one person knows: downloads, tutorials, forums, job posts. The seed puts the
families in an order, without replacement, in which the heavier ones tend to stand first; zoo/libraries/usual.py has
their nets, written in that order. Families may be those of earlier rows: that is the point. Published widths are used,
so what makes a row new is the size, length, batch, precision and way to train that the seed draws for it.

In: nothing. Out: `FAMILIES` and the chances that libraries_draw.py draws with.
"""

from __future__ import annotations

import random

from zoo.case import Precision

SEED, AGAIN_SEED = "20261118 usual", "20261120 usual again"
COUNT, MORE, LAST, AGAIN = 44, 22, 16, 26
TEXTS = {
    "llama": 10, "qwen2": 8, "qwen3": 10, "gemma2": 2, "gemma3": 5, "phi3": 4, "mistral": 6, "olmo2": 3, "smollm3": 3,
    "mixtral": 3, "qwen3_moe": 4, "deepseek_v3": 3, "gpt_oss": 3, "gpt2": 8, "gpt_neox": 4, "opt": 3, "bloom": 2,
    "falcon": 2, "mamba": 2, "lora": 8,
    "bert": 9, "roberta": 6, "distilbert": 5, "deberta_v3": 5, "modernbert": 5, "electra": 2, "sentences": 5,
    "t5": 6, "bart": 4, "marian": 2,
}  # fmt: skip
"""transformers' models of texts: decoders, encoders, and both. lora is a decoder with adapters, sentences are what
sentence_transformers trains."""
SEEN = {
    "vit": 8, "deit": 2, "dinov2": 4, "clip": 6, "siglip": 4, "swin": 4, "convnext": 4, "resnet": 10, "vgg": 2,
    "densenet": 2, "efficientnet": 6, "regnet": 2, "mobilenet_v3": 4, "detr": 3, "rt_detr": 3, "segformer": 4,
    "mask2former": 2, "sam": 3, "deeplabv3": 3, "video_mae": 1, "faster_rcnn": 3,
    "blip": 2, "llava": 4, "qwen2_5_vl": 5, "pali_gemma": 2, "trocr": 2,
}  # fmt: skip
"""Images, alone or with texts; of transformers, timm and torchvision."""
HEARD = {"whisper": 7, "wav2vec2": 5, "hubert": 2, "spectrograms": 2}
DENOISED = {
    "sd_unet": 6, "sdxl_unet": 4, "unet_2d": 3, "dit": 4, "sd_3": 3, "flux": 4, "autoencoder_kl": 3, "control_net": 2,
}  # fmt: skip
"""diffusers' nets."""
OWN = {
    "char_transformer": 7, "llama_by_hand": 5, "lstm_lm": 4, "translator_with_attention": 2, "tagger": 2,
    "small_resnet": 7, "vit_by_hand": 4, "unet_of_segments": 6, "conv_vae": 3, "gan": 4, "noise_unet": 4, "wave_net": 1,
    "point_net": 2, "dense_graph": 2, "tabular_mlp": 5, "recommender": 3, "actor_critic": 3, "contrastive": 3,
    "series_transformer": 2,
}  # fmt: skip
"""Nets that users write themselves in plain torch."""
FAMILIES = TEXTS | SEEN | HEARD | DENOISED | OWN
PRECISIONS: dict[str, dict[Precision, int]] = {
    "texts": {"amp": 40, "bf16": 38, "fp16amp": 10, "tf32": 6, "fp32": 6},
    "own": {"amp": 32, "bf16": 8, "fp16amp": 10, "tf32": 20, "fp32": 30},
    "others": {"amp": 42, "bf16": 20, "fp16amp": 16, "tf32": 12, "fp32": 10},
}
OPTIMIZERS = {"adamw": 58, "fused": 24, "momentum": 12, "adafactor": 6}
CHANNELS_LAST, CHECKPOINTED, CLIPPED, ACCUMULATED = 0.25, 0.15, 0.35, 0.2
MICRO_BATCHES = (2, 4)
TARGET_MS = (20, 130)
LONGEST_MS, LONGEST_STEP_MS, TRIES = 150, 400, 8


def order(seed: str = SEED) -> list[str]:
    """Drawn by weight without replacement: who draws the largest root of a random number stands first."""
    keys = {name: random.Random(f"{seed} {name}").random() ** (1 / weight) for name, weight in FAMILIES.items()}
    return sorted(keys, key=lambda name: -keys[name])


def precisions(family: str) -> dict[Precision, int]:
    return PRECISIONS["texts" if family in TEXTS else "own" if family in OWN else "others"]
