"""Draws nets of public libraries: which are trained, and how, is left to a seed, with no GPU.

    python benchmarks/libraries_draw.py --part open --predicted PREDICTIONS      # 24 to develop with
    python benchmarks/libraries_draw.py --part closed --predicted PREDICTIONS    # 44, predicted before measured
    python benchmarks/libraries_draw.py --part sealed --predicted PREDICTIONS    # 52 more, drawn later
    python benchmarks/libraries_draw.py --part unread --predicted PREDICTIONS    # 50 more, of other libraries too
    python benchmarks/libraries_draw.py --part last --predicted PREDICTIONS      # what was left of some of them
    python benchmarks/libraries_draw.py --part usual --predicted PREDICTIONS     # 44 that people train
    python benchmarks/libraries_draw.py --part usual_more --predicted PREDICTIONS    # 22 more of these
    python benchmarks/libraries_draw.py --part usual_last --predicted PREDICTIONS    # what was left of these
    python benchmarks/libraries_draw.py --part usual_again --predicted PREDICTIONS   # 26 of all, sized and trained anew
    python benchmarks/libraries_draw.py --list open                              # their names, for other scripts

A family is a module of timm or torchvision; where both have it, the seed says whose. Of other libraries the families
are the names below, written down before the seed put them in order. Every third family of a library's order is open,
the others are closed; sealed are the next closed ones, after those that were drawn, and unread the next after these
and all families of libraries that no earlier part had; last are the next of both. The usual
part has families of its own, listed in usual_families.py, and draws by the weights that stand there; theirs may have
been seen, but no earlier row may have the same peaks; usual_more goes on in the same order where usual stopped, and
usual_last where usual_more did, to its end. usual_again draws from all that are written, in another order and anew.
For each the part's seed draws the variant with 5 to 350 million
parameters (or one of the written sizes), precision, optimizer, memory format, checkpointing, clipping, and how long the
GPU is to be busy. Then all is mechanical: one step is trained small on the CPU, and the batch is scaled by what is
predicted. What cannot be trained so, or not be traced without stating sizes, is a line with the reason ("skipped") in
results/libraries_drawn.jsonl. Families that stand in the file are not drawn again, so the script can be stopped and go
on.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import random
import re
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch

import forks
import usual_families as usual
from loop import training_step
from second_predict import predict_case, summary
from zoo.case import Precision
from zoo.libraries import DRAWN, PACKAGES, Drawn, Part, Trained, case_of, job_names, net_of, read_drawn

Choice = TypeVar("Choice")
SEED = 20261120
UNREAD_SEED, LAST_SEED = "20261118 unread", "20261118 last"
WRITTEN_NAMES: dict[str, tuple[str, ...]] = {
    "diffusers": (
        "unet_2d", "unet_of_texts", "unet_of_films", "spatio_temporal_unet", "motion_unet", "kandinsky_3",
        "stable_cascade", "u_vit_2d", "dit", "pixart", "sd_3", "flux", "hunyuan_dit", "aura_flow", "cog_video_x",
        "latte", "lumina_2", "mochi", "ltx_video", "sana", "stable_audio", "wan", "cosmos", "autoencoder_kl",
        "vq_model", "autoencoder_tiny", "autoencoder_dc", "temporal_decoder", "autoencoder_wan", "oobleck",
        "control_net", "prior_transformer", "chroma", "qwen_image", "cog_view_4", "z_image",
    ),
    "monai": (
        "basic_unet", "basic_unet_plus_plus", "attention_unet", "residual_unet", "dyn_unet", "seg_resnet",
        "seg_resnet_vae", "swin_unetr", "unetr", "v_net", "high_res_net", "flexible_unet", "med_next", "ah_net",
        "diffusion_unet", "vq_vae", "voxel_morph", "dense_net_3d", "res_net_3d", "hover_net", "masked_vit",
    ),
    "smp": (
        "unet", "unetplusplus", "manet", "linknet", "fpn", "pspnet", "deeplabv3", "deeplabv3plus", "pan", "upernet",
        "segformer", "dpt",
    ),
    "torchaudio": (
        "conformer", "conv_tasnet", "deep_speech", "emformer", "hdemucs", "hubert_pretrain", "emformer_rnnt",
        "squim_objective", "squim_subjective", "tacotron2", "wav2letter", "wav2vec2", "wave_rnn", "wavlm",
    ),
    "pyg": (
        "gcn", "graph_sage", "gin", "gat", "pna", "edge_cnn", "deep_gcn", "linkx", "light_gcn", "sg_former",
        "polynormer", "attentive_fp", "schnet", "dime_net", "vis_net", "gps", "graph_transformer", "relational_gcn",
        "gated_graph", "crystal_graph", "res_gated", "gat_v2", "edge_conditioned", "point_net_pp", "arma", "chebyshev",
        "gcn_2", "film", "deep_graph_infomax", "group_reversible",
    ),
    "x_transformers": (
        "rotary_lm", "alibi_lm", "masked_lm", "x_vit", "x_encoder_decoder", "recurrent_memory", "continuous", "x_val",
        "belief_state", "next_latent", "macaron", "sandwich", "memory_tokens", "cross_attender", "neo_mlp",
    ),
    "vit_pytorch": (
        "compact_transformer", "convolutional_projections", "cross_scale", "regional", "scalable", "separable",
        "token_to_token", "re_attention", "rotary_vision", "two_resolutions", "films_of_patches", "normalised",
    ),
    "ultralytics": ("yolo_8_segment", "yolo_9_detect", "yolo_11_classify", "yolo_12_detect", "yolo_26_detect"),
    "open_clip": ("clip_resnet", "coca", "clip_convnext", "clip_sigmoid", "clip_vitamin"),
    "speechbrain": ("ecapa_tdnn", "voice_resnet", "crdnn", "context_net", "cnn_14", "diff_wave"),
    "denoising_diffusion": ("karras_unet", "karras_unet_1d", "karras_unet_3d", "unet_1d"),
    "neuralop": ("uno", "tensor_fno", "codano"),
    "kornia": ("loftr", "dexined", "dedode"),
    "pytorchvideo": ("slow_fast", "x3d", "channel_separated"),
    "segment_anything": ("prompted_masks",),
    "encodec": ("residual_codec",),
    "itransformer": ("inverted", "inverted_fft"),
    "rtdl": ("tabular_resnet", "periodic_mlp"),
    "routing_transformer": ("routed_lm",),
    "linformer": ("linformer_lm",),
    "lightly": ("swav", "vicreg", "tico"),
    "transformers_more": (
        "vilt", "lxmert", "autoformer", "patch_tst", "pix2struct", "vit_pose", "clap", "x_clip", "bros", "mgp_str",
    ),
}  # fmt: skip
COUNTS: dict[Part, dict[str, int]] = {
    "open": {"timm": 9, "torchvision": 4, "diffusers": 4, "monai": 2, "smp": 1, "torchaudio": 1, "pyg": 2,
             "x_transformers": 1},
    "closed": {"timm": 16, "torchvision": 6, "diffusers": 7, "monai": 4, "smp": 2, "torchaudio": 3, "pyg": 4,
               "x_transformers": 2},
    "sealed": {"timm": 20, "torchvision": 4, "diffusers": 8, "monai": 5, "smp": 4, "torchaudio": 3, "pyg": 4,
               "x_transformers": 4},
    "unread": {"timm": 10, "diffusers": 1, "monai": 1, "smp": 1, "x_transformers": 1, "vit_pytorch": 8,
               "ultralytics": 4, "open_clip": 3, "speechbrain": 4, "denoising_diffusion": 1, "kornia": 2,
               "pytorchvideo": 2, "encodec": 1, "itransformer": 1, "routing_transformer": 1, "linformer": 1,
               "lightly": 1, "transformers_more": 7},
    "last": {"timm": 10, "monai": 1, "smp": 1, "vit_pytorch": 3, "transformers_more": 2},
    "usual": {"usual": usual.COUNT},
    "usual_more": {"usual": usual.MORE},
    "usual_last": {"usual": usual.LAST},
    "usual_again": {"usual": usual.AGAIN},
}  # fmt: skip
OF_SEED: dict[Part, tuple[Part, ...]] = {
    "open": ("open",),
    "closed": ("closed",),
    "sealed": ("closed",),
    "unread": ("closed", "unread"),
    "last": ("closed", "unread"),
    "usual": ("usual",),
    "usual_more": ("usual",),
    "usual_last": ("usual",),
    "usual_again": ("usual_again",),
}
"""Where a part takes its families."""
SEEDS: dict[Part, str | int] = dict.fromkeys(get_args(Part), SEED) | {
    "unread": UNREAD_SEED,
    "last": LAST_SEED,
    "usual": usual.SEED,
    "usual_more": usual.SEED,
    "usual_last": usual.SEED,
    "usual_again": usual.AGAIN_SEED,
}
"""What draws how they are trained."""
USUAL_PARTS: tuple[Part, ...] = ("usual", "usual_more", "usual_last", "usual_again")
ROW = 3
PRECISIONS: dict[Precision, int] = {"amp": 35, "bf16": 30, "fp32": 15, "tf32": 10, "fp16amp": 10}
OPTIMIZERS = {"adamw": 50, "fused": 20, "momentum": 18, "rmsprop": 7, "adafactor": 5}
CHECKPOINTING = ("set_grad_checkpointing", "enable_gradient_checkpointing")
FEWEST, MOST = 5_000_000, 350_000_000
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)
MANY_ROWS = (*ROWS, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)
"""For nets as small as users write them."""
SHORTEST_MS, LONGEST_MS, LONGEST_STEP_MS, LARGEST_BYTES = 15, 120, 180, 34 * 2**30
LIMIT_S, SLOWEST_S, TRIES = 480, 80, 4


@dataclass(frozen=True)
class Job:
    family: str
    library: str
    part: Part


class Skipped(Exception):
    """Why a family is left out."""


def order(library: str) -> Iterator[Job]:
    if library == "usual":
        yield from (Job(family, library, "usual") for family in usual.order())
        written = importlib.import_module("zoo.libraries.usual").WRITTEN
        again = (family for family in usual.order(usual.AGAIN_SEED) if family in written)
        yield from (Job(family, library, "usual_again") for family in again)
        return
    names = sorted(families(library))
    is_new = library not in COUNTS["open"]  # a library that only the last part has
    shuffled = random.Random(f"{UNREAD_SEED if is_new else SEED} {library}").sample(names, len(names))
    for number, family in enumerate(shuffled):
        yield Job(family, library, "unread" if is_new else "closed" if number % ROW else "open")


def families(library: str) -> tuple[str, ...]:
    if library in WRITTEN_NAMES:
        return WRITTEN_NAMES[library]
    found = {other: set(variants_of(other)) for other in ("timm", "torchvision")}
    both = found["timm"] & found["torchvision"]
    lost = {family for family in both if random.Random(f"{SEED} whose {family}").choice(sorted(found)) != library}
    elsewhere = {family for names in WRITTEN_NAMES.values() for family in names}
    return tuple(found[library] - lost - elsewhere)


def variants_of(library: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = importlib.import_module(f"zoo.libraries.{library}").families()
    return found


def draw_family(job: Job) -> tuple[Drawn, float]:
    """It with a first batch, and for how many milliseconds the GPU is to be busy."""
    chance = random.Random(f"{SEEDS[job.part]} {job.family}")
    precision = chance.choices(list(PRECISIONS), list(PRECISIONS.values()))[0]
    optimizer = chance.choices(list(OPTIMIZERS), list(OPTIMIZERS.values()))[0]
    channels_last, checkpointed, clipped = (chance.random() < share for share in (0.5, 0.12, 0.2))
    target_ms = math.exp(chance.uniform(math.log(20), math.log(110)))
    model, size, made = some_variant(job, chance)
    net = net_of(job.library, model, size, tiny=False)
    if precision not in net.precisions:
        precision = chance.choices(net.precisions, [PRECISIONS[other] for other in net.precisions])[0]
    return (
        Drawn(
            family=job.family,
            name="_".join(part for part in (job.library, model.replace(".", "_"), size, precision) if part),
            part=job.part,
            library=job.library,
            model=model,
            size=size,
            precision=precision,
            optimizer=optimizer,
            channels_last=channels_last and net.may_be_channels_last,
            checkpointed=checkpointed and any(hasattr(made.net, method) for method in CHECKPOINTING),
            clip_grad_norm=1.0 if clipped else None,
            rows=net.rows,
        ),
        target_ms,
    )


def draw_usual(job: Job) -> tuple[Drawn, float]:
    """The same for the usual part, by its weights."""
    chance = random.Random(f"{SEEDS[job.part]} trained {job.family}")  # not the numbers that put it in its place
    written = importlib.import_module(f"zoo.libraries.{job.library}").WRITTEN[job.family]
    precision = weighted(chance, usual.precisions(job.family))
    optimizer = weighted(chance, usual.OPTIMIZERS)
    shares = (usual.CHANNELS_LAST, usual.CHECKPOINTED, usual.CLIPPED, usual.ACCUMULATED)
    channels_last, checkpointed, clipped, accumulated = (chance.random() < share for share in shares)
    micro_batches = chance.choice(usual.MICRO_BATCHES)
    target_ms = math.exp(chance.uniform(*map(math.log, usual.TARGET_MS)))
    size = chance.choice(sorted(written.sizes))
    options = {name: chance.choice(values) for name, values in written.options.items()}
    net = net_of(job.library, job.family, size, tiny=False, options=options)
    if precision not in net.precisions:
        precision = weighted(chance, {other: usual.precisions(job.family)[other] for other in net.precisions})
    drawn = Drawn(
        family=job.family,
        name="_".join(part for part in (job.library, job.family, size, precision) if part),
        part=job.part,
        library=job.library,
        model=job.family,
        size=size,
        precision=precision,
        optimizer=optimizer,
        channels_last=channels_last and net.may_be_channels_last,
        checkpointed=checkpointed and may_be_checkpointed(built(net).net),
        clip_grad_norm=1.0 if clipped else None,
        rows=net.rows,
        micro_batches=micro_batches if accumulated else 1,
        options=options,
    )
    return drawn, target_ms


def weighted(chance: random.Random, weights: Mapping[Choice, int]) -> Choice:
    return chance.choices(list(weights), list(weights.values()))[0]


def may_be_checkpointed(net: Any) -> bool:
    """transformers' models all have the method, and say whether it works."""
    return bool(getattr(net, "supports_gradient_checkpointing", any(hasattr(net, name) for name in CHECKPOINTING)))


@cache
def earlier_peaks() -> set[tuple[int, ...]]:
    """Of every row that was predicted before."""
    lines = (line for path in DRAWN.parent.glob("*predicted*_h200.jsonl") for line in path.read_text().splitlines())
    return {tuple(row["classic"]) for row in map(json.loads, lines) if "classic" in row}


def some_variant(job: Job, chance: random.Random) -> tuple[str, str, Trained]:
    """The first of a shuffled family with so many parameters; of a written one, any of its sizes."""
    if job.library in WRITTEN_NAMES:
        sizes = importlib.import_module(f"zoo.libraries.{job.library}").WRITTEN[job.family].sizes
        variants = [(job.family, chance.choice(sorted(sizes)))]
    else:
        names = variants_of(job.library)[job.family]
        variants = [(name, "") for name in chance.sample(names, len(names))]
    for model, size in variants:
        made: Any = built(net_of(job.library, model, size, tiny=False))
        count = sum(weight.numel() for weight in made.parameters())
        if job.library in WRITTEN_NAMES or FEWEST <= count <= MOST:
            return model, size, made
    raise Skipped("no variant has 5 to 350 million parameters")


def built(net: Any) -> Any:
    """On the meta device, unless it reads what it computed while it is built."""
    try:
        with torch.device("meta"):
            return net.build()
    except (RuntimeError, NotImplementedError):
        return net.build()


def fitting_rows(drawn: Drawn, target_ms: float) -> tuple[Drawn, dict[str, Any]]:
    """The batch by which the GPU is busy as long as was drawn, and the prediction."""
    variant = "every layer" if drawn.checkpointed else "plain"
    is_usual = drawn.part in USUAL_PARTS
    limits = (LONGEST_MS, LONGEST_STEP_MS, TRIES)
    longest_ms, longest_step_ms, tries = (usual.LONGEST_MS, usual.LONGEST_STEP_MS, usual.TRIES) if is_usual else limits
    tried: dict[int, dict[str, Any]] = {}
    while True:
        begin_s = time.process_time()
        tried[drawn.rows] = row = predict_case(case_of(drawn), variant)
        if (lasted_s := time.process_time() - begin_s) > SLOWEST_S:
            raise Skipped(f"takes {lasted_s:.0f} s to predict")
        room = min(target_ms / row["busy_ms"], longest_step_ms / row["step_ms"], LARGEST_BYTES / row["classic"][1])
        rows = max((rows for rows in (MANY_ROWS if is_usual else ROWS) if rows <= drawn.rows * room), default=1)
        if rows in tried or 0.8 < room < 1.25 or len(tried) == tries:
            break
        drawn = replace(drawn, rows=rows)
    is_short = row["step_ms"] <= longest_step_ms and SHORTEST_MS <= row["busy_ms"] <= longest_ms
    if not (is_short and row["classic"][1] <= LARGEST_BYTES):
        raise Skipped(
            f"a batch of {drawn.rows} is predicted to take {row['busy_ms']:.0f} ms of the GPU, {row['step_ms']:.0f} ms,"
            f" and {row['classic'][1] / 2**30:.1f} GiB"
        )
    if is_usual and tuple(row["classic"]) in earlier_peaks():
        raise Skipped("an earlier row has the same peaks")
    if drawn.name in {other.name for other in read_drawn()}:
        raise Skipped("an earlier row has the same name")
    return drawn, row


def consider(job: Job) -> dict[str, Any]:
    """One family: {"drawn", "predicted"} or {"skipped"}; runs in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    where = "build"
    try:
        drawn, target_ms = draw_usual(job) if job.part in USUAL_PARTS else draw_family(job)
        where = "train"
        small = replace(drawn, precision="fp32")  # a CPU's other types are slow
        training_step(case_of(small, tiny=True), "cpu", drawn.checkpointed)()
        where = "trace"
        drawn, predicted = fitting_rows(drawn, target_ms)
    except Skipped as reason:
        return {"skipped": str(reason)}
    except Exception as error:
        traceback.print_exc(limit=-8)
        text = re.sub(r"\S*/site-packages/", "", str(error))
        return {"skipped": f"{where}: {type(error).__name__}: {text}"[:400]}
    return {"drawn": asdict(drawn), "predicted": predicted}


def draw_of(part: Part) -> str:
    """Parts of one draw have no family in common."""
    return part if part == "usual_again" else "usual" if part in USUAL_PARTS else "others"


def draw(part: Part, library: str, predicted: Path) -> None:
    """The families of one library, until there are enough."""
    lines = [json.loads(line) for line in DRAWN.read_text().splitlines()] if DRAWN.exists() else []
    done = {line["family"] for line in lines if draw_of(line["part"]) == draw_of(part)}
    here = [line for line in lines if (line["part"], line["library"]) == (part, library) and "skipped" not in line]
    missing = COUNTS[part].get(library, 0) - len(here)
    if missing <= 0:
        return
    module = importlib.import_module(f"zoo.libraries.{library}")
    jobs = [replace(job, part=part) for job in order(library) if job.part in OF_SEED[part]]
    jobs = [job for job in jobs if job.family not in done]
    if library in WRITTEN_NAMES or library == "usual":  # as many as are written; whoever needs more writes them first
        jobs = list(itertools.takewhile(lambda job: job.family in module.WRITTEN, jobs))
    for job, found in forks.run(jobs, consider, width=1, timeout_s=LIMIT_S):
        if "drawn" in found:
            append(DRAWN, found["drawn"])
            append(predicted, found["predicted"])
            print(summary(found["predicted"]), flush=True)
            missing -= 1
        else:
            reason = found.get("skipped") or f"crash: {found['error']}"
            append(DRAWN, {"family": job.family, "library": library, "part": part, "skipped": reason})
            print(f"{job.family}: {reason}", flush=True)
        if missing <= 0:
            return
    print(f"{library}: {missing} more would be drawn, if they were written")


def append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=get_args(Part), help="print the names of a part that was drawn")
    parser.add_argument("--part", choices=get_args(Part))
    parser.add_argument("--library", choices=list(PACKAGES), nargs="+", default=list(PACKAGES))
    parser.add_argument("--predicted", type=Path, help="where predictions are appended")
    args = parser.parse_args()
    if args.list:
        print(*job_names(args.list))
        return
    if not (args.part and args.predicted):
        parser.error("--list, or --part and --predicted")
    for library in args.library:
        draw(args.part, library, args.predicted)


if __name__ == "__main__":
    main()
