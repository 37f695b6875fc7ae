"""A loader built again as one rank's: what stays, what is divided, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from stateful_gpu_loader import (
    DistributedShuffledSampler,
    ShuffledSampler,
    StatefulGPULoader,
    WeightedSampler,
)
from stateful_gpu_loader.integrations.shared.dividing import check_divides_itself, divided
from tests.trainer_data import image_loader, photos, seen, tars


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(8))


class WithExtra(StatefulGPULoader[Any]):
    """A subclass with an argument of its own, which is kept as an attribute."""

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
    """F4, B3: the ranks' global batches are those that the loader has alone."""
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
    """A1: every argument is an attribute of the same name, of a subclass, too."""
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
    """F4: numbers of ranks that were given, a DistributedSampler, and the user's iterables."""
    for loader in (
        StatefulGPULoader(range(8), num_replicas=4, rank=1),
        StatefulGPULoader(range(8), sampler=DistributedSampler(range(8), 2, 0)),
        StatefulGPULoader(range(8), sampler=DistributedShuffledSampler(range(8), 2, 0)),
        StatefulGPULoader(
            range(8), batch_sampler=BatchSampler(DistributedSampler(range(8), 2, 0), 2, False)
        ),
        StatefulGPULoader(Numbers()),
    ):
        assert divided(loader, num_replicas=2, rank=0) is loader
    alone = StatefulGPULoader(range(8), sampler=RandomSampler(range(8)))
    assert divided(alone, num_replicas=1, rank=0) is alone


def test_lanes_are_divided(tmp_path: Path) -> None:
    """F4, B5: each sample comes once."""
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
    """F4: by its name, with what to do."""
    loader = StatefulGPULoader(range(8), **arguments)
    name = type(next(iter(arguments.values()))).__name__
    with pytest.raises(ValueError, match=f"num_replicas = 2, and the loader's {name}.*Remedy"):
        divided(loader, num_replicas=2, rank=0)


def test_an_iterable_must_say_that_it_divides_itself() -> None:
    """A1: else each process would get all of it."""

    loader = StatefulGPULoader(Numbers(), batch_size=2)
    check_divides_itself(loader, 1)
    with pytest.raises(ValueError, match="each would get all samples of the Numbers"):
        check_divides_itself(loader, 2)
    loader.dataset.num_replicas = 2
    check_divides_itself(loader, 2)
