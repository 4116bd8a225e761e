"""A plain PyTorch model: plan it for a budget without a GPU, apply the plan, train; the weights come out the same."""

import torch
from torch import nn

import trainfit


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(128) for _ in range(8))
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x), target)


def train(model: Model) -> list[float]:
    """The loop as anyone would write it; it knows nothing of plans."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(3):
        loss = model(torch.randn(1024, 128), torch.randint(10, (1024,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


step = trainfit.Step(
    model=Model,
    batch=(torch.empty(1024, 128, device="meta"), torch.empty(1024, dtype=torch.int64, device="meta")),
)
unplanned = trainfit.estimate(step, gpu="h200")
print(f"nothing recomputed: {unplanned.peak_allocated_bytes / 2**20:.1f} MiB allocated")

plan = trainfit.plan(step, gpu="h200", budget="100MiB", memory="allocated")
print(plan)
plan.save("plan.json")  # a file to commit; trainfit show plan.json prints it

torch.manual_seed(1)
plain = Model()
planned = Model()
planned.load_state_dict(plain.state_dict())  # the plan adds no names of its own
handle = trainfit.Plan.load("plan.json").apply(planned)

losses = train(plain)
assert train(planned) == losses  # to the last bit
assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), planned.parameters(), strict=True))
assert all(block.replays == 3 and block.reruns == 0 for block in handle.stats())
print("three steps, plain and planned, gave the same weights; losses", [round(loss, 4) for loss in losses])
