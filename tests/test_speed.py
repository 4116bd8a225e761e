"""An estimate's time and memory, of a process of its own: seconds of CPU, so that a loaded machine changes little."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, resource, sys, time
import torch, trainfit
from trainfit import presets
torch.set_num_threads(1)
trainfit.estimate(presets.build("gpt2", batch=1, seq=64))  # what is imported at first use
seconds = {}
for preset in ("llama3-8b", "llama3-70b"):
    begin_s = time.process_time()
    trainfit.estimate(presets.build(preset, batch=1, seq=8192), "h100-80gb")
    seconds[preset] = time.process_time() - begin_s
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps(seconds | {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}))
"""


def test_an_estimate_is_quick_grows_at_most_linearly_with_layers_and_fits_in_two_gib() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, float] = json.loads(result.stdout)
    assert found["llama3-8b"] <= 4
    assert found["llama3-70b"] <= 8
    assert found["llama3-70b"] / 80 <= 1.25 * found["llama3-8b"] / 32
    assert found["bytes"] < 2 * 2**30
