"""A sweep on a Ray cluster of two nodes beside its head, one of which is killed in the middle; prints what came of it.

Run by test_sweep_ray.py in a process of its own. The one configuration with batch 2 is held where it is planned, until
the node that it is on is dead; so it is planned again, on the other.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import trainfit
from sweep_steps import step_of_batch

FOLDER = Path(sys.argv[1])


def make_step(folder: str, batch: int) -> trainfit.Step:
    node = ray.get_runtime_context().get_node_id()
    with (Path(folder) / f"nodes of {batch}").open("a") as file:
        file.write(f"{node}\n")
    while batch == 2 and not (Path(folder) / "released").exists():
        time.sleep(0.05)
    if batch == 0:
        raise ValueError("a batch of 0")
    return step_of_batch(256 * batch)


def kill_the_node_that_holds(cluster: Cluster) -> None:
    nodes = FOLDER / "nodes of 2"
    while not (nodes.exists() and nodes.read_text()):
        time.sleep(0.05)
    held = nodes.read_text().split()[0]
    (victim,) = (node for node in cluster.list_all_nodes() if node.node_id == held)
    cluster.remove_node(victim, allow_graceful=False)
    (FOLDER / "released").touch()


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    killer = threading.Thread(target=kill_the_node_that_holds, args=(cluster,), daemon=True)
    killer.start()
    grid = {"folder": [str(FOLDER)], "batch": [1, 2, 4, 0], "gpu": ["h100-80gb", "h200"], "budget": ["auto", "min"]}
    results = list(trainfit.sweep(make_step, grid, ray=cluster.address, output=FOLDER / "sweep.jsonl"))
    killer.join()
    assert not ray.is_initialized()
    cluster.shutdown()
    Path(FOLDER, "results").write_text(json.dumps([result.to_json_dict() for result in results]))


if __name__ == "__main__":
    main()
