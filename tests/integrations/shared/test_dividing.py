"""A loader rebuilt for one rank: what stays, what is divided, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from stateful_gpu_loader import (
    DistributedShuffledSampler,
    ShuffledSampler,
    StatefulGPULoader,
    StateMismatch,
    WeightedSampler,
)
from stateful_gpu_loader.integrations.shared.dividing import check_divides_itself, divided
from tests.conformance import differing
from tests.torchdata_objects import Stream
from tests.trainer_data import image_loader, photos, seen, tars


class WithExtra(StatefulGPULoader[Any]):
    """A subclass with an additional argument, kept as an attribute."""

    def __init__(self, dataset: Any, extra: str = "none", **arguments: Any) -> None:
        super().__init__(dataset, **arguments)
        self.extra = extra


def delivered(loader: StatefulGPULoader[Any]) -> list[list[int]]:
    return [[batch] if loader.batch_size is None else batch.tolist() for batch in loader]


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": True},
        {"shuffle": False},
        {"sampler": ShuffledSampler(range(24))},
        {"sampler": WeightedSampler([1.0, 2.0, 3.0] * 8, num_samples=24)},
        {"sampler": SequentialSampler(range(24))},
        {"shuffle": True, "batch_size": None},
        {"shuffle": True, "drop_last": True, "batch_size": 5},
    ],
)
@pytest.mark.parametrize("num_replicas", [None, "auto"])
def test_order_of_the_loader_is_divided(
    arguments: dict[str, Any], num_replicas: int | str | None
) -> None:
    """The ranks' global batches are those that the loader has alone."""
    given = {"batch_size": 4, "seed": 3, "num_replicas": num_replicas, **arguments}
    ranks = [
        divided(StatefulGPULoader(range(24), **given), num_replicas=2, rank=rank) for rank in (0, 1)
    ]
    assert [(rank.num_replicas, rank.rank) for rank in ranks] == [(2, 0), (2, 1)]
    alone = StatefulGPULoader(
        range(24), **{**given, "num_replicas": None, "batch_size": 2 * (given["batch_size"] or 1)}
    )
    steps = zip(delivered(ranks[0]), delivered(ranks[1]), strict=True)
    pairs = [sorted(one + other) for one, other in steps]
    assert pairs == [sorted(batch) for batch in delivered(alone)]


def test_everything_else_stays_as_it_was(tmp_path: Path) -> None:
    """Every argument is an attribute of the same name, of a subclass, too."""
    given = {"batch_size": 4, "num_workers": 2, "prefetch_factor": 3, "drop_last": True}
    original = WithExtra(photos(tmp_path), extra="kept", seed=5, on_bad_sample="drop", **given)
    rank = divided(original, num_replicas=3, rank=2)
    assert type(rank) is WithExtra
    changed = {"num_replicas": (None, 3), "rank": (None, 2)}
    for name in vars(original):
        if not name.startswith("_") and name not in ("sampler", "batch_sampler"):
            before, after = getattr(original, name), getattr(rank, name)
            assert (before, after) == changed.get(name, (before, before)), name
    assert original.num_replicas is None


def test_loader_of_one_rank_and_divided_ones_stay_themselves() -> None:
    """Given numbers of ranks, a DistributedSampler, and the user's iterables."""
    for loader in (
        StatefulGPULoader(range(8), num_replicas=4, rank=1),
        StatefulGPULoader(range(8), sampler=DistributedSampler(range(8), 2, 0)),
        StatefulGPULoader(range(8), sampler=DistributedShuffledSampler(range(8), 2, 0)),
        StatefulGPULoader(
            range(8), batch_sampler=BatchSampler(DistributedSampler(range(8), 2, 0), 2, False)
        ),
        StatefulGPULoader(Stream(8)),
    ):
        assert divided(loader, num_replicas=2, rank=0) is loader
    alone = StatefulGPULoader(range(8), sampler=RandomSampler(range(8)))
    assert divided(alone, num_replicas=1, rank=0) is alone


def test_lanes_are_divided(tmp_path: Path) -> None:
    """Each sample comes once."""
    shards = tars(tmp_path / "tars")
    ranks = [divided(image_loader(shards), num_replicas=2, rank=rank) for rank in (0, 1)]
    numbers = [number for rank in ranks for batch in rank for number in seen(batch)[0]]
    assert set(numbers) == set(range(24))
    assert [rank.shuffle for rank in ranks] == [True, True]


@pytest.mark.parametrize(
    "arguments",
    [
        {"sampler": RandomSampler(range(8))},
        {"batch_sampler": BatchSampler(RandomSampler(range(8)), 2, False)},
        {"batch_sampler": [[0, 1], [2, 3]]},
    ],
)
def test_sampler_that_gives_all_ranks_the_same_is_refused(arguments: dict[str, Any]) -> None:
    """By its name, with a remedy."""
    loader = StatefulGPULoader(range(8), **arguments)
    name = type(next(iter(arguments.values()))).__name__
    message = f"num_replicas = 2.*{name}.*num_replicas="
    with pytest.raises(ValueError, match=message):
        divided(loader, num_replicas=2, rank=0)


@pytest.mark.parametrize("num_replicas", [None, "auto"])
def test_loaded_state_is_carried_over(num_replicas: str | None) -> None:
    """A state loaded before the division, at any place, with its seed."""
    given = {"batch_size": 2, "shuffle": True, "num_replicas": num_replicas}
    for seed, delivered_before in ((3, 0), (3, 2), (None, 0), (None, 2), (None, 6)):
        saved = StatefulGPULoader(
            range(12), generator=torch.Generator().manual_seed(7), seed=seed, **given
        )
        whole = delivered(saved)
        batches = iter(saved)
        expected = [batch for batch, _ in zip(delivered_in(saved, 1), range(6), strict=True)]
        for _ in range(delivered_before):
            next(batches)
        loaded = StatefulGPULoader(range(12), seed=seed, **given)
        loaded.load_state_dict(saved.state_dict())
        ranks = [divided(loaded, num_replicas=2, rank=rank) for rank in (0, 1)]
        rest = [number for rank in ranks for batch in delivered(rank) for number in batch]
        left = [number for batch in expected[delivered_before:] for number in batch]
        assert sorted(rest) == sorted(left)
        assert whole != expected
        assert {rank.state_dict()["seed"] for rank in ranks} == {saved.state_dict()["seed"]}


def delivered_in(loader: StatefulGPULoader[Any], epoch: int) -> list[list[int]]:
    """Return the batches of another loader with the same seed."""
    other = StatefulGPULoader(
        range(12), batch_size=2, shuffle=True, seed=loader.state_dict()["seed"]
    )
    other.set_epoch(epoch)
    return delivered(other)


@pytest.mark.parametrize("through_sampler", [False, True])
def test_epoch_that_was_set_is_carried_over(through_sampler: bool) -> None:
    """No undetermined seed is fixed, since the ranks' own generators differ."""
    loader = StatefulGPULoader(range(12), batch_size=2, shuffle=True)
    (loader.sampler if through_sampler else loader).set_epoch(3)
    ranks = [divided(loader, num_replicas=2, rank=rank) for rank in (0, 1)]
    assert [rank.state_dict()["epoch"] for rank in ranks] == [3, 3]
    assert [rank.state_dict()["seed"] for rank in ranks] == [0, 0]
    assert "settled" not in loader._engine.seed._once


def test_pass_that_was_only_looked_into_is_not_carried_over() -> None:
    """No batch is lost to training, as on one rank. A whole pass counts as an epoch."""
    loader = StatefulGPULoader(range(12), batch_size=2, shuffle=True)
    next(iter(loader))
    first = divided(loader, num_replicas=2, rank=0).state_dict()
    assert (first["epoch"], first["position"], first["seed"]) == (0, 0, 0)
    assert len(list(loader)) == 6
    assert divided(loader, num_replicas=2, rank=0).state_dict()["epoch"] == 2


def test_loaded_lanes_are_carried_over(tmp_path: Path) -> None:
    """The rest of each lane, on its rank."""
    shards = tars(tmp_path / "tars")
    saved = image_loader(shards)
    batches = iter(saved)
    before = [number for _ in range(2) for number in seen(next(batches))[0]]
    loaded = image_loader(shards)
    loaded.load_state_dict(saved.state_dict())
    ranks = [divided(loaded, num_replicas=2, rank=rank) for rank in (0, 1)]
    rest = [number for rank in ranks for batch in rank for number in seen(batch)[0]]
    assert set(rest) == set(range(24)) - set(before)


def test_state_that_cannot_be_carried_over_is_refused() -> None:
    """Batches that were delivered out of order belong to one batch size."""
    given = {"batch_size": 2, "seed": 1, "num_workers": 1, "in_order": False}
    loader = StatefulGPULoader(range(12), **given)
    loader.load_state_dict({**loader.state_dict(), "ahead": "[2]"})
    with pytest.raises(StateMismatch, check=differing("global_batch_size")):
        divided(loader, num_replicas=2, rank=0)


class Folder(StatefulGPULoader[Any]):
    def __init__(self, folder: str, size: int) -> None:
        super().__init__(range(8), batch_size=size, shuffle=True, seed=1)


class KeptFolder(StatefulGPULoader[Any]):
    def __init__(self, folder: str) -> None:
        super().__init__(range(8), shuffle=True, seed=1)
        self.folder = folder


@pytest.mark.parametrize(
    ("loader", "lacking"),
    [
        (Folder("x", 2), "folder, size, and it has no attribute of that name"),
        (KeptFolder("x"), "no num_replicas and no rank"),
    ],
)
def test_constructor_that_cannot_be_called_again_is_reported(loader: Any, lacking: str) -> None:
    """The error names the missing argument and the remedy."""
    remedy = r"Remedy: keep each argument.*num_replicas=2, rank=1"
    with pytest.raises(TypeError, match=f"Folder .*{lacking}.*{remedy}"):
        divided(loader, num_replicas=2, rank=1)


def test_an_iterable_must_say_that_it_divides_itself() -> None:
    """Otherwise each process would get all of it."""

    loader = StatefulGPULoader(Stream(8), batch_size=2)
    check_divides_itself(loader, 1)
    with pytest.raises(ValueError, match="Stream"):
        check_divides_itself(loader, 2)
    loader.dataset.num_replicas = 2
    check_divides_itself(loader, 2)
