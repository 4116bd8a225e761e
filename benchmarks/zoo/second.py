"""Cases of the second blind test: architectures, optimizers and ways to train that no rule was developed with.

They were chosen as somebody would who wants to check the predictor, predicted, and only then measured. They are not
part of `zoo()`; `select` knows them by name. `second_cases(tiny=True)` are small ones that run on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from zoo.case import Case, Precision
from zoo.hf import Batch, build, image_batch, seq2seq_batch, sizes, token_batch
from zoo.plain import add_lora, channels_last_images
from zoo.second_nets import (
    DiffusionUNet,
    DiT,
    GraphNet,
    PromptTuned,
    Recommender,
    Tagger,
    Translator,
    VariationalAutoencoder,
    add_scales,
)

FUSED_ADAMW = partial(torch.optim.AdamW, fused=True)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def second_cases(tiny: bool = False) -> list[Case]:
    groups = (encoder_cases, decoder_cases, mixture_cases, seq2seq_and_speech_cases, vision_cases, plain_torch_cases)
    return [case for group in groups for case in group(tiny)]


def text_case(
    name: str, model_class: Any, config: Any, rows: int, columns: int, precision: Precision, padded: bool = False,
    **more: Any,
) -> Case:  # fmt: skip
    batch = token_batch(rows, columns, config.vocab_size, padded)
    return Case(name=name, build=build(model_class, config), batch=batch, precision=precision, **more)


def encoder_cases(tiny: bool) -> list[Case]:
    layers, size, length, vocab = sizes(tiny)
    base = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": layers(12)}
    albert = hf.AlbertConfig(**base, vocab_size=vocab(30000))
    mpnet = hf.MPNetConfig(vocab_size=vocab(30527), num_hidden_layers=layers(12))
    xlm = hf.XLMRobertaConfig(**base, vocab_size=vocab(60000), max_position_embeddings=514)
    longformer = hf.LongformerConfig(
        vocab_size=vocab(50265),
        num_hidden_layers=layers(8),
        attention_window=[32 if tiny else 512] * layers(8),
        max_position_embeddings=4098,
    )
    rembert = hf.RemBertConfig(
        vocab_size=vocab(50000),
        hidden_size=1152,
        num_hidden_layers=layers(8),
        num_attention_heads=18,
        intermediate_size=4608,
        input_embedding_size=256,
        output_embedding_size=1152,
    )

    def scaled() -> nn.Module:
        names = ("key", "value", "dense")
        return add_scales(hf.RemBertForMaskedLM(rembert), names)

    return [
        text_case("albert_fp32", hf.AlbertForMaskedLM, albert, size(12), length(512), "fp32"),
        text_case("mpnet_amp", hf.MPNetForMaskedLM, mpnet, size(32), length(384), "amp", padded=True),
        text_case("xlm_roberta_tf32", hf.XLMRobertaForMaskedLM, xlm, size(24), length(512), "tf32", padded=True),
        text_case("longformer_amp", hf.LongformerForMaskedLM, longformer, size(4), length(2048), "amp"),
        Case(
            name="rembert_ia3_bf16",
            build=scaled,
            batch=token_batch(size(24), length(512), vocab(50000)),
            precision="bf16",
            optimizer=torch.optim.Adam,
        ),
    ]


def decoder_cases(tiny: bool) -> list[Case]:
    layers, size, length, vocab = sizes(tiny)
    falcon = hf.FalconConfig(
        hidden_size=2048, num_hidden_layers=layers(12), num_attention_heads=32, vocab_size=vocab(65024)
    )
    phi3 = hf.Phi3Config(
        hidden_size=2304,
        intermediate_size=6144,
        num_hidden_layers=layers(12),
        num_attention_heads=24,
        num_key_value_heads=8,
        vocab_size=vocab(32064),
        pad_token_id=0,
    )
    gemma3 = hf.Gemma3TextConfig(
        hidden_size=1152,
        intermediate_size=6912,
        num_hidden_layers=layers(12),
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=32 if tiny else 512,
        vocab_size=vocab(65536),
    )
    stablelm = hf.StableLmConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers(12),
        num_attention_heads=32,
        num_key_value_heads=32,
        vocab_size=vocab(50304),
    )
    gpt_neo = hf.GPTNeoConfig(
        hidden_size=1024,
        num_layers=layers(12),
        attention_types=[[["global", "local"], layers(12) // 2]],
        num_heads=16,
        vocab_size=vocab(50257),
        resid_dropout=0.1,
        attention_dropout=0.1,
    )
    mamba2 = hf.Mamba2Config(
        hidden_size=1024,
        num_heads=32,
        num_hidden_layers=layers(6),
        n_groups=1,
        vocab_size=vocab(32768),
        chunk_size=32 if tiny else 256,
    )
    xglm = hf.XGLMConfig(
        d_model=1024, ffn_dim=4096, num_layers=layers(12), attention_heads=16, vocab_size=vocab(60000), layerdrop=0.0
    )

    def prompted() -> nn.Module:
        return PromptTuned(hf.XGLMForCausalLM(xglm), 16, 1024)

    return [
        text_case("falcon_bf16", hf.FalconForCausalLM, falcon, size(4), length(2048), "bf16", checkpoint=True),
        text_case("phi3_bf16", hf.Phi3ForCausalLM, phi3, size(4), length(2048), "bf16", optimizer=FUSED_ADAMW),
        text_case("gemma3_bf16", hf.Gemma3ForCausalLM, gemma3, size(4), length(2048), "bf16", clip_grad_norm=1.0),
        text_case(
            "stablelm_bf16", hf.StableLmForCausalLM, stablelm, size(4), length(2048), "bf16",
            optimizer=torch.optim.Adafactor,
        ),
        text_case("gpt_neo_fp16amp", hf.GPTNeoForCausalLM, gpt_neo, size(8), length(1024), "fp16amp"),
        text_case("mamba2_bf16", hf.Mamba2ForCausalLM, mamba2, size(2), length(1024), "bf16"),
        Case(
            name="xglm_prompt_amp",
            build=prompted,
            batch=token_batch(size(8), length(1000), vocab(60000)),
            precision="amp",
        ),
    ]  # fmt: skip


def mixture_cases(tiny: bool) -> list[Case]:
    layers, size, length, vocab = sizes(tiny)
    olmoe = hf.OlmoeConfig(
        hidden_size=1024,
        intermediate_size=1024,
        num_hidden_layers=layers(8),
        num_attention_heads=16,
        num_key_value_heads=16,
        num_experts=8 if tiny else 32,
        num_experts_per_tok=4,
        vocab_size=vocab(50304),
    )
    deepseek = hf.DeepseekV3Config(
        hidden_size=1536,
        intermediate_size=4096,
        moe_intermediate_size=768,
        num_hidden_layers=layers(6),
        num_attention_heads=16,
        num_key_value_heads=16,
        n_routed_experts=8 if tiny else 32,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        kv_lora_rank=256,
        q_lora_rank=768,
        vocab_size=vocab(64000),
    )
    return [
        text_case("olmoe_bf16", hf.OlmoeForCausalLM, olmoe, size(8), length(1024), "bf16"),
        text_case("deepseek_v3_bf16", hf.DeepseekV3ForCausalLM, deepseek, size(4), length(2048), "bf16"),
    ]


def seq2seq_and_speech_cases(tiny: bool) -> list[Case]:
    layers, size, length, vocab = sizes(tiny)
    pegasus = hf.PegasusConfig(
        encoder_layers=layers(12),
        decoder_layers=layers(12),
        encoder_ffn_dim=4096,
        decoder_ffn_dim=4096,
        encoder_attention_heads=16,
        decoder_attention_heads=16,
        d_model=1024,
        vocab_size=vocab(48000),
        max_position_embeddings=64 if tiny else 1024,
    )
    # Layer drop and SpecAugment choose at random what runs, so a step would not repeat: off.
    steady = {"layerdrop": 0.0, "mask_time_prob": 0.0, "num_labels": 10}
    sew = hf.SEWConfig(num_hidden_layers=layers(12), **steady)
    data2vec = hf.Data2VecAudioConfig(num_hidden_layers=layers(12), **steady)

    def waves(rows: int) -> Batch:
        return lambda device: {
            "input_values": torch.randn(size(rows), 8000 if tiny else 160000, device=device),
            "labels": torch.randint(0, 10, (size(rows),), device=device),
        }

    return [
        Case(
            name="pegasus_amp",
            build=build(hf.PegasusForConditionalGeneration, pegasus),
            batch=seq2seq_batch(size(16), length(512), length(128), vocab(48000)),
            precision="amp",
            checkpoint=True,
        ),
        Case(
            name="sew_fp32",
            build=build(hf.SEWForSequenceClassification, sew),
            batch=waves(8),
            precision="fp32",
        ),
        Case(
            name="data2vec_audio_amp",
            build=build(hf.Data2VecAudioForSequenceClassification, data2vec),
            batch=waves(8),
            precision="amp",
        ),
    ]


def detection_loss(output: Any) -> Tensor:
    """Every query is to be the first class and a box in the middle: no matching, which runs on the CPU."""
    logits = output.logits.float().flatten(0, 1)
    classes = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    boxes = torch.nn.functional.l1_loss(output.pred_boxes, torch.full_like(output.pred_boxes, 0.5))
    return torch.nn.functional.cross_entropy(logits, classes) + boxes


def vision_cases(tiny: bool) -> list[Case]:
    layers, size, _, _ = sizes(tiny)
    dinov2 = hf.Dinov2Config(num_hidden_layers=layers(12), use_swiglu_ffn=True, drop_path_rate=0.1, num_labels=1000)
    deit = hf.DeiTConfig(num_hidden_layers=layers(12), num_labels=1000)
    levit = hf.LevitConfig(num_labels=1000, hidden_sizes=[256, 384, 512], num_attention_heads=[4, 6, 8],
                           key_dim=[32, 32, 32])  # fmt: skip
    cvt = hf.CvtConfig(num_labels=1000, depth=[1, 2, 3 if tiny else 10])
    focalnet = hf.FocalNetConfig(num_labels=1000, depths=[2, 2, layers(6), 2])
    dpt = hf.DPTConfig(num_labels=150, num_hidden_layers=12, image_size=64 if tiny else 384, use_auxiliary_head=False)
    detr = hf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=hf.ResNetConfig(out_features=["stage4"]),
        encoder_layers=layers(6),
        decoder_layers=layers(6),
    )
    depth = 64 if tiny else 384

    def depths(device: str) -> dict[str, Tensor]:
        return {"pixel_values": torch.randn(size(24), 3, depth, depth, device=device)}

    def pictures(device: str) -> dict[str, Tensor]:
        side = 64 if tiny else 640
        return {"pixel_values": torch.randn(size(16), 3, side, side, device=device)}

    def adapted() -> nn.Module:
        return add_lora(hf.DeiTForImageClassification(deit), names=("query", "value", "q_proj", "v_proj"), rank=8)

    def case(name: str, make: Callable[[], nn.Module], batch: Batch, precision: Precision, **more: Any) -> Case:
        return Case(name=name, build=make, batch=batch, precision=precision, **more)

    images = partial(image_batch, pixels=224, labels=1000)
    return [
        case("dinov2_amp", build(hf.Dinov2ForImageClassification, dinov2), images(size(64)), "amp", checkpoint=True),
        case("deit_lora_amp", adapted, images(size(128)), "amp"),
        case("levit_fp32", build(hf.LevitForImageClassification, levit), images(size(256)), "fp32", optimizer=MOMENTUM),
        case("cvt_amp", build(hf.CvtForImageClassification, cvt), images(size(96)), "amp"),
        case("focalnet_amp", build(hf.FocalNetForImageClassification, focalnet), images(size(96)), "amp"),
        case("dpt_amp", build(hf.DPTForDepthEstimation, dpt), depths, "amp",
             loss=lambda output: output.predicted_depth.float().square().mean()),
        case("detr_fp32", build(hf.DetrForObjectDetection, detr), pictures, "fp32", loss=detection_loss,
             clip_grad_norm=0.1),
    ]  # fmt: skip


def plain_torch_cases(tiny: bool) -> list[Case]:
    layers, size, length, vocab = sizes(tiny)
    side = 32 if tiny else 64
    nodes, links = (200, 1000) if tiny else (100_000, 1_000_000)
    table = 1000 if tiny else 200_000

    def noisy(device: str) -> dict[str, Tensor]:
        pictures = {name: torch.randn(size(32), 3, side, side, device=device) for name in ("images", "noise")}
        return pictures | {"steps": torch.randint(0, 1000, (size(32),), device=device)}

    def latents(device: str) -> dict[str, Tensor]:
        pictures = {name: torch.randn(size(48), 4, 32, 32, device=device) for name in ("latents", "noise")}
        return pictures | {name: torch.randint(0, 1000, (size(48),), device=device) for name in ("steps", "labels")}

    def tagged(device: str) -> dict[str, Tensor]:
        shape = (size(128), length(200))
        return {
            "tokens": torch.randint(0, vocab(40000), shape, device=device),
            "tags": torch.randint(0, 40, shape, device=device),
        }

    def sentences(device: str) -> dict[str, Tensor]:
        return {
            name: torch.randint(0, vocab(16000), (size(96), length(rows)), device=device)
            for name, rows in (("tokens", 60), ("targets", 50))
        }

    def graph(device: str) -> dict[str, Tensor]:
        return {
            "features": torch.randn(nodes, 200, device=device),
            "edges": torch.randint(0, nodes, (2, links), device=device),
            "labels": torch.randint(0, 50, (nodes,), device=device),
        }

    def visits(device: str) -> dict[str, Tensor]:
        rows = 64 if tiny else 131072
        return {
            "numbers": torch.randn(rows, 13, device=device),
            "categories": torch.randint(0, table, (20, rows, 5), device=device),
            "clicks": torch.rand(rows, device=device),
        }

    def autoencoder() -> nn.Module:
        convert: Any = VariationalAutoencoder(64, 3 if tiny else 5).to  # the memory format is missing from its type
        return convert(memory_format=torch.channels_last)

    def case(name: str, make: Callable[[], nn.Module], batch: Batch, precision: Precision, **more: Any) -> Case:
        return Case(name=name, build=make, batch=batch, precision=precision, **more)

    return [
        case("diffusion_unet_amp", lambda: DiffusionUNet(128), noisy, "amp"),
        case("dit_amp", lambda: DiT(1024, layers(16), 16, 32), latents, "amp", optimizer=FUSED_ADAMW, checkpoint=True),
        case("vae_nhwc_fp32", autoencoder, lambda device: {"images": channels_last_images(size(64), 256, device)},
             "fp32", optimizer=torch.optim.Adam),
        case("bilstm_tagger_fp32", lambda: Tagger(vocab(40000), 512, 3, 40), tagged, "fp32"),
        case("gru_seq2seq_amp", lambda: Translator(vocab(16000), 512), sentences, "amp", clip_grad_norm=1.0),
        case("graph_fp32", lambda: GraphNet(200, 128, 4, 50), graph, "fp32"),
        case("recommender_tf32", lambda: Recommender(20, table, 64), visits, "tf32", optimizer=MOMENTUM),
    ]  # fmt: skip
