"""Writes the convolutions of public architectures, for probe_convolutions.py --shapes.

    python benchmarks/public_convolutions.py --out FILE.jsonl      # needs timm and torchvision; some 20 minutes

Models are built and run on meta, at their own image size and at one that is drawn; at most `MOST_PER_FAMILY` of those
whose names begin alike. Lines: [family, x without its batch, weight, stride, padding, dilation]; a transposed
convolution is written as the plain one whose input gradient it is.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MOST_PER_FAMILY = 14
SIZES = (128, 160, 192, 224, 224, 256, 256, 288, 320, 384, 448, 512, 640)
CLIPS = ((16, 112), (8, 128), (16, 224), (32, 112))


class Recorder(TorchDispatchMode):
    """Notes every convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[Any, ...]] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.convolution.default:
            x, w = args[0].shape, args[1].shape
            if args[6]:
                x = result.shape
            dims = len(x) - 2
            settings = (tuple(each) * (dims if len(each) == 1 else 1) for each in args[3:6])
            self.found.add((tuple(x[1:]), tuple(w), *settings))
        return result


def inputs(module: str, size: int, random_: random.Random) -> Iterator[Any]:
    if ".video." in module:
        yield from (torch.empty(2, 3, frames, side, side) for frames, side in CLIPS)
    else:
        yield from (torch.empty(2, 3, side, side) for side in (size, random_.choice(SIZES)))


def models(random_: random.Random) -> Iterator[tuple[str, str, int, Any]]:
    """Name, module, image size, model."""
    import timm
    import torchvision

    for name in random_.sample(timm.list_models(), len(timm.list_models())):
        yield name, "timm", timm.get_pretrained_cfg_value(name, "input_size")[-1], partial(timm.create_model, name)
    for name in torchvision.models.list_models():
        module = torchvision.models.get_model_builder(name).__module__
        if ".detection." not in module and ".optical_flow." not in module:
            yield name, module, 224, partial(torchvision.models.get_model, name, weights=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    random_ = random.Random(1)
    number: Counter[str] = Counter()
    with args.out.open("w") as file, torch.device("meta"), torch.no_grad():
        for name, module, size, build in models(random_):
            family = re.split(r"[^a-z]", name)[0]
            number[family] += 1
            if number[family] > MOST_PER_FAMILY:
                continue
            recorder = Recorder()
            try:
                model = build().train()
                for images in inputs(module, size, random_):
                    with recorder:
                        model(images)
            except Exception as error:  # models that take another size or another input are many
                print(name, type(error).__name__, str(error)[:80], flush=True)
            for found in sorted(recorder.found):
                file.write(json.dumps([family, *found]) + "\n")


if __name__ == "__main__":
    main()
