"""The presets: exact sizes, and the same numbers as other implementations of the same models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

import trainfit
from trainfit import presets
from trainfit.errors import UnknownPreset, UsageError
from trainfit.presets import bert, decoder, gpt2, vision

NUM_PARAMETERS = {
    "llama3-1b": 1_235_814_400,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "bert-large": 335_174_458,
    "vit-large": 304_326_632,
    "resnet50": 25_557_032,
}


def built(name: str) -> nn.Module:
    step = presets.build(name)
    assert not isinstance(step.model, nn.Module)
    with torch.device("meta"):
        return step.model()


def test_every_preset_has_an_expected_size_below() -> None:
    assert set(NUM_PARAMETERS) == set(presets.PRESETS)


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_the_number_of_parameters_is_the_published_one(name: str) -> None:
    assert sum(parameter.numel() for parameter in built(name).parameters()) == NUM_PARAMETERS[name]


def test_weights_and_autocast_are_as_each_model_is_usually_trained() -> None:
    def precision(name: str) -> tuple[Any, ...]:
        step = presets.build(name)
        return {parameter.dtype for parameter in built(name).parameters()}, step.autocast, step.grad_scaler

    assert precision("llama3-1b") == ({torch.bfloat16}, None, False)
    assert precision("mixtral-8x7b") == ({torch.bfloat16}, None, False)
    assert precision("gpt2") == ({torch.float32}, torch.bfloat16, False)
    assert precision("bert-large") == ({torch.float32}, torch.bfloat16, False)
    assert precision("vit-large") == ({torch.float32}, torch.bfloat16, False)
    assert precision("resnet50") == ({torch.float32}, torch.float16, True)


def test_batch_and_sequence_make_the_input_shapes_and_allocate_nothing() -> None:
    tokens = presets.build("llama3-8b", batch=3, seq=4096).batch["tokens"]
    assert (tokens.shape, tokens.dtype, tokens.device.type) == ((3, 4096), torch.int64, "meta")
    assert presets.build("llama3-8b").batch["targets"].shape == (1, 8192)
    assert presets.build("vit-large", batch=5).batch["images"].shape == (5, 3, 224, 224)
    assert presets.build("resnet50").batch["targets"].shape == (128,)


def test_an_unknown_preset_brings_the_nearest_name() -> None:
    with pytest.raises(UnknownPreset, match="no preset is called 'lama3-8b'") as caught:
        presets.build("lama3-8b")
    assert "did you mean llama3-8b" in caught.value.hint


def test_a_sequence_length_for_images_is_refused() -> None:
    with pytest.raises(UsageError, match="resnet50 has images as input") as caught:
        presets.build("resnet50", seq=128)
    assert caught.value.hint == "leave --seq out"


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(UsageError, match="gpt2 has position embeddings for 1024 tokens, not for 1025") as caught:
        presets.build("gpt2", seq=1025)
    assert caught.value.hint == "pass --seq 1024 or less"


# ---- The same numbers as transformers, on small shapes with the same weights ---------------------------------------


def copy_weights(ours: nn.Module, theirs: nn.Module, names: dict[str, str]) -> None:
    """Copy `theirs` into `ours`; `names` maps the start of our names to theirs, longest match first."""
    source = theirs.state_dict()
    for name, parameter in ours.state_dict().items():
        start = max((start for start in names if name.startswith(start)), key=len)
        value = source[names[start] + name.removeprefix(start)]
        # transformers' GPT-2 keeps its linear weights transposed.
        parameter.copy_(value.T if value.shape != parameter.shape else value)


def test_the_decoder_computes_what_llama_does() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=88,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    )
    theirs = transformers.LlamaForCausalLM(config)
    shape = decoder.Config(
        vocab_size=97, dim=32, num_layers=2, num_heads=4, num_kv_heads=2, mlp_dim=88, rope_theta=500_000.0
    )
    ours = decoder.Decoder(shape, seq=15, dtype=torch.float32)
    names = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    for layer in range(2):
        here, there = f"blocks.{layer}.", f"model.layers.{layer}."
        names |= {
            here + "attention_norm": there + "input_layernorm",
            here + "attention.": there + "self_attn.",
            here + "mlp_norm": there + "post_attention_layernorm",
            here + "mlp.": there + "mlp.",
        }
    copy_weights(ours, theirs, names)
    tokens = torch.randint(97, (2, 16))
    expected = theirs(input_ids=tokens, labels=tokens).loss
    # transformers shifts the labels itself; its last position has no next token, and attends to nothing later.
    torch.testing.assert_close(ours(tokens[:, :-1], tokens[:, 1:]), expected)


def test_gpt2_computes_what_transformers_gpt2_does() -> None:
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=97, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    )
    ours = gpt2.Gpt2(gpt2.Config(dim=32, num_layers=2, num_heads=4, vocab_size=97, max_seq=16))
    names = {
        "token_embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "norm": "transformer.ln_f",
        "head": "lm_head",
    }
    for layer in range(2):
        here, there = f"blocks.{layer}.", f"transformer.h.{layer}."
        names |= {
            here + "attention_norm": there + "ln_1",
            here + "attention.qkv_proj": there + "attn.c_attn",
            here + "attention.out_proj": there + "attn.c_proj",
            here + "mlp_norm": there + "ln_2",
            here + "mlp.up_proj": there + "mlp.c_fc",
            here + "mlp.down_proj": there + "mlp.c_proj",
        }
    # A square weight looks the same transposed: give the square ones their shape back by hand.
    copy_weights(ours, theirs, names)
    for mine, block in zip(ours.blocks, theirs.transformer.h, strict=True):
        mine.attention.out_proj.weight.data.copy_(block.attn.c_proj.weight.T)
    ours.eval()
    theirs.eval()
    tokens = torch.randint(97, (2, 16))
    expected = theirs(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(ours(tokens[:, :-1], tokens[:, 1:]), expected)


def test_bert_computes_what_transformers_bert_does(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    shape = {"VOCAB_SIZE": 97, "NUM_POSITIONS": 16, "DIM": 32, "NUM_LAYERS": 2, "NUM_HEADS": 4}
    for name, value in shape.items():
        monkeypatch.setattr(bert, name, value)
    config = transformers.BertConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=16,
    )
    theirs = transformers.BertForMaskedLM(config)
    ours = bert.Bert()
    names = {
        "embeddings.token": "bert.embeddings.word_embeddings",
        "embeddings.position": "bert.embeddings.position_embeddings",
        "embeddings.segment": "bert.embeddings.token_type_embeddings",
        "embeddings.norm": "bert.embeddings.LayerNorm",
        "head_proj": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "head": "cls.predictions.decoder",
    }
    for layer in range(2):
        here, there = f"blocks.{layer}.", f"bert.encoder.layer.{layer}."
        names |= {
            here + "q_proj": there + "attention.self.query",
            here + "k_proj": there + "attention.self.key",
            here + "v_proj": there + "attention.self.value",
            here + "out_proj": there + "attention.output.dense",
            here + "attention_norm": there + "attention.output.LayerNorm",
            here + "up_proj": there + "intermediate.dense",
            here + "down_proj": there + "output.dense",
            here + "mlp_norm": there + "output.LayerNorm",
        }
    copy_weights(ours, theirs, names)
    ours.eval()
    theirs.eval()
    tokens = torch.randint(97, (2, 16))
    labels = torch.where(torch.rand(2, 16) < 0.3, tokens, -100)
    torch.testing.assert_close(ours(tokens, labels), theirs(input_ids=tokens, labels=labels).loss)


def test_balanced_experts_compute_the_weighted_sum_of_the_chosen_mlps() -> None:
    torch.manual_seed(0)
    config = decoder.Config(
        vocab_size=1,
        dim=4,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        mlp_dim=8,
        rope_theta=1.0,
        num_experts=4,
        experts_per_token=2,
    )
    layer = decoder.Experts(config, torch.float32)
    # Token i is the i-th unit vector, and its scores favour the experts i and i + 1: two tokens for each expert.
    scores = torch.tensor([[3.0, 2.0, 0.0, 0.0], [0.0, 3.0, 2.0, 0.0], [0.0, 0.0, 3.0, 2.0], [2.0, 0.0, 0.0, 3.0]])
    layer.router.weight.data.copy_(scores.T)
    tokens = torch.eye(4)
    share = torch.sigmoid(torch.tensor(1.0))  # softmax over the two chosen scores, 3 and 2
    expected = torch.stack(
        [share * layer.experts[i](tokens[i]) + (1 - share) * layer.experts[(i + 1) % 4](tokens[i]) for i in range(4)]
    )
    torch.testing.assert_close(layer(tokens.view(2, 2, 4)), expected.view(2, 2, 4))


def test_experts_share_tokens_equally_also_when_they_do_not_divide() -> None:
    config = decoder.Config(
        vocab_size=1,
        dim=4,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        mlp_dim=8,
        rope_theta=1.0,
        num_experts=4,
        experts_per_token=2,
    )
    layer = decoder.Experts(config, torch.float32)
    seen: list[int] = []
    for expert in layer.experts:
        expert.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    assert layer(torch.randn(1, 5, 4)).shape == (1, 5, 4)
    assert seen == [3, 3, 2, 2]


def test_the_stages_of_resnet_halve_the_image() -> None:
    model = vision.ResNet((1, 1, 1, 1))
    shapes: list[tuple[int, ...]] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, inputs, output: shapes.append(tuple(output.shape)))
    loss = model(torch.randn(2, 3, 224, 224), torch.tensor([1, 2]))
    assert shapes == [(2, 256, 56, 56), (2, 512, 28, 28), (2, 1024, 14, 14), (2, 2048, 7, 7)]
    assert loss.shape == ()


def test_vit_sees_one_token_per_patch_and_the_class_token() -> None:
    model = vision.Vit(dim=32, num_layers=1, num_heads=4, patch=16)
    shapes: list[tuple[int, ...]] = []
    model.blocks[0].register_forward_hook(lambda _, inputs, output: shapes.append(tuple(output.shape)))
    loss = model(torch.randn(2, 3, 224, 224), torch.tensor([1, 2]))
    assert shapes == [(2, 197, 32)]
    assert loss.shape == ()


# ---- On the ghost GPU ----------------------------------------------------------------------------------------------

# AdamW keeps two more tensors of every parameter's size, SGD with momentum one.
STATE_PER_PARAMETER = {
    "llama3-1b": 2,
    "mixtral-8x7b": 2,
    "gpt2": 2,
    "bert-large": 2,
    "vit-large": 2,
    "resnet50": 1,
}


@pytest.mark.parametrize("name", STATE_PER_PARAMETER)
def test_a_preset_can_be_estimated_and_its_state_is_what_its_optimizer_keeps(name: str) -> None:
    seq = None if presets.PRESETS[name].seq is None else 128
    estimate = trainfit.estimate(presets.build(name, batch=2, seq=seq), "h200", allocator="expandable")
    # Expandable segments leave no slack but the rounding of each tensor to 512 bytes.
    parameter_bytes = sum(-(-parameter.nbytes // 512) * 512 for parameter in built(name).parameters())
    assert estimate.num_parameters == NUM_PARAMETERS[name]
    assert estimate.breakdown_bytes["parameters"] == parameter_bytes
    assert estimate.breakdown_bytes["optimizer"] == STATE_PER_PARAMETER[name] * parameter_bytes
