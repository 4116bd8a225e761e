"""`collect_stats`: one run of a training step, and all statistics of its modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from trainfit.autosac.ilp_utils import ModuleInfo, aggregate_stats
from trainfit.autosac.mem_tracker import MemTracker
from trainfit.autosac.op_times import COST_MODEL, OpTimes
from trainfit.autosac.recording import Recording
from trainfit.autosac.runtime_estimator import RuntimeEstimator
from trainfit.autosac.sac_estimator import SACEstimator


def collect_stats(
    model: nn.Module,
    train_step: Callable[[], Any],
    *external: Any,
    gpu: str | None = None,
    estimate_mode_type: str = COST_MODEL,
) -> tuple[ModuleInfo, SACEstimator]:
    """Run `train_step` once, and give what `aggregate_stats` would and the estimator, which has the ops' policies.

    `external` is what exists before the step beside the model: optimizer and inputs. `gpu` names the target GPU.
    """
    recording = Recording(gpu)
    memory = MemTracker(recording=recording)
    memory.track_external(model, *external)
    times = OpTimes(estimate_mode_type)
    runtime = RuntimeEstimator(recording=recording, times=times)
    sac = SACEstimator(recording=recording, times=times)
    with sac:
        train_step()
    device = next(model.parameters()).device
    return aggregate_stats(model, memory, runtime, sac, device), sac
