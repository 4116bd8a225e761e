"""transformers' models of texts that stood last in the order of usual_families.py: decoders and discriminators.

In: sizes as published, or those widths with fewer layers where all would be too many. Out: `TEXTS`, by the names that
usual_families.py has, in the style of zoo/libraries/usual_texts.py.
"""

from __future__ import annotations

from zoo.libraries import Written
from zoo.libraries.usual_texts import (
    DECODER,
    FEW,
    SMALL,
    SMALL_TEXT,
    TIED,
    bert_like,
    decoder,
    encoder,
    llama_like,
    written,
)

TEXTS: dict[str, Written] = {
    "electra": written(
        encoder, SMALL_TEXT | {"embedding_size": 32},
        {"small_classes": bert_like(256, 12, 4, 30522, embedding_size=128, head="SequenceClassification"),
         "base_classes": bert_like(768, 12, 12, 30522, embedding_size=768, head="SequenceClassification"),
         "large_classes": bert_like(1024, 24, 16, 30522, embedding_size=1024, head="SequenceClassification"),
         "base_words": bert_like(768, 12, 12, 30522, embedding_size=768, head="TokenClassification"),
         "small_found": bert_like(256, 12, 4, 30522, embedding_size=128, head="PreTraining")},
        model="Electra", length=(128, 256, 512), padded=(False, True),
    ),
    "gemma2": written(
        decoder, SMALL | {"head_dim": 16},
        {"2b_fifth": llama_like(2304, 9216, 5, 8, 4, 256000), "narrow": llama_like(1152, 4608, 10, 4, 2, 256000)},
        # Its authors say that it should be trained with scores written out; what is not told takes torch's attention.
        model="Gemma2ForCausalLM", head_dim=256, attn_implementation=("eager", "sdpa"), **DECODER,
    ),
    "smollm3": written(
        decoder, SMALL | {"pad_token_id": 0},
        {"3b_ninth": llama_like(2048, 11008, 4, 16, 4, 128256, **TIED),
         "3b_sixth": llama_like(2048, 11008, 6, 16, 4, 128256, **TIED),
         "narrow": llama_like(1024, 4096, 16, 16, 4, 128256, **TIED)},
        model="SmolLM3ForCausalLM", **DECODER,
    ),
    "falcon": written(
        decoder, {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab": 500} | FEW,
        {"rw_1b_quarter": {"hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 32, "alibi": True,
                           "multi_query": False, "parallel_attn": False, "bias": True, "vocab": 50304},
         "7b_sixteenth": {"hidden_size": 4544, "num_hidden_layers": 2, "num_attention_heads": 71},
         "narrow": {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "num_kv_heads": 4,
                    "new_decoder_architecture": True}},
        model="FalconForCausalLM", vocab=65024, **DECODER,
    ),
}  # fmt: skip
