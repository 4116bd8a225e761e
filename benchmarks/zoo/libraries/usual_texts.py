"""transformers' models of texts that people train: decoders, experts, encoders, translators, adapters.

In: sizes as published, or those widths with fewer layers where all would be too many. Out: `TEXTS`, by the names that
usual_families.py has. Decoders keep no cache, as transformers' own Trainer has it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries.transformers_more import made, own_loss
from zoo.plain import add_lora
from zoo.survey import ANY, Field, Net, below

LENGTHS = (256, 512, 1024, 2048)
PADDED = (False, False, True)


def there(length: int, padded: bool = True) -> Field:
    """A mask as tokenizers make it; if there is padding, the first of two rows ends with a quarter of it."""

    def field(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        mask = torch.ones(rows, length, dtype=torch.int64, device=device)
        mask[::2, length * 3 // 4 if padded else length :] = 0
        return mask

    return field


def ids_of(vocab: int, length: int, padded: bool) -> dict[str, Field]:
    words: dict[str, Field] = {"input_ids": below(vocab, length)}
    return words | {"attention_mask": there(length)} if padded else words


def decoder(model: str, length: int, padded: bool, vocab: int, **config: Any) -> Net:
    fields = ids_of(vocab, length, padded) | {"labels": below(vocab, length)}
    return made(model, {"vocab_size": vocab, "use_cache": False} | config, fields)


def encoder(model: str, length: int, padded: bool, vocab: int, head: str = "MaskedLM", **config: Any) -> Net:
    """With a head for every word, or one for the whole text."""
    labels = {
        "MaskedLM": below(vocab, length),
        **dict.fromkeys(("TokenClassification", "PreTraining"), below(2, length)),
    }
    fields = ids_of(vocab, length, padded) | {"labels": labels.get(head, below(2))}
    return made(model + "For" + head, {"vocab_size": vocab} | config, fields)


def both(model: str, length: int, wanted: int, padded: bool, vocab: int, **config: Any) -> Net:
    fields = ids_of(vocab, length, padded) | {"labels": below(vocab, wanted)}
    return made(model, {"vocab_size": vocab, "use_cache": False} | config, fields)


def lora(length: int, padded: bool, rank: int, everywhere: bool, vocab: int, **config: Any) -> Net:
    """A decoder whose weights are frozen, beside which small ones are trained."""
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    chosen = names if everywhere else ("q_proj", "v_proj")

    def build() -> nn.Module:
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(vocab_size=vocab, use_cache=False, **config))
        return Trained(add_lora(model, chosen, rank), own_loss)

    fields = ids_of(vocab, length, padded) | {"labels": below(vocab, length)}
    return Net("lora", build, 8, fields, ANY)


def sentences(model: str, length: int, padded: bool, vocab: int, **config: Any) -> Net:
    """Questions and answers that belong together are to lie near each other, farther from all others of the batch."""

    def pooled(net: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        found: Any = net(input_ids=ids, attention_mask=mask)
        weights = mask[:, :, None].to(found.last_hidden_state.dtype)
        return F.normalize((found.last_hidden_state * weights).sum(1) / weights.sum(1).clamp(min=1e-9), dim=-1)

    def match(net: nn.Module, **batch: Tensor) -> Tensor:
        first, second = (pooled(net, batch[f"{name}_ids"], batch[f"{name}_mask"]) for name in ("question", "answer"))
        scores = first @ second.T * 20.0
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))

    mask = there(length, padded)
    fields = {
        "question_ids": below(vocab, length), "question_mask": mask,
        "answer_ids": below(vocab, length), "answer_mask": mask,
    }  # fmt: skip
    return made(model, {"vocab_size": vocab} | config, fields, match)


def written(make: Any, tiny: dict[str, Any], sizes: dict[str, dict[str, Any]], **same: Any) -> Written:
    """`same` is what all sizes have; those that are tuples are options."""
    options = {key: value for key, value in same.items() if isinstance(value, tuple)}
    fixed = {key: value for key, value in same.items() if key not in options}
    return Written(make, fixed | tiny, {name: fixed | size for name, size in sizes.items()}, options)


def llama_like(
    width: int, inner: int, layers: int, heads: int, groups: int, vocab: int, **others: Any
) -> dict[str, Any]:
    return {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": groups, "vocab": vocab, **others}  # fmt: skip


def bert_like(width: int, layers: int, heads: int, vocab: int, **others: Any) -> dict[str, Any]:
    return {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers,
            "num_attention_heads": heads, "vocab": vocab, **others}  # fmt: skip


def bart_like(width: int, layers: int, heads: int, inner: int, vocab: int) -> dict[str, Any]:
    return {"d_model": width, "encoder_layers": layers, "decoder_layers": layers, "encoder_attention_heads": heads,
            "decoder_attention_heads": heads, "encoder_ffn_dim": inner, "decoder_ffn_dim": inner,
            "vocab": vocab}  # fmt: skip


FEW = {"length": 32, "padded": False}
SMALL = llama_like(64, 128, 2, 4, 2, 500) | FEW
SMALL_TEXT = bert_like(64, 2, 4, 500) | FEW
SMALL_PAIR = bart_like(64, 2, 4, 128, 500) | FEW | {"wanted": 16}
TIED = {"tie_word_embeddings": True}
DECODER = {"length": LENGTHS, "padded": PADDED}
TEXTS: dict[str, Written] = {
    "gpt2": written(
        decoder, {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab": 500} | FEW,
        {"distil": {"n_layer": 6}, "small": {}, "medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16}},
        model="GPT2LMHeadModel", vocab=50257, length=(256, 512, 1024, 1024), padded=PADDED,
    ),
    "opt": written(
        decoder, bert_like(64, 2, 4, 500, ffn_dim=128, word_embed_proj_dim=64) | FEW,
        {"125m": {}, "350m": {"hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "word_embed_proj_dim": 512,
                              "num_attention_heads": 16, "do_layer_norm_before": False}},
        model="OPTForCausalLM", vocab=50272, **DECODER,
    ),
    "llama": written(
        decoder, SMALL,
        {"smollm_135m": llama_like(576, 1536, 30, 9, 3, 49152, **TIED),
         "smollm_360m": llama_like(960, 2560, 32, 15, 5, 49152, **TIED),
         "tiny_llama_half": llama_like(2048, 5632, 11, 32, 4, 32000),
         "llama_3_2_quarter": llama_like(2048, 8192, 4, 32, 8, 128256, **TIED)},
        model="LlamaForCausalLM", **DECODER,
    ),
    "bloom": written(
        decoder, {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab": 500} | FEW,
        {"560m": {"n_layer": 24}, "half": {"n_layer": 12}},
        model="BloomForCausalLM", vocab=250880, hidden_size=1024, n_head=16, length=(256, 512, 1024), padded=PADDED,
    ),
    "gpt_neox": written(
        decoder, bert_like(64, 2, 4, 500) | FEW,
        {"pythia_70m": bert_like(512, 6, 8, 50304), "pythia_160m": bert_like(768, 12, 12, 50304),
         "pythia_410m": bert_like(1024, 24, 16, 50304)},
        model="GPTNeoXForCausalLM", **DECODER,
    ),
    "qwen2": written(
        decoder, SMALL, {"half_billion": llama_like(896, 4864, 24, 14, 2, 151936, **TIED),
                         "coder_quarter": llama_like(1536, 8960, 7, 12, 2, 151936, **TIED)},
        model="Qwen2ForCausalLM", **DECODER,
    ),
    "qwen3": written(
        decoder, SMALL | {"head_dim": 16},
        {"0_6b": llama_like(1024, 3072, 28, 16, 8, 151936, **TIED), "half": llama_like(1024, 3072, 14, 16, 8, 151936),
         "1_7b_quarter": llama_like(2048, 6144, 5, 16, 8, 151936, **TIED)},
        model="Qwen3ForCausalLM", head_dim=128, **DECODER,
    ),
    "gemma3": written(
        decoder, SMALL | {"head_dim": 16},
        {"270m": llama_like(640, 2048, 18, 4, 1, 262144), "1b_third": llama_like(1152, 6912, 8, 4, 1, 262144)},
        model="Gemma3ForCausalLM", head_dim=256, sliding_window=512, **DECODER,
    ),
    "olmo2": written(
        decoder, SMALL,
        {"1b_quarter": llama_like(2048, 8192, 4, 16, 16, 100352), "narrow": llama_like(1024, 4096, 12, 16, 16, 100352),
         "190m": llama_like(768, 3072, 12, 12, 12, 100352)},
        model="Olmo2ForCausalLM", **DECODER,
    ),
    "phi3": written(
        decoder, SMALL | {"pad_token_id": 0},
        {"mini_eighth": llama_like(3072, 8192, 4, 32, 32, 32064), "narrow": llama_like(1024, 2816, 16, 16, 16, 32064)},
        model="Phi3ForCausalLM", **DECODER,
    ),
    "mistral": written(
        decoder, SMALL,
        {"two_layers": llama_like(4096, 14336, 2, 32, 8, 32000), "narrow": llama_like(1024, 3584, 16, 16, 4, 32000)},
        model="MistralForCausalLM", **DECODER,
    ),
    "mixtral": written(
        decoder, SMALL | {"num_local_experts": 4},
        {"small": llama_like(1024, 3584, 6, 16, 4, 32000), "tiny": llama_like(512, 1792, 8, 8, 4, 32000)},
        model="MixtralForCausalLM", length=(512, 1024, 2048), padded=PADDED,
    ),
    "qwen3_moe": written(
        decoder, SMALL | {"head_dim": 16, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
        {"small": llama_like(1024, 3072, 8, 16, 4, 151936, moe_intermediate_size=384, num_experts=32),
         "narrow": llama_like(768, 2048, 8, 12, 4, 50304, moe_intermediate_size=384, num_experts=32)},
        model="Qwen3MoeForCausalLM", head_dim=128, num_experts_per_tok=4, length=(512, 1024, 2048), padded=PADDED,
    ),
    "deepseek_v3": written(
        decoder,
        llama_like(64, 128, 3, 4, 4, 500, moe_intermediate_size=32, n_routed_experts=8, q_lora_rank=32, kv_lora_rank=32,
                   qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, num_experts_per_tok=2) | FEW,
        {"small": llama_like(1024, 2816, 8, 16, 16, 32000, moe_intermediate_size=704, n_routed_experts=16,
                             q_lora_rank=512, kv_lora_rank=256),
         "narrow": llama_like(768, 2048, 10, 12, 12, 32000, moe_intermediate_size=512, n_routed_experts=16,
                              q_lora_rank=384, kv_lora_rank=192)},
        model="DeepseekV3ForCausalLM", n_group=4, topk_group=2, num_experts_per_tok=4, first_k_dense_replace=1,
        qk_rope_head_dim=32, qk_nope_head_dim=64, v_head_dim=64, length=(512, 1024, 2048), padded=PADDED,
    ),
    "gpt_oss": written(
        decoder, SMALL | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
        {"small": llama_like(1024, 1024, 8, 16, 4, 50304), "narrow": llama_like(768, 768, 12, 12, 4, 50304)},
        model="GptOssForCausalLM", head_dim=64, num_local_experts=16, num_experts_per_tok=4,
        length=(512, 1024, 2048), padded=PADDED,
    ),
    "lora": written(
        lora, SMALL | {"rank": 4, "everywhere": True},
        {"half_billion": llama_like(896, 4864, 24, 14, 2, 151936),
         "1_5b_half": llama_like(1536, 8960, 10, 12, 2, 151936)},
        rank=(8, 16, 64), everywhere=(False, True), tie_word_embeddings=True, **DECODER,
    ),
    "bert": written(
        encoder, SMALL_TEXT,
        {"base_masked": bert_like(768, 12, 12, 30522), "large_masked": bert_like(1024, 24, 16, 30522),
         "base_classes": bert_like(768, 12, 12, 30522, head="SequenceClassification"),
         "large_classes": bert_like(1024, 24, 16, 30522, head="SequenceClassification"),
         "base_words": bert_like(768, 12, 12, 28996, head="TokenClassification"),
         "multilingual_words": bert_like(768, 12, 12, 119547, head="TokenClassification")},
        model="Bert", length=(128, 256, 384, 512), padded=(False, True),
    ),
    "distilbert": written(
        encoder, {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "vocab": 500} | FEW,
        {"base_classes": {"head": "SequenceClassification"}, "base_words": {"head": "TokenClassification"},
         "base_masked": {"head": "MaskedLM"}, "multilingual": {"head": "SequenceClassification", "vocab": 119547}},
        model="DistilBert", vocab=30522, length=(128, 256, 512), padded=(False, True),
    ),
    "roberta": written(
        encoder, SMALL_TEXT | {"max_position_embeddings": 40},
        {"base_masked": bert_like(768, 12, 12, 50265), "large_masked": bert_like(1024, 24, 16, 50265),
         "base_classes": bert_like(768, 12, 12, 50265, head="SequenceClassification"),
         "large_classes": bert_like(1024, 24, 16, 50265, head="SequenceClassification")},
        model="Roberta", max_position_embeddings=514, type_vocab_size=1, length=(128, 256, 384, 512),
        padded=(False, True),
    ),
    "modernbert": written(
        encoder, SMALL_TEXT | {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2},
        {"base": bert_like(768, 22, 12, 50368) | {"intermediate_size": 1152},
         "large": bert_like(1024, 28, 16, 50368) | {"intermediate_size": 2624},
         "base_classes": bert_like(768, 22, 12, 50368, head="SequenceClassification") | {"intermediate_size": 1152}},
        model="ModernBert", length=(256, 512, 1024, 2048), padded=(False, True),
    ),
    "deberta_v3": written(
        encoder, SMALL_TEXT | {"max_position_embeddings": 64, "position_buckets": 16},
        {"small": bert_like(768, 6, 12, 128100), "base": bert_like(768, 12, 12, 128100),
         "large": bert_like(1024, 24, 16, 128100)},
        model="DebertaV2", head="SequenceClassification", relative_attention=True, position_buckets=256,
        norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False,
        type_vocab_size=0, length=(128, 256, 384, 512), padded=(False, True),
    ),
    "sentences": written(
        sentences, SMALL_TEXT,
        {"mini_6": bert_like(384, 6, 12, 30522), "mini_12": bert_like(384, 12, 12, 30522),
         "base": bert_like(768, 12, 12, 30522), "large": bert_like(1024, 24, 16, 30522)},
        model="BertModel", length=(64, 128, 256, 512), padded=(False, True),
    ),
    "t5": written(
        both,
        {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16, "vocab": 500, "wanted": 16} | FEW,
        {"small": {}, "base": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
         "flan_base": {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12, "tie_word_embeddings": False,
                       "feed_forward_proj": "gated-gelu"}},
        model="T5ForConditionalGeneration", vocab=32128, decoder_start_token_id=0, length=(256, 512, 1024),
        wanted=(64, 128), padded=(False, True),
    ),
    "bart": written(
        both, SMALL_PAIR, {"base": bart_like(768, 6, 12, 3072, 50265), "large": bart_like(1024, 12, 16, 4096, 50265)},
        model="BartForConditionalGeneration", length=(512, 1024), wanted=(64, 128, 142), padded=(False, True),
    ),
    "marian": written(
        both, SMALL_PAIR | {"pad_token_id": 0, "decoder_start_token_id": 0},
        {"opus": bart_like(512, 6, 8, 2048, 58101),
         "opus_big": bart_like(1024, 6, 16, 4096, 58101)},
        model="MarianMTModel", activation_function="swish", length=(64, 128), wanted=(64, 128), padded=(False, True),
        scale_embedding=True, max_position_embeddings=512, eos_token_id=0,
    ),
}  # fmt: skip
