"""Which GPUs can train GPT-2 with this batch, and how fast? No GPU is needed to ask."""

import trainfit
from trainfit import presets

step = presets.build("gpt2", batch=32, seq=1024)
print(trainfit.estimate(step, gpu="h100-80gb"))

print("\nelsewhere")
for gpu in ("rtx4090", "l40s", "a100-80gb", "h200"):
    estimate = trainfit.estimate(step, gpu=gpu)
    verdict = "fits" if estimate.fits() else "does not fit"
    print(f"  {gpu:10} {estimate.peak_reserved_bytes / 2**30:5.1f} GiB  {estimate.step_time_ms:6.1f} ms  {verdict}")
