"""Loaders whose workers are actors of a real Ray cluster of two nodes (F8)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.integrations.ray import RayWorkers
from tests.conformance import copy_of, same, uninterrupted
from tests.map_datasets import Noisy
from tests.ray_clusters import (
    FILTERS,
    add_node,
    assert_none_is_left,
    running_cluster,
    wait_until_given_up,
)
from tests.stream_kinds import KINDS
from tests.trainer_data import photos

pytestmark = FILTERS
WORKERS = RayWorkers(num_cpus=0.5)
RECIPES = [T.RandomResizedCrop(48), T.RandomHorizontalFlip(), T.Normalize([0.5] * 3, [0.25] * 3)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Cluster whose head, with this process, has no room for workers; one node has room."""
    with running_cluster() as made:
        add_node(made)
        yield made


@pytest.fixture(scope="module")
def two_nodes(cluster: Any) -> Any:
    """Cluster with a second node, from the first test on that asks for it."""
    add_node(cluster)
    return cluster


def assert_as_on_one_machine(kind: str, num_workers: int, workers: RayWorkers) -> None:
    """Compare batches and states of two epochs."""
    given = {"num_workers": num_workers, "persistent_workers": True}
    expected, states = uninterrupted(KINDS[kind](**given, worker_type="process"), 2)
    found, of_found = uninterrupted(KINDS[kind](**given, worker_type=workers), 2)
    assert same(found, expected)
    assert of_found == states
    assert_none_is_left()


@pytest.mark.parametrize("kind", ["shards", "plain iterable"])
def test_actors_make_the_batches_of_one_machine(cluster: Any, kind: str) -> None:
    """A fake cluster, which pickles its workers in the same way, tests every other kind."""
    assert_as_on_one_machine(kind, 2, WORKERS)


def make_photos(folder: Path, **arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        photos(folder),
        batch_size=4,
        shuffle=True,
        seed=2,
        transform=RECIPES,
        **arguments,
    )


def test_pixels_are_those_of_one_machine(cluster: Any, tmp_path: Path) -> None:
    """From several threads of each actor."""
    workers = RayWorkers(num_cpus=0.5, threads=2)
    expected, states = uninterrupted(make_photos(tmp_path), 1)
    found, of_found = uninterrupted(make_photos(tmp_path, num_workers=2, worker_type=workers), 1)
    assert same(found, expected)
    assert of_found == states
    assert_none_is_left()


def make(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        Noisy(40), **{"batch_size": 4, "seed": 1, "shuffle": True, **arguments}
    )


def test_a_node_that_is_lost_and_one_that_is_added_change_nothing(cluster: Any) -> None:
    """The only node with room is lost; the stream waits, and continues when another one comes."""
    expected = [copy_of(batch) for batch in make()]
    batches = iter(make(num_workers=2, worker_type=WORKERS))
    found = [copy_of(next(batches))]
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
    add_node(cluster)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found += [copy_of(batch) for batch in batches]
    assert same(found, expected)
    assert_none_is_left()
    wait_until_given_up(node)


class Refuses(Noisy):
    """Cannot read one of its samples."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise KeyError(f"nothing at {index}")
        return super().__getitem__(index)


def test_an_exception_keeps_its_type_and_the_loader_continues(cluster: Any) -> None:
    """An interrupted pass leaves no actor."""
    loader = StatefulGPULoader(Refuses(40), batch_size=4, num_workers=1, worker_type=WORKERS)
    batches = iter(loader)
    first = next(batches)
    with pytest.raises(KeyError, match=r"nothing at 5[\s\S]* 5"):
        next(batches)
    assert [batch["index"].tolist() for batch in (first, next(batches))] == [
        [0, 1, 2, 3],
        [8, 9, 10, 11],
    ]
    del batches
    assert_none_is_left()


def test_a_batch_that_a_node_cannot_make_is_named(cluster: Any) -> None:
    """The dataset's class exists in this process alone, and needs a resource that no node has."""

    class Local(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

        def __reduce__(self) -> Any:
            return _made_here, (os.getpid(),)

    loader = StatefulGPULoader(Local(), num_workers=1, worker_type=WORKERS)
    with pytest.raises(RuntimeError, match="another process"):
        next(iter(loader))
    assert_none_is_left()


def _made_here(pid: int) -> Any:
    if os.getpid() != pid:
        raise OSError("it belongs to another process")
    return range(4)


def test_three_actors_on_two_nodes(two_nodes: Any) -> None:
    """Neither node has room for all of them."""
    assert_as_on_one_machine("dataset with state", 3, RayWorkers(num_cpus=1))
