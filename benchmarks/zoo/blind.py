"""Cases of the blind test: architectures that were measured only after their predictions had been written down.

They are not part of `zoo()`, whose rows the rules of pricing were developed with; `select` knows them by name.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from zoo.case import Case, Precision
from zoo.hf import Batch, build, image_batch, sizes, token_batch


def blind_cases(tiny: bool = False) -> list[Case]:
    """Those of the time's blind test, and those of the memory of convolutions."""
    return [*timed_cases(tiny), *convolutional_cases(tiny)]


def convolutional_cases(tiny: bool) -> list[Case]:
    layers, size, _, _ = sizes(tiny)
    wide, narrow = (64, 64) if tiny else (256, 192)
    mobilenet = hf.MobileNetV2Config(num_labels=1000)
    resnet = hf.ResNetConfig(
        layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[3, layers(4), layers(6), 3], num_labels=1000
    )
    convnext = hf.ConvNextV2Config(
        hidden_sizes=[96, 192, 384, 768], depths=[layers(3), 3, layers(9), 3], num_labels=1000
    )
    bit = hf.BitConfig(depths=[layers(3), 4, layers(6), 3], num_labels=1000)
    mobilevit = hf.MobileViTConfig(num_labels=1000)
    poolformer = hf.PoolFormerConfig(num_labels=1000)
    hubert = hf.HubertConfig(num_hidden_layers=layers(6), layerdrop=0.0, mask_time_prob=0.0, num_labels=10)

    def waves(device: str) -> dict[str, torch.Tensor]:
        return {
            "input_values": torch.randn(size(6), 8000 if tiny else 120000, device=device),
            "labels": torch.randint(0, 10, (size(6),), device=device),
        }

    def case(name: str, model_class: Any, config: Any, batch: Batch) -> Case:
        precision: Precision = "amp" if name.endswith("amp") else "fp32"
        return Case(name=name, build=build(model_class, config), batch=batch, precision=precision)

    classified = image_batch(size(96), wide, 1000)
    return [
        case("mobilenet_v2_fp32", hf.MobileNetV2ForImageClassification, mobilenet, classified),
        case("resnet34_amp", hf.ResNetForImageClassification, resnet, classified),
        case("resnet34_fp32", hf.ResNetForImageClassification, resnet, image_batch(size(80), narrow, 1000)),
        case("convnext_v2_amp", hf.ConvNextV2ForImageClassification, convnext, classified),
        case("bit50_fp32", hf.BitForImageClassification, bit, image_batch(size(40), wide, 1000)),
        case("mobilevit_amp", hf.MobileViTForImageClassification, mobilevit, classified),
        case("poolformer_fp32", hf.PoolFormerForImageClassification, poolformer, classified),
        case("hubert_fp32", hf.HubertForSequenceClassification, hubert, waves),
    ]


def timed_cases(tiny: bool) -> list[Case]:
    layers, size, length, vocab = sizes(tiny)
    bloom = hf.BloomConfig(hidden_size=1024, n_layer=layers(24), n_head=16, vocab_size=vocab(50000))
    gptj = hf.GPTJConfig(
        n_embd=1536, n_layer=layers(16), n_head=12, rotary_dim=64, n_positions=2048, vocab_size=vocab(50400)
    )
    olmo = hf.Olmo2Config(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers(12),
        num_attention_heads=16,
        num_key_value_heads=16,
        vocab_size=vocab(50304),
    )
    beit = hf.BeitConfig(num_hidden_layers=layers(12), num_labels=1000)
    regnet = hf.RegNetConfig(num_labels=1000)
    efficient = hf.EfficientNetConfig(num_labels=1000, image_size=224, hidden_dim=1280, width_coefficient=1.0,
                                      depth_coefficient=1.0)  # fmt: skip
    electra = hf.ElectraConfig(
        embedding_size=768,
        hidden_size=768,
        num_hidden_layers=layers(12),
        num_attention_heads=12,
        intermediate_size=3072,
        vocab_size=vocab(30522),
    )
    pixels = 64 if tiny else 224
    images = image_batch(size(64), pixels, 1000)
    return [
        Case(
            name="bloom_amp",
            build=build(hf.BloomForCausalLM, bloom),
            batch=token_batch(size(4), length(1024), vocab(50000)),
            precision="amp",
        ),
        Case(
            name="gptj_bf16",
            build=build(hf.GPTJForCausalLM, gptj),
            batch=token_batch(size(4), length(1024), vocab(50400)),
            precision="bf16",
        ),
        Case(
            name="olmo2_bf16",
            build=build(hf.Olmo2ForCausalLM, olmo),
            batch=token_batch(size(4), length(2048), vocab(50304)),
            precision="bf16",
            checkpoint=True,
        ),
        Case(
            name="electra_fp32",
            build=build(hf.ElectraForMaskedLM, electra),
            batch=token_batch(size(16), length(384), vocab(30522), padded=True),
            precision="fp32",
        ),
        Case(
            name="beit_amp",
            build=build(hf.BeitForImageClassification, beit),
            batch=image_batch(size(64), 224, 1000),
            precision="amp",
        ),
        Case(
            name="regnet_fp32",
            build=build(hf.RegNetForImageClassification, regnet),
            batch=images,
            precision="fp32",
        ),
        Case(
            name="efficientnet_amp",
            build=build(hf.EfficientNetForImageClassification, efficient),
            batch=images,
            precision="amp",
        ),
    ]
