"""Epochs of a DALI pipeline equal those of DALI's own iterator, and are exact after any batch."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.integrations.dali import DALILoader
from stateful_gpu_loader.samplers import LastBatchPolicy
from tests.conformance import assert_exact_resume
from tests.integrations.dali_readers import Arguments, loader, numbers
from tests.samplers.dali_epochs import POLICIES, dali_epochs, write_numbered_lmdb

pytest.importorskip("nvidia.dali")

MODES = list(itertools.product((False, True), (False, True), POLICIES))
PAIRS = [mode for mode in MODES if (mode[0] == mode[1]) != (mode[2] == POLICIES[1])]
"""Modes in which each two values come together once."""
SIZES = [(7, 1, 3), (11, 3, 2), (10, 4, 2), (7, 2, 4), (3, 3, 2)]
"""Samples, shards, batch size. tests/samplers compares all of them with DALI in every mode."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("numbered")


def numbered(
    folder: Path, n: int, batch_size: int, policy: str, arguments: Arguments, **made: Any
) -> DALILoader:
    arguments = {"path": write_numbered_lmdb(folder, n), **arguments}
    options = {"last_batch_policy": LastBatchPolicy(policy)}
    return loader(numbers(), "caffe", arguments, batch_size=batch_size, options=options, **made)


def labels(loaded: DALILoader) -> list[list[int]]:
    return [batch["labels"].flatten().tolist() for batch in loaded]


@pytest.mark.dali
@pytest.mark.parametrize(("mode", "size"), [*zip(MODES, itertools.cycle(SIZES), strict=False)])
def test_epochs_are_those_of_dalis_iterator(
    folder: Path, mode: tuple[bool, bool, str], size: tuple[int, int, int]
) -> None:
    """Batch by batch over six epochs, and the length of each."""
    pad_last_batch, stick_to_shard, policy = mode
    n, num_shards, batch_size = size
    arguments: Arguments = {
        "shard_id": num_shards - 1,
        "num_shards": num_shards,
        "pad_last_batch": pad_last_batch,
        "stick_to_shard": stick_to_shard,
    }
    ours = numbered(folder, n, batch_size, policy, arguments)
    if policy == "drop" and n // num_shards < batch_size:
        with pytest.raises(LoaderError, match="DROP"):
            len(ours)
        return
    theirs = dali_epochs(folder, n, batch_size, epochs=6, last_batch_policy=policy, **arguments)
    for epoch in theirs:
        assert len(ours) == len(epoch)
        assert labels(ours) == epoch


@pytest.mark.dali
@pytest.mark.parametrize(("pad_last_batch", "stick_to_shard", "policy"), PAIRS)
def test_every_policy_resumes_after_every_batch(
    folder: Path, pad_last_batch: bool, stick_to_shard: bool, policy: str
) -> None:
    """Over the epochs in which a shard goes round, and into the next."""
    arguments: Arguments = {
        "shard_id": 1,
        "num_shards": 3,
        "pad_last_batch": pad_last_batch,
        "stick_to_shard": stick_to_shard,
        "random_shuffle": True,
        "initial_fill": 3,
    }
    make = partial(numbered, folder, 11, 2, policy, arguments)
    assert_exact_resume(make, epochs=4, other=({"prefetch_queue_depth": 4},))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_may_be_dalis_own(folder: Path, policy: str) -> None:
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy as Theirs

    ours = numbered(folder, 7, 3, policy, {})
    theirs = loader(
        numbers(),
        "caffe",
        {"path": write_numbered_lmdb(folder, 7)},
        options={"last_batch_policy": Theirs[policy.upper()]},
    )
    next(iter(ours))
    theirs.load_state_dict(ours.state_dict())
    assert labels(theirs) == labels(ours)


def test_an_abandoned_iterator_refuses_to_continue(folder: Path) -> None:
    """One of two iterators would enter the next epoch after the other has ended this one."""
    run = numbered(folder, 7, 2, "partial", {})
    old, new = iter(run), iter(run)
    found = [next(old), next(new)]
    state = run.state_dict()
    with pytest.raises(LoaderError, match="DALILoader"):
        next(old)
    assert run.state_dict() == state
    found.extend(new)
    assert [batch["labels"].flatten().tolist() for batch in found] == [[0, 1], [2, 3], [4, 5], [6]]


def test_a_resumed_loader_knows_its_epochs_length(folder: Path) -> None:
    """Shards of 3 and 4 samples take turns."""
    arguments = {"num_shards": 2, "pad_last_batch": False}
    run = numbered(folder, 7, 1, "partial", arguments)
    lengths = []
    for _ in range(4):
        state = run.state_dict()
        resumed = numbered(folder, 7, 1, "partial", arguments)
        resumed.load_state_dict(state)
        assert len(resumed) == len(run)
        lengths.append(len(run))
        assert len(labels(run)) == lengths[-1]
    assert lengths == [3, 4, 3, 4]
