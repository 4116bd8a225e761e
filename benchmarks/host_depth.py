"""Whether the CPU takes longer over an op of a deep model, or of one whose tensors are larger, than of a small one.

    python benchmarks/host_depth.py        # on a GPU; a row per model

Costs of the host come from small models of ten layers whose kernels take no time. Here the same models are timed with
three times the layers, and with 32 times the tokens, whose kernels keep the GPU half busy: nanoseconds of a step's
phases by layers, over those of the small one. Steps of all take turns, in a process of their own `PROCESSES` times.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import torch

from trainfit.calibrate import models
from trainfit.calibrate.host import time_models, training_of

PROCESSES, DEEP, LONG = 3, 3, 32
NAMES = ("flat", "encoder", "decoder", "windows", "images")
LONGER = ("flat", "encoder")


def main() -> None:
    found = [json.loads(_process()) for _ in range(PROCESSES)]
    print(f"torch {torch.__version__}")
    print("| model | | forward | backward | optimizer |\n|---|---|---|---|---|")
    for name in found[0]:
        for kind in [kind for kind in found[0][name] if kind != "small"]:
            cells = []
            for phase in ("forward", "backward", "optimizer"):
                cells.append(", ".join(f"{one[name][kind][phase] / one[name]['small'][phase]:.2f}" for one in found))
            print(f"| {name} | {kind} | {' | '.join(cells)} |")


def _process() -> str:
    done = subprocess.run([sys.executable, __file__, "time"], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


def time_all() -> None:
    """Prints what a step takes by layer, of each model, kind and phase."""
    small, layers = models.small_models(), models.LAYERS
    trainings = {}
    for name in NAMES:
        trainings[name, "small"] = training_of(small[name], "cuda"), layers
        models.LAYERS = DEEP * layers
        trainings[name, "deep"] = training_of(small[name], "cuda"), DEEP * layers
        models.LAYERS = layers
    models.TOKENS *= LONG
    for name in LONGER:
        trainings[name, "long"] = training_of(small[name], "cuda"), layers
    times = time_models([training for training, _ in trainings.values()], torch.cuda.synchronize)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for ((name, kind), (_, count)), phases in zip(trainings.items(), times, strict=True):
        medians = {phase: statistics.median(ns) / count for phase, ns in phases.items()}
        found.setdefault(name, {})[kind] = medians
    print(json.dumps(found))


if __name__ == "__main__":
    time_all() if sys.argv[1:] else main()
