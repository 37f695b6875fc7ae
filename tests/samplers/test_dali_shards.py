"""Shards as DALI has them: every epoch of every shard against DALI's own readers (C10)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader.samplers.sharded import ShardSampler
from stateful_gpu_loader.samplers.sharding import LastBatchPolicy
from tests.samplers.dali_epochs import POLICIES, dali_epochs

pytest.importorskip("nvidia.dali")

EPOCHS = 5

modes = pytest.mark.parametrize(
    ("pad_last_batch", "stick_to_shard", "policy"),
    list(itertools.product((False, True), (False, True), POLICIES)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("numbered")


def our_epochs(
    n: int, batch_size: int, *, epochs: int, last_batch_policy: str = "fill", **arguments: Any
) -> list[list[list[int]]]:
    policy = LastBatchPolicy(last_batch_policy)
    sampler = ShardSampler(range(n), batch_size, last_batch_policy=policy, **arguments)
    cut = []
    for _ in range(epochs):
        expected = len(sampler)
        indices = list(sampler)
        assert len(indices) == expected <= sampler.order.num_positions
        cut.append([indices[i : i + batch_size] for i in range(0, len(indices), batch_size)])
    return cut


def assert_as_dali(folder: Path, n: int, batch_size: int, **arguments: Any) -> None:
    """Equal epochs, or a refusal where DALI refuses."""
    drops = arguments["last_batch_policy"] == "drop"
    if drops and n // arguments["num_shards"] < batch_size:
        with pytest.raises(RuntimeError, match="no data in the pipeline"):
            dali_epochs(folder, n, batch_size, epochs=1, **arguments)
        with pytest.raises(ValueError, match="DROP drops everything"):
            our_epochs(n, batch_size, epochs=1, **arguments)
        return
    theirs = dali_epochs(folder, n, batch_size, epochs=EPOCHS, **arguments)
    ours = our_epochs(n, batch_size, epochs=EPOCHS, **arguments)
    assert ours == theirs, f"{n = }, {batch_size = }, {arguments}"


@pytest.mark.dali
@modes
def test_epochs_are_those_of_dali_at_all_sizes(
    folder: Path, pad_last_batch: bool, stick_to_shard: bool, policy: str
) -> None:
    """C10: 1 to 23 samples in 1 to 5 shards, batch sizes 1 to 4: few of them divide."""
    for n, num_shards in itertools.product(range(1, 24), range(1, 6)):
        if num_shards <= n:
            assert_as_dali(
                folder,
                n,
                1 + (n + num_shards) % 4,
                shard_id=n % num_shards,
                num_shards=num_shards,
                pad_last_batch=pad_last_batch,
                stick_to_shard=stick_to_shard,
                last_batch_policy=policy,
            )


@pytest.mark.dali
@modes
@pytest.mark.parametrize(("n", "num_shards"), [(11, 4), (13, 3)])
def test_every_shard_is_that_of_dali(
    folder: Path, n: int, num_shards: int, pad_last_batch: bool, stick_to_shard: bool, policy: str
) -> None:
    """C10: also where a batch is larger than a shard."""
    for shard_id, batch_size in itertools.product(range(num_shards), (1, 2, 3, 5)):
        assert_as_dali(
            folder,
            n,
            batch_size,
            shard_id=shard_id,
            num_shards=num_shards,
            pad_last_batch=pad_last_batch,
            stick_to_shard=stick_to_shard,
            last_batch_policy=policy,
        )


@pytest.mark.dali
@modes
def test_many_epochs_later_they_are_still_those_of_dali(
    folder: Path, pad_last_batch: bool, stick_to_shard: bool, policy: str
) -> None:
    """DALI's count of what it read ahead goes on from epoch to epoch; ours is a closed form."""
    for n, num_shards, batch_size in ((37, 5, 4), (10, 3, 3), (23, 5, 4), (9, 4, 2)):
        arguments: dict[str, Any] = {
            "shard_id": 1,
            "num_shards": num_shards,
            "pad_last_batch": pad_last_batch,
            "stick_to_shard": stick_to_shard,
            "last_batch_policy": policy,
        }
        theirs = dali_epochs(folder, n, batch_size, epochs=40, **arguments)
        assert our_epochs(n, batch_size, epochs=40, **arguments) == theirs


@modes
def test_another_reader_of_dali_agrees(
    tmp_path: Path, pad_last_batch: bool, stick_to_shard: bool, policy: str
) -> None:
    arguments: dict[str, Any] = {
        "shard_id": 2,
        "num_shards": 3,
        "pad_last_batch": pad_last_batch,
        "stick_to_shard": stick_to_shard,
        "last_batch_policy": policy,
    }
    theirs = dali_epochs(tmp_path, 10, 2, epochs=EPOCHS, reader="file", **arguments)
    assert our_epochs(10, 2, epochs=EPOCHS, **arguments) == theirs


@pytest.mark.parametrize("stick_to_shard", [False, True])
def test_shuffling_keeps_the_contents_that_dali_gives_a_shard(
    folder: Path, stick_to_shard: bool
) -> None:
    """C10: shuffled within the shard, and padded by the last sample that was drawn."""
    for n, num_shards, batch_size in ((13, 3, 2), (10, 4, 2), (7, 2, 4)):
        arguments: dict[str, Any] = {
            "shard_id": 1,
            "num_shards": num_shards,
            "stick_to_shard": stick_to_shard,
            "pad_last_batch": True,
            "random_shuffle": True,
        }
        for policy in ("fill", "partial"):
            options = {"last_batch_policy": policy, **arguments}
            ours = our_epochs(n, batch_size, epochs=EPOCHS, **options)
            theirs = dali_epochs(
                folder, n, batch_size, epochs=EPOCHS, seed=3, initial_fill=5, **options
            )
            for one, other in zip(ours, theirs, strict=True):
                assert [len(batch) for batch in one] == [len(batch) for batch in other]
                mine, dalis = (list(itertools.chain(*epoch)) for epoch in (one, other))
                assert set(mine) == set(dalis)
                size = len(set(mine))
                for indices in (mine, dalis):
                    assert len(set(indices[:size])) == size
                    assert set(indices[size - 1 :]) == {indices[size - 1]}


@pytest.mark.parametrize("stick_to_shard", [False, True])
def test_shuffling_goes_through_one_shard_before_it_begins_the_next(
    folder: Path, stick_to_shard: bool
) -> None:
    """C10: without padding, too: turn after turn in the endless stream."""
    arguments: dict[str, Any] = {
        "shard_id": 1,
        "num_shards": 3,
        "stick_to_shard": stick_to_shard,
        "random_shuffle": True,
    }
    ours = our_epochs(11, 2, epochs=9, **arguments)
    theirs = dali_epochs(folder, 11, 2, epochs=9, seed=3, initial_fill=3, **arguments)
    assert [len(epoch) for epoch in ours] == [len(epoch) for epoch in theirs]
    turns = [range(3, 7)] * 8 if stick_to_shard else [range(3, 7), range(7, 11), range(3)] * 3
    for epochs in (ours, theirs):
        stream = [index for epoch in epochs for batch in epoch for index in batch]
        place = 0
        for turn in turns:
            assert sorted(stream[place : place + len(turn)]) == list(turn)
            place += len(turn)


def test_shuffling_after_each_epoch_divides_the_whole_dataset_anew(folder: Path) -> None:
    """C10: shards of an epoch share nothing, keep their sizes, and differ from epoch to epoch."""

    def shards(make: Any, **options: Any) -> list[list[list[int]]]:
        runs = [
            make(
                n=11,
                batch_size=2,
                epochs=EPOCHS,
                last_batch_policy="partial",
                shard_id=shard_id,
                num_shards=3,
                pad_last_batch=True,
                shuffle_after_epoch=True,
                **options,
            )
            for shard_id in range(3)
        ]
        return [[list(itertools.chain(*run[epoch])) for run in runs] for epoch in range(EPOCHS)]

    ours = shards(our_epochs)
    theirs = shards(dali_epochs, folder=folder, reader="file")
    for epochs in (ours, theirs):
        for epoch in epochs:
            assert [len(shard) for shard in epoch] == [3, 4, 4]
            assert sorted(itertools.chain(*epoch)) == list(range(11))
        assert len({tuple(map(tuple, epoch)) for epoch in epochs}) == EPOCHS


@pytest.mark.parametrize("policy", POLICIES)
def test_epochs_that_are_shuffled_after_each_have_dalis_lengths(folder: Path, policy: str) -> None:
    """C10: the shard stays, as with stick_to_shard."""
    for pad_last_batch, n in itertools.product((False, True), (7, 11, 12)):
        options: dict[str, Any] = {
            "last_batch_policy": policy,
            "shard_id": 1,
            "num_shards": 3,
            "pad_last_batch": pad_last_batch,
            "shuffle_after_epoch": True,
        }
        ours = our_epochs(n, 2, epochs=EPOCHS, **options)
        theirs = dali_epochs(folder, n, 2, epochs=EPOCHS, reader="file", **options)
        lengths = [[[len(batch) for batch in epoch] for epoch in run] for run in (ours, theirs)]
        assert lengths[0] == lengths[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_shards": 8}, "samples cannot be divided into num_shards = 8"),
        ({"shuffle_after_epoch": True, "stick_to_shard": True}, "shuffle_after_epoch=True with"),
        ({"shuffle_after_epoch": True, "random_shuffle": True}, "shuffle_after_epoch=True with"),
    ],
)
def test_what_dali_refuses_is_refused(tmp_path: Path, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(RuntimeError):
        dali_epochs(tmp_path, 7, 2, epochs=1, reader="file", **arguments)
    with pytest.raises(ValueError, match=text):
        our_epochs(7, 2, epochs=1, **arguments)
