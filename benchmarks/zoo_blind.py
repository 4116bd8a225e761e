"""Cases of the blind test: architectures that were measured only after their predictions had been written down.

They are not part of `zoo()`, whose rows the rules of pricing were developed with; `select` knows them by name.
"""

from __future__ import annotations

import transformers as hf

from zoo_case import Case
from zoo_hf import build, image_batch, sizes, token_batch


def blind_cases(tiny: bool = False) -> list[Case]:
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
