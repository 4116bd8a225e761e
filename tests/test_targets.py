"""From a target's name to a Step, and what each kind of wrong target is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trainfit
from trainfit import Step
from trainfit.errors import BadTarget, UnknownPreset, UsageError
from trainfit.targets import resolve

GOOD = """
import torch, trainfit
from neighbour import width

def make_step():
    return trainfit.Step(model=torch.nn.Linear(width, 1), batch=(torch.ones(2, width),), loss=torch.sum)

def needs_argument(size):
    return make_step()

def sized(batch, seq=3):
    return trainfit.Step(model=torch.nn.Linear(seq, 1), batch=(torch.ones(batch, seq),), loss=torch.sum)

def gives_model():
    return torch.nn.Linear(width, 1)

def raises():
    raise ZeroDivisionError("no data")

NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with train.py and its neighbour, which leaves no trace in the import system."""
    (tmp_path / "train.py").write_text(GOOD)
    (tmp_path / "neighbour.py").write_text("width = 4\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def refusal(target: str, **options: int) -> BadTarget:
    with pytest.raises(BadTarget) as caught:
        resolve(target, **options)
    assert caught.value.exit_code == 2
    return caught.value


def test_a_preset_takes_batch_and_seq() -> None:
    assert resolve("llama3-8b", batch=2, seq=128).batch["tokens"].shape == (2, 128)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("target", ["train.py:make_step", "./train.py:make_step", "train:make_step"])
def test_a_function_gives_its_step_and_may_import_its_neighbours(target: str) -> None:
    step = resolve(target)
    assert isinstance(step, Step)
    assert isinstance(step.model, torch.nn.Linear)
    assert step.model.in_features == 4


def test_a_function_in_a_package_is_found_from_the_current_folder(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "steps.py").write_text("from train import make_step\n")
    assert isinstance(resolve("package.steps:make_step"), Step)


@pytest.mark.usefixtures("folder")
def test_batch_and_seq_are_passed_to_a_function_that_takes_them() -> None:
    assert resolve("train.py:sized", batch=2).batch[0].shape == (2, 3)
    assert resolve("train.py:sized", batch=2, seq=5).batch[0].shape == (2, 5)


@pytest.mark.usefixtures("folder")
def test_batch_and_seq_are_refused_for_a_function_that_does_not_take_them() -> None:
    for name in ("batch", "seq"):
        with pytest.raises(
            UsageError, match=f"train.py:make_step makes its own batch: it has no parameter called '{name}'"
        ):
            resolve("train.py:make_step", **{name: 2})


@pytest.mark.usefixtures("folder")
def test_a_missing_file_is_named() -> None:
    assert refusal("nowhere/train.py:make_step").message == "there is no file nowhere/train.py"


@pytest.mark.usefixtures("folder")
def test_a_missing_module_is_named() -> None:
    assert refusal("nowhere.train:make_step").message == "there is no module nowhere.train"
    assert refusal("train.inner:make_step").message == "there is no module train.inner"


def test_a_module_that_misses_another_one_names_that_one(folder: Path) -> None:
    (folder / "broken.py").write_text("import not_installed\n")
    expected = "raised ModuleNotFoundError: No module named 'not_installed'"
    assert refusal("broken:make_step").message == f"importing broken {expected}"
    assert refusal("broken.py:make_step").message == f"importing broken.py {expected}"


@pytest.mark.usefixtures("folder")
def test_a_missing_function_brings_the_nearest_one() -> None:
    error = refusal("train.py:make_stepp")
    assert error.message == "train.py has no function 'make_stepp'"
    assert error.hint == "did you mean make_step?"
    assert refusal("train.py:zzz").hint == "define it there, to return a trainfit.Step"


@pytest.mark.usefixtures("folder")
def test_a_file_without_a_function_is_told_the_form() -> None:
    error = refusal("train.py")
    assert error.message == "train.py names no function"
    assert error.hint.startswith("write train.py:FUNCTION")


@pytest.mark.usefixtures("folder")
def test_what_is_not_a_function_is_refused() -> None:
    assert refusal("train.py:NUMBER").message == "'NUMBER' in train.py is a int, not a function"


@pytest.mark.usefixtures("folder")
def test_a_function_that_returns_something_else_is_refused() -> None:
    error = refusal("train.py:gives_model")
    assert error.message == "train.py:gives_model returned a Linear, not a trainfit.Step"
    assert "return trainfit.Step" in error.hint


@pytest.mark.usefixtures("folder")
def test_a_function_that_raises_is_quoted_and_kept_as_the_cause() -> None:
    error = refusal("train.py:raises")
    assert error.message == "calling train.py:raises raised ZeroDivisionError: no data"
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "missing 1 required positional argument: 'size'" in refusal("train.py:needs_argument").message


def test_a_file_that_exits_or_cannot_be_parsed_is_quoted(folder: Path) -> None:
    (folder / "script.py").write_text("import sys\nsys.exit(7)\n")
    (folder / "typo.py").write_text("def make_step(:\n")
    assert refusal("script.py:f").message == "importing script.py raised SystemExit: 7"
    assert "importing typo.py raised SyntaxError" in refusal("typo.py:f").message


def test_any_other_word_is_taken_for_a_preset() -> None:
    with pytest.raises(UnknownPreset, match="no preset is called 'gpt3'"):
        resolve("gpt3")


# ---- transformers configs ------------------------------------------------------------------------------------------

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 97}
T5 = {"model_type": "t5", "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8, "vocab_size": 97}
CASES = {
    "llama": ({"model_type": "llama", **TINY}, "LlamaForCausalLM"),
    "gpt2": ({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 97}, "GPT2LMHeadModel"),
    "bert without architectures": ({"model_type": "bert", **TINY}, "BertForMaskedLM"),
    "bert as decoder": ({"model_type": "bert", "architectures": ["BertLMHeadModel"], **TINY}, "BertLMHeadModel"),
    "t5": ({"architectures": ["T5ForConditionalGeneration"], **T5}, "T5ForConditionalGeneration"),
}


def config_target(folder: Path, config: dict[str, object]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return f"hf:{folder / 'config.json'}"


@pytest.mark.parametrize("case", CASES)
def test_a_config_gives_the_language_model_it_is_for(tmp_path: Path, case: str) -> None:
    config, class_name = CASES[case]
    step = resolve(config_target(tmp_path, config), batch=3, seq=16)
    with torch.device("meta"):
        model = step.model()
    assert type(model).__name__ == class_name
    assert model.training
    assert model.config.use_cache is False
    assert {name: tuple(tensor.shape) for name, tensor in step.batch.items()} == {
        "input_ids": (3, 16),
        "labels": (3, 16),
    }
    assert step.loss is None


@pytest.mark.parametrize(
    ("size", "shape"), [({"image_size": 32}, (2, 3, 32, 32)), ({"image_size": [48, 64]}, (2, 3, 48, 64))]
)
def test_a_vision_config_gives_an_image_classifier(
    tmp_path: Path, size: dict[str, object], shape: tuple[int, ...]
) -> None:
    target = config_target(tmp_path, {"model_type": "vit", **TINY, **size})
    step = resolve(target, batch=2)
    with torch.device("meta"):
        model = step.model()
    assert type(model).__name__ == "ViTForImageClassification"
    assert step.batch["pixel_values"].shape == shape
    assert step.batch["labels"].shape == (2,)
    with pytest.raises(UsageError, match="has images as input"):
        resolve(target, seq=16)


@pytest.mark.parametrize("case", CASES)
def test_a_config_can_be_estimated(tmp_path: Path, case: str) -> None:
    step = resolve(config_target(tmp_path, CASES[case][0]), batch=2, seq=16)
    with torch.device("meta"):
        parameters = list(step.model().parameters())
    estimate = trainfit.estimate(step, "a100-40gb", allocator="expandable")
    assert estimate.num_parameters == sum(parameter.numel() for parameter in parameters)
    parameter_bytes = sum(-(-parameter.nbytes // 512) * 512 for parameter in parameters)
    assert estimate.breakdown_bytes["parameters"] == parameter_bytes
    assert estimate.breakdown_bytes["optimizer"] == 2 * parameter_bytes


def test_a_vision_config_can_be_estimated(tmp_path: Path) -> None:
    # In a process of its own: weights are drawn again until they are in range, which must not go on for ever.
    target = config_target(tmp_path, {"model_type": "vit", **TINY, "image_size": 32})
    command = [sys.executable, "-m", "trainfit", "estimate", target, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(result.stdout)["num_parameters"] > 0


VISION = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
GEMMA = {**TINY, "num_hidden_layers": 1, "head_dim": 8, "num_key_value_heads": 2}
AUDIO = {**VISION, "head_dim": 8, "num_mel_bins": 16}
PIXEL_LABELS = {"labels": (2,)}
TEXT = {"input_ids": (2, 16), "labels": (2, 16)}
NEEDY = {
    # model: its config, what it is given for a batch of 2 (and a seq of 16, where it reads text)
    "siglip2": (
        {"vision_config": {**VISION, "num_patches": 9, "patch_size": 4}},
        {"pixel_values": (2, 9, 48), "pixel_attention_mask": (2, 9), "spatial_shapes": (2, 2), **PIXEL_LABELS},
    ),
    "siglip": (
        {"vision_config": {**VISION, "image_size": 32, "patch_size": 16}},
        {"pixel_values": (2, 3, 32, 32), **PIXEL_LABELS},
    ),
    "pp_lcnet": ({"scale": 0.25, "class_expand": 32}, {"pixel_values": (2, 3, 224, 224)}),
    "imagegpt": ({"n_embd": 32, "n_layer": 1, "n_head": 4}, {"input_ids": (2, 16), **PIXEL_LABELS}),
    "git": (
        {**TINY, "vision_config": {**VISION, "image_size": 32, "patch_size": 16}},
        {**TEXT, "pixel_values": (2, 3, 32, 32)},
    ),
    "tapas": (TINY, TEXT),
    "t5gemma2": (
        {
            "encoder": {"text_config": GEMMA, "vision_config": {**VISION, "image_size": 32}},
            "decoder": GEMMA,
            "eoi_token_index": 0,
            "image_token_index": 1,
        },
        TEXT,
    ),
    "voxtral_realtime": (
        {"text_config": {**GEMMA, "model_type": "voxtral_realtime_text"}, "audio_config": AUDIO},
        {**TEXT, "input_features": (2, 16, 128)},
    ),
}


@pytest.mark.parametrize("model", NEEDY)
def test_a_model_gets_the_inputs_it_cannot_do_without(tmp_path: Path, model: str) -> None:
    config, shapes = NEEDY[model]
    seq = 16 if "input_ids" in shapes else None
    step = resolve(config_target(tmp_path, {"model_type": model, **config}), batch=2, seq=seq)
    assert {name: tuple(tensor.shape) for name, tensor in step.batch.items()} == shapes
    assert trainfit.estimate(step, "h200").breakdown_bytes["parameters"] > 0


def test_images_are_cut_into_a_square_of_patches(tmp_path: Path) -> None:
    step = resolve(config_target(tmp_path, {"model_type": "siglip2", **NEEDY["siglip2"][0]}), batch=2)
    assert step.batch["spatial_shapes"].tolist() == [[3, 3], [3, 3]]


def test_text_has_no_special_tokens(tmp_path: Path) -> None:
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": [2, 4]}
    step = resolve(config_target(tmp_path, {"model_type": "llama", **TINY, **special}), batch=2, seq=3)
    assert step.batch["input_ids"].tolist() == [[3, 3, 3], [3, 3, 3]]


def test_a_config_without_image_size_gets_imagenet_s(tmp_path: Path) -> None:
    step = resolve(config_target(tmp_path, {"model_type": "resnet", "dtype": "bfloat16"}))
    assert step.batch["pixel_values"].shape == (1, 3, 224, 224)
    assert step.batch["pixel_values"].dtype == torch.bfloat16


@pytest.mark.parametrize(("dtype", "expected"), [({"dtype": "bfloat16"}, torch.bfloat16), ({}, torch.float32)])
def test_weights_have_the_config_s_dtype(tmp_path: Path, dtype: dict[str, str], expected: torch.dtype) -> None:
    step = resolve(config_target(tmp_path, {"model_type": "llama", **TINY, **dtype}))
    with torch.device("meta"):
        assert {parameter.dtype for parameter in step.model().parameters()} == {expected}
    assert step.autocast is None


def test_the_sequence_is_at_most_what_the_config_has_positions_for(tmp_path: Path) -> None:
    target = config_target(tmp_path, {"model_type": "llama", **TINY, "max_position_embeddings": 64})
    assert resolve(target).batch["input_ids"].shape == (1, 64)
    with pytest.raises(UsageError, match="has positions for 64 tokens, not for 65"):
        resolve(target, seq=65)
    assert resolve(config_target(tmp_path, {"model_type": "llama", **TINY, "max_position_embeddings": 9999})).batch[
        "input_ids"
    ].shape == (1, 2048)


def test_a_negative_number_of_positions_is_no_limit(tmp_path: Path) -> None:
    target = config_target(tmp_path, {"model_type": "xlnet", "d_model": 64, "n_layer": 1, "n_head": 4})
    assert resolve(target).batch["input_ids"].shape == (1, 2048)
    assert resolve(target, seq=4096).batch["input_ids"].shape == (1, 4096)


def test_a_config_that_is_missing_or_not_one_is_refused(tmp_path: Path) -> None:
    assert refusal("hf:nowhere/config.json").message == "there is no file nowhere/config.json"
    (tmp_path / "config.json").write_text("not json")
    assert "transformers cannot read" in refusal(f"hf:{tmp_path / 'config.json'}").message
    assert "transformers cannot read" in refusal(config_target(tmp_path, {"hidden_size": 4})).message


def test_a_model_without_a_known_objective_is_refused(tmp_path: Path) -> None:
    error = refusal(config_target(tmp_path, {"model_type": "wav2vec2"}))
    assert "is a wav2vec2 config, no causal, masked, seq2seq or image classification model" in error.message
    assert "file.py:function" in error.hint


def test_without_transformers_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    error = refusal(config_target(tmp_path, CASES["llama"][0]))
    assert (error.message, error.hint) == ("hf: targets need transformers", "pip install 'trainfit[hf]'")
