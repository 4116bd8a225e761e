"""Draws the survey: which architectures of transformers are trained how is left to a seed, with no GPU.

    python benchmarks/survey_draw.py --part development --count 40 --predicted PREDICTIONS    # the first draw
    python benchmarks/survey_draw.py --part blind --count 25 --predicted PREDICTIONS
    python benchmarks/survey_draw.py --part further --count 10 --predicted PREDICTIONS        # the second
    python benchmarks/survey_draw.py --part fresh --count 26 --predicted PREDICTIONS
    python benchmarks/survey_draw.py --part third --count 6 --predicted PREDICTIONS           # the third
    python benchmarks/survey_draw.py --part unseen --count 26 --predicted PREDICTIONS
    python benchmarks/survey_draw.py --part last --count 24 --predicted PREDICTIONS           # the fourth

The model types of transformers' auto mappings stand in an order that the seed gives; those that other sets of this
folder, or an earlier draw, have are left out. Of eight in a row five are for development, three are blind; of eighteen
in the second draw five are to develop further with, thirteen are blind again; of fourteen in the third three and
eleven. Few types were left for the third, so it also tries those again that earlier draws had to leave out, with
another way to train them, and then models without a head and those of images and texts. The fourth has tasks that no
draw had before it, and no part to develop with; types that nothing here has trained stand first in it. For each type
the seed draws precision, optimizer, padding, attention, checkpointing, clipping, layers, length, and how long the GPU
is to be busy. Then everything is mechanical: layers are halved until the model has at most `MOST_PARAMETERS`,
vocabulary and experts are cut, one step is trained small on the CPU, and the batch is scaled by what is predicted. What
transformers itself cannot train on a CPU so, or what cannot be traced, is a line with the reason ("skipped") in
results/survey_drawn.jsonl, the others are lines that survey.py makes cases of. Types that stand in the file are not
drawn again, so the script can be stopped and go on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import re
import time
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
import transformers as hf
from transformers.models.auto import configuration_auto, modeling_auto

import forks
from loop import training_step
from second_predict import predict_case, summary
from zoo.survey.tasks import SOUND_INPUTS
from zoo.survey.types import DRAWN, LABELS, LAYER_KEYS, Drawn, Part, Task, case_of, inner_keys

MAPPINGS: dict[Task, tuple[str, int]] = {
    "causal": ("CAUSAL_LM", 10),
    "masked": ("MASKED_LM", 6),
    "seq2seq": ("SEQ_TO_SEQ_CAUSAL_LM", 4),
    "image": ("IMAGE_CLASSIFICATION", 6),
    "audio": ("AUDIO_CLASSIFICATION", 2),
    "speech": ("SPEECH_SEQ_2_SEQ", 1),
    "video": ("VIDEO_CLASSIFICATION", 1),
    "sequence": ("SEQUENCE_CLASSIFICATION", 2),
}
"""The mapping of each task, and how often a type of it is drawn."""
WIDER: dict[Task, tuple[str, int]] = {"features": ("IMAGE", 2), "contrast": ("ZERO_SHOT_IMAGE_CLASSIFICATION", 1)}
"""Models without a head, and those of images and texts: for a draw for which few types are left."""
LATER: dict[Task, tuple[str, int]] = {
    "bare": ("", 5),
    "boxes": ("OBJECT_DETECTION", 4),
    "titles": ("IMAGE_TEXT_TO_TEXT", 4),
    "depths": ("DEPTH_ESTIMATION", 3),
    "backbone": ("BACKBONE", 3),
    "ctc": ("CTC", 2),
    "tokens": ("TOKEN_CLASSIFICATION", 2),
    "answers": ("QUESTION_ANSWERING", 2),
    "segments": ("SEMANTIC_SEGMENTATION", 2),
    "series": ("TIME_SERIES_REGRESSION", 1),
}
"""The fourth draw's; "bare" is a model of any kind without a head."""
PRECISIONS = {"amp": 35, "bf16": 35, "fp32": 10, "tf32": 10, "fp16amp": 10}
OPTIMIZERS = {"adamw": 60, "fused": 20, "momentum": 15, "adafactor": 5}
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
RANDOM_DEPTH_KEYS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "activation_dropout_layer")
MOST_PARAMETERS, MOST_TOKENS, MOST_EXPERTS, MOST_VOCABULARY = 900_000_000, 32768, 16, 50_000
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
LENGTHS = (128, 256, 384, 512, 512, 1024, 1024, 2048, 300, 1000)
WAVES = (80_000, 120_000, 160_000)
USUAL_SIDES = {"boxes": 512}
"""Of images whose size the configuration does not have; 224 for other tasks."""
SHORTEST_MS, LONGEST_MS, LARGEST_BYTES = 15, 180, 34 * 2**30
LIMIT_S, SLOWEST_S = 150, 20
TRIES = 4


@dataclass(frozen=True)
class Draw:
    """Which types stand in one seed's order, and who of a row is in which part."""

    seed: int
    row: int
    open: tuple[Part, int]
    """Whose measurements may be looked at, and how many of a row they are."""
    blind: Part
    wide: bool = False
    """Whether types that earlier draws left out stand in it, too, and after all of these the `WIDER` tasks'."""
    later: bool = False
    """Whether it is of the `LATER` tasks."""

    @property
    def parts(self) -> tuple[Part, Part]:
        return self.open[0], self.blind


DRAWS = (
    Draw(20261116, 8, ("development", 5), "blind"),
    Draw(20261117, 18, ("further", 5), "fresh"),
    Draw(20261118, 14, ("third", 3), "unseen", wide=True),
    Draw(20261119, 1, ("last", 0), "last", wide=True, later=True),
)


class Skipped(Exception):
    """Why a type is not in the survey."""


def order(draw: Draw, seen: set[str]) -> Iterator[tuple[str, Task, Part]]:
    """Every other type once, with the task that it is drawn for; of later tasks the seen ones, too, at the end."""
    if draw.later:
        types = shuffled(random.Random(draw.seed), {task: (names_of(m), w) for task, (m, w) in LATER.items()})
        first: dict[str, Task] = {}
        for name, task in types:
            first.setdefault(name, task)
        yield from ((name, first[name], draw.blind) for name in sorted(first, key=lambda name: name in seen))
        return
    mappings = {task: names_of(mapping) for task, (mapping, _) in MAPPINGS.items()}
    for task in ("causal", "sequence"):  # encoders and seq2seq models appear there too
        others = {name for other in MAPPINGS if other != task for name in mappings[other] if other != "sequence"}
        mappings[task] = {name: model for name, model in mappings[task].items() if name not in others}
    chance = random.Random(draw.seed)
    types = shuffled(chance, {task: (mappings[task], weight) for task, (_, weight) in MAPPINGS.items()})
    if draw.wide:
        types = itertools.chain(types, shuffled(chance, {task: (names_of(m), w) for task, (m, w) in WIDER.items()}))
    seen, number = set(seen), 0
    for name, task in types:
        if name not in seen:
            seen.add(name)
            yield name, task, draw.open[0] if number % draw.row < draw.open[1] else draw.blind
            number += 1


def shuffled(chance: random.Random, tasks: dict[Task, tuple[Collection[str], int]]) -> Iterator[tuple[str, Task]]:
    """Every type of every task, tasks with more weight sooner."""
    waiting = {task: chance.sample(sorted(names), len(names)) for task, (names, _) in tasks.items()}
    while any(waiting.values()):
        task = chance.choices(list(tasks), [weight for _, weight in tasks.values()])[0]
        if waiting[task]:
            yield waiting[task].pop(), task


def names_of(mapping: str) -> dict[str, Any]:
    return dict(getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES" if mapping else "MODEL_MAPPING_NAMES"))


def known_types() -> set[str]:
    """Those whose configurations the other sets name."""
    texts = [path.read_text() for path in Path(__file__).parent.glob("zoo_*.py")]
    classes = {name for text in texts for name in re.findall(r"hf\.(\w+Config)\b", text)}
    return {kind for kind, name in configuration_auto.CONFIG_MAPPING_NAMES.items() if name in classes}


def draw_type(seed: int, model_type: str, task: Task, part: Part) -> tuple[Drawn, float, bool]:
    """A first batch of it, for how many milliseconds the GPU is to be busy, and whether it is to wait for the CPU."""
    chance = random.Random(f"{seed} {model_type}")
    precision = chance.choices(list(PRECISIONS), list(PRECISIONS.values()))[0]
    optimizer = chance.choices(list(OPTIMIZERS), list(OPTIMIZERS.values()))[0]
    padded, eager, checkpointed, clipped = (chance.random() < share for share in (0.4, 0.12, 0.2, 0.15))
    layers, length, waves = chance.choice((4, 6, 8, 12, 12, 16, 24)), chance.choice(LENGTHS), chance.choice(WAVES)
    target_ms, waits = math.exp(chance.uniform(math.log(25), math.log(120))), chance.random() < 1 / 3
    name = names_of((MAPPINGS | WIDER | LATER)[task][0])[model_type]
    model: Any = getattr(hf, name if isinstance(name, str) else name[0])
    if not hasattr(model, "config_class"):
        raise Skipped("needs a package that is not installed")
    default = model.config_class()
    own = default.to_dict()
    if task in ("causal", "masked", "seq2seq", "sequence") and "vocab_size" not in own:
        raise Skipped("put together from other models, which its configuration names")
    config = changes(own, task, layers) | ({"attn_implementation": "eager"} if eager else {})
    sees = task == "titles" or (task in LATER and model.main_input_name == "pixel_values")
    if task in ("image", "video", "features", "contrast") or sees:
        size = (own.get("vision_config") or own.get("backbone_config") or own).get("image_size")
        length = size if isinstance(size, int) else USUAL_SIDES.get(task, 224)
    elif task in ("audio", "speech") or (task in LATER and model.main_input_name in SOUND_INPUTS):
        length = waves
    else:
        length = min(length, (own.get("max_position_embeddings") or own.get("n_positions") or length) // 4 * 4)
        length -= 2 if length == own.get("max_position_embeddings") else 0  # some count from the padding's index
    config = few_enough(model, config)
    return (
        Drawn(
            type=model_type,
            name="_".join([model_type.replace("-", "_"), *([task] if task in LATER else []), precision]),
            part=part,
            model=model.__name__,
            task=task,
            config=config,
            precision=precision,  # type: ignore[arg-type]
            optimizer=optimizer,
            padded=padded and task in ("causal", "masked"),
            checkpointed=checkpointed and model.supports_gradient_checkpointing,
            clip_grad_norm=1.0 if clipped else None,
            rows=8,
            length=length,
            seen=image_tokens(model, config, length) if task == "titles" else 0,
        ),
        target_ms,
        waits,
    )


def changes(own: dict[str, Any], task: Task, layers: int) -> dict[str, Any]:
    """What the configuration is given: few layers, tokens and experts, and nothing that runs or not by chance."""
    found: dict[str, Any] = {key: min(layers, own[key]) for key in LAYER_KEYS if isinstance(own.get(key), int)}
    found |= {key: min(own[key], MOST_EXPERTS) for key in EXPERT_KEYS if isinstance(own.get(key), int)}
    found |= {key: 0.0 for key in RANDOM_DEPTH_KEYS if key in own}
    found |= {key: 0.0 for key in ("mask_time_prob", "mask_feature_prob") if key in own}
    if "apply_spec_augment" in own:
        found["apply_spec_augment"] = False
    if isinstance(own.get("vocab_size"), int):
        found["vocab_size"] = min(own["vocab_size"], MOST_VOCABULARY)
        for key, value in own.items():
            if key.endswith("_token_id") and isinstance(value, int) and not 0 <= value < found["vocab_size"]:
                found[key] = 1
        if task in ("seq2seq", "speech", "sequence"):
            found |= {key: 0 for key in ("pad_token_id", "decoder_start_token_id") if own.get(key) is None}
    if task in LABELS:
        found["num_labels"] = LABELS[task]
    if task in LATER:
        parts = {key: changes(own[key] | {"vocab_size": None}, "bare", layers) for key in inner_keys(own)}
        found |= {key: kept(own[key]) | part for key, part in parts.items() if part}
        if own.get("backbone_config", {}).get("model_type") == "timm_backbone":  # that package is not installed
            found["backbone_config"] = {"model_type": "resnet", "out_indices": own["backbone_config"]["out_indices"]}
    return found


def kept(part: Mapping[str, Any]) -> dict[str, Any]:
    """What the whole gives to a part, which is another than the part's own default."""
    default = configuration_auto.CONFIG_MAPPING[part["model_type"]]().to_dict()
    numbers = {key: value for key, value in part.items() if isinstance(value, int | float)}
    differs = {key: value for key, value in numbers.items() if value != default.get(key)}
    return {"model_type": part["model_type"], **differs}


def few_enough(model: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Layers are halved until the model is small enough."""
    while True:
        with torch.device("meta"):
            count = sum(weight.numel() for weight in model(model.config_class(**config)).parameters())
        if count <= MOST_PARAMETERS:
            return config
        if most_layers(config) < 4:
            raise Skipped(f"{count / 1e9:.1f} billion parameters with as few layers as it can have")
        config = halved(config)


def most_layers(config: Mapping[str, Any]) -> int:
    own = [config[key] for key in LAYER_KEYS if key in config]
    return max([*own, *(most_layers(config[key]) for key in inner_keys(config))], default=0)


def halved(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = {key: max(1, config[key] // 2) for key in LAYER_KEYS if key in config}
    return {**config, **layers, **{key: halved(config[key]) for key in inner_keys(config)}}


def image_tokens(model: Any, config: dict[str, Any], side: int) -> int:
    """How many tokens of a text stand for an image of that side."""
    with torch.device("meta"):
        found = model(model.config_class(**config)).get_image_features(torch.randn(1, 3, side, side))
        tokens = found if isinstance(found, torch.Tensor) else found.pooler_output
    return int(tokens[0].shape[-2])


def fitting_rows(drawn: Drawn, target_ms: float, waits: bool) -> tuple[Drawn, dict[str, Any]]:
    """The batch by which the GPU is busy as long as was drawn, or half as long as the CPU needs, and the prediction."""
    variant = "every layer" if drawn.checkpointed else "plain"
    tried: dict[int, dict[str, Any]] = {}
    while True:
        begin_s = time.process_time()
        tried[drawn.rows] = row = predict_case(case_of(drawn), variant)
        if drawn.task in LATER and (lasted_s := time.process_time() - begin_s) > SLOWEST_S:
            raise Skipped(f"takes {lasted_s:.0f} s to predict")
        goal_ms = min(target_ms, 0.6 * row["host_ms"]) if waits else target_ms
        room = min(goal_ms / row["busy_ms"], LONGEST_MS / row["step_ms"], LARGEST_BYTES / row["classic"][0])
        wanted = min(drawn.rows * room, MOST_TOKENS / drawn.length if drawn.task in ("causal", "masked") else math.inf)
        rows = max((rows for rows in ROWS if rows <= wanted), default=1)
        if rows in tried or 0.8 < room < 1.25 or len(tried) == TRIES:
            break
        drawn = replace(drawn, rows=rows)
    if not (SHORTEST_MS <= row["step_ms"] <= LONGEST_MS and row["classic"][1] <= LARGEST_BYTES):
        raise Skipped(
            f"a batch of {drawn.rows} is predicted to take {row['step_ms']:.0f} ms and"
            f" {row['classic'][1] / 2**30:.1f} GiB"
        )
    return drawn, row


def consider(seed: int, job: tuple[str, Task, Part]) -> dict[str, Any]:
    """One type: {"drawn", "predicted"} or {"skipped"}; runs in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    where = "transformers"
    try:
        drawn, target_ms, waits = draw_type(seed, *job)
        small = replace(drawn, precision="fp32") if drawn.task in LATER else drawn  # a CPU's other types are slow
        training_step(case_of(small, tiny=True), "cpu", drawn.checkpointed)()
        where = "trace"
        drawn, predicted = fitting_rows(drawn, target_ms, waits)
    except Skipped as reason:
        return {"skipped": str(reason)}
    except Exception as error:
        traceback.print_exc(limit=-5)
        text = re.sub(r"\S*/site-packages/", "", str(error))
        return {"skipped": f"{where}: {type(error).__name__}: {text}"[:400]}
    return {"drawn": asdict(drawn), "predicted": predicted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=get_args(Part), required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--predicted", type=Path, required=True, help="where predictions are appended")
    args = parser.parse_args()
    lines = [json.loads(line) for line in DRAWN.read_text().splitlines()] if DRAWN.exists() else []
    number = next(number for number, draw in enumerate(DRAWS) if args.part in draw.parts)
    draw = DRAWS[number]
    parts = {part for other in DRAWS[:number] for part in other.parts}
    earlier = {line["type"] for line in lines if line["part"] in parts and not ("skipped" in line and draw.wide)}
    done = {line["type"] for line in lines if line["part"] in draw.parts}
    count = args.count - sum(line["part"] == args.part and "skipped" not in line for line in lines)
    jobs = [job for job in order(draw, known_types() | earlier) if job[0] not in done and job[2] == args.part]
    for (model_type, _, part), found in forks.run(jobs, partial(consider, draw.seed), width=1, timeout_s=LIMIT_S):
        if "drawn" in found:
            append(DRAWN, found["drawn"])
            append(args.predicted, found["predicted"])
            print(summary(found["predicted"]), flush=True)
            count -= 1
        else:
            reason = found.get("skipped") or f"crash: {found['error']}"
            append(DRAWN, {"type": model_type, "part": part, "skipped": reason})
            print(f"{model_type}: {reason}", flush=True)
        if count <= 0:
            return


def append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
