"""Sharded datasets: every sample once, what is shuffled, epochs and lengths."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import copy_of, loaded, same, uninterrupted
from tests.datasets.shards import Loader, NoisyShards, Numbers, PhotoShards, indices_of
from tests.fake_gpu import fake_gpu

__all__ = ["fake_gpu"]

SIZES = (5, 0, 3, 8, 1)


def make(dataset: Any = None, **arguments: Any) -> Loader:
    dataset = NoisyShards(SIZES, lanes=3, buffer=9) if dataset is None else dataset
    return StatefulGPULoader(dataset, **{"batch_size": 4, "seed": 3, "shuffle": True, **arguments})


@pytest.mark.parametrize(
    "arguments", [{}, {"shuffle": False}, {"batch_size": None}, {"drop_last": True}], ids=str
)
def test_every_sample_comes_once(arguments: dict[str, Any]) -> None:
    """In each epoch; if shuffled, each epoch has another order."""
    loader = make(**arguments)
    epochs = [indices_of(loader) for _ in range(3)]
    for found in epochs:
        assert len(set(found)) == len(found)
        if not loader.drop_last:
            assert sorted(found) == Numbers(SIZES).all()
    assert (epochs[0] == epochs[1]) is not loader.shuffle


def test_shuffle_permutes_shards_and_windows() -> None:
    """The epoch shuffles shards, and a window shuffles samples within a lane."""
    dataset = Numbers([40] * 6, lanes=2, buffer=16)
    loader = make(dataset, batch_size=8)
    first, second = indices_of(loader), indices_of(loader)
    assert [i // 1000 for i in first[::8]] != [i // 1000 for i in second[::8]]
    for start in range(0, 240, 8):
        window = first[start : start + 8]
        assert max(window) - min(window) == 7, "a window is 8 neighbours of a shard"
        assert window != sorted(window)


def test_set_epoch() -> None:
    """A pass has the epoch that was set; a resumed pass keeps its own."""
    expected, states = uninterrupted(make(), 4)
    loader = make()
    loader.set_epoch(3)
    assert same([copy_of(batch) for batch in loader], expected[3])
    loader.load_state_dict(states[1, 2])
    loader.set_epoch(3)
    with pytest.warns(UserWarning, match="stays in epoch 1"):
        assert same([copy_of(batch) for batch in loader], expected[1][2:])


@pytest.mark.fuzz
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_another_batch_size_in_the_middle(shuffle: bool, counted: bool) -> None:
    dataset = NoisyShards(lanes=4, buffer=12, counted=counted)
    expected, states = uninterrupted(make(dataset, shuffle=shuffle), 1)
    for (epoch, delivered), state in states.items():
        for size in (1, 3, 7, 100):
            if epoch:
                continue
            loader = loaded(make(dataset, shuffle=shuffle, batch_size=size), state)
            found = indices_of(expected[0][:delivered]) + indices_of(loader)
            assert sorted(found) == dataset.all(), (delivered, size)


def test_the_length_is_that_of_the_epoch() -> None:
    """If the numbers of samples of all shards are known."""
    loader = make(NoisyShards(SIZES, lanes=3, counted=True))
    for _ in range(3):
        assert len(loader) == len(list(loader)) == 5
    with pytest.raises(TypeError):
        len(make())


def test_without_a_loader_of_this_package(tmp_path: Path) -> None:
    """It is an iterable dataset, whose workers divide the shards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for num_workers in (0, 2):
            plain = torch.utils.data.DataLoader(
                Numbers(SIZES), batch_size=None, num_workers=num_workers
            )
            assert sorted(plain) == Numbers(SIZES).all()
        photos = PhotoShards()
        assert [target for _, target in photos] == photos.all()
