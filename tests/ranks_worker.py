"""What each rank does in tests/test_ranks.py; run with the names of what to check.

By torchrun it is one rank. By itself, with `--ranks N` first, it becomes N of them, which share what was imported.
"""

from __future__ import annotations

import copy
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from trainfit.apply import Handle, agreement, apply_decisions
from trainfit.calibrate.collectives import measure_collectives
from trainfit.cost.measured_collectives import parse_collectives
from trainfit.errors import PlanDisagreement
from trainfit.records import BlockDecision

WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), tokens.flatten())


def plan_everything_away(model: nn.Module) -> Handle:
    """Every block keeps nothing but its inputs."""
    names = [name for name, module in model.named_modules() if isinstance(module, Block)]
    return apply_decisions(model, {name: BlockDecision(kept=()) for name in names}, strict=True)


def shard(model: Model, mesh: DeviceMesh, reshard: bool, dtype: torch.dtype | None) -> None:
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(dtype, torch.float32)}
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=reshard, **options)
    fully_shard(model, **options)


def gradients(model: nn.Module, rank: int) -> list[torch.Tensor]:
    """Of two training steps with this rank's own tokens, put together from all ranks."""
    found = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        torch.manual_seed(100 * step + rank)
        model(torch.randint(0, 11, (2, 5))).backward()
        for parameter in model.parameters():
            gradient = parameter.grad
            assert gradient is not None
            found.append(gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone())
        optimizer.step()
        optimizer.zero_grad()
    return found


def check_equal(spread: Callable[[Model], Any], rank: int) -> None:
    torch.manual_seed(0)
    plain = Model()
    planned = copy.deepcopy(plain)
    handle = plan_everything_away(planned)
    spread(plain)
    spread(planned)
    expected, got = gradients(plain, rank), gradients(planned, rank)
    for number, (one, other) in enumerate(zip(expected, got, strict=True)):
        assert torch.equal(one, other), f"gradient {number} differs"
    stats = handle.stats()
    done = {(block.replays, block.reruns) for block in stats}
    assert done == {(2, 0)}, stats


def fsdp(rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cpu", (world_size,))
    for reshard in (True, False):
        for dtype in (None, torch.bfloat16):
            check_equal(lambda model, reshard=reshard, dtype=dtype: shard(model, mesh, reshard, dtype), rank)


def hsdp(rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
    check_equal(lambda model: shard(model, mesh, True, None), rank)


def tensor_parallel(rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cpu", (world_size,))

    def parallelize(model: Model) -> None:
        for block in model.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    check_equal(parallelize, 0)  # every rank has the same tokens


def same_plan(rank: int, world_size: int) -> None:
    agreement.agree("one plan")


def another_plan(rank: int, world_size: int) -> None:
    with pytest.raises(PlanDisagreement, match="rank 1 and rank 0 have different plans"):
        agreement.agree("another plan" if rank == 1 else "one plan")


def a_rank_that_died(rank: int, world_size: int) -> None:
    agreement.TIMEOUT_S = 2.0
    if rank == world_size - 1:
        os._exit(0)
    start_s = time.monotonic()
    with pytest.raises(PlanDisagreement, match=f"rank {world_size - 1} did not say"):
        agreement.agree("one plan")
    assert time.monotonic() - start_s < 30


def a_rank_killed_in_its_backward(rank: int, world_size: int) -> None:
    model = Model()
    plan_everything_away(model)
    shard(model, init_device_mesh("cpu", (world_size,)), True, None)
    loss = model(torch.arange(11)[None])
    if rank == 1:
        loss.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))
    loss.backward()  # the others wait for this rank's part


def collectives(rank: int, world_size: int) -> None:
    """On two ranks, they are a node, or each is one; of four ranks, two are a node."""
    whole = [64, 4096]
    for num_per_node in {2: (2, 1), 4: (2,)}[world_size]:
        lines: list[str] = []
        tables = measure_collectives(num_per_node, "cpu", lines.append, sizes=whole)
        groups = {2: {2: [(2, 1)], 1: [(2, 2)]}, 4: {2: [(2, 1), (2, 2), (4, 2)]}}[world_size][num_per_node]
        if rank % num_per_node:
            groups = [(ranks, nodes) for ranks, nodes in groups if ranks != nodes]
        kinds = ("all_gather", "reduce_scatter", "all_reduce")
        assert [(t["ranks"], t["nodes"], t["kind"]) for t in tables] == [(*g, kind) for g in groups for kind in kinds]
        assert all([size for size, _ in table["points"]] == whole for table in tables)
        assert len(parse_collectives(tables)) == len(tables) == 3 * len(lines)


def fork_ranks(world_size: int) -> bool:
    """Become that many ranks. In each of them True; afterwards, in the process that they came from, False."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ.update(address, WORLD_SIZE=str(world_size), TORCHELASTIC_USE_AGENT_STORE="True")
    ranks = []
    for rank in range(world_size):
        process = os.fork()
        if process == 0:
            os.environ["RANK"] = str(rank)
            return True
        ranks.append(process)
    store = dist.TCPStore(
        "localhost", port, is_master=True, wait_for_workers=False
    )  # outlives every rank, as torchrun's
    ended = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
    del store
    if any(ended):
        sys.exit(f"the ranks ended with {ended}")
    return False


def main() -> None:
    names = sys.argv[1:]
    if names[0] == "--ranks":
        if not fork_ranks(int(names[1])):
            return
        names = names[2:]
    warnings.simplefilter("error", RuntimeWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for name in names:
        check: Callable[[int, int], None] = globals()[name]
        check(rank, world_size)
        if rank == 0:
            sys.stdout.write(f"{name}: ok\n")
            sys.stdout.flush()
    os._exit(0)  # leaving gloo in order waits for ranks that died, and aborts on collectives that nobody waited for


if __name__ == "__main__":
    main()
