"""Nets of public libraries: what was drawn, who is in which part, and that a library's net trains as a case."""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what transformers says about itself when it is imported
    import libraries_draw
    import usual_families
    import zoo
    from loop import training_step
    from zoo import libraries
    from zoo.libraries import Drawn, Trained, case_of

USUAL_PARTS = libraries_draw.USUAL_PARTS


def lines() -> list[dict[str, object]]:
    return [json.loads(line) for line in libraries.DRAWN.read_text().splitlines()]


def drawn(library: str, model: str, size: str = "", **changed: object) -> Drawn:
    fixed = {"family": model, "name": "toy", "part": "open", "precision": "fp32", "optimizer": "adamw", "rows": 4,
             "channels_last": False, "checkpointed": False, "clip_grad_norm": None}  # fmt: skip
    return Drawn(**fixed | {"library": library, "model": model, "size": size} | changed)  # type: ignore[arg-type]


def test_every_family_was_drawn_once_and_what_was_left_out_has_a_reason() -> None:
    families = [(line["family"], libraries_draw.draw_of(line["part"])) for line in lines()]
    assert len(set(families)) == len(families)
    assert all(line.get("skipped") or line["name"] for line in lines())
    found = libraries.read_drawn()
    assert len({case.name for case in found}) == len(found)
    assert Counter((case.part, case.library) for case in found) == {
        (part, library): count for part, counts in libraries_draw.COUNTS.items() for library, count in counts.items()
    }
    assert {part: len(libraries.job_names(part)) for part in libraries_draw.COUNTS} == {
        "open": 24,
        "closed": 44,
        "sealed": 52,
        "unread": 50,
        "last": 17,
        "usual": 44,
        "usual_more": 22,
        "usual_last": 16,
        "usual_again": 26,
    }


def test_every_third_family_is_open_and_a_name_is_of_one_library() -> None:
    names = [name for names in libraries_draw.WRITTEN_NAMES.values() for name in names]
    assert len(set(names)) == len(names)
    jobs = list(libraries_draw.order("monai"))
    assert [job.part for job in jobs[:6]] == ["open", "closed", "closed"] * 2
    assert sorted(job.family for job in jobs) == sorted(libraries_draw.WRITTEN_NAMES["monai"])
    parts = {job.family: job.part for library in libraries_draw.WRITTEN_NAMES for job in libraries_draw.order(library)}
    for line in lines():
        if line["family"] in parts and line["part"] not in USUAL_PARTS:
            # later parts have what was left of the closed ones
            assert parts[line["family"]] in (line["part"], *libraries_draw.OF_SEED[line["part"]])


def test_usual_families_stand_in_the_order_of_their_weights_and_the_first_of_them_were_drawn() -> None:
    order = usual_families.order()
    assert sorted(order) == sorted(usual_families.FAMILIES)
    considered = [line["family"] for line in lines() if libraries_draw.draw_of(line["part"]) == "usual"]
    assert considered == order[: len(considered)]
    again = [line["family"] for line in lines() if line["part"] == "usual_again"]
    assert again == [job.family for job in libraries_draw.order("usual") if job.part == "usual_again"][: len(again)]
    heavy = [weight for name, weight in usual_families.FAMILIES.items() if name in order[:44]]
    light = [weight for name, weight in usual_families.FAMILIES.items() if name in order[44:]]
    assert sum(heavy) / len(heavy) > sum(light) / len(light)


def test_names_are_known_only_where_their_library_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "is_there", lambda library: library == "pyg")
    cases = libraries.library_cases()
    assert {case.name for case in cases} == {one.name for one in libraries.read_drawn() if one.library == "pyg"}
    libraries.import_libraries(["gpt2", "no such case"])


def test_a_batch_is_of_the_weights_type_and_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.survey import Net, below, floats

    net = Net("toy", lambda: Trained(torch.nn.Conv2d(3, 8, 3), torch.nn.Module), 4,
              {"images": floats(3, 8, 8), "labels": below(5)})  # fmt: skip
    monkeypatch.setattr(libraries, "net_of", lambda *_: net)
    case = case_of(drawn("timm", "toy", precision="bf16", channels_last=True))
    images = case.batch("cpu")["images"]
    assert (tuple(images.shape), images.dtype) == ((4, 3, 8, 8), torch.bfloat16)
    assert images.is_contiguous(memory_format=torch.channels_last)
    weight = case.module().net.weight
    assert weight.dtype == torch.bfloat16
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert case_of(drawn("timm", "toy"), tiny=True).batch("cpu")["labels"].shape == (2,)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("library", "model", "size", "checkpointed"),
    [
        ("timm", "test_vit", "", True),
        ("torchvision", "squeezenet1_1", "", False),
        ("pyg", "gcn", "arxiv", False),
        ("torchaudio", "conv_tasnet", "base", False),
        ("x_transformers", "macaron", "base", False),
        ("diffusers", "sd_3", "small", True),
        ("monai", "seg_resnet_vae", "16", False),
        ("smp", "fpn", "resnet50", False),
        ("usual", "qwen2", "half_billion", True),
        ("usual", "lora", "half_billion", False),
        ("usual", "actor_critic", "atari", False),
    ],
)
def test_a_small_net_of_each_library_is_trained(library: str, model: str, size: str, checkpointed: bool) -> None:
    pytest.importorskip(libraries.PACKAGES[library], exc_type=ImportError)
    case = case_of(drawn(library, model, size, checkpointed=checkpointed, clip_grad_norm=1.0), tiny=True)
    step = training_step(case, "cpu", checkpointed)
    step()


@pytest.mark.filterwarnings("ignore")
def test_the_zoo_has_none_of_them() -> None:
    assert not {case.name for case in libraries.read_drawn()} & set(zoo.zoo())
