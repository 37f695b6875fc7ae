"""Faults of a Ray cluster beyond the loss of single workers, and its other users."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset

from stateful_gpu_loader import StatefulGPULoader, merge_state_dicts
from stateful_gpu_loader.integrations.ray import RayWorkers
from stateful_gpu_loader.integrations.ray import _Head as Head
from tests.conformance import copy_of, same
from tests.datasets.shards import NoisyShards
from tests.integrations import ray_trainer
from tests.map_datasets import Noisy
from tests.patience import seconds
from tests.ray_clusters import (
    FILTERS,
    OBJECT_STORE,
    add_node,
    assert_none_is_left,
    processes_of,
    ray,
    running_cluster,
)

from ray.util import placement_group, placement_group_table, remove_placement_group  # isort: skip
from ray.util.scheduling_strategies import (  # isort: skip
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

pytestmark = FILTERS
WORKERS = RayWorkers(num_cpus=0.5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Cluster whose head, with this process, has no room for workers; one node has room."""
    with running_cluster() as made:
        add_node(made, num_cpus=4)
        yield made


@pytest.fixture(scope="module")
def two_nodes(cluster: Any) -> Any:
    """Cluster with a second node, from the first test on that asks for it."""
    add_node(cluster, num_cpus=4)
    return cluster


def test_two_trainers_share_a_cluster_and_one_resumes(cluster: Any, tmp_path: Path) -> None:
    """Each is one of two ranks. One dies; the other continues alone at the same global batch."""
    path = tmp_path / "rank-1.pt"
    command = [sys.executable, "-m", "tests.integrations.ray_trainer", cluster.address, str(path)]
    other = subprocess.Popen(command)
    of_this, batches = ray_trainer.trained(0)
    assert other.wait(seconds(60)) == -signal.SIGKILL
    of_other = torch.load(path, weights_only=False)
    del batches
    assert_none_is_left()  # including those of the dead trainer

    for kind in ray_trainer.KINDS:
        of_ranks = [of_this[kind], of_other[kind]]
        for rank, (batches, _) in enumerate(of_ranks):
            expected = zip(range(ray_trainer.STEPS), ray_trainer.make(kind, rank, 2), strict=False)
            assert same(batches, [copy_of(batch) for _, batch in expected])
        loader = ray_trainer.make(kind, num_workers=2, worker_type=WORKERS)
        loader.load_state_dict(merge_state_dicts([state for _, state in of_ranks]))
        rest = [copy_of(batch) for batch in loader]
        steps = [
            torch.cat([batch["index"] for batch in step]).tolist()
            for step in zip(*(batches for batches, _ in of_ranks), strict=True)
        ] + [batch["index"].tolist() for batch in rest]
        whole = [batch["index"].tolist() for batch in ray_trainer.make(kind)]
        if kind == "order":
            assert [sorted(step) for step in steps] == [sorted(step) for step in whole]
        assert sorted(chain(*steps)) == sorted(chain(*whole))
        alone = ray_trainer.make(kind)
        alone.load_state_dict(merge_state_dicts([state for _, state in of_ranks]))
        assert same(rest, [copy_of(batch) for batch in alone])
    assert_none_is_left()


class Large(Dataset[torch.Tensor]):
    """Samples of 8 MiB."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(index, index + (1 << 20))


def test_a_full_object_store_changes_nothing(cluster: Any) -> None:
    """The user's objects fill this node's store; the last batch is more than a whole store."""
    held = [ray.put(np.full(OBJECT_STORE // 4, 7, np.uint8)) for _ in range(6)]
    indices = [range(first, first + 4) for first in range(0, 16, 4)] + [range(16, 32)]
    loader = StatefulGPULoader(
        Large(), batch_sampler=[*map(list, indices)], num_workers=2, worker_type=WORKERS
    )
    for batch, of_batch in zip(loader, indices, strict=True):
        assert same(batch, torch.stack([Large()[index] for index in of_batch]))
    assert all((ray.get(reference) == 7).all() for reference in held)
    assert_none_is_left()


class Deadly(Noisy):
    """Each batch of four in order kills the worker that makes it first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(16)
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        if index % 4 == 2:
            die_once(self.folder / f"{index}")
        return super().__getitem__(index)


class DeadlyLanes(NoisyShards):
    """Each whole batch of four in each shard does the same."""

    def __init__(self, folder: Path) -> None:
        super().__init__((5, 8, 4), lanes=3)
        self.folder = folder

    def sample(self, shard: int, number: int) -> Any:
        if number % 4 == 2:
            die_once(self.folder / f"{shard}-{number}")
        return super().sample(shard, number)


DEADLY = {"order": Deadly, "lanes": DeadlyLanes}


def die_once(mark: Path) -> None:
    """Kill this process once in the middle of a sample, as the kernel does out of memory."""
    if mark.parent.exists() and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("nodes", "kind", "num_workers"),
    [
        ("cluster", "lanes", 1),
        ("two_nodes", "order", 3),
    ],
)
def test_an_actor_is_killed_at_every_batch(
    request: pytest.FixtureRequest, tmp_path: Path, nodes: str, kind: str, num_workers: int
) -> None:
    request.getfixturevalue(nodes)
    folder, given = tmp_path / "killed", {"batch_size": 4, "seed": 1}
    expected = [copy_of(batch) for batch in StatefulGPULoader(DEADLY[kind](folder), **given)]
    folder.mkdir()  # from now on it is deadly
    given |= {"num_workers": num_workers, "worker_type": WORKERS}
    loader = StatefulGPULoader(DEADLY[kind](folder), **given)
    with pytest.warns(RuntimeWarning, match="worker"):
        found = [copy_of(batch) for batch in loader]
    assert same(found, expected)
    assert loader.worker_restarts >= len(list(folder.iterdir())) == 4
    assert_none_is_left()


class Located(Noisy):
    """Samples contain the node on which they were made."""

    def __getitem__(self, index: int) -> Any:
        return {**super().__getitem__(index), "node": ray.get_runtime_context().get_node_id()}


@pytest.mark.parametrize("means", ["placement group", "node"])
def test_workers_are_where_they_are_asked_for(two_nodes: Any, means: str) -> None:
    """In the second bundle of a group with one on each node, or on one node by its name."""
    group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
    assert group.wait(seconds(30))
    node = placement_group_table(group)["bundles_to_node_id"][1]
    scheduling: Any = NodeAffinitySchedulingStrategy(node, soft=False)
    if means == "placement group":
        scheduling = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=1)
    workers = RayWorkers(num_cpus=0.5, scheduling=scheduling)
    loader = StatefulGPULoader(Located(16), 4, seed=1, num_workers=1, worker_type=workers)
    found = [copy_of(batch) for batch in loader]
    assert {name for batch in found for name in batch.pop("node")} == {node}
    assert same(found, [copy_of(batch) for batch in StatefulGPULoader(Noisy(16), 4, seed=1)])
    assert_none_is_left()
    remove_placement_group(group)


def test_a_hanging_node_is_given_up(two_nodes: Any) -> None:
    """All its processes are stopped. Actors there exceed the timeout, and others do their work."""
    given = {"batch_size": 4, "seed": 1, "shuffle": True}
    expected = [copy_of(batch) for batch in StatefulGPULoader(Noisy(40), **given)]
    given |= {"num_workers": 2, "worker_type": WORKERS, "max_worker_restarts": 20}
    loader = StatefulGPULoader(Located(40), timeout=seconds(0.5), prefetch_factor=1, **given)
    batches = iter(loader)
    found = [copy_of(next(batches))]
    name = found[0]["node"][0]
    node = next(node for node in two_nodes.worker_nodes if node.node_id == name)
    stopped = processes_of(node)
    for process in stopped:
        process.suspend()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found += [copy_of(batch) for batch in batches]
    finally:
        two_nodes.remove_node(node, allow_graceful=False)
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    for batch in found:
        del batch["node"]
    assert same(found, expected)
    assert loader.worker_restarts
    assert_none_is_left()


def test_another_cluster_resumes_after_the_head_is_lost() -> None:
    command = [sys.executable, "-m", "tests.integrations.ray_head_loss"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(60))
    assert done.stdout.endswith("the same\n"), done.stdout + done.stderr
    assert "the head of the Ray cluster at" in done.stdout


def test_a_head_is_lost_when_several_tries_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One try proves nothing, even if this process was stopped for long before it."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("stateful_gpu_loader.integrations.ray.time", clock)
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = Head(f"127.0.0.1:{server.getsockname()[1]}")
        now[0] = 6.0
        assert head.check() is None
    found = []
    for now[0] in (100.0, 106.0, 112.0, 118.0, 124.0, 131.0):
        found.append(head.check())
    assert found[:5] == [None] * 5
    assert "has not been reached for 31 seconds" in found[5].reason
    assert head.is_lost
