"""``python -m tests.integrations.ray_trainer ADDRESS FILE``: one of two trainers on a Ray cluster.

As rank 1 it takes some batches of each kind of stream, saves them and its states, and dies in the
middle of the epoch, like a trainer that loses its machine.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.integrations.ray import RayWorkers
from tests.conformance import copy_of
from tests.datasets.shards import NoisyShards
from tests.map_datasets import Noisy
from tests.ray_clusters import connect

GLOBAL_BATCH = 8
SIZES = (9, 14, 6, 11)
NUM_SAMPLES = sum(SIZES)
STEPS = 2
"""Steps that two trainers make."""
KINDS = ("order", "lanes")


def make(kind: str, rank: int = 0, num_replicas: int = 1, **given: Any) -> StatefulGPULoader[Any]:
    dataset = NoisyShards(SIZES, lanes=4) if kind == "lanes" else Noisy(NUM_SAMPLES)
    place = {"num_replicas": num_replicas, "rank": rank}
    batch_size = GLOBAL_BATCH // num_replicas
    return StatefulGPULoader(dataset, batch_size, shuffle=True, seed=4, **place, **given)


def trained(rank: int) -> tuple[dict[str, tuple[list[Any], dict[str, Any]]], Any]:
    """Return the first steps' batches and the state after them by kind, and the last iterator."""
    workers = {"num_workers": 2, "worker_type": RayWorkers(num_cpus=0.5)}
    done = {}
    for kind in KINDS:
        loader = make(kind, rank, 2, **workers)
        batches = iter(loader)
        done[kind] = [copy_of(next(batches)) for _ in range(STEPS)], loader.state_dict()
    return done, batches


def main() -> None:
    address, path = sys.argv[1:]
    connect(address)
    done, batches = trained(1)
    torch.save(done, path)
    os.kill(os.getpid(), signal.SIGKILL)
    del batches  # its workers run until then


if __name__ == "__main__":
    main()
