"""Sharded datasets resume exactly, on any workers."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.conformance import (
    assert_exact_on_all,
    assert_exact_resume,
    assert_same_rest,
    copy_of,
    same,
    through_json,
    uninterrupted,
)
from tests.datasets.shards import Loader, NoisyShards, Numbers, PhotoShards, identity, indices_of
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.map_datasets import add_noise, mix_batch

__all__ = ["fake_gpu"]

SIZES = (5, 0, 3, 8, 1)
PROCESSES: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 1, "prefetch_factor": 4},
    {"num_workers": 3, "prefetch_factor": 1, "in_order": False},
)
THREADS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 1, "prefetch_factor": 1},
    {"num_workers": 3, "prefetch_factor": 4},
    {"num_workers": 2, "prefetch_factor": 3, "worker_type": "process"},
    {"num_workers": 6, "threads_per_process": 3},
)
RECIPES = [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]


def make(dataset: Any = None, **arguments: Any) -> Loader:
    dataset = NoisyShards(SIZES, lanes=3, buffer=9) if dataset is None else dataset
    return StatefulGPULoader(dataset, **{"batch_size": 4, "seed": 3, "shuffle": True, **arguments})


def make_photos(**arguments: Any) -> Loader:
    return make(PhotoShards(), **{"batch_size": 3, "transform": RECIPES, **arguments})


def blend(batch: list[torch.Tensor]) -> list[Any]:
    """As MixUp: one draw for the whole batch, from the global generators."""
    weight = random.random() + float(torch.rand(()))
    return [batch[0].float() * weight, batch[1]]


KINDS: dict[str, dict[str, Any]] = {
    "in order": {"shuffle": False},
    "windows": {},
    "one by one": {"batch_size": 1},
    "not collated": {"batch_size": None},
    "larger than everything": {"batch_size": 100},
    "whole batches only": {"drop_last": True},
    "own collate": {"collate_fn": mix_batch},
    "transform": {"transform": add_noise},
    "next epoch": {"on_epoch_boundary": "empty", "shuffle": False, "batch_size": 2},
}


@pytest.mark.fuzz
@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_at_every_batch(kind: str, lanes: int) -> None:
    """Three epochs; also with more lanes than shards."""
    dataset = NoisyShards(SIZES, lanes=lanes, buffer=9)
    assert_exact_resume(partial(make, dataset, **KINDS[kind]), epochs=3)


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_comes_once(kind: str) -> None:
    """In each epoch, each in another order if it is shuffled."""
    loader = make(**KINDS[kind])
    epochs = [indices_of(loader) for _ in range(3)]
    for found in epochs:
        assert len(set(found)) == len(found)
        if not loader.drop_last:
            assert sorted(found) == Numbers(SIZES).all()
    assert (epochs[0] == epochs[1]) is not loader.shuffle


def test_what_is_shuffled() -> None:
    """Shards by the epoch, and samples within a window of a lane."""
    dataset = Numbers([40] * 6, lanes=2, buffer=16)
    loader = make(dataset, batch_size=8)
    first, second = indices_of(loader), indices_of(loader)
    assert [i // 1000 for i in first[::8]] != [i // 1000 for i in second[::8]]
    for start in range(0, 240, 8):
        window = first[start : start + 8]
        assert max(window) - min(window) == 7, "a window is 8 neighbours of a shard"
        assert window != sorted(window)


@pytest.mark.processes
@pytest.mark.parametrize("shuffle", [False, True])
def test_worker_processes_deliver_the_same(shuffle: bool) -> None:
    """From each execution to each other, at every batch; in_order=False keeps the order."""
    assert_exact_on_all(partial(make, shuffle=shuffle, batch_size=6), PROCESSES)


@pytest.mark.processes
def test_threads_and_processes_deliver_the_same_images() -> None:
    """Recipes with randomness, pixel by pixel."""
    assert_exact_on_all(partial(make_photos, batch_size=4), THREADS)


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("build", [make, make_photos])
def test_start_methods_and_persistent_workers(build: Callable[..., Loader], method: str) -> None:
    expected, states = uninterrupted(build(), 3)
    arguments = {
        "num_workers": 2,
        "multiprocessing_context": method,
        "persistent_workers": True,
        "worker_type": "process",
    }
    loader = build(**arguments)
    assert same([[copy_of(batch) for batch in loader] for _ in range(3)], expected)
    for place in ((0, 2), (1, 1), (1, 0)):
        for _ in loader:
            break
        loader.load_state_dict(states[place])
        assert_same_rest(loader, expected, place, 3)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shuffle": False, "batch_size": 2},
        {"batch_size": None},
        {"collate_fn": identity},
        {"transform": None, "batch_size": 1},
        {"batch_transform": blend},
        {"drop_last": True},
    ],
)
def test_images(changes: dict[str, Any]) -> None:
    """Real JPEGs."""
    assert_exact_resume(partial(make_photos, **changes), other=THREADS[:2])


def test_images_on_a_device(fake_gpu: FakeGpu) -> None:
    """Decoded and augmented there; the same samples as on the CPU."""
    build = partial(make_photos, device="cuda", batch_transform=blend)
    assert_exact_resume(build, other=THREADS[:1])
    assert indices_of(build()) == indices_of(make_photos())


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_states_follow_the_uninterrupted_run(num_workers: int) -> None:
    """Whoever resumes goes through the same states, text by text."""
    for counted in (False, True):
        build = partial(make, NoisyShards(SIZES, lanes=3, buffer=9, counted=counted))
        _, states = uninterrupted(build(), 2)
        for epoch, start in states:
            if epoch == 2:
                continue
            loader = build(num_workers=num_workers)
            loader.load_state_dict(through_json(states[epoch, start]))
            for delivered, _ in enumerate(loader, start + 1):
                assert loader.state_dict() == states[epoch, delivered]
            assert loader.state_dict() == states[epoch + 1, 0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_ago(num_workers: int) -> None:
    """The state of an earlier batch leads there."""
    expected, states = uninterrupted(make(), 1)
    loader = make(num_workers=num_workers)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    for ago in range(5):
        assert loader.state_dict(batches_ago=ago) == states[0, 4 - ago]
    resumed = make()
    resumed.load_state_dict(loader.state_dict(batches_ago=2))
    assert_same_rest(resumed, expected, (0, 2), 1)


def test_set_epoch() -> None:
    """A pass of an epoch that was asked for is that epoch's; a resumed one keeps its own."""
    expected, states = uninterrupted(make(), 4)
    loader = make()
    loader.set_epoch(3)
    assert same([copy_of(batch) for batch in loader], expected[3])
    loader.load_state_dict(states[1, 2])
    loader.set_epoch(3)
    with pytest.warns(UserWarning, match="stays in epoch 1"):
        assert same([copy_of(batch) for batch in loader], expected[1][2:])


@pytest.mark.processes
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_behind_the_last_batch_comes_the_next_epoch(shuffle: bool, counted: bool) -> None:
    """``on_epoch_boundary="next_epoch"``; nothing is read again."""
    build = partial(make, NoisyShards(SIZES, lanes=3, counted=counted), shuffle=shuffle)
    expected, states = uninterrupted(build(), 2)
    last = len(expected[0])
    for num_workers in (0, 2):
        resumed = build(num_workers=num_workers, on_epoch_boundary="next_epoch")
        resumed.load_state_dict(states[0, last])
        assert same([copy_of(batch) for batch in resumed], expected[1])
        empty = build(num_workers=num_workers)
        empty.load_state_dict(states[0, last])
        assert list(empty) == []
        assert same([copy_of(batch) for batch in empty], expected[1])


@pytest.mark.fuzz
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_another_batch_size_in_the_middle(shuffle: bool, counted: bool) -> None:
    """Every sample once."""
    dataset = NoisyShards(lanes=4, buffer=12, counted=counted)
    expected, states = uninterrupted(make(dataset, shuffle=shuffle), 1)
    for (epoch, delivered), state in states.items():
        for size in (1, 3, 7, 100):
            if epoch:
                continue
            loader = make(dataset, shuffle=shuffle, batch_size=size)
            loader.load_state_dict(state)
            found = indices_of(expected[0][:delivered]) + indices_of(loader)
            assert sorted(found) == dataset.all(), (delivered, size)


def test_the_length_is_that_of_the_epoch() -> None:
    """Known where the samples of all shards are."""
    loader = make(NoisyShards(SIZES, lanes=3, counted=True))
    for _ in range(3):
        assert len(loader) == len(list(loader)) == 5
    with pytest.raises(TypeError):
        len(make())


def test_without_a_loader_of_this_package(tmp_path: Path) -> None:
    """It is an iterable dataset, whose shards workers divide."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for num_workers in (0, 2):
            plain = torch.utils.data.DataLoader(
                Numbers(SIZES), batch_size=None, num_workers=num_workers
            )
            assert sorted(plain) == Numbers(SIZES).all()
        photos = PhotoShards()
        assert [target for _, target in photos] == photos.all()
