"""ShardSampler: its epochs compared with DALI's readers, its state and its arguments."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stateful_gpu_loader.samplers.orders import key_offset_of
from stateful_gpu_loader.samplers.sharded import LastBatchPolicy, ShardSampler
from tests.map_datasets import Indices
from tests.samplers.dali_epochs import POLICIES, dali_epochs
from tests.samplers.makers import SHARDS, SHUFFLES, make_shard
from tests.samplers.statistics import assert_uniform

pytest.importorskip("nvidia.dali")

EPOCHS = 5

MODES = list(itertools.product((False, True), (False, True), POLICIES))
"""``pad_last_batch``, ``stick_to_shard`` and ``last_batch_policy``."""


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


def assert_as_dali(folder: Path, n: int, batch_size: int, epochs: int, **arguments: Any) -> None:
    """Check for equal epochs, or a refusal where DALI refuses."""
    reader = ("caffe", "file")[n % 2]
    drops = arguments["last_batch_policy"] == "drop"
    if drops and n // arguments["num_shards"] < batch_size:
        with pytest.raises(RuntimeError, match="no data in the pipeline"):
            dali_epochs(folder, n, batch_size, epochs=1, reader=reader, **arguments)
        with pytest.raises(ValueError, match="DROP"):
            our_epochs(n, batch_size, epochs=1, **arguments)
        return
    theirs = dali_epochs(folder, n, batch_size, epochs=epochs, reader=reader, **arguments)
    ours = our_epochs(n, batch_size, epochs=epochs, **arguments)
    assert ours == theirs, f"{n = }, {batch_size = }, {arguments}"


def configurations(mode: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Number of samples and shards, the shard, the batch size, and the number of epochs.

    Each pair of numbers comes in three of the twelve modes, once with each policy.
    """
    pairs = [(n, shards) for n in range(1, 24) for shards in range(1, min(5, n) + 1)]
    for n, num_shards in pairs[mode % 4 :: 4]:
        yield n, num_shards, n % num_shards, 1 + (n + num_shards) % 4, EPOCHS
    for n, num_shards in ((11, 4), (13, 3)):  # every shard; also batches larger than a shard
        for shard_id, batch_size in itertools.product(range(num_shards), (1, 2, 3, 5)):
            yield n, num_shards, shard_id, batch_size, EPOCHS
    # DALI's count of what it read ahead continues from epoch to epoch; the sampler uses a closed
    # form.
    for n, num_shards, batch_size in ((37, 5, 4), (10, 3, 3), (23, 5, 4), (9, 4, 2)):
        yield n, num_shards, 1, batch_size, 40


@pytest.mark.dali
@pytest.mark.parametrize("mode", range(len(MODES)), ids=MODES.__getitem__)
def test_epochs_are_those_of_dali(folder: Path, mode: int) -> None:
    """The configurations alternate between DALI's two readers."""
    pad_last_batch, stick_to_shard, policy = MODES[mode]
    for n, num_shards, shard_id, batch_size, epochs in configurations(mode):
        assert_as_dali(
            folder,
            n,
            batch_size,
            epochs,
            shard_id=shard_id,
            num_shards=num_shards,
            pad_last_batch=pad_last_batch,
            stick_to_shard=stick_to_shard,
            last_batch_policy=policy,
        )


@pytest.mark.parametrize("stick_to_shard", [False, True])
def test_shuffling_keeps_the_contents_that_dali_gives_a_shard(
    folder: Path, stick_to_shard: bool
) -> None:
    """Shuffled within the shard, and padded by the last sample that was drawn."""
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
    """Without padding, too: turn after turn in the endless stream."""
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
    """Shards of an epoch share nothing, keep their sizes, and differ from epoch to epoch."""

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
    """The shard stays, as with stick_to_shard."""
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
        ({"num_shards": 8}, "num_shards = 8"),
        ({"shuffle_after_epoch": True, "stick_to_shard": True}, "shuffle_after_epoch=True"),
        ({"shuffle_after_epoch": True, "random_shuffle": True}, "shuffle_after_epoch=True"),
    ],
)
def test_arguments_that_dali_refuses_are_refused(
    tmp_path: Path, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(RuntimeError):
        dali_epochs(tmp_path, 7, 2, epochs=1, reader="file", **arguments)
    with pytest.raises(ValueError, match=text):
        our_epochs(7, 2, epochs=1, **arguments)


GOLDEN = [[5, 3, 4, 6, 9, 7], [8, 2, 1]]
GOLDEN_AFTER = [2, 9, 0, 8, 5, 7]


def make(**arguments: Any) -> ShardSampler:
    sampler: ShardSampler = make_shard(**{"seed": 6, **arguments})
    return sampler


@pytest.mark.parametrize("policy", list(LastBatchPolicy))
def test_padded_epochs_give_each_shard_and_nothing_else(policy: LastBatchPolicy) -> None:
    """All shards of an epoch are a pass over the dataset, with any rotation or shuffle."""
    for shuffle in SHUFFLES.values():
        samplers = [
            make(shard_id=i, pad_last_batch=True, last_batch_policy=policy, **shuffle)
            for i in range(3)
        ]
        for _ in range(4):
            counts = Counter(index for sampler in samplers for index in sampler)
            if policy is LastBatchPolicy.PARTIAL:
                assert counts == Counter(range(23))
            elif policy is LastBatchPolicy.FILL:
                assert set(counts) == set(range(23))
            elif not shuffle.get("random_shuffle"):
                assert max(counts.values()) == 1


def test_permutations_of_shards_and_turns_differ() -> None:
    """Shards of one size, and a shard's epochs."""
    given: Any = {"num_shards": 3, "random_shuffle": True, "stick_to_shard": True, "seed": 1}
    shards = [ShardSampler(range(60), 20, shard_id=i, **given) for i in range(3)]
    orders = [[i % 20 for i in sampler] for sampler in shards * 3]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 9


@pytest.mark.fuzz
def test_the_order_within_a_shard_is_uniform() -> None:
    """All 24 orders of a shard of 4 come equally often, over turns and seeds."""
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(200):
        sampler = ShardSampler(range(8), 4, num_shards=2, random_shuffle=True, seed=seed)
        seen.update(tuple(index % 4 for index in sampler) for _ in range(4))
    assert len(seen) == 24
    assert_uniform(list(seen.values()))


def test_a_late_epoch_of_a_large_dataset_is_found_without_passing_through() -> None:
    """Constant time, also where the stream's places exceed int64."""
    n, epoch = (1 << 45) + 1, 2**32 - 2
    for name, make_one in SHARDS.items():
        sampler = make_one(data_source=Indices(n), num_shards=7, batch_size=256)
        order = sampler.order.of_epoch(6, epoch)
        shard = 1 if "stays" in name else (1 + epoch) % 7
        for positions in (np.arange(64), np.arange(order.n - 64, order.n)):
            indices = order(positions)
            assert ((indices >= 0) & (indices < n)).all()
            if "padded" in name and "after each epoch" not in name:
                assert n * shard // 7 <= indices.min() <= indices.max() < n * (shard + 1) // 7


def test_epochs_that_fill_up_from_the_next_shard_follow_one_another_without_a_gap() -> None:
    """An epoch does not repeat samples that the previous one read ahead, as with DALI."""
    sampler = make(data_source=Indices(10**12 + 39), num_shards=5, batch_size=64)
    for epoch in (0, 1, 10**6, 2**31):
        last = sampler.order.of_epoch(0, epoch)
        first = sampler.order.of_epoch(0, epoch + 1)
        end = last(np.array([last.n - 1])).item()
        assert first(np.array([0])).item() == (end + 1) % (10**12 + 39)
        assert last.n % 64 == 0


def test_the_order_is_kept() -> None:
    """Later releases resume a state saved today."""
    sampler = make(data_source=Indices(10), random_shuffle=True)
    assert [list(sampler) for _ in range(2)] == GOLDEN
    after = make(data_source=Indices(10), shuffle_after_epoch=True)
    assert list(after) == GOLDEN_AFTER
    assert after.order.algorithm == (
        "shards-1(batch_size=3, shard_id=1, num_shards=3, stick_to_shard=False, "
        "pad_last_batch=False, last_batch_policy=fill, random_shuffle=False, "
        "shuffle_after_epoch=True)"
    )


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"batch_size": 0}, ValueError, "batch_size = 0"),
        ({"num_shards": 0}, ValueError, "num_shards = 0"),
        ({"shard_id": -1}, ValueError, "shard_id = -1"),
        ({"shard_id": 3}, ValueError, "shard_id = 3 .*num_shards = 3"),
        ({"batch_size": 2.0}, TypeError, "float"),
        ({"last_batch_policy": "fill"}, TypeError, "'fill'.*LastBatchPolicy.FILL"),
        ({"data_source": []}, ValueError, r"\b0 samples"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(
    changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make(**changed)


def test_shards_have_different_augmentations() -> None:
    """The same position of two shards has two keys, however long an epoch is."""
    shards = [ShardSampler(Indices(9), 2, shard_id=i, num_shards=3) for i in range(3)]
    offsets = [key_offset_of(shard.order.of_epoch(0, 0)) for shard in shards]
    assert offsets == [0, 2**40, 2**41]
