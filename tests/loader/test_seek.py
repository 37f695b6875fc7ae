"""seek() reaches any place of a stream like an uninterrupted run, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import FolderSource, NoSuchPlace, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.conformance import assert_same_rest, boundaries, same, uninterrupted
from tests.images import write_photo_folder
from tests.map_datasets import Noisy
from tests.stream_kinds import KINDS, Make

EVERYWHERE = {
    "order",
    "drop_last",
    "one of two ranks",
    "one of three ranks, drop_last",
    "unbatched",
    "epochs of several lengths",
    "weighted draws",
    "mixture",
    "calls",
    "calls for batches",
}
AT_BEGINNINGS = {name for name in KINDS if name.startswith("shards")} | {"calls without length"}


@pytest.mark.parametrize("name", [*KINDS])
def test_every_place_is_reached_as_by_an_uninterrupted_run_or_refused(name: str) -> None:
    make = KINDS[name]
    expected, states = uninterrupted(make(), 2)
    reached = set()
    for place, state in states.items():
        loader = make()
        before = loader.state_dict()
        try:
            loader.seek(epoch=state["epoch"], position=state["position"])
        except NoSuchPlace:
            assert loader.state_dict() == before
            assert same(next(iter(loader)), expected[0][0])
            continue
        reached.add(place)
        assert loader.state_dict() == state
        if place in boundaries(states):
            assert_same_rest(loader, expected, place, min(2, place[0] + 1))
        else:
            assert same(next(iter(loader)), expected[place[0]][place[1]])
    beginnings = {place for place in states if place[1] == 0}
    if name in EVERYWHERE:
        assert reached == set(states)
    else:
        assert reached == (beginnings if name in AT_BEGINNINGS else set())


@pytest.mark.parametrize("workers", [0, 2])
def test_pixels_and_augmentations_are_those_of_the_place(tmp_path: Path, workers: int) -> None:
    write_photo_folder(tmp_path, num_classes=2, per_class=6)

    def make(**arguments: Any) -> StatefulGPULoader[Any]:
        recipes = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.4)]
        return StatefulGPULoader(
            FolderSource(tmp_path),
            **{"batch_size": 4, "shuffle": True, "seed": 3, "transform": recipes, **arguments},
        )

    expected, _ = uninterrupted(make(), 3)
    loader = make(num_workers=workers)
    loader.seek(epoch=1, samples=4)
    assert_same_rest(loader, expected, (1, 1), 3)


def test_a_loader_in_use_is_moved_forth_and_back() -> None:
    make: Make = KINDS["order"]
    expected, _ = uninterrupted(make(), 3)
    loader = make()
    idle, used = iter(loader), iter(loader)
    next(used)
    for place, position in (((2, 1), 4), ((0, 3), 12), ((0, 0), 0)):
        loader.seek(epoch=place[0], position=position)
        assert_same_rest(loader, expected, place, 3)
    loader.seek(epoch=1, position=8)
    assert same(next(idle), expected[1][2]), "an iterator that has delivered nothing follows"


def test_one_place_in_three_ways() -> None:
    states = []
    for place in ({"position": 8}, {"samples": 8}, {"percent": 40}):  # 40 percent of 23 are 9.2
        loader = KINDS["order"]()
        loader.seek(epoch=3, **place)
        states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]
    assert (states[0]["epoch"], states[0]["position"]) == (3, 8)


def test_a_percentage_is_the_decimal_that_was_written() -> None:
    loader = StatefulGPULoader(range(1000), batch_size=1)
    loader.seek(epoch=0, percent=0.3)
    assert loader.state_dict()["position"] == 3
    loader.seek(epoch=0, percent=100)
    assert loader.state_dict()["position"] == 1000


def test_an_epoch_of_its_own_length_is_measured_by_that_length() -> None:
    make = KINDS["epochs of several lengths"]
    loader = make()
    lengths = []
    for epoch in range(4):
        loader.seek(epoch=epoch, percent=100)
        lengths.append(loader.state_dict()["position"])
        with pytest.raises(NoSuchPlace, match=f"has {lengths[-1]} samples"):
            loader.seek(epoch=epoch, position=lengths[-1] + 1)
    assert len(set(lengths)) > 1


def test_nothing_is_read_or_drawn_before_the_first_batch() -> None:
    class Unread(Noisy):
        def __getitem__(self, index: int) -> Any:
            raise AssertionError

    loader = StatefulGPULoader(Unread(10**11), batch_size=4, shuffle=True, seed=1)
    loader.seek(epoch=5, percent=99.5)
    assert loader.batches_left == 125_000_000


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ({}, "0 of them were given"),
        ({"position": 1, "percent": 1.0}, "2 of them were given"),
        ({"position": 24}, "has 23 samples of all ranks together"),
        ({"samples": -1}, "samples -1 lies outside"),
        ({"percent": 100.5}, "outside 0 to 100"),
        ({"percent": float("nan")}, "outside 0 to 100"),
        ({"epoch": -1, "position": 0}, "must be an int from 0"),
        ({"epoch": 2**32 - 1, "position": 0}, "must be an int from 0"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(place: dict[str, Any], says: str) -> None:
    loader = KINDS["order"]()
    before = loader.state_dict()
    with pytest.raises(NoSuchPlace, match=says):
        loader.seek(**{"epoch": 0, **place})
    assert loader.state_dict() == before


@pytest.mark.parametrize(
    ("name", "place", "says"),
    [
        ("a sampler of a list", {"position": 4}, "the order comes from a sampler"),
        ("dataset with state", {"position": 4}, "StatefulDataset, is iterated or has a state"),
        ("shards", {"position": 1}, "cursors only reading moves"),
        ("calls without length", {"percent": 50}, "number of samples in an epoch is not known"),
        ("calls for batches", {"samples": 2}, "how many samples a call"),
    ],
)
def test_a_place_that_cannot_be_computed_is_explained(
    name: str, place: dict[str, Any], says: str
) -> None:
    with pytest.raises(NoSuchPlace, match=says):
        KINDS[name]().seek(epoch=0, **place)
