"""Reported places and deliveries are those of real loaders of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import (
    CallableSource,
    DistributedShuffledSampler,
    FolderSource,
    MixedDataset,
    NoSuchPlace,
    ShuffledSampler,
    StatefulGPULoader,
    StateMismatch,
    WeightedSampler,
)
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.samplers import (
    BalancedSampler,
    Blocks,
    RepeatedSampler,
    ShardSampler,
    SubsetSampler,
)
from stateful_gpu_loader.tools.which import Placed, epoch_of
from tests.conformance import through_json
from tests.images import write_photo_folder
from tests.map_datasets import Indices
from tests.stream_kinds import KINDS

N = 22
Arguments = dict[str, Any]
WEIGHTS = [1.0 + i % 3 for i in range(N)]

ALONE: dict[str, Callable[[], Arguments]] = {
    "sequential": dict,
    "shuffled": lambda: {"shuffle": True},
    "rounds": lambda: {"sampler": ShuffledSampler(Indices(N), num_samples=50)},
    "with replacement": lambda: {"sampler": ShuffledSampler(Indices(N), replacement=True)},
    "repeated": lambda: {"sampler": RepeatedSampler(Indices(N), 3, num_samples=40)},
    "repeated anywhere": lambda: {"sampler": RepeatedSampler(Indices(N), 2, adjacent=False)},
    "blocks": lambda: {"sampler": ShuffledSampler(Indices(N), locality=Blocks(4, window=2))},
    "a range": lambda: {"sampler": SubsetSampler(range(1, N, 3))},
}
WITH_LOADER: dict[str, Callable[[], Arguments]] = {
    "weighted": lambda: {"sampler": WeightedSampler(WEIGHTS, 30)},
    "weighted once": lambda: {"sampler": WeightedSampler(WEIGHTS, 15, replacement=False)},
    "balanced": lambda: {"sampler": BalancedSampler([i % 3 for i in range(N)])},
    "uneven blocks": lambda: {"sampler": ShuffledSampler(Indices(N), locality=Blocks([5, 0, 17]))},
    "a list": lambda: {"sampler": SubsetSampler([3, 1, 4, 1, 5, 9, 2, 6])},
    "mixture": lambda: {"dataset": MixedDataset([Indices(20), Indices(7)], [0.7, 0.3])},
}
KNOWN = {**ALONE, **WITH_LOADER}


def make(arguments: Arguments, **more: Any) -> StatefulGPULoader[Any]:
    given = {"dataset": Indices(N), "batch_size": 4, "seed": 5, **arguments, **more}
    dataset = given.pop("dataset")
    if isinstance(dataset, MixedDataset):
        given["shuffle"] = True
        given["collate_fn"] = list
    return StatefulGPULoader(dataset, **given)


def delivered(loader: StatefulGPULoader[Any], epochs: int) -> list[list[list[int]]]:
    return [[torch.as_tensor(batch).tolist() for batch in loader] for _ in range(epochs)]


def places(placed: list[Placed]) -> list[tuple[int | None, int | None, int | None]]:
    return [(each.step, each.rank, each.row) for each in placed if each.is_delivered]


@pytest.mark.parametrize(("ranks", "drop_last"), [(1, False), (3, True)])
@pytest.mark.parametrize("name", [name for name in KNOWN if name != "mixture"])
def test_all_places_are_those_of_real_loaders(name: str, ranks: int, drop_last: bool) -> None:
    arguments = {"num_replicas": ranks, "drop_last": drop_last}
    loaders = [make(KNOWN[name](), rank=rank, **arguments) for rank in range(ranks)]
    saved = through_json(loaders[0].state_dict())
    found = [delivered(loader, 2) for loader in loaders]
    loader = None if name in ALONE else make(KNOWN[name](), rank=0, **arguments)
    for epoch in range(2):
        order = epoch_of(saved, epoch=epoch, loader=loader, num_replicas=ranks)
        where: dict[int, list[tuple[int, int, int]]] = {index: [] for index in range(N)}
        for step in range(len(found[0][epoch])):
            together = order.at_step(step)
            for rank in range(ranks):
                batch = found[rank][epoch][step]
                assert [each.index for each in order.at_step(step, rank=rank)] == batch
                assert [each.index for each in together if each.rank == rank] == batch
                for row, index in enumerate(batch):
                    where[index].append((step, rank, row))
        with pytest.raises(NoSuchPlace, match="steps"):
            order.at_step(len(found[0][epoch]))
        for index, wanted in where.items():
            in_order = sorted(wanted, key=lambda place: (place[0], place[2], place[1]))
            assert places(order.of_sample(index)) == in_order
        for position in range(order.end):
            placed = order.at_position(position)
            assert placed in order.of_sample(placed.index)


def test_a_sampler_that_is_given_its_ranks() -> None:
    def loader_of_rank(rank: int) -> StatefulGPULoader[Any]:
        return make({"sampler": DistributedShuffledSampler(Indices(N), 3, rank, seed=5)})

    found = [delivered(loader_of_rank(rank), 1)[0] for rank in range(3)]
    order = epoch_of(loader_of_rank(0).state_dict(), loader=loader_of_rank(0))
    assert order.num_replicas == 3
    for rank in range(3):
        for step, batch in enumerate(found[rank]):
            assert [each.index for each in order.at_step(step, rank=rank)] == batch


def test_the_indices_of_a_mixture_are_those_of_its_concatenation() -> None:
    loader = make(WITH_LOADER["mixture"]())
    order = epoch_of(loader.state_dict(), loader=loader)
    for step, batch in enumerate(loader):
        indices = [each.index for each in order.at_step(step)]
        assert [loader.dataset[index] for index in indices] == list(batch)


def test_an_epoch_of_a_shard() -> None:
    loader = StatefulGPULoader(
        Indices(N),
        batch_size=2,
        sampler=ShardSampler(Indices(N), 2, num_shards=5, shard_id=1, random_shuffle=True),
    )
    saved = loader.state_dict()
    for epoch, batches in enumerate(delivered(loader, 3)):
        order = epoch_of(saved, epoch=epoch, loader=loader)
        assert [[each.index for each in order.at_step(i)] for i in range(len(batches))] == batches


def test_a_query_of_a_hundred_billion_samples_takes_no_scan() -> None:
    huge = 10**11
    saved = StatefulGPULoader(
        Indices(huge), batch_size=512, shuffle=True, seed=1, num_replicas=8, rank=0
    ).state_dict()
    order = epoch_of(saved, epoch=7, num_replicas=8)
    (last,) = order.at_step(huge // 4096, rank=7)[-1:]
    assert last in order.of_sample(last.index)
    assert not order.is_searched
    assert order.at_position(huge - 1).index < huge


@pytest.mark.parametrize("name", WITH_LOADER)
def test_facts_missing_from_a_state_need_the_loader(name: str) -> None:
    with pytest.raises(NoSuchPlace, match="--factory"):
        epoch_of(make(WITH_LOADER[name]()).state_dict())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a sampler of a list", "sampler"),
        ("shards", "shards"),
        ("calls without length", "epoch"),
        *((name, "iterable") for name in KINDS if name.startswith("iterable")),
    ],
)
def test_streams_known_only_by_iterating_are_refused(name: str, says: str) -> None:
    loader = KINDS[name]()
    for given in (None, loader):
        with pytest.raises(NoSuchPlace, match=says):
            epoch_of(loader.state_dict(), loader=given)


def test_calls_of_a_function_have_their_own_positions() -> None:
    saved = StatefulGPULoader(CallableSource(lambda info: 0, length=9), batch_size=2).state_dict()
    (placed,) = epoch_of(saved, num_replicas=1).of_sample(5)
    assert (placed.position, placed.step, placed.row) == (5, 2, 1)


def test_ranks_that_are_not_given_are_unknown() -> None:
    saved = make({"shuffle": True}, num_replicas=2, rank=1).state_dict()
    order = epoch_of(saved)
    assert order.unknown is not None
    (placed, *_) = order.at_step(1)
    assert (placed.step, placed.rank, placed.row) == (1, None, None)
    with pytest.raises(NoSuchPlace, match="ranks"):
        order.at_step(1, rank=0)
    for ranks, says in ((3, "3 ranks"), (0, "0 ranks")):
        with pytest.raises(NoSuchPlace, match=says):
            epoch_of(saved, num_replicas=ranks)


def test_the_ranks_come_from_the_loader() -> None:
    two = make({"shuffle": True}, num_replicas=2, rank=1)
    auto = make({"shuffle": True}, num_replicas="auto")
    single = make({"shuffle": True})
    assert epoch_of(two.state_dict(), loader=two).num_replicas == 2
    assert epoch_of(two.state_dict(), loader=auto).num_replicas == 2
    assert epoch_of(two.state_dict(), loader=single).num_replicas is None
    with pytest.raises(NoSuchPlace, match="2 ranks"):
        epoch_of(two.state_dict(), loader=two, num_replicas=4)


def test_an_epoch_begun_with_another_batch_size_has_positions_alone() -> None:
    resumed = make({"shuffle": True, "drop_last": True}, batch_size=5)
    resumed.load_state_dict(make({"shuffle": True, "drop_last": True}).state_dict())
    resumed.seek(epoch=1, position=4)
    order = epoch_of(resumed.state_dict(), num_replicas=1)
    placed = order.at_position(21)
    assert (placed.step, placed.is_delivered) == (None, None)
    with pytest.raises(NoSuchPlace, match="batch"):
        order.at_step(0)
    assert epoch_of(resumed.state_dict(), epoch=2, num_replicas=1).at_position(5).step == 1


def test_a_dropped_sample_is_found_and_not_delivered() -> None:
    order = epoch_of(make({}, drop_last=True).state_dict(), num_replicas=1)
    (placed,) = order.of_sample(N - 1)
    assert (placed.is_delivered, placed.step) == (False, None)
    with pytest.raises(NoSuchPlace, match=f"no sample {N}: the stream has {N} samples"):
        order.of_sample(N)
    for impossible in (-1, N):
        with pytest.raises(NoSuchPlace, match="epoch 0"):
            order.at_position(impossible)
    with pytest.raises(NoSuchPlace, match="negative"):
        order.of_sample(-1)


def test_a_loader_of_another_stream_is_refused() -> None:
    saved = make({"shuffle": True}).state_dict()
    with pytest.raises(StateMismatch) as caught:
        epoch_of(saved, loader=make({}))
    assert caught.value.field == "order"
    other_transform = make({"shuffle": True}, transform=str)
    assert epoch_of(saved, loader=other_transform).order.n == N


def test_names_and_bad_samples_are_reported(tmp_path: Path) -> None:
    files = write_photo_folder(tmp_path, num_classes=2, per_class=3)
    files[4].write_bytes(b"no image")
    loader = StatefulGPULoader(
        FolderSource(tmp_path),
        batch_size=6,
        seed=0,
        on_bad_sample="replace",
        transform=[T.CenterCrop(16)],
    )
    list(loader)
    placed = epoch_of(loader.state_dict(), epoch=0, loader=loader).at_step(0)
    assert [each.name for each in placed] == [*map(str, files)]
    assert [each.index for each in placed if each.bad is not None] == [4]


def test_a_sample_that_cannot_be_read_has_no_name(tmp_path: Path) -> None:
    write_photo_folder(tmp_path, num_classes=1, per_class=2)
    loader = StatefulGPULoader(FolderSource(tmp_path), batch_size=2)
    for file in tmp_path.rglob("*.*"):
        file.unlink()
    order = epoch_of(loader.state_dict(), loader=loader)
    assert [(each.index, each.name) for each in order.at_step(0)] == [(0, None), (1, None)]


def test_an_epoch_in_torchdatas_order_is_refused_and_later_ones_are_not() -> None:
    theirs = StatefulDataLoader(Indices(N), batch_size=4, shuffle=True)
    next(iter(theirs))
    loader = make({"shuffle": True}, seed=None)
    loader.load_state_dict(theirs.state_dict())
    next(iter(loader))
    saved = loader.state_dict()
    with pytest.raises(NoSuchPlace, match="torchdata's"):
        epoch_of(saved)
    with pytest.raises(NoSuchPlace, match="torchdata's"):
        loader.seek(epoch=saved["epoch"], position=4)
    (batches,) = delivered(loader, 1)  # the pass above is broken off: this is the next epoch
    order = epoch_of(saved, epoch=saved["epoch"] + 1)
    assert [[each.index for each in order.at_step(i)] for i in range(len(batches))] == batches


def test_states_of_a_dataset_do_not_hide_the_order() -> None:
    loader = KINDS["dataset with state"]()
    next(iter(loader))
    assert epoch_of(loader.state_dict()).of_sample(0) != []
