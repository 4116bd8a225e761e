"""The cases built from transformers configurations: random weights, default dropout, the model's own loss.

The first three are the ones of the published accuracy table; the others cover architectures, masks, head sizes,
optimizers and ways to train. `layers(n)` and the like are the full size, or a small one when `tiny`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import transformers as hf
from torch import nn

from zoo.case import Case
from zoo.plain import add_lora

Batch = Callable[[str], Mapping[str, Any]]


def build(model_class: Any, config: Any) -> Callable[[], nn.Module]:
    """A builder; each call has its own copy of the configuration, since models write into it."""
    config.use_cache = False
    return lambda: model_class(copy.deepcopy(config))


def token_batch(size: int, length: int, vocab: int, padded: bool = False) -> Batch:
    """Token ids that are their own labels; when padded, the last quarter of every second row is masked out."""

    def batch(device: str) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, vocab, (size, length), device=device)
        if not padded:
            return {"input_ids": ids, "labels": ids}
        mask = torch.ones(size, length, dtype=torch.int64, device=device)
        mask[::2, length * 3 // 4 :] = 0
        return {"input_ids": ids, "attention_mask": mask, "labels": ids}

    return batch


def seq2seq_batch(size: int, length: int, target_length: int, vocab: int) -> Batch:
    return lambda device: {
        "input_ids": torch.randint(0, vocab, (size, length), device=device),
        "labels": torch.randint(0, vocab, (size, target_length), device=device),
    }


def image_batch(size: int, pixels: int, labels: int) -> Batch:
    return lambda device: {
        "pixel_values": torch.randn(size, 3, pixels, pixels, device=device),
        "labels": torch.randint(0, labels, (size,), device=device),
    }


def measured_cases(tiny: bool) -> list[Case]:
    """The three cases of the accuracy table."""
    layers, size, length, vocab = sizes(tiny)
    llama = hf.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers(16),
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=vocab(128256),
        max_position_embeddings=8192,
    )
    gpt2 = hf.GPT2Config(n_embd=1024, n_layer=layers(24), n_head=16, vocab_size=vocab(50257))
    bert = hf.BertConfig(
        hidden_size=1024,
        num_hidden_layers=layers(24),
        num_attention_heads=16,
        intermediate_size=4096,
        vocab_size=vocab(30522),
    )
    return [
        Case(
            name="llama1b",
            build=build(hf.LlamaForCausalLM, llama),
            batch=token_batch(size(4), length(2048), vocab(128256)),
            precision="bf16",
            checkpoint=True,
        ),
        Case(
            name="gpt2m",
            build=build(hf.GPT2LMHeadModel, gpt2),
            batch=token_batch(size(8), length(1024), vocab(50257)),
            precision="amp",
            checkpoint=True,
        ),
        Case(
            name="bertl",
            build=build(hf.BertForMaskedLM, bert),
            batch=token_batch(size(16), length(512), vocab(30522)),
            precision="fp32",
            checkpoint=True,
        ),
    ]


def sizes(tiny: bool) -> tuple[Callable[[int], int], ...]:
    """Functions from a full number of layers, batch size, sequence length, vocabulary to the one in use."""
    if not tiny:
        return (int,) * 4
    return tuple(partial(min, small) for small in (2, 2, 64, 512))


def decoder_cases(tiny: bool) -> list[Case]:
    """Causal language models: head sizes 64, 80, 128 and 256, grouped queries, padding, attention dropout."""
    layers, size, length, vocab = sizes(tiny)

    def case(name: str, model_class: Any, config: Any, rows: int, columns: int, **more: Any) -> Case:
        padded = more.pop("padded", False)
        batch = token_batch(size(rows), length(columns), config.vocab_size, padded)
        return Case(name=name, build=build(model_class, config), batch=batch, **more)

    mistral = hf.MistralConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers(8),
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=vocab(32000),
    )
    qwen3 = hf.Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=layers(12),
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=vocab(151936),
        tie_word_embeddings=True,
    )
    qwen2 = hf.Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=layers(12),
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=vocab(151936),
        tie_word_embeddings=True,
    )
    gemma = hf.GemmaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers(4),
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
        vocab_size=vocab(64000),
    )
    neox = hf.GPTNeoXConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=layers(12),
        num_attention_heads=16,
        vocab_size=vocab(50432),
        attention_dropout=0.1,
        hidden_dropout=0.1,
    )
    phi = hf.PhiConfig(
        hidden_size=2560,
        intermediate_size=10240,
        num_hidden_layers=layers(6),
        num_attention_heads=32,
        vocab_size=vocab(51200),
        resid_pdrop=0.1,
        attention_dropout=0.1,
    )
    opt = hf.OPTConfig(
        hidden_size=1024,
        ffn_dim=4096,
        num_hidden_layers=layers(12),
        num_attention_heads=16,
        vocab_size=vocab(50272),
        word_embed_proj_dim=1024,
    )
    mixtral = hf.MixtralConfig(
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=layers(6),
        num_attention_heads=16,
        num_key_value_heads=4,
        num_local_experts=8,
        vocab_size=vocab(32000),
    )
    return [
        case("mistral", hf.MistralForCausalLM, mistral, 4, 1024, precision="bf16"),
        case("mistral_padded", hf.MistralForCausalLM, mistral, 4, 1024, precision="bf16", padded=True, checkpoint=True),
        case("mistral_fp32_padded", hf.MistralForCausalLM, mistral, 2, 512, precision="fp32", padded=True),
        case("qwen3", hf.Qwen3ForCausalLM, qwen3, 2, 2048, precision="bf16", checkpoint=True),
        case("qwen2_amp", hf.Qwen2ForCausalLM, qwen2, 2, 1024, precision="amp"),
        case("gemma", hf.GemmaForCausalLM, gemma, 2, 1024, precision="bf16", checkpoint=True),
        case("neox_dropout", hf.GPTNeoXForCausalLM, neox, 4, 1024, precision="amp", checkpoint=True),
        case("phi_head80_dropout", hf.PhiForCausalLM, phi, 2, 1024, precision="bf16"),
        case("opt_fp16amp", hf.OPTForCausalLM, opt, 4, 1024, precision="fp16amp", checkpoint=True),
        case("mixtral", hf.MixtralForCausalLM, mixtral, 2, 1024, precision="bf16"),
    ]


def encoder_cases(tiny: bool) -> list[Case]:
    """Text encoders and encoder-decoders."""
    layers, size, length, vocab = sizes(tiny)
    t5 = hf.T5Config(
        d_model=768,
        d_ff=3072,
        d_kv=64,
        num_layers=layers(12),
        num_heads=12,
        vocab_size=vocab(32128),
        decoder_start_token_id=0,
    )
    bart = hf.BartConfig(
        encoder_layers=layers(12), decoder_layers=layers(12), vocab_size=vocab(50265), attention_dropout=0.1
    )
    roberta = hf.RobertaConfig(vocab_size=vocab(50265), num_hidden_layers=layers(12), max_position_embeddings=514)
    deberta = hf.DebertaV2Config(
        vocab_size=vocab(32000),
        hidden_size=768,
        num_hidden_layers=layers(12),
        num_attention_heads=12,
        intermediate_size=3072,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        type_vocab_size=0,
        position_biased_input=False,
    )
    modernbert = hf.ModernBertConfig(vocab_size=vocab(50368), num_hidden_layers=layers(12), pad_token_id=0)
    distilbert = hf.DistilBertConfig(vocab_size=vocab(30522), n_layers=layers(6))

    def classes(rows: int, columns: int) -> Batch:
        return lambda device: {
            "input_ids": torch.randint(0, vocab(30522), (size(rows), length(columns)), device=device),
            "labels": torch.randint(0, 2, (size(rows),), device=device),
        }

    def masked(name: str, model_class: Any, config: Any, rows: int, columns: int, **more: Any) -> Case:
        padded = more.pop("padded", False)
        batch = token_batch(size(rows), length(columns), config.vocab_size, padded)
        return Case(name=name, build=build(model_class, config), batch=batch, **more)

    pairs = seq2seq_batch(size(8), length(512), length(256), vocab(32128))
    return [
        Case(
            name="t5_amp",
            build=build(hf.T5ForConditionalGeneration, t5),
            batch=pairs,
            precision="amp",
            checkpoint=True,
        ),
        Case(name="t5_bf16", build=build(hf.T5ForConditionalGeneration, t5), batch=pairs, precision="bf16"),
        Case(
            name="bart",
            build=build(hf.BartForConditionalGeneration, bart),
            batch=seq2seq_batch(size(8), length(512), length(256), vocab(50265)),
            precision="bf16",
            checkpoint=True,
        ),
        masked(
            "roberta_padded", hf.RobertaForMaskedLM, roberta, 16, 512, precision="amp", padded=True, checkpoint=True
        ),
        masked("deberta", hf.DebertaV2ForMaskedLM, deberta, 8, 512, precision="amp"),
        masked("modernbert", hf.ModernBertForMaskedLM, modernbert, 8, 1024, precision="bf16"),
        Case(
            name="distilbert",
            build=build(hf.DistilBertForSequenceClassification, distilbert),
            batch=classes(32, 256),
            precision="fp32",
        ),
    ]


def vision_and_speech_cases(tiny: bool) -> list[Case]:
    layers, size, _, _ = sizes(tiny)
    vit = hf.ViTConfig(
        hidden_size=1024, num_hidden_layers=layers(24), num_attention_heads=16, intermediate_size=4096, num_labels=1000
    )
    swin = hf.SwinConfig(embed_dim=128, depths=[2, 2, layers(18), 2], num_heads=[4, 8, 16, 32], num_labels=1000)
    convnext = hf.ConvNextConfig(
        hidden_sizes=[128, 256, 512, 1024], depths=[layers(3), 2, layers(27), 2], num_labels=1000
    )
    segformer = hf.SegformerConfig(
        depths=[2, layers(4), layers(6), 2], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=256, num_labels=150
    )
    pixels = 64 if tiny else 512
    whisper = hf.WhisperConfig(
        d_model=768,
        encoder_layers=layers(12),
        decoder_layers=layers(12),
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        attention_dropout=0.1,
    )
    # Layer drop and SpecAugment choose at random what runs, so a step would not repeat: off.
    wav2vec2 = hf.Wav2Vec2Config(num_hidden_layers=layers(12), layerdrop=0.0, mask_time_prob=0.0, num_labels=10)
    clip = hf.CLIPConfig(
        text_config={"num_hidden_layers": layers(12)},
        vision_config={"num_hidden_layers": layers(12), "patch_size": 16},
    )
    images = image_batch(size(32), 224, 1000)

    def segments(device: str) -> dict[str, torch.Tensor]:
        return {
            "pixel_values": torch.randn(size(8), 3, pixels, pixels, device=device),
            "labels": torch.randint(0, 150, (size(8), pixels, pixels), device=device),
        }

    def speech(device: str) -> dict[str, torch.Tensor]:
        return {
            "input_features": torch.randn(size(8), 80, 3000, device=device),
            "labels": torch.randint(0, 51865, (size(8), 128), device=device),
        }

    def waves(device: str) -> dict[str, torch.Tensor]:
        return {
            "input_values": torch.randn(size(4), 8000 if tiny else 160000, device=device),
            "labels": torch.randint(0, 10, (size(4),), device=device),
        }

    def captions(device: str) -> dict[str, Any]:
        return {
            "input_ids": torch.randint(0, 49408, (size(64), 77), device=device),
            "pixel_values": torch.randn(size(64), 3, 224, 224, device=device, dtype=torch.bfloat16),
            "return_loss": True,
        }

    def case(name: str, model_class: Any, config: Any, batch: Batch, **more: Any) -> Case:
        return Case(name=name, build=build(model_class, config), batch=batch, **more)

    return [
        case("vit_large", hf.ViTForImageClassification, vit, images, precision="amp", checkpoint=True),
        case("swin_base", hf.SwinForImageClassification, swin, images, precision="amp"),
        case("convnext_amp", hf.ConvNextForImageClassification, convnext, images, precision="amp"),
        case("convnext_fp32", hf.ConvNextForImageClassification, convnext, images, precision="fp32"),
        case("segformer", hf.SegformerForSemanticSegmentation, segformer, segments, precision="amp"),
        case("whisper_small", hf.WhisperForConditionalGeneration, whisper, speech, precision="amp", checkpoint=True),
        case("wav2vec2", hf.Wav2Vec2ForSequenceClassification, wav2vec2, waves, precision="amp"),
        case("clip", hf.CLIPModel, clip, captions, precision="bf16"),
    ]


def training_cases(tiny: bool) -> list[Case]:
    """One small Llama and one small GPT-2 under other optimizers and loops."""
    layers, size, length, vocab = sizes(tiny)
    llama = hf.LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers(8),
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=vocab(32000),
    )
    gpt2 = hf.GPT2Config(n_layer=layers(12), vocab_size=vocab(50257))
    llama_build, gpt2_build = build(hf.LlamaForCausalLM, llama), build(hf.GPT2LMHeadModel, gpt2)
    llama_batch = token_batch(size(2), length(1024), vocab(32000))
    gpt2_batch = token_batch(size(4), length(1024), vocab(50257))
    adamw = torch.optim.AdamW
    bf16 = partial(Case, build=llama_build, batch=llama_batch, precision="bf16")
    amp = partial(Case, build=gpt2_build, batch=gpt2_batch, precision="amp")

    def lora() -> nn.Module:
        return add_lora(llama_build(), names=("q_proj", "v_proj"), rank=16)

    return [
        Case(name="llama_lora", build=lora, batch=llama_batch, precision="bf16", checkpoint=True),
        bf16(name="llama_fused", optimizer=partial(adamw, fused=True)),
        bf16(name="llama_for_loop", optimizer=partial(adamw, foreach=False)),
        bf16(name="llama_adafactor", optimizer=torch.optim.Adafactor),
        bf16(name="llama_clip", clip_grad_norm=1.0),
        bf16(name="llama_accumulate", micro_batches=2),
        amp(name="gpt2_fused", optimizer=partial(adamw, fused=True)),
        amp(name="gpt2_accumulate_clip", micro_batches=2, clip_grad_norm=1.0),
        Case(name="gpt2_fp16amp_clip", build=gpt2_build, batch=gpt2_batch, precision="fp16amp", clip_grad_norm=1.0),
    ]


def hf_cases(tiny: bool) -> list[Case]:
    groups = (measured_cases, decoder_cases, encoder_cases, vision_and_speech_cases, training_cases)
    return [case for group in groups for case in group(tiny)]
