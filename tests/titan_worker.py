"""One rank of torchtitan's own Trainer on the CPU: python titan_worker.py FOLDER [PLAN]; prints losses and replays.

torchtitan 0.3 supposes an accelerator. What has to be said or left out for a CPU, besides flex attention (torchtitan's
module around torch's attention takes its place): the device's type, the monitor of its memory, the shorter timeout
after the first step (its barrier wants a device's number), and with gloo gradients summed before they are scaled. The
data are drawn, since the package comes without its test data.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch._utils

torch._utils._get_available_device_type = lambda: "cpu"

from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.components import metrics  # noqa: E402
from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.distributed import utils as dist_utils  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402

from trainfit.apply import Handle  # noqa: E402
from trainfit.torchtitan import PlanAC  # noqa: E402

BATCH, LENGTH, STEPS, LAYERS, WORDS = 2, 64, 3, 2, 2048


class Nameless(BaseTokenizer):
    """Nothing is read or written."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Any, tokenizer_path: str) -> None:
        super().__init__()

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *args: Any, **kwargs: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return WORDS


class Drawn(BaseDataLoader):
    """Random words, other ones for each rank."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config: Any, *, dp_rank: int, **others: Any) -> None:
        self._rank = dp_rank

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        draw = torch.Generator().manual_seed(self._rank)
        while True:
            words = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=draw)
            positions = torch.arange(LENGTH).expand(BATCH, -1)
            yield {"input": words[:, :-1], "positions": positions}, words[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class NoMemory:
    """Stands for the monitor of a device's memory."""

    device_name = "cpu"

    def reset_peak_stats(self) -> None:
        pass

    def get_peak_stats(self) -> Any:
        return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)


def configured(folder: str, plan: str | None) -> Any:
    config: Any = llama3_debugmodel()
    config.dump_folder, config.debug.seed = folder, 0
    config.tokenizer, config.dataloader = Nameless.Config(), Drawn.Config()
    config.training.local_batch_size, config.training.seq_len, config.training.steps = BATCH, LENGTH, STEPS
    config.training.disable_cuda_graphs = True
    config.parallelism.spmd_backend = "partial_dtensor"
    config.checkpoint.enable = config.validator.enable = False
    model = config.model_spec.model
    model.layers = model.layers[:LAYERS]
    for layer in model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.activation_checkpoint = None if plan is None else PlanAC.Config(plan=plan, strict=True)
    return config


def main(folder: str, plan: str | None = None) -> None:
    losses: list[str] = []
    handles: list[Handle] = []
    apply, log = PlanAC.apply, metrics.MetricsProcessor.log

    def noting_apply(policy: PlanAC, model: torch.nn.Module) -> None:
        apply(policy, model)
        assert policy.handle is not None
        handles.append(policy.handle)

    def noting_log(processor: Any, step: int, loss: float, *args: Any, **kwargs: Any) -> None:
        losses.append(loss.hex())
        log(processor, step, loss, *args, **kwargs)

    PlanAC.apply = noting_apply  # type: ignore[method-assign]
    metrics.MetricsProcessor.log = noting_log
    metrics.build_device_memory_monitor = NoMemory
    dist_utils.set_pg_timeouts = lambda **kwargs: None
    trainer = configured(folder, plan).build()
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    trainer.train()
    done = [(stats.forwards, stats.replays, stats.reruns) for handle in handles for stats in handle.stats()]
    print(json.dumps({"losses": losses, "blocks": done}), flush=True)  # noqa: T201
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
