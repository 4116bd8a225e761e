"""A sweep on a Ray cluster of two nodes beside its head, one of which is killed in the middle; writes what came of it.

Run by test_sweep_ray.py in a process group of its own. The one configuration with batch 2 is held where it is planned,
until the node that it is on is dead; so it is planned again, on the other. Ends with NO_CLUSTER where Ray cannot start
a node at all.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

import trainfit
from sweep_steps import step_of_batch

NO_CLUSTER = 77
# A node that was killed refuses to answer: two such answers, and it is taken for dead. One that is slow is waited for.
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_failure_threshold": 2,
    "health_check_timeout_ms": 20_000,
}


def grid(folder: Path) -> dict[str, list[Any]]:
    return {"folder": [str(folder)], "batch": [1, 2, 0], "gpu": ["h100-80gb", "h200"]}


def make_step(folder: str, batch: int) -> trainfit.Step:
    node = ray.get_runtime_context().get_node_id()
    with (Path(folder) / f"nodes of {batch}").open("a") as file:
        file.write(f"{node}\n")
    while batch == 2 and not (Path(folder) / "released").exists():
        time.sleep(0.05)
    if batch == 0:
        raise ValueError("a batch of 0")
    return step_of_batch(256 * batch)


def kill_the_node_that_holds(cluster: Cluster, folder: Path) -> None:
    nodes = folder / "nodes of 2"
    while not (nodes.exists() and nodes.read_text()):
        time.sleep(0.05)
    held = nodes.read_text().split()[0]
    (victim,) = (node for node in cluster.list_all_nodes() if node.node_id == held)
    cluster.remove_node(victim, allow_graceful=False)
    (folder / "released").touch()


def start_cluster() -> Cluster:
    """A head that computes nothing, and two nodes."""
    small = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    try:
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": HEALTH_CHECKS, **small}
        )
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=small["object_store_memory"])
    except Exception as error:  # no shared memory, no ports: each is another one
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(NO_CLUSTER)
    return cluster


def main(folder: Path) -> None:
    cluster = start_cluster()
    killer = threading.Thread(target=kill_the_node_that_holds, args=(cluster, folder), daemon=True)
    killer.start()
    results = list(trainfit.sweep(make_step, grid(folder), ray=cluster.address, output=folder / "sweep.jsonl"))
    assert not ray.is_initialized()
    (folder / "results").write_text(json.dumps([result.to_json_dict() for result in results]))
    os._exit(0)  # whoever started this kills what Ray started; leaving in order takes seconds for each node


if __name__ == "__main__":
    main(Path(sys.argv[1]))
