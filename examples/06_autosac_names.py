"""AutoSAC under the names of torch.distributed._tools: only the imports differ, and no GPU is needed."""

from __future__ import annotations

import torch
from torch import nn

import trainfit
from trainfit.autosac.checkpointing import apply_sac
from trainfit.autosac.ilp_utils import aggregate_stats, get_peak_memory_runtime_baseline, parse_module_info
from trainfit.autosac.mem_tracker import MemTracker
from trainfit.autosac.runtime_estimator import RuntimeEstimator
from trainfit.autosac.sac_estimator import SACEstimator
from trainfit.autosac.sac_ilp import sac_milp

GIB = 2**30


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(768, 8192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def main() -> None:
    with trainfit.ghost_gpu("a100-80gb"):
        with torch.device("cuda"):
            model, inputs = Net(), torch.randn(8, 1024, 768)
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)

        def train_step() -> None:
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        memory, runtime, sac = MemTracker(), RuntimeEstimator(), SACEstimator()
        memory.track_external(model, optimizer, inputs)
        with memory:
            train_step()  # makes the optimizer's state
            memory.reset_mod_stats()
            train_step()
        with runtime("operator-level-cost-model"):
            train_step()
        with sac("operator-level-cost-model"):
            train_step()
        memory.display_snapshot("peak", units="MiB")

        graph = parse_module_info(aggregate_stats(model, memory, runtime, sac, torch.device("cuda")))
        peak, compute_ms = get_peak_memory_runtime_baseline(graph, optimizer_state=True)
        print(f"nothing checkpointed: {peak / GIB:.2f} GiB, {compute_ms:.1f} ms of compute")

        decisions, recompute_ms, predicted = solution = sac_milp(graph, memory_budget=1.8)
        print(f"1.8 GiB: {solution.status}, {predicted / GIB:.2f} GiB, {recompute_ms:.1f} ms of recomputation")
        for fqn, ratio in decisions.items():
            print(f"  {fqn}: drops {ratio:.0%}")

        apply_sac(model, decisions, sac)  # and trace again
        after = MemTracker()
        after.track_external(model, optimizer, inputs)
        with after:
            train_step()
        real = after.get_tracker_snapshot("peak")[torch.device("cuda:0")]["Total"]
        print(f"applied: {real / GIB:.2f} GiB")


if __name__ == "__main__":
    main()
