"""FSDP2 with a plan: apply it, then fully_shard, and nothing else. Two processes, on a CPU where there is no GPU:

torchrun --nproc-per-node 2 examples/04_fsdp2.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import trainfit


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(128), nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def main() -> None:
    # The plan is made anywhere, once, and committed with the code; here by the first process, before it joins them.
    if os.environ["RANK"] == "0":
        sharding = trainfit.FSDP(world_size=int(os.environ["WORLD_SIZE"]))
        step = trainfit.Step(model=Model, batch=(torch.empty(1024, 128, device="meta"),), fsdp=sharding)
        trainfit.plan(step, gpu="h200", budget="min", memory="allocated").save("plan.json")

    device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    dist.barrier()

    torch.manual_seed(0)
    model = Model()
    handle = trainfit.Plan.load("plan.json").apply(model)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(dist.get_rank())  # every process has data of its own
    for index in range(3):
        loss = model(torch.randn(1024, 128, device=device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {index}: loss {loss.item():.4f}")
    assert all(block.replays == 3 and block.reruns == 0 for block in handle.stats())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
